"""Verdicts on blocks at planned looks: design, power, families, error rates."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from signed_rank_of_one import signed_rank_p_value, walsh_interval
from simulated_blocks import (
    ALL_SCENARIOS,
    Rows,
    seconds,
    simulated_blocks,
    simulated_families,
    simulated_family,
    summaries,
)

from tinyllama_tools.stats.looks import (
    Block,
    BlockSummary,
    answered_after,
    judge_family,
    judge_rows,
    paired_detection,
    summarise,
    summarise_pairs,
    unpaired_detection,
)
from tinyllama_tools.stats.rank_tests import MOST_BLOCKS, hodges_lehmann, holm_adjusted, p_values
from tinyllama_tools.stats.verdicts import (
    Design,
    DesignError,
    Judgement,
    Limits,
    Outcome,
    fewest_at,
    fewest_blocks,
    plan_design,
    verdict,
)


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


def test_fewest_blocks_by_hand() -> None:
    # 2^-16 = 1.53e-5 <= 1e-3 / 40 = 2.5e-5 < 2^-15, were all of alpha spent
    assert fewest_at(1e-3 / 40) == 17
    # a quarter is: 2^-18 = 3.8e-6 <= 2.5e-4 / 40 = 6.3e-6 < 2^-17
    assert fewest_blocks(40, 1e-3, 1) == 19
    # 2^-20 = 9.5e-7 <= 2.5e-4 / 240 = 1.04e-6 < 2^-19
    assert fewest_blocks(40, 1e-3, 6) == 21
    # 2^-18 = 3.8e-6 <= 2.5e-4 / 54 = 4.6e-6 < 2^-17
    assert fewest_blocks(9, 1e-3, 6) == 19
    # exactly at the level: 2^-9 = 2^-3 / (16 x 4)
    assert fewest_blocks(16, 0.5, 4) == 10
    # however loose alpha is, `same` needs an interval of 95 %: 2^-5 <= 0.05
    assert fewest_blocks(1, 0.5, 1) == 6


@pytest.mark.parametrize(
    ("level", "blocks"),
    # n blocks have 2^(1 - n) at best: 1, 1/2, 1/4, 1/8, ...
    [(1.0, 1), (0.5, 2), (0.49, 3), (0.25, 3), (0.05, 6), (2.0**-16, 17), (0.9 * 2.0**-16, 18)],
)
def test_fewest_at_a_level_by_hand(level: float, blocks: int) -> None:
    assert fewest_at(level) == blocks


@pytest.mark.parametrize("cases", [1, 9, 40])
def test_the_first_look_is_the_first_that_can_pass_and_spends_a_quarter(cases: int) -> None:
    design = plan_design(cases)
    first = design.looks[0]
    # 2^(1 - n), corrected for looks and the share of alpha, then for the cases
    corrected = [cases * design.correction * 2.0 ** (1 - n) for n in (first, first - 1)]
    assert corrected[0] <= design.alpha < corrected[1]
    spent = len(design.looks) * cases * design.strictest_level
    assert spent == pytest.approx(design.alpha / 4)


def test_looks_start_at_the_fewest_and_grow_by_a_quarter() -> None:
    # each the next whole number above 24.13, 31.75, 40.64, 52.07 and 67.31
    assert plan_design(9).looks == (19, 25, 32, 41, 53, 68)
    # 2^-18 = 3.8e-6 <= 2.5e-4 / 60 = 4.2e-6 < 2^-17: a tenth case asks for no more blocks
    assert plan_design(10).looks == plan_design(9).looks
    assert plan_design(40, looks=1).looks == (19,)
    looks = plan_design(40).looks
    assert looks[0] == 21
    assert len(looks) == 6
    for earlier, later in pairwise(looks):
        assert 1.27 <= later / earlier < 1.27 + 1 / earlier


def test_every_planned_look_is_paid_for() -> None:
    design = plan_design(9)
    # a quarter of 1e-3, divided among 9 cases and 6 looks
    assert design.strictest_level == pytest.approx(2.5e-4 / 54)
    # the p-value of a look is held against a quarter of alpha / 6
    assert design.correction == 24
    assert design.look_confidence == pytest.approx(1 - 0.05 / 6)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 5.0, float("nan")])
@pytest.mark.parametrize("name", ["alpha", "margin"])
def test_fractions_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(DesignError, match=f"{name} {value}: must lie between 0 and 1"):
        plan_design(9, **{name: value})


@pytest.mark.parametrize(("cases", "looks"), [(0, 6), (9, 0), (-1, 1)])
def test_counts_below_1_are_refused(cases: int, looks: int) -> None:
    with pytest.raises(DesignError, match="at least 1"):
        plan_design(cases, looks=looks)


@pytest.mark.parametrize("looks", [(), (20, 20), (25, 20)])
def test_looks_that_do_not_grow_are_refused(looks: tuple[int, ...]) -> None:
    with pytest.raises(DesignError, match="growing numbers of blocks"):
        Design(cases=9, looks=looks)


def test_a_design_of_ones_own_is_held_to_the_same_rules() -> None:
    assert Design(cases=40, looks=(19,)).correction == 4
    with pytest.raises(DesignError, match="19 are needed for 40 cases"):
        Design(cases=40, looks=(18,))


def test_looks_beyond_what_the_exact_test_takes_are_refused() -> None:
    assert plan_design(9, looks=16).looks[-1] <= MOST_BLOCKS
    with pytest.raises(DesignError, match=r"20 looks: look \d+ would come after 1\d{3} blocks"):
        plan_design(9, looks=20)


def test_holm_by_hand() -> None:
    # 4 x 0.005, 3 x 0.01, 2 x 0.03, and 1 x 0.04, which cannot be below the one before
    found = holm_adjusted(np.array([0.01, 0.04, 0.03, 0.005]))
    assert found == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_counts_cases_that_have_no_p_value() -> None:
    assert holm_adjusted(np.array([0.01, 0.02]), 10) == pytest.approx([0.1, 0.18])
    assert holm_adjusted(np.array([0.5, 0.2]), 4) == pytest.approx([1.0, 0.8])
    with pytest.raises(ValueError, match="a family of 1"):
        holm_adjusted(np.array([0.5, 0.2]), 1)


LEVEL = 1e-3 / 54


def test_the_fewest_blocks_show_a_shift_that_leaves_all_of_them_positive() -> None:
    # 2^-16 <= LEVEL: 17 blocks, which all have to be positive in 95 % of tries
    expected = stats.norm.ppf(0.95 ** (1 / 17))
    assert paired_detection(LEVEL).shift(17) == pytest.approx(expected, rel=0.05)
    assert paired_detection(LEVEL).shift(16) == math.inf


def test_many_blocks_show_what_the_normal_limit_says() -> None:
    limit = (stats.norm.isf(LEVEL / 2) + stats.norm.isf(0.05)) * math.sqrt(math.pi / 3)
    for count in (200, 1000):
        found = paired_detection(LEVEL).shift(count) * math.sqrt(count)
        assert limit < found < 1.1 * limit
        unpaired = unpaired_detection(LEVEL).shift(count) * math.sqrt(count / 2)
        assert limit < unpaired < 1.1 * limit


def test_the_shift_falls_with_the_number_of_blocks() -> None:
    shifts = [paired_detection(LEVEL).shift(count) for count in range(17, 120)]
    assert shifts == sorted(shifts, reverse=True)
    assert shifts[0] > 3 * shifts[-1]


@pytest.mark.parametrize("count", [17, 20, 40, 300])
def test_observations_are_the_fewest_that_show_the_shift(count: int) -> None:
    found = paired_detection(LEVEL)
    assert found.observations(found.shift(count) * 1.0001) <= count
    assert found.observations(found.shift(count) * 0.9999) > count - 1
    assert found.shift(found.observations(0.9)) <= 0.9


def test_an_answer_within_the_margin_comes_when_the_interval_fits() -> None:
    # 0.06 and where the estimate may move to have to shrink to the 0.02 that are left
    expected = 20 * ((0.06 + stats.norm.isf(0.05) * 0.01) / 0.02) ** 2
    for estimate in (0.01, -0.01):
        found = answered_after(estimate, 0.06, 0.01, 20, 0.03, significant=1e9)
        assert found == pytest.approx(expected)


def test_an_answer_beyond_the_margin_comes_when_it_is_significant_and_stays_there() -> None:
    assert answered_after(0.3, 0.4, 0.05, 20, 0.03, significant=33) == 33
    # 1.645 standard errors of the estimate have to shrink to 0.001
    near = answered_after(0.031, 0.4, 0.005, 20, 0.03, significant=33)
    assert near == pytest.approx(20 * (stats.norm.isf(0.05) * 0.005 / 0.001) ** 2)
    assert answered_after(0.03, 0.4, 0.005, 20, 0.03, significant=33) == math.inf


DESIGN = plan_design(4, alpha=0.01, looks=3)
FIRST, SECOND, LAST = DESIGN.looks
# 3 looks, which share a quarter of alpha
CORRECTION = 12
LOG_MARGIN = math.log1p(DESIGN.margin)


def noise(blocks: int, *, center: float = 0.0, scatter: float = 0.02, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(center, scatter, blocks)


def judged(values: np.ndarray, design: Design = DESIGN, error: float = 1e-6) -> Judgement:
    found = judge_family({"case": summaries(values, error=error)}, design)["case"]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("center", "scatter", "expected"),
    [
        (0.08, 0.02, Outcome.SLOWER),
        (-0.08, 0.02, Outcome.FASTER),
        (0.0, 0.01, Outcome.SAME),
        (0.015, 0.002, Outcome.SAME),
        (0.0, 0.3, Outcome.UNCLEAR),
        (0.03, 0.03, Outcome.UNCLEAR),
    ],
)
def test_verdicts(center: float, scatter: float, expected: Outcome) -> None:
    assert judged(noise(LAST, center=center, scatter=scatter)).outcome is expected


def test_a_sure_difference_within_the_margin_is_not_slower() -> None:
    found = judged(noise(LAST, center=0.02, scatter=0.001))
    assert found.adjusted_p_value < DESIGN.alpha
    assert found.outcome is Outcome.SAME


def test_the_rule_at_its_edges() -> None:
    limits = Limits(0.01, 0.03)
    edge = limits.log_margin
    assert verdict(0.01, edge * 1.001, 0, 1, limits) is Outcome.SLOWER
    assert verdict(0.01, edge, 0, 1, limits) is Outcome.UNCLEAR
    assert verdict(0.0101, edge * 2, 0, 1, limits) is Outcome.UNCLEAR
    assert verdict(0.01, -edge * 1.001, -1, 0, limits) is Outcome.FASTER
    assert verdict(1.0, 0, -edge, edge, limits) is Outcome.SAME
    assert verdict(1.0, 0, -edge, edge * 1.001, limits) is Outcome.UNCLEAR
    assert verdict(1.0, 0, -edge * 1.001, edge, limits) is Outcome.UNCLEAR


def test_evidence_is_that_of_the_exact_procedures() -> None:
    values = noise(FIRST, center=0.01)
    evidence = judged(values).evidence
    assert evidence.estimate == pytest.approx(hodges_lehmann(values), abs=1e-15)
    assert evidence.confidence == pytest.approx(1 - 0.05 / 3)
    assert (evidence.low, evidence.high) == pytest.approx(
        walsh_interval(values, evidence.confidence)
    )
    assert evidence.p_value == pytest.approx(min(1, CORRECTION * signed_rank_p_value(values)))
    assert evidence.blocks == FIRST


def test_p_value_is_the_least_of_all_looks_so_far() -> None:
    values = np.concatenate([np.full(FIRST, 0.1), noise(LAST - FIRST, center=-0.06, seed=1)])
    values[:FIRST] += noise(FIRST, scatter=0.001)
    each = [CORRECTION * signed_rank_p_value(values[:look]) for look in DESIGN.looks]
    assert np.argmin(each) == 0
    found = judged(values)
    assert found.evidence.blocks == LAST
    assert found.evidence.p_value == pytest.approx(each[0])
    # only the last look says where the case stands
    assert found.outcome is Outcome.UNCLEAR


def test_a_look_that_points_the_other_way_shows_nothing() -> None:
    """Surely faster at the first look, estimated slower at the last: neither is shown."""
    early, late = noise(FIRST, center=-0.1, scatter=0.001), noise(LAST - FIRST, center=1.0)
    found = judged(np.concatenate([early, late]))
    assert judged(early).outcome is Outcome.FASTER
    assert found.evidence.estimate > LOG_MARGIN
    assert found.outcome is Outcome.UNCLEAR
    assert judged(-np.concatenate([early, late])).adjusted_p_value == found.adjusted_p_value
    # it counts again for whoever points its way again
    back = judged(np.concatenate([early, late[: SECOND - FIRST]]))
    assert back.evidence.estimate < 0
    assert back.evidence.p_value == judged(early).evidence.p_value


def test_an_estimate_of_nothing_points_nowhere() -> None:
    values = np.concatenate([np.full(FIRST, 0.1), np.full(LAST - FIRST, -0.1)])
    for sign, before in ((1, Outcome.SLOWER), (-1, Outcome.FASTER)):
        assert judged(sign * values[:FIRST]).outcome is before
        found = judged(sign * values).evidence
        assert (found.estimate, found.p_value) == (0, 1)


def test_holm_counts_every_case_of_the_design() -> None:
    strong, weak = noise(FIRST, center=0.2), noise(FIRST, center=0.016)
    together = judge_family({"strong": summaries(strong), "weak": summaries(weak)}, DESIGN)
    p_strong, p_weak = (
        min(1, CORRECTION * signed_rank_p_value(values)) for values in (strong, weak)
    )
    assert together["strong"].adjusted_p_value == pytest.approx(4 * p_strong)
    assert together["weak"].adjusted_p_value == pytest.approx(min(1, 3 * p_weak))


def test_first_look_is_enough_for_a_verdict_on_all_cases() -> None:
    """The fewest blocks are chosen for Holm's strictest step, which one case alone has to pass."""
    values = np.linspace(0.08, 0.09, FIRST)
    cases = {"slow": summaries(values)} | {
        f"even {i}": summaries(noise(FIRST, scatter=0.005, seed=i)) for i in range(3)
    }
    outcomes = [judgement.outcome for judgement in judge_family(cases, DESIGN).values()]
    assert outcomes == [Outcome.SLOWER] + 3 * [Outcome.SAME]


