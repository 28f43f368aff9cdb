"""Where each case and each GEMM stands under the roofline, and what bounds it there.

What it costs to start one operator, inferred from the cells of a run that show it.

Nothing measures it directly. What the best cell leaves above its roofline time is the operators'
starts and whatever else its operators take, so this is an upper bound on what starting an operator
costs here. It says nothing new of the cell that it comes from, which is for that reason never
called latency-bound by it (points.py).

Every matrix product of a training step, with its shape and how often the step runs it.

Counted as the layers of model/ count their cost: a multiply-add is 2 FLOPs, K and V at their
grouped-query width, scores in full, backward = 2 x forward (also for the first layer, whose
input's gradient the embedding needs), the LM head over all positions, and
no product for the embedding look-up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.data.machine import Machine, ProductRate, product_type
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.parts import OPTIMIZED, switches_named
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.models.ablations import resolved_switches

TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def time_text(seconds: float) -> str:
    """`12.3 ms`; a dash where there is no time at all."""
    if seconds <= 0:
        return "-"
    size, unit = next((u for u in TIME_UNITS if seconds >= u[0]), TIME_UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def switches_of(case: MeasuredCase) -> frozenset[str]:
    """Of its variant; what `optimized` stands for is in the case's label."""
    variant = case.name.variant
    if variant == OPTIMIZED:
        return frozenset(resolved_switches(case.label) or ())
    return switches_named(variant)


@dataclass(frozen=True)
class CaseWork:
    """Of one iteration. `product_flops`: hardware_flops, those of the matrix products that really
    ran. `operators`: None where they were not counted."""

    product_flops: float
    elementwise_flops: float
    bytes: float
    operators: float | None

    @property
    def flops(self) -> float:
        """Those of its intensity: of products, else elementwise."""
        return self.product_flops or self.elementwise_flops


@dataclass(frozen=True)
class LeastTime:
    """Seconds that products and traffic take at best; `products` 0 where there are none."""

    products: float
    traffic: float

    @property
    def seconds(self) -> float:
        """Of both: they may overlap, so the larger; their sum would be no bound."""
        return max(self.products, self.traffic)


def work_of(case: MeasuredCase) -> CaseWork | None:
    """None for a case whose costs are not in its counters."""
    counters = case.counters
    work = CaseWork(
        counters.get("hardware_flops", 0.0),
        counters.get("elementwise_flops", 0.0),
        counters.get("bytes", 0.0),
        counters.get("operators"),
    )
    return work if work.bytes > 0 and work.flops > 0 else None


def least_time(work: CaseWork, dtype: str, machine: Machine) -> LeastTime | None:
    """At the machine's peaks; None where products have none of their type."""
    products = 0.0
    if work.product_flops > 0:
        peak = machine.peak_flops.get(product_type(dtype))
        if peak is None:
            return None
        products = work.product_flops / peak
    return LeastTime(products, machine.traffic_seconds(work.bytes))


# A cell that the roofline explains further than this has too small a rest to divide.
LARGEST_ROOF_SHARE = 0.5
# An operator that takes longer than this, even where it takes least, does work of its own: the
# run has no cell small enough to show what the start alone costs.
LARGEST_SECONDS = 20e-6


@dataclass(frozen=True)
class TimedCell:
    """A case with its operators per iteration (> 0) and its least time, in seconds."""

    name: str
    seconds: float
    operators: float
    least: LeastTime


@dataclass(frozen=True)
class LaunchCost:
    """`seconds` per operator, an upper bound; `source`: the case that it was inferred from."""

    seconds: float
    source: str


def launch_cost_of(cells: Iterable[TimedCell]) -> LaunchCost | None:
    """The least time per operator that a cell leaves above its roofline time: an upper bound.

    Taken of cells of which the roofline explains less than half; never more than the whole time of
    any cell per operator, which bounds it from above. None where it is more than 20 us.
    """
    costs = []
    for cell in cells:
        time = cell.seconds
        if cell.least.seconds <= LARGEST_ROOF_SHARE * cell.seconds:
            time -= cell.least.seconds
        costs.append(LaunchCost(time / cell.operators, cell.name))
    best = min(costs, key=lambda cost: cost.seconds, default=None)
    return best if best is not None and best.seconds <= LARGEST_SECONDS else None


def timed_cells(result_set: ResultSet, machine: Machine) -> list[TimedCell]:
    """The cases that count operators and have a least time."""
    cells = []
    for name, case in result_set.cases.items():
        work = work_of(case)
        least = least_time(work, case.name.dtype, machine) if work else None
        if work and least and work.operators:
            cells.append(TimedCell(name, case.median_seconds, work.operators, least))
    return cells


