"""scripts/test: runs every test program and ends in one line, N passed, N failed, N skipped.

Exit status: 0 none failed; 1 some failed, or none was run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import PROJECT as PROJECT_ROOT


@dataclass(frozen=True)
class TestCounts:
    """How many tests passed, which failed, and which were skipped for what reason."""

    __test__ = False  # not a test class, whatever pytest makes of its name

    passed: int = 0
    failures: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()

    def __add__(self, other: TestCounts) -> TestCounts:
        return TestCounts(
            self.passed + other.passed, self.failures + other.failures, self.skips + other.skips
        )

    @property
    def total(self) -> int:
        return self.passed + len(self.failures) + len(self.skips)

    def with_failure(self, name: str) -> TestCounts:
        """One more failure, of what is no test of its own (a crash, a missing program)."""
        return self + TestCounts(failures=(name,))

    def __str__(self) -> str:
        failed, skipped = len(self.failures), len(self.skips)
        return f"{self.passed} passed, {failed} failed, {skipped} skipped"


def count_case(case: ElementTree.Element) -> TestCounts:
    """One test case, under the name that reruns it with -k."""
    name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
    if case.find("failure") is not None or case.find("error") is not None:
        return TestCounts(failures=(name,))
    skipped = case.find("skipped")
    if skipped is not None:
        # GoogleTest's message begins with a line that holds the place in the source
        reason = (skipped.get("message") or "").strip().rpartition("\n")[2]
        return TestCounts(skips=(f"{name}: {reason or 'no reason given'}",))
    if case.get("status") == "notrun":
        return TestCounts(skips=(f"{name}: disabled",))
    if "-byte object" in (case.get("value_param") or ""):
        return TestCounts(
            failures=(f"{name}: its parameter prints as bytes, and needs a PrintTo()",)
        )
    return TestCounts(passed=1)


def read_report(path: Path) -> TestCounts:
    """Counts of one report. Raises OSError or ElementTree.ParseError where it is not whole.

    Each case is counted by itself: the sums in the attributes disagree about disabled ones.
    """
    return sum(
        (count_case(case) for case in ElementTree.parse(path).iter("testcase")), TestCounts()
    )


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


# One CUDA runtime, libtorch's, and nothing that is missing.
LINKED = """libraries=$(ldd "$0") && echo "$libraries" && ! grep "not found" <<<"$libraries" &&
grep -q libtorch_cuda <<<"$libraries" && [[ $(grep -c libcudart <<<"$libraries") == 1 ]]"""
HAS_KERNELS = """"$1" --list-elf "$0" | tee /dev/stderr | grep -q sm_90"""


def cuda_programs(build_folder: Path) -> list[TestProgram]:
    """What a build for CUDA is looked at with where there may be no GPU: that programs find their
    libraries, start, and hold the kernels."""
    (cuobjdump,) = build_folder.glob(
        "environment/lib/python3*/site-packages/nvidia/*/bin/cuobjdump"
    )
    programs = []
    for name in ("tiny_llama_bench", "tiny_llama_train", "tiny_llama_scaling"):
        program = str(build_folder / "benchmarks" / name)
        commands = {
            "finds its libraries": ("bash", "-c", LINKED, program),
            "holds the kernels": ("bash", "-c", HAS_KERNELS, program, str(cuobjdump)),
            "tells its options": (program, "--help"),
        }
        programs += [
            TestProgram(f"{name} {what}", command, "", build_folder)
            for what, command in commands.items()
        ]
    kernels = build_folder / "model/kernels/gpu/kernels_gpu_device_test"
    return [
        *programs,
        TestProgram(kernels.name, (str(kernels),), "--gtest_output=xml:", build_folder),
    ]


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
    if options.cuda_build:
        programs += cuda_programs(options.cuda_build)
    if options.suite:
        programs.append(suite_program(options.suite))
    return programs


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run_tests", description=__doc__)
    parser.add_argument("--build-folder", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument(
        "--suite", type=Path, metavar="PROGRAM", help="a tiny_llama_bench to run shortly"
    )
    parser.add_argument(
        "--cuda-build", type=Path, metavar="FOLDER", help="a build for CUDA to look at"
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
