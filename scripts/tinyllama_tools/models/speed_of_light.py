"""Where the time of a training step goes, and how near each part is to its speed of light.

A part takes at least as long as its matrix products at the best rate measured at their own shapes,
and at least as long as its bytes at the roofline's bandwidth: the larger of the two is its light.
Every occurrence of a part is taken to find in the last-level cache what fits there, as the roofline
does. Parts follow one another, so the step's light is the sum of theirs.

It is the same for every variant whose step was measured by the same parts: products are those of
the baseline, and bytes are the least that any implementation moves (model/cost.hpp), so any
variant's case tells them.

The products of a step are counted as the layers of model/ count their cost: a multiply-add is 2
FLOPs, K and V at their grouped-query width, scores in full, backward = 2 x forward (also for the
first layer, whose input's gradient the embedding needs), the LM head over all positions, and no
product for the embedding look-up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.data.machine import LARGEST_SHARE, Machine, product_type
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

Size = Mapping[str, int]
Shape = tuple[int, int, int, int]
ATTENTION, FFN, BLOCK = "attention", "ffn", "block"
LOSS, OPTIMIZER = "loss", "optimizer"
SCORES, VALUES, LM_HEAD = "scores", "values", "lm_head"
# Layers that a switch of this name makes one product of.
FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up"),
}
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


def step_products(size: Size, batch: int, seq: int, *, fused: bool = False) -> list[Product]:
    """Of forward and backward of the whole model; their `flops` add up to full_step's model_flops.

    `size`: as in fixtures/problem_sizes.json. `fused`: q, k and v are one product, gate and up too.
    """
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
    if fused:
        together: dict[tuple[str, str], tuple[int, int]] = {}
        for (component, layer), (out, of) in linear.items():
            key = (component, FUSED.get(layer, layer))
            together[key] = (together.get(key, (0, 0))[0] + out, of)
        linear = together
    products = []
    for (component, layer), (out, of) in linear.items():
        # out[m, n] = in[m, k] x weight[n, k]^T, the gradients of in [m, k] and of weight [n, k]
        shapes = {
            "forward": (tokens, out, of),
            "input gradient": (tokens, of, out),
            "weight gradient": (out, of, tokens),
        }
        count = 1 if component == LOSS else layers
        products += [Product(component, layer, d, count, 1, *s) for d, s in shapes.items()]
    # of B x KV heads at once, the queries of a group stacked: [G S, hd] x [hd, S], and
    # probabilities [G S, S] x [S, hd]
    queries = seq * size["n_heads"] // kv_heads
    core = {
        (SCORES, "forward"): (queries, seq, width),
        (SCORES, "gradient of q"): (queries, width, seq),
        (SCORES, "gradient of k"): (seq, width, queries),
        (VALUES, "forward"): (queries, width, seq),
        (VALUES, "gradient of probabilities"): (queries, seq, width),
        (VALUES, "gradient of v"): (seq, width, queries),
    }
    return products + [
        Product(ATTENTION, *of, layers, batch * kv_heads, *shape) for of, shape in core.items()
    ]


def chunk_of(head: Product, size: Size) -> Product:
    """The LM head's product as fused_loss runs it: on so many tokens at a time. Its `count` stays,
    so its `flops` are those of one chunk."""
    most = CHUNK_LOGITS // size["vocab_size"] // TOKENS_STEP * TOKENS_STEP
    dimension = "k" if head.direction == "weight gradient" else "m"
    chunk = min(getattr(head, dimension), max(FEWEST_TOKENS, most))
    return replace(head, **{dimension: chunk})


def _grouped(products: Sequence[Product]) -> dict[tuple[str, str, str], list[Product]]:
    """By component, layers that one fused product can do at once, and direction."""
    groups = defaultdict(list)
    for product in products:
        layer = FUSED.get(product.layer, product.layer)
        groups[product.component, layer, product.direction].append(product)
    return groups


def product_times(
    size: Size, batch: int, seq: int, rates: Mapping[Shape, float], peak: float
) -> tuple[dict[str, float], list[str]]:
    """The least seconds that a step's products take, by component, the same for every variant; and
    the shapes that count at the peak since no form of them was measured.

    `rates`: FLOP/s by batch, m, n, k. Of the forms in which variants run a group (one by one, as
    one fused product, the LM head in chunks), the fastest that was measured counts, each product at
    the rate of its own shape. Scores and values count at the peak without what the causal mask
    hides, (S + 1) / (2 S) of them: a kernel that never stores them can do with that.
    """

    def rate(product: Product) -> float | None:
        return rates.get((product.batch, product.m, product.n, product.k))

    together = _grouped(step_products(size, batch, seq, fused=True))
    seconds: dict[str, float] = defaultdict(float)
    at_peak: list[str] = []
    for group, products in _grouped(step_products(size, batch, seq)).items():
        component, layer, _ = group
        flops = sum(product.flops for product in products)
        if layer in (SCORES, VALUES):
            seconds[component] += flops * (seq + 1) / (2 * seq) / peak
            continue
        forms = [[(p.flops, rate(p)) for p in form] for form in (products, together[group])]
        if layer == LM_HEAD:
            # the last chunk may be smaller, which no variant gains by
            forms.append([(flops, rate(chunk_of(products[0], size)))])
        times = [sum(work / of for work, of in form) for form in forms if all(r for _, r in form)]
        seconds[component] += min(times, default=sum(work / (of or peak) for work, of in forms[0]))
        at_peak += [p.shape for p in products if not times and rate(p) is None]
    return dict(seconds), list(dict.fromkeys(at_peak))


# What is left of the step when its parts are taken away.
REST = "rest"
MOST_LOST = 5


class Light(NamedTuple):
    """Seconds at best: of matrix products, of traffic, and of both, part by part the larger one,
    since they may overlap."""

    seconds: float = 0.0
    products: float = 0.0
    traffic: float = 0.0


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
        return (
            f"{self.name}: {seconds_text(self.seconds)} is faster than its speed of light, "
            f"{seconds_text(self.light.seconds)}: a rate was measured too low, or the time is "
            "wrong; measure both again"
        )

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

    @property
    def most_lost(self) -> list[TimedPart]:
        """The parts that lose most time, of those that lose any."""
        losing = [part for part in self.parts if (part.lost_seconds or 0.0) > 0]
        return sorted(losing, key=lambda part: -(part.lost_seconds or 0.0))[:MOST_LOST]


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
        raise BadInputError(
            f"{name}: model_flops is {counted}, by the dimensions of "
            f"size '{name.size}' they are {expected}; name the problem sizes that were measured"
        )
    if type_name not in machine.peak_flops:
        raise BadInputError(
            f"{name}: no peak of {type_name} products was measured, the file has those of "
            f"{', '.join(machine.peak_flops) or 'no type'}; measure the step together with its peak"
        )
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
    """Of a measured case full_step/train. BadInputError for a size that is not known."""
    cases, sizes = results.cases, problem_sizes()
    if step.size not in sizes:
        raise BadInputError(
            f"{step}: the dimensions of size '{step.size}' are not known; known are "
            f"{', '.join(sizes)}: measure a size of fixtures/problem_sizes.json"
        )
    size, case = sizes[step.size], cases[str(step)]
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
            of_products = products.get(component, 0.0)
            return Light(max(of_products, traffic), of_products, traffic)

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
        lights, refusal, whole = {}, str(error).removeprefix(f"{step}: "), None
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
    parts.append(TimedPart(REST, 1, rest, "", Light() if lights else None))
    total = TimedPart("step", 1, case.median_seconds, str(step), whole)
    missing += [f"{name}: not measured" for name in of_phases]
    return StepTimes(step, parts, total, phases, missing, refusal)
