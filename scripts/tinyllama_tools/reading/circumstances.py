"""What results have to share before they are put together: one list for each purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Context = Mapping[str, Any]
Keys = Sequence[tuple[str, ...]]

# A time of one is a time of the other's device.
SAME_DEVICE: Keys = (
    ("device", "name"),
    ("device", "architecture"),
    ("device", "backend"),
    ("threads",),
)
# Rates and peaks of one hold for the other.
SAME_MACHINE: Keys = (
    *SAME_DEVICE,
    ("device", "driver_version"),
    ("device", "runtime_version"),
    ("torch_version",),
)
# Rounds of one run. Of `settings`, every one that either has: precision of products, affinity,
# clocks, variables of the environment.
SAME_RUN: Keys = (
    *SAME_MACHINE,
    ("git_commit",),
    ("git_dirty",),
    ("cold_cache",),
    ("memory_source",),
    ("settings",),
)


@dataclass(frozen=True)
class Difference:
    """`name`: the key with dots, as in the file."""

    name: str
    here: object
    there: object


def value_at(context: Context, keys: Sequence[str]) -> object:
    """None where a context does not say it."""
    found: object = context
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _differences(name: str, here: object, there: object) -> Iterator[Difference]:
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in dict.fromkeys((*here, *there)):
            yield from _differences(f"{name}.{key}", here.get(key), there.get(key))
    elif here != there:
        yield Difference(name, here, there)


def first_difference(here: Context, there: Context, keys: Keys) -> Difference | None:
    """The first of the keys that two contexts do not say the same of; None where all agree."""
    for path in keys:
        for found in _differences(".".join(path), value_at(here, path), value_at(there, path)):
            return found
    return None
