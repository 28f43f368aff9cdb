"""What more devices would give: step time and efficiency from a local step and a model of links.

What more devices would give: step time and efficiency from a local step and a model of links.

A projection, not a measurement. With L the local step and C the all-reduces of all buckets,
    nothing hidden        T = L + C
    as much as can be     T = L + max(C_last, C - b L)
where b is the share of the local step that is backward, in which buckets may travel, and C_last the
last bucket, which is ready only when the backward ends. Where overlap was measured, T between the
two has that share of C hidden which was hidden of the sums timed by themselves, though never more
than can be.
    weak:   every device has a batch of its own,  efficiency = L / T
    strong: the devices share G samples,          efficiency = L(G) / (N T)
Ranks are taken as equally fast, links as free of other traffic: imbalance, slower local work, start
of operations and input are in no figure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.names import ALL_REDUCE, CaseName
from tinyllama_tools.models.collectives import (
    ALONE,
    COMMUNICATION,
    LOCAL,
    NO_OVERLAP,
    NONE,
    OVERLAP,
    STRONG,
    WEAK,
    AlphaBeta,
    CollectiveRow,
    Hierarchy,
    Interconnect,
    LossWaterfall,
    ScalingPoint,
    ScalingResult,
    SourcedLink,
    all_reduce,
    fit_collectives,
    link_of_ring,
    points_of,
    waterfall_of,
)

MEASURED, PREDICTED = "measured", "predicted"


@dataclass(frozen=True)
class LocalStep:
    """`seconds` at the batch of `name`, between `low` and `high` where it is PREDICTED, which
    `range_words` names. `source`: the file and row, or what the prediction rests on.
    `seconds_by_batch`: other batches of the same step that were measured or predicted."""

    name: CaseName
    seconds: float
    low: float
    high: float
    kind: str
    source: str
    range_words: str = ""
    seconds_by_batch: Mapping[int, float] = field(default_factory=dict)

    @cached_property
    def _line(self) -> tuple[float, float] | None:
        """Constant and seconds a sample, by least squares of relative errors over the batches up to
        this one; None where there is one batch only, or the line would go below 0."""
        known = {**self.seconds_by_batch, self.name.batch: self.seconds}
        points = sorted((b, s) for b, s in known.items() if b <= self.name.batch)
        if len(points) < 2:
            points = sorted(known.items())
        if len(points) < 2:
            return None
        batches, seconds = np.array(points, dtype=np.float64).T
        slope, constant = np.polyfit(batches, seconds, 1, w=1 / seconds)
        return (float(constant), float(slope)) if constant >= 0 and slope > 0 else None

    @property
    def knows_small_batches(self) -> bool:
        """Whether the cost of a small batch is known; otherwise time is taken as proportional to
        the samples, which loses nothing with small batches."""
        return self._line is not None

    def seconds_at(self, batch: float) -> float:
        """Of a step over so many samples of one device. More than the step's own batch are done one
        batch after the other (gradient accumulation)."""
        if batch >= self.name.batch or self._line is None:
            return self.seconds * batch / self.name.batch
        constant, slope = self._line
        scale = self.seconds / (constant + slope * self.name.batch)
        return scale * (constant + slope * batch)


PROJECTION = "projection"
RANKS = tuple(2**power for power in range(3, 13))
GLOBAL_BATCH = 4096
# By FLOPs the backward is twice the forward; what the optimizer takes is not counted off.
BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True)
class Communication:
    """Seconds of all buckets one after the other, of the `last`, and the algorithms that are best
    for them."""

    seconds: float
    last: float
    algorithm: str


@dataclass(frozen=True)
class ProjectedStep:
    """`seconds_low` to `seconds_high`: as much hidden as can be, and nothing; `seconds_between`:
    with the measured overlap share, None where there is none. Efficiencies in percent, low with
    high seconds. `batch`: of each device. `local_kind`: whether the local step was measured or is a
    prediction itself. `kind`: always PROJECTION."""

    size: str
    interconnect: str
    scaling: str
    ranks: int
    batch: float
    local_seconds: float
    communication_seconds: float
    algorithm: str
    seconds_low: float
    seconds_high: float
    seconds_between: float | None
    efficiency_low: float
    efficiency_high: float
    efficiency_between: float | None
    local_kind: str
    kind: str = PROJECTION

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def communication_of(ranks: int, buckets: Sequence[float], links: Hierarchy) -> Communication:
    """Of the gradients of one step."""
    timed = [all_reduce(ranks, size, links) for size in buckets]
    names = dict.fromkeys(one.algorithm for one in timed)
    algorithm = " and ".join(names) if names else NONE
    last = timed[-1].seconds if timed else 0.0
    return Communication(sum(one.seconds for one in timed), last, algorithm)


def step_bounds(
    local: float, hiding: float, of: Communication, overlap: float | None
) -> tuple[float, float, float | None]:
    """Low, high and between. `hiding`: seconds of the step in which buckets may travel.
    `overlap`: share of the communication that is hidden, 0 to 1."""
    exposed_least = max(of.last, of.seconds - hiding)
    between = None
    if overlap is not None:
        between = local + max(exposed_least, (1 - overlap) * of.seconds)
    return local + exposed_least, local + of.seconds, between


@dataclass(frozen=True)
class Setting:
    """What one projection is of: a size's step and buckets, over an interconnect. `overlap`: share
    that is measured, None where it is not."""

    step: LocalStep
    buckets: Sequence[float]
    interconnect: Interconnect
    overlap: float | None = None
    backward_share: float = BACKWARD_SHARE

    def at(self, ranks: int, batch: float, scaling: str) -> ProjectedStep:
        """`batch` of each device. ValueError for fewer than one device or sample."""
        if ranks < 1 or batch < 1:
            raise ValueError(f"{ranks} ranks with {batch:g} samples each: at least 1 of both")
        local = self.step.seconds_at(batch)
        # of several batches one after the other, only the last one's backward has all gradients
        hiding = self.backward_share * self.step.seconds_at(min(batch, self.step.name.batch))
        of = communication_of(ranks, self.buckets, self.interconnect.hierarchy)
        low, high, between = step_bounds(local, hiding, of, self.overlap)
        ideal = local if scaling == WEAK else self.step.seconds_at(batch * ranks) / ranks
        share = {name: 100 * ideal / value for name, value in (("low", low), ("high", high))}
        return ProjectedStep(
            self.step.name.size,
            self.interconnect.name,
            scaling,
            ranks,
            batch,
            local,
            of.seconds,
            of.algorithm,
            low,
            high,
            between,
            efficiency_low=share["high"],
            efficiency_high=share["low"],
            efficiency_between=100 * ideal / between if between is not None else None,
            local_kind=self.step.kind,
        )


def project(
    setting: Setting,
    ranks: Iterable[int] = RANKS,
    global_batch: int = GLOBAL_BATCH,
) -> list[ProjectedStep]:
    """Weak at the step's own batch; strong as far as every device has at least one sample."""
    numbers = list(ranks)
    weak = [setting.at(number, setting.step.name.batch, WEAK) for number in numbers]
    strong = [
        setting.at(number, global_batch / number, STRONG)
        for number in numbers
        if number <= global_batch
    ]
    return [*weak, *strong]


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


