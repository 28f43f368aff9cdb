"""scripts/study: trains each problem size that fits, compares them, and measures the grid."""

from __future__ import annotations

import argparse
import datetime
import itertools
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2

from tinyllama_tools.commands.grid import (
    begin_study,
    bench_of,
    drop_study,
    planned_names,
    resuming,
    run_study,
    unfinished_study,
)
from tinyllama_tools.commands.grid_plan import add_grid_options, finish_grid_options
from tinyllama_tools.commands.study_sizes import (
    MIB,
    PROFILES,
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
from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    Json,
    ToolError,
    problem_sizes,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.options import DTYPES, list_of, minutes, positive, script_parser
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import duration, markdown_table
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.models.size_predictions import Predictor, Question, predict

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
        "The performance study: trains each problem size and compares them, and\n"
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


LINE = "=" * 80
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,
)


def _text(template: str, **values: object) -> str:
    return TEMPLATES.get_template(template).render(values, line=LINE, mib=MIB, shown=shown)


def short_count(parameters: int) -> str:
    """`~2.9M`, `~167M`, `~1.3B`, as the workshop writes them."""
    unit, letter = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    value = parameters / unit
    return f"~{value:.0f}{letter}" if value >= 100 else f"~{value:.1f}{letter}"


def banner(settings: Settings, plan: SizePlan, folder: Path) -> str:
    """What stands above a size's run; the workshop's version 1 is the baseline."""
    p, dimensions = plan.prediction, problem_sizes()[plan.size]
    expected = "not known: nothing was measured with these settings"
    if plan.rate is not None and plan.step_seconds and plan.total_seconds:
        expected = (
            f"{plan.step_seconds:.3g} s/iter, {duration(plan.total_seconds)} for {plan.num_steps} "
            f"steps ({plan.rate.source})"
        )
    rows = {
        "Hidden Dimension": dimensions["hidden_dim"],
        "Number of Layers": dimensions["n_layers"],
        "Sequence Length": p.seq,
        "Batch Size": p.batch,
        "Training Steps": plan.num_steps,
        "Est. Parameters": f"{p.parameters:,} ({short_count(p.parameters)})",
        "Expected Time": expected,
        "Expected Memory": f"{p.peak_memory_bytes / MIB:,.0f} MB",
        "Profilers Enabled": str(settings.has_profilers).lower(),
    }
    is_baseline = settings.variant == "baseline"
    return _text(
        "study_banner.txt.j2",
        plan=plan,
        rows=rows.items(),
        folder=shown(folder),
        version="VERSION 1 BASELINE" if is_baseline else settings.variant.upper(),
        name="V1 Baseline" if is_baseline else settings.variant,
    )


def ending(plan: SizePlan, result: SizeResult) -> str:
    """What stands below a size's run."""
    if not result.is_measured or result.summary is None:
        return f"PERFORMANCE STUDY OF {plan.size.upper()} NOT COMPLETE: {result.failure}"
    found = result.summary["summary"]
    return _text("study_ending.txt.j2", plan=plan, result=result, found=found)


# of the comparison: its heading, and its text from the figures of a size
FIGURES: dict[str, Callable[[Json], str]] = {
    "Problem Size": lambda f: f["size"],
    "Parameters": lambda f: f"{f['total_parameters']:,}",
    "Throughput (samples/s)": lambda f: f"{f['samples_per_second']:.4g}",
    "tokens/s": lambda f: f"{f['tokens_per_second']:,.0f}",
    "Memory (MB)": lambda f: f"{f['peak_memory_bytes'] / MIB:,.1f}",
    "memory / parameters": lambda f: f"{f['peak_memory_bytes'] / f['model_size_bytes']:.1f}",
    "Time/Iter (s)": lambda f: f"{f['average_step_seconds']:.4g}",
    "expected (s)": lambda f: f"{e:.4g}" if (e := f["expected"]) else "not predicted",
    "GFLOP/s": lambda f: f"{f['flops_per_step'] / f['average_step_seconds'] / 1e9:,.1f}",
}
# what is compared from size to size
GROWTH: dict[str, Callable[[Json], float]] = {
    "parameters": lambda f: f["total_parameters"],
    "FLOPs": lambda f: f["flops_per_step"],
    "memory": lambda f: f["peak_memory_bytes"],
    "throughput falls": lambda f: 1 / f["samples_per_second"],
    "time/iter": lambda f: f["average_step_seconds"],
}


def _figures(results: Sequence[SizeResult]) -> list[Json]:
    """Of each measured size what was measured, and what was expected."""
    return [
        r.summary["model"]
        | r.summary["summary"]
        | {"size": r.size, "expected": (r.config.get("expected") or {}).get("step_seconds")}
        for r in results
        if r.is_measured and r.summary is not None
    ]


def comparison(results: Sequence[SizeResult]) -> list[str]:
    """The workshop's table over all measured sizes, and why the others are missing."""
    rows = [[of(figures) for of in FIGURES.values()] for figures in _figures(results)]
    lines = markdown_table(tuple(FIGURES), rows) if rows else ["No size was measured."]
    left_out = [r for r in results if not r.is_measured]
    if left_out:
        reasons = ((r.size, r.failure or f"not attempted: {r.refusal}") for r in left_out)
        lines += ["", "Not in the table:", "", *(f"- {size}: {why}" for size, why in reasons)]
    earlier = [f"{r.size} ({r.folder.name})" for r in results if r.is_earlier and r.folder]
    if earlier:
        lines += ["", f"From earlier studies with the same settings: {', '.join(earlier)}."]
    return lines


