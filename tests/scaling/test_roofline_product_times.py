"""The least time of products that variants run as one, in chunks or not at all."""

from __future__ import annotations

import pytest
from roofline_sets import BATCH, PEAK, SEQ, SIZES, rates

from tinyllama_tools.reading.result_set import ProductRate
from tinyllama_tools.roofline.product_times import Rates, product_times
from tinyllama_tools.roofline.products import Product, step_products

TOY = SIZES["toy"]
PRODUCTS = step_products(TOY, BATCH, SEQ)


def seconds_of(products: list[Product], rate: float = PEAK) -> float:
    return sum(product.flops for product in products) / rate


def of(*components: str) -> list[Product]:
    return [product for product in PRODUCTS if product.component in components]


SEPARATE = rates(0.25, PRODUCTS)
FUSED = step_products(TOY, BATCH, SEQ, ("qkv", "gate_up"))


def attention(switches: tuple[str, ...], rows: list[ProductRate], share: float = 1.0) -> float:
    book = Rates.among(rows, "f32", PEAK)
    return product_times(TOY, BATCH, SEQ, switches, book, share).seconds["attention"]


def test_the_fastest_form_that_was_measured_counts_for_every_variant() -> None:
    qkv = [product for product in FUSED if product.layer == "qkv_proj"]
    rows = SEPARATE + rates(0.5, qkv)
    gain = seconds_of(qkv, PEAK / 4) - seconds_of(qkv, PEAK / 2)
    expected = attention((), SEPARATE) - gain
    assert attention((), rows) == pytest.approx(expected)
    assert attention(("qkv",), rows) == pytest.approx(expected)
    slower = SEPARATE + rates(0.1, qkv)
    assert attention(("qkv",), slower) == pytest.approx(attention((), SEPARATE))


def test_a_form_that_the_variant_runs_without_a_rate_counts_at_the_peak() -> None:
    book = Rates.among(SEPARATE, "f32", PEAK)
    found = product_times(TOY, BATCH, SEQ, ("gate_up",), book)
    gates = [product for product in FUSED if product.layer == "gate_up_proj"]
    down = [product for product in PRODUCTS if product.layer == "down_proj"]
    expected = seconds_of(gates) + seconds_of(down, PEAK / 4)
    assert found.seconds["ffn"] == pytest.approx(expected)
    assert set(found.at_peak) == {product.shape for product in gates}


def test_scores_that_are_never_stored_count_at_the_peak_as_far_as_computed() -> None:
    scores = [product for product in PRODUCTS if product.layer in ("scores", "values")]
    others = seconds_of(of("attention"), PEAK / 4) - seconds_of(scores, PEAK / 4)
    for switches in (("sdpa",), ()):
        found = attention(switches, SEPARATE, 0.75)
        assert found == pytest.approx(others + 0.75 * seconds_of(scores))


def test_the_head_in_chunks_counts_at_the_peak() -> None:
    book = Rates.among(SEPARATE, "f32", PEAK)
    found = product_times(TOY, BATCH, SEQ, ("fused_loss",), book)
    assert found.seconds["loss"] == pytest.approx(seconds_of(of("loss")))
    assert found.at_peak == ("the LM head, which this variant runs in chunks",)
