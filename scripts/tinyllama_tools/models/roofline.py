"""How near cases, GEMMs and the parts of a training step are to what the machine can do.

Roofline: a case takes at least as long as its GEMMs at the peak, and as its bytes at the bandwidth
that they can see.

Speed of light of a step: a part takes at least as long as its GEMMs at the best rate measured at
their own shapes, and as its bytes at the roofline's bandwidth. Parts follow one another, so the
step's light is the sum of theirs. It is the same for every variant: GEMMs are those of the
baseline, and bytes the least that any implementation moves (model/cost.hpp).

GEMMs are counted as the layers of model/ count their cost: a multiply-add is 2 FLOPs, K and V at
their grouped-query width, scores in full, backward = 2 x forward (also for the first layer, whose
input's gradient the embedding needs), the LM head over all positions, none for the embedding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tinyllama_tools.core.app import BadInputError, Json, problem_sizes
from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.data.machine import LARGEST_SHARE, Machine, ProductRate, product_type
from tinyllama_tools.data.names import (
    BASELINE,
    OPTIMIZED,
    CaseName,
    parse_case_name,
    parts_of,
    switches_named,
)

if TYPE_CHECKING:
    from tinyllama_tools.data.results import MeasuredCase, ResultSet


class Light(NamedTuple):
    """Seconds at best: of GEMMs, of traffic, and of both, which is the larger one, since they may
    overlap; of a step the sums of its parts'."""

    products: float
    traffic: float
    seconds: float

    @classmethod
    def of(cls, products: float, traffic: float) -> Light:
        return cls(products, traffic, max(products, traffic))


class LaunchCost(NamedTuple):
    """`seconds` per operator, an upper bound; `source`: the case that it was inferred from."""

    seconds: float
    source: str


# Of the measured time: from here on, the roofline or the starts of operators explain most of it.
MOSTLY = 0.5


@dataclass(frozen=True)
class RooflinePoint:
    """A case, or a GEMM of its own, which has no `case`. `flops`: those of its intensity, of the
    GEMMs that really ran, else elementwise. `operators`: None where they were not counted. `error`:
    that it is above a peak or the roofline, as the program found."""

    name: str
    seconds: float
    flops: float
    bytes: float
    light: Light
    operators: float | None
    case: CaseName | None = None
    error: str = ""
    launch: LaunchCost | None = None

    @property
    def intensity(self) -> float:
        """FLOP/byte."""
        return self.flops / self.bytes

    @property
    def flops_per_second(self) -> float:
        """Reached."""
        return self.flops / self.seconds

    @property
    def attainable(self) -> float:
        """FLOP/s that the roofline allows at that intensity."""
        return self.flops / self.light.seconds

    @property
    def percent(self) -> float | None:
        """Of the attainable; None where it is too much."""
        return None if self.error else 100 * self.light.seconds / self.seconds

    @property
    def starts_seconds(self) -> float | None:
        """What the starts of its operators take at most; not known of the case that the cost of a
        start was inferred from."""
        if self.launch is None or self.launch.source == self.name or self.operators is None:
            return None
        return self.operators * self.launch.seconds

    @property
    def bound(self) -> str:
        """Latency where the starts take longer than GEMMs and traffic at their peaks, and at least
        half of the measured time."""
        starts = self.starts_seconds or 0.0
        if starts > self.light.seconds and starts >= MOSTLY * self.seconds:
            return "latency"
        return "compute" if self.light.products > self.light.traffic else "bandwidth"


ELEMENT_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


def _light_of(flops: float, type_name: str, moved: float, machine: Machine) -> Light:
    if flops and type_name not in machine.peak_flops.keys() & ELEMENT_BYTES.keys():
        raise BadInputError(f"no peak of {type_name} products was measured")
    at_peak = flops / machine.peak_flops[type_name] if flops else 0.0
    return Light.of(at_peak, machine.traffic_seconds(moved))


def _of_case(case: MeasuredCase, machine: Machine) -> RooflinePoint:
    products, moved = (case.counters.get(key, 0.0) for key in ("hardware_flops", "bytes"))
    flops = products or case.counters.get("elementwise_flops", 0.0)
    if moved <= 0 or flops <= 0:
        raise BadInputError("its counters lack bytes or FLOPs")
    light = _light_of(products, product_type(case.name.dtype), moved, machine)
    own = (case.counters.get("operators"), case.name, case.above_peak)
    return RooflinePoint(str(case.name), case.median_seconds, flops, moved, light, *own)


