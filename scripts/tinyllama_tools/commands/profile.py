"""scripts/profile: all profilers in one go, and the report; also of saved or of two profiles."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.commands.profile_report import (
    PROFILINGS,
    REPORT,
    RUNS_FILE,
    RUNS_VERSION,
    ProfileSet,
    Profiling,
    comparison_text,
    draw_timelines,
    read_profile_set,
    report_text,
    say,
)
from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    REFUSED_OPTIONS,
    RESULTS,
    BadInputError,
    Json,
    problem_sizes,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.options import DTYPES, positive, script_parser
from tinyllama_tools.data.programs import TrainingError, TrainingProgram, command_line
from tinyllama_tools.models.ablations import (
    BASELINE,
    Evidence,
    Point,
    evidence_at,
    find_evidence,
    read_evidence,
)

# What the program is given as it stands; batch and sequence left out are the size's own.
PASSED_ON = ("size", "batch_size", "seq_len", "num_steps", "dtype", "variant", "device", "threads")
DEFAULT_STEPS = 30
LOG, COMPARISON = "training_output.log", "comparison_report.md"
# `warning: ...`, `error: ...`, and libtorch's own `[W1122 10:20:30 file.cpp:1] ...`
WARNING = re.compile(r"(?i:\b(warning|error):)|^\[[WE]\d+ ")
MOST_NOTES = 10


ABOUT = """\
Runs tiny_llama_train four times: without profilers (DIR/baseline_training), with the operator
profiler (DIR/pytorch_profiling), the memory profiler (DIR/memory_analysis) and the FLOPS profiler
(DIR/flops_analysis), and writes DIR/performance_summary_report.md. Progress goes to standard error,
the report's path to standard output."""
EPILOG = """\
Exit status: 0 done; 1 a run failed, or its loss was not finite; 2 bad option, missing or damaged
profile, unwritable folder; 130 interrupted: the report has what was measured so far."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Checked as far as text can be; argparse ends the program with 2 where it is wrong."""
    parser = script_parser("profile", ABOUT, EPILOG)
    add, same = parser.add_argument, "as in tiny_llama_train"
    add("--size", choices=sorted(problem_sizes()), help="default: tiny, in its own shape")
    for name in ("--batch-size", "--seq-len", "--threads"):
        add(name, type=positive, metavar="N", help=same)
    add("--num-steps", type=positive, metavar="N", help=f"default: {DEFAULT_STEPS}")
    add("--dtype", choices=DTYPES, help=same)
    for name in ("--variant", "--device"):
        add(name, help=same)
    add("--profile-dir", type=Path, metavar="DIR", help="default: results/<UTC time>_profile")
    add("--build-folder", type=Path, default=PROJECT / "build", help="of the programs")
    add("--top", type=positive, default=10, help="operators in the report's table; default: 10")
    newest = "default: the newest in results/ that is of this device and shape"
    add("--ablation", type=Path, help=f"ablation.json, for measured speedups; {newest}")
    existing = "report on saved profiles: a folder of this script, or one of tiny_llama_train"
    add("--analyze-existing", type=Path, metavar="DIR", help=existing)
    add("--generate-report", action="store_true", help="write that report instead of printing it")
    add("--output-dir", type=Path, help="where; default: the folder of the profiles")
    side = "two saved profiles side by side; with --output-dir also in comparison_report.md there"
    add("--compare", type=Path, nargs=2, metavar=("A", "B"), help=side)
    options = parser.parse_args(arguments)
    refused: tuple[str, ...] = (*PASSED_ON, "profile_dir")
    if options.compare:
        mode, refused = "--compare", (*refused, "analyze_existing", "generate_report")
    elif options.analyze_existing:
        mode = "--analyze-existing"
        if options.output_dir and not options.generate_report:
            parser.error("--output-dir: nothing is written without --generate-report; add it")
    else:
        mode, refused = "a run", ("generate_report", "output_dir")
    for name in refused:
        if getattr(options, name) not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            parser.error(f"{flag}: has no meaning with {mode}; leave one of them out")
    return options


def program_options(options: argparse.Namespace) -> tuple[str, ...]:
    """What tiny_llama_train is given."""
    given = {name: getattr(options, name) for name in PASSED_ON}
    given["num_steps"] = given["num_steps"] or DEFAULT_STEPS
    return tuple(
        f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None
    )


def warnings_in(output: str) -> list[str]:
    """Lines that warn of something or report an error; at most MOST_NOTES, once each."""
    lines = [line.strip() for line in output.splitlines() if WARNING.search(line.strip())]
    return list(dict.fromkeys(lines))[:MOST_NOTES]


