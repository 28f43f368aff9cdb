"""Reads what the suite and the training program measured, of one file or of several rounds.

results/schema.json describes a whole file of the suite; a test holds this reader to it. Thousands
of cases are read within a second, which a check of the whole schema is too slow for.
docs/training_files.md says what the keys of a training summary mean."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    BadInputError,
    Json,
    bad_file,
    is_finite,
    read_json,
    schema_problem,
    shown_value,
)
from tinyllama_tools.data.machine import (
    ITERATIONS,
    SAME_RUN,
    ProductRate,
    best_products,
    first_difference,
    merged_peaks,
    product_rate,
    restated,
)
from tinyllama_tools.data.names import (
    OWN_KEYS,
    TIMED_BY,
    UNITS,
    CaseName,
    LeftOut,
    StoredCase,
    StoredRun,
    parse_case_name,
)
from tinyllama_tools.data.profiles import is_training_summary, read_training
from tinyllama_tools.data.studies import is_result

SCHEMA_VERSION = 3
# measurements of the machine, which are the percentages' denominators and nobody's code
PEAKS = "peak/"
# of those rows, the counter that is the more the better
PEAK_RATES = ("TFLOPS", "GB_per_second")
ITERATION = "iteration"
NEEDED = {"run_name": str, "run_type": str, "real_time": (int, float), "time_unit": str}
# where they are there at all
_OBJECT = {"type": ["object", "null"]}
_MEASURED = {**_OBJECT, "additionalProperties": {"type": "object"}}
CONTEXT = {
    "properties": {
        **dict.fromkeys(("device", "settings", "weights"), _OBJECT),
        "peaks": {**_OBJECT, "properties": {"measured": _MEASURED}},
    }
}


class BadCounterError(BadInputError):
    """A counter of one row cannot be computed with. `reason`: without the file and the row."""

    def __init__(self, path: Path, row: str, reason: str) -> None:
        super().__init__(str(bad_file(path, f"{row}: {reason}", MEASURE_AGAIN)))
        self.reason = reason


def _check_context(document: Json, path: Path) -> None:
    version = document["context"].get("schema_version")
    if version is None:
        what = "its context has no schema_version, so it is of another benchmark"
        raise bad_file(path, what, "name a result file of tiny_llama_bench")
    if version != SCHEMA_VERSION:
        what = f"schema_version is {version!r}, must be {SCHEMA_VERSION}"
        raise bad_file(path, what, "measure again with this version of the suite")
    if not isinstance(document["benchmarks"], list):
        raise bad_file(path, "'benchmarks' is no list", MEASURE_AGAIN)
    problem = schema_problem(document["context"], CONTEXT)
    if problem:
        raise bad_file(path, f"context.{problem}", MEASURE_AGAIN)


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


def checked_result(document: Json, path: Path) -> Json:
    """A result, checked so far that its rows can be told
    apart; BadInputError as of read_rows."""
    _check_context(document, path)
    for index, entry in enumerate(document["benchmarks"]):
        _check_entry(entry, index, path)
    return document


def _seconds(entry: Json, path: Path) -> float:
    time = entry["real_time"]
    seconds = time * UNITS[entry["time_unit"]] if is_finite(time) else math.inf
    if not (is_finite(seconds) and seconds > 0):
        raise bad_file(
            path,
            f"{entry['run_name']}: real_time {shown_value(time)} {entry['time_unit']}, "
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
            reason = f"counter {name} is {shown_value(bad)}, must be finite"
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


def _suite_case(name: str, entries: Sequence[Json], path: Path) -> StoredCase:
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
    times = [_seconds(entry, path) for entry in repetitions]
    return StoredCase(
        statistics.median(times),
        count,
        counters,
        varying,
        label=label,
        above_peak=str(repetitions[0].get("above_peak", "")),
        extremes=(min(times), max(times)) if len(times) > 1 else None,
    )


def _peak_rate(entry: Json) -> float:
    rates = (entry.get(name) for name in PEAK_RATES)
    return next((rate for rate in rates if type(rate) in (int, float)), 0.0)


def _peak(name: str, entries: Sequence[Json], path: Path) -> StoredCase:
    """As a case, but of its best repetition alone: what a machine can do is the best it did."""
    case = _suite_case(name, entries, path)
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
    document = checked_result(document, path)
    cases: dict[str, StoredCase] = {}
    peaks: dict[str, StoredCase] = {}
    for name, entries in _by_name(document["benchmarks"]).items():
        found, read = (peaks, _peak) if name.startswith(PEAKS) else (cases, _suite_case)
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


COMMIT_DIGITS = 8
# of names in one warning
MOST_NAMED = 3


@dataclass(frozen=True)
class MeasuredCase:
    """`seconds` of an iteration: one a file, the median over its repetitions. `counters`: medians
    over the files. `label`: what `optimized` stands for, and remarks. `rounds`: which file each of
    the `seconds` is from, the first of the set is 1. `above_peak`: why some file has it without
    shares of peaks. `extremes`: the shortest and the longest repetition of all files; None of a
    single one."""

    name: CaseName
    seconds: tuple[float, ...]
    counters: Mapping[str, float]
    label: str = ""
    rounds: tuple[int, ...] = ()
    above_peak: str = ""
    extremes: tuple[float, float] | None = None

    @cached_property
    def median_seconds(self) -> float:
        """Over the files."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class ResultSet:
    """`cases` by their full name. `context`: of the first file, with the best peaks of all files;
    the others' is alike where it matters (SAME_RUN). `warnings`: what is odd, and cases that some
    of the rounds lack."""

    title: str
    paths: tuple[Path, ...]
    context: Mapping[str, Any]
    cases: Mapping[str, MeasuredCase]
    left_out: tuple[LeftOut, ...] = ()
    products: tuple[ProductRate, ...] = ()
    warnings: tuple[str, ...] = field(default=())


