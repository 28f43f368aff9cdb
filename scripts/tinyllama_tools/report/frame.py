"""Results as one flat table, a row for each case of each file, as CSV, JSON lines and Parquet.

The columns are those of `flat_row` in results/schema.json, the same for every file, so that frames
of several machines can be put together; tiny_llama_bench --benchmark_format writes the same."""

import csv
import functools
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import BadInputError, Json, read_json
from tinyllama_tools.core.installation import DATA
from tinyllama_tools.core.text import value_at
from tinyllama_tools.data.names import (
    BASELINE,
    StoredCase,
    StoredRun,
    parse_case_name,
    parse_collective_name,
)
from tinyllama_tools.data.results import SPEEDUP, read_rows
from tinyllama_tools.data.studies import CHECK, PRODUCTS, RANK_FILES, runs_of
from tinyllama_tools.report.document import KILO, Kind, Omission
from tinyllama_tools.report.inputs import Source
from tinyllama_tools.stats.rank_tests import Ends, ends_of_median, quotient_of_medians

Value = str | int | float | bool | None
TEXT, WHOLE, NUMBER, FLAG = "string", "integer", "number", "boolean"
AS: Mapping[str, Callable[[Any], Value]] = {TEXT: str, WHOLE: int, NUMBER: float, FLAG: bool}


@dataclass(frozen=True)
class Column:
    """`kind`: type by JSON Schema. `source`: where the value is taken from; empty where it is
    computed, and of a counter."""

    name: str
    kind: str = NUMBER
    source: str = ""
    description: str = ""


@functools.cache
def columns() -> tuple[Column, ...]:
    """Those of every frame, in their order: what is said of the case, every counter, and what is
    said of the run."""
    definitions = read_json(DATA / "results/schema.json")[0]["$defs"]
    own = [
        Column(name, rule["type"][0], rule.get("x-from", ""), rule["description"])
        for name, rule in definitions["flat_row"]["properties"].items()
    ]
    counters: dict[str, Column] = {}
    for definition in definitions.values():
        for name, rule in definition.get("properties", {}).items():
            if "x-counter" in rule:
                counters.setdefault(name, Column(name, description=rule.get("description", "")))
    first = next(i for i, one in enumerate(own) if one.source.startswith("context."))
    return (*own[:first], *counters.values(), *own[first:])


@dataclass(frozen=True)
class Frame:
    """`rows`: by column, without what is not known."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Value]]


def _axes(text: str) -> dict[str, Value]:
    if name := parse_case_name(text):
        return name.axes | {"mode": name.mode}
    if found := parse_collective_name(text):
        return {"component": found.operation, "dtype": found.dtype}
    return {}


def _speedup(run: StoredRun, text: str, case: StoredCase) -> dict[str, Value]:
    """Over the baseline of the file, where the program did not write one."""
    name = parse_case_name(text)
    if name is None or name.variant == BASELINE or SPEEDUP in case.counters:
        return {}
    baseline = run.cases.get(str(replace(name, variant=BASELINE)))
    if baseline is None or baseline.seconds is None or name.is_data_parallel:
        return {}
    found = quotient_of_medians(baseline.seconds, _ends(baseline), case.seconds, _ends(case))
    ends = found.interval and (found.interval.low, found.interval.high)
    low, high = ends or (None, None)
    return {SPEEDUP: found.median, f"{SPEEDUP}_low": low, f"{SPEEDUP}_high": high}


def _ends(case: StoredCase) -> Ends | None:
    """Of the time's interval, that of the file where it has one; None after a single repetition."""
    return case.ends or (ends_of_median(case.each) if len(case.each) > 1 else None)


def _figures(case: StoredCase) -> dict[str, Value]:
    if case.seconds is None:
        return {"status": "failed" if case.failed else "skipped", "reason": case.reason}
    found: dict[str, Value] = {"status": "measured", "time_ms": KILO * case.seconds}
    found["repetitions"], found["disturbed"] = case.repetitions, case.disturbance
    if case.cpu_seconds is not None:
        found["cpu_time_ms"] = KILO * case.cpu_seconds
    if ends := _ends(case):
        found["time_low_ms"], found["time_high_ms"] = (KILO * end for end in ends)
    if len(case.each) > 1:
        found["time_range_percent"] = 100 * (max(case.each) - min(case.each)) / case.seconds
    return found | case.counters


