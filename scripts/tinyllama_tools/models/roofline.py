"""How near cases, GEMMs and the parts of a training step come to what the machine can do.

Roofline time of a case: the longer of its GEMMs at the peak and its bytes at the bandwidth that
this much traffic can reach. The case cannot be faster.

Speed of light of a part of a step: the longer of its GEMMs, each at the best rate measured at its
own shape, and its bytes at the same bandwidth. Parts run one after the other, so that of the step
is the sum. It is the same for every variant: GEMMs are the baseline's, and bytes the fewest that
any implementation moves (model/cost.hpp).

FLOPs are counted as the layers of model/ count them: a multiply-add is 2, K and V have their
grouped-query width, scores are counted in full, the backward is twice the forward (also in the
first layer, whose input gradient the embedding needs), the LM head covers all positions, and the
embedding has none.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tinyllama_tools.core.app import BadInputError, Json, problem_sizes
from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.data.machine import LARGEST_SHARE, Machine, ProductRate, product_type
from tinyllama_tools.data.names import BASELINE, CaseName, measured_as, parse_case_name, parts_of
from tinyllama_tools.data.results import MeasuredCase, ResultSet


class LeastTime(NamedTuple):
    """The least seconds that work can take: its GEMMs, its traffic, and both, which may overlap, so
    `seconds` is the longer. Of a step, the sums over its parts."""

    gemms: float
    traffic: float
    seconds: float

    @classmethod
    def overlapped(cls, gemms: float, traffic: float) -> "LeastTime":
        return cls(gemms, traffic, max(gemms, traffic))


class LaunchCost(NamedTuple):
    """`seconds`: the most that one launch of an operator can take; `source`: the case that shows
    it."""

    seconds: float
    source: str


# Share of the measured time from which on the roofline, or launches, explain most of it.
MOSTLY = 0.5


@dataclass(frozen=True)
class RooflinePoint:
    """A case, or a GEMM measured at its own shape, which has no `case`. `flops`: what the intensity
    is computed from: FLOPs of the GEMMs that really ran; elementwise ones where there is no GEMM.
    `operators`: None where they were not counted. `error`: why the program found it to be above a
    peak or the roofline; empty where it is not."""

    name: str
    seconds: float
    flops: float
    bytes: float
    least: LeastTime
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
        """The rate that was reached."""
        return self.flops / self.seconds

    @property
    def attainable(self) -> float:
        """FLOP/s that the roofline allows at that intensity."""
        return self.flops / self.least.seconds

    @property
    def percent(self) -> float | None:
        """Reached, of the attainable; None where that is impossible."""
        return None if self.error else 100 * self.least.seconds / self.seconds

    @property
    def bound(self) -> str:
        """The longer of the two roofline times."""
        return "compute" if self.least.gemms > self.least.traffic else "bandwidth"

    @property
    def launch_seconds(self) -> float | None:
        """The most that launching its operators can take. None for the case that the cost of a
        launch was inferred from: nothing new is learnt there."""
        if self.launch is None or self.launch.source == self.name or self.operators is None:
            return None
        return self.operators * self.launch.seconds

    @property
    def is_mostly_launches(self) -> bool:
        """Whether launches can explain half of the measured time, and more than the roofline
        does."""
        launches = self.launch_seconds or 0.0
        return launches > self.least.seconds and launches >= MOSTLY * self.seconds


ELEMENT_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


def _peak_of(type_name: str, machine: Machine) -> float:
    if type_name not in machine.peak_flops:
        raise BadInputError(f"no {type_name} GEMM peak was measured")
    return machine.peak_flops[type_name]


def _roofline_time(flops: float, type_name: str, moved: float, machine: Machine) -> LeastTime:
    at_peak = flops / _peak_of(type_name, machine) if flops else 0.0
    return LeastTime.overlapped(at_peak, machine.traffic_seconds(moved))


def _case_point(case: MeasuredCase, machine: Machine) -> RooflinePoint:
    gemms, moved = (case.counters.get(key, 0.0) for key in ("hardware_flops", "bytes"))
    flops = gemms or case.counters.get("elementwise_flops", 0.0)
    if moved <= 0 or flops <= 0:
        raise BadInputError("its counters lack bytes or FLOPs")
    least = _roofline_time(gemms, product_type(case.name.dtype), moved, machine)
    own = (case.counters.get("operators"), case.name, case.above_peak)
    return RooflinePoint(str(case.name), case.median_seconds, flops, moved, least, *own)


def _gemm_point(rate: ProductRate, machine: Machine) -> RooflinePoint:
    """Its traffic is each operand once and the result once."""
    if rate.type_name not in ELEMENT_BYTES:
        raise BadInputError(f"the bytes of an element of {rate.type_name} are not known")
    m, n, k = rate.m, rate.n, rate.k
    flops = 2.0 * rate.batch * m * n * k
    moved = float(ELEMENT_BYTES[rate.type_name] * rate.batch * (m * k + k * n + m * n))
    least = _roofline_time(flops, rate.type_name, moved, machine)
    return RooflinePoint(rate.name, flops / rate.flops_per_second, flops, moved, least, 1)


# Where even the fastest operator takes longer than this, it does work of its own: no case of the
# run is small enough to show what a launch alone costs.
LARGEST_SECONDS = 20e-6


def _launch_cost(points: Sequence[RooflinePoint]) -> LaunchCost | None:
    """The most that one launch can cost: the least time per operator that any case leaves beyond
    its roofline time. Whatever else its operators do is in that time, so a launch costs no more.
    Where the roofline time is more than half of the measured one, the difference is mostly error of
    measurement: there the whole time per operator is taken. None above LARGEST_SECONDS."""
    costs = []
    for point in points:
        if point.operators:
            least = point.least.seconds
            explained = least if least <= MOSTLY * point.seconds else 0.0
            costs.append(LaunchCost((point.seconds - explained) / point.operators, point.name))
    best = min(costs, default=None)
    return best if best is not None and best.seconds <= LARGEST_SECONDS else None


@dataclass(frozen=True)
class Roofline:
    """`cases`: points of the cases that have FLOPs and bytes, in the order of the results; `gemms`:
    of the GEMMs measured at their own shapes; `left_out`: why the others have none, by name."""

    machine: Machine
    launch: LaunchCost | None
    cases: Sequence[RooflinePoint]
    gemms: Sequence[RooflinePoint]
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

    cases = list(placed(_case_point, results.cases.values()))
    gemms = list(placed(_gemm_point, results.products))
    launch = _launch_cost(cases)
    cases, gemms = ([replace(p, launch=launch) for p in points] for points in (cases, gemms))
    return Roofline(machine, launch, cases, gemms, left_out)


Size = Mapping[str, int]
ATTENTION, FFN, BLOCK = "attention", "ffn", "block"
LOSS, OPTIMIZER = "loss", "optimizer"
SCORES, VALUES, LM_HEAD = "scores", "values", "lm_head"
# Layers that a switch of this name runs as one GEMM.
FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up"),
}
FORWARD, OF_INPUT, OF_WEIGHT = "forward", "input gradient", "weight gradient"
# by direction: the dimension in which fused layers add up, and the one that counts tokens
JOINED = {FORWARD: "n", OF_INPUT: "k", OF_WEIGHT: "m"}
TOKENS = {FORWARD: "m", OF_INPUT: "m", OF_WEIGHT: "k"}
# fused_loss_chunk of model/loss.cpp: in which steps, most logits and fewest tokens of a chunk on a
# CPU and on a GPU
TOKENS_STEP, CHUNKS = 64, ((1 << 19, 256), (1 << 23, 1024))


@dataclass(frozen=True)
class Gemm:
    """[m, k] x [k, n], `batch` of them at once, `count` times a step. `component`: attention, ffn
    or loss. `layer`: such as q_proj; `direction`: FORWARD, or which gradient."""

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
        """In a step, over all `count` of them."""
        return 2 * self.count * self.batch * self.m * self.n * self.k

    @property
    def shape(self) -> str:
        """`1024x256x512`; `32x256x128x64` is 32 of 256x128x64 at once."""
        one = f"{self.m}x{self.n}x{self.k}"
        return one if self.batch == 1 else f"{self.batch}x{one}"


def step_gemms(size: Size, batch: int, seq: int) -> list[Gemm]:
    """Forward and backward of the whole model; their `flops` add up to full_step's model_flops.
    `size`: as in fixtures/problem_sizes.json; head_dim where it is not hidden_dim / n_heads."""
    hidden, layers, inner = size["hidden_dim"], size["n_layers"], size["intermediate_dim"]
    tokens, kv_heads = batch * seq, size["n_kv_heads"]
    width = size.get("head_dim", hidden // size["n_heads"])
    q_dim, kv_dim = width * size["n_heads"], width * kv_heads
    # attention: a GEMM for each K/V head of each sample, with the queries of its group stacked
    groups, queries = batch * kv_heads, seq * size["n_heads"] // kv_heads
    # component, layer; count, batch; m, n, k of the forward: in[m, k] x weight[n, k]^T
    forward = [
        (ATTENTION, "q_proj", layers, 1, tokens, q_dim, hidden),
        (ATTENTION, "k_proj", layers, 1, tokens, kv_dim, hidden),
        (ATTENTION, "v_proj", layers, 1, tokens, kv_dim, hidden),
        (ATTENTION, "o_proj", layers, 1, tokens, hidden, q_dim),
        (FFN, "gate_proj", layers, 1, tokens, inner, hidden),
        (FFN, "up_proj", layers, 1, tokens, inner, hidden),
        (FFN, "down_proj", layers, 1, tokens, hidden, inner),
        (LOSS, LM_HEAD, 1, 1, tokens, size["vocab_size"], hidden),
        (ATTENTION, SCORES, layers, groups, queries, seq, width),
        (ATTENTION, VALUES, layers, groups, queries, width, seq),
    ]
    gemms = []
    for component, layer, *often, m, n, k in forward:
        # the gradients of in[m, k] and of weight[n, k]; values are stored [k, n]
        of_weight = (k, n, m) if layer == VALUES else (n, k, m)
        shapes = {FORWARD: (m, n, k), OF_INPUT: (m, k, n), OF_WEIGHT: of_weight}
        gemms += [Gemm(component, layer, d, *often, *shape) for d, shape in shapes.items()]
    return gemms


def _least_gemm_seconds(
    step: MeasuredCase, size: Size, results: ResultSet, machine: Machine
) -> tuple[dict[str, float], list[str]]:
    """The least seconds that a step's GEMMs can take, by component, the same for every variant; and
    the shapes that were not measured in any form, which count at the peak.

    Variants run a group of layers in different forms: one by one, as one fused GEMM, the LM head in
    chunks. The fastest form that was measured counts, each GEMM at the rate of its own shape.
    Attention's scores and values count at the peak, and only the (S + 1) / (2 S) of them that the
    causal mask leaves: a kernel that never stores them need not compute the others.
    """
    type_name, seq = product_type(step.name.dtype), step.name.seq
    every = step_gemms(size, step.name.batch, seq)
    expected, counted = sum(gemm.flops for gemm in every), step.counters.get("model_flops")
    if counted != expected:
        raise BadInputError(f"model_flops is {counted}, by the dimensions they are {expected}")
    peak = _peak_of(type_name, machine)
    rates = {
        (rate.batch, rate.m, rate.n, rate.k): rate.flops_per_second
        for rate in results.products
        if rate.type_name == type_name
    }

    def rate(gemm: Gemm, **changed: int) -> float | None:
        asked = replace(gemm, **changed)
        return rates.get((asked.batch, asked.m, asked.n, asked.k))

    # what one fused GEMM can do together
    groups: dict[tuple[str, str], list[Gemm]] = defaultdict(list)
    for gemm in every:
        groups[FUSED.get(gemm.layer, gemm.layer), gemm.direction].append(gemm)
    seconds: dict[str, float] = defaultdict(float)
    at_peak: list[str] = []
    for (layer, direction), gemms in groups.items():
        first, flops = gemms[0], sum(gemm.flops for gemm in gemms)
        if layer in (SCORES, VALUES):
            seconds[first.component] += flops * (seq + 1) / (2 * seq) / peak
            continue
        # of each form its FLOPs and rates; a form with an unknown rate was not measured
        forms = [[(gemm.flops, rate(gemm)) for gemm in gemms]]
        if len(gemms) > 1:
            dimension = JOINED[direction]
            whole = sum(getattr(gemm, dimension) for gemm in gemms)
            forms.append([(flops, rate(first, **{dimension: whole}))])
        if layer == LM_HEAD:
            # the last chunk may be smaller; that makes no variant faster
            for logits, fewest in CHUNKS:
                most = logits // size["vocab_size"] // TOKENS_STEP * TOKENS_STEP
                chunk = min(step.name.batch * seq, max(fewest, most))
                forms.append([(flops, rate(first, **{TOKENS[direction]: chunk}))])
        measured = [form for form in forms if all(known for _, known in form)]
        times = [sum(work / known for work, known in form) for form in measured]
        at_worst = sum(work / (known or peak) for work, known in forms[0])
        seconds[first.component] += min(times, default=at_worst)
        at_peak += [gemm.shape for gemm in gemms if not times and rate(gemm) is None]
    seconds[BLOCK] = seconds[ATTENTION] + seconds[FFN]
    remark = f"every {type_name} GEMM (measure them: --components peak at this size)"
    return seconds, list(dict.fromkeys(at_peak)) if rates else [remark]


# what the step takes beyond the sum of its parts
REST = "rest"


@dataclass(frozen=True)
class TimedPart:
    """All `count` of a part together, the rest, or the whole step. `seconds`: None where it was not
    measured; the rest is below 0 where parts, measured alone, repeat work that the step shares.
    `case`: the one that was measured; empty for the rest. `least`: its speed of light; None where
    no peak is known."""

    name: str
    count: int
    seconds: float | None
    case: str = ""
    least: LeastTime | None = None

    @property
    def error(self) -> str:
        """Why its speed of light cannot be right: it was faster by more than rates scatter. Empty
        where it can."""
        known = self.name != REST and None not in (self.least, self.seconds)
        if not known or self.least.seconds <= LARGEST_SHARE * self.seconds:
            return ""
        faster = f"{seconds_text(self.seconds)} is faster than its speed of light"
        why = "a rate was measured too low, or the time is wrong"
        return f"{self.name}: {faster}, {seconds_text(self.least.seconds)}: {why}"

    @property
    def lost_seconds(self) -> float | None:
        """Measured less speed of light; None where one is not known, or there is an error."""
        if self.least is None or self.seconds is None or self.error:
            return None
        return self.seconds - self.least.seconds

    @property
    def share_percent(self) -> float | None:
        """Speed of light over measured; None where lost_seconds is, and for a rest below 0."""
        if self.lost_seconds is None or self.seconds is None or self.seconds <= 0:
            return None
        return 100.0 * (1.0 - self.lost_seconds / self.seconds)


@dataclass(frozen=True)
class StepTimes:
    """A measured step. `parts`: in order, the rest last; they add up to `total`, the step itself.
    `phases`: seconds of forward, backward, optimizer and other, which add up to it too; empty where
    a case for that was not measured. `missing`: what was not measured, and what was taken in its
    place. `refusal`: why there is no speed of light; empty where there is."""

    step: CaseName
    parts: Sequence[TimedPart]
    total: TimedPart
    phases: Mapping[str, float]
    missing: Sequence[str]
    refusal: str = ""

    @property
    def errors(self) -> list[str]:
        """Those of the parts and of the step."""
        return [part.error for part in (*self.parts, self.total) if part.error]

    @property
    def share_percent(self) -> float | None:
        """The step's; None as well where a part has an error."""
        return None if self.errors else self.total.share_percent


