"""Exercise 3: bottlenecks, the plan of version 2, and the study of problem sizes."""

from __future__ import annotations

from argparse import Namespace

from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.exercise_3_plan import step_5, step_6
from tinyllama_tools.exercise_3_questions import (
    criteria,
    hierarchy,
    questions,
    takeaway,
)
from tinyllama_tools.exercise_3_runs import Findings, measure_findings
from tinyllama_tools.exercise_3_scaling import (
    scaling_analysis,
    scaling_table,
)
from tinyllama_tools.exercise_3_size_questions import size_questions
from tinyllama_tools.exercise_3_size_tables import (
    exact_notes,
    profiles_section,
    size_criteria,
    transitions_section,
)
from tinyllama_tools.exercise_3_sizes import SizeStudy
from tinyllama_tools.exercise_3_steps import step_1, step_2, step_3, step_4
from tinyllama_tools.exercise_3_validation import step_7
from tinyllama_tools.exercise_runs import INTERRUPTED as STOPPED
from tinyllama_tools.exercise_runs import was_interrupted
from tinyllama_tools.exercise_sheet import Sheet, failure_lines, head
from tinyllama_tools.study.size_predictions import Predictor, predict

TITLE = "Exercise 3: bottleneck identification and optimization planning"
INTERRUPTED, FAILED = 130, 1


def sizes_part(study: SizeStudy) -> list[str]:
    """Chapter 6 of the walkthrough."""
    return [
        "## Performance study across problem sizes",
        "",
        *scaling_table(study),
        *scaling_analysis(study),
        *transitions_section(study.runs),
        *profiles_section(study.runs),
        *size_questions(study),
        *exact_notes(),
        *size_criteria(study),
    ]


def worksheet(findings: Findings) -> list[str]:
    """The filled-in page of complete findings."""
    run = findings.analysis
    return [
        *step_1(findings),
        *step_2(run),
        *step_3(run),
        *step_4(run),
        *step_5(findings),
        *step_6(findings),
        *step_7(findings),
        *hierarchy(findings),
        *questions(findings),
        *criteria(findings),
        *takeaway(findings),
        *sizes_part(findings.study),
    ]


def missing_parts(findings: Findings) -> list[str]:
    """Why the page cannot be complete; a size that was left out is a finding, no gap."""
    runs = [f"{run.name}: {run.reason}" for run in findings.runs.values() if run.reason]
    sizes = [
        f"size {result.size}: {result.failure}"
        for result in findings.study.results
        if result.failure
    ]
    none = [] if findings.study.runs else ["no problem size was measured"]
    if findings.gap:
        return [findings.gap, *runs, *sizes]
    return runs + sizes + none


def make_sheet(findings: Findings) -> Sheet:
    """The page of whatever was measured, and the command's exit status."""
    title = head(TITLE, [findings.analysis, *findings.runs.values(), *findings.study.runs])
    missing = missing_parts(findings)
    if missing:
        run = findings.analysis
        operators = step_2(run) if run.figure("operators").is_measured else []
        flops = step_3(run) if run.figure("flops").is_measured else []
        page = [*title, *failure_lines(missing), *step_1(findings), *operators, *flops]
        interrupted = (
            findings.gap.endswith(f": {STOPPED}")
            or was_interrupted(findings.runs)
            or any(result.is_interrupted for result in findings.study.results)
        )
        return Sheet("\n".join(page), INTERRUPTED if interrupted else FAILED)
    complete = all(run.is_complete for run in findings.runs.values())
    return Sheet("\n".join([*title, *worksheet(findings)]), 0 if complete else FAILED)


def run_exercise_3(
    options: Namespace, program: TrainingProgram, predictor: Predictor | None = None
) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet.

    Raises TrainingError, SuiteError and OSError where it cannot be carried out at all; from the
    first run on, what is missing is on the page.
    """
    ask = predictor or (lambda question: predict(question, options.suite_program))
    return make_sheet(measure_findings(options, program, ask))
