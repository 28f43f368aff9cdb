"""Where each case and each matrix product stands under the roofline, and what bounds it there.

The products of a training step are counted as the layers of model/ count their cost: a multiply-add
is 2 FLOPs, K and V at their grouped-query width, scores in full, backward = 2 x forward (also for
the first layer, whose input's gradient the embedding needs), the LM head over all positions, and no
product for the embedding look-up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.data.machine import Machine, ProductRate, product_type
from tinyllama_tools.data.names import OPTIMIZED, CaseName, switches_named
from tinyllama_tools.models.ablations import resolved_switches

if TYPE_CHECKING:
    from tinyllama_tools.data.results import MeasuredCase, ResultSet

TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def time_text(seconds: float) -> str:
    """`12.3 ms`; a dash where there is no time at all."""
    if seconds <= 0:
        return "-"
    size, unit = next((u for u in TIME_UNITS if seconds >= u[0]), TIME_UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def switches_of(case: MeasuredCase) -> frozenset[str]:
    """Of its variant; what `optimized` stands for is in the case's label."""
    if case.name.variant == OPTIMIZED:
        return frozenset(resolved_switches(case.label) or ())
    return switches_named(case.name.variant)


DIMENSIONS = (
    "hidden_dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "intermediate_dim",
    "vocab_size",
)
# model/loss.cpp, fused_loss_chunk: logits of a chunk, and the fewest tokens of one
CHUNK_LOGITS, FEWEST_TOKENS, TOKENS_STEP = 1 << 19, 256, 64
SCORES, VALUES, LM_HEAD = "scores", "values", "lm_head"
# Layers that a switch of the same name makes one product of.
FUSED_LAYERS: Mapping[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj", "qkv_proj"),
    "gate_up": ("gate_proj", "up_proj", "gate_up_proj"),
}
Shape = tuple[int, int, int, int]


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


def _check_dimensions(dims: Mapping[str, object]) -> None:
    for name, value in dims.items():
        if type(value) is not int or value < 1:
            raise BadInputError(
                f"{name} is {value!r}, must be a whole number of 1 or more; correct the size"
            )
    for name, divisor in (("hidden_dim", "n_heads"), ("n_heads", "n_kv_heads")):
        if dims[name] % dims[divisor]:  # type: ignore[operator]
            raise BadInputError(
                f"{name} {dims[name]} must be a multiple of {divisor} {dims[divisor]}; "
                "correct the size"
            )


def _linear(component: str, layer: str, count: int, m: int, n: int, k: int) -> list[Product]:
    """out[m, n] = in[m, k] x weight[n, k]^T, the gradients of in [m, k] and of weight [n, k]."""
    return [
        Product(component, f"{layer} forward", count, 1, m, n, k),
        Product(component, f"{layer} input gradient", count, 1, m, k, n),
        Product(component, f"{layer} weight gradient", count, 1, n, k, m),
    ]


