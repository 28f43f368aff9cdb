"""Grids of batch and sequence whose laws are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.stats.laws import MEMORY_TERMS, TIME_TERMS, GridPoint, Term

BATCHES = (2, 4, 8, 16)
LENGTHS = (64, 128, 256, 512)
SIZES = tuple((batch, seq) for batch in BATCHES for seq in LENGTHS)
ROUNDS = 3


def law_value(terms: Sequence[Term], coefficients: Sequence[float], batch: int, seq: int) -> float:
    """Sum of coefficient x B^b x S^s, written without the code under test."""
    pairs = zip(terms, coefficients, strict=True)
    return sum(c * batch**term.batch_power * seq**term.seq_power for term, c in pairs)


def time_grid(
    coefficients: Sequence[float],
    noise: float = 0.0,
    seed: int = 0,
    sizes: Sequence[tuple[int, int]] = SIZES,
    rounds: int = ROUNDS,
    shift: float = 0.0,
) -> list[GridPoint]:
    """Seconds. Standard deviations of logarithms: `noise` of every cell of a round, `shift` of a
    round, the same for all of its cells.
    """
    generator = np.random.default_rng(seed)
    common = shift * np.random.default_rng([seed, rounds]).standard_normal(rounds)
    return [
        GridPoint(
            batch,
            seq,
            tuple(
                law_value(TIME_TERMS, coefficients, batch, seq)
                * np.exp(common + noise * generator.standard_normal(rounds))
            ),
        )
        for batch, seq in sizes
    ]


def memory_grid(
    coefficients: Sequence[float], sizes: Sequence[tuple[int, int]] = SIZES
) -> list[GridPoint]:
    """Bytes; of the first terms, the others have none."""
    terms = MEMORY_TERMS[: len(coefficients)]
    return [GridPoint(b, s, (law_value(terms, coefficients, b, s),)) for b, s in sizes]


def step_peak(size: Mapping[str, int], batch: int, seq: int) -> float:
    """Bytes of a training step in float32, by its largest parts: the
    highest of three moments, which are the loss's logits, the first attention's backward and the
    update. Tables and masks are there throughout.
    """
    width, layers, heads = size["hidden_dim"], size["n_layers"], size["n_heads"]
    inner, vocabulary, tokens = size["intermediate_dim"], size["vocab_size"], batch * seq
    groups = size["n_heads"] // size["n_kv_heads"]
    parameters = 2 * vocabulary * width + layers * (3 * width * width + 3 * width * inner)
    scores = batch * heads * seq * seq
    kept = layers * (tokens * (8 * width + 4 * inner) + scores)
    moments = (
        parameters + kept + 4 * tokens * vocabulary,
        2 * parameters + tokens * (6 * width + inner) + kept - scores + 4 * scores,
        4 * parameters + vocabulary * width,
    )
    shared = 2 * seq * (width // heads) + groups * seq * seq
    return 4.0 * (max(moments) + parameters + shared)


def step_grid(size: str, batches: Sequence[int] = (1, 2, 4, 8)) -> list[GridPoint]:
    """Peaks of a size's step over the grid of scripts/study."""
    of = problem_sizes()[size]
    return [GridPoint(b, s, (step_peak(of, b, s),)) for b in batches for s in LENGTHS]