def test_no_judgement_before_the_first_look() -> None:
    cases = {"early": summaries(np.full(FIRST - 1, 0.1)), "none": [], "there": summaries(noise(20))}
    found = judge_family(cases, DESIGN)
    assert list(found) == list(cases)
    assert found["early"] is None
    assert found["none"] is None
    assert found["there"] is not None


def test_blocks_beyond_a_look_wait_for_the_next_one() -> None:
    values = noise(SECOND, center=0.03, scatter=0.05)
    at_look = judged(values[:FIRST])
    for blocks in range(FIRST, SECOND):
        assert judged(values[:blocks]) == at_look
    assert judged(values) != at_look


def test_more_cases_than_planned_are_refused() -> None:
    with pytest.raises(DesignError, match="5 cases, but the design is for 4"):
        judge_family({str(i): summaries(noise(FIRST)) for i in range(5)}, DESIGN)


def test_uncertain_blocks_widen_the_interval_and_raise_the_p_value() -> None:
    values = noise(LAST, center=0.08, scatter=0.01)
    sure, unsure = judged(values, error=1e-6), judged(values, error=0.1)
    assert sure.outcome is Outcome.SLOWER
    assert unsure.outcome is Outcome.UNCLEAR
    assert sure.evidence.estimate == unsure.evidence.estimate
    stretch = 0.1 / unsure.evidence.scatter
    assert unsure.evidence.high - unsure.evidence.estimate == pytest.approx(
        stretch * (sure.evidence.high - sure.evidence.estimate)
    )
    errors = [0.1 * math.sqrt(math.pi / 3 / look) for look in DESIGN.looks]
    student = [
        2 * stats.t.sf(abs(hodges_lehmann(values[:look])) / error, look - 1)
        for look, error in zip(DESIGN.looks, errors, strict=True)
    ]
    assert unsure.evidence.p_value == pytest.approx(CORRECTION * min(student))
    assert unsure.evidence.smallest_difference > 4 * sure.evidence.smallest_difference


