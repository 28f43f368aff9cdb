"""The oracle and its files: proved by other means, made anew with the same values, and faults in
them are found."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oracle_packages import require_oracle_packages

require_oracle_packages()

import torch
from safetensors.torch import load_file, save_file

from tinyllama_tools.proofs import checks, golden, oracle
from tinyllama_tools.proofs.flops import DIMENSIONS, count_flops, small_sizes
from tinyllama_tools.proofs.golden import (
    CURVES,
    F32_FILE,
    F64_FILE,
    GOLDEN_FOLDER,
    WEIGHTS_FILE,
)
from tinyllama_tools.proofs.oracle import Float64Mode, Proof, tensor_error

CASE = "seq_1"
TENSOR = "gradient.model.layers.0.mlp.down_proj.weight"


def document(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN_FOLDER / name).read_text())


FLOPS, CURVES_DOCUMENT = document("flops.json"), document("training_tiny.json")


# The oracle is somebody else's code in float64, and agrees with what can be computed otherwise.
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_the_oracles_own_proofs_hold(check: Callable[[], Proof]) -> None:
    proof = check()
    assert proof.held, proof
    weights = sum(len(load_file(path)) for path in GOLDEN_FOLDER.glob(f"*/{WEIGHTS_FILE}"))
    least = {checks.check_no_float32: 1000, checks.check_checkpoints: 10}
    assert proof.comparisons >= least.get(check, weights)
    if check is checks.check_narrowing:
        # without the mode, float32's roundings are there
        assert proof.largest_error > 1e-8


@pytest.mark.parametrize(
    ("check", "tensor", "relative"),
    [
        (checks.check_finite_differences, "gradient.model.norm.weight", 1e-5),
        (checks.check_adamw, "after_5_steps.model.norm.weight", 1e-9),
        (checks.check_narrowing, "logits", 1e-4),
    ],
)
def test_a_wrong_golden_value_is_found(
    monkeypatch: pytest.MonkeyPatch, check: Callable[[], Proof], tensor: str, relative: float
) -> None:
    ((case, model, inputs, wanted),) = (c for c in checks.stored_cases() if c[0] == CASE)
    wanted[tensor].view(-1)[3] *= 1 + relative
    monkeypatch.setattr(checks, "stored_cases", lambda: [(case, model, inputs, wanted)])
    proof = check()
    assert not proof.held
    assert tensor.removeprefix("gradient.") in proof.worst


def test_a_proof_holds_up_to_its_tolerance_and_not_of_nothing_or_nan() -> None:
    zeros, ones = torch.zeros(2, 3), torch.ones(2, 3)
    spoilt = ones.clone()
    spoilt[1, 2] = 3.0
    assert tensor_error(2 * ones, spoilt) == (0.5, (0, 0))
    assert tensor_error(ones, spoilt) == (2.0, (1, 2))
    # where all that is expected is zero, it is absolute
    assert tensor_error(zeros, zeros + 0.25)[0] == 0.25
    for other in (torch.zeros(3, 2), zeros.double(), zeros * math.nan):
        assert tensor_error(zeros, other)[0] == math.inf
    proof = Proof("section", "check", "against", tolerance=0.5)
    assert not proof.held
    proof.add_tensors("file", {"a": 2 * ones}, {"a": spoilt})
    assert proof.held
    proof.add_tensors("file", {"a": ones, "b": ones}, {"a": ones})
    assert not proof.held
    assert "file: b" in proof.worst
    with Float64Mode():
        x = torch.zeros(2, dtype=torch.bfloat16)
        assert {x.float().dtype, x.to(torch.float32).dtype} == {torch.float64}
        assert x.to(torch.float16).dtype == torch.float16


# flops.json
# Operators that are products of matrices or vectors, in whatever disguise.
PRODUCT = re.compile(r"mm|mv|dot|linear|conv|attention|einsum|ger$|outer|inner|cdist|kron|prod")


def test_no_product_went_uncounted() -> None:
    assert "aten._softmax" in FLOPS["uncounted_operators"]
    assert [name for name in FLOPS["uncounted_operators"] if PRODUCT.search(name)] == []
    assert all(map(PRODUCT.search, ("aten.bmm", "aten.mkldnn_linear", "aten.addmv")))


def test_the_grid_covers_what_it_is_for() -> None:
    """Its relations to each other are held by flop_proof_test.cpp."""
    small = small_sizes().values()
    assert {s["n_heads"] // s["n_kv_heads"] for s in small} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("name", "device"),
    [*((f"grid_{i:02d}", "cpu") for i in range(0, 44, 6)), ("grid_22", "meta"), ("tiny", "meta")],
)
def test_flops_counted_anew_are_the_same(name: str, device: str) -> None:
    """And no operator goes uncounted that did not before."""
    entry = next(e for e in FLOPS["configurations"] if e["name"] == name)
    flops, uncounted = count_flops({key: entry[key] for key in DIMENSIONS}, device)
    assert flops == entry["flops"]
    assert uncounted <= set(FLOPS["uncounted_operators"])


# training_tiny.json
def test_start_is_what_our_initializer_draws() -> None:
    model, tokens = golden.tiny_start()
    assert sum(p.numel() for p in model.parameters()) == 2_873_600
    assert tokens.tolist() == CURVES_DOCUMENT["tokens"]
    embedding = model.model.embed_tokens.weight
    assert embedding.std().item() == pytest.approx(0.02, rel=0.01)
    assert torch.equal(embedding, embedding.to(torch.bfloat16).to(torch.float32))
    assert model.model.norm.weight.unique().tolist() == [1.0]
    checksum = golden.weights_checksum(model)
    assert checksum == CURVES_DOCUMENT["weights_checksum"]
    # which tells one bit in one weight
    model.lm_head.weight.data[17, 3] *= 1 + 2**-7
    assert golden.weights_checksum(model) != checksum


@pytest.mark.parametrize("name", CURVES)
def test_first_steps_trained_anew_are_the_same(name: str) -> None:
    steps = 10 if name in {"f64", "f32"} else 3
    found = golden.losses(CURVES[name], steps)
    stored = CURVES_DOCUMENT["losses"][name][:steps]
    assert found == pytest.approx(stored, rel=CURVES[name].tolerance)


# scripts/golden
@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A golden folder with one case, to be spoilt."""
    shutil.copytree(GOLDEN_FOLDER / CASE, tmp_path / CASE)
    return tmp_path


