"""Exercise 3, bottlenecks, the plan of version 2 and the problem sizes: its runs and numbers."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.commands.profile import ProfileRuns
from tinyllama_tools.commands.profile_page import REPORT, report_path, report_text
from tinyllama_tools.commands.profile_tables import (
    FLOPS,
    MEMORY,
    OPERATORS,
    ProfileSet,
    operator_shares,
    read_profile_set,
)
from tinyllama_tools.commands.study import fixed_plans, run_sizes
from tinyllama_tools.commands.study_sizes import PROFILES, Settings, SizeResult, plan_sizes
from tinyllama_tools.commands.worksheet import (
    INTENSITY,
    INTERRUPTED,
    UTILIZATION,
    Held,
    MeasuredRun,
    Plan,
    Sheet,
    decide,
    largest_of,
    make_sheet,
    measure_all,
    number,
    percent,
    ratio,
    say,
    share_of,
    times,
    was_interrupted,
)
from tinyllama_tools.core.app import Json, problem_sizes, shown_path, write_whole
from tinyllama_tools.core.text import duration
from tinyllama_tools.data.programs import SuiteError, TrainingError, TrainingProgram
from tinyllama_tools.models.ablation_evidence import Evidence, find_evidence
from tinyllama_tools.models.ablations import ratio_text, read_study, shows_difference
from tinyllama_tools.models.bottlenecks import (
    WORTHWHILE_SPEEDUP,
    Bottleneck,
    amdahl,
    fragmentation_share,
    rank_bottlenecks,
    recorded_part,
)
from tinyllama_tools.models.optimization_effects import (
    COPIES,
    PRODUCTS,
    component_percent,
    group_shares,
)
from tinyllama_tools.models.roofline import (
    ON_THE_ROOF_PERCENT,
    POSITIONS,
    roofline_point,
    roofline_position,
)
from tinyllama_tools.models.size_predictions import Prediction, Predictor, Question, predict

TITLE = "Exercise 3: bottleneck identification and optimization planning"
ANALYSIS, DETAILED = "bottleneck_analysis", "detailed_analysis"
TOP, STEPS, SHORT_STEPS = 10, 30, 6
# Sizes and steps of the study, and those of a smoke test.
STUDY, QUICK_STUDY = (tuple(problem_sizes()), 20), (("tiny", "small"), 12)
# The workshop's version 2, as the suite names the set of its switches.
VERSION_2 = "fused"
SEQUENCES = (64, 128, 256, 512, 1024, 2048, 4096)
MEDIUM_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
PEAK = "summary.peak_memory_bytes"
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


def target_of(name: str) -> str:
    """What makes an operator cheaper or rarer."""
    return next(text for pattern, text in TARGETS if re.search(pattern, name, re.IGNORECASE))


@dataclass(frozen=True)
class Forecasts:
    """Predictions of steps that were not run.

    `own`: the five sizes as configured; `single`: at batch 1; `lean`: at batch 1 with
    checkpointing; `sequences`: one size over S, `linear`: the same with attention that keeps no
    scores; `medium`: that size over the batch.
    """

    own: Sequence[Prediction]
    single: Sequence[Prediction]
    lean: Sequence[Prediction]
    sequences: Sequence[Prediction]
    linear: Sequence[Prediction]
    medium: Sequence[Prediction]


@dataclass(frozen=True)
class SizeStudy:
    """`results`: of scripts/study, smallest first. `batches`: runs of one size over the batch."""

    results: Sequence[SizeResult]
    batches: Sequence[MeasuredRun]
    forecasts: Forecasts

    @property
    def runs(self) -> dict[str, MeasuredRun]:
        """The measured sizes by name, smallest first."""
        found = {}
        for result in self.results:
            if result.is_measured and result.folder is not None:
                more = f"/{PROFILES}" if result.config.get("profilers_enabled") else ""
                command, name = str(result.config.get("command", "")), result.folder.name + more
                found[result.size] = MeasuredRun(name, command, result.summary)
        return found


@dataclass(frozen=True)
class Findings:
    """All that the worksheet is made of. `log`: profile_runs.json of the analysis.

    `gap`: what ended the measuring early, empty where nothing did.
    """

    analysis: MeasuredRun
    log: Json
    ranking: Sequence[Bottleneck]
    evidence: Evidence | None
    runs: dict[str, MeasuredRun]
    study: SizeStudy
    gap: str = ""


def reason_of(error: BaseException) -> str:
    """Ctrl-C or an error, in a word or in its own."""
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else str(error)


def analyse(options: Namespace, program: TrainingProgram) -> tuple[ProfileSet, str]:
    """Step 1: the comprehensive profile, and what of it is missing and why.

    What ends it before its first run is done passes through.
    """
    shape = (f"--batch-size={options.batch_size}", f"--seq-len={options.seq_len}")
    given = (*shape, f"--num-steps={STEPS}", *options.model)
    folder = options.profile_dir / ANALYSIS
    command = " ".join(["scripts/profile", *given, f"--profile-dir={shown_path(folder)}"])
    runs, gap = ProfileRuns(program, folder, given, command, say), ""
    try:
        runs.all()
    except (KeyboardInterrupt, TrainingError) as error:
        if not runs.runs:
            raise
        gap = f"{ANALYSIS}: {reason_of(error)}"
    found = read_profile_set(folder)
    lacks = [name for name in (OPERATORS, MEMORY, FLOPS) if name not in found.profiles]
    if lacks and not gap:
        gap = f"{ANALYSIS}: no profile of {', '.join(lacks)}: the loss was not finite"
    return found, gap


def write_reports(found: ProfileSet, options: Namespace, evidence: Evidence | None) -> None:
    """Step 1's report, and that of step 2 on the operator profile alone."""
    write_whole(report_path(found.folder), report_text(found, TOP, evidence))
    if OPERATORS in found.profiles:
        operators = read_profile_set(found.folder / "pytorch_profiling")
        detailed = options.profile_dir / DETAILED
        detailed.mkdir(exist_ok=True)
        write_whole(report_path(detailed), report_text(operators, TOP, evidence))


