"""Exercise 3: what it runs and predicts, and the numbers that its answers share."""

from __future__ import annotations

import itertools
import math
import statistics
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.ablation.evidence import Evidence, find_evidence
from tinyllama_tools.ablation.study import ratio_text, read_study, shows_difference
from tinyllama_tools.commands.exercise_rules import component_percent, group_shares
from tinyllama_tools.commands.study import fixed_plans, run_sizes
from tinyllama_tools.commands.study_sizes import PROFILES, Settings, SizeResult, plan_sizes
from tinyllama_tools.commands.worksheet import (
    INTERRUPTED,
    MeasuredRun,
    PlannedRun,
    measure_all,
    median_step_seconds,
    ratio,
    samples_per_second,
    say,
    share_of,
    was_interrupted,
)
from tinyllama_tools.core.app import Json, problem_sizes, write_whole
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.data.programs import SuiteError, TrainingError, TrainingProgram
from tinyllama_tools.models.bottlenecks import Bottleneck, amdahl, rank_bottlenecks, recorded_part
from tinyllama_tools.models.roofline import roofline_point
from tinyllama_tools.models.size_predictions import Prediction, Predictor, Question
from tinyllama_tools.profile.command import ProfileRuns
from tinyllama_tools.profile.page import report_path, report_text
from tinyllama_tools.profile.tables import (
    BASELINE,
    FLOPS,
    MEMORY,
    OPERATORS,
    ProfileSet,
    read_profile_set,
)

ANALYSIS, DETAILED = "bottleneck_analysis", "detailed_analysis"
TOP = 10
STEPS, SHORT_STEPS = 30, 6
STUDY_STEPS, QUICK_STUDY_STEPS = 20, 12
STUDY_SIZES, QUICK_STUDY_SIZES = tuple(problem_sizes()), ("tiny", "small")
# The workshop's version 2, as the suite names the set of its switches.
VERSION_2 = "fused"
SEQUENCES = (64, 128, 256, 512, 1024, 2048, 4096)
MEDIUM_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class AnalysedRun(MeasuredRun):
    """The profile of scripts/profile as one run: each part names the file that it is from."""

    files: dict[str, str] = field(default_factory=dict)

    def source(self, key: str) -> str:
        """`bottleneck_analysis/memory_analysis/performance_summary.json: memory.peak_bytes`."""
        part = key.split(".")[0]
        name = f"{self.name}/{self.files.get(part) or self.files[BASELINE]}".removesuffix("/.")
        return MeasuredRun(name, "").source(key)


@dataclass(frozen=True)
class Findings:
    """All that the worksheet is made of. `log`: profile_runs.json of the analysis.

    `gap`: what ended the measuring early, empty where nothing did.
    """

    analysis: AnalysedRun
    log: Json
    ranking: tuple[Bottleneck, ...]
    evidence: Evidence | None
    runs: dict[str, MeasuredRun]
    study: SizeStudy
    gap: str = ""


def analysed(found: ProfileSet, folder: Path) -> AnalysedRun:
    """The four runs of scripts/profile as one."""
    runs = {run["name"]: run["folder"] for run in (found.runs or {}).get("runs", [])}
    files = {name: runs.get(name, ".") for name in (BASELINE, OPERATORS, MEMORY, FLOPS)}
    command = str((found.runs or {}).get("command", ""))
    return AnalysedRun(folder.name, command, found.merged(), folder=folder, files=files)


def reason_of(error: BaseException) -> str:
    """Ctrl-C or an error, in a word or in its own."""
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else str(error)


def analyse(options: Namespace, program: TrainingProgram) -> tuple[ProfileSet, str]:
    """Step 1: the comprehensive profile, and what of it is missing and why.

    What ends it before its first run is done passes through.
    """
    given = (
        f"--batch-size={options.batch_size}",
        f"--seq-len={options.seq_len}",
        f"--num-steps={STEPS}",
        *options.model,
    )
    folder = options.profile_dir / ANALYSIS
    command = " ".join(["scripts/profile", *given, f"--profile-dir={shown(folder)}"])
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


