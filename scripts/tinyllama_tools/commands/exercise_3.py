"""Exercise 3: bottlenecks, the plan of version 2, and the study of problem sizes."""

from __future__ import annotations

import math
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.commands import exercise_3_rules as rules
from tinyllama_tools.commands.exercise_3_rules import (
    ATTENTION,
    DISJOINT,
    PEAK,
    QKV,
    SWIGLU,
    Forecasts,
    by_category,
    name_of,
    run_speedup,
    speedup_together,
)
from tinyllama_tools.commands.exercise_rules import group_shares
from tinyllama_tools.commands.profile import ProfileRuns
from tinyllama_tools.commands.profile_page import REPORT, report_path, report_text
from tinyllama_tools.commands.profile_tables import (
    FLOPS,
    MEMORY,
    OPERATORS,
    ProfileSet,
    read_profile_set,
)
from tinyllama_tools.commands.study import fixed_plans, run_sizes
from tinyllama_tools.commands.study_sizes import PROFILES, Settings, SizeResult, plan_sizes
from tinyllama_tools.commands.worksheet import (
    INTERRUPTED,
    NOT_MEASURED,
    UTILIZATION,
    MeasuredRun,
    PlannedRun,
    Rule,
    Sheet,
    Verdict,
    all_hold,
    all_of,
    decided,
    expected,
    failure_lines,
    head,
    largest,
    measure_all,
    median_step_seconds,
    megabytes,
    number,
    percent,
    ratio,
    render,
    samples_per_second,
    say,
    times_text,
    was_interrupted,
)
from tinyllama_tools.core.app import Json, problem_sizes, write_whole
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.text import cell, duration
from tinyllama_tools.data.programs import SuiteError, TrainingError, TrainingProgram
from tinyllama_tools.models.ablation_evidence import Evidence, find_evidence
from tinyllama_tools.models.bottlenecks import Bottleneck, fragmentation_share, rank_bottlenecks
from tinyllama_tools.models.size_predictions import Prediction, Predictor, Question, predict

TITLE = "Exercise 3: bottleneck identification and optimization planning"
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
class SizeStudy:
    """`results`: of scripts/study, smallest first. `batches`: runs of one size over the batch."""

    results: tuple[SizeResult, ...]
    batches: tuple[MeasuredRun, ...]
    forecasts: Forecasts

    @property
    def runs(self) -> list[MeasuredRun]:
        """The measured sizes, smallest first."""
        return [size_run(result) for result in self.results if result.is_measured]


def size_run(result: SizeResult) -> MeasuredRun:
    """A size of the study, named by its folder."""
    folder = result.folder or Path()
    name = f"{folder.name}/{PROFILES}" if result.config.get("profilers_enabled") else folder.name
    command = str(result.config.get("command", ""))
    return MeasuredRun(name, command, result.summary, 0, result.failure, folder)


@dataclass(frozen=True)
class Findings:
    """All that the worksheet is made of. `analysis`: the four runs of scripts/profile as one, with
    their profile_runs.json as `log`. `gap`: what ended the measuring early, empty where nothing
    did."""

    analysis: MeasuredRun
    log: Json
    ranking: tuple[Bottleneck, ...]
    evidence: Evidence | None
    runs: dict[str, MeasuredRun]
    study: SizeStudy
    gap: str = ""

    def value(self, key: str) -> Any:  # noqa: ANN401
        """Of the analysis."""
        return self.analysis.value(key)


def reason_of(error: BaseException) -> str:
    """Ctrl-C or an error, in a word or in its own."""
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else str(error)


def analyse(options: Namespace, program: TrainingProgram) -> tuple[ProfileSet, str]:
    """Step 1: the comprehensive profile, and what of it is missing and why.

    What ends it before its first run is done passes through.
    """
    sizes = (f"--batch-size={options.batch_size}", f"--seq-len={options.seq_len}")
    given = (*sizes, f"--num-steps={STEPS}", *options.model)
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
    if OPERATORS in found.profiles:
        detailed = folder / DETAILED
        detailed.mkdir(exist_ok=True)
        operators = read_profile_set(found.folder / "pytorch_profiling")
        write_whole(report_path(detailed), report_text(operators, TOP, evidence))


