"""What a data-parallel run says: efficiencies and shares, where the rest of an ideal step went, and
how the model of a projection meets what was run.

weak: every rank has its own batch, so an ideal step takes as long as one rank's alone.
    efficiency = alone / step
strong: the ranks share one batch, so an ideal step of N ranks takes an Nth of it.
    efficiency = alone(whole batch) / (N step)
overlap share = (no_overlap - overlap) / (no_overlap - local): what the overlap hides of what
    communication costs

Losses, in percent of a step (L_r: rank r's step without communication, A: a step alone):
    slower local work  (mean of L_r - A) / step        ranks share memory, caches and clock
    imbalance          (slowest L_r - mean of L_r) / step
    communication      (step - slowest L_r) / step     what is not hidden
    small batch        (A(B) - A(N B) / N) / step      strong scaling only: B is the batch of a rank
Their sum is 100 % less the efficiency, in every round. Parts are means over rounds, since means add
up and medians do not; their intervals are Student's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy import stats

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.data.machine import first_difference
from tinyllama_tools.data.names import (
    ALL_REDUCE,
    ALONE,
    ALONE_GLOBAL,
    COMMUNICATION,
    GLOO,
    LOCAL,
    NO_OVERLAP,
    OVERLAP,
    SHARDED,
    STEPS,
    STRONG,
    CaseName,
)
from tinyllama_tools.models.collectives import (
    AlphaBeta,
    Interconnect,
    SourcedLink,
    all_reduce,
    fit_collectives,
    link_of_ring,
)
from tinyllama_tools.stats.rank_tests import WANTED_CONFIDENCE, Interval, median_interval

if TYPE_CHECKING:
    from tinyllama_tools.data.ranks import Rounds, Row, ScalingResult

# for which steps are projected
RANKS = tuple(2**power for power in range(3, 13))


@dataclass(frozen=True)
class Estimate:
    """`median` over `rounds`; `interval`: None where there was one round only.

    Rounds are the sample: in each every way of doing a step is run, in an order drawn anew, so a
    figure of one round compares neighbours in time. The interval is the exact one of a median,
    whatever the distribution; fewer than six rounds cannot reach 95 %.
    """

    median: float
    interval: Interval | None
    rounds: int

    def text(self, digits: int = 1) -> str:
        """`92.1 (91.0 to 93.4)`, with the confidence where that is below 95 %."""
        middle = f"{self.median:.{digits}f}"
        if self.interval is None:
            return middle
        ends = f"{self.interval.low:.{digits}f} to {self.interval.high:.{digits}f}"
        sure = self.interval.confidence
        return f"{middle} ({ends}{'' if sure >= WANTED_CONFIDENCE else f' at {100 * sure:.0f} %'})"


@dataclass(frozen=True)
class ScalingPoint:
    """One number of ranks. Efficiencies and shares in percent; None where a row that they need was
    not measured. `communication_free`: of the step, what the same ranks reach without communication
    (local / step). `busy`: of the time of the gradients' all-reduce timed by itself, what rank 0's
    processors work for it; none on a GPU, nor of a sharded step, which makes no all-reduce. Where a
    rank has no processor to spare, no more than the rest can be hidden."""

    ranks: int
    mode: str
    batch: int
    seconds: Estimate
    samples_per_second: float
    efficiency: Estimate | None
    speedup: Estimate | None
    communication_free: Estimate | None
    overlap: Estimate | None
    busy: Estimate | None


def paired(figure: Callable[..., float | None], *rows: Rounds | None) -> Estimate | None:
    """The figure of every round that all the rows have and that has one; None where a row is
    missing, or every figure."""
    if None in rows:
        return None
    rounds = sorted(set(rows[0]).intersection(*rows[1:]))
    found = (figure(*(row[number] for row in rows)) for number in rounds)
    values = [value for value in found if value is not None]
    if not values:
        return None
    return Estimate(statistics.median(values), median_interval(values), len(values))


def points_of(result: ScalingResult) -> Iterator[ScalingPoint]:
    """One for each way of a data-parallel step that was measured, the main one first."""
    rows: dict[str, Rounds] = {mode: row.seconds for mode, row in result.steps.items()}
    local, plain, sums = (rows.get(mode) for mode in (LOCAL, NO_OVERLAP, COMMUNICATION))
    alone, parts, busy = rows.get(ALONE), 1, None
    if result.scaling == STRONG and result.ranks > 1:
        parts, alone = result.ranks, rows.get(ALONE_GLOBAL)
    if sums is not None and result.distributed["backend"] == GLOO:
        cpu_seconds = result.steps[COMMUNICATION].cpu_seconds
        busy = paired(lambda cpu, real: 100 * cpu / real, cpu_seconds, sums)
    for mode in (mode for mode in STEPS if mode in rows):
        step, batch = rows[mode], result.steps[mode].name.batch
        seconds = paired(lambda all_: all_, step)
        # where the communication costs nothing, nothing can be hidden
        overlap = paired(
            lambda p, s, own: 100 * (p - s) / (p - own) if p > own else None, plain, step, local
        )
        yield ScalingPoint(
            result.ranks,
            mode,
            batch,
            seconds,
            result.ranks * batch / seconds.median,
            paired(lambda a, s: 100 * a / (parts * s), alone, step),
            paired(lambda a, s: result.ranks * a / (parts * s), alone, step),
            paired(lambda all_, own: 100 * own / all_, step, local),
            overlap if mode == OVERLAP else None,
            busy if mode != SHARDED else None,
        )


# the program's counters of a step, and their names for people
SMALL_BATCH = "loss_small_batch_percent"
LOSSES = {
    SMALL_BATCH: "small batch",
    "loss_slower_local_percent": "slower local work",
    "loss_imbalance_percent": "imbalance between ranks",
    "loss_communication_percent": "communication",
}


@dataclass(frozen=True)
class LossPart:
    """`percent` of the step, mean over rounds; `low`, `high`: None for one round. Those of one
    number of ranks, the efficiency among them, add up to 100."""

    ranks: int
    name: str
    percent: float
    low: float | None
    high: float | None


def losses_of(result: ScalingResult, step: Row) -> Iterator[LossPart]:
    """Of a data-parallel step, the efficiency first; of the rounds that have every counter."""
    names = {f"{result.scaling}_efficiency_percent": "efficiency", **LOSSES}
    if result.scaling != STRONG:
        del names[SMALL_BATCH]
    counters = {name: step.figures(key) for key, name in names.items()}
    rounds = set.intersection(*map(set, counters.values()))
    for name, of in counters.items() if rounds else ():
        values = [of[number] for number in rounds]
        mean, ends = statistics.fmean(values), (None, None)
        if len(rounds) > 1:
            quantile = stats.t.ppf((1 + WANTED_CONFIDENCE) / 2, len(rounds) - 1)
            reach = float(quantile * stats.sem(values))
            ends = (mean - reach, mean + reach)
        yield LossPart(result.ranks, name, mean, *ends)


# By FLOPs the backward is twice the forward; what the optimizer takes is not counted off.
BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True)
class Communication:
    """Seconds of all buckets one after the other, of the `last`, and the algorithms that are best
    for them."""

    seconds: float
    last: float
    algorithm: str

    def exposed(self, hiding: float) -> float:
        """The least that is seen of it. `hiding`: seconds of the step in which buckets may travel;
        the last one is ready only when the backward ends."""
        return max(self.last, self.seconds - hiding)


def communication_of(ranks: int, buckets: Sequence[float], over: Interconnect) -> Communication:
    """Of the gradients of one step; at least one bucket."""
    timed = [all_reduce(ranks, size, over) for size in buckets]
    algorithms = dict.fromkeys(name for _, name in timed)
    return Communication(sum(one for one, _ in timed), timed[-1][0], " and ".join(algorithms))


MEASURED_LINK = "measured"


def measured_interconnect(fit: AlphaBeta, backend: str) -> Interconnect:
    """What explains the fit of an all-reduce as a ring."""
    source = (
        f"measured here: all_reduce of {fit.ranks} ranks over {backend}, taken as a ring "
        f"({fit.sizes} sizes)"
    )
    title = f"the link measured here between {fit.ranks} ranks ({backend})"
    link = link_of_ring(fit.alpha, fit.bandwidth, fit.ranks)
    network = SourcedLink(backend, link, source, source, is_assumed=False)
    return Interconnect(MEASURED_LINK, title, 1, network)


def checks_of(result: ScalingResult, fit: AlphaBeta) -> Iterator[Json]:
    """What the model says, `low` to `high` seconds, beside what was measured; with the fit itself
    at its own ranks, and at others, `fitted_at`, as a projection over its link. `percent_off`: of
    the measured, above 0 where the model says too much, 0 between the bounds."""
    buckets = result.distributed["bucket_bytes"]
    if fit.ranks == result.ranks:
        each = [fit.seconds(size) for size in buckets]
        of = Communication(sum(each), each[-1], "fit")
    else:
        of = communication_of(result.ranks, buckets, measured_interconnect(fit, ""))
    medians = {mode: row.median_seconds for mode, row in result.steps.items()}
    alone = medians.get(ALONE)
    for what, mode, start, least in (
        ("all-reduce of all buckets", COMMUNICATION, 0.0, of.seconds),
        ("step, from a rank alone", OVERLAP, alone, of.exposed(BACKWARD_SHARE * (alone or 0.0))),
    ):
        measured = medians.get(mode)
        if start is None or measured is None:
            continue
        low, high = start + least, start + of.seconds
        yield {
            "ranks": result.ranks,
            "fitted_at": fit.ranks,
            "what": what,
            "low": low,
            "high": high,
            "measured": measured,
            "percent_off": 100 * (min(max(measured, low), high) / measured - 1),
        }


@dataclass(frozen=True)
class Analysis:
    """`results` in the order of ranks. `refused`: fits that the data does not support, with the
    reason. `failed`: rows without a figure. `warnings`: what to know before any number."""

    results: tuple[ScalingResult, ...]
    points: tuple[ScalingPoint, ...]
    losses: tuple[LossPart, ...]
    fits: tuple[AlphaBeta, ...]
    checks: tuple[Json, ...]
    refused: tuple[str, ...]
    failed: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def name(self) -> CaseName | None:
        """Of a step; None where only collectives were measured."""
        return next((one.name for one in self.results if one.name is not None), None)

    @property
    def device(self) -> str:
        """Of the smallest world; may be empty."""
        return (self.results[0].context.get("device") or {}).get("name", "")

    @property
    def collectives(self) -> list[Row]:
        """Of all worlds."""
        return [row for result in self.results for row in result.collectives]

    @property
    def interconnect(self) -> Interconnect | None:
        """What explains the all-reduce of the largest world; None without a fit."""
        found = [fit for fit in self.fits if fit.operation == ALL_REDUCE]
        backend = self.results[-1].distributed["backend"]
        return measured_interconnect(found[-1], backend) if found else None


# what must not differ between the worlds of one run
SAME = (
    *("device", "git_commit", "git_dirty", "torch_version", "threads", "seed"),
    *("distributed.bucket_MiB", "distributed.scaling", "distributed.gradient_bytes"),
)


def _differences(ordered: Sequence[ScalingResult]) -> Iterator[str]:
    first = ordered[0]
    for other in ordered[1:]:
        if found := first_difference(first.context, other.context, SAME):
            what = f"{found.name} is {found.there}, in {first.path.name} {found.here}"
            yield f"{other.path.name}: {what}"


def _refuse_no_run(ordered: Sequence[ScalingResult]) -> None:
    """BadInputError for steps that have no place on one curve, and for two results of one number of
    ranks."""
    names = [one.name for one in ordered if one.name is not None]
    has_one_step = len({(name.size, name.dtype, name.variant, name.seq) for name in names}) <= 1
    if not has_one_step or len({one.ranks for one in ordered}) < len(ordered):
        listed = "; ".join(f"{one.path}: {one.ranks} ranks, {one.name}" for one in ordered)
        raise BadInputError(
            f"results of different steps, or twice of as many ranks ({listed}): a scaling run is "
            "of one size, dtype, variant and sequence, and has each number of ranks once; put the "
            "others into folders of their own"
        )


def analyse(results: Sequence[ScalingResult]) -> Analysis:
    """Of one result or more; BadInputError where they are of different steps, or where two are of
    as many ranks."""
    ordered = sorted(results, key=lambda one: one.ranks)
    _refuse_no_run(ordered)
    fits, refused = fit_collectives([row for one in ordered for row in one.collectives])
    reductions = {fit.ranks: fit for fit in fits if fit.operation == ALL_REDUCE}
    checks: list[Json] = []
    for result in ordered:
        # from its own fit, and from that of the largest smaller number of ranks
        smaller = max((ranks for ranks in reductions if ranks < result.ranks), default=0)
        used = [reductions[n] for n in (result.ranks, smaller) if n in reductions]
        checks += (check for fit in used for check in checks_of(result, fit))
    return Analysis(
        tuple(ordered),
        tuple(point for one in ordered for point in points_of(one)),
        tuple(
            part
            for one in ordered
            if one.ranks > 1 and one.step
            for part in losses_of(one, one.step)
        ),
        tuple(fits),
        tuple(checks),
        tuple(refused),
        {f"{name} ({one.path.name})": why for one in ordered for name, why in one.failed.items()},
        tuple(_differences(ordered)),
    )
