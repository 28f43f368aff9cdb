"""Exercise 2: memory analysis, its runs and its worksheet."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path

from tinyllama_tools.core.app import RESULTS
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.exercise_2_answers import (
    closing_section,
    expected_section,
    questions_section,
    ranking_section,
    signs_section,
)
from tinyllama_tools.exercise_2_limit import Limit, confirming_run, limit_section, predict_limit
from tinyllama_tools.exercise_2_runs import MemoryRuns, collect, missing_parts, planned_runs
from tinyllama_tools.exercise_2_scaling import batch_section, sequence_section
from tinyllama_tools.exercise_2_timeline import (
    bandwidth_section,
    hotspot_section,
    timeline_section,
)
from tinyllama_tools.exercise_runs import (
    MeasuredRun,
    has_summary,
    measure_all,
    was_interrupted,
)
from tinyllama_tools.exercise_sheet import Sheet, failure_lines, head, say
from tinyllama_tools.memory_optimizations import known_effects
from tinyllama_tools.study.size_predictions import Predictor, predict


def worksheet(runs: MemoryRuns, limit: Limit, references: Path) -> list[str]:
    """The filled-in page."""
    effects, origin = known_effects(runs.base, references)
    return [
        *batch_section(runs),
        *timeline_section(runs),
        *sequence_section(runs, limit_section(limit)),
        *hotspot_section(runs.hotspots),
        *bandwidth_section(runs.bandwidth),
        *signs_section(runs),
        *ranking_section(runs, effects, origin),
        *expected_section(runs),
        *questions_section(runs, effects, origin),
        *closing_section(runs, effects, origin),
    ]


def exit_status(measured: dict[str, MeasuredRun]) -> int:
    """1 where a run failed, be it that its size did not fit; the page answers with the rest."""
    if was_interrupted(measured):
        return 130
    return 0 if all(run.is_complete for run in measured.values()) else 1


def make_sheet(
    measured: dict[str, MeasuredRun],
    options: Namespace,
    limit: Limit,
    references: Path = RESULTS / "reference",
) -> Sheet:
    """The page of whatever was measured, and the command's exit status."""
    runs = collect(measured, options)
    title = head("Exercise 2: memory analysis", list(measured.values()))
    missing = missing_parts(runs)
    if missing:
        status = exit_status(measured) or 1
        page = "\n".join([*title, *failure_lines(missing)])
        return Sheet(page, status, has_summary(measured))
    page = "\n".join([*title, *worksheet(runs, limit, references)])
    return Sheet(page, exit_status(measured))


def measure_limit(
    runs: MemoryRuns, options: Namespace, program: TrainingProgram, predictor: Predictor
) -> Limit:
    """Predicts the longest sequence and confirms it by a step."""
    say("longest sequence: asking tiny_llama_bench --dry-run")
    limit = predict_limit(runs, options, predictor)
    planned = confirming_run(limit, options)
    if planned is None:
        return limit
    folder, page_folder = options.profile_dir, options.output.parent
    measured = measure_all([planned], program, folder, page_folder, say, has_measured=True)
    return replace(limit, run=measured[planned.name])


def run_exercise_2(
    options: Namespace, program: TrainingProgram, predictor: Predictor | None = None
) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet.

    `predictor`: in the place of tiny_llama_bench --dry-run, for tests.
    """
    folder, page_folder = options.profile_dir, options.output.parent
    measured = measure_all(planned_runs(options), program, folder, page_folder, say)
    runs = collect(measured, options)
    limit = Limit(runs.batch, None, "interrupted before")
    if not was_interrupted(measured) and not missing_parts(runs):
        asked = predictor or partial(predict, program=options.suite_program)
        limit = measure_limit(runs, options, program, asked)
        if limit.run is not None:
            measured[limit.run.name] = limit.run
    return make_sheet(measured, options, limit)
