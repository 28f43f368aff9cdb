"""Sides that are interleaved at one case: our program, and processes of LlamaForCausalLM.

A peer's malloc keeps its memory: glibc's maps and unmaps every large tensor, which costs a small
step a tenth to a third.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from tinyllama_tools.core.app import PROJECT, Json, placed_threads, problem_sizes
from tinyllama_tools.core.text import last_words
from tinyllama_tools.data.names import UNITS, CaseName
from tinyllama_tools.data.programs import SuiteError, SuiteProgram, rows_of
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

PREFIX = "peer:"


@dataclass(frozen=True)
class PeerForm:
    """How one peer runs. `precision`: the float32 matmul precision that it asks for; `malloc`: a
    caching malloc is preloaded."""

    name: str
    attention: str
    is_compiled: bool = False
    precision: str = "highest"
    adamw: str = "fused"
    malloc: bool = False


# `medium`: float32 GEMMs by way of oneDNN, true float32 only where the processor has nothing less
# exact; the peer's process sets `highest` where it is not
TUNED = {"is_compiled": True, "precision": "medium", "malloc": True}
FORMS = {
    form.name: form
    for form in (
        PeerForm("eager", attention="eager", adamw="for-loop"),
        PeerForm("sdpa", attention="sdpa"),
        PeerForm("compile_default", attention="sdpa", is_compiled=True),
        PeerForm("compile_tuned", attention="eager", **TUNED),
    )
}


class Malloc(NamedTuple):
    """What a process needs in its environment, and how that is called in a result."""

    environment: dict[str, str]
    description: str


# above any tensor here; the last underscore is glibc's
GLIBC_KEEPS = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
# in the order of preference, as -l would name them; jemalloc gives memory back after ten seconds
# unless told otherwise
MALLOCS: dict[str, dict[str, str]] = {
    "tcmalloc_minimal": {},
    "tcmalloc": {},
    "jemalloc": {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"},
}


def caching_malloc() -> Malloc:
    """The first library that is installed, or glibc's with its thresholds raised."""
    for library, more in MALLOCS.items():
        if file := ctypes.util.find_library(library):
            return Malloc({"LD_PRELOAD": file, **more}, f"{file} preloaded")
    keeps = ", ".join(f"{key}={value}" for key, value in GLIBC_KEEPS.items())
    return Malloc(GLIBC_KEEPS, f"glibc with {keeps}: none of {', '.join(MALLOCS)} is installed")


class SideError(Exception):
    """A side failed at a case; the message names it."""

    @property
    def entry(self) -> Json:
        """What a result says of the case."""
        return {"error_occurred": True, "error_message": str(self)}


class SideSkip(SideError):  # noqa: N818 -- not an error: the case is left out on purpose
    """A side's case is left out; the message says why, with the figures."""

    @property
    def entry(self) -> Json:
        return {"skipped": True, "skip_message": str(self)}


# which has torch and transformers; scripts/peers says which, where it is not this one
ORACLE_PYTHON = os.environ.get("TINY_LLAMA_ORACLE_PYTHON", sys.executable)
PEER = (ORACLE_PYTHON, "-W", "ignore", "-m", "tinyllama_tools.commands.peer_process")
SECONDS_TO_END = 10


class PeerProcess:
    """A running peer. In a session of its own: Ctrl-C is for us, who then close its input."""

    def __init__(
        self, name: str, environment: Mapping[str, str], command: Sequence[str] = PEER
    ) -> None:
        self.name = name
        # closed in close(), with the process
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def send(self, do: str, **what: object) -> None:
        """Asks for something; `receive` has to follow, which says where the process has ended."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(json.dumps({"do": do, **what}) + "\n")
            self._requests.flush()

    def receive(self) -> Json:
        """The answer. SideError where it says that it could not, or has ended."""
        line = self._answers.readline()
        if not line:
            status = self._process.wait()
            self._said.seek(0)
            words = last_words(self._said.read()) or "it said nothing"
            raise SideError(f"{self.name}: its process ended with {status}: {words}")
        answer = json.loads(line)
        if "error" in answer:
            raise SideError(f"{self.name}: {answer['error']}")
        return answer

    @property
    def is_running(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    def close(self) -> None:
        """Lets it end, and makes it where it does not."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._said.close()