def test_one_uncertain_block_does_not_make_all_of_them_uncertain() -> None:
    blocks = summaries(noise(LAST, center=0.08), error=1e-6)
    wild = [replace(blocks[0], standard_error=10.0), *blocks[1:]]
    assert judge_family({"case": wild}, DESIGN) == judge_family({"case": blocks}, DESIGN)


def test_blocks_that_agree_to_the_last_digit_are_as_sure_as_their_pairs() -> None:
    values = np.full(FIRST, 0.05)
    assert judged(values, error=0.0).outcome is Outcome.SLOWER
    found = judged(values, error=0.05)
    assert found.outcome is Outcome.UNCLEAR
    reach = stats.t.ppf(1 - 0.05 / 6, FIRST - 1) * 0.05 * math.sqrt(math.pi / 3 / FIRST)
    assert found.evidence.high == pytest.approx(0.05 + reach)
    assert judged(np.zeros(FIRST), error=0.0).outcome is Outcome.SAME


def _family(swap: bool = False, unit: float = 1.0) -> dict[str, list[BlockSummary]]:
    family = {}
    for seed, scenario in enumerate(ALL_SCENARIOS):
        blocks = simulated_blocks(scenario, LAST, slowdown=0.08 * (seed % 3), seed=seed)
        sides = [(b.new, b.base) if swap else (b.base, b.new) for b in blocks]
        family[scenario] = [
            summarise(Block(tuple(unit * s for s in base), tuple(unit * s for s in new)))
            for base, new in sides
        ]
    return family