def step_products(
    size: Mapping[str, int], batch: int, seq: int, fused: Collection[str] = ()
) -> list[Product]:
    """Of forward and backward of the whole model; their `flops` add up to full_step's model_flops.

    `size`: as in fixtures/problem_sizes.json. `fused`: `qkv` makes one product of q, k and v,
    `gate_up` one of gate and up. BadInputError for a dimension that is missing or impossible.
    """
    _check_dimensions({name: size.get(name) for name in DIMENSIONS} | {"batch": batch, "seq": seq})
    hidden, layers, heads, kv_heads, inner, vocab = (size[name] for name in DIMENSIONS)
    tokens, width = batch * seq, hidden // heads
    kv_dim = width * kv_heads
    projections = {"q_proj": hidden, "k_proj": kv_dim, "v_proj": kv_dim}
    gates = {"gate_proj": inner, "up_proj": inner}
    if "qkv" in fused:
        projections = {"qkv_proj": hidden + 2 * kv_dim}
    if "gate_up" in fused:
        gates = {"gate_up_proj": 2 * inner}
    products = []
    for layer, out in projections.items():
        products += _linear("attention", layer, layers, tokens, out, hidden)
    # of B x KV heads at once, the queries of a group stacked: [G S, hd] x [hd, S], and
    # probabilities [G S, S] x [S, hd]
    queries = seq * heads // kv_heads
    core = {
        f"{SCORES} forward": (queries, seq, width),
        f"{SCORES} gradient of q": (queries, width, seq),
        f"{SCORES} gradient of k": (seq, width, queries),
        f"{VALUES} forward": (queries, width, seq),
        f"{VALUES} gradient of probabilities": (queries, seq, width),
        f"{VALUES} gradient of v": (seq, width, queries),
    }
    for role, shape in core.items():
        products.append(Product("attention", role, layers, batch * kv_heads, *shape))
    products += _linear("attention", "o_proj", layers, tokens, hidden, hidden)
    for layer, out in gates.items():
        products += _linear("ffn", layer, layers, tokens, out, hidden)
    products += _linear("ffn", "down_proj", layers, tokens, hidden, inner)
    products += _linear("loss", LM_HEAD, 1, tokens, vocab, hidden)
    return products


def chunk_of(head: Product, size: Mapping[str, int]) -> Product:
    """The LM head's product as fused_loss runs it: on so many tokens at a time. Its `count` stays,
    so its `flops` are those of one chunk."""
    most = CHUNK_LOGITS // size["vocab_size"] // TOKENS_STEP * TOKENS_STEP
    dimension = "k" if head.direction == "weight gradient" else "m"
    chunk = min(getattr(head, dimension), max(FEWEST_TOKENS, most))
    return replace(head, **{dimension: chunk})


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


def _grouped(products: Sequence[Product]) -> dict[tuple[str, str, str], list[Product]]:
    """By component, layers that one fused product can do at once, and direction."""
    groups = defaultdict(list)
    for product in products:
        fusing = (name for name, layers in FUSED_LAYERS.items() if product.layer in layers)
        layer = next(fusing, product.layer)
        groups[product.component, layer, product.direction].append(product)
    return groups


def product_times(
    size: Mapping[str, int], batch: int, seq: int, rates: ProductRates
) -> ProductTimes:
    """The least time that a step's products take: the same for every variant.

    Of the forms in which variants run a group (one by one, as one fused product, the LM head in
    chunks), the fastest that was measured counts, each product at the best rate of its own shape;
    at the peak where no form was. Scores and values count at the peak without what the causal mask
    hides, (S + 1) / (2 S) of them: a kernel that never stores them can do with that.
    """
    together = _grouped(step_products(size, batch, seq, FUSED_LAYERS))
    seconds: dict[str, float] = defaultdict(float)
    at_peak: dict[str, None] = {}
    for group, products in _grouped(step_products(size, batch, seq)).items():
        component, layer, _ = group
        flops = sum(product.flops for product in products)
        if layer in (SCORES, VALUES):
            seconds[component] += flops * (seq + 1) / (2 * seq) / rates.peak
            continue
        forms = [[(p.flops, rates.own(p)) for p in form] for form in (products, together[group])]
        if layer == LM_HEAD:
            # the last chunk may be smaller, which no variant gains by
            forms.append([(flops, rates.own(chunk_of(products[0], size)))])
        times = [
            sum(work / rate for work, rate in form if rate)
            for form in forms
            if all(rate for _, rate in form)
        ]
        if times:
            seconds[component] += min(times)
            continue
        seconds[component] += sum(work / (rate or rates.peak) for work, rate in forms[0])
        at_peak |= {product.shape: None for product in products if rates.own(product) is None}
    return ProductTimes(dict(seconds), tuple(at_peak))


@dataclass(frozen=True)
class LeastTime:
    """Seconds that products and traffic take at best; `products` 0 where there are none."""

    products: float
    traffic: float

    @property
    def seconds(self) -> float:
        """Of both: they may overlap, so the larger; their sum would be no bound."""
        return max(self.products, self.traffic)


