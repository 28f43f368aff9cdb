"""What one run of the suite measured: of one file, or of several rounds of the same cases."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tinyllama_tools.reading.case_name import CaseName, parse_case_name
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.json_file import MEASURE_AGAIN, bad_file, read_json
from tinyllama_tools.reading.result_reader import is_result, read_rows
from tinyllama_tools.reading.stored_run import StoredCase, StoredRun

# peak/gemm/f32/1024x256x512, or peak/gemm/f32/64x128x128x32: so many products at once; Google
# Benchmark appends the fixed number of iterations
PRODUCT = re.compile(
    r"peak/gemm/(?P<type>[^/]+)/(?:(?P<batch>\d+)x)?(\d+)x(\d+)x(\d+)(?:/iterations:\d+)?"
)
TERA = 1e12
# What has to be the same for files to be rounds of one run, as the context has it.
CIRCUMSTANCES = (
    ("device", "name"),
    ("device", "architecture"),
    ("device", "backend"),
    ("torch_version",),
    ("threads",),
    ("git_commit",),
)
COMMIT_DIGITS = 8


@dataclass(frozen=True)
class MeasuredCase:
    """`seconds` of an iteration: one a file, the median over its repetitions. `counters`: medians
    over the files. `label`: what `optimized` stands for, and remarks."""

    name: CaseName
    seconds: tuple[float, ...]
    counters: Mapping[str, float]
    label: str = ""

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
class ProductRate:
    """The best that `batch` products [m, k] x [k, n] at once reach on this device."""

    type_name: str
    batch: int
    m: int
    n: int
    k: int
    flops_per_second: float
    source: str


@dataclass(frozen=True)
class ResultSet:
    """`cases` by their full name. `context`: of the first file; the others' is alike where it
    matters (CIRCUMSTANCES)."""

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


def _value(context: Mapping[str, Any], keys: Sequence[str]) -> object:
    found: object = context
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _refuse_other_circumstances(runs: Sequence[StoredRun]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for keys in CIRCUMSTANCES:
            here, there = _value(first.context, keys), _value(run.context, keys)
            if here != there:
                raise BadInputError(
                    f"{run.path}: {'.'.join(keys)} is {there!r}, in {first.path} it is {here!r}; "
                    "files of one set must be rounds of one run: name them as results of their own"
                )


def _product(name: str, row: StoredCase) -> ProductRate | None:
    found = PRODUCT.fullmatch(name)
    rate = row.counters.get("TFLOPS")
    if found is None or rate is None:
        return None
    m, n, k = (int(text) for text in found.groups()[2:])
    return ProductRate(found["type"], int(found["batch"] or 1), m, n, k, rate * TERA, row.label)


def _best_products(runs: Iterable[StoredRun]) -> tuple[ProductRate, ...]:
    """Of each shape its best rate: it is what the device can do."""
    best: dict[tuple[str, int, int, int, int], ProductRate] = {}
    for run in runs:
        for name, row in run.peaks.items():
            product = _product(name, row)
            if product is None:
                continue
            key = (product.type_name, product.batch, product.m, product.n, product.k)
            if key not in best or best[key].flops_per_second < product.flops_per_second:
                best[key] = product
    return tuple(best.values())


def _median_counters(rows: Sequence[StoredCase]) -> Mapping[str, float]:
    if len(rows) == 1:
        return rows[0].counters
    names = dict.fromkeys(name for row in rows for name in row.counters)
    return {
        name: statistics.median(row.counters[name] for row in rows if name in row.counters)
        for name in names
    }


def _case(name: CaseName, rows: Sequence[StoredCase]) -> MeasuredCase | LeftOut:
    """A failure in any round is the case's failure; a skip in some rounds leaves the others."""
    failed = next((row for row in rows if row.failed), None)
    if failed is not None:
        return LeftOut(str(name), failed.failed, is_failure=True)
    measured = [row for row in rows if row.seconds is not None]
    if not measured:
        return LeftOut(str(name), rows[0].skipped, is_failure=False)
    seconds = tuple(row.seconds for row in measured if row.seconds is not None)
    return MeasuredCase(name, seconds, _median_counters(measured), measured[-1].label)


def combine(runs: Sequence[StoredRun]) -> ResultSet:
    """Rounds of the same run as one set; BadInputError where they are not."""
    _refuse_other_circumstances(runs)
    rows: dict[str, list[StoredCase]] = {}
    for run in runs:
        for name, row in run.cases.items():
            rows.setdefault(name, []).append(row)
    cases: dict[str, MeasuredCase] = {}
    left_out, foreign = [], []
    for text, found in rows.items():
        name = parse_case_name(text)
        if name is None:
            foreign.append(text)
            continue
        case = _case(name, found)
        if isinstance(case, LeftOut):
            left_out.append(case)
        else:
            cases[text] = case
    warnings = [f"not a case of this suite: {text}" for text in foreign]
    warnings += [warning for run in runs for warning in run.warnings]
    return ResultSet(
        title_of(runs[0].context),
        tuple(run.path for run in runs),
        runs[0].context,
        cases,
        tuple(left_out),
        _best_products(runs),
        tuple(warnings),
    )


def read_result_set(paths: Sequence[Path]) -> ResultSet:
    """Of result files of tiny_llama_bench, each a round.

    BadInputError for a file that cannot be used, for files of another device, torch, number of
    threads or commit than the first, and where no file holds a case or a product.
    """
    runs = []
    for path in paths:
        document, _ = read_json(path)
        if not is_result(document):
            known = ", ".join(list(document)[:5]) or "none"
            raise bad_file(path, f"is no result of the suite: its keys are {known}", MEASURE_AGAIN)
        runs.append(read_rows(document, path))
    if not runs or not any(run.cases or run.peaks for run in runs):
        names = ", ".join(map(str, paths)) or "no file"
        raise BadInputError(f"{names}: no case was measured; {MEASURE_AGAIN}")
    return combine(runs)
