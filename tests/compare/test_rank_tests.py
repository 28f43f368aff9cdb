"""Rank tests of paired and of unpaired samples, and attribution."""

from __future__ import annotations

import math
import time
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from scipy import stats
from signed_rank_of_one import signed_rank_p_value, walsh_interval
from simulated_blocks import summaries

from tinyllama_tools.stats import rank_tests as rank_sum
from tinyllama_tools.stats import rank_tests as signed_rank
from tinyllama_tools.stats.attribution import attribute
from tinyllama_tools.stats.looks import BlockSummary
from tinyllama_tools.stats.rank_tests import critical_sum, hodges_lehmann, lower_tail
from tinyllama_tools.stats.unpaired import judge_unpaired, judge_with_profile
from tinyllama_tools.stats.verdicts import Outcome, fewest_files

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


@pytest.mark.parametrize(("base", "new"), [(3, 3), (5, 9), (10, 10), (14, 6)])
def test_unpaired_p_value_is_scipys_exact_one(base: int, new: int) -> None:
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


BLOCKS = 25
# seconds of each part, and how often a step of 4 layers has it
PARTS = {"ffn": (0.010, 4), "attention": (0.008, 4), "loss": (0.020, 1), "optimizer": (0.006, 1)}
REST = 0.002
STEP = REST + sum(count * seconds for seconds, count in PARTS.values())


def part(name: str, slowdown: float, scatter: float = 0.01, blocks: int = BLOCKS) -> list:
    seconds, _ = PARTS[name]
    rng = np.random.default_rng([len(name), *name.encode()])
    ratios = rng.normal(math.log1p(slowdown), scatter, blocks)
    return summaries(ratios, base_seconds=seconds)


def step(added_seconds: float, scatter: float = 0.01, blocks: int = BLOCKS) -> list[BlockSummary]:
    ratios = np.random.default_rng(99).normal(math.log1p(added_seconds / STEP), scatter, blocks)
    return summaries(ratios, base_seconds=STEP)


def parts(**slowdowns: float) -> dict:
    return {
        name: (count, part(name, slowdowns.get(name, 0.0))) for name, (_, count) in PARTS.items()
    }


def test_the_part_that_was_slowed_is_the_culprit() -> None:
    found = attribute(step(4 * 0.010 * 0.15), parts(ffn=0.15))
    assert found.culprit == "ffn"
    first = found.parts[0]
    assert (first.case, first.count) == ("ffn", 4)
    assert first.seconds == pytest.approx(4 * 0.010 * 0.15, rel=0.1)
    assert found.seconds == pytest.approx(4 * 0.010 * 0.15, rel=0.2)
    assert first.low < 1 < first.high
    assert first.low > max(other.share for other in found.parts[1:])


def test_numbers_without_noise_are_exact() -> None:
    quiet = {
        "a": (2, summaries(np.full(8, math.log(1.5)), base_seconds=0.01)),
        "b": (1, summaries(np.full(8, math.log(0.9)), base_seconds=0.02)),
    }
    whole = summaries(np.full(8, math.log(1.1)), base_seconds=0.1)
    found = attribute(whole, quiet)
    assert found.seconds == pytest.approx(0.01)
    assert [p.case for p in found.parts] == ["a", "b"]
    assert [p.seconds for p in found.parts] == pytest.approx([0.01, -0.002])
    assert [p.share for p in found.parts] == pytest.approx([1.0, -0.2])
    assert found.parts[0].low == pytest.approx(1.0)
    assert found.parts[0].high == pytest.approx(1.0)
    assert found.unexplained == pytest.approx(0.2)
    assert found.culprit == "a"


def test_an_improvement_is_attributed_as_well() -> None:
    found = attribute(step(-4 * 0.008 * 0.2), parts(attention=-0.2))
    assert found.culprit == "attention"
    assert found.seconds < 0 < found.parts[0].share


def test_swapped_sides_leave_the_shares_as_they_are() -> None:
    def swapped(blocks: list[BlockSummary]) -> list[BlockSummary]:
        return [
            BlockSummary(-b.log_ratio, b.standard_error, b.new_seconds, b.base_seconds)
            for b in blocks
        ]

    whole, members = step(0.006), parts(ffn=0.15)
    there = attribute(whole, members)
    back = attribute(swapped(whole), {n: (c, swapped(b)) for n, (c, b) in members.items()})
    assert back.seconds == pytest.approx(-there.seconds)
    for one, other in zip(there.parts, back.parts, strict=True):
        assert other.share == pytest.approx(one.share)
        assert other.low == pytest.approx(one.low)


def test_two_parts_that_share_the_change_have_no_culprit() -> None:
    added = 4 * 0.010 * 0.1 + 4 * 0.008 * 0.125
    assert attribute(step(added), parts(ffn=0.1, attention=0.125)).culprit is None


