"""scripts/golden: writes the golden files, what LlamaForCausalLM answers, or checks them.

They lie in fixtures/golden/, whose README says what each holds. Exit status: 0 written, or all the
same; 1 some file differs by more than rounding; 2 bad option, or another version of transformers
than the pinned one, whose answers are not written (with --check only a warning).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.proofs.check import (
    other_transformers,
    worst_difference,
    worst_difference_of_files,
)
from tinyllama_tools.proofs.flops import write_flops
from tinyllama_tools.proofs.oracle import (
    Float64Mode,
    Size,
    build_model,
    cast_parameters,
    make_portable,
)
from tinyllama_tools.proofs.rows import Check, Errors
from tinyllama_tools.proofs.training import write_training

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


# Small, and each for something: grouped-query attention with 2 and 4 query heads a KV head, as many
# KV heads as query heads, a single KV head; head_dim 16, 32, 64; sequences of 1, 7, 33; odd
# vocabularies and intermediate sizes, so that nothing can hide behind a multiple of 8.
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


Tensors = dict[str, torch.Tensor]
GOLDEN_FOLDER = PROJECT / "fixtures/golden"
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


# Relative to the largest magnitude of a tensor. Another processor adds up in another order: some
# hundred roundings of 1.1e-16, and of 6e-8 in float32. Weights and inputs are drawn, not computed.
TOLERANCES = {F64_FILE: 1e-12, F32_FILE: 1e-5}
# Relative to a loss. Seen between the instruction sets AVX2 and SSE: 4e-14, 8e-6 (at step 187),
# 8e-3, 1.5e-2, 2e-3, 2e-3; between an AMD processor with AVX2 and an Intel one with AVX-512, whose
# BLAS adds up in another order: 5e-14, 4e-5 (at step 13, where the loss falls fastest). Weights are
# drawn in float64, alike on every processor, so another weights_checksum is a failure and no reason
# for wider tolerances.
CURVE_TOLERANCES = {
    "f64": 1e-12,
    "f32": 1e-4,
    "bf16": 3e-2,
    "amp_bf16": 3e-2,
    "amp_f16": 1e-2,
    "amp_f16_of_4096": 1e-2,
}


@dataclass(frozen=True)
class Verdict:
    """What the comparison of one file came to; `file` is <case>/<name>."""

    file: str
    held: bool
    text: str
    relative: float = 0.0

    def __str__(self) -> str:
        return f"{'ok' if self.held else 'FAILED':7}{self.file}: {self.text}"


def compare_documents(stored: Path, made: Path, label: str) -> Verdict:
    """JSON: equal but for the versions that wrote it, and for the losses of training_tiny.json."""
    old, new = json.loads(stored.read_text()), json.loads(made.read_text())
    for version in ("transformers_version", "torch", "transformers"):
        old.pop(version, None)
        new.pop(version, None)
    curves = (old.pop("losses", {}), new.pop("losses", {}))
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    if keys:
        text = f"{', '.join(keys)}: another value than the one made anew"
        return Verdict(label, False, text, float("inf"))
    return compare_curves(*curves, label)


def compare_curves(
    stored: dict[str, list[float]], made: dict[str, list[float]], label: str
) -> Verdict:
    """Each loss relative to the one made anew; tells of the curve nearest to its tolerance."""
    if {n: len(v) for n, v in stored.items()} != {n: len(v) for n, v in made.items()}:
        return Verdict(label, False, "losses: other curves, or other lengths", float("inf"))
    worst, worst_share = Verdict(label, True, "values identical"), 0.0
    for name, losses in made.items():
        tolerance = CURVE_TOLERANCES[name]
        for step, (old, new) in enumerate(zip(stored[name], losses, strict=True)):
            relative = abs(old - new) / new
            relative = float("inf") if math.isnan(relative) else relative
            if relative / tolerance > worst_share:
                worst_share = relative / tolerance
                text = f"losses.{name}: relative difference {relative:.3g} at step {step}"
                text += f", allowed {tolerance:g}"
                worst = Verdict(label, worst_share <= 1.0, text, relative)
    return worst


def compare_tensors(stored: Path, made: Path, label: str) -> Verdict:
    """Within the file's tolerance."""
    tolerance = TOLERANCES.get(stored.name, 0.0)
    worst = worst_difference_of_files(made, stored)
    text = f"{worst}, allowed {tolerance:g}"
    return Verdict(label, worst.relative <= tolerance, text, worst.relative)


def compare_file(stored: Path, made: Path) -> Verdict:
    """One file; either may be absent, which fails."""
    label = f"{stored.parent.name}/{stored.name}"
    if not stored.is_file():
        return Verdict(label, False, "is absent", float("inf"))
    if not made.is_file():
        return Verdict(label, False, "is not one of the golden files", float("inf"))
    if stored.read_bytes() == made.read_bytes():
        return Verdict(label, True, "identical")
    compare = compare_documents if stored.suffix == ".json" else compare_tensors
    return compare(stored, made, label)


def compare_folder(stored: Path, made: Path) -> list[Verdict]:
    """Every file that either folder has."""
    names = {p.name for folder in (stored, made) if folder.is_dir() for p in folder.iterdir()}
    return [compare_file(stored / name, made / name) for name in sorted(names)]


def _case_writer(name: str) -> Callable[[Path], None]:
    return lambda folder: write_case(GOLDEN_CASES[name], folder / name)


# What there is to write, into the golden folder.
PARTS: dict[str, Callable[[Path], None]] = {
    **{name: _case_writer(name) for name in GOLDEN_CASES},
    "flops": lambda folder: write_flops(folder / "flops.json"),
    "training_tiny": lambda folder: write_training(folder / "training_tiny.json"),
}


def say(text: str) -> None:
    """Progress and complaints; standard output is for the outcome."""
    print(text, file=sys.stderr, flush=True)


def write(names: list[str], folder: Path) -> None:
    """Makes or replaces the named parts."""
    for i, name in enumerate(names, start=1):
        say(f"-- {name} ({i} of {len(names)})")
        started = time.monotonic()
        PARTS[name](folder)
        say(f"   {time.monotonic() - started:.0f} s")


def compare(name: str, stored: Path, made: Path) -> list[Verdict]:
    """The files of one part, in two golden folders."""
    if name in GOLDEN_CASES:
        return compare_folder(stored / name, made / name)
    return [compare_file(stored / f"{name}.json", made / f"{name}.json")]


def check(names: list[str], folder: Path) -> int:
    """Makes the named parts anew elsewhere and compares. Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="tiny_llama_golden_") as made:
        write(names, Path(made))
        verdicts = [v for name in names for v in compare(name, folder, Path(made))]
    for verdict in verdicts:
        print(verdict)
    failed = [verdict for verdict in verdicts if not verdict.held]
    print(f"{len(verdicts) - len(failed)} files hold, {len(failed)} do not")
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these only; default: all")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--folder", type=Path, default=GOLDEN_FOLDER, help="default: %(default)s")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in PARTS:
            parser.error(f"'{name}': must be one of {', '.join(PARTS)}")
    names = options.names or list(PARTS)
    other_version = other_transformers()
    if other_version:
        say(f"{'warning' if options.check else 'error'}: {other_version}")
        if not options.check:
            return 2
    # sums in one order, whatever the machine's number of processors
    torch.set_num_threads(1)
    if options.check:
        return check(names, options.folder)
    write(names, options.folder)
    print(f"{', '.join(names)}: written to {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
