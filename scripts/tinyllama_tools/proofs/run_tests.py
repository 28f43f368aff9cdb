"""scripts/test: runs every test program and ends in one line, N passed, N failed, N skipped.

It needs only the standard library: builds with another libtorch are tested by any python3. Exit
status: 0 none failed; 1 some failed, or none was run.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.installation import ROOT, TOOLS

GTEST_REPORT, PYTEST_REPORT = "--gtest_output=xml:", "--junitxml="
# What a program's end looks like when pytest or GoogleTest says that some test failed.
EXIT_TESTS_FAILED = 1
PYTEST_EXIT_NO_TESTS = 5


@dataclass
class Counts:
    """How many tests passed, which failed, which were skipped and why, and what they proved: each
    proof the text of a ProofRecord (model/proof_record.hpp)."""

    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)

    def add(self, case: ElementTree.Element) -> None:
        """One test case of a report, under the name that reruns it with -k."""
        name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            self.failures.append(name)
        elif skipped is not None:
            # GoogleTest's message begins with a line that holds the place in the source
            reason = (skipped.get("message") or "").strip().rpartition("\n")[2]
            self.skips.append(f"{name}: {reason or 'no reason given'}")
        elif case.get("status") == "notrun":
            self.skips.append(f"{name}: disabled")
        else:
            self.passed += 1
        self.proofs += [
            found.get("value", "")
            for found in case.iter("property")
            if found.get("name", "").startswith("proof_")
        ]

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failures)} failed, {len(self.skips)} skipped"


@dataclass(frozen=True)
class Program:
    """A command that writes an XML report to the file that `report_option` names. Where that is
    empty it writes none, and its exit status is the test."""

    name: str
    command: tuple[str, ...]
    folder: Path
    report_option: str = GTEST_REPORT
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What came of one program."""

    program: Program
    counts: Counts
    seconds: float
    output: str


def count_outcome(program: Program, report: Path, exit_status: int | None) -> Counts:
    """The report's counts, and one failure more where the program's end contradicts them.

    exit_status: None after a timeout, negative after a signal. Each case is counted by itself: the
    sums in the report's attributes disagree about disabled ones.
    """
    if exit_status is None:
        return Counts(failures=["did not end in time"])
    counts = Counts()
    if program.report_option:
        try:
            cases = ElementTree.parse(report).iter("testcase")
        except (OSError, ElementTree.ParseError):
            failure = f"ended with status {exit_status} before it wrote its report"
            return Counts(failures=[failure])
        for case in cases:
            counts.add(case)
    else:
        counts.passed = int(exit_status == 0)
    is_empty = program.report_option == PYTEST_REPORT and exit_status == PYTEST_EXIT_NO_TESTS
    failed_as_told = exit_status == EXIT_TESTS_FAILED and counts.failures
    if not (exit_status == 0 or is_empty or failed_as_told):
        counts.failures.append(f"ended with status {exit_status}")
    return counts


