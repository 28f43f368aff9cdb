"""Verdicts on blocks at planned looks: design, power, families, error rates; attribution."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from simulated_blocks import (
    ALL_SCENARIOS,
    Array,
    Rows,
    simulated_blocks,
    simulated_families,
    simulated_family,
    summaries,
)

from tinyllama_tools.stats.looks import attribute, judge_family, judge_rows
from tinyllama_tools.stats.rank_tests import (
    MOST_BLOCKS,
    Block,
    BlockSummary,
    hodges_lehmann,
    interval_ends,
    p_values,
    signed_rank_tail,
    summarise,
    summarise_pairs,
    walsh_averages,
)
from tinyllama_tools.stats.verdicts import (
    Design,
    DesignError,
    Judgement,
    Outcome,
    answered_after,
    detection,
    fewest_at,
    fewest_blocks,
    plan_design,
)

SLOWER, FASTER, SAME, UNCLEAR = Outcome.SLOWER, Outcome.FASTER, Outcome.SAME, Outcome.UNCLEAR


def test_log_ratio_is_the_estimate_over_pairs() -> None:
    block = simulated_blocks("spikes", 1, pairs=15)[0]
    ratios = [math.log(new / base) for base, new in zip(block.base, block.new, strict=True)]
    found = summarise(block)
    assert found.log_ratio == pytest.approx(hodges_lehmann(ratios), abs=1e-12)
    assert found.base_seconds == pytest.approx(np.median(block.base))
    assert found.new_seconds == pytest.approx(np.median(block.new))
    # drift that both sides share is not seen
    machine = np.exp(np.linspace(0, 1, 20))
    drifting = summarise(Block(tuple(0.01 * machine), tuple(0.0105 * machine)))
    assert drifting.log_ratio == pytest.approx(math.log(1.05), abs=1e-9)
    assert drifting.standard_error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("pairs", [2, 4, 8, 30])
def test_standard_error_is_that_of_the_log_ratio(pairs: int) -> None:
    base, new = np.exp(np.random.default_rng(pairs).normal(0, 0.05, (2, 400, pairs)))
    log_ratios, errors = summarise_pairs(base, new)
    # a spread of two values is a poor one, but right on average of squares
    assert math.sqrt(np.mean(errors**2)) == pytest.approx(np.std(log_ratios), rel=0.15)
    assert summarise(Block((0.5,), (0.6,))).standard_error == 0


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
    # n blocks have 2^(1 - n) at best: 1, 1/2, 1/4, 1/8, ...
    assert [fewest_at(level) for level in (1.0, 0.5, 0.49, 0.25, 0.05)] == [1, 2, 3, 3, 6]
    # a quarter of alpha is spent: 2^-18 = 3.8e-6 <= 2.5e-4 / 40 = 6.3e-6 < 2^-17
    assert fewest_blocks(40, 1e-3, 1) == 19
    # 2^-20 = 9.5e-7 <= 2.5e-4 / 240 = 1.04e-6 < 2^-19
    assert fewest_blocks(40, 1e-3, 6) == 21
    # exactly at the level: 2^-9 = 2^-3 / (16 x 4)
    assert fewest_blocks(16, 0.5, 4) == 10
    # however loose alpha is, `same` needs an interval of 95 %: 2^-5 <= 0.05
    assert fewest_blocks(1, 0.5, 1) == 6


def test_looks_start_at_the_fewest_and_are_paid_for() -> None:
    design = plan_design(9)
    # each the next whole number above 1.27 times the one before: 24.13, 31.75, 40.64, 52.07, 67.31
    assert design.looks == (19, 25, 32, 41, 53, 68)
    assert plan_design(40, looks=1).looks == (19,)
    # a quarter of 1e-3, divided among 9 cases and 6 looks
    assert design.strictest_level == pytest.approx(2.5e-4 / 54)
    assert design.correction == 24
    assert design.look_confidence == pytest.approx(1 - 0.05 / 6)
    # the first look is the first that can pass
    corrected = [9 * design.correction * 2.0 ** (1 - n) for n in (19, 18)]
    assert corrected[0] <= design.alpha < corrected[1]
    assert plan_design(9, looks=16).looks[-1] <= MOST_BLOCKS


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"alpha": 0.0}, "alpha 0.0: must lie between 0 and 1"),
        ({"alpha": math.nan}, "alpha nan: must lie between 0 and 1"),
        ({"margin": 1.0}, "margin 1.0: must lie between 0 and 1"),
        ({"margin": -0.1}, "margin -0.1: must lie between 0 and 1"),
        ({"cases": 0}, "0 cases, 6 looks: at least 1"),
        ({"looks": 0}, "9 cases, 0 looks: at least 1"),
        ({"looks": 20}, r"20 looks: look \d+ would come after 1\d{3} blocks"),
    ],
)
def test_plans_that_cannot_be_are_refused(options: dict, expected: str) -> None:
    with pytest.raises(DesignError, match=expected):
        plan_design(**{"cases": 9, **options})


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ((), "growing numbers of blocks"),
        ((20, 20), "growing numbers of blocks"),
        ((25, 20), "growing numbers of blocks"),
        ((18,), "19 are needed for 40 cases"),
    ],
)
def test_looks_of_ones_own_are_held_to_the_same_rules(looks: tuple, expected: str) -> None:
    assert Design(cases=40, looks=(19,)).correction == 4
    with pytest.raises(DesignError, match=expected):
        Design(cases=40, looks=looks)


LEVEL = 1e-3 / 54


def test_shifts_that_blocks_and_files_show() -> None:
    paired, unpaired = (detection(LEVEL, is_paired=is_paired) for is_paired in (True, False))
    # 2^-16 <= LEVEL: 17 blocks, which all have to be positive in 95 % of tries
    expected = stats.norm.ppf(0.95 ** (1 / 17))
    assert paired.shift(17) == pytest.approx(expected, rel=0.05)
    assert paired.shift(16) == math.inf
    shifts = [paired.shift(count) for count in range(17, 120)]
    assert shifts == sorted(shifts, reverse=True)
    # many show what the normal limit says
    limit = (stats.norm.isf(LEVEL / 2) + stats.norm.isf(0.05)) * math.sqrt(math.pi / 3)
    for count in (200, 1000):
        assert limit < paired.shift(count) * math.sqrt(count) < 1.1 * limit
        assert limit < unpaired.shift(count) * math.sqrt(count / 2) < 1.1 * limit
    for count in (17, 20, 40, 300):
        assert paired.observations(paired.shift(count) * 1.0001) <= count
        assert paired.observations(paired.shift(count) * 0.9999) > count - 1


def test_when_an_answer_comes() -> None:
    margin, power = math.expm1(0.03), stats.norm.isf(0.05)
    # within the margin: 0.06 and where the estimate may move have to shrink to the 0.02 left
    for estimate in (0.01, -0.01):
        found = answered_after(estimate, 0.06, 0.01, 20, margin, significant=1e9)
        assert found == pytest.approx(20 * ((0.06 + power * 0.01) / 0.02) ** 2)
    # beyond it: when it is significant, and 1.645 standard errors have shrunk to what is left
    assert answered_after(0.3, 0.4, 0.05, 20, margin, significant=33) == 33
    near = answered_after(0.031, 0.4, 0.005, 20, margin, significant=33)
    assert near == pytest.approx(20 * (power * 0.005 / 0.001) ** 2)
    assert answered_after(math.log1p(margin), 0.4, 0.005, 20, margin, significant=33) == math.inf


DESIGN = plan_design(4, alpha=0.01, looks=3)
FIRST, SECOND, LAST = DESIGN.looks
# 3 looks, which share a quarter of alpha
CORRECTION = 12
LOG_MARGIN = math.log1p(DESIGN.margin)


def noise(blocks: int, *, center: float = 0.0, scatter: float = 0.02, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(center, scatter, blocks)


def judged(values: Array, design: Design = DESIGN, error: float = 1e-6) -> Judgement:
    found = judge_family({"case": summaries(values, error=error)}, design)["case"]
    assert found is not None
    return found


def look_p(values: Array) -> float:
    return min(1.0, CORRECTION * float(p_values(values[np.newaxis, :])[0]))


@pytest.mark.parametrize(
    ("center", "scatter", "expected"),
    [
        (0.08, 0.02, SLOWER),
        (-0.08, 0.02, FASTER),
        (0.0, 0.01, SAME),
        (0.015, 0.002, SAME),
        # surely different, but within the margin
        (0.02, 0.001, SAME),
        (0.0, 0.3, UNCLEAR),
        (0.03, 0.03, UNCLEAR),
    ],
)
def test_verdicts(center: float, scatter: float, expected: Outcome) -> None:
    assert judged(noise(LAST, center=center, scatter=scatter)).outcome is expected


def test_evidence_is_that_of_the_exact_procedures() -> None:
    values = noise(FIRST, center=0.01)
    evidence = judged(values).evidence
    assert evidence.estimate == pytest.approx(hodges_lehmann(values), abs=1e-15)
    assert evidence.confidence == pytest.approx(1 - 0.05 / 3)
    averages = walsh_averages(values[np.newaxis, :])
    ends = interval_ends(averages, signed_rank_tail(FIRST), evidence.confidence)
    assert (evidence.low, evidence.high) == pytest.approx([float(end[0]) for end in ends or ()])
    assert evidence.p_value == pytest.approx(look_p(values))
    assert evidence.blocks == FIRST
    # blocks beyond a look wait for the next one
    more = np.concatenate([values, noise(SECOND - FIRST, center=0.5)])
    assert judged(more[:-1]) == judged(values) != judged(more)


def test_p_value_is_the_least_of_all_looks_so_far() -> None:
    values = np.concatenate([np.full(FIRST, 0.1), noise(LAST - FIRST, center=-0.06, seed=1)])
    values[:FIRST] += noise(FIRST, scatter=0.001)
    each = [look_p(values[:look]) for look in DESIGN.looks]
    assert np.argmin(each) == 0
    found = judged(values)
    assert found.evidence.blocks == LAST
    assert found.evidence.p_value == pytest.approx(each[0])
    # only the last look says where the case stands
    assert found.outcome is UNCLEAR


def test_a_look_that_points_the_other_way_shows_nothing() -> None:
    """Surely faster at the first look, estimated slower at the last: neither is shown."""
    early, late = noise(FIRST, center=-0.1, scatter=0.001), noise(LAST - FIRST, center=1.0)
    found = judged(np.concatenate([early, late]))
    assert judged(early).outcome is FASTER
    assert found.evidence.estimate > LOG_MARGIN
    assert found.outcome is UNCLEAR
    assert judged(-np.concatenate([early, late])).adjusted_p_value == found.adjusted_p_value
    # it counts again for whoever points its way again
    back = judged(np.concatenate([early, late[: SECOND - FIRST]]))
    assert back.evidence.estimate < 0
    assert back.evidence.p_value == judged(early).evidence.p_value
    # an estimate of nothing points nowhere
    even = np.concatenate([np.full(FIRST, 0.1), np.full(LAST - FIRST, -0.1)])
    for sign, before in ((1, SLOWER), (-1, FASTER)):
        assert judged(sign * even[:FIRST]).outcome is before
        evidence = judged(sign * even).evidence
        assert (evidence.estimate, evidence.p_value) == (0, 1)


def test_holm_counts_every_case_of_the_design() -> None:
    strong, weak = noise(FIRST, center=0.2), noise(FIRST, center=0.016)
    cases = {"strong": summaries(strong), "weak": summaries(weak), "none": []}
    together = judge_family(cases | {"early": summaries(noise(FIRST - 1))}, DESIGN)
    assert together["strong"].adjusted_p_value == pytest.approx(4 * look_p(strong))
    assert together["weak"].adjusted_p_value == pytest.approx(min(1, 3 * look_p(weak)))
    assert together["none"] is together["early"] is None
    with pytest.raises(DesignError, match="5 cases, but the design is for 4"):
        judge_family({str(i): summaries(strong) for i in range(5)}, DESIGN)


def test_first_look_is_enough_for_a_verdict_on_all_cases() -> None:
    """The fewest blocks are chosen for Holm's strictest step, which one case alone has to pass."""
    cases = {"slow": summaries(np.linspace(0.08, 0.09, FIRST))} | {
        f"even {i}": summaries(noise(FIRST, scatter=0.005, seed=i)) for i in range(3)
    }
    outcomes = [judgement.outcome for judgement in judge_family(cases, DESIGN).values()]
    assert outcomes == [SLOWER, SAME, SAME, SAME]


