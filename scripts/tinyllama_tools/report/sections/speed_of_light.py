"""What each part of a step could reach at best here, and the measured share of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.report.document import (
    LIGHT,
    MEASURED,
    Column,
    Figure,
    Omission,
    Section,
    Table,
    axis,
    bars,
    case_text,
    layout,
    listed,
    percent_text,
    step_text,
    text_column,
)
from tinyllama_tools.report.sources import Kind

if TYPE_CHECKING:
    from tinyllama_tools.models.speed_of_light import LightPart, SpeedOfLight
    from tinyllama_tools.report.inputs import ReportInputs

ID, TITLE = "speed_of_light", "Speed of light"
MAKE = f"measure a step with its parts and its GEMMs: {Kind.STUDY.command}"
MEANING = (
    "The speed of light of a part is the longer of its GEMMs, each at the best rate "
    "measured at its own shape in any form (one by one, fused, in chunks), and its bytes at the "
    "bandwidth that they can see. Attention's scores and values count at the peak, without what the"
    " mask hides. It is the same for every variant. Lost is what was measured above it."
)
NO_SHARE = (
    "There is no share: something was faster than its speed of light, which is then no bound; "
    "Left out names it."
)
COLUMNS = (
    text_column("part"),
    Column("count", digits=6),
    Column("measured", "ms"),
    Column("speed of light", "ms"),
    Column("lost", "ms"),
    Column("products", "ms"),
    Column("traffic", "ms"),
    Column("share", "%", digits=3),
)


def _share(part: LightPart) -> float | None:
    if not part.measured_seconds or part.lost_seconds is None or part.lost_seconds < 0:
        return None
    return 100.0 * part.light_seconds / part.measured_seconds


def _row(part: LightPart) -> list[str | float | int | None]:
    seconds = (
        part.measured_seconds,
        part.light_seconds,
        part.lost_seconds,
        part.products_seconds,
        part.traffic_seconds,
    )
    milliseconds = [None if value is None else 1e3 * value for value in seconds]
    return [part.name, part.count, *milliseconds, _share(part)]


def _figure(light: SpeedOfLight) -> Figure:
    shown = [part for part in light.parts if part.measured_seconds is not None]
    names = [part.name for part in shown]
    traces = [
        bars("measured", names, [1e3 * (p.measured_seconds or 0.0) for p in shown], role=MEASURED),
        bars("speed of light", names, [1e3 * part.light_seconds for part in shown], role=LIGHT),
    ]
    axes = layout(axis("", automargin=True), axis("time in a step", "ms"), barmode="group")
    title = f"Measured against the speed of light: {case_text(light.step)}"
    return Figure("speed_of_light_plot", title, traces, axes, MEANING)


def _steps_table(lights: Sequence[SpeedOfLight]) -> Table:
    rows = [
        [
            step_text(light.step),
            1e3 * (light.total.measured_seconds or 0.0),
            1e3 * light.total.light_seconds,
            light.share_percent,
            listed(light.missing, 2),
        ]
        for light in lights
    ]
    columns = (
        text_column("step"),
        Column("measured", "ms"),
        Column("speed of light", "ms"),
        Column("share", "%", digits=3),
        text_column("what stands in for what was not measured"),
    )
    return Table("speed_of_light_steps", "Steps", columns, rows, is_key=True)


def build(inputs: ReportInputs) -> Section:
    """The main step's parts, and every step at its size's own shape."""
    light, reason = inputs.light
    lights, omissions = inputs.lights
    if light is None:
        return Section(ID, TITLE, missing=f"{reason}; {MAKE}", omissions=omissions)
    parts = Table(
        "speed_of_light_parts",
        f"Parts of the step: {case_text(light.step)}",
        COLUMNS,
        [_row(part) for part in (*light.parts, light.total)],
        MEANING,
    )
    reached = (
        f"{case_text(light.step)}: {seconds_text(light.total.measured_seconds)} measured, "
        f"{seconds_text(light.total.light_seconds)} at the speed of light"
    )
    share = light.share_percent
    shown = f", a share of {percent_text(share)}." if share is not None else f". {NO_SHARE}"
    text = [reached + shown]
    text += [f"Missing: {missing}." for missing in light.missing]
    errors = [
        Omission("speed of light", str(one.step), error, is_error=True)
        for one in lights
        for error in one.errors
    ]
    return Section(
        ID,
        TITLE,
        text,
        figures=[_figure(light)],
        tables=[_steps_table(lights), parts],
        omissions=[*omissions, *errors],
    )