MEASURED_LINK = "measured"
# what must not differ between the worlds of one run
SAME = ("device", "git_commit", "git_dirty", "torch_version", "threads", "seed")
SAME_RANKS = ("backend", "bucket_MiB", "scaling", "gradient_bytes")
# of a world of one, which talks to nobody
NO_BACKEND = "none"


@dataclass(frozen=True)
class Analysis:
    """`results` in the order of ranks. `refused`: fits that the data does not support, with the
    reason. `failed`: rows without a figure. `warnings`: what to know before any number."""

    results: tuple[ScalingResult, ...]
    points: tuple[ScalingPoint, ...]
    waterfalls: tuple[LossWaterfall, ...]
    fits: tuple[AlphaBeta, ...]
    checks: tuple[ProjectionCheck, ...]
    refused: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def context(self) -> Mapping[str, Any]:
        """Of the smallest world."""
        return self.results[0].context

    @property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """Of all worlds."""
        return tuple(row for result in self.results for row in result.collectives)

    @property
    def overlap_share(self) -> float | None:
        """What a projection may hide of all all-reduces, 0 to 1: of the largest world that says how
        much of them, timed by themselves, does not make its step longer."""
        known = [p.hidden for p in self.points if p.mode == OVERLAP and p.hidden is not None]
        return min(1.0, max(0.0, known[-1].median / 100)) if known else None

    def measured_interconnect(self) -> Interconnect | None:
        """What explains the all-reduce of the largest world as a ring; None without a fit."""
        found = [fit for fit in self.fits if fit.operation == ALL_REDUCE]
        if not found:
            return None
        fit = max(found, key=lambda one: one.ranks)
        link = link_of_ring(fit.alpha, fit.bandwidth, fit.ranks)
        backend = self.results[-1].distributed["backend"]
        source = (
            f"measured here: all_reduce of {fit.ranks} ranks over {backend}, taken as a ring "
            f"({fit.sizes} sizes)"
        )
        title = f"the link measured here between {fit.ranks} ranks ({backend})"
        network = SourcedLink(backend, link, source, source, is_assumed=False)
        return Interconnect(MEASURED_LINK, title, 1, network)