def test_uncertain_blocks_widen_the_interval_and_raise_the_p_value() -> None:
    values = noise(LAST, center=0.08, scatter=0.01)
    sure, unsure = judged(values, error=1e-6), judged(values, error=0.1)
    assert (sure.outcome, unsure.outcome) == (SLOWER, UNCLEAR)
    assert sure.evidence.estimate == unsure.evidence.estimate
    stretch = 0.1 / unsure.evidence.scatter
    assert unsure.evidence.high - unsure.evidence.estimate == pytest.approx(
        stretch * (sure.evidence.high - sure.evidence.estimate)
    )
    student = [
        2 * stats.t.sf(abs(hodges_lehmann(values[:n])) / (0.1 * math.sqrt(math.pi / 3 / n)), n - 1)
        for n in DESIGN.looks
    ]
    assert unsure.evidence.p_value == pytest.approx(CORRECTION * min(student))
    assert unsure.evidence.smallest_difference > 4 * sure.evidence.smallest_difference
    # one uncertain block does not make all of them uncertain
    blocks = summaries(values, error=1e-6)
    wild = [replace(blocks[0], standard_error=10.0), *blocks[1:]]
    assert judge_family({"case": wild}, DESIGN) == judge_family({"case": blocks}, DESIGN)


def test_blocks_that_agree_to_the_last_digit_are_as_sure_as_their_pairs() -> None:
    values = np.full(FIRST, 0.05)
    assert judged(values, error=0.0).outcome is SLOWER
    found = judged(values, error=0.05)
    assert found.outcome is UNCLEAR
    reach = stats.t.ppf(1 - 0.05 / 6, FIRST - 1) * 0.05 * math.sqrt(math.pi / 3 / FIRST)
    assert found.evidence.high == pytest.approx(0.05 + reach)
    assert judged(np.zeros(FIRST), error=0.0).outcome is SAME


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


