"""Exercise 3, bottlenecks, the plan of version 2 and the problem sizes: its runs and numbers."""

import itertools
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tinyllama_tools.commands.profile import (
    PROFILINGS,
    REPORT,
    Shape,
    measure_all,
    report_text,
    shaped,
)
from tinyllama_tools.commands.study import SizeRun, plan_sizes, run_sizes, size_costs
from tinyllama_tools.commands.worksheet import (
    INTENSITY,
    MFU,
    PEAK,
    box,
    growth_exponent,
    largest_of,
    make_sheet,
    ratio,
    share_of,
    shown,
)
from tinyllama_tools.core.app import Json, problem_sizes, write_whole
from tinyllama_tools.core.installation import RESULTS
from tinyllama_tools.core.process import program_in
from tinyllama_tools.core.text import say
from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.profiles import (
    INTERRUPTED_REASON,
    MeasuredRun,
    Runs,
    component_percent,
    group_shares,
    merged,
    operator_shares,
    was_interrupted,
)
from tinyllama_tools.data.programs import (
    CaseCost,
    Predictor,
    SuiteError,
    TrainingError,
    TrainingProgram,
    ask_costs,
    case_options,
)
from tinyllama_tools.models.bottlenecks import (
    ATTENTION,
    COPIES,
    PRIORITIES,
    PRODUCTS,
    QKV,
    SWIGLU,
    WORTHWHILE_SPEEDUP,
    amdahl,
    fragmentation_share,
    launch_part,
    memory_bound,
    rank_bottlenecks,
    recorded_part,
)
from tinyllama_tools.models.step_ratios import Evidence, StepRatio, find_ablation, find_peers

ANALYSIS = "bottleneck_analysis"
WANTED = {
    f"{ANALYSIS}/pytorch_profiling": ("operators",),
    f"{ANALYSIS}/memory_analysis": ("memory",),
    ANALYSIS: ("flops",),
}
TOP, STEPS, SHORT_STEPS, STUDY_STEPS = 10, 30, 6, 20
# The workshop's version 2, as the suite names the set of its switches.
VERSION_2 = "fused"
# Pattern of an operator's or kernel's name, and how to make it cheaper; the first match counts.
TARGETS = (
    (PRODUCTS.pattern, "fewer, larger GEMMs: qkv, gate_up; narrower types"),
    ("softmax", "attention in tiles: sdpa, fused_attention"),
    (r"addcdiv|addcmul|lerp|adam|::sqrt", "optimizer: fused_adamw"),
    ("silu", "SwiGLU in one pass: fused_swiglu"),
    (r"rsqrt|::pow|::mean|norm", "RMSNorm in one pass: fused_norm"),
    (COPIES.pattern, "copies: layout, fused_rotary"),
    (r"nll|loss|embedding", "embedding and loss: fused_loss"),
    ("", "element-wise work: fusion, torch.compile"),
)


def analysis_of(runs: Runs) -> MeasuredRun:
    """The runs of the comprehensive profile, merged into one."""
    parts = [run for name, run in runs.items() if name.startswith(ANALYSIS)]
    found = [run.summary for run in parts if run.summary]
    summary, seconds = merged(found) if found else None, sum(r.seconds or 0 for r in parts)
    notes = [f"{run.name}: {note}" for run in parts for note in run.notes]
    link = runs[ANALYSIS].link
    return MeasuredRun(ANALYSIS, "", summary, link=link, seconds=seconds, notes=notes)


def measured_sizes(results: Sequence[SizeRun]) -> dict[str, MeasuredRun]:
    """The runs of scripts/study that have figures, by size, the smallest first."""
    return {result.size: result.run for result in results if result.is_measured}