def test_swapped_sides_swap_the_verdicts() -> None:
    design = plan_design(len(ALL_SCENARIOS), alpha=0.05, looks=3)
    there, back = (judge_family(_family(swap), design) for swap in (False, True))
    opposite = {Outcome.SLOWER: Outcome.FASTER, Outcome.FASTER: Outcome.SLOWER}
    assert {j.outcome for j in there.values()} > {Outcome.SLOWER}
    for name, judgement in there.items():
        swapped = back[name]
        assert swapped.outcome is opposite.get(judgement.outcome, judgement.outcome)
        assert swapped.adjusted_p_value == pytest.approx(judgement.adjusted_p_value, rel=1e-9)
        assert swapped.evidence.estimate == pytest.approx(-judgement.evidence.estimate, abs=1e-12)
        assert swapped.evidence.low == pytest.approx(-judgement.evidence.high, rel=1e-9)


def test_another_unit_changes_nothing() -> None:
    design = plan_design(len(ALL_SCENARIOS), alpha=0.05, looks=3)
    seconds, others = (judge_family(_family(unit=unit), design) for unit in (1.0, 0.37))
    for name, judgement in seconds.items():
        assert others[name].outcome is judgement.outcome
        assert others[name].adjusted_p_value == pytest.approx(judgement.adjusted_p_value, rel=1e-9)
        assert others[name].evidence.high == pytest.approx(judgement.evidence.high, abs=1e-10)


