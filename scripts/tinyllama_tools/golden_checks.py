"""Proofs of the golden files by other means than those that made them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from tinyllama_tools.check import Check, Errors
from tinyllama_tools.golden_cases import GOLDEN_CASES
from tinyllama_tools.golden_compare import TOLERANCES
from tinyllama_tools.golden_values import (
    F32_FILE,
    F64_FILE,
    GOLDEN_FOLDER,
    INPUTS_FILE,
    LEARNING_RATE,
    STEPS,
    WEIGHT_DECAY,
    WEIGHTS_FILE,
    Tensors,
    evaluate,
    float64_model,
    forward,
    write_case,
)
from tinyllama_tools.oracle import Float64Mode
from tinyllama_tools.tensor_difference import worst_difference, worst_difference_of_files

# A step of h along a unit direction: the stencil is wrong by about h^4, rounding by 1e-16 / h.
STENCIL_STEP = 1e-3


def load_case(case: str) -> tuple[LlamaForCausalLM, Tensors, Tensors]:
    """The float64 oracle with the stored weights, the stored inputs, what is expected of them."""
    folder = GOLDEN_FOLDER / case
    model = float64_model(GOLDEN_CASES[case], load_file(folder / WEIGHTS_FILE))
    return model, load_file(folder / INPUTS_FILE), load_file(folder / F64_FILE)


def directional_derivative(
    objective: Callable[[], torch.Tensor], parameter: torch.Tensor, direction: torch.Tensor
) -> float:
    """By the five-point stencil; the parameter is put back to where it was."""
    start = parameter.detach().clone()
    values = []
    for step in (-2, -1, 1, 2):
        parameter.data.copy_(start + step * STENCIL_STEP * direction)
        with torch.no_grad():
            values.append(objective().item())
    parameter.data.copy_(start)
    two_before, before, after, two_after = values
    return (two_before - 8 * before + 8 * after - two_after) / (12 * STENCIL_STEP)


def check_finite_differences() -> Check:
    """Every gradient along a random direction, from values of the objective alone."""
    generator = torch.Generator().manual_seed(7)
    errors = Errors()
    for case in GOLDEN_CASES:
        model, inputs, expected = load_case(case)

        def objective(model: LlamaForCausalLM = model, inputs: Tensors = inputs) -> torch.Tensor:
            return forward(model, inputs)[1]

        for name, parameter in model.named_parameters():
            gradient = expected[f"gradient.{name}"]
            direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
            direction /= direction.norm()
            with Float64Mode():
                found = directional_derivative(objective, parameter, direction)
            # a random unit direction meets |gradient| / sqrt(n) of the gradient
            scale = gradient.norm().item() / gradient.numel() ** 0.5 or 1.0
            errors.add(abs(found - (gradient * direction).sum().item()) / scale, f"{case}: {name}")
    return errors.check(
        "golden gradients along random directions",
        "five-point differences of the objective",
        tolerance=1e-8,
    )


def adamw_by_the_book(model: LlamaForCausalLM, inputs: Tensors) -> Tensors:
    """Algorithm 2 of "Decoupled Weight Decay Regularization", written out; changes the model."""
    beta1, beta2, eps = 0.9, 0.999, 1e-8
    first = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    second = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for t in range(1, STEPS + 1):
        gradients = evaluate(model, inputs)
        for name, parameter in model.named_parameters():
            gradient = gradients[f"gradient.{name}"]
            first[name] = beta1 * first[name] + (1 - beta1) * gradient
            second[name] = beta2 * second[name] + (1 - beta2) * gradient**2
            m_hat = first[name] / (1 - beta1**t)
            v_hat = second[name] / (1 - beta2**t)
            decay = LEARNING_RATE * WEIGHT_DECAY * parameter.data
            parameter.data -= LEARNING_RATE * m_hat / (v_hat.sqrt() + eps) + decay
    return {f"after_{STEPS}_steps.{name}": p.detach() for name, p in model.named_parameters()}


def check_adamw() -> Check:
    """The weights after AdamW, by the paper's formulas in the paper's order."""
    errors = Errors()
    for case in GOLDEN_CASES:
        model, inputs, expected = load_case(case)
        with Float64Mode():
            found = adamw_by_the_book(model, inputs)
        difference = worst_difference({name: expected[name] for name in found}, found)
        errors.add(difference.relative, f"{case}: {difference.tensor}", len(found))
    return errors.check(
        f"golden weights after {STEPS} steps", "AdamW written out from its paper", tolerance=1e-12
    )


def check_checkpoints() -> Check:
    """The checkpoints as any program would load them give the golden logits and loss in float32."""
    errors = Errors()
    for case in GOLDEN_CASES:
        folder = GOLDEN_FOLDER / case
        model = LlamaForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        logits, loss = forward(model, load_file(folder / INPUTS_FILE))
        found = {"logits": logits.detach(), "loss": loss.detach()}
        expected = load_file(folder / F32_FILE)
        difference = worst_difference({name: expected[name] for name in found}, found)
        errors.add(difference.relative, f"{case}: {difference.tensor}", len(found))
    return errors.check(
        "logits and loss of the golden checkpoints, by from_pretrained in float32",
        "golden files",
        tolerance=TOLERANCES[F32_FILE],
    )


def check_regeneration(file: str) -> Check:
    """One of the expected files of every case, made anew."""
    errors = Errors()
    with tempfile.TemporaryDirectory(prefix="tiny_llama_golden_") as folder:
        for case, size in GOLDEN_CASES.items():
            made = Path(folder) / case
            write_case(size, made)
            difference = worst_difference_of_files(made / file, GOLDEN_FOLDER / case / file)
            errors.add(
                difference.relative, f"{case}: {difference.tensor}", len(load_file(made / file))
            )
    return errors.check(f"golden {file}", "the same made anew", TOLERANCES[file])