def planned_runs(options: Namespace) -> Plan:
    """Version 2 beside the baseline, at the worksheet's two shapes, its memory over S, its
    determinism, mixed precision, and two more batches to see what a larger one gains."""
    batch, seq, version_2 = options.batch_size, options.seq_len, f"--variant={VERSION_2}"
    same = (batch, seq, SHORT_STEPS, version_2, "--deterministic", "--seed=42")
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
        name: (
            *options.model,
            f"--batch-size={b}",
            f"--seq-len={s}",
            f"--num-steps={steps}",
            *map(str, more),
        )
        for name, (b, s, steps, *more) in table.items()
    }


def forecasts(predictor: Predictor, device: str) -> Forecasts:
    """Six questions to the suite's formulas; SuiteError where it cannot answer."""

    def ask(
        sizes: Sequence[str] = tuple(problem_sizes()),
        variant: str = "baseline",
        batch: Sequence[int] = (),
        seq: Sequence[int] = (),
    ) -> list[Prediction]:
        asked = (tuple(sizes), "f32", (variant,), tuple(batch), tuple(seq))
        return predictor(Question(*asked, device=device))

    return Forecasts(
        own=ask(),
        single=ask(batch=(1,)),
        lean=ask(variant=f"{VERSION_2}+checkpoint", batch=(1,)),
        sequences=ask(("tiny",), seq=SEQUENCES),
        linear=ask(("tiny",), "sdpa", seq=SEQUENCES),
        medium=ask(("medium",), batch=MEDIUM_BATCHES),
    )


def study_sizes(
    options: Namespace, program: TrainingProgram, predictor: Predictor
) -> list[SizeResult]:
    """The performance study with profilers, each size's run up to options.max_minutes."""
    names, steps = QUICK_STUDY if options.quick else STUDY
    settings = Settings(num_steps=steps, max_seconds=60 * options.max_minutes, has_profilers=True)
    plans = fixed_plans(names, settings, options.device, predictor)
    plans = plan_sizes(program, settings, [plan.prediction for plan in plans])
    return run_sizes(program, settings, plans, options.profile_dir, say)