@dataclass(frozen=True)
class _Cell:
    """A case or a product of its own. `flops`: those of its intensity, of the products that really
    ran, else elementwise. `operators`: None where they were not counted."""

    name: str
    seconds: float
    flops: float
    bytes: float
    least: LeastTime
    operators: float | None
    case: CaseName | None = None
    above_peak: str = ""


def _cell_of_case(case: MeasuredCase, machine: Machine) -> _Cell | str:
    """Or the reason why it has no place under the roofline."""
    products, moved = (case.counters.get(key, 0.0) for key in ("hardware_flops", "bytes"))
    flops = products or case.counters.get("elementwise_flops", 0.0)
    if moved <= 0 or flops <= 0:
        return "its counters lack bytes or FLOPs"
    type_name = product_type(case.name.dtype)
    if products > 0 and type_name not in machine.peak_flops:
        return f"no peak of {type_name} products was measured"
    at_peak = products / machine.peak_flops[type_name] if products > 0 else 0.0
    least = LeastTime(at_peak, machine.traffic_seconds(moved))
    operators, seconds = case.counters.get("operators"), case.median_seconds
    name = str(case.name)
    return _Cell(name, seconds, flops, moved, least, operators, case.name, case.above_peak)


ELEMENT_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


def _cell_of_product(rate: ProductRate, machine: Machine) -> _Cell | str:
    """Its traffic is each operand once and the result once. Or the reason, as above."""
    peak, size = machine.peak_flops.get(rate.type_name), ELEMENT_BYTES.get(rate.type_name)
    if peak is None:
        return f"no peak of {rate.type_name} products was measured"
    if size is None:
        return f"how many bytes a value of {rate.type_name} has is not known"
    m, n, k = rate.m, rate.n, rate.k
    flops = 2.0 * rate.batch * m * n * k
    moved = float(size * rate.batch * (m * k + k * n + m * n))
    least = LeastTime(flops / peak, machine.traffic_seconds(moved))
    return _Cell(rate.name, flops / rate.flops_per_second, flops, moved, least, 1)


# A cell that the roofline explains further than this has too small a rest to divide.
LARGEST_ROOF_SHARE = 0.5
# An operator that takes longer than this, even where it takes least, does work of its own: the
# run has no cell small enough to show what the start alone costs.
LARGEST_SECONDS = 20e-6


@dataclass(frozen=True)
class LaunchCost:
    """`seconds` per operator, an upper bound; `source`: the case that it was inferred from."""

    seconds: float
    source: str


def launch_cost(result_set: ResultSet, machine: Machine) -> LaunchCost | None:
    """What it costs to start one operator, inferred from the cells of a run that show it.

    Nothing measures it directly. It is the least time per operator that a cell leaves above its
    roofline time, of cells of which the roofline explains less than half, and never more than the
    whole time of any cell per operator. That holds whatever else operators take, so it is an upper
    bound. It says nothing new of the cell that it comes from, which is for that reason never called
    latency-bound by it. None where it is more than 20 us.
    """
    costs = []
    for case in result_set.cases.values():
        cell = _cell_of_case(case, machine)
        if isinstance(cell, _Cell) and cell.operators:
            explained = cell.least.seconds
            rest = explained if explained <= LARGEST_ROOF_SHARE * cell.seconds else 0.0
            costs.append(LaunchCost((cell.seconds - rest) / cell.operators, cell.name))
    best = min(costs, key=lambda cost: cost.seconds, default=None)
    return best if best is not None and best.seconds <= LARGEST_SECONDS else None


Bound = Literal["compute", "bandwidth", "latency"]
# Of the measured time: from here on, the starts of operators explain most of it.
MOSTLY = 0.5


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


