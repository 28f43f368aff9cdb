"""Numbers behind exercise 3's answers: what each optimization of version 2 brings, what bounds the
step, and how the problem sizes compare."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.commands.exercise_rules import (
    COPIES,
    PRODUCTS,
    component_percent,
    group_shares,
)
from tinyllama_tools.commands.profile_tables import operator_shares
from tinyllama_tools.commands.worksheet import (
    MEGABYTE,
    NOT_MEASURED,
    UTILIZATION,
    MeasuredRun,
    Rule,
    Verdict,
    decided,
    expected,
    is_largest,
    largest,
    median_step_seconds,
    number,
    percent,
    ratio,
    samples_per_second,
    share_of,
    times_text,
)
from tinyllama_tools.core.app import Json
from tinyllama_tools.models.ablation_evidence import Evidence
from tinyllama_tools.models.ablations import ratio_text, read_study, shows_difference
from tinyllama_tools.models.bottlenecks import (
    WORTHWHILE_SPEEDUP,
    Bottleneck,
    amdahl,
    recorded_part,
)
from tinyllama_tools.models.roofline import ON_THE_ROOF_PERCENT, POSITIONS, roofline_point
from tinyllama_tools.models.roofline import roofline_position as position_of
from tinyllama_tools.models.size_predictions import Prediction

PEAK = "summary.peak_memory_bytes"
# First that matches names the target; the operators are named as PyTorch and its kernels are.
TARGETS = (
    (PRODUCTS, "fewer, larger products: qkv, gate_up; narrower types"),
    (re.compile("softmax", re.IGNORECASE), "attention in tiles: sdpa, fused_attention"),
    (re.compile(r"addcdiv|addcmul|lerp|adam|::sqrt", re.IGNORECASE), "optimizer: fused_adamw"),
    (re.compile("silu", re.IGNORECASE), "SwiGLU in one pass: fused_swiglu"),
    (re.compile(r"rsqrt|::pow|::mean|norm", re.IGNORECASE), "RMSNorm in one pass: fused_norm"),
    (COPIES, "copies: layout, fused_rotary"),
    (re.compile(r"nll|loss|embedding", re.IGNORECASE), "embedding and loss: fused_loss"),
    (re.compile(""), "element-wise work: fusion, torch.compile"),
)
TOP = 10


def operator_rows(operators: Json) -> list[tuple[str, ...]]:
    """Top ten by name, whatever their shapes; the GPU's column says so where there is none."""
    rows = []
    for rank, row in enumerate(operator_shares(operators)[:TOP], start=1):
        device = "no GPU" if row.device_seconds is None else percent(row.share_percent)
        target = next(text for pattern, text in TARGETS if pattern.search(row.name))
        cells = (device, percent(row.cpu_percent), number(row.calls), target)
        rows.append((str(rank), row.name, *cells))
    return rows


def between(low: float, high: float, unit: str) -> Callable[[float | None], Verdict]:
    """Holds from `low` to `high`, at the limits too."""
    top = "" if high == math.inf else f" to {number(high, unit)}"
    rule = f"rule: from {number(low, '' if top else unit)}{top}"

    def verdict(value: float | None) -> Verdict:
        holds = value is not None and low <= value <= high
        return Verdict(holds, f"{number(value, unit)}; {rule}")

    return verdict


INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
MFU_CLASSES = (
    Rule("< 20% MFU: Severely underutilized (kernel overhead dominant)", UTILIZATION, None, 20),
    Rule("20-40% MFU: Memory-bound workload", UTILIZATION, 20, 40),
    Rule("40-60% MFU: Mixed workload with optimization opportunities", UTILIZATION, 40, 60),
    Rule(
        "> 60% MFU: Well-optimized compute-bound workload",
        lambda run: between(60, math.inf, "%")(run.value(UTILIZATION)),
    ),
)
BOUND_CLASSES = (
    Rule("Memory-bound", INTENSITY, None, 10, "FLOP/byte"),
    Rule("Compute-bound", INTENSITY, 100, None, "FLOP/byte"),
    Rule(
        "Mixed",
        lambda run: between(10, 100, "FLOP/byte")(run.value(INTENSITY)),
    ),
)