def measure_findings(
    options: Namespace, program: TrainingProgram, predictor: Predictor
) -> Findings:
    """Everything in turn, up to Ctrl-C or an error, which then is the findings' gap.

    What ends it before the first run is done passes through, and so does OSError.
    """
    predicted = forecasts(predictor, options.device)
    found, gap = analyse(options, program)
    log = found.runs or {}
    analysis = MeasuredRun(
        ANALYSIS, str(log.get("command", "")), found.merged(), folder=options.profile_dir / ANALYSIS
    )
    evidence = find_evidence(analysis.summary or {})
    write_reports(found, options, evidence)
    if gap:
        return Findings(analysis, log, (), evidence, {}, SizeStudy((), (), predicted), gap)
    folder, page = options.profile_dir, options.output.parent
    runs = measure_all(planned_runs(options), program, folder, page, has_measured=True)
    results: list[SizeResult] = []
    if not was_interrupted(runs):
        try:
            results = study_sizes(options, program, predictor)
        except (KeyboardInterrupt, TrainingError, SuiteError) as error:
            gap = f"problem sizes: {reason_of(error)}"
    names = ("baseline", *(name for name in runs if name.startswith("batch_")))
    measured = [runs[name] for name in names if runs[name].summary]
    batches = sorted(measured, key=lambda run: run("configuration.batch_size"))
    ranking = rank_bottlenecks(analysis.summary or {}, evidence)
    return Findings(
        analysis, log, ranking, evidence, runs, SizeStudy(results, batches, predicted), gap
    )


# Shares and speedups of the analysis.
QKV, ATTENTION, SWIGLU = "QKV projections", "Attention computation", "SwiGLU gate/up"
# They share no work, so their savings add up.
DISJOINT = (QKV, ATTENTION, SWIGLU)
FLOP_GROUPS = ("attention/qkv_proj", "attention/core", "ffn")
# One pass over what is bound by memory, outside of FLOP_GROUPS; they share no work.
ONE_PASS = ("fused_norm", "fused_adamw", "fused_rotary")
# What passes over memory once instead of twice.
HALF_THE_TRAFFIC = 2.0
# What an optimization has to bring to be in the plan where it brings no WORTHWHILE_SPEEDUP.
WORTHWHILE_MEMORY, NOT_SLOWER = 0.95, 0.98


def memory_bound_percent(summary: Json, left_out: Sequence[str] = ()) -> float | None:
    """Share of the components whose roofline is memory's; `left_out`: paths counted elsewhere."""
    operators, flops = summary.get("operators"), summary.get("flops")
    if not operators or not flops:
        return None

    def is_bound(name: str) -> bool:
        # the optimizer moves parameters and multiplies nothing, whether or not it has a point
        point = roofline_point(flops["roofline_data"]["points"], name)
        return name == "optimizer" or (point is not None and point["bound"] == "memory")

    bound = [c for c in operators["components"] if is_bound(c["name"])]
    return sum(c["percent"] for c in bound) - component_percent(bound, *left_out)


def launches_percent(summary: Json) -> float | None:
    """At most all of the step."""
    found = summary["operators"]["launch_overhead_percent"]
    return None if found is None else min(found, 100.0)


def bounds(summary: Json) -> dict[str, float | None]:
    """What the step's time is bound by, in percent that add up to 100 where all is known.

    Launches first; what is left divides among components by their side of the ridge.
    """
    memory, overhead = memory_bound_percent(summary), launches_percent(summary)
    left = None if overhead is None or memory is None else (100 - overhead) / 100
    return {
        "Memory-bound (optimize data movement)": left and left * (memory or 0),
        "Compute-bound (optimize kernels)": left and left * max(0.0, 100 - (memory or 0)),
        "Overhead-bound (optimize launches)": overhead,
    }


def together(speedups: Sequence[float | None]) -> float | None:
    """Of parts that share no work; what slows the step down is left out of a plan."""
    known = [speedup for speedup in speedups if speedup]
    left = 1 - sum(max(0.0, 1 - 1 / speedup) for speedup in known)
    return 1 / left if known and left > 0 else None


def expected_together(ranking: Mapping[str, Bottleneck], *names: str) -> float | None:
    """Amdahl over categories that share no work; None where none has share and factor."""
    found = [(ranking[name].share_percent, ranking[name].factor) for name in names]
    known = [(share / 100, factor) for share, factor in found if share is not None and factor]
    if not known:
        return None
    left = 1 - sum(share - share / factor for share, factor in known)
    return 1 / left if left > 0 else None


def memory_gain(summary: Json, evidence: Evidence | None) -> tuple[float | None, str]:
    """Speedup of the step by less traffic, and what it rests on.

    From the switches that the ablation measured, else by Amdahl's law.
    """
    found = evidence.speedups if evidence else {}
    measured = {name: found[name] for name in ONE_PASS if name in found}
    if measured:
        text = ", ".join(f"{ratio_text(value)} with {name}" for name, value in measured.items())
        # what may be chance is left out of a plan
        shown = [value.median for value in measured.values() if shows_difference(value)]
        return together([1.0, *shown]), f"measured: {text}"
    share, part = memory_bound_percent(summary, FLOP_GROUPS), recorded_part(summary)
    if share is None or part is None:
        return None, ""
    speedup = amdahl(part * min(share, 100) / 100, HALF_THE_TRAFFIC)
    return speedup, f"assumed: half the traffic, of {part * share:.1f} % of the step"


