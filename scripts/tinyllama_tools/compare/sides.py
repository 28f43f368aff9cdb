"""A side of `compare run`: what --base or --new names (a build folder, a program, or a git commit,
which is built), and its resident process, which measures on request and sleeps in between.

A commit gets a worktree in .deps/compare/<commit>, built with the settings of this checkout's own
build, so that the two sides differ in nothing but their code. docs/serve.md describes the lines of
JSON that go to and from a process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import (
    GIT,
    REFUSED_OPTIONS,
    BadInputError,
    Json,
    git,
    is_number,
    parse_json,
    placed_threads,
)
from tinyllama_tools.core.installation import BUILD, GET_PROGRAMS, checkout, is_prefix, program_path
from tinyllama_tools.core.process import ProgramError, how_ended, run_program, signal_all
from tinyllama_tools.core.text import last_words

PROGRAM_IN_BUILD = Path("benchmarks/tiny_llama_bench")
KEPT_WORKTREES = 3
# Of CMakeCache.txt, what decides how code is compiled and where its libraries are; not what CMake
# computed by itself.
CARRIED = re.compile(
    r"(?P<name>Torch_DIR|benchmark_DIR|FETCHCONTENT_SOURCE_DIR_BENCHMARK|CMAKE_BUILD_TYPE|"
    r"CMAKE_CXX_COMPILER|CMAKE_CXX_COMPILER_LAUNCHER|CMAKE_CXX_FLAGS|CMAKE_CXX_FLAGS_RELEASE|"
    r"CMAKE_EXE_LINKER_FLAGS|CMAKE_PREFIX_PATH|TINY_LLAMA_(?!BUILD_TESTS|HAS_)\w+)"
    r":(?!INTERNAL|STATIC)\w+=(?P<value>.+)"
)


def carried_settings(build_folder: Path) -> dict[str, str]:
    """The entries of its CMakeCache.txt that another build has to share, but for what CMake did not
    find, or keeps inside that build's folder."""
    text = (build_folder / "CMakeCache.txt").read_text(encoding="utf-8")
    entries = filter(None, map(CARRIED.fullmatch, text.splitlines()))
    found = {entry["name"]: entry["value"] for entry in entries}
    return {
        name: value
        for name, value in found.items()
        if not value.endswith("-NOTFOUND") and not f"{value}/".startswith(f"{build_folder}/")
    }


