"""Collectives and data-parallel steps: alpha-beta fits, formulas by ranks, efficiency, losses.

**Fits**. The latency and bandwidth of a collective: t = alpha + bytes / bandwidth, fitted to its
sizes.

alpha is the time that no byte can save, in s; bandwidth is in bytes/s and holds for the collective
as a whole (nccl-tests' algorithm bandwidth), at the number of ranks that was measured. Least
squares of relative errors, so that 1 KiB counts as much as the largest bucket
(scipy.optimize.curve_fit with sigma = t, whose covariance gives Student intervals over sizes). The
model: R. Hockney, The communication challenge for MPP, Parallel Computing 20 (1994).

**Formulas**. How long a collective takes by the number of ranks: formulas of latency and bandwidth.

N ranks, n bytes, a link with latency a (s a message) and bandwidth B (bytes/s, both directions at
once). The time to add numbers up is not counted.

- P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
  Journal of Parallel and Distributed Computing 69 (2009): the ring.
- R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in
  MPICH, International Journal of High Performance Computing Applications 19 (2005): the model, and
  that an all-reduce is a reduce-scatter and an all-gather.
- P. Sanders, J. Speck, J. L. Träff, Two-tree algorithms for full bandwidth broadcast, reduction and
  scan, Parallel Computing 35 (2009): the double binary tree.

In this model there is no contention: every link is there for its pair alone.

**Efficiency**. What each added rank gives: efficiencies and shares, compared within each round.

weak: every rank has its own batch, so an ideal step takes as long as one rank's alone.
    efficiency = alone / step
strong: the ranks share one batch, so an ideal step of N ranks takes an Nth of it.
    efficiency = alone(whole batch) / (N step)
communication share = (step - local) / step: what of the step is there because ranks communicate.
overlap share = (no_overlap - overlap) / (no_overlap - local): what of that the overlap hides.

**Losses**. Where the rest of an ideal step went: parts that add up to the whole loss.

Of a step, in percent of it (L_r: rank r's step without communication, A: a step alone):
    slower local work  (mean of L_r - A) / step        ranks share memory, caches and clock
    imbalance          (slowest L_r - mean of L_r) / step
    communication      (step - slowest L_r) / step     what is not hidden
    small batch        (A(B) - A(N B) / N) / step      strong scaling only: B is the batch of a rank
Their sum is 100 % less the efficiency, in every round. Parts are means over rounds, since means add
up and medians do not; their intervals are Student's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from tinyllama_tools.core.app import (
    PROJECT,
    BadInputError,
    Json,
    bad_file,
    read_json,
    schema_problem,
)
from tinyllama_tools.data.names import (
    ALONE,
    COMMUNICATION,
    GLOO,
    LOCAL,
    NO_OVERLAP,
    OPERATIONS,
    OVERLAP,
    SHARDED,
    STEPS,
    STRONG,
)
from tinyllama_tools.stats.rank_tests import WANTED_CONFIDENCE, Interval, median_interval

if TYPE_CHECKING:
    from tinyllama_tools.data.ranks import CollectiveRow, ScalingResult, StepRow

RING, TREE, NONE = "ring", "tree", "none"


@dataclass(frozen=True)
class Link:
    """`latency` in s, `bandwidth` in bytes/s that a device sends while it receives as many."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Hierarchy:
    """Nodes of `devices_per_node` devices. `device`: between those of a node; None where a node has
    one. `network`: a device's share of the way out of its node."""

    devices_per_node: int
    network: Link
    device: Link | None = None


@dataclass(frozen=True)
class Timed:
    """`algorithm`: which one is the fastest, RING or TREE between nodes (or in the only node);
    NONE where there is nobody to talk to."""

    seconds: float
    algorithm: str


def ring_reduce_scatter(ranks: int, size: float, link: Link) -> float:
    """(N - 1) a + (N - 1)/N n/B: N - 1 steps, an Nth of the vector in each."""
    return (ranks - 1) * link.latency + (ranks - 1) / ranks * size / link.bandwidth


def ring_all_gather(ranks: int, size: float, link: Link) -> float:
    """As the reduce-scatter, the other way round. `size`: of what a rank ends with."""
    return ring_reduce_scatter(ranks, size, link)


