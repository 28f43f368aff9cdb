"""C++ under sanitizers: its tests, and the readers of the programs under libFuzzer.

Two builds of the tests are made by their presets, which takes half an hour each. What a sanitizer
says of libtorch's own code, which is not watched, is counted apart. For the fuzzer only the own
sources of the readers are compiled, by clang with the definitions and folders of the build; what
they call beyond comes from the libraries of the build, and libtorch is as it is.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from campaign.runs import JOBS, OfLibrary, Scope, Tried, scratch
from campaign.workloads import PROJECT
from tinyllama_tools.proofs.run_tests import Program, gtest_programs, run_program

# ten times as long as without
TIME_LIMIT_S = 4 * 3600
SUPPRESSIONS = Path(__file__).with_name("thread_sanitizer.txt")
# of each preset: what its programs start with. Leaks: libtorch keeps memory until the end.
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "asan": {
        # tests ask for more than there can be
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:log_path={log}"
        ":allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:log_path={log}",
    },
    "tsan": {
        # What code without the sanitizer does with its own locks is not seen, and looks like a
        # race. More locks than its detector of deadlocks can count end a program.
        "TSAN_OPTIONS": f"suppressions={SUPPRESSIONS}:ignore_noninstrumented_modules=1:"
        "halt_on_error=0:exitcode=0:history_size=4:allocator_may_return_null=1:"
        "detect_deadlocks=0:log_path={log}",
    },
}
# a report's beginning; each of its frames; and how the last line names it
REPORT = re.compile(
    r"(?:^(?:==\d+==ERROR|WARNING): (?:Address|Thread)Sanitizer|: runtime error: )", re.MULTILINE
)
FRAME = re.compile(r"^\s+#\d+ .*$", re.MULTILINE)
OWN_SOURCE = re.compile(rf"{re.escape(str(PROJECT))}/(?:model|benchmarks|tests)/\S+")
# of a frame that nobody wrote on purpose: the compiler's, the standard library's, the sanitizer's
HELPER = re.compile(r"/usr/include/|/include/c\+\+/|libsanitizer|lib[atu]san|compiler-rt|/gtest/")


def reports_in(text: str) -> Iterator[str]:
    """Each report of a sanitizer, from its first line to the next one's."""
    starts = [found.start() for found in REPORT.finditer(text)]
    for start, end in pairwise([*starts, len(text)]):
        begin = text.rfind("\n", 0, start) + 1
        yield text[begin:end]


def verdict_on(report: str) -> str:
    """The report in one line; of a library where its innermost frame is no source of ours."""
    first = report.partition("\n")[0].strip()
    frames = [f.strip() for f in FRAME.findall(report) if not HELPER.search(f)]
    innermost = frames[0] if frames else first
    words = f"{first}: {innermost}"[:300]
    return words if OWN_SOURCE.search(innermost) else OfLibrary(words)


def run_watched(program: Program, preset: str) -> list[str]:
    """One program; what its sanitizer reports, and tests that fail."""
    with scratch() as folder:
        log = folder / "report"
        options = {name: text.format(log=log) for name, text in OPTIONS[preset].items()}
        watched = replace(program, environment={**program.environment, **options})
        outcome = run_program(watched, folder / "tests.xml", TIME_LIMIT_S)
        logs = [path.read_text(errors="replace") for path in sorted(folder.glob("report*"))]
        # where both sanitizers are in a program, one of them says it on standard error
        said = "\n".join([*logs, outcome.output])
    found = [verdict_on(report) for report in reports_in(said)]
    # the sanitizer ends the program at the first: its tests did not run to their end
    is_explained = preset == "asan" and any(not isinstance(one, OfLibrary) for one in found)
    return found + [f"failed: {name}" for name in outcome.counts.failures if not is_explained]


