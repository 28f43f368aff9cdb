"""flops.json: complete, the same counted anew, and nothing with a product in it went uncounted."""

import json
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not in this Python: the oracle needs it")
pytest.importorskip("transformers", reason="requirements-oracle.txt is not installed")

import torch

from tinyllama_tools.compact_json import compact_json
from tinyllama_tools.flop_grid import named_sizes, small_sizes
from tinyllama_tools.flop_oracle import ComponentCounter, count_flops, masked_pairs
from tinyllama_tools.golden_compare import compare_file
from tinyllama_tools.golden_values import GOLDEN_FOLDER
from tinyllama_tools.oracle_checks import check_flops

COMPONENTS = ("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model")
# Every way that torch spells a product of matrices or vectors.
PRODUCTS = {"mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "dot", "vdot", "ger"}
PRODUCTS |= {"matmul", "linear", "bilinear", "einsum", "tensordot", "addr"}


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
    names = [name.removeprefix("aten.") for name in document["uncounted_operators"]]
    assert "_softmax" in names
    assert [name for name in names if name.strip("_") in PRODUCTS or "conv" in name] == []


def test_counted_anew_they_are_the_same() -> None:
    check = check_flops(every=4)
    assert check.cases == 11 * 23
    assert check.held, check


def test_meta_device_counts_as_the_cpu_does() -> None:
    check = check_flops(every=22, device="meta")
    assert check.held, check


def test_named_size_counted_anew(document: dict[str, Any]) -> None:
    (tiny,) = (entry for entry in document["configurations"] if entry["name"] == "tiny")
    assert count_flops(named_sizes()["tiny"])[0] == tiny["flops"]


def test_one_flop_more_is_found(document: dict[str, Any], tmp_path: Any) -> None:  # noqa: ANN401
    document = json.loads(json.dumps(document))
    document["configurations"][3]["flops"]["attention"]["forward"] += 1
    path = tmp_path / "flops.json"
    path.write_text(compact_json(document, expanded=("configurations",)))
    verdict = compare_file(path, GOLDEN_FOLDER / "flops.json")
    assert not verdict.held
    assert "configurations" in verdict.text
