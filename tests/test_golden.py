"""The golden files: complete, small, made anew with the same values, and proved by other means."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import math
from pathlib import Path

import pytest

from oracle_packages import require_oracle_packages

require_oracle_packages()

import torch
from safetensors.torch import load_file

from tinyllama_tools.proofs import golden as checks
from tinyllama_tools.proofs.golden import (
    F32_FILE,
    F64_FILE,
    GOLDEN_CASES,
    GOLDEN_FOLDER,
    INPUTS_FILE,
    WEIGHTS_FILE,
    loaded_model,
)

MAX_BYTES = 4_000_000


@pytest.fixture(params=sorted(GOLDEN_CASES))
def case(request: pytest.FixtureRequest) -> str:
    return request.param


def test_files_are_small() -> None:
    assert sum(path.stat().st_size for path in GOLDEN_FOLDER.rglob("*")) < MAX_BYTES


def test_folder_holds_the_cases_and_nothing_else() -> None:
    folders = {path.name for path in GOLDEN_FOLDER.iterdir() if path.is_dir()}
    assert folders == set(GOLDEN_CASES)
    for name in folders:
        assert {path.name for path in (GOLDEN_FOLDER / name).iterdir()} == {
            "config.json",
            WEIGHTS_FILE,
            INPUTS_FILE,
            F64_FILE,
            F32_FILE,
        }


def test_cases_cover_what_they_are_for() -> None:
    sizes = GOLDEN_CASES.values()
    assert {s["n_heads"] // s["n_kv_heads"] for s in sizes} == {1, 2, 4}
    assert {s["hidden_dim"] // s["n_heads"] for s in sizes} == {16, 32, 64}
    assert {s["seq"] for s in sizes} == {1, 7, 33}
    assert any(s["n_kv_heads"] == 1 for s in sizes)
    assert max(s["n_layers"] for s in sizes) == 2
    assert all(s["vocab_size"] % 2 and s["intermediate_dim"] % 2 for s in sizes)


def test_tensors_are_complete(case: str) -> None:
    folder, size = GOLDEN_FOLDER / case, GOLDEN_CASES[case]
    weights = load_file(folder / WEIGHTS_FILE)
    inputs = load_file(folder / INPUTS_FILE)
    shape = (size["batch"], size["seq"])
    assert inputs["tokens"].shape == shape
    assert inputs["tokens"].dtype == torch.int64
    assert ("logits_gradient" in inputs) == (size["seq"] == 1)
    for file, dtype, prefixes in (
        (F64_FILE, torch.float64, ("gradient.", "after_5_steps.")),
        (F32_FILE, torch.float32, ("gradient.",)),
    ):
        expected = load_file(folder / file)
        shapes = {name: tensor.shape for name, tensor in expected.items()}
        assert shapes.pop("logits") == (*shape, size["vocab_size"])
        assert shapes.pop("loss") == ()
        assert shapes == {f"{p}{name}": w.shape for p in prefixes for name, w in weights.items()}
        assert {tensor.dtype for tensor in expected.values()} == {dtype}


def test_weights_serve_every_dtype_and_are_far_from_trivial(case: str) -> None:
    weights = load_file(GOLDEN_FOLDER / case / WEIGHTS_FILE)
    for name, weight in weights.items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight.to(torch.float16).to(torch.float64), weight.to(torch.float64))
        if weight.dim() == 1:
            assert (weight - 1).abs().mean() > 0.1, name


def test_attention_is_far_from_uniform() -> None:
    size = GOLDEN_CASES["single_kv_head"]
    folder = GOLDEN_FOLDER / "single_kv_head"
    model = loaded_model(size, load_file(folder / WEIGHTS_FILE), torch.float32)
    tokens = load_file(folder / INPUTS_FILE)["tokens"]
    (attention,) = model(input_ids=tokens, output_attentions=True).attentions
    last = attention[:, :, -1]  # the last position, which sees all 33
    entropy = -(last * last.clamp_min(1e-30).log()).sum(-1).mean().item()
    assert 0.2 * math.log(33) < entropy < 0.8 * math.log(33)


@pytest.mark.parametrize("file", [F64_FILE, F32_FILE])
def test_made_anew_they_are_the_same(file: str) -> None:
    check = checks.check_regeneration(file)
    assert check.held, check


def test_gradients_agree_with_finite_differences() -> None:
    check = checks.check_finite_differences()
    assert check.cases == sum(len(load_file(p)) for p in GOLDEN_FOLDER.glob(f"*/{WEIGHTS_FILE}"))
    assert check.held, check


def test_finite_differences_find_a_wrong_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = checks.load_case

    def load_wrong(case: str) -> tuple[object, dict, dict]:
        model, inputs, expected = load(case)
        expected["gradient.model.norm.weight"][3] *= 1 + 1e-5
        return model, inputs, expected

    monkeypatch.setattr(checks, "GOLDEN_CASES", {"seq_1": GOLDEN_CASES["seq_1"]})
    monkeypatch.setattr(checks, "load_case", load_wrong)
    check = checks.check_finite_differences()
    assert not check.held
    assert check.where == "seq_1: model.norm.weight"


def test_weights_after_adamw_follow_its_paper() -> None:
    check = checks.check_adamw()
    assert check.held, check


def test_checkpoints_load_as_any_other() -> None:
    check = checks.check_checkpoints()
    assert check.held, check


def test_every_tensor_file_is_listed_in_the_readme() -> None:
    text = (GOLDEN_FOLDER / "README.md").read_text()
    names = {path.name for path in Path(GOLDEN_FOLDER).rglob("*") if path.is_file()}
    assert [name for name in sorted(names - {"README.md"}) if name not in text] == []
