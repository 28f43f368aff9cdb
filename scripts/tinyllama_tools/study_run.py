"""Runs one size of a performance study and keeps its files."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import Json, write_whole
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import shown_path as shown
from tinyllama_tools.data.profiles import BadProfileError, read_profile
from tinyllama_tools.data.programs import (
    TrainingError,
    TrainingProgram,
    TrainingRun,
    command_line,
    problem_sizes,
)
from tinyllama_tools.study_plan import Settings, SizePlan

CONFIG, LOG, SUMMARY = "config.json", "training_output.log", "performance_summary.json"
PROFILES = "pytorch_profiles"
PROFILERS = ("--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops")


@dataclass(frozen=True)
class SizeResult:
    """A size that was run or left out. `summary`: performance_summary.json, None where there is
    none; `failure`: why a run gave nothing to compare; `is_earlier`: from a study before this."""

    size: str
    folder: Path | None = None
    summary: Json | None = None
    seconds: float = 0.0
    failure: str = ""
    refusal: str = ""
    is_interrupted: bool = False
    is_earlier: bool = False
    config: Json = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether it has figures to compare."""
        return self.summary is not None and not self.failure


def study_folder(results: Path, size: str) -> Path:
    """results/performance_results_<size>_<UTC time>, not yet made."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return results / f"performance_results_{size}_{now.strftime('%Y%m%d_%H%M%S')}"


def run_options(settings: Settings, plan: SizePlan, folder: Path) -> list[str]:
    """Of tiny_llama_train."""
    options = settings.options(plan.size, plan.prediction.batch, plan.num_steps)
    if settings.has_profilers:
        return [*options, *PROFILERS, f"--output-dir={folder}"]
    return options


def typed_command(
    program: TrainingProgram, settings: Settings, plan: SizePlan, folder: Path
) -> str:
    """What repeats the run, typed in the checkout."""
    place = Path(shown(folder))
    kind, target = (
        ("--profile-dir", place / PROFILES) if settings.has_profilers else ("--output-dir", place)
    )
    options = run_options(settings, plan, place)
    return command_line([*program.arguments, *options, f"{kind}={target}"])


def configuration(settings: Settings, plan: SizePlan, command: str) -> Json:
    """config.json of a run about to begin."""
    expected = {
        "step_seconds": plan.step_seconds,
        "total_seconds": plan.total_seconds,
        "source": plan.rate.source if plan.rate else None,
        "peak_memory_bytes": plan.prediction.peak_memory_bytes,
    }
    dimensions = {
        key: value
        for key, value in problem_sizes()[plan.size].items()
        if key not in {"batch", "seq"}
    }
    return {
        "problem_size": plan.size,
        **dimensions,
        "seq_len": plan.prediction.seq,
        "batch_size": plan.prediction.batch,
        "num_steps": plan.num_steps,
        "parameters": plan.prediction.parameters,
        "dtype": settings.dtype,
        "variant": settings.variant,
        "profilers_enabled": settings.has_profilers,
        "command": command,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "expected": expected,
        "measured": None,
    }


def measured(run: TrainingRun) -> Json:
    """What config.json says beside what was expected."""
    found = (run.summary or {}).get("summary", {})
    keys = ("average_step_seconds", "samples_per_second", "peak_memory_bytes", "steps_completed")
    return {"total_seconds": run.seconds, **{key: found.get(key) for key in keys}}


def last_step_line(log: Path) -> str:
    """The newest `Step n/N: ...` of a run in progress; empty where there is none yet."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    steps = [line for line in text.split("\n")[:-1] if line.startswith("Step ")]
    return steps[-1] if steps else ""


@contextmanager
def followed(log: Path, progress: Progress, interval_seconds: float = 1.0) -> Iterator[None]:
    """Shows the newest step of the log while the block runs, on a terminal only."""
    is_done = threading.Event()

    def follow() -> None:
        while not is_done.wait(interval_seconds):
            line = last_step_line(log)
            if line:
                print(f"\r{line}\033[K", end="", file=progress.stream, flush=True)

    if not progress.stream.isatty():
        yield
        return
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
        progress.end()


def failure_of(run: TrainingRun) -> str:
    """Empty where the run has figures."""
    if run.exit_status != 0:
        words = [line for line in run.output.splitlines() if line.strip()]
        return f"ended with {run.exit_status}: {words[-1] if words else 'it said nothing'}"
    if not run.summary or not run.summary["summary"]["steps_completed"]:
        return "no step was completed"
    return ""


def interrupted_result(plan: SizePlan, folder: Path, target: Path, config: Json) -> SizeResult:
    """What the program wrote when Ctrl-C ended it is kept, and is no result to compare."""
    try:
        summary = read_profile(target).summary
    except BadProfileError:
        summary = None
    done = summary["summary"]["steps_completed"] if summary else 0
    what = f"interrupted after {done} of {plan.num_steps} steps"
    return SizeResult(plan.size, folder, summary, 0.0, what, is_interrupted=True, config=config)


def run_size(
    program: TrainingProgram, settings: Settings, plan: SizePlan, folder: Path, progress: Progress
) -> SizeResult:
    """Trains one size into its folder, which must exist. An interruption keeps what was written.

    Raises OSError where the files cannot be written.
    """
    options = run_options(settings, plan, folder)
    target = folder / PROFILES if settings.has_profilers else folder
    command = typed_command(program, settings, plan, folder)
    config = configuration(settings, plan, command)
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    try:
        with followed(folder / LOG, progress):
            run = program.run(options, target, folder / LOG)
    except TrainingError as error:
        return SizeResult(plan.size, folder, failure=str(error), config=config)
    except KeyboardInterrupt:
        return interrupted_result(plan, folder, target, config)
    config["measured"] = measured(run)
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    if run.summary and not (folder / SUMMARY).is_file():
        write_whole(folder / SUMMARY, json.dumps(run.summary, indent=2) + "\n")
    return SizeResult(plan.size, folder, run.summary, run.seconds, failure_of(run), config=config)