def _differences(results: Sequence[ScalingResult]) -> list[str]:
    first = results[0]
    found = []
    for other in results[1:]:
        pairs = [(k, first.context.get(k), other.context.get(k)) for k in SAME]
        pairs += [(k, first.distributed.get(k), other.distributed.get(k)) for k in SAME_RANKS]
        for key, here, there in pairs:
            if here != there and not (key == "backend" and NO_BACKEND in {here, there}):
                found.append(f"{other.path.name}: {key} is {there}, in {first.path.name} {here}")
    return found


def _other_steps(results: Sequence[ScalingResult]) -> list[str]:
    """Steps of another size, type, variant or sequence have no place on one curve."""
    names = [(r, r.name) for r in results if r.name is not None]
    axes = {(n.size, n.dtype, n.variant, n.seq) for _, n in names}
    if len(axes) < 2:
        return []
    listed = "; ".join(f"{result.path.name}: {name}" for result, name in names)
    raise BadInputError(
        f"results of different steps ({listed}): a scaling run is of one size, dtype, variant and "
        "sequence; name them one at a time"
    )


def _same_ranks(ordered: Sequence[ScalingResult]) -> None:
    """A number of ranks has one place on a curve."""
    for one, other in itertools.pairwise(ordered):
        if one.ranks == other.ranks:
            raise BadInputError(
                f"{one.path} and {other.path} are both of {one.ranks} ranks: a scaling run has "
                "each number of ranks once; put them into folders of their own"
            )


def analyse(results: Sequence[ScalingResult]) -> Analysis:
    """BadInputError where there are none, where they are of different steps, or where two are of as
    many ranks."""
    if not results:
        raise BadInputError("no result of tiny_llama_scaling; measure: scripts/scaling")
    ordered = tuple(sorted(results, key=lambda one: one.ranks))
    _other_steps(ordered)
    _same_ranks(ordered)
    fits, refused = fit_collectives([row for one in ordered for row in one.collectives])
    return Analysis(
        ordered,
        tuple(point for one in ordered for point in points_of(one)),
        tuple(waterfall_of(one) for one in ordered if one.ranks > 1 and one.step is not None),
        tuple(fits),
        tuple(check_projection(ordered, fits)),
        tuple(refused),
        {f"{name} ({one.path.name})": why for one in ordered for name, why in one.failed.items()},
        tuple(_differences(ordered)),
    )
