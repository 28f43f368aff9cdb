"""What --base and --new name: a build folder, a program, or a git commit, which is built.

A commit gets a worktree in .deps/compare/<commit>, built with the settings of this checkout's own
build, so that the two sides differ in nothing but their code.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinyllama_tools.compare.blocks import SIDES, Interleaved, Side, SliceEffort
from tinyllama_tools.compare.options import is_chosen, program_arguments
from tinyllama_tools.compare.served_process import ProcessLostError, ServedProgram
from tinyllama_tools.core.app import PROJECT, BadInputError, Json

if TYPE_CHECKING:
    from tinyllama_tools.compare.sequential_run import RunProgress

PROGRAM_IN_BUILD = Path("benchmarks/tiny_llama_bench")
KEPT_WORKTREES = 3
SHOWN_LINES = 20
# What decides how code is compiled, and where its libraries are.
CARRIED = re.compile(
    r"Torch_DIR|benchmark_DIR|FETCHCONTENT_SOURCE_DIR_BENCHMARK|CMAKE_BUILD_TYPE|"
    r"CMAKE_CXX_COMPILER|CMAKE_CXX_COMPILER_LAUNCHER|CMAKE_CXX_FLAGS|CMAKE_CXX_FLAGS_RELEASE|"
    r"CMAKE_EXE_LINKER_FLAGS|CMAKE_PREFIX_PATH|"
    r"TINY_LLAMA_(?!BUILD_TESTS|HAS_)\w+"
)
ENTRY = re.compile(r"(?P<name>[\w-]+):(?P<type>\w+)=(?P<value>.*)")
COMPUTED = frozenset({"INTERNAL", "STATIC"})


@dataclass(frozen=True)
class BuiltSide:
    """`name`: what people read. `commit`: of a side that was built here, else empty."""

    name: str
    program: Path
    commit: str = ""


def carried_settings(cache: Path, build_folder: Path) -> dict[str, str]:
    """The entries of a CMakeCache.txt that another build has to share.

    Those that CMake computed, did not find or keeps inside that build's folder are left to it.
    """
    found = {}
    for line in cache.read_text(encoding="utf-8").splitlines():
        entry = ENTRY.fullmatch(line)
        if entry is None or entry["type"] in COMPUTED or not CARRIED.fullmatch(entry["name"]):
            continue
        value = entry["value"]
        is_inside = value == str(build_folder) or value.startswith(f"{build_folder}/")
        if value and not value.endswith("-NOTFOUND") and not is_inside:
            found[entry["name"]] = value
    return found


@dataclass(frozen=True)
class Builder:
    """Builds commits of `project` with the settings of `build_folder`. `rebuild`: from nothing."""

    build_folder: Path = PROJECT / "build"
    project: Path = PROJECT
    rebuild: bool = False
    say: Callable[[str], None] = lambda _: None

    @property
    def worktrees(self) -> Path:
        """Where the worktrees are."""
        return self.project / ".deps/compare"

    def resolve(self, text: str, option: str) -> BuiltSide:
        """The program that `text`, the value of `option`, names. Raises BadInputError."""
        path = Path(text)
        if path.is_dir() and (path / PROGRAM_IN_BUILD).is_file():
            return BuiltSide(text, (path / PROGRAM_IN_BUILD).resolve())
        if path.is_file():
            if not os.access(path, os.X_OK):
                raise BadInputError(f"{option} {text}: must be a program, but cannot be executed")
            return BuiltSide(text, path.resolve())
        commit = self.commit_of(text)
        if not commit:
            folder = f"no {PROGRAM_IN_BUILD} in that folder" if path.is_dir() else "no such folder"
            raise BadInputError(
                f"{option} {text}: must be a build folder ({folder}), a program, or a git commit "
                "(git knows none of this name); build it first: scripts/bench --setup-only"
            )
        program = self.build(commit, option)
        name = text if commit.startswith(text) else f"{text} ({commit[:12]})"
        return BuiltSide(name, program, commit)

    def commit_of(self, ref: str) -> str:
        """The full hash; empty where git knows no such commit."""
        found = self._git(
            ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"]
        )
        return found.stdout.strip() if found.returncode == 0 else ""

    def build(self, commit: str, option: str) -> Path:
        """The program of a commit, from the worktree that is there or a new one."""
        tree = self.worktrees / commit
        log = self.project / f".deps/log/compare_{commit[:12]}.log"
        with self._alone():
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("", encoding="utf-8")
            if self.rebuild or not self._is_whole(tree, commit):
                self._remove(tree)
            if not tree.is_dir():
                self.say(f"making a worktree of {commit[:12]} in {tree}")
                self._step(
                    ["git", "-c", "safe.directory=*", "worktree", "add", "--force", "--detach",
                     str(tree), commit],
                    log,
                    f"{option}: a worktree of {commit[:12]} cannot be made",
                )  # fmt: skip
            self._configure_and_build(tree, commit, option, log)
            os.utime(tree)
            self._forget_old_worktrees(tree)
        program = tree / "build" / PROGRAM_IN_BUILD
        if not program.is_file():
            raise BadInputError(f"{option}: commit {commit[:12]} builds no {PROGRAM_IN_BUILD}")
        return program

    def _configure_and_build(self, tree: Path, commit: str, option: str, log: Path) -> None:
        folder = tree / "build"
        settings = self._settings()
        kept = folder / "compare_settings.json"
        text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
        is_configured = (folder / "build.ninja").is_file() and kept.is_file()
        failure = f"{option}: commit {commit[:12]} does not"
        if not is_configured or kept.read_text(encoding="utf-8") != text:
            shutil.rmtree(folder, ignore_errors=True)
            definitions = [f"-D{name}={value}" for name, value in settings.items()]
            command = ["cmake", "-S", str(tree), "-B", str(folder), "-G", "Ninja", *definitions]
            self.say(f"configuring {commit[:12]}")
            self._step(command, log, f"{failure} configure")
            kept.write_text(text, encoding="utf-8")
        self.say(f"building {commit[:12]} (minutes where it is new); log: {log}")
        jobs = ["--parallel", str(self._parallel_jobs())]
        target = ["--target", PROGRAM_IN_BUILD.name]
        self._step(["cmake", "--build", str(folder), *target, *jobs], log, f"{failure} build")

    def _settings(self) -> dict[str, str]:
        cache = self.build_folder / "CMakeCache.txt"
        if not cache.is_file():
            raise BadInputError(
                f"--build-folder {self.build_folder}: has no CMakeCache.txt, whose settings a git "
                "commit is built with; run scripts/bench --setup-only"
            )
        settings = carried_settings(cache, self.build_folder.resolve())
        return {**settings, "TINY_LLAMA_BUILD_TESTS": "OFF"}

    def _parallel_jobs(self) -> int:
        """As scripts/bench builds: what memory allows."""
        script = PROJECT / "scripts/lib/build.sh"
        command = ["bash", "-c", f'source "{script}"; parallel_jobs']
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        jobs = found.stdout.strip()
        return int(jobs) if jobs.isdecimal() else 1

    def _step(self, command: Sequence[str], log: Path, failure: str) -> None:
        with log.open("a", encoding="utf-8") as file:
            try:
                finished = subprocess.run(
                    command, cwd=self.project, stdin=subprocess.DEVNULL, stdout=file,
                    stderr=subprocess.STDOUT, check=False,
                )  # fmt: skip
            except OSError as error:
                raise BadInputError(f"{failure}: {command[0]}: {error.strerror}") from error
        if finished.returncode != 0:
            said = log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
            end = "\n".join(f"  | {line}" for line in said)
            raise BadInputError(f"{failure}; the whole log is {log}; its end:\n{end}")

    def _git(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = ["git", "-c", "safe.directory=*", *arguments]
        try:
            return subprocess.run(
                command, cwd=self.project, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise BadInputError(f"git cannot be started: {error.strerror}") from error

    def _is_whole(self, tree: Path, commit: str) -> bool:
        """Whether the worktree was made completely, and still is that commit unchanged."""
        if not (tree / ".git").exists():
            return False
        head = self._git(["-C", str(tree), "rev-parse", "HEAD"])
        changed = self._git(["-C", str(tree), "status", "--porcelain", "--untracked-files=no"])
        is_clean = changed.returncode == 0 and not changed.stdout.strip()
        return head.stdout.strip() == commit and is_clean

    def _remove(self, tree: Path) -> None:
        if tree.exists():
            shutil.rmtree(tree)
        # git itself forgets the worktrees whose folders are gone
        self._git(["worktree", "prune"])

    def _forget_old_worktrees(self, newest: Path) -> None:
        """One of a run that is going on was used later than the three newest only if more than
        three commits are compared at once."""
        trees = [path for path in self.worktrees.iterdir() if path.is_dir() and path != newest]
        trees.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for tree in trees[KEPT_WORKTREES - 1 :]:
            self._remove(tree)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Two builds of one worktree would spoil each other: the second one waits."""
        try:
            self.worktrees.mkdir(parents=True, exist_ok=True)
            with (self.worktrees / "lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise BadInputError(f"{self.worktrees}: cannot be written: {error}") from error


@dataclass(frozen=True)
class Sides:
    """Both sides, ready to be measured: `names` as people read them, and what each lists."""

    measurer: Interleaved
    names: Mapping[Side, str]
    cases: Mapping[Side, Sequence[str]]
    contexts: Mapping[Side, Json]

    @property
    def shared(self) -> list[str]:
        """Cases that both sides list, in the base's order."""
        new = set(self.cases[Side.NEW])
        return [name for name in self.cases[Side.BASE] if name in new]

    def only(self, side: Side) -> list[str]:
        """Cases that this side alone lists."""
        other = set(self.cases[side.other])
        return [name for name in self.cases[side] if name not in other]


def prepare(options: argparse.Namespace, seed: int, progress: RunProgress) -> Sides:
    """Builds what has to be built, and asks both sides what they can measure.

    Raises BadInputError where a side is none, does not start, cannot be served, or has no case in
    common with the other.
    """
    builder = Builder(options.build_folder, rebuild=options.rebuild, say=progress.say)
    shared, slow = program_arguments(options), [f"--slow={text}" for text in options.slow_new]
    named = (
        (Side.BASE, options.base, options.environment_base, shared),
        (Side.NEW, options.new, options.environment_new, (*shared, *slow)),
    )
    names, programs = {}, {}
    for side, text, environment, arguments in named:
        built = builder.resolve(text, f"--{side.value}")
        names[side] = built.name
        programs[side] = ServedProgram(side.value, built.program, arguments, dict(environment))
    effort = SliceEffort(options.pairs, options.slice, options.limit)
    measurer = Interleaved(programs, effort, seed)
    try:
        greetings = measurer.greet()
    except ProcessLostError as error:
        raise BadInputError(f"a side does not start: {error}") from error
    sides = Sides(
        measurer,
        names,
        {s: [n for n in greetings[s].cases if is_chosen(n, options)] for s in SIDES},
        {side: greetings[side].context for side in SIDES},
    )
    if not sides.shared:
        counts = ", ".join(f"{len(sides.cases[side])} on the {side.value} side" for side in SIDES)
        raise BadInputError(
            f"no case to compare ({counts}, none on both): the sides must have one in common; give "
            "other --components, --passes or --filter"
        )
    return sides
