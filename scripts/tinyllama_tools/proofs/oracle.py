"""LlamaForCausalLM of the transformers package: the oracle that our own model is compared with.

It is somebody else's code, used as it is. Two things are put around it, and neither changes its
formulas: `Float64Mode`, since it narrows to float32 in places whatever the type of its weights, and
`PortableRotary`, since float32 cosines differ in the last bit between processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import LlamaConfig, LlamaForCausalLM

NORM_EPS = 1e-5
ROPE_THETA = 10000.0
# Dimensions of a model by their names in fixtures/problem_sizes.json.
Size = Mapping[str, int]


def llama_config(size: Size) -> LlamaConfig:
    """The configuration of our model: untied head, no biases, eager attention."""
    return LlamaConfig(
        vocab_size=size["vocab_size"],
        hidden_size=size["hidden_dim"],
        intermediate_size=size["intermediate_dim"],
        num_hidden_layers=size["n_layers"],
        num_attention_heads=size["n_heads"],
        num_key_value_heads=size["n_kv_heads"],
        rms_norm_eps=NORM_EPS,
        rope_theta=ROPE_THETA,
        tie_word_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        attn_implementation="eager",
        use_cache=False,
    )


def build_model(size: Size, dtype: torch.dtype = torch.float32, seed: int = 42) -> LlamaForCausalLM:
    """The model of one size with the package's own initial weights, drawn from `seed`."""
    torch.manual_seed(seed)
    return cast_parameters(LlamaForCausalLM(llama_config(size)), dtype)


def cast_parameters(model: LlamaForCausalLM, dtype: torch.dtype) -> LlamaForCausalLM:
    """Gives the parameters that type and leaves the rotary frequencies in float32.

    `model.to(dtype)` would round these as well: with 8 bits, angles are off by up to half a radian
    at position 500. Loading a checkpoint in that type (`from_pretrained`) does not.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model


class Float64Mode(TorchFunctionMode):
    """Answers every request for float32 with float64.

    LlamaForCausalLM asks for float32 in each norm (`x.to(torch.float32)`), in eager attention
    (`softmax(..., dtype=torch.float32)`) and in the loss (`logits.float()`).
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 -- whatever func returns
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        widened = tuple(torch.float64 if a is torch.float32 else a for a in args)
        options = {
            name: torch.float64 if value is torch.float32 else value
            for name, value in (kwargs or {}).items()
        }
        return func(*widened, **options)


def rotary_tables(head_dim: int, max_seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [max_seq, head_dim], the same bits on every machine.

    Angles are float32, as LlamaForCausalLM has them: the float32 product of position and
    theta^(-2i / head_dim). Each function is evaluated in float64 and then rounded. Must not be
    called under Float64Mode, which would keep the roundings from happening.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    inverse_frequencies = torch.pow(ROPE_THETA, exponents).reciprocal().to(torch.float32)
    positions = torch.arange(max_seq, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies)
    if angles.dtype != torch.float32:
        raise RuntimeError("rotary tables were asked for under Float64Mode")
    # both halves of a head turn by the same angles
    wide = torch.cat((angles, angles), dim=-1).to(torch.float64)
    return wide.cos().to(torch.float32), wide.sin().to(torch.float32)


class PortableRotary(torch.nn.Module):
    """Takes the place of LlamaRotaryEmbedding: the same angles, from `rotary_tables`."""

    def __init__(self, head_dim: int, max_seq: int) -> None:
        super().__init__()
        self.cos, self.sin = rotary_tables(head_dim, max_seq)

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """position_ids [B or 1, S] -> cos, sin [B or 1, S, head_dim] in the type of x."""
        return self.cos.to(x.dtype)[position_ids], self.sin.to(x.dtype)[position_ids]


def make_portable(model: LlamaForCausalLM, max_seq: int) -> LlamaForCausalLM:
    """Replaces the model's rotary module, for sequences of at most `max_seq`."""
    model.model.rotary_emb = PortableRotary(model.config.head_dim, max_seq)
    return model
