"""Every product of a step: exact counts, shapes as the suite measures them, bad dimensions."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from result_documents import MEASURED

from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.models.roofline import DIMENSIONS, step_products

SIZES = problem_sizes()
TINY = SIZES["tiny"]


def flops_by_hand(size: dict[str, int], batch: int, seq: int) -> int:
    """Forward of a layer: projections, scores and values, network; of the head; three times."""
    hidden, inner = size["hidden_dim"], size["intermediate_dim"]
    kv_width = hidden * size["n_kv_heads"] // size["n_heads"]
    tokens = batch * seq
    layer = (
        2 * tokens * hidden * (2 * hidden + 2 * kv_width)
        + 4 * batch * seq * seq * hidden
        + 6 * tokens * hidden * inner
    )
    return 3 * (size["n_layers"] * layer + 2 * tokens * hidden * size["vocab_size"])


def total(size: dict[str, int], batch: int, seq: int, **options: tuple[str, ...]) -> int:
    return sum(product.flops for product in step_products(size, batch, seq, **options))


def counted(component: str) -> int:
    """model_flops of a case of the tiny size, as the suite wrote it."""
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["benchmarks"]
    start = f"{component}/baseline/tiny/f32/batch:8/seq:128"
    return next(int(row["model_flops"]) for row in rows if row["run_name"].startswith(start))


def test_they_add_up_to_what_the_suite_counts() -> None:
    products = step_products(TINY, 8, 128)
    flops = Counter[str]()
    for product in products:
        flops[product.component] += product.flops
    assert sum(flops.values()) == counted("full_step/train") == 17678991360
    layers = TINY["n_layers"]
    assert flops["attention"] + flops["ffn"] == layers * counted("block/forward_backward")
    assert flops["loss"] == counted("loss/forward_backward")


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("shape", [None, (1, 2), (3, 65)])
def test_every_size_adds_up(name: str, shape: tuple[int, int] | None) -> None:
    size = SIZES[name]
    batch, seq = shape or (size["batch"], size["seq"])
    expected = flops_by_hand(size, batch, seq)
    assert total(size, batch, seq) == expected
    assert total(size, batch, seq, fused=("qkv", "gate_up")) == expected


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_groups_of_any_width_add_up(kv_heads: int) -> None:
    size = {**TINY, "n_kv_heads": kv_heads}
    assert total(size, 2, 16) == flops_by_hand(size, 2, 16)


def test_backward_is_twice_forward() -> None:
    forward = backward = 0
    for product in step_products(SIZES["small"], 8, 256):
        if product.direction == "forward":
            forward += product.flops
        else:
            backward += product.flops
    assert backward == 2 * forward


def test_shapes_of_the_tiny_step() -> None:
    shapes = {p.role: (p.component, p.count, p.shape) for p in step_products(TINY, 8, 128)}
    # 1024 tokens, 8 heads of 32 in 4 groups of 2, so 2 x 128 queries a group
    assert shapes == {
        "q_proj forward": ("attention", 4, "1024x256x256"),
        "q_proj input gradient": ("attention", 4, "1024x256x256"),
        "q_proj weight gradient": ("attention", 4, "256x256x1024"),
        "k_proj forward": ("attention", 4, "1024x128x256"),
        "k_proj input gradient": ("attention", 4, "1024x256x128"),
        "k_proj weight gradient": ("attention", 4, "128x256x1024"),
        "v_proj forward": ("attention", 4, "1024x128x256"),
        "v_proj input gradient": ("attention", 4, "1024x256x128"),
        "v_proj weight gradient": ("attention", 4, "128x256x1024"),
        "scores forward": ("attention", 4, "32x256x128x32"),
        "scores gradient of q": ("attention", 4, "32x256x32x128"),
        "scores gradient of k": ("attention", 4, "32x128x32x256"),
        "values forward": ("attention", 4, "32x256x32x128"),
        "values gradient of probabilities": ("attention", 4, "32x256x128x32"),
        "values gradient of v": ("attention", 4, "32x128x32x256"),
        "o_proj forward": ("attention", 4, "1024x256x256"),
        "o_proj input gradient": ("attention", 4, "1024x256x256"),
        "o_proj weight gradient": ("attention", 4, "256x256x1024"),
        "gate_proj forward": ("ffn", 4, "1024x512x256"),
        "gate_proj input gradient": ("ffn", 4, "1024x256x512"),
        "gate_proj weight gradient": ("ffn", 4, "512x256x1024"),
        "up_proj forward": ("ffn", 4, "1024x512x256"),
        "up_proj input gradient": ("ffn", 4, "1024x256x512"),
        "up_proj weight gradient": ("ffn", 4, "512x256x1024"),
        "down_proj forward": ("ffn", 4, "1024x256x512"),
        "down_proj input gradient": ("ffn", 4, "1024x512x256"),
        "down_proj weight gradient": ("ffn", 4, "256x512x1024"),
        "lm_head forward": ("loss", 1, "1024x1000x256"),
        "lm_head input gradient": ("loss", 1, "1024x256x1000"),
        "lm_head weight gradient": ("loss", 1, "1000x256x1024"),
    }


def test_fused_layers_are_one_product() -> None:
    fused = {p.role: p.shape for p in step_products(TINY, 8, 128, ("qkv", "gate_up"))}
    assert fused["qkv_proj forward"] == "1024x512x256"
    assert fused["gate_up_proj weight gradient"] == "1024x256x1024"
    assert "q_proj forward" not in fused
    assert "up_proj forward" not in fused


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("value", [None, 0, -1, 2.0, True])
def test_bad_dimensions_are_named(dimension: str, value: object) -> None:
    with pytest.raises(BadInputError, match=f"{dimension} is {value!r}"):
        step_products({**TINY, dimension: value}, 8, 128)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_heads": 7, "n_kv_heads": 7}, "hidden_dim 256 must be a multiple of n_heads 7"),
        ({"n_kv_heads": 3}, "n_heads 8 must be a multiple of n_kv_heads 3"),
    ],
)
def test_heads_that_do_not_divide_are_named(changed: dict[str, int], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        step_products({**TINY, **changed}, 8, 128)


def test_an_empty_batch_is_named() -> None:
    with pytest.raises(BadInputError, match="batch is 0"):
        step_products(TINY, 0, 128)
