"""Rank tests of paired and of unpaired samples against scipy and enumeration; verdicts on files."""

from __future__ import annotations

import math
import time
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from scipy import stats

from tinyllama_tools.stats.rank_tests import (
    Array,
    critical_value,
    differences,
    hodges_lehmann,
    holm_adjusted,
    interval_ends,
    middle,
    p_values,
    rank_sum_p_value,
    rank_sum_tail,
    signed_rank_tail,
    standard_errors,
    walsh_averages,
)
from tinyllama_tools.stats.verdicts import Outcome, fewest_files, judge_unpaired, judge_with_profile

SLOWER, FASTER, SAME, UNCLEAR = Outcome.SLOWER, Outcome.FASTER, Outcome.SAME, Outcome.UNCLEAR


def signed_rank_p(values: Array | list[float]) -> float:
    return float(p_values(np.array([values], dtype=float))[0])


def paired_interval(values: Array | list[float], confidence: float) -> tuple[float, float] | None:
    averages, tail = walsh_averages(np.array([values])), signed_rank_tail(len(values))
    ends = interval_ends(averages, tail, confidence)
    return ends and (float(ends[0][0]), float(ends[1][0]))


def p_value_by_enumeration(values: list[float]) -> float:
    """All sign patterns, zeros ranked and then left out (Pratt)."""
    x = np.array(values)
    ranks = stats.rankdata(np.abs(x))
    found, kept = ranks[x > 0].sum(), ranks[x != 0]
    sums = np.array([np.dot(signs, kept) for signs in product((0, 1), repeat=kept.size)])
    return min(1.0, 2 * min(np.mean(sums <= found), np.mean(sums >= found)))


@pytest.mark.parametrize("count", [3, 8, 17, 25, 50])
def test_paired_p_value_is_scipys_exact_one(count: int) -> None:
    rng = np.random.default_rng(count)
    rows = np.stack([rng.normal(shift, 1, count) for shift in (0.0, 0.3, -1.0)])
    expected = [stats.wilcoxon(row, method="exact").pvalue for row in rows]
    assert p_values(rows) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "values",
    [
        [0.5, -0.5, 1.0, 2.0, 2.0, -3.0],
        [0.0, 0.0, 1.0, -2.0, 3.0, 4.0],
        [1.0] * 9,
        [0.0, 1.0, 1.0, 1.0, -1.0, 2.0, 2.0, 5.0],
        [0.0, 0.0, 0.0],
    ],
)
def test_p_value_with_ties_and_zeros_is_that_of_all_sign_patterns(values: list[float]) -> None:
    assert signed_rank_p(values) == pytest.approx(p_value_by_enumeration(values), rel=1e-12)
    # a row with ties does not touch one without
    row = [1.0 + i * 1.01**i for i in range(len(values))]
    assert p_values(np.array([values, row])).tolist() == [signed_rank_p(values), signed_rank_p(row)]


@pytest.mark.parametrize("count", [17, 60, 200])
def test_smallest_p_value_keeps_all_its_digits(count: int) -> None:
    for same_sign in (np.arange(1.0, count + 1), np.ones(count)):
        assert signed_rank_p(same_sign) == 2.0 ** (1 - count)


def test_critical_values_are_those_of_the_tables() -> None:
    # Wilcoxon's published table, two-sided 5 % and 1 %
    table = {(6, 0.05): 0, (10, 0.05): 8, (15, 0.05): 25, (20, 0.05): 52, (20, 0.01): 37}
    for (count, two_sided), expected in table.items():
        assert critical_value(signed_rank_tail(count), two_sided / 2) == expected
    assert critical_value(signed_rank_tail(5), 0.025) == -1
    # Mann and Whitney's, two-sided 5 %
    for base, new, expected in ((4, 4, 0), (8, 8, 13), (5, 10, 8)):
        assert critical_value(rank_sum_tail(base, new), 0.025) == expected