def title_of(context: Mapping[str, Any]) -> str:
    """Device, commit and day, which tell one set from another."""
    device = (context.get("device") or {}).get("name") or "unknown device"
    commit = str(context.get("git_commit") or "unknown commit")[:COMMIT_DIGITS]
    changed = " with changes" if context.get("git_dirty") else ""
    day = str(context.get("date") or "unknown date")[:10]
    return f"{device} · {commit}{changed} · {day}"


def refuse_other_run(
    first: Mapping[str, Any], first_path: Path, other: Mapping[str, Any], path: Path
) -> None:
    """BadInputError unless a file's context says what the first file's does."""
    found = first_difference(first, other, SAME_RUN)
    if found is not None:
        raise BadInputError(
            f"{path}: {found.name} is {found.there!r}, in {first_path.name} it is {found.here!r}; "
            "files of one set must be of one run: name them as results of their own"
        )


def _median_counters(rows: Sequence[StoredCase]) -> Mapping[str, float]:
    if len(rows) == 1:
        return rows[0].counters
    names = dict.fromkeys(name for row in rows for name in row.counters)
    return {
        name: statistics.median(row.counters[name] for row in rows if name in row.counters)
        for name in names
    }


def _measured_case(name: CaseName, rows: Mapping[int, StoredCase]) -> MeasuredCase | LeftOut:
    """A failure in any round is the case's failure; a skip in some rounds leaves the others."""
    failed = next((row for row in rows.values() if row.failed), None)
    if failed is not None:
        return LeftOut(str(name), failed.failed, is_failure=True)
    seconds = {number: row.seconds for number, row in rows.items() if row.seconds is not None}
    if not seconds:
        return LeftOut(str(name), next(iter(rows.values())).skipped, is_failure=False)
    measured = [rows[number] for number in seconds]
    ends = [end for row in measured for end in row.extremes or (row.seconds or 0.0,)]
    return MeasuredCase(
        name,
        tuple(seconds.values()),
        _median_counters(measured),
        measured[-1].label,
        tuple(seconds),
        next((row.above_peak for row in measured if row.above_peak), ""),
        (min(ends), max(ends)) if len(ends) > 1 else None,
    )


def _short_cases(
    cases: Mapping[str, MeasuredCase],
    rows: Mapping[str, Mapping[int, StoredCase]],
    runs: Sequence[StoredRun],
) -> Iterator[str]:
    """What some of the rounds lack: a warning for each of the reasons."""
    short: dict[tuple[int, str], list[str]] = {}
    for name, case in cases.items():
        if len(case.rounds) == len(runs):
            continue
        for number, _ in enumerate(runs, start=1):
            if number not in case.rounds:
                row = rows[name].get(number)
                reason = row.skipped if row is not None else "not in the file"
                short.setdefault((number, reason), []).append(name)
    for (number, reason), names in short.items():
        shown, more = ", ".join(names[:MOST_NAMED]), len(names) - MOST_NAMED
        others = f" and {more} more" if more > 0 else ""
        yield f"not measured in {runs[number - 1].path.name}: {shown}{others}: {reason}"


