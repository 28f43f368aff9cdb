"""Every proof of the oracle itself; each is a function that returns a Check.

They show that the files of fixtures/golden are what they say. None needs our own program.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tinyllama_tools.proofs.check import worst_difference
from tinyllama_tools.proofs.flops import count_flops
from tinyllama_tools.proofs.golden import (
    CURVE_TOLERANCES,
    F32_FILE,
    F64_FILE,
    GOLDEN_CASES,
    GOLDEN_FOLDER,
    check_adamw,
    check_checkpoints,
    check_finite_differences,
    check_regeneration,
    draw_case,
    evaluate,
    float64_model,
)
from tinyllama_tools.proofs.oracle import Float64Mode, llama_config, rotary_tables
from tinyllama_tools.proofs.rows import Check, Errors
from tinyllama_tools.proofs.training import CURVES, losses, tiny_start, weights_checksum

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


DTYPES = ("float64", "float32", "float16", "bfloat16")
WEIGHTS_FILE = "model.safetensors"
# integers of the same width, whose equality is that of the bits
BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def small_model(dtype: str = "float32") -> LlamaForCausalLM:
    """Weights from seed 5. Token ids and longest sequence are not LlamaConfig's own."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        rope_theta=5000.0,
        max_position_embeddings=4096,
        bos_token_id=41,
        eos_token_id=[42, 43],
        pad_token_id=44,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


def different_bits(one: torch.Tensor, other: torch.Tensor) -> int:
    """Elements that are not the same to the bit; all of them where type or shape differ."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return max(1, one.numel())
    bits = BITS[one.element_size()]
    return int((one.view(bits) != other.view(bits)).sum())


def check_round_trip(copy_program: Path) -> Check:
    """save_pretrained, read and written by C++, then load_file: elements that differ."""
    errors = Errors()
    for dtype in DTYPES:
        model = small_model(dtype)
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "in"), Path(folder, "out")
            model.save_pretrained(source)
            subprocess.run([copy_program, source, target], check=True)
            written = load_file(target / WEIGHTS_FILE)
            for name, tensor in model.state_dict().items():
                where = f"{dtype}: {name}"
                found = written.get(name, torch.empty(0))
                errors.add(different_bits(tensor, found), where, tensor.numel())
            same_config = (source / "config.json").read_bytes() == (
                target / "config.json"
            ).read_bytes()
            errors.add(0 if same_config else 1, f"{dtype}: config.json")
    return errors.check(
        "weights read and written by C++, elements of other bits",
        "the model that transformers saved",
        tolerance=0,
    )


DIMENSIONS = (
    "vocab_size",
    "hidden_dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "intermediate_dim",
    "batch",
    "seq",
)


def check_flops(every: int = 1, device: str = "cpu") -> Check:
    """Each `every`-th small configuration of flops.json, counted anew: equal to the unit.

    An operator that goes uncounted now and did not when the file was written is an error of 1: it
    might be a product that the counter does not see.
    """
    errors = Errors()
    document = json.loads((GOLDEN_FOLDER / "flops.json").read_text())
    known = set(document["uncounted_operators"])
    small = [entry for entry in document["configurations"] if entry["name"].startswith("grid_")]
    for entry in small[::every]:
        found, uncounted = count_flops({name: entry[name] for name in DIMENSIONS}, device)
        for component, passes in entry["flops"].items():
            for name, count in passes.items():
                error = abs(found[component][name] - count)
                errors.add(error, f"{entry['name']}: {component}/{name}")
        for operator in sorted(uncounted - known):
            errors.add(1, f"{entry['name']}: {operator} is not counted")
    return errors.check(
        "FLOPs by component and pass, a count", f"counted anew, device {device}", tolerance=0
    )


def check_training(curve: str, steps: int) -> Check:
    """The first steps of one loss curve, trained anew from the same weights."""
    document = json.loads((GOLDEN_FOLDER / "training_tiny.json").read_text())
    model, _ = tiny_start()
    errors = Errors()
    if weights_checksum(model) != document["weights_checksum"]:
        errors.add(math.inf, "weights_checksum: other initial weights", cases=0)
    stored = document["losses"][curve][:steps]
    for step, (old, new) in enumerate(zip(stored, losses(CURVES[curve], steps), strict=True)):
        errors.add(abs(old - new) / new, f"step {step}")
    return errors.check(
        f"first {steps} losses of tiny, {curve}", "trained anew", CURVE_TOLERANCES[curve]
    )


# Autocast and bfloat16 are slow on a processor: half a second a step.
CHECKED_STEPS = {name: 50 if name in {"f64", "f32"} else 10 for name in CURVES}
ALL_CHECKS: tuple[Callable[[], Check], ...] = (
    check_no_float32,
    check_narrowing,
    check_rotary,
    check_finite_differences,
    check_adamw,
    check_checkpoints,
    partial(check_regeneration, F64_FILE),
    partial(check_regeneration, F32_FILE),
    check_flops,
    *(partial(check_training, curve, steps) for curve, steps in CHECKED_STEPS.items()),
)
