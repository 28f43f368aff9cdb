"""Result sets made up for rooflines: a machine of round numbers, and steps of a toy size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyllama_tools.data.machine import ProductRate
from tinyllama_tools.data.names import CaseName, parse_case_name
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.models.roofline import Product, step_products
from tinyllama_tools.models.speed_of_light import LightPart, SpeedOfLight

PEAK, MEMORY, CACHE, CACHE_BYTES = 1e9, 1e8, 1e9, 1000
# no two layers of the same shape but k and v, gate and up
SIZES: Mapping[str, Mapping[str, int]] = {
    "toy": {
        "vocab_size": 20,
        "hidden_dim": 16,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "intermediate_dim": 24,
    }
}
BATCH, SEQ = 2, 4
AXES = f"baseline/toy/f32/batch:{BATCH}/seq:{SEQ}"
PRODUCTS = step_products(SIZES["toy"], BATCH, SEQ)
STEP_FLOPS = sum(product.flops for product in PRODUCTS)
SCORE_FLOPS = sum(product.flops for product in PRODUCTS if product.layer in ("scores", "values"))
# the mask hides 6 of 16 scores
UNMASKED = 10 / 16


def name_of(text: str) -> CaseName:
    """Of a case's whole name."""
    name = parse_case_name(text)
    assert name is not None
    return name


STEP = name_of(f"full_step/train/{AXES}")


def case(text: str, seconds: float, label: str = "", **counters: float) -> MeasuredCase:
    """`counters`: those that the suite would write. All products run as the model has them where
    `hardware_flops` does not say otherwise."""
    found = {"bytes": 100.0, "elementwise_flops": 50.0, "model_flops": 0.0, **counters}
    found.setdefault("hardware_flops", found["model_flops"])
    return MeasuredCase(name_of(text), (seconds,), found, label)


def context(**peaks: float) -> dict[str, Any]:
    """Of a file; `peaks`: FLOP/s by type, f32 where none is given."""
    measured: dict[str, Any] = {
        name: {"flops_per_second": rate} for name, rate in (peaks or {"f32": PEAK}).items()
    }
    measured["memory_bandwidth"] = {"bytes_per_second": MEMORY}
    measured["cache_bandwidth"] = {"bytes_per_second": CACHE}
    return {
        "peaks": {"measured": measured},
        "device": {"name": "toy", "last_level_cache_bytes": CACHE_BYTES},
    }


def result_set(
    cases: Sequence[MeasuredCase],
    products: Sequence[ProductRate] = (),
    of: Mapping[str, Any] | None = None,
) -> ResultSet:
    """As read_result_set makes it."""
    by_name = {str(one.name): one for one in cases}
    return ResultSet("toy", (Path("toy.json"),), of or context(), by_name, (), tuple(products))


def step_cases(seconds: float = 1e-3, **other: float) -> list[MeasuredCase]:
    """A step and all its parts with blocks. `other`: seconds by component in place of 1e-5."""

    def took(component: str) -> float:
        return other.get(component, 1e-5)

    parts = ("embedding", "block", "rms_norm", "loss")
    found = [case(f"{part}/forward_backward/{AXES}", took(part)) for part in parts]
    found.append(case(f"optimizer/update/{AXES}", took("optimizer"), bytes=4000.0))
    # embedding, 2 blocks, norm and loss of 100 each, and the optimizer
    found.append(case(str(STEP), seconds, model_flops=STEP_FLOPS, bytes=4500.0))
    return found


def rates(factor: float, products: Sequence[Any]) -> list[ProductRate]:
    """A rate of `factor` of the peak for each of these products."""
    return [ProductRate("f32", p.batch, p.m, p.n, p.k, factor * PEAK, "a path") for p in products]


def products_of(*components: str) -> list[Product]:
    """Of a step of the toy."""
    return [product for product in PRODUCTS if product.component in components]


def seconds_of(products: Sequence[Product], rate: float = PEAK) -> float:
    """Of these products at one rate."""
    return sum(product.flops for product in products) / rate


def least_seconds(rate: float) -> float:
    """Of all products of a step at one rate, scores at the peak as far as they are not masked."""
    return (STEP_FLOPS - SCORE_FLOPS) / rate + UNMASKED * SCORE_FLOPS / PEAK


def part(found: SpeedOfLight, name: str) -> LightPart:
    """The part of that name."""
    return next(one for one in found.parts if one.name == name)
