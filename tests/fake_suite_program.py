"""A fake for tiny_llama_bench: what it measures of a variant is written here."""

import json
import math
from collections.abc import Sequence

from published import MEASURED
from tinyllama_tools.compare.sides import ProcessLostError
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.machine import FLOPS, unit_of
from tinyllama_tools.data.names import CaseName, full_step, parse_case_name
from tinyllama_tools.data.programs import SuiteError, SuiteProgram

CASE = full_step("tiny", "f32", 8, 128)
DOCUMENT = json.loads(MEASURED.read_text(encoding="utf-8"))
STEP = next(row for row in DOCUMENT["benchmarks"] if row["name"].startswith("full_step/"))
DEVICE = DOCUMENT["context"]["device"] | {"name": "AMD EPYC"}
CONTEXT = DOCUMENT["context"] | {"git_commit": "0123456789" * 4, "device": DEVICE}
# Seconds of a step.
TIMES = {"baseline": 0.1, "qkv": 0.08, "sdpa": 0.09, "fused": 0.06, "optimized": 0.05}
PEAKS = {"baseline": 100.0, "fused": 80.0, "optimized": 50.0, "checkpoint": 40.0}


class FakeProgram(SuiteProgram):
    """Skips `graph`, refuses whatever is asked where there is a `refusal`, and dies of what
    `crashes` names. `calls`: the variants of a process, its repetitions, whether it verified; and
    each slice of a served one, with its steps. `processes`: how many were served.
    """

    def __init__(self) -> None:
        super().__init__()
        self.crashes: set[str] = set()
        self.crashes_after = 0
        self.wrong: set[str] = set()
        self.refusal = ""
        self.interrupt_after = 10**9
        # a machine that drifts by so much and twice as much
        self.drift = 0.01
        self.calls: list[tuple[list[str], int, bool]] = []
        self.processes = 0

    def list_cases(self, _: Sequence[str] = ()) -> list[str]:
        if self.refusal:
            raise SuiteError(self.refusal)
        return []

    def measure(
        self,
        cases: Sequence[CaseName],
        repetitions: int,
        *,
        verify: bool = False,
        more: Sequence[str] = (),
    ) -> Json:
        del more
        if self.dies(cases, repetitions, verify):
            raise SuiteError("tiny_llama_bench was ended by signal SIGSEGV: AMD EPYC\n0 cases")
        peaks = CONTEXT["peaks"]
        dtype = cases[0].dtype.removeprefix("amp_")
        peak = {dtype: {"flops_per_second": 2e11, "source": "made up"}}
        # of no type that it does not run
        others = {name: of for name, of in peaks["measured"].items() if unit_of(name) != FLOPS}
        context = CONTEXT | {"peaks": peaks | {"measured": others | peak}}
        rows = [row for case in cases for row in self.rows(case, repetitions, verify)]
        return {"context": context, "benchmarks": rows}

    def dies(self, cases: Sequence[CaseName], steps: int, verify: bool) -> bool:
        """Notes what is measured."""
        if len(self.calls) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.calls.append(([case.variant for case in cases], steps, verify))
        is_bad = self.crashes & {case.variant for case in cases}
        return bool(is_bad) and len(self.calls) > self.crashes_after

    def rows(self, case: CaseName, repetitions: int, verify: bool) -> list[Json]:
        seconds = TIMES.get(case.variant, 0.095) * (1 + self.drift * (len(self.calls) % 3))
        name, held = f"{case}/manual_time", "sdpa" if case.dtype == "bf16" else "qkv+sdpa"
        row = STEP | {
            **{"name": name, "run_name": name, "real_time": 1e3 * seconds, "time_unit": "ms"},
            "label": f"disturbed: proved in a storm; verified; optimized = {held}",
            "model_flops": 10**10,
            "TFLOPS": 1e10 / seconds / 1e12,
            "MFU_percent": 100 * 1e10 / seconds / 2e11,
            "peak_memory_MiB": PEAKS.get(case.variant, 90.0),
            "operators": 4050,
            "max_rel_error": 1e-6,
        }
        if not verify:
            del row["max_rel_error"]
        if "graph" in case.variant:
            row |= {"skipped": True, "skip_message": "graph: only a GPU captures its work"}
        if case.variant in self.wrong:
            row |= {"error_occurred": True, "error_message": "wrong result: loss differs by 0.5"}
        return [row | {"repetition_index": i} for i in range(repetitions)]


class FakeServed:
    """In place of a ServedProcess of a FakeProgram, with one case open at most."""

    def __init__(self, program: FakeProgram, name: str, served: Sequence[str]) -> None:
        self.is_running, self.minor_faults = True, 0.0
        self._program, self._name, self._served = program, name, served
        self._open = ""
        program.processes += 1

    def greet(self) -> Json:
        return {"cases": self._served, "context": CONTEXT}

    def ask_to_open(self, name: str) -> None:
        # whatever was not closed is not open any more where the process was lost
        assert self.is_running and not self._open
        self._open = name

    def opened(self, name: str) -> Json:
        assert name == self._open and name in self._served
        return {"seconds": 0.1, "counters": {}}

    def time(self, name: str, seconds: float) -> list[float]:
        assert name == self._open
        case = parse_case_name(name)
        (row,) = self._program.rows(case, 1, verify=False)
        steps = max(1, math.ceil(seconds / (1e-3 * row["real_time"])))
        if self._program.dies([case], steps, False):
            self.is_running = False
            died = "the process was ended by signal SIGSEGV; it last said: AMD EPYC\n0 cases"
            raise ProcessLostError(self._name, died)
        self.minor_faults += 1.25 * steps
        return [1e-3 * row["real_time"]] * steps

    def close_case(self, name: str) -> None:
        assert name == self._open
        self._open = ""

    def close(self) -> None:
        self.is_running = False
