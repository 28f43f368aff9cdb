"""The models of the golden files, their weights and their inputs.

Small, and each for something: grouped-query attention with 2 and 4 query heads a KV head, as many
KV heads as query heads, a single KV head; head_dim 16, 32, 64; sequences of 1, 7, 33; odd
vocabularies and intermediate sizes, so that nothing can hide behind a multiple of 8.
"""

from __future__ import annotations

import math

import torch

from tinyllama_tools.oracle import Size, build_model

SEED = 42
NORM_STD = 0.25
# Scores then have a standard deviation of about 2: attention is far from uniform, not saturated.
QUERY_KEY_GAIN = 1.5


def _size(
    heads: tuple[int, int, int], layers: int, intermediate: int, vocab: int, shape: tuple[int, int]
) -> dict[str, int]:
    """heads: (n_heads, n_kv_heads, head_dim); shape: (batch, seq)."""
    n_heads, n_kv_heads, head_dim = heads
    return {
        "vocab_size": vocab,
        "hidden_dim": n_heads * head_dim,
        "n_layers": layers,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "intermediate_dim": intermediate,
        "batch": shape[0],
        "seq": shape[1],
    }


GOLDEN_CASES: dict[str, dict[str, int]] = {
    "gqa_groups_2": _size((4, 2, 16), layers=2, intermediate=19, vocab=37, shape=(2, 7)),
    "gqa_groups_4": _size((8, 2, 16), layers=1, intermediate=13, vocab=19, shape=(1, 33)),
    "multi_head": _size((2, 2, 32), layers=1, intermediate=13, vocab=31, shape=(3, 7)),
    "single_kv_head": _size((2, 1, 64), layers=1, intermediate=9, vocab=17, shape=(2, 33)),
    "seq_1": _size((2, 1, 16), layers=1, intermediate=15, vocab=19, shape=(2, 1)),
}


def exact(values: torch.Tensor) -> torch.Tensor:
    """Rounded so that float16 and bfloat16 both hold the values: one file serves every type."""
    return values.to(torch.float16).to(torch.bfloat16)


def weight_std(name: str, shape: torch.Size) -> float:
    """1 / sqrt(fan in) keeps activations near 1; queries and keys are larger, embeddings are 1."""
    if "embed_tokens" in name:
        return 1.0
    gain = QUERY_KEY_GAIN if "q_proj" in name or "k_proj" in name else 1.0
    return gain / math.sqrt(shape[1])


def draw_weights(size: Size, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """bfloat16 weights by parameter name, in the order of the model's parameters.

    Norm weights are away from 1, so that a norm without its weight cannot pass. Drawn in float64,
    which torch does without vectorised functions: the same values on every processor.
    """
    weights = {}
    for name, parameter in build_model(size).named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        is_norm = parameter.dim() == 1
        values = 1.0 + NORM_STD * drawn if is_norm else drawn * weight_std(name, parameter.shape)
        weights[name] = exact(values)
    return weights


def draw_inputs(size: Size, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """`tokens` [B, S] int64; at S = 1 also `logits_gradient` [B, S, V] float64.

    A sequence of one token has no next one and so no loss: the objective is then
    sum(logits * logits_gradient).
    """
    shape = (size["batch"], size["seq"])
    inputs = {"tokens": torch.randint(0, size["vocab_size"], shape, generator=generator)}
    if size["seq"] == 1:
        gradient = torch.randn(
            (*shape, size["vocab_size"]), generator=generator, dtype=torch.float64
        )
        inputs["logits_gradient"] = exact(gradient).to(torch.float64)
    return inputs


def draw_case(size: Size) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights, then inputs, from one generator of the fixed seed."""
    generator = torch.Generator().manual_seed(SEED)
    weights = draw_weights(size, generator)
    return weights, draw_inputs(size, generator)
