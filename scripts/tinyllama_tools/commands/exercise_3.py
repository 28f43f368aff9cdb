"""Exercise 3, bottlenecks, the plan of version 2 and the problem sizes: its runs and numbers."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tinyllama_tools.commands.peers import read_peers
from tinyllama_tools.commands.profile import run_profilers
from tinyllama_tools.commands.profile_report import (
    OPERATORS,
    REPORT,
    SECTIONS,
    operator_shares,
    read_profile_set,
    report_text,
)
from tinyllama_tools.commands.study import (
    PROFILES,
    Settings,
    SizeRun,
    plan_sizes,
    run_sizes,
    size_costs,
)
from tinyllama_tools.commands.worksheet import (
    INTENSITY,
    INTERRUPTED_REASON,
    MFU,
    PEAK,
    MeasuredRun,
    Plan,
    Runs,
    Sheet,
    box,
    growth_exponent,
    largest_of,
    make_sheet,
    measure_all,
    ratio,
    say,
    share_of,
    shown,
    was_interrupted,
)
from tinyllama_tools.core.app import (
    RESULTS,
    BadInputError,
    Json,
    problem_sizes,
    shown_path,
    write_whole,
)
from tinyllama_tools.data.machine import SAME_DEVICE, first_difference
from tinyllama_tools.data.profiles import component_percent, group_shares
from tinyllama_tools.data.programs import (
    CaseCost,
    Predictor,
    SuiteError,
    TrainingError,
    TrainingProgram,
    ask_costs,
    step_options,
)
from tinyllama_tools.models.ablations import (
    Evidence,
    Point,
    find_evidence,
    ratio_text,
    shows_difference,
)
from tinyllama_tools.models.bottlenecks import (
    COPIES,
    PRODUCTS,
    QUADRANTS,
    WORTHWHILE_SPEEDUP,
    amdahl,
    fragmentation_share,
    launch_part,
    rank_bottlenecks,
    recorded_part,
)
from tinyllama_tools.models.roofline import POSITIONS, roofline_point, roofline_position
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

ANALYSIS, DETAILED = "bottleneck_analysis", "detailed_analysis"
TOP, STEPS, SHORT_STEPS = 10, 30, 6
# Sizes and steps of the study, and those of a smoke test.
STUDY, QUICK_STUDY = (tuple(problem_sizes()), 20), (("tiny", "small"), 12)
# The workshop's version 2, as the suite names the set of its switches.
VERSION_2 = "fused"
# First that matches names the target; the operators are named as PyTorch and its kernels are.
TARGETS = (
    (PRODUCTS.pattern, "fewer, larger products: qkv, gate_up; narrower types"),
    ("softmax", "attention in tiles: sdpa, fused_attention"),
    (r"addcdiv|addcmul|lerp|adam|::sqrt", "optimizer: fused_adamw"),
    ("silu", "SwiGLU in one pass: fused_swiglu"),
    (r"rsqrt|::pow|::mean|norm", "RMSNorm in one pass: fused_norm"),
    (COPIES.pattern, "copies: layout, fused_rotary"),
    (r"nll|loss|embedding", "embedding and loss: fused_loss"),
    ("", "element-wise work: fusion, torch.compile"),
)


@dataclass
class Findings:
    """All that the worksheet is made of, as far as it came. `log`: profile_runs.json of the
    analysis. `compiled`: torch.compile's speedup. `results`: of scripts/study, smallest first.
    `forecasts`: by the names in FORECASTS. `gap`: what ended the measuring early, empty where
    nothing did."""

    analysis: MeasuredRun
    log: Json
    evidence: Evidence | None
    compiled: Ratio | None
    forecasts: Mapping[str, Sequence[CaseCost]]
    runs: dict[str, MeasuredRun] = field(default_factory=dict)
    results: Sequence[SizeRun] = ()
    gap: str = ""

    @property
    def sizes(self) -> dict[str, MeasuredRun]:
        """The measured sizes by name."""
        found = {}
        for result in self.results:
            if result.is_measured and result.folder is not None:
                more = f"/{PROFILES}" if result.config.get("profilers_enabled") else ""
                command = str(result.config.get("command", ""))
                found[result.size] = MeasuredRun(result.folder.name + more, command, result.summary)
        return found

    @property
    def batches(self) -> list[MeasuredRun]:
        """Runs of one size over the batch."""
        found = [run for name, run in self.runs.items() if re.match("baseline$|batch_", name)]
        return sorted((r for r in found if r.summary), key=lambda r: r("configuration.batch_size"))


def planned_runs(options: Namespace) -> Plan:
    """Version 2 beside the baseline, at the worksheet's two shapes, its memory over S, its
    determinism, mixed precision, and two more batches to see what a larger one gains."""
    batch, seq, version_2 = options.batch_size, options.seq_len, f"--variant={VERSION_2}"
    same = (batch, seq, SHORT_STEPS, version_2, "--deterministic", "--seed=42")
    # batch, sequence, steps, and further options
    table: dict[str, tuple[int | str, ...]] = {
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
    return {
        name: (*options.model, f"--batch-size={b}", f"--seq-len={s}", f"--num-steps={steps}", *more)
        for name, (b, s, steps, *more) in table.items()
    }


# Steps to predict: variant, and sizes, batches and sequences (empty: all five, and each size's).
SEQUENCES = "64,128,256,512,1024,2048,4096"
FORECASTS = {
    "own": ("baseline", "", "", ""),
    "single": ("baseline", "", "1", ""),
    "lean": (f"{VERSION_2}+checkpoint", "", "1", ""),
    "sequences": ("baseline", "tiny", "", SEQUENCES),
    # attention that keeps no scores
    "linear": ("sdpa", "tiny", "", SEQUENCES),
    "medium": ("baseline", "medium", "1,2,4,8,16,32,64,128", ""),
}


def forecasts(predictor: Predictor, device: str) -> dict[str, list[CaseCost]]:
    """By the suite's formulas; SuiteError where it cannot answer."""
    every = ",".join(problem_sizes())
    return {
        name: predictor(
            step_options(
                device, sizes=sizes or every, dtypes="f32", variants=variant, batch=batch, seq=seq
            )
        )
        for name, (variant, sizes, batch, seq) in FORECASTS.items()
    }