def compile_speedup(evidence: Evidence | None) -> float | None:
    """The best of torch.compile's over the eager baseline, from the ablation's file."""
    peers = read_study(evidence.file).peers if evidence else []
    here = [row for row in peers if evidence and row.get("point") == evidence.point.title]
    return max((row["speedup"]["median"] for row in here if row.get("speedup")), default=None)


def plan_tick(
    label: str, speedup: float | None, memory: float | None, what: str, is_shown: bool = True
) -> str:
    """Whether an optimization is worth it, for time or for memory: a peak over the baseline's.

    `is_shown`: not so where the speedup was measured and may be chance.
    """
    rule, text = f"rule: from {WORTHWHILE_SPEEDUP}x", f"{times(speedup)} {what}"
    if memory is not None:
        text += f", peak memory {memory:.2f}x"
        rule += f", or a peak of {WORTHWHILE_MEMORY:g}x or less at {NOT_SLOWER}x or more"
    if not is_shown:
        rule += "; `~`: no difference was shown"
    # memory bought with time is another trade than the worksheet's plan is about
    not_slower = speedup is None or speedup >= NOT_SLOWER
    saves = memory is not None and memory <= WORTHWHILE_MEMORY and not_slower
    faster = is_shown and (speedup or 0) >= WORTHWHILE_SPEEDUP
    return decide(label, faster or saves, f"{text}; {rule}")


def equal_losses(runs: Mapping[str, MeasuredRun]) -> tuple[int, int]:
    """Steps whose losses agree to the bit in the two deterministic runs, and all."""
    pair = [[step["loss"] for step in runs[f"deterministic_{n}"]("steps") or []] for n in (1, 2)]
    return sum(a == b for a, b in zip(*pair, strict=False)), max(map(len, pair))


def target_rows(findings: Findings, speedup: float | None, gain: float | None) -> list[Json]:
    """Metric, now, target, and what version 2 reached."""
    runs, analysis = findings.runs, findings.analysis
    base, after = runs["baseline"], runs["version_2"]
    kernels = "operators.kernels_per_step"
    has_kernels = analysis(kernels) is not None
    key = kernels if has_kernels else "operators.operator_calls_per_step"
    # three products a layer fewer, each in forward and twice in backward
    fewer = 3 * 3 * (analysis("configuration.n_layers") or 0)
    scores, mfu = analysis("memory.breakdown_at_peak.attention_scores"), analysis(UTILIZATION)
    speed, peak, calls = base("summary.samples_per_second"), base(PEAK), analysis(key)

    def times_(value: float | None, factor: float | None) -> float | None:
        return None if value is None or factor is None else value * factor

    def less(value: float | None, part: float | None) -> float | None:
        return None if value is None or part is None else value - part

    count = "Kernel count per step" if has_kernels else "Operator count per step (CPU)"
    rows = (
        (
            "Training throughput",
            "samples/sec",
            speed,
            times_(speed, speedup),
            after("summary.samples_per_second"),
        ),
        ("Model FLOPS Utilization", "%", mfu, times_(mfu, speedup), times_(mfu, gain)),
        ("Peak memory usage", "MB", peak, less(peak, scores), after(PEAK)),
        (count, "", calls, less(calls, fewer), runs["version_2_profiled"](key)),
    )
    return [dict(zip(("name", "unit", "now", "target", "reached"), r, strict=True)) for r in rows]


