"""The measured machine, points under the roofline, the speed of light of a step and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from result_documents import MEASURED

from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.data.machine import Machine, ProductRate
from tinyllama_tools.data.names import CaseName, parse_case_name
from tinyllama_tools.data.results import MeasuredCase, ResultSet, read_result_set
from tinyllama_tools.models import roofline
from tinyllama_tools.models.roofline import (
    CHUNK_LOGITS,
    FEWEST_TOKENS,
    LaunchCost,
    Product,
    Size,
    StepTimes,
    TimedPart,
    chunk_of,
    joined,
    product_times,
    roofline_of,
    step_products,
    step_times,
)

# a machine of round numbers
PEAK, MEMORY, CACHE, CACHE_BYTES = 1e9, 1e8, 1e9, 1000
MACHINE = Machine({"f32": PEAK}, MEMORY, CACHE, CACHE_BYTES)
REAL_SIZES = problem_sizes()
TINY = REAL_SIZES["tiny"]
# no two layers of the same shape but k and v, gate and up
TOY = {"vocab_size": 20, "hidden_dim": 16, "n_layers": 2}
TOY |= {"n_heads": 4, "n_kv_heads": 2, "intermediate_dim": 24}
BATCH, SEQ = 2, 4
AXES = f"baseline/toy/f32/batch:{BATCH}/seq:{SEQ}"
PRODUCTS = step_products(TOY, BATCH, SEQ)
SCORES = ("scores", "values")
FFN, NORM, HEAD = (f"{part}/forward_backward/{AXES}" for part in ("ffn", "rms_norm", "loss"))


@pytest.fixture(autouse=True)
def _toy_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "problem_sizes", lambda: {**REAL_SIZES, "toy": TOY})


def name_of(text: str) -> CaseName:
    name = parse_case_name(text)
    assert name is not None
    return name


STEP = name_of(f"full_step/train/{AXES}")


def flops_of(products: Sequence[Product], *names: str) -> int:
    """Of those of a component or a layer; of all where none is named."""
    return sum(p.flops for p in products if not names or {p.component, p.layer} & set(names))


def case(text: str, seconds: float, label: str = "", **counters: float) -> MeasuredCase:
    """All products run as the model has them where `hardware_flops` does not say otherwise."""
    found = {"bytes": 100.0, "elementwise_flops": 50.0, "model_flops": 0.0, **counters}
    found.setdefault("hardware_flops", found["model_flops"])
    return MeasuredCase(name_of(text), (seconds,), found, label)


def result_set(cases: Sequence[MeasuredCase], products: Sequence[ProductRate] = ()) -> ResultSet:
    peaks: dict[str, Any] = {"f32": {"flops_per_second": PEAK}}
    peaks |= {"memory_bandwidth": {"bytes_per_second": MEMORY}}
    peaks |= {"cache_bandwidth": {"bytes_per_second": CACHE}}
    device = {"name": "toy", "last_level_cache_bytes": CACHE_BYTES}
    context = {"peaks": {"measured": peaks}, "device": device}
    by_name = {str(one.name): one for one in cases}
    return ResultSet("toy", (Path("toy.json"),), context, by_name, (), tuple(products))


def rates(factor: float, products: Sequence[Product]) -> list[ProductRate]:
    """A rate of `factor` of the peak for each of these products."""
    return [ProductRate("f32", p.batch, p.m, p.n, p.k, factor * PEAK, "a path") for p in products]


def test_traffic_within_twice_the_cache_sees_its_bandwidth() -> None:
    known = result_set([]).context
    assert Machine.from_context(known) == MACHINE
    assert Machine.from_context(known | {"cold_cache": True}) == replace(MACHINE, cache_bytes=0)
    uncached, cached = replace(MACHINE, cache_bytes=0), replace(MACHINE, memory_bandwidth=None)
    for machine, traffic, seconds in (
        (MACHINE, 2 * CACHE_BYTES, 2 * CACHE_BYTES / CACHE),
        # half of it from the cache, half from memory
        (MACHINE, 4 * CACHE_BYTES, 2 * CACHE_BYTES / CACHE + 2 * CACHE_BYTES / MEMORY),
        (uncached, 8, 8 / MEMORY),
        (cached, 2 * CACHE_BYTES, 2 * CACHE_BYTES / CACHE),
    ):
        assert machine.traffic_seconds(traffic) == pytest.approx(seconds)
    with pytest.raises(BadInputError, match="with peak in --components"):
        cached.traffic_seconds(2 * CACHE_BYTES + 1)
    device = {"last_level_cache_bytes": -1}
    for context, words in (
        ({"peaks": {"measured": {"f32": {"flops_per_second": 1.0}}}}, "no cache_bandwidth"),
        ({**known, "device": device}, "last_level_cache_bytes is -1"),
    ):
        with pytest.raises(BadInputError, match=words):
            Machine.from_context(context)


def test_points_by_hand() -> None:
    flops = {"model_flops": 2000.0, "bytes": 1000.0}
    for name, counters, intensity, attainable, percent, bound in (
        (FFN, flops, 2.0, PEAK, 50.0, "compute"),
        (FFN, {**flops, "model_flops": 500.0}, 0.5, 0.5 * CACHE, 25.0, "bandwidth"),
        # no compute roof for elementwise work: above what products reach
        (NORM, {"elementwise_flops": 5000.0, "bytes": 1000.0}, 5.0, 5 * CACHE, 25.0, "bandwidth"),
        # what really ran counts
        (FFN, {"model_flops": 2e3, "hardware_flops": 1.5e3}, 15.0, PEAK, 37.5, "compute"),
    ):
        (point,) = roofline_of(result_set([case(name, 4e-6, **counters)])).points
        found = (point.intensity, point.attainable, point.percent)
        assert found == pytest.approx((intensity, attainable, percent)), counters
        assert (point.bound, point.case) == (bound, name_of(name)), counters
        assert point.flops_per_second == pytest.approx(percent / 100 * attainable)
    # above a peak or the roofline there is no share; a little more is scatter of the peak
    above = replace(case(HEAD, 4e-6, **flops), above_peak="106 % of the peak")
    cases = [above, case(FFN, 1e-6, **flops), case(NORM, 1.97e-6, **flops)]
    above, fast, little = roofline_of(result_set(cases)).points
    assert (above.percent, above.error) == (None, "106 % of the peak")
    assert fast.percent is None and "200.0 % of what the roofline allows" in fast.error
    assert (round(little.percent, 1), little.error) == (101.5, "")


def test_launches_bound_what_they_explain_mostly() -> None:
    # 10 operators and nothing to move, so 0.9 us each
    small = case(NORM, 9.01e-6, bytes=10.0, operators=10.0)
    for seconds, flops, operators, bound in (
        (2e-4, 5e4, 150, "latency"),
        # products take longer than launches do
        (2e-4, 1.5e5, 130, "compute"),
        # launches take longer than products, but most of the time is neither's
        (4e-4, 5e4, 150, "compute"),
    ):
        large = case(HEAD, seconds, model_flops=flops, operators=float(operators))
        found = roofline_of(result_set([large, small]))
        point, source = found.points
        assert found.launch == LaunchCost(pytest.approx(0.9e-6), NORM)
        assert (point.bound, point.starts_seconds) == (bound, pytest.approx(operators * 0.9e-6))
        # the case that shows it is not bound by it
        assert (source.bound, source.starts_seconds) == ("bandwidth", None)
    best = case(NORM, 3e-5, bytes=1000.0, operators=10.0)
    at_roof = case(FFN, 1e-3, model_flops=0.99e6, operators=10.0)
    for cases, expected in (
        # one that is nearly at its roof shows scatter
        ([at_roof, best], LaunchCost(pytest.approx((3e-5 - 1e-6) / 10), NORM)),
        # large ones show nothing
        ([case(NORM, 1e-3, bytes=1e4, operators=10.0)], None),
    ):
        assert roofline_of(result_set(cases)).launch == expected


def test_products_have_points_and_what_has_none_is_named() -> None:
    # autocast multiplies in its narrow type
    other_type = HEAD.replace("f32", "amp_bf16")
    of = [case(FFN, 1e-3, model_flops=10.0), case(NORM, 1e-3, bytes=0.0)]
    of.append(case(other_type, 1e-3, model_flops=10.0))
    square = ProductRate("f32", 1, 10, 10, 10, PEAK / 2, "a path")
    thin = ProductRate("f32", 8, 10, 10, 1, PEAK / 100, "a path")
    found = roofline_of(result_set(of, [square, thin, replace(square, type_name="bf16")]))
    assert [point.name for point in found.points] == [FFN]
    assert found.left_out == {
        NORM: "its counters lack bytes or FLOPs",
        other_type: "no peak of bf16 products was measured",
        "peak/gemm/bf16/10x10x10": "no peak of bf16 products was measured",
    }
    first, second = found.products
    assert (first.name, second.name) == ("peak/gemm/f32/10x10x10", "peak/gemm/f32/8x10x10x1")
    assert first.intensity == pytest.approx(2000 / (4 * 300))
    # 1.2 us of traffic at the bandwidth against 2 us at the peak, 4 us measured
    assert (first.percent, first.bound, second.bound) == (50.0, "compute", "bandwidth")


def test_of_a_real_run() -> None:
    results = read_result_set([MEASURED])
    found = roofline_of(results)
    assert len(found.points) == len(results.cases) and not found.left_out
    bounds = dict.fromkeys(("block", "loss", "full_step"), "compute")
    bounds |= dict.fromkeys(("embedding", "rms_norm"), "bandwidth")
    for point in found.points:
        # as the program itself says it
        stated = results.cases[point.name].counters["roof_percent"]
        assert point.percent == pytest.approx(stated, rel=1e-6), point.name
        assert point.bound == bounds.get(point.case.component, point.bound), point.name
    # the update of one tensor after another is a thousand starts, and shows best what one costs
    assert found.launch is not None and found.launch.source.startswith("optimizer/update/baseline/")


def test_shapes_and_flops_of_the_tiny_step() -> None:
    products = step_products(TINY, 8, 128)
    cases = read_result_set([MEASURED]).cases
    step = cases["full_step/train/baseline/tiny/f32/batch:8/seq:128"].counters
    assert flops_of(products) == step["model_flops"] == 17678991360
    shapes = {(p.layer, p.direction): p.shape for p in products}
    shapes["qkv", "forward"] = fused_layers(products, "q_proj", "k_proj", "v_proj")[0].shape
    # 1024 tokens, 8 heads of 32 in 4 groups of 2, so 2 x 128 queries a group
    expected = {
        ("k_proj", "input gradient"): "1024x256x128",
        ("scores", "gradient of q"): "32x256x32x128",
        ("values", "gradient of v"): "32x128x32x256",
        ("lm_head", "weight gradient"): "1000x256x1024",
        ("qkv", "forward"): "1024x512x256",
    }
    assert expected.items() <= shapes.items()
    # unmasked scores as the program counts them
    seconds, at_peak = product_times(TINY, 8, 128, {}, 1.0)
    assert sum(seconds.values()) == pytest.approx(step["causal_flops"], rel=1e-12)
    assert len(at_peak) == len({p.shape for p in products if p.layer not in SCORES})


def fused_layers(products: Sequence[Product], *layers: str) -> list[Product]:
    """One of each direction."""
    of_layers = [[p for p in products if p.layer == layer] for layer in layers]
    return [joined(group) for group in zip(*of_layers, strict=True)]


def times(
    rows: list[ProductRate], size: Size = TOY, shape: tuple[int, int] = (BATCH, SEQ)
) -> tuple[dict[str, float], list[str]]:
    by_shape = {(r.batch, r.m, r.n, r.k): r.flops_per_second for r in rows}
    return product_times(size, *shape, by_shape, PEAK)


def test_the_fastest_form_that_was_measured_counts() -> None:
    qkv = fused_layers(PRODUCTS, "q_proj", "k_proj", "v_proj")
    gates = fused_layers(PRODUCTS, "gate_proj", "up_proj")
    quarter = 4 / PEAK
    # 1 + 2 + 3 + 4 of 16 scores are not masked, and they count at the peak
    scores = flops_of(PRODUCTS, *SCORES)
    alone = (flops_of(PRODUCTS, "attention") - scores) * quarter + 10 / 16 * scores / PEAK
    seconds, at_peak = times(rates(0.25, PRODUCTS))
    assert seconds["attention"] == pytest.approx(alone) and not at_peak
    faster, slower = (times(rates(0.25, PRODUCTS) + rates(by, qkv))[0] for by in (0.5, 0.1))
    assert faster["attention"] == pytest.approx(alone - flops_of(qkv) * quarter / 2)
    assert slower["attention"] == pytest.approx(alone)
    # a measured form counts before one at the peak, and without any the peak stands in by name
    others = [p for p in PRODUCTS if p.layer not in ("gate_proj", "up_proj", "lm_head")]
    seconds, at_peak = times(rates(0.25, others) + rates(0.5, gates))
    down = flops_of(PRODUCTS, "down_proj")
    assert seconds["ffn"] == pytest.approx(flops_of(gates) * 2 / PEAK + down * quarter)
    assert seconds["loss"] == pytest.approx(flops_of(PRODUCTS, "lm_head") / PEAK)
    assert at_peak == [p.shape for p in PRODUCTS if p.layer == "lm_head"]
    # the head in chunks: so many words that the fewest tokens are one
    size, seq = {**TOY, "vocab_size": CHUNK_LOGITS}, 4 * FEWEST_TOKENS
    products = step_products(size, 1, seq)
    head = [p for p in products if p.component == "loss"]
    chunks = [chunk_of(product, size) for product in head]
    few, many = FEWEST_TOKENS, CHUNK_LOGITS
    assert [p.shape for p in chunks] == [
        *(f"{few}x{many}x16", f"{few}x16x{many}", f"{many}x16x{few}"),
    ]
    for factor in (0.5, 0.1):
        seconds, _ = times(rates(0.25, products) + rates(factor, chunks), size, (1, seq))
        assert seconds["loss"] == pytest.approx(flops_of(head) / PEAK / max(factor, 0.25))


# 2000 bytes of the update fit the cache once read and once written, 2000 come from memory
UPDATE_LIGHT, SMALL_LIGHT = 2000 / CACHE + 2000 / MEMORY, 100 / CACHE
# of all products of a step at the peak, without masked scores
LEAST = (flops_of(PRODUCTS) - 6 / 16 * flops_of(PRODUCTS, *SCORES)) / PEAK
HEAD_LIGHT = flops_of(PRODUCTS, "loss") / PEAK
LITTLE = HEAD_LIGHT / 1.01


def step_cases(
    seconds: float = 1e-2, without: Sequence[str] = (), **other: float
) -> list[MeasuredCase]:
    """A step and all its parts with blocks. `other`: seconds by component in place of 1e-5."""
    took = dict.fromkeys(("embedding", "block", "rms_norm", "loss", "optimizer"), 1e-5) | other
    found = [
        case(f"optimizer/update/{AXES}", took[part], bytes=4000.0)
        if part == "optimizer"
        else case(f"{part}/forward_backward/{AXES}", took[part])
        for part in took
        if part not in without
    ]
    return [*found, case(str(STEP), seconds, model_flops=flops_of(PRODUCTS))]


def times_of(cases: Sequence[MeasuredCase], factor: float = 1.0) -> StepTimes:
    return step_times(result_set(cases, rates(factor, PRODUCTS)), STEP)


def part(found: StepTimes, name: str) -> TimedPart:
    return next(one for one in found.parts if one.name == name)


def light_of(found: StepTimes, name: str) -> float:
    light = part(found, name).light
    assert light is not None
    return light.seconds


def test_the_light_of_a_step_is_the_sum_of_its_parts() -> None:
    seconds = 1e-2
    found = times_of(step_cases(seconds, block=1e-3, loss=8e-4, optimizer=7e-4))
    assert (found.refusal, found.errors) == ("", [])
    expected = {
        **{"embedding": SMALL_LIGHT, "block": LEAST - HEAD_LIGHT, "rms_norm": SMALL_LIGHT},
        **{"loss": HEAD_LIGHT, "optimizer": UPDATE_LIGHT, "rest": 0.0},
    }
    assert {one.name: light_of(found, one.name) for one in found.parts} == pytest.approx(expected)
    took = {one.name: (one.count, one.seconds) for one in found.parts}
    assert took["block"] == (2, pytest.approx(2e-3))
    assert took["rest"][1] == pytest.approx(seconds - 2e-3 - 8e-4 - 7e-4 - 2e-5)
    light, whole = found.total.light, sum(expected.values())
    assert light is not None
    assert (light.products, light.seconds) == pytest.approx((LEAST, whole))
    assert found.share_percent == pytest.approx(100 * whole / seconds)
    assert sum(one.lost_seconds or 0.0 for one in found.parts) == pytest.approx(seconds - whole)
    # halved rates double the products
    slow = times_of(step_cases(loss=1e-3, block=1e-2), 0.5)
    assert light_of(slow, "loss") == pytest.approx(2 * HEAD_LIGHT)
    # the larger of products and traffic counts; of any variant the least bytes
    more = case(HEAD.replace("baseline", "fused_loss"), 1e-2, bytes=104000.0)
    traffic = [*step_cases(without=["loss"]), case(HEAD, 1e-2, bytes=102000.0), more]
    assert light_of(times_of(traffic), "loss") == pytest.approx(2000 / CACHE + 1e5 / MEMORY)
    # layers taken apart
    cases = step_cases(without=["block"])
    cases += [case(f"{name}/forward_backward/{AXES}", 1e-2) for name in ("attention", "ffn")]
    found = times_of(cases)
    assert light_of(found, "rms_norm") == pytest.approx(5 * SMALL_LIGHT)
    layers = light_of(found, "attention") + light_of(found, "ffn")
    assert layers == pytest.approx(LEAST - HEAD_LIGHT)


def test_what_is_missing_is_named() -> None:
    embedding = f"embedding/forward_backward/{AXES}"
    bare = [*step_cases(without=["embedding"]), case(embedding, 1e-2, bytes=0.0)]
    no_bytes = "no bytes, its light is that of its products"
    assert times_of(bare).missing[0] == f"{embedding}: {no_bytes}"
    found = times_of(step_cases(without=["loss"]))
    assert found.missing[:2] == [f"{HEAD}: not measured", f"{HEAD}: {no_bytes}"]
    assert part(found, "loss").seconds is None
    rows = rates(1.0, [product for product in PRODUCTS if product.layer != "lm_head"])
    missing, *_ = step_times(result_set(step_cases(), rows), STEP).missing
    assert "the measured f32 peak stands in: 8x20x16, 8x16x20, 20x16x8" in missing
    # rates of another type are nobody's
    bf16 = [replace(row, type_name="bf16") for row in rows]
    other = step_times(result_set(step_cases(), bf16), STEP)
    assert other.total.light is not None and "every f32" in other.missing[0]
    assert other.total.light.products == pytest.approx(LEAST)
    for step, flops, words in (
        (STEP, 5.0, "model_flops is 5.0, by the dimensions"),
        (replace(STEP, dtype="bf16"), flops_of(PRODUCTS), "no peak of bf16 products"),
    ):
        found = step_times(result_set([case(str(step), 1.0, model_flops=flops)]), step)
        assert words in found.refusal and found.total.light is found.share_percent is None
        # what was measured is there all the same
        assert found.total.seconds == 1.0


def test_what_is_faster_than_light_leaves_no_share() -> None:
    # a part alone, in a step that is slow enough; a little faster is scatter of the rate
    for loss, words in ((1e-9, ["loss: 1 ns is faster than its speed of light"]), (LITTLE, [])):
        found = times_of(step_cases(loss=loss, block=1e-3, optimizer=1e-3))
        assert [error.partition(",")[0] for error in found.errors] == words
        assert (found.share_percent is None) == bool(words)
        assert part(found, "block").lost_seconds is not None
    # parts alone that take longer than the step are no error, and the rest loses nothing then
    rest = times_of(step_cases(1e-3, block=4e-3, loss=1e-3, optimizer=1e-3))
    assert not rest.errors and (part(rest, "rest").lost_seconds or 0.0) < 0
    assert part(rest, "rest").share_percent is None


@pytest.mark.parametrize("variant", ["baseline", "optimized"])
def test_the_parts_of_a_real_run(variant: str) -> None:
    measured = read_result_set([MEASURED])
    step = name_of(f"full_step/train/{variant}/tiny/f32/batch:8/seq:128")
    counters = measured.cases[str(step)].counters
    found = step_times(measured, step)
    # every product at the peak is the roofline of the step, and updates come on top
    unmasked = counters["causal_flops"] / counters["model_flops"]
    assert found.share_percent is not None and not found.errors
    assert counters["roof_percent"] * unmasked - 0.5 < found.share_percent < 100
    for seconds in ([one.seconds or 0.0 for one in found.parts], found.phases.values()):
        assert sum(seconds) == pytest.approx(found.total.seconds if seconds else 0.0)
    # the embedding has no switch, so the baseline's stands in the optimized step
    assert [one.case.split("/")[2] for one in found.parts[:2]] == ["baseline", variant]


def test_phases() -> None:
    forward, both = (f"model/{name}/{AXES}" for name in ("forward_loss", "forward_backward"))
    cases = [*step_cases(1e-3), case(forward, 3e-4), case(both, 9e-4)]
    phases = {"forward": 3e-4, "backward": 6e-4, "optimizer": 1e-5, "other": 9e-5}
    assert times_of(cases).phases == pytest.approx(phases)
    found = times_of(cases[:-1])
    assert found.phases == {} and f"{both}: not measured" in found.missing
    # a switch of the update leaves the model as it is; what `optimized` has depends on the case
    for variant, is_found in (("fused_adamw", True), ("qkv", False), ("optimized", False)):
        step = replace(STEP, variant=variant)
        update = case(f"optimizer/update/{AXES.replace('baseline', variant)}", 1e-5)
        results = result_set([*cases, case(str(step), 1e-3), update])
        assert bool(step_times(results, step).phases) == is_found, variant
