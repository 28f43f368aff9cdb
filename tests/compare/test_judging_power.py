"""What a number of blocks can show: against all signs equal, and against the normal limit."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from tinyllama_tools.stats.looks import answered_after, paired_detection, unpaired_detection

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
