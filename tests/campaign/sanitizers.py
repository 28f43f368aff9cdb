"""C++ under sanitizers: its tests, and the readers of the programs under libFuzzer.

Two builds of the tests are made by their presets, which takes half an hour each. What a sanitizer
says of libtorch's own code, which is not watched, is counted apart. For the fuzzer only the own
sources of the readers are compiled, by clang with the definitions and folders of the build; what
they call beyond comes from the libraries of the build, and libtorch is as it is.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from campaign.runs import OfLibrary, Scope, Tally, scratch
from campaign.workloads import PROJECT
from tinyllama_tools.proofs.run_tests import Program, gtest_programs, run_program

# ten times as long as without
TIME_LIMIT_S = 4 * 3600
SUPPRESSIONS = Path(__file__).with_name("thread_sanitizer.txt")
# of each preset: what its programs start with. Leaks: libtorch keeps memory until the end.
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "asan": {
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:log_path={log}",
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
    is_explained = bool(found) and preset == "asan"
    return found + [f"failed: {name}" for name in outcome.counts.failures if not is_explained]


def build(preset: str, names: tuple[str, ...], jobs: int) -> Path:
    """The folder of the preset, configured and built; with names only these programs."""
    folder = PROJECT / f"build-{preset}"
    targets = [f"--target={name}" for name in names]
    for command in (
        ["cmake", "--preset", preset],
        ["cmake", "--build", str(folder), f"-j{jobs}", *targets],
    ):
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-2000:]}")
    return folder


def sanitizers(scope: Scope) -> Iterator[Tally]:
    """every C++ test under the address and undefined-behaviour sanitizers, and under the thread
    sanitizer: no report of ours."""
    for preset in OPTIONS:
        folder = build(preset, scope.names, scope.jobs)
        for program in gtest_programs(folder):
            name = program.name.rpartition("/")[2]
            if not scope.has(name):  # names in the scope are those of programs
                continue
            problems = run_watched(program, preset)
            print(f"{preset}, {name}: {problems or 'nothing'}", flush=True)
            # what a library does is the same whoever calls it
            named = [p if isinstance(p, OfLibrary) else f"{name}: {p}" for p in problems]
            tally = Tally()
            tally.add(f"test program under {preset}", named)
            yield tally


# ---- the fuzzer

BUILD = PROJECT / "build"
# the fuzzer, and what it found
BUILT = PROJECT / "build-fuzz"
CORPUS = PROJECT / "tests/fuzzing/corpus"
READERS = (
    *("bench_options", "train_options", "scaling_options", "grammar", "request", "sizes"),
    *("peaks", "config", "safetensors", "weights", "tokens", "journal"),
)
# their sources, by folder
WATCHED = {
    "model": "config file_io safetensors strict_json weights",
    "benchmarks/console": "command_line option_grammar size_options",
    "benchmarks/distributed": "data_parallel_options launch scaling_options",
    "benchmarks/harness": "journal measured_peaks options rows serve",
    "benchmarks/instruments": "datasheet_peaks",
    "benchmarks/training": "token_data train_options",
}
FUZZER = "tests/fuzzing/readers_fuzz.cpp"
# whose definitions and folders the fuzzer's own source has: it knows all that the readers know
FUZZER_LIKE = "benchmarks/distributed/scaling_options.cpp"
WATCHING = "-fsanitize=fuzzer-no-link,address,undefined"
WATCH = (WATCHING, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g1")
# standard library's <ranges> needs 16 with GCC 12's
OLDEST_CLANG, NEWEST_CLANG = 16, 30
# inputs of a reader
EXECUTIONS = 1_000_000
LONGEST_INPUT = 4096
HANG_S = 10


class NoFuzzerError(Exception):
    """Why the readers cannot be fuzzed here."""


def find_clang() -> str:
    """The newest clang++ that can link with libFuzzer. NoFuzzerError with what to install."""
    names = [f"clang++-{n}" for n in range(NEWEST_CLANG, OLDEST_CLANG - 1, -1)]
    for name in [*names, "clang++"]:
        path = shutil.which(name)
        if path is None:
            continue
        command = [path, "-fsanitize=fuzzer", "-x", "c++", "-", "-o", os.devnull]
        source = 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }'
        if subprocess.run(command, input=source, text=True, capture_output=True).returncode == 0:
            return path
    raise NoFuzzerError("no clang++ with libFuzzer; apt-get install clang-19 libclang-rt-19-dev")


def _database() -> tuple[Path, dict[str, list[str]]]:
    """The checkout that the build was configured for, and its commands by source."""
    listing = BUILD / "compile_commands.json"
    if not listing.exists():
        raise NoFuzzerError(f"{listing} is missing; build the project first")
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    (root,) = re.findall(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache, re.MULTILINE)
    commands = {}
    for entry in json.loads(listing.read_text(encoding="utf-8")):
        source = Path(entry["file"])
        if source.is_relative_to(root):
            commands[str(source.relative_to(root))] = shlex.split(entry["command"])
    return Path(root), commands


def _settings(command: list[str], root: Path) -> list[str]:
    """Definitions and folders of a compiler's command, with this checkout in place of `root`."""
    kept = []
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == "-isystem":
            kept += [word, following]
        elif word == f"-I{root}":
            kept.append(f"-I{PROJECT}")
        elif word.startswith(("-I", "-D", "-std=")):
            kept.append(word.replace(f'"{root}"', f'"{PROJECT}"'))
    return kept


