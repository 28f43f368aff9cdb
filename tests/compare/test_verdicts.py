"""Rank tests against scipy and enumeration; designs and power; verdicts on blocks and on files,
their error rates; attribution."""

import json
import math
from collections import Counter
from dataclasses import asdict, replace
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from scipy import stats

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.stats import rank_tests as ranks
from tinyllama_tools.stats.rank_tests import (
    ERROR,
    LOG_RATIO,
    Array,
    Interval,
    Ratio,
    hodges_lehmann,
    median_interval,
    p_values,
    rank_sum_p_value,
    ratio_of_turns,
    summarise,
)
from tinyllama_tools.stats.verdicts import (
    Design,
    Judgement,
    Outcome,
    attribute,
    fewest_blocks,
    fewest_files,
    judge_family,
    judge_unpaired,
    plan_design,
)

SLOWER, FASTER, SAME, UNCLEAR = Outcome.SLOWER, Outcome.FASTER, Outcome.SAME, Outcome.UNCLEAR


def test_paired_p_value_is_that_of_all_sign_patterns_with_all_its_digits() -> None:
    rows = np.random.default_rng(6).integers(-2, 4, (20, 7)).astype(float)
    # one without ties does not matter to the others
    rows[0] = np.arange(7) - 0.5
    for row, found in zip(rows, p_values(rows), strict=True):
        # zeros are ranked and then left out (Pratt)
        own = stats.rankdata(np.abs(row))
        sums = np.array(list(product((0, 1), repeat=7))) @ np.where(row == 0, 0, own)
        of_row = own[row > 0].sum()
        expected = min(1.0, 2 * min(np.mean(sums <= of_row), np.mean(sums >= of_row)))
        assert found == pytest.approx(expected, rel=1e-12)
    alike = np.stack([np.ones(50), np.arange(1.0, 51), np.zeros(50)])
    assert p_values(alike).tolist() == [2.0**-49, 2.0**-49, 1]
    with pytest.raises(ValueError, match="1001 values: at most 1000"):
        ranks.signed_rank_tail(1001)


def test_unpaired_p_value_is_scipys_exact_one() -> None:
    rng = np.random.default_rng(3)
    for base, new, shift in ((3, 3, 0.8), (5, 9, -2.0), (14, 6, 0.3)):
        a, b = rng.normal(0, 1, base), rng.normal(shift, 1, new)
        expected = stats.mannwhitneyu(b, a, method="exact").pvalue
        assert rank_sum_p_value(a, b) == pytest.approx(expected, rel=1e-12)
    # with ties, that of all divisions
    ranked = stats.rankdata([1, 2, 2, 3, 2, 3, 4, 4, 5])
    a, b = ranked[:4], ranked[4:]
    expected = stats.permutation_test((a, b), lambda _, chosen: chosen.sum(), n_resamples=math.inf)
    assert rank_sum_p_value(a, b) == pytest.approx(expected.pvalue, rel=1e-12)


def test_the_unpaired_interval_holds_exactly_the_shifts_that_the_test_does_not_reject() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.lognormal(0, 1, 8), rng.lognormal(1, 1, 7)
    found = judge_unpaired({"a": (a, b)})["a"]
    for inside in (found.low + 1e-9, found.high - 1e-9):
        assert rank_sum_p_value(np.log(a), np.log(b) - inside) > 0.05
    for outside in (found.low - 1e-9, found.high + 1e-9):
        assert rank_sum_p_value(np.log(a), np.log(b) - outside) <= 0.05
    assert found.estimate == pytest.approx(np.median(np.subtract.outer(np.log(b), np.log(a))))
    # of a family; of unequal sides, as many files a side as say as much; and of too few
    both = judge_unpaired({"a": (a, b), "same": (a, a), "few": (a[:3], b[:3])}, alpha=0.5)
    assert both["a"].adjusted_p_value == 3 * rank_sum_p_value(a, b)
    assert (both["a"].outcome, both["same"].outcome) == (SLOWER, UNCLEAR)
    assert both["few"].high == math.inf
    assert judge_unpaired({"a": (rng.lognormal(0, 0.1, 25), a)})["a"].blocks == 12


def test_a_block_is_the_estimate_over_its_pairs_whatever_the_machine_does_and_the_unit() -> None:
    base, new = np.exp(np.random.default_rng(1).normal(0, 0.1, (2, 15)))
    log_ratio, _, *medians = summarise(base.tolist(), new.tolist())
    assert log_ratio == pytest.approx(hodges_lehmann(np.log(new / base)), abs=1e-12)
    assert medians == [np.median(base), np.median(new)]
    # ties stay ties in another unit
    ties = [summarise([3 * unit, 7 * unit], [3.3 * unit, 7 * unit]) for unit in (1, 0.7, 1.3e-3)]
    assert len({of[LOG_RATIO] for of in ties}) == 1
    assert summarise([0.5], [0.6])[ERROR] == 0
    assert summarise([2**70], [2**71])[LOG_RATIO] == pytest.approx(math.log(2))


