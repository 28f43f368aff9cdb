"""C++ under sanitizers: its tests, and the readers of the programs under libFuzzer.

Two builds of the tests are made by their presets, which takes half an hour each. For the fuzzer
only the own sources of the readers are compiled, by clang with the definitions and folders of the
build; what they call beyond comes from the libraries of the build, and libtorch is as it is.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

from campaign.runs import JOBS, Scope, Tried, scratch
from campaign.workloads import PROJECT
from tinyllama_tools.proofs.run_tests import (
    SANITIZERS,
    Program,
    gtest_programs,
    output_of,
    run_program,
)

# ten times as long as without
TIME_LIMIT_S = 4 * 3600
# of what a sanitizer or the fuzzer says, the line that names the fault
TELLING = re.compile(r"^(?:SUMMARY: .*|.*: runtime error: .*|\w+: .*exception.*)$", re.MULTILINE)


def reported(program: Program) -> list[str]:
    """Tests that failed, and the words of the sanitizer that ended a program."""
    with scratch() as folder:
        outcome = run_program(program, folder / "tests.xml", TIME_LIMIT_S)
    failures = outcome.counts.failures
    telling = TELLING.findall(outcome.output)[-1:] if failures else []
    return [f"{program.name}: {text}" for text in (*failures, *telling)]


def sanitizers(_: Scope) -> Iterator[Tried]:
    """every C++ test under the address and undefined-behaviour sanitizers, and under the thread
    sanitizer: no report of ours."""
    for preset in SANITIZERS:
        folder = PROJECT / f"build-{preset}"
        output_of(["cmake", "--preset", preset], PROJECT)
        output_of(["cmake", "--build", str(folder), f"-j{JOBS}"], PROJECT)
        for program in gtest_programs(folder):
            yield Tried(f"test program under {preset}", reported(program))


# ---- the fuzzer

BUILD = PROJECT / "build"
# the fuzzer, and what it found
BUILT = PROJECT / "build-fuzz"
FOUND = BUILT / "found"
CORPUS = PROJECT / "tests/fuzzing/corpus"
READERS = sorted(path.name for path in CORPUS.iterdir())
# their sources, by folder
WATCHED = {
    "core": "file_io strict_json",
    "model": "config safetensors weights",
    "benchmarks/console": "command_line option_grammar",
    "benchmarks/distributed": "data_parallel_options launch",
    "benchmarks/harness": "journal options rows serve",
    "benchmarks/instruments": "datasheet_peaks measured_peaks",
    "benchmarks/scaling": "options",
    "benchmarks/training": "token_data train_options",
}
FUZZER = "tests/fuzzing/readers_fuzz.cpp"
# in the build: a program of the same source, without the fuzzer's main
TEST = "tests/fuzzing/readers_test"
WATCHING = "-fsanitize=fuzzer-no-link,address,undefined"
WATCH = (WATCHING, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O2", "-g1")
# Functions of which the fuzzer need not know the ways: those of CLI11 and the standard library, by
# their mangled names, and a loop over letters. Without them it makes three times as many inputs of
# options a second. Both sanitizers watch them all the same.
NOT_COVERED = "_ZN3CLI* _ZNK3CLI* _ZSt* _ZNSt* _ZNKSt* _ZN9__gnu_cxx* _ZNK9__gnu_cxx*"
NOT_COVERED += " *letters_between*"
# standard library's <ranges> needs 16 with GCC 12's
OLDEST_CLANG, NEWEST_CLANG = 16, 30
# inputs of a reader
EXECUTIONS = 1_000_000
LONGEST_INPUT = 4096
HANG_S = 10


def find_clang() -> str:
    """The newest clang++; RuntimeError with what to install."""
    names = [f"clang++-{n}" for n in range(NEWEST_CLANG, OLDEST_CLANG - 1, -1)]
    if found := [*filter(None, map(shutil.which, [*names, "clang++"]))]:
        return found[0]
    raise RuntimeError("no clang++; apt-get install clang-19 libclang-rt-19-dev (libFuzzer)")


def build_fuzzer(folder: Path) -> Path:
    """Compiles the fuzzer and its readers into this folder, as the build compiles its test of them,
    and links the rest from the build. RuntimeError with the compiler's words where it fails."""
    clang = find_clang()
    folder.mkdir(parents=True, exist_ok=True)
    listed = output_of(["ninja", "-C", str(BUILD), "-t", "commands", TEST], PROJECT).splitlines()
    (compiling,) = (shlex.split(line) for line in listed if line.endswith(FUZZER))
    settings = [
        word
        for before, word in pairwise(compiling)
        if word.startswith(("-I", "-D", "-std=", "-isystem")) or before == "-isystem"
    ]

    ccache = filter(None, [shutil.which("ccache")])
    left_out = folder / "not_covered.txt"
    left_out.write_text("".join(f"fun:{name}\n" for name in NOT_COVERED.split()), encoding="utf-8")
    ignoring = f"-fsanitize-coverage-ignorelist={left_out}"
    start = [*ccache, clang, *settings, *WATCH, ignoring, "-c"]

    def compiled(source: str) -> str:
        made = str(folder / f"{source.replace('/', '_')}.o")
        output_of([*start, str(PROJECT / source), "-o", made], BUILD)
        return made

    watched = [f"{at}/{name}.cpp" for at, names in WATCHED.items() for name in names.split()]
    with ThreadPoolExecutor(JOBS) as pool:
        objects = list(pool.map(compiled, [FUZZER, *watched]))
    *_, libraries = listed[-1].partition(f" -o {TEST} ")
    linked = shlex.split(libraries.removesuffix("&& :"))
    program = folder / "readers_fuzz"
    # the readers' own objects come first, so that the libraries' unwatched twins are not taken
    link = [clang, WATCHING.replace("-no-link", ""), *objects]
    output_of([*link, "-Wl,--start-group", *linked, "-Wl,--end-group", "-o", str(program)], BUILD)
    return program