def reason_of(error: BaseException) -> str:
    """Ctrl-C or an error, in a word or in its own."""
    return INTERRUPTED_REASON if isinstance(error, KeyboardInterrupt) else str(error)


def analyse(options: Namespace, program: TrainingProgram) -> Findings:
    """Step 1: the comprehensive profile and its reports, and that of step 2 on the operators alone.

    What ends it before its first run is done passes through.
    """
    shape = (f"--batch-size={options.batch_size}", f"--seq-len={options.seq_len}")
    given = (*shape, f"--num-steps={STEPS}", *options.model)
    folder, detailed = options.profile_dir / ANALYSIS, options.profile_dir / DETAILED
    place = f"--profile-dir={shown_path(folder)}"
    command = shlex.join(["scripts/profile", *program.arguments, *given, place])
    runs: list[Json] = []
    gap = ""
    try:
        run_profilers(program, folder, given, command, runs)
    except (KeyboardInterrupt, TrainingError) as error:
        if not runs:
            raise
        gap = f"{ANALYSIS}: {reason_of(error)}"
    found = read_profile_set(folder)
    summary = found.merged()
    lacks = [name for name in SECTIONS if name not in found.profiles]
    if lacks and not gap:
        gap = f"{ANALYSIS}: no profile of {', '.join(lacks)}: the loss was not finite"
    evidence = find_evidence(summary)
    write_whole(folder / REPORT, report_text(found, TOP, evidence))
    if OPERATORS in found.profiles:
        detailed.mkdir(exist_ok=True)
        operators = read_profile_set(folder / "pytorch_profiling")
        write_whole(detailed / REPORT, report_text(operators, TOP, evidence))
    analysis = MeasuredRun(ANALYSIS, command, summary, link=shown_path(folder))
    return Findings(analysis, found.runs or {}, evidence, compile_speedup(summary), {}, gap=gap)


