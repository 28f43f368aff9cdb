"""The projection's model against what was run: where both are known, how far it is off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from tinyllama_tools.data.names import ALL_REDUCE
from tinyllama_tools.scaling.alpha_beta import AlphaBeta
from tinyllama_tools.scaling.collective_models import Hierarchy, link_of_ring
from tinyllama_tools.scaling.projection import (
    BACKWARD_SHARE,
    Communication,
    communication_of,
    step_bounds,
)
from tinyllama_tools.scaling.scaling_result import (
    ALONE,
    COMMUNICATION,
    LOCAL,
    NO_OVERLAP,
    OVERLAP,
    ScalingResult,
)

ALL_REDUCES = "all-reduce of all buckets"
STEP_ALONE = "step, nothing hidden, from a rank alone"
STEP_LOCAL = "step, nothing hidden, from the ranks without communication"
STEP_BOUNDS = "step, from a rank alone"


@dataclass(frozen=True)
class ProjectionCheck:
    """Seconds. `fitted_at`: ranks that latency and bandwidth were measured at, fewer than `ranks`
    where the formulas carried them on. `low`, `high`: what the model says, alike but for
    STEP_BOUNDS. `percent_off`: of the measured; 0 between the bounds, else to the nearer one."""

    ranks: int
    fitted_at: int
    what: str
    low: float
    high: float
    measured: float

    @property
    def percent_off(self) -> float:
        """Above 0 where the model says too much."""
        if self.low <= self.measured <= self.high:
            return 0.0
        nearer = self.low if self.measured < self.low else self.high
        return 100 * (nearer / self.measured - 1)

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self) | {"percent_off": self.percent_off}


def _communication(fit: AlphaBeta, ranks: int, buckets: Sequence[float]) -> Communication:
    """The fit itself at its own ranks; at others what a projection over its link would say."""
    if fit.ranks == ranks:
        each = [fit.seconds(size) for size in buckets]
        return Communication(sum(each), each[-1] if each else 0.0, "fit")
    link = link_of_ring(fit.alpha, fit.bandwidth, fit.ranks)
    return communication_of(ranks, buckets, Hierarchy(1, link))


def _median(result: ScalingResult, mode: str) -> float | None:
    row = result.steps.get(mode)
    return row.median_seconds if row is not None else None


def _of_fit(result: ScalingResult, fit: AlphaBeta) -> Iterator[ProjectionCheck]:
    ranks, buckets = result.ranks, result.distributed["bucket_bytes"]
    of = _communication(fit, ranks, buckets)

    def exact(what: str, predicted: float, mode: str) -> Iterator[ProjectionCheck]:
        measured = _median(result, mode)
        if measured is not None:
            yield ProjectionCheck(ranks, fit.ranks, what, predicted, predicted, measured)

    yield from exact(ALL_REDUCES, of.seconds, COMMUNICATION)
    local, alone = _median(result, LOCAL), _median(result, ALONE)
    if local is not None:
        yield from exact(STEP_LOCAL, local + of.seconds, NO_OVERLAP)
    if alone is None:
        return
    yield from exact(STEP_ALONE, alone + of.seconds, NO_OVERLAP)
    measured = _median(result, OVERLAP)
    if measured is not None:
        low, high, _ = step_bounds(alone, BACKWARD_SHARE * alone, of, None)
        yield ProjectionCheck(ranks, fit.ranks, STEP_BOUNDS, low, high, measured)


def check_projection(
    results: Sequence[ScalingResult], fits: Sequence[AlphaBeta]
) -> list[ProjectionCheck]:
    """Every number of ranks above 1, from its own fit and from the largest smaller one."""
    reductions = {fit.ranks: fit for fit in fits if fit.operation == ALL_REDUCE}
    found = []
    for result in results:
        if result.ranks < 2:
            continue
        smaller = max((ranks for ranks in reductions if ranks < result.ranks), default=None)
        for ranks in (result.ranks, smaller):
            if ranks in reductions:
                found += _of_fit(result, reductions[ranks])
    return found
