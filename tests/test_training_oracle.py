"""training_tiny.json: the curves learn, the low-precision ones stay close, made anew they agree."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oracle_packages import require_oracle_packages

require_oracle_packages()

import torch

from tinyllama_tools.core.text import compact_json
from tinyllama_tools.proofs import oracle_checks
from tinyllama_tools.proofs import training as oracle
from tinyllama_tools.proofs.golden import GOLDEN_FOLDER, compare_file

FILE = GOLDEN_FOLDER / "training_tiny.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def test_header_says_how_it_was_made(document: dict[str, Any]) -> None:
    assert (document["seed"], document["batch"], document["seq"]) == (42, 2, 16)
    assert document["adamw"] == oracle.ADAMW
    curves = {name: len(losses) for name, losses in document["losses"].items()}
    assert curves == {name: curve.steps for name, curve in oracle.CURVES.items()}


def test_every_curve_learns_the_batch(document: dict[str, Any]) -> None:
    for losses in document["losses"].values():
        assert 6.5 < losses[0] < 7.5  # ln 1000 is 6.9
        assert losses[-1] < 0.03


def test_curves_differ_by_the_roundings_of_their_type(document: dict[str, Any]) -> None:
    # Adam multiplies roundings: the f64 curve itself moves by 2.4e-5 when each initial weight is
    # moved by about one rounding of float32, 6e-8 of it.
    exact = document["losses"]["f64"]
    for name, tolerance in {"f32": 2e-4, "bf16": 0.1, "amp_bf16": 0.05, "amp_f16": 0.01}.items():
        apart = [abs(a - b) for a, b in zip(document["losses"][name], exact, strict=False)]
        assert 0 < max(apart) < tolerance, name


def test_gradients_of_a_4096th_of_the_loss_need_the_scaler(document: dict[str, Any]) -> None:
    steps = 6
    scaled = document["losses"]["amp_f16_of_4096"][:steps]
    curve = oracle.CURVES["amp_f16_of_4096"]
    exact = oracle.losses(replace(curve, autocast=None), steps)
    unscaled = oracle.losses(curve, steps, is_scaled=False)
    assert max(abs(a - b) for a, b in zip(scaled, exact, strict=True)) < 0.003
    # before the first update both are one forward, which processors round differently
    assert unscaled[0] == oracle.losses(curve, 1)[0]
    # non-target logits have gradients of 1e-8 there, which float16 rounds to 0
    assert unscaled[-1] - scaled[-1] > 0.3


def test_start_is_what_our_initializer_draws(document: dict[str, Any]) -> None:
    model, tokens = oracle.tiny_start()
    assert sum(p.numel() for p in model.parameters()) == 2_873_600
    assert tokens.tolist() == document["tokens"]
    embedding = model.model.embed_tokens.weight
    assert embedding.std().item() == pytest.approx(0.02, rel=0.01)
    assert torch.equal(embedding, embedding.to(torch.bfloat16).to(torch.float32))
    assert model.model.norm.weight.unique().tolist() == [1.0]


def test_checksum_tells_one_bit_in_one_weight() -> None:
    model, _ = oracle.tiny_start()
    before = oracle.weights_checksum(model)
    weight = model.lm_head.weight.data
    weight[17, 3] *= 1 + 2**-7
    assert oracle.weights_checksum(model) != before


@pytest.mark.parametrize("curve", ["f64", "f32"])
def test_first_steps_trained_anew_are_the_same(curve: str) -> None:
    check = oracle_checks.check_training(curve, steps=10)
    assert check.cases == 10
    assert check.held, check


@pytest.mark.parametrize("curve", ["bf16", "amp_bf16", "amp_f16", "amp_f16_of_4096"])
def test_first_steps_in_low_precision(curve: str) -> None:
    check = oracle_checks.check_training(curve, steps=3)
    assert check.name == f"first 3 losses of tiny, {curve}"
    assert check.held, check


def test_every_curve_is_a_row_of_the_proofs() -> None:
    rows = [check for check in oracle_checks.ALL_CHECKS if isinstance(check, partial)]
    steps = dict(check.args for check in rows if check.func is oracle_checks.check_training)
    assert set(steps) == set(oracle.CURVES)
    assert steps["f64"] == steps["f32"] == 50
    assert min(steps.values()) >= 10


@pytest.mark.parametrize(("relative", "held"), [(1e-13, True), (1e-9, False)])
def test_changed_loss_is_found(
    document: dict[str, Any], tmp_path: Path, relative: float, held: bool
) -> None:
    changed = json.loads(json.dumps(document))
    changed["losses"]["f64"][7] *= 1 + relative
    path = tmp_path / FILE.name
    path.write_text(compact_json(changed, expanded=("losses",)))
    verdict = compare_file(path, FILE)
    assert verdict.held == held, verdict
    assert "losses.f64" in verdict.text
    assert "step 7" in verdict.text


def test_other_initial_weights_fail(document: dict[str, Any], tmp_path: Path) -> None:
    changed = json.loads(json.dumps(document))
    changed["weights_checksum"] += 1
    path = tmp_path / FILE.name
    path.write_text(json.dumps(changed))
    verdict = compare_file(path, FILE)
    assert not verdict.held
    assert "weights_checksum" in verdict.text


def test_check_of_other_initial_weights_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_checks, "weights_checksum", lambda _model: 0)
    check = oracle_checks.check_training("f32", steps=1)
    assert not check.held
    assert "weights_checksum" in check.where
