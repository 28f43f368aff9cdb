"""The transformers package's models: the oracle that our own model is compared with.
LlamaForCausalLM, and for what other families have and it has not, theirs.

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
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

NORM_EPS = 1e-5
ROPE_THETA = 10000.0
# Dimensions of a model by their names in fixtures/problem_sizes.json, and what features it has by
# their names in ModelDimensions (model/config.hpp); `rope_scaling` is that of config.json.
# `model_type`: whose code computes it, else "llama".
Size = Mapping[str, Any]
Tensors = dict[str, torch.Tensor]
CLASSES: dict[str, type[PreTrainedModel]] = {
    "llama": LlamaForCausalLM,
    "mistral": MistralForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
}


def model_config(size: Size) -> PretrainedConfig:
    """The package's configuration, with eager attention. What is left out is our model's: an untied
    head, no biases, full attention."""
    options: dict[str, Any] = {
        "vocab_size": size["vocab_size"],
        "hidden_size": size["hidden_dim"],
        "intermediate_size": size["intermediate_dim"],
        "num_hidden_layers": size["n_layers"],
        "num_attention_heads": size["n_heads"],
        "num_key_value_heads": size["n_kv_heads"],
        "rms_norm_eps": size.get("norm_eps", NORM_EPS),
        "rope_theta": size.get("rope_theta", ROPE_THETA),
        "tie_word_embeddings": size.get("tied_embeddings", False),
        "attn_implementation": "eager",
        "use_cache": False,
    }
    if "rope_scaling" in size:
        options["rope_scaling"] = dict(size["rope_scaling"])
    if "padding_token" in size:
        options["pad_token_id"] = size["padding_token"]
    if "own_head_dim" in size:
        options["head_dim"] = size["own_head_dim"]
    kind, window = size.get("model_type", "llama"), size.get("sliding_window")
    qkv_bias, o_bias = size.get("qkv_bias", False), size.get("o_bias", False)
    config: PretrainedConfig
    has = (kind == "qwen2", False, False)
    if kind == "llama":
        biases = {"attention_bias": qkv_bias, "mlp_bias": size.get("mlp_bias", False)}
        config = LlamaConfig(**options, **biases)
        has = (qkv_bias, qkv_bias, False)
    elif kind == "mistral":
        config = MistralConfig(**options, sliding_window=window)
    else:
        # the layers from max_window_layers on look through the window
        windows = {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
        options |= windows if window else {}
        if kind == "qwen2":
            config = Qwen2Config(**options)
        else:
            options.setdefault("head_dim", size["hidden_dim"] // size["n_heads"])
            config = Qwen3Config(**options, attention_bias=qkv_bias)
            has = (qkv_bias, qkv_bias, True)
    asked = (qkv_bias, o_bias, size.get("qk_norm", False))
    if has != asked or (window and kind == "llama"):
        raise ValueError(f"{kind} has no such layers: {dict(size)}")
    return config


def head_dim_of(config: PretrainedConfig) -> int:
    """Qwen2's configurations have none."""
    own = getattr(config, "head_dim", None)
    return own or config.hidden_size // config.num_attention_heads


def new_model(size: Size) -> PreTrainedModel:
    """With the package's own initial weights."""
    config = model_config(size)
    return CLASSES[config.model_type](config)


def build_model(size: Size, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of one size, its weights drawn from one seed."""
    torch.manual_seed(42)
    return cast_parameters(new_model(size), dtype)


def cast_parameters(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
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

    The package asks for float32 in each norm (`x.to(torch.float32)`), in eager attention
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


def inverse_frequencies(config: PretrainedConfig) -> torch.Tensor:
    """float32 [head_dim / 2]: theta^(-2i / head_dim), scaled by the formulas of the package's
    modeling_rope_utils, all in float64, and then rounded: the package scales in float32."""
    head_dim = head_dim_of(config)
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    plain = torch.pow(config.rope_theta, exponents).reciprocal()
    scaling = getattr(config, "rope_scaling", None) or {"rope_type": "default"}
    kind = scaling["rope_type"]
    if kind == "default":
        return plain.to(torch.float32)
    divided = plain / scaling["factor"]
    if kind == "linear":
        return divided.to(torch.float32)
    if kind != "llama3":
        raise ValueError(f"rope_type {kind} is not known here")
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    # turns of a frequency within the positions of the first training
    turns = scaling["original_max_position_embeddings"] / (2 * math.pi / plain)
    smooth = (turns - low) / (high - low)
    between = (1 - smooth) * divided + smooth * plain
    scaled = torch.where(turns < low, divided, torch.where(turns > high, plain, between))
    return scaled.to(torch.float32)


def rotary_tables(config: PretrainedConfig, max_seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [max_seq, head_dim], the same bits on every machine.

    Angles are float32, as the package has them: the float32 product of position and inverse
    frequency. Each function is evaluated in float64 and then rounded. Must not be called under
    Float64Mode, which would keep the roundings from happening.
    """
    positions = torch.arange(max_seq, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(config))
    if angles.dtype != torch.float32:
        raise RuntimeError("rotary tables were asked for under Float64Mode")
    # both halves of a head turn by the same angles
    wide = torch.cat((angles, angles), dim=-1).to(torch.float64)
    return wide.cos().to(torch.float32), wide.sin().to(torch.float32)


class PortableRotary(torch.nn.Module):
    """Takes the place of LlamaRotaryEmbedding and the like: the same angles, from
    `rotary_tables`."""

    def __init__(self, config: PretrainedConfig, max_seq: int) -> None:
        super().__init__()
        self.cos, self.sin = rotary_tables(config, max_seq)

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """position_ids [B or 1, S] -> cos, sin [B or 1, S, head_dim], of the type of x."""
        return self.cos.to(x)[position_ids], self.sin.to(x)[position_ids]


def make_portable(model: PreTrainedModel, max_seq: int) -> PreTrainedModel:
    """Replaces the model's rotary module, for sequences of at most `max_seq`."""
    model.model.rotary_emb = PortableRotary(model.config, max_seq)
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
