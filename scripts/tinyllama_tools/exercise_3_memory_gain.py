"""Exercise 3: what moving less data can bring, measured where an ablation did, else assumed."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllama_tools.ablation_evidence import Evidence
from tinyllama_tools.ablation_rows import ratio_text, shows_difference
from tinyllama_tools.bottleneck_shares import recorded_part
from tinyllama_tools.bottlenecks import amdahl
from tinyllama_tools.core.app import Json
from tinyllama_tools.exercise_3_numbers import FLOP_GROUPS, memory_bound_percent

# What passes over memory once instead of twice.
HALF_THE_TRAFFIC = 2.0
# One pass over what is bound by memory, outside of FLOP_GROUPS; they share no work.
ONE_PASS = ("fused_norm", "fused_adamw", "fused_rotary")


@dataclass(frozen=True)
class Gain:
    """Speedup of the step, and what it rests on."""

    speedup: float | None
    reason: str


def memory_gain(summary: Json, evidence: Evidence | None) -> Gain:
    """From the switches that the ablation measured, else by Amdahl's law."""
    found = evidence.speedups if evidence else {}
    measured = [(name, found[name]) for name in ONE_PASS if name in found]
    if measured:
        text = ", ".join(f"{ratio_text(ratio)} with {name}" for name, ratio in measured)
        # what may be chance, or slows the step down, is left out of a plan
        saved = sum(
            max(0.0, 1 - 1 / ratio.median) for _, ratio in measured if shows_difference(ratio)
        )
        return Gain(1 / (1 - saved) if saved < 1 else None, f"measured: {text}")
    percent, part = memory_bound_percent(summary, FLOP_GROUPS), recorded_part(summary)
    if percent is None or part is None:
        return Gain(None, "")
    speedup = amdahl(part * min(percent, 100) / 100, HALF_THE_TRAFFIC)
    return Gain(speedup, f"assumed: half the traffic, of {part * percent:.1f} % of the step")
