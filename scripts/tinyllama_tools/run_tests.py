"""Runs every test program and ends in one line, `N passed, N failed, N skipped`.

Exit status: 0 none failed; 1 some failed, or none was run.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tinyllama_tools.test_counts import TestCounts
from tinyllama_tools.test_programs import (
    Outcome,
    TestProgram,
    gtest_programs,
    pytest_programs,
    report_path,
    run_program,
    suite_program,
)

PROJECT_ROOT = Path(__file__).resolve().parents[2]
PROGRAMS_AT_ONCE = 2
TIMEOUT_S = 1200.0
LONG_TIMEOUT_S = 3600.0


def show_outcome(outcome: Outcome) -> None:
    """One line a program, and everything it said if it failed."""
    counts = outcome.counts
    verdict = "FAILED" if counts.failures else "ok" if counts.total else "none"
    print(f"{verdict:7}{outcome.program.name:44} {counts!s:38}{outcome.seconds:7.1f} s", flush=True)
    if counts.failures:
        print(f"{outcome.output.rstrip()}\n", flush=True)


def show_summary(outcomes: Iterable[Outcome]) -> int:
    """Names what was skipped and what failed, then the closing line. Returns the exit status."""
    outcomes = list(outcomes)
    for outcome in outcomes:
        for skip in outcome.counts.skips:
            print(f"skipped: {outcome.program.name}: {skip}")
    for outcome in outcomes:
        for failure in outcome.counts.failures:
            print(f"failed: {outcome.program.name}: {failure}")
    total = sum((outcome.counts for outcome in outcomes), TestCounts())
    if total.total == 0:
        print("failed: no test was run")
        total = total.with_failure("no test was run")
    print(total, flush=True)
    return 1 if total.failures else 0


def run_all(programs: list[TestProgram], timeout_s: float) -> list[Outcome]:
    """Runs the programs, some at once, and shows each as it ends. Outcomes keep their order."""
    outcomes: dict[int, Outcome] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tiny_llama_tests_") as folder,
        ThreadPoolExecutor(max_workers=PROGRAMS_AT_ONCE) as pool,
    ):
        running = {
            pool.submit(
                run_program, program, report_path(Path(folder), index, programs), timeout_s
            ): index
            for index, program in enumerate(programs)
        }
        try:
            for future in as_completed(running):
                outcomes[running[future]] = future.result()
                show_outcome(future.result())
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [outcomes[index] for index in sorted(outcomes)]


def find_programs(options: argparse.Namespace) -> list[TestProgram]:
    """The Python tests first, since they take longest, then each build folder's programs."""
    programs = (
        [] if options.no_pytest else pytest_programs(PROJECT_ROOT, options.pattern, options.long)
    )
    for build_folder in options.build_folder:
        found = gtest_programs(build_folder, options.pattern)
        if not found:
            raise RuntimeError(f"{build_folder} has no test program")
        programs += found
    if options.suite:
        programs.append(suite_program(options.suite))
    return programs


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run_tests", description=__doc__)
    parser.add_argument("--build-folder", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument(
        "--suite", type=Path, metavar="PROGRAM", help="a tiny_llama_bench to run shortly"
    )
    parser.add_argument("--no-pytest", action="store_true", help="only the GoogleTest programs")
    parser.add_argument("--long", action="store_true", help="also the tests that take minutes")
    parser.add_argument("-k", dest="pattern", help="only tests whose name contains this")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="for one program")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(arguments)
    if options.long:
        os.environ["TINY_LLAMA_LONG_TESTS"] = "1"
    try:
        programs = find_programs(options)
    except RuntimeError as error:
        print(f"failed: {error}")
        print(TestCounts().with_failure("no programs"))
        return 1
    timeout_s = options.timeout or (LONG_TIMEOUT_S if options.long else TIMEOUT_S)
    return show_summary(run_all(programs, timeout_s))


if __name__ == "__main__":
    sys.exit(main())