def check(folder: Path) -> int:
    return golden.main([CASE, "--check", "--folder", str(folder)])


def test_written_again_the_bytes_are_the_same(
    tmp_path: Path, project_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # another process, whose hashes come in another order
    command = [sys.executable, "-m", "tinyllama_tools.proofs.golden", CASE]
    paths = {"PYTHONPATH": str(project_root / "scripts"), "PYTHONHASHSEED": "77"}
    command += ["--folder", str(tmp_path / "again")]
    subprocess.run(command, env=os.environ | paths, check=True, capture_output=True, timeout=300)
    assert golden.main([CASE, "--folder", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{CASE}: written to {tmp_path}\n"
    assert captured.err.startswith(f"-- {CASE} (1 of 1)\n")
    files = sorted((tmp_path / CASE).iterdir())
    assert {path.name for path in files} == {p.name for p in (GOLDEN_FOLDER / CASE).iterdir()}
    for path in files:
        assert path.read_bytes() == (tmp_path / "again" / CASE / path.name).read_bytes(), path
    assert check(tmp_path) == 0


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert golden.main([CASE, "--folder", str(tmp_path / "file")]) == 2
    assert f"File exists: '{tmp_path / 'file'}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "relative", "status"),
    [(F64_FILE, 1e-9, 1), (F64_FILE, 1e-14, 0), (F32_FILE, 1e-4, 1), (F32_FILE, 1e-6, 0)],
)
def test_one_changed_value(
    copy: Path, capsys: pytest.CaptureFixture[str], file: str, relative: float, status: int
) -> None:
    tensors = load_file(copy / CASE / file)
    tensors[TENSOR][5, 7] += relative * tensors[TENSOR].abs().max()
    save_file(tensors, copy / CASE / file)
    assert check(copy) == status
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert [f"{TENSOR} at index (5, 7)" in line for line in failed] == [True] * status
    # nor may one be absent or superfluous
    (copy / CASE / file).rename(copy / CASE / "other.safetensors")
    assert check(copy) == 1
    output = capsys.readouterr().out
    assert f"{file} is absent" in output
    assert "other.safetensors is not one of the golden files" in output


@pytest.mark.parametrize(
    ("part", "keys", "change", "held"),
    [
        (CASE, ("rope_theta",), lambda _: 500000.0, False),
        ("flops", ("configurations", 3, "flops", "attention", "forward"), lambda n: n + 1, False),
        ("training_tiny", ("torch",), lambda _: "9.9", True),
        ("training_tiny", ("losses", "f64", 7), lambda loss: loss * (1 + 1e-13), True),
        ("training_tiny", ("losses", "f64", 7), lambda loss: loss * (1 + 1e-9), False),
        ("training_tiny", ("losses", "bf16", 7), lambda _: math.nan, False),
    ],
)
def test_a_changed_document(
    tmp_path: Path, part: str, keys: tuple[Any, ...], change: Callable[[Any], Any], held: bool
) -> None:
    name = f"{part}/config.json" if part == CASE else f"{part}.json"
    changed = inner = document(name)
    *way, last = keys
    for key in way:
        inner = inner[key]
    inner[last] = change(inner[last])
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(json.dumps(changed))
    for file in () if part != CASE else (GOLDEN_FOLDER / CASE).glob("*.safetensors"):
        (tmp_path / CASE / file.name).symlink_to(file)
    failed = [p.worst for p in golden.compare([part], tmp_path, GOLDEN_FOLDER) if not p.held]
    place = ".".join(map(str, keys))
    assert failed == ([] if held else [f"{name}: {place}"])


def test_another_version_of_transformers_writes_nothing_and_checks_with_a_warning(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(oracle.transformers, "__version__", "4.99.0")
    message = "transformers 4.99.0 is not the pinned 4"
    assert golden.main([CASE, "--folder", str(copy / "none")]) == 2
    assert f"error: {message}" in capsys.readouterr().err
    assert not (copy / "none").exists()
    assert check(copy) == 0
    assert f"warning: {message}" in capsys.readouterr().err
