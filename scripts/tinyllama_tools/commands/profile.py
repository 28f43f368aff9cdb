"""scripts/profile: all profilers in one go, and the report; also of saved or of two profiles."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.commands.profile_page import comparison_text, report_path, report_text
from tinyllama_tools.commands.profile_tables import (
    BASELINE,
    BASELINE_FOLDER,
    FLOPS,
    MEMORY,
    OPERATORS,
    RUNS_FILE,
    RUNS_VERSION,
    TITLES,
    ProfileSet,
    draw_timelines,
    read_profile_set,
)
from tinyllama_tools.core.app import (
    PROJECT,
    REFUSED_OPTIONS,
    RESULTS,
    Json,
    problem_sizes,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.options import DTYPES, positive
from tinyllama_tools.data.programs import TrainingError, TrainingProgram, TrainingRun, command_line
from tinyllama_tools.models.ablation_evidence import Evidence, find_evidence, read_evidence
from tinyllama_tools.models.ablations import read_study

# What the program is given as it stands.
PASSED_ON = ("size", "batch_size", "seq_len", "num_steps", "dtype", "variant", "device", "threads")
DEFAULT_STEPS, DEFAULT_TOP = 30, 10


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/profile", allow_abbrev=False)
    parser.add_argument("--size", choices=sorted(problem_sizes()))
    parser.add_argument("--batch-size", type=positive)
    parser.add_argument("--seq-len", type=positive)
    parser.add_argument("--num-steps", type=positive)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--variant")
    parser.add_argument("--device")
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--profile-dir", type=Path)
    parser.add_argument("--build-folder", type=Path, default=PROJECT / "build")
    parser.add_argument("--top", type=positive, default=DEFAULT_TOP)
    parser.add_argument("--ablation", type=Path)
    parser.add_argument("--analyze-existing", type=Path, metavar="DIR")
    parser.add_argument("--generate-report", action="store_true")
    parser.add_argument("--output-dir", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("DIR_A", "DIR_B"))
    return parser


def _refuse_with(
    parser: argparse.ArgumentParser, options: argparse.Namespace, mode: str, names: Sequence[str]
) -> None:
    for name in names:
        if getattr(options, name) not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            parser.error(f"{flag}: has no meaning with {mode}; leave one of them out")


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Checked as far as text can be; argparse ends the program with 2 where it is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    measuring = (*PASSED_ON, "profile_dir")
    if options.compare:
        mode = "--compare"
        _refuse_with(parser, options, mode, (*measuring, "analyze_existing", "generate_report"))
    elif options.analyze_existing:
        _refuse_with(parser, options, "--analyze-existing", measuring)
        if options.output_dir and not options.generate_report:
            parser.error("--output-dir: nothing is written without --generate-report; add it")
    else:
        names = ("generate_report", "output_dir")
        _refuse_with(parser, options, "a run, whose report lies in --profile-dir", names)
    return options


def program_options(options: argparse.Namespace) -> tuple[str, ...]:
    """What tiny_llama_train is given; batch and sequence left out are the size's own."""
    given = {name: getattr(options, name) for name in PASSED_ON}
    given["num_steps"] = given["num_steps"] or DEFAULT_STEPS
    return tuple(
        f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None
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


COMPARISON = "comparison_report.md"
FAILED, BAD, INTERRUPTED = 1, 2, 130


def complain(text: object) -> None:
    """Says what is wrong."""
    print(f"scripts/profile: {text}", file=sys.stderr)


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def evidence_for(summary: Json, file: Path | None, results: Path) -> Evidence | None:
    """Of --ablation, else of any result of this device; ValueError where --ablation will not do."""
    return read_evidence(file, summary) if file else find_evidence(summary, results)


def write_report(
    profiles: ProfileSet, options: argparse.Namespace, folder: Path, results: Path
) -> Path:
    """The report of a folder of profiles; ValueError where --ablation will not do."""
    evidence = evidence_for(profiles.merged(), options.ablation, results)
    folder.mkdir(parents=True, exist_ok=True)
    draw_timelines(folder)
    path = report_path(folder)
    write_whole(path, report_text(profiles, options.top, evidence))
    return path


def analyze(options: argparse.Namespace, results: Path) -> int:
    """Of saved profiles: to the terminal, or with --generate-report to a file."""
    profiles = read_profile_set(options.analyze_existing)
    if options.generate_report:
        folder = options.output_dir or options.analyze_existing
        print(write_report(profiles, options, folder, results))
        return 0
    evidence = evidence_for(profiles.merged(), options.ablation, results)
    print(report_text(profiles, options.top, evidence), end="")
    return 0


def compare(options: argparse.Namespace) -> int:
    """Two saved profiles: to the terminal, with --output-dir to a file too."""
    a, b = (read_profile_set(folder) for folder in options.compare)
    text = comparison_text(a, b)
    print(text, end="")
    if options.output_dir:
        options.output_dir.mkdir(parents=True, exist_ok=True)
        write_whole(options.output_dir / COMPARISON, text)
        say(f"also in {options.output_dir / COMPARISON}")
    return 0


def measure(
    options: argparse.Namespace, command: str, program: TrainingProgram, results: Path
) -> int:
    """The four runs and their report, which also covers what was done before an error or Ctrl-C."""
    if options.ablation:
        # a wrong file must not be found out minutes later
        read_study(options.ablation)
    folder = options.profile_dir or run_folder("profile", results)
    runs = ProfileRuns(program, folder, program_options(options), command, say)
    status = 0
    try:
        runs.all()
    except TrainingError as error:
        complain(error)
        status = error.exit_status
    except KeyboardInterrupt:
        complain("interrupted; the report has what was measured so far")
        status = INTERRUPTED
    if not runs.runs:
        return status
    print(write_report(read_profile_set(folder), options, folder, results))
    return status or (FAILED if any(run["exit_status"] for run in runs.runs) else 0)


def main(
    arguments: Sequence[str],
    program: TrainingProgram | None = None,
    results: Path = RESULTS,
) -> int:
    """Exit status. `program` and `results` are replaced by tests only."""
    options = parse_options(arguments)
    if options.compare:
        return compare(options)
    if options.analyze_existing:
        return analyze(options, results)
    used = program or TrainingProgram(options.build_folder / "benchmarks/tiny_llama_train")
    return measure(options, shlex.join(["scripts/profile", *arguments]), used, results)
