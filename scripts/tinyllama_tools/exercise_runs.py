"""The training runs of an exercise: carried out in turn, kept as files, read as figures."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import Json
from tinyllama_tools.data.profiles import SUMMARY
from tinyllama_tools.data.programs import (
    REFUSED_OPTIONS,
    TrainingError,
    TrainingProgram,
    command_line,
)
from tinyllama_tools.memory_timeline import draw_timelines
from tinyllama_tools.worksheet import Figure

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
