"""The two kinds of sides: tiny_llama_bench, a process a turn, and a peer's process, which stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinyllama_tools.data.programs import CaseRun as SuiteCaseRun
from tinyllama_tools.data.programs import SuiteCase, SuiteError, SuiteProgram, problem_sizes
from tinyllama_tools.peer_forms import PeerForm
from tinyllama_tools.peer_process import PeerError, PeerProcess
from tinyllama_tools.peers_turns import SideError, SideSkip

Json = dict[str, Any]
# What our program needs of a step besides the timed ones: it refuses a case that it cannot warm up,
# meter and time within its limit.
FEWEST_ITERATIONS = 3
# How far a step may be above what its FLOPs say, seen from a smaller one, before it is believed.
PREDICTION_MARGIN = 1.5


def of_variant(case: SuiteCase, variant: str) -> SuiteCase:
    """The same case of another variant."""
    return SuiteCase(case.size, case.dtype, case.batch, case.seq, variant)


def step_flops(case: SuiteCase) -> float:
    """model_flops of a full step: forward and twice as much backward, scores in full."""
    size = problem_sizes()[case.size]
    hidden, tokens = size["hidden_dim"], case.batch * case.seq
    kv_width = hidden // size["n_heads"] * size["n_kv_heads"]
    a_layer = 2 * hidden * (hidden + kv_width) + 3 * hidden * size["intermediate_dim"]
    weights = size["n_layers"] * a_layer + hidden * size["vocab_size"]
    scores = 2 * size["n_layers"] * case.seq * hidden
    return 6.0 * tokens * (weights + scores)


class OurSide:
    """One variant of tiny_llama_bench. Once verified, its turns are timed without the proof."""

    def __init__(self, variant: str, program: SuiteProgram, max_seconds: float) -> None:
        self.variant = variant
        self.contexts: list[Json] = []
        self.runs: dict[str, list[SuiteCaseRun]] = {}
        self._program = program
        self._limit = f"--max-seconds-per-case={FEWEST_ITERATIONS * max_seconds:g}"

    def _run(self, case: SuiteCase, steps: int, verify: bool) -> list[float]:
        own = of_variant(case, self.variant)
        try:
            result = self._program.run([own], steps, verify=verify, more=[self._limit])
        except SuiteError as error:
            raise SideError(str(error)) from error
        (run,) = result.cases
        self.contexts.append(result.context)
        if run.skipped:
            raise SideSkip(run.skipped)
        if run.failed:
            raise SideError(run.failed)
        self.runs.setdefault(case.name, []).append(run)
        return list(run.seconds)

    def start(self, case: SuiteCase) -> None:
        """Nothing: it has been built."""

    def wait_until_built(self) -> None:
        """Nothing to wait for."""

    def get_ready(self, case: SuiteCase) -> float:
        return min(self._run(case, 1, verify=True))

    def time(self, case: SuiteCase, steps: int) -> list[float]:
        return self._run(case, steps, verify=False)


class PeerSide:
    """One form of the peer, in a process that is started when it is needed, and again if it died.

    `settings`: what the process said of itself. `cpu_seconds`: of the steps timed, by case name, of
    the thread that runs them.
    """

    def __init__(
        self, form: PeerForm, start: Callable[[PeerForm], PeerProcess], threads: int, limit: float
    ) -> None:
        self.form = form
        self.variant = form.variant
        self.settings: Json = {}
        self.cpu_seconds: dict[str, list[float]] = {}
        self._start = start
        self._threads = threads
        self._max_seconds = limit
        self._process: PeerProcess | None = None
        # of each size and dtype, the case with most FLOPs so far and what its step took
        self._known: dict[tuple[str, str], tuple[SuiteCase, float]] = {}

    def _started(self) -> PeerProcess:
        if self._process is None or not self._process.is_running:
            self.close()
            self._process = self._start(self.form)
            form = self.form.as_json()
            self.settings = self._process.ask("hello", form=form, threads=self._threads)
        return self._process

    def _refuse(self, case: SuiteCase) -> None:
        known = self._known.get((case.size, case.dtype))
        if known is None:
            return
        other, seconds = known
        predicted = seconds * step_flops(case) / step_flops(other)
        if predicted > PREDICTION_MARGIN * self._max_seconds:
            raise SideSkip(
                f"a step needs about {predicted:.1f} s, going by its FLOPs and the {seconds:.1f} s "
                f"measured at batch:{other.batch}/seq:{other.seq}; more than "
                f"--max-seconds-per-case {self._max_seconds:g}"
            )

    def start(self, case: SuiteCase) -> None:
        self._refuse(case)
        size = problem_sizes()[case.size]
        shape = {"dtype": case.dtype, "batch": case.batch, "seq": case.seq}
        try:
            self._started().send("build", size=size, **shape)
        except PeerError as error:
            raise SideError(str(error)) from error

    def _answer(self, do: Callable[[PeerProcess], Json]) -> Json:
        # never of a process started anew, which would have nothing to answer
        if self._process is None:
            raise SideError(f"{self.variant}: its process was not started")
        try:
            return do(self._process)
        except PeerError as error:
            raise SideError(str(error)) from error

    def wait_until_built(self) -> None:
        self._answer(lambda process: process.receive())

    def get_ready(self, case: SuiteCase) -> float:
        limit_s = self._max_seconds
        answer = self._answer(lambda process: process.ask("warm_up", limit=limit_s))
        seconds = min(answer["seconds"])
        key = (case.size, case.dtype)
        if key not in self._known or step_flops(self._known[key][0]) < step_flops(case):
            self._known[key] = (case, seconds)
        if seconds > self._max_seconds:
            limit = f"--max-seconds-per-case {self._max_seconds:g}"
            raise SideSkip(f"a step took {seconds:.1f} s, more than {limit}")
        return seconds

    def time(self, case: SuiteCase, steps: int) -> list[float]:
        answer = self._answer(lambda process: process.ask("time", steps=steps))
        self.cpu_seconds.setdefault(case.name, []).extend(answer["cpu_seconds"])
        return answer["seconds"]

    def close(self) -> None:
        """Ends its process."""
        if self._process is not None:
            self._process.close()
            self._process = None