def test_a_change_outside_all_parts_stays_unexplained() -> None:
    found = attribute(step(0.02, scatter=0.002), parts())
    assert found.culprit is None
    assert found.unexplained == pytest.approx(1, abs=0.2)


def drawn(seed: int, slowdown: float, added: float) -> str | None:
    """The culprit of a step that takes so much longer, its ffn being so much slower; noisy."""
    rng = np.random.default_rng([seed, 7])
    members = {
        name: (
            count,
            summaries(
                rng.normal(math.log1p(slowdown if name == "ffn" else 0.0), 0.05, BLOCKS),
                base_seconds=seconds,
            ),
        )
        for name, (seconds, count) in PARTS.items()
    }
    whole = summaries(rng.normal(math.log1p(added / STEP), 0.02, BLOCKS), base_seconds=STEP)
    return attribute(whole, members).culprit


def test_a_step_that_is_slow_in_no_part_blames_hardly_any() -> None:
    blamed = sum(drawn(seed, 0.0, 0.005) is not None for seed in range(60))
    assert blamed <= 1


def test_a_slow_part_is_still_blamed_amid_noise() -> None:
    found = [drawn(seed, 0.15, 4 * 0.010 * 0.15) for seed in range(50)]
    assert found.count("ffn") >= 45
    assert set(found) <= {"ffn", None}


def test_a_part_that_explains_less_than_half_is_no_culprit() -> None:
    quiet = {"a": (1, summaries(np.full(8, math.log(1.1)), base_seconds=0.01))}
    change = quiet["a"][1][0].new_seconds - 0.01
    for times, culprit in ((1.9, "a"), (2.1, None)):
        whole = summaries(np.full(8, math.log1p(times * change / 0.1)), base_seconds=0.1)
        assert attribute(whole, quiet).culprit == culprit


def test_the_more_parts_there_are_the_more_a_culprit_has_to_stand_out() -> None:
    # 2.4 standard errors: enough for one that was chosen beforehand, not for the largest of 21
    even = stats.norm.ppf((np.arange(BLOCKS) + 0.5) / BLOCKS)
    moved = {"moved": (1, summaries(0.024 + 0.05 * even, base_seconds=0.01))}
    still = {str(i): (1, summaries(np.zeros(BLOCKS), base_seconds=0.01)) for i in range(20)}
    whole = summaries(np.full(BLOCKS, math.log1p(0.0024)), base_seconds=0.1)
    assert attribute(whole, moved).culprit == "moved"
    assert attribute(whole, moved | still).culprit is None


def test_noise_has_no_culprit() -> None:
    """A whole that did not change can have any share, and none that stands out."""
    found = attribute(step(0.0, scatter=0.05), parts())
    assert found.culprit is None


def test_a_lone_part_whose_share_may_be_nothing_is_no_culprit() -> None:
    noisy = {"loss": (1, part("loss", 0.01, scatter=0.2))}
    found = attribute(step(0.006), noisy)
    assert found.parts[0].low < 0
    assert found.culprit is None


def test_share_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(3)
    tries, held = 80, 0
    for _ in range(tries):
        whole = summaries(rng.normal(math.log(1.10), 0.02, BLOCKS), base_seconds=0.1)
        moved = summaries(rng.normal(math.log(1.16), 0.02, BLOCKS), base_seconds=0.05)
        found = attribute(whole, {"moved": (1, moved)}).parts[0]
        held += found.low <= 0.8 <= found.high
    # the percentile bootstrap is a little too sure of 25 blocks; 90 % of 80 less three deviations
    assert held >= 64


def test_the_same_blocks_give_the_same_numbers() -> None:
    first, second = (attribute(step(0.006), parts(ffn=0.15)) for _ in range(2))
    assert first == second


def test_wholes_and_parts_may_have_different_numbers_of_blocks() -> None:
    members = {"ffn": (4, part("ffn", 0.15, blocks=17)), "loss": (1, part("loss", 0.0, blocks=40))}
    assert attribute(step(0.006, blocks=25), members).culprit == "ffn"


def test_no_parts_leave_all_unexplained() -> None:
    found = attribute(step(0.006), {})
    assert (found.parts, found.unexplained, found.culprit) == ((), 1, None)


def test_what_cannot_be_attributed_is_refused() -> None:
    with pytest.raises(ValueError, match="the whole has no blocks"):
        attribute([], parts())
    with pytest.raises(ValueError, match="ffn has no blocks"):
        attribute(step(0.01), {"ffn": (4, [])})
    with pytest.raises(ValueError, match="changed by 0 seconds"):
        attribute(summaries(np.zeros(9)), parts())
