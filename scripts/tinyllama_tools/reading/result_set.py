"""What one run of the suite measured: of one file, or of several rounds of the same cases."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tinyllama_tools.reading.case_name import CaseName, parse_case_name
from tinyllama_tools.reading.circumstances import SAME_RUN, first_difference
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.json_file import MEASURE_AGAIN, bad_file, read_json
from tinyllama_tools.reading.peaks import merged_peaks, restated
from tinyllama_tools.reading.product_rates import (
    ITERATIONS,
    ProductRate,
    best_products,
    product_rate,
)
from tinyllama_tools.reading.result_reader import is_result, read_rows
from tinyllama_tools.reading.stored_run import StoredCase, StoredRun

COMMIT_DIGITS = 8
# of names in one warning
MOST_NAMED = 3


@dataclass(frozen=True)
class MeasuredCase:
    """`seconds` of an iteration: one a file, the median over its repetitions. `counters`: medians
    over the files. `label`: what `optimized` stands for, and remarks. `rounds`: which file each of
    the `seconds` is from, the first of the set is 1. `above_peak`: why some file has it without
    shares of peaks."""

    name: CaseName
    seconds: tuple[float, ...]
    counters: Mapping[str, float]
    label: str = ""
    rounds: tuple[int, ...] = ()
    above_peak: str = ""

    @cached_property
    def median_seconds(self) -> float:
        """Over the files."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class LeftOut:
    """A case without a figure."""

    name: str
    reason: str
    is_failure: bool


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


def _case(name: CaseName, rows: Mapping[int, StoredCase]) -> MeasuredCase | LeftOut:
    """A failure in any round is the case's failure; a skip in some rounds leaves the others."""
    failed = next((row for row in rows.values() if row.failed), None)
    if failed is not None:
        return LeftOut(str(name), failed.failed, is_failure=True)
    seconds = {number: row.seconds for number, row in rows.items() if row.seconds is not None}
    if not seconds:
        return LeftOut(str(name), next(iter(rows.values())).skipped, is_failure=False)
    measured = [rows[number] for number in seconds]
    return MeasuredCase(
        name,
        tuple(seconds.values()),
        _median_counters(measured),
        measured[-1].label,
        tuple(seconds),
        next((row.above_peak for row in measured if row.above_peak), ""),
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
            # of several ranks, or a collective: scaling/scaling_result.py reads those
            warnings.append(f"not a case of one process of this suite: {text}")
            continue
        case = _case(name, found)
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
