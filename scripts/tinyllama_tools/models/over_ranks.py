"""A training step over several ranks, predicted from the step alone and what collectives take.

    ddp:   L f(N) + what of the buckets' all-reduces is not hidden behind the backward
    zero1: L f(N) - U (1 - 1/N) + what of the buckets' reduce-scatters is not hidden behind the
           backward + their all-gathers
    zero3: L f(N) - U (1 - 1/N) + what is not hidden of an all-gather of each part of the model
           before its forward, and of each block before its backward, and of a reduce-scatter of
           each part behind its backward

with L the local step, U its optimizer and f(N) by how much N ranks slow each other's local work on
their host. A collective takes alpha + bytes / bandwidth at the ranks that were measured; at others
as long as over the link that a ring of those ranks would have (collectives.py). A range reaches
from the step's and the collectives' lower ends with as much hidden as possible to their upper ends
with nothing hidden.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tinyllama_tools.core.app import BadInputError, Json, problem_sizes
from tinyllama_tools.core.text import MIB
from tinyllama_tools.data.machine import device_of, device_text
from tinyllama_tools.data.names import (
    ALL_GATHER,
    ALL_REDUCE,
    ALONE,
    GLOO,
    LOCAL,
    OVERLAP,
    REDUCE_SCATTER,
    SHARDED,
    ZERO3,
    CaseName,
    full_step,
)
from tinyllama_tools.data.rank_results import SECONDS, ScalingResult
from tinyllama_tools.data.results import ResultSet
from tinyllama_tools.models.collectives import (
    BYTES,
    AlphaBeta,
    Link,
    all_reduce,
    buckets_of,
    figures_from,
    flat_all_reduce,
    link_of_ring,
    parts_of,
)
from tinyllama_tools.models.data_parallel import Analysis, over_rounds
from tinyllama_tools.models.prediction import OPTIMIZER, RANKS, WAY, HeldOut

# of --bucket-mb and --compress
USUAL_BUCKET_BYTES, NO_COMPRESSION = 25 * MIB, "none"
DDP, ZERO1 = "ddp", "zero1"
# way to share a step, as --share names it: the mode of the rows that measure it
WAYS: Mapping[str, str] = {DDP: OVERLAP, ZERO1: SHARDED, ZERO3: ZERO3}


# of the local step: by FLOPs, twice the forward; the optimizer's time is neglected
BACKWARD_SHARE = 2 / 3


def step_range(local: float, buckets: Sequence[float]) -> tuple[float, float]:
    """Seconds of a step with as much communication hidden as possible, and with none hidden.
    `buckets`: seconds of each all-reduce; the last can begin only when the backward has ended."""
    total = sum(buckets)
    return local + max(buckets[-1], total - BACKWARD_SHARE * local), local + total


def zero1_range(
    local: float, scattered: Sequence[float], gathered: Sequence[float]
) -> tuple[float, float]:
    """As step_range(): buckets are scattered in the backward, and gathered after the update."""
    low, high = step_range(local, scattered)
    return low + sum(gathered), high + sum(gathered)


def zero3_range(
    local: float, scattered: Sequence[float], gathered: Sequence[float]
) -> tuple[float, float]:
    """As step_range(), of the parts of the model: all are gathered for the forward, the blocks once
    more for the backward, each while the one before it computes, and scattered behind that.
    Nothing hides the first that is gathered and the last that is scattered."""
    total = sum(scattered) + sum(gathered) + sum(gathered[1:-1])
    return local + max(gathered[0] + scattered[0], total - local), local + total


def most_ranks(world: ScalingResult) -> int | None:
    """How many ranks there is room for on the host that all were on; None where they were on
    several. The file does not say how many GPUs a host has."""
    if len({rank["node"] for rank in world.distributed["ranks"]}) > 1:
        return None
    device = device_of(world.context)
    rooms = world.context.get("num_cpus", 0) // (device["threads"] or 1)
    return max(world.ranks, rooms if device["backend"] == "cpu" else 0)


def why_other_ranks(steps: Json, ranks: Json) -> str:
    """Why no step is predicted over ranks with this device, from steps on that; empty where it is.
    Both as placed_device() has them."""
    here, there = ({**one, "whole_node": None} for one in (steps, ranks))
    if here == there:
        return ""
    names = [
        device_text({k: v for k, v in one.items() if k != "whole_node"}) for one in (here, there)
    ]
    return (
        f"steps are of {names[0]}, collectives of ranks on {names[1]}: a step over such ranks was "
        "measured on neither; measure both on the same device with as many threads, or name an "
        "interconnect"
    )


class Sent(NamedTuple):
    """Bytes of what travels: `buckets` of gradients, and the parameters of each of the model's
    `parts` (embedding, blocks, LM head with the final norm)."""

    buckets: Sequence[float]
    parts: Sequence[float]


class Range(NamedTuple):
    """`low` to `high` around `value`."""

    value: float
    low: float
    high: float

    def times(self, other: "Range") -> "Range":
        return Range(*(a * b for a, b in zip(self, other, strict=True)))


def _ends(fit: AlphaBeta) -> Iterator[AlphaBeta]:
    """The fit, and those with the ends of its ranges: the fastest, the slowest."""
    yield fit
    # a latency of 0 has no best number of packets
    fastest = {"alpha": max(fit.alpha_range["low"], fit.alpha / 10)}
    fastest["bandwidth"] = fit.bandwidth_range["high"] or fit.bandwidth
    yield replace(fit, **fastest)
    yield replace(fit, alpha=fit.alpha_range["high"], bandwidth=fit.bandwidth_range["low"])


def _seconds(fit: AlphaBeta, ranks: int, size: float) -> float:
    """Of the fit's collective on so many ranks."""
    if ranks == fit.ranks:
        return fit.seconds(size)
    if fit.operation == ALL_REDUCE:
        return flat_all_reduce(ranks, size, link_of_ring(fit.alpha, fit.bandwidth, fit.ranks))
    steps = fit.ranks - 1
    link = Link(fit.alpha / steps, fit.bandwidth * steps / fit.ranks)
    return (ranks - 1) * (link.latency + size / ranks / link.bandwidth)


