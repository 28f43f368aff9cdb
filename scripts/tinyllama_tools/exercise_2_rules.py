"""Numbers of exercise 2 that follow from several memory profiles, and what they decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.core.app import Json
from tinyllama_tools.worksheet import NOT_MEASURED, Verdict, megabytes, number, percent
from tinyllama_tools.worksheet_rules import above, is_largest, ratio, within

SMALLEST_SHARE_PERCENT = 1.0
LINEAR, SUPERLINEAR, SUBLINEAR = "Linear", "Superlinear", "Sublinear"
QUADRATIC, CUBIC = "Quadratic", "Cubic"
LEAST_SPIKE, MOST_STEADY = 1.5, 1.2


def doubling_verdicts(factor: float | None) -> dict[str, Verdict]:
    """Does memory double when the batch does? One holds."""
    return {
        "It doubles: linear scaling (good)": within(factor, 1.9, 2.1, "x"),
        "More than double: superlinear (fragmentation or inefficiency)": within(
            factor, 2.1, math.inf, "x"
        ),
        "Less than double: parameters and optimizer states do not grow": within(
            factor, 0, 1.9, "x"
        ),
    }


def increment_ratio(peaks: Sequence[float | None]) -> float | None:
    """(third - second) / (second - first) of peaks at sizes 1, 2 and 4: what is fixed drops out.

    2 for what grows with the size, 4 for what grows with its square, 8 with its cube.
    """
    if len(peaks) != 3 or any(peak is None for peak in peaks):
        return None
    first, second, third = (float(peak or 0) for peak in peaks)
    return ratio(third - second, second - first)


def batch_verdicts(increments: float | None) -> dict[str, Verdict]:
    """Linear, superlinear or sublinear in the batch, by the growth of the increments."""
    return {
        LINEAR: within(increments, 1.9, 2.1, "x"),
        SUPERLINEAR: within(increments, 2.1, math.inf, "x"),
        SUBLINEAR: within(increments, -math.inf, 1.9, "x"),
    }


def sequence_pattern(increments: float | None) -> dict[str, Verdict]:
    """Step 3's question, by the growth of the increments when the sequence doubles."""
    return {
        "Linear (~2x when sequence doubles)": within(increments, -math.inf, 2.5, "x"),
        "Quadratic (~4x when sequence doubles)": within(increments, 3.5, math.inf, "x"),
        "Between linear and quadratic (~3x)": within(increments, 2.5, 3.5, "x"),
    }


def sequence_verdicts(increments: float | None) -> dict[str, Verdict]:
    """5.8's question, which knows no between: the nearest."""
    return {
        LINEAR: within(increments, -math.inf, 3, "x"),
        QUADRATIC: within(increments, 3, 6, "x"),
        CUBIC: within(increments, 6, math.inf, "x"),
    }


def throughput_answer(factor: float | None) -> str:
    """Does throughput double when the batch does?"""
    if factor is None:
        return f"{NOT_MEASURED}."
    if factor >= 1.9:
        return f"Yes, {factor:.2f} times: perfect scaling (rule: from 1.9)."
    if factor > 1.05:
        return f"No, {factor:.2f} times: diminishing returns (rule: from 1.05 to below 1.9)."
    if factor >= 0.95:
        return f"No, {factor:.2f} times: the device is already full (rule: from 0.95 to 1.05)."
    return (
        f"No, {factor:.2f} times: throughput falls, which a full device does not explain (rule: "
        "below 0.95); memory that no longer fits a cache, or a machine that was not quiet, may."
    )


def usage_pattern(peak_to_average: float | None) -> str:
    """Steady, Fluctuating or Spiking."""
    if peak_to_average is None:
        return NOT_MEASURED
    rule = f"rule: steady below {MOST_STEADY}, spiking from {LEAST_SPIKE}"
    word = "Spiking" if peak_to_average >= LEAST_SPIKE else "Fluctuating"
    if peak_to_average < MOST_STEADY:
        word = "Steady"
    return f"{word}: peak-to-average {peak_to_average:.2f}; {rule}"


