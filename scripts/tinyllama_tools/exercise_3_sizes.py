"""Numbers of the problem-size study that exercise 3's answers follow from."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.exercise_1_rules import group_shares
from tinyllama_tools.exercise_runs import MeasuredRun, samples_per_second
from tinyllama_tools.study.size_predictions import Prediction
from tinyllama_tools.study.training import PROFILES, SizeResult
from tinyllama_tools.worksheet_rules import ratio, share_of

# A size is saturated where the next one attains less than this much more.
SATURATED_GAIN = 1.10
# Share of the peak from which attention's memory is called significant.
SIGNIFICANT_PERCENT = 10.0
# What a doubling of the batch has to gain to be worth its memory.
BATCH_GAIN = 1.05
CORE = "attention/core"


def size_run(result: SizeResult) -> MeasuredRun:
    """A size of the study, named by its folder."""
    folder = result.folder
    assert folder is not None
    command = str(result.config.get("command", ""))
    has_profiles = result.config.get("profilers_enabled")
    name = f"{folder.name}/{PROFILES}" if has_profiles else folder.name
    return MeasuredRun(name, command, result.summary, 0, result.failure, folder)


@dataclass(frozen=True)
class Forecasts:
    """Predictions of steps that were not run.

    `own`: the five sizes as configured; `single`: at batch 1; `lean`: at batch 1 with
    checkpointing; `sequences`: one size over S, `linear`: the same with attention that keeps no
    scores; `medium`: that size over the batch.
    """

    own: tuple[Prediction, ...]
    single: tuple[Prediction, ...]
    lean: tuple[Prediction, ...]
    sequences: tuple[Prediction, ...]
    linear: tuple[Prediction, ...]
    medium: tuple[Prediction, ...]


@dataclass(frozen=True)
class SizeStudy:
    """`results`: of scripts/study, smallest first. `batches`: runs of one size over the batch."""

    results: tuple[SizeResult, ...]
    batches: tuple[MeasuredRun, ...]
    forecasts: Forecasts

    @property
    def runs(self) -> list[MeasuredRun]:
        """The measured sizes, smallest first."""
        return [size_run(result) for result in self.results if result.is_measured]

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Size and reason of those that were not measured."""
        return [(r.size, r.failure or r.refusal) for r in self.results if not r.is_measured]


def name_of(run: MeasuredRun) -> str:
    """The size's name."""
    return str(run.value("configuration.size"))


def growth_exponent(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Slope of log y over log x; None of fewer than two different positive points."""
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]
    if len({a for a, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def exponent_over_parameters(runs: Sequence[MeasuredRun], key: str) -> float | None:
    """Of a figure over the parameter count."""
    found = [(run.value("model.total_parameters"), run.value(key)) for run in runs]
    known = [(p, v) for p, v in found if p and v]
    return growth_exponent([p for p, _ in known], [v for _, v in known])


def attained(run: MeasuredRun) -> float | None:
    """Model FLOPs a second, profiled steps left out where there are others."""
    speed, _ = samples_per_second(run)
    batch = run.value("configuration.batch_size")
    flops = run.value("model.flops_per_step")
    return speed / batch * flops if speed and batch and flops else None


def saturation(runs: Sequence[MeasuredRun]) -> tuple[str | None, list[tuple[str, float]]]:
    """The smallest size after which the attained rate rises by less than a tenth, and the rates.

    None where the rate still rises at the largest size, or only one was measured.
    """
    rates = [(name_of(run), rate) for run in runs if (rate := attained(run))]
    for (size, rate), (_, following) in itertools.pairwise(rates):
        if following < rate * SATURATED_GAIN:
            return size, rates
    return None, rates


def scores_percent(run: MeasuredRun) -> float | None:
    """Attention scores' share of the peak memory."""
    scores = run.value("memory.breakdown_at_peak.attention_scores")
    return share_of(scores, run.value("memory.peak_bytes"))


def shares(run: MeasuredRun) -> dict[str, float]:
    """attention, ffn, other in percent of the recorded work; empty without operator profile."""
    components = (run.value("operators") or {}).get("components")
    return group_shares(components) if components else {}


def core_percent(run: MeasuredRun) -> float | None:
    """Share of scores, softmax and values: what Flash Attention replaces."""
    components = (run.value("operators") or {}).get("components")
    if not components:
        return None
    return sum(c["percent"] for c in components if c["name"] == CORE)


def overhead_ratio(run: MeasuredRun) -> float | None:
    """Peak memory over the bytes of the parameters."""
    return ratio(run.value("summary.peak_memory_bytes"), run.value("model.model_size_bytes"))


def intensity(run: MeasuredRun) -> float | None:
    """FLOPs a byte of least traffic."""
    return run.value("flops.computational_intensity.arithmetic_intensity_flops_per_byte")


def distance_to_ridge(run: MeasuredRun) -> float | None:
    """Intensity over that of the ridge point: below 1 the roofline is memory's."""
    return ratio(intensity(run), run.value("flops.roofline_data.ridge_point_flops_per_byte"))


def attention_memory_percent(forecasts: Forecasts) -> list[tuple[int, float]]:
    """Sequence length and the share of the predicted peak that linear attention saves."""
    return [
        (whole.seq, 100 * (1 - linear.peak_memory_bytes / whole.peak_memory_bytes))
        for whole, linear in zip(forecasts.sequences, forecasts.linear, strict=True)
    ]


def sequence_exponents(forecasts: Forecasts) -> tuple[float | None, float | None]:
    """Growth of the predicted peak over S: over the first and over the last three lengths."""
    found = [(float(p.seq), p.peak_memory_bytes) for p in forecasts.sequences]
    ends = (found[:3], found[-3:])
    short, long = (growth_exponent([s for s, _ in e], [m for _, m in e]) for e in ends)
    return short, long


def batch_gain(batches: Sequence[MeasuredRun]) -> float | None:
    """Throughput of the largest measured batch over that of half of it (or the next smaller)."""
    speeds = [(r.value("configuration.batch_size"), samples_per_second(r)[0]) for r in batches]
    known = sorted((b, s) for b, s in speeds if b and s)
    if len(known) < 2:
        return None
    (before, slow), (after, fast) = known[-2:]
    doublings = math.log2(after / before)
    return (fast / slow) ** (1 / doublings) if doublings > 0 else None


def largest_fitting(predictions: Sequence[Prediction]) -> Prediction | None:
    """The one with the most parameters, then the largest batch; None where none fits."""
    fitting = [p for p in predictions if p.fits]
    return max(fitting, key=lambda p: (p.parameters, p.batch), default=None)
