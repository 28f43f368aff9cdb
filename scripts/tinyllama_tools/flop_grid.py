"""The dimensions at which FLOPs are counted: a grid of small ones, and the named problem sizes."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

PROBLEM_SIZES = Path(__file__).resolve().parents[2] / "fixtures/problem_sizes.json"

HIDDEN_DIMS = (32, 64, 96, 128)
# (n_heads, n_kv_heads): as many, grouped by 2, 4 and 8, a single one
HEADS = (
    (1, 1),
    (2, 2),
    (2, 1),
    (4, 4),
    (4, 2),
    (4, 1),
    (8, 8),
    (8, 4),
    (8, 2),
    (8, 1),
    (16, 4),
)
# Each is gone through in turn; the lengths share no divisor, so values do not pair up.
INTERMEDIATE_DIMS = (43, 64, 85, 129, 171)
VOCAB_SIZES = (31, 64, 77, 90, 101, 200, 257)
LAYERS = (1, 2, 3)
BATCHES = (1, 2, 3, 4)
SEQS = (2, 7, 16, 33, 64, 5, 31, 48, 17, 12, 63, 3, 20)


def small_sizes() -> dict[str, dict[str, int]]:
    """44 sizes that a processor runs in milliseconds, by name."""
    sizes = {}
    for i, (hidden_dim, (n_heads, n_kv_heads)) in enumerate(product(HIDDEN_DIMS, HEADS)):
        sizes[f"grid_{i:02d}"] = {
            "vocab_size": VOCAB_SIZES[i % len(VOCAB_SIZES)],
            "hidden_dim": hidden_dim,
            "n_layers": LAYERS[i % len(LAYERS)],
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads,
            "intermediate_dim": INTERMEDIATE_DIMS[i % len(INTERMEDIATE_DIMS)],
            "batch": BATCHES[i % len(BATCHES)],
            "seq": SEQS[i % len(SEQS)],
        }
    return sizes


def named_sizes() -> dict[str, dict[str, int]]:
    """The named problem sizes at their own batch and seq."""
    return json.loads(PROBLEM_SIZES.read_text())