def test_swapped_sides_swap_the_verdicts_and_another_unit_changes_nothing() -> None:
    design = plan_design(len(ALL_SCENARIOS), alpha=0.05, looks=3)
    there, back, other = (
        judge_family(family, design) for family in (_family(), _family(swap=True), _family(unit=2))
    )
    opposite = {SLOWER: FASTER, FASTER: SLOWER}
    assert {j.outcome for j in there.values()} > {SLOWER}
    for name, judgement in there.items():
        swapped = back[name]
        assert swapped.outcome is opposite.get(judgement.outcome, judgement.outcome)
        assert swapped.adjusted_p_value == pytest.approx(judgement.adjusted_p_value, rel=1e-9)
        assert swapped.evidence.estimate == pytest.approx(-judgement.evidence.estimate, abs=1e-12)
        assert swapped.evidence.low == pytest.approx(-judgement.evidence.high, rel=1e-9)
        assert other[name].outcome is judgement.outcome
        assert other[name].adjusted_p_value == pytest.approx(judgement.adjusted_p_value, rel=1e-9)


def test_smallest_difference_is_found_in_95_percent_of_tries() -> None:
    one_look = replace(DESIGN, looks=(SECOND,))
    promised = judged(noise(SECOND, scatter=0.04), one_look).evidence
    shift = math.log1p(promised.smallest_difference)
    tries = [noise(SECOND, center=shift, scatter=promised.scatter, seed=s) for s in range(400)]
    found = sum(judged(values, one_look).outcome is SLOWER for values in tries)
    assert stats.binomtest(found, len(tries), 0.95).pvalue > 1e-3