@pytest.mark.parametrize("pairs", [2, 8, 30])
def test_standard_error_is_that_of_the_log_ratio(pairs: int) -> None:
    base, new = np.exp(np.random.default_rng(pairs).normal(0, 0.05, (2, 400, pairs)))
    log_ratios, errors = ranks.summarise_pairs(base, new)
    # a spread of two values is a poor one, but right on average of squares
    assert math.sqrt(np.mean(errors**2)) == pytest.approx(np.std(log_ratios), rel=0.15)


# ---- designs and power


def test_designs_by_hand() -> None:
    # n blocks have 2^(1 - n) at best, and a quarter of alpha is spent:
    # 2^-18 = 3.8e-6 <= 2.5e-4 / 40 = 6.3e-6 < 2^-17
    assert fewest_blocks(40, 1e-3, 1) == 19
    # exactly at the level: 2^-9 = 2^-3 / (16 x 4)
    assert fewest_blocks(16, 0.5, 4) == 10
    # however loose alpha is, `same` needs an interval of 95 %: 2^-5 <= 0.05
    assert fewest_blocks(1, 0.5, 1) == 6
    # 2 / C(20, 10) = 1.08e-5 <= 1e-3 / 40 < 2 / C(18, 9) = 4.1e-5
    assert (fewest_files(40, 1e-3), fewest_files(1, 0.5)) == (10, 4)
    design = plan_design(9)
    # each the next whole number above 1.27 times the one before: 24.13, 31.75, 40.64, 52.07, 67.31
    assert design.looks == (19, 25, 32, 41, 53, 68)
    # a quarter of 1e-3, divided among 9 cases and 6 looks
    assert design.strictest_level == pytest.approx(2.5e-4 / 54)
    assert (design.correction, design.look_confidence) == (24, pytest.approx(1 - 0.05 / 6))
    with pytest.raises(BadInputError, match=r"20 looks: look \d+ would come after 1\d{3} blocks"):
        plan_design(9, looks=20)


# ---- blocks

DESIGN = plan_design(4, alpha=0.01, looks=3)
FIRST, _, LAST = DESIGN.looks


