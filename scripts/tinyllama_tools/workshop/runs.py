"""The options of an exercise, and its training runs: carried out, kept as files, read."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import PROJECT, RESULTS, Json, problem_sizes
from tinyllama_tools.core.options import list_of, minutes, positive, script_parser
from tinyllama_tools.data.profiles import SUMMARY
from tinyllama_tools.data.programs import (
    REFUSED_OPTIONS,
    TrainingError,
    TrainingProgram,
    command_line,
)
from tinyllama_tools.profile.tables import draw_timelines
from tinyllama_tools.workshop.worksheet import Figure

EXERCISES = (1, 2, 3)
DIMENSIONS = (
    "hidden-dim",
    "n-layers",
    "n-heads",
    "n-kv-heads",
    "intermediate-dim",
    "vocab-size",
)
# A model that steps in a millisecond, to see that everything works.
QUICK_MODEL = (
    "--hidden-dim=32",
    "--n-layers=2",
    "--n-heads=2",
    "--n-kv-heads=1",
    "--intermediate-dim=64",
    "--vocab-size=50",
)
QUICK_BATCH, QUICK_SEQ = 4, 32
EPILOG = """\
Runs the commands of that exercise of the workshop and writes its worksheet with every blank, table,
tick box and question answered from what was measured, each with the number and rule that decided
it and the file and key it is from. Ctrl-C keeps the profiles written so far, and a page that says
what is missing.

Exit status: 0 the worksheet is complete; 1 a run failed or its loss was not finite; 2 bad option,
the set-up failed, or files that cannot be written; 130 interrupted."""


def exercise(text: str) -> int:
    """1, 2 or 3."""
    if text not in {str(number) for number in EXERCISES}:
        allowed = ", ".join(map(str, EXERCISES))
        raise argparse.ArgumentTypeError(f"exercise '{text}': must be one of {allowed}")
    return int(text)


def make_parser() -> argparse.ArgumentParser:
    """All options."""
    sizes = tuple(problem_sizes())
    parser = script_parser(
        "exercise",
        "The workshop's exercises: 1 baseline, 2 memory, 3 problem sizes.",
        EPILOG,
    )
    add = parser.add_argument
    add("number", type=exercise, metavar="1|2|3", help="which exercise")
    add("-o", "--output", type=Path, help="the worksheet (default: results/exercise_N.md)")
    add("--profile-dir", type=Path, help="the runs' files (default: beside it, exercise_N/)")
    add("--size", type=list_of(sizes, "size"), default=("tiny",), help="default: tiny")
    add("--batch-size", type=positive, default=8, help="the worksheets' batch (default: 8)")
    add("--seq-len", type=positive, default=128, help="their sequence length (default: 128)")
    for name in DIMENSIONS:
        add(f"--{name}", type=positive, help="instead of the size's own")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--threads", type=positive, help="CPU threads (default: libtorch's own choice)")
    add(
        "--max-minutes",
        type=minutes,
        default=2.0,
        help="longest step of exercise 2's last run, longest run of exercise 3 (default: 2)",
    )
    add("--quick", action="store_true", help="smoke test: a model that steps in a millisecond")
    build = PROJECT / "build"
    add("--build-folder", type=Path, default=build, help="where the programs are (default: build)")
    return parser


def model_options(options: argparse.Namespace) -> tuple[str, ...]:
    """The model's size and dimensions, as both programs take them."""
    given = {name: getattr(options, name.replace("-", "_")) for name in DIMENSIONS}
    return (
        f"--size={options.size[0]}",
        *(f"--{name}={value}" for name, value in given.items() if value),
    )


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Options with `model` (options of the training program), `program` and `suite_program`.

    A bad one ends with status 2.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if len(options.size) != 1:
        parser.error(f"--size '{','.join(options.size)}': must be one size")
    options.model = model_options(options)
    options.program = options.build_folder / "benchmarks/tiny_llama_train"
    options.suite_program = options.build_folder / "benchmarks/tiny_llama_bench"
    if options.quick:
        options.model = QUICK_MODEL
        options.batch_size, options.seq_len = QUICK_BATCH, QUICK_SEQ
    options.output = options.output or RESULTS / f"exercise_{options.number}.md"
    beside = options.output.parent / f"exercise_{options.number}"
    options.profile_dir = options.profile_dir or beside
    if options.batch_size % 2 or options.seq_len % 2:
        parser.error(
            f"--batch-size {options.batch_size} --seq-len {options.seq_len}: must be even, since "
            "exercise 2 also runs half of each"
        )
    return options


def program_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """What every run of the training program is given."""
    threads = (f"--threads={options.threads}",) if options.threads else ()
    return (f"--device={options.device}", *threads)


# Parts of the summary that are files of their own, which a reader of the worksheet opens.
FLOPS_FILES = ("flops_profile", "computational_intensity", "roofline_data")
INTERRUPTED = "interrupted"
# MFU: against the datasheet's peak, or the measured one where the device has no datasheet here
UTILIZATION = "flops.flops_profile.efficiency_metrics.mfu_percent"


