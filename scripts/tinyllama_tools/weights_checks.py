"""Proof of weights in and out: from transformers to C++ and back, bit for bit."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from tinyllama_tools.check import Check, Errors

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
