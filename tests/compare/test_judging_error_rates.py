"""Error rates of whole families on simulated machines, each with an exact binomial bound."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from scipy import stats
from simulated_blocks import (
    ALL_SCENARIOS,
    Rows,
    seconds,
    simulated_families,
    simulated_family,
)

from tinyllama_tools.stats.looks import judge_rows, summarise_pairs
from tinyllama_tools.stats.rank_tests import p_values
from tinyllama_tools.stats.verdicts import Design, Outcome, plan_design

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
