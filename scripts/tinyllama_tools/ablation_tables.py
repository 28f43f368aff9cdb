"""The main tables: every variant at every test point, the rule, and the grid."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from tinyllama_tools.ablation_layout import (
    NOTHING,
    count,
    error,
    mebibytes,
    milliseconds,
    number,
    times,
)
from tinyllama_tools.ablation_reference import expected_of
from tinyllama_tools.ablation_rows import NO_DIFFERENCE, Row, rows_at
from tinyllama_tools.ablation_rule import Rule, check_rule
from tinyllama_tools.ablation_study import OPTIMIZED, Kind, Point, RowName, Study, Table
from tinyllama_tools.ablation_variants import resolved_switches
from tinyllama_tools.core.text import markdown_table

MOST_SHOWN = 20
NOT_BRIEF = ("workshop", "samples/s", "allocations")
MAIN_TEXT = (
    "Speedup: time of the baseline over time of the variant, median over turns with its 95 % "
    f"interval; of fewer than six turns, with the confidence they reach. {NO_DIFFERENCE}: the "
    "interval includes 1, no difference shown. Removed: time without the switch over time of "
    "`optimized`; above 1, the switch is worth having. memory x: peak over the baseline's, of "
    "removed rows over that of `optimized`."
)
RULE_TEXT = (
    "The rule: `optimized` is nowhere slower than the baseline or any single switch. It is broken "
    "where even the low end of the interval of its time over the other's is above 1; of true "
    "ties, 1 to 3 in 100 look so by chance. Fewer than five turns decide nothing."
)


def is_gpu(study: Study) -> bool:
    """Whether kernels are what is launched."""
    return study.context.get("device", {}).get("backend", "cpu") != "cpu"


def launches_heading(study: Study) -> str:
    """What `launches` of a row counts here."""
    return "kernels" if is_gpu(study) else "operators"


def row_cells(study: Study, row: Row, ratio_heading: str) -> dict[str, str]:
    """Every column of a row by its heading."""
    cell = row.cell
    return {
        "variant": row.row.name,
        ratio_heading: row.ratio_text,
        "workshop": expected_of(row.row.name) or NOTHING,
        "ms": milliseconds(cell.seconds),
        "samples/s": number(row.samples_per_second),
        "MFU %": number(row.mfu_percent),
        "peak MiB": mebibytes(cell.counter("peak_memory_MiB")),
        "memory x": times(row.memory_ratio),
        "allocations": count(cell.counter("allocations")),
        launches_heading(study): count(row.launches),
        "rel error": error(cell.counter("max_rel_error")),
        "note": cell.note,
    }


def variant_table(
    study: Study, rows: Sequence[Row], ratio_heading: str, left_out: Collection[str]
) -> list[str]:
    """One line a row, skipped ones with their reason."""
    lines = [row_cells(study, row, ratio_heading) for row in rows]
    header = [name for name in lines[0] if name not in left_out]
    return markdown_table(header, [[line[name] for name in header] for line in lines])


def optimized_is(table: Table, point: Point) -> str:
    """What `optimized` stands for at a point, as the case's label says."""
    cell = table.get(OPTIMIZED, point)
    switches = resolved_switches(cell.label) if cell else None
    if switches is None:
        return f"What `{OPTIMIZED}` stands for here is not known: its case has no such label."
    return f"`{OPTIMIZED}` is `{'+'.join(switches) or 'baseline'}` here."


def point_lines(study: Study, point: Point, left_out: Collection[str]) -> list[str]:
    """Both tables of a test point."""
    added = study.rows_of(Kind.baseline, Kind.single, Kind.combination, Kind.named_set)
    rows = rows_at(study.main, added, point)
    removed = rows_at(study.main, study.rows_of(Kind.removed), point)
    lines = [f"### {point.title}", ""]
    lines += variant_table(study, rows, "speedup over baseline", left_out)
    lines += ["", optimized_is(study.main, point), ""]
    if removed:
        without = {*left_out, "workshop"}
        lines += [*variant_table(study, removed, "slowdown against optimized", without), ""]
    return lines


def main_lines(study: Study, *, is_brief: bool = False) -> list[str]:
    """All test points; brief: as wide as a terminal."""
    if not study.main.cells:
        return []
    lines = ["## Each switch, alone and removed", "", *textwrap.wrap(MAIN_TEXT, 100), ""]
    for point in study.main.points():
        lines += point_lines(study, point, NOT_BRIEF if is_brief else ())
    return lines


def rule_lines(rule: Rule, what: str) -> list[str]:
    """Held or not, where not, and how close it came."""
    if not rule.comparisons:
        lines = [f"**Not measured** ({what}): no two of the compared rows ran in the same turn."]
    elif rule.held:
        lines = [
            f"**Held** ({what}): nowhere shown slower, in {len(rule.comparisons)} comparisons, of "
            f"which {rule.expected_false:.1f} would look slower by chance if all were ties; no "
            f"slowdown above {rule.widest():.2f} is left open."
        ]
    elif not rule.broken:
        lines = [
            f"**Not shown** ({what}): {len(rule.undecided)} of {len(rule.comparisons)} comparisons "
            "had too few turns; none of the others is slower."
        ]
    else:
        slower = rule.broken
        lines = [
            f"**Not held** ({what}) at {len(slower)} of {len(rule.comparisons)} comparisons, of "
            f"which {rule.expected_false:.1f} would look so by chance if all were ties:"
        ]
        table = (
            (found.point.title, found.row, found.slowdown.text())
            for found in sorted(slower, key=lambda found: -found.slowdown.median)[:MOST_SHOWN]
        )
        lines += ["", *markdown_table(("case", "is faster", "optimized takes, x its time"), table)]
    closest = rule.closest()
    if closest and rule.held:
        where = f"{closest.row} at {closest.point.title}"
        taken = closest.slowdown.text()
        lines.append(f"Closest: {where}, optimized takes {taken} of its time.")
    if rule.unmeasured:
        lines += ["", "Without a number:", "", *(f"- {text}" for text in rule.unmeasured)]
    return [*lines, ""]


def rule_section(study: Study) -> list[str]:
    """The issue's rule, over the test points and, where it was measured, the grid."""
    lines = ["## Is optimized the best of them?", "", *textwrap.wrap(RULE_TEXT, 100), ""]
    if study.main.cells:
        lines += rule_lines(check_rule(study.main, study.rows), "test points")
    if study.batches.cells:
        lines += rule_lines(check_rule(study.batches, study.rows), "batches, baseline only")
    if study.grid.cells:
        lines += rule_lines(check_rule(study.grid, study.rows), "default grid")
    return lines


def grid_lines(study: Study) -> list[str]:
    """The default grid: baseline, optimized, and the best single switch where those ran."""
    if not study.grid.cells:
        return []
    names = [RowName(OPTIMIZED, Kind.named_set)]
    lines = []
    for point in study.grid.points():
        row = next(iter(rows_at(study.grid, names, point)), None)
        baseline = study.grid.get("baseline", point)
        if row is None or baseline is None:
            continue
        lines.append(
            (
                f"{point.component} {point.pass_name} {point.size}",
                point.dtype,
                point.shape,
                milliseconds(baseline.seconds),
                milliseconds(row.cell.seconds),
                row.ratio_text,
                times(row.memory_ratio),
                row.cell.note or baseline.note,
            )
        )
    header = (
        "case",
        "dtype",
        "B x S",
        "baseline ms",
        "optimized ms",
        "speedup",
        "memory x",
        "note",
    )
    return ["## The default grid", "", *markdown_table(header, lines), ""]