def planned_runs(options: Namespace) -> list[PlannedRun]:
    """Version 2 beside the baseline, at the worksheet's two shapes, its memory over S, its
    determinism, mixed precision, and half and double of the batch."""
    b, s, short = options.batch_size, options.seq_len, SHORT_STEPS
    version_2 = f"--variant={VERSION_2}"
    fixed = (version_2, "--deterministic", "--seed=42")
    rows: tuple[tuple[str, int, int, int, tuple[str, ...]], ...] = (
        ("baseline", b, s, STEPS, ()),
        ("version_2", b, s, STEPS, (version_2,)),
        ("version_2_profiled", b, s, 12, (version_2, "--enable-pytorch-profiler")),
        ("baseline_scaling", 2 * b, 2 * s, short, ()),
        ("version_2_scaling", 2 * b, 2 * s, short, (version_2,)),
        ("baseline_long", b, 4 * s, short, ()),
        ("version_2_long", b, 4 * s, short, (version_2,)),
        ("deterministic_1", b, s, short, fixed),
        ("deterministic_2", b, s, short, fixed),
        ("mixed_precision", b, s, short, ("--dtype=amp_bf16",)),
        (f"batch_{b // 2}", b // 2, s, short, ()),
        (f"batch_{2 * b}", 2 * b, s, short, ()),
    )
    return [
        PlannedRun(
            name,
            (
                *options.model,
                f"--batch-size={batch}",
                f"--seq-len={seq}",
                f"--num-steps={steps}",
                *more,
            ),
        )
        for name, batch, seq, steps, more in rows
    ]


def forecasts(predictor: Predictor, device: str) -> Forecasts:
    """Six questions to the suite's predictions; SuiteError where it cannot answer."""

    def ask(
        sizes: Sequence[str],
        variant: str = "baseline",
        batch: Sequence[int] = (),
        seq: Sequence[int] = (),
    ) -> tuple[Prediction, ...]:
        shape = (tuple(batch), tuple(seq))
        return tuple(predictor(Question(tuple(sizes), "f32", (variant,), *shape, device=device)))

    sizes = tuple(problem_sizes())
    return Forecasts(
        own=ask(sizes),
        single=ask(sizes, batch=(1,)),
        lean=ask(sizes, f"{VERSION_2}+checkpoint", batch=(1,)),
        sequences=ask(("tiny",), seq=SEQUENCES),
        linear=ask(("tiny",), "sdpa", seq=SEQUENCES),
        medium=ask(("medium",), batch=MEDIUM_BATCHES),
    )


def measure_sizes(
    options: Namespace, program: TrainingProgram, predictor: Predictor
) -> tuple[list[SizeResult], str]:
    """The study with profilers, each size's run up to options.max_minutes; and what ended it before
    it had any result."""
    names = QUICK_STUDY_SIZES if options.quick else STUDY_SIZES
    steps = QUICK_STUDY_STEPS if options.quick else STUDY_STEPS
    limit = 60 * options.max_minutes
    settings = Settings(num_steps=steps, max_seconds=limit, has_profilers=True)
    try:
        plans = fixed_plans(names, settings, options.device, predictor)
        plans = plan_sizes(program, settings, [plan.prediction for plan in plans])
        return run_sizes(program, settings, plans, options.profile_dir, say), ""
    except (KeyboardInterrupt, TrainingError, SuiteError) as error:
        return [], f"problem sizes: {reason_of(error)}"


def measure_findings(
    options: Namespace, program: TrainingProgram, predictor: Predictor
) -> Findings:
    """One after the other, up to Ctrl-C or an error, which then is the findings' gap.

    What ends it before the first run is done passes through, and so does OSError.
    """
    predicted = forecasts(predictor, options.device)
    found, gap = analyse(options, program)
    log, folder = found.runs or {}, options.profile_dir
    analysis = MeasuredRun(ANALYSIS, str(log.get("command", "")), found.merged(), folder=folder)
    evidence = find_evidence(analysis.summary or {})
    write_reports(found, folder, evidence)
    if gap:
        return Findings(analysis, log, (), evidence, {}, SizeStudy((), (), predicted), gap)
    planned = planned_runs(options)
    runs = measure_all(planned, program, folder, options.output.parent, say, has_measured=True)
    results: list[SizeResult] = []
    if not was_interrupted(runs):
        results, gap = measure_sizes(options, program, predictor)
    names = [name for name in runs if name == "baseline" or name.startswith("batch_")]
    measured = [runs[name] for name in names if runs[name].summary]
    batches = sorted(measured, key=lambda run: run.value("configuration.batch_size") or 0)
    ranking = tuple(rank_bottlenecks(analysis.summary or {}, evidence))
    study = SizeStudy(tuple(results), tuple(batches), predicted)
    return Findings(analysis, log, ranking, evidence, runs, study, gap)


QUADRANTS = {
    1: "High Impact, Low Effort (Priority 1)",
    2: "High Impact, High Effort (Priority 2)",
    3: "Low Impact, Low Effort (Priority 3)",
    4: "Low Impact, High Effort (Priority 4 - Skip)",
}


def ranking_row(b: Bottleneck) -> tuple[str, ...]:
    """Of step 5's table."""
    limit = "" if b.upper_bound is None else f", at most {times_text(b.upper_bound)}"
    return (
        b.category,
        percent(b.share_percent),
        b.difficulty,
        f"{times_text(b.expected_speedup)}{limit} (worksheet: {b.worksheet_speedup})",
        b.measured.text() if b.measured else "not measured on this device",
        str(b.priority),
    )


def plan_of(f: Findings) -> Json:
    """Step 6: what is in the plan, and what it brings by Amdahl's law and measured."""
    found = by_category(f.ranking)
    base, after, mixed = (f.runs[n] for n in ("baseline", "version_2", "mixed_precision"))
    long_peaks = [f.runs[name].value(PEAK) for name in ("version_2_long", "baseline_long")]
    long_ratio = ratio(*long_peaks)
    missing = "on this device: scripts/ablation and scripts/peers measure it"
    compiled = rules.compile_speedup(f.evidence)
    layout = f.evidence.speedups.get("layout") if f.evidence else None
    precision = (run_speedup(base, mixed), ratio(mixed.value(PEAK), base.value(PEAK)))
    return {
        "qkv": rules.of_category(found[QKV]),
        "swiglu": rules.of_category(found[SWIGLU]),
        "flash": rules.of_category(found[ATTENTION], long_ratio),
        "long_peaks": long_peaks,
        "long_ratio": long_ratio,
        "phase_1": speedup_together(f.ranking, (QKV, SWIGLU)),
        "phase_2": speedup_together(f.ranking, (ATTENTION,)),
        "compiled": rules.worthwhile(compiled, None, "measured" if compiled else missing),
        "layout": rules.worthwhile(
            layout and layout.median, None, "measured" if layout else missing
        ),
        "precision": rules.worthwhile(*precision, "measured"),
        "overall": speedup_together(f.ranking, DISJOINT),
        "measured": run_speedup(base, after),
    }


def scaled(value: float | None, factor: float | None) -> float | None:
    """None where either is not known."""
    return None if value is None or factor is None else value * factor


def target_rows(f: Findings, plan: Json) -> list[tuple[str, str, str, str]]:
    """Step 7: metric, now, target, reached by version 2."""
    base, after, profiled = (
        f.runs[name] for name in ("baseline", "version_2", "version_2_profiled")
    )
    speed = [run.value("summary.samples_per_second") for run in (base, after)]
    mfu, peaks = f.value(UTILIZATION), [run.value(PEAK) for run in (base, after)]
    scores = f.value("memory.breakdown_at_peak.attention_scores")
    has_kernels = f.value("operators.kernels_per_step") is not None
    key = f"operators.{'kernels' if has_kernels else 'operator_calls'}_per_step"
    calls, fewer = f.value(key), 3 * 3 * (f.value("configuration.n_layers") or 0)
    peak_target = None if peaks[0] is None or scores is None else peaks[0] - scores
    return [
        (
            "Training throughput",
            *(
                number(value, "samples/sec")
                for value in (speed[0], scaled(speed[0], plan["overall"]), speed[1])
            ),
        ),
        (
            "Model FLOPS Utilization",
            *map(percent, (mfu, scaled(mfu, plan["overall"]), scaled(mfu, plan["measured"]))),
        ),
        ("Peak memory usage", *map(megabytes, (peaks[0], peak_target, peaks[1]))),
        (
            "Kernel count per step" if has_kernels else "Operator count per step (CPU)",
            number(calls),
            number(None if calls is None else calls - fewer),
            number(profiled.value(key)),
        ),
    ]


def shape(run: MeasuredRun) -> str:
    """Batch and sequence of a run."""
    batch, seq = run.value("configuration.batch_size"), run.value("configuration.seq_len")
    return f"Batch size {number(batch)}, sequence length {number(seq)}"


def validation(runs: dict[str, MeasuredRun]) -> list[Rule]:
    """Step 7: the validation tests, carried out on version 2."""
    base, after, big, after_big = (
        runs[f"{name}{shape}"] for shape in ("", "_scaling") for name in ("baseline", "version_2")
    )
    rule = f"`{VERSION_2}` is faster than the baseline"
    return decided(
        {
            f"{shape(base)} (baseline comparison)": rules.faster(base, after, 1.0, rule),
            f"{shape(big)} (scaling test)": rules.faster(big, after_big, 1.0, rule),
            "Memory scaling with sequence length": rules.memory_growth(runs),
            "Numerical accuracy validation (loss convergence)": rules.same_loss(base, after),
        }
    )


def gates(runs: dict[str, MeasuredRun]) -> list[Rule]:
    """Step 7: the quality gates of version 2."""
    base, after = runs["baseline"], runs["version_2"]
    memory = ratio(after.value(PEAK), base.value(PEAK))
    stable = Verdict(
        memory is not None and memory <= rules.MEMORY_STABLE,
        f"{megabytes(after.value(PEAK))} against {megabytes(base.value(PEAK))}, "
        f"{times_text(memory)}; rule: up to {rules.MEMORY_STABLE}x",
    )
    gate = rules.THROUGHPUT_GATE
    same = rules.deterministic(runs["deterministic_1"], runs["deterministic_2"])
    return decided(
        {
            "No degradation in model accuracy": rules.same_loss(base, after),
            "Deterministic execution maintained": same,
            "Memory usage reduced or stable": stable,
            "Throughput improved by >30%": rules.faster(base, after, gate, f"above {gate}x"),
        }
    )


def questions(f: Findings, plan: Json) -> Json:
    """The boxes of the five analysis questions, and the realistic target that the last rests on."""
    summary, found = f.analysis.summary or {}, by_category(f.ranking)
    bandwidth = rules.memory_gain(summary, f.evidence)
    gains = {
        "Kernel fusion (reduce launches)": rules.best_known_together(f.ranking, (QKV, SWIGLU)),
        rules.MEMORY_OPTIMIZATION: bandwidth.speedup,
        "Algorithmic optimization (attention)": found[ATTENTION].best_known_speedup,
        "Precision optimization (mixed precision)": run_speedup(
            f.runs["baseline"], f.runs["mixed_precision"]
        ),
    }
    first = {
        "QKV fusion (immediate benefit)": found[QKV].best_known_speedup,
        "Flash Attention (biggest impact)": found[ATTENTION].best_known_speedup,
        "SwiGLU fusion (easy implementation)": found[SWIGLU].best_known_speedup,
        "Torch compile (automatic optimization)": rules.compile_speedup(f.evidence),
    }
    target, what = plan["overall"], "expected by Amdahl's law"
    if plan["measured"] is not None:
        target, what = plan["measured"], f"measured with `{VERSION_2}`"
    suspects = rules.bottleneck_shares(summary)
    step = "speedup of the step"
    grounds = {rules.MEMORY_OPTIMIZATION: bandwidth.reason}
    return {
        "suspects": rules.largest_rules(suspects, "share of the recorded work", "%", {}),
        "gains": rules.largest_rules(gains, step, "x", grounds),
        "kinds": rules.kind_rules(summary),
        "first": rules.largest_rules(first, step, "x", {}),
        "targets": rules.target_rules(target, what),
        "target": f"{times_text(target)} {what}: {expected(target, 1.5, 2.0, 'x')}",
        "largest": largest(suspects) or NOT_MEASURED,
    }


def hierarchy_rows(f: Findings) -> list[tuple[str, ...]]:
    """`Typical bottleneck hierarchy`, held against this profile."""
    shares = group_shares(f.value("operators.components"))
    rows = (
        ("Attention operations", shares["attention"], 35, 45),
        ("Feed-forward network", shares["ffn"], 25, 35),
        ("Kernel launch overhead", f.value("operators.launch_overhead_percent"), 10, 20),
        (
            "Memory operations (allocations)",
            fragmentation_share(f.analysis.summary or {}).percent,
            5,
            15,
        ),
    )
    return [
        (name, f"{low}-{high} %", percent(share), expected(share, low, high, "%"))
        for name, share, low, high in rows
    ]


def criteria(f: Findings, targets: Sequence[Sequence[str]]) -> list[Rule]:
    """Deliverables and success criteria."""
    operators = len(rules.operator_shares(f.value("operators")))
    passed = sum(rule.verdict(f).holds for rule in validation(f.runs))
    total, known = len(f.ranking), [b.share_percent is not None for b in f.ranking]
    found = {
        "Comprehensive bottleneck analysis completed": Verdict(
            operators >= TOP, f"{operators} operators in the table; rule: ten or more"
        ),
        "Performance bottlenecks quantified and ranked": all_of(
            sum(known), total, "bottlenecks have a share"
        ),
        "Optimization roadmap created with priorities": all_of(
            sum(b.quadrant is not None for b in f.ranking), total, "are in the matrix"
        ),
        "Success metrics defined for Version 2": all_of(
            sum(NOT_MEASURED not in row[2] for row in targets), len(targets), "targets"
        ),
        "Implementation plan validated": all_of(passed, 4, "validation tests pass"),
    }
    ready = all_hold(list(found.values()), "criteria above hold")
    return decided({**found, "Ready to begin Version 2 optimizations": ready})


def scaling_rows(study: SizeStudy) -> list[tuple[str, ...]]:
    """All five sizes: those that were not run with their reason."""
    by_name = {name_of(run): run for run in study.runs}
    reasons = {r.size: r.failure or r.refusal for r in study.results if not r.is_measured}
    rows = []
    for prediction in study.forecasts.own:
        size, run = prediction.size, by_name.get(prediction.size)
        if run is None:
            reason = f"not run: {reasons.get(size, 'not asked for')}"
            peak = f"{prediction.peak_memory_bytes / 2**20:,.0f} (predicted)"
            rows.append((size, f"{prediction.parameters:,}", reason, peak, "not run"))
            continue
        seconds = median_step_seconds(run)
        rows.append(
            (
                size,
                f"{run.value('model.total_parameters'):,}",
                number(samples_per_second(run)),
                f"{(run.value(PEAK) or 0) / 2**20:,.1f}",
                f"{seconds:.4g}" if seconds else "-",
            )
        )
    return rows


def size_criteria(runs: Sequence[MeasuredRun]) -> list[Rule]:
    """`Exercise Complete When` of chapter 6."""
    names = [name_of(run) for run in runs]
    power = rules.power_text(runs, "summary.samples_per_second")
    recorded = sum(
        run.value(key) is not None for run in runs for key in (PEAK, "summary.samples_per_second")
    )
    size, rates = rules.saturation(runs)
    profiled = sum(rules.core_percent(run) is not None for run in runs)
    found = {
        "At least 2 problem sizes tested (tiny + one other)": Verdict(
            len(names) >= 2 and "tiny" in names,
            f"{len(names)} measured ({', '.join(names) or 'none'}); rule: tiny and one other",
        ),
        "Scaling patterns documented": Verdict(
            power != rules.FEW_SIZES, f"throughput: {power}; rule: an exponent is known"
        ),
        "Memory and throughput metrics recorded": Verdict(
            recorded == 2 * len(runs) > 0, f"{recorded} of {2 * len(runs)} figures; rule: all"
        ),
        "Performance characteristics understood": Verdict(
            len(rates) >= 2,
            f"saturated at {size or 'none'} of {len(rates)} rates; rule: two or more",
        ),
        "Optimization priorities identified": Verdict(
            profiled > 0, f"{profiled} sizes have component shares; rule: at least 1"
        ),
    }
    ready = all_hold(list(found.values()), "hold")
    return decided({**found, "Ready to compare with optimized versions": ready})


def step_1(f: Findings) -> Json:
    """What the template's part about the profiling run takes, complete or not."""
    notes = [f"{run['name']}: {note}" for run in f.log["runs"] for note in run["notes"]]
    return {
        "f": f,
        "runtime": f"{f.log['total_seconds']:.1f} seconds ({duration(f.log['total_seconds'])})",
        "place": shown(f.analysis.folder / ANALYSIS),
        "reports": f"{ANALYSIS}/{REPORT}",
        "detailed": f"{DETAILED}/{REPORT}",
        "warnings": cell("; ".join(notes)) if notes else "none",
        "operator_rows": rules.operator_rows(f.value("operators") or {"table": []})
        if f.value("operators")
        else [],
        "MFU_CLASSES": rules.MFU_CLASSES,
    }


def worksheet(f: Findings) -> list[str]:
    """The filled-in page of complete findings."""
    plan, runs = plan_of(f), f.study.runs
    targets = target_rows(f, plan)
    folders = [re.sub(r"^performance_results_", "", run.name) for run in runs]
    evidence = f"{f.evidence.file.name}, at {f.evidence.point.title}" if f.evidence else ""
    return render(
        "exercise_3.md.j2",
        f,
        **step_1(f),
        r=rules,
        sizes=runs,
        BOUND_CLASSES=rules.BOUND_CLASSES,
        positions=rules.position_rules(f.analysis),
        ranking=[ranking_row(b) for b in f.ranking],
        QUADRANTS=QUADRANTS,
        evidence=evidence,
        plan=plan,
        disjoint=", ".join(DISJOINT),
        VERSION_2=VERSION_2,
        targets=targets,
        validation=validation(f.runs),
        gates=gates(f.runs),
        hierarchy=hierarchy_rows(f),
        questions=questions(f, plan),
        criteria=criteria(f, targets),
        scaling=scaling_rows(f.study),
        folders=folders,
        problem_sizes=problem_sizes(),
        size_criteria=size_criteria(runs),
        is_finite=math.isfinite,
    )


def missing_parts(f: Findings) -> list[str]:
    """Why the page cannot be complete; a size that was left out is a finding, no gap."""
    found = [f.gap] if f.gap else []
    found += [f"{run.name}: {run.reason}" for run in f.runs.values() if run.reason]
    found += [f"size {r.size}: {r.failure}" for r in f.study.results if r.failure]
    return found or ([] if f.study.runs else ["no problem size was measured"])


def make_sheet(f: Findings) -> Sheet:
    """The page of whatever was measured, and the command's exit status."""
    title = head(TITLE, [f.analysis, *f.runs.values(), *f.study.runs])
    missing = missing_parts(f)
    if missing:
        parts = render("exercise_3_profile.md.j2", f, **step_1(f))
        is_interrupted = (
            f.gap.endswith(f": {INTERRUPTED}")
            or was_interrupted(f.runs)
            or any(result.is_interrupted for result in f.study.results)
        )
        return Sheet(
            "\n".join([*title, *failure_lines(missing), *parts]), 130 if is_interrupted else 1
        )
    is_complete = all(run.is_complete for run in f.runs.values())
    return Sheet("\n".join([*title, *worksheet(f)]), 0 if is_complete else 1)


def run_exercise_3(
    options: Namespace, program: TrainingProgram, predictor: Predictor | None = None
) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet.

    Raises TrainingError, SuiteError and OSError where it cannot be carried out at all; from the
    first run on, what is missing is on the page.
    """
    ask = predictor or (lambda question: predict(question, options.suite_program))
    return make_sheet(measure_findings(options, program, ask))
