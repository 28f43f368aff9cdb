"""How the time of every component grows with batch and sequence: laws and held-out cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.data.parts import BASELINE, OPTIMIZED
from tinyllama_tools.report.analysis import F32, WHOLE_PASSES, SeriesFit, rank, refused
from tinyllama_tools.report.document import Figure, Omission, Section
from tinyllama_tools.report.law_parts import (
    Quantity,
    coefficient_table,
    exponent_table,
    held_out_summary,
    held_out_table,
    law_figure,
)
from tinyllama_tools.report.sources import Kind

if TYPE_CHECKING:
    from tinyllama_tools.report.inputs import ReportInputs

ID, TITLE = "scaling", "Scaling"
TIME = Quantity("time", "time", "ms", 1e3)
UNITS = (("launch", "us", 1e6), ("per token", "ns", 1e9), ("per token and token", "ps", 1e12))
# percent, of the median error of held-out cells
GOAL = 15.0
MAKE = f"make a grid: {Kind.STUDY.command}"
MOST_FIGURES = 24
LAW = (
    "At one model size, time = launch + a B S + b B S²: B is the batch, S the sequence. The laws "
    "describe the grid that they were fitted to; other model sizes are under Predictions. A term "
    "that a series' FLOPs and bytes do not have is not fitted."
)


def shown_fits(fits: Sequence[SeriesFit]) -> list[SeriesFit]:
    """One a component and size: the passes that a step consists of, `optimized`, f32."""
    found: dict[tuple[str, str], SeriesFit] = {}

    def preference(fit: SeriesFit) -> tuple[object, ...]:
        of = fit.series.name
        return (
            fit.law is None,
            rank(of.variant, (OPTIMIZED, BASELINE)),
            rank(of.dtype, (F32,)),
        )

    for fit in fits:
        of = fit.series.name
        if of.pass_name not in WHOLE_PASSES or len(fit.points) < 2:
            continue
        key = (of.component, of.size)
        if key not in found or preference(fit) < preference(found[key]):
            found[key] = fit
    return list(found.values())


def drawn(
    fits: Sequence[SeriesFit], by: Quantity, most: int
) -> tuple[list[Figure], list[Omission]]:
    """The first of them; and the others by name."""
    figures = [law_figure(fit, by) for fit in fits[:most]]
    reason = f"the page draws {most} laws at most; the tables have them all"
    omissions = [Omission(f"figure of {by.title}", str(fit.series), reason) for fit in fits[most:]]
    return figures, omissions


def build(inputs: ReportInputs) -> Section:
    """Of the first result."""
    if inputs.main is None:
        return Section(ID, TITLE, missing=f"no result of the suite was given; {MAKE}")
    fits = inputs.time_fits
    omissions = refused(fits, "time")
    with_law = [fit for fit in fits if fit.law is not None]
    if not with_law:
        reason = f"no series of cases supports a law: {fits[0].refusal}" if fits else "no case"
        return Section(ID, TITLE, missing=f"{reason}; {MAKE}", omissions=omissions)
    if len(with_law) == len(fits):
        text = f"All {len(fits)} series of cases support a law."
    else:
        text = f"{len(with_law)} of {len(fits)} series support a law; Left out names the others."
    figures, not_drawn = drawn(shown_fits(fits), TIME, MOST_FIGURES)
    tables = [
        held_out_summary("held_out_time", "Held-out cells by size", fits, GOAL),
        coefficient_table("time_laws", "Laws of time", fits, UNITS),
        exponent_table("time_exponents", fits, "Exponents of time"),
        held_out_table("held_out_time_series", "Held-out cells by series", fits),
    ]
    return Section(
        ID,
        TITLE,
        [LAW, text],
        figures=figures,
        tables=[table for table in tables if table.rows],
        omissions=[*omissions, *not_drawn],
    )
