"""The longest sequence that fits, and the longest that one step can confirm in the time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from fake_training import step_cost
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.models.size_predictions import (
    CONFIRMED_SHARE,
    LONGEST,
    find_target,
    longest_accepted,
    time_factor,
)

FREE = 10e9


def cost(seq: int, free: float = FREE) -> CaseCost:
    """Memory with a quadratic part."""
    return step_cost("tiny", 8, seq, free_bytes=free)


def test_the_longest_sequence_is_found_to_the_token_in_few_questions() -> None:
    questions = []

    def ask(lengths: Sequence[int], free: float = FREE) -> list[CaseCost]:
        questions.append(lengths)
        assert len(lengths) <= 20
        return [cost(seq, free) for seq in lengths]

    known = cost(512)
    target = find_target(ask, known, 0.5, most_seconds=1e9)
    assert target.fitting is not None and target.confirmable is not None
    limits = (FREE, CONFIRMED_SHARE * target.fitting.predicted_memory_bytes)
    assert (target.fitting.name.seq, target.confirmable.name.seq) == tuple(
        max(s for s in range(2, 8000) if cost(s).predicted_memory_bytes <= limit)
        for limit in limits
    )
    assert target.held_back_by == "memory"
    assert len(questions) < 12
    # time holds it back
    in_time = find_target(ask, known, 0.5, most_seconds=2.0)
    assert in_time.held_back_by == "time" and in_time.fitting == target.fitting
    assert in_time.confirmable is not None and in_time.confirmable_seconds is not None
    assert in_time.confirmable_seconds <= 2.0
    assert 0.5 * time_factor(cost(in_time.confirmable.name.seq + 1), known) > 2.0
    # nothing fits, or everything does
    nothing = find_target(lambda lengths: ask(lengths, 1e6), known, 0.5, 60)
    assert (nothing.fitting, nothing.confirmable) == (None, None) and nothing.held_back_by
    best = longest_accepted(lambda lengths: ask(lengths, 1e30), lambda _: True, 512)
    assert best is not None and best.name.seq == LONGEST


def test_the_time_follows_what_grows_fastest() -> None:
    known, long = cost(512), cost(2048)
    by_memory = long.predicted_memory_bytes / known.predicted_memory_bytes
    assert time_factor(long, known) == pytest.approx(by_memory)
    slow = dataclasses.replace(long, model_flops=100 * known.model_flops)
    assert time_factor(slow, known) == pytest.approx(100)
