"""LlamaForCausalLM of the transformers package: the oracle that our own model is compared with.

It is somebody else's code, used as it is. Two things are put around it, and neither changes its
formulas: `Float64Mode`, since it narrows to float32 in places whatever the type of its weights, and
`PortableRotary`, since float32 cosines differ in the last bit between processors.

Nothing here or in the modules beside it needs more than torch brings and pyproject's group oracle.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import LlamaConfig, LlamaForCausalLM

NORM_EPS = 1e-5
ROPE_THETA = 10000.0
# Dimensions of a model by their names in fixtures/problem_sizes.json.
Size = Mapping[str, int]
Tensors = dict[str, torch.Tensor]


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


def build_model(size: Size, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """The model of one size with the package's own initial weights, drawn from one seed."""
    torch.manual_seed(42)
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
        def widened(value: object) -> object:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        options = {name: widened(value) for name, value in (kwargs or {}).items()}
        return func(*map(widened, args), **options)


def rotary_tables(head_dim: int, max_seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [max_seq, head_dim], the same bits on every machine.

    Angles are float32, as LlamaForCausalLM has them: the float32 product of position and
    theta^(-2i / head_dim). Each function is evaluated in float64 and then rounded. Must not be
    called under Float64Mode, which would keep the roundings from happening.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    inverse_frequencies = torch.pow(ROPE_THETA, exponents).reciprocal().to(torch.float32)
    angles = torch.outer(torch.arange(max_seq, dtype=torch.float32), inverse_frequencies)
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
        """position_ids [B or 1, S] -> cos, sin [B or 1, S, head_dim], of the type of x."""
        return self.cos.to(x)[position_ids], self.sin.to(x)[position_ids]


def make_portable(model: LlamaForCausalLM, max_seq: int) -> LlamaForCausalLM:
    """Replaces the model's rotary module, for sequences of at most `max_seq`."""
    model.model.rotary_emb = PortableRotary(model.config.head_dim, max_seq)
    return model


def tensor_error(expected: torch.Tensor, found: torch.Tensor) -> tuple[float, tuple[int, ...]]:
    """The largest difference, relative to the largest magnitude expected, and its index; of another
    shape or type, or with a NaN, infinitely far.

    Where all that is expected is zero (the query gradients of a sequence of one), the difference is
    absolute.
    """
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return math.inf, ()
    wide = expected.to(torch.float64)
    scale = wide.abs().max().item() or 1.0
    apart = torch.nan_to_num((wide - found.to(torch.float64)).abs() / scale, nan=math.inf)
    place = torch.unravel_index(apart.argmax(), apart.shape)
    return apart.max().item(), tuple(map(int, place))


@dataclass
class Proof:
    """One claim, and how it held: a row of the table. Errors are relative unless `check` says in
    what unit they are. `worst`: where the largest error was seen."""

    section: str
    check: str
    against: str
    tolerance: float
    comparisons: int = 0
    largest_error: float = 0.0
    worst: str = ""

    def add(self, error: float, where: str, comparisons: int = 1) -> None:
        """The largest error among so many comparisons; a NaN is as wrong as can be."""
        self.comparisons += comparisons
        error = math.inf if math.isnan(error) else error
        if error > self.largest_error:
            self.largest_error, self.worst = error, where

    def add_tensors(self, where: str, expected: Tensors, found: Tensors) -> None:
        """All of both; one that only one side has is infinitely far."""
        for name in sorted({*expected, *found}):
            error, index = math.inf, ()
            if name in expected and name in found:
                error, index = tensor_error(expected[name], found[name])
            self.add(error, f"{where}: {name} at index {index}")

    @property
    def held(self) -> bool:
        """Something was compared, and nothing was farther off than allowed."""
        return self.comparisons > 0 and self.largest_error <= self.tolerance


ORACLE_SECTION = "The oracle itself"