@pytest.mark.parametrize("count", [1, 2, 7, 10])
def test_estimate_is_the_median_of_all_means_of_two(count: int) -> None:
    values = np.random.default_rng(count).normal(2, 1, count).tolist()
    averages = [(a + b) / 2 for a, b in combinations_with_replacement(values, 2)]
    assert hodges_lehmann(values) == pytest.approx(float(np.median(averages)))


def test_paired_interval_holds_exactly_the_locations_that_the_test_does_not_reject() -> None:
    values = np.random.default_rng(5).normal(0.5, 1, 11)
    for confidence in (0.8, 0.95, 0.99):
        low, high = paired_interval(values, confidence) or (np.nan, np.nan)
        for inside in (low + 1e-9, high - 1e-9):
            assert signed_rank_p(values - inside) > 1 - confidence
        for outside in (low - 1e-9, high + 1e-9):
            assert signed_rank_p(values - outside) <= 1 - confidence
    assert paired_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.95) is None
    assert paired_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.95) == (1.0, 6.0)


def test_interval_covers_as_often_as_it_says() -> None:
    rows, tail = np.random.default_rng(11).standard_t(3, (4000, 15)), signed_rank_tail(15)
    low, high = interval_ends(walsh_averages(rows), tail, 0.9)
    covered = int(np.sum((low <= 0) & (high >= 0)))
    # the level of the test is a little below 10 % for 15 values
    true_confidence = 1 - 2 * tail[critical_value(tail, 0.05)]
    assert stats.binomtest(covered, 4000, true_confidence).pvalue > 1e-3