def position_rules(run: MeasuredRun) -> list[Rule]:
    """One of three places under the roofline."""
    found = position_of((run.summary or {}).get("flops"))
    rule = f"rule: on the roofline from {ON_THE_ROOF_PERCENT:.0f} % of what it allows, else the "
    reason = f"{found.reason if found else NOT_MEASURED}; {rule}side of the ridge"
    place = found.position if found else None
    return decided({label: Verdict(label == place, reason) for label in POSITIONS})


# What passes over memory once instead of twice.
HALF_THE_TRAFFIC = 2.0
# One pass over what is bound by memory, outside of FLOP_GROUPS; they share no work.
ONE_PASS = ("fused_norm", "fused_adamw", "fused_rotary")
QKV, ATTENTION, SWIGLU = "QKV projections", "Attention computation", "SwiGLU gate/up"
# They share no work, so their savings add up.
DISJOINT = (QKV, ATTENTION, SWIGLU)
FLOP_GROUPS = ("attention/qkv_proj", "attention/core", "ffn")
MEMORY_OPTIMIZATION = "Memory optimization (bandwidth)"


@dataclass(frozen=True)
class Gain:
    """Speedup of the step, and what it rests on."""

    speedup: float | None
    reason: str


def memory_gain(summary: Json, evidence: Evidence | None) -> Gain:
    """From the switches that the ablation measured, else by Amdahl's law."""
    found = evidence.speedups if evidence else {}
    measured = [(name, found[name]) for name in ONE_PASS if name in found]
    if measured:
        text = ", ".join(f"{ratio_text(ratio)} with {name}" for name, ratio in measured)
        # what may be chance, or slows the step down, is left out of a plan
        saved = sum(max(0.0, 1 - 1 / r.median) for _, r in measured if shows_difference(r))
        return Gain(1 / (1 - saved) if saved < 1 else None, f"measured: {text}")
    share, part = memory_bound_percent(summary, FLOP_GROUPS), recorded_part(summary)
    if share is None or part is None:
        return Gain(None, "")
    speedup = amdahl(part * min(share, 100) / 100, HALF_THE_TRAFFIC)
    return Gain(speedup, f"assumed: half the traffic, of {part * share:.1f} % of the step")


def memory_bound_percent(summary: Json, left_out: Sequence[str] = ()) -> float | None:
    """Share of the components whose roofline is memory's; `left_out`: paths counted elsewhere."""
    operators, flops = summary.get("operators"), summary.get("flops")
    if not operators or not flops:
        return None
    total = 0.0
    for component in operators["components"]:
        name = component["name"]
        point = roofline_point(flops["roofline_data"]["points"], name)
        # the optimizer moves parameters and multiplies nothing, whether or not it has a point
        is_bound = name == "optimizer" or (point is not None and point["bound"] == "memory")
        if is_bound and not any(f"{name}/".startswith(f"{path}/") for path in left_out):
            total += component["percent"]
    return total


def bottleneck_shares(summary: Json) -> dict[str, float | None]:
    """The five suspects of question 1, in percent of the recorded work."""
    operators = summary.get("operators") or {}
    parts = operators.get("components")
    qkv, core, ffn = (component_percent(parts, p) if parts else None for p in FLOP_GROUPS)
    return {
        "QKV projection operations": qkv,
        "Attention score computation": core,
        "Feed-forward network": ffn,
        "Kernel launch overhead": operators.get("launch_overhead_percent"),
        "Memory bandwidth": memory_bound_percent(summary, FLOP_GROUPS),
    }


def bounds(summary: Json) -> dict[str, float | None]:
    """What the step's time is bound by, in percent, by the labels of question 3. Launches first;
    what is left divides among components by their side of the ridge."""
    memory = memory_bound_percent(summary)
    compute = None
    overhead = (summary.get("operators") or {}).get("launch_overhead_percent")
    if memory is None or overhead is None:
        memory = None
    else:
        overhead = min(overhead, 100.0)
        left = (100 - overhead) / 100
        memory, compute = left * memory, left * max(0.0, 100 - memory)
    return {
        "Memory-bound (optimize data movement)": memory,
        "Compute-bound (optimize kernels)": compute,
        "Overhead-bound (optimize launches)": overhead,
    }


