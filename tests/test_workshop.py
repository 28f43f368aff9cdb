"""Every command, file, key, output line and figure of docs/workshop.md, tried at a small size."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from built_programs import (
    PROJECT_ROOT,
    SMALL_MODEL,
    SMALL_OPTIONS,
    Json,
    Program,
    built_program,
    environment,
    finish,
    read_json,
    start,
    write_json,
    write_program,
)
from tinyllama_tools.core.app import problem_sizes

PROGRAM = "build/benchmarks/tiny_llama_train"
PROFILERS = ("--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops")
# Tables of the page, by their headers.
FILES = ("file in the text", "here", "written with", "keys")
FOLDERS = ("folder in the text", "here", "written with")
FIGURES = ("what", "in the text", "exact", "where")
# Lines of the output by the option that they take, with `|` between them.
LINES = {
    "": "Configuration:|Batch Size:|Sequence Length:|Number of Steps:|Hidden Dim:|Num Layers:|"
    "Num Heads:|Intermediate Dim:|Total Parameters:|Model Size:|Using device:|Starting training...|"
    "Step 1/20: Loss =|Time =|Memory =|Performance Summary:|Average time per step:|Training speed:|"
    "Throughput:|Peak memory usage:|Avg time per forward:|Avg time per backward:|"
    "Avg time per optimizer:",
    "--enable-pytorch-profiler": "Profiling enabled: Steps 5-10|[PROFILING]|Profiling complete!|"
    "Profile files generated:|Top Operations",
    "--profile-memory": "Memory Analysis Summary:|Peak Memory Usage:|Average Memory Usage:|"
    "Memory at Forward Pass:|Memory at Backward Pass:|Memory at Optimizer Step:|"
    "Number of Allocations:|Largest Tensor:",
    "--enable-deepspeed-flops": "Model FLOPS Utilization:|Achieved FLOPS/sec:|"
    "Arithmetic Intensity:|Memory Bandwidth Used:",
}
OTHER_NAMES = {"--num-layers": "--n-layers", "--num-heads": "--n-heads"}
# Smaller by this factor, so that scaling studies still have different points.
DIVISORS = {"--batch-size": 4, "--seq-len": 8}
DEFAULTS = {"--batch-size": "8", "--seq-len": "128", "--num-steps": "50"}
MOST = {"--num-steps": 20, "--eval-interval": 10}
BENCH_SMALL = (
    *("--variants=baseline", "--batch=2", "--seq=8", "--dtypes=f32", "--threads=1"),
    *("--benchmark_min_time=1x", "--benchmark_repetitions=1"),
)
TIMEOUT_S = 300.0
# On a busy machine a step of the small model may take any time.
NO_LIMIT = "--max-seconds-per-case 1e6"
SIZES = "build/benchmarks/small_sizes.json"


def sessions() -> list[list[str]]:
    """Everything that a reader of the workshop types, as it is typed here, by the folder that it is
    typed in, whose first line may be a comment. Further lines of a command are indented. Of
    commands that differ in numbers alone there is one."""
    text = (PROJECT_ROOT / "tests/workshop_typed.txt").read_text(encoding="utf-8")
    every = (re.split(r"\n(?! )", session) for session in text.rstrip("\n").split("\n\n"))
    return [[line.replace("\n    ", "\n") for line in lines] for lines in every]


def small_options(arguments: Sequence[str]) -> list[str]:
    """Options of tiny_llama_train with every size made small; all others as they are."""
    if "--validate-setup" in arguments:
        return list(arguments)
    split = [part for text in arguments for part in text.split("=", 1)]
    given = {OTHER_NAMES.get(name, name) for name in split}
    left_out = [*SMALL_MODEL.items(), *DEFAULTS.items()]
    split += [part for name, value in left_out if name not in given for part in (name, value)]
    small: list[str] = []
    for text in split:
        name = OTHER_NAMES.get(small[-1], small[-1]) if small else ""
        value = int(text) if name in {**DIVISORS, **MOST} else 0
        if name in DIVISORS:
            text = str(max(1, value // DIVISORS[name]))
        elif name in MOST:
            text = str(min(value, MOST[name]))
        small.append(SMALL_MODEL.get(name, text))
    return small


def small_bench_options(arguments: Sequence[str]) -> list[str]:
    """Options of tiny_llama_bench for predictions of small sizes, or cases of a millisecond."""
    if "--describe-device" in arguments:
        return list(arguments)
    if "--find-limit=seq" in arguments:
        return [*arguments, f"--problem-sizes={SIZES}", "--memory-limit=64MiB"]
    # as scripts/exercise asks: the variants are its own
    if "--dry-run" in arguments or any(text.startswith("--variants=") for text in arguments):
        return [*arguments, f"--problem-sizes={SIZES}"]
    return [*arguments, *SMALL_OPTIONS, *BENCH_SMALL]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Programs and scripts where a checkout has them; the scripts leave out their set-up."""
    for name, small in (("train", "small_options"), ("bench", "small_bench_options")):
        path = f"build/benchmarks/tiny_llama_{name}"
        real = str(built_program(f"benchmarks/tiny_llama_{name}"))
        lines = (
            f"#!{sys.executable}",
            "import os, sys",
            f"sys.path.insert(0, {str(PROJECT_ROOT / 'tests')!r})",
            f"from test_workshop import {small} as small",
            f"os.execv({real!r}, [{real!r}, *small(sys.argv[1:])])",
        )
        write_program(tmp_path / path, "\n".join(lines) + "\n")
    kernels = built_program("benchmarks/tiny_llama_bench").parent / "libcourse_kernels.so"
    (tmp_path / "build/benchmarks" / kernels.name).symlink_to(kernels)
    # every name, the small model's shape
    shape = {name[2:].replace("-", "_"): int(value) for name, value in SMALL_MODEL.items()}
    sizes = {
        size: {**shape, "batch": values["batch"], "seq": values["seq"] // DIVISORS["--seq-len"]}
        for size, values in problem_sizes().items()
    }
    write_json(tmp_path / SIZES, sizes)
    more = {
        "profile": "",
        "study": f"--out results {NO_LIMIT}",
        "exercise": f'-o "results/exercise_$1.md" {NO_LIMIT}',
    }
    for name, given in more.items():
        module = f'{sys.executable} -m tinyllama_tools {name} "$@"'
        line = f'exec {module} --build-folder "{tmp_path}/build" {given}'
        write_program(tmp_path / f"scripts/{name}", f"#!/bin/bash\n{line}\n")
    write_program(tmp_path / "scripts/bench", f'#!/bin/bash\nexec {PROGRAM[:-5]}bench "$@"\n')
    for name in ("python", "python3"):
        write_program(tmp_path / f"bin/{name}", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    return tmp_path


@cache
def rows(header: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Of all tables of the page with this header; cells without the escape of `|`."""
    found, inside = [], False
    text = (PROJECT_ROOT / "docs/workshop.md").read_text(encoding="utf-8")
    for line in text.split("\n"):
        parts = re.split(r"(?<!\\)\|", line.strip().strip("|")) if line.startswith("|") else []
        cells = tuple(part.strip().replace("\\|", "|") for part in parts)
        if cells == header:
            inside = True
        elif not cells:
            inside = False
        elif inside and not line.startswith("|--"):
            assert len(cells) == len(header), line
            found.append(cells)
    return found


def code(cell: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def value_at(data: Json, path: str) -> Json:
    """`a.b[name].c`: a key may be followed by the name of a list's entry. KeyError where absent."""
    for key, name in re.findall(r"([\w]+)(?:\[((?:[^\[\]]|\[[^\]]*\])+)\])?\.?", path):
        data = data[key]
        if name:
            data = next(entry for entry in data if entry["name"] == name)
    return data


def option(command: str, name: str, default: str = "") -> str:
    words = shlex.split(command)
    return words[words.index(name) + 1] if name in words else default


def check_training(command: str, folder: Path, output: str) -> None:
    """Files, their keys, and lines of the output."""
    if "--validate-setup" in command:
        for name in ("device", "libtorch", "memory", "HIP runtime", "output"):
            assert re.search(rf"^(ok|warning) +{name}: ", output, re.MULTILINE), name
        return
    flags = [flag for flag in PROFILERS if flag in command]
    target = option(command, "--profile-dir" if flags else "--output-dir", "profiles")
    last = 5 + int(option(command, "--profile-steps", "5"))
    for text, here, written_with, keys in rows(FILES):
        every = [*PROFILERS, "--output-dir"] if "every profiler" in written_with else []
        if not any(switch in command for switch in every or code(written_with)):
            continue
        name = (code(text) if here == "the same" else code(here))[0]
        (found,) = (folder / target).glob(name.replace("trace_step_5_10", f"trace_step_5_{last}"))
        assert found.stat().st_size > 0
        for key in [] if keys.startswith("curves") else code(keys):
            value = value_at(read_json(found), key)
            assert value is not None, f"{found}: {key}"
    for line in "|".join(LINES[flag] for flag in ("", *flags)).split("|"):
        wanted = re.escape(line.replace("5-10", f"5-{last}")).replace("1/20", r"1/\d+")
        assert re.search(wanted, output), line


def check_folder(script: str, folder: Path) -> None:
    """That it has what the page says."""
    (wanted,) = (here for _, here, writer in rows(FOLDERS)[:4] if code(writer) == [script])
    for pattern in code(wanted):
        assert list(folder.glob(pattern)), f"{folder}/{pattern}"


def check_command(command: str, folder: Path, output: str) -> None:
    """What one of our scripts leaves, or a program of the text prints."""
    if command.startswith("scripts/study") and "--dry-run" not in command:
        (made,) = folder.glob(f"results/performance_results_{command.split()[1]}_*")
        check_folder("scripts/study", made)
        if "--enable-profilers" in command:
            check_folder("scripts/study --enable-profilers", made / "pytorch_profiles")
    elif "--analyze-existing" in command:
        made = folder / option(command, "--output-dir")
        check_folder("scripts/profile --analyze-existing DIR --generate-report", made)
    elif command.startswith("scripts/profile") and "--profile-dir" in command:
        check_folder("scripts/profile", folder / option(command, "--profile-dir"))
    elif command.startswith("scripts/exercise"):
        page = (folder / f"results/exercise_{command.split()[1]}.md").read_text(encoding="utf-8")
        assert "## Success criteria" in page
    elif "print(f" in command:
        figures = re.findall(r"^[\w /]+: (\S+)", output, re.MULTILINE)
        assert len(figures) == command.count("print(f") and "not available" not in output
    elif "for dir in" in command:
        found = re.findall(r"^(tiny|small): [\d.]+ (samples/sec|MB)$", output, re.MULTILINE)
        assert len(set(found)) == 4
    else:
        assert output.strip() or command.startswith(("mkdir", "chmod"))


@pytest.mark.parametrize(
    "session",
    [
        pytest.param(lines, marks=pytest.mark.long if lines[0] == "# with --long" else ())
        for lines in sessions()
        if not lines[0].startswith("# not run")
    ],
    ids=lambda lines: lines[-1].split("\n")[0],
)
def test_the_commands_do_what_the_page_says(session: list[str], folder: Path) -> None:
    own = environment(PATH=f"{folder / 'bin'}:{os.environ['PATH']}")
    program = str(built_program("benchmarks/tiny_llama_train"))
    for command in session[session[0].startswith("#") :]:
        typed = command
        if PROGRAM in command:
            # at once what the fixture's program would make of it, without starting Python
            before, _, options = command.partition(PROGRAM)
            typed = before + shlex.join([program, *small_options(shlex.split(options))])
        done = finish(start(["bash", "-c", typed], cwd=folder, env=own), TIMEOUT_S)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        check = check_training if PROGRAM in command else check_command
        check(command, folder, done.stdout)


def test_the_exact_figures(tmp_path: Path) -> None:
    # the default size as it is: the page's figures are of this run
    program = Program(built_program("benchmarks/tiny_llama_train"))
    options = ["--num-steps=10", "--threads=1", "--device=cpu", *PROFILERS]
    assert program.run(*options, f"--profile-dir={tmp_path}").returncode == 0
    summary = read_json(tmp_path / "performance_summary.json")
    checked = 0
    for what, _, exact, where in rows(FIGURES):
        key = (code(where) or [""])[0]
        # a key of performance_summary.json on any device
        if not key.startswith(("model.", "memory.", "operators.steps", "flops.")):
            continue
        value, checked = value_at(summary, key), checked + 1
        scales = {" MB": 2**20, "M": 1e6, "B": 1e9}
        unit = next((unit for unit in scales if exact.endswith(unit)), "")
        if unit:
            value = f"{value / scales[unit]:,.1f}{unit}"
        assert (value if isinstance(value, str) else f"{value:,}") == exact, what
    assert checked > 10
