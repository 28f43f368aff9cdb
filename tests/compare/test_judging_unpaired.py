"""Verdicts on stored files: rank-sum test against scipy, intervals, and one file a side."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scipy import stats

from tinyllama_tools.stats import rank_tests as rank_sum
from tinyllama_tools.stats.unpaired import judge_unpaired, judge_with_profile
from tinyllama_tools.stats.verdicts import Outcome, fewest_files


@pytest.mark.parametrize(("base", "new"), [(3, 3), (5, 9), (10, 10), (14, 6)])
def test_p_value_is_scipys_exact_one(base: int, new: int) -> None:
    rng = np.random.default_rng(base)
    for shift in (0.0, 0.8, -2.0):
        a, b = rng.normal(0, 1, base), rng.normal(shift, 1, new)
        expected = stats.mannwhitneyu(b, a, method="exact").pvalue
        assert rank_sum.p_value(a, b) == pytest.approx(expected, rel=1e-12)


def test_p_value_with_ties_is_that_of_all_divisions() -> None:
    a, b = np.array([1.0, 2.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0, 4.0, 5.0])
    ranks = stats.rankdata(np.concatenate([a, b]))

    def rank_total(_: np.ndarray, chosen: np.ndarray) -> float:
        return float(chosen.sum())

    every_division = stats.permutation_test(
        (ranks[:4], ranks[4:]), rank_total, n_resamples=math.inf, alternative="two-sided"
    )
    assert rank_sum.p_value(a, b) == pytest.approx(every_division.pvalue, rel=1e-12)


def test_interval_holds_exactly_the_shifts_that_the_test_does_not_reject() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(0, 1, 8), rng.normal(1, 1, 7)
    ordered = rank_sum.differences(a[np.newaxis], b[np.newaxis])[0]
    low, high = rank_sum.shift_interval_ends(ordered, 8, 7, 0.95) or (math.nan, math.nan)
    for inside in (low + 1e-9, high - 1e-9):
        assert rank_sum.p_value(a, b - inside) > 0.05
    for outside in (low - 1e-9, high + 1e-9):
        assert rank_sum.p_value(a, b - outside) <= 0.05


def test_fewest_files_by_hand() -> None:
    # 2 / C(20, 10) = 1.08e-5 <= 1e-3 / 40 < 2 / C(18, 9) = 4.1e-5
    assert fewest_files(40, 1e-3) == 10
    assert fewest_files(1, 0.05) == 4
    # for `same` an interval of 95 % is needed however loose alpha is
    assert fewest_files(1, 0.5) == 4


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
    assert {name: judgement.outcome.value for name, judgement in found.items()} == {
        name: name for name in cases
    }
    slower, faster = found["slower"], found["faster"]
    assert slower.evidence.estimate == pytest.approx(math.log(1.2), abs=0.01)
    assert slower.evidence.low < math.log(1.2) < slower.evidence.high
    assert slower.adjusted_p_value == pytest.approx(4 * 2 / math.comb(24, 12))
    assert faster.evidence.estimate < 0
    unclear = found["unclear"].evidence
    assert unclear.smallest_difference > 0.1
    assert unclear.blocks_needed > unclear.blocks == 12


def test_swapped_sides_swap_the_verdict() -> None:
    cases = {"a": (_files(1, 0.05, 11, 1), _files(1.4, 0.05, 10, 2)), "b": ([1.0] * 9, [1.1] * 9)}
    there = judge_unpaired(cases, alpha=0.01, margin=0.03)
    back = judge_unpaired({name: (b, a) for name, (a, b) in cases.items()}, alpha=0.01, margin=0.03)
    for name in cases:
        assert there[name].outcome is Outcome.SLOWER
        assert back[name].outcome is Outcome.FASTER
        assert back[name].adjusted_p_value == pytest.approx(there[name].adjusted_p_value)
        assert back[name].evidence.low == pytest.approx(-there[name].evidence.high)


def test_too_few_files_are_unclear_and_say_how_many_it_takes() -> None:
    found = judge_unpaired({"a": ([1.0, 1.01, 1.02], [2.0, 2.01, 2.02])}, alpha=1e-3, margin=0.03)
    evidence = found["a"].evidence
    assert found["a"].outcome is Outcome.UNCLEAR
    assert (evidence.low, evidence.high) == (-math.inf, math.inf)
    assert evidence.smallest_difference == math.inf
    assert evidence.blocks_needed >= fewest_files(1, 1e-3) == 7


def test_files_that_may_not_settle_it_are_not_asked_for() -> None:
    base = _files(1, 0.05, 12, 1)
    found = {
        change: judge_unpaired(
            {"a": (base, [second * change for second in base])}, alpha=1e-3, margin=0.5
        )["a"].evidence
        for change in (1.0, 1.49, 1.4999)
    }
    assert found[1.0].blocks_needed == 12
    needed = [evidence.blocks_needed for evidence in found.values()]
    assert needed == sorted(needed)
    assert needed[2] > 1000
    at_margin = judge_with_profile(1.0, math.exp(math.log1p(0.5)), 0.1, 20, margin=0.5)
    assert judge_with_profile(1.0, 1.0, 0.001, 20).evidence.blocks_needed == 1
    assert judge_with_profile(1.0, 1.2, 0.5, 20).evidence.blocks_needed > 10
    assert at_margin.outcome is Outcome.UNCLEAR
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
    promised = judge_unpaired(
        {"a": (_files(1, scatter, files, 1), _files(1, scatter, files, 2))}, alpha=0.01, margin=0.03
    )["a"].evidence
    # the promise is for the scatter that those files showed
    rng = np.random.default_rng(9)
    found = 0
    for _ in range(300):
        base = rng.lognormal(0, promised.scatter, files)
        new = (1 + promised.smallest_difference) * rng.lognormal(0, promised.scatter, files)
        judged = judge_unpaired({"a": (base, new)}, alpha=0.01, margin=0.03)["a"]
        found += judged.outcome is Outcome.SLOWER
    assert stats.binomtest(found, 300, 0.95).pvalue > 1e-3


def test_false_alarms_between_files_stay_below_alpha() -> None:
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(400):
        cases = {str(i): tuple(rng.lognormal(0, 0.1, (2, 8))) for i in range(5)}
        found = judge_unpaired(cases, alpha=0.1, margin=1e-9)
        wrong += any(j.outcome in {Outcome.SLOWER, Outcome.FASTER} for j in found.values())
    assert stats.binomtest(wrong, 400).proportion_ci(0.9, "exact").high <= 0.1
    assert wrong > 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_seconds_that_are_none_are_refused_by_name(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"block/forward.*positive and finite"):
        judge_unpaired({"block/forward": ([1.0, seconds], [1.0, 1.0])}, alpha=0.01, margin=0.03)


def test_a_side_without_files_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        judge_unpaired({"a": ([1.0], [])}, alpha=0.01, margin=0.03)


def test_profile_gives_students_p_value() -> None:
    found = judge_with_profile(1.0, 1.2, 0.03, 20, cases=3, alpha=0.01, margin=0.03)
    statistic = math.log(1.2) / (math.sqrt(2) * 0.03)
    expected = 2 * stats.t.sf(statistic, 20)
    assert found.evidence.p_value == pytest.approx(expected)
    assert found.adjusted_p_value == pytest.approx(3 * expected)
    low, high = stats.t.interval(0.95, 20, math.log(1.2), math.sqrt(2) * 0.03)
    assert (found.evidence.low, found.evidence.high) == pytest.approx((low, high))
    assert found.outcome is Outcome.SLOWER


def test_profile_verdicts() -> None:
    def outcome(new: float, scatter: float, degrees: int = 30) -> Outcome:
        return judge_with_profile(1.0, new, scatter, degrees, cases=10).outcome

    assert outcome(1.2, 0.01) is Outcome.SLOWER
    assert outcome(1 / 1.2, 0.01) is Outcome.FASTER
    assert outcome(1.0, 0.005) is Outcome.SAME
    assert outcome(1.02, 0.0001) is Outcome.SAME
    assert outcome(1.2, 0.1) is Outcome.UNCLEAR
    # a scatter that hardly anything is known of shows nothing
    assert outcome(1.2, 0.01, degrees=1) is Outcome.UNCLEAR


def test_profile_keeps_its_level_with_an_estimated_scatter() -> None:
    rng = np.random.default_rng(8)
    wrong = 0
    for _ in range(2000):
        scatter = float(rng.normal(0, 0.05, 6).std(ddof=1))
        base, new = np.exp(rng.normal(0, 0.05, 2)).tolist()
        judged = judge_with_profile(base, new, scatter, 5, alpha=0.05, margin=1e-9)
        wrong += judged.outcome is not Outcome.UNCLEAR
    assert stats.binomtest(wrong, 2000, 0.05).pvalue > 1e-3


@pytest.mark.parametrize(("scatter", "degrees"), [(0.0, 5), (-1.0, 5), (0.1, 0), (math.nan, 5)])
def test_profiles_that_say_nothing_are_refused(scatter: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        judge_with_profile(1.0, 1.1, scatter, degrees)


def test_five_thousand_cases_are_judged_quickly() -> None:
    rng = np.random.default_rng(1)
    cases = {str(i): tuple(rng.lognormal(0, 0.05, (2, 5))) for i in range(5000)}
    started = time.process_time()
    judge_unpaired(cases)
    assert time.process_time() - started < 5
