"""Folders in which the workshop's commands run as they are typed, on a very small model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from built_programs import PROJECT_ROOT, SMALL_MODEL, SMALL_OPTIONS
from tinyllama_tools.core.app import problem_sizes

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
NO_LIMIT = "--max-minutes 1e6"
SIZES = "build/benchmarks/small_sizes.json"


def commands() -> list[str]:
    """Everything that a reader of the workshop types, as it is typed here, once each."""
    return (PROJECT_ROOT / "tests/workshop_typed.txt").read_text(encoding="utf-8").splitlines()


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
    if "--dry-run" in arguments:
        return [*arguments, f"--problem-sizes={SIZES}"]
    return [*arguments, *SMALL_OPTIONS, *BENCH_SMALL]


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def furnish(folder: Path) -> None:
    """Programs and scripts where a checkout has them; the scripts leave out their set-up."""
    for name, small in (("train", "small_options"), ("bench", "small_bench_options")):
        path = f"build/benchmarks/tiny_llama_{name}"
        real = str(PROJECT_ROOT / path)
        lines = (
            f"#!{sys.executable}",
            "import os, sys",
            f"sys.path.insert(0, {str(PROJECT_ROOT / 'tests')!r})",
            f"from workshop_place import {small} as small",
            f"os.execv({real!r}, [{real!r}, *small(sys.argv[1:])])",
        )
        _script(folder / path, "\n".join(lines) + "\n")
    # every name, the small model's shape
    shape = {name[2:].replace("-", "_"): int(value) for name, value in SMALL_MODEL.items()}
    sizes = {
        size: {**shape, "batch": values["batch"], "seq": values["seq"] // DIVISORS["--seq-len"]}
        for size, values in problem_sizes().items()
    }
    (folder / SIZES).write_text(json.dumps(sizes), encoding="utf-8")
    more = {
        "profile": "",
        "study": f"--results results {NO_LIMIT}",
        "exercise": f'-o "results/exercise_$1.md" {NO_LIMIT}',
    }
    for name, given in more.items():
        module = f'{sys.executable} -m tinyllama_tools {name} "$@"'
        line = f'exec {module} --build-folder "{folder}/build" {given}'
        _script(folder / f"scripts/{name}", f"#!/bin/bash\n{line}\n")
    _script(folder / "scripts/bench", '#!/bin/bash\nexec build/benchmarks/tiny_llama_bench "$@"\n')
    for name in ("python", "python3"):
        _script(folder / f"bin/{name}", f'#!/bin/bash\nexec {sys.executable} "$@"\n')


def needs(command: str) -> list[str]:
    """Commands of the page that make what this one reads."""
    found = []
    producers = [other for other in commands() if other != command]
    for folder in re.findall(r"(?:\./|=| )(\w+_(?:profiles|analysis\w*|logs))\b", command):
        made = f"--profile-dir ./{folder}"
        if f"{made} " not in f"{command} ":
            found += [other for other in producers if f"{made} " in f"{other} "][:1]
    for size in re.findall(r"performance_results_(\w+?)_\*", command):
        profilers = " --enable-profilers" if size == "medium" else ""
        found.append(f"scripts/study {size}{profilers}")
    if "performance_results_*/" in command:
        found += ["scripts/study tiny", "scripts/study small"]
    return list(dict.fromkeys(found))


@dataclass
class WorkshopPlaces:
    """Runs each command once: in a folder of its own, or where what it reads was made."""

    root: Path
    results: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)

    def home(self, command: str) -> Path:
        """The folder a command runs in. What one command reads together is made together."""
        readers = (needs(other) for other in [*commands(), "performance_results_*/"])
        owner = next((made[0] for made in readers if command in made), None)
        key = owner or (needs(command) or [command])[0]
        folder = self.root / re.sub(r"\W+", "_", key.removeprefix("build/benchmarks/"))[:120]
        if not folder.exists():
            furnish(folder)
        return folder

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Runs it, after those it needs."""
        if command not in self.results:
            for other in needs(command):
                assert self.run(other).returncode == 0, self.run(other).stderr
            self.results[command] = self.shell(command, self.home(command))
        return self.results[command]

    def shell(self, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Runs shell text in a folder of `home`, or below it."""
        top = next(path for path in (folder, *folder.parents) if (path / "bin").is_dir())
        environment = os.environ | {
            "PATH": f"{top / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT_ROOT / "scripts"),
            "OMP_NUM_THREADS": "1",
        }
        command = ["bash", "-c", text]
        how = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL}
        return subprocess.run(
            command, **how, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