def test_smallest_difference_is_found_in_95_percent_of_tries() -> None:
    one_look = replace(DESIGN, looks=(SECOND,))
    promised = judged(noise(SECOND, scatter=0.04), one_look).evidence
    shift = math.log1p(promised.smallest_difference)
    tries = 400
    found = sum(
        judged(noise(SECOND, center=shift, scatter=promised.scatter, seed=seed), one_look).outcome
        is Outcome.SLOWER
        for seed in range(tries)
    )
    assert stats.binomtest(found, tries, 0.95).pvalue > 1e-3


@pytest.mark.parametrize(("center", "scatter"), [(0.0, 0.04), (0.06, 0.06)])
def test_most_cases_are_answered_after_the_blocks_that_they_needed(
    center: float, scatter: float
) -> None:
    design = plan_design(DESIGN.cases, alpha=DESIGN.alpha, looks=6)
    open_at_first, answered = 0, 0
    for seed in range(100):
        values = noise(design.looks[-1], center=center, scatter=scatter, seed=seed)
        first = judged(values[: design.looks[0]], design)
        needed = first.evidence.blocks_needed
        if first.outcome is not Outcome.UNCLEAR or needed is None:
            continue
        assert needed in design.looks[1:]
        open_at_first += 1
        answered += judged(values[:needed], design).outcome is not Outcome.UNCLEAR
    assert open_at_first > 20
    assert answered / open_at_first > 0.9