def _of_product(rate: ProductRate, machine: Machine) -> RooflinePoint:
    """Its traffic is each operand once and the result once."""
    m, n, k = rate.m, rate.n, rate.k
    flops = 2.0 * rate.batch * m * n * k
    moved = float(ELEMENT_BYTES.get(rate.type_name, 0) * rate.batch * (m * k + k * n + m * n))
    light = _light_of(flops, rate.type_name, moved, machine)
    return RooflinePoint(rate.name, flops / rate.flops_per_second, flops, moved, light, 1)


# An operator that takes longer than this, even where it takes least, does work of its own: the
# run has no cell small enough to show what the start alone costs.
LARGEST_SECONDS = 20e-6


def _launch_cost(points: Sequence[RooflinePoint]) -> LaunchCost | None:
    """What it costs to start one operator: the least time per operator that a cell leaves above its
    roofline time, of cells of which the roofline explains less than half (the rest of others is too
    small to divide), and never more than the whole time of any cell per operator. That holds
    whatever else operators take, so it is an upper bound. It says nothing new of the cell that it
    comes from, which is for that reason never called latency-bound by it. None where it is more
    than 20 us."""
    costs = []
    for point in points:
        if point.operators:
            least = point.light.seconds
            explained = least if least <= MOSTLY * point.seconds else 0.0
            costs.append(LaunchCost((point.seconds - explained) / point.operators, point.name))
    best = min(costs, default=None)
    return best if best is not None and best.seconds <= LARGEST_SECONDS else None


@dataclass(frozen=True)
class Roofline:
    """`points`: of the cases that have costs, in the set's order; `products`: of the GEMMs measured
    at their own shapes; `left_out`: the others, with the reason."""

    machine: Machine
    launch: LaunchCost | None
    points: Sequence[RooflinePoint]
    products: Sequence[RooflinePoint]
    left_out: Mapping[str, str]


def roofline_of(results: ResultSet) -> Roofline:
    """BadInputError for results without measured peaks."""
    machine = Machine.from_context(results.context)
    left_out: dict[str, str] = {}

    def placed(
        point_of: Callable[..., RooflinePoint], items: Iterable[MeasuredCase | ProductRate]
    ) -> Iterator[RooflinePoint]:
        for item in items:
            try:
                yield point_of(item, machine)
            except BadInputError as error:
                left_out[str(item.name)] = str(error)

    points = list(placed(_of_case, results.cases.values()))
    products = list(placed(_of_product, results.products))
    launch = _launch_cost(points)
    told = ([replace(point, launch=launch) for point in of] for of in (points, products))
    return Roofline(machine, launch, *told, left_out)


Size = Mapping[str, int]
ATTENTION, FFN, BLOCK = "attention", "ffn", "block"
LOSS, OPTIMIZER = "loss", "optimizer"
SCORES, VALUES, LM_HEAD = "scores", "values", "lm_head"
# Layers that a switch of this name makes one GEMM of.
FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up"),
}
# by direction, the dimension that is then the sum of theirs, and the one that counts tokens
FORWARD, OF_INPUT, OF_WEIGHT = "forward", "input gradient", "weight gradient"
JOINED = {FORWARD: "n", OF_INPUT: "k", OF_WEIGHT: "m"}
TOKENS = {FORWARD: "m", OF_INPUT: "m", OF_WEIGHT: "k"}
# model/loss.cpp, fused_loss_chunk: logits of a chunk, and the fewest tokens of one
CHUNK_LOGITS, FEWEST_TOKENS, TOKENS_STEP = 1 << 19, 256, 64


@dataclass(frozen=True)
class Product:
    """[m, k] x [k, n], `batch` of them at once, `count` times a step. `component`: attention, ffn
    or loss. `layer`: such as q_proj; `direction`: `forward`, or which gradient."""

    component: str
    layer: str
    direction: str
    count: int
    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """Of all of them in a step."""
        return 2 * self.count * self.batch * self.m * self.n * self.k

    @property
    def shape(self) -> str:
        """`1024x256x512`; `32x256x128x64` is 32 of 256x128x64 at once."""
        one = f"{self.m}x{self.n}x{self.k}"
        return one if self.batch == 1 else f"{self.batch}x{one}"


