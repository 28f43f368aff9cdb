"""Version 2's success metrics with its gates, mixed precision, and scaling with the batch."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from tinyllama_tools.ablation_gates import gates_of
from tinyllama_tools.ablation_layout import count, mebibytes, milliseconds, number, times
from tinyllama_tools.ablation_reference import BATCH_SCALING, MIXED_PRECISION, expected_of
from tinyllama_tools.ablation_rows import Row, memory_ratio, ratio_of_cells, ratio_text, row_at
from tinyllama_tools.ablation_study import (
    BASELINE,
    FUSED,
    OPTIMIZED,
    SETS,
    Kind,
    Point,
    RowName,
    Study,
    Table,
)
from tinyllama_tools.ablation_tables import launches_heading
from tinyllama_tools.core.text import markdown_table

VERSIONS = (
    RowName(BASELINE, Kind.baseline),
    RowName(FUSED, Kind.named_set),
    RowName(OPTIMIZED, Kind.named_set),
)
Figure = Callable[[Row], str]


def metrics_table(study: Study, point: Point, rows: list[Row]) -> list[str]:
    """Before and after, as the workshop's worksheet asks for."""
    figures: list[tuple[str, Figure]] = [
        ("Training throughput, samples/s", lambda row: number(row.samples_per_second)),
        ("Model FLOPS Utilization, %", lambda row: number(row.mfu_percent)),
        ("Peak memory usage, MiB", lambda row: mebibytes(row.cell.counter("peak_memory_MiB"))),
        (f"{launches_heading(study).capitalize()} per step", lambda row: count(row.launches)),
        ("Time per step, ms", lambda row: milliseconds(row.cell.seconds)),
        ("Speedup", lambda row: row.ratio_text),
    ]
    header = [f"{point.dtype}, {point.shape}", *(version_title(row) for row in rows)]
    lines = [[name, *(figure(row) for row in rows)] for name, figure in figures]
    lines.append(["Speedup that the workshop expects", *(expected_of(r.row.name) for r in rows)])
    return markdown_table(header, lines)


def version_title(row: Row) -> str:
    """`baseline` is before, the sets are after."""
    return "before: baseline" if row.row.name == BASELINE else f"after: {row.row.name}"


def gates_table(study: Study, point: Point, rows: list[Row]) -> list[str]:
    """Every gate of both sets."""
    lines = [
        (gate.name, row.row.name, gate.verdict, gate.evidence)
        for row in rows
        for gate in gates_of(study, row)
    ]
    return markdown_table(
        (f"gate at {point.dtype}, {point.shape}", "of", "verdict", "evidence"), lines
    )


def success_lines(study: Study) -> list[str]:
    """The section, a pair of tables a point."""
    if not study.main.cells:
        return []
    lines = ["## Success metrics of version 2", ""]
    for point in study.main.points():
        rows = [row for name in VERSIONS if (row := row_at(study.main, name, point)) is not None]
        after = [row for row in rows if row.row.name in SETS]
        lines += [*metrics_table(study, point, rows), ""]
        lines += [*gates_table(study, point, after), ""]
    return lines


def both(first: Table, second: Table) -> Table:
    """The cells of both tables."""
    return Table(first.cells | second.cells)


def type_lines(study: Study) -> list[str]:
    """Mixed precision: each type beside float32 of the same variant and shape."""
    if not study.types.cells:
        return []
    table = both(study.main, study.types)
    found = sorted(
        ((point, name) for point in table.points() for name in VERSIONS),
        key=lambda pair: (pair[0].batch, pair[0].seq, VERSIONS.index(pair[1])),
    )
    lines = []
    for point, name in found:
        row = row_at(table, name, point)
        plain = table.get(name.name, Point(point.size, "f32", point.batch, point.seq))
        if row is None:
            continue
        over_f32 = ratio_of_cells(plain, row.cell) if point.dtype != "f32" else None
        memory = memory_ratio(row.cell, plain)
        texts = [point.shape, name.name, point.dtype, milliseconds(row.cell.seconds)]
        texts += [number(row.samples_per_second), ratio_text(over_f32), row.ratio_text]
        texts += [mebibytes(row.cell.counter("peak_memory_MiB")), times(memory), row.cell.note]
        lines.append(texts)
    header = ["B x S", "variant", "dtype", "ms", "samples/s", "speedup over f32"]
    header += ["over baseline", "peak MiB", "memory x f32", "note"]
    text = f"The workshop expects {MIXED_PRECISION}."
    return [
        "## Mixed precision",
        "",
        *textwrap.wrap(text, 100),
        "",
        *markdown_table(header, lines),
        "",
    ]


def batch_lines(study: Study) -> list[str]:
    """Throughput and memory over the batch."""
    if not study.batches.cells:
        return []
    points = sorted(study.batches.points())
    smallest = points[0]
    lines = []
    for point in points:
        for name in VERSIONS:
            row = row_at(study.batches, name, point)
            first = row_at(study.batches, name, smallest)
            if row is None or first is None:
                continue
            speed, at_first = row.samples_per_second, first.samples_per_second
            gain = speed / at_first if speed and at_first else None
            texts = [str(point.batch), name.name, milliseconds(row.cell.seconds), number(speed)]
            texts += [times(gain), row.ratio_text]
            texts += [mebibytes(row.cell.counter("peak_memory_MiB")), row.cell.note]
            lines.append(texts)
    header = ["batch", "variant", "ms", "samples/s", f"samples/s x batch {smallest.batch}"]
    header += ["speedup over baseline", "peak MiB", "note"]
    text = f"{smallest.size} {smallest.dtype}, sequence {smallest.seq}. The workshop expects "
    return ["## Batch size", "", f"{text}{BATCH_SCALING}.", "", *markdown_table(header, lines), ""]
