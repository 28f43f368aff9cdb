"""Every proof of the oracle itself: that the files of fixtures/golden are what they say.

Each is a function that returns a Proof. None needs our own program but that of the round trip.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.utils._pytree import tree_leaves
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tinyllama_tools.proofs.flops import Dispatched
from tinyllama_tools.proofs.golden import (
    F32_FILE,
    F64_FILE,
    GOLDEN_CASES,
    GOLDEN_FOLDER,
    INPUTS_FILE,
    LEARNING_RATE,
    STEPS,
    TOLERANCES,
    WEIGHT_DECAY,
    WEIGHTS_FILE,
    evaluate,
    float64_model,
    forward,
    weights_after,
)
from tinyllama_tools.proofs.oracle import (
    ORACLE_SECTION,
    Float64Mode,
    Proof,
    Tensors,
    llama_config,
    rotary_tables,
)

WEIGHTS_SECTION = "Weights in and out"
oracle_proof = partial(Proof, ORACLE_SECTION)


def stored_cases() -> Iterator[tuple[str, LlamaForCausalLM, Tensors, Tensors]]:
    """Each case's float64 oracle with the stored weights, the inputs, what is expected of them."""
    for case, size in GOLDEN_CASES.items():
        folder = GOLDEN_FOLDER / case
        model = float64_model(size, load_file(folder / WEIGHTS_FILE))
        yield case, model, load_file(folder / INPUTS_FILE), load_file(folder / F64_FILE)


def check_no_float32() -> Proof:
    """Under Float64Mode no operator, forward or backward, gives a float32 result."""
    proof = oracle_proof(
        "float32 results among the float64 oracle's operators", "none allowed", tolerance=0
    )

    def note(operator: object, results: object) -> None:
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        proof.add(sum(tensor.dtype is torch.float32 for tensor in tensors), str(operator))

    for _, model, inputs, _ in stored_cases():
        with Dispatched(note), Float64Mode():
            evaluate(model, inputs)
    return proof


def check_narrowing() -> Proof:
    """The mode changes roundings, not formulas: without it the float64 model narrows to float32."""
    against = "the same with the package's own float32 in norm, softmax, loss"
    proof = oracle_proof("float64 oracle", against, tolerance=2e-6)
    for case, model, inputs, wanted in stored_cases():
        # without the mode, the loss is float32
        found = {n: tensor.to(torch.float64) for n, tensor in evaluate(model, inputs).items()}
        proof.add_tensors(case, {name: wanted[name] for name in found}, found)
    return proof


MAX_POSITIONS = 2048


def check_rotary() -> Proof:
    """Our angles against the untouched module's: the same but for their own float32 roundings."""
    proof = oracle_proof(
        f"rotary angles at positions below {MAX_POSITIONS}, in float32 eps of the angle",
        "LlamaRotaryEmbedding, untouched",
        tolerance=4.0,
    )
    positions = torch.arange(MAX_POSITIONS)
    for head_dim in (16, 32, 64, 128):
        size = {"vocab_size": 1, "hidden_dim": 2 * head_dim, "intermediate_dim": 1}
        config = llama_config(size | {"n_layers": 1, "n_heads": 2, "n_kv_heads": 1})
        theirs = LlamaRotaryEmbedding(config)(torch.empty(0), positions[None])
        their_cos, their_sin = (table[0].to(torch.float64) for table in theirs)
        our_cos, our_sin = (t.to(torch.float64) for t in rotary_tables(head_dim, MAX_POSITIONS))
        # the sine of the angle between the two
        between = (our_cos * their_sin - our_sin * their_cos).abs()
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64).repeat(2) / head_dim
        angles = positions[:, None] * torch.pow(config.rope_theta, -exponents)
        ulps = between / (torch.finfo(torch.float32).eps * angles.clamp(min=1.0))
        proof.add(ulps.max().item(), f"head_dim {head_dim}", ulps.numel())
    return proof


# A step of h along a unit direction: the stencil is wrong by about h^4, rounding by 1e-16 / h.
STENCIL_STEP = 1e-3
STENCIL = {-2: 1, -1: -8, 1: 8, 2: -1}