def _products(runs: Sequence[StoredRun]) -> tuple[tuple[ProductRate, ...], list[LeftOut]]:
    """Of each shape the best; and rows about the machine that no file has a figure of."""
    rows = [(name, row) for run in runs for name, row in run.peaks.items()]
    products = [found for name, row in rows if (found := product_rate(name, row)) is not None]
    measured = {name for name, row in rows if row.seconds is not None}
    left_out = {
        name: LeftOut(name.partition(ITERATIONS)[0], row.failed or row.skipped, bool(row.failed))
        for name, row in rows
        if name not in measured
    }
    return best_products(products), list(left_out.values())


def _with_peaks(
    results: ResultSet, contexts: Sequence[Mapping[str, Any]], products: Sequence[ProductRate]
) -> ResultSet:
    context, warnings = merged_peaks(contexts, products)
    of = [(case.name, case.counters) for case in results.cases.values()]
    counters = restated(of, context)
    cases = {
        name: replace(case, counters=found)
        for (name, case), found in zip(results.cases.items(), counters, strict=True)
    }
    known = (*results.warnings, *(w for w in warnings if w not in results.warnings))
    return replace(results, context=context, cases=cases, products=tuple(products), warnings=known)


def combine(runs: Sequence[StoredRun]) -> ResultSet:
    """Rounds of the same run as one set; BadInputError where they are not."""
    first = runs[0]
    for run in runs[1:]:
        refuse_other_run(first.context, first.path, run.context, run.path)
    rows: dict[str, dict[int, StoredCase]] = {}
    for number, run in enumerate(runs, start=1):
        for name, row in run.cases.items():
            rows.setdefault(name, {})[number] = row
    cases: dict[str, MeasuredCase] = {}
    products, left_out = _products(runs)
    warnings = []
    for text, found in rows.items():
        name = parse_case_name(text)
        if name is None or name.is_data_parallel:
            # of several ranks, or a collective: data/ranks.py reads those
            warnings.append(f"not a case of one process of this suite: {text}")
            continue
        case = _measured_case(name, found)
        if isinstance(case, LeftOut):
            left_out.append(case)
        else:
            cases[text] = case
    warnings += [f"{text}: {case.above_peak}" for text, case in cases.items() if case.above_peak]
    warnings += _short_cases(cases, rows, runs)
    warnings += [warning for run in runs for warning in run.warnings]
    paths = tuple(run.path for run in runs)
    title = title_of(first.context)
    bare = ResultSet(title, paths, {}, cases, tuple(left_out), (), tuple(warnings))
    return _with_peaks(bare, [run.context for run in runs], products)


def add_products(results: ResultSet, others: ResultSet) -> ResultSet:
    """The set with the products, and peaks, that other processes of the same run measured.

    BadInputError where they are of another run.
    """
    refuse_other_run(results.context, results.paths[0], others.context, others.paths[0])
    products = best_products([*results.products, *others.products])
    joined = replace(
        results,
        left_out=(*results.left_out, *others.left_out),
        warnings=(*results.warnings, *others.warnings),
    )
    return _with_peaks(joined, [results.context, others.context], products)


def read_result_set(paths: Sequence[Path]) -> ResultSet:
    """Of result files of tiny_llama_bench, each a round.

    A row with a counter that is no number is a failure of its case. BadInputError for a file that
    cannot be used, for files of another run than the first (SAME_RUN), and where no file holds a
    case or a product.
    """
    runs = []
    for path in paths:
        document, _ = read_json(path)
        if not is_result(document):
            known = ", ".join(list(document)[:5]) or "none"
            raise bad_file(path, f"is no result of the suite: its keys are {known}", MEASURE_AGAIN)
        runs.append(read_rows(document, path, bad_counters_fail=True))
    if not runs or not any(run.cases or run.peaks for run in runs):
        names = ", ".join(map(str, paths)) or "no file"
        raise BadInputError(f"{names}: no case was measured; {MEASURE_AGAIN}")
    return combine(runs)


def read_stored(path: Path) -> StoredRun:
    """A run of the suite or of the training program, told by its content."""
    document, data = read_json(path)
    if is_training_summary(document):
        run = read_training(document, path)
    elif is_result(document):
        run = read_result(document, path)
    else:
        keys = ", ".join(list(document)[:5]) or "none"
        remedy = "name results of tiny_llama_bench or performance summaries of tiny_llama_train"
        raise bad_file(path, f"is no result that can be compared: its keys are {keys}", remedy)
    return replace(run, digest=hashlib.sha256(data).hexdigest())
