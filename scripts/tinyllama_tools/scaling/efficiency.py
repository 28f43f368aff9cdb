"""What each added rank gives: efficiencies and shares, compared within each round.

weak: every rank has its own batch, so an ideal step takes as long as one rank's alone.
    efficiency = alone / step
strong: the ranks share one batch, so an ideal step of N ranks takes an Nth of it.
    efficiency = alone(whole batch) / (N step)
communication share = (step - local) / step: what of the step is there because ranks communicate.
overlap share = (no_overlap - overlap) / (no_overlap - local): what of that the overlap hides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tinyllama_tools.scaling.estimate import Estimate, estimate
from tinyllama_tools.scaling.scaling_result import (
    ALONE,
    COMMUNICATION,
    GLOO,
    LOCAL,
    NO_OVERLAP,
    OVERLAP,
    SHARDED,
    STEPS,
    ScalingResult,
    StepRow,
)
from tinyllama_tools.scaling.weak_strong import STRONG

Seconds = Mapping[int, float]


@dataclass(frozen=True)
class ScalingPoint:
    """One number of ranks. Shares and efficiencies in percent; None where a row that they need was
    not measured. `communication_free`: of the step, what the same ranks reach without
    communication (local / step). `hidden`: of the gradients' all-reduce timed by itself, what the
    step does not take longer for; none of a sharded step, which makes no all-reduce. `busy`: of the
    time of that all-reduce, what rank 0's processors work for it. Where a rank has no processor to
    spare, no more than the rest can be hidden."""

    ranks: int
    mode: str
    batch: int
    seconds: Estimate
    samples_per_second: float
    efficiency: Estimate | None = None
    speedup: Estimate | None = None
    communication: Estimate | None = None
    communication_free: Estimate | None = None
    overlap: Estimate | None = None
    hidden: Estimate | None = None
    busy: Estimate | None = None


def paired(figure: Callable[..., float | None], *rows: Seconds | None) -> Estimate | None:
    """The figure of every round that all the rows have and that has one; None where a row is
    missing, or every figure."""
    if not rows or any(row is None for row in rows):
        return None
    known = [row for row in rows if row is not None]
    rounds = sorted(set(known[0]).intersection(*known[1:]))
    found = [figure(*(row[number] for row in known)) for number in rounds]
    values = [value for value in found if value is not None]
    return estimate(values) if values else None


def _seconds(result: ScalingResult, mode: str) -> Seconds | None:
    row = result.steps.get(mode)
    return row.seconds if row is not None else None


def _efficiency(result: ScalingResult, step: StepRow) -> Estimate | None:
    """In percent."""
    if result.scaling == STRONG and result.ranks > 1:
        whole = result.alone_global.seconds if result.alone_global is not None else None
        return paired(lambda a, s: 100 * a / (result.ranks * s), whole, step.seconds)
    return paired(lambda a, s: 100 * a / s, _seconds(result, ALONE), step.seconds)


def _overlap_share(plain: float, step: float, local: float) -> float | None:
    """None where the communication costs nothing, so that nothing can be hidden."""
    return 100 * (plain - step) / (plain - local) if plain > local else None


def _overlap(result: ScalingResult) -> Estimate | None:
    return paired(_overlap_share, *(_seconds(result, m) for m in (NO_OVERLAP, OVERLAP, LOCAL)))


def _hidden(step: Seconds, local: Seconds | None, whole: Seconds | None) -> Estimate | None:
    """Of the gradients' all-reduce by itself."""
    return paired(lambda all_, own, c: 100 * (1 - (all_ - own) / c), step, local, whole)


def _busy(result: ScalingResult) -> Estimate | None:
    """None on a GPU, whose work is no processor's."""
    row = result.steps.get(COMMUNICATION)
    if row is None or result.distributed["backend"] != GLOO:
        return None
    return paired(lambda cpu, real: 100 * cpu / real, row.cpu_seconds, row.seconds)


def _scaled(found: Estimate | None, factor: float) -> Estimate | None:
    if found is None:
        return None
    ends = found.interval
    if ends is not None:
        ends = type(ends)(ends.low * factor, ends.high * factor, ends.confidence)
    return Estimate(found.median * factor, ends, found.rounds)


def points_of(result: ScalingResult) -> list[ScalingPoint]:
    """One for each way of a data-parallel step that was measured, the main one first."""
    found = []
    local = _seconds(result, LOCAL)
    whole = _seconds(result, COMMUNICATION)
    for mode in STEPS:
        step = result.steps.get(mode)
        if step is None:
            continue
        efficiency = _efficiency(result, step)
        seconds = estimate(list(step.seconds.values()))
        found.append(
            ScalingPoint(
                result.ranks,
                mode,
                step.name.batch,
                seconds,
                result.ranks * step.name.batch / seconds.median,
                efficiency,
                _scaled(efficiency, result.ranks / 100),
                paired(lambda all_, own: 100 * (all_ - own) / all_, step.seconds, local),
                paired(lambda all_, own: 100 * own / all_, step.seconds, local),
                _overlap(result) if mode == OVERLAP else None,
                _hidden(step.seconds, local, whole) if mode != SHARDED else None,
                _busy(result) if mode != SHARDED else None,
            )
        )
    return found
