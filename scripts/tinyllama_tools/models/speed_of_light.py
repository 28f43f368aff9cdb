"""The speed of light of a training step, and where its time goes beyond that.

A part takes at least as long as its matrix products at the best rate measured at their own shapes,
and at least as long as its bytes at the roofline's bandwidth: the larger of the two is its light.
Every occurrence of a part is taken to find in the last-level cache what fits there, as the roofline
does. Parts follow one another, so the step's light is the sum of theirs.

It is the same for every variant of a size, type and shape. Bytes are the least that any
implementation moves (model/cost.hpp), so any variant's case tells them; and a layer that was
measured as a block has the light of attention, network, norms and residual additions wherever the
bytes of those are known, so that it is the same as that of a step measured by its layers' parts.

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
from tinyllama_tools.data.machine import Machine, product_type
from tinyllama_tools.data.names import (
    BASELINE,
    OPTIMIZED,
    CaseName,
    parse_case_name,
    parts_of,
    switches_named,
)
from tinyllama_tools.models.ablations import resolved_switches
from tinyllama_tools.models.roofline import LeastTime

if TYPE_CHECKING:
    from tinyllama_tools.data.results import MeasuredCase, ResultSet

Size = Mapping[str, int]
Shape = tuple[int, int, int, int]
ATTENTION, FFN, NORM, BLOCK = LAYERS = ("attention", "ffn", "rms_norm", "block")
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


class StepPart(NamedTuple):
    """`count` times in a step. `case`: None where it was not measured."""

    name: CaseName
    count: int
    case: MeasuredCase | None

    @property
    def seconds(self) -> float | None:
        """Of all `count` together."""
        return None if self.case is None else self.count * self.case.median_seconds

    @property
    def label(self) -> str:
        component = self.name.component
        if component == NORM and self.count == 1:
            return "final norm"
        return component if self.count == 1 else f"{self.count} x {component}"


class Bar(NamedTuple):
    """All of a part together. `case`: the case that it comes from; empty for a remainder, whose
    `seconds` are below 0 where parts measured alone do work that the step shares."""

    name: str
    seconds: float
    case: str = ""


@dataclass(frozen=True)
class Waterfall:
    """A measured step. `bars`: of its sum of parts, and `phases`: forward, backward, optimizer,
    other; both in order, the remainder last, and both add up to the step. The missing: names of the
    cases without which a remainder holds more than it should."""

    case: MeasuredCase
    size: Size
    parts: Sequence[StepPart]
    phases: Sequence[Bar]
    phases_missing: Sequence[str]

    @property
    def step(self) -> CaseName:
        return self.case.name

    @property
    def step_seconds(self) -> float:
        return self.case.median_seconds

    @property
    def rest_seconds(self) -> float:
        return self.step_seconds - sum(part.seconds or 0.0 for part in self.parts)

    @property
    def bars(self) -> list[Bar]:
        found = [Bar(p.label, p.seconds, str(p.name)) for p in self.parts if p.seconds is not None]
        absent = [part.label for part in self.parts if part.case is None]
        return [*found, Bar(", ".join([*absent, REST]), self.rest_seconds)]

    @property
    def missing(self) -> list[str]:
        return [str(part.name) for part in self.parts if part.case is None]


# Switches of the update alone: the model runs as the baseline's.
UPDATE_SWITCHES = frozenset({"foreach_adamw", "fused_adamw", "library_adamw"})


def _phases(
    step: MeasuredCase, update: StepPart, cases: Mapping[str, MeasuredCase]
) -> tuple[list[Bar], list[str]]:
    """Of the model's cases of the same kind as the step's model. With fused_loss, the LM head's
    gradients are computed in the forward, which is then the longer."""
    switches = switches_named(step.name.variant)
    if step.name.variant == OPTIMIZED:
        switches = frozenset(resolved_switches(step.label) or ())

    def model(phase: str, pass_name: str) -> tuple[Bar | None, str]:
        name = replace(step.name, component="model", pass_name=pass_name)
        if str(name) not in cases and switches <= UPDATE_SWITCHES:
            name = replace(name, variant=BASELINE)
        case = cases.get(str(name))
        return Bar(phase, case.median_seconds, str(name)) if case else None, str(name)

    forward, forward_name = model("forward", "forward_loss")
    both, both_name = model("forward and backward", "forward_backward")
    backward, _ = model("backward", "backward")
    missing = [name for bar, name in ((forward, forward_name), (both, both_name)) if bar is None]
    # a difference that is not above 0 tells nothing
    if forward and both and both.seconds > forward.seconds:
        backward = Bar("backward", both.seconds - forward.seconds, both.case)
    elif backward and both and not forward and both.seconds > backward.seconds:
        forward = Bar("forward", both.seconds - backward.seconds, both.case)
    if forward and backward:
        found, missing = [forward, backward], []
    else:
        found = [both] if both else [bar for bar in (forward, backward) if bar]
    if update.seconds is None:
        missing.append(str(update.name))
    else:
        found.append(Bar(OPTIMIZER, update.seconds, str(update.name)))
    shown = " ".join(bar.name for bar in found)
    absent = [phase for phase in ("forward", "backward", OPTIMIZER) if phase not in shown]
    rest = step.median_seconds - sum(bar.seconds for bar in found)
    return [*found, Bar(", ".join([*absent, "other"]), rest)], missing


def waterfall(results: ResultSet, step: CaseName) -> Waterfall:
    """Of a measured case full_step/train. BadInputError for a size that is not known."""
    cases, sizes = results.cases, problem_sizes()
    if step.size not in sizes:
        raise BadInputError(
            f"{step}: the dimensions of size '{step.size}' are not known; known are "
            f"{', '.join(sizes)}: measure a size of fixtures/problem_sizes.json"
        )
    size, case = sizes[step.size], cases[str(step)]
    missing = parts_of(step, size["n_layers"], cases).missing
    # asked again as if they were there, which says how often the step has them and where
    every = parts_of(step, size["n_layers"], {*cases, *missing}).measured
    named = ((parse_case_name(part.case), part.count) for part in every)
    parts = [StepPart(n, count, cases.get(str(n))) for n, count in named if n is not None]
    update = next(part for part in parts if part.name.component == OPTIMIZER)
    return Waterfall(case, size, parts, *_phases(case, update, cases))


# What is left of the step when its parts are taken away.
REST = "rest"
MOST_LOST = 5


@dataclass(frozen=True)
class LightPart:
    """All `count` of a part together. `measured_seconds`: None where the part was not measured.
    `least`: of everything in it, one after another. `case`: the case measured; empty for the rest.
    `is_bound`: false of a step with a part that was faster than its light."""

    name: str
    count: int
    measured_seconds: float | None
    least: Sequence[LeastTime]
    case: str = ""
    is_bound: bool = True

    @property
    def light_seconds(self) -> float:
        return sum(one.seconds for one in self.least)

    @property
    def products_seconds(self) -> float:
        return sum(one.products for one in self.least)

    @property
    def traffic_seconds(self) -> float:
        return sum(one.traffic for one in self.least)

    @property
    def error(self) -> str:
        """That it was faster than its light. The rest is where parts do more alone than in the
        step, which is no error."""
        measured, light = self.measured_seconds, self.light_seconds
        if measured is None or light <= measured or self.name == REST:
            return ""
        return (
            f"{self.name}: {seconds_text(measured)} is faster than its speed of light, "
            f"{seconds_text(light)}: a rate was measured too low, or the time is wrong; measure "
            "both again"
        )

    @property
    def lost_seconds(self) -> float | None:
        """Measured less light; None where one is not known or the light is no bound."""
        if self.measured_seconds is None or self.error or not self.is_bound:
            return None
        return self.measured_seconds - self.light_seconds


@dataclass(frozen=True)
class SpeedOfLight:
    """`parts`: the step's in order, the rest of the step last; `total`: the step itself, its light
    the sum of the parts'. `missing`: what was not measured, and what stands in."""

    step: CaseName
    parts: tuple[LightPart, ...]
    total: LightPart
    missing: tuple[str, ...]

    @property
    def errors(self) -> tuple[str, ...]:
        """Of parts, or of the step: what cannot be."""
        return tuple(part.error for part in (*self.parts, self.total) if part.error)

    @property
    def lost_seconds(self) -> float | None:
        """The step without its light; None where that is no bound."""
        return self.total.lost_seconds

    @property
    def share_percent(self) -> float | None:
        """Light over measured, or None as above."""
        if self.lost_seconds is None or self.total.measured_seconds is None:
            return None
        return 100.0 * self.total.light_seconds / self.total.measured_seconds

    @property
    def products_seconds(self) -> float:
        """Of matrix products at their best."""
        return self.total.products_seconds

    @property
    def other_light_seconds(self) -> float:
        """What light has beyond those: of parts whose traffic takes longer than their products."""
        return self.total.light_seconds - self.products_seconds

    @property
    def most_lost(self) -> list[LightPart]:
        """The five parts that lose most time, of those that lose any."""
        losing = [part for part in self.parts if (part.lost_seconds or 0.0) > 0]
        return sorted(losing, key=lambda part: -(part.lost_seconds or 0.0))[:MOST_LOST]


