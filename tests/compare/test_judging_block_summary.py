"""What is kept of a block: log-ratio, its standard error, and the levels of both sides."""

from __future__ import annotations

import math

import numpy as np
import pytest
from simulated_blocks import simulated_blocks

from tinyllama_tools.stats.looks import Block, summarise
from tinyllama_tools.stats.rank_tests import hodges_lehmann


def test_log_ratio_is_the_estimate_over_pairs() -> None:
    block = simulated_blocks("spikes", 1, pairs=15)[0]
    ratios = [math.log(new / base) for base, new in zip(block.base, block.new, strict=True)]
    found = summarise(block)
    assert found.log_ratio == pytest.approx(hodges_lehmann(ratios), abs=1e-12)
    assert found.base_seconds == pytest.approx(np.median(block.base))
    assert found.new_seconds == pytest.approx(np.median(block.new))


def test_drift_that_both_sides_share_is_not_seen() -> None:
    machine = np.exp(np.linspace(0, 1, 20))
    found = summarise(Block(tuple(0.01 * machine), tuple(0.0105 * machine)))
    assert found.log_ratio == pytest.approx(math.log(1.05), abs=1e-9)
    assert found.standard_error == pytest.approx(0, abs=1e-9)


def test_a_spike_hardly_moves_it() -> None:
    block = simulated_blocks("ties", 1, pairs=30)[0]
    spiked = Block(block.base, (block.new[0] * 1000, *block.new[1:]))
    before, after = summarise(block), summarise(spiked)
    assert abs(after.log_ratio - before.log_ratio) < before.standard_error
    assert after.standard_error < 1.5 * before.standard_error


@pytest.mark.parametrize("pairs", [2, 4, 8, 30])
def test_standard_error_is_that_of_the_log_ratio(pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    found = [
        summarise(Block(tuple(base), tuple(new)))
        for base, new in np.exp(rng.normal(0, 0.05, (400, 2, pairs))).tolist()
    ]
    expected = np.std([one.log_ratio for one in found])
    errors = np.array([one.standard_error for one in found])
    # a spread of two values is a poor one, but right on average of squares
    assert math.sqrt(np.mean(errors**2)) == pytest.approx(expected, rel=0.15)


def test_a_single_pair_says_nothing_about_its_error() -> None:
    found = summarise(Block((0.5,), (0.6,)))
    assert found.log_ratio == pytest.approx(math.log(1.2), abs=1e-12)
    assert found.standard_error == 0


def test_swapped_sides_change_the_sign_and_nothing_else() -> None:
    for block in simulated_blocks("heavy tails", 20, pairs=7):
        there, back = summarise(block), summarise(Block(block.new, block.base))
        assert back.log_ratio == -there.log_ratio
        assert back.standard_error == pytest.approx(there.standard_error, rel=1e-9)


def test_ties_stay_ties_in_another_unit() -> None:
    blocks = [Block((3.0, 7.0), (3.3, 7.0)), Block((6.0, 9.1), (6.6, 9.1))]
    for unit in (1.0, 1e-3, 0.7):
        first, second = (
            summarise(Block(tuple(unit * s for s in b.base), tuple(unit * s for s in b.new)))
            for b in blocks
        )
        assert first.log_ratio == second.log_ratio


@pytest.mark.parametrize("seconds", [0.0, -0.1, math.nan, math.inf])
def test_slices_that_are_no_times_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"{seconds} seconds in a slice"):
        summarise(Block((0.1, 0.1), (0.1, seconds)))
