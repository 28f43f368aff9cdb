"""What the oracle answers for one golden case: objective, logits, gradients, weights after AdamW.

The objective is the mean next-token cross-entropy, or sum(logits * logits_gradient) at S = 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from tinyllama_tools.golden_cases import draw_case
from tinyllama_tools.oracle import Float64Mode, Size, build_model, cast_parameters, make_portable

Tensors = dict[str, torch.Tensor]

GOLDEN_FOLDER = Path(__file__).resolve().parents[2] / "fixtures/golden"

STEPS = 5
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.1

WEIGHTS_FILE = "model.safetensors"
INPUTS_FILE = "inputs.safetensors"
F64_FILE = "expected_f64.safetensors"
F32_FILE = "expected_f32.safetensors"


def loaded_model(size: Size, weights: Tensors, dtype: torch.dtype) -> LlamaForCausalLM:
    """The oracle in that type with those weights, which it holds exactly."""
    model = build_model(size, dtype)
    model.load_state_dict(weights)
    return model


def forward(
    model: LlamaForCausalLM, inputs: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, S, V] and the objective, a scalar."""
    if "logits_gradient" not in inputs:
        output = model(input_ids=inputs["tokens"], labels=inputs["tokens"])
        return output.logits, output.loss
    logits = model(input_ids=inputs["tokens"]).logits
    return logits, (logits * inputs["logits_gradient"].to(logits.dtype)).sum()


def evaluate(model: LlamaForCausalLM, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """`logits`, `loss` and `gradient.<parameter>`; the gradients stay in the parameters."""
    model.zero_grad(set_to_none=True)
    logits, objective = forward(model, inputs)
    objective.backward()
    found = {"logits": logits.detach(), "loss": objective.detach()}
    for name, parameter in model.named_parameters():
        found[f"gradient.{name}"] = parameter.grad.clone()
    return found


def train(model: LlamaForCausalLM, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """`after_5_steps.<parameter>`: AdamW on the one batch; changes the model."""
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=WEIGHT_DECAY,
        foreach=False,
    )
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        forward(model, inputs)[1].backward()
        optimizer.step()
    return {f"after_{STEPS}_steps.{name}": p.detach() for name, p in model.named_parameters()}


def float64_model(size: Size, weights: Tensors) -> LlamaForCausalLM:
    """To be run under Float64Mode."""
    return make_portable(loaded_model(size, weights, torch.float64), size["seq"])


def expected_f64(size: Size, weights: Tensors, inputs: Tensors) -> Tensors:
    """Everything in float64, rotary tables as ours."""
    model = float64_model(size, weights)
    with Float64Mode():
        return evaluate(model, inputs) | train(model, inputs)


def expected_f32(size: Size, weights: Tensors, inputs: Tensors) -> Tensors:
    """The package's float32, untouched."""
    return evaluate(loaded_model(size, weights, torch.float32), inputs)


def write_case(size: Size, folder: Path) -> None:
    """The five files of one case; the folder may exist."""
    weights, inputs = draw_case(size)
    model = cast_parameters(loaded_model(size, weights, torch.float32), torch.bfloat16)
    model.save_pretrained(folder)
    # sampling defaults, which a proof has no use for
    with contextlib.suppress(FileNotFoundError):
        (folder / "generation_config.json").unlink()
    save_file(inputs, folder / INPUTS_FILE)
    save_file(contiguous(expected_f64(size, weights, inputs)), folder / F64_FILE)
    save_file(contiguous(expected_f32(size, weights, inputs)), folder / F32_FILE)


def contiguous(tensors: Tensors) -> Tensors:
    """safetensors stores nothing else."""
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
