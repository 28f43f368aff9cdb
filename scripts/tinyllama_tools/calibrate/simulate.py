"""Simulated blocks: what machines do to times, with no difference between the two sides.

Each scenario gives log seconds of an iteration as arrays (cases, blocks, pairs) for the two sides.
The sides are exchangeable by construction, so every verdict but `same` and `unclear` is false.
The noise is set so large that the margin alone protects from nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tinyllama_tools.calibrate.paired_blocks import Costs, PairedBlocks, from_slices
from tinyllama_tools.stats.looks import Block

Array = NDArray[np.float64]
Sides = tuple[Array, Array]
Shape = tuple[int, int, int]

# log seconds: between two processes of one program, and between neighbouring slices of one
BETWEEN = 0.08
WITHIN = 0.05


def _plain(rng: np.random.Generator, shape: Shape, between: Array | None = None) -> Sides:
    """Normal noise around each process's own level."""
    cases, blocks, _ = shape
    if between is None:
        between = rng.normal(0, BETWEEN, (2, cases, blocks, 1))
    slices = rng.normal(0, WITHIN, (2, *shape)) + between
    return slices[0], slices[1]


def drift(rng: np.random.Generator, shape: Shape) -> Sides:
    """The whole machine wanders, for all cases alike, and moves on within a pair."""
    cases, blocks, pairs = shape
    steps = rng.normal(0, 0.02, blocks * 2 * pairs)
    machine = np.cumsum(steps).reshape(1, blocks, pairs, 2)
    new_first = rng.integers(0, 2, shape).astype(bool)
    base, new = _plain(rng, shape)
    whole = np.broadcast_to(machine, (cases, blocks, pairs, 2))
    first, second = whole[..., 0], whole[..., 1]
    return base + np.where(new_first, second, first), new + np.where(new_first, first, second)


def spikes(rng: np.random.Generator, shape: Shape) -> Sides:
    """One slice in eight takes up to four times as long."""
    sides = _plain(rng, shape)
    hit = rng.random((2, *shape)) < 1 / 8
    extra = np.where(hit, rng.uniform(np.log(1.3), np.log(4), (2, *shape)), 0)
    return sides[0] + extra[0], sides[1] + extra[1]


def two_modes(rng: np.random.Generator, shape: Shape) -> Sides:
    """A process in three is 15 % slower for its whole life: where its memory came to lie."""
    cases, blocks, _ = shape
    slow = np.where(rng.random((2, cases, blocks, 1)) < 1 / 3, np.log(1.15), 0)
    return _plain(rng, shape, slow + rng.normal(0, 0.02, slow.shape))


def ties(rng: np.random.Generator, shape: Shape) -> Sides:
    """A clock so coarse that many ratios are equal, and many are 1."""
    base, new = _plain(rng, shape)
    return np.round(base / 0.05) * 0.05, np.round(new / 0.05) * 0.05


def heavy_tails(rng: np.random.Generator, shape: Shape) -> Sides:
    """Between processes and between slices: Student t with 1.5 degrees, no variance to speak of."""
    cases, blocks, _ = shape
    between = rng.standard_t(1.5, (2, cases, blocks, 1)) * BETWEEN / 2
    slices = between + rng.standard_t(1.5, (2, *shape)) * WITHIN / 2
    # no machine stalls for more than e^6 times an iteration
    bounded = np.clip(slices, -6, 6)
    return bounded[0], bounded[1]


def shared_noise(rng: np.random.Generator, shape: Shape) -> Sides:
    """What makes a process slow does so for all of its cases: the family errs together or not."""
    _, blocks, _ = shape
    return _plain(rng, shape, rng.normal(0, BETWEEN, (2, 1, blocks, 1)))


SCENARIOS: dict[str, Callable[[np.random.Generator, Shape], Sides]] = {
    "drift": drift,
    "spikes": spikes,
    "two modes": two_modes,
    "ties": ties,
    "heavy tails": heavy_tails,
    "shared noise": shared_noise,
}


def simulate(
    scenario: str, *, cases: int, blocks: int, pairs: int = 8, seed: int = 0
) -> PairedBlocks:
    """A/A blocks of a scenario; cases are called `case 0`, `case 1`, ... and last around 10 ms.

    A block costs a second and each case in it a quarter of one, as on a machine of two cores.
    Raises ValueError on a scenario that there is none of.
    """
    if scenario not in SCENARIOS:
        raise ValueError(f"scenario '{scenario}': must be one of {', '.join(SCENARIOS)}")
    rng = np.random.default_rng([seed, list(SCENARIOS).index(scenario)])
    base, new = SCENARIOS[scenario](rng, (cases, blocks, pairs))
    levels = 0.01 * np.exp(rng.normal(0, 0.5, cases))
    names = [f"case {number}" for number in range(cases)]
    slices = {
        name: [
            Block(tuple((level * np.exp(b)).tolist()), tuple((level * np.exp(n)).tolist()))
            for b, n in zip(base[at], new[at], strict=True)
        ]
        for at, (name, level) in enumerate(zip(names, levels, strict=True))
    }
    return from_slices(slices, Costs(1.0, dict.fromkeys(names, 0.25)))
