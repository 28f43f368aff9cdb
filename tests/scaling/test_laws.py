"""Laws of time, on grids whose laws are known: terms, fits, and how sure they are."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

from tinyllama_tools.stats.laws import (
    BASE,
    LINEAR,
    Fit,
    GridPoint,
    Law,
    LawRefusedError,
    check_held_out,
    fit_time_law,
    non_negative_solutions,
)

LENGTHS = (64, 128, 256, 512)
SIZES = tuple((batch, seq) for batch in (2, 4, 8, 16) for seq in LENGTHS)
Grid = list[GridPoint]
# launch, a token, a token and token of the sequence
TRUTH = (10e-3, 64e-6, 117e-9)
NOISE = 0.1


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


def grid(of: Callable[[int, int], float], sizes: Sequence[tuple[int, int]] = SIZES) -> Grid:
    """One round."""
    return [GridPoint(b, s, (float(of(b, s)),)) for b, s in sizes]


def scaled(points: Grid, factor: Callable[[GridPoint], float]) -> Grid:
    return [GridPoint(p.batch, p.seq, tuple(factor(p) * v for v in p.rounds)) for p in points]


def values(law: Law) -> list[float]:
    return [c.value for c in law.coefficients]


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_the_solver_agrees_with_that_of_scipy(terms: int) -> None:
    generator = np.random.default_rng(terms)
    rows = generator.uniform(size=(10, terms))
    targets = generator.standard_normal((60, 10)) + 0.3
    expected = np.array([nnls(rows, target)[0] for target in targets])
    assert (expected == 0).any() and (expected > 0).any()
    assert non_negative_solutions(rows, targets) == pytest.approx(expected, abs=1e-12)


def test_fits_by_hand() -> None:
    # errors are relative: minimum of (1 - x)^2 + (1 - x / 2)^2 at x = (1 + 1/2) / (1 + 1/4)
    fit = Fit(grid(lambda _, s: s, [(1, 1), (1, 2)]), (BASE,), is_bounded=True)
    assert fit.coefficients == pytest.approx([1.2])
    assert fit.residuals == pytest.approx([-0.2, 0.4])
    line = grid(lambda _, s: 2 * s - 1, [(1, 1), (1, 2), (1, 3)])
    free, bounded = (Fit(line, (BASE, LINEAR), is_bounded=of) for of in (False, True))
    assert free.coefficients == pytest.approx([-1.0, 2.0])
    # of (1 - x)^2 + (1 - 2 x / 3)^2 + (1 - 3 x / 5)^2
    assert bounded.coefficients == pytest.approx([0, (1 + 2 / 3 + 3 / 5) / (1 + 4 / 9 + 9 / 25)])


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([], "0 sizes: 3 coefficients .launch, linear, quadratic. need at least 4"),
        ([(8, 128)] * 5, "1 size: 3 coefficients"),
        ([(4, 128), (8, 128), (16, 128), (32, 128)], "too alike"),
    ],
)
def test_too_few_or_alike_sizes_are_refused(sizes: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        fit_time_law(time_grid(TRUTH, sizes=sizes))


def test_values_without_any_law_are_refused() -> None:
    scattered = {(1, 64): 1e-6, (2, 128): 1.0, (4, 32): 1e-3, (8, 256): 1e-9}
    with pytest.raises(LawRefusedError, match="the best is off by"):
        fit_time_law(grid(lambda b, s: scattered[b, s], [*scattered]))


def test_laws_come_back_from_exact_values() -> None:
    points = time_grid(TRUTH)
    # the median of the rounds counts
    slow = [GridPoint(p.batch, p.seq, (*p.rounds[:2], 9 * p.rounds[2])) for p in points]
    assert values(fit_time_law(slow)) == pytest.approx(TRUTH)
    law = fit_time_law(points)
    assert values(law) == pytest.approx(TRUTH)
    assert max(map(abs, law.residuals_percent)) < 1e-9
    assert law.at(3, 100) == pytest.approx(10e-3 + 300 * 64e-6 + 30000 * 117e-9)
    assert law.interval(3, 100) == pytest.approx((law.at(3, 100), law.at(3, 100)))
    assert law.formula == "time = 10 ms + 64 us x B S + 117 ns x B S²"
    # work that is not there: the best unconstrained law would have less than none
    law = fit_time_law(grid(lambda b, s: 1e-2 + 1e-5 * b * s**0.6))
    assert law.coefficients[2][1:3] == (0, 0) and "B S²" not in law.formula


# standard deviation of a median of three, over that of one (normal values)
MEDIAN_OF_THREE = 0.67


def test_a_slow_round_and_the_seed_are_in_the_interval() -> None:
    quiet = time_grid(TRUTH, 0.001)
    slow = [GridPoint(p.batch, p.seq, (*p.rounds[:2], p.rounds[2] * 1.03)) for p in quiet]
    # a cell that was disturbed in one round does not move it
    slow[3] = GridPoint(2, 512, tuple(np.array(slow[3].rounds) * (1, 9, 1)))
    # of means, that of new rounds less that of old ones is t s sqrt(2 / 3), s of 0, 0 and 0.03 and
    # t of two degrees of freedom
    reach = 2 * 4.3 * np.sqrt(2 / 3) * 0.03 / np.sqrt(3)
    once, again, other = (fit_time_law(slow, seed=seed).interval(8, 256) for seed in (1, 1, 2))
    assert reach < (once[1] - once[0]) / once[1] < 1.5 * reach
    assert once == again != other
    assert once == pytest.approx(other, rel=0.1)


def share_of_new_rounds(rounds: int, noise: float, shift: float, grids: int) -> float:
    """Of the medians of as many new rounds, each with shifts of its own, that intervals hold."""
    inside = []
    for seed in range(grids):
        law = fit_time_law(time_grid(TRUTH, noise, seed, rounds=rounds, shift=shift))
        for point in time_grid(TRUTH, noise, 10_000 + seed, rounds=rounds, shift=shift):
            low, high = law.interval(point.batch, point.seq)
            inside.append(float(low <= point.value <= high))
    return statistics.mean(inside)


def often(*arguments: object) -> object:
    """A case that takes minutes: 300 grids."""
    return pytest.param(*arguments, 300, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("rounds", "noise", "shift", "grids"),
    [
        *((rounds, 0.02, 0.05, 40) for rounds in (1, 2, 3)),
        *(often(rounds, *of) for rounds in (2, 3, 5) for of in ((0.02, 0.0), (NOISE, 0.05))),
    ],
)
def test_intervals_hold_what_new_rounds_give(
    rounds: int, noise: float, shift: float, grids: int
) -> None:
    share = share_of_new_rounds(rounds, noise, shift, grids)
    # one round says nothing of others, and must not: most of new ones lie outside
    assert share < 0.7 if rounds == 1 else share >= (0.94 if grids == 300 else 0.9)


def test_beyond_the_sizes_the_drift_of_smaller_laws_counts_by_the_octave() -> None:
    # kept: up to 1024 tokens, (2, 512); held out: 2048 and 4096, 1.2 and 1.2^2 times what is exact
    exact = time_grid((1e-3, 64e-6, 0.0), sizes=[(b, s) for b in (1, 2, 4, 8) for s in LENGTHS])
    slower = scaled(exact, lambda p: 1.2 ** max(0.0, np.log2(p.tokens / 1024)))
    law = fit_time_law(slower)
    assert law.drift == pytest.approx(np.log(1.2))
    assert fit_time_law(exact).drift < 1e-6
    # within the sizes nothing changes; two octaves beyond the largest, 4096, it is there twice
    without = replace(law, drift=0.0)
    assert law.interval(4, 512) == without.interval(4, 512)
    low, high = without.interval(32, 512)
    assert law.interval(32, 512) == pytest.approx((low / 1.2**2, high * 1.2**2))


LAWS = [TRUTH, (10e-3, 64e-6, 0.0), (10e-3, 64e-6, 30e-9), (1e-4, 64e-6, 117e-9)]
LAWS += [(1e-3, 0.0, 117e-9), (0.05, 0.0, 0.0)]


@pytest.mark.parametrize(
    ("truth", "noise", "rounds", "grids"),
    [
        *((truth, NOISE, 3, 40) for truth in LAWS[:3]),
        *(often(*of) for of in itertools.product(LAWS, (0.02, NOISE), (1, 3))),
    ],
)
def test_intervals_hold_what_is_held_out(
    truth: tuple[float, ...], noise: float, rounds: int, grids: int
) -> None:
    found = [
        cell
        for seed in range(grids)
        for cell in check_held_out(time_grid(truth, noise, seed, rounds=rounds))
    ]
    assert sum(cell.is_covered for cell in found) >= 0.9 * len(found)
    a_cell = 100 * 4.3 * noise * (MEDIAN_OF_THREE if rounds == 3 else 1)
    # a term that the smaller sizes hide is a drift for their law
    assert 0.9 * a_cell < statistics.median(cell.width_percent for cell in found) < 5 * a_cell
    assert statistics.median(abs(cell.error_percent) for cell in found) < a_cell / 2


@pytest.mark.parametrize(
    ("truth", "grids"), [(LAWS[5], 40), (LAWS[1], 40), *((often(law)) for law in LAWS)]
)
def test_intervals_hold_coefficients(truth: tuple[float, ...], grids: int) -> None:
    laws = [fit_time_law(time_grid(truth, NOISE, seed)) for seed in range(grids)]
    pairs = [(c, true) for law in laws for c, true in zip(law.coefficients, truth, strict=True)]
    assert statistics.mean(c.low <= true <= c.high for c, true in pairs) >= 0.9


def test_cells_from_half_of_the_largest_on_are_held_out() -> None:
    # the largest is 16 x 512 = 8192
    wrong = {(8, 512): 1.25, (16, 256): 0.5, (16, 512): 1.0}
    points = scaled(time_grid(TRUTH, 1e-6), lambda p: wrong.get((p.batch, p.seq), 1.0))
    found = check_held_out(points)
    assert [(cell.point.batch, cell.point.seq) for cell in found] == list(wrong)
    # 1 / 1.25 - 1, 1 / 0.5 - 1, 0
    assert [cell.error_percent for cell in found] == pytest.approx([-20, 100, 0], abs=1e-2)
    assert [cell.is_covered for cell in found][:2] == [False, False]
    wide = replace(found[0], value=1.0, low=0.5, high=2.5)
    assert wide.width_percent == 200 and found[0].width_percent < 0.01
    few = time_grid(TRUTH, sizes=[(8, 16), (8, 32), (8, 128)])
    with pytest.raises(LawRefusedError, match=r"of the 2 sizes .* need at least 4"):
        check_held_out(few)