def test_nobody_is_told_to_wait_for_what_more_blocks_may_not_settle() -> None:
    # at the margin, and of a scatter that no planned look is enough for
    for center, scatter in ((LOG_MARGIN, 0.05), (0.0, 0.5)):
        values = noise(FIRST, scatter=scatter)
        found = judged(values - hodges_lehmann(values) + center)
        assert found.outcome is Outcome.UNCLEAR
        assert found.evidence.blocks_needed is None
        assert found.evidence.distance > LAST
    # after the last look there is none to wait for
    assert judged(noise(LAST, scatter=0.3)).evidence.blocks_needed is None
    decided = judged(noise(FIRST, scatter=0.005)).evidence
    assert (decided.blocks_needed, decided.distance) == (FIRST, FIRST)


def test_forty_cases_are_judged_within_milliseconds() -> None:
    design = plan_design(40)
    cases = {str(i): summaries(noise(60, seed=i)) for i in range(40)}
    judge_family(cases, design)  # tables are made once
    started = time.process_time()
    for _ in range(10):
        judge_family(cases, design)
    # 5 ms on a quiet machine of two cores; the rest is room for others
    assert (time.process_time() - started) / 10 < 0.03


CASES = 6
PAIRS = 6
FAMILIES = 200
# a loose level, so that a few hundred families tell, and no margin that would protect
LOOSE = plan_design(CASES, alpha=0.05, margin=1e-9, looks=3)
SHAPE = (CASES, LOOSE.looks[-1], PAIRS)
DIFFERENT = {Outcome.SLOWER, Outcome.FASTER}


def outcomes(rows: Rows, design: Design) -> list[Outcome]:
    found = judge_rows(list(rows[0]), list(rows[1]), design)
    return [judgement.outcome for judgement in found if judgement is not None]


def false_alarms(families: Iterable[Rows], design: Design) -> int:
    """Families with any difference shown where there is none."""
    return sum(any(o in DIFFERENT for o in outcomes(rows, design)) for rows in families)


def upper_bound(events: int, tries: int) -> float:
    """Exact (Clopper-Pearson), one-sided, 95 %."""
    return stats.binomtest(events, tries).proportion_ci(0.9, "exact").high


def lower_bound(events: int, tries: int) -> float:
    return stats.binomtest(events, tries).proportion_ci(0.9, "exact").low


@pytest.fixture(scope="module")
def alarms_by_scenario() -> dict[str, int]:
    return {
        scenario: false_alarms(simulated_families(FAMILIES, scenario, SHAPE), LOOSE)
        for scenario in ALL_SCENARIOS
    }


