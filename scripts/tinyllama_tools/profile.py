"""All profilers in one go, and the report of what they found; also of saved or of two profiles."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.ablation_evidence import Evidence, find_evidence, read_evidence
from tinyllama_tools.ablation_files import read_study
from tinyllama_tools.core.app import RESULTS, Json, run_folder, write_whole
from tinyllama_tools.data.profiles import BadProfileError
from tinyllama_tools.data.programs import TrainingError, TrainingProgram
from tinyllama_tools.memory_timeline import draw_timelines
from tinyllama_tools.profile_compare import comparison_text
from tinyllama_tools.profile_options import parse_options, program_options
from tinyllama_tools.profile_page import report_path, report_text
from tinyllama_tools.profile_runs import ProfileRuns
from tinyllama_tools.profile_set import ProfileSet, read_profile_set

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
    arguments: Sequence[str] | None = None,
    program: TrainingProgram | None = None,
    results: Path = RESULTS,
) -> int:
    """Exit status. `program` and `results` are replaced by tests only."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse_options(given)
    try:
        if options.compare:
            return compare(options)
        if options.analyze_existing:
            return analyze(options, results)
        used = program or TrainingProgram(options.build_folder / "benchmarks/tiny_llama_train")
        return measure(options, shlex.join(["scripts/profile", *given]), used, results)
    except (BadProfileError, ValueError) as error:
        complain(error)
    except OSError as error:
        complain(f"{error.filename or 'output'}: {error.strerror}")
    return BAD


if __name__ == "__main__":
    sys.exit(main())
