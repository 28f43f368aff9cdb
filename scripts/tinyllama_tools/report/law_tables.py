"""Tables of laws: coefficients with intervals, exponents, and how well held-out sizes are met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tinyllama_tools.laws import Estimate
from tinyllama_tools.report.document import Cell, Column, Table, text_column
from tinyllama_tools.report.scaling_fits import Foretold, SeriesFit

INTERVALS = "Intervals are 95 %."
UNSUPPORTED = (
    "A term without a figure is one that the data does not support; the last column says why."
)
HELD = (
    "Cells of half the largest batch x sequence and more were left out of the fit and foretold "
    "from the others. Covered: how many lie in the law's 95 % interval, whose median width is "
    "given in percent."
)


def coefficient_table(
    identity: str, title: str, fits: Sequence[SeriesFit], units: Sequence[tuple[str, str, float]]
) -> Table:
    """`units`: of each term of the law its title, its unit, and how many a second or byte is."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if fit.law is None:
            continue
        row: list[Cell] = [str(fit.series), len(fit.points)]
        reasons = []
        for term, (_, _, scale) in zip(fit.law.coefficients, units, strict=True):
            values = (term.value, term.low, term.high) if term.supported else (None, None, None)
            row += [value if value is None else scale * value for value in values]
            reasons += [] if term.supported else [f"{term.name}: {term.reason}"]
        worst = max((abs(percent) for percent in fit.law.residuals_percent), default=0.0)
        rows.append([*row, worst, "; ".join(reasons)])
    columns = [text_column("series"), Column("sizes", digits=6)]
    for name, unit, _ in units:
        columns += [Column(name, unit), Column("from", unit), Column("to", unit)]
    columns += [Column("largest residual", "%", digits=3), text_column("not supported")]
    return Table(identity, title, columns, rows, f"{INTERVALS} {UNSUPPORTED}")


def exponent_table(identity: str, fits: Sequence[SeriesFit], title: str) -> Table:
    """value ~ B^b S^s, of every series whose sizes decide both."""
    rows: list[list[Cell]] = []
    for fit in fits:
        found = fit.exponents
        if found is None:
            continue
        estimates: list[Estimate] = [found.batch, found.seq]
        cells = [value for e in estimates for value in (e.value, e.low, e.high)]
        rows.append([str(fit.series), len(fit.points), *cells, found.r_squared])
    columns = [text_column("series"), Column("sizes", digits=6)]
    for name in ("batch", "sequence"):
        columns += [Column(f"{name} ^", digits=3), Column("from", digits=3), Column("to", digits=3)]
    note = f"By regression of logarithms: value ~ batch^b sequence^s. {INTERVALS}"
    return Table(identity, title, [*columns, Column("R²", digits=4)], rows, note)


def held_out_table(identity: str, title: str, fits: Sequence[SeriesFit]) -> Table:
    """Of every series that has enough sizes to hold some out."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if not fit.held_out:
            continue
        errors = [held.error_percent for held in fit.held_out]
        rows.append(
            [
                str(fit.series),
                len(errors),
                sum(held.is_covered for held in fit.held_out),
                statistics.median(map(abs, errors)),
                max(errors, key=abs),
                statistics.median(held.width_percent for held in fit.held_out),
            ]
        )
    columns = (
        text_column("series"),
        Column("held out", digits=6),
        Column("covered", digits=6),
        Column("median error", "%", digits=3),
        Column("largest error", "%", digits=3),
        Column("median width", "%", digits=3),
    )
    return Table(identity, title, columns, rows, HELD)


def held_out_summary(identity: str, title: str, fits: Sequence[SeriesFit], goal: str) -> Table:
    """By problem size: over all held-out sizes of all its series."""
    by_size: dict[str, list[Foretold]] = {}
    for fit in fits:
        by_size.setdefault(fit.series.name.size, []).extend(fit.held_out)
    rows = []
    for size, found in by_size.items():
        if not found:
            continue
        errors = [abs(held.error_percent) for held in found]
        covered = sum(held.is_covered for held in found)
        widths = [held.width_percent for held in found]
        percent = 100.0 * covered / len(found)
        middle, widest = statistics.median(errors), max(errors)
        rows.append([size, len(found), middle, widest, percent, statistics.median(widths)])
    columns = (
        text_column("size"),
        Column("held-out cells", digits=6),
        Column("median error", "%", digits=3),
        Column("largest error", "%", digits=3),
        Column("in the interval", "%", digits=3),
        Column("median width", "%", digits=3),
    )
    return Table(identity, title, columns, rows, f"{HELD} {goal}", is_key=True)
