"""Makes or continues a grid: its folder, costs, rounds, products, check and frontier."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    BadInputError,
    ended_as_by_ctrl_c,
    run_folder,
)
from tinyllama_tools.core.text import duration
from tinyllama_tools.core.text import shown_path as shown
from tinyllama_tools.data.programs import SuiteError
from tinyllama_tools.data.studies import KIND, STUDY, journal_of, round_file
from tinyllama_tools.grid_study.afterwards import (
    costs_of,
    planned_names,
    write_frontier,
    write_products,
)
from tinyllama_tools.grid_study.bench_process import StoppedError
from tinyllama_tools.grid_study.check import write_check
from tinyllama_tools.grid_study.plan import GridPlan, axis_options
from tinyllama_tools.grid_study.progress import GridProgress, expected_weights
from tinyllama_tools.grid_study.record import Record, read_record, write_record
from tinyllama_tools.grid_study.rounds import GridStudy, has_failures, run_rounds

FAILED, BAD = 1, 2
Say = Callable[[str], None]


def complain(text: str) -> None:
    """On standard error."""
    print(f"scripts/study: {text}", file=sys.stderr, flush=True)


def bench_of(build_folder: Path) -> Path:
    """The program in a build."""
    return build_folder / "benchmarks/tiny_llama_bench"


def check_plan(plan: GridPlan, build_folder: Path) -> int:
    """The number of cases; SuiteError where the program refuses the plan."""
    return len(planned_names(bench_of(build_folder), axis_options(plan)))


def plan_text(plan: GridPlan, cases: int) -> str:
    """What a grid would measure."""
    return (
        f"Grid: {cases} cases of {len(plan.components)} components, {plan.in_words()} "
        f"({plan.dtype}, {', '.join(plan.variants)}),\n"
        f"in {plan.rounds} rounds, the later ones as far as {plan.minutes:g} minutes go, beside "
        f"some minutes for matrix products{_check_text(plan)}."
    )


def _check_text(plan: GridPlan) -> str:
    return f" and steps of {plan.check_size}" if plan.is_checked else ""


def _kept_name(build_folder: Path) -> str:
    whole = build_folder.resolve()
    return str(whole.relative_to(PROJECT)) if whole.is_relative_to(PROJECT) else str(whole)


def begin_study(plan: GridPlan, build_folder: Path, results: Path, command: str) -> GridStudy:
    """Makes the folder. OSError where it cannot be made."""
    record = Record(plan, command, _kept_name(build_folder))
    folder = run_folder(KIND, results)
    folder.mkdir(parents=True)
    write_record(folder, record)
    return GridStudy(folder, bench_of(build_folder), record)


def drop_study(study: GridStudy) -> None:
    """Removes the folder of one that has measured nothing."""
    if [path.name for path in study.folder.iterdir()] == [STUDY]:
        (study.folder / STUDY).unlink()
        study.folder.rmdir()


def unfinished_study(folder: Path, build_folder: Path | None) -> GridStudy:
    """As it was begun, unless another build folder is given. BadInputError for a bad study.json."""
    record = read_record(folder)
    used = build_folder or PROJECT / record.build_folder
    return GridStudy(folder, bench_of(used), record)


def resuming(study: GridStudy) -> str:
    """The command that goes on with it, and that it does."""
    results = study.folder.parent
    place = "" if results.resolve() == RESULTS.resolve() else f" --results {results}"
    return f"scripts/study --resume{place} continues"


def _make(study: GridStudy, say: Say) -> int:
    names = planned_names(study.program, axis_options(study.record.plan))
    costs = costs_of(study)
    progress = GridProgress(expected_weights(costs), sys.stderr)
    say(f"{plan_text(study.record.plan, len(names))}\nOutput Directory: {shown(study.folder)}")
    run_rounds(study, names, progress)
    write_products(study, progress)
    write_check(study, costs, progress)
    try:
        write_frontier(study, progress)
    except (SuiteError, BadInputError) as error:
        # not finished: --resume tries it again
        complain(f"frontier.json is left out: {error}; {resuming(study)}")
        return FAILED
    status = FAILED if has_failures(study) else 0
    now = datetime.datetime.now(datetime.timezone.utc)
    study.keep(replace(study.record, finished=now.isoformat(timespec="seconds")))
    return status


def _ending(study: GridStudy) -> str:
    record = study.record
    lines = [
        f"Grid: {record.rounds_done} of {record.plan.rounds} rounds in "
        f"{duration(record.seconds_spent)}; their files are in {shown(study.folder)}:"
    ]
    lines += [f"  {shown(path)}" for path in sorted(study.folder.glob("*.json"))]
    if record.left_out:
        lines.append(record.left_out)
    lines.append("scripts/report makes the page of it.")
    return "\n".join(lines)


def _stopped(study: GridStudy, error: Exception) -> None:
    complain(str(error))
    if "--resume: journal" in str(error):
        complain(
            "the grid was begun with another build, commit or machine: go back to it, or begin "
            "a new one with the command of study.json"
        )
    elif journal_of(round_file(study.folder, 1)).exists():
        complain(f"what was measured is in {shown(study.folder)}; {resuming(study)}")


def run_study(study: GridStudy, say: Say) -> int:
    """Measures what the study lacks; the exit status of scripts/study.

    Whatever ends it early keeps what was measured and says how to go on. OSError where a file
    cannot be written.
    """
    try:
        with ended_as_by_ctrl_c():
            status = _make(study, say)
    except KeyboardInterrupt:
        done = f"{study.record.rounds_done} of {study.record.plan.rounds} rounds are done"
        complain(f"interrupted: {done}, and nothing is lost; {resuming(study)}")
        return INTERRUPTED
    except StoppedError as error:
        _stopped(study, error)
        return error.exit_status
    except SuiteError as error:
        _stopped(study, error)
        return BAD
    say(_ending(study))
    return status
