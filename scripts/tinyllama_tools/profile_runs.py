"""The four runs of scripts/profile, each in its folder, and the list of them."""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import Json, write_whole
from tinyllama_tools.data.programs import (
    REFUSED_OPTIONS,
    TrainingError,
    TrainingProgram,
    TrainingRun,
    command_line,
)
from tinyllama_tools.profile_set import (
    BASELINE,
    BASELINE_FOLDER,
    FLOPS,
    MEMORY,
    OPERATORS,
    RUNS_FILE,
    RUNS_VERSION,
    TITLES,
    ProfileSet,
    read_profile_set,
)

LOG = "training_output.log"
# `warning: ...`, `error: ...`, and libtorch's own `[W1122 10:20:30 file.cpp:1] ...`
WARNING = re.compile(r"(?i:\b(warning|error):)|^\[[WE]\d+ ")
MOST_NOTES = 10


@dataclass(frozen=True)
class PlannedRun:
    """One run: `folder` gets its summary, `log_folder` what it said; both relative to the whole."""

    name: str
    flags: tuple[str, ...]
    folder: str
    log_folder: str


# The FLOPS profiler makes flops_analysis/ itself, so that its files lie where people look.
PLANNED = (
    PlannedRun(BASELINE, (), BASELINE_FOLDER, BASELINE_FOLDER),
    PlannedRun(
        OPERATORS,
        ("--enable-pytorch-profiler", "--profile-operators"),
        "pytorch_profiling",
        "pytorch_profiling",
    ),
    PlannedRun(MEMORY, ("--profile-memory",), "memory_analysis", "memory_analysis"),
    PlannedRun(FLOPS, ("--enable-deepspeed-flops",), ".", "flops_analysis"),
)


def warnings_in(output: str) -> list[str]:
    """Lines that warn of something or report an error; at most MOST_NOTES, once each."""
    lines = [line.strip() for line in output.splitlines() if WARNING.search(line.strip())]
    return list(dict.fromkeys(lines))[:MOST_NOTES]


def _entry(planned: PlannedRun, run: TrainingRun, options: Sequence[str]) -> Json:
    folder = "--output-dir" if planned.name == BASELINE else "--profile-dir"
    notes = warnings_in(run.output)
    if run.exit_status:
        notes.append(f"ended with exit status {run.exit_status}: the loss was not finite")
    return {
        "name": planned.name,
        "folder": planned.folder,
        "log": f"{planned.log_folder}/{LOG}",
        "command": command_line([*options, f"{folder}={planned.folder}"]),
        "exit_status": run.exit_status,
        "seconds": run.seconds,
        "notes": notes,
    }


@dataclass
class ProfileRuns:
    """Fills `folder`, one run after another; the list of runs is written after each.

    `say` gets a line before each run. Nothing in the folder is changed before the program has
    accepted the options.
    """

    program: TrainingProgram
    folder: Path
    options: tuple[str, ...]
    command: str
    say: Callable[[str], None]
    runs: list[Json] = field(default_factory=list)

    def all(self) -> ProfileSet:
        """Every run. TrainingError, BadProfileError, OSError and KeyboardInterrupt pass through."""
        now = datetime.datetime.now(datetime.timezone.utc)
        started, begin = now.strftime("%Y-%m-%dT%H:%M:%SZ"), time.monotonic()
        for number, planned in enumerate(PLANNED, start=1):
            self.say(f"[{number}/{len(PLANNED)}] {TITLES[planned.name]}")
            self.runs.append(self._run(planned))
            self._write(started, time.monotonic() - begin)
        return read_profile_set(self.folder)

    def _run(self, planned: PlannedRun) -> Json:
        folder, logs = self.folder / planned.folder, self.folder / planned.log_folder
        made = [
            path for path in (*self.folder.parents, self.folder, folder, logs) if not path.exists()
        ]
        folder.mkdir(parents=True, exist_ok=True)
        logs.mkdir(exist_ok=True)
        log, part = logs / LOG, logs / f"{LOG}.part"
        options = [*self.options, *planned.flags]
        try:
            run = self.program.run(options, folder, part)
        except BaseException as error:
            refused = isinstance(error, TrainingError) and error.exit_status == REFUSED_OPTIONS
            if refused or not part.exists():
                # nothing ran: the folder stays as it was
                part.unlink(missing_ok=True)
                self._remove_empty(made)
            else:
                # the log of a run that crashed tells why
                part.replace(log)
            raise
        part.replace(log)
        return _entry(planned, run, options)

    def _remove_empty(self, folders: Sequence[Path]) -> None:
        for path in sorted(set(folders), key=lambda p: -len(p.parts)):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()

    def _write(self, started: str, seconds: float) -> None:
        content = {
            "schema_version": RUNS_VERSION,
            "command": self.command,
            "started": started,
            "total_seconds": seconds,
            "runs": self.runs,
        }
        write_whole(self.folder / RUNS_FILE, json.dumps(content, indent=2) + "\n")
