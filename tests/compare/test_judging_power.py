"""What a number of blocks can show: against all signs equal, and against the normal limit."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from tinyllama_tools.judging.power import paired_detection, unpaired_detection

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
