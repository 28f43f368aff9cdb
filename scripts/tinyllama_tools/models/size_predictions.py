"""Costs of steps that the suite is asked for, and the longest sequence that fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.programs import CaseCost

# The costs of the cases that these options of tiny_llama_bench name: ask_costs() of a program.
Predictor = Callable[[Sequence[str]], list[CaseCost]]


def step_options(device: str, **axes: str) -> list[str]:
    """Of tiny_llama_bench, naming training steps: sizes, dtypes, variants, batch, seq, as text. Of
    an axis that is left out or empty each size's own is meant."""
    given = [f"--{name}={values}" for name, values in axes.items() if values]
    return [f"--device={device}", f"--components={STEP}", *given]


# What tiny_llama_bench takes at most, as batch or as sequence.
LONGEST, SHORTEST = 2**20, 2
VALUES_A_QUESTION = 16
# An allocator's rounding, a BLAS's scratch memory and the program itself need room of their own.
CONFIRMED_SHARE = 0.9
Ask = Callable[[Sequence[int]], list[CaseCost]]


@dataclass(frozen=True)
class Target:
    """The lengths found. `fitting`: the longest that fits; `confirmable`: the longest that is safe
    to run, at most CONFIRMED_SHARE of that memory and within the time; None where there is none, or
    nothing was asked. `held_back_by`: memory or time, or why there is none."""

    held_back_by: str
    fitting: CaseCost | None = None
    confirmable: CaseCost | None = None
    confirmable_seconds: float | None = None


def longest_accepted(ask: Ask, accept: Callable[[CaseCost], bool], first: int) -> CaseCost | None:
    """The longest accepted sequence, to the token; None where even length 2 is not.

    `accept` must hold up to some length and not beyond it. `first`: where to begin looking.
    """
    lengths = {SHORTEST, *(min(first * 2**i, LONGEST) for i in range(VALUES_A_QUESTION))}
    best, accepted, refused = None, SHORTEST - 1, LONGEST + 1
    while lengths:
        for found in sorted(ask(sorted(lengths)), key=lambda one: one.name.seq):
            if not accept(found):
                refused = found.name.seq
                break
            best, accepted = found, found.name.seq
        # values that divide the open range between them
        width = refused - accepted
        parts = min(VALUES_A_QUESTION + 1, width)
        lengths = {accepted + width * i // parts for i in range(1, parts)} - {accepted, refused}
    return best


def time_factor(long: CaseCost, known: CaseCost) -> float:
    """How many times longer than a known step: the fastest growing of its FLOPs, bytes and memory.

    Long sequences spend their time in the scores, which count in memory more than in FLOPs.
    """
    figures = ("model_flops", "bytes", "predicted_memory_bytes")
    return max(getattr(long, of) / getattr(known, of) for of in figures)


def find_target(ask: Ask, known: CaseCost, seconds: float, most_seconds: float) -> Target:
    """What fits and what can be confirmed by one step, from a step of `known` costs that took
    `seconds`."""
    fitting = longest_accepted(ask, lambda found: found.fits, known.name.seq)
    if fitting is None:
        return Target("not even two tokens fit")
    room = CONFIRMED_SHARE * fitting.predicted_memory_bytes

    def is_safe(found: CaseCost) -> bool:
        return found.fits and found.predicted_memory_bytes <= room

    def is_in_time(found: CaseCost) -> bool:
        return is_safe(found) and seconds * time_factor(found, known) <= most_seconds

    longest = longest_accepted(ask, is_in_time, known.name.seq)
    if longest is None:
        return Target("not even two tokens fit into the time", fitting)
    longer = ask([longest.name.seq + 1]) if longest.name.seq < LONGEST else []
    held_back = "time" if any(map(is_safe, longer)) else "memory"
    return Target(held_back, fitting, longest, seconds * time_factor(longest, known))