def run_command(command: list[str], folder: Path) -> str:
    """What it printed. RuntimeError with its last words where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)[:1000]}: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def sanitizers(_: Scope) -> Iterator[Tried]:
    """every C++ test under the address and undefined-behaviour sanitizers, and under the thread
    sanitizer: no report of ours."""
    for preset in OPTIONS:
        folder = PROJECT / f"build-{preset}"
        run_command(["cmake", "--preset", preset], PROJECT)
        run_command(["cmake", "--build", str(folder), f"-j{JOBS}"], PROJECT)
        for program in gtest_programs(folder):
            name = program.name.rpartition("/")[2]
            # what a library does is the same whoever calls it
            found = [
                problem if isinstance(problem, OfLibrary) else f"{name}: {problem}"
                for problem in run_watched(program, preset)
            ]
            yield Tried(f"test program under {preset}", found)


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
    "benchmarks/console": "command_line option_grammar size_options",
    "benchmarks/distributed": "data_parallel_options launch",
    "benchmarks/harness": "journal measured_peaks options rows serve",
    "benchmarks/instruments": "datasheet_peaks",
    "benchmarks/scaling": "options",
    "benchmarks/training": "token_data train_options",
}
FUZZER = "tests/fuzzing/readers_fuzz.cpp"
# in the build: a program of the same source, without the fuzzer's main
TEST = "tests/fuzzing/readers_test"
WATCHING = "-fsanitize=fuzzer-no-link,address,undefined"
NOT_COVERED = Path(__file__).with_name("not_covered.txt")
WATCH = (WATCHING, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O2", "-g1")
WATCH += (f"-fsanitize-coverage-ignorelist={NOT_COVERED}",)
# standard library's <ranges> needs 16 with GCC 12's
OLDEST_CLANG, NEWEST_CLANG = 16, 30
# inputs of a reader
EXECUTIONS = 1_000_000
LONGEST_INPUT = 4096
HANG_S = 10


def find_clang() -> str:
    """The newest clang++ that can link with libFuzzer. RuntimeError with what to install."""
    names = [f"clang++-{n}" for n in range(NEWEST_CLANG, OLDEST_CLANG - 1, -1)]
    for path in filter(None, map(shutil.which, [*names, "clang++"])):
        command = [path, "-fsanitize=fuzzer", "-x", "c++", "-", "-o", os.devnull]
        source = 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }'
        if subprocess.run(command, input=source, text=True, capture_output=True).returncode == 0:
            return path
    raise RuntimeError("no clang++ with libFuzzer; apt-get install clang-19 libclang-rt-19-dev")


def build_fuzzer(folder: Path) -> Path:
    """Compiles the fuzzer and all readers in this folder, as the build does its test of them, and
    links the rest from there. RuntimeError with the compiler's words where it fails."""
    clang = find_clang()
    folder.mkdir(parents=True, exist_ok=True)
    listed = run_command(["ninja", "-C", str(BUILD), "-t", "commands", TEST], PROJECT).splitlines()
    (compiling,) = (shlex.split(line) for line in listed if line.endswith(FUZZER))
    settings = [
        word
        for before, word in pairwise(compiling)
        if word.startswith(("-I", "-D", "-std=", "-isystem")) or before == "-isystem"
    ]

    ccache = filter(None, [shutil.which("ccache")])
    start = [*ccache, clang, *settings, *WATCH, "-c"]

    def compiled(source: str) -> str:
        made = str(folder / f"{source.replace('/', '_')}.o")
        run_command([*start, str(PROJECT / source), "-o", made], BUILD)
        return made

    watched = [f"{at}/{name}.cpp" for at, names in WATCHED.items() for name in names.split()]
    with ThreadPoolExecutor(JOBS) as pool:
        objects = list(pool.map(compiled, [FUZZER, *watched]))
    *_, libraries = listed[-1].partition(f" -o {TEST} ")
    linked = shlex.split(libraries.removesuffix("&& :"))
    program = folder / "readers_fuzz"
    # the readers' own objects come first, so that the libraries' unwatched twins are not taken
    link = [clang, WATCHING.replace("-no-link", ""), *objects]
    run_command([*link, "-Wl,--start-group", *linked, "-Wl,--end-group", "-o", str(program)], BUILD)
    return program


def fuzz(program: Path, scope: Scope, reader: str) -> Tried:
    """Lets libFuzzer make inputs of a reader from the kept corpus, until their number or the time
    is reached; how many it made, and the fault that ended it.

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
        # libtorch's memory at exit is no leak of ours; more frames of who asked for memory take a
        # third of the time
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=2",
    }
    with (FOUND / f"{reader}.log").open("w+", errors="replace") as log:
        command = [program, *given, found, kept]
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, cwd=FOUND)
        log.seek(0)
        said = log.read()
    counts = re.findall(r"stat::number_of_executed_units: +([0-9]+)", said)
    telling = re.search(r"^(?:SUMMARY: .*|.*: runtime error: .*|\w+: .*exception.*)$", said, re.M)
    fault = telling.group() if telling else f"status {done.returncode}"
    problems = [fault] if done.returncode else []
    return Tried(f"input of {reader}", problems, int(counts[-1]) if counts else 0)


def fuzzing(scope: Scope) -> Iterator[Tried]:
    """inputs made by coverage for every reader of the programs, with sanitizers: no crash, no hang,
    no exception without a message."""
    program = build_fuzzer(BUILT)
    with ThreadPoolExecutor(JOBS) as pool:
        yield from pool.map(partial(fuzz, program, scope), READERS)
