"""Several devices beside each other: peaks, times and variants, with columns for each device."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tinyllama_tools.core.app import shown_path
from tinyllama_tools.data.machine import plugin_texts
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.results import MeasuredCase, ResultSet, commit_text
from tinyllama_tools.models.prediction import is_own_shape
from tinyllama_tools.report.document import (
    FULL,
    KILO,
    Cell,
    Section,
    Shown,
    Table,
    axis,
    bars,
    number_text,
    step_text,
)
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.order import WHOLE_PASSES, in_order, main_step, name_rank
from tinyllama_tools.report.sections.measured import peaks_of

# by device, the figures of its cases by name
Cases = Mapping[str, Mapping[CaseName, MeasuredCase]]


def _peaks(devices: Iterable[ReportInputs]) -> list[dict[str, Cell]]:
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    for one in devices:
        # a type that only the run with the variants has, such as bf16, is that run's
        for peak in (*peaks_of(one.context), *peaks_of(one.with_variants.context)):
            alike = {key: peak[key] for key in ("figure", "unit")}
            row = found.setdefault(tuple(alike.values()), alike)
            row.setdefault(one.device, peak["measured"])
    names = [one.device for one in devices]
    # bandwidths of traffic, whose sizes are a device's own, are under Environment
    return [
        {**row, **{name: row.get(name) for name in names}}
        for row in found.values()
        if not str(row["figure"]).startswith("bandwidth")
    ]


def _cases(devices: Iterable[ReportInputs], results: Callable[[ReportInputs], ResultSet]) -> Cases:
    """The cases that steps consist of, at each size's own batch and sequence."""
    return {
        one.device: {
            case.name: case
            for case in in_order(results(one))
            if case.name.pass_name in WHOLE_PASSES and is_own_shape(case.name)
        }
        for one in devices
    }


def _rows(
    cases: Cases, columns: Mapping[str, Callable[[MeasuredCase], Cell]]
) -> list[dict[str, Cell]]:
    """A row for each case that has a figure on any device, with the columns of every device: by
    heading, in which {} stands for the device, what computes the figure."""
    names = sorted({name for own in cases.values() for name in own}, key=name_rank)
    rows = []
    for name in names:
        figures = {
            heading.format(device): figure(own[name]) if name in own else None
            for heading, figure in columns.items()
            for device, own in cases.items()
        }
        if any(value is not None for value in figures.values()):
            rows.append({**name.axes, **figures})
    return rows


def _time(case: MeasuredCase) -> Cell:
    milliseconds = KILO * case.median_seconds
    return Shown(milliseconds, f"{number_text(milliseconds)} {case.mark}".rstrip())


def _of_the_roofline(case: MeasuredCase) -> Cell:
    return case.counters.get("roof_percent")


def _speedup(case: MeasuredCase) -> Cell:
    if case.speedup is None:
        return None
    return Shown(case.speedup.median, f"{case.speedup.marked_text()} {case.mark}".rstrip())


def _of_variants(cases: Cases) -> Cases:
    """Those that any device measured in several variants."""
    points = Counter(
        replace(name, variant="") for name in {name for own in cases.values() for name in own}
    )
    return {
        device: {n: case for n, case in own.items() if points[replace(n, variant="")] > 1}
        for device, own in cases.items()
    }


def _parts_figure(page: Section, devices: Iterable[ReportInputs]) -> None:
    """Where all devices measured the same main step with its parts."""
    steps = {one.device: one.steps[0] if one.steps else None for one in devices}
    if None in steps.values() or len({times.step for times in steps.values()}) > 1:
        return
    series = {
        device: {p.name: KILO * p.seconds for p in times.parts if p.seconds is not None}
        for device, times in steps.items()
    }
    title = f"Parts of {step_text(next(iter(steps.values())).step)}"
    x, y = axis("part"), axis("time in a step [ms]")
    page.figure("parts_by_device", title, bars(series), x, y, columns=FULL)


def _about(one: ReportInputs) -> str:
    """Which run the figures are of."""
    day, torch = str(one.context.get("date"))[:10], one.context.get("torch_version")
    about = f"commit {commit_text(one.context)}, {day}, libtorch {torch}"
    about += f", threads: {one.context.get('threads')}"
    if plugins := plugin_texts(one.context):
        about += f", plug-ins: {', '.join(plugins)}"
    step = main_step(one.main)
    about += f"; main step: {step_text(step.name)}" if step else ""
    if one.with_variants is not one.main:
        about += f"; variants: {shown_path(one.with_variants.paths[0])}"
    return about


def devices(page: Section, inputs: ReportInputs) -> None:
    page.text += [f"{one.device}: {_about(one)}." for one in inputs.devices]
    _parts_figure(page, inputs.devices)
    measured = _cases(inputs.devices, lambda one: one.main)
    with_variants = _cases(inputs.devices, lambda one: one.with_variants)
    tables = {
        "Peaks": (
            _peaks(inputs.devices),
            "As measured in the analysed run; what that did not measure, in the one with the "
            "variants.",
        ),
        "Times": (
            _rows(measured, {"{} [ms]": _time, "{}: of the roofline [%]": _of_the_roofline}),
            "At each size's own batch and sequence, as far as a device measured it. Shares are of "
            "the device's own roofline. !: disturbed, with the reason under Cases.",
        ),
        "Variants": (
            _rows(_of_variants(with_variants), {"{} [ms]": _time, "{}: speed-up": _speedup}),
            "Speed-up: over the baseline at the same dtype in the same run on the same device, "
            "with its 95 % interval; ~: no difference shown.",
        ),
    }
    for title, (rows, note) in tables.items():
        identity = f"{title.lower()}_by_device"
        page.tables += [Table(identity, f"{title} by device", rows, note, True)] if rows else []