def launch_cost(result_set: ResultSet, machine: Machine) -> LaunchCost | None:
    """Of the set's own cells; None where none of them is small enough to show it."""
    return launch_cost_of(timed_cells(result_set, machine))


# Of what the roofline allows at the step's intensity: nearer than this, it is on the roof.
ON_THE_ROOF_PERCENT = 80.0
MEMORY_BOUND = "Below roofline - memory bound (optimize data movement)"
ON_ROOFLINE = "On roofline - balanced (optimize both)"
COMPUTE_BOUND = "Below compute ceiling - compute bound (optimize kernels)"
POSITIONS = (MEMORY_BOUND, ON_ROOFLINE, COMPUTE_BOUND)


@dataclass(frozen=True)
class RooflinePosition:
    """`position` is one of POSITIONS; `ridge` and `intensity` in FLOP/byte, `percent` of the
    attainable rate at that intensity."""

    position: str
    intensity: float
    ridge: float | None
    percent: float
    reason: str


def roofline_position(flops: Json | None) -> RooflinePosition | None:
    """Of the step; `flops` as in performance_summary.json. None where the peak is not known."""
    roofline = (flops or {}).get("roofline_data") or {}
    step = next((p for p in roofline.get("points", []) if p["name"] == "step"), None)
    if not step or step.get("percent_of_attainable") is None or step.get("bound") is None:
        return None
    intensity, percent = step["arithmetic_intensity_flops_per_byte"], step["percent_of_attainable"]
    # the ridge of the bandwidth that this working set sees, which may be a cache's
    bandwidth, peak = step.get("attainable_bandwidth"), roofline.get("peak_flops")
    ridge = peak / bandwidth if bandwidth and peak else None
    where = f"{intensity:.1f} FLOP/byte" + (f" against a ridge at {ridge:.1f}" if ridge else "")
    reach = f"{percent:.1f} % of what the roofline allows there"
    if percent >= ON_THE_ROOF_PERCENT:
        position = ON_ROOFLINE
    else:
        position = MEMORY_BOUND if step["bound"] == "memory" else COMPUTE_BOUND
    return RooflinePosition(position, intensity, ridge, percent, f"{where}; {reach}")


DIMENSIONS = (
    "hidden_dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "intermediate_dim",
    "vocab_size",
)
QKV, GATE_UP = "qkv", "gate_up"
SCORES, VALUES = "scores", "values"
LM_HEAD = "lm_head"
# model/loss.cpp, fused_loss_chunk: logits of a chunk, and the fewest tokens of one
CHUNK_LOGITS, FEWEST_TOKENS, TOKENS_STEP = 1 << 19, 256, 64
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input gradient", "weight gradient"


@dataclass(frozen=True)
class Product:
    """[m, k] x [k, n], `batch` of them at once, `count` times a step. `component`: attention, ffn
    or loss. `role`: the layer and the direction, `q_proj weight gradient`."""

    component: str
    role: str
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
    def layer(self) -> str:
        """The role without the direction."""
        return self.role.partition(" ")[0]

    @property
    def direction(self) -> str:
        """`forward`, or which gradient."""
        return self.role.partition(" ")[2]

    @property
    def shape(self) -> str:
        """`1024x256x512`; `32x256x128x64` is 32 of 256x128x64 at once."""
        one = f"{self.m}x{self.n}x{self.k}"
        return one if self.batch == 1 else f"{self.batch}x{one}"


def _checked(size: Mapping[str, int], batch: int, seq: int) -> dict[str, int]:
    found = {name: size.get(name) for name in DIMENSIONS} | {"batch": batch, "seq": seq}
    checked = {}
    for name, value in found.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadInputError(
                f"{name} is {value!r}, must be a whole number of 1 or more; correct the size"
            )
        checked[name] = value
    for name, divisor in (("hidden_dim", "n_heads"), ("n_heads", "n_kv_heads")):
        if checked[name] % checked[divisor]:
            raise BadInputError(
                f"{name} {checked[name]} must be a multiple of {divisor} {checked[divisor]}; "
                "correct the size"
            )
    return checked


def _linear(component: str, layer: str, count: int, m: int, n: int, k: int) -> list[Product]:
    """out[m, n] = in[m, k] x weight[n, k]^T, the gradients of in [m, k] and of weight [n, k]."""
    return [
        Product(component, f"{layer} {FORWARD}", count, 1, m, n, k),
        Product(component, f"{layer} {INPUT_GRADIENT}", count, 1, m, k, n),
        Product(component, f"{layer} {WEIGHT_GRADIENT}", count, 1, n, k, m),
    ]


