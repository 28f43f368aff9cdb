"""Sides that are interleaved at one case: our program, and processes of LlamaForCausalLM."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO

from tinyllama_tools.core.app import PROJECT, Json, placed_threads, problem_sizes
from tinyllama_tools.core.text import last_words
from tinyllama_tools.data.names import UNITS, CaseName
from tinyllama_tools.data.programs import CaseRun as SuiteRun
from tinyllama_tools.data.programs import SuiteError, SuiteProgram
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

PREFIX = "peer:"


# By itself glibc maps and unmaps every large tensor, which costs a small step a tenth to a third.
# These are above any tensor here; the last underscore is glibc's.
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
KEEPS = "glibc that keeps its memory"
_PLAIN: Json = {"is_compiled": False, "adamw": "fused", "malloc": "glibc"}
# How each peer runs, by its name.
FORMS: dict[str, Json] = {
    "eager": _PLAIN | {"attention": "eager", "adamw": "for-loop"},
    "sdpa": _PLAIN | {"attention": "sdpa"},
    "compile_default": _PLAIN | {"attention": "sdpa", "is_compiled": True},
    "compile_tuned": _PLAIN | {"attention": "eager", "is_compiled": True, "malloc": KEEPS},
}


class SideError(Exception):
    """A side failed at a case, or left it out on purpose; the message says why."""

    def __init__(self, reason: str, *, is_skip: bool = False) -> None:
        super().__init__(reason)
        failed = {"error_occurred": True, "error_message": reason}
        self.entry: Json = {"skipped": True, "skip_message": reason} if is_skip else failed


# which has torch and transformers; scripts/peers says which, where it is not this one
ORACLE_PYTHON = os.environ.get("TINY_LLAMA_ORACLE_PYTHON", sys.executable)
PEER = (ORACLE_PYTHON, "-W", "ignore", "-m", "tinyllama_tools.commands.peer_process")
SECONDS_TO_END = 10


def step_flops(case: CaseName) -> float:
    """model_flops of a full step: forward and twice as much backward, scores in full."""
    size = problem_sizes()[case.size]
    hidden, tokens = size["hidden_dim"], case.batch * case.seq
    kv_width = hidden // size["n_heads"] * size["n_kv_heads"]
    a_layer = 2 * hidden * (hidden + kv_width) + 3 * hidden * size["intermediate_dim"]
    weights = size["n_layers"] * a_layer + hidden * size["vocab_size"]
    scores = 2 * size["n_layers"] * case.seq * hidden
    return 6.0 * tokens * (weights + scores)


# Our program refuses a case that it cannot warm up, meter and time within its limit.
FEWEST_ITERATIONS = 3


class OurSide:
    """One variant of tiny_llama_bench, a process a turn. Once verified, its turns are timed without
    the proof."""

    def __init__(self, variant: str, program: SuiteProgram, max_seconds: float) -> None:
        self.variant = variant
        self._program = program
        self._limit = f"--max-seconds-per-case={FEWEST_ITERATIONS * max_seconds:g}"

    def get_ready(self, case: CaseName) -> float:
        """Seconds of a verified step."""
        return self._run(case, 1, verify=True).seconds[0]

    def time(self, case: CaseName, steps: int) -> list[Json]:
        """So many steps, each an entry in the suite's own format."""
        entries = self._run(case, steps, verify=False).entries
        return [entry for entry in entries if entry["run_type"] == "iteration"]

    def _run(self, case: CaseName, steps: int, *, verify: bool) -> SuiteRun:
        own = replace(case, variant=self.variant)
        try:
            result = self._program.run([own], steps, verify=verify, more=[self._limit])
        except SuiteError as error:
            raise SideError(str(error)) from error
        (run,) = result.cases
        if run.skipped or run.failed:
            raise SideError(run.skipped or run.failed, is_skip=bool(run.skipped))
        return run


class PeerSide:
    """One form of the peer, in a process that is started when it is needed, and again if it died.
    `settings`: what the process said of itself."""

    def __init__(self, name: str, device: str, threads: int, max_seconds: float) -> None:
        self.form = FORMS[name]
        self.variant = PREFIX + name
        self.settings: Json = {}
        self._device = device
        self._threads = threads
        self._max_seconds = max_seconds
        self._process: subprocess.Popen[str] | None = None
        self._said: TextIO | None = None

    def _start(self) -> None:
        """Threads placed as our program places its own, the form's malloc, and where code is kept.
        In a session of its own: Ctrl-C is for us, who then close its input."""
        self.close()
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(PROJECT / ".deps/torchinductor"),
            **placed_threads(os.environ),
            "PYTHONPATH": str(PROJECT / "scripts"),
            **(KEEPING if self.form["malloc"] == KEEPS else {}),
        }
        # closed in close(), with the process
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            (*PEER, self._device),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.settings = self._ask("hello", form=self.form, threads=self._threads)

    def _ask(self, do: str, **what: object) -> Json:
        """The answer. SideError where it says that it could not, or has ended."""
        process, said = self._process, self._said
        assert process and process.stdin and process.stdout and said
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"do": do, **what}) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            status = process.wait()
            said.seek(0)
            words = last_words(said.read()) or "it said nothing"
            raise SideError(f"{self.variant}: its process ended with {status}: {words}")
        answer = json.loads(line)
        if "error" in answer:
            raise SideError(f"{self.variant}: {answer['error']}")
        return answer

    def get_ready(self, case: CaseName) -> float:
        """Builds the case and warms up; seconds of a step."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        size = problem_sizes()[case.size]
        self._ask("build", size=size, dtype=case.dtype, batch=case.batch, seq=case.seq)
        seconds = min(self._ask("warm_up", limit=self._max_seconds)["seconds"])
        if seconds > self._max_seconds:
            limit = f"--max-seconds-per-case {self._max_seconds:g}"
            raise SideError(f"a step took {seconds:.1f} s, more than {limit}", is_skip=True)
        return seconds

    def time(self, case: CaseName, steps: int) -> list[Json]:
        """So many steps, each an entry in the suite's own format."""
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

    def close(self) -> None:
        """Lets its process end, and makes it where it does not."""
        process, self._process = self._process, None
        if process and process.stdin and process.stdout and self._said:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
            self._said.close()


Side = OurSide | PeerSide


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
    result: CaseRun, sides: Sequence[Side], turns: int, steps: int, max_seconds: float
) -> None:
    """All sides at one case, so many steps a turn, fewer where all turns would take longer than
    that. Who begins a turn moves on by one each turn."""
    steps_of: dict[str, int] = {}

    def get_ready(side: Side) -> None:
        affordable = int(max_seconds / turns / side.get_ready(result.case))
        steps_of[side.variant] = max(1, min(steps, affordable))

    def time(side: Side) -> None:
        entries = side.time(result.case, steps_of[side.variant])
        result.sides[side.variant].turns.append(entries)

    def attempt(side: Side, do: Callable[[Side], None]) -> bool:
        """Does it, or keeps the reason why not, and no times beside it."""
        try:
            do(side)
        except SideError as reason:
            result.sides[side.variant] = SideRun(stopped=reason.entry)
            return False
        return True

    left = [side for side in sides if attempt(side, get_ready)]
    for turn in range(turns):
        first = turn % len(left) if left else 0
        for side in (*left[first:], *left[:first]):
            if not attempt(side, time):
                left.remove(side)