MIXED_BELOW = 50.0


def kind_rules(summary: Json) -> list[Rule]:
    """Question 3: one side has half of the time, or it is mixed."""
    shares = bounds(summary)
    best = largest(shares)
    is_decided = best is not None and (shares[best] or 0) >= MIXED_BELOW
    rule = f"rule: the one with {MIXED_BELOW:.0f} % or more of the time, else mixed"
    found = {
        name: Verdict(is_decided and name == best, f"{percent(value)}; {rule}")
        for name, value in shares.items()
    }
    text = ", ".join(f"{name.split(' ')[0]} {percent(value)}" for name, value in shares.items())
    is_mixed = not is_decided and all(value is not None for value in shares.values())
    found["Mixed workload (balanced optimization)"] = Verdict(is_mixed, f"{text}; {rule}")
    return decided(found)


def by_category(ranking: Sequence[Bottleneck]) -> dict[str, Bottleneck]:
    """The six by name."""
    return {found.category: found for found in ranking}


def speedup_together(ranking: Sequence[Bottleneck], names: Sequence[str]) -> float | None:
    """Amdahl over categories that share no work; None where none of them has share and factor."""
    found = [by_category(ranking)[name] for name in names]
    known = [(b.share_percent / 100, b.factor) for b in found if b.share_percent is not None]
    saved = [share - share / factor for share, factor in known if factor]
    return 1 / (1 - sum(saved)) if saved and sum(saved) < 1 else None


def best_known_together(ranking: Sequence[Bottleneck], names: Sequence[str]) -> float | None:
    """The same from each category's best known speedup, measured where it was; what slows the step
    down is left out of a plan. None where nothing is known of any."""
    speeds = [by_category(ranking)[name].best_known_speedup for name in names]
    known = [speed for speed in speeds if speed]
    left = 1 - sum(max(0.0, 1 - 1 / speed) for speed in known)
    return 1 / left if known and left > 0 else None


def run_speedup(before: MeasuredRun, after: MeasuredRun) -> float | None:
    """Median time of a plain step over the other's."""
    return ratio(median_step_seconds(before), median_step_seconds(after))


def compile_speedup(evidence: Evidence | None) -> float | None:
    """The best of torch.compile's over the eager baseline, from the ablation's file."""
    if evidence is None:
        return None
    rows = [row for row in read_study(evidence.file).peers if row.get("speedup")]
    at = evidence.point.title
    return max((row["speedup"]["median"] for row in rows if row.get("point") == at), default=None)


# What an optimization has to bring to be in the plan where it brings no WORTHWHILE_SPEEDUP.
WORTHWHILE_MEMORY, NOT_SLOWER = 0.95, 0.98


def worthwhile(
    speedup: float | None, memory: float | None, what: str, *, is_shown: bool = True
) -> Verdict:
    """Time or memory; `memory` is a peak over that of the baseline. `is_shown`: not so where the
    speedup was measured and may be chance."""
    rule = f"rule: from {WORTHWHILE_SPEEDUP}x"
    text = f"{times_text(speedup)} {what}"
    saves = False
    if memory is not None:
        # memory bought with time is another trade than the worksheet's plan is about
        saves = memory <= WORTHWHILE_MEMORY and (speedup is None or speedup >= NOT_SLOWER)
        text += f", peak memory {memory:.2f}x"
        rule += f", or a peak of {WORTHWHILE_MEMORY:g}x or less at {NOT_SLOWER}x or more"
    if not is_shown:
        rule += "; `~`: no difference was shown"
    is_faster = is_shown and (speedup or 0) >= WORTHWHILE_SPEEDUP
    return Verdict(is_faster or saves, f"{text}; {rule}")


def of_category(b: Bottleneck, memory: float | None = None) -> Verdict:
    """Whether a category's optimization is in the plan."""
    what = f"expected of its {percent(b.share_percent)} share"
    if b.measured:
        what = f"best known ({b.measured.text()}, share {percent(b.share_percent)})"
    return worthwhile(b.best_known_speedup, memory, what, is_shown=b.is_shown)