def step_products(size: Size, batch: int, seq: int) -> list[Product]:
    """Of forward and backward of the whole model; their `flops` add up to full_step's model_flops.
    `size`: as in fixtures/problem_sizes.json."""
    hidden, layers, inner = size["hidden_dim"], size["n_layers"], size["intermediate_dim"]
    tokens, width, kv_heads = batch * seq, hidden // size["n_heads"], size["n_kv_heads"]
    kv_dim = width * kv_heads
    # of so many groups at once, the queries of a group stacked
    groups, queries = batch * kv_heads, seq * size["n_heads"] // kv_heads
    # component, layer; count, batch; m, n, k of the forward: in[m, k] x weight[n, k]^T
    forward = [
        (ATTENTION, "q_proj", layers, 1, tokens, hidden, hidden),
        (ATTENTION, "k_proj", layers, 1, tokens, kv_dim, hidden),
        (ATTENTION, "v_proj", layers, 1, tokens, kv_dim, hidden),
        (ATTENTION, "o_proj", layers, 1, tokens, hidden, hidden),
        (FFN, "gate_proj", layers, 1, tokens, inner, hidden),
        (FFN, "up_proj", layers, 1, tokens, inner, hidden),
        (FFN, "down_proj", layers, 1, tokens, hidden, inner),
        (LOSS, LM_HEAD, 1, 1, tokens, size["vocab_size"], hidden),
        (ATTENTION, SCORES, layers, groups, queries, seq, width),
        (ATTENTION, VALUES, layers, groups, queries, width, seq),
    ]
    products = []
    for component, layer, *often, m, n, k in forward:
        # the gradients of in[m, k] and of weight[n, k]; values are stored [k, n]
        of_weight = (k, n, m) if layer == VALUES else (n, k, m)
        shapes = {FORWARD: (m, n, k), OF_INPUT: (m, k, n), OF_WEIGHT: of_weight}
        products += [Product(component, layer, d, *often, *s) for d, s in shapes.items()]
    return products


def _least_products(
    step: MeasuredCase, size: Size, results: ResultSet, machine: Machine
) -> tuple[dict[str, float], list[str]]:
    """The least seconds that a step's GEMMs take, by component, the same for every variant; and the
    shapes that count at the peak since no form of them was measured.

    Of the forms in which variants run a group (one by one, as one fused GEMM, the LM head in
    chunks), the fastest that was measured counts, each GEMM at the rate of its own shape. Scores
    and values count at the peak without what the causal mask hides, (S + 1) / (2 S) of them: a
    kernel that never stores them can do with that.
    """
    type_name, seq = product_type(step.name.dtype), step.name.seq
    every = step_products(size, step.name.batch, seq)
    expected, counted = sum(p.flops for p in every), step.counters.get("model_flops")
    if counted != expected:
        raise BadInputError(f"model_flops is {counted}, by the dimensions they are {expected}")
    if type_name not in machine.peak_flops:
        raise BadInputError(f"no peak of {type_name} products was measured")
    peak = machine.peak_flops[type_name]
    rates = {
        (rate.batch, rate.m, rate.n, rate.k): rate.flops_per_second
        for rate in results.products
        if rate.type_name == type_name
    }

    def rate(product: Product, **changed: int) -> float | None:
        of = replace(product, **changed)
        return rates.get((of.batch, of.m, of.n, of.k))

    # layers that one fused GEMM can do at once
    groups: dict[tuple[str, str], list[Product]] = defaultdict(list)
    for product in every:
        groups[FUSED.get(product.layer, product.layer), product.direction].append(product)
    seconds: dict[str, float] = defaultdict(float)
    at_peak: list[str] = []
    for (layer, direction), products in groups.items():
        first, flops = products[0], sum(product.flops for product in products)
        if layer in (SCORES, VALUES):
            seconds[first.component] += flops * (seq + 1) / (2 * seq) / peak
            continue
        forms = [[(product.flops, rate(product)) for product in products]]
        if len(products) > 1:
            dimension = JOINED[direction]
            whole = sum(getattr(product, dimension) for product in products)
            forms.append([(flops, rate(first, **{dimension: whole}))])
        if layer == LM_HEAD:
            # the last chunk may be smaller, which no variant gains by
            most = CHUNK_LOGITS // size["vocab_size"] // TOKENS_STEP * TOKENS_STEP
            chunk = min(step.name.batch * seq, max(FEWEST_TOKENS, most))
            forms.append([(flops, rate(first, **{TOKENS[direction]: chunk}))])
        times = [sum(work / of for work, of in form) for form in forms if all(r for _, r in form)]
        at_worst = sum(work / (of or peak) for work, of in forms[0])
        seconds[first.component] += min(times, default=at_worst)
        at_peak += [p.shape for p in products if not times and rate(p) is None]
    seconds[BLOCK] = seconds[ATTENTION] + seconds[FFN]
    remark = f"every {type_name} product (measure --components peak at this size)"
    return seconds, list(dict.fromkeys(at_peak)) if rates else [remark]