@pytest.mark.parametrize(("center", "scatter"), [(0.0, 0.04), (0.06, 0.06)])
def test_most_cases_are_answered_after_the_blocks_that_they_needed(
    center: float, scatter: float
) -> None:
    design = plan_design(DESIGN.cases, alpha=DESIGN.alpha, looks=6)
    answered = []
    for seed in range(100):
        values = noise(design.looks[-1], center=center, scatter=scatter, seed=seed)
        first = judged(values[: design.looks[0]], design)
        needed = first.evidence.blocks_needed
        if first.outcome is UNCLEAR and needed is not None:
            assert needed in design.looks[1:]
            answered.append(judged(values[:needed], design).outcome is not UNCLEAR)
    assert len(answered) > 20
    assert np.mean(answered) > 0.9


def test_nobody_is_told_to_wait_for_what_more_blocks_may_not_settle() -> None:
    # at the margin, and of a scatter that no planned look is enough for
    for center, scatter in ((LOG_MARGIN, 0.05), (0.0, 0.5)):
        values = noise(FIRST, scatter=scatter)
        found = judged(values - hodges_lehmann(values) + center)
        assert found.outcome is UNCLEAR
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


CASES, PAIRS, FAMILIES = 6, 6, 200
# a loose level, so that a few hundred families tell, and no margin that would protect
LOOSE = plan_design(CASES, alpha=0.05, margin=1e-9, looks=3)
SHAPE = (CASES, LOOSE.looks[-1], PAIRS)


