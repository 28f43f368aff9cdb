"""Exponents of batch and sequence."""

from __future__ import annotations

import math

import pytest
from synthetic_grids import SIZES, time_grid

from tinyllama_tools.stats.law_fits import fit_exponents
from tinyllama_tools.stats.laws import GridPoint, LawRefusedError


def test_exact_powers_come_back() -> None:
    found = fit_exponents([GridPoint(b, s, (3e-6 * b**0.9 * s**1.5,)) for b, s in SIZES])
    assert found.batch.value == pytest.approx(0.9)
    assert found.seq.value == pytest.approx(1.5)
    assert found.seq.high - found.seq.low < 1e-9
    assert found.r_squared == pytest.approx(1)


def test_intervals_by_hand() -> None:
    # residuals d (+, -, -, +) are orthogonal to every column, so the exponents are those of the
    # exact values; variance 4 d^2 / 1, that of an exponent s^2 / (4 (ln 2 / 2)^2), t = 12.706
    off = 0.01
    signs = {(2, 16): 1, (2, 32): -1, (4, 16): -1, (4, 32): 1}
    points = [GridPoint(b, s, (b * s * math.exp(off * sign),)) for (b, s), sign in signs.items()]
    found = fit_exponents(points)
    reach = 12.7062 * 2 * off / math.log(2)
    for exponent in (found.batch, found.seq):
        assert exponent.value == pytest.approx(1)
        assert exponent.high - 1 == pytest.approx(reach, rel=1e-5)
        assert 1 - exponent.low == pytest.approx(reach, rel=1e-5)
    explained = 2 * 4 * (math.log(2) / 2) ** 2
    assert found.r_squared == pytest.approx(explained / (explained + 4 * off**2))


def test_what_never_varies_has_exponents_of_zero() -> None:
    found = fit_exponents([GridPoint(b, s, (0.5,)) for b, s in SIZES])
    assert found.batch.value == pytest.approx(0, abs=1e-12)
    assert found.seq.value == pytest.approx(0, abs=1e-12)
    assert found.r_squared == 1


def test_intervals_hold_the_exponent() -> None:
    found = [fit_exponents(time_grid((0, 1e-6, 0), noise=0.1, seed=s)) for s in range(100)]
    held = sum(f.batch.low <= 1 <= f.batch.high for f in found)
    held += sum(f.seq.low <= 1 <= f.seq.high for f in found)
    assert 180 <= held < 200


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([(8, 128), (8, 256), (4, 128)], "3 sizes: .* 1 more to tell the scatter need at least 4"),
        ([(8, 64), (8, 128), (8, 256), (8, 512)], "both must vary"),
        ([(2, 64), (4, 128), (8, 256), (16, 512)], "not together"),
    ],
)
def test_sizes_that_do_not_decide_are_refused(sizes: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        fit_exponents([GridPoint(b, s, (float(b * s),)) for b, s in sizes])


def test_a_value_that_is_none_is_refused() -> None:
    points = [GridPoint(b, s, (1.0,)) for b, s in SIZES]
    with pytest.raises(LawRefusedError, match="nan in round 1"):
        fit_exponents([*points, GridPoint(1, 1, (math.nan,))])