def planned_shapes(options: Namespace) -> dict[str, Shape]:
    """The runs: the comprehensive profile of step 1; version 2 beside the baseline at the
    worksheet's two shapes and at a long sequence; two deterministic runs; mixed precision; and two
    other batches, for what a larger batch gains."""
    batch, seq, version_2 = options.batch, options.seq, f"--variant={VERSION_2}"
    same = (batch, seq, SHORT_STEPS, version_2, "--deterministic", "--seed=42")
    return {
        **{
            f"{ANALYSIS}/{name}".removesuffix("/."): (batch, seq, STEPS, *flags)
            for name, flags in PROFILINGS.items()
        },
        "baseline": (batch, seq, STEPS),
        "version_2": (batch, seq, STEPS, version_2),
        "version_2_profiled": (batch, seq, 12, version_2, "--enable-pytorch-profiler"),
        "baseline_scaling": (2 * batch, 2 * seq, SHORT_STEPS),
        "version_2_scaling": (2 * batch, 2 * seq, SHORT_STEPS, version_2),
        "baseline_long": (batch, 4 * seq, SHORT_STEPS),
        "version_2_long": (batch, 4 * seq, SHORT_STEPS, version_2),
        "deterministic_1": same,
        "deterministic_2": same,
        "mixed_precision": (batch, seq, SHORT_STEPS, "--dtype=amp_bf16"),
        **{f"batch_{b}": (b, seq, SHORT_STEPS) for b in (batch // 2, 2 * batch)},
    }


# Steps to predict: sizes (empty: all five), batches and sequences (empty: the size's own).
FORECASTS = {
    "single": ("", "1", ""),
    "sequences": ("tiny", "", "64,128,256,512,1024,2048,4096"),
    "medium": ("medium", "1,2,4,8,16,32,64,128", ""),
}


# The plan of version 2, from shares and speedups of the analysis.
FLOP_GROUPS = ("attention/qkv_proj", "attention/core", "ffn")
# Switches that make one pass of memory-bound work outside FLOP_GROUPS; no two share any of it.
ONE_PASS = ("fused_norm", "fused_adamw", "fused_rotary")
# The speedup of work that passes over memory once instead of twice.
HALF_THE_TRAFFIC = 2.0
# An optimization without a WORTHWHILE_SPEEDUP is planned for its memory: at most this ratio of the
# peak, at this speed at least.
WORTHWHILE_MEMORY, NOT_SLOWER = 0.95, 0.98


def memory_bound_percent(summary: Json, left_out: Sequence[str] = ()) -> float:
    """Share of the memory-bound components' time; `left_out`: components that are counted
    elsewhere."""
    points = summary["flops"]["roofline_data"]["points"]
    bound = memory_bound(summary["operators"]["components"], points)
    return sum(c["percent"] for c in bound) - component_percent(bound, *left_out)


def bounds(summary: Json) -> dict[str, float | None]:
    """Percentages of the step's time by what bounds it; they add up to 100 where all are known.

    The part of launches is taken off first; the rest is divided among the components, each by its
    side of the roofline's ridge.
    """
    memory, launches = memory_bound_percent(summary), launch_part(summary)
    left = None if launches is None else 1 - launches
    return {
        "Memory-bound (optimize data movement)": left and left * memory,
        "Compute-bound (optimize kernels)": left and left * max(0.0, 100 - memory),
        "Overhead-bound (optimize launches)": None if launches is None else 100 * launches,
    }


def together(speedups: Sequence[float | None]) -> float | None:
    """The speedup of all together, which must share no work; one below 1 is left out, since nobody
    would plan it."""
    known = [speedup for speedup in speedups if speedup]
    left = 1 - sum(max(0.0, 1 - 1 / speedup) for speedup in known)
    return 1 / left if known and left > 0 else None


def planned_gain(measured: StepRatio | None) -> float | None:
    """A speedup as the plan counts it: 1 where its interval does not exclude chance."""
    return measured and (measured.median if measured.shows_difference else 1.0)


def traffic_gain(summary: Json, evidence: Evidence | None) -> tuple[float | None, str]:
    """The step's speedup from less memory traffic, and the basis of that: the ONE_PASS switches
    that an ablation measured, else Amdahl's law."""
    found = evidence.speedups if evidence else {}
    if measured := [name for name in ONE_PASS if name in found]:
        gain = together([planned_gain(found[name]) for name in measured])
        return gain, f"measured: {', '.join(measured)}"
    part, share = recorded_part(summary), memory_bound_percent(summary, FLOP_GROUPS)
    gain = None if part is None else amdahl(part * min(share, 100) / 100, HALF_THE_TRAFFIC)
    return gain, f"assumed: half the traffic of {share:.1f} % of the recorded work"


def compile_speedup(summary: Json, results: Path = RESULTS) -> StepRatio | None:
    """That of the best torch.compile for the profiled step, as scripts/peers measured it."""
    peers = find_peers(summary, results)
    best = peers and peers.best(name for name in peers.speedups if "compile" in name)
    return best and best[1]


def plan_box(label: str, speedup: float | None, memory: float | None = None) -> str:
    """A tick box: whether an optimization is worth it for time or memory. `memory`: its peak over
    the baseline's."""
    # the worksheet's plan buys no memory with time
    not_slower = speedup is None or speedup >= NOT_SLOWER
    saves = memory is not None and memory <= WORTHWHILE_MEMORY and not_slower
    reason = f"speedup {shown(speedup, 'x')}, peak memory {shown(memory, 'x')}"
    rule = f"rule: from {WORTHWHILE_SPEEDUP}x, or memory up to {WORTHWHILE_MEMORY}x at no loss"
    return box(label, (speedup or 0) >= WORTHWHILE_SPEEDUP or saves, f"{reason}; {rule}")


def equal_losses(runs: Runs) -> tuple[int, int]:
    """How many steps of the two deterministic runs have losses equal to the bit, and of how
    many."""
    pair = [[step["loss"] for step in runs[f"deterministic_{n}"]("steps") or []] for n in (1, 2)]
    return sum(a == b for a, b in zip(*pair, strict=False)), max(map(len, pair))


def target_rows(
    runs: Runs, analysis: MeasuredRun, speedup: float | None, gain: float | None
) -> list[Any]:
    """Rows of metric, unit, value now, target, and value with version 2."""
    base, after, mfu = runs["baseline"], runs["version_2"], analysis(MFU)
    rate, key, count = "summary.samples_per_second", "operators.kernels_per_step", "Kernel count"
    if analysis(key) is None:
        key, count = "operators.operator_calls_per_step", "Operator count (CPU)"
    scores = analysis("memory.breakdown_at_peak.attention_scores")
    # three GEMMs a layer fewer, once in forward and twice in backward
    fewer = 3 * 3 * analysis("configuration.n_layers")

    def times(now: float | None, factor: float | None) -> float | None:
        return None if now is None or factor is None else now * factor

    reached = runs["version_2_profiled"](key)
    return [
        ("Training throughput", "samples/sec", base(rate), times(base(rate), speedup), after(rate)),
        ("Model FLOPS Utilization", "%", mfu, times(mfu, speedup), times(mfu, gain)),
        ("Peak memory usage", "MB", base(PEAK), base(PEAK) and base(PEAK) - scores, after(PEAK)),
        (f"{count} per step", "", analysis(key), analysis(key) - fewer, reached),
    ]


def plan_values(runs: Runs, analysis: MeasuredRun, evidence: Evidence | None) -> Json:
    """The template's values for steps 1 to 7 and their questions."""
    summary = analysis.summary or {}
    compiled = planned_gain(compile_speedup(summary))
    operators, ranking = summary["operators"], rank_bottlenecks(summary, evidence)
    components = operators["components"]
    by_name = {b.name: b for b in ranking}
    # a speedup that may be chance counts as none
    best = {name: b.best_known_speedup if b.is_shown else 1.0 for name, b in by_name.items()}

    def faster(name: str, other: str = "baseline") -> float | None:
        return ratio(runs[other].step_seconds, runs[name].step_seconds)

    def expected(*names: str) -> float | None:
        """The speedup by Amdahl's law of categories that share no work."""
        return together([by_name[name].expected_speedup for name in names])

    overall, gain = expected(QKV, ATTENTION, SWIGLU), faster("version_2")
    precision = faster("mixed_precision")
    traffic, ground = traffic_gain(summary, evidence)
    top = operator_shares(operators)[:TOP]
    return {
        "top": [row | {"target": _target_of(row["name"])} for row in top],
        **PRIORITIES,
        "ranking": ranking,
        "best": best,
        "phases": (expected(QKV, SWIGLU), expected(ATTENTION)),
        "overall": overall,
        "gain": gain,
        "scaling_gain": faster("version_2_scaling", "baseline_scaling"),
        "compiled": compiled,
        "layout": planned_gain(evidence.speedups.get("layout")) if evidence else None,
        "precision": precision,
        "plan_box": plan_box,
        "targets": target_rows(runs, analysis, overall, gain),
        "equal_losses": equal_losses(runs),
        "allocations": fragmentation_share(summary),
        "suspects": {
            "QKV projection operations": component_percent(components, FLOP_GROUPS[0]),
            "Attention score computation": component_percent(components, FLOP_GROUPS[1]),
            "Feed-forward network": component_percent(components, FLOP_GROUPS[2]),
            "Kernel launch overhead": operators["launch_overhead_percent"],
            "Memory bandwidth": memory_bound_percent(summary, FLOP_GROUPS),
        },
        "gains": {
            "Kernel fusion (reduce launches)": together([best[QKV], best[SWIGLU]]),
            "Memory optimization (bandwidth)": traffic,
            "Algorithmic optimization (attention)": best[ATTENTION],
            "Precision optimization (mixed precision)": precision,
        },
        "gain_notes": {"Memory optimization (bandwidth)": ground},
        "bounds": bounds(summary),
        "candidates": {
            "QKV fusion (immediate benefit)": best[QKV],
            "Flash Attention (biggest impact)": best[ATTENTION],
            "SwiGLU fusion (easy implementation)": best[SWIGLU],
            "Torch compile (automatic optimization)": compiled,
        },
        "realistic": overall if gain is None else gain,
    }


def _target_of(name: str) -> str:
    """How to make an operator cheaper or rarer."""
    return next(text for pattern, text in TARGETS if re.search(pattern, name, re.IGNORECASE))


# The device is saturated at a size where the next one attains less than this many times its rate.
SATURATED_GAIN = 1.10
# A batch above the size's own is recommended where a doubling gains at least this.
BATCH_GAIN = 1.05
KERNELS, OPERATORS = "operators.kernels_per_step", "operators.operator_calls_per_step"


def size_row(name: str, run: MeasuredRun) -> Json:
    """The computed figures of a size. `rate`: model GFLOP/s; `distance`: its intensity over that
    of the ridge, below 1 where it is memory-bound."""
    components = run("operators.components") or []
    top = max(components, key=lambda c: c["percent"], default={})
    flops, seconds = run("model.flops_per_step"), run.step_seconds
    scores, kernels = run("memory.breakdown_at_peak.attention_scores"), run(KERNELS)
    return {
        **{"name": name, "run": run, "peak": run(PEAK)},
        "parameters": run("model.total_parameters"),
        "rate": flops / seconds / 1e9 if flops and seconds else None,
        "scores": share_of(scores, run("memory.peak_bytes")),
        **(group_shares(components) if components else {"attention": None, "ffn": None}),
        "core": component_percent(components, "attention/core") if components else None,
        "top": top.get("name"),
        "top_percent": top.get("percent"),
        "launches": run(OPERATORS) if kernels is None else kernels,
        "overhead": ratio(run(PEAK), run("model.model_size_bytes")),
        "distance": ratio(run(INTENSITY), run("flops.roofline_data.ridge_point_flops_per_byte")),
    }


def saturated(sizes: Sequence[Json]) -> str | None:
    """The first size whose next one misses SATURATED_GAIN; None where there is no such size."""
    pairs = itertools.pairwise(size for size in sizes if size["rate"])
    return next((a["name"] for a, b in pairs if b["rate"] < a["rate"] * SATURATED_GAIN), None)


def largest_fitting(found: Sequence[CaseCost]) -> CaseCost | None:
    """The case that fits with most parameters, and of those with the largest batch."""
    fitting = [cost for cost in found if cost.fits]
    return max(fitting, key=lambda cost: (cost.parameters, cost.name.batch), default=None)


def size_values(
    runs: Runs, results: Sequence[SizeRun], forecasts: Mapping[str, Sequence[CaseCost]]
) -> Json:
    """The template's values for chapter 6; `forecasts`: by the names in FORECASTS."""
    sizes = [size_row(name, run) for name, run in measured_sizes(results).items()]
    by_size = {size["name"]: size for size in sizes}
    # runs at half, once and twice the worksheet's batch
    batches = [r for name, r in runs.items() if re.match("baseline$|batch_", name)]
    batches.sort(key=lambda run: run("configuration.batch_size"))
    medium, gain = largest_fitting(forecasts["medium"]), ratio(batches[-1].speed, batches[-2].speed)
    recommended = medium and medium.name.batch
    if medium and (gain is None or gain < BATCH_GAIN):
        recommended = min(medium.name.batch, problem_sizes()["medium"]["batch"])
    target = by_size.get("medium") or sizes[-1]
    part = target["top_percent"] and min(target["top_percent"], 99.9) / 100
    # of tiny at the three longest sequences
    peaks = [(cost.name.seq, cost.predicted_memory_bytes) for cost in forecasts["sequences"][-3:]]

    def exponent(values: Sequence[float | None]) -> float | None:
        return growth_exponent([size["parameters"] for size in sizes], values)

    def largest_by(key: str, sign: int = 1) -> str | None:
        return largest_of({s["name"]: s[key] and sign * s[key] for s in sizes})

    return {
        "sizes": sizes,
        "by_size": by_size,
        "all_sizes": [
            {"cost": r.cost, "measured": by_size.get(r.size), "reason": r.run.reason or r.refusal}
            for r in results
        ],
        "speed_exponent": exponent([size["run"].speed for size in sizes]),
        "peak_exponent": exponent([size["peak"] for size in sizes]),
        "saturated": saturated(sizes),
        "batches": batches,
        "batch_gain": gain,
        "significant_size": next((s["name"] for s in sizes if (s["scores"] or 0) >= 10), None),
        "seq_exponent": growth_exponent(*zip(*peaks, strict=True)),
        "most_used": largest_of({size["name"]: size["run"](MFU) for size in sizes}),
        "most_core": largest_by("core"),
        "most_memory_bound": largest_by("distance", -1),
        "most_compute_bound": largest_by("distance"),
        "medium": medium,
        "recommended_batch": recommended,
        "largest_model": largest_fitting(forecasts["single"]),
        "target": target,
        "halved": part and amdahl(part, 2.0),
        "quick": [s["name"] for s in sizes if 50 * (s["run"].step_seconds or 300) <= 300],
    }


def run_study(
    options: Namespace, program: TrainingProgram, predictor: Predictor
) -> tuple[Sequence[SizeRun], str]:
    """The performance study with profilers, and why it ended early, empty where it did not."""
    how = {"dtype": "f32", "variant": "baseline", "num_steps": STUDY_STEPS}
    own = Namespace(**{**vars(options), **how, "enable_profilers": True})
    try:
        costs = size_costs(own, tuple(problem_sizes()), predictor)
        plans = plan_sizes(program, own, costs)
        return run_sizes(program, own, plans, options.profile_dir, say), ""
    except KeyboardInterrupt:
        return (), INTERRUPTED_REASON
    except (TrainingError, SuiteError) as error:
        return (), str(error)


def run_exercise(options: Namespace, program: TrainingProgram) -> tuple[str, int]:
    """Makes the runs, the report of scripts/profile and the performance study with profilers, with
    all files below `options.profile_dir`; the page and the exit status.

    Errors before the first run has ended are raised, OSError always; later ones are on the page.
    """
    predictor = partial(ask_costs, program_in(options.build_folder, "tiny_llama_bench"))
    every = ",".join(problem_sizes())
    plain = {"components": STEP, "dtypes": "f32", "variants": "baseline"}
    forecasts = {
        name: predictor(
            case_options(options.device, sizes=sizes or every, batch=batch, seq=seq, **plain)
        )
        for name, (sizes, batch, seq) in FORECASTS.items()
    }
    folder, planned = options.profile_dir, shaped(options.size, planned_shapes(options))
    runs = measure_all(planned, program, folder, options.out.parent)
    analysis, evidence = analysis_of(runs), None
    if summary := analysis.summary:
        evidence, place = find_ablation(summary), folder / ANALYSIS
        write_whole(place / REPORT, report_text(summary, place, TOP, evidence))
    results, gap = ((), "") if was_interrupted(runs) else run_study(options, program, predictor)
    # a size that was left out is a finding, not a gap
    missing = [f"problem sizes: {gap}"] if gap else []
    missing += [f"size {r.size}: {r.run.reason}" for r in results if r.run.reason]
    sizes = tuple(measured_sizes(results).values())
    if results and not sizes and not missing:
        missing.append("no problem size was measured")
    return make_sheet(
        "exercise_3.md.j2",
        runs,
        {**dict.fromkeys(runs, ()), **WANTED},
        lambda: plan_values(runs, analysis, evidence) | size_values(runs, results, forecasts),
        also_missing=missing,
        also=sizes,
        interrupted=gap == INTERRUPTED_REASON or any(r.run.is_interrupted for r in results),
        analysis=analysis,
        report=f"{ANALYSIS}/{REPORT}",
    )
