"""scripts/study: trains each problem size that fits, compares them, and measures the grid."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    problem_sizes,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.options import DTYPES, list_of, minutes, positive, script_parser
from tinyllama_tools.core.process import Progress
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.study.grid import (
    begin_study,
    check_plan,
    drop_study,
    plan_text,
    resuming,
    run_study,
    unfinished_study,
)
from tinyllama_tools.study.grid_plan import add_grid_options, finish_grid_options
from tinyllama_tools.study.page import banner, comparison, ending, next_steps, study_page
from tinyllama_tools.study.size_predictions import Predictor, Question, predict
from tinyllama_tools.study.training import (
    Settings,
    SizePlan,
    SizeResult,
    earlier_rate,
    plan_sizes,
    plan_table,
    plan_with_rate,
    run_size,
    study_folder,
    with_earlier,
)

EPILOG = """\
Each size goes to results/performance_results_SIZE_TIME/: config.json, training_output.log,
performance_summary.json and, with --enable-profilers, pytorch_profiles/. A size that does not fit
in memory or would take longer than --max-minutes is said beforehand and not attempted.
Ctrl-C keeps the sizes that are done and writes the tables from them.

The grid goes to results/TIME_grid/: study.json, round_1.json, ..., products.json, check.json,
costs.json and frontier.json. Lists are 8 or 4,8,16 or '64:512:*2'. Ctrl-C keeps every case that was
measured, and scripts/study --resume [--results FOLDER] [--build-folder DIR] goes on from there with
the grid; sizes that were not trained yet stay so.

Exit status: 0 all measured, or left out with a reason; 1 some run failed; 2 bad option, the set-up
failed, or files that cannot be written; 130 interrupted."""


def make_parser() -> argparse.ArgumentParser:
    """All options."""
    names = tuple(problem_sizes())
    parser = script_parser(
        "study",
        "The performance study: trains each problem size and compares them, and "
        "measures every component over batch x sequence x size.",
        EPILOG,
    )
    add = parser.add_argument
    add("sizes", nargs="*", type=list_of(names, "size"), metavar="SIZE", help=", ".join(names))
    add("--enable-profilers", action="store_true", help="operators, memory and FLOPS as well")
    add("--num-steps", type=positive, default=50, help="of each size (default: 50)")
    add("--max-minutes", type=minutes, default=15.0, help="of each size (default: 15)")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--dtype", type=str, choices=DTYPES, default="f32", help="default: f32")
    add("--variant", default="baseline", help="baseline, fused, optimized or switches joined by +")
    add("--dry-run", action="store_true", help="say what would be run, and run nothing")
    add("--results", type=Path, default=RESULTS, help="folder of the folders (default: results)")
    add("--build-folder", type=Path, default=PROJECT / "build", help="default: build")
    add_grid_options(parser)
    return parser


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """`sizes` is a tuple without repetition; `grid_plan`, `trains` and `unfinished` say what is to
    be done. A bad value ends the program with status 2."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    options.sizes = tuple(dict.fromkeys(name for names in options.sizes for name in names))
    finish_grid_options(parser, options)
    return options


FAILED, BAD = 1, 2
Say = Callable[[str], None]


def say_line(text: str) -> None:
    """To standard output at once, also into a pipe."""
    print(text, flush=True)


def settings_of(options: argparse.Namespace) -> Settings:
    """The part of the options that all sizes share."""
    return Settings(
        options.dtype,
        options.variant,
        options.num_steps,
        60 * options.max_minutes,
        options.enable_profilers,
    )


def fixed_plans(
    sizes: Sequence[str], settings: Settings, device: str, predictor: Predictor
) -> list[SizePlan]:
    """Without any run: whether each size fits; no times."""
    question = Question(tuple(sizes), settings.dtype, (settings.variant,), device=device)
    found = {prediction.size: prediction for prediction in predictor(question)}
    return [SizePlan(found[s], settings.num_steps, refusal=found[s].refusal) for s in sizes]


def dry_run_text(settings: Settings, plans: Sequence[SizePlan], results: Path) -> str:
    """What would be run, at the rates of earlier studies where there are any."""
    with_rates = [
        plan_with_rate(settings, plan.prediction, earlier_rate(results, settings, plan.prediction))
        for plan in plans
    ]
    rates = dict.fromkeys(plan.rate.source for plan in with_rates if plan.rate)
    sources = [f"Expected from {source}." for source in rates] or [
        "Nothing was run with these settings so far, so no time is expected."
    ]
    return "\n".join([*plan_table(with_rates), "", *sources])


