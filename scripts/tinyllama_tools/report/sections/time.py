"""Where the time of a step goes: its parts, its phases, products against the rest, what is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.report.analysis import is_same_device
from tinyllama_tools.report.document import (
    FIT,
    LIGHT,
    MEASURED,
    OTHER,
    ROOF,
    Column,
    Figure,
    Section,
    Table,
    axis,
    case_text,
    layout,
    listed,
    lying_bars,
    percent_text,
    step_text,
    text_column,
)
from tinyllama_tools.report.sources import Kind

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.names import CaseName
    from tinyllama_tools.models.speed_of_light import Bar, SpeedOfLight, Waterfall
    from tinyllama_tools.report.inputs import ReportInputs

ID, TITLE = "time", "Where the time goes"
MAKE = f"measure a step with its parts: {Kind.STUDY.command}"
SUM_NOTE = (
    "Each part was measured alone. A rest below 0: parts alone do work that the step shares, such "
    "as gradients of inputs."
)
MILLI = 1e3


def _waterfall(found: Waterfall) -> Figure:
    labels = [*(bar.name for bar in found.bars), "step"]
    heights = [*(MILLI * bar.seconds for bar in found.bars), MILLI * found.step_seconds]
    trace = {
        "type": "waterfall",
        "name": "time",
        "x": labels,
        "y": heights,
        "measure": ["relative"] * len(found.bars) + ["total"],
        "role": MEASURED,
    }
    axes = layout(axis("", automargin=True), axis("time in a step", "ms"))
    title = f"From the parts to the step: {case_text(found.step)}"
    return Figure("waterfall_plot", title, [trace], axes, SUM_NOTE)


def _shares(
    steps: Sequence[CaseName], parts: Sequence[Mapping[str, float]], wholes: Sequence[float]
) -> list[Json]:
    """Bars of percents, one a step, with the times to hover over. `parts`: seconds by name."""
    names = dict.fromkeys(name for of in parts for name in of)
    traces = []
    for name in names:
        found = [
            (step_text(step), of[name], whole)
            for step, of, whole in zip(steps, parts, wholes, strict=True)
            if name in of
        ]
        percents = [100 * seconds / whole for _, seconds, whole in found]
        texts = [f"{MILLI * seconds:.4g} ms" for _, seconds, _ in found]
        labels = [label for label, _, _ in found]
        traces.append(lying_bars(name, labels, percents, text=texts, textposition="inside"))
    return traces


def _share_layout() -> Json:
    return layout(axis("share of the step", "%"), axis("", automargin=True), barmode="relative")


def _phases(found: Sequence[Waterfall]) -> Figure:
    traces = _shares(
        [one.step for one in found],
        [{bar.name: bar.seconds for bar in one.phases} for one in found],
        [one.step_seconds for one in found],
    )
    title = "Forward, backward, optimizer and other"
    return Figure("phases_plot", title, traces, _share_layout())


def _products(lights: Sequence[SpeedOfLight], profiled: Mapping[CaseName, float]) -> Figure | None:
    """`profiled`: measured percents of GEMMs, by step."""
    names = (
        "GEMMs at their best",
        "other work at the speed of light",
        "lost against it",
        "GEMMs, profiled",
        "everything else, profiled",
    )
    bars: list[tuple[str, tuple[float | None, ...]]] = []
    for light in lights:
        whole, lost = light.total.measured_seconds, light.lost_seconds
        if whole and lost is not None:
            best = [light.products_seconds, light.other_light_seconds, lost]
            shares = (*(100 * seconds / whole for seconds in best), None, None)
            bars.append((step_text(light.step), shares))
        if light.step in profiled:
            percent = profiled[light.step]
            label = f"{step_text(light.step)} (profiled)"
            bars.append((label, (None, None, None, percent, 100 - percent)))
    roles = (LIGHT, ROOF, OTHER, MEASURED, FIT)
    traces = []
    for place, (name, role) in enumerate(zip(names, roles, strict=True)):
        found = [(label, of[place]) for label, of in bars if of[place] is not None]
        if found:
            labels, lengths = zip(*found, strict=True)
            traces.append(lying_bars(name, labels, lengths, role=role))
    if not traces:
        return None
    note = (
        "GEMMs at the best rate measured at their own shapes, what the rest of the step "
        "would take at its speed of light, and what is lost against both. The time that GEMMs "
        "themselves took is known only where an operator profile of the same step was given: its "
        "bar shows their measured share."
    )
    title = "GEMMs against everything else"
    return Figure("products_plot", title, traces, _share_layout(), note)


def _profiled(inputs: ReportInputs) -> dict[CaseName, float]:
    """Percents of a step's operators that GEMMs take, of training runs on the first
    result's device that were profiled."""
    found: dict[CaseName, float] = {}
    for run in inputs.trainings:
        operators = run.summary.get("operators")
        is_here = inputs.main is not None and is_same_device(
            run.summary["context"], inputs.main.context
        )
        if operators and is_here:
            found[run.step_name] = operators["matrix_product_percent"]
    return found


def _bar_table(identity: str, title: str, bars_of: Sequence[Bar], whole: float, note: str) -> Table:
    rows = [[bar.name, MILLI * bar.seconds, 100 * bar.seconds / whole, bar.case] for bar in bars_of]
    columns = (
        text_column("part"),
        Column("time in a step", "ms"),
        Column("share", "%", digits=3),
        text_column("measured as"),
    )
    return Table(identity, title, columns, rows, note)


def _lost_table(light: SpeedOfLight) -> Table:
    step = light.total.measured_seconds or 0.0
    rows = [
        [
            part.name,
            MILLI * (part.lost_seconds or 0.0),
            100 * (part.lost_seconds or 0.0) / step if step else None,
            MILLI * (part.measured_seconds or 0.0),
            MILLI * part.light_seconds,
        ]
        for part in light.most_lost
    ]
    columns = (
        text_column("part"),
        Column("lost", "ms"),
        Column("of the step", "%", digits=3),
        Column("measured", "ms"),
        Column("speed of light", "ms"),
    )
    title = "The five parts that lose most time against the speed of light"
    return Table("most_lost", title, columns, rows, is_key=True)


def build(inputs: ReportInputs) -> Section:
    """Of the main step of the first result that has one."""
    found, reason = inputs.sum_of_parts
    light, _ = inputs.light
    if found is None:
        return Section(ID, TITLE, missing=f"{reason}; {MAKE}")
    parts = sum(bar.seconds for bar in found.bars[:-1])
    text = [
        f"{case_text(found.step)}: the parts add up to {seconds_text(parts)}, "
        f"{percent_text(100 * parts / found.step_seconds)} of the step's "
        f"{seconds_text(found.step_seconds)}."
    ]
    if found.missing:
        text.append(f"Not measured, and so in the rest: {listed(found.missing)}.")
    if found.phases_missing:
        text.append(f"The phases would be told apart by {listed(found.phases_missing)}.")
    figures = [_waterfall(found), _phases(inputs.sums_of_parts)]
    tables = [
        _bar_table("sum_of_parts", "Parts of the step", found.bars, found.step_seconds, SUM_NOTE),
        _bar_table("phases", "Phases of the step", found.phases, found.step_seconds, ""),
    ]
    products = _products(inputs.lights[0], _profiled(inputs))
    figures += [products] if products is not None else []
    if light is not None:
        tables.insert(0, _lost_table(light))
    else:
        text.append("What is lost against the speed of light is not known: see there.")
    return Section(ID, TITLE, text, figures=figures, tables=tables)
