"""Weights go to and fro between transformers and the C++ reader without losing a bit."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import shutil
import subprocess
from pathlib import Path

from built_programs import PROJECT_ROOT
from oracle_packages import require_oracle_packages

require_oracle_packages()

import torch
from safetensors.torch import load_file, save_file

from tinyllama_tools.proofs.checks import (
    WEIGHTS_FILE,
    check_round_trip,
    different_bits,
    small_model,
)

GOLDEN = PROJECT_ROOT / "fixtures/golden/gqa_groups_2"


def run(program: Path, *arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def assert_copied(program: Path, folder: Path, wanted: dict[str, torch.Tensor]) -> None:
    """Folder/in, read and written by C++ to folder/out, has these tensors to the bit."""
    completed = run(program, folder / "in", folder / "out")
    assert completed.returncode == 0, completed.stderr
    found = load_file(folder / "out" / WEIGHTS_FILE)
    assert wanted.keys() == found.keys()
    assert [name for name in wanted if different_bits(wanted[name], found[name])] == []


def test_round_trip_is_a_proof_that_holds(copy_program: Path) -> None:
    proof = check_round_trip(copy_program)
    assert proof.comparisons > 1000
    assert proof.held, proof


def test_values_that_are_easily_lost_survive_and_shards_are_read(
    copy_program: Path, tmp_path: Path
) -> None:
    model = small_model()
    # -0, the smallest denormal, infinity, a quiet and a signalling NaN with payloads
    odd = torch.tensor([-(2**31), 1, 0x7F800000, 0x7FC00123, 0x7F800001], dtype=torch.int32)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors["model.norm.weight"][:5].view(torch.int32).copy_(odd)
    model.save_pretrained(tmp_path / "in")
    save_file(tensors, tmp_path / "in" / WEIGHTS_FILE, metadata={"format": "pt"})
    assert_copied(copy_program, tmp_path, tensors)
    shards = tmp_path / "shards"
    model.save_pretrained(shards / "in", max_shard_size="20KB")
    assert len(list((shards / "in").glob("model-*.safetensors"))) > 2
    assert_copied(copy_program, shards, dict(model.state_dict()))


def test_another_model_is_refused_and_a_copy_may_replace_its_original(
    copy_program: Path, tmp_path: Path
) -> None:
    model = small_model()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path / "tied")
    done = run(copy_program, tmp_path / "tied", tmp_path / "out")
    assert done.returncode == run(copy_program).returncode == 2
    assert "tied/config.json: tie_word_embeddings = true: must be false" in done.stderr
    same = shutil.copytree(GOLDEN, tmp_path / "same")
    assert run(copy_program, same, same).returncode == 0
    assert (same / WEIGHTS_FILE).read_bytes() == (GOLDEN / WEIGHTS_FILE).read_bytes()
    assert not list(same.glob("*.tmp"))
    # and one bit that differs would be found
    assert different_bits(torch.zeros(2), torch.tensor([0.0, -0.0])) == 1
    assert different_bits(torch.ones(3), torch.ones(3).double()) == 3