def run_sizes(
    program: TrainingProgram,
    settings: Settings,
    plans: Sequence[SizePlan],
    results: Path,
    say: Say = say_line,
) -> list[SizeResult]:
    """Runs what the plans do not refuse, in order; stops at an interruption.

    Raises OSError where a folder cannot be written.
    """
    found: list[SizeResult] = []
    for plan in plans:
        if plan.refusal:
            found.append(SizeResult(plan.size, refusal=plan.refusal))
            continue
        if plan.failure:
            found.append(SizeResult(plan.size, failure=plan.failure))
            continue
        folder = study_folder(results, plan.size)
        folder.mkdir(parents=True)
        say(banner(settings, plan, problem_sizes()[plan.size], folder))
        result = run_size(program, settings, plan, folder, Progress())
        found.append(result)
        say(ending(plan, result))
        if result.is_interrupted:
            break
    started = {result.size for result in found}
    return found + [
        SizeResult(plan.size, refusal=plan.refusal or "interrupted before its turn")
        for plan in plans
        if plan.size not in started
    ]


def write_page(
    settings: Settings, found: Sequence[SizeResult], results: Path, command: str
) -> Path:
    """The comparison as Markdown."""
    now = datetime.datetime.now(datetime.timezone.utc)
    page = results / f"performance_study_{now.strftime('%Y%m%d_%H%M%S')}.md"
    results.mkdir(parents=True, exist_ok=True)
    write_whole(page, study_page(settings, found, command))
    return page


def exit_status(found: Sequence[SizeResult]) -> int:
    """130 where it was interrupted, 1 where a run failed."""
    if any(result.is_interrupted for result in found):
        return INTERRUPTED
    return FAILED if any(result.failure for result in found) else 0


def study(
    options: argparse.Namespace,
    program: TrainingProgram,
    command: str,
    predictor: Predictor = predict,
) -> int:
    """Plans, runs, compares; the exit status."""
    settings = settings_of(options)
    plans = fixed_plans(options.sizes, settings, options.device, predictor)
    if options.dry_run:
        say_line(dry_run_text(settings, plans, options.results))
        return 0
    options.results.mkdir(parents=True, exist_ok=True)
    say_line(f"Sampling the rate of each size that fits ({settings.dtype}, {settings.variant})...")
    plans = plan_sizes(program, settings, [plan.prediction for plan in plans])
    say_line("\n".join(plan_table(plans)) + "\n")
    found = run_sizes(program, settings, plans, options.results)
    everything = with_earlier(found, options.results)
    page = write_page(settings, everything, options.results, command)
    say_line("\n".join(["", *comparison(everything), ""]))
    say_line(next_steps(settings, everything, page))
    return exit_status(found)


def resume_grid(options: argparse.Namespace) -> int:
    """Continues the grid that --resume found; the exit status."""
    is_own = options.build_folder == PROJECT / "build"
    found = unfinished_study(options.unfinished, None if is_own else options.build_folder)
    say_line(f"Resuming {shown(options.unfinished)}, begun as: {found.record.command}")
    return run_study(found, say_line)


def train(options: argparse.Namespace, command: str) -> int:
    """The problem sizes with the built programs; the exit status. Raises what they raise."""
    programs = options.build_folder / "benchmarks"
    program = TrainingProgram(programs / "tiny_llama_train", (f"--device={options.device}",))
    suite = programs / "tiny_llama_bench"
    try:
        return study(options, program, command, lambda question: predict(question, suite))
    except KeyboardInterrupt:
        # during the samples: nothing was measured yet
        print("scripts/study: interrupted before the first size", file=sys.stderr)
        return INTERRUPTED


def train_and_measure(options: argparse.Namespace, command: str) -> int:
    """The problem sizes, then the grid, as far as either is wanted; the exit status."""
    plan = options.grid_plan
    # before anything is measured: only the program knows every variant
    cases = check_plan(plan, options.build_folder) if plan else 0
    if plan is None or options.dry_run:
        status = train(options, command) if options.trains else 0
        if plan is not None and status == 0:
            say_line(plan_text(plan, cases))
        return status
    # before the training: what ends that leaves a grid for --resume
    grid = begin_study(plan, options.build_folder, options.results, command)
    try:
        status = train(options, command) if options.trains else 0
    except Exception:
        drop_study(grid)
        raise
    if status == BAD:
        drop_study(grid)
    if status == INTERRUPTED:
        print(f"scripts/study: the grid was not begun; {resuming(grid)} it alone", file=sys.stderr)
    if status in {BAD, INTERRUPTED}:
        return status
    return max(status, run_study(grid, say_line))


def main(arguments: Sequence[str]) -> int:
    """The exit status. After Ctrl-C the parts keep what they have and end in order."""
    options = parse_options(arguments)
    if options.unfinished is not None:
        return resume_grid(options)
    return train_and_measure(options, shlex.join(["scripts/study", *arguments]))
