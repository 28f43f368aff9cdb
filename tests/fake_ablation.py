"""A fake for tiny_llama_bench: what it measures of a variant is written here."""

from collections.abc import Sequence

from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import CaseRun, SuiteError, SuiteResult
from tinyllama_tools.models.ablations import Point

POINT = Point("tiny", "f32", 8, 128)
CONTEXT = {
    "git_commit": "0123456789abcdef",
    "git_dirty": False,
    "device": {"name": "AMD EPYC", "architecture": "x86-64 AVX2", "backend": "cpu"},
    "num_cpus": 2,
    "threads": 2,
    "torch_version": "2.13.0",
    "peaks": {"measured": {"f32": {"flops_per_second": 2e11}}, "mfu_is_against": "measured"},
}
# Seconds of a step.
TIMES = {"baseline": 0.1, "qkv": 0.08, "sdpa": 0.09, "fused": 0.06, "optimized": 0.05}
PEAKS = {"baseline": 100.0, "fused": 80.0, "optimized": 50.0, "checkpoint": 40.0}


class FakeProgram:
    """Skips `graph`, refuses whatever is asked where there is a `refusal`, and dies of what
    `crashes` names. `calls`: the variants of a process, its repetitions, whether it verified.
    """

    def __init__(self, **times: float) -> None:
        self.times = TIMES | times
        self.crashes: set[str] = set()
        self.wrong: set[str] = set()
        self.refusal = ""
        self.interrupt_after = 10**9
        self.calls: list[tuple[list[str], int, bool]] = []

    def list_cases(self, _: Sequence[str]) -> tuple[list[str], str]:
        return [], self.refusal

    def run(
        self,
        cases: Sequence[CaseName],
        repetitions: int,
        *,
        verify: bool = False,
        more: Sequence[str] = (),
    ) -> SuiteResult:
        del more
        if len(self.calls) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.calls.append(([case.variant for case in cases], repetitions, verify))
        if self.crashes & {case.variant for case in cases}:
            raise SuiteError("tiny_llama_bench was ended by signal SIGSEGV: AMD EPYC\n0 cases")
        measured = {"measured": {cases[0].dtype: {"flops_per_second": 2e11}}}
        context = CONTEXT | {"peaks": CONTEXT["peaks"] | measured}
        runs = tuple(self.case_run(case, repetitions, verify) for case in cases)
        return SuiteResult(context, runs)

    def case_run(self, case: CaseName, repetitions: int, verify: bool) -> CaseRun:
        if "graph" in case.variant:
            return CaseRun(str(case), (), {}, skipped="graph: only a GPU captures its work")
        if case.variant in self.wrong:
            return CaseRun(str(case), (), {}, failed="wrong result: loss differs by 0.5")
        # a machine that drifts
        seconds = self.times.get(case.variant, 0.095) * (1 + 0.01 * (len(self.calls) % 3))
        counters = {
            "model_flops": 1e10,
            "TFLOPS": 1e10 / seconds / 1e12,
            "MFU_percent": 100 * 1e10 / seconds / 2e11,
            "peak_memory_MiB": PEAKS.get(case.variant, 90.0),
            "operators": 4050.0,
            "allocations": 907.0,
        }
        if verify:
            counters["max_rel_error"] = 1e-6
        held = "sdpa" if case.dtype == "bf16" else "qkv+sdpa"
        label = f"verified; optimized = {held}" if case.variant == "optimized" else ""
        return CaseRun(str(case), (seconds,) * repetitions, counters, label)
