"""Proofs that the float64 oracle is float64, and that its rotary angles are the package's."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tinyllama_tools.check import Check, Errors
from tinyllama_tools.golden_cases import GOLDEN_CASES, draw_case
from tinyllama_tools.golden_values import F64_FILE, GOLDEN_FOLDER, evaluate, float64_model
from tinyllama_tools.oracle import Float64Mode, llama_config, rotary_tables
from tinyllama_tools.tensor_difference import worst_difference

FLOAT32_EPS = 2.0**-23
MAX_POSITIONS = 2048


class _Float32Results(TorchDispatchMode):
    """Notes which operators answer in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.errors = Errors()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 -- an OpOverload, whose type torch keeps to itself
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        results = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        narrow = sum(tensor.dtype is torch.float32 for tensor in tensors)
        self.errors.add(narrow, str(func))
        return results


def check_no_float32() -> Check:
    """Under Float64Mode no operator, forward or backward, gives a float32 result."""
    results = _Float32Results()
    for size in GOLDEN_CASES.values():
        weights, inputs = draw_case(size)
        model = float64_model(size, weights)
        with results, Float64Mode():
            evaluate(model, inputs)
    return results.errors.check(
        "float32 results among the float64 oracle's operators", "none allowed", tolerance=0
    )


def check_narrowing() -> Check:
    """The mode changes roundings, not formulas: without it the float64 model narrows to float32."""
    errors = Errors()
    for case, size in GOLDEN_CASES.items():
        weights, inputs = draw_case(size)
        narrowed = evaluate(float64_model(size, weights), inputs)
        wide = load_file(GOLDEN_FOLDER / case / F64_FILE)
        difference = worst_difference(
            {name: wide[name] for name in narrowed},
            # without the mode, the loss is float32
            {name: tensor.to(torch.float64) for name, tensor in narrowed.items()},
        )
        errors.add(difference.relative, f"{case}: {difference.tensor}", len(narrowed))
    return errors.check(
        "float64 oracle", "the same with the package's own float32 in norm, softmax, loss", 2e-6
    )


def check_rotary() -> Check:
    """Our angles against the untouched module's: the same but for their own float32 roundings."""
    errors = Errors()
    positions = torch.arange(MAX_POSITIONS)
    for head_dim in (16, 32, 64, 128):
        size = {"vocab_size": 1, "hidden_dim": 2 * head_dim, "intermediate_dim": 1}
        config = llama_config(size | {"n_layers": 1, "n_heads": 2, "n_kv_heads": 1})
        theirs = LlamaRotaryEmbedding(config)(torch.empty(0), positions[None])
        their_cos, their_sin = (table[0].to(torch.float64) for table in theirs)
        ours = rotary_tables(head_dim, MAX_POSITIONS)
        our_cos, our_sin = (table.to(torch.float64) for table in ours)
        # the sine of the angle between the two
        between = (our_cos * their_sin - our_sin * their_cos).abs()
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64).repeat(2) / head_dim
        angles = positions[:, None] * torch.pow(config.rope_theta, -exponents)
        ulps = between / (FLOAT32_EPS * angles.clamp(min=1.0))
        errors.add(ulps.max().item(), f"head_dim {head_dim}", ulps.numel())
    return errors.check(
        f"rotary angles at positions below {MAX_POSITIONS}, in float32 eps of the angle",
        "LlamaRotaryEmbedding, untouched",
        tolerance=4.0,
    )
