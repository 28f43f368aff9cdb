"""What exercise 3 runs and predicts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.ablation_evidence import Evidence, find_evidence
from tinyllama_tools.bottlenecks import Bottleneck, rank_bottlenecks
from tinyllama_tools.core.app import Json, write_whole
from tinyllama_tools.core.text import shown_path as shown
from tinyllama_tools.data.programs import SuiteError, TrainingError, TrainingProgram, problem_sizes
from tinyllama_tools.exercise_3_sizes import Forecasts, SizeStudy
from tinyllama_tools.exercise_runs import (
    INTERRUPTED,
    MeasuredRun,
    PlannedRun,
    measure_all,
    was_interrupted,
)
from tinyllama_tools.exercise_sheet import say
from tinyllama_tools.profile_page import report_path, report_text
from tinyllama_tools.profile_runs import ProfileRuns
from tinyllama_tools.profile_set import (
    BASELINE,
    FLOPS,
    MEMORY,
    OPERATORS,
    ProfileSet,
    read_profile_set,
)
from tinyllama_tools.study.command import fixed_plans, run_sizes
from tinyllama_tools.study.size_predictions import Prediction, Predictor, Question
from tinyllama_tools.study.training import Settings, SizeResult, plan_sizes

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