def write_reports(found: ProfileSet, folder: Path, evidence: Evidence | None) -> None:
    """Step 1's report, and that of step 2 on the operator profile alone."""
    write_whole(report_path(found.folder), report_text(found, TOP, evidence))
    if OPERATORS not in found.profiles:
        return
    operators = read_profile_set(found.folder / "pytorch_profiling")
    detailed = folder / DETAILED
    detailed.mkdir(exist_ok=True)
    write_whole(report_path(detailed), report_text(operators, TOP, evidence))


def other_batches(batch: int) -> tuple[int, int]:
    """Half and double, to see what a larger batch gains."""
    return batch // 2, 2 * batch


def planned_runs(options: Namespace) -> list[PlannedRun]:
    """Version 2 beside the baseline, at the worksheet's two shapes, its memory over S, its
    determinism, mixed precision, and two more batches."""
    batch, seq = options.batch_size, options.seq_len

    def run(name: str, b: int, s: int, steps: int, *more: str) -> PlannedRun:
        sizes = (f"--batch-size={b}", f"--seq-len={s}", f"--num-steps={steps}")
        return PlannedRun(name, (*options.model, *sizes, *more))

    version_2 = f"--variant={VERSION_2}"
    deterministic = (version_2, "--deterministic", "--seed=42")
    return [
        run("baseline", batch, seq, STEPS),
        run("version_2", batch, seq, STEPS, version_2),
        run("version_2_profiled", batch, seq, 12, version_2, "--enable-pytorch-profiler"),
        run("baseline_scaling", 2 * batch, 2 * seq, SHORT_STEPS),
        run("version_2_scaling", 2 * batch, 2 * seq, SHORT_STEPS, version_2),
        run("baseline_long", batch, 4 * seq, SHORT_STEPS),
        run("version_2_long", batch, 4 * seq, SHORT_STEPS, version_2),
        run("deterministic_1", batch, seq, SHORT_STEPS, *deterministic),
        run("deterministic_2", batch, seq, SHORT_STEPS, *deterministic),
        run("mixed_precision", batch, seq, SHORT_STEPS, "--dtype=amp_bf16"),
        *(run(f"batch_{b}", b, seq, SHORT_STEPS) for b in other_batches(batch)),
    ]


def forecasts(predictor: Predictor, device: str) -> Forecasts:
    """Seven questions to the suite's formulas; SuiteError where it cannot answer."""

    def ask(
        sizes: Sequence[str],
        variant: str = "baseline",
        batch: Sequence[int] = (),
        seq: Sequence[int] = (),
    ) -> tuple[Prediction, ...]:
        question = Question(
            tuple(sizes), "f32", (variant,), tuple(batch), tuple(seq), device=device
        )
        return tuple(predictor(question))

    sizes = tuple(problem_sizes())
    return Forecasts(
        own=ask(sizes),
        single=ask(sizes, batch=(1,)),
        lean=ask(sizes, f"{VERSION_2}+checkpoint", batch=(1,)),
        sequences=ask(("tiny",), seq=SEQUENCES),
        linear=ask(("tiny",), "sdpa", seq=SEQUENCES),
        medium=ask(("medium",), batch=MEDIUM_BATCHES),
    )


def study_sizes(
    options: Namespace, program: TrainingProgram, predictor: Predictor
) -> list[SizeResult]:
    """The performance study with profilers, each size's run up to options.max_minutes."""
    names = QUICK_STUDY_SIZES if options.quick else STUDY_SIZES
    steps = QUICK_STUDY_STEPS if options.quick else STUDY_STEPS
    seconds = 60 * options.max_minutes
    settings = Settings(num_steps=steps, max_seconds=seconds, has_profilers=True)
    plans = fixed_plans(names, settings, options.device, predictor)
    plans = plan_sizes(program, settings, [plan.prediction for plan in plans])
    return run_sizes(program, settings, plans, options.profile_dir, say)


def measure_sizes(
    options: Namespace, program: TrainingProgram, predictor: Predictor
) -> tuple[list[SizeResult], str]:
    """The study's results, and what ended it before it had any."""
    try:
        return study_sizes(options, program, predictor), ""
    except (KeyboardInterrupt, TrainingError, SuiteError) as error:
        return [], f"problem sizes: {reason_of(error)}"


