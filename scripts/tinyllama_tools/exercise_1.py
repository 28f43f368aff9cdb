"""Exercise 1: baseline performance analysis, its runs and its worksheet."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from tinyllama_tools.core.app import RESULTS
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.exercise_1_answers import closing_section, expected_section, questions_section
from tinyllama_tools.exercise_1_bottlenecks import bottleneck_section
from tinyllama_tools.exercise_1_page import (
    MEMORY,
    PLAIN,
    PROFILED,
    BaselineRuns,
    baseline_section,
    observations_section,
    operator_section,
    profiling_section,
    timeline_section,
)
from tinyllama_tools.exercise_1_patterns import patterns_section
from tinyllama_tools.exercise_runs import (
    MeasuredRun,
    PlannedRun,
    has_summary,
    measure_all,
    missing_of,
    was_interrupted,
)
from tinyllama_tools.exercise_sheet import Sheet, failure_lines, head, say

STEPS = 20


def planned_runs(options: Namespace) -> list[PlannedRun]:
    """The worksheet's two commands, and one for the memory timeline and the FLOPS."""
    base = (
        f"--batch-size={options.batch_size}",
        f"--seq-len={options.seq_len}",
        f"--num-steps={STEPS}",
        *options.model,
    )
    operators = ("--enable-pytorch-profiler", "--profile-steps=5")
    return [
        PlannedRun(PLAIN, base),
        PlannedRun(PROFILED, (*base, *operators)),
        PlannedRun(MEMORY, (*base, "--profile-memory", "--enable-deepspeed-flops")),
    ]


def missing_parts(runs: BaselineRuns) -> list[str]:
    """Why the page cannot be complete, a text a run; empty where it can."""
    wanted = ((runs.plain, ()), (runs.profiled, ("operators",)), (runs.memory, ("memory", "flops")))
    return missing_of(wanted)


def worksheet(runs: BaselineRuns, results: Path) -> list[str]:
    """The filled-in page of three complete runs."""
    return [
        *baseline_section(runs.plain),
        *observations_section(runs.plain, runs.memory),
        *profiling_section(runs),
        *operator_section(runs.profiled),
        *timeline_section(runs.memory),
        *patterns_section(runs),
        *bottleneck_section(runs, results),
        *expected_section(runs),
        *questions_section(runs, results / "reference"),
        *closing_section(runs),
    ]


def make_sheet(measured: dict[str, MeasuredRun], results: Path = RESULTS) -> Sheet:
    """The page of whatever was measured, and the command's exit status.

    `results`: where an ablation of this device is looked for.
    """
    runs = BaselineRuns(measured[PLAIN], measured[PROFILED], measured[MEMORY])
    title = head("Exercise 1: baseline performance analysis", list(measured.values()))
    missing = missing_parts(runs)
    if missing:
        step_1 = baseline_section(runs.plain) if runs.plain.summary else []
        page = [*title, *failure_lines(missing), *step_1]
        status = 130 if was_interrupted(measured) else 1
        return Sheet("\n".join(page), status, has_summary(measured))
    page = "\n".join([*title, *worksheet(runs, results)])
    return Sheet(page, 0 if all(run.is_complete for run in measured.values()) else 1)


def run_exercise_1(options: Namespace, program: TrainingProgram) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet."""
    folder, page_folder = options.profile_dir, options.output.parent
    return make_sheet(measure_all(planned_runs(options), program, folder, page_folder, say))
