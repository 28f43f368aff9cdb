"""The verdict rule, looks, corrections and what must not change a verdict."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from signed_rank_of_one import signed_rank_p_value, walsh_interval
from simulated_blocks import ALL_SCENARIOS, simulated_blocks, summaries

from tinyllama_tools.stats.looks import Block, BlockSummary, judge_family, summarise
from tinyllama_tools.stats.rank_tests import hodges_lehmann
from tinyllama_tools.stats.verdicts import (
    Design,
    DesignError,
    Judgement,
    Limits,
    Outcome,
    plan_design,
    verdict,
)

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