def outcomes(rows: Rows, design: Design) -> list[Outcome]:
    found = judge_rows(list(rows[0]), list(rows[1]), design)
    return [judgement.outcome for judgement in found if judgement is not None]


def is_alarm(rows: Rows, design: Design) -> bool:
    return not {SLOWER, FASTER}.isdisjoint(outcomes(rows, design))


def bounds(events: int, tries: int) -> tuple[float, float]:
    """Exact (Clopper-Pearson), each one-sided at 95 %."""
    return stats.binomtest(events, tries).proportion_ci(0.9, "exact")


def test_families_without_a_difference_raise_false_alarms_below_alpha() -> None:
    alarms = {
        scenario: sum(is_alarm(f, LOOSE) for f in simulated_families(FAMILIES, scenario, SHAPE))
        for scenario in ALL_SCENARIOS
    }
    total = sum(alarms.values())
    assert total > 0
    assert bounds(total, FAMILIES * len(alarms))[1] <= LOOSE.alpha
    for scenario, count in alarms.items():
        above = stats.binomtest(count, FAMILIES, LOOSE.alpha, "greater")
        assert above.pvalue > 0.001, scenario


def test_these_families_do_tell_a_judge_that_pays_for_one_look_and_one_case() -> None:
    """Its p-values are the same; only the corrections are missing."""
    alarms = sum(
        any(np.any(p_values(rows[0][:, :look]) <= LOOSE.alpha) for look in LOOSE.looks)
        for rows in simulated_families(FAMILIES, "spikes", SHAPE)
    )
    assert bounds(alarms, FAMILIES)[0] > LOOSE.alpha


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
        assert verdicts[FASTER] == 0
        found.append(verdicts[SLOWER] / verdicts.total())
    assert found == sorted(found)
    assert found[0] == found[1] == 0
    assert 0 < found[2] < found[3]
    assert found[4] >= 0.95