def study_sizes(
    options: Namespace, program: TrainingProgram, predictor: Predictor
) -> list[SizeRun]:
    """The performance study with profilers, each size's run up to options.max_minutes."""
    names, steps = QUICK_STUDY if options.quick else STUDY
    settings = Settings(num_steps=steps, max_seconds=60 * options.max_minutes, has_profilers=True)
    costs = size_costs(names, settings, options.device, predictor)
    plans = plan_sizes(program, settings, costs)
    return run_sizes(program, settings, plans, options.profile_dir, say)


def measure_findings(
    options: Namespace, program: TrainingProgram, predictor: Predictor
) -> Findings:
    """Everything in turn, up to Ctrl-C or an error, which then is the findings' gap.

    What ends it before the first run is done passes through, and so does OSError.
    """
    predicted = forecasts(predictor, options.device)
    found = analyse(options, program)
    found.forecasts = predicted
    if found.gap:
        return found
    found.runs = measure_all(planned_runs(options), program, options, has_measured=True)
    if not was_interrupted(found.runs):
        try:
            found.results = study_sizes(options, program, predictor)
        except (KeyboardInterrupt, TrainingError, SuiteError) as error:
            found.gap = f"problem sizes: {reason_of(error)}"
    return found


# The plan of version 2, from shares and speedups of the analysis.
QKV, ATTENTION, SWIGLU = "QKV projections", "Attention computation", "SwiGLU gate/up"
FLOP_GROUPS = ("attention/qkv_proj", "attention/core", "ffn")
# One pass over what is bound by memory, outside of FLOP_GROUPS; they share no work.
ONE_PASS = ("fused_norm", "fused_adamw", "fused_rotary")
# What passes over memory once instead of twice.
HALF_THE_TRAFFIC = 2.0
# What an optimization has to bring to be in the plan where it brings no WORTHWHILE_SPEEDUP.
WORTHWHILE_MEMORY, NOT_SLOWER = 0.95, 0.98
NO_GAIN = 1.0


def memory_bound_percent(summary: Json, left_out: Sequence[str] = ()) -> float:
    """Share of the components whose roofline is memory's; `left_out`: paths counted elsewhere."""
    points = summary["flops"]["roofline_data"]["points"]

    def is_bound(name: str) -> bool:
        # the optimizer moves parameters and multiplies nothing, whether or not it has a point
        point = roofline_point(points, name)
        return name == "optimizer" or (point is not None and point["bound"] == "memory")

    bound = [c for c in summary["operators"]["components"] if is_bound(c["name"])]
    return sum(c["percent"] for c in bound) - component_percent(bound, *left_out)


def bounds(summary: Json) -> dict[str, float | None]:
    """What the step's time is bound by, in percent that add up to 100 where all is known.

    Launches first; what is left divides among components by their side of the ridge.
    """
    memory, launches = memory_bound_percent(summary), launch_part(summary)
    left = None if launches is None else 1 - launches
    return {
        "Memory-bound (optimize data movement)": left and left * memory,
        "Compute-bound (optimize kernels)": left and left * max(0.0, 100 - memory),
        "Overhead-bound (optimize launches)": None if launches is None else 100 * launches,
    }


def together(speedups: Sequence[float | None]) -> float | None:
    """Of parts that share no work; what slows the step down is left out of a plan."""
    known = [speedup for speedup in speedups if speedup]
    left = 1 - sum(max(0.0, 1 - 1 / speedup) for speedup in known)
    return 1 / left if known and left > 0 else None