def plan_values(findings: Findings) -> Json:
    """Of steps 5 to 7 and their questions."""
    analysis, runs, evidence = findings.analysis, findings.runs, findings.evidence
    summary = analysis.summary or {}
    operators = summary["operators"]
    found = {b.category: b for b in findings.ranking}

    def faster(name: str, other: str = "baseline") -> float | None:
        return ratio(runs[other].step_seconds, runs[name].step_seconds)

    overall, gain = expected_together(found, *DISJOINT), faster("version_2")
    precision, (bandwidth, ground) = faster("mixed_precision"), memory_gain(summary, evidence)
    compiled = compile_speedup(evidence)
    layout = evidence.speedups["layout"].median if evidence and "layout" in evidence else None
    best = {name: b.best_known_speedup for name, b in found.items()}
    components = operators["components"]
    suspects = {
        "QKV projection operations": component_percent(components, FLOP_GROUPS[0]),
        "Attention score computation": component_percent(components, FLOP_GROUPS[1]),
        "Feed-forward network": component_percent(components, FLOP_GROUPS[2]),
        "Kernel launch overhead": operators["launch_overhead_percent"],
        "Memory bandwidth": memory_bound_percent(summary, FLOP_GROUPS),
    }
    return {
        "ranking": findings.ranking,
        "by_name": found,
        "evidence": evidence,
        "phases": (expected_together(found, QKV, SWIGLU), expected_together(found, ATTENTION)),
        "overall": overall,
        "disjoint": ", ".join(DISJOINT),
        "gain": gain,
        "scaling_gain": faster("version_2_scaling", "baseline_scaling"),
        "compiled": compiled,
        "layout": layout,
        "precision": precision,
        "plan_tick": plan_tick,
        "targets": target_rows(findings, overall, gain),
        "equal_losses": equal_losses(runs),
        "shares": group_shares(components),
        "allocations": fragmentation_share(summary).percent,
        "suspects": suspects,
        "largest_suspect": largest_of(suspects),
        "gains": {
            "Kernel fusion (reduce launches)": together([best[QKV], best[SWIGLU]]),
            "Memory optimization (bandwidth)": bandwidth,
            "Algorithmic optimization (attention)": best[ATTENTION],
            "Precision optimization (mixed precision)": precision,
        },
        "gain_grounds": {"Memory optimization (bandwidth)": ground},
        "bounds": bounds(summary),
        "candidates": {
            "QKV fusion (immediate benefit)": best[QKV],
            "Flash Attention (biggest impact)": best[ATTENTION],
            "SwiGLU fusion (easy implementation)": best[SWIGLU],
            "Torch compile (automatic optimization)": compiled,
        },
        "realistic": overall if gain is None else gain,
        "realistic_from": "expected by Amdahl's law"
        if gain is None
        else f"measured with `{VERSION_2}`",
        "version_2_name": VERSION_2,
    }


# The problem sizes. One is saturated where the next attains less than this much more.
SATURATED_GAIN = 1.10


