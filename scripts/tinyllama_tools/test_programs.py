"""Finds the test programs and runs one: what it reported, or that it crashed before it could."""

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.test_counts import TestCounts, read_report

# What a program's end looks like when pytest or GoogleTest says that some test failed.
EXIT_TESTS_FAILED = 1
PYTEST_EXIT_NO_TESTS = 5
EXIT_NOT_STARTED = 127


@dataclass(frozen=True)
class TestProgram:
    """A command that writes an XML report to the file it is given.

    Without a report option it writes none, and its exit status is the test.
    """

    __test__ = False

    name: str
    command: tuple[str, ...]
    report_option: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What came of one program."""

    program: TestProgram
    counts: TestCounts
    seconds: float
    output: str


def gtest_programs(build_folder: Path, pattern: str | None) -> list[TestProgram]:
    """The programs that CMake registered as tests. RuntimeError where they cannot be listed."""
    result = subprocess.run(
        ["ctest", "--test-dir", str(build_folder), "--show-only=json-v1"],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise RuntimeError(
            f"ctest cannot list the tests of {build_folder}: {result.stderr.strip()}"
        )
    programs = []
    for test in json.loads(result.stdout)["tests"]:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        # ctest leaves the command out where the program was not built; its name then fails to run
        command = tuple(test.get("command", [test["name"]]))
        if pattern:
            command += (f"--gtest_filter=*{pattern}*",)
        own = dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", []))
        programs.append(
            TestProgram(
                f"{build_folder.name}/{test['name']}",
                command,
                "--gtest_output=xml:",
                Path(properties.get("WORKING_DIRECTORY", build_folder)),
                gtest_environment(build_folder) | own,
            )
        )
    return programs


def suite_program(program: Path) -> TestProgram:
    """A short run of tiny_llama_bench, on the CPU, with its gate."""
    grid = ("--components=ffn,attention", "--variants=baseline,optimized")
    short = ("--passes=forward_backward", "--benchmark_min_time=0.01s")
    command = (str(program), "--device=cpu", *grid, *short)
    return TestProgram(program.name, command, "", program.parent)


def gtest_environment(build_folder: Path) -> dict[str, str]:
    """One thread a program, since two run at once; libtorch's memory at exit is no leak of ours."""
    environment = {"OMP_NUM_THREADS": "1"}
    if "asan" in build_folder.name:
        environment["ASAN_OPTIONS"] = "detect_leaks=0:detect_stack_use_after_return=1"
        environment["UBSAN_OPTIONS"] = "print_stacktrace=1"
    return environment


def pytest_programs(project_root: Path, pattern: str | None, is_long: bool) -> list[TestProgram]:
    """The Python tests: those directly under tests/, then each folder below as one of its own.

    Two programs run at once, and each has its own time limit.
    """
    tests = project_root / "tests"
    folders = sorted(path.parent.name for path in tests.glob("*/conftest.py"))
    parts = [("tests", [f"--ignore=tests/{name}" for name in folders])]
    parts += [(f"tests/{name}", []) for name in folders]
    more = (["-k", pattern] if pattern else []) + (["--long"] if is_long else [])
    return [
        TestProgram(
            f"pytest {part}",
            (sys.executable, "-m", "pytest", "-q", part, *ignored, *more),
            "--junitxml=",
            project_root,
        )
        for part, ignored in parts
    ]


def count_outcome(report: Path | None, exit_status: int | None, may_be_empty: bool) -> TestCounts:
    """The report's counts, and one failure more where the program's end contradicts them.

    exit_status: None after a timeout, negative after a signal.
    """
    if exit_status is None:
        return TestCounts(failures=("did not end in time",))
    if report is None:
        counts = TestCounts(passed=int(exit_status == 0))
    else:
        try:
            counts = read_report(report)
        except (OSError, ElementTree.ParseError):
            return TestCounts(
                failures=(f"ended with status {exit_status} before it wrote its report",)
            )
    if exit_status == 0 or (may_be_empty and exit_status == PYTEST_EXIT_NO_TESTS):
        return counts
    if exit_status == EXIT_TESTS_FAILED and counts.failures:
        return counts
    return counts.with_failure(f"ended with status {exit_status}")


def run_program(program: TestProgram, report: Path, timeout_s: float) -> Outcome:
    """Runs one program. Not starting, crashing and not ending in time each count as a failure."""
    command = list(program.command)
    if program.report_option:
        command.append(f"{program.report_option}{report}")
    started = time.monotonic()
    status: int | None
    # A file and not a pipe: a child that a killed program left behind would keep a pipe open.
    output_file = report.with_suffix(".txt")
    with output_file.open("wb") as stream:
        try:
            status = subprocess.run(
                command,
                cwd=program.folder,
                env=os.environ | program.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
        except OSError as error:
            status = EXIT_NOT_STARTED
            stream.write(f"cannot be run: {error}\n".encode())
    expected = report if program.report_option else None
    counts = count_outcome(expected, status, program.report_option == "--junitxml=")
    output = output_file.read_text(encoding="utf-8", errors="replace")
    return Outcome(program, counts, time.monotonic() - started, output)


def report_path(folder: Path, index: int, programs: Sequence[TestProgram]) -> Path:
    """A report file for each program; names may repeat between build folders, numbers do not."""
    return folder / f"{index:03d}_{programs[index].name.replace('/', '_').replace(' ', '_')}.xml"