def memory_gain(summary: Json, evidence: Evidence | None) -> tuple[float | None, str]:
    """Speedup of the step by less traffic, and what it rests on.

    From the switches that the ablation measured, else by Amdahl's law.
    """
    found = evidence.speedups if evidence else {}
    measured = {name: found[name] for name in ONE_PASS if name in found}
    if measured:
        text = ", ".join(f"{ratio_text(value)} with {name}" for name, value in measured.items())
        # what may be chance is left out of a plan
        shown_gains = [value.median for value in measured.values() if shows_difference(value)]
        return together([NO_GAIN, *shown_gains]), f"measured: {text}"
    share, part = memory_bound_percent(summary, FLOP_GROUPS), recorded_part(summary)
    if part is None:
        return None, ""
    speedup = amdahl(part * min(share, 100) / 100, HALF_THE_TRAFFIC)
    return speedup, f"assumed: half the traffic, of {part * share:.1f} % of the step"


COMPILED = "peer:compile"


def compile_speedup(summary: Json, results: Path = RESULTS) -> Ratio | None:
    """torch.compile's best over the profiled step, of the newest result of scripts/peers that timed
    both on this device, else of a reference result; None where there is none."""
    of = summary["configuration"]
    point = Point(of["size"], of["dtype"], of["batch_size"], of["seq_len"])
    case = str(point.case(of["variant"]))
    # names of runs begin with the time
    runs = sorted(results.glob("*_peers/peers.json"), reverse=True)
    for path in (*runs, *sorted(results.glob("reference/peers_*.json"))):
        # another device's, or damaged: nobody asked for this file
        with contextlib.suppress(BadInputError):
            context = read_peers(path)["context"]
            found = [
                ratio_of_turns([1.0] * row["turns"], row["of_each_turn"])
                for row in context["peers"]["ratios"]
                if row["case"] == case and row["peer"].startswith(COMPILED)
            ]
            if found and first_difference(context, summary["context"], SAME_DEVICE) is None:
                return max(found, key=lambda ratio: ratio.median)
    return None


def plan_box(
    label: str, speedup: float | None, memory: float | None = None, is_shown: bool = True
) -> str:
    """Whether an optimization is worth it, for time or for memory: a peak over the baseline's.

    `is_shown`: not so where the speedup was measured and may be chance.
    """
    # memory bought with time is another trade than the worksheet's plan is about
    not_slower = speedup is None or speedup >= NOT_SLOWER
    saves = memory is not None and memory <= WORTHWHILE_MEMORY and not_slower
    faster = is_shown and (speedup or 0) >= WORTHWHILE_SPEEDUP
    doubt = "" if is_shown else " (may be chance)"
    reason = f"speedup {shown(speedup, 'x')}{doubt}, peak memory {shown(memory, 'x')}"
    rule = f"rule: from {WORTHWHILE_SPEEDUP}x, or memory up to {WORTHWHILE_MEMORY}x at no loss"
    return box(label, faster or saves, f"{reason}; {rule}")


def equal_losses(runs: Runs) -> tuple[int, int]:
    """Steps whose losses agree to the bit in the two deterministic runs, and all."""
    pair = [[step["loss"] for step in runs[f"deterministic_{n}"]("steps") or []] for n in (1, 2)]
    return sum(a == b for a, b in zip(*pair, strict=False)), max(map(len, pair))


