"""The signed-rank test, estimate and interval against scipy and against brute force."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from scipy import stats
from signed_rank_of_one import signed_rank_p_value, walsh_interval

from tinyllama_tools.stats import rank_tests as signed_rank
from tinyllama_tools.stats.rank_tests import critical_sum, hodges_lehmann, lower_tail

TIED = [
    [0.5, -0.5, 1.0, 2.0, 2.0, -3.0],
    [0.0, 0.0, 1.0, -2.0, 3.0, 4.0],
    [1.0] * 9,
    [0.0, 1.0, 1.0, 1.0, -1.0, 2.0, 2.0, 5.0],
    [0.0, 0.0, 0.0],
]


def p_value_by_enumeration(values: list[float]) -> float:
    """All sign patterns, zeros ranked and then left out (Pratt)."""
    x = np.array(values)
    ranks = stats.rankdata(np.abs(x))
    found = ranks[x > 0].sum()
    kept = ranks[x != 0]
    sums = np.array([np.dot(signs, kept) for signs in product((0, 1), repeat=kept.size)])
    return min(1.0, 2 * min(np.mean(sums <= found), np.mean(sums >= found)))


def walsh_by_hand(values: list[float]) -> list[float]:
    return sorted((a + b) / 2 for a, b in combinations_with_replacement(values, 2))


@pytest.mark.parametrize("count", [3, 8, 17, 25, 50])
def test_p_value_is_scipys_exact_one(count: int) -> None:
    rng = np.random.default_rng(count)
    for shift in (0.0, 0.3, -1.0):
        values = rng.normal(shift, 1, count)
        expected = stats.wilcoxon(values, method="exact").pvalue
        assert signed_rank_p_value(values) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("values", TIED)
def test_p_value_with_ties_and_zeros_is_that_of_all_sign_patterns(values: list[float]) -> None:
    assert signed_rank_p_value(values) == pytest.approx(p_value_by_enumeration(values), rel=1e-12)


def test_smallest_p_value_keeps_all_its_digits() -> None:
    for count in (17, 60, 200):
        same_sign = np.arange(1.0, count + 1)
        assert signed_rank_p_value(same_sign) == 2.0 ** (1 - count)
        tied = np.ones(count)
        assert signed_rank_p_value(tied) == 2.0 ** (1 - count)


def test_rows_are_judged_each_by_itself() -> None:
    rows = np.array([[1.0, -2.0, 3.0, 4.5], [1.0, 1.0, -1.0, 0.0], [5.0, 6.0, 7.0, 8.0]])
    alone = [signed_rank_p_value(row) for row in rows]
    assert signed_rank.p_values(rows).tolist() == alone


def test_null_distribution_adds_up_to_1_and_is_symmetric() -> None:
    tail = lower_tail(12)
    assert tail[-1] == pytest.approx(1.0, rel=1e-12)
    assert tail[20] == pytest.approx(1 - tail[78 - 21], rel=1e-12)


def test_critical_sums_are_those_of_the_tables() -> None:
    # Wilcoxon's published table, two-sided 5 % and 1 %
    table = {(6, 0.05): 0, (10, 0.05): 8, (15, 0.05): 25, (20, 0.05): 52, (20, 0.01): 37}
    for (count, two_sided), expected in table.items():
        assert critical_sum(count, two_sided / 2) == expected
    assert critical_sum(5, 0.025) == -1


@pytest.mark.parametrize("count", [1, 2, 7, 10])
def test_estimate_is_the_median_of_all_means_of_two(count: int) -> None:
    values = np.random.default_rng(count).normal(2, 1, count).tolist()
    assert hodges_lehmann(values) == pytest.approx(float(np.median(walsh_by_hand(values))))


def test_interval_holds_exactly_the_locations_that_the_test_does_not_reject() -> None:
    values = np.random.default_rng(5).normal(0.5, 1, 11)
    for confidence in (0.8, 0.95, 0.99):
        low, high = walsh_interval(values.tolist(), confidence) or (np.nan, np.nan)
        for inside in (low + 1e-9, high - 1e-9):
            assert signed_rank_p_value(values - inside) > 1 - confidence
        for outside in (low - 1e-9, high + 1e-9):
            assert signed_rank_p_value(values - outside) <= 1 - confidence


def test_interval_is_refused_where_no_values_could_reach_the_confidence() -> None:
    assert walsh_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.95) is None
    assert walsh_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.95) == (1.0, 6.0)


def test_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    rows = rng.standard_t(3, (4000, 15))
    low, high = signed_rank.interval_ends(signed_rank.walsh_averages(rows), 15, 0.9)
    covered = int(np.sum((low <= 0) & (high >= 0)))
    # the level of the test is a little below 10 % for 15 values
    true_confidence = 1 - 2 * lower_tail(15)[critical_sum(15, 0.05)]
    assert stats.binomtest(covered, 4000, true_confidence).pvalue > 1e-3


@pytest.mark.parametrize("count", [8, 20, 40])
def test_standard_error_is_that_of_the_estimate(count: int) -> None:
    rows = np.random.default_rng(count).normal(0, 1, (4000, count))
    averages = signed_rank.walsh_averages(rows)
    errors = signed_rank.standard_errors(averages, count)
    assert np.mean(errors) == pytest.approx(np.std(signed_rank.middle(averages)), rel=0.08)


def test_standard_error_bears_wild_values() -> None:
    row = np.random.default_rng(2).normal(0, 1, (1, 30))
    wild = row.copy()
    wild[0, :2] = 1e6
    calm, shaken = (
        float(signed_rank.standard_errors(signed_rank.walsh_averages(x), 30)[0])
        for x in (row, wild)
    )
    assert shaken < 2 * calm


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_values_that_are_none_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one value, all of them finite"):
        hodges_lehmann(values)


def test_too_many_values_for_an_exact_test_are_refused() -> None:
    with pytest.raises(ValueError, match="1001 values: at most 1000"):
        lower_tail(1001)