def measure_findings(
    options: Namespace, program: TrainingProgram, predictor: Predictor
) -> Findings:
    """Everything in turn, up to Ctrl-C or an error, which then is the findings' gap.

    What ends it before the first run is done passes through, and so does OSError.
    """
    predicted = forecasts(predictor, options.device)
    found, gap = analyse(options, program)
    analysis = analysed(found, options.profile_dir / ANALYSIS)
    evidence = find_evidence(analysis.summary or {})
    folder, page = options.profile_dir, options.output.parent
    write_reports(found, folder, evidence)
    if gap:
        study = SizeStudy((), (), predicted)
        return Findings(analysis, found.runs or {}, (), evidence, {}, study, gap)
    runs = measure_all(planned_runs(options), program, folder, page, say, has_measured=True)
    results: list[SizeResult] = []
    if not was_interrupted(runs):
        results, gap = measure_sizes(options, program, predictor)
    names = ["baseline", *(f"batch_{b}" for b in other_batches(options.batch_size))]
    measured = [runs[name] for name in names if runs[name].summary]
    batches = tuple(sorted(measured, key=lambda run: run.value("configuration.batch_size") or 0))
    ranking = tuple(rank_bottlenecks(analysis.summary or {}, evidence))
    study = SizeStudy(tuple(results), batches, predicted)
    return Findings(analysis, found.runs or {}, ranking, evidence, runs, study, gap)


# What passes over memory once instead of twice.
HALF_THE_TRAFFIC = 2.0
# One pass over what is bound by memory, outside of FLOP_GROUPS; they share no work.
ONE_PASS = ("fused_norm", "fused_adamw", "fused_rotary")


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
        saved = sum(
            max(0.0, 1 - 1 / ratio.median) for _, ratio in measured if shows_difference(ratio)
        )
        return Gain(1 / (1 - saved) if saved < 1 else None, f"measured: {text}")
    percent, part = memory_bound_percent(summary, FLOP_GROUPS), recorded_part(summary)
    if percent is None or part is None:
        return Gain(None, "")
    speedup = amdahl(part * min(percent, 100) / 100, HALF_THE_TRAFFIC)
    return Gain(speedup, f"assumed: half the traffic, of {part * percent:.1f} % of the step")


QKV, ATTENTION, SWIGLU = "QKV projections", "Attention computation", "SwiGLU gate/up"
LAUNCHES = "Kernel launch overhead"
# They share no work, so their savings add up.
DISJOINT = (QKV, ATTENTION, SWIGLU)
FLOP_GROUPS = ("attention/qkv_proj", "attention/core", "ffn")
MEMORY_OPTIMIZATION = "Memory optimization (bandwidth)"


def by_category(ranking: Sequence[Bottleneck]) -> dict[str, Bottleneck]:
    """The six by name."""
    return {found.category: found for found in ranking}


def speedup_together(ranking: Sequence[Bottleneck], names: Sequence[str]) -> float | None:
    """Amdahl over categories that share no work; None where none of them has share and factor."""
    found = [by_category(ranking)[name] for name in names]
    known = [
        ((b.share_percent or 0) / 100, b.factor)
        for b in found
        if b.share_percent is not None and b.factor
    ]
    if not known:
        return None
    left = 1 - sum(share - share / factor for share, factor in known)
    return 1 / left if left > 0 else None


def best_known_together(ranking: Sequence[Bottleneck], names: Sequence[str]) -> float | None:
    """The same from each category's best known speedup, measured where it was; what slows the step
    down is left out of a plan. None where nothing is known of any."""
    speeds = [by_category(ranking)[name].best_known_speedup for name in names]
    known = [speed for speed in speeds if speed]
    left = 1 - sum(max(0.0, 1 - 1 / speed) for speed in known)
    return 1 / left if known and left > 0 else None


def run_speedup(before: MeasuredRun, after: MeasuredRun) -> float | None:
    """Median time of a plain step over the other's."""
    return ratio(median_step_seconds(before)[0], median_step_seconds(after)[0])


def compile_speedup(evidence: Evidence | None) -> float | None:
    """The best of torch.compile's over the eager baseline, from the ablation's file."""
    if evidence is None:
        return None
    peers = read_study(evidence.file).peers
    found = [
        row["speedup"]["median"]
        for row in peers
        if row.get("point") == evidence.point.title and row.get("speedup")
    ]
    return max(found, default=None)


def evidence_speedup(evidence: Evidence | None, switch: str) -> float | None:
    """Median over the ablation's turns."""
    return evidence.speedups[switch].median if evidence and switch in evidence else None