def deallocation(memory: Json) -> str:
    """Promptly, Delayed or Not at all, by what is alive after each recorded step."""
    after, before = memory["live_bytes_after_steps"], memory["baseline_bytes"]
    if not after:
        return NOT_MEASURED
    growth = 100 * (after[-1] - after[0]) / after[0] if after[0] else 0.0
    over = 100 * (after[-1] - before) / before if before else 0.0
    numbers = (
        f"{megabytes(before)} before, {megabytes(after[-1])} after the last recorded step "
        f"({percent(growth)} more than after the first)"
    )
    if growth > 1:
        return f"Not at all: {numbers}; rule: a growth above 1 % from step to step"
    if over > 1:
        return f"Delayed: {numbers}; rule: more than 1 % above what was there before"
    return f"Promptly: {numbers}; rule: within 1 % of what was there before"


def drop_verdict(memory: Json) -> Verdict:
    """Whether memory falls clearly between a step's peak and its end."""
    after, peak = memory["live_bytes_after_steps"], memory["peak_bytes"]
    fall = 100 * (1 - after[-1] / peak) if after and peak else None
    return above(fall, 10)


def baseline_verdict(memory: Json) -> Verdict:
    """Whether memory returns to where it was before the recorded steps."""
    after, before = memory["live_bytes_after_steps"], memory["baseline_bytes"]
    over = 100 * (after[-1] / before - 1) if after and before else None
    return within(over, -math.inf, 1)


def place_verdicts(memory: Json) -> dict[str, Verdict]:
    """Where the peak is: its phase, and attention where it is in one of attention's components."""
    phase, component = memory["peak_phase"], memory["peak_component"] or "unknown"
    share = percent(100 * memory["breakdown_at_peak"]["attention_scores"] / memory["peak_bytes"])
    where = f"the 1 peak is in {phase}, {component}"
    return {
        **{
            name: Verdict(phase == name, f"{where}; rule: the phase of the peak")
            for name in ("forward", "backward", "optimizer")
        },
        "attention": Verdict(
            component.startswith("attention"),
            f"{where}, scores are {share}; rule: the component of the peak",
        ),
    }


@dataclass(frozen=True)
class Growth:
    """How a component's activations grow: bytes a sample ~ S^exponent, and its share at the end."""

    name: str
    exponent: float
    share_percent: float


def component_growth(profiles: Mapping[int, tuple[int, Mapping[str, float]]]) -> list[Growth]:
    """Steepest first. `profiles`: sequence length -> (batch, bytes by component).

    Components below SMALLEST_SHARE_PERCENT at the longest sequence are left out; none where there
    are fewer than two lengths.
    """
    lengths = sorted(profiles)
    if len(lengths) < 2:
        return []
    (short_batch, short), (long_batch, long) = profiles[lengths[0]], profiles[lengths[-1]]
    whole = sum(long.values())
    stretch = math.log(lengths[-1] / lengths[0])
    found = []
    for name, size in long.items():
        share = 100 * size / whole if whole else 0.0
        if share >= SMALLEST_SHARE_PERCENT and short.get(name, 0) > 0:
            growth = (size / long_batch) / (short[name] / short_batch)
            found.append(Growth(name, math.log(growth) / stretch, share))
    return sorted(found, key=lambda g: (-round(g.exponent, 3), -g.share_percent))


def intensity_class(intensity: float | None) -> dict[str, Verdict]:
    """Memory-bound, compute-bound or mixed in FLOPs a byte; one holds."""
    unit = "FLOPS/byte"
    return {
        "Memory-bound (low arithmetic intensity, <10 FLOPS/byte)": within(intensity, 0, 10, unit),
        "Compute-bound (high arithmetic intensity, >100 FLOPS/byte)": above(intensity, 100, unit),
        "Mixed (moderate arithmetic intensity, 10-100 FLOPS/byte)": mixed(intensity, unit),
    }


def mixed(intensity: float | None, unit: str) -> Verdict:
    """From 10 to 100, both included."""
    rule = f"rule: from 10 to 100 {unit}"
    if intensity is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(10 <= intensity <= 100, f"{number(intensity, unit)}; {rule}")


def target_verdicts(targets: Mapping[str, float]) -> dict[str, Verdict]:
    """Which of the four targets holds most memory; one holds."""
    amounts = {name: size / 2**20 for name, size in targets.items()}
    text = "part of the peak, or what is held beyond it,"
    return {name: is_largest(amounts, name, text, "MB") for name in amounts}