def largest_rules(
    values: Mapping[str, float | None], what: str, unit: str, grounds: Mapping[str, str]
) -> list[Rule]:
    """Tick boxes of which the one with the largest value holds. `grounds`: what a value rests on;
    the winner's stands beside every value that it is compared to."""
    found, winner = {}, largest(values)
    for name in values:
        verdict, reason = is_largest(values, name, what, unit), ""
        for compared in dict.fromkeys((name, winner)):
            if compared and (ground := grounds.get(compared)):
                reason += f"; {ground}" if compared == name else f"; {compared}: {ground}"
        found[name] = replace(verdict, reason=verdict.reason + reason)
    return decided(found)


# The gap between the worksheet's ranges goes half to each.
SPEEDUP_TARGETS = (
    ("1.2-1.4x (conservative)", 1.2, 1.45),
    ("1.5-2.0x (achievable)", 1.45, 2.0),
    ("2.0-3.0x (optimistic)", 2.0, 3.0),
    (">3.0x (unlikely without major changes)", 3.0, math.inf),
    ("below all of these (not on the worksheet)", -math.inf, 1.2),
)


def target_rules(value: float | None, what: str) -> list[Rule]:
    """Question 5."""
    found = {}
    for label, low, high in SPEEDUP_TARGETS:
        rule = f"from {low}x" if low > 0 else ""
        rule += (" to " if rule else "") + f"below {high}x" if high < math.inf else ""
        holds = value is not None and low <= value < high
        found[label] = Verdict(holds, f"{times_text(value)} {what}; rule: {rule}")
    return decided(found)


ACCURACY, THROUGHPUT_GATE, MEMORY_STABLE = 1e-3, 1.3, 1.01


def faster(before: MeasuredRun, after: MeasuredRun, least: float, rule: str) -> Verdict:
    """Whether the second's step is shorter by that factor."""
    found = run_speedup(before, after)
    return Verdict(found is not None and found > least, f"{times_text(found)}; rule: {rule}")


def same_loss(before: MeasuredRun, after: MeasuredRun) -> Verdict:
    """Whether both end with one loss, from one seed."""
    a, b = before.value("summary.final_loss"), after.value("summary.final_loss")
    rule = f"rule: within {ACCURACY:g} of the baseline's"
    if a is None or b is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    off = abs(b - a) / abs(a)
    return Verdict(off <= ACCURACY, f"{b:.6f} against {a:.6f}, off by {off:.1e}; {rule}")


def deterministic(*runs: MeasuredRun) -> Verdict:
    """Whether two runs from one seed agree to the bit."""
    a, b = ([step["loss"] for step in (run.summary or {}).get("steps", [])] for run in runs)
    equal, most = sum(x == y for x, y in zip(a, b, strict=False)), max(len(a), len(b))
    holds = bool(a) and len(a) == len(b) == equal
    return Verdict(holds, f"{equal} of {most} losses equal; rule: all, to the last bit")


def memory_growth(runs: Mapping[str, MeasuredRun]) -> Verdict:
    """Whether version 2's memory grows less over S than the baseline's."""
    base, after = (
        ratio(runs[f"{name}_long"].value(PEAK), runs[name].value(PEAK))
        for name in ("baseline", "version_2")
    )
    lengths = (runs[name].value("configuration.seq_len") for name in ("baseline_long", "baseline"))
    rule = f"rule: grows less than the baseline's, from S to {number(ratio(*lengths))} S"
    if base is None or after is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(after < base, f"{times_text(after)} against {times_text(base)}; {rule}")