def target_rows(findings: Findings, speedup: float | None, gain: float | None) -> list[Any]:
    """Metric, now, target, and what version 2 reached, as text."""
    runs, analysis = findings.runs, findings.analysis
    base, after, kernels = runs["baseline"], runs["version_2"], "operators.kernels_per_step"
    has_kernels = analysis(kernels) is not None
    key = kernels if has_kernels else "operators.operator_calls_per_step"
    count = "Kernel count per step" if has_kernels else "Operator count per step (CPU)"
    rate, mfu = "summary.samples_per_second", analysis(MFU)
    scores = analysis("memory.breakdown_at_peak.attention_scores")
    # three products a layer fewer, each in forward and twice in backward
    fewer = 3 * 3 * analysis("configuration.n_layers")
    # now, and what it is multiplied by and what is taken off
    rows = (
        ("Training throughput", "samples/sec", base(rate), speedup, 0, after(rate)),
        ("Model FLOPS Utilization", "%", mfu, speedup, 0, mfu and gain and mfu * gain),
        ("Peak memory usage", "MB", base(PEAK), 1, scores, after(PEAK)),
        (count, "", analysis(key), 1, fewer, runs["version_2_profiled"](key)),
    )
    found = []
    for name, unit, now, factor, less, reached in rows:
        target = None if None in (now, factor, less) else now * factor - less
        found.append((name, *(v if v is None else shown(v, unit) for v in (now, target, reached))))
    return found


def plan_values(findings: Findings) -> Json:
    """Of steps 1 to 7 and their questions."""
    runs, evidence = findings.runs, findings.evidence
    summary = findings.analysis.summary or {}
    operators, ranking = summary["operators"], rank_bottlenecks(summary, evidence)
    by_name = {b.name: b for b in ranking}
    # what may be chance is not planned
    best = {name: b.best_known_speedup if b.is_shown else NO_GAIN for name, b in by_name.items()}

    def faster(name: str, other: str = "baseline") -> float | None:
        return ratio(runs[other].step_seconds, runs[name].step_seconds)

    def expected(*names: str) -> float | None:
        """By Amdahl's law over categories that share no work."""
        return together([by_name[name].expected_speedup for name in names])

    overall, gain = expected(QKV, ATTENTION, SWIGLU), faster("version_2")
    compiled, precision = findings.compiled, faster("mixed_precision")
    memory, ground = memory_gain(summary, evidence)
    components = operators["components"]
    suspects = {
        "QKV projection operations": component_percent(components, FLOP_GROUPS[0]),
        "Attention score computation": component_percent(components, FLOP_GROUPS[1]),
        "Feed-forward network": component_percent(components, FLOP_GROUPS[2]),
        "Kernel launch overhead": operators["launch_overhead_percent"],
        "Memory bandwidth": memory_bound_percent(summary, FLOP_GROUPS),
    }
    top = operator_shares(operators)[:TOP]
    return {
        "top": [(*row[:3], row.calls, _target_of(row.name)) for row in top],
        "ranking": ranking,
        "by_name": by_name,
        "quadrants": QUADRANTS,
        "phases": (expected(QKV, SWIGLU), expected(ATTENTION)),
        "overall": overall,
        "gain": gain,
        "scaling_gain": faster("version_2_scaling", "baseline_scaling"),
        "compiled": compiled,
        "layout": evidence and evidence.speedups.get("layout"),
        "precision": precision,
        "plan_box": plan_box,
        "shows_difference": shows_difference,
        "targets": target_rows(findings, overall, gain),
        "equal_losses": equal_losses(runs),
        "shares": group_shares(components),
        "allocations": fragmentation_share(summary),
        "suspects": suspects,
        "largest_suspect": largest_of(suspects),
        "gains": {
            "Kernel fusion (reduce launches)": together([best[QKV], best[SWIGLU]]),
            "Memory optimization (bandwidth)": memory,
            "Algorithmic optimization (attention)": best[ATTENTION],
            "Precision optimization (mixed precision)": precision,
        },
        "gain_notes": {"Memory optimization (bandwidth)": ground},
        "bounds": bounds(summary),
        "candidates": {
            "QKV fusion (immediate benefit)": best[QKV],
            "Flash Attention (biggest impact)": best[ATTENTION],
            "SwiGLU fusion (easy implementation)": best[SWIGLU],
            "Torch compile (automatic optimization)": compiled
            and (compiled.median if shows_difference(compiled) else NO_GAIN),
        },
        "realistic": overall if gain is None else gain,
        "version_2_name": VERSION_2,
        "position": roofline_position(summary["flops"]),
        "positions": POSITIONS,
    }


