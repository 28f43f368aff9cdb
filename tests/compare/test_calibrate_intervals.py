"""Exact binomial bounds, against the tails that define them."""

from __future__ import annotations

import pytest
from scipy.stats import binom

from tinyllama_tools.calibrate.draws import Share, lower_bound, upper_bound


@pytest.mark.parametrize(("count", "trials"), [(0, 50), (1, 7), (4, 10_000), (19, 20)])
def test_at_the_upper_bound_so_few_have_a_chance_of_one_in_twenty(count: int, trials: int) -> None:
    bound = upper_bound(count, trials)
    assert binom.cdf(count, trials, bound) == pytest.approx(0.05)


@pytest.mark.parametrize(("count", "trials"), [(1, 7), (57, 100), (20, 20)])
def test_at_the_lower_bound_so_many_have_a_chance_of_one_in_twenty(count: int, trials: int) -> None:
    bound = lower_bound(count, trials)
    assert binom.sf(count - 1, trials, bound) == pytest.approx(0.05)


def test_four_of_ten_thousand_families_show_one_in_a_thousand_and_five_do_not() -> None:
    assert upper_bound(4, 10_000) <= 1e-3 < upper_bound(5, 10_000)


def test_ends() -> None:
    assert lower_bound(0, 9) == 0
    assert upper_bound(9, 9) == 1


def test_the_interval_leaves_half_of_five_percent_on_either_side() -> None:
    low, high = Share(30, 200).interval
    assert binom.cdf(30, 200, high) == pytest.approx(0.025)
    assert binom.sf(29, 200, low) == pytest.approx(0.025)
    assert low < Share(30, 200).value < high


@pytest.mark.parametrize(("count", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(count: int, trials: int) -> None:
    with pytest.raises(ValueError, match=f"{count} of {trials}"):
        Share(count, trials)


def test_impossible_confidence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        upper_bound(1, 2, 1.5)
