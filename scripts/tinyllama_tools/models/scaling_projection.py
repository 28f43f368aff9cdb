"""What more devices would give: step time and efficiency from a local step and a model of links.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.data.names import (
    ALL_REDUCE,
    ALONE,
    COMMUNICATION,
    GLOO,
    LOCAL,
    NO_OVERLAP,
    OVERLAP,
    REDUCE_SCATTER,
    STRONG,
    WEAK,
)
from tinyllama_tools.models.collectives import (
    MIB,
    NONE,
    AlphaBeta,
    Hierarchy,
    Interconnect,
    LossWaterfall,
    ScalingPoint,
    SourcedLink,
    all_reduce,
    buckets_of,
    fit_collectives,
    link_of_ring,
    points_of,
    waterfall_of,
)

if TYPE_CHECKING:
    from tinyllama_tools.data.ranks import CollectiveRow, ScalingResult
    from tinyllama_tools.models.local_steps import LocalStep, LocalSteps

PROJECTION = "projection"
# kinds of local steps
MEASURED, PREDICTED = "measured", "predicted"
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


@dataclass(frozen=True)
class Projections:
    """`steps`: a row for each number of devices. `local`: the local steps they start from.
    `missing`: sizes without a local step, and why. `overlap`: the share hidden of
    the link measured here, None without."""

    steps: Sequence[ProjectedStep] = ()
    local: Mapping[str, LocalStep] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    interconnects: Sequence[Interconnect] = ()
    overlap: float | None = None
    global_batch: int = GLOBAL_BATCH


def _buckets(analysis: Analysis, step: LocalStep) -> list[float]:
    """The program's own of the size that was run; by its rule of the others."""
    name = step.name
    for result in reversed(analysis.results):
        run = result.name
        if run is not None and (run.size, run.dtype) == (name.size, name.dtype):
            return list(result.distributed["bucket_bytes"])
    limit = MIB * analysis.results[-1].distributed["bucket_MiB"]
    return [float(size) for size in buckets_of(problem_sizes()[name.size], name.dtype, limit)]


def projections_of(
    analysis: Analysis,
    steps_of: Callable[[str, str], LocalSteps],
    interconnects: Sequence[Interconnect],
    global_batch: int = GLOBAL_BATCH,
) -> Projections:
    """Over the link measured here, where there is one, and over `interconnects`.

    `steps_of`: local steps of a dtype and variant.
    """
    name = next((one.name for one in analysis.results if one.name is not None), None)
    if name is None:
        why = "no data-parallel step was measured, so dtype and variant of a projection are open"
        return Projections(missing=dict.fromkeys(problem_sizes(), why))
    found = steps_of(name.dtype, name.variant)
    own = analysis.measured_interconnect()
    links = [*([own] if own is not None else []), *interconnects]
    known = {s: step for s, step in found.steps.items() if s in problem_sizes() or s == name.size}
    # what was hidden of one link says nothing of others
    hidden = analysis.overlap_share
    steps = [
        projected
        for step in known.values()
        for link in links
        for projected in project(
            Setting(step, _buckets(analysis, step), link, hidden if link is own else None),
            global_batch=global_batch,
        )
    ]
    return Projections(steps, known, found.missing, links, analysis.overlap_share, global_batch)


GLOO_NOTE = (
    "Gloo makes a reduce-scatter as an all-reduce of which each rank keeps its share: its time is "
    "that of an all-reduce, and its bandwidth says nothing of the link."
)


def collective_notes(analysis: Analysis) -> list[str]:
    """What to know before reading times of collectives."""
    is_gloo = any(one.distributed["backend"] == GLOO for one in analysis.results)
    has_it = any(row.name.operation == REDUCE_SCATTER for row in analysis.collectives)
    return [GLOO_NOTE] if is_gloo and has_it else []
