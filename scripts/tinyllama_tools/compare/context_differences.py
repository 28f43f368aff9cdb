"""Why the two sides may differ for another reason than their code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tinyllama_tools.data.names import parse_case_name, parse_collective_name
from tinyllama_tools.data.profiles import SAME_WORK

Context = Mapping[str, Any]
Contexts = Sequence[Context]
# the most important first
KEYS = (
    *("distributed world_size", "distributed backend", "distributed bucket_MiB"),
    *("distributed started_by", "distributed scaling", "device name", "device backend"),
    *("device architecture", "host_name", "threads", "device driver_version"),
    *("device runtime_version", "torch_version", "library_version", "cold_cache", "verify"),
    *("seed", "weights fingerprint", "memory_source", "num_cpus", "cpu_scaling_enabled"),
)
# of a measured peak between two runs of one machine: more than their own scatter explains
PEAK_CHANGE = 0.10
WORK = (*SAME_WORK, "seed", "deterministic", "data", "variant", "learning_rate")


def _value(context: Context, keys: str) -> Any:  # noqa: ANN401
    if keys in context:
        return context[keys]
    found: Any = context
    for key in keys.split():
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _differences(names: Iterable[str], sides: Sequence[Contexts], prefix: str = "") -> list[str]:
    """`threads: 2 in the base, 4 in the new`, of the names whose values are not all the same."""
    found = []
    for name in names:
        values = [[_value(context, name) for context in side] for side in sides]
        first = values[0][0]
        if any(value != first for side in values for value in side):
            shown = (
                ", ".join(dict.fromkeys("not said" if v in (None, "") else str(v) for v in side))
                for side in values
            )
            found.append(f"{prefix}{name}: {next(shown)} in the base, {next(shown)} in the new")
    return found


def _dates(contexts: Contexts) -> list[float]:
    """In seconds; ValueError, OverflowError or OSError unless every file says a date."""
    # "Z" is not read before Python 3.11
    texts = (str(context.get("date")).replace("Z", "+00:00") for context in contexts)
    return [datetime.fromisoformat(text).timestamp() for text in texts]


def one_after_the_other(base: Contexts, new: Contexts) -> str | None:
    """What to know where all files of one side are older than all of the other: their order is then
    the same as their side, and no test can tell the two apart."""
    try:
        before, after = _dates(base), _dates(new)
    except (ValueError, OverflowError, OSError):
        return None
    if max(before) < min(after) or max(after) < min(before):
        return (
            "measured one after the other: what changed on the machine between the two periods "
            "counts as difference, and alpha does not hold; measure base and new alternately"
        )
    return None


def _peak(contexts: Contexts, name: str) -> float | None:
    """The mean over those that have it."""
    peaks = [_value(context, f"peaks measured {name}") or {} for context in contexts]
    rates = [next((v for k, v in peak.items() if k != "source"), None) for peak in peaks]
    known = [rate for rate in rates if isinstance(rate, (int, float)) and rate > 0]
    return sum(known) / len(known) if known else None


def context_differences(base: Contexts, new: Contexts) -> list[str]:
    """From the contexts of all files of a side; a debug build and another device come first."""
    sides = (base, new)
    named = (("base", base), ("new", new))
    found = [
        f"debug build in the {side}: its figures mean nothing"
        for side, contexts in named
        if any(context.get("library_build_type") == "debug" for context in contexts)
    ]
    found += _differences(KEYS, sides)
    settings = [[context.get("settings") or {} for context in side] for side in sides]
    names = dict.fromkeys(name for side in settings for context in side for name in context)
    found += _differences(names, settings, "setting ")
    found += [
        f"the {side} was built from files that are in no commit (git_dirty)"
        for side, contexts in named
        if any(context.get("git_dirty") for context in contexts)
    ]
    # the machine itself was faster or slower
    for name in _value(base[0], "peaks measured") or {}:
        before, after = _peak(base, name), _peak(new, name)
        if before and after and abs(after / before - 1) > PEAK_CHANGE:
            found.append(
                f"the machine's own measured peak ({name}) is {100 * (after / before - 1):+.0f} % "
                "in the new: it was in another state"
            )
    return found


def work_differences(base: Contexts, new: Contexts) -> list[str]:
    """From the configurations of training runs: why they did not do the same work."""
    return _differences(WORK, (base, new), "not the same work: ")


def axis_differences(base: Sequence[str], new: Sequence[str]) -> list[str]:
    """From names of cases: dtypes, sizes, variants and ranks that only one side has."""
    sides = [
        [parse_case_name(text) or parse_collective_name(text) for text in names]
        for names in (base, new)
    ]
    found = []
    for axis in ("dtype", "size", "variant", "ranks"):
        values = [{getattr(name, axis, None) for name in names} - {None, ""} for names in sides]
        if values[0] != values[1]:
            shown = [", ".join(sorted(map(str, side))) or "none" for side in values]
            found.append(f"{axis}: {shown[0]} in the base, {shown[1]} in the new")
    return found