# What is left of the step when its parts are taken away.
REST = "rest"


@dataclass(frozen=True)
class TimedPart:
    """All `count` of a part together, or the whole step. `seconds`: None where it was not measured;
    below 0 of a rest where parts measured alone do work that the step shares. `case`: as measured;
    empty for the rest. `light`: None where no peak is known."""

    name: str
    count: int
    seconds: float | None
    case: str = ""
    light: Light | None = None

    @property
    def error(self) -> str:
        """That it was faster than its light by more than the scatter of a rate."""
        known = self.name != REST and None not in (self.light, self.seconds)
        if not known or self.light.seconds <= LARGEST_SHARE * self.seconds:
            return ""
        faster = f"{seconds_text(self.seconds)} is faster than its speed of light"
        why = "a rate was measured too low, or the time is wrong"
        return f"{self.name}: {faster}, {seconds_text(self.light.seconds)}: {why}"

    @property
    def lost_seconds(self) -> float | None:
        """Measured less light; None where one is not known or the light is no bound."""
        if self.light is None or self.seconds is None or self.error:
            return None
        return self.seconds - self.light.seconds

    @property
    def share_percent(self) -> float | None:
        """Light over measured, or None as above and of a rest below 0."""
        if self.lost_seconds is None or self.seconds is None or self.seconds <= 0:
            return None
        return 100.0 * (1.0 - self.lost_seconds / self.seconds)


@dataclass(frozen=True)
class StepTimes:
    """A measured step. `parts`: in order, the rest of the step last; they add up to `total`, the
    step itself. `phases`: seconds of forward, backward, optimizer and other, which add up to it
    too; empty where the cases for that were not measured. `missing`: what was not measured, and
    what stands in. `refusal`: why there is no speed of light; empty where there is."""

    step: CaseName
    parts: Sequence[TimedPart]
    total: TimedPart
    phases: Mapping[str, float]
    missing: Sequence[str]
    refusal: str = ""

    @property
    def errors(self) -> list[str]:
        """Of parts, or of the step: what cannot be."""
        return [part.error for part in (*self.parts, self.total) if part.error]

    @property
    def share_percent(self) -> float | None:
        """Of the step; None as well where any part was faster than its light."""
        return None if self.errors else self.total.share_percent


# Switches of the update alone: the model runs as the baseline's.
UPDATE_SWITCHES = frozenset({"foreach_adamw", "fused_adamw", "library_adamw"})


def _phases(
    step: MeasuredCase, update: float | None, cases: Mapping[str, MeasuredCase]
) -> tuple[dict[str, float], list[str]]:
    """Of the model's cases of the step's variant; or the names of those that are missing. With
    fused_loss, the LM head's gradients are computed in the forward, which is then the longer."""
    variant = step.name.variant
    if variant != OPTIMIZED and switches_named(variant) <= UPDATE_SWITCHES:
        variant = BASELINE
    names = [
        str(replace(step.name, component="model", variant=variant, pass_name=of))
        for of in ("forward_loss", "forward_backward")
    ]
    missing = [name for name in names if name not in cases]
    if missing or update is None:
        return {}, missing
    forward, both = (cases[name].median_seconds for name in names)
    phases = {"forward": forward, "backward": both - forward, OPTIMIZER: update}
    return {**phases, "other": step.median_seconds - both - update}, []