def _run_one(
    program: TrainingProgram, folder: Path, options: Sequence[str], name: str, planned: Profiling
) -> Json:
    """The entry of one run. Where the program refuses its options, the folder stays as it was."""
    target, logs = folder / planned.folder, folder / planned.log_folder
    made = [path for path in (logs, target, folder, *folder.parents) if not path.exists()]
    target.mkdir(parents=True, exist_ok=True)
    logs.mkdir(exist_ok=True)
    log, part = logs / LOG, logs / f"{LOG}.part"
    options = [*options, *planned.flags]
    try:
        run = program.run(options, target, part)
    except BaseException as error:
        if part.exists() and getattr(error, "exit_status", None) != REFUSED_OPTIONS:
            # the log of a run that crashed tells why
            part.replace(log)
        part.unlink(missing_ok=True)
        for path in made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise
    part.replace(log)
    notes = warnings_in(run.output)
    if run.exit_status:
        notes.append(f"ended with exit status {run.exit_status}: the loss was not finite")
    flag = "--profile-dir" if planned.flags else "--output-dir"
    return {
        "name": name,
        "folder": planned.folder,
        "log": f"{planned.log_folder}/{LOG}",
        "command": command_line([*options, f"{flag}={planned.folder}"]),
        "exit_status": run.exit_status,
        "seconds": run.seconds,
        "notes": notes,
    }


def run_profilers(
    program: TrainingProgram, folder: Path, options: Sequence[str], command: str, runs: list[Json]
) -> None:
    """Fills `folder` and `runs`, a run after another; the list of runs is written after each.

    TrainingError, BadProfileError, OSError and KeyboardInterrupt pass through.
    """
    now, begin = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    for number, (name, planned) in enumerate(PROFILINGS.items(), start=1):
        say(f"[{number}/{len(PROFILINGS)}] {planned.title}")
        runs.append(_run_one(program, folder, options, name, planned))
        content = {
            "schema_version": RUNS_VERSION,
            "command": command,
            "started": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "total_seconds": time.monotonic() - begin,
            "runs": runs,
        }
        write_whole(folder / RUNS_FILE, json.dumps(content, indent=2) + "\n")


def evidence_for(profiles: ProfileSet, file: Path | None, results: Path) -> Evidence | None:
    """Of --ablation, else of any result of this device; BadInputError where --ablation will not
    do."""
    summary = profiles.merged()
    return read_evidence(file, summary) if file else find_evidence(summary, results)


def write_report(
    profiles: ProfileSet, top: int, folder: Path, evidence: Evidence | None, remark: str = ""
) -> Path:
    """The report of a folder of profiles."""
    folder.mkdir(parents=True, exist_ok=True)
    draw_timelines(folder)
    write_whole(folder / REPORT, report_text(profiles, top, evidence, remark))
    return folder / REPORT


def analyze(options: argparse.Namespace, results: Path) -> int:
    """Of saved profiles: to the terminal, or with --generate-report to a file."""
    profiles = read_profile_set(options.analyze_existing)
    evidence = evidence_for(profiles, options.ablation, results)
    if options.generate_report:
        folder = options.output_dir or options.analyze_existing
        print(write_report(profiles, options.top, folder, evidence))
    else:
        print(report_text(profiles, options.top, evidence), end="")
    return 0


def compare(options: argparse.Namespace) -> int:
    """Two saved profiles: to the terminal, with --output-dir to a file too."""
    text = comparison_text(*map(read_profile_set, options.compare))
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
        own = problem_sizes()[options.size or "tiny"]
        shape = options.batch_size or own["batch"], options.seq_len or own["seq"]
        point = Point(options.size or "tiny", options.dtype or "f32", *shape)
        evidence_at(options.ablation, point, options.variant or BASELINE)
    folder = options.profile_dir or run_folder("profile", results)
    runs: list[Json] = []
    status = 0
    try:
        run_profilers(program, folder, program_options(options), command, runs)
    except TrainingError as error:
        say(f"scripts/profile: {error}")
        status = error.exit_status
    except KeyboardInterrupt:
        say("scripts/profile: interrupted; the report has what was measured so far")
        status = INTERRUPTED
    if not runs:
        return status
    profiles, evidence, remark = read_profile_set(folder), None, ""
    try:
        evidence = evidence_for(profiles, options.ablation, results)
    except BadInputError as error:
        # of another device: what was measured is reported all the same
        remark = str(error)
        say(f"scripts/profile: {remark}")
        status = status or REFUSED_OPTIONS
    print(write_report(profiles, options.top, folder, evidence, remark))
    return status or int(any(run["exit_status"] for run in runs))


def main(
    arguments: Sequence[str], program: TrainingProgram | None = None, results: Path = RESULTS
) -> int:
    """Exit status. `program` and `results` are replaced by tests only."""
    options = parse_options(arguments)
    if options.compare:
        return compare(options)
    if options.analyze_existing:
        return analyze(options, results)
    used = program or TrainingProgram(options.build_folder / "benchmarks/tiny_llama_train")
    return measure(options, shlex.join(["scripts/profile", *arguments]), used, results)