def memory_bound_percent(summary: Json, left_out: Sequence[str] = ()) -> float | None:
    """Share of the components whose roofline is memory's; `left_out`: paths counted elsewhere."""
    operators, flops = summary.get("operators"), summary.get("flops")
    if not operators or not flops:
        return None
    points = flops["roofline_data"]["points"]

    def is_bound(name: str) -> bool:
        # the optimizer moves parameters and multiplies nothing, whether or not it has a point
        point = roofline_point(points, name)
        return name == "optimizer" or (point is not None and point["bound"] == "memory")

    def is_left_out(name: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for path in left_out)

    return sum(
        c["percent"]
        for c in operators["components"]
        if is_bound(c["name"]) and not is_left_out(c["name"])
    )


def bottleneck_shares(summary: Json) -> dict[str, float | None]:
    """The five suspects of question 1, in percent of the recorded work."""
    operators = summary.get("operators")
    if not operators:
        return dict.fromkeys(
            (
                "QKV projection operations",
                "Attention score computation",
                "Feed-forward network",
                "Kernel launch overhead",
                "Memory bandwidth",
            )
        )
    components = operators["components"]
    return {
        "QKV projection operations": component_percent(components, FLOP_GROUPS[0]),
        "Attention score computation": component_percent(components, FLOP_GROUPS[1]),
        "Feed-forward network": component_percent(components, FLOP_GROUPS[2]),
        "Kernel launch overhead": operators["launch_overhead_percent"],
        "Memory bandwidth": memory_bound_percent(summary, FLOP_GROUPS),
    }


@dataclass(frozen=True)
class Bounds:
    """What the step's time is bound by, in percent that add up to 100 where all is known."""

    memory: float | None
    compute: float | None
    overhead: float | None

    def shares(self) -> Mapping[str, float | None]:
        """By the labels of question 3."""
        return {
            "Memory-bound (optimize data movement)": self.memory,
            "Compute-bound (optimize kernels)": self.compute,
            "Overhead-bound (optimize launches)": self.overhead,
        }


def bounds(summary: Json) -> Bounds:
    """Launches first; what is left divides among components by their side of the ridge."""
    memory = memory_bound_percent(summary)
    overhead = (summary.get("operators") or {}).get("launch_overhead_percent")
    if memory is None or overhead is None:
        return Bounds(None, None, overhead)
    overhead = min(overhead, 100.0)
    left = (100 - overhead) / 100
    return Bounds(left * memory, left * max(0.0, 100 - memory), overhead)


def optimization_gains(
    ranking: Sequence[Bottleneck], bandwidth: float | None, precision: float | None
) -> dict[str, float | None]:
    """Speedup of the step by each kind of optimization of question 2."""
    found = by_category(ranking)
    return {
        "Kernel fusion (reduce launches)": best_known_together(ranking, (QKV, SWIGLU)),
        MEMORY_OPTIMIZATION: bandwidth,
        "Algorithmic optimization (attention)": found[ATTENTION].best_known_speedup,
        "Precision optimization (mixed precision)": precision,
    }


# A size is saturated where the next one attains less than this much more.
SATURATED_GAIN = 1.10
# Share of the peak from which attention's memory is called significant.
SIGNIFICANT_PERCENT = 10.0
# What a doubling of the batch has to gain to be worth its memory.
BATCH_GAIN = 1.05
CORE = "attention/core"


def size_run(result: SizeResult) -> MeasuredRun:
    """A size of the study, named by its folder."""
    folder = result.folder
    assert folder is not None
    command = str(result.config.get("command", ""))
    has_profiles = result.config.get("profilers_enabled")
    name = f"{folder.name}/{PROFILES}" if has_profiles else folder.name
    return MeasuredRun(name, command, result.summary, 0, result.failure, folder)


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


@dataclass(frozen=True)
class SizeStudy:
    """`results`: of scripts/study, smallest first. `batches`: runs of one size over the batch."""

    results: tuple[SizeResult, ...]
    batches: tuple[MeasuredRun, ...]
    forecasts: Forecasts

    @property
    def runs(self) -> list[MeasuredRun]:
        """The measured sizes, smallest first."""
        return [size_run(result) for result in self.results if result.is_measured]

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Size and reason of those that were not measured."""
        return [(r.size, r.failure or r.refusal) for r in self.results if not r.is_measured]


def name_of(run: MeasuredRun) -> str:
    """The size's name."""
    return str(run.value("configuration.size"))


