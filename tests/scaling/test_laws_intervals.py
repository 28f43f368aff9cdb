"""How sure a law is: intervals and held-out cells."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import nnls
from synthetic_grids import SIZES, time_grid

from tinyllama_tools.stats.law_fits import (
    check_held_out,
    drawn_shifts,
    fit_time_law,
    non_negative_solutions,
    round_shifts,
)
from tinyllama_tools.stats.laws import LAUNCH, LINEAR, GridPoint, LawRefusedError, RangeKind

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
    law = replace(fit_time_law(time_grid((10e-3, 64e-6, 0), NOISE, seed=8)), drift=0.0)
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


def test_shifts_of_rounds_are_what_all_cells_have_in_common() -> None:
    # 1, 1 and e^0.3 times: around their mean -0.1, -0.1, 0.2
    quiet = time_grid(TRUTH, 0.001)
    drifting = [
        GridPoint(p.batch, p.seq, (*p.rounds[:2], p.rounds[2] * np.exp(0.3))) for p in quiet
    ]
    # a few cells that were disturbed in one round do not move it
    drifting[3] = GridPoint(2, 512, tuple(np.array(drifting[3].rounds) * (1, 9, 1)))
    assert round_shifts(drifting) == pytest.approx([-0.1, -0.1, 0.2], abs=3e-3)
    assert round_shifts(time_grid(TRUTH, NOISE, rounds=1)) == pytest.approx([0])


def test_shifts_of_two_rounds_are_drawn_as_the_t_distribution_has_them() -> None:
    # of two rounds the median is the mean: new less old is t s sqrt(2 / 2) with one degree
    shifts = np.array([-0.01, 0.01])
    was, will_be = drawn_shifts(shifts, np.random.default_rng(1))
    scaled = (will_be - was) / shifts.std(ddof=1)
    for share in (0.6, 0.75, 0.9):
        assert np.quantile(scaled, share) == pytest.approx(stats.t.ppf(share, 1), rel=0.15)


def test_a_slow_round_widens_every_interval() -> None:
    # means in place of medians: t of two degrees, 4.3, x sqrt(2 / 3) x s of 0, 0 and 0.03
    quiet = time_grid(TRUTH, 0.001)
    drifting = [
        GridPoint(p.batch, p.seq, (*p.rounds[:2], p.rounds[2] * np.exp(0.03))) for p in quiet
    ]
    reach = 2 * 4.3 * np.sqrt(2 / 3) * 0.03 / np.sqrt(3)
    low, high = fit_time_law(drifting).interval(8, 256)
    assert reach < (high - low) / high < 1.5 * reach
    low, high = fit_time_law(quiet).interval(8, 256)
    assert (high - low) / high < 0.02


def share_of_new_rounds(rounds: int, noise: float, shift: float, grids: int) -> float:
    """Of the medians of as many new rounds, each with shifts of its own, that intervals hold."""
    inside = []
    for seed in range(grids):
        law = fit_time_law(time_grid(TRUTH, noise, seed, rounds=rounds, shift=shift))
        for point in time_grid(TRUTH, noise, 10_000 + seed, rounds=rounds, shift=shift):
            low, high = law.interval(point.batch, point.seq)
            inside.append(float(low <= point.value <= high))
    return statistics.mean(inside)


@pytest.mark.parametrize("rounds", [2, 3])
def test_intervals_hold_what_new_rounds_give(rounds: int) -> None:
    assert share_of_new_rounds(rounds, 0.02, 0.05, grids=40) >= 0.9


@pytest.mark.long
@pytest.mark.parametrize(("noise", "shift"), [(0.02, 0.0), (0.02, 0.05), (0.1, 0.05)])
@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_intervals_hold_what_new_rounds_give_in_300_grids(
    rounds: int, noise: float, shift: float
) -> None:
    assert share_of_new_rounds(rounds, noise, shift, grids=300) >= 0.94


def test_one_round_says_nothing_of_others() -> None:
    # and it must not: most of new rounds lie outside
    law = fit_time_law(time_grid(TRUTH, 0.02, rounds=1, shift=0.05))
    assert law.range_kind is RangeKind.ONE_ROUND
    assert "95 %" not in law.range_kind.short + law.range_kind.of_values
    assert share_of_new_rounds(1, 0.02, 0.05, grids=40) < 0.7
    assert fit_time_law(time_grid(TRUTH, 0.02)).range_kind is RangeKind.NEW_ROUNDS


def test_beyond_the_sizes_the_drift_of_smaller_laws_counts() -> None:
    # 15 % slower an octave from 512 tokens on, which no term is like
    def slower(point: GridPoint) -> GridPoint:
        factor = 1.15 ** max(0.0, np.log2(point.tokens / 512))
        return GridPoint(point.batch, point.seq, tuple(factor * v for v in point.rounds))

    plain = time_grid((1e-3, 64e-6, 0.0), 0.01)
    law = fit_time_law([slower(p) for p in plain], terms=(LAUNCH, LINEAR))
    assert 0.05 < law.drift < 0.3
    still = fit_time_law(plain, terms=(LAUNCH, LINEAR))
    assert still.drift < 0.02
    # within the sizes nothing changes; two octaves beyond the largest, 8192, it is there twice
    inside, beyond = law.interval(8, 512), law.interval(64, 512)
    without = replace(law, drift=0.0)
    assert inside == without.interval(8, 512)
    low, high = without.interval(64, 512)
    assert beyond == pytest.approx((low / np.exp(2 * law.drift), high * np.exp(2 * law.drift)))


def test_drift_is_by_the_octave() -> None:
    # kept: up to 1024 tokens, (2, 512); held out: 2048 and 4096, 1.2 and 1.2^2 times what is exact
    sizes = [(b, s) for b in (1, 2, 4, 8) for s in (64, 128, 256, 512)]
    exact = time_grid((1e-3, 64e-6, 0.0), sizes=sizes)
    points = [
        GridPoint(
            p.batch, p.seq, tuple(v * 1.2 ** max(0.0, np.log2(p.tokens / 1024)) for v in p.rounds)
        )
        for p in exact
    ]
    assert fit_time_law(points, terms=(LAUNCH, LINEAR)).drift == pytest.approx(np.log(1.2))


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
    # a cell's noise alone takes 30 %; what smaller laws were off by, by chance, the rest
    assert 25 < found.width < 80
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
    # a term that the smaller sizes hide is a drift for their law
    assert 0.9 * a_cell < found.width < 5 * a_cell
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


def times(point: GridPoint, factor: float) -> GridPoint:
    return GridPoint(point.batch, point.seq, tuple(factor * value for value in point.rounds))


def test_cells_from_half_of_the_largest_on_are_held_out() -> None:
    # the largest is 16 x 512 = 8192
    found = check_held_out(time_grid(TRUTH), fit_time_law)
    assert [(p.batch, p.seq) for p in found.held] == [(8, 512), (16, 256), (16, 512)]
    assert len(found.law.points) == len(SIZES) - 3
    assert not set(found.law.points) & set(found.held)
    assert found.median_percent == pytest.approx(0, abs=1e-6)


def test_errors_are_predicted_over_measured() -> None:
    points = time_grid(TRUTH, noise=1e-6)
    wrong = {(8, 512): 1.25, (16, 256): 0.5, (16, 512): 1.0}
    moved = [times(p, wrong.get((p.batch, p.seq), 1.0)) for p in points]
    found = check_held_out(moved, fit_time_law)
    # 1 / 1.25 - 1, 1 / 0.5 - 1, 0
    assert found.errors_percent == pytest.approx((-20, 100, 0), abs=1e-2)
    assert found.median_percent == pytest.approx(20, abs=1e-2)
    assert found.covered <= 1
    assert found.median_width_percent < 0.01


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([], "0 sizes: none to hold out"),
        ([(8, 128)], "of the 0 sizes that are not held out, 0 sizes: 3 coefficients"),
        ([(8, 16), (8, 32), (8, 128)], "of the 2 sizes .* need at least 3"),
    ],
)
def test_too_few_kept_cells_are_refused(sizes: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        check_held_out(time_grid(TRUTH, sizes=sizes), fit_time_law)