def ring_all_reduce(ranks: int, size: float, link: Link) -> float:
    """2 (N - 1) a + 2 (N - 1)/N n/B."""
    return ring_reduce_scatter(ranks, size, link) + ring_all_gather(ranks, size, link)


def tree_all_reduce(ranks: int, size: float, link: Link) -> float:
    """2 (sqrt(2 h a) + sqrt(n/B))², h = ceil(log2 N).

    A reduction and a broadcast over two trees, each of which carries half of the vector. In k
    packets, the last of them arrives after 2 h + k steps of a + n / (k B); the best k is
    sqrt(2 h n / (a B)), which gives (sqrt(2 h a) + sqrt(n/B))². With fewer than one packet for the
    best k the vector travels whole, and k is 1.
    """
    if ranks < 2:
        return 0.0
    steps = 2 * math.ceil(math.log2(ranks))
    whole = size / link.bandwidth
    packets = max(1.0, math.sqrt(steps * whole / link.latency)) if link.latency > 0 else math.inf
    if math.isinf(packets):
        return 2 * whole
    return 2 * (steps + packets) * (link.latency + whole / packets)


def flat_all_reduce(ranks: int, size: float, link: Link) -> Timed:
    """The better of ring and tree."""
    if ranks < 2:
        return Timed(0.0, NONE)
    ring, tree = ring_all_reduce(ranks, size, link), tree_all_reduce(ranks, size, link)
    return Timed(ring, RING) if ring <= tree else Timed(tree, TREE)