def _nearest(known: Sequence[int], ranks: int) -> int:
    return min(known, key=lambda own: abs(math.log(own / ranks)))


@dataclass(frozen=True)
class RankFigures:
    """What a data-parallel run tells: fits of `collectives`; `slowdown`: local work of the slowest
    of so many ranks on a host, over that of one alone. `compress`: the type that gradients are sent
    in, or `none`. `most_ranks`: how many the one host has room for, where all were on one; None
    otherwise."""

    backend: str
    bucket_bytes: float
    compress: str
    most_ranks: int | None
    collectives: tuple[AlphaBeta, ...]
    slowdown: Mapping[int, Range]
    held_out: tuple[HeldOut, ...] = ()

    @property
    def title(self) -> str:
        return f"the link measured between ranks ({self.backend})"

    @property
    def hides(self) -> bool:
        """Whether it is likeliest that all is hidden that can be. Gloo's sums are the processors'
        own work (docs/distributed.md)."""
        return self.backend != GLOO

    def sent(self, size: Mapping[str, int], dtype: str) -> Sent:
        """Of a problem size."""
        share = 1.0 if self.compress == NO_COMPRESSION else 2 / BYTES[dtype]
        buckets = [share * of for of in buckets_of(size, dtype, self.bucket_bytes)]
        return Sent(buckets, [*map(sum, parts_of(size, dtype))])

    def seconds(self, operation: str, ranks: int, size: float) -> Range:
        """BadInputError where the collective was not measured, or not for so many ranks."""
        fits = {fit.ranks: fit for fit in self.collectives if fit.operation == operation}
        if not fits:
            raise BadInputError(f"{operation}: no alpha and beta were measured")
        if self.most_ranks is not None and ranks > self.most_ranks:
            raise BadInputError(
                f"{ranks} ranks: all that were measured were on one host, which has room for "
                f"{self.most_ranks}; measure on several hosts, or name an interconnect"
            )
        fit = fits[_nearest([*fits], ranks)]
        return Range(*(_seconds(one, ranks, size) for one in _ends(fit)))

    def slowed(self, ranks: int) -> Range:
        """By how much so many ranks slow each other. Of more or fewer than were measured: on one
        host in proportion to the others there; on several, each with as many ranks as it had, by as
        much."""
        if not self.slowdown or ranks == 1:
            return Range(1.0, 1.0, 1.0)
        known = _nearest([*self.slowdown], ranks)
        share = 1.0 if self.most_ranks is None else (ranks - 1) / (known - 1)
        return Range(*(max(1 + (end - 1) * share, 0.1) for end in self.slowdown[known]))


@dataclass(frozen=True)
class Interconnect:
    """Links whose figures are published, in the form of fixtures/interconnects.json; nobody
    measured them."""

    over: Json
    hides: bool = True

    @property
    def title(self) -> str:
        return f"{self.over['title']} ({figures_from(self.over)})"

    def sent(self, size: Mapping[str, int], dtype: str) -> Sent:
        """Of a problem size."""
        return Sent(buckets_of(size, dtype, USUAL_BUCKET_BYTES), [*map(sum, parts_of(size, dtype))])

    def seconds(self, operation: str, ranks: int, size: float) -> Range:
        """An all-reduce is a reduce-scatter and an all-gather. BadInputError where the ranks do not
        fill whole nodes."""
        try:
            whole = all_reduce(ranks, size, self.over)
        except ValueError as error:
            raise BadInputError(f"{self.over['name']}: {error}") from error
        return Range(*[whole if operation == ALL_REDUCE else whole / 2] * 3)

    def slowed(self, ranks: int) -> Range:
        """Every device has its memory to itself."""
        del ranks
        return Range(1.0, 1.0, 1.0)


Network = RankFigures | Interconnect


