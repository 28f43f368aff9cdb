"""Simulated families of cases, as the judge takes them, with or without a slowdown.

The scenarios are those of `scripts/compare calibrate --simulate`, and one more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tinyllama_tools.calibrate.rates import BETWEEN, SCENARIOS, WITHIN, Shape
from tinyllama_tools.stats.rank_tests import Block, BlockSummary, summarise_pairs

Array = NDArray[np.float64]
Rows = tuple[Array, Array]
SECONDS = 0.01


def autocorrelated(rng: np.random.Generator, shape: Shape) -> Array:
    """Slices remember the one before (0.9), so that a block's pairs promise more than they know."""
    cases, blocks, pairs = shape
    noise = rng.normal(0, WITHIN, (2, *shape))
    for pair in range(1, pairs):
        noise[..., pair] = 0.9 * noise[..., pair - 1] + math.sqrt(1 - 0.81) * noise[..., pair]
    return noise + rng.normal(0, BETWEEN / 4, (2, cases, blocks, 1))


ALL_SCENARIOS = {**SCENARIOS, "autocorrelated": autocorrelated}


def seconds(rng: np.random.Generator, scenario: str, shape: Shape, slowdown: float = 0) -> Rows:
    """Of the base's and the new's slices, as (cases, blocks, pairs); `slowdown`: a fraction."""
    base, new = ALL_SCENARIOS[scenario](rng, shape)
    return SECONDS * np.exp(base), SECONDS * (1 + slowdown) * np.exp(new)


def simulated_family(
    rng: np.random.Generator, scenario: str, shape: Shape, slowdown: float = 0
) -> Rows:
    """Log-ratios and standard errors, as (cases, blocks) each; every case has the slowdown."""
    base, new = (s.reshape(-1, shape[2]) for s in seconds(rng, scenario, shape, slowdown))
    log_ratios, errors = summarise_pairs(base, new)
    return log_ratios.reshape(shape[:2]), errors.reshape(shape[:2])


def simulated_families(
    families: int, scenario: str, shape: Shape, *, slowdown: float = 0, seed: int = 0
) -> Iterator[Rows]:
    """That many of them, one after the other; the seed belongs to all."""
    rng = np.random.default_rng([seed, *scenario.encode()])
    for _ in range(families):
        yield simulated_family(rng, scenario, shape, slowdown)


def simulated_blocks(
    scenario: str, blocks: int, *, pairs: int = 8, slowdown: float = 0, seed: int = 0
) -> list[Block]:
    """Blocks of a single case, slice by slice."""
    rng = np.random.default_rng([seed, *scenario.encode()])
    base, new = seconds(rng, scenario, (1, blocks, pairs), slowdown)
    return [
        Block(tuple(b), tuple(n)) for b, n in zip(base[0].tolist(), new[0].tolist(), strict=True)
    ]


def summaries(
    log_ratios: Array, *, error: float = 0.001, base_seconds: float = SECONDS
) -> list[BlockSummary]:
    """Blocks of one case with exactly these log-ratios."""
    return [
        BlockSummary(ratio, error, base_seconds, base_seconds * math.exp(ratio))
        for ratio in np.asarray(log_ratios, dtype=float).tolist()
    ]