def _attention_core(layers: int, batch: int, queries: int, keys: int, width: int) -> list[Product]:
    """Of B x KV heads at once, the queries of a group stacked: [G S, hd] x [hd, S], and
    probabilities [G S, S] x [S, hd]."""

    def product(role: str, m: int, n: int, k: int) -> Product:
        return Product("attention", role, layers, batch, m, n, k)

    return [
        product(f"{SCORES} {FORWARD}", queries, keys, width),
        product(f"{SCORES} gradient of q", queries, width, keys),
        product(f"{SCORES} gradient of k", keys, width, queries),
        product(f"{VALUES} {FORWARD}", queries, width, keys),
        product(f"{VALUES} gradient of probabilities", queries, keys, width),
        product(f"{VALUES} gradient of v", keys, width, queries),
    ]


def step_products(
    size: Mapping[str, int], batch: int, seq: int, fused: Collection[str] = ()
) -> list[Product]:
    """Of forward and backward of the whole model; their `flops` add up to full_step's model_flops.

    `size`: as in fixtures/problem_sizes.json. `fused`: `qkv` makes one product of q, k and v,
    `gate_up` one of gate and up. BadInputError for a dimension that is missing or impossible.
    """
    dims = _checked(size, batch, seq)
    layers, heads, kv_heads = dims["n_layers"], dims["n_heads"], dims["n_kv_heads"]
    hidden, inner, tokens = dims["hidden_dim"], dims["intermediate_dim"], batch * seq
    width = hidden // heads
    kv_dim = width * kv_heads
    if QKV in fused:
        projections = {"qkv_proj": hidden + 2 * kv_dim}
    else:
        projections = {"q_proj": hidden, "k_proj": kv_dim, "v_proj": kv_dim}
    gates = (
        {"gate_up_proj": 2 * inner}
        if GATE_UP in fused
        else dict.fromkeys(("gate_proj", "up_proj"), inner)
    )
    products = []
    for layer, out in projections.items():
        products += _linear("attention", layer, layers, tokens, out, hidden)
    queries = seq * heads // kv_heads
    products += _attention_core(layers, batch * kv_heads, queries, seq, width)
    products += _linear("attention", "o_proj", layers, tokens, hidden, hidden)
    for layer, out in gates.items():
        products += _linear("ffn", layer, layers, tokens, out, hidden)
    products += _linear("ffn", "down_proj", layers, tokens, hidden, inner)
    products += _linear("loss", LM_HEAD, 1, tokens, dims["vocab_size"], hidden)
    return products


