"""ABLATION.md and what the terminal shows of it: the rows of its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import NOT_MEASURED, number, template
from tinyllama_tools.models.ablations import (
    BASELINE,
    EXPECTED,
    Kind,
    Point,
    Row,
    Rule,
    Study,
    check_rule,
    is_decisive,
    rows_at,
    switches_of_optimized,
)

TEMPLATE = Path(__file__).parent / "templates/ablation.md.j2"


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


# Every column, by its heading.
FIGURES: dict[str, Callable[[Row], str]] = {
    "variant": lambda row: row.row.name,
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


def figures_of(rows: Sequence[Row], names: Sequence[str]) -> tuple[Sequence[str], list[list[str]]]:
    """A table with these columns."""
    return names, [[FIGURES[name](row) for name in names] for row in rows]


def launches_of(study: Study) -> str:
    """What `launches` of a row counts here."""
    is_gpu = study.context.get("device", {}).get("backend", "cpu") != "cpu"
    return "kernels" if is_gpu else "operators"


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


def rule_part(rule: Rule) -> Json:
    """Held or not, where not, and how close it came."""
    slower = sorted(rule.broken, key=lambda found: -found.slowdown.median)
    closest = max(rule.comparisons, key=lambda found: found.slowdown.median, default=None)
    decided = [c.slowdown for c in rule.comparisons if is_decisive(c.slowdown)]
    highs = [slowdown.interval.high for slowdown in decided if slowdown.interval]
    verdict = "Not held" if slower else "Held" if rule.held else "Not shown"
    return {
        "title": f"**{verdict if rule.comparisons else 'Not measured'}**",
        "compared": len(rule.comparisons),
        "undecided": len(rule.undecided),
        "by_chance": f"{rule.expected_false:.1f}",
        "closest": f"{closest.row} at {closest.point.title}" if closest else "",
        "taken": closest.slowdown.text() if closest else "",
        "open": f"{max(highs):.2f}" if highs else "",
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
    left_out = ("workshop", "samples/s", "allocations") if is_brief else ()
    return template(TEMPLATE).render(
        is_brief=is_brief,
        notes=notes_of(study),
        context=study.context,
        meta=study.meta,
        rule=rule_part(check_rule(study.main, study.rows)),
        points=[point_tables(study, point, left_out) for point in study.main.points()],
    )


def terminal_text(study: Study) -> str:
    """The main tables and the rule, without Markdown's emphasis and code marks."""
    page = ablation_page(study, is_brief=True)
    return page.replace("**", "").replace("`", "").rstrip() + "\n"