def over_ranks(
    way: str, ranks: int, local: Range, update: float, sent: Sent, network: Network
) -> Range:
    """Seconds of a step. `local`: of one alone, and `update` its optimizer. BadInputError as of the
    network's seconds()."""
    if ranks == 1:
        return local

    def times(operation: str, messages: Sequence[float]) -> list[Range]:
        return [network.seconds(operation, ranks, size) for size in messages]

    def ends_of(each: Sequence[Range]) -> Iterator[tuple[float, ...]]:
        """By end (likeliest, fastest, slowest), the time of each message."""
        return zip(*each, strict=True)

    slowed = local.times(network.slowed(ranks))
    shared = [end - update * (1 - 1 / ranks) for end in slowed]
    if way == DDP:
        reduced = ends_of(times(ALL_REDUCE, sent.buckets))
        ends = [step_range(a, own) for a, own in zip(slowed, reduced, strict=True)]
    else:
        messages = sent.buckets if way == ZERO1 else sent.parts
        both = (ends_of(times(op, messages)) for op in (REDUCE_SCATTER, ALL_GATHER))
        rule = zero1_range if way == ZERO1 else zero3_range
        ends = [rule(a, *own) for a, *own in zip(shared, *both, strict=True)]
    likeliest, fastest, slowest = ends
    return Range(likeliest[0 if network.hides else 1], fastest[0], slowest[1])


def _estimate(values: Sequence[float]) -> Range | None:
    if (found := over_rounds(values)) is None:
        return None
    ends = found.interval
    return Range(found.median, *((ends.low, ends.high) if ends else [found.median] * 2))


def _slowdown(result: ScalingResult) -> Range | None:
    """None where a rank alone and all at once were not both timed."""
    if result.ranks == 1 or not {ALONE, LOCAL} <= result.steps.keys():
        return None
    alone, local = (result.steps[mode].figures(SECONDS) for mode in (ALONE, LOCAL))
    return _estimate([local[n] / alone[n] for n in local if n in alone])


def _held_out(
    results: Sequence[ScalingResult], figures: RankFigures, update: float
) -> Iterator[HeldOut]:
    """Each way at each number of ranks, from the step of the rank alone: by what collectives take,
    no step over ranks being known to the model; and where other numbers of ranks were measured, by
    those alone. `update`: the optimizer's share of a step."""
    for result in results:
        if result.ranks == 1 or ALONE not in result.steps:
            continue
        local = _estimate([*result.steps[ALONE].figures(SECONDS).values()])
        others = replace(
            figures,
            collectives=tuple(fit for fit in figures.collectives if fit.ranks != result.ranks),
            slowdown={n: one for n, one in figures.slowdown.items() if n != result.ranks},
        )
        for way, mode in WAYS.items():
            if mode not in result.steps:
                continue
            row, size = result.steps[mode], problem_sizes().get(result.steps[mode].name.size)
            if way == ZERO3 and size is None:
                # of a model without a name its parts are not known
                continue
            parts = [*map(sum, parts_of(size, row.name.dtype))] if size else []
            sent = Sent(result.distributed["bucket_bytes"], parts)
            for axis, value, known in ((WAY, way, figures), (RANKS, str(result.ranks), others)):
                asked = (way, result.ranks, local, update * local.value, sent, known)
                try:
                    found = over_ranks(*asked)
                except BadInputError:
                    # too few were measured to leave some out
                    continue
                seconds = (found.value, row.median_seconds, 0.0, found.low, found.high)
                yield HeldOut(axis, value, str(row.name), *seconds)


def _update_share(results: ResultSet, name: CaseName | None) -> float:
    """The optimizer's share of a step of this size; 0 where it was not measured."""
    if name is None:
        return 0.0
    step = full_step(name.size, name.dtype, name.batch, name.seq, name.variant)
    update = replace(step, component=OPTIMIZER, pass_name="update")
    times = [results.cases.get(str(one)) for one in (update, step)]
    return times[0].median_seconds / times[1].median_seconds if all(times) else 0.0


def rank_figures(analysis: Analysis, results: ResultSet | None = None) -> RankFigures:
    """Of a run. `results`: of the suite on the same device, for what a sharded step's update takes,
    which is 0 where they do not say. BadInputError where no collective has a fit, or numbers
    of ranks differ in more than that."""
    if analysis.warnings:
        raise BadInputError(f"numbers of ranks are not alike: {analysis.warnings[0]}")
    if not analysis.fits:
        why = "; ".join(analysis.refused) or "no collective was measured on 2 ranks or more"
        raise BadInputError(f"{analysis.results[0].path.parent}: {why}")
    last = analysis.results[-1]
    slowdowns = {one.ranks: _slowdown(one) for one in analysis.results}
    figures = RankFigures(
        *(last.distributed["backend"], last.distributed["bucket_MiB"] * MIB),
        *(last.distributed.get("compress", NO_COMPRESSION), most_ranks(last)),
        analysis.fits,
        {ranks: found for ranks, found in slowdowns.items() if found},
    )
    update = _update_share(results, analysis.name) if results is not None else 0.0
    return replace(figures, held_out=tuple(_held_out(analysis.results, figures, update)))
