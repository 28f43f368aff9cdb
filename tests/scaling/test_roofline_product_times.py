"""The least time of a step's products: one for all variants, of the fastest form measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from result_documents import MEASURED
from roofline_sets import BATCH, PEAK, PRODUCTS, SEQ, SIZES, products_of, rates, seconds_of

from tinyllama_tools.core.app import PROJECT, problem_sizes
from tinyllama_tools.data.machine import ProductRate
from tinyllama_tools.data.results import read_result_set
from tinyllama_tools.models.roofline import (
    CHUNK_LOGITS,
    FEWEST_TOKENS,
    Product,
    ProductRates,
    ProductTimes,
    chunk_of,
    product_times,
    step_products,
)

TOY = SIZES["toy"]
LONG = 4 * FEWEST_TOKENS


def layers(*names: str) -> list[Product]:
    return [product for product in PRODUCTS if product.layer in names]


SEPARATE = rates(0.25, PRODUCTS)
FUSED = step_products(TOY, BATCH, SEQ, ("qkv", "gate_up"))


def times(rows: list[ProductRate]) -> ProductTimes:
    return product_times(TOY, BATCH, SEQ, ProductRates.among(rows, "f32", PEAK))


def test_the_fastest_form_that_was_measured_counts() -> None:
    qkv = [product for product in FUSED if product.layer == "qkv_proj"]
    gain = seconds_of(qkv, PEAK / 4) - seconds_of(qkv, PEAK / 2)
    attention = times(SEPARATE).seconds["attention"]
    faster = times(SEPARATE + rates(0.5, qkv))
    assert faster.seconds["attention"] == pytest.approx(attention - gain)
    assert faster.at_peak == ()
    slower = times(SEPARATE + rates(0.1, qkv))
    assert slower.seconds["attention"] == pytest.approx(attention)


def test_a_measured_form_counts_before_one_at_the_peak() -> None:
    gates = [product for product in FUSED if product.layer == "gate_up_proj"]
    others = [p for p in PRODUCTS if p.layer not in ("gate_proj", "up_proj")]
    found = times(rates(0.25, others) + rates(0.5, gates))
    expected = seconds_of(gates, PEAK / 2) + seconds_of(layers("down_proj"), PEAK / 4)
    assert found.seconds["ffn"] == pytest.approx(expected)
    assert found.at_peak == ()


def test_without_a_measured_form_the_peak_stands_in_by_name() -> None:
    head = layers("lm_head")
    found = times(rates(0.25, products_of("attention", "ffn")))
    assert found.seconds["loss"] == pytest.approx(seconds_of(head))
    assert set(found.at_peak) == {product.shape for product in head}


def test_scores_count_at_the_peak_without_what_the_mask_hides() -> None:
    scores = layers("scores", "values")
    others = seconds_of(products_of("attention"), PEAK / 4) - seconds_of(scores, PEAK / 4)
    # 1 + 2 + 3 + 4 of 16 scores are not masked
    expected = others + 10 / 16 * seconds_of(scores)
    assert times(SEPARATE).seconds["attention"] == pytest.approx(expected)


def test_the_unmasked_scores_are_those_that_the_suite_counts() -> None:
    step = read_result_set([MEASURED]).cases["full_step/train/baseline/tiny/f32/batch:8/seq:128"]
    tiny = problem_sizes()["tiny"]
    products = step_products(tiny, 8, 128)
    scores = sum(p.flops for p in products if p.layer in ("scores", "values"))
    rows = ProductRates(1.0, {})
    seconds = sum(product_times(tiny, 8, 128, rows).seconds.values())
    assert seconds == pytest.approx(step.counters["causal_flops"], rel=1e-12)
    assert step.counters["model_flops"] == pytest.approx(seconds + scores * 127 / 256)


@pytest.mark.parametrize("factor", [0.5, 0.1])
def test_the_head_in_chunks_counts_where_it_is_the_fastest(factor: float) -> None:
    # so many words that the fewest tokens are a chunk
    size = {**TOY, "vocab_size": CHUNK_LOGITS}
    head = [p for p in step_products(size, 1, LONG) if p.component == "loss"]
    chunks = [chunk_of(product, size) for product in head]
    assert [p.shape for p in chunks] == [
        f"{FEWEST_TOKENS}x{CHUNK_LOGITS}x16",
        f"{FEWEST_TOKENS}x16x{CHUNK_LOGITS}",
        f"{CHUNK_LOGITS}x16x{FEWEST_TOKENS}",
    ]
    rows = rates(0.25, step_products(size, 1, LONG)) + rates(factor, chunks)
    found = product_times(size, 1, LONG, ProductRates.among(rows, "f32", PEAK))
    best = max(factor, 0.25)
    assert found.seconds["loss"] == pytest.approx(seconds_of(head, best * PEAK))
    assert found.at_peak == ()


def test_chunks_are_those_of_the_program() -> None:
    text = (PROJECT / "model/loss.cpp").read_text(encoding="utf-8")
    body = text[text.index("int64_t fused_loss_chunk(") :]
    assert "logits = int64_t{1} << 19;" in body
    assert f"fewest = {FEWEST_TOKENS};" in body
    assert "logits / vocab_size / 64 * 64" in body
    assert CHUNK_LOGITS == 2**19
    # tiny and small have 1000 words: 524 tokens, of which whole 64s are taken
    size = problem_sizes()["tiny"]
    head = next(p for p in step_products(size, 8, 128) if p.component == "loss")
    assert chunk_of(head, size).shape == "512x1000x256"
    few = next(p for p in step_products(size, 1, 128) if p.component == "loss")
    assert chunk_of(few, size) == few


def test_of_a_shape_that_is_there_twice_the_better_rate_counts() -> None:
    rows = [*SEPARATE, *(replace(row, flops_per_second=PEAK / 2) for row in SEPARATE)]
    assert times(rows).seconds["ffn"] == pytest.approx(seconds_of(products_of("ffn"), PEAK / 2))