def test_same_is_wrong_in_no_more_than_5_percent() -> None:
    """A true difference of just the margin, and a scatter that puts intervals about its size."""
    design = plan_design(1, alpha=0.05, looks=3)
    rng = np.random.default_rng(2)
    tries = 500

    def same(center: float) -> int:
        """Cases that any of the looks calls the same."""
        rows = rng.normal(center, 0.012, (tries, 1, design.looks[-1]))
        return sum(
            any(
                outcomes((r[:, :look], np.zeros((1, look))), design) == [SAME]
                for look in design.looks
            )
            for r in rows
        )

    edge = math.log1p(design.margin)
    assert bounds(same(edge), tries)[1] <= 0.05
    assert bounds(same(-edge), tries)[1] <= 0.05
    assert same(0.0) > 0.9 * tries


@pytest.mark.long
def test_ten_thousand_families_of_forty_cases() -> None:
    """The level of the gate itself, every scenario taking its turn."""
    design, families = plan_design(40), 10_000
    rng, scenarios = np.random.default_rng(7), list(ALL_SCENARIOS)
    shape = (design.cases, design.looks[-1], PAIRS)
    alarms = sum(
        is_alarm(simulated_family(rng, scenarios[i % len(scenarios)], shape), design)
        for i in range(families)
    )
    assert bounds(alarms, families)[1] <= design.alpha


BLOCKS = 25
# seconds of each part, and how often a step of 4 layers has it
PARTS = {"ffn": (0.010, 4), "attention": (0.008, 4), "loss": (0.020, 1), "optimizer": (0.006, 1)}
STEP = 0.002 + sum(count * seconds for seconds, count in PARTS.values())
Parts = dict[str, tuple[int, list[BlockSummary]]]


def step(added_seconds: float, scatter: float = 0.01, blocks: int = BLOCKS) -> list[BlockSummary]:
    center = math.log1p(added_seconds / STEP)
    values = noise(blocks, center=center, scatter=scatter, seed=99)
    return summaries(values, base_seconds=STEP)


def parts(*, scatter: float = 0.01, seed: int = 0, **slowdowns: float) -> Parts:
    rng = np.random.default_rng(seed)
    return {
        name: (
            count,
            summaries(
                rng.normal(math.log1p(slowdowns.get(name, 0.0)), scatter, BLOCKS), base_seconds=base
            ),
        )
        for name, (base, count) in PARTS.items()
    }


def exact(ratio: float, base_seconds: float) -> list[BlockSummary]:
    return summaries(np.full(8, math.log(ratio)), base_seconds=base_seconds)


def test_numbers_without_noise_are_exact() -> None:
    found = attribute(
        exact(1.1, 0.1), {"b": (1, exact(0.9, 0.02)), "a": (2, exact(1.5, 0.01))}, ("c",)
    )
    assert [p.case for p in found.parts] == ["a", "b"]
    assert [p.seconds for p in found.parts] == pytest.approx([0.01, -0.002])
    assert [p.share for p in found.parts] == pytest.approx([1.0, -0.2])
    assert (found.parts[0].low, found.parts[0].high) == pytest.approx((1.0, 1.0))
    assert found.unexplained == pytest.approx(0.2)
    assert (found.culprit, found.missing) == ("a", ("c",))


@pytest.mark.parametrize(
    ("added", "slowdowns", "culprit"),
    [
        (4 * 0.010 * 0.15, {"ffn": 0.15}, "ffn"),
        (-4 * 0.008 * 0.2, {"attention": -0.2}, "attention"),
        # two that share the change, one outside all parts, and none at all
        (4 * 0.010 * 0.1 + 4 * 0.008 * 0.125, {"ffn": 0.1, "attention": 0.125}, None),
        (0.02, {}, None),
        (0.0, {}, None),
    ],
)
def test_culprits(added: float, slowdowns: dict[str, float], culprit: str | None) -> None:
    found = attribute(step(added), parts(**slowdowns))
    assert found.culprit == culprit
    assert found == attribute(step(added), parts(**slowdowns)), "the same blocks, the same numbers"
    if culprit:
        first = found.parts[0]
        assert (first.case, first.count) == (culprit, 4)
        assert first.seconds == pytest.approx(added, rel=0.1)
        assert max([0.0, *(other.share for other in found.parts[1:])]) < first.low < 1 < first.high


