"""Intervals of laws: solver, draws, and how often they hold what is measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import nnls
from synthetic_grids import SIZES, memory_grid, time_grid

from tinyllama_tools.laws import GridPoint, check_held_out, fit_memory_law, fit_time_law
from tinyllama_tools.laws.bootstrap import round_shifts
from tinyllama_tools.laws.non_negative import non_negative_solutions

TRUTH = (10e-3, 64e-6, 117e-9)
NOISE = 0.1
# standard deviation of a median of three, over that of one (normal values)
MEDIAN_OF_THREE = 0.67


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_the_solver_agrees_with_that_of_scipy(terms: int) -> None:
    generator = np.random.default_rng(terms)
    rows = generator.uniform(size=(10, terms))
    targets = generator.standard_normal((60, 10)) + 0.3
    expected = np.array([nnls(rows, target)[0] for target in targets])
    assert (expected == 0).any()
    assert (expected > 0).any()
    assert non_negative_solutions(rows, targets) == pytest.approx(expected, abs=1e-12)


def test_the_same_seed_gives_the_same_intervals() -> None:
    points = time_grid(TRUTH, NOISE)
    once, again, other = (fit_time_law(points, seed=seed) for seed in (1, 1, 2))
    assert once.interval(32, 512) == again.interval(32, 512)
    assert once.interval(32, 512) != other.interval(32, 512)
    assert once.interval(32, 512) == pytest.approx(other.interval(32, 512), rel=0.1)
    assert once.at(32, 512) == other.at(32, 512)


def test_intervals_are_as_wide_as_the_noise() -> None:
    widths = []
    for noise in (0.01, 0.1):
        law = fit_time_law(time_grid(TRUTH, noise))
        low, high = law.interval(8, 256)
        widths.append((high - low) / law.at(8, 256))
    # 2 x 2.16 (t of 13 degrees of freedom) standard deviations, and some for the coefficients
    narrowest = 2 * 2.16 * MEDIAN_OF_THREE * NOISE
    assert 0.6 * narrowest < widths[1] < 2 * narrowest
    assert widths[1] / widths[0] == pytest.approx(10, rel=0.3)


def test_an_interval_allows_for_a_hidden_term_and_for_none() -> None:
    law = fit_time_law(time_grid((10e-3, 64e-6, 0), NOISE, seed=8))
    assert [c.supported for c in law.coefficients] == [True, True, False]
    none, hidden = (
        np.quantile(
            draws.coefficients @ np.array([1, 64 * 512, 64 * 512**2]) * np.exp(draws.noise),
            [0.025, 0.975],
        )
        for draws in law.draws
    )
    assert none[0] < 0.97 * hidden[0]
    assert hidden[1] > 1.03 * none[1]
    assert law.interval(64, 512) == pytest.approx((none[0], hidden[1]))


def test_a_slow_round_widens_every_interval_by_its_share() -> None:
    # 1, 1 and e^0.3 times: around their mean -0.1, -0.1, 0.2
    quiet = time_grid(TRUTH, 0.001)
    drifting = [
        GridPoint(p.batch, p.seq, (*p.rounds[:2], p.rounds[2] * np.exp(0.3))) for p in quiet
    ]
    assert round_shifts(drifting) == pytest.approx([-0.1, -0.1, 0.2], abs=3e-3)
    low, high = fit_time_law(drifting).interval(8, 256)
    assert (high - low) / high > 0.1
    low, high = fit_time_law(quiet).interval(8, 256)
    assert (high - low) / high < 0.02


def test_one_round_has_no_shift() -> None:
    assert round_shifts(time_grid(TRUTH, NOISE, rounds=1)) == pytest.approx([0])


def test_lack_of_fit_alone_makes_intervals() -> None:
    # a part that grows with S alone, which no term has: 5 % at most
    truth = (33e6, 0, 76e3, 155.0)
    exact = memory_grid(truth)
    off = [GridPoint(p.batch, p.seq, tuple(v + 4e3 * p.seq for v in p.rounds)) for p in exact]
    law = fit_memory_law(off)
    low, high = law.interval(8, 256)
    assert 0.002 < (high - low) / law.at(8, 256) < 0.1
    inside = [low <= p.value <= high for p in off for low, high in [law.interval(p.batch, p.seq)]]
    assert sum(inside) >= 15


@dataclass(frozen=True)
class Coverage:
    """Of the held-out cells of many grids; widths and errors in percent, medians over grids."""

    share: float
    width: float
    error: float


def coverage(truth: tuple[float, ...], noise: float, grids: int, rounds: int = 3) -> Coverage:
    checks = [
        check_held_out(time_grid(truth, noise, seed, rounds=rounds), fit_time_law)
        for seed in range(grids)
    ]
    cells = sum(len(check.held) for check in checks)
    return Coverage(
        sum(check.covered for check in checks) / cells,
        statistics.median(check.median_width_percent for check in checks),
        statistics.median(check.median_percent for check in checks),
    )


LAWS = [
    (10e-3, 64e-6, 117e-9),
    (10e-3, 64e-6, 0.0),
    (10e-3, 64e-6, 30e-9),
    (1e-4, 64e-6, 117e-9),
    (1e-3, 0.0, 117e-9),
    (0.05, 0.0, 0.0),
]


@pytest.mark.parametrize("truth", LAWS[:3])
def test_intervals_hold_what_is_held_out(truth: tuple[float, ...]) -> None:
    assert len(SIZES) == 16
    found = coverage(truth, NOISE, grids=40)
    assert found.share >= 0.9
    # a cell's noise alone takes 30 %
    assert 25 < found.width < 60
    assert found.error < 10


@pytest.mark.long
@pytest.mark.parametrize("noise", [0.02, NOISE])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("truth", LAWS)
def test_intervals_hold_what_is_held_out_in_300_grids(
    truth: tuple[float, ...], rounds: int, noise: float
) -> None:
    found = coverage(truth, noise, grids=300, rounds=rounds)
    assert found.share >= 0.9
    a_cell = 100 * 4.3 * noise * (MEDIAN_OF_THREE if rounds == 3 else 1)
    assert 0.9 * a_cell < found.width < 2.2 * a_cell
    assert found.error < a_cell / 2


@pytest.mark.long
@pytest.mark.parametrize("truth", LAWS)
def test_coefficients_lie_in_their_intervals_in_300_grids(truth: tuple[float, ...]) -> None:
    inside, supported, feigned = 0, 0, 0
    for seed in range(300):
        law = fit_time_law(time_grid(truth, NOISE, seed))
        for coefficient, true in zip(law.coefficients, truth, strict=True):
            feigned += coefficient.supported and true == 0
            if coefficient.supported and true > 0:
                supported += 1
                inside += coefficient.low <= true <= coefficient.high
    assert inside / supported >= 0.9
    # two terms at most are not there, each found at 2.5 %
    assert feigned / 300 <= 0.08


def test_the_coverage_of_intervals_that_are_too_narrow_shows() -> None:
    held = [check_held_out(time_grid(TRUTH, NOISE, seed), fit_time_law) for seed in range(20)]
    inside = 0
    for check in held:
        for point in check.held:
            low, high = check.law.interval(point.batch, point.seq)
            middle, half = (low + high) / 2, (high - low) / 8
            inside += abs(point.value - middle) < half
    assert inside / sum(len(check.held) for check in held) < 0.9