def start_peer(form: PeerForm, malloc: Malloc, device: str) -> PeerProcess:
    """The process of one form: threads placed as our program places its own, the form's malloc, and
    where code is kept."""
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(PROJECT / ".deps/torchinductor"),
        **placed_threads(os.environ),
        "PYTHONPATH": str(PROJECT / "scripts"),
        **(malloc.environment if form.malloc else {}),
    }
    return PeerProcess(PREFIX + form.name, environment, (*PEER, device))


def step_flops(case: CaseName) -> float:
    """model_flops of a full step: forward and twice as much backward, scores in full."""
    size = problem_sizes()[case.size]
    hidden, tokens = size["hidden_dim"], case.batch * case.seq
    kv_width = hidden // size["n_heads"] * size["n_kv_heads"]
    a_layer = 2 * hidden * (hidden + kv_width) + 3 * hidden * size["intermediate_dim"]
    weights = size["n_layers"] * a_layer + hidden * size["vocab_size"]
    scores = 2 * size["n_layers"] * case.seq * hidden
    return 6.0 * tokens * (weights + scores)


class Side:
    """One of the programs that are compared. Every method may raise SideError or SideSkip."""

    variant: str

    def start(self, case: CaseName) -> None:
        """Begins to build the case, without waiting."""

    def wait_until_built(self) -> None:
        """Until then it may keep every processor busy; from then on only when it is asked."""

    def get_ready(self, case: CaseName) -> float:
        """Warms up; seconds of a step, as far as they are known then."""
        raise NotImplementedError

    def time(self, case: CaseName, steps: int) -> list[Json]:
        """So many steps, each an entry in the suite's own format."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends its process."""


# Our program refuses a case that it cannot warm up, meter and time within its limit.
FEWEST_ITERATIONS = 3


class OurSide(Side):
    """One variant of tiny_llama_bench, a process a turn. Once verified, its turns are timed without
    the proof."""

    def __init__(self, variant: str, program: SuiteProgram, max_seconds: float) -> None:
        self.variant = variant
        self.contexts: list[Json] = []
        self._program = program
        self._limit = f"--max-seconds-per-case={FEWEST_ITERATIONS * max_seconds:g}"
        # against float64: of the verified process, the only one that compared
        self._error = 0.0

    def get_ready(self, case: CaseName) -> float:
        (first, *_) = self._run(case, 1, verify=True)
        self._error = first["max_rel_error"]
        return first["real_time"] * UNITS[first["time_unit"]]

    def time(self, case: CaseName, steps: int) -> list[Json]:
        return [e | {"max_rel_error": self._error} for e in self._run(case, steps, verify=False)]

    def _run(self, case: CaseName, steps: int, *, verify: bool) -> list[Json]:
        own = replace(case, variant=self.variant)
        try:
            document = self._program.measure([own], steps, verify=verify, more=[self._limit])
        except SuiteError as error:
            raise SideError(str(error)) from error
        self.contexts.append(document["context"])
        rows = rows_of(document, own)
        if "skip_message" in rows[-1]:
            raise SideSkip(rows[-1]["skip_message"])
        if "error_message" in rows[-1]:
            raise SideError(rows[-1]["error_message"])
        return rows


class PeerSide(Side):
    """One form of the peer, in a process that is started when it is needed, and again if it died.
    `settings`: what the process said of itself."""

    def __init__(
        self, form: PeerForm, start: Callable[[PeerForm], PeerProcess], threads: int, limit: float
    ) -> None:
        self.form = form
        self.variant = PREFIX + form.name
        self.settings: Json = {}
        self._start = start
        self._threads = threads
        self._max_seconds = limit
        self._process: PeerProcess | None = None
        # by size and dtype, the smallest case whose step took longer than the limit
        self._too_slow: dict[tuple[str, str], CaseName] = {}

    def start(self, case: CaseName) -> None:
        slow = self._too_slow.get((case.size, case.dtype))
        if slow and step_flops(case) >= step_flops(slow):
            where = f"batch:{slow.batch}/seq:{slow.seq}, which has fewer FLOPs"
            raise SideSkip(f"{self._limit_text} was exceeded at {where}")
        if self._process is None or not self._process.is_running:
            self.close()
            self._process = self._start(self.form)
            self._process.send("hello", form=asdict(self.form), threads=self._threads)
            self.settings = self._process.receive()
        size = problem_sizes()[case.size]
        self._process.send("build", size=size, dtype=case.dtype, batch=case.batch, seq=case.seq)

    def wait_until_built(self) -> None:
        # never of a process started anew, which would have nothing to answer
        assert self._process
        self._process.receive()

    def get_ready(self, case: CaseName) -> float:
        seconds = min(self._ask("warm_up", limit=self._max_seconds)["seconds"])
        if seconds > self._max_seconds:
            self._too_slow[case.size, case.dtype] = case
            raise SideSkip(f"a step took {seconds:.1f} s, more than {self._limit_text}")
        return seconds

    def time(self, case: CaseName, steps: int) -> list[Json]:
        answer = self._ask("time", steps=steps)
        flops = step_flops(case)
        return [
            {
                "iterations": 1,
                "real_time": 1e3 * wall,
                "cpu_time": 1e3 * cpu,
                "time_unit": "ms",
                "samples_per_second": case.batch / wall,
                "tokens_per_second": case.batch * case.seq / wall,
                "model_flops": flops,
                "TFLOPS": flops / wall * 1e-12,
            }
            for wall, cpu in zip(answer["seconds"], answer["cpu_seconds"], strict=True)
        ]

    @property
    def _limit_text(self) -> str:
        return f"--max-seconds-per-case {self._max_seconds:g}"

    def _ask(self, do: str, **what: object) -> Json:
        assert self._process
        self._process.send(do, **what)
        return self._process.receive()

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


