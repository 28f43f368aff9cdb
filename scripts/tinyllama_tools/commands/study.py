"""scripts/study: trains each problem size that fits and compares them; --grid is another command,
in grid.py."""

import contextlib
import datetime
import json
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tinyllama_tools.commands import grid
from tinyllama_tools.core.app import (
    INTERRUPTED,
    BadInputError,
    Json,
    command_text,
    now_text,
    problem_sizes,
    say_line,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.installation import RESULTS, typed
from tinyllama_tools.core.options import (
    DTYPES,
    add_build_folder,
    add_out,
    add_plugin,
    list_of,
    plugin_options,
    positive,
    script_parser,
    seconds,
)
from tinyllama_tools.core.process import SAID_NOTHING, Progress, program_in
from tinyllama_tools.core.text import MIB, duration, last_words, markdown_table, template
from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.profiles import INTERRUPTED_REASON, SUMMARY, MeasuredRun, read_profile
from tinyllama_tools.data.programs import (
    CaseCost,
    Predictor,
    TrainingError,
    TrainingProgram,
    ask_costs,
    case_options,
    command_line,
)

EPILOG = """\
scripts/study --grid SIZE... measures every component over batch x sequence x size instead:
scripts/study --grid --help.

Each size goes to results/performance_results_SIZE_TIME/: config.json, training_output.log,
performance_summary.json and, with --enable-profilers, pytorch_profiles/; the comparison to
results/performance_study_TIME.md. A size that does not fit in memory, or that by a sample of three
steps would take longer than --max-seconds-per-case, is named beforehand and not attempted. Ctrl-C
keeps the sizes that are done and writes the table from them.

Exit status: 0 all measured, or left out with a reason; 1 some run failed; 2 bad option, the set-up
failed, or files that cannot be written; 130 interrupted."""


def parse_options(arguments: Sequence[str]) -> Namespace:
    """The options: `sizes` without repetition. A bad value ends the command with status 2."""
    if "--grid" in arguments:
        return grid.parse_options(arguments)
    names = tuple(problem_sizes())
    about = "The performance study: trains each problem size and compares them."
    parser = script_parser("study", about, EPILOG)
    add = parser.add_argument
    add("sizes", nargs="+", type=list_of(names, "size"), metavar="SIZE", help=", ".join(names))
    add("--enable-profilers", action="store_true", help="operators, memory and FLOPS as well")
    add("--num-steps", type=positive, default=50, help="of each size (default: 50)")
    limit = "leave out a size whose steps are predicted to take longer (default: 900)"
    add("--max-seconds-per-case", type=seconds, default=900.0, metavar="S", help=limit)
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--dtype", type=str, choices=DTYPES, default="f32", help="default: f32")
    variants = "baseline (default), fused, optimized or switches joined by +, and operators"
    add("--variant", default="baseline", help=variants)
    add_plugin(parser)
    add("--dry-run", action="store_true", help="say what would be run, and run nothing")
    add_out(parser, "of the folders of the sizes (default: results)", default=RESULTS)
    add_build_folder(parser)
    options = parser.parse_args(arguments)
    options.sizes = tuple(dict.fromkeys(name for names in options.sizes for name in names))
    return options


# ---- before the runs: what fits, and how long it takes

# the first of them is left out of the median
SAMPLE_STEPS = 3
# A sample that would take longer is made with a quarter of the batch, which is nearly as efficient.
LONG_SAMPLE_SECONDS = 10.0
SEED_SIZE = "tiny"


class Rate(NamedTuple):
    """The model FLOP/s that a sample attained; `source`: which sample that was."""

    flops_per_second: float
    source: str


def train_options(options: Namespace, size: str, batch: int, steps: int) -> list[str]:
    """tiny_llama_train's options; batch and sequence are among them, whatever its defaults are."""
    shape = {"size": size, "batch-size": batch, "seq-len": problem_sizes()[size]["seq"]}
    how = {"num-steps": steps, "dtype": options.dtype, "variant": options.variant}
    return [f"--{name}={value}" for name, value in {**shape, **how}.items()]


@dataclass(frozen=True)
class SizeRun:
    """A size of the study, before its run and after it.

    `cost`: of a step. `rate`: that the time is predicted from, None without a sample. `refusal`:
    why the size is not attempted; the reason of `run`: why it has no figures to compare."""

    cost: CaseCost
    num_steps: int
    rate: Rate | None = None
    refusal: str = ""
    folder: Path | None = None
    run: MeasuredRun = field(default_factory=MeasuredRun)

    @property
    def size(self) -> str:
        """The name of the size."""
        return self.cost.name.size

    @property
    def step_seconds(self) -> float | None:
        """The predicted time of a step: its FLOPs over the attained rate."""
        return self.cost.model_flops / self.rate.flops_per_second if self.rate else None

    @property
    def total_seconds(self) -> float | None:
        """The predicted time of all steps."""
        return self.num_steps * self.step_seconds if self.rate else None

    @property
    def expected(self) -> str:
        """`0.243 s/iter, 12 s for 50 steps`."""
        if not self.rate:
            return "not known"
        total = f"{duration(self.total_seconds)} for {self.num_steps} steps"
        return f"{self.step_seconds:.3g} s/iter, {total}"

    @property
    def is_measured(self) -> bool:
        """Whether it has figures to compare."""
        return self.run.summary is not None and not self.run.reason


def size_costs(options: Namespace, sizes: Sequence[str], predictor: Predictor) -> list[CaseCost]:
    """The costs of a step of each size, in the order given."""
    how = {"components": STEP, "dtypes": options.dtype, "variants": options.variant}
    asked = case_options(options.device, sizes=",".join(sizes), **how)
    found = {cost.name.size: cost for cost in predictor(asked)}
    return [found[size] for size in sizes]


def plan_at(options: Namespace, cost: CaseCost, rate: Rate | None) -> SizeRun:
    """The plan of a size, which refuses it where it does not fit, or would take too long at this
    rate."""
    plan = SizeRun(cost, options.num_steps, rate)
    if not cost.fits:
        return replace(plan, rate=None, refusal=cost.reason)
    if not rate or plan.total_seconds <= options.max_seconds_per_case:
        return plan
    refusal = (
        f"{plan.num_steps} steps would take {duration(plan.total_seconds)}, more than "
        f"--max-seconds-per-case {options.max_seconds_per_case:g} ({rate.source})"
    )
    return replace(plan, refusal=refusal)


def attained_rate(program: TrainingProgram, options: Namespace, size: str, batch: int) -> Rate:
    """The rate of a sample of a few steps; TrainingError where that fails."""
    with tempfile.TemporaryDirectory(prefix="tiny_llama_study_") as folder:
        run = program.run(train_options(options, size, batch, SAMPLE_STEPS), Path(folder))
    if run.exit_status != 0 or not run.summary:
        raise TrainingError(f"the sample of {size} ended with {run.exit_status}")
    flops, seconds = run.summary["model"]["flops_per_step"], run.summary["summary"]
    rate = flops / seconds["median_step_seconds"]
    what = f"{SAMPLE_STEPS} steps of {size} at batch {batch}"
    return Rate(rate, f"{rate / 1e9:,.1f} GFLOP/s attained in {what}")


def plan_sizes(
    program: TrainingProgram, options: Namespace, costs: Sequence[CaseCost]
) -> list[SizeRun]:
    """Plans of the sizes, in the order given. Those that fit are sampled, the smallest first; the
    rate of the size before decides whether a size is sampled, and with which batch. TrainingError
    where not even the smallest model can be trained with these settings."""
    plans: dict[str, SizeRun] = {}
    known: Rate | None = None
    for cost in sorted(costs, key=lambda cost: cost.model_flops):
        size, batch = cost.name.size, cost.name.batch
        if cost.fits:
            seed_batch = problem_sizes()[SEED_SIZE]["batch"]
            known = known or attained_rate(program, options, SEED_SIZE, seed_batch)
            seconds = SAMPLE_STEPS * cost.model_flops / known.flops_per_second
            if seconds > LONG_SAMPLE_SECONDS:
                seconds, batch = seconds * max(1, batch // 4) / batch, max(1, batch // 4)
            if seconds <= options.max_seconds_per_case and size != SEED_SIZE:
                try:
                    known = attained_rate(program, options, size, batch)
                except TrainingError as error:
                    failed = MeasuredRun(reason=f"its sample failed: {error}")
                    plans[size] = replace(plan_at(options, cost, None), run=failed)
                    continue
        plans[size] = plan_at(options, cost, known)
    return [plans[cost.name.size] for cost in costs]


# columns of the table that is printed before anything runs: heading, and text of a size's plan
PLANNED: dict[str, Callable[[SizeRun], str]] = {
    "size": lambda plan: plan.size,
    "parameters": lambda plan: f"{plan.cost.parameters:,}",
    "batch x seq": lambda plan: f"{plan.cost.name.batch} x {plan.cost.name.seq}",
    "FLOPs a step": lambda plan: f"{plan.cost.model_flops:.3g}",
    "peak MB": lambda plan: f"{plan.cost.predicted_memory_bytes / MIB:,.0f}",
    "expected": lambda plan: plan.expected,
    "runs": lambda plan: f"no: {why}" if (why := plan.refusal or plan.run.reason) else "yes",
}


def table_of(columns: Mapping[str, Callable[[Any], str]], items: Iterable[Any]) -> str:
    """A Markdown table with a row for each item."""
    rows = [[text(item) for text in columns.values()] for item in items]
    return "\n".join(markdown_table(tuple(columns), rows))


# ---- one run of a size, and its files

CONFIG, LOG, PROFILES = "config.json", "training_output.log", "pytorch_profiles"
PROFILERS = ("--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops")


def _timed(name: str) -> str:
    """The name, and after it the time."""
    return f"{name}_{datetime.datetime.now(datetime.timezone.utc):%Y%m%d_%H%M%S}"


def _text(macro: str, *values: object) -> str:
    found = template(Path(__file__).with_name("templates") / "study.md.j2")
    return getattr(found.make_module({"mib": MIB, "shown": shown}), macro)(*values).strip("\n")


def _keep(path: Path, document: Json) -> None:
    write_whole(path, json.dumps(document, indent=2) + "\n")


def run_size(program: TrainingProgram, options: Namespace, plan: SizeRun, folder: Path) -> SizeRun:
    """Trains one size; its folder must exist. An interruption keeps what was written."""
    cost, dimensions = plan.cost, dict(problem_sizes()[plan.size])
    shape = {"seq_len": dimensions.pop("seq"), "batch_size": dimensions.pop("batch")}
    below = PROFILES if options.enable_profilers else ""

    def given(place: Path) -> list[str]:
        found = train_options(options, plan.size, cost.name.batch, plan.num_steps)
        return [*found, *PROFILERS, f"--output-dir={place}"] if below else found

    place = Path(shown(folder))
    target = f"--{'profile' if below else 'output'}-dir={place / below}"
    # the command that repeats the run in the checkout
    command = command_line([*program.arguments, *given(place), target])
    config = {
        "problem_size": plan.size,
        **dimensions,
        **shape,
        "num_steps": plan.num_steps,
        "parameters": cost.parameters,
        "dtype": options.dtype,
        "variant": options.variant,
        "profilers_enabled": options.enable_profilers,
        "command": command,
        "started": now_text(),
        "expected": {
            "step_seconds": plan.step_seconds,
            "total_seconds": plan.total_seconds,
            "source": plan.rate.source if plan.rate else None,
            "peak_memory_bytes": cost.predicted_memory_bytes,
        },
    }
    _keep(folder / CONFIG, config)

    def ended(run: MeasuredRun, reason: str) -> SizeRun:
        name = (Path(folder.name) / below).as_posix()
        return replace(
            plan, folder=folder, run=replace(run, name=name, command=command, reason=reason)
        )

    try:
        run = program.run(given(folder), folder / below, folder / LOG)
    except TrainingError as error:
        return ended(MeasuredRun(), str(error))
    except KeyboardInterrupt:
        # what the program wrote when it was interrupted stays, but is not compared
        summary = None
        with contextlib.suppress(BadInputError):
            summary = read_profile(folder / below)
        done = summary["summary"]["steps_completed"] if summary else 0
        reason = f"{INTERRUPTED_REASON} after {done} of {plan.num_steps} steps"
        return ended(MeasuredRun(summary=summary), reason)
    if run.summary and not (folder / SUMMARY).is_file():
        _keep(folder / SUMMARY, run.summary)
    failure = "" if run("summary.steps_completed") else "no step was completed"
    if run.exit_status != 0:
        failure = f"ended with {run.exit_status}: {last_words(run.output) or SAID_NOTHING}"
        failure = failure.replace("\n", "; ")
    return ended(run, failure)


def run_sizes(
    program: TrainingProgram,
    options: Namespace,
    plans: Sequence[SizeRun],
    results: Path,
    say: Callable[[str], None],
) -> list[SizeRun]:
    """Runs the sizes that their plans do not refuse, in order, up to an interruption."""
    found: list[SizeRun] = []
    for plan in plans:
        if any(result.run.is_interrupted for result in found):
            found.append(replace(plan, refusal=plan.refusal or "interrupted before its turn"))
        elif plan.refusal or plan.run.reason:
            found.append(plan)
        else:
            folder = results / _timed(f"performance_results_{plan.size}")
            folder.mkdir(parents=True)
            say(_text("banner", plan, options, shown(folder), problem_sizes()[plan.size]))
            found.append(run_size(program, options, plan, folder))
            say(_text("ending", found[-1]))
    return found


# ---- the whole study

# columns of the comparison: heading, and text of a size's figures
FIGURES: dict[str, Callable[[Json], str]] = {
    "Problem Size": lambda f: f["size"],
    "Parameters": lambda f: f"{f['total_parameters']:,}",
    "Throughput (samples/s)": lambda f: f"{f['samples_per_second']:.4g}",
    "tokens/s": lambda f: f"{f['tokens_per_second']:,.0f}",
    "Memory (MB)": lambda f: f"{f['peak_memory_bytes'] / MIB:,.1f}",
    "memory / parameters": lambda f: f"{f['peak_memory_bytes'] / f['model_size_bytes']:.1f}",
    "Time/Iter (s)": lambda f: f"{f['median_step_seconds']:.4g}",
    "expected (s)": lambda f: f"{f['expected']:.4g}",
    "GFLOP/s": lambda f: f"{f['flops_per_step'] / f['median_step_seconds'] / 1e9:,.1f}",
}


def train(options: Namespace, command: str, program: TrainingProgram, predictor: Predictor) -> int:
    """Plans, runs and compares the sizes. The exit status is 130 after an interruption, 1 where a
    run failed."""
    costs = size_costs(options, options.sizes, predictor)
    if options.dry_run:
        say_line(table_of(PLANNED, [plan_at(options, cost, None) for cost in costs]))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    say_line(f"Sampling the rate of each size that fits ({options.dtype}, {options.variant})...")
    plans = plan_sizes(program, options, costs)
    say_line(table_of(PLANNED, plans) + "\n")
    found = run_sizes(program, options, plans, options.out, say_line)
    ordered = sorted(found, key=lambda result: result.cost.model_flops)
    device = next((name for r in ordered if (name := r.run("context.device.name"))), "none")
    figures = [
        {**r.run("model"), **r.run("summary"), "size": r.size, "expected": r.step_seconds}
        for r in ordered
        if r.is_measured
    ]
    compared = _text("comparison", table_of(FIGURES, figures) if figures else "", ordered)
    page = options.out / f"{_timed('performance_study')}.md"
    write_whole(page, _text("page", compared, options, command, device, ordered) + "\n")
    say_line(f"\n{compared}\n\nNext steps:\n  less {shown(page)}\n  {typed('exercise')} 3")
    if any(result.run.is_interrupted for result in found):
        return INTERRUPTED
    return int(any(result.run.reason for result in found))


def _show_step(line: str) -> None:
    if line.startswith("Step "):
        Progress().passing(line)


def main(
    arguments: Sequence[str],
    program: TrainingProgram | None = None,
    predictor: Predictor | None = None,
) -> int:
    """The exit status. Tests replace `program` and `predictor`."""
    if "--grid" in arguments:
        return grid.main(arguments)
    options = parse_options(arguments)
    plugins = plugin_options(options)
    given = (f"--device={options.device}", *plugins)
    program = program or TrainingProgram(
        program_in(options.build_folder, "tiny_llama_train"), given, _show_step
    )
    bench = program_in(options.build_folder, "tiny_llama_bench")
    predictor = predictor or (lambda asked: ask_costs(bench, [*plugins, *asked]))
    return train(options, command_text([*typed("study").split(), *arguments]), program, predictor)
