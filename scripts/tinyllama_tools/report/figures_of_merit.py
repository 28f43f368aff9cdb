"""One line a figure for the test frameworks of computing centres; docs/report.md lists the names.

Names and their order only depend on what was measured, so that a series of runs can be followed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.scaling_fits import Foretold, SeriesFit
from tinyllama_tools.report.selection import headline_steps
from tinyllama_tools.report.wording import count_of
from tinyllama_tools.scaling.efficiency import ScalingPoint

# as tiny_llama_bench --figures-of-merit names them
COUNTERS = (
    ("samples_per_second", "samples_per_second", "samples/s"),
    ("tokens_per_second", "tokens_per_second", "tokens/s"),
    ("TFLOPS", "TFLOPS", "TFLOP/s"),
    ("MFU_percent", "MFU_percent", "%"),
    ("peak_percent", "peak_percent", "%"),
    ("roof_percent", "roof_percent", "%"),
    ("peak_memory_MiB", "peak_memory", "MiB"),
)
BANDWIDTHS = ("memory_bandwidth", "cache_bandwidth")
TERA, GIGA, MIB = 1e12, 1e9, 2**20


@dataclass(frozen=True)
class FigureOfMerit:
    """`name` has no blank."""

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"FOM {self.name} = {self.value:.6g} {self.unit}"


def _peaks(results: ResultSet) -> Iterator[FigureOfMerit]:
    measured = (results.context.get("peaks") or {}).get("measured") or {}
    for name in sorted(set(measured) - set(BANDWIDTHS)):
        rate = measured[name].get("flops_per_second")
        if rate:
            yield FigureOfMerit(f"peak/gemm/{name}/TFLOPS", rate / TERA, "TFLOP/s")
    for name in BANDWIDTHS:
        rate = measured.get(name, {}).get("bytes_per_second")
        if rate:
            yield FigureOfMerit(f"peak/{name}", rate / GIGA, "GB/s")


def _of_step(step: MeasuredCase) -> Iterator[FigureOfMerit]:
    yield FigureOfMerit(f"{step.name}/time", step.median_seconds, "s")
    for counter, name, unit in COUNTERS:
        if counter in step.counters:
            yield FigureOfMerit(f"{step.name}/{name}", step.counters[counter], unit)


def _of_steps(inputs: ReportInputs, results: ResultSet) -> Iterator[FigureOfMerit]:
    lights = {light.step: light for light in inputs.lights[0]}
    for step in headline_steps(results):
        yield from _of_step(step)
        light = lights.get(step.name)
        if light is not None and light.share_percent is not None:
            name = f"{step.name}/speed_of_light_percent"
            yield FigureOfMerit(name, light.share_percent, "%")


def _held_out(what: str, fits: list[SeriesFit]) -> Iterator[FigureOfMerit]:
    """By size, over all held-out cells of all series."""
    by_size: dict[str, list[Foretold]] = {}
    for fit in fits:
        by_size.setdefault(fit.series.name.size, []).extend(fit.held_out)
    for size, found in by_size.items():
        if not found:
            continue
        name = f"held_out/{what}/{size}"
        # counted memory is met to the last bit, which is no figure
        error = round(statistics.median(abs(held.error_percent) for held in found), 6)
        covered = 100 * sum(held.is_covered for held in found) / len(found)
        yield FigureOfMerit(f"{name}/median_error_percent", error, "%")
        yield FigureOfMerit(f"{name}/covered_percent", covered, "%")


def _predicted(inputs: ReportInputs) -> Iterator[FigureOfMerit]:
    for step in inputs.predictions.steps:
        of, name = step.prediction, f"{step.prediction.name}"
        yield FigureOfMerit(f"{name}/predicted_time", of.seconds, "s")
        yield FigureOfMerit(f"{name}/predicted_time_low", of.low, "s")
        yield FigureOfMerit(f"{name}/predicted_time_high", of.high, "s")
        yield FigureOfMerit(f"{name}/predicted_memory", of.memory_bytes / MIB, "MiB")


def _of_point(name: str, scaling: str, point: ScalingPoint) -> Iterator[FigureOfMerit]:
    yield FigureOfMerit(f"{name}/time", point.seconds.median, "s")
    if point.efficiency is not None:
        percent = point.efficiency.median
        yield FigureOfMerit(f"{name}/{scaling}_efficiency_percent", percent, "%")
    if point.communication is not None:
        percent = point.communication.median
        yield FigureOfMerit(f"{name}/communication_percent", percent, "%")


def _data_parallel(inputs: ReportInputs) -> Iterator[FigureOfMerit]:
    """A step that several runs have is the first run's: a name stands for one figure."""
    known: set[str] = set()
    for run in inputs.scalings:
        for result in run.analysis.results:
            for point in (p for p in run.analysis.points if p.ranks == result.ranks):
                name = str(result.steps[point.mode].name)
                if name not in known:
                    known.add(name)
                    yield from _of_point(name, result.scaling, point)


def figures_of_merit(inputs: ReportInputs) -> list[FigureOfMerit]:
    """Of the first result, and of every data-parallel run."""
    results = inputs.main
    if results is None:
        return list(_data_parallel(inputs))
    found = (
        _peaks(results),
        _of_steps(inputs, results),
        _held_out("time", inputs.time_fits),
        _held_out("memory", inputs.memory_fits),
        _predicted(inputs),
        _data_parallel(inputs),
    )
    # what is no number is no figure
    return [one for figures in found for one in figures if math.isfinite(one.value)]


def figures_text(figures: list[FigureOfMerit], errors: int) -> str:
    """The lines, and at the end SUCCESS: or FAILED:, which are looked for as those of
    tiny_llama_bench --figures-of-merit are."""
    lines = [str(figure) for figure in figures]
    if errors:
        lines.append(f"FAILED: {count_of(errors, 'error')}, {len(figures)} figures")
    elif figures:
        lines.append(f"SUCCESS: {len(figures)} figures")
    else:
        lines.append("FAILED: no figure")
    return "\n".join(lines) + "\n"
