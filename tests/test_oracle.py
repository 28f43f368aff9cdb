"""The oracle: its float64 is float64, its rotary angles are the package's, its weights ours."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import pytest

from oracle_packages import require_oracle_packages

require_oracle_packages()

import torch

from tinyllama_tools.proofs import oracle
from tinyllama_tools.proofs.oracle_checks import check_narrowing, check_no_float32, check_rotary
from tinyllama_tools.proofs.rows import Check, Errors

SIZE = {
    "vocab_size": 11,
    "hidden_dim": 32,
    "n_layers": 1,
    "n_heads": 4,
    "n_kv_heads": 2,
    "intermediate_dim": 13,
}


def test_mode_answers_float32_with_float64() -> None:
    x = torch.zeros(2, dtype=torch.bfloat16)
    with oracle.Float64Mode():
        results = [x.float(), x.to(torch.float32), x.to(dtype=torch.float32)]
        results += [torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32)]
    assert [result.dtype for result in results] == [torch.float64] * 4
    assert x.float().dtype == torch.float32


def test_mode_leaves_other_types_alone() -> None:
    x = torch.zeros(2)
    with oracle.Float64Mode():
        assert x.to(torch.bfloat16).dtype == torch.bfloat16
        assert x.long().dtype == torch.int64


def test_no_operator_of_the_float64_oracle_narrows() -> None:
    check = check_no_float32()
    assert check.cases > 1000
    assert check.held, check


def test_mode_changes_roundings_and_nothing_else() -> None:
    check = check_narrowing()
    assert check.held, check
    # without it, float32's roundings are there
    assert check.largest_error > 1e-8


def test_rotary_angles_are_those_of_the_package() -> None:
    check = check_rotary()
    assert check.held, check


def test_rotary_tables_are_not_made_in_float64() -> None:
    with oracle.Float64Mode(), pytest.raises(RuntimeError, match="Float64Mode"):
        oracle.rotary_tables(16, 4)


def test_portable_rotary_answers_in_the_type_of_the_activations() -> None:
    rotary = oracle.PortableRotary(head_dim=16, max_seq=8)
    positions = torch.arange(5)[None]
    cos, sin = rotary(torch.zeros(1, dtype=torch.float64), positions)
    assert cos.shape == sin.shape == (1, 5, 16)
    assert cos.dtype == torch.float64
    assert torch.equal(cos, cos.to(torch.float32).to(torch.float64))
    assert torch.equal(cos[..., :8], cos[..., 8:])


def test_model_has_our_dimensions_and_no_more() -> None:
    model = oracle.build_model(SIZE)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (16, 32)
    assert shapes["lm_head.weight"] == (11, 32)
    assert len(shapes) == 12
    assert model.config._attn_implementation == "eager"


def test_frequencies_stay_float32_in_a_bfloat16_model() -> None:
    model = oracle.build_model(SIZE, torch.bfloat16)
    assert model.lm_head.weight.dtype == torch.bfloat16
    wide = oracle.build_model(SIZE).model.rotary_emb.inv_freq
    assert torch.equal(model.model.rotary_emb.inv_freq, wide)


def test_initial_weights_depend_on_the_seed_only() -> None:
    first, again = (oracle.build_model(SIZE).lm_head.weight for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, oracle.build_model(SIZE, seed=7).lm_head.weight)


def test_check_of_nothing_and_of_nan_does_not_hold() -> None:
    assert not Check("a", "b", cases=0, tolerance=1.0, largest_error=0.0).held
    errors = Errors()
    errors.add(0.5, "here")
    errors.add(float("nan"), "there")
    check = errors.check("a", "b", tolerance=1.0)
    assert (check.cases, check.where, check.held) == (2, "there", False)
