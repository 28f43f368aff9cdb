"""Latency and bandwidth of collectives against known ones with noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from made_up_scaling import World
from tinyllama_tools.models.collectives import (
    AlphaBeta,
    FitRefusedError,
    fit_alpha_beta,
    ring_all_reduce,
    ring_reduce_scatter,
)
from tinyllama_tools.models.projection import Analysis

ALPHA, BANDWIDTH = 30e-6, 1.5e9
SIZES = [1024 * 4**i for i in range(9)]


def times(
    noise: float, seed: int = 0, of: Callable[[int], float] | None = None
) -> dict[int, float]:
    chance = random.Random(seed)
    exact = of or (lambda size: ALPHA + size / BANDWIDTH)
    return {size: exact(size) * math.exp(chance.gauss(0, noise)) for size in SIZES}


def fitted(noise: float, seed: int = 0) -> AlphaBeta:
    return fit_alpha_beta("all_reduce", 2, times(noise, seed))


def test_exact_times_give_back_what_made_them() -> None:
    fit = fitted(0.0)
    assert fit.alpha == pytest.approx(ALPHA, rel=1e-6)
    assert fit.bandwidth == pytest.approx(BANDWIDTH, rel=1e-6)
    assert fit.scatter < 1e-4
    assert fit.worst_held_out is not None and fit.worst_held_out < 1e-4
    assert (fit.sizes, fit.smallest, fit.largest) == (9, SIZES[0], SIZES[-1])


def test_the_intervals_hold_the_truth_as_often_as_they_say() -> None:
    draws = 200
    fits = [fitted(0.05, seed) for seed in range(draws)]
    alphas = sum(f.alpha_range.low <= ALPHA <= f.alpha_range.high for f in fits)
    rates = sum(f.bandwidth_range.low <= BANDWIDTH <= f.bandwidth_range.high for f in fits)
    # 190 expected; below 180 has a chance of 1 in 500 at 95 %
    assert min(alphas, rates) >= 180
    # and they are no wider than they need be
    assert max(alphas, rates) < draws


def test_held_out_sizes_are_off_by_the_noise() -> None:
    fit = fitted(0.05, seed=3)
    assert len(fit.held_out) == len(SIZES)
    assert fit.median_held_out is not None and 0.5 < fit.median_held_out < 15


def test_small_and_large_sizes_count_alike() -> None:
    """The largest size is 65,536 times the smallest; its error must not decide alone."""
    changed = times(0.0)
    changed[SIZES[-1]] *= 1.1
    fit = fit_alpha_beta("all_reduce", 2, changed)
    assert fit.alpha == pytest.approx(ALPHA, rel=0.03)


def test_too_few_sizes_are_refused() -> None:
    few = dict(list(times(0.0).items())[:2])
    with pytest.raises(FitRefusedError, match=r"all_reduce, 2 ranks: 2 sizes, at least 3"):
        fit_alpha_beta("all_reduce", 2, few)


@pytest.mark.parametrize(
    ("of", "term"),
    [
        (lambda size: 1e-3 + 1e-12 * (SIZES[-1] - size), "time a byte"),
        (lambda size: size**1.5 * 1e-12, "latency"),
    ],
)
def test_a_term_below_zero_is_refused(of: Callable[[int], float], term: str) -> None:
    with pytest.raises(FitRefusedError, match=f"the fit has a {term} of -"):
        fit_alpha_beta("all_gather", 4, times(0.0, of=of))


def test_every_operation_of_a_run_is_fitted(weak: Analysis) -> None:
    found = {(fit.operation, fit.ranks): fit for fit in weak.fits}
    assert len(found) == 3 * 2
    for (operation, ranks), fit in found.items():
        model = ring_all_reduce if operation == "all_reduce" else ring_reduce_scatter
        for size in (0, 1 << 20):
            exact = model(ranks, size, World().link)
            assert fit.seconds(size) == pytest.approx(exact, rel=0.1)
    assert weak.refused == ()
