"""Numbers of blocks and looks against hand counts, and Holm against a worked example."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tinyllama_tools.stats.rank_tests import MOST_BLOCKS, holm_adjusted
from tinyllama_tools.stats.verdicts import (
    Design,
    DesignError,
    fewest_at,
    fewest_blocks,
    plan_design,
)


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
