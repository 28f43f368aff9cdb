"""Tables of laws: coefficients with ranges, exponents, and how well held-out sizes are met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tinyllama_tools.report.document import Cell, Column, Table, text_column
from tinyllama_tools.report.scaling_fits import Foretold, SeriesFit, range_kind
from tinyllama_tools.stats.laws import RangeKind

UNSUPPORTED = (
    "A term without a figure is one that the data does not support; the last column says why."
)
POWER_LAW = (
    "By regression of logarithms: value ~ batch^b sequence^s, on average over the grid. The 95 % "
    "intervals hold only as far as the series is a power law: where launches, caches or attention "
    "change how it grows, the largest sizes have other exponents, and the law above says more."
)


# of a percentage; what is less is rounding of the computation
DECIMALS = 6


# what laws/held_out.py says of its own figures
SAME_ROUNDS = (
    " The cells left out are of the same rounds as the others, so more of them lie in it than of "
    "new ones would."
)


def _held_note(kind: RangeKind) -> str:
    return (
        "Cells of half the largest batch x sequence and more were left out of the fit and "
        "predicted from the others. Covered: how many lie in the law's range "
        f"({kind.short}), whose median width is given in percent. {kind.of_values}"
        f"{SAME_ROUNDS if kind == RangeKind.NEW_ROUNDS else ''}"
    )


def _remarks(fit: SeriesFit) -> str:
    """What the law leaves out: terms with their reasons, and sizes."""
    if fit.law is None:
        return ""
    found = [f"{c.name}: {c.reason}" for c in fit.law.coefficients if not c.supported]
    if fit.law.below:
        found.append(f"{len(fit.law.below)} smaller sizes have their peak at another moment")
    return "; ".join(found)


def coefficient_table(
    identity: str, title: str, fits: Sequence[SeriesFit], units: Sequence[tuple[str, str, float]]
) -> Table:
    """`units`: of each term of the law its title, its unit, and how many a second or byte is."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if fit.law is None:
            continue
        row: list[Cell] = [str(fit.series), len(fit.law.points)]
        for term, (_, _, scale) in zip(fit.law.coefficients, units, strict=True):
            values = (term.value, term.low, term.high) if term.supported else (None, None, None)
            row += [value if value is None else scale * value for value in values]
        worst = round(max(map(abs, fit.law.residuals_percent), default=0.0), DECIMALS)
        rows.append([*row, worst, _remarks(fit)])
    columns = [text_column("series"), Column("sizes", digits=6)]
    for name, unit, _ in units:
        columns += [Column(name, unit), Column("from", unit), Column("to", unit)]
    columns += [Column("largest residual", "%", digits=3), text_column("remarks")]
    note = f"{range_kind(fits).of_coefficients} {UNSUPPORTED}"
    return Table(identity, title, columns, rows, note)


def exponent_table(identity: str, fits: Sequence[SeriesFit], title: str) -> Table:
    """value ~ B^b S^s, of every series whose sizes decide both."""
    rows: list[list[Cell]] = []
    for fit in fits:
        found = fit.exponents
        if found is None:
            continue
        cells = [value for e in (found.batch, found.seq) for value in (e.value, e.low, e.high)]
        rows.append([str(fit.series), len(fit.points), *cells, found.r_squared])
    columns = [text_column("series"), Column("sizes", digits=6)]
    for name in ("batch", "sequence"):
        columns += [Column(f"{name} ^", digits=3), Column("from", digits=3), Column("to", digits=3)]
    return Table(identity, title, [*columns, Column("R²", digits=4)], rows, POWER_LAW)


def held_out_table(identity: str, title: str, fits: Sequence[SeriesFit]) -> Table:
    """Of every series that has enough sizes to hold some out."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if not fit.held_out:
            continue
        errors = [round(held.error_percent, DECIMALS) for held in fit.held_out]
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
    return Table(identity, title, columns, rows, _held_note(range_kind(fits)))


def held_out_summary(
    identity: str, title: str, fits: Sequence[SeriesFit], goal_percent: float
) -> Table:
    """By problem size: over all held-out sizes of all its series. `goal_percent`: what their
    median error is to be at most."""
    by_size: dict[str, list[Foretold]] = {}
    for fit in fits:
        by_size.setdefault(fit.series.name.size, []).extend(fit.held_out)
    rows = []
    for size, found in by_size.items():
        if not found:
            continue
        errors = [round(abs(held.error_percent), DECIMALS) for held in found]
        covered = sum(held.is_covered for held in found)
        widths = [held.width_percent for held in found]
        percent = 100.0 * covered / len(found)
        middle, widest = statistics.median(errors), max(errors)
        verdict = f"{'within' if middle <= goal_percent else 'above'} {goal_percent:g} %"
        width = statistics.median(widths)
        rows.append([size, len(found), middle, verdict, widest, percent, width])
    columns = (
        text_column("size"),
        Column("held-out cells", digits=6),
        Column("median error", "%", digits=3),
        text_column("which is"),
        Column("largest error", "%", digits=3),
        Column("covered", "%", digits=3),
        Column("median width", "%", digits=3),
    )
    return Table(identity, title, columns, rows, _held_note(range_kind(fits)), is_key=True)