def growth_exponent(x: Sequence[float], y: Sequence[float | None]) -> float | None:
    """Slope of log y over log x; None of fewer than two different positive points."""
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a and b and b > 0]
    if len({a for a, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def size_row(name: str, run: MeasuredRun) -> Json:
    """The figures of a size. `rate`: model FLOPs a second; `distance`: intensity over that of the
    ridge, below 1 the roofline is memory's."""
    operators, speed = run("operators") or {}, run.speed
    components = operators.get("components") or []
    core = [c["percent"] for c in components if c["name"] == "attention/core"]
    steps_a_second = ratio(speed, run("configuration.batch_size"))
    flops, ridge = (
        run("model.flops_per_step"),
        run("flops.roofline_data.ridge_point_flops_per_byte"),
    )
    scores = run("memory.breakdown_at_peak.attention_scores")
    return {
        "name": name,
        "run": run,
        "speed": speed,
        "peak": run(PEAK),
        "rate": steps_a_second * flops if steps_a_second and flops else None,
        "scores": share_of(scores, run("memory.peak_bytes")),
        "shares": group_shares(components) if components else {"attention": None, "ffn": None},
        "core": sum(core) if components else None,
        "top": max(components, key=lambda c: c["percent"], default=None),
        "operator": (operators.get("table") or [{"name": "not measured", "share_percent": None}])[
            0
        ],
        "overhead": ratio(run(PEAK), run("model.model_size_bytes")),
        "intensity": run(INTENSITY),
        "distance": ratio(run(INTENSITY), ridge),
        "mfu": run(UTILIZATION),
        "trust": ratio(run("model.predicted_peak_memory_bytes"), run(PEAK)),
    }


def saturated(sizes: Sequence[Json]) -> str | None:
    """The first size after which the attained rate rises by less than a tenth; None without."""
    known = [size for size in sizes if size["rate"]]
    pairs = itertools.pairwise(known)
    return next((a["name"] for a, b in pairs if b["rate"] < a["rate"] * SATURATED_GAIN), None)


def batch_gain(batches: Sequence[MeasuredRun]) -> float | None:
    """Throughput of the largest measured batch over that of half of it (or the next smaller)."""
    known = [(run("configuration.batch_size"), run.speed) for run in batches if run.speed]
    if len(known) < 2:
        return None
    (before, slow), (after, fast) = known[-2:]
    return (fast / slow) ** (1 / math.log2(after / before)) if after > before else None


def each(sizes: Sequence[Json], key: str, unit: str) -> str:
    """`tiny 3.1 %, small 2.9 %`."""
    show: Callable[[Held], str] = percent if unit == "%" else lambda v: number(v) + unit
    return ", ".join(f"{size['name']} {show(size[key])}" for size in sizes)


def size_values(study: SizeStudy) -> Json:
    """Of chapter 6."""
    predicted = study.forecasts
    sizes = [size_row(name, run) for name, run in study.runs.items()]
    parameters = [size["run"]("model.total_parameters") for size in sizes]
    over = [(float(p.seq), p.peak_memory_bytes) for p in predicted.sequences]

    def largest_fitting(found: Sequence[Prediction]) -> Prediction | None:
        fitting = [p for p in found if p.fits]
        return max(fitting, key=lambda p: (p.parameters, p.batch), default=None)

    def exponent(key: str) -> float | None:
        return growth_exponent(parameters, [size["run"](key) for size in sizes])

    return {
        "sizes": sizes,
        "by_size": {size["name"]: size for size in sizes},
        "left_out": {r.size: r.failure or r.refusal for r in study.results if not r.is_measured},
        "forecasts": predicted,
        "dimensions": problem_sizes(),
        "each": each,
        "speed_exponent": exponent("summary.samples_per_second"),
        "peak_exponent": exponent(PEAK),
        "saturated": saturated(sizes),
        "batches": study.batches,
        "batch_gain": batch_gain(study.batches),
        # Share of the predicted peak that linear attention saves.
        "attention_over_seq": [
            (whole.seq, 100 * (1 - linear.peak_memory_bytes / whole.peak_memory_bytes))
            for whole, linear in zip(predicted.sequences, predicted.linear, strict=True)
        ],
        # Growth of the predicted peak over S: over the first and over the last three lengths.
        "short_exponent": growth_exponent(*zip(*over[:3], strict=True)),
        "long_exponent": growth_exponent(*zip(*over[-3:], strict=True)),
        "largest_sizes": [
            largest_fitting(f) for f in (predicted.own, predicted.single, predicted.lean)
        ],
        "halved": lambda share: amdahl(min(share, 99.9) / 100, 2.0),
    }


def sheet_of(findings: Findings) -> Sheet:
    """The page of whatever was measured; a size that was left out is a finding, no gap."""
    analysis, results = findings.analysis, findings.study.results
    failed = [f"{run.name}: {run.reason}" for run in findings.runs.values() if run.reason]
    failed += [f"size {result.size}: {result.failure}" for result in results if result.failure]
    none = [] if findings.study.runs or findings.gap else ["no problem size was measured"]
    missing = [*([findings.gap] if findings.gap else []), *failed, *none]
    operators = analysis("operators")
    values = {} if missing else {**plan_values(findings), **size_values(findings.study)}
    notes = [f"{run['name']}: {note}" for run in findings.log["runs"] for note in run["notes"]]
    return make_sheet(
        "exercise_3.md.j2",
        findings.runs,
        missing,
        also=(analysis, *findings.study.runs.values()),
        interrupted=findings.gap.endswith(f": {INTERRUPTED}")
        or any(result.is_interrupted for result in results),
        title=TITLE,
        analysis=analysis,
        place=shown_path(analysis.folder),
        log=findings.log,
        notes=notes,
        runtime=duration(findings.log["total_seconds"]),
        report=REPORT,
        detailed=DETAILED,
        operator_rows=operator_shares(operators) if operators else [],
        target_of=target_of,
        position=roofline_position((analysis.summary or {}).get("flops")),
        positions=POSITIONS,
        on_the_roof=ON_THE_ROOF_PERCENT,
        **values,
    )


def run_exercise(
    options: Namespace, program: TrainingProgram, predictor: Predictor | None = None
) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet.

    Raises TrainingError, SuiteError and OSError where it cannot be carried out at all; from the
    first run on, what is missing is on the page.
    """
    ask = predictor or (lambda question: predict(question, options.suite_program))
    return sheet_of(measure_findings(options, program, ask))