def check_finite_differences() -> Proof:
    """Every gradient along a random direction, from values of the objective alone."""
    generator = torch.Generator().manual_seed(7)
    proof = oracle_proof(
        "golden gradients along random directions",
        "five-point differences of the objective",
        tolerance=1e-8,
    )
    for case, model, inputs, wanted in stored_cases():
        for name, parameter in model.named_parameters():
            gradient = wanted[f"gradient.{name}"]
            direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
            direction /= direction.norm()
            start = parameter.detach().clone()
            found = 0.0
            with Float64Mode(), torch.no_grad():
                for steps, weight in STENCIL.items():
                    parameter.copy_(start + steps * STENCIL_STEP * direction)
                    found += weight * forward(model, inputs)[1].item()
                parameter.copy_(start)
            found /= 12 * STENCIL_STEP
            # a random unit direction meets |gradient| / sqrt(n) of the gradient
            scale = gradient.norm().item() / gradient.numel() ** 0.5 or 1.0
            proof.add(abs(found - (gradient * direction).sum().item()) / scale, f"{case}: {name}")
    return proof


def check_adamw() -> Proof:
    """The weights after AdamW by Algorithm 2 of "Decoupled Weight Decay Regularization"."""
    proof = oracle_proof(
        f"golden weights after {STEPS} steps", "AdamW written out from its paper", tolerance=1e-12
    )
    beta1, beta2, eps = 0.9, 0.999, 1e-8
    for case, model, inputs, wanted in stored_cases():
        first = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        second = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for t in range(1, STEPS + 1):
            with Float64Mode():
                gradients = evaluate(model, inputs)
            for name, parameter in model.named_parameters():
                gradient = gradients[f"gradient.{name}"]
                first[name] = beta1 * first[name] + (1 - beta1) * gradient
                second[name] = beta2 * second[name] + (1 - beta2) * gradient**2
                m_hat = first[name] / (1 - beta1**t)
                v_hat = second[name] / (1 - beta2**t)
                decay = LEARNING_RATE * WEIGHT_DECAY * parameter.data
                parameter.data -= LEARNING_RATE * m_hat / (v_hat.sqrt() + eps) + decay
        found = weights_after(model)
        proof.add_tensors(case, {name: wanted[name] for name in found}, found)
    return proof


def check_checkpoints() -> Proof:
    """The checkpoints as any program would load them give the golden logits and loss in float32."""
    check = "logits and loss of the golden checkpoints, by from_pretrained in float32"
    proof = oracle_proof(check, "golden files", TOLERANCES[F32_FILE])
    for case in GOLDEN_CASES:
        folder = GOLDEN_FOLDER / case
        how = {"dtype": torch.float32, "attn_implementation": "eager"}
        model = LlamaForCausalLM.from_pretrained(folder, **how)
        logits, loss = forward(model, load_file(folder / INPUTS_FILE))
        found = {"logits": logits.detach(), "loss": loss.detach()}
        wanted = load_file(folder / F32_FILE)
        proof.add_tensors(case, {name: wanted[name] for name in found}, found)
    return proof


DTYPES = ("float64", "float32", "float16", "bfloat16")
# integers of the same width, whose equality is that of the bits
BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def small_model(dtype: str = "float32") -> LlamaForCausalLM:
    """Weights from seed 5. Token ids and longest sequence are not LlamaConfig's own."""
    torch.manual_seed(5)
    size = {"vocab_size": 50, "hidden_dim": 32, "intermediate_dim": 48}
    config = llama_config(size | {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2})
    config.update({"rope_theta": 5000.0, "max_position_embeddings": 4096})
    config.update({"bos_token_id": 41, "eos_token_id": [42, 43], "pad_token_id": 44})
    return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


def different_bits(one: torch.Tensor, other: torch.Tensor) -> int:
    """Elements that are not the same to the bit; all of them where type or shape differ."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return max(1, one.numel())
    bits = BITS[one.element_size()]
    return int((one.view(bits) != other.view(bits)).sum())


def check_round_trip(copy_program: Path) -> Proof:
    """save_pretrained, read and written by C++, then load_file: elements that differ."""
    proof = Proof(
        WEIGHTS_SECTION,
        "weights read and written by C++, elements of other bits",
        "the model that transformers saved",
        tolerance=0,
    )
    for dtype in DTYPES:
        model = small_model(dtype)
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "in"), Path(folder, "out")
            model.save_pretrained(source)
            subprocess.run([copy_program, source, target], check=True)
            written = load_file(target / WEIGHTS_FILE)
            for name, tensor in model.state_dict().items():
                found = written.get(name, torch.empty(0))
                proof.add(different_bits(tensor, found), f"{dtype}: {name}", tensor.numel())
            configs = {(folder / "config.json").read_bytes() for folder in (source, target)}
            proof.add(len(configs) - 1, f"{dtype}: config.json")
    return proof


CHECKS: tuple[Callable[[], Proof], ...] = (
    check_no_float32,
    check_narrowing,
    check_rotary,
    check_finite_differences,
    check_adamw,
    check_checkpoints,
)