def rows_of(run: StoredRun) -> Iterator[dict[str, Value]]:
    """A row for each case, as the file says it; peaks that were measured as cases are rows too."""
    kinds = {column.name: column.kind for column in columns()}
    for text, case in run.in_order:
        axes = _axes(text)
        size = axes.get("size")
        row: Json = axes | {"run_name": text, "label": case.label, "above_peak": case.above_peak}
        known = {
            "row": row,
            "context": run.context,
            "dimensions": (run.context.get("sizes") or {}).get(size),
        }
        taken = {one.name: value_at(known, one.source) for one in columns() if one.source}
        found = taken | {"mode": axes.get("mode"), "file": str(run.path)} | _figures(case)
        if case.seconds is not None:
            found |= _speedup(run, text, case)
        yield {
            name: AS[kinds.get(name, NUMBER)](value)
            for name, value in found.items()
            if value is not None and value != ""
        }


def _files_of(source: Source) -> list[Path]:
    if source.kind is Kind.STUDY:
        beside = (source.path / name for name in (PRODUCTS, CHECK))
        return [*runs_of(source.path), *filter(Path.is_file, beside)]
    if source.kind is Kind.SCALING and source.path.is_dir():
        return sorted(source.path.glob(RANK_FILES), key=lambda path: (len(path.name), path.name))
    return [source.path]


def read_frame(
    sources: Sequence[Source], unknown: Sequence[Omission] = ()
) -> tuple[Frame, list[Omission]]:
    """The rows of all files, in their order; and which files could not be used, and which cases
    failed. `unknown`: what was named but is no result. BadInputError where there is no row."""
    rows: list[Mapping[str, Value]] = []
    omissions = list(unknown)
    for source in dict.fromkeys(sources):
        if source.kind in (Kind.GPU, Kind.KERNELS):
            why = f"a {source.kind.words} has no cases"
            omissions.append(Omission("file", str(source.path), why))
            continue
        for path in _files_of(source):
            try:
                run = read_rows(read_json(path)[0], path)
            except BadInputError as error:
                why = str(error).removeprefix(f"{path}: ")
                omissions.append(Omission("file", str(path), why, is_error=True))
                continue
            rows += rows_of(run)
            failed = [(name, case) for name, case in run.in_order if case.failed]
            omissions += [Omission("case", n, case.failed, is_error=True) for n, case in failed]
    if not rows:
        why = "; ".join(f"{one.name}: {one.reason}" for one in omissions) or "no file was named"
        raise BadInputError(f"no case of the suite to make rows of: {why}")
    known = {column.name for column in columns()}
    # of another version of the suite
    others = dict.fromkeys(name for row in rows for name in row if name not in known)
    return Frame((*columns(), *map(Column, others)), rows), omissions


def _csv_value(value: Value) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool | float) else str(value)


def csv_of(frame: Frame) -> str:
    """RFC 4180, with line feeds; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [column.name for column in frame.columns]
    writer.writerow(names)
    writer.writerows([_csv_value(row.get(name)) for name in names] for row in frame.rows)
    return text.getvalue()


def _encodable(row: Mapping[str, Value]) -> dict[str, Value]:
    """Without lone surrogates, which JSON from outside may hold."""
    texts = {k: v.encode("utf-8", "replace").decode() for k, v in row.items() if type(v) is str}
    return {**row, **texts}


def jsonl_of(frame: Frame) -> str:
    """An object a line, each with every column; what is not known is null."""
    names = [column.name for column in frame.columns]
    rows = map(_encodable, frame.rows)
    lines = ({name: row.get(name) for name in names} for row in rows)
    # in ASCII: a terminal's escapes would be no JSON
    return "".join(f"{json.dumps(line, allow_nan=False)}\n" for line in lines)


def parquet_of(frame: Frame) -> bytes:
    """The file's bytes. BadInputError where pyarrow is not installed."""
    try:
        # not at the top: all other outputs work without
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadInputError(
            "no writer of Parquet: the Python package pyarrow is not installed; run "
            f"`{sys.executable} -m pip install pyarrow` (55 MB), or write --format csv"
        ) from None
    types = {
        TEXT: pyarrow.string(),
        WHOLE: pyarrow.int64(),
        NUMBER: pyarrow.float64(),
        FLAG: pyarrow.bool_(),
    }
    # a seed may have 64 bits
    types_of = {"seed": pyarrow.uint64()}
    fields = [
        pyarrow.field(
            one.name,
            types_of.get(one.name, types[one.kind]),
            metadata={"description": one.description} if one.description else None,
        )
        for one in frame.columns
    ]
    try:
        table = pyarrow.Table.from_pylist([*map(_encodable, frame.rows)], pyarrow.schema(fields))
    except (pyarrow.ArrowException, OverflowError) as error:
        raise BadInputError(f"no column of Parquet: {error}; write --format csv") from error
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


FRAMES: Mapping[str, Callable[[Frame], str | bytes]] = {
    "csv": csv_of,
    "jsonl": jsonl_of,
    "parquet": parquet_of,
}