def all_reduce(ranks: int, size: float, hierarchy: Hierarchy) -> Timed:
    """Within a node reduce-scatter, between nodes all-reduce of each device's share by its own
    network link, within the node all-gather; the better of ring and tree between nodes.

    ValueError where the ranks do not fill whole nodes.
    """
    per_node = hierarchy.devices_per_node
    if hierarchy.device is None or per_node == 1:
        return flat_all_reduce(ranks, size, hierarchy.network)
    if ranks <= per_node:
        return flat_all_reduce(ranks, size, hierarchy.device)
    if ranks % per_node:
        raise ValueError(f"{ranks} ranks: must be a multiple of the {per_node} devices of a node")
    within = ring_reduce_scatter(per_node, size, hierarchy.device)
    within += ring_all_gather(per_node, size, hierarchy.device)
    between = flat_all_reduce(ranks // per_node, size / per_node, hierarchy.network)
    return Timed(within + between.seconds, between.algorithm)


def link_of_ring(alpha: float, bandwidth: float, ranks: int) -> Link:
    """The link that explains a measured all-reduce t = alpha + n / bandwidth of `ranks` ranks as a
    ring: the formula above, turned round. ValueError for fewer than two ranks."""
    if ranks < 2:
        raise ValueError(f"{ranks} ranks: at least 2, since one sends nothing")
    return Link(alpha / (2 * (ranks - 1)), bandwidth * 2 * (ranks - 1) / ranks)


FIXTURE = PROJECT / "fixtures/interconnects.json"
REMEDY = "correct it; fixtures/interconnects.json is an example"
MICRO, GIGA = 1e-6, 1e9


@dataclass(frozen=True)
class SourcedLink:
    """`bandwidth_source`, `latency_source`: who says so; `is_assumed`: the latency is nobody's
    figure, and its source says what it rests on."""

    name: str
    link: Link
    bandwidth_source: str
    latency_source: str
    is_assumed: bool


@dataclass(frozen=True)
class Interconnect:
    """`device`: None where a node has one device."""

    name: str
    title: str
    devices_per_node: int
    network: SourcedLink
    device: SourcedLink | None = None

    @property
    def hierarchy(self) -> Hierarchy:
        """What the formulas need."""
        device = self.device.link if self.device is not None else None
        return Hierarchy(self.devices_per_node, self.network.link, device)

    @property
    def links(self) -> tuple[SourcedLink, ...]:
        """Those that there are."""
        return tuple(link for link in (self.device, self.network) if link is not None)


TEXT = {"type": "string", "minLength": 1}
POSITIVE = {"type": "number", "exclusiveMinimum": 0}


def _object(**properties: object) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


LINK_SCHEMA = _object(
    name=TEXT,
    latency_us=POSITIVE,
    GB_per_second=POSITIVE,
    latency_is_assumption={"type": "boolean"},
    source=_object(bandwidth=TEXT, latency=TEXT),
)
# several devices in a node need a link between them
SCHEMA = _object(
    name=TEXT,
    title=TEXT,
    devices_per_node={"enum": [2**power for power in range(16)]},
    network_link=LINK_SCHEMA,
) | {
    "if": {"properties": {"devices_per_node": {"const": 1}}},
    "then": {"properties": {"device_link": {"anyOf": [{"type": "null"}, LINK_SCHEMA]}}},
    "else": _object(device_link=LINK_SCHEMA),
}


def _link(found: Json) -> SourcedLink:
    source = found["source"]
    link = Link(MICRO * found["latency_us"], GIGA * found["GB_per_second"])
    assumed = found["latency_is_assumption"]
    return SourcedLink(found["name"], link, source["bandwidth"], source["latency"], assumed)


def read_interconnects(
    path: Path = FIXTURE, names: Sequence[str] | None = None
) -> list[Interconnect]:
    """All of the file, or those of these names.

    BadInputError naming the entry, the key and the value that is wrong, and an unknown name with
    those that there are.
    """
    document, _ = read_json(path)
    entries = document.get("interconnects")
    if not isinstance(entries, list) or not entries:
        raise bad_file(path, "has no list 'interconnects'", REMEDY)
    found = {}
    for index, one in enumerate(entries):
        wrong = schema_problem(one, SCHEMA)
        if wrong:
            raise bad_file(path, f"interconnects[{index}] {wrong}", REMEDY)
        network, device = _link(one["network_link"]), one.get("device_link")
        found[one["name"]] = Interconnect(
            *(one["name"], one["title"], one["devices_per_node"], network),
            _link(device) if device else None,
        )
    wanted = list(found) if names is None else names
    for name in wanted:
        if name not in found:
            raise BadInputError(
                f"interconnect '{name}': must be one of {', '.join(found)} ({path})"
            )
    return [found[name] for name in wanted]


MIB = 2**20
FIRST_BUCKET_BYTES = MIB
# of a gradient, which has its parameter's type (docs of --dtypes)
BYTES = {"f32": 4, "amp_bf16": 4, "amp_f16": 4, "bf16": 2, "f16": 2}


def _layer(of: Mapping[str, int]) -> Iterator[int]:
    """Norm, Q, K, V, O, norm, gate, up, down, as model/block.cpp names them."""
    hidden, inner = of["hidden_dim"], of["intermediate_dim"]
    key_value = hidden // of["n_heads"] * of["n_kv_heads"]
    yield from (hidden, hidden * hidden, hidden * key_value, hidden * key_value, hidden * hidden)
    yield from (hidden, hidden * inner, hidden * inner, hidden * inner)


def parameter_counts(of: Mapping[str, int]) -> list[int]:
    """Numbers in each parameter of a problem size, in the order of the model: embedding, layers,
    final norm, LM head."""
    table = of["vocab_size"] * of["hidden_dim"]
    layers = [count for _ in range(of["n_layers"]) for count in _layer(of)]
    return [table, *layers, of["hidden_dim"], table]


def plan_buckets(sizes: list[int], bucket_bytes: float) -> list[int]:
    """Bytes of each bucket in the order in which a backward fills them. `sizes`: bytes of each
    gradient in the order of the model."""
    buckets: list[int] = []
    for size in reversed(sizes):
        is_first = len(buckets) <= 1
        limit = min(FIRST_BUCKET_BYTES, bucket_bytes) if is_first else bucket_bytes
        if buckets and buckets[-1] + size <= limit:
            buckets[-1] += size
        else:
            buckets.append(size)
    return buckets


def buckets_of(of: Mapping[str, int], dtype: str, bucket_bytes: float) -> list[int]:
    """Of a problem size in a dtype; the last one is only ready when the backward ends.

    The same rule as benchmarks/distributed/gradient_reducer.cpp: parameters in the reverse of their
    order in the model, cut where the next one would make a bucket larger than asked for; the first
    bucket holds 1 MiB at most, and a larger parameter has a bucket of its own.
    """
    return plan_buckets([BYTES[dtype] * count for count in parameter_counts(of)], bucket_bytes)


Array = NDArray[np.float64]
FEWEST_SIZES = 3


class FitRefusedError(ValueError):
    """What was measured decides no latency and bandwidth; the message says why and what to do."""


@dataclass(frozen=True)
class Range:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True)
class AlphaBeta:
    """`alpha` in s, `bandwidth` in bytes/s, at `ranks` ranks and from `sizes` sizes of `smallest`
    to `largest` bytes. `scatter`: largest misfit of a size, percent of its time.
    `held_out`: size in bytes and error in percent where that size is predicted from the others."""

    operation: str
    ranks: int
    alpha: float
    bandwidth: float
    alpha_range: Range
    bandwidth_range: Range
    sizes: int
    smallest: int
    largest: int
    scatter: float
    held_out: tuple[tuple[int, float], ...] = ()

    def seconds(self, size: float) -> float:
        """Of one call on so many bytes."""
        return self.alpha + size / self.bandwidth

    @property
    def worst_held_out(self) -> float | None:
        """Percent; None where there are too few sizes to leave one out."""
        return max((abs(error) for _, error in self.held_out), default=None)

    @property
    def median_held_out(self) -> float | None:
        """Percent."""
        errors = [abs(error) for _, error in self.held_out]
        return statistics.median(errors) if errors else None


