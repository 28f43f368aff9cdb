"""ABLATION.md and what the terminal shows of it: the rows of its tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import NOT_MEASURED, number, template
from tinyllama_tools.models.ablations import (
    BASELINE,
    BY_SWITCH,
    EXPECTED,
    FIT_FROM,
    LINEAR_BELOW,
    QUADRATIC_ABOVE,
    VERSIONS,
    Cell,
    Kind,
    Point,
    Roadmap,
    Row,
    Rule,
    Study,
    Table,
    check_rule,
    fit_exponent,
    memory_ratio,
    ratio_of_cells,
    ratio_text,
    row_at,
    rows_at,
    switches_of_optimized,
)
from tinyllama_tools.stats.rank_tests import Ratio

TEMPLATE = Path(__file__).parent / "templates/ablation.md.j2"
Texts = list[str]


def mebibytes(value: float | None) -> str:
    """Small ones with a digit more."""
    return number(value, 2 if value is not None and value < 10 else 1)


def times(value: float | None) -> str:
    return number(value, 2)


def milliseconds(seconds: float | None) -> str:
    """Three or four digits."""
    return number(seconds and seconds * 1e3, 2 if seconds and seconds < 0.1 else 1)


def error(row: Row) -> str:
    value = row.cell.counter("max_rel_error")
    return NOT_MEASURED if value is None else f"{value:.1e}"


Figures = dict[str, Callable[[Row], str]]
# Every column, by its heading.
FIGURES: Figures = {
    "B x S": lambda row: row.cell.point.shape,
    "batch": lambda row: str(row.cell.point.batch),
    "variant": lambda row: row.row.name,
    "dtype": lambda row: row.cell.point.dtype,
    "workshop": lambda row: EXPECTED.get(row.row.name) or NOT_MEASURED,
    "ms": lambda row: milliseconds(row.cell.seconds),
    "samples/s": lambda row: number(row.samples_per_second),
    "MFU %": lambda row: number(row.mfu_percent),
    "speedup over baseline": lambda row: row.ratio_text,
    "slowdown against optimized": lambda row: row.ratio_text,
    "peak MiB": lambda row: mebibytes(row.cell.peak_mib),
    "memory x": lambda row: times(row.memory_ratio),
    "allocations": lambda row: number(row.cell.counter("allocations"), 0),
    "operators": lambda row: number(row.launches, 0),
    "kernels": lambda row: number(row.launches, 0),
    "rel error": error,
    "note": lambda row: row.cell.note,
}


def figures_of(
    rows: Sequence[Row], names: Sequence[str], more: Figures | None = None
) -> tuple[Sequence[str], list[Texts]]:
    """A table with these columns; `more`: columns of this table alone."""
    known = FIGURES | (more or {})
    return names, [[known[name](row) for name in names] for row in rows]


def launches_of(study: Study) -> str:
    """What `launches` of a row counts here."""
    is_gpu = study.context.get("device", {}).get("backend", "cpu") != "cpu"
    return "kernels" if is_gpu else "operators"


def roadmap_rows(study: Study, dtype: str) -> list[Texts]:
    """Every single switch in a dtype, geometric means over the points at which it was measured;
    the fastest first and those without a number last."""

    def mean(values: Sequence[float]) -> float | None:
        return statistics.geometric_mean(values) if values else None

    points = [point for point in study.main.points() if point.dtype == dtype]
    found = []
    for name in study.rows_of(Kind.single):
        at = [row for point in points if (row := row_at(study.main, name, point))]
        speedup = mean([row.ratio.median for row in at if row.ratio])
        memory = mean([row.memory_ratio for row in at if row.memory_ratio])
        known = BY_SWITCH.get(name.name, Roadmap(name.name))
        texts = [
            known.category or NOT_MEASURED,
            known.switch,
            known.effort or "not named",
            known.expected or NOT_MEASURED,
            times(speedup),
            times(memory),
            next((row.cell.note for row in at if row.cell.note), ""),
        ]
        found.append((-(speedup or 0), texts))
    return [texts for _, texts in sorted(found, key=lambda pair: pair[0])]


def point_tables(study: Study, point: Point, left_out: Sequence[str]) -> Json:
    """Both tables of a test point, and what `optimized` stands for there."""

    def rows_table(kinds: Sequence[Kind], first: str) -> tuple | None:
        names = ["variant", *first.split("|"), "ms", "samples/s", "MFU %", "peak MiB", "memory x"]
        names += ["allocations", launches_of(study), "rel error", "note"]
        rows = rows_at(study.main, study.rows_of(*kinds), point)
        return figures_of(rows, [n for n in names if n not in left_out]) if rows else None

    switches = switches_of_optimized(study.main, point)
    added = [kind for kind in Kind if kind != Kind.removed]
    return {
        "title": point.title,
        "added": rows_table(added, "speedup over baseline|workshop"),
        "optimized": "unknown" if switches is None else "+".join(switches) or BASELINE,
        "removed": rows_table([Kind.removed], "slowdown against optimized"),
    }


def types_table(study: Study) -> tuple[Sequence[str], list[Texts]]:
    """Mixed precision: each type beside float32 of the same variant and shape."""
    table = Table(study.main.cells | study.types.cells)

    def over_f32(row: Row) -> str:
        is_f32 = row.cell.point.dtype == "f32"
        return NOT_MEASURED if is_f32 else ratio_text(ratio_of_cells(plain(row), row.cell))

    def plain(row: Row) -> Cell | None:
        return table.get(row.row.name, replace(row.cell.point, dtype="f32"))

    rows = [row for point in table.points() for row in rows_at(table, VERSIONS, point)]
    rows.sort(key=lambda row: (row.cell.point.batch, row.cell.point.seq, VERSIONS.index(row.row)))
    names = ["B x S", "variant", "dtype", "ms", "samples/s", "speedup over f32"]
    names += ["speedup over baseline", "peak MiB", "memory x f32", "note"]
    memory = {"memory x f32": lambda row: times(memory_ratio(row.cell, plain(row)))}
    return figures_of(rows, names, {"speedup over f32": over_f32, **memory})


def batches_table(study: Study, points: Sequence[Point]) -> tuple[Sequence[str], list[Texts]]:
    """Throughput and memory over the batch, against the smallest."""

    def over_smallest(row: Row) -> str:
        first = row_at(study.batches, row.row, points[0])
        speed, at_first = row.samples_per_second, first and first.samples_per_second
        return times(speed / at_first if speed and at_first else None)

    heading = f"samples/s x batch {points[0].batch}"
    rows = [row for point in points for row in rows_at(study.batches, VERSIONS, point)]
    names = ["batch", "variant", "ms", "samples/s", heading, "speedup over baseline", "peak MiB"]
    return figures_of(rows, [*names, "note"], {heading: over_smallest})


def memory_table(study: Study, component: str) -> tuple[Texts, list[Texts]] | None:
    """Memory of a component at batch 1: MiB at each length, the fitted exponent, and a reason."""
    series: dict[str, dict[int, float | None]] = {}
    notes: dict[str, str] = {}
    for cell in study.memory.cells.values():
        if cell.point.component == component and cell.point.batch == 1:
            series.setdefault(cell.row, {})[cell.point.seq] = cell.peak_mib
            if cell.peak_mib is None:
                notes.setdefault(cell.row, f"S {cell.point.seq}: {cell.note or 'not run'}")
    if not series:
        return None
    lengths = sorted({length for peaks in series.values() for length in peaks})
    rows = []
    for name, peaks in series.items():
        growth = fit_exponent({n: peak for n, peak in peaks.items() if peak is not None})
        fitted = [NOT_MEASURED] * 2
        if growth:
            fitted = [f"{growth.exponent:.2f} ({growth.first} to {growth.last})", growth.verdict]
        texts = [mebibytes(peaks.get(length)) for length in lengths]
        rows.append([name, *texts, *fitted, notes.get(name, "")])
    header = ["variant", *(f"S {length}" for length in lengths), "MiB ~ S ^", "growth", "note"]
    return header, rows


def rule_part(rule: Rule, what: str) -> Json:
    """Held or not, where not, and how close it came."""
    slower = sorted(rule.broken, key=lambda found: -found.slowdown.median)
    closest = max(rule.comparisons, key=lambda found: found.slowdown.median, default=None)
    highs = [c.slowdown.interval.high for c in rule.comparisons if c.slowdown.interval]
    verdict = "Not held" if slower else "Held" if rule.held else "Not shown"
    return {
        "title": f"**{verdict if rule.comparisons else 'Not measured'}** ({what})",
        "compared": len(rule.comparisons),
        "undecided": len(rule.undecided),
        "by_chance": f"{rule.expected_false:.1f}",
        "closest": f"{closest.row} at {closest.point.title}" if closest else "",
        "taken": closest.slowdown.text() if closest else "",
        "open": f"{max(highs, default=1.0):.2f}",
        "slower": [(c.point.title, c.row, c.slowdown.text()) for c in slower],
        "unmeasured": rule.unmeasured,
    }


def notes_of(study: Study) -> list[str]:
    """What a reader must know before anything else. Failures of one kind share a line."""
    places: dict[tuple[str, str], list[str]] = {}
    for found in study.failures:
        places.setdefault((found.row, found.failure), []).append(found.point.title)
    return [*study.notes] + [
        f"{row} at {at[0]}{f' and {len(at) - 1} more' if len(at) > 1 else ''}: {failure}"
        for (row, failure), at in places.items()
    ]


def ablation_page(study: Study, *, is_brief: bool = False) -> str:
    """The page; brief: the main tables as wide as a terminal, and the rule."""
    main, batches = study.main.points(), sorted(study.batches.points())
    left_out = ("workshop", "samples/s", "allocations") if is_brief else ()
    compared = ((study.main, "test points"), (study.batches, "batches, baseline only"))
    memory = {"Full step": "full_step", "Attention, forward and backward": "attention"}
    compiled = [
        [row["row"], row["point"]]
        + [ratio_text(Ratio.from_json(row[key])) for key in ("speedup", "over_optimized")]
        for row in study.peers
    ]
    return template(TEMPLATE).render(
        is_brief=is_brief,
        notes=notes_of(study),
        context=study.context,
        meta=study.meta,
        rules=[rule_part(check_rule(t, study.rows), what) for t, what in compared if t.cells],
        points=[point_tables(study, point, left_out) for point in main],
        roadmap=[(d, roadmap_rows(study, d)) for d in dict.fromkeys(p.dtype for p in main)],
        types=types_table(study) if study.types.cells else None,
        batches=batches_table(study, batches) if batches else None,
        smallest=batches[0] if batches else None,
        memory=[(t, found) for t, part in memory.items() if (found := memory_table(study, part))],
        memory_point=next(iter(study.memory.points()), None),
        compiled=compiled,
        sources=sorted({row["source"] for row in study.peers}),
        fit_from=FIT_FROM,
        linear=LINEAR_BELOW,
        quadratic=QUADRATIC_ABOVE,
    )


def terminal_text(study: Study) -> str:
    """The main tables and the rule, without Markdown's emphasis and code marks."""
    page = ablation_page(study, is_brief=True)
    return page.replace("**", "").replace("`", "").rstrip() + "\n"