def _target_of(name: str) -> str:
    """What makes an operator cheaper or rarer."""
    return next(text for pattern, text in TARGETS if re.search(pattern, name, re.IGNORECASE))


# The problem sizes. One is saturated where the next attains less than this much more.
SATURATED_GAIN = 1.10
# What a doubling of the batch has to gain for more than the size's own to be recommended.
BATCH_GAIN = 1.05


def size_row(name: str, run: MeasuredRun) -> Json:
    """The figures of a size. `rate`: model GFLOP a second; `distance`: intensity over that of the
    ridge, below 1 the roofline is memory's; `halved`: speedup where the largest component takes
    half the time."""
    components = run("operators.components") or []
    top = max(components, key=lambda c: c["percent"], default={})
    flops, seconds = run("model.flops_per_step"), run.step_seconds
    scores, kernels = run("memory.breakdown_at_peak.attention_scores"), "operators.kernels_per_step"
    calls = run("operators.operator_calls_per_step")
    return {
        "name": name,
        "run": run,
        "summary": run.summary,
        "parameters": run("model.total_parameters"),
        "speed": run.speed,
        "seconds": seconds,
        "peak": run(PEAK),
        "rate": flops / seconds / 1e9 if flops and seconds else None,
        "scores": share_of(scores, run("memory.peak_bytes")),
        **(group_shares(components) if components else {"attention": None, "ffn": None}),
        "core": component_percent(components, "attention/core") if components else None,
        "top": top.get("name"),
        "top_percent": top.get("percent"),
        "halved": amdahl(min(top["percent"], 99.9) / 100, 2.0) if top else None,
        "operator": (run("operators.table") or [{}])[0],
        "launches": calls if run(kernels) is None else run(kernels),
        "overhead": ratio(run(PEAK), run("model.model_size_bytes")),
        "intensity": run(INTENSITY),
        "distance": ratio(run(INTENSITY), run("flops.roofline_data.ridge_point_flops_per_byte")),
        "mfu": run(MFU),
        "trust": ratio(run("model.predicted_peak_memory_bytes"), run(PEAK)),
    }


def saturated(sizes: Sequence[Json]) -> str | None:
    """The first size after which the attained rate rises by less than a tenth; None without."""
    pairs = itertools.pairwise(size for size in sizes if size["rate"])
    return next((a["name"] for a, b in pairs if b["rate"] < a["rate"] * SATURATED_GAIN), None)


def batch_gain(batches: Sequence[MeasuredRun]) -> float | None:
    """Throughput of the largest measured batch over that of half of it (or the next smaller)."""
    known = [(run("configuration.batch_size"), run.speed) for run in batches if run.speed]
    if len(known) < 2:
        return None
    (before, slow), (after, fast) = known[-2:]
    return (fast / slow) ** (1 / math.log2(after / before)) if after > before else None


def largest_fitting(found: Sequence[CaseCost]) -> CaseCost | None:
    """By parameters, then by batch."""
    fitting = [cost for cost in found if cost.fits]
    return max(fitting, key=lambda cost: (cost.parameters, cost.name.batch), default=None)


def sequence_values(predicted: Mapping[str, Sequence[CaseCost]]) -> Json:
    """Growth of tiny's predicted peak over S, at its first and last three lengths, and the first
    length at which attention without scores saves a tenth of it."""
    lengths = [cost.name.seq for cost in predicted["sequences"]]
    peaks = [cost.predicted_memory_bytes for cost in predicted["sequences"]]
    without = [cost.predicted_memory_bytes for cost in predicted["linear"]]
    scores = [100 * (1 - b / a) for a, b in zip(peaks, without, strict=True)]
    pairs = zip(lengths, scores, strict=True)
    return {
        "short_exponent": growth_exponent(lengths[:3], peaks[:3]),
        "long_exponent": growth_exponent(lengths[-3:], peaks[-3:]),
        "significant_seq": next((seq for seq, share in pairs if share >= 10), None),
    }


