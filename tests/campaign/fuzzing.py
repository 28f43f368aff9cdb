"""Readers of the programs under libFuzzer and the address and undefined-behaviour sanitizers.

Only the readers' own sources are compiled for it, by clang with the definitions and folders of the
build; what they call beyond comes from the libraries of the build, and libtorch is as it is.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from campaign.runs import Scope, Tally
from campaign.workloads import PROJECT

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
SANITIZERS = "-fsanitize=fuzzer-no-link,address,undefined"
WATCH = (SANITIZERS, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g1")
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
    link = [clang, SANITIZERS.replace("-no-link", ""), *(str(path) for path, _ in objects)]
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