@pytest.mark.parametrize("count", [8, 20, 40])
def test_standard_error_is_that_of_the_estimate_and_bears_wild_values(count: int) -> None:
    rows = np.random.default_rng(count).normal(0, 1, (4000, count))
    averages, tail = walsh_averages(rows), signed_rank_tail(count)
    errors = standard_errors(averages, tail, count - 1)
    assert np.mean(errors) == pytest.approx(np.std(middle(averages)), rel=0.08)
    wild = rows[:50].copy()
    wild[:, : count // 15] = 1e6
    assert np.all(standard_errors(walsh_averages(wild), tail, count - 1) < 2.5 * errors[:50])


def test_too_many_values_for_an_exact_test_are_refused() -> None:
    with pytest.raises(ValueError, match="1001 values: at most 1000"):
        signed_rank_tail(1001)


@pytest.mark.parametrize(("base", "new"), [(3, 3), (5, 9), (10, 10), (14, 6)])
def test_unpaired_p_value_is_scipys_exact_one(base: int, new: int) -> None:
    rng = np.random.default_rng(base)
    for shift in (0.0, 0.8, -2.0):
        a, b = rng.normal(0, 1, base), rng.normal(shift, 1, new)
        expected = stats.mannwhitneyu(b, a, method="exact").pvalue
        assert rank_sum_p_value(a, b) == pytest.approx(expected, rel=1e-12)


def test_unpaired_p_value_with_ties_is_that_of_all_divisions() -> None:
    a, b = np.array([1.0, 2.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0, 4.0, 5.0])
    ranks = stats.rankdata(np.concatenate([a, b]))
    every_division = stats.permutation_test(
        (ranks[:4], ranks[4:]),
        lambda _, chosen: float(chosen.sum()),
        n_resamples=math.inf,
        alternative="two-sided",
        vectorized=False,
    )
    assert rank_sum_p_value(a, b) == pytest.approx(every_division.pvalue, rel=1e-12)


def test_unpaired_interval_holds_exactly_the_shifts_that_the_test_does_not_reject() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(0, 1, 8), rng.normal(1, 1, 7)
    ends = interval_ends(differences(a[np.newaxis], b[np.newaxis]), rank_sum_tail(8, 7), 0.95)
    low, high = (float(end[0]) for end in ends or ())
    for inside in (low + 1e-9, high - 1e-9):
        assert rank_sum_p_value(a, b - inside) > 0.05
    for outside in (low - 1e-9, high + 1e-9):
        assert rank_sum_p_value(a, b - outside) <= 0.05


def test_holm_by_hand() -> None:
    # 4 x 0.005, 3 x 0.01, 2 x 0.03, and 1 x 0.04, which cannot be below the one before
    found = holm_adjusted(np.array([0.01, 0.04, 0.03, 0.005]))
    assert found == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # cases without a p-value count too
    assert holm_adjusted(np.array([0.01, 0.02]), 10) == pytest.approx([0.1, 0.18])
    assert holm_adjusted(np.array([0.5, 0.2]), 4) == pytest.approx([1.0, 0.8])
    with pytest.raises(ValueError, match="a family of 1"):
        holm_adjusted(np.array([0.5, 0.2]), 1)


def test_fewest_files_by_hand() -> None:
    # 2 / C(20, 10) = 1.08e-5 <= 1e-3 / 40 < 2 / C(18, 9) = 4.1e-5
    assert fewest_files(40, 1e-3) == 10
    # for `same` an interval of 95 % is needed however loose alpha is
    assert fewest_files(1, 0.05) == fewest_files(1, 0.5) == 4


def _files(center: float, scatter: float, count: int, seed: int) -> list[float]:
    return (center * np.random.default_rng(seed).lognormal(0, scatter, count)).tolist()


def test_verdicts_of_a_family_of_files() -> None:
    cases = {
        "slower": (_files(1, 0.01, 12, 1), _files(1.2, 0.01, 12, 2)),
        "faster": (_files(1.2, 0.01, 12, 3), _files(1, 0.01, 12, 4)),
        "same": (_files(1, 0.002, 12, 5), _files(1, 0.002, 12, 6)),
        "unclear": (_files(1, 0.1, 12, 7), _files(1, 0.1, 12, 8)),
    }
    found = judge_unpaired(cases, alpha=1e-3, margin=0.03)
    assert [judgement.outcome.value for judgement in found.values()] == list(cases)
    slower = found["slower"]
    assert slower.evidence.estimate == pytest.approx(math.log(1.2), abs=0.01)
    assert slower.evidence.low < math.log(1.2) < slower.evidence.high
    assert slower.adjusted_p_value == pytest.approx(4 * 2 / math.comb(24, 12))
    unclear = found["unclear"].evidence
    assert unclear.smallest_difference > 0.1
    assert unclear.blocks_needed > unclear.blocks == 12
    back = judge_unpaired({n: (new, base) for n, (base, new) in cases.items()})
    assert back["slower"].outcome is FASTER
    assert back["slower"].evidence.low == pytest.approx(-slower.evidence.high)
    assert back["slower"].adjusted_p_value == pytest.approx(slower.adjusted_p_value)


def test_too_few_files_are_unclear_and_say_how_many_it_takes() -> None:
    found = judge_unpaired({"a": ([1.0, 1.01, 1.02], [2.0, 2.01, 2.02])}, alpha=1e-3, margin=0.03)
    evidence = found["a"].evidence
    assert found["a"].outcome is UNCLEAR
    assert (evidence.low, evidence.high) == (-math.inf, math.inf)
    assert evidence.smallest_difference == math.inf
    assert evidence.blocks_needed >= fewest_files(1, 1e-3) == 7


def test_files_that_may_not_settle_it_are_not_asked_for() -> None:
    base = _files(1, 0.05, 12, 1)
    needed = [
        judge_unpaired({"a": (base, [s * change for s in base])}, alpha=1e-3, margin=0.5)["a"]
        .evidence.blocks_needed
        for change in (1.0, 1.49, 1.4999)
    ]  # fmt: skip
    assert needed[0] == 12
    assert needed == sorted(needed)
    assert needed[2] > 1000
    at_margin = judge_with_profile(1.0, math.exp(math.log1p(0.5)), 0.1, 20, margin=0.5)
    assert judge_with_profile(1.0, 1.0, 0.001, 20).evidence.blocks_needed == 1
    assert judge_with_profile(1.0, 1.2, 0.5, 20).evidence.blocks_needed > 10
    assert at_margin.outcome is UNCLEAR
    assert at_margin.evidence.distance > 1e6


@pytest.mark.parametrize(("base", "new"), [(2, 2), (3, 4), (10, 10), (25, 8)])
def test_scatter_is_that_between_files_of_one_side(base: int, new: int) -> None:
    rng = np.random.default_rng(6)
    cases = {
        str(i): (rng.lognormal(0, 0.1, base), rng.lognormal(0.5, 0.1, new)) for i in range(300)
    }
    found = [judgement.evidence.scatter for judgement in judge_unpaired(cases).values()]
    assert math.sqrt(np.mean(np.square(found))) == pytest.approx(0.1, rel=0.1)


def test_smallest_difference_is_found_in_95_percent_of_tries() -> None:
    files, scatter = 12, 0.03
    sides = (_files(1, scatter, files, 1), _files(1, scatter, files, 2))
    promised = judge_unpaired({"a": sides}, alpha=0.01, margin=0.03)["a"].evidence
    # the promise is for the scatter that those files showed
    rng = np.random.default_rng(9)
    found = 0
    for _ in range(300):
        base, new = rng.lognormal(0, promised.scatter, (2, files))
        slowed = (1 + promised.smallest_difference) * new
        judged = judge_unpaired({"a": (base, slowed)}, alpha=0.01, margin=0.03)["a"]
        found += judged.outcome is SLOWER
    assert stats.binomtest(found, 300, 0.95).pvalue > 1e-3


def test_false_alarms_between_files_stay_below_alpha() -> None:
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(400):
        cases = {str(i): tuple(rng.lognormal(0, 0.1, (2, 8))) for i in range(5)}
        found = judge_unpaired(cases, alpha=0.1, margin=1e-9)
        wrong += any(j.outcome in {SLOWER, FASTER} for j in found.values())
    assert stats.binomtest(wrong, 400).proportion_ci(0.9, "exact").high <= 0.1
    assert wrong > 0


def test_profile_gives_students_p_value() -> None:
    found = judge_with_profile(1.0, 1.2, 0.03, 20, cases=3, alpha=0.01, margin=0.03)
    statistic = math.log(1.2) / (math.sqrt(2) * 0.03)
    expected = 2 * stats.t.sf(statistic, 20)
    assert found.evidence.p_value == pytest.approx(expected)
    assert found.adjusted_p_value == pytest.approx(3 * expected)
    low, high = stats.t.interval(0.95, 20, math.log(1.2), math.sqrt(2) * 0.03)
    assert (found.evidence.low, found.evidence.high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("new", "scatter", "degrees", "expected"),
    [
        (1.2, 0.01, 30, SLOWER),
        (1 / 1.2, 0.01, 30, FASTER),
        (1.0, 0.005, 30, SAME),
        (1.02, 0.0001, 30, SAME),
        (1.2, 0.1, 30, UNCLEAR),
        # a scatter that hardly anything is known of shows nothing, even where it is a wide one
        (1.2, 0.01, 1, UNCLEAR),
        (1.2, 0.2, 1, UNCLEAR),
    ],
)
def test_profile_verdicts(new: float, scatter: float, degrees: int, expected: Outcome) -> None:
    assert judge_with_profile(1.0, new, scatter, degrees, cases=10).outcome is expected


def test_profile_keeps_its_level_with_an_estimated_scatter() -> None:
    rng = np.random.default_rng(8)
    wrong = 0
    for _ in range(2000):
        scatter = float(rng.normal(0, 0.05, 6).std(ddof=1))
        base, new = np.exp(rng.normal(0, 0.05, 2)).tolist()
        judged = judge_with_profile(base, new, scatter, 5, alpha=0.05, margin=1e-9)
        wrong += judged.outcome is not UNCLEAR
    assert stats.binomtest(wrong, 2000, 0.05).pvalue > 1e-3


def test_five_thousand_cases_are_judged_quickly() -> None:
    rng = np.random.default_rng(1)
    cases = {str(i): tuple(rng.lognormal(0, 0.05, (2, 5))) for i in range(5000)}
    started = time.process_time()
    judge_unpaired(cases)
    assert time.process_time() - started < 5
