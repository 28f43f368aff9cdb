"""One speed of light for all variants of a size, type and shape, however each was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from roofline_sets import (
    AXES,
    CACHE,
    PEAK,
    PRODUCTS,
    SIZES,
    STEP,
    STEP_FLOPS,
    case,
    least_seconds,
    part,
    rates,
    result_set,
    step_cases,
)

from tinyllama_tools.data.results import MeasuredCase
from tinyllama_tools.models.speed_of_light import speed_of_light


def other_variant(cases: list[MeasuredCase], variant: str, label: str = "") -> list[MeasuredCase]:
    return [replace(c, name=replace(c.name, variant=variant), label=label) for c in cases]


def layer_cases(moved: float = 100.0) -> list[MeasuredCase]:
    names = ("attention", "ffn")
    return [case(f"{name}/forward_backward/{AXES}", 1e-2, bytes=moved) for name in names]


@pytest.mark.parametrize("variant", ["sdpa+fused_loss", "qkv+gate_up", "optimized"])
def test_the_light_is_the_same_for_every_variant(variant: str) -> None:
    label = "optimized = sdpa+fused_loss+fused_adamw"
    # of a layer: its parts' 2 x 100, 2 norms of 100, and 2 residual additions of 2000
    whole = 2 * 4400.0 + 100 + 100 + 100 + 4000
    cases = step_cases(seconds=1, block=1e-2)
    cases[-1] = case(str(STEP), 1, model_flops=STEP_FLOPS, bytes=whole)
    cases += other_variant(cases, variant, label)
    # one variant by the layers' parts, the other by whole blocks
    cases = [one for one in cases if one.name.component != "block" or one.name.variant == variant]
    found = result_set(cases + layer_cases(), rates(0.25, PRODUCTS))
    fine, coarse = (
        speed_of_light(found, name, SIZES) for name in (STEP, replace(STEP, variant=variant))
    )
    assert [one.name for one in fine.parts[1:4]] == ["attention", "ffn", "rms_norm"]
    assert [one.name for one in coarse.parts[1:3]] == ["block", "rms_norm"]
    for one in (fine, coarse):
        parts = sum(of_part.light_seconds for of_part in one.parts)
        assert one.total.light_seconds == pytest.approx(parts)
    assert fine.total.light_seconds == pytest.approx(coarse.total.light_seconds)
    assert fine.products_seconds == pytest.approx(least_seconds(PEAK / 4))
    assert coarse.products_seconds == pytest.approx(least_seconds(PEAK / 4))
    residuals = 2 * 2 * (2000 / CACHE)
    assert part(fine, "rest").light_seconds == pytest.approx(residuals)
    assert part(coarse, "rest").light_seconds == 0


def test_a_part_that_one_variant_lacks_has_the_bytes_of_another() -> None:
    cases = step_cases(seconds=1, block=1e-2)
    step = replace(STEP, variant="fused_norm")
    cases += other_variant([cases[-1]], "fused_norm")
    found = speed_of_light(result_set(cases, rates(1.0, PRODUCTS)), step, SIZES)
    baseline = speed_of_light(result_set(cases, rates(1.0, PRODUCTS)), STEP, SIZES)
    # of a variant whose layers were not measured, the finest parts are named
    assert [one.measured_seconds is None for one in found.parts[1:4]] == [True] * 3
    assert found.total.light_seconds == pytest.approx(baseline.total.light_seconds)
    (attention, ffn, norm) = found.missing
    assert "attention/forward_backward" in attention
    assert "its light is that of its products" in ffn
    assert norm.endswith(f"{AXES.replace('baseline', 'fused_norm')}: not measured")