def chunk_of(head: Product, size: Mapping[str, int]) -> Product:
    """The LM head's product as fused_loss runs it: on so many tokens at a time. Its `count` stays,
    so its `flops` are those of one chunk."""
    vocab, hidden = size["vocab_size"], size["hidden_dim"]
    tokens = head.k if head.direction == WEIGHT_GRADIENT else head.m
    chunk = max(FEWEST_TOKENS, CHUNK_LOGITS // vocab // TOKENS_STEP * TOKENS_STEP)
    chunk = min(tokens, chunk)
    shapes = {
        FORWARD: (chunk, vocab, hidden),
        INPUT_GRADIENT: (chunk, hidden, vocab),
        WEIGHT_GRADIENT: (vocab, hidden, chunk),
    }
    m, n, k = shapes[head.direction]
    return replace(head, m=m, n=n, k=k)


# Layers that a switch of the same name makes one product of.
FUSED_LAYERS: Mapping[str, tuple[str, ...]] = {
    QKV: ("q_proj", "k_proj", "v_proj", "qkv_proj"),
    GATE_UP: ("gate_proj", "up_proj", "gate_up_proj"),
}
Shape = tuple[int, int, int, int]
Group = tuple[str, str, str]


@dataclass(frozen=True)
class ProductRates:
    """`peak`: FLOP/s that no product of this type was seen to beat. `by_shape`: batch, m, n, k."""

    peak: float
    by_shape: Mapping[Shape, float]

    @classmethod
    def among(cls, products: Sequence[ProductRate], type_name: str, peak: float) -> ProductRates:
        """Those of one type; of a shape that is there twice, the better."""
        found: dict[Shape, float] = {}
        for row in products:
            if row.type_name == type_name:
                shape = (row.batch, row.m, row.n, row.k)
                found[shape] = max(row.flops_per_second, found.get(shape, 0.0))
        return cls(peak, found)

    def own(self, product: Product) -> float | None:
        """The rate at the product's own shape."""
        return self.by_shape.get((product.batch, product.m, product.n, product.k))


@dataclass(frozen=True)
class ProductTimes:
    """`seconds` of a whole step by component; `at_peak`: shapes that count at the peak since no
    form of them was measured."""

    seconds: Mapping[str, float]
    at_peak: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Form:
    """One way to run a group of products."""

    seconds: float
    unknown: tuple[str, ...] = field(default=())


def _form(products: Sequence[Product], rates: ProductRates) -> _Form:
    seconds, unknown = 0.0, []
    for product in products:
        rate = rates.own(product)
        if rate is None:
            unknown.append(product.shape)
        seconds += product.flops / (rate or rates.peak)
    return _Form(seconds, tuple(unknown))


def _group(product: Product) -> Group:
    """Products that one fused product does at once."""
    names = (name for name, layers in FUSED_LAYERS.items() if product.layer in layers)
    return product.component, next(names, product.layer), product.direction


def _grouped(products: Sequence[Product]) -> dict[Group, list[Product]]:
    groups = defaultdict(list)
    for product in products:
        groups[_group(product)].append(product)
    return groups


def _in_chunks(size: Mapping[str, int], head: Product, rates: ProductRates) -> Iterator[_Form]:
    """The LM head in chunks of tokens, where their rate is known; the last chunk may be smaller,
    which no variant gains by."""
    rate = rates.own(chunk_of(head, size))
    if rate is not None:
        yield _Form(head.flops / rate)


def _best(forms: Sequence[_Form]) -> _Form:
    """The fastest of those that were measured, else the first, whose unknown are at the peak."""
    measured = [form for form in forms if not form.unknown]
    return min(measured, key=lambda form: form.seconds) if measured else forms[0]


def product_times(
    size: Mapping[str, int], batch: int, seq: int, rates: ProductRates
) -> ProductTimes:
    """The least time that a step's products take: the same for every variant.

    Of the forms in which variants run a group (one by one, as one fused product, the LM head in
    chunks), the fastest that was measured counts, each product at the best rate of its own shape;
    at the peak where no form was. Scores and values count at the peak without what the causal mask
    hides, (S + 1) / (2 S) of them: a kernel that never stores them can do with that.
    """
    separate = _grouped(step_products(size, batch, seq))
    together = _grouped(step_products(size, batch, seq, FUSED_LAYERS))
    seconds: dict[str, float] = defaultdict(float)
    at_peak: dict[str, None] = {}
    for (component, group, direction), products in separate.items():
        if group in (SCORES, VALUES):
            flops = sum(product.flops for product in products)
            seconds[component] += flops * (seq + 1) / (2 * seq) / rates.peak
            continue
        forms = [_form(products, rates), _form(together[component, group, direction], rates)]
        if group == LM_HEAD:
            forms += _in_chunks(size, products[0], rates)
        best = _best(forms)
        seconds[component] += best.seconds
        at_peak |= dict.fromkeys(best.unknown)
    return ProductTimes(dict(seconds), tuple(at_peak))


Bound = Literal["compute", "bandwidth", "latency"]
# Of the measured time: from here on, the starts of operators explain most of it.
MOSTLY = 0.5
ELEMENT_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}
NO_LAUNCH_COST = "no cell is small enough to show what the start of an operator costs"
SHOWS_LAUNCH_COST = (
    "what it takes beyond them is the largest that the start of its operators can cost, inferred "
    "from this very case, so it does not show that latency bounds it"
)


@dataclass(frozen=True)
class RooflinePoint:
    """`intensity` in FLOP/byte: of the products that really ran, elementwise where a case has
    none. `attainable`: FLOP/s that the roofline allows at that intensity. `percent` of it; None
    where it is above 100, or above a peak as the file says, which `error` tells. `why`: in words
    what bounds it. `case`: None for a matrix product of its own."""

    name: str
    intensity: float
    flops_per_second: float
    attainable: float
    percent: float | None
    bound: Bound
    why: str
    error: str = ""
    case: CaseName | None = None


def _starts_text(operators: float, starts: float, launch: LaunchCost) -> str:
    return (
        f", the start of {operators:.0f} operator{'' if operators == 1 else 's'} at most "
        f"{time_text(starts)} "
        f"({time_text(launch.seconds)} each, inferred from {launch.source})"
    )