def size_values(findings: Findings) -> Json:
    """Of chapter 6."""
    predicted = findings.forecasts
    sizes = [size_row(name, run) for name, run in findings.sizes.items()]
    by_size = {size["name"]: size for size in sizes}
    left_out = {r.size: r.failure or r.refusal for r in findings.results if not r.is_measured}
    medium, gain = largest_fitting(predicted["medium"]), batch_gain(findings.batches)
    recommended = medium and medium.name.batch
    if medium and (gain is None or gain < BATCH_GAIN):
        own = next(cost.name.batch for cost in predicted["own"] if cost.name.size == "medium")
        recommended = min(medium.name.batch, own)

    def exponent(key: str) -> float | None:
        return growth_exponent([s["parameters"] for s in sizes], [s[key] for s in sizes])

    def largest_by(key: str, sign: int = 1) -> str | None:
        return largest_of({s["name"]: s[key] and sign * s[key] for s in sizes})

    return {
        "sizes": sizes,
        "by_size": by_size,
        "all_sizes": [
            {
                "cost": cost,
                "of": by_size.get(name := cost.name.size),
                "reason": left_out.get(name, "" if name in by_size else "not asked for"),
            }
            for cost in predicted["own"]
        ],
        "dimensions": problem_sizes().items(),
        "speed_exponent": exponent("speed"),
        "peak_exponent": exponent("peak"),
        "saturated": saturated(sizes),
        "batches": findings.batches,
        "batch_gain": gain,
        "significant_size": next((s["name"] for s in sizes if (s["scores"] or 0) >= 10), None),
        **sequence_values(predicted),
        "most_used": largest_by("mfu"),
        "most_core": largest_by("core"),
        "most_memory_bound": largest_by("distance", -1),
        "most_compute_bound": largest_by("distance"),
        "medium": medium,
        "recommended_batch": recommended,
        "largest_models": [
            ("as configured", largest_fitting(predicted["own"])),
            ("at batch 1", largest_fitting(predicted["single"])),
            ("at batch 1 with checkpointing", largest_fitting(predicted["lean"])),
        ],
        "target": by_size.get("medium") or sizes[-1],
        "quick": [s["name"] for s in sizes if s["seconds"] and 50 * s["seconds"] <= 300],
    }


def sheet_of(findings: Findings) -> Sheet:
    """The page of whatever was measured; a size that was left out is a finding, no gap."""
    analysis, results = findings.analysis, findings.results
    missing = [
        *filter(None, [findings.gap]),
        *(f"{run.name}: {run.reason}" for run in findings.runs.values() if run.reason),
        *(f"size {result.size}: {result.failure}" for result in results if result.failure),
    ]
    if not findings.sizes and not findings.gap:
        missing.append("no problem size was measured")
    values = {} if missing else {**plan_values(findings), **size_values(findings)}
    notes = [f"{run['name']}: {note}" for run in findings.log["runs"] for note in run["notes"]]
    return make_sheet(
        "exercise_3.md.j2",
        findings.runs,
        missing,
        also=(analysis, *findings.sizes.values()),
        interrupted=findings.gap.endswith(f": {INTERRUPTED_REASON}")
        or any(result.is_interrupted for result in results),
        analysis=analysis,
        log=findings.log,
        notes=notes,
        reports=(f"{ANALYSIS}/{REPORT}", f"{DETAILED}/{REPORT}"),
        **values,
    )


def run_exercise(options: Namespace, program: TrainingProgram) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet.

    Raises TrainingError, SuiteError and OSError where it cannot be carried out at all; from the
    first run on, what is missing is on the page.
    """
    return sheet_of(measure_findings(options, program, partial(ask_costs, options.suite_program)))