def _linked(commands: list[str]) -> list[str]:
    """Libraries of ours and others that the programs link: torch's by path, and its run path."""
    lines = [line for line in commands if " -o benchmarks/tiny_llama_" in line]
    words = dict.fromkeys(word for line in lines for word in shlex.split(line))
    return [
        word
        for word in words
        if word.startswith(("-Wl,-rpath", "-l", "-Wl,--"))
        or re.search(r"\.(a|so)(\.[0-9]+)*$", word)
    ]


def build_fuzzer(folder: Path, jobs: int = 1) -> Path:
    """Compiles and links the fuzzer of all readers in this folder; what is newer than its source
    and every header stays. RuntimeError with the compiler's words where it fails."""
    clang = find_clang()
    folder.mkdir(parents=True, exist_ok=True)
    root, commands = _database()
    headers = [
        p for name in ("model", "benchmarks", "tests") for p in (PROJECT / name).rglob("*.hpp")
    ]
    newest_header = max(path.stat().st_mtime for path in headers)
    source_dir = f'-DTINY_LLAMA_SOURCE_DIR="{PROJECT}"'

    def run(command: list[str], where: Path) -> None:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}\n{done.stderr[-3000:]}")

    def compile_one(source: str) -> tuple[Path, bool]:
        made = folder / f"{source.replace('/', '_')}.o"
        path = PROJECT / source
        newest = max(newest_header, path.stat().st_mtime)
        if made.exists() and made.stat().st_mtime > newest:
            return made, False
        settings = _settings(commands.get(source, commands[FUZZER_LIKE]), root)
        more = [source_dir] if source == FUZZER else []
        run([clang, *settings, *more, *WATCH, "-c", str(path), "-o", str(made)], BUILD)
        return made, True

    watched = [f"{at}/{name}.cpp" for at, names in WATCHED.items() for name in names.split()]
    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, (FUZZER, *watched)))
    program = folder / "readers_fuzz"
    if program.exists() and not any(is_new for _, is_new in objects):
        return program
    listing = ["ninja", "-C", str(BUILD), "-t", "commands"]
    names = ("tiny_llama_bench", "tiny_llama_train", "tiny_llama_scaling")
    targets = [f"benchmarks/{name}" for name in names]
    lines = subprocess.run([*listing, *targets], capture_output=True, text=True, check=True).stdout
    libraries = _linked(lines.splitlines())
    link = [clang, WATCHING.replace("-no-link", ""), *(str(path) for path, _ in objects)]
    # the readers' own objects come first, so that the libraries' unwatched twins are not taken
    run([*link, "-Wl,--start-group", *libraries, "-Wl,--end-group", "-o", str(program)], BUILD)
    return program


def fuzz(
    program: Path, reader: str, executions: int, seed: int, folder: Path, minutes: float
) -> tuple[int, str]:
    """Lets libFuzzer make so many inputs from the kept corpus, or fewer in so many minutes; how
    many it made, and the fault that ended it.

    What it found new is kept in `folder`/`reader`, with the input of a fault beside it.
    """
    found = folder / reader
    found.mkdir(parents=True, exist_ok=True)
    kept = CORPUS / reader
    options = {
        "runs": executions,
        "max_total_time": max(1, round(60 * minutes)),
        "seed": seed,
        "max_len": LONGEST_INPUT,
        "timeout": HANG_S,
        "rss_limit_mb": 3000,
        "malloc_limit_mb": 1000,
        "print_final_stats": 1,
        "artifact_prefix": f"{folder}/{reader}_",
    }
    command = [str(program), *(f"-{name}={value}" for name, value in options.items()), str(found)]
    if kept.is_dir():
        command.append(str(kept))
    memory = Path("/dev/shm")
    environment = os.environ | {
        "TINY_LLAMA_READER": reader,
        "TMPDIR": str(memory if memory.is_dir() else folder),
        "OMP_NUM_THREADS": "1",
        # libtorch's memory at exit is no leak of ours
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
    }
    with (folder / f"{reader}.log").open("w+", errors="replace") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, cwd=folder)
        log.seek(0)
        said = log.read()
    counts = re.findall(r"stat::number_of_executed_units: +([0-9]+)", said)
    tried = int(counts[-1]) if counts else 0
    if done.returncode == 0:
        return tried, ""
    telling = re.search(r"^(?:SUMMARY: .*|.*: runtime error: .*|\w+: .*exception.*)$", said, re.M)
    return tried, telling.group() if telling else f"status {done.returncode}"


def fuzzing(scope: Scope) -> Iterator[Tally]:
    """inputs made by coverage for every reader of the programs, with sanitizers: no crash, no hang,
    no exception without a message."""
    try:
        program = build_fuzzer(BUILT, scope.jobs)
    except NoFuzzerError as error:
        yield Tally(violations=[f"readers of the programs were not tried: {error}"])
        return
    how = (scope.count(EXECUTIONS), scope.seed, BUILT / "found", scope.minutes)
    with ThreadPoolExecutor(scope.jobs) as pool:
        running = {r: pool.submit(fuzz, program, r, *how) for r in READERS if scope.has(r)}
        for name, future in running.items():
            tried, fault = future.result()
            kind = f"input of {name}"
            print(f"{kind}: {tried} {fault}", flush=True)
            yield Tally(Counter({kind: tried}), [f"{kind}: {fault}"] * bool(fault))
