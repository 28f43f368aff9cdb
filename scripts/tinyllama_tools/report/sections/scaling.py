"""How the time of every component grows with batch and sequence: laws and held-out cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinyllama_tools.report.analysis import refused
from tinyllama_tools.report.document import Section
from tinyllama_tools.report.law_parts import (
    Quantity,
    coefficient_table,
    drawn,
    exponent_table,
    held_out_summary,
    held_out_table,
    shown_fits,
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