class Effort(NamedTuple):
    """Turns of a case, steps of a turn, and the seconds of timed steps that a side may have."""

    turns: int
    steps: int
    max_seconds: float

    def for_step_of(self, seconds: float) -> Effort:
        """What of it there is time for: first fewer steps, then fewer turns, at least one."""
        affordable = max(1, int(self.max_seconds / seconds))
        turns = min(self.turns, affordable)
        return Effort(turns, max(1, min(self.steps, affordable // turns)), self.max_seconds)


@dataclass
class SideRun:
    """What one side did at a case: the entries of each turn, or the one that says why not."""

    turns: list[list[Json]] = field(default_factory=list)
    stopped: Json = field(default_factory=dict)

    @property
    def medians(self) -> list[float]:
        """The median step of each turn, in seconds."""
        return [
            statistics.median(entry["real_time"] * UNITS[entry["time_unit"]] for entry in turn)
            for turn in self.turns
        ]

    @property
    def text(self) -> str:
        """The first turn in a word, for who waits."""
        reason = self.stopped.get("error_message") or self.stopped.get("skip_message")
        word = "FAILED" if "error_message" in self.stopped else "skipped"
        return f"{word}: {reason}" if reason else f"{1e3 * self.medians[0]:.1f} ms"


@dataclass
class CaseRun:
    """One case and what each side did. It fills meanwhile: whoever interrupts still has it."""

    case: CaseName
    sides: dict[str, SideRun]

    def ratio(self, other: str, ours: str) -> Ratio | None:
        """Times of `other` over those of `ours`, over the turns that both had: above 1, ours is
        faster."""
        pairs = list(zip(self.sides[other].medians, self.sides[ours].medians, strict=False))
        return ratio_of_turns(*zip(*pairs, strict=True)) if pairs else None


def measure_case(
    case: CaseName,
    sides: Sequence[Side],
    effort: Effort,
    say: Callable[[str], None],
    keep: Callable[[CaseRun], None],
) -> None:
    """All sides at one case; `keep` gets its result before anything is measured.

    All are built at once and, when all are built, warmed up one by one, since what a step takes
    then decides over their turns. Who begins a turn moves on by one each turn.
    """
    result = CaseRun(case, {side.variant: SideRun() for side in sides})
    keep(result)
    efforts: dict[str, Effort] = {}

    def get_ready(side: Side) -> None:
        efforts[side.variant] = effort.for_step_of(side.get_ready(case))

    def time(side: Side) -> None:
        entries = side.time(case, efforts[side.variant].steps)
        result.sides[side.variant].turns.append(entries)

    def attempt(side: Side, do: Callable[[Side], None]) -> bool:
        """Does it, or keeps the reason why not, and no times beside it."""
        try:
            do(side)
        except SideError as reason:
            result.sides[side.variant] = SideRun(stopped=reason.entry)
            return False
        return True

    left = list(sides)
    for prepare in (lambda s: s.start(case), lambda s: s.wait_until_built(), get_ready):
        left = [side for side in left if attempt(side, prepare)]
    for turn in range(effort.turns):
        due = [side for side in left if turn < efforts[side.variant].turns]
        first = turn % len(due) if due else 0
        for side in (*due[first:], *due[:first]):
            if not attempt(side, time):
                left.remove(side)
        if turn == 0:
            say(", ".join(f"{variant} {run.text}" for variant, run in result.sides.items()))