def test_swapped_sides_leave_the_shares_as_they_are() -> None:
    def swapped(blocks: list[BlockSummary]) -> list[BlockSummary]:
        return [
            BlockSummary(-b.log_ratio, b.standard_error, b.new_seconds, b.base_seconds)
            for b in blocks
        ]

    members = parts(ffn=0.15)
    there = attribute(step(0.006), members)
    back = attribute(swapped(step(0.006)), {n: (c, swapped(b)) for n, (c, b) in members.items()})
    for one, other in zip(there.parts, back.parts, strict=True):
        assert (other.share, other.low) == pytest.approx((one.share, one.low))


def test_noise_is_hardly_blamed_and_a_slow_part_still_is() -> None:
    def drawn(seed: int, slowdown: float, added: float) -> str | None:
        members = parts(scatter=0.05, seed=seed, ffn=slowdown)
        whole = noise(BLOCKS, center=math.log1p(added / STEP), seed=1000 + seed)
        return attribute(summaries(whole, base_seconds=STEP), members).culprit

    assert sum(drawn(seed, 0.0, 0.005) is not None for seed in range(60)) <= 1
    found = [drawn(seed, 0.15, 4 * 0.010 * 0.15) for seed in range(50)]
    assert found.count("ffn") >= 45
    assert set(found) <= {"ffn", None}


def test_a_culprit_explains_half_and_stands_out_from_as_many_parts_as_there_are() -> None:
    change = 0.01 * 0.1
    for times, culprit in ((1.9, "a"), (2.1, None)):
        whole = exact(1 + times * change / 0.1, 0.1)
        assert attribute(whole, {"a": (1, exact(1.1, 0.01))}).culprit == culprit
    # 2.4 standard errors: enough for one that was chosen beforehand, not for the largest of 21
    even = stats.norm.ppf((np.arange(BLOCKS) + 0.5) / BLOCKS)
    moved = {"moved": (1, summaries(0.024 + 0.05 * even, base_seconds=0.01))}
    still = {str(i): (1, exact(1.0, 0.01)) for i in range(20)}
    whole = exact(1.0024, 0.1)
    assert attribute(whole, moved).culprit == "moved"
    assert attribute(whole, moved | still).culprit is None
    # a lone part whose share may be nothing
    noisy = {"loss": (1, summaries(noise(BLOCKS, center=0.05, scatter=0.2), base_seconds=0.02))}
    found = attribute(exact(1.001, 0.1), noisy)
    assert found.parts[0].low < 0 < found.parts[0].share
    assert found.culprit is None


def test_share_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(3)
    tries, held = 80, 0
    for _ in range(tries):
        whole = summaries(rng.normal(math.log(1.10), 0.02, BLOCKS), base_seconds=0.1)
        # wholes and parts need not have as many blocks
        moved = summaries(rng.normal(math.log(1.16), 0.02, BLOCKS + 3), base_seconds=0.05)
        found = attribute(whole, {"moved": (1, moved)}).parts[0]
        held += found.low <= 0.8 <= found.high
    # the percentile bootstrap is a little too sure of 25 blocks; 90 % of 80 less three deviations
    assert held >= 64


def test_what_cannot_be_attributed() -> None:
    found = attribute(step(0.006), {})
    assert (found.parts, found.unexplained, found.culprit) == ((), 1, None)
    with pytest.raises(ValueError, match="changed by 0 seconds"):
        attribute(summaries(np.zeros(9)), parts())