def test_families_without_a_difference_raise_false_alarms_below_alpha(
    alarms_by_scenario: dict[str, int],
) -> None:
    total = sum(alarms_by_scenario.values())
    assert total > 0
    assert upper_bound(total, FAMILIES * len(alarms_by_scenario)) <= LOOSE.alpha


@pytest.mark.parametrize("scenario", list(ALL_SCENARIOS))
def test_no_scenario_raises_them_above_alpha(
    scenario: str, alarms_by_scenario: dict[str, int]
) -> None:
    above = stats.binomtest(alarms_by_scenario[scenario], FAMILIES, LOOSE.alpha, "greater")
    assert above.pvalue > 0.001


def test_these_families_do_tell_a_judge_that_pays_for_one_look_and_one_case() -> None:
    """Its p-values are the same; only the corrections are missing."""
    families = simulated_families(FAMILIES, "spikes", SHAPE)
    alarms = sum(
        any(np.any(p_values(rows[0][:, :look]) <= LOOSE.alpha) for look in LOOSE.looks)
        for rows in families
    )
    assert lower_bound(alarms, FAMILIES) > LOOSE.alpha


def test_pairs_as_the_sample_would_raise_false_alarms_far_above_alpha() -> None:
    """What every tool does that takes repetitions of one process for a sample."""
    rng = np.random.default_rng(1)
    alarms, tries = 0, 100
    for _ in range(tries):
        base, new = seconds(rng, "two modes", (1, 1, 30))
        ratios, _errors = summarise_pairs(base.reshape(-1, 1), new.reshape(-1, 1))
        alarms += bool(p_values(ratios[np.newaxis, :])[0] <= 0.001)
    assert lower_bound(alarms, tries) > 0.2


def test_detection_grows_with_the_difference() -> None:
    design = plan_design(CASES, looks=3)
    shape = (CASES, design.looks[-1], 8)
    found = []
    for slowdown in (0.0, 0.02, 0.05, 0.10, 0.20):
        verdicts = Counter(
            outcome
            for rows in simulated_families(25, "autocorrelated", shape, slowdown=slowdown)
            for outcome in outcomes(rows, design)
        )
        assert verdicts[Outcome.FASTER] == 0
        found.append(verdicts[Outcome.SLOWER] / verdicts.total())
    assert found == sorted(found)
    assert found[0] == found[1] == 0
    assert 0 < found[2] < found[3]
    assert found[4] >= 0.95


def test_same_is_wrong_in_no_more_than_5_percent() -> None:
    """A true difference of just the margin, and a scatter that puts intervals about its size."""
    design = plan_design(1, alpha=0.05, looks=3)
    rng = np.random.default_rng(2)
    tries, blocks = 500, design.looks[-1]
    edge = math.log1p(design.margin)

    def share(center: float) -> int:
        """Of cases that any of the looks calls the same."""
        count = 0
        for _ in range(tries):
            ratios = rng.normal(center, 0.012, (1, blocks))
            found = [
                outcomes((ratios[:, :look], np.zeros((1, look))), design)[0]
                for look in design.looks
            ]
            count += Outcome.SAME in found
        return count

    assert upper_bound(share(edge), tries) <= 0.05
    assert upper_bound(share(-edge), tries) <= 0.05
    assert share(0.0) > 0.9 * tries


@pytest.mark.long
def test_ten_thousand_families_of_forty_cases() -> None:
    """The level of the gate itself, every scenario taking its turn."""
    design, families = plan_design(40), 10_000
    rng = np.random.default_rng(7)
    scenarios = list(ALL_SCENARIOS)
    shape = (design.cases, design.looks[-1], PAIRS)
    alarms = sum(
        any(
            outcome in DIFFERENT
            for outcome in outcomes(
                simulated_family(rng, scenarios[family % len(scenarios)], shape), design
            )
        )
        for family in range(families)
    )
    assert upper_bound(alarms, families) <= design.alpha
