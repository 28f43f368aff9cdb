"""Why the two sides may differ for another reason than their code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from tinyllama_tools.data.names import parse_case_name, parse_collective_name
from tinyllama_tools.data.profiles import SAME_WORK

Context = Mapping[str, Any]
Contexts = Sequence[Context]
# the most important first
KEYS = (
    ("distributed", "world_size"),
    ("distributed", "backend"),
    ("distributed", "bucket_MiB"),
    ("distributed", "started_by"),
    ("distributed", "scaling"),
    ("device", "name"),
    ("device", "backend"),
    ("device", "architecture"),
    ("host_name",),
    ("threads",),
    ("device", "driver_version"),
    ("device", "runtime_version"),
    ("torch_version",),
    ("library_version",),
    ("cold_cache",),
    ("verify",),
    ("seed",),
    ("weights", "fingerprint"),
    ("memory_source",),
    ("num_cpus",),
    ("cpu_scaling_enabled",),
)
# of a measured peak between two runs of one machine: more than their own scatter explains
PEAK_CHANGE = 0.10
WORK = (*SAME_WORK, "seed", "deterministic", "data", "variant", "learning_rate")


def _value(context: Context, keys: Sequence[str]) -> Any:  # noqa: ANN401
    found: Any = context
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _shown(values: Sequence[Any]) -> str:
    texts = ["not said" if value in (None, "") else str(value) for value in values]
    return ", ".join(dict.fromkeys(texts))


def difference(name: str, base: Sequence[Any], new: Sequence[Any]) -> str | None:
    """`threads: 2 in the base, 4 in the new`, None where all values are the same."""
    values = [*base, *new]
    if all(value == values[0] for value in values):
        return None
    return f"{name}: {_shown(base)} in the base, {_shown(new)} in the new"


def _dates(contexts: Contexts) -> list[float] | None:
    """In seconds; None unless every file says a date."""
    found = []
    for context in contexts:
        try:
            # "Z" is not read before Python 3.11
            date = datetime.fromisoformat(str(context.get("date")).replace("Z", "+00:00"))
            found.append(date.timestamp())
        except (ValueError, OverflowError, OSError):
            return None
    return found


def one_after_the_other(base: Contexts, new: Contexts) -> str | None:
    """What to know where all files of one side are older than all of the other: their order is then
    the same as their side, and no test can tell the two apart."""
    before, after = _dates(base), _dates(new)
    if before and after and (max(before) < min(after) or max(after) < min(before)):
        return (
            "measured one after the other: what changed on the machine between the two periods "
            "counts as difference, and alpha does not hold; measure base and new alternately"
        )
    return None


def _debug_builds(base: Contexts, new: Contexts) -> Iterator[str]:
    for side, contexts in (("base", base), ("new", new)):
        if any(context.get("library_build_type") == "debug" for context in contexts):
            yield f"debug build in the {side}: its figures mean nothing"


def _dirty(base: Contexts, new: Contexts) -> Iterator[str]:
    for side, contexts in (("base", base), ("new", new)):
        if any(context.get("git_dirty") for context in contexts):
            yield f"the {side} was built from files that are in no commit (git_dirty)"


def _settings(base: Contexts, new: Contexts) -> Iterator[str]:
    sides = [[context.get("settings") or {} for context in side] for side in (base, new)]
    names = dict.fromkeys(name for side in sides for settings in side for name in settings)
    for name in names:
        found = difference(name, *([settings.get(name) for settings in side] for side in sides))
        if found:
            yield f"setting {found}"


def _peaks(contexts: Contexts, name: str) -> list[float]:
    found = [_value(context, ("peaks", "measured", name)) for context in contexts]
    rates = [next((v for k, v in peak.items() if k != "source"), None) for peak in found if peak]
    return [rate for rate in rates if isinstance(rate, (int, float)) and rate > 0]


def _peak_changes(base: Contexts, new: Contexts) -> Iterator[str]:
    """The machine itself was faster or slower."""
    for name in _value(base[0], ("peaks", "measured")) or {}:
        before, after = _peaks(base, name), _peaks(new, name)
        if not before or not after:
            continue
        ratio = (sum(after) / len(after)) / (sum(before) / len(before))
        if abs(ratio - 1) > PEAK_CHANGE:
            yield (
                f"the machine's own measured peak ({name}) is {100 * (ratio - 1):+.0f} % in the "
                "new: it was in another state"
            )


def context_differences(base: Contexts, new: Contexts) -> list[str]:
    """From the contexts of all files of a side; a debug build and another device come first."""
    found = list(_debug_builds(base, new))
    for keys in KEYS:
        text = difference(" ".join(keys), *([_value(c, keys) for c in s] for s in (base, new)))
        if text:
            found.append(text)
    return [*found, *_settings(base, new), *_dirty(base, new), *_peak_changes(base, new)]


def work_differences(base: Contexts, new: Contexts) -> list[str]:
    """From the configurations of training runs: why they did not do the same work."""
    texts = (difference(k, [c.get(k) for c in base], [c.get(k) for c in new]) for k in WORK)
    return [f"not the same work: {text}" for text in texts if text]


def _axis(text: str, axis: str) -> str:
    """Of a case or a collective; empty where a name does not have it."""
    name = parse_case_name(text) or parse_collective_name(text)
    value = getattr(name, axis, None)
    return "" if value is None else str(value)


def axis_differences(base: Sequence[str], new: Sequence[str]) -> list[str]:
    """From names of cases: dtypes, sizes, variants and ranks that only one side has."""
    found = []
    for axis in ("dtype", "size", "variant", "ranks"):
        sides = [
            sorted({value for name in names if (value := _axis(name, axis))})
            for names in (base, new)
        ]
        if sides[0] != sides[1]:
            found.append(
                f"{axis}: {', '.join(sides[0]) or 'none'} in the base, "
                f"{', '.join(sides[1]) or 'none'} in the new"
            )
    return found
