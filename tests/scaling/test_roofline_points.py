"""Points under the roofline: intensity, share of the attainable, and what bounds a case."""

from __future__ import annotations

from dataclasses import replace

import pytest
from result_documents import MEASURED
from roofline_sets import AXES, CACHE, PEAK, case, context, name_of, result_set

from tinyllama_tools.data.machine import Machine, ProductRate
from tinyllama_tools.data.results import MeasuredCase, read_result_set
from tinyllama_tools.models.roofline import (
    RooflinePoint,
    launch_cost,
    left_out_of_roofline,
    product_points,
    roofline_points,
)

FFN, NORM = f"ffn/forward_backward/{AXES}", f"rms_norm/forward_backward/{AXES}"


def only(*cases: MeasuredCase) -> RooflinePoint:
    """The point of the first."""
    return roofline_points(result_set(cases))[0]


def test_products_against_the_peak() -> None:
    point = only(case(FFN, 4e-6, model_flops=2000.0, bytes=1000.0))
    assert point.intensity == pytest.approx(2.0)
    assert point.flops_per_second == pytest.approx(5e8)
    assert point.attainable == pytest.approx(PEAK)
    assert (point.percent, point.bound) == (pytest.approx(50.0), "compute")
    assert point.case == name_of(FFN)
    assert "of 4 us, products at the peak take 2 us, traffic 1 us" in point.why


def test_products_of_little_intensity_against_the_bandwidth() -> None:
    point = only(case(FFN, 4e-6, model_flops=500.0, bytes=1000.0))
    assert point.attainable == pytest.approx(0.5 * CACHE)
    assert (point.percent, point.bound) == (pytest.approx(25.0), "bandwidth")


def test_without_products_elementwise_work_against_the_bandwidth() -> None:
    point = only(case(NORM, 4e-6, elementwise_flops=5000.0, bytes=1000.0))
    assert point.intensity == pytest.approx(5.0)
    # no compute roof for it: 5 FLOP/byte at the bandwidth, above what products reach
    assert point.attainable == pytest.approx(5.0 * CACHE)
    assert (point.percent, point.bound) == (pytest.approx(25.0), "bandwidth")


def test_what_really_ran_counts() -> None:
    full = only(case(FFN, 4e-6, model_flops=2000.0, bytes=100.0))
    less = only(case(FFN, 4e-6, model_flops=2000.0, hardware_flops=1500.0, bytes=100.0))
    assert full.percent == pytest.approx(50.0)
    assert less.percent == pytest.approx(37.5)
    assert less.intensity == pytest.approx(15.0)
    assert less.flops_per_second == pytest.approx(1500.0 / 4e-6)


def test_a_case_above_a_peak_has_its_point_and_the_reason() -> None:
    above = replace(case(FFN, 4e-6, model_flops=2000.0), above_peak="106 % of the peak")
    point = only(above)
    assert point.flops_per_second == pytest.approx(5e8)
    assert (point.percent, point.error) == (None, "106 % of the peak")


def test_faster_than_the_roofline_is_an_error_and_no_number() -> None:
    point = only(case(FFN, 1e-6, model_flops=2000.0))
    assert point.percent is None
    assert "200.0 % of what the roofline allows" in point.error
    assert not only(case(FFN, 2.0001e-6, model_flops=2000.0)).error


def test_launches_bound_what_they_explain_mostly() -> None:
    # the small norm: 10 operators and nothing to move, so 0.9 us each
    small = case(NORM, 9.01e-6, bytes=10.0, operators=10.0)
    other = f"loss/forward_backward/{AXES}"
    found = only(case(other, 2e-4, model_flops=5e4, operators=150.0), small)
    assert found.bound == "latency"
    assert (
        "the start of 150 operators at most 135 us (900 ns each, inferred from rms_norm"
        in found.why
    )
    # products take longer than launches do
    assert only(case(other, 3e-4, model_flops=2e5, operators=150.0), small).bound == "compute"
    # the same where launches take more than half of it
    assert only(case(other, 2e-4, model_flops=1.5e5, operators=130.0), small).bound == "compute"
    # launches take longer than products, but most of the time is neither's
    assert only(case(other, 4e-4, model_flops=5e4, operators=150.0), small).bound == "compute"