# A size is saturated where the next one attains less than this much more.
SATURATED_GAIN = 1.10
# Share of the peak from which attention's memory is called significant.
SIGNIFICANT_PERCENT = 10.0
# What a doubling of the batch has to gain to be worth its memory.
BATCH_GAIN = 1.05
# Growth of memory between these is neither linear nor quadratic.
LINEAR_UP_TO, QUADRATIC_FROM = 1.25, 1.75
# An exponent this near to 1 is called linear.
LINEAR = 0.15
# A size that takes longer is none for a class to wait for.
WORKSHOP_SECONDS, WORKSHOP_STEPS = 300.0, 50
# What the text expects from one size to the next: parameters, memory, fall of throughput.
TRANSITIONS = {
    ("tiny", "small"): ((6.5, 7.5), (5, 8), (3, 5)),
    ("small", "medium"): ((7.5, 8.5), (6, 10), (5, 10)),
}
FEW_SIZES = "not known: two measured sizes are needed"
Runs = Sequence[MeasuredRun]


@dataclass(frozen=True)
class Forecasts:
    """Predictions of steps that were not run.

    `own`: the five sizes as configured; `single`: at batch 1; `lean`: at batch 1 with
    checkpointing; `sequences`: one size over S, `linear`: the same with attention that keeps no
    scores; `medium`: that size over the batch.
    """

    own: tuple[Prediction, ...]
    single: tuple[Prediction, ...]
    lean: tuple[Prediction, ...]
    sequences: tuple[Prediction, ...]
    linear: tuple[Prediction, ...]
    medium: tuple[Prediction, ...]


def name_of(run: MeasuredRun) -> str:
    """The size's name."""
    return str(run.value("configuration.size"))


def each(runs: Runs, value: Callable[[MeasuredRun], str]) -> str:
    """`tiny 3.1, small 2.9`."""
    return ", ".join(f"{name_of(run)} {value(run)}" for run in runs)


def known(runs: Runs, value: Callable[[MeasuredRun], float | None]) -> list[tuple[str, float]]:
    """Name and value of the sizes that have one."""
    return [(name_of(run), found) for run in runs if (found := value(run)) is not None]