def _bound(
    name: str,
    seconds: float,
    least: LeastTime,
    operators: float | None,
    launch: LaunchCost | None,
) -> tuple[Bound, str]:
    times = (
        f"of {time_text(seconds)}, products at the peak take {time_text(least.products)}, traffic "
        f"{time_text(least.traffic)}"
    )
    starts = 0.0
    if launch is None:
        times += f"; {NO_LAUNCH_COST}"
    elif launch.source == name:
        times += f"; {SHOWS_LAUNCH_COST}"
    elif operators:
        starts = operators * launch.seconds
        times += _starts_text(operators, starts, launch)
    if starts > least.seconds and starts >= MOSTLY * seconds:
        return "latency", times
    return ("compute" if least.products > least.traffic else "bandwidth"), times


def _point(
    name: str,
    flops: float,
    bytes_moved: float,
    seconds: float,
    least: LeastTime,
    bound: tuple[Bound, str],
    case: CaseName | None = None,
    above_peak: str = "",
) -> RooflinePoint:
    percent: float | None = 100.0 * least.seconds / seconds
    error = above_peak
    if least.seconds > seconds:
        error = error or (
            f"{time_text(seconds)} is {percent:.1f} % of what the roofline allows: the peak was "
            "measured too low, or the time or the count is wrong"
        )
    if error:
        percent = None
    return RooflinePoint(
        name,
        flops / bytes_moved,
        flops / seconds,
        flops / least.seconds,
        percent,
        *bound,
        error,
        case,
    )


def point_of(
    case: MeasuredCase, machine: Machine, launch: LaunchCost | None
) -> RooflinePoint | str:
    """Or the reason why the case has no point."""
    work = work_of(case)
    if work is None:
        return "its counters lack bytes or FLOPs"
    least = least_time(work, case.name.dtype, machine)
    if least is None:
        return f"no peak of {product_type(case.name.dtype)} products was measured"
    name, seconds = str(case.name), case.median_seconds
    bound = _bound(name, seconds, least, work.operators, launch)
    return _point(name, work.flops, work.bytes, seconds, least, bound, case.name, case.above_peak)


def roofline_points(result_set: ResultSet) -> list[RooflinePoint]:
    """Of every case that has costs, in the set's order; left_out_of_roofline names the others.

    Latency bounds a case where the start of its operators, at the cost inferred from another case
    of this set (launch_cost.py), takes longer than both products and traffic at their peaks, and at
    least half of the measured time. BadInputError for a context without measured peaks.
    """
    machine = Machine.from_context(result_set.context)
    launch = launch_cost(result_set, machine)
    found = (point_of(case, machine, launch) for case in result_set.cases.values())
    return [point for point in found if isinstance(point, RooflinePoint)]


def left_out_of_roofline(result_set: ResultSet) -> list[str]:
    """`<case>: <reason>` for every case and every product without a point."""
    machine = Machine.from_context(result_set.context)
    found = {name: point_of(case, machine, None) for name, case in result_set.cases.items()}
    found |= {rate.name: product_point(rate, machine, None) for rate in result_set.products}
    return [f"{name}: {reason}" for name, reason in found.items() if isinstance(reason, str)]


def product_point(
    rate: ProductRate, machine: Machine, launch: LaunchCost | None
) -> RooflinePoint | str:
    """Its traffic is each operand once and the result once. Or the reason why it has no point."""
    peak, size = machine.peak_flops.get(rate.type_name), ELEMENT_BYTES.get(rate.type_name)
    if peak is None:
        return f"no peak of {rate.type_name} products was measured"
    if size is None:
        return f"how many bytes a value of {rate.type_name} has is not known"
    m, n, k = rate.m, rate.n, rate.k
    flops = 2.0 * rate.batch * m * n * k
    bytes_moved = float(size * rate.batch * (m * k + k * n + m * n))
    seconds = flops / rate.flops_per_second
    least = LeastTime(flops / peak, machine.traffic_seconds(bytes_moved))
    bound = _bound(rate.name, seconds, least, 1, launch)
    return _point(rate.name, flops, bytes_moved, seconds, least, bound)


def product_points(result_set: ResultSet) -> list[RooflinePoint]:
    """Of every matrix product measured at its own shape; left_out_of_roofline names the others."""
    machine = Machine.from_context(result_set.context)
    launch = launch_cost(result_set, machine)
    found = (product_point(rate, machine, launch) for rate in result_set.products)
    return [point for point in found if isinstance(point, RooflinePoint)]


# The point of the whole step is nobody's ancestor.
WHOLE = "step"


def roofline_point(points: Sequence[Json], component: str) -> Json | None:
    """The component's own point, else that of its nearest ancestor; None where neither has one.

    `attention/core` is drawn as part of `attention`, `attention/rotary` has a point of its own.
    """
    by_name = {point["name"]: point for point in points if point["name"] != WHOLE}
    name = component
    while name:
        if name in by_name:
            return by_name[name]
        name = name.rpartition("/")[0]
    return None
