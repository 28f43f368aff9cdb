"""The search for the longest sequence that fits, against a made-up formula."""

import dataclasses

import pytest

from tinyllama_tools.study.size_predictions import (
    CONFIRMED_SHARE,
    LONGEST,
    ModelQuestion,
    Prediction,
    Question,
    between,
    find_target,
    longest_accepted,
    time_factor,
)

FREE = 10e9


def prediction(seq: int, free: float = FREE) -> Prediction:
    """Memory with a quadratic part, FLOPs nearly linear."""
    peak = 50e6 + 8 * (70e3 * seq + 300 * seq**2)
    flops = 1e9 * seq * (1 + seq / 4096)
    refusal = "" if peak <= free else "too much"
    return Prediction("custom", "baseline", "f32", 8, seq, 1, flops, 1e6 * seq, peak, refusal)


class Played:
    """Answers questions and counts them."""

    def __init__(self, free: float = FREE) -> None:
        self.free, self.questions = free, 0

    def __call__(self, question: Question) -> list[Prediction]:
        self.questions += 1
        assert isinstance(question, ModelQuestion)
        assert "--n-layers=2" in question.options
        assert len(question.seq) <= 20
        return [prediction(seq, self.free) for seq in question.seq]


QUESTION = ModelQuestion(sizes=("custom",), batch=(8,), seq=(512,), model=("--n-layers=2",))


def longest_by_trial(limit: float) -> int:
    return max(s for s in range(2, 4000) if prediction(s).peak_memory_bytes <= limit)


def test_it_is_found_to_the_token_in_few_questions() -> None:
    played = Played()
    known = (prediction(512), 0.5)
    target = find_target(played, QUESTION, known, most_seconds=1e9)
    assert target.fitting is not None
    assert target.fitting.seq == longest_by_trial(FREE)
    assert target.confirmable is not None
    assert target.confirmable.seq == longest_by_trial(
        CONFIRMED_SHARE * target.fitting.peak_memory_bytes
    )
    assert target.held_back_by == "memory"
    assert played.questions < 15


def test_time_holds_the_confirmation_back() -> None:
    known = (prediction(512), 0.5)
    target = find_target(Played(), QUESTION, known, most_seconds=2.0)
    assert target.held_back_by == "time"
    assert target.confirmable is not None
    assert target.confirmable_seconds is not None
    assert target.confirmable_seconds <= 2.0
    longer = prediction(target.confirmable.seq + 1)
    assert 0.5 * time_factor(longer, known[0]) > 2.0
    assert target.fitting is not None
    assert target.fitting.seq > target.confirmable.seq


def test_nothing_fits() -> None:
    target = find_target(Played(free=1e6), QUESTION, (prediction(512), 0.5), 60)
    assert target.fitting is None
    assert target.confirmable is None
    assert target.held_back_by


def test_everything_fits() -> None:
    best = longest_accepted(
        lambda lengths: [prediction(s, 1e30) for s in lengths], lambda _: True, 512
    )
    assert best is not None
    assert best.seq == LONGEST


@pytest.mark.parametrize(("low", "high"), [(2, 3), (2, 4), (100, 117), (100, 118), (1, 2**20)])
def test_between_stays_inside_and_ends(low: int, high: int) -> None:
    found = between(low, high)
    assert all(low < seq < high for seq in found)
    assert bool(found) == (high - low > 1)
    assert len(found) <= 16


def test_the_time_follows_what_grows_fastest() -> None:
    short, long = prediction(512), prediction(2048)
    by_memory = long.peak_memory_bytes / short.peak_memory_bytes
    assert time_factor(long, short) == pytest.approx(by_memory)
    slow = dataclasses.replace(long, step_flops=100 * short.step_flops)
    assert time_factor(slow, short) == pytest.approx(100)