def growth_exponent(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Slope of log y over log x; None of fewer than two different positive points."""
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]
    if len({a for a, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def power_text(runs: Runs, key: str, *, is_linear: bool = False) -> str:
    """`it goes with parameters ^ -1.30`, of a figure; `is_linear`: whether that is in proportion,
    first."""
    pairs = [(run.value("model.total_parameters"), run.value(key)) for run in runs]
    pairs = [(p, v) for p, v in pairs if p and v]
    exponent = growth_exponent([p for p, _ in pairs], [v for _, v in pairs])
    if exponent is None:
        return FEW_SIZES
    text = f"it goes with parameters ^ {exponent:.2f}"
    if not is_linear:
        return text
    yes = "Yes" if abs(abs(exponent) - 1) <= LINEAR else "No"
    return f"{yes}: {text} (rule: linear within {LINEAR:g} of 1)"


def attained(run: MeasuredRun) -> float | None:
    """Model FLOPs a second, profiled steps left out where there are others."""
    speed = samples_per_second(run)
    batch, flops = run.value("configuration.batch_size"), run.value("model.flops_per_step")
    return speed / batch * flops if speed and batch and flops else None


def saturation(runs: Runs) -> tuple[str | None, list[tuple[str, float]]]:
    """The smallest size after which the attained rate rises by less than a tenth, and the rates.

    None where the rate still rises at the largest size, or only one was measured.
    """
    rates = known(runs, attained)
    for (size, rate), (_, following) in itertools.pairwise(rates):
        if following < rate * SATURATED_GAIN:
            return size, rates
    return None, rates


def shares(run: MeasuredRun) -> dict[str, float]:
    """attention, ffn, other in percent of the recorded work; empty without operator profile."""
    components = (run.value("operators") or {}).get("components")
    return group_shares(components) if components else {}


def core_percent(run: MeasuredRun) -> float | None:
    """Share of scores, softmax and values: what Flash Attention replaces."""
    components = (run.value("operators") or {}).get("components")
    if not components:
        return None
    return sum(c["percent"] for c in components if c["name"] == "attention/core")


def distance_to_ridge(run: MeasuredRun) -> float | None:
    """Intensity over that of the ridge point: below 1 the roofline is memory's."""
    return ratio(run.value(INTENSITY), run.value("flops.roofline_data.ridge_point_flops_per_byte"))


def batch_gain(batches: Runs) -> float | None:
    """Throughput of the largest measured batch over that of half of it (or the next smaller)."""
    speeds = [(r.value("configuration.batch_size"), samples_per_second(r)) for r in batches]
    found = sorted((b, s) for b, s in speeds if b and s)
    if len(found) < 2:
        return None
    (before, slow), (after, fast) = found[-2:]
    doublings = math.log2(after / before)
    return (fast / slow) ** (1 / doublings) if doublings > 0 else None


def throughput_text(runs: Runs) -> str:
    """Samples a second of every size."""
    return each(runs, lambda run: f"{number(samples_per_second(run))} samples/s")


def saturation_answer(runs: Runs) -> str:
    """At which size the device is saturated."""
    size, rates = saturation(runs)
    text = ", ".join(f"{name} {number(rate / 1e9)} GFLOP/s" for name, rate in rates)
    rule = f"rule: the next size attains less than {100 * (SATURATED_GAIN - 1):.0f} % more"
    return f"{f'At {size}' if size else 'Not within the measured sizes'}: {text} ({rule})."


def batch_answer(batches: Runs) -> str:
    """How the batch size affects throughput."""
    gain = batch_gain(batches)
    if gain is None:
        return "Not known: fewer than two batch sizes were measured."
    speeds = ", ".join(
        f"batch {number(run.value('configuration.batch_size'))} "
        f"{number(samples_per_second(run))} samples/s"
        for run in batches
    )
    word = "raises it" if gain > 1.05 else "lowers it" if gain < 0.95 else "leaves it as it is"
    return f"A larger batch {word}: {gain:.2f}x at the last doubling ({speeds}; rule: 5 %)."


def attention_memory_answer(runs: Runs, forecasts: Forecasts) -> str:
    """From which size and sequence on the scores matter: of the measured peaks, and of the
    predicted peak what attention without scores saves."""
    key = "memory.breakdown_at_peak.attention_scores"
    found = known(runs, lambda r: share_of(r.value(key), r.value("memory.peak_bytes")) or None)
    text = ", ".join(f"{name} {percent(share)}" for name, share in found) or NOT_MEASURED
    size = next((name for name, share in found if share >= SIGNIFICANT_PERCENT), None)
    curve = [
        (whole.seq, 100 * (1 - linear.peak_memory_bytes / whole.peak_memory_bytes))
        for whole, linear in zip(forecasts.sequences, forecasts.linear, strict=True)
    ]
    seq = next((f"S = {s} ({percent(p)})" for s, p in curve if p >= SIGNIFICANT_PERCENT), None)
    name = forecasts.sequences[0].size if forecasts.sequences else "none"
    predicted = f"at {seq}" if seq else f"at no S up to {curve[-1][0] if curve else 0}"
    return (
        f"{f'At {size}' if size else 'At no measured size'}: scores are {text} of the peak; {name} "
        f"alone, {predicted} (rule: {SIGNIFICANT_PERCENT:.0f} % of the peak)."
    )


def overhead_answer(runs: Runs) -> str:
    """Peak memory over the bytes of the parameters."""
    found = each(
        runs, lambda r: f"{number(ratio(r.value(PEAK), r.value('model.model_size_bytes')))}x"
    )
    return f"Peak over parameters: {found}."


def utilization_answer(runs: Runs, word: str) -> str:
    """The size with the highest MFU; `word` before those of all."""
    found = known(runs, lambda run: run.value(UTILIZATION))
    best = max(found, key=lambda pair: pair[1], default=None)
    top = f"{best[0]}: {percent(best[1])} MFU" if best else NOT_MEASURED
    return f"{top} ({word}{each(runs, lambda run: percent(run.value(UTILIZATION)))})."


def bound_answer(runs: Runs) -> str:
    """What bounds each size, by the classes and by the device's own ridge."""
    key = "flops.computational_intensity.memory_bound_vs_compute_bound"
    classes = each(runs, lambda run: f"{run.value(key) or NOT_MEASURED}")
    ridge = each(runs, lambda run: f"{number(distance_to_ridge(run))}x the ridge")
    return f"{classes}. Against the device's own ridge: {ridge}."


def dominating_answer(runs: Runs) -> str:
    """Attention or FFN, a size after the other."""

    def text(run: MeasuredRun) -> str:
        found = shares(run)
        if not found:
            return NOT_MEASURED
        attention, ffn = found["attention"], found["ffn"]
        winner = "attention" if attention > ffn else "FFN"
        return f"{winner} ({percent(attention)} against {percent(ffn)})"

    return f"Attention against FFN: {each(runs, text)}."


def sequence_answer(forecasts: Forecasts) -> str:
    """How the predicted peak grows over the first and over the last three lengths."""
    points = [(float(p.seq), p.peak_memory_bytes) for p in forecasts.sequences]
    short, long = (growth_exponent(*zip(*e, strict=True)) for e in (points[:3], points[-3:]))
    if short is None or long is None:
        return "Not known: fewer than two sequence lengths were predicted."

    def word(exponent: float) -> str:
        if exponent < LINEAR_UP_TO:
            return "linear or less"
        return "quadratic" if exponent > QUADRATIC_FROM else "between linear and quadratic"

    first, last = forecasts.sequences[0], forecasts.sequences[-1]
    return (
        f"{word(long)[0].upper()}{word(long)[1:]} at the long end: S ^ {long:.2f} up to "
        f"S = {last.seq}; {word(short)} at the short end: S ^ {short:.2f} from S = {first.seq} "
        f"({first.size}; rule: linear below {LINEAR_UP_TO}, quadratic above {QUADRATIC_FROM})."
    )


def flash_answer(runs: Runs) -> str:
    """The size with the largest share in scores, softmax and values."""
    found = known(runs, core_percent)
    if not found:
        return f"Attention's core was {NOT_MEASURED}."
    best, share = max(found, key=lambda pair: pair[1])
    text = ", ".join(f"{name} {percent(s)}" for name, s in found)
    return (
        f"{best}: scores, softmax and values take {percent(share)} there (all: {text}); at half "
        f"their time the step is {amdahl(min(share, 99.9) / 100, 2.0):.2f}x as fast (rule: the "
        "largest share)."
    )


def bound_extremes(runs: Runs) -> str:
    """Which size is the most memory-bound, which the most compute-bound."""
    found = known(runs, distance_to_ridge)
    if len(found) < 2:
        return "Not known: fewer than two sizes have a roofline."
    low, high = min(found, key=lambda p: p[1]), max(found, key=lambda p: p[1])
    return (
        f"Most memory-bound: {low[0]} at {number(low[1])}x the ridge's intensity; most "
        f"compute-bound: {high[0]} at {number(high[1])}x (below 1x memory is the roof)."
    )


def batch_recommendation(batches: Runs, forecasts: Forecasts) -> str:
    """The batch for medium, by what fits and what a larger batch gains."""
    fitting = [p for p in forecasts.medium if p.fits]
    if not fitting:
        return "None: medium does not fit even at batch 1."
    gain, best = batch_gain(batches), max(fitting, key=lambda p: p.batch)
    own = min(best.batch, next(p.batch for p in forecasts.own if p.size == "medium"))
    memory = f"{best.peak_memory_bytes / MEGABYTE:,.0f} MB predicted"
    room = f"batch {best.batch} is the largest that fits ({memory})"
    if gain is None:
        return f"{own}: {room}; the gain of a larger batch was {NOT_MEASURED}."
    run = batches[-1]
    shape = f"{name_of(run)} at {run.value('configuration.seq_len')} tokens"
    rule = f"rule: {100 * (BATCH_GAIN - 1):.0f} % more samples/s a doubling; measured with {shape}"
    if gain >= BATCH_GAIN:
        return f"{best.batch}: {room}, and a doubling still gains {gain:.2f}x ({rule})."
    return f"{own}: {room}, but a doubling gains only {gain:.2f}x ({rule})."


def largest_answer(runs: Runs, forecasts: Forecasts) -> str:
    """Of the five, as configured and at batch 1."""

    def fitting(predictions: Sequence[Prediction]) -> str:
        best = max(
            (p for p in predictions if p.fits), key=lambda p: (p.parameters, p.batch), default=None
        )
        if best is None:
            return "none"
        memory = f"{best.peak_memory_bytes / MEGABYTE:,.0f} MB predicted"
        return f"{best.size} ({best.parameters:,} parameters, {memory})"

    checks = known(
        runs, lambda r: ratio(r.value("model.predicted_peak_memory_bytes"), r.value(PEAK))
    )
    trust = ", ".join(f"{name} predicted / measured {value:.3f}" for name, value in checks)
    return (
        f"{fitting(forecasts.own)} as configured; at batch 1 {fitting(forecasts.single)}; with "
        f"checkpointing as well {fitting(forecasts.lean)}. Trust in the prediction: "
        f"{trust or NOT_MEASURED}."
    )


def improvement_answer(runs: Runs) -> str:
    """Of medium, or the largest size that ran: its largest component."""
    run = next((r for r in runs if name_of(r) == "medium"), runs[-1] if runs else None)
    components = (run.value("operators") or {}).get("components") if run else None
    if not run or not components:
        return f"The components of no size were {NOT_MEASURED}."
    top = max(components, key=lambda c: c["percent"])
    other = "" if name_of(run) == "medium" else " (medium was not run)"
    return (
        f"Attack {top['name']} first: {percent(top['percent'])} of {name_of(run)}{other}; twice as "
        f"fast there makes the step {amdahl(min(top['percent'], 99.9) / 100, 2.0):.2f}x as fast."
    )


def workshop_answer(runs: Runs) -> str:
    """The largest size that a class can wait for."""
    times = known(runs, lambda run: median_step_seconds(run) or None)
    within = [name for name, s in times if WORKSHOP_STEPS * s <= WORKSHOP_SECONDS]
    text = ", ".join(f"{name} {WORKSHOP_STEPS * s:.3g} s" for name, s in times)
    rule = f"rule: the largest whose {WORKSHOP_STEPS} steps take up to {WORKSHOP_SECONDS:g} s"
    best = within[-1] if within else "none"
    return f"{best[0].upper()}{best[1:]}: {text} ({rule})."


def transition_rows(runs: Runs) -> list[tuple[str, ...]]:
    """Expected and measured from size to size (6.5)."""
    by_name = {name_of(run): run for run in runs}
    rows: list[tuple[str, ...]] = []
    for (small, large), ranges in TRANSITIONS.items():
        title = f"{small} -> {large}"
        if small not in by_name or large not in by_name:
            missing = large if small in by_name else small
            rows.append((title, "all", "see 6.5", f"{missing} was not run", "-"))
            continue
        a, b = by_name[small], by_name[large]
        found = {
            "parameters": ratio(*(r.value("model.total_parameters") for r in (b, a))),
            "memory": ratio(*(r.value(PEAK) for r in (b, a))),
            "throughput falls": ratio(*(samples_per_second(r) for r in (a, b))),
        }
        for (what, value), (low, high) in zip(found.items(), ranges, strict=True):
            verdict = expected(value, low, high, "x")
            rows.append((title, what, f"{low:g}-{high:g}x", f"{value or 0:.3g}x", verdict))
    return rows


def profile_rows(runs: Runs) -> list[tuple[str, ...]]:
    """6.6: the profiles of the sizes side by side."""
    rows = []
    for run in runs:
        found, rate = shares(run), attained(run)
        top = ((run.value("operators") or {}).get("table") or [{}])[0]
        kernels = run.value("operators.kernels_per_step")
        calls = run.value("operators.operator_calls_per_step") if kernels is None else kernels
        percents = (
            run.value("operators.matrix_product_percent"),
            run.value("operators.softmax_percent"),
            found.get("attention"),
            found.get("ffn"),
            run.value("flops.computational_intensity.memory_bandwidth_utilization_percent"),
        )
        largest_one = f"{top.get('name', NOT_MEASURED)} {percent(top.get('share_percent'))}"
        gigaflops = number(rate / 1e9 if rate else None)
        rows.append((name_of(run), number(calls), largest_one, *map(percent, percents), gigaflops))
    return rows