def fuzz(program: Path, scope: Scope, reader: str) -> Tried:
    """Lets libFuzzer make inputs of a reader, from the kept corpus on, until their number or the
    time is reached: how many it made, and the fault that ended it.

    What it found new is kept in FOUND/`reader`, with the input of a fault beside it.
    """
    found, kept = FOUND / reader, CORPUS / reader
    found.mkdir(parents=True, exist_ok=True)
    options = {
        "runs": scope.count(EXECUTIONS),
        "max_total_time": max(1, round(60 * scope.minutes)),
        "seed": scope.seed,
        "max_len": LONGEST_INPUT,
        "timeout": HANG_S,
        "rss_limit_mb": 3000,
        "malloc_limit_mb": 1000,
        "print_final_stats": 1,
        "artifact_prefix": f"{FOUND}/{reader}_",
    }
    given = [f"-{name}={value}" for name, value in options.items()]
    memory = Path("/dev/shm")
    environment = os.environ | {
        "TINY_LLAMA_READER": reader,
        "TMPDIR": str(memory if memory.is_dir() else FOUND),
        "OMP_NUM_THREADS": "1",
        # more frames of who asked for memory take a third of the time
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=2",
    }
    with (FOUND / f"{reader}.log").open("w+", errors="replace") as log:
        command = [program, *given, found, kept]
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, cwd=FOUND)
        log.seek(0)
        said = log.read()
    counts = re.findall(r"stat::number_of_executed_units: +([0-9]+)", said)
    faults = [*TELLING.findall(said), f"status {done.returncode}"][:1] * bool(done.returncode)
    return Tried(f"input of {reader}", faults, int(counts[-1]) if counts else 0)


def fuzzing(scope: Scope) -> Iterator[Tried]:
    """inputs made by coverage for every reader of the programs, with sanitizers: no crash, no hang,
    no exception without a message."""
    program = build_fuzzer(BUILT)
    with ThreadPoolExecutor(JOBS) as pool:
        yield from pool.map(partial(fuzz, program, scope), READERS)