def growth_exponent(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Slope of log y over log x; None of fewer than two different positive points."""
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]
    if len({a for a, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def exponent_over_parameters(runs: Sequence[MeasuredRun], key: str) -> float | None:
    """Of a figure over the parameter count."""
    found = [(run.value("model.total_parameters"), run.value(key)) for run in runs]
    known = [(p, v) for p, v in found if p and v]
    return growth_exponent([p for p, _ in known], [v for _, v in known])


def attained(run: MeasuredRun) -> float | None:
    """Model FLOPs a second, profiled steps left out where there are others."""
    speed, _ = samples_per_second(run)
    batch = run.value("configuration.batch_size")
    flops = run.value("model.flops_per_step")
    return speed / batch * flops if speed and batch and flops else None


def saturation(runs: Sequence[MeasuredRun]) -> tuple[str | None, list[tuple[str, float]]]:
    """The smallest size after which the attained rate rises by less than a tenth, and the rates.

    None where the rate still rises at the largest size, or only one was measured.
    """
    rates = [(name_of(run), rate) for run in runs if (rate := attained(run))]
    for (size, rate), (_, following) in itertools.pairwise(rates):
        if following < rate * SATURATED_GAIN:
            return size, rates
    return None, rates


def scores_percent(run: MeasuredRun) -> float | None:
    """Attention scores' share of the peak memory."""
    scores = run.value("memory.breakdown_at_peak.attention_scores")
    return share_of(scores, run.value("memory.peak_bytes"))


def shares(run: MeasuredRun) -> dict[str, float]:
    """attention, ffn, other in percent of the recorded work; empty without operator profile."""
    components = (run.value("operators") or {}).get("components")
    return group_shares(components) if components else {}


def core_percent(run: MeasuredRun) -> float | None:
    """Share of scores, softmax and values: what Flash Attention replaces."""
    components = (run.value("operators") or {}).get("components")
    if not components:
        return None
    return sum(c["percent"] for c in components if c["name"] == CORE)


def overhead_ratio(run: MeasuredRun) -> float | None:
    """Peak memory over the bytes of the parameters."""
    return ratio(run.value("summary.peak_memory_bytes"), run.value("model.model_size_bytes"))


def intensity(run: MeasuredRun) -> float | None:
    """FLOPs a byte of least traffic."""
    return run.value("flops.computational_intensity.arithmetic_intensity_flops_per_byte")


def distance_to_ridge(run: MeasuredRun) -> float | None:
    """Intensity over that of the ridge point: below 1 the roofline is memory's."""
    return ratio(intensity(run), run.value("flops.roofline_data.ridge_point_flops_per_byte"))


def attention_memory_percent(forecasts: Forecasts) -> list[tuple[int, float]]:
    """Sequence length and the share of the predicted peak that linear attention saves."""
    return [
        (whole.seq, 100 * (1 - linear.peak_memory_bytes / whole.peak_memory_bytes))
        for whole, linear in zip(forecasts.sequences, forecasts.linear, strict=True)
    ]


def sequence_exponents(forecasts: Forecasts) -> tuple[float | None, float | None]:
    """Growth of the predicted peak over S: over the first and over the last three lengths."""
    found = [(float(p.seq), p.peak_memory_bytes) for p in forecasts.sequences]
    ends = (found[:3], found[-3:])
    short, long = (growth_exponent([s for s, _ in e], [m for _, m in e]) for e in ends)
    return short, long


def batch_gain(batches: Sequence[MeasuredRun]) -> float | None:
    """Throughput of the largest measured batch over that of half of it (or the next smaller)."""
    speeds = [(r.value("configuration.batch_size"), samples_per_second(r)[0]) for r in batches]
    known = sorted((b, s) for b, s in speeds if b and s)
    if len(known) < 2:
        return None
    (before, slow), (after, fast) = known[-2:]
    doublings = math.log2(after / before)
    return (fast / slow) ** (1 / doublings) if doublings > 0 else None


def largest_fitting(predictions: Sequence[Prediction]) -> Prediction | None:
    """The one with the most parameters, then the largest batch; None where none fits."""
    fitting = [p for p in predictions if p.fits]
    return max(fitting, key=lambda p: (p.parameters, p.batch), default=None)
