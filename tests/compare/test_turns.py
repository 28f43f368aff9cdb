"""Ratios of what ran in turns, and the interval of a median."""

from __future__ import annotations

import json
import random
import statistics

import pytest

from tinyllama_tools.stats.rank_tests import Interval, Ratio, median_interval, ratio_of_turns


def test_ratio_is_the_median_of_neighbours_ratios_not_the_ratio_of_medians() -> None:
    # the machine became twice as slow in the middle; each turn says 0.5
    ratio = ratio_of_turns([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert ratio.median == 0.5
    assert ratio.interval == Interval(0.5, 0.5, 0.75)
    assert ratio.of_each_turn == (0.5, 0.5, 0.5)
    few = ratio_of_turns([1.0, 1.2, 1.1], [1.0, 1.0, 1.0])
    assert few.text() == "1.10 (1.00 to 1.20 at 75 %)"
    assert ratio_of_turns([1.1] * 6, [1.0] * 6).text() == "1.10 (1.10 to 1.10)"
    one = ratio_of_turns([3.0], [2.0])
    assert (one, one.text()) == (Ratio(1.5, None, 1, (1.5,)), "1.50")
    for made in (one, few):
        assert Ratio.from_json(json.loads(json.dumps(made.as_json()))) == made
    assert Ratio.from_json(None) is None


@pytest.mark.parametrize(
    ("count", "left_out", "confidence"),
    # the tables of the sign test; n = 20: P(X <= 5) = 0.0207
    [(2, 0, 0.5), (5, 0, 0.9375), (6, 0, 0.96875), (9, 1, 0.9609375), (20, 5, 0.95861)],
)
def test_interval_is_between_the_order_statistics_of_the_sign_test(
    count: int, left_out: int, confidence: float
) -> None:
    values = [float(i) for i in range(count)]
    random.Random(1).shuffle(values)
    interval = median_interval(values)
    assert interval is not None
    assert (interval.low, interval.high) == (left_out, count - 1 - left_out)
    assert interval.confidence == pytest.approx(confidence, abs=1e-5)


@pytest.mark.parametrize("count", [5, 9, 12])
def test_interval_holds_the_true_median_as_often_as_it_says(count: int) -> None:
    draw = random.Random(7)
    held = []
    for _ in range(4000):
        interval = median_interval([draw.lognormvariate(0.0, 0.3) for _ in range(count)])
        assert interval is not None
        held.append(interval.low <= 1.0 <= interval.high)
    assert statistics.mean(held) == pytest.approx(interval.confidence, abs=0.015)


def test_what_is_no_pair_of_times_is_refused() -> None:
    for a, b, named in (
        ([], [], "0 turns against 0"),
        ([1.0], [1.0, 2.0], "1 turns against 2"),
        ([1.0], [0.0], "0.0: must be a positive time"),
    ):
        with pytest.raises(ValueError, match=named):
            ratio_of_turns(a, b)
