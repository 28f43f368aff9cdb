"""Loss curves of LlamaForCausalLM that learns one fixed batch, from our own initial weights.

Weights and tokens are drawn as model/parameters.cpp draws them: same torch, same generator, same
order, so both sides start from the same bits and the curves may be compared step by step.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaForCausalLM

from tinyllama_tools.core.text import compact_json
from tinyllama_tools.proofs.flops import named_sizes
from tinyllama_tools.proofs.oracle import (
    Float64Mode,
    Size,
    build_model,
    cast_parameters,
    make_portable,
)

SIZE_NAME = "tiny"
SEED = 42
BATCH = 2
SEQ = 16
# kInitialStd of model/parameters.hpp, and the type in which TensorInitializer::normal draws
INITIAL_STD = 0.02
DRAWN_TYPE = torch.float64
ADAMW: dict[str, Any] = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
DESCRIPTION = [
    "losses before each update of LlamaForCausalLM, eager attention, that learns one fixed batch",
    "weights and tokens are TensorInitializer's draws from the seed; AdamW runs foreach=False",
    "bf16: parameters, gradients and moments bfloat16; amp_*: parameters float32, forward under",
    "autocast, amp_f16* with GradScaler's defaults; f64: with our rotary tables",
    "amp_f16_of_4096: the backward starts from loss / 4096, as one of so many micro-batches would;",
    "its losses are undivided like the others",
    "weights_checksum: sum of (i + 1) x bits of weight i as bfloat16 read as int16, all matrices",
]


@dataclass(frozen=True)
class Curve:
    """How one dtype trains.

    `autocast`: the type of products, where it is another one. `micro_batches`: the backward starts
    from the loss divided by so many.
    """

    steps: int
    parameters: torch.dtype
    autocast: torch.dtype | None = None
    micro_batches: int = 1

    @property
    def digits(self) -> int:
        """Significant decimal digits that are kept of a loss."""
        return 15 if self.parameters is torch.float64 else 9

    def mode(self) -> AbstractContextManager[object]:
        """What everything runs under."""
        return Float64Mode() if self.parameters is torch.float64 else contextlib.nullcontext()

    def forward_mode(self) -> AbstractContextManager[object]:
        """What the forward runs under."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast("cpu", self.autocast)


CURVES: dict[str, Curve] = {
    "f64": Curve(50, torch.float64),
    "f32": Curve(200, torch.float32),
    "bf16": Curve(50, torch.bfloat16),
    "amp_bf16": Curve(50, torch.float32, torch.bfloat16),
    "amp_f16": Curve(50, torch.float32, torch.float16),
    # tiny's own gradients survive in float16 as they are; of this loss they do so only if scaled
    "amp_f16_of_4096": Curve(50, torch.float32, torch.float16, micro_batches=4096),
}


def start(size: Size, batch: int, seq: int) -> tuple[LlamaForCausalLM, torch.Tensor]:
    """The float32 model with TensorInitializer's weights, and tokens [batch, seq] int64.

    parameters() gives the matrices in the order in which TinyLlama draws them; norms are ones.
    """
    generator = torch.Generator().manual_seed(SEED)
    model = build_model(size)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.fill_(1.0)
            continue
        drawn = torch.empty(parameter.shape, dtype=DRAWN_TYPE)
        drawn.normal_(0.0, INITIAL_STD, generator=generator)
        parameter.data.copy_(drawn.to(torch.float16).to(torch.bfloat16))
    tokens = torch.empty((batch, seq), dtype=torch.int64)
    return model, tokens.random_(0, size["vocab_size"], generator=generator)


def tiny_start() -> tuple[LlamaForCausalLM, torch.Tensor]:
    """Where every curve starts."""
    return start(named_sizes()[SIZE_NAME], BATCH, SEQ)


def weights_checksum(model: LlamaForCausalLM) -> int:
    """Sum of (i + 1) x the bits of weight i as bfloat16, read as int16, over all matrices as drawn.

    Says whether two sides start alike.
    """
    matrices = [p.detach().flatten() for p in model.parameters() if p.dim() == 2]
    bits = torch.cat(matrices).to(torch.bfloat16).view(torch.int16).to(torch.int64)
    return int((bits * torch.arange(1, bits.numel() + 1)).sum())


def losses(curve: Curve, steps: int | None = None, is_scaled: bool = True) -> list[float]:
    """The loss before each update, in nats a token.

    `steps`: fewer than the curve's own. `is_scaled`: False shows what float16 does without
    GradScaler.
    """
    model, tokens = tiny_start()
    cast_parameters(model, curve.parameters)
    if curve.parameters is torch.float64:
        make_portable(model, SEQ)
    options = ADAMW | {"betas": tuple(ADAMW["betas"])}
    optimizer = torch.optim.AdamW(model.parameters(), **options, foreach=False, fused=False)
    scaler = torch.amp.GradScaler("cpu", enabled=is_scaled and curve.autocast is torch.float16)
    with curve.mode():
        return [
            train_step(model, tokens, optimizer, scaler, curve) for _ in range(steps or curve.steps)
        ]


def train_step(
    model: LlamaForCausalLM,
    tokens: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    curve: Curve,
) -> float:
    """One update; the loss before it. A scaler that is not enabled passes everything through."""
    optimizer.zero_grad(set_to_none=True)
    with curve.forward_mode():
        loss = model(input_ids=tokens, labels=tokens).loss
    scaler.scale(loss / curve.micro_batches).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def training_document() -> dict[str, Any]:
    """The content of training_tiny.json."""
    model, tokens = tiny_start()
    return {
        "description": DESCRIPTION,
        "size": SIZE_NAME,
        "seed": SEED,
        "batch": BATCH,
        "seq": SEQ,
        "adamw": ADAMW,
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "weights_checksum": weights_checksum(model),
        "tokens": tokens.tolist(),
        "losses": {
            name: [float(f"{loss:.{curve.digits}g}") for loss in losses(curve)]
            for name, curve in CURVES.items()
        },
    }


def write_training(path: Path) -> None:
    """One line a curve."""
    path.write_text(compact_json(training_document(), expanded=("description", "losses")))