def _phases(
    step: MeasuredCase, update: float | None, cases: Mapping[str, MeasuredCase]
) -> tuple[dict[str, float], list[str]]:
    """From the model's cases of the step's variant; and the names of those that are missing. With
    fused_loss the forward also computes the LM head's gradients, and is longer by that."""
    names = [
        measured_as(replace(step.name, component="model", pass_name=pass_name), cases)
        for pass_name in ("forward_loss", "forward_backward")
    ]
    missing = [name for name in names if name not in cases]
    if missing or update is None:
        return {}, missing
    forward, both = (cases[name].median_seconds for name in names)
    phases = {"forward": forward, "backward": both - forward, OPTIMIZER: update}
    return {**phases, "other": step.median_seconds - both - update}, []


def step_times(results: ResultSet, step: CaseName) -> StepTimes:
    """`step`: a measured case full_step/train of a size in fixtures/problem_sizes.json."""
    cases, size = results.cases, problem_sizes()[step.size]
    case = cases[str(step)]
    absent = parts_of(step, size["n_layers"], cases).missing
    # as if the missing ones had been measured: this says how often the step has each part
    every = parts_of(step, size["n_layers"], {*cases, *absent}).measured
    named = [(parse_case_name(text), count) for text, count in every]
    # `bytes` are the fewest of any implementation, so any variant's case tells them
    moved = {
        replace(one.name, variant=BASELINE): one.counters.get("bytes", 0.0)
        for one in cases.values()
    }
    missing = [f"{text}: not measured" for text in absent]
    least: dict[str, LeastTime] = {}
    refusal, whole = "", None
    try:
        machine = Machine.from_context(results.context)
        gemms, at_peak = _least_gemm_seconds(case, size, results, machine)
        for name, count in named:
            traffic = machine.traffic_seconds(moved.get(replace(name, variant=BASELINE), 0.0))
            own = LeastTime.overlapped(gemms.get(name.component, 0.0), count * traffic)
            least[name.component] = own
            if not traffic:
                missing.append(f"{name}: bytes not known, so its speed of light has only its GEMMs")
        whole = LeastTime(*map(sum, zip(*least.values(), strict=True)))
        if at_peak:
            missing.append(
                "not measured at their own shape, so counted at the measured "
                f"{product_type(step.dtype)} peak: {', '.join(at_peak)}"
            )
    except BadInputError as error:
        refusal, least = str(error), {}
    parts = []
    for name, count in named:
        measured = cases.get(str(name))
        seconds = count * measured.median_seconds if measured else None
        own = least.get(name.component)
        parts.append(TimedPart(name.component, count, seconds, str(name), own))
    update = next(part.seconds for part in parts if part.name == OPTIMIZER)
    phases, of_phases = _phases(case, update, cases)
    rest = case.median_seconds - sum(part.seconds or 0.0 for part in parts)
    # autograd's own work, and the additions of the residual stream: no FLOPs or bytes are counted
    parts.append(TimedPart(REST, 1, rest, "", LeastTime.overlapped(0.0, 0.0) if least else None))
    total = TimedPart("step", 1, case.median_seconds, str(step), whole)
    missing += [f"{name}: not measured" for name in of_phases]
    return StepTimes(step, parts, total, phases, missing, refusal)


# Share of what the roofline allows at the step's intensity from which on it counts as on the roof.
ON_THE_ROOF_PERCENT = 80.0
# the words of the workshop's worksheets
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
    """The step's; `flops` as in performance_summary.json. None where the peak is not known."""
    roofline = (flops or {}).get("roofline_data") or {}
    step = next((p for p in roofline.get("points", []) if p["name"] == WHOLE), None)
    if not step or step.get("percent_of_attainable") is None or step.get("bound") is None:
        return None
    percent = step["percent_of_attainable"]
    reason = f"{step['arithmetic_intensity_flops_per_byte']:.1f} FLOP/byte"
    # the ridge of the bandwidth that this working set reaches, which may be a cache's
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