def _model(size: Array, alpha: float, per_byte: float) -> Array:
    return alpha + per_byte * size


def _least_squares(sizes: Array, seconds: Array) -> tuple[Array, Array]:
    """alpha and s/byte, and their covariance. Scaled, since they differ by nine digits."""
    largest, longest = sizes.max(), seconds.max()
    found, covariance = optimize.curve_fit(
        _model, sizes / largest, seconds / longest, p0=(0.01, 1.0), sigma=seconds / longest
    )
    scale = np.array([longest, longest / largest])
    return found * scale, covariance * np.outer(scale, scale)


def _refuse_negative(found: Array, what: str) -> None:
    names = ("latency", "time a byte")
    for name, value in zip(names, found, strict=True):
        if not (math.isfinite(value) and value > 0):
            raise FitRefusedError(
                f"{what}: the fit has a {name} of {value:.3g} s, must be above 0; measure more "
                "rounds, on a machine with nothing else to do"
            )


def _held_out(sizes: Array, seconds: Array) -> tuple[tuple[int, float], ...]:
    """Each size from the others; without those of which the others decide nothing."""
    errors = []
    for i, size in enumerate(sizes):
        rest = np.arange(len(sizes)) != i
        if rest.sum() < FEWEST_SIZES:
            continue
        found, _ = _least_squares(sizes[rest], seconds[rest])
        predicted = float(_model(np.array([size]), *found)[0])
        errors.append((int(size), 100 * (predicted / float(seconds[i]) - 1)))
    return tuple(errors)


def fit_alpha_beta(operation: str, ranks: int, seconds_of: Mapping[int, float]) -> AlphaBeta:
    """`seconds_of`: seconds of a call by its bytes.

    FitRefusedError where there are fewer than three sizes, and where a term would not be positive.
    """
    what = f"{operation}, {ranks} ranks"
    if len(seconds_of) < FEWEST_SIZES:
        raise FitRefusedError(
            f"{what}: {len(seconds_of)} sizes, at least {FEWEST_SIZES} are needed; raise "
            "--max-bytes"
        )
    sizes = np.array(sorted(seconds_of), dtype=np.float64)
    seconds = np.array([seconds_of[int(size)] for size in sizes])
    found, covariance = _least_squares(sizes, seconds)
    _refuse_negative(found, what)
    quantile = float(stats.t.ppf((1 + WANTED_CONFIDENCE) / 2, len(sizes) - 2))
    reach = quantile * np.sqrt(np.diag(covariance))
    alpha, per_byte = (float(value) for value in found)
    slow, fast = per_byte + float(reach[1]), per_byte - float(reach[1])
    return AlphaBeta(
        operation,
        ranks,
        alpha,
        1 / per_byte,
        Range(max(0.0, alpha - float(reach[0])), alpha + float(reach[0])),
        Range(1 / slow, 1 / fast if fast > 0 else math.inf),
        len(sizes),
        int(sizes[0]),
        int(sizes[-1]),
        100 * float(np.max(np.abs(_model(sizes, *found) / seconds - 1))),
        _held_out(sizes, seconds),
    )


