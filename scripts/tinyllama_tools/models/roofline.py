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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tinyllama_tools.core.app import BadInputError, problem_sizes
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
    from tinyllama_tools.core.app import Json
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


# Of the measured time: from here on, the starts of operators explain most of it.
MOSTLY = 0.5


@dataclass(frozen=True)
class RooflinePoint:
    """A case, or a GEMM of its own, which has no `case`. `flops`: those of its intensity, of the
    GEMMs that really ran, else elementwise. `operators`: None where they were not counted.
    `above_peak`: as the file says."""

    name: str
    seconds: float
    flops: float
    bytes: float
    light: Light
    operators: float | None
    case: CaseName | None = None
    above_peak: str = ""
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
    def error(self) -> str:
        """Why there is no share of the attainable; empty where there is."""
        if self.above_peak or self.light.seconds <= LARGEST_SHARE * self.seconds:
            return self.above_peak
        percent = f"{100 * self.light.seconds / self.seconds:.1f} % of what the roofline allows"
        why = "the peak was measured too low, or the time or the count is wrong"
        return f"{seconds_text(self.seconds)} is {percent}: {why}"

    @property
    def percent(self) -> float | None:
        """Of the attainable."""
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


def _product_seconds(flops: float, type_name: str, machine: Machine) -> float:
    if flops and type_name not in machine.peak_flops.keys() & ELEMENT_BYTES.keys():
        raise BadInputError(f"no peak of {type_name} products was measured")
    return flops / machine.peak_flops[type_name] if flops else 0.0


def _of_case(case: MeasuredCase, machine: Machine) -> RooflinePoint:
    products, moved = (case.counters.get(key, 0.0) for key in ("hardware_flops", "bytes"))
    flops = products or case.counters.get("elementwise_flops", 0.0)
    if moved <= 0 or flops <= 0:
        raise BadInputError("its counters lack bytes or FLOPs")
    at_peak = _product_seconds(products, product_type(case.name.dtype), machine)
    light = Light.of(at_peak, machine.traffic_seconds(moved))
    operators, seconds = case.counters.get("operators"), case.median_seconds
    names = (case.name, case.above_peak)
    return RooflinePoint(str(case.name), seconds, flops, moved, light, operators, *names)


def _of_product(rate: ProductRate, machine: Machine) -> RooflinePoint:
    """Its traffic is each operand once and the result once."""
    m, n, k = rate.m, rate.n, rate.k
    flops = 2.0 * rate.batch * m * n * k
    at_peak = _product_seconds(flops, rate.type_name, machine)
    moved = float(ELEMENT_BYTES[rate.type_name] * rate.batch * (m * k + k * n + m * n))
    light = Light.of(at_peak, machine.traffic_seconds(moved))
    return RooflinePoint(rate.name, flops / rate.flops_per_second, flops, moved, light, 1)


# A cell that the roofline explains further than this has too small a rest to divide.
LARGEST_ROOF_SHARE = 0.5
# An operator that takes longer than this, even where it takes least, does work of its own: the
# run has no cell small enough to show what the start alone costs.
LARGEST_SECONDS = 20e-6


def _launch_cost(points: Sequence[RooflinePoint]) -> LaunchCost | None:
    """What it costs to start one operator: the least time per operator that a cell leaves above its
    roofline time, of cells of which the roofline explains less than half, and never more than the
    whole time of any cell per operator. That holds whatever else operators take, so it is an upper
    bound. It says nothing new of the cell that it comes from, which is for that reason never called
    latency-bound by it. None where it is more than 20 us."""
    costs = []
    for point in points:
        if point.operators:
            least = point.light.seconds
            explained = least if least <= LARGEST_ROOF_SHARE * point.seconds else 0.0
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
    points: list[RooflinePoint] = []
    products: list[RooflinePoint] = []
    left_out: dict[str, str] = {}
    items = [(_of_case, points, str(case.name), case) for case in results.cases.values()]
    items += [(_of_product, products, rate.name, rate) for rate in results.products]
    for point_of, found, name, item in items:
        try:
            found.append(point_of(item, machine))
        except BadInputError as error:
            left_out[name] = str(error)
    launch = _launch_cost(points)
    placed = ([replace(of, launch=launch) for of in found] for found in (points, products))
    return Roofline(machine, launch, *placed, left_out)


