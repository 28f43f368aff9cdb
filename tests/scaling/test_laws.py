"""Laws of time, on grids whose laws are known: terms, fits, and how sure they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import t as student

from tinyllama_tools.stats.laws import GridPoint, LawRefusedError, check_held_out, fit_time_law

LENGTHS = (64, 128, 256, 512)
SIZES = tuple(product((2, 4, 8, 16), LENGTHS))
Grid = list[GridPoint]
# launch, a token, a token and token of the sequence
TRUTH = (10e-3, 64e-6, 117e-9)
NO_SQUARE = (10e-3, 64e-6, 0.0)


def time_grid(
    truth: Sequence[float],
    noise: float = 0.0,
    seed: int = 0,
    sizes: Sequence[tuple[int, int]] = SIZES,
    rounds: int = 3,
    shift: float = 0.0,
) -> Grid:
    """Seconds. Standard deviations of logarithms: `noise` of every cell of a round, `shift` of a
    round, the same for all of its cells."""
    generator = np.random.default_rng(seed)
    common = shift * np.random.default_rng([seed, rounds]).standard_normal(rounds)
    points = []
    for b, s in sizes:
        factors = np.exp(common + noise * generator.standard_normal(rounds))
        exact = truth[0] + b * s * (truth[1] + s * truth[2])
        points.append(GridPoint(b, s, tuple(exact * factors)))
    return points


def slowed(points: Grid, factor: Callable[[GridPoint], float]) -> Grid:
    return [GridPoint(p.batch, p.seq, tuple(factor(p) * v for v in p.rounds)) for p in points]


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([], "0 sizes: 3 coefficients .launch, linear, quadratic. need at least 4"),
        ([(8, 128)] * 5, "1 size: 3 coefficients"),
        ([(4, 128), (8, 128), (16, 128), (32, 128)], "too alike"),
        (SIZES, "the best is off by"),
    ],
)
def test_what_supports_no_law_is_refused(sizes: list[tuple[int, int]], reason: str) -> None:
    wild = slowed(time_grid(TRUTH, sizes=sizes), lambda p: 1e3 if p.seq == 128 else 1.0)
    with pytest.raises(LawRefusedError, match=reason):
        fit_time_law(wild)


def test_laws_come_back_from_exact_values() -> None:
    points = time_grid(TRUTH)
    law, there = fit_time_law(points), 10e-3 + 300 * 64e-6 + 30000 * 117e-9
    assert law.interval(3, 100) == pytest.approx((there, there))
    assert law.formula == "time = 10 ms + 64 us x B S + 117 ns x B S²"
    # the median of the rounds counts
    slow = [GridPoint(p.batch, p.seq, (*p.rounds[:2], 9 * p.rounds[2])) for p in points]
    assert [of.value for of in fit_time_law(slow).coefficients] == pytest.approx(TRUTH)
    # work that is not there: the best unconstrained law would have less than none
    law = fit_time_law([GridPoint(b, s, (1e-2 + 1e-5 * b * s**0.6,)) for b, s in SIZES])
    assert law.coefficients[2][1:3] == (0, 0) and "B S²" not in law.formula


LAWS = (TRUTH, NO_SQUARE, (10e-3, 64e-6, 30e-9), (1e-4, 64e-6, 117e-9))
LAWS += ((1e-3, 0.0, 117e-9), (0.05, 0.0, 0.0))
# noise of a cell, of a round, and rounds
NOISES = ((0.02, 0.0, 3), (0.1, 0.0, 3), (0.1, 0.0, 1), (0.02, 0.05, 2), (0.1, 0.05, 5))
SHORT = ((TRUTH, 0.02, 0.05, 2), (NO_SQUARE, 0.1, 0.0, 3), (LAWS[5], 0.1, 0.0, 3))
SHORT += ((TRUTH, 0.02, 0.05, 1),)


@pytest.mark.parametrize(
    ("truth", "noise", "shift", "rounds", "grids"),
    [
        *((*of, 40) for of in SHORT),
        *(pytest.param(law, *of, 300, marks=pytest.mark.long) for law in LAWS for of in NOISES),
    ],
)
def test_intervals_hold_coefficients_new_rounds_and_what_is_held_out(
    truth: tuple[float, ...], noise: float, shift: float, rounds: int, grids: int
) -> None:
    coefficients, coming, held = [], [], []
    for seed in range(grids):
        points = time_grid(truth, noise, seed, rounds=rounds, shift=shift)
        law = fit_time_law(points)
        true = zip(law.coefficients, truth, strict=True)
        coefficients += [of.low <= value <= of.high for of, value in true]
        for point in time_grid(truth, noise, 10_000 + seed, rounds=rounds, shift=shift):
            low, high = law.interval(point.batch, point.seq)
            coming.append(low <= point.value <= high)
        held += check_held_out(points)
    assert np.mean([cell.is_covered for cell in held]) >= 0.9
    if shift and rounds == 1:
        # one round says nothing of others, and must not: most of new ones lie outside
        assert np.mean(coming) < 0.7
        return
    assert np.mean(coefficients) >= 0.9
    assert np.mean(coming) >= 0.9
    if not shift:
        # of a cell's median over rounds, for normal values
        a_cell = 100 * 4.3 * noise * (0.67 if rounds == 3 else 1)
        # a term that the smaller sizes hide is a drift for their law
        assert 0.9 * a_cell < np.median([cell.width_percent for cell in held]) < 5 * a_cell
        assert np.median([abs(cell.error_percent) for cell in held]) < a_cell / 2


def test_ranges_are_students_of_scatter_and_of_shifts() -> None:
    # five cells, so two degrees of freedom; the fit and its errors by scipy
    points = time_grid(TRUTH, 0.01, 1, ((2, 64), (4, 128), (8, 256), (16, 512), (4, 512)), 1)
    law = fit_time_law(points)
    rows = np.array([(1, p.tokens, p.tokens * p.seq) / np.array(p.value) for p in points])
    found, covariance = curve_fit(lambda x, *of: x @ of, rows, np.ones(5), TRUTH)
    variance, quantile = ((rows @ found - 1) ** 2).sum() / 2, student.ppf(0.975, 2)
    for of, best, around in zip(law.coefficients, found, covariance.diagonal(), strict=True):
        assert (of.value, of.high) == pytest.approx((best, best + quantile * around**0.5), rel=1e-4)
    (p, row), value = (points[4], rows[4]), law.at(4, 512)
    off = quantile * (variance + row @ covariance @ row * (p.value / value) ** 2) ** 0.5
    assert law.interval(4, 512)[1] == pytest.approx(value * np.exp(off), rel=1e-4)
    # two rounds, one degree of freedom: of medians of the old ones and of the new
    exact = [GridPoint(p.batch, p.seq, (p.value, 1.1 * p.value)) for p in time_grid(TRUTH)]
    law, deviation = fit_time_law(exact), np.log(1.1) / 2**0.5
    off = student.ppf(0.975, 1) * deviation * (2 * np.pi / 2 / 2) ** 0.5
    assert law.interval(8, 128)[1] == pytest.approx(law.at(8, 128) * np.exp(off), rel=1e-4)


def test_beyond_the_sizes_the_drift_of_smaller_laws_counts_by_the_octave() -> None:
    # kept: up to 1024 tokens, (2, 512); held out: 2048 and 4096, 1.2 and 1.2^2 times what is exact
    exact = time_grid((1e-3, 64e-6, 0.0), sizes=tuple(product((1, 2, 4, 8), LENGTHS)))
    slower = slowed(exact, lambda p: 1.2 ** max(0.0, np.log2(p.tokens / 1024)))
    law = fit_time_law(slower)
    assert law.drift == pytest.approx(np.log(1.2))
    assert fit_time_law(exact).drift < 1e-6
    # within the sizes nothing changes; two octaves beyond the largest, 4096, it is there twice
    without = replace(law, drift=0.0)
    assert law.interval(4, 512) == without.interval(4, 512)
    low, high = without.interval(32, 512)
    assert law.interval(32, 512) == pytest.approx((low / 1.2**2, high * 1.2**2))


def test_cells_from_half_of_the_largest_on_are_held_out() -> None:
    # the largest is 16 x 512 = 8192
    wrong = {(8, 512): 1.25, (16, 256): 0.5, (16, 512): 1.0}
    points = slowed(time_grid(TRUTH, 1e-6), lambda p: wrong.get((p.batch, p.seq), 1.0))
    found = check_held_out(points)
    assert [(cell.point.batch, cell.point.seq) for cell in found] == list(wrong)
    # 1 / 1.25 - 1, 1 / 0.5 - 1, 0
    assert [cell.error_percent for cell in found] == pytest.approx([-20, 100, 0], abs=1e-2)
    assert [cell.is_covered for cell in found][:2] == [False, False]
    with pytest.raises(LawRefusedError, match=r"of the 2 sizes .* need at least 4"):
        check_held_out([points[0], points[1], points[-1]])