def fit_collectives(rows: Sequence[CollectiveRow]) -> tuple[list[AlphaBeta], list[str]]:
    """One fit for each operation and number of ranks above 1; and the refusals."""
    fits, refused = [], []
    ranks = sorted({row.name.ranks for row in rows if row.name.ranks > 1})
    for operation in OPERATIONS:
        for number in ranks:
            chosen = [r for r in rows if (r.name.operation, r.name.ranks) == (operation, number)]
            if not chosen:
                continue
            try:
                seconds_of = {row.name.bytes: row.median_seconds for row in chosen}
                fits.append(fit_alpha_beta(operation, number, seconds_of))
            except FitRefusedError as error:
                refused.append(str(error))
    return fits, refused


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


def interval_words(found: Iterable[Estimate | None]) -> str:
    """`95 % intervals`, or `intervals of 75 % confidence or more` where rounds were too few."""
    sure = [one.interval.confidence for one in found if one is not None and one.interval]
    if not sure:
        return "no intervals, since there was one round only"
    if min(sure) >= WANTED_CONFIDENCE:
        return "95 % intervals"
    return f"intervals of {100 * min(sure):.0f} % confidence or more, since rounds were few"


def estimate(values: Sequence[float]) -> Estimate:
    """ValueError where there are none."""
    if not values:
        raise ValueError("no round: at least one is needed")
    return Estimate(statistics.median(values), median_interval(values), len(values))


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


EFFICIENCY = {"weak": "weak_efficiency_percent", "strong": "strong_efficiency_percent"}
# counter: its name for people
PARTS = {
    "loss_small_batch_percent": "small batch",
    "loss_slower_local_percent": "slower local work",
    "loss_imbalance_percent": "imbalance between ranks",
    "loss_communication_percent": "communication",
}
SMALL_BATCH = "loss_small_batch_percent"
# percentage points; counters are written with some ten digits
TOLERANCE = 0.01


@dataclass(frozen=True)
class LossPart:
    """`percent` of the step, mean over rounds; `low`, `high`: None for one round."""

    name: str
    percent: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class LossWaterfall:
    """`efficiency` and `parts` add up to 100. `refusal`: why there is no waterfall."""

    ranks: int
    efficiency: float = 0.0
    parts: tuple[LossPart, ...] = ()
    rounds: int = 0
    refusal: str = ""


def _part(name: str, values: list[float]) -> LossPart:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return LossPart(name, mean)
    error = statistics.stdev(values) / math.sqrt(len(values))
    reach = error * float(stats.t.ppf((1 + WANTED_CONFIDENCE) / 2, len(values) - 1))
    return LossPart(name, mean, mean - reach, mean + reach)


def _wrong_sum(row: StepRow, names: list[str], rounds: list[int]) -> str:
    """The first round whose parts do not make up the whole; empty where all do."""
    for number in rounds:
        whole = sum(row.counters[name][number] for name in names)
        if not math.isclose(whole, 100, abs_tol=TOLERANCE):
            return (
                f"round {number}: efficiency and losses add up to {whole:.4g} %, must be 100 % "
                f"within {TOLERANCE:g}; measure again with this version of the suite"
            )
    return ""


def waterfall_of(result: ScalingResult) -> LossWaterfall:
    """Of the main data-parallel step. A refusal where a counter is missing or the parts do not add
    up to the whole."""
    row = result.step
    if row is None:
        return LossWaterfall(result.ranks, refusal="no data-parallel step was measured")
    wanted = [n for n in PARTS if n != SMALL_BATCH or result.scaling == STRONG]
    names = [EFFICIENCY[result.scaling], *wanted]
    missing = [name for name in names if name not in row.counters]
    if missing:
        return LossWaterfall(result.ranks, refusal=f"not measured: {', '.join(missing)}")
    rounds = sorted(set.intersection(*(set(row.counters[name]) for name in names)))
    if not rounds:
        return LossWaterfall(result.ranks, refusal="no round has all of the counters")
    wrong = _wrong_sum(row, names, rounds)
    if wrong:
        return LossWaterfall(result.ranks, refusal=wrong)
    means = [_part(n, [row.counters[n][number] for number in rounds]) for n in names]
    parts = tuple(
        LossPart(PARTS[part.name], part.percent, part.low, part.high) for part in means[1:]
    )
    return LossWaterfall(result.ranks, means[0].percent, parts, len(rounds))
