"""A fake for tiny_llama_bench: what it measures of a variant is written here."""

from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.data.names import CaseName, StoredCase, StoredRun
from tinyllama_tools.data.programs import SuiteError
from tinyllama_tools.models.ablations import Point

POINT = Point("tiny", "f32", 8, 128)
OTHER = Point("tiny", "bf16", 8, 128)
OPTIMIZED_IS = "qkv+sdpa"
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
    """Skips `graph`, refuses sdpa+fused_attention and whatever is asked where there is a `refusal`,
    and dies of what `crashes` names."""

    def __init__(self, times: dict[str, float] | None = None) -> None:
        self.times = TIMES | (times or {})
        self.crashes: set[str] = set()
        self.wrong: set[str] = set()
        self.refusal = ""
        self.interrupt_after = 10**9
        self.calls: list[tuple[list[str], bool]] = []
        self.steps: list[tuple[str, int]] = []

    def list_cases(self, options: Sequence[str]) -> tuple[list[str], str]:
        if self.refusal:
            return [], self.refusal
        variant = options[1].partition("=")[2]
        if variant == "sdpa+fused_attention":
            return [], "sdpa and fused_attention exclude each other"
        return [f"full_step/train/{variant}/tiny/f32/batch:8/seq:128"], ""

    def run(
        self,
        cases: Sequence[CaseName],
        repetitions: int,
        *,
        verify: bool = False,
        more: Sequence[str] = (),
    ) -> StoredRun:
        del more
        if len(self.calls) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.calls.append(([str(case) for case in cases], verify))
        if not verify:
            self.steps += [(str(case), repetitions) for case in cases]
        if any(case.variant in self.crashes for case in cases):
            raise SuiteError("tiny_llama_bench was ended by signal SIGSEGV: AMD EPYC\n0 cases")
        found = {str(case): self.stored(case, repetitions, verify) for case in cases}
        return StoredRun(Path("tiny_llama_bench"), CONTEXT, found)

    def stored(self, case: CaseName, repetitions: int, verify: bool) -> StoredCase:
        if "graph" in case.variant:
            return StoredCase(skipped="graph: only a GPU captures its work")
        if case.variant in self.wrong:
            return StoredCase(failed="wrong result: loss differs by 0.5")
        # a machine that drifts, by as much for all that runs within a turn
        seconds = self.times.get(case.variant, 0.095) * (1 + 0.01 * (len(self.calls) % 3))
        peak = PEAKS.get(case.variant, 90.0) * case.batch / 8
        counters = {
            "model_flops": 1e10,
            "TFLOPS": 1e10 / seconds / 1e12,
            "MFU_percent": 100 * 1e10 / seconds / 2e11,
            "peak_memory_MiB": peak * case.seq / 128,
            "operators": 4050.0,
            "allocations": 907.0,
        }
        if verify:
            counters["max_rel_error"] = 1e-6
        held = "sdpa" if case.dtype == "bf16" else OPTIMIZED_IS
        label = f"verified; optimized = {held}" if case.variant == "optimized" else ""
        return StoredCase(seconds, repetitions, counters, label=label)