Size = Mapping[str, int]
ATTENTION, FFN, BLOCK = "attention", "ffn", "block"
LOSS, OPTIMIZER = "loss", "optimizer"
SCORES, VALUES, LM_HEAD = "scores", "values", "lm_head"
# Layers that a switch of this name makes one GEMM of.
FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up"),
}
# by direction, the dimension that is then the sum of theirs
FORWARD, OF_INPUT, OF_WEIGHT = "forward", "input gradient", "weight gradient"
JOINED = {FORWARD: "n", OF_INPUT: "k", OF_WEIGHT: "m"}
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
    tokens, width = batch * seq, hidden // size["n_heads"]
    kv_heads = size["n_kv_heads"]
    kv_dim = width * kv_heads
    # widths of output and input
    linear = {
        (ATTENTION, "q_proj"): (hidden, hidden),
        (ATTENTION, "k_proj"): (kv_dim, hidden),
        (ATTENTION, "v_proj"): (kv_dim, hidden),
        (ATTENTION, "o_proj"): (hidden, hidden),
        (FFN, "gate_proj"): (inner, hidden),
        (FFN, "up_proj"): (inner, hidden),
        (FFN, "down_proj"): (hidden, inner),
        (LOSS, LM_HEAD): (size["vocab_size"], hidden),
    }
    products = []
    for (component, layer), (out, of) in linear.items():
        # out[m, n] = in[m, k] x weight[n, k]^T, the gradients of in [m, k] and of weight [n, k]
        shapes = {
            FORWARD: (tokens, out, of),
            OF_INPUT: (tokens, of, out),
            OF_WEIGHT: (out, of, tokens),
        }
        count = 1 if component == LOSS else layers
        products += [Product(component, layer, d, count, 1, *s) for d, s in shapes.items()]
    # of B x KV heads at once, the queries of a group stacked: [G S, hd] x [hd, S], and
    # probabilities [G S, S] x [S, hd]
    queries = seq * size["n_heads"] // kv_heads
    core = {
        (SCORES, FORWARD): (queries, seq, width),
        (SCORES, "gradient of q"): (queries, width, seq),
        (SCORES, "gradient of k"): (seq, width, queries),
        (VALUES, FORWARD): (queries, width, seq),
        (VALUES, "gradient of probabilities"): (queries, seq, width),
        (VALUES, "gradient of v"): (seq, width, queries),
    }
    return products + [
        Product(ATTENTION, *of, layers, batch * kv_heads, *shape) for of, shape in core.items()
    ]


def joined(products: Sequence[Product]) -> Product:
    """Layers of one input as the switch that fuses them runs them: as one GEMM."""
    dimension = JOINED[products[0].direction]
    return replace(products[0], **{dimension: sum(getattr(p, dimension) for p in products)})


def chunk_of(head: Product, size: Size) -> Product:
    """The LM head's GEMM as fused_loss runs it: on so many tokens at a time. Its `count` stays, so
    its `flops` are those of one chunk."""
    most = CHUNK_LOGITS // size["vocab_size"] // TOKENS_STEP * TOKENS_STEP
    dimension = "k" if head.direction == OF_WEIGHT else "m"
    chunk = min(getattr(head, dimension), max(FEWEST_TOKENS, most))
    return replace(head, **{dimension: chunk})


def product_times(
    size: Size,
    batch: int,
    seq: int,
    rates: Mapping[tuple[int, int, int, int], float],
    peak: float,
) -> tuple[dict[str, float], list[str]]:
    """The least seconds that a step's GEMMs take, by component, the same for every variant; and the
    shapes that count at the peak since no form of them was measured.

    `rates`: FLOP/s by batch, m, n, k. Of the forms in which variants run a group (one by one, as
    one fused GEMM, the LM head in chunks), the fastest that was measured counts, each GEMM at the
    rate of its own shape. Scores and values count at the peak without what the causal mask hides,
    (S + 1) / (2 S) of them: a kernel that never stores them can do with that.
    """

    def rate(product: Product) -> float | None:
        return rates.get((product.batch, product.m, product.n, product.k))

    # layers that one fused GEMM can do at once
    groups: dict[tuple[str, str], list[Product]] = defaultdict(list)
    for product in step_products(size, batch, seq):
        groups[FUSED.get(product.layer, product.layer), product.direction].append(product)
    seconds: dict[str, float] = defaultdict(float)
    at_peak: list[str] = []
    for (layer, _), products in groups.items():
        component, flops = products[0].component, sum(product.flops for product in products)
        if layer in (SCORES, VALUES):
            seconds[component] += flops * (seq + 1) / (2 * seq) / peak
            continue
        forms = [[(product.flops, rate(product)) for product in products]]
        if len(products) > 1:
            forms.append([(flops, rate(joined(products)))])
        if layer == LM_HEAD:
            # the last chunk may be smaller, which no variant gains by
            forms.append([(flops, rate(chunk_of(products[0], size)))])
        times = [sum(work / of for work, of in form) for form in forms if all(r for _, r in form)]
        seconds[component] += min(times, default=sum(work / (of or peak) for work, of in forms[0]))
        at_peak += [p.shape for p in products if not times and rate(p) is None]
    return dict(seconds), list(dict.fromkeys(at_peak))