def test_the_case_that_shows_what_a_launch_costs_is_not_bound_by_it() -> None:
    small, larger = (
        case(f"{name}/forward_backward/{AXES}", seconds, bytes=10.0, operators=10.0)
        for name, seconds in (("rms_norm", 9e-6), ("loss", 10e-6))
    )
    source, other = roofline_points(result_set([small, larger]))
    assert other.bound == "latency"
    assert source.bound == "bandwidth"
    assert "inferred from this very case" in source.why


def test_the_cost_of_a_launch_comes_from_the_cell_that_shows_it_best() -> None:
    machine = Machine.from_context(context())
    small = case(NORM, 3e-5, bytes=1000.0, operators=10.0)
    cells = [
        case(f"loss/forward_backward/{AXES}", 1e-3, bytes=1000.0, operators=20.0),
        small,
        # nearly at its roof: what is left above it is scatter
        case(f"ffn/forward_backward/{AXES}", 1e-3, model_flops=0.99e6, operators=10.0),
    ]
    found = launch_cost(result_set(cells), machine)
    assert found is not None
    assert found.source == NORM
    assert found.seconds == pytest.approx((3e-5 - 1e-6) / 10)


def test_no_cell_can_start_its_operators_longer_than_it_takes() -> None:
    near_its_roof = case(FFN, 1e-5, model_flops=9e3, operators=10.0)
    slower = case(NORM, 5e-5, operators=10.0)
    found = launch_cost(result_set([near_its_roof, slower]), Machine.from_context(context()))
    assert found is not None
    assert found.seconds == pytest.approx(1e-6)


def test_large_cells_show_no_cost_of_a_launch() -> None:
    large = case(NORM, 1e-3, bytes=1e4, operators=10.0)
    assert launch_cost(result_set([large]), Machine.from_context(context())) is None
    point = only(large)
    assert point.bound == "bandwidth"
    assert "no cell is small enough" in point.why


def test_cases_without_costs_are_named() -> None:
    cases = [
        case(FFN, 1e-3, model_flops=10.0),
        case(NORM, 1e-3, bytes=0.0),
        case(f"loss/forward_backward/{AXES.replace('f32', 'amp_bf16')}", 1e-3, model_flops=10.0),
    ]
    found = result_set(cases)
    assert [point.name for point in roofline_points(found)] == [FFN]
    first, second = left_out_of_roofline(found)
    assert first == f"{NORM}: its counters lack bytes or FLOPs"
    assert second.endswith("no peak of bf16 products was measured")


def test_products_of_their_own() -> None:
    rows = [
        ProductRate("f32", 1, 10, 10, 10, PEAK / 2, "a path"),
        ProductRate("f32", 8, 10, 10, 1, PEAK / 100, "a path"),
        ProductRate("bf16", 1, 10, 10, 10, PEAK, "a path"),
    ]
    rows.append(ProductRate("i8", 1, 2, 2, 2, PEAK, "a path"))
    of = context(f32=PEAK, i8=PEAK)
    square, thin = product_points(result_set([], rows, of))
    assert left_out_of_roofline(result_set([], rows, of)) == [
        "peak/gemm/bf16/10x10x10: no peak of bf16 products was measured",
        "peak/gemm/i8/2x2x2: how many bytes a value of i8 has is not known",
    ]
    assert square.name == "peak/gemm/f32/10x10x10"
    assert square.intensity == pytest.approx(2000 / (4 * 300))
    # 1.2 us of traffic at the bandwidth against 2 us at the peak, 4 us measured
    assert (square.percent, square.bound) == (pytest.approx(50.0), "compute")
    assert thin.name == "peak/gemm/f32/8x10x10x1"
    assert thin.bound == "bandwidth"


def test_of_a_real_run() -> None:
    points = {point.name: point for point in roofline_points(read_result_set([MEASURED]))}
    assert len(points) == 11
    assert all(point.percent and 0 < point.percent <= 100 for point in points.values())
    for name, point in points.items():
        if name.startswith(("block", "loss", "full_step")):
            assert point.bound == "compute"
        elif name.startswith(("embedding", "rms_norm")):
            assert point.bound == "bandwidth"
    # the update of one tensor after another is a thousand starts, and shows best what one costs; as
    # one operator it is traffic
    tail = "tiny/f32/batch:8/seq:128"
    assert "inferred from this very case" in points[f"optimizer/update/baseline/{tail}"].why
    assert points[f"optimizer/update/optimized/{tail}"].bound == "bandwidth"