def growth(results: Sequence[SizeResult]) -> list[str]:
    """From each measured size to the next: how often its parameters, memory, ... are those of
    the one before."""
    rows = [
        [f"{a['size']} -> {b['size']}", *(f"{of(b) / of(a):.3g}x" for of in GROWTH.values())]
        for a, b in itertools.pairwise(_figures(results))
    ]
    return markdown_table(("from -> to", *GROWTH), rows) if rows else []


def study_page(settings: Settings, results: Sequence[SizeResult], command: str) -> str:
    """results/performance_study_<time>.md."""
    device = next((r.summary["context"]["device"]["name"] for r in results if r.summary), "none")
    return _text(
        "study_page.md.j2",
        command=command,
        settings=settings,
        device=device,
        results=results,
        comparison="\n".join(comparison(results)),
        growth="\n".join(growth(results)),
    )


def next_steps(settings: Settings, results: Sequence[SizeResult], page: Path) -> str:
    """What to do with the files, as commands."""
    done = [r for r in results if r.is_measured and not r.is_earlier and r.folder]
    lines = [f"  cat {shown(r.folder)}/config.json" for r in done if r.folder]
    if done and settings.has_profilers and done[-1].folder:
        profiles = f"{shown(done[-1].folder)}/{PROFILES}"
        lines.append(f"  scripts/profile --analyze-existing {profiles} --generate-report")
    elif done:
        lines.append(f"  scripts/study {done[-1].size} --enable-profilers")
    return "\n".join(["Next steps:", *lines, f"  less {shown(page)}", "  scripts/exercise 3"])


def say_line(text: str) -> None:
    """To standard output at once, also into a pipe."""
    print(text, flush=True)


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
    say: Callable[[str], None] = say_line,
) -> list[SizeResult]:
    """Runs what the plans do not refuse, in order; stops at an interruption.

    Raises OSError where a folder cannot be written.
    """
    found: list[SizeResult] = []
    is_interrupted = False
    for plan in plans:
        if plan.refusal or is_interrupted:
            why = plan.refusal or "interrupted before its turn"
            found.append(SizeResult(plan.size, refusal=why))
        elif plan.failure:
            found.append(SizeResult(plan.size, failure=plan.failure))
        else:
            folder = study_folder(results, plan.size)
            folder.mkdir(parents=True)
            say(banner(settings, plan, folder))
            result = run_size(program, settings, plan, folder, Progress())
            found.append(result)
            say(ending(plan, result))
            is_interrupted = result.is_interrupted
    return found


def study(
    options: argparse.Namespace,
    program: TrainingProgram,
    command: str,
    predictor: Predictor = predict,
) -> int:
    """Plans, runs, compares; 130 where it was interrupted, 1 where a run failed."""
    settings = Settings(
        options.dtype,
        options.variant,
        options.num_steps,
        60 * options.max_minutes,
        options.enable_profilers,
    )
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
    now = datetime.datetime.now(datetime.timezone.utc)
    page = options.results / f"performance_study_{now.strftime('%Y%m%d_%H%M%S')}.md"
    write_whole(page, study_page(settings, everything, command))
    say_line("\n".join(["", *comparison(everything), ""]))
    say_line(next_steps(settings, everything, page))
    if any(result.is_interrupted for result in found):
        return INTERRUPTED
    return int(any(result.failure for result in found))


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


def _train_and_measure(options: argparse.Namespace, command: str) -> int:
    """The problem sizes, then the grid, as far as either is wanted; the exit status."""
    plan = options.grid_plan
    # before anything is measured: only the program knows every variant
    cases = planned_names(bench_of(options.build_folder), plan.grid()) if plan else []
    if plan is None or options.dry_run:
        status = train(options, command) if options.trains else 0
        if plan is not None and status == 0:
            say_line(plan.in_words(len(cases)))
        return status
    # before the training: what ends that leaves a grid for --resume
    grid = begin_study(plan, options.build_folder, options.results, command)
    try:
        status = train(options, command) if options.trains else 0
    except Exception:
        drop_study(grid)
        raise
    if status == ToolError.exit_status:
        drop_study(grid)
    if status == INTERRUPTED:
        print(f"scripts/study: the grid was not begun; {resuming(grid)} it alone", file=sys.stderr)
    if status in {ToolError.exit_status, INTERRUPTED}:
        return status
    return max(status, run_study(grid, say_line))


def main(arguments: Sequence[str]) -> int:
    """The exit status of the command. Raises what the programs' runs raise."""
    options = parse_options(arguments)
    if options.unfinished is None:
        return _train_and_measure(options, shlex.join(["scripts/study", *arguments]))
    found = unfinished_study(options.unfinished, options.build_folder)
    say_line(f"Resuming {shown(options.unfinished)}, begun as: {found.record.command}")
    return run_study(found, say_line)