def run_program(program: Program, report: Path, timeout_s: float) -> Outcome:
    """Runs one program. Not starting, crashing and not ending in time each count as a failure."""
    option = [f"{program.report_option}{report}"] if program.report_option else []
    started = time.monotonic()
    status: int | None = None
    report.unlink(missing_ok=True)
    # A file and not a pipe: a child that a killed program left behind would keep a pipe open.
    output_file = report.with_suffix(".txt")
    with output_file.open("wb") as stream:
        try:
            status = subprocess.run(
                [*program.command, *option],
                cwd=program.folder,
                env=os.environ | program.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            pass
        except OSError as error:
            status = 127
            stream.write(f"cannot be run: {error}\n".encode())
    counts = count_outcome(program, report, status)
    output = output_file.read_text(encoding="utf-8", errors="replace")
    return Outcome(program, counts, time.monotonic() - started, output)


def output_of(command: Sequence[str] | str, folder: Path) -> str:
    """The standard output of a command, given as words or as a text for the shell. RuntimeError
    with the end of what it said where it fails."""
    how = {"cwd": folder, "encoding": "utf-8", "errors": "replace", "capture_output": True}
    done = subprocess.run(command, shell=isinstance(command, str), check=False, **how)
    if done.returncode:
        text = command if isinstance(command, str) else shlex.join(command)
        raise RuntimeError(f"{text[:1000]}: {(done.stdout + done.stderr)[-3000:].strip()}")
    return done.stdout


CPU_INFO = Path("/proc/cpuinfo")
# what programs of these build folders start with
SANITIZERS = {
    # libtorch keeps memory until the end; tests ask for more than there can be
    "asan": {
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:"
        "allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    },
    # What code without the sanitizer does with its own locks is not seen, and looks like a race.
    # More locks than its detector of deadlocks can count end a program.
    "tsan": {
        "TSAN_OPTIONS": f"suppressions={Path(__file__).with_name('thread_sanitizer.txt')}:"
        "ignore_noninstrumented_modules=1:history_size=4:allocator_may_return_null=1:"
        "detect_deadlocks=0"
    },
}


def has_more_than_avx2() -> bool:
    """False where a program that is held to AVX2 would only repeat the one that is not."""
    return not CPU_INFO.exists() or bool(re.search("avx512f|avx_vnni", CPU_INFO.read_text("utf-8")))


def gtest_programs(build_folder: Path, pattern: str | None = None) -> list[Program]:
    """The programs that CMake registered as tests. RuntimeError where there are none."""
    listing = ["ctest", "--test-dir", str(build_folder), "--show-only=json-v1"]
    tests = json.loads(output_of(listing, ROOT))["tests"]
    if not tests:
        raise RuntimeError(f"{build_folder} has no test program")
    # one thread a program, since two run at once
    preset = build_folder.name.removeprefix("build-")
    environment = {"OMP_NUM_THREADS": "1", **SANITIZERS.get(preset, {})}
    programs = []
    for test in tests:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        # ctest leaves the command out where the program was not built; its name then fails to run
        command = tuple(test.get("command", [test["name"]]))
        if pattern:
            command += (f"--gtest_filter=*{pattern}*",)
        own = dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", []))
        if own.get("ATEN_CPU_CAPABILITY") == "avx2" and not has_more_than_avx2():
            continue
        folder = Path(properties.get("WORKING_DIRECTORY", build_folder))
        name = f"{build_folder.name}/{test['name']}"
        programs.append(Program(name, command, folder, environment=environment | own))
    return programs


def pytest_programs(project_root: Path, pattern: str | None, is_long: bool) -> list[Program]:
    """The Python tests: those directly under tests/, then each folder below as one of its own.

    Two programs run at once, and each has its own time limit.
    """
    tests = project_root / "tests"
    folders = sorted({path.parent.name for path in tests.glob("*/test_*.py")})
    parts = [("tests", [f"--ignore=tests/{name}" for name in folders])]
    parts += [(f"tests/{name}", []) for name in folders]
    more = (["-k", pattern] if pattern else []) + (["--long"] if is_long else [])
    start = (sys.executable, "-m", "pytest", "-q")
    return [
        Program(f"pytest {part}", (*start, part, *ignored, *more), project_root, PYTEST_REPORT)
        for part, ignored in parts
    ]


def suite_program(program: Path) -> Program:
    """A short run of tiny_llama_bench, on the CPU, with its gate."""
    options = (
        "--device=cpu --components=ffn,attention --variants=baseline,optimized "
        "--passes=forward_backward --benchmark_min_time=0.01s"
    )
    return Program(program.name, (str(program), *options.split()), program.parent, "")


PROGRAMS = ("tiny_llama_bench", "tiny_llama_train", "tiny_llama_scaling")
CODE_OBJECTS = ROOT / "fixtures/gpu_code_objects.json"
HOLDS_CUDA = """found=$("$1" --list-elf "$0") && echo "$found"
for gpu in sm_80 sm_90 sm_100; do grep -qF ".$gpu." <<<"$found" || { echo "none for $gpu"; exit 1; }
done"""
# by the name of its part of the fat binary
HOLDS_ROCM = """for gpu in gfx90a gfx942 gfx950
do grep -qaF "amdgcn-amd-amdhsa--$gpu" "$0" || { echo "none for $gpu"; exit 1; }
done"""
# the class of libtorch's back-end for ranks over NCCL or RCCL
JOINS_RANKS = """grep -qaF 16ProcessGroupNCCL "$0" """


def gpu_programs(
    build_folder: Path, holds: tuple[str, ...], environment: dict[str, str]
) -> list[Program]:
    """Checks of a build for GPUs that need none: programs find their libraries, start and run
    where there is no device; `holds`, a script for bash and its words behind the program's, says
    whether they have kernels for every GPU. Those needs no more than the table has, and their test
    on a device is skipped without one."""
    kernels = build_folder / "model/kernels/gpu/kernels_gpu_device_test"
    programs = [Program(kernels.name, (str(kernels),), build_folder)]
    script, *words = holds
    for name in PROGRAMS:
        program = str(build_folder / "benchmarks" / name)
        checks = {
            "starts": (program, "--help"),
            "holds the kernels": ("bash", "-c", script, program, *words),
            "joins ranks": ("bash", "-c", JOINS_RANKS, program),
        }
        if name == PROGRAMS[0]:  # it has no ranks
            del checks["joins ranks"]
        for does, command in checks.items():
            programs.append(Program(f"{name} {does}", command, build_folder, ""))
    bench = str(build_folder / "benchmarks" / PROGRAMS[0])
    read = ("-m", "tinyllama_tools.proofs.code_objects", "--objects", bench)
    environment = {"PYTHONPATH": str(TOOLS), **environment}
    for does, command in {
        "runs": (bench, "--device=cpu", "--dry-run"),
        "code objects": (sys.executable, *read, "--table", str(CODE_OBJECTS)),
    }.items():
        name = f"{PROGRAMS[0]} {does}"
        programs.append(Program(name, command, build_folder, "", environment))
    return programs


def cuda_programs(build_folder: Path) -> list[Program]:
    """Those of scripts/test --cuda-build."""
    packages = build_folder / "environment/lib"
    (cuobjdump,) = packages.glob("python3*/site-packages/nvidia/*/bin/cuobjdump")
    toolkit = {"CUDA_HOME": str(cuobjdump.parents[1])}
    return gpu_programs(build_folder, (HOLDS_CUDA, str(cuobjdump)), toolkit)


def rocm_programs(build_folder: Path) -> list[Program]:
    """Those of scripts/test --rocm-build."""
    return gpu_programs(build_folder, (HOLDS_ROCM,), {})


PROGRAMS_AT_ONCE = 2
TIMEOUT_S = 1200.0
LONG_TIMEOUT_S = 3600.0


def show_outcome(outcome: Outcome) -> None:
    """One line a program, and everything it said if it failed."""
    counts = outcome.counts
    verdict = "FAILED" if counts.failures else "ok" if counts.passed or counts.skips else "none"
    print(f"{verdict:7}{outcome.program.name:44} {counts!s:38}{outcome.seconds:7.1f} s", flush=True)
    if counts.failures:
        print(f"{outcome.output.rstrip()}\n", flush=True)


def show_summary(outcomes: list[Outcome]) -> int:
    """Names what was skipped and what failed, then the closing line. Returns the exit status."""
    total = Counts()
    for outcome in outcomes:
        total.passed += outcome.counts.passed
        total.failures += [f"{outcome.program.name}: {text}" for text in outcome.counts.failures]
        total.skips += [f"{outcome.program.name}: {text}" for text in outcome.counts.skips]
    if not (total.passed or total.failures or total.skips):
        total.failures.append("no test was run")
    for text in total.skips:
        print(f"skipped: {text}")
    for text in total.failures:
        print(f"failed: {text}")
    print(total, flush=True)
    return 1 if total.failures else 0


def run_all(programs: list[Program], timeout_s: float) -> list[Outcome]:
    """Runs the programs, some at once, and shows each as it ends. Outcomes keep their order."""
    with (
        tempfile.TemporaryDirectory(prefix="tiny_llama_tests_") as folder,
        ThreadPoolExecutor(max_workers=PROGRAMS_AT_ONCE) as pool,
    ):
        # numbers, since names may repeat between build folders
        reports = [Path(folder, f"{number}.xml") for number in range(len(programs))]
        running = [
            pool.submit(run_program, program, report, timeout_s)
            for program, report in zip(programs, reports, strict=True)
        ]
        try:
            for future in as_completed(running):
                show_outcome(future.result())
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in running]


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run_tests", description=__doc__)
    add = parser.add_argument
    add("--build-folder", type=Path, action="append", default=[], metavar="FOLDER")
    add("--suite", type=Path, metavar="PROGRAM", help="a tiny_llama_bench to run shortly")
    add("--cuda-build", type=Path, metavar="FOLDER", help="a build for CUDA to look at")
    add("--rocm-build", type=Path, metavar="FOLDER", help="a build for ROCm to look at")
    add("--no-pytest", action="store_true", help="only the GoogleTest programs")
    add("--long", action="store_true", help="also the tests that take minutes")
    add("-k", dest="pattern", help="only tests whose name contains this")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(arguments)
    # the Python tests first, since they take longest
    pattern, is_long = options.pattern, options.long
    programs = [] if options.no_pytest else pytest_programs(ROOT, pattern, is_long)
    try:
        for build_folder in options.build_folder:
            programs += gtest_programs(build_folder, pattern)
        programs += cuda_programs(options.cuda_build) if options.cuda_build else []
        programs += rocm_programs(options.rocm_build) if options.rocm_build else []
        programs += [suite_program(options.suite)] if options.suite else []
    except RuntimeError as error:
        print(f"failed: {error}\n{Counts(failures=['no programs'])}")
        return 1
    return show_summary(run_all(programs, LONG_TIMEOUT_S if is_long else TIMEOUT_S))


if __name__ == "__main__":
    # what tests say may be beyond a terminal's encoding
    sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