def _bound(cell: _Cell, launch: LaunchCost | None) -> tuple[Bound, str]:
    least = cell.least
    why = (
        f"of {time_text(cell.seconds)}, products at the peak take {time_text(least.products)}, "
        f"traffic {time_text(least.traffic)}"
    )
    starts = 0.0
    if launch is None:
        why += "; no cell is small enough to show what the start of an operator costs"
    elif launch.source == cell.name:
        why += (
            "; what it takes beyond them is the largest that the start of its operators can cost, "
            "inferred from this very case, so it does not show that latency bounds it"
        )
    elif cell.operators:
        starts = cell.operators * launch.seconds
        why += (
            f", the start of {cell.operators:.0f} operator{'' if cell.operators == 1 else 's'} at "
            f"most {time_text(starts)} ({time_text(launch.seconds)} each, inferred from "
            f"{launch.source})"
        )
    if starts > least.seconds and starts >= MOSTLY * cell.seconds:
        return "latency", why
    return ("compute" if least.products > least.traffic else "bandwidth"), why


def _point(cell: _Cell | str, launch: LaunchCost | None) -> RooflinePoint | str:
    if isinstance(cell, str):
        return cell
    least = cell.least.seconds
    percent, error = 100.0 * least / cell.seconds, cell.above_peak
    if least > cell.seconds and not error:
        error = (
            f"{time_text(cell.seconds)} is {percent:.1f} % of what the roofline allows: the peak "
            "was measured too low, or the time or the count is wrong"
        )
    return RooflinePoint(
        cell.name,
        cell.flops / cell.bytes,
        cell.flops / cell.seconds,
        cell.flops / least,
        None if error else percent,
        *_bound(cell, launch),
        error,
        cell.case,
    )


def point_of(
    case: MeasuredCase, machine: Machine, launch: LaunchCost | None
) -> RooflinePoint | str:
    """Or the reason why the case has no point."""
    return _point(_cell_of_case(case, machine), launch)


def roofline_points(result_set: ResultSet) -> list[RooflinePoint]:
    """Of every case that has costs, in the set's order; left_out_of_roofline names the others.

    Latency bounds a case where the start of its operators, at the cost inferred from another case
    of this set (launch_cost), takes longer than both products and traffic at their peaks, and at
    least half of the measured time. BadInputError for a context without measured peaks.
    """
    machine = Machine.from_context(result_set.context)
    launch = launch_cost(result_set, machine)
    found = (point_of(case, machine, launch) for case in result_set.cases.values())
    return [point for point in found if isinstance(point, RooflinePoint)]


def product_points(result_set: ResultSet) -> list[RooflinePoint]:
    """Of every matrix product measured at its own shape; left_out_of_roofline names the others."""
    machine = Machine.from_context(result_set.context)
    launch = launch_cost(result_set, machine)
    found = (_point(_cell_of_product(rate, machine), launch) for rate in result_set.products)
    return [point for point in found if isinstance(point, RooflinePoint)]


def left_out_of_roofline(result_set: ResultSet) -> list[str]:
    """`<case>: <reason>` for every case and every product without a point."""
    machine = Machine.from_context(result_set.context)
    found = {name: _cell_of_case(case, machine) for name, case in result_set.cases.items()}
    found |= {rate.name: _cell_of_product(rate, machine) for rate in result_set.products}
    return [f"{name}: {reason}" for name, reason in found.items() if isinstance(reason, str)]


# Of what the roofline allows at the step's intensity: nearer than this, it is on the roof.
ON_THE_ROOF_PERCENT = 80.0
MEMORY_BOUND = "Below roofline - memory bound (optimize data movement)"
ON_ROOFLINE = "On roofline - balanced (optimize both)"
COMPUTE_BOUND = "Below compute ceiling - compute bound (optimize kernels)"
POSITIONS = (MEMORY_BOUND, ON_ROOFLINE, COMPUTE_BOUND)


class RooflinePosition(NamedTuple):
    """`position` is one of POSITIONS."""

    position: str
    reason: str


def roofline_position(flops: Json | None) -> RooflinePosition | None:
    """Of the step; `flops` as in performance_summary.json. None where the peak is not known."""
    roofline = (flops or {}).get("roofline_data") or {}
    step = next((p for p in roofline.get("points", []) if p["name"] == "step"), None)
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
