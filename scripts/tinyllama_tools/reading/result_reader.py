"""Reads a result file of tiny_llama_bench: its rows, and as much of the rest as must be sound.

results/schema.json describes the whole file; a test holds this reader to it. Thousands of cases are
read within a second, which a check of the whole schema is too slow for.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.reading.case_name import TIMED_BY
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.json_file import MEASURE_AGAIN, Json, bad_file
from tinyllama_tools.reading.json_number import is_finite, shown
from tinyllama_tools.reading.stored_run import StoredCase, StoredRun
from tinyllama_tools.reading.version_2 import OLDER, from_version_2
from tinyllama_tools.suite_run import OWN_KEYS, UNITS

SCHEMA_VERSION = 3
# measurements of the machine, which are the percentages' denominators and nobody's code
PEAKS = "peak/"
# of those rows, the counter that is the more the better
PEAK_RATES = ("TFLOPS", "GB_per_second")
ITERATION = "iteration"
NEEDED = {"run_name": str, "run_type": str, "real_time": (int, float), "time_unit": str}
# of the context, where they are there at all
OBJECTS = (("device",), ("settings",), ("weights",), ("peaks",), ("peaks", "measured"))


class BadCounterError(BadInputError):
    """A counter of one row cannot be computed with. `reason`: without the file and the row."""

    def __init__(self, path: Path, row: str, reason: str) -> None:
        super().__init__(str(bad_file(path, f"{row}: {reason}", MEASURE_AGAIN)))
        self.reason = reason


def is_result(document: Json) -> bool:
    """Whether it looks like Google Benchmark's JSON, ours or another's."""
    return isinstance(document.get("context"), dict) and "benchmarks" in document


def _refuse_no_objects(context: Json, path: Path) -> None:
    for keys in OBJECTS:
        found = context
        for key in keys:
            found = found.get(key) or {}
        if not isinstance(found, dict):
            name = ".".join(("context", *keys))
            raise bad_file(path, f"{name} is {found!r}, must be an object", MEASURE_AGAIN)
    for name, peak in ((context.get("peaks") or {}).get("measured") or {}).items():
        if not isinstance(peak, dict):
            where = f"context.peaks.measured.{name}"
            raise bad_file(path, f"{where} is {peak!r}, must be an object", MEASURE_AGAIN)


def _check_context(document: Json, path: Path) -> None:
    context = document["context"]
    version = context.get("schema_version")
    if version is None:
        raise bad_file(
            path,
            "its context has no schema_version, so it is of another benchmark",
            "name a result file of tiny_llama_bench",
        )
    if version not in (OLDER, SCHEMA_VERSION):
        raise bad_file(
            path,
            f"schema_version is {version!r}, must be {SCHEMA_VERSION} or {OLDER}",
            "measure again with this version of the suite",
        )
    if not isinstance(document["benchmarks"], list):
        raise bad_file(path, "'benchmarks' is no list", MEASURE_AGAIN)
    _refuse_no_objects(context, path)


def _check_entry(entry: object, index: int, path: Path) -> None:
    where = f"benchmarks[{index}]"
    if not isinstance(entry, dict):
        raise bad_file(path, f"{where} is no object", MEASURE_AGAIN)
    for key, kind in NEEDED.items():
        value = entry.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            what = f"has no '{key}'" if key not in entry else f"has {key} {value!r}"
            rule = f"must be {'a text' if kind is str else 'a number'}"
            raise bad_file(path, f"{where} {what}, {rule}", MEASURE_AGAIN)
    if entry["time_unit"] not in UNITS:
        known = ", ".join(UNITS)
        raise bad_file(
            path,
            f"{entry['run_name']}: time_unit '{entry['time_unit']}', must be one of {known}",
            MEASURE_AGAIN,
        )


def current_result(document: Json, path: Path) -> Json:
    """A result in the present version of the format, checked so far that its rows can be told
    apart; BadInputError as of read_rows."""
    _check_context(document, path)
    for index, entry in enumerate(document["benchmarks"]):
        _check_entry(entry, index, path)
    if document["context"]["schema_version"] == OLDER:
        return from_version_2(document, SCHEMA_VERSION)
    return document


def _seconds(entry: Json, path: Path) -> float:
    time = entry["real_time"]
    seconds = time * UNITS[entry["time_unit"]] if is_finite(time) else math.inf
    if not (is_finite(seconds) and seconds > 0):
        raise bad_file(
            path,
            f"{entry['run_name']}: real_time {shown(time)} {entry['time_unit']}, "
            "must be a positive, finite number",
            MEASURE_AGAIN,
        )
    return seconds


def _counters(repetitions: Sequence[Json], path: Path) -> tuple[dict[str, float], frozenset[str]]:
    """Medians, and the names of those that were not the same every time."""
    first, others = repetitions[0], repetitions[1:]
    found, varying = {}, set()
    for name, value in first.items():
        if name in OWN_KEYS or type(value) not in (int, float):
            continue
        values = [value, *(entry.get(name, value) for entry in others)]
        if not all(map(is_finite, values)):
            bad = next(v for v in values if not is_finite(v))
            reason = f"counter {name} is {shown(bad)}, must be finite"
            raise BadCounterError(path, first["run_name"], reason)
        if values.count(value) == len(values):
            found[name] = value
        else:
            found[name] = statistics.median(values)
            varying.add(name)
    return found, frozenset(varying)


def _refuse_twice(name: str, repetitions: Sequence[Json], path: Path) -> None:
    indices = [entry.get("repetition_index") for entry in repetitions]
    # as text, since a bad file may have anything there
    counts = Counter(map(repr, indices))
    twice = next((text for text, count in counts.items() if count > 1), None)
    if twice is not None:
        which = f"repetition {twice}" if twice != repr(None) else "a repetition without an index"
        raise bad_file(
            path,
            f"{name}: {which} is there {counts[twice]} times, but a case belongs once in a file",
            "give two runs as two files: --base A.json B.json",
        )


def _case(name: str, entries: Sequence[Json], path: Path) -> StoredCase:
    repetitions = [entry for entry in entries if entry["run_type"] == ITERATION]
    _refuse_twice(name, repetitions, path)
    failed = next((e for e in repetitions if e.get("error_occurred")), None)
    if failed is not None:
        return StoredCase(failed=str(failed.get("error_message") or "no reason given"))
    skipped = next((e for e in repetitions if e.get("skipped")), None)
    if skipped is not None:
        return StoredCase(skipped=str(skipped.get("skip_message") or "no reason given"))
    count = len(repetitions)
    label = str(entries[0].get("label", ""))
    if not repetitions:
        # --benchmark_report_aggregates_only leaves the median of them
        repetitions = [e for e in entries if e.get("aggregate_name") == "median"]
        if not repetitions:
            raise bad_file(path, f"{name}: neither a repetition nor a median", MEASURE_AGAIN)
        iterations = repetitions[0].get("iterations")
        count = iterations if type(iterations) is int else 0
    counters, varying = _counters(repetitions, path)
    seconds = statistics.median(_seconds(entry, path) for entry in repetitions)
    above_peak = str(repetitions[0].get("above_peak", ""))
    return StoredCase(seconds, count, counters, varying, label=label, above_peak=above_peak)


def _peak_rate(entry: Json) -> float:
    rates = (entry.get(name) for name in PEAK_RATES)
    return next((rate for rate in rates if type(rate) in (int, float)), 0.0)


def _peak(name: str, entries: Sequence[Json], path: Path) -> StoredCase:
    """As a case, but of its best repetition alone: what a machine can do is the best it did."""
    case = _case(name, entries, path)
    repetitions = [entry for entry in entries if entry["run_type"] == ITERATION]
    if case.seconds is None or not repetitions:
        return case
    best = max(repetitions, key=_peak_rate)
    counters, _ = _counters([best], path)
    label = str(best.get("label", ""))
    return replace(case, seconds=_seconds(best, path), counters=counters, label=label)


def _by_name(entries: Sequence[Json]) -> Mapping[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for entry in entries:
        found.setdefault(entry["run_name"].removesuffix(TIMED_BY), []).append(entry)
    return found


def read_rows(document: Json, path: Path, *, bad_counters_fail: bool = False) -> StoredRun:
    """The cases and the machine's peaks of a result file, none of which need be there.

    BadInputError naming the file, the case and the value for a wrong schema_version, a foreign
    file, an unknown unit, a time or counter that is not finite or a time of zero or less, and a
    case that is there twice. `bad_counters_fail`: a row with such a counter has failed instead, and
    the others stay.
    """
    document = current_result(document, path)
    cases: dict[str, StoredCase] = {}
    peaks: dict[str, StoredCase] = {}
    for name, entries in _by_name(document["benchmarks"]).items():
        found, read = (peaks, _peak) if name.startswith(PEAKS) else (cases, _case)
        try:
            found[name] = read(name, entries, path)
        except BadCounterError as error:
            if not bad_counters_fail:
                raise
            found[name] = StoredCase(failed=error.reason)
    return StoredRun(path, document["context"], cases, peaks)


def read_result(document: Json, path: Path) -> StoredRun:
    """As read_rows, and BadInputError for a file without cases."""
    run = read_rows(document, path)
    if not run.cases:
        raise bad_file(path, "holds no case", MEASURE_AGAIN)
    return run