def noise(blocks: int, *, center: float = 0.0, scatter: float = 0.02, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(center, scatter, blocks)


def summaries(logs: Array, *, error: float = 1e-6, base: float = 0.01) -> Array:
    """Blocks of one case with exactly these log-ratios."""
    return np.array([(x, error, base, base * math.exp(x)) for x in logs])


def judged(values: Array, design: Design = DESIGN, error: float = 1e-6) -> Judgement:
    found = judge_family({"case": summaries(values, error=error)}, design)["case"]
    assert found is not None
    return found


# center and scatter of blocks
KINDS = [(0, 0.01), (0, 0.1), (0.02, 0.01), (0.05, 0.03), (0.05, 0.01), (-0.07, 0.01), (-0.07, 0.1)]


def look_by_hand(values: Array, error: float, confidence: float) -> tuple[float, ...]:
    """Estimate, ends and p-value."""
    count, ways = len(values), np.ones(1)
    for rank in range(1, count + 1):
        ways = np.convolve(ways, [1, *[0] * (rank - 1), 1])
    below = np.cumsum(ways) / 2.0**count
    means = sorted((a + b) / 2 for a, b in combinations_with_replacement(values.tolist(), 2))
    estimate, p_value = np.median(means), stats.wilcoxon(values, method="exact").pvalue
    left_out, usual = (sum(below <= (1 - of) / 2) - 1 for of in (confidence, 0.95))
    ends = np.array([means[left_out], means[-1 - left_out]])
    # by the width of the interval of 95 %, and by the pairs within the blocks
    scatter = (means[-1 - usual] - means[usual]) / -2 / stats.t.ppf(below[usual], count - 1)
    within = error * math.sqrt(math.pi / 3 / count)
    if within > scatter:
        ends = estimate + (ends - estimate) * within / scatter
        p_value = max(p_value, 2 * stats.t.sf(abs(estimate) / within, count - 1))
    return (estimate, *ends, p_value)


def test_judgements_are_those_of_plain_arithmetic_over_cases_looks_and_directions() -> None:
    random, words = np.random.default_rng(5), Counter()
    margin = math.log1p(DESIGN.margin)
    for _ in range(150):
        logs, errors = {}, {}
        for name in "abcd"[: random.integers(1, 5)]:
            center, scatter = random.choice(KINDS)
            # some turn round on the way
            turned = np.where(np.arange(LAST) < FIRST, 1, random.choice([1, 1, -2]))
            measured = random.integers(FIRST - 2, LAST + 1)
            logs[name] = (turned * random.normal(center, scatter, LAST))[:measured]
            errors[name] = random.choice([1e-6, 0.1])
        found = judge_family({n: summaries(logs[n], error=errors[n]) for n in logs}, DESIGN)
        expected = {}
        for name, values in logs.items():
            reached = [values[:n] for n in DESIGN.looks if n <= len(values)]
            looks = [look_by_hand(of, errors[name], 1 - 0.05 / 3) for of in reached]
            if looks:
                # 3 looks share a quarter of alpha; only what points as the last one counts
                same_way = [look[3] for look in looks if look[0] * looks[-1][0] > 0]
                expected[name] = (*looks[-1][:3], min(1.0, 12 * min(same_way)))
        assert {name for name, judgement in found.items() if judgement} == set(expected)
        highest = 0.0
        for rank, name in enumerate(sorted(expected, key=lambda n: expected[n][3])):
            judgement, (estimate, low, high, p_value) = found[name], expected[name]
            # Holm: cases without a verdict count too
            highest = max(highest, min(1.0, (4 - rank) * p_value))
            assert judgement.adjusted_p_value == pytest.approx(highest, rel=1e-9)
            ends = (judgement.estimate, judgement.low, judgement.high)
            assert ends == pytest.approx((estimate, low, high), abs=1e-12)
            if highest <= 0.01 and abs(estimate) > margin:
                word = SLOWER if estimate > 0 else FASTER
            else:
                word = SAME if max(high, -low) <= margin else UNCLEAR
            assert judgement.outcome is word
            assert judgement.blocks == max(n for n in DESIGN.looks if n <= len(logs[name]))
            words[word] += 1
    assert min(words[word] for word in (SLOWER, FASTER, SAME, UNCLEAR)) > 10


def test_blocks_that_agree_that_are_wild_and_that_say_nothing() -> None:
    # an estimate of nothing points nowhere
    even = judged(np.concatenate([np.full(FIRST, 0.1), np.full(LAST - FIRST, -0.1)]))
    assert (even.estimate, even.adjusted_p_value) == (0, 1)
    # one uncertain block does not make all of them uncertain
    blocks = summaries(noise(LAST, center=0.08))
    wild = blocks.copy()
    wild[0, ERROR] = 10.0
    assert judge_family({"case": wild}, DESIGN) == judge_family({"case": blocks}, DESIGN)
    # blocks that agree to the last digit are as sure as their pairs
    agreed = np.full(FIRST, 0.05)
    assert judged(agreed, error=0.0).outcome is SLOWER
    reach = stats.t.ppf(1 - 0.05 / 6, FIRST - 1) * 0.05 * math.sqrt(math.pi / 3 / FIRST)
    assert judged(agreed, error=0.05).high == pytest.approx(0.05 + reach)


def test_an_unclear_case_is_answered_when_its_distance_is_reached() -> None:
    """Within the margin, and beyond it; in nine of ten tries at least."""
    design = plan_design(DESIGN.cases, alpha=DESIGN.alpha, looks=6)
    for center, scatter in ((0.0, 0.04), (0.06, 0.06), (0.5, 0.3)):
        answered = []
        for seed in range(100):
            values = noise(design.looks[-1], center=center, scatter=scatter, seed=seed)
            first = judged(values[: design.looks[0]], design)
            needed = [look for look in design.looks[1:] if look >= first.distance]
            if first.outcome is UNCLEAR and needed:
                answered.append(judged(values[: needed[0]], design).outcome is not UNCLEAR)
        assert len(answered) > 20
        assert np.mean(answered) > 0.9


def test_same_is_wrong_in_no_more_than_5_percent() -> None:
    """A true difference of just the margin, and a scatter that puts intervals about its size."""
    # a family of many tells as much of `same`, which Holm's correction has no part in
    design, edge = replace(plan_design(1, alpha=0.05, looks=3), cases=500), math.log1p(0.03)
    logs = np.random.default_rng(2).normal(0, 0.012, (500, design.looks[-1]))

    def same(center: float) -> int:
        """Cases that any of the looks calls the same."""
        rows, found = np.stack([logs + center, np.full(logs.shape, 1e-6)], axis=-1), set()
        for look in design.looks:
            verdicts = judge_family(dict(enumerate(rows[:, :look])), design)
            found |= {case for case, of in verdicts.items() if of and of.outcome is SAME}
        return len(found)

    for wrong in (same(edge), same(-edge)):
        assert stats.binomtest(wrong, 500).proportion_ci(0.9, "exact").high <= 0.05
    assert same(0.0) > 450


# ---- attribution

BLOCKS = 25


def exact(ratio: float, base: float) -> Array:
    return summaries(np.full(8, math.log(ratio)), base=base)


def test_attribution_without_noise_is_exact() -> None:
    parts = {"b": (1, exact(0.9, 0.02)), "a": (2, exact(1.5, 0.01))}
    found = attribute(exact(1.1, 0.1), parts, ("c",))
    assert [p.case for p in found.parts] == ["a", "b"]
    assert [p.seconds for p in found.parts] == pytest.approx([0.01, -0.002])
    assert [p.share for p in found.parts] == pytest.approx([1.0, -0.2])
    assert (found.parts[0].low, found.parts[0].high) == pytest.approx((1.0, 1.0))
    assert found.unexplained == pytest.approx(0.2)
    assert (found.culprit, found.missing) == ("a", ("c",))
    nothing = attribute(exact(1.1, 0.1), {})
    assert (nothing.parts, nothing.unexplained, nothing.culprit) == ((), 1, None)
    # a culprit explains half, and not as much as another
    twice = {name: (1, exact(1.2, 0.04)) for name in "ab"}
    assert attribute(exact(1.16, 0.1), twice).culprit is None
    for times, culprit in ((1.9, "a"), (2.1, None)):
        whole = exact(1 + times * 0.01 * 0.1 / 0.1, 0.1)
        assert attribute(whole, {"a": (1, exact(1.1, 0.01))}).culprit == culprit


def test_a_culprit_stands_out_from_as_many_parts_as_there_are() -> None:
    # 2.4 standard errors: enough for one that was chosen beforehand, not for the largest of 21
    even = stats.norm.ppf((np.arange(BLOCKS) + 0.5) / BLOCKS)
    moved = {"moved": (1, summaries(0.024 + 0.05 * even, base=0.01))}
    still = {str(i): (1, exact(1.0, 0.01)) for i in range(20)}
    assert attribute(exact(1.0024, 0.1), moved).culprit == "moved"
    assert attribute(exact(1.0024, 0.1), moved | still).culprit is None


def test_share_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(80):
        whole = summaries(rng.normal(math.log(1.10), 0.02, BLOCKS), base=0.1)
        # wholes and parts need not have as many blocks
        moved = summaries(rng.normal(math.log(1.16), 0.02, BLOCKS + 3), base=0.05)
        found = attribute(whole, {"moved": (1, moved)}).parts[0]
        held += found.low <= 0.8 <= found.high
    # the percentile bootstrap is a little too sure of 25 blocks; 90 % of 80 less three deviations
    assert 64 <= held < 80


# ---- ratios of what ran in turns


def test_ratio_is_the_median_of_neighbours_ratios_not_the_ratio_of_medians() -> None:
    # the machine became twice as slow in the middle; each turn says 0.5
    ratio = ratio_of_turns([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert ratio == Ratio(0.5, Interval(0.5, 0.5, 0.75), 3, (0.5, 0.5, 0.5))
    few, one = ratio_of_turns([1.0, 1.2, 1.1], [1.0] * 3), ratio_of_turns([3.0], [2.0])
    many = ratio_of_turns([1.1] * 6, [1.0] * 6)
    assert few.text() == "1.10 (1.00 to 1.20 at 75 %)"
    assert (many.text(), one.text()) == ("1.10 (1.10 to 1.10)", "1.50")
    for made in (one, few):
        assert Ratio.from_json(json.loads(json.dumps(asdict(made)))) == made
    for turns in ([1.0, 2.0], [0.0], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match=r"longer|positive and finite"):
            ratio_of_turns([1.0], turns)


def test_interval_of_a_median_is_that_of_the_sign_test() -> None:
    # its tables; n = 20: P(X <= 5) = 0.0207
    for count, left_out, sure in ((2, 0, 0.5), (5, 0, 0.9375), (9, 1, 0.96094), (20, 5, 0.95861)):
        found = median_interval(np.random.default_rng(1).permutation(count).tolist())
        assert found is not None
        assert (found.low, found.high) == (left_out, count - 1 - left_out)
        assert found.confidence == pytest.approx(sure, abs=1e-5)