@dataclass(frozen=True)
class Builder:
    """Builds commits of `project` with the settings of `build_folder`."""

    build_folder: Path = BUILD
    project: Path | None = field(default_factory=checkout)
    say: Callable[[str], None] = print

    @property
    def worktrees(self) -> Path:
        return self.project / ".deps/compare"

    def resolve(self, text: str, option: str) -> tuple[str, Path]:
        """The name of a side for people, and its program. `text`: the value of `option`."""
        path = Path(text)
        if (program := program_path(path, PROGRAM_IN_BUILD.name)).is_file():
            return text, program.resolve()
        if path.is_file():
            if not os.access(path, os.X_OK):
                raise BadInputError(f"{option} {text}: must be a program, but cannot be executed")
            return text, path.resolve()
        if not self.project:
            raise BadInputError(
                f"{option} {text}: must be a build folder, a prefix or a program; a git commit "
                "can be built in a checkout alone: run this inside one"
            )
        name = ("--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
        commit = git(self.project, "rev-parse", *name)
        if not commit:
            folder = f"no {PROGRAM_IN_BUILD} in that folder" if path.is_dir() else "no such folder"
            raise BadInputError(
                f"{option} {text}: must be a build folder or a prefix ({folder}), a program, or a "
                f"git commit (git knows no such commit); {GET_PROGRAMS}"
            )
        program = self._build(commit, option)
        return text if commit.startswith(text) else f"{text} ({commit[:12]})", program

    def _build(self, commit: str, option: str) -> Path:
        """The program of a commit, from the worktree that is there or a new one."""
        tree, what = self.worktrees / commit, f"{option}: commit {commit[:12]}"
        log = self.project / f".deps/log/compare_{commit[:12]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self.worktrees.mkdir(parents=True, exist_ok=True)
        with (self.worktrees / "lock").open("w") as lock:
            # two builds of one worktree would spoil each other: the second one waits
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_whole(tree, commit):
                self._remove(tree)
            if not tree.is_dir():
                self.say(
                    f"making a worktree of {commit[:12]}, several hundred MB with its build; it "
                    f"serves later comparisons with this commit (the newest {KEPT_WORKTREES} are "
                    f"kept); to remove it: rm -r {tree}"
                )
                add = (*GIT, "-C", str(self.project), "worktree", "add", "--force", "--detach")
                self._step((*add, str(tree), commit), log, f"{what} cannot be checked out")
            self._configure_and_build(tree, what, log)
            os.utime(tree)
            self._forget_old_worktrees(tree)
        program = tree / "build" / PROGRAM_IN_BUILD
        if not program.is_file():
            raise BadInputError(f"{what} builds no {PROGRAM_IN_BUILD}")
        return program

    def _configure_and_build(self, tree: Path, what: str, log: Path) -> None:
        folder, built = tree / "build", self.build_folder
        if is_prefix(built):
            built = self.project / "build"
        if not (built / "CMakeCache.txt").is_file():
            raise BadInputError(
                f"--build-folder {built}: has no CMakeCache.txt, whose settings a git "
                "commit is built with; run scripts/bench --setup-only"
            )
        settings = carried_settings(built.resolve()) | {"TINY_LLAMA_BUILD_TESTS": "OFF"}
        definitions = [f"-D{name}={value}" for name, value in settings.items()]
        # only the settings are made anew: objects stay, and those whose command is unchanged serve
        (folder / "CMakeCache.txt").unlink(missing_ok=True)
        command = ("cmake", "-S", str(tree), "-B", str(folder), "-G", "Ninja", *definitions)
        self._step(command, log, f"{what} does not configure")
        self.say(f"building {tree.name[:12]} (minutes where it is new); log: {log}")
        # as many at once as scripts/bench would: compilers need memory
        script = f'source "{self.project}/scripts/lib/build.sh"; parallel_jobs'
        found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        jobs = found.stdout.strip() if found.stdout.strip().isdecimal() else "1"
        target = ("--target", "tiny_llama_bench", "--parallel", jobs)
        self._step(("cmake", "--build", str(folder), *target), log, f"{what} does not build")

    def _step(self, command: Sequence[str], log: Path, failure: str) -> None:
        try:
            run_program(command, ProgramError, log=log, as_one=True, stop_at_once=True)
        except ProgramError as error:
            raise BadInputError(f"{failure}; the whole log is {log}; its end: {error}") from error
        except KeyboardInterrupt:
            self.say("build stopped; the same command continues from there")
            raise

    def _is_whole(self, tree: Path, commit: str) -> bool:
        """Whether the worktree is complete, and its files are those of the commit."""
        return (
            (tree / ".git").exists()
            and git(tree, "rev-parse", "HEAD") == commit
            and git(tree, "status", "--porcelain", "--untracked-files=no") == ""
        )

    def _remove(self, tree: Path) -> None:
        if tree.exists():
            shutil.rmtree(tree)
        # git itself forgets the worktrees whose folders are gone
        git(self.project, "worktree", "prune")

    def _forget_old_worktrees(self, newest: Path) -> None:
        """Removes all but the newest. One that a run still uses is among these, unless more than
        KEPT_WORKTREES commits are compared at the same time."""
        trees = [path for path in self.worktrees.iterdir() if path.is_dir() and path != newest]
        trees.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for tree in trees[KEPT_WORKTREES - 1 :]:
            self._remove(tree)


MOST_PADDING_BYTES = 4096
# How long idle OpenMP threads spin before they sleep: about a millisecond, since one step of the
# loop (the processor's pause instruction) takes 40 to 140 cycles. By default they spin for longer,
# which would disturb the other side. Without any spinning (OMP_WAIT_POLICY=passive) something else
# would be measured: in an optimizer update the threads would be put to sleep and woken 700 times,
# and it would take three times as long.
SHORT_SPIN = {"GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}
# Variables by which users decide how idle threads wait; where one is set, SHORT_SPIN is not.
WAITING = ("OMP_WAIT_POLICY", *SHORT_SPIN)


class CaseFailedError(Exception):
    """A side cannot go on with this case, but with others. `side`: its name."""

    def __init__(self, side: str, reason: str) -> None:
        super().__init__(reason)
        self.side = side


class CaseSkippedError(CaseFailedError):
    """The side does not run this case."""


class ProcessLostError(CaseFailedError):
    """The process ended, hung or answered nonsense, and has been ended."""


@dataclass(frozen=True)
class ServedProgram:
    """How a side's process is started. `name`: the side's. `environment`: added to that of this
    process. `kind`: ServedProcess, or another that answers as it does. `known_as`: what the other
    side calls a case of this one; None: the same."""

    name: str
    program: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    kind: Callable[..., ServedProcess] = field(default_factory=lambda: ServedProcess)
    known_as: Callable[[str], str] | None = None

    def environment_with(self, padding: int) -> dict[str, str]:
        """All variables of the process. `padding`: bytes of a variable that moves the stack, so
        that the stack lies elsewhere in each process, and what that does to times is scatter
        instead of a difference between the sides. Threads are pinned here as the program itself
        would pin them, for which it would have to start a second time."""
        asked = [word.partition("=")[2] for word in self.arguments if word.startswith("--threads=")]
        around = placed_threads({**os.environ, **self.environment}, *map(int, asked[-1:]))
        wait = {} if any(name in around for name in WAITING) else SHORT_SPIN
        return {**around, **wait, "TINY_LLAMA_PADDING": "x" * padding}

    def start(self, *, limit: float, padding: int) -> ServedProcess:
        """BadInputError where it cannot be started."""
        return self.kind(self, limit=limit, padding=padding)


# the key by which --serve tells the version of its protocol
PROTOCOL, PROTOCOL_VERSION = "turns", 1
SECONDS_TO_END = 5.0
# one of a whole minute of the fastest case is shorter
LONGEST_ANSWER_BYTES = 64 * 2**20
LAST_BYTES = 20_000
SHOWN_CHARACTERS = 80


class ServedProcess:
    """A side's process, which is served as docs/serve.md says. Every request raises
    ProcessLostError where no proper answer came; the process is gone then. Its session is its own:
    Ctrl-C reaches only us, who then end it. `limit`: seconds that one answer may take."""

    def __init__(self, program: ServedProgram, *, limit: float, padding: int) -> None:
        self.name = program.name
        self._greeting: Json = {}
        self._known_as = program.known_as
        # own name of a case by that of the other side, where they differ
        self._own: dict[str, str] = {}
        self._limit = limit
        self._buffer = b""
        # closed in close(), with the process
        self._said = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                (str(program.program), *program.arguments, "--serve"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=program.environment_with(padding),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._said.close()
            message = f"{program.program} cannot be started: {error.strerror}"
            raise BadInputError(f"{message}; {GET_PROGRAMS}") from error

    def greet(self) -> Json:
        """Waits for the first line: `cases` that can be opened, and the `context` of a result file.
        BadInputError where --serve or another option is refused."""
        if self._greeting:
            return self._greeting
        try:
            line = self.answer("its start")
        except ProcessLostError:
            if self.status != REFUSED_OPTIONS:
                raise
            said = (self.last_words or "refused without a word").splitlines()[-1]
            raise BadInputError(f"{self.name}: {said}") from None
        cases, context = line.get("cases"), line.get("context")
        if (
            line.get(PROTOCOL) != PROTOCOL_VERSION
            or not isinstance(cases, list)
            or not isinstance(context, dict)
        ):
            raise self.lost(f"answered its start with '{line}'")
        if self._known_as:
            self._own = {self._known_as(name): name for name in cases}
            line["cases"] = list(self._own)
        self._greeting = line
        return line

    def ask_to_open(self, case: str, *, verify: bool = False, meter: bool = False) -> None:
        """Has a case built and warmed up, without waiting for it, so that both sides can do so at
        once; the next call must be opened(), which takes the answer."""
        self.send({"do": "open", "case": self._named(case), "verify": verify, "meter": meter})

    def opened(self, case: str) -> Json:
        """`seconds` of one warm iteration, and `counters`. CaseFailedError, CaseSkippedError: it is
        not open."""
        answer = self._reply(f"open {case}")
        (seconds,) = self._positive("open", [answer.get("seconds")])
        counters = {k: float(v) for k, v in answer.get("counters", {}).items() if is_number(v)}
        return {"seconds": seconds, "counters": counters}

    def timed(self, case: str, seconds: float) -> Json:
        """The answer of one slice. CaseFailedError: the case is open no more."""
        self.send({"do": "time", "case": self._named(case), "seconds": seconds})
        answer = self._reply(f"time {case}")
        return answer | {"seconds": self._positive("time", answer.get("seconds"))}

    def time(self, case: str, seconds: float) -> list[float]:
        """Seconds of each iteration of one slice."""
        return self.timed(case, seconds)["seconds"]

    def close_case(self, case: str) -> None:
        """Lets go of its memory."""
        self.send({"do": "close", "case": self._named(case)})
        self._reply(f"close {case}")

    def _named(self, case: str) -> str:
        return self._own.get(case, case)

    def _reply(self, what: str) -> Json:
        answer = self.answer(what)
        if "skipped" in answer:
            raise CaseSkippedError(self.name, str(answer["skipped"]))
        if "failed" in answer:
            raise CaseFailedError(self.name, str(answer["failed"]))
        if "error" in answer:
            raise CaseFailedError(self.name, f"{what}: {answer['error']}")
        return answer

    def _positive(self, what: str, found: object) -> list[float]:
        """Times of at least one iteration."""
        if isinstance(found, list) and found and all(is_number(v) and v > 0 for v in found):
            return [float(value) for value in found]
        raise self.lost(f"answered {what} with seconds {found}")

    @property
    def status(self) -> int | None:
        """The exit status, -N where signal N ended it; None while it runs."""
        return self._process.poll()

    @property
    def pid(self) -> int:
        """As the system counts it."""
        return self._process.pid

    @property
    def minor_faults(self) -> int:
        """Page faults so far that read nothing from a disk, of all threads. OSError once it has
        ended."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        # the name, in brackets, may hold anything; minflt is the tenth field
        return int(stat.rpartition(")")[2].split()[7])

    @property
    def is_running(self) -> bool:
        """Whether it can be asked."""
        return not self._said.closed and self.status is None

    @property
    def last_words(self) -> str:
        """The end of what it said on standard error."""
        size = os.fstat(self._said.fileno()).st_size
        said = os.pread(self._said.fileno(), LAST_BYTES, max(0, size - LAST_BYTES))
        return last_words(said.decode("utf-8", errors="replace"))

    def send(self, request: Json) -> None:
        """Sends a request; answer() must follow."""
        if self._process.stdin:
            # that it has ended shows where the answer is missing
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def answer(self, what: str) -> Json:
        """The answer to what was sent. Raises the error of lost() where no proper one came in
        time."""
        text = self._line(what).decode("utf-8", errors="replace")
        with contextlib.suppress(ValueError):
            answer = parse_json(text)
            if isinstance(answer, dict):
                return answer
        shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
        raise self.lost(f"answered {what} with '{shown}'")

    def lost(self, how: str) -> ProcessLostError:
        """Ends the process; the error to raise, which says how it was lost, with its last words."""
        self._kill()
        said = f"; it last said: {self.last_words}" if self.last_words else ""
        return ProcessLostError(self.name, f"the process {how}{said}")

    def close(self) -> None:
        """Ends it at once. It has nothing left to write, and by itself takes a fifth of a second,
        of the second that a block of `compare run` takes."""
        if self._said.closed:
            return
        stdin, stdout = self._process.stdin, self._process.stdout
        self._kill()
        if stdin and stdout:
            with contextlib.suppress(OSError):
                stdin.close()
            stdout.close()
        self._said.close()

    def _line(self, what: str) -> bytes:
        deadline = time.monotonic() + self._limit
        output = self._process.stdout
        while output and b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self.lost(f"gave no answer to {what} within {self._limit:g} s")
            if not select.select([output], [], [], left)[0]:
                continue
            piece = os.read(output.fileno(), 65536)
            if not piece:
                raise self.lost(f"{self._ending()} at {what}")
            self._buffer += piece
            if len(self._buffer) > LONGEST_ANSWER_BYTES:
                raise self.lost(f"answered {what} without an end")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _ending(self) -> str:
        try:
            status = self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return "closed its output"
        return how_ended(status)

    def _kill(self) -> None:
        if self.status is None:
            signal_all(self._process, signal.SIGKILL)
            self._process.wait()


class KeptProcess:
    """A program's process: started when it is needed, and anew after it was lost or ended."""

    def __init__(self, program: ServedProgram, limit: float, order: random.Random) -> None:
        self.program = program
        self._limit, self._order = limit, order
        self._process: ServedProcess | None = None

    def start(self) -> ServedProcess:
        """Without waiting for its first answer."""
        if not (self._process and self._process.is_running):
            self.end()
            padding = self._order.randint(0, MOST_PADDING_BYTES)
            self._process = self.program.start(limit=self._limit, padding=padding)
        return self._process

    def ready(self) -> ServedProcess:
        """Once it has answered; a new one has no case open."""
        process = self.start()
        process.greet()
        return process

    def end(self) -> None:
        """Whatever comes next has a fresh one."""
        if self._process:
            self._process.close()
