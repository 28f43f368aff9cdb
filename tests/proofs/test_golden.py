"""The oracle and its files: proved by other means, made anew with the same values, and faults in
them are found; and weights that go to and fro between transformers and C++."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import require_oracle_packages

require_oracle_packages()

import torch
from safetensors.torch import load_file, save_file

from tinyllama_tools.proofs import golden
from tinyllama_tools.proofs.golden import (
    CURVES,
    DIMENSIONS,
    F32_FILE,
    F64_FILE,
    GOLDEN_CASES,
    GOLDEN_FOLDER,
    WEIGHTS_FILE,
    ComponentCounter,
    check_oracle,
)
from tinyllama_tools.proofs.oracle import Proof, build_model, tensor_error
from tinyllama_tools.proofs.prove import check_round_trip

CASE, PART = "seq_1", "gqa_groups_2"
TENSOR = "gradient.model.layers.0.mlp.down_proj.weight"


def document(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN_FOLDER / name).read_text())


def spoil(path: Path, name: str, relative: float) -> None:
    """One value, by so much of the largest."""
    tensors = load_file(path)
    tensors[name][..., 3] += relative * tensors[name].abs().max()
    save_file(tensors, path)


def test_the_oracle_is_the_package_but_for_roundings_and_a_wrong_value_is_found(
    tmp_path: Path,
) -> None:
    proof = check_oracle()
    assert proof.held, proof
    assert proof.comparisons >= sum(len(load_file(p)) for p in GOLDEN_FOLDER.glob("*/model.s*"))
    # float32's roundings are there
    assert proof.largest_error > 1e-8
    shutil.copytree(GOLDEN_FOLDER, tmp_path / "golden")
    spoil(tmp_path / "golden" / CASE / F64_FILE, TENSOR, 1e-5)
    proof = check_oracle(tmp_path / "golden")
    assert not proof.held and f"{CASE}: {TENSOR} at index" in proof.worst


def test_a_proof_fails_of_nothing_of_nan_and_of_another_shape_or_type() -> None:
    zeros, spoilt = torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 3.0]])
    assert tensor_error(torch.ones(2, 3), spoilt) == (2.0, (1, 2))
    # where all that is expected is zero, it is absolute
    assert tensor_error(zeros, zeros + 0.25)[0] == 0.25
    for other in (torch.zeros(3, 2), zeros.double(), zeros * math.nan):
        assert tensor_error(zeros, other)[0] == math.inf
    proof = Proof("section", "check", "against", tolerance=0.5)
    assert not proof.held
    proof.add_tensors("file", {"a": zeros}, {"a": zeros + 0.5})
    assert proof.held
    proof.add_tensors("file", {"a": zeros, "b": zeros}, {"a": zeros})
    assert not proof.held and "file: b" in proof.worst


@pytest.mark.parametrize("name", ["grid_00", "grid_18", "grid_43", "tiny"])
def test_flops_counted_anew_are_the_same(name: str) -> None:
    """Their relations to each other are held by flop_proof_test.cpp."""
    (entry,) = (e for e in document("flops.json")["configurations"] if e["name"] == name)
    assert ComponentCounter({key: entry[key] for key in DIMENSIONS}).count() == entry["flops"]


@pytest.mark.parametrize("name", CURVES)
def test_first_steps_trained_anew_are_the_same(name: str) -> None:
    steps, stored = 10 if name in {"f32", "f64"} else 3, document("training_tiny.json")
    wanted = pytest.approx(stored["losses"][name][:steps], rel=CURVES[name].tolerance)
    assert golden.losses(CURVES[name], steps) == wanted
    # from where our own model starts
    assert golden.weights_checksum(golden.tiny_start()[0]) == stored["weights_checksum"]


# scripts/golden
def test_written_again_they_are_the_same_and_a_change_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def check() -> tuple[int, str]:
        return golden.main([CASE, "--check", f"--folder={tmp_path}"]), capsys.readouterr().out

    assert golden.main([CASE, f"--folder={tmp_path}"]) == 0
    assert capsys.readouterr().out == f"{CASE}: written to {tmp_path}\n"
    files = sorted((tmp_path / CASE).iterdir())
    assert [path.name for path in files] == sorted(p.name for p in (GOLDEN_FOLDER / CASE).iterdir())
    for name in ("config.json", "inputs.safetensors", WEIGHTS_FILE):
        stored, written = (top / CASE / name for top in (GOLDEN_FOLDER, tmp_path))
        assert stored.read_bytes() == written.read_bytes(), name
    assert check()[0] == 0
    assert golden.main([CASE, f"--folder={files[0]}"]) == 2
    assert f"File exists: '{files[0]}'" in capsys.readouterr().err
    spoil(tmp_path / CASE / F64_FILE, TENSOR, 1e-9)
    status, output = check()
    assert status == 1 and "FAILED golden expected_f64.safetensors: " in output
    # nor may one be absent or superfluous
    (tmp_path / CASE / F64_FILE).rename(tmp_path / CASE / "other.safetensors")
    status, output = check()
    assert status == 1 and f"{F64_FILE} is absent" in output
    assert "other.safetensors is not one of the golden files" in output


ATTENTION, LOSS = "configurations.3.flops.attention.forward", "losses.f64.7"


@pytest.mark.parametrize(
    ("file", "place", "change", "held"),
    [
        (f"{CASE}/{F64_FILE}", TENSOR, 1e-9, False),
        (f"{CASE}/{F64_FILE}", TENSOR, 1e-14, True),
        (f"{CASE}/{F32_FILE}", TENSOR, 1e-4, False),
        (f"{CASE}/{F32_FILE}", TENSOR, 1e-6, True),
        ("flops.json", ATTENTION, lambda n: n + 1, False),
        ("training_tiny.json", "torch", lambda _: "9.9", True),
        ("training_tiny.json", LOSS, lambda loss: loss * (1 + 1e-13), True),
        ("training_tiny.json", LOSS, lambda loss: loss * (1 + 1e-9), False),
        ("training_tiny.json", "losses.bf16.7", lambda _: math.nan, False),
        ("training_tiny.json", "losses.bf16.7", lambda _: None, False),
    ],
)
def test_one_changed_value(
    tmp_path: Path, file: str, place: str, change: float | Callable[[Any], Any], held: bool
) -> None:
    path = shutil.copytree(GOLDEN_FOLDER, tmp_path / "golden") / file
    if isinstance(change, float):
        spoil(path, place, change)
    else:
        changed = inner = document(file)
        *way, last = (int(key) if key.isdecimal() else key for key in place.split("."))
        for key in way:
            inner = inner[key]
        inner[last] = change(inner[last])
        path.write_text(json.dumps(changed))
    part = file.split("/")[0].removesuffix(".json")
    proofs = golden.compare([part], tmp_path / "golden", GOLDEN_FOLDER)
    failed = [proof.worst.partition(" at ")[0] for proof in proofs if not proof.held]
    assert failed == ([] if held else [f"{file}: {place}"])


# Weights to and fro.
def test_round_trip_is_a_proof_that_holds_and_a_lost_bit_is_found(
    copy_program: Path, tmp_path: Path
) -> None:
    proof = check_round_trip(copy_program)
    assert proof.comparisons > 100_000
    assert proof.held, proof
    losing = tmp_path / "losing"
    spoiling = 'sed -i s/null/none/ "$2"/config.json'
    losing.write_text(f'#!/bin/sh\n"{copy_program}" "$1" "$2" && {spoiling}\n')
    losing.chmod(0o755)
    assert "config.json" in check_round_trip(losing).worst


def test_values_that_are_easily_lost_survive_and_shards_are_read(
    copy_program: Path, tmp_path: Path
) -> None:
    model = build_model(GOLDEN_CASES[PART])
    # -0, the smallest denormal, infinity, a quiet and a signalling NaN with payloads
    odd = torch.tensor([-(2**31), 1, 0x7F800000, 0x7FC00123, 0x7F800001], dtype=torch.int32)
    model.model.norm.weight.data[:5].view(torch.int32).copy_(odd)
    model.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    assert len(list((tmp_path / "in").glob("model-*.safetensors"))) > 2
    subprocess.run([copy_program, tmp_path / "in", tmp_path / "out"], timeout=120, check=True)
    found, wanted = load_file(tmp_path / "out" / WEIGHTS_FILE), model.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name].view(torch.int32), tensor.view(torch.int32)), name