def _known_bytes(step: Waterfall, results: ResultSet) -> dict[str, float]:
    """Of one of a component, from any variant of the step's size, type and shape."""

    def alike(name: CaseName) -> CaseName:
        return replace(name, variant=BASELINE)

    first = step.parts[0].name
    wanted = {alike(part.name) for part in step.parts}
    wanted |= {alike(replace(first, component=component)) for component in LAYERS}
    found: dict[str, float] = {}
    for case in results.cases.values():
        component, moved = case.name.component, case.counters.get("bytes", 0.0)
        if moved > 0 and alike(case.name) in wanted:
            found[component] = min(moved, found.get(component, moved))
    return found


def _least_products(
    step: Waterfall, results: ResultSet, machine: Machine
) -> tuple[dict[str, float], list[str]]:
    """As product_times, of the rates that were measured."""
    name, type_name = step.case.name, product_type(step.case.name.dtype)
    expected = sum(p.flops for p in step_products(step.size, name.batch, name.seq))
    counted = step.case.counters.get("model_flops")
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
    seconds, at_peak = product_times(step.size, name.batch, name.seq, rates, peak)
    remark = f"every {type_name} product (measure --components peak at this size)"
    return seconds, at_peak if rates else [remark]


def speed_of_light(results: ResultSet, step: CaseName) -> SpeedOfLight:
    """Of a measured case full_step/train.

    BadInputError for a size that is not known or not the file's, and for a file without the peaks
    that its step needs.
    """
    measured = waterfall(results, step)
    machine = Machine.from_context(results.context)
    products, at_peak = _least_products(measured, results, machine)
    moved = _known_bytes(measured, results)
    case, layers = measured.case, measured.size["n_layers"]
    outside = {p.name.component: p.count for p in measured.parts if p.name.component not in LAYERS}
    in_layers = {ATTENTION: layers, FFN: layers, NORM: 2 * layers}
    is_fine = {ATTENTION, FFN} <= moved.keys()

    def least(name: str, count: int) -> LeastTime:
        traffic = count * machine.traffic_seconds(moved.get(name, 0.0))
        return LeastTime(products.get(name, 0.0), traffic)

    # the additions of the residual stream, two a layer: the step's bytes without its parts'
    residuals = LeastTime(0.0, 0.0)
    every = {**in_layers, NORM: 2 * layers + 1, **outside}
    if every.keys() <= moved.keys():
        known = sum(count * moved[name] for name, count in every.items())
        left = max(0.0, case.counters.get("bytes", 0.0) - known) / (2 * layers)
        residuals = LeastTime(0.0, 2 * layers * machine.traffic_seconds(left))
    block = [LeastTime(sum(products[name] for name in (ATTENTION, FFN)), least(BLOCK, layers)[1])]
    if is_fine:
        block = [*(least(name, count) for name, count in in_layers.items()), residuals]

    parts, missing = [], []
    for part in measured.parts:
        name = part.name.component
        of_part = block if name == BLOCK else [least(name, part.count)]
        parts.append(LightPart(name, part.count, part.seconds, of_part, str(part.name)))
        words = ["not measured"] if part.case is None else []
        if name not in moved and not (name == BLOCK and is_fine):
            words += ["its counters lack bytes"] if part.case else []
            words.append("its light is that of its products")
        missing += [f"{part.name}: {', '.join(words)}"] if words else []
    if at_peak:
        missing.append(
            f"no rate at their own shape, the measured {product_type(step.dtype)} peak "
            f"stands in: {', '.join(at_peak)}"
        )
    # what parts do not have: autograd's own work, and residual additions where layers are apart
    has_block = any(part.name == BLOCK for part in parts)
    of_rest = [] if has_block else [residuals]
    parts.append(LightPart(REST, 1, measured.rest_seconds, of_rest))
    # whichever parts of it this variant was measured by
    whole = [*(least(name, count) for name, count in outside.items()), *block, least(NORM, 1)]
    # a part's light that is no bound leaves the step's without meaning, too
    is_bound = not any(part.error for part in parts)
    total = LightPart("step", 1, case.median_seconds, whole, str(step), is_bound)
    return SpeedOfLight(step, tuple(parts), total, tuple(missing))