@dataclass(frozen=True)
class PlannedRun:
    """One run of tiny_llama_train: `name` is its folder, `options` are the worksheet's."""

    name: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class MeasuredRun:
    """What a run left behind. `summary`: None where nothing was measured, for this `reason`.

    `link`: the folder as the worksheet refers to it.
    """

    name: str
    command: str
    summary: Json | None = None
    exit_status: int = 0
    reason: str = ""
    folder: Path = field(default_factory=Path)
    link: str = ""

    def source(self, key: str) -> str:
        """`plain/performance_summary.json: summary.samples_per_second`."""
        file, rest = SUMMARY, key
        for name in FLOPS_FILES:
            prefix = f"flops.{name}."
            if key.startswith(prefix):
                file, rest = f"flops_analysis/{name}.json", key.removeprefix(prefix)
        return f"{self.name}/{file}: {rest}"

    def figure(self, key: str) -> Figure:
        """The value at a dotted key; no value where a part of it is absent or null."""
        value = self.summary
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return Figure(value, self.source(key))

    def value(self, key: str) -> float | None:
        """The value alone."""
        return self.figure(key).value

    @property
    def is_complete(self) -> bool:
        """Whether every planned step was made and the loss stayed finite."""
        wanted, done = self.value("configuration.num_steps"), self.value("summary.steps_completed")
        return self.exit_status == 0 and done is not None and done == wanted


def plain_steps(run: MeasuredRun) -> list[Json]:
    """Steps that no profiler touched, without the first."""
    steps = (run.summary or {}).get("steps") or []
    return [step for step in steps if step["step"] > 1 and not step["profiled"]]


def median_step_seconds(run: MeasuredRun) -> tuple[float | None, str]:
    """Median time of the plain steps and which key it is from; of all steps where none is plain."""
    times = [step["time_seconds"] for step in plain_steps(run)]
    if times:
        return statistics.median(times), run.source(f"steps ({len(times)} plain ones, median)")
    key = "summary.median_step_seconds"
    return run.value(key), run.source(key)


def samples_per_second(run: MeasuredRun) -> tuple[float | None, str]:
    """Batch size over the median time of a plain step, and where from."""
    seconds, source = median_step_seconds(run)
    batch = run.value("configuration.batch_size")
    micro = run.value("configuration.gradient_accumulation_steps") or 1
    return (batch * micro / seconds if seconds and batch else None), source


def _measure(
    planned: PlannedRun,
    program: TrainingProgram,
    folder: Path,
    page_folder: Path,
    *,
    is_first: bool,
) -> MeasuredRun:
    command = command_line(planned.options)
    target = folder / planned.name
    link = Path(os.path.relpath(target, page_folder)).as_posix()
    try:
        run = program.run(planned.options, target, log=folder / f"{planned.name}.log")
    except TrainingError as error:
        if is_first and error.exit_status == REFUSED_OPTIONS:
            raise
        return MeasuredRun(planned.name, command, reason=str(error), exit_status=1)
    draw_timelines(target)
    reason = "" if run.summary else f"no {SUMMARY} was written"
    return MeasuredRun(planned.name, command, run.summary, run.exit_status, reason, target, link)


def measure_all(
    planned: Sequence[PlannedRun],
    program: TrainingProgram,
    folder: Path,
    page_folder: Path,
    say: Callable[[str], None],
    *,
    has_measured: bool = False,
) -> dict[str, MeasuredRun]:
    """Every run in turn, by name. What fails keeps its reason; Ctrl-C leaves the rest unmeasured.

    `page_folder`: of the worksheet, which links to the runs' files. `has_measured`: whether runs
    before these left a summary. Raises OSError where the folder cannot be made, and TrainingError
    where the program refuses what it was given before anything was measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, MeasuredRun] = {}
    for number, run in enumerate(planned, start=1):
        command = command_line(run.options)
        say(f"run {number} of {len(planned)}: {command}")
        is_first = not has_measured and not has_summary(runs)
        try:
            runs[run.name] = _measure(run, program, folder, page_folder, is_first=is_first)
        except KeyboardInterrupt:
            for left in planned[number - 1 :]:
                command = command_line(left.options)
                runs[left.name] = MeasuredRun(left.name, command, reason=INTERRUPTED)
            return runs
        if runs[run.name].reason:
            say(f"   not measured: {runs[run.name].reason}")
    return runs


def has_summary(runs: Mapping[str, MeasuredRun]) -> bool:
    """Whether any of them measured something."""
    return any(run.summary for run in runs.values())


def was_interrupted(runs: dict[str, MeasuredRun]) -> bool:
    """Whether Ctrl-C ended the measuring."""
    return any(run.reason == INTERRUPTED for run in runs.values())


def missing_of(wanted: Iterable[tuple[MeasuredRun, Sequence[str]]]) -> list[str]:
    """Why runs lack what is wanted of their summaries, a text each; empty where nothing is."""
    found = []
    for run, parts in wanted:
        if run.reason:
            found.append(f"{run.name}: {run.reason}")
        found += [
            f"{run.name}: its summary has no `{part}`"
            for part in parts
            if run.summary and not run.figure(part).is_measured
        ]
    return found
