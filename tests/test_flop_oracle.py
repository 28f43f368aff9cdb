"""flops.json: complete, the same counted anew, and nothing with a product in it went uncounted."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import json
from pathlib import Path
from typing import Any

import pytest

from oracle_packages import require_oracle_packages

require_oracle_packages()

import torch

from tinyllama_tools.core.text import compact_json
from tinyllama_tools.proofs import oracle_checks
from tinyllama_tools.proofs.flops import (
    ComponentCounter,
    count_flops,
    masked_pairs,
    named_sizes,
    small_sizes,
)
from tinyllama_tools.proofs.golden import GOLDEN_FOLDER, compare_file

COMPONENTS = ("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model")
# What torch runs that holds no product of matrices or vectors, in whatever disguise. A name that is
# not here has to be looked up before it may be added: mkldnn_linear and
# _scaled_dot_product_flash_attention_for_cpu are products too.
WITHOUT_PRODUCT = {
    # shapes and places in memory
    *("_unsafe_view", "alias", "as_strided", "cat", "clone", "constant_pad_nd", "detach"),
    *("expand", "index", "select", "slice", "slice_backward", "squeeze", "stack", "t"),
    *("transpose", "unsqueeze", "view"),
    # new tensors, and other types of the same values
    *("_local_scalar_dense", "_to_copy", "arange", "copy_", "empty", "empty_like", "fill_"),
    *("full", "full_like", "lift_fresh", "new_empty", "new_ones", "new_zeros", "ones"),
    *("ones_like", "scalar_tensor", "zeros", "zeros_like"),
    # element by element
    *("add", "add_", "addcdiv_", "addcmul_", "bitwise_and", "cos", "div", "eq", "le", "lerp_"),
    *("mul", "mul_", "ne", "neg", "pow", "rsqrt", "sigmoid", "silu", "silu_backward", "sin"),
    *("sqrt", "sub", "sub_", "where"),
    # along one dimension of one tensor
    *("_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data"),
    *("cumsum", "mean", "sum"),
    # by an index
    *("embedding", "embedding_dense_backward", "nll_loss_backward", "nll_loss_forward"),
}
PROFILER = {"profiler._record_function_enter_new", "profiler._record_function_exit"}


def maybe_products(operators: list[str]) -> list[str]:
    """Those that are not known to be without a product."""
    known = PROFILER | {f"aten.{name}" for name in WITHOUT_PRODUCT}
    return [name for name in operators if name not in known]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads((GOLDEN_FOLDER / "flops.json").read_text())


def test_configurations_are_those_of_the_table(document: dict[str, Any]) -> None:
    sizes = small_sizes() | named_sizes()
    assert len(sizes) >= 48
    stored = {
        entry["name"]: {k: v for k, v in entry.items() if k not in {"name", "flops"}}
        for entry in document["configurations"]
    }
    assert stored == sizes


def test_grid_has_what_it_is_for() -> None:
    sizes = small_sizes().values()
    assert {s["n_heads"] // s["n_kv_heads"] for s in sizes} == {1, 2, 4, 8}
    assert {s["n_kv_heads"] for s in sizes} == {1, 2, 4, 8}
    assert {s["n_layers"] for s in sizes} == {1, 2, 3}
    assert {s["batch"] for s in sizes} == {1, 2, 3, 4}
    assert {s["seq"] % 2 for s in sizes} == {0, 1}
    assert {s["intermediate_dim"] % 2 for s in sizes} == {0, 1}


def test_every_component_and_pass_is_there(document: dict[str, Any]) -> None:
    for entry in document["configurations"]:
        passes = {name: set(counts) for name, counts in entry["flops"].items()}
        assert passes == {
            **{name: {"forward", "backward"} for name in COMPONENTS},
            "attention_scores": {"forward", "masked_forward"},
            "rotary_table": {"forward"},
            "model_as_counted": {"forward"},
            "full_step": {"train"},
            "full_step_as_counted": {"train"},
            "optimizer": {"update"},
        }
        assert all(type(n) is int for counts in entry["flops"].values() for n in counts.values())


def test_full_step_is_forward_and_backward_of_the_model(document: dict[str, Any]) -> None:
    for entry in document["configurations"]:
        flops = entry["flops"]
        assert flops["full_step"]["train"] == sum(flops["model"].values()) > 0
        blocks = entry["n_layers"] * flops["block"]["forward"]
        assert flops["model"]["forward"] == blocks + flops["loss"]["forward"]


def test_what_was_counted_is_more_by_the_rotary_table(document: dict[str, Any]) -> None:
    for entry in document["configurations"]:
        flops = entry["flops"]
        table = flops["rotary_table"]["forward"]
        assert flops["model_as_counted"]["forward"] - table == flops["model"]["forward"]
        assert flops["full_step_as_counted"]["train"] - table == flops["full_step"]["train"]
        assert table > 0


def test_masked_part_of_attention(document: dict[str, Any]) -> None:
    for entry in document["configurations"]:
        scores, seq = entry["flops"]["attention_scores"], entry["seq"]
        assert 0 < scores["forward"] < entry["flops"]["attention"]["forward"]
        hidden = int((torch.ones(seq, seq).tril() == 0).sum())
        assert scores["masked_forward"] * seq * seq == scores["forward"] * hidden


def test_batched_products_of_attention_by_hand(document: dict[str, Any]) -> None:
    entry = next(e for e in document["configurations"] if e["name"] == "grid_02")
    # 3 sequences, 2 heads of 16, 16 x 16 pairs: scores and probabilities x values, 2 each
    assert entry["flops"]["attention_scores"] == {
        "forward": 2 * 2 * 3 * 2 * 16 * 16 * 16,
        "masked_forward": 2 * 2 * 3 * 2 * 120 * 16,
    }


def test_hidden_pairs_are_those_of_the_models_own_mask() -> None:
    seen: list[torch.Tensor] = []
    counter = ComponentCounter(small_sizes()["grid_03"], "cpu")
    counter.model.model.layers[0].self_attn.register_forward_pre_hook(
        lambda _module, _args, options: seen.append(options["attention_mask"]), with_kwargs=True
    )
    counter.run_model()
    (mask,) = seen
    batch, seq = counter.size["batch"], counter.size["seq"]
    hidden, pairs = masked_pairs(counter.model, seq)
    assert (mask != 0).sum().item() == batch * hidden == batch * seq * (seq - 1) // 2
    assert mask.numel() == batch * pairs


def test_no_product_went_uncounted(document: dict[str, Any]) -> None:
    assert "aten._softmax" in document["uncounted_operators"]
    assert maybe_products(document["uncounted_operators"]) == []


@pytest.mark.parametrize(
    "product",
    [
        *("aten.mm", "aten.mv", "aten.linear", "aten.einsum", "mkldnn._linear_pointwise"),
        *("aten.mkldnn_linear", "aten._scaled_dot_product_flash_attention_for_cpu"),
    ],
)
def test_uncounted_product_is_found(product: str) -> None:
    assert maybe_products(["aten.add", product]) == [product]


def test_operator_that_was_counted_before_is_found(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = document | {
        "uncounted_operators": [n for n in document["uncounted_operators"] if n != "aten.silu"]
    }
    (tmp_path / "flops.json").write_text(json.dumps(document))
    monkeypatch.setattr(oracle_checks, "GOLDEN_FOLDER", tmp_path)
    check = oracle_checks.check_flops(every=44)
    assert not check.held
    assert "aten.silu is not counted" in check.where


def test_counted_anew_they_are_the_same() -> None:
    check = oracle_checks.check_flops(every=4)
    assert check.cases == 11 * 23
    assert check.held, check


def test_meta_device_counts_as_the_cpu_does() -> None:
    check = oracle_checks.check_flops(every=22, device="meta")
    assert check.held, check


def test_named_size_counted_anew(document: dict[str, Any]) -> None:
    (tiny,) = (entry for entry in document["configurations"] if entry["name"] == "tiny")
    assert count_flops(named_sizes()["tiny"])[0] == tiny["flops"]


def test_one_flop_more_is_found(document: dict[str, Any], tmp_path: Path) -> None:
    document = json.loads(json.dumps(document))
    document["configurations"][3]["flops"]["attention"]["forward"] += 1
    path = tmp_path / "flops.json"
    path.write_text(compact_json(document, expanded=("configurations",)))
    verdict = compare_file(path, GOLDEN_FOLDER / "flops.json")
    assert not verdict.held
    assert "configurations" in verdict.text