# What is left of the step when its parts are taken away.
REST = "rest"


@dataclass(frozen=True)
class TimedPart:
    """All `count` of a part together, or the whole step. `seconds`: None where it was not measured;
    below 0 of a rest where parts measured alone do work that the step shares. `case`: the case
    measured; empty for the rest. `light`: None where no peak is known."""

    name: str
    count: int
    seconds: float | None
    case: str = ""
    light: Light | None = None

    @property
    def error(self) -> str:
        """That it was faster than its light by more than the scatter of a rate."""
        if self.light is None or self.seconds is None or self.name == REST:
            return ""
        if self.light.seconds <= LARGEST_SHARE * self.seconds:
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


def _known_bytes(names: Sequence[CaseName], results: ResultSet) -> dict[str, float]:
    """Of one of each component, from any variant of its size, type and shape."""
    wanted = {replace(name, variant=BASELINE) for name in names}
    found: dict[str, float] = {}
    for case in results.cases.values():
        component, moved = case.name.component, case.counters.get("bytes", 0.0)
        if moved > 0 and replace(case.name, variant=BASELINE) in wanted:
            found[component] = min(moved, found.get(component, moved))
    return found


def _least_products(
    step: MeasuredCase, size: Size, results: ResultSet, machine: Machine
) -> tuple[dict[str, float], list[str]]:
    """As product_times, of the rates that were measured."""
    name, type_name = step.name, product_type(step.name.dtype)
    expected = sum(p.flops for p in step_products(size, name.batch, name.seq))
    counted = step.counters.get("model_flops")
    if counted != expected:
        raise BadInputError(f"model_flops is {counted}, by the dimensions they are {expected}")
    if type_name not in machine.peak_flops:
        raise BadInputError(f"no peak of {type_name} products was measured")
    rates = {
        (rate.batch, rate.m, rate.n, rate.k): rate.flops_per_second
        for rate in results.products
        if rate.type_name == type_name
    }
    peak = machine.peak_flops[type_name]
    seconds, at_peak = product_times(size, name.batch, name.seq, rates, peak)
    seconds[BLOCK] = seconds[ATTENTION] + seconds[FFN]
    remark = f"every {type_name} product (measure --components peak at this size)"
    return seconds, at_peak if rates else [remark]


def step_times(results: ResultSet, step: CaseName) -> StepTimes:
    """Of a measured case full_step/train of a size in fixtures/problem_sizes.json."""
    cases, size = results.cases, problem_sizes()[step.size]
    case = cases[str(step)]
    absent = parts_of(step, size["n_layers"], cases).missing
    # asked again as if they were there, which says how often the step has them and where
    every = parts_of(step, size["n_layers"], {*cases, *absent}).measured
    named = [(parse_case_name(text), count) for text, count in every]
    moved = _known_bytes([name for name, _ in named], results)
    missing = [f"{text}: not measured" for text in absent]
    try:
        machine = Machine.from_context(results.context)
        products, at_peak = _least_products(case, size, results, machine)

        def light(component: str, count: int) -> Light:
            traffic = count * machine.traffic_seconds(moved.get(component, 0.0))
            return Light.of(products.get(component, 0.0), traffic)

        lights = {name.component: light(name.component, count) for name, count in named}
        refusal, whole = "", Light(*map(sum, zip(*lights.values(), strict=True)))
        unknown = [name for name, _ in named if name.component not in moved]
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
    """`position` is one of POSITIONS."""

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