def step_times(results: ResultSet, step: CaseName) -> StepTimes:
    """Of a measured case full_step/train of a size in fixtures/problem_sizes.json."""
    cases, size = results.cases, problem_sizes()[step.size]
    case = cases[str(step)]
    absent = parts_of(step, size["n_layers"], cases).missing
    # asked again as if they were there, which says how often the step has them and where
    every = parts_of(step, size["n_layers"], {*cases, *absent}).measured
    named = [(parse_case_name(text), count) for text, count in every]
    # the least of any implementation is that of every variant
    moved = {
        replace(of.name, variant=BASELINE): of.counters.get("bytes", 0.0) for of in cases.values()
    }
    missing = [f"{text}: not measured" for text in absent]
    try:
        machine = Machine.from_context(results.context)
        products, at_peak = _least_products(case, size, results, machine)

        lights, unknown = {}, []
        for name, count in named:
            traffic = machine.traffic_seconds(moved.get(replace(name, variant=BASELINE), 0.0))
            lights[name.component] = Light.of(products.get(name.component, 0.0), count * traffic)
            unknown += [name] * (not traffic)
        refusal, whole = "", Light(*map(sum, zip(*lights.values(), strict=True)))
        missing += [f"{name}: no bytes, its light is that of its products" for name in unknown]
        if at_peak:
            missing.append(
                f"no rate at their own shape, the measured {product_type(step.dtype)} peak "
                f"stands in: {', '.join(at_peak)}"
            )
    except BadInputError as error:
        lights, refusal, whole = {}, str(error), None
    parts = []
    for name, count in named:
        measured = cases.get(str(name))
        seconds = count * measured.median_seconds if measured else None
        own = lights.get(name.component)
        parts.append(TimedPart(name.component, count, seconds, str(name), own))
    update = next(part.seconds for part in parts if part.name == OPTIMIZER)
    phases, of_phases = _phases(case, update, cases)
    rest = case.median_seconds - sum(part.seconds or 0.0 for part in parts)
    # autograd's own work, and the additions of the residual stream
    parts.append(TimedPart(REST, 1, rest, "", Light.of(0.0, 0.0) if lights else None))
    total = TimedPart("step", 1, case.median_seconds, str(step), whole)
    missing += [f"{name}: not measured" for name in of_phases]
    return StepTimes(step, parts, total, phases, missing, refusal)


# Of what the roofline allows at the step's intensity: nearer than this, it is on the roof.
ON_THE_ROOF_PERCENT = 80.0
MEMORY_BOUND = "Below roofline - memory bound (optimize data movement)"
ON_ROOFLINE = "On roofline - balanced (optimize both)"
COMPUTE_BOUND = "Below compute ceiling - compute bound (optimize kernels)"
POSITIONS = (MEMORY_BOUND, ON_ROOFLINE, COMPUTE_BOUND)
# the point of the whole step in a training run's roofline_data
WHOLE = "step"


class RooflinePosition(NamedTuple):
    position: str
    reason: str


def roofline_position(flops: Json | None) -> RooflinePosition | None:
    """Of the step; `flops` as in performance_summary.json. None where the peak is not known."""
    roofline = (flops or {}).get("roofline_data") or {}
    step = next((p for p in roofline.get("points", []) if p["name"] == WHOLE), None)
    if not step or step.get("percent_of_attainable") is None or step.get("bound") is None:
        return None
    percent = step["percent_of_attainable"]
    reason = f"{step['arithmetic_intensity_flops_per_byte']:.1f} FLOP/byte"
    # the ridge of the bandwidth that this working set sees, which may be a cache's
    bandwidth, peak = step.get("attainable_bandwidth"), roofline.get("peak_flops")
    if bandwidth and peak:
        reason += f" against a ridge at {peak / bandwidth:.1f}"
    position = MEMORY_BOUND if step["bound"] == "memory" else COMPUTE_BOUND
    if percent >= ON_THE_ROOF_PERCENT:
        position = ON_ROOFLINE
    return RooflinePosition(
        position, f"{reason}; {percent:.1f} % of what the roofline allows there"
    )


def roofline_point(points: Sequence[Json], component: str) -> Json | None:
    """The component's own point, else that of its nearest ancestor; None where neither has one.

    `attention/core` is drawn as part of `attention`, `attention/rotary` has a point of its own.
    """
    by_name = {point["name"]: point for point in points if point["name"] != WHOLE}
    while component and component not in by_name:
        component = component.rpartition("/")[0]
    return by_name.get(component)
