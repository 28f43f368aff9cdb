"""Points under the roofline, the speed of light of a step and its parts, on a machine of round
numbers; tests/report holds both to the published study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reference_study import MEASURED
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
    StepTimes,
    TimedPart,
    roofline_of,
    step_products,
    step_times,
)

PEAK, MEMORY, CACHE, CACHE_BYTES = 1e9, 1e8, 1e9, 1000
MACHINE = Machine({"f32": PEAK}, MEMORY, CACHE, CACHE_BYTES)
# no two layers of the same shape but k and v, gate and up
TOY = {"vocab_size": 20, "hidden_dim": 16, "n_layers": 2}
TOY |= {"n_heads": 4, "n_kv_heads": 2, "intermediate_dim": 24}
# so many words that the fewest tokens are a chunk
WORDY = TOY | {"vocab_size": CHUNK_LOGITS}
SIZES = problem_sizes() | {"toy": TOY, "wordy": WORDY}
BATCH, SEQ = 2, 4
AXES = f"baseline/toy/f32/batch:{BATCH}/seq:{SEQ}"
PRODUCTS = step_products(TOY, BATCH, SEQ)
SCORES = ("scores", "values")
FFN, NORM, HEAD = (f"{part}/forward_backward/{AXES}" for part in ("ffn", "rms_norm", "loss"))


@pytest.fixture(autouse=True)
def _toy_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "problem_sizes", lambda: SIZES)


def name_of(text: str) -> CaseName:
    name = parse_case_name(text)
    assert name is not None
    return name


STEP = name_of(f"full_step/train/{AXES}")


def flops_of(products: Sequence[Product], *names: str) -> int:
    """Of those of a component or a layer; of all where none is named."""
    return sum(p.flops for p in products if not names or {p.component, p.layer} & set(names))


def case(text: str, seconds: float, **counters: float) -> MeasuredCase:
    """All products run as the model has them where `hardware_flops` does not say otherwise."""
    found = {"bytes": 100.0, "elementwise_flops": 50.0, "model_flops": 0.0, **counters}
    found.setdefault("hardware_flops", found["model_flops"])
    return MeasuredCase(name_of(text), (seconds,), found)


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
    cached = replace(MACHINE, memory_bandwidth=None)
    for machine, traffic, seconds in (
        (MACHINE, 2 * CACHE_BYTES, 2 * CACHE_BYTES / CACHE),
        # half of it from the cache, half from memory
        (MACHINE, 4 * CACHE_BYTES, 2 * CACHE_BYTES / CACHE + 2 * CACHE_BYTES / MEMORY),
        (cached, 2 * CACHE_BYTES, 2 * CACHE_BYTES / CACHE),
    ):
        assert machine.traffic_seconds(traffic) == pytest.approx(seconds)
    with pytest.raises(BadInputError, match="with peak in --components"):
        cached.traffic_seconds(2 * CACHE_BYTES + 1)
    for context, words in (
        ({"peaks": {"measured": {"f32": {"flops_per_second": 1.0}}}}, "no cache_bandwidth"),
        ({**known, "device": {"last_level_cache_bytes": -1}}, "last_level_cache_bytes is -1"),
    ):
        with pytest.raises(BadInputError, match=words):
            Machine.from_context(context)


def test_points_by_hand() -> None:
    flops = {"model_flops": 2000.0, "bytes": 1000.0}
    nothing = case(NORM, 1e-3, bytes=0.0)
    # autocast multiplies in its narrow type
    other_type = case(HEAD.replace("f32", "amp_bf16"), 1e-3, model_flops=10.0)
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
    assert roofline_of(result_set([nothing, other_type])).left_out == {
        NORM: "its counters lack bytes or FLOPs",
        str(other_type.name): "no peak of bf16 products was measured",
    }
    # 1.2 us of traffic at the bandwidth against 2 us at the peak, 4 us measured
    square = ProductRate("f32", 1, 10, 10, 10, PEAK / 2, "a path")
    (product,) = roofline_of(result_set([], [square])).products
    found = (product.intensity, product.percent, product.bound)
    assert found == (pytest.approx(2000 / (4 * 300)), 50.0, "compute")


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


COMPONENTS = ("embedding", "attention", "ffn", "rms_norm", "loss", "optimizer")


def part_case(
    part: str, seconds: float = 1e-5, axes: str = AXES, **counters: float
) -> MeasuredCase:
    is_update = part == "optimizer"
    counters = {"bytes": 4000.0 if is_update else 100.0, **counters}
    return case(
        f"{part}/{'update' if is_update else 'forward_backward'}/{axes}", seconds, **counters
    )


def least_times(
    rows: Sequence[ProductRate], size: str = "toy", shape: tuple[int, int] = (BATCH, SEQ)
) -> tuple[dict[str, float], str]:
    """Of the products of each component, and what is missing."""
    axes = f"baseline/{size}/f32/batch:{shape[0]}/seq:{shape[1]}"
    step = f"full_step/train/{axes}"
    cases = [part_case(part, axes=axes) for part in COMPONENTS]
    cases.append(case(step, 1.0, model_flops=flops_of(step_products(SIZES[size], *shape))))
    found = step_times(result_set(cases, rows), name_of(step))
    return {part.name: part.light.products for part in found.parts}, " ".join(found.missing)


def test_the_fastest_form_that_was_measured_counts() -> None:
    def fused(factor: float) -> list[ProductRate]:
        """Of q, k and v: 8 tokens, 16 + 8 + 8 outputs."""
        shapes = [(8, 32, 16), (8, 16, 32), (32, 16, 8)]
        return [ProductRate("f32", 1, *of, factor * PEAK, "a path") for of in shapes]

    qkv = flops_of(PRODUCTS, "q_proj", "k_proj", "v_proj")
    quarter = 4 / PEAK
    # 1 + 2 + 3 + 4 of 16 scores are not masked, and they count at the peak
    scores = flops_of(PRODUCTS, *SCORES)
    alone = (flops_of(PRODUCTS, "attention") - scores) * quarter + 10 / 16 * scores / PEAK
    seconds, missing = least_times(rates(0.25, PRODUCTS))
    assert seconds["attention"] == pytest.approx(alone) and "stands in" not in missing
    faster, slower = (
        least_times(rates(0.25, PRODUCTS) + fused(by))[0]["attention"] for by in (0.5, 0.1)
    )
    assert (faster, slower) == pytest.approx((alone - qkv * quarter / 2, alone))
    # a measured form counts before one at the peak, and without any the peak stands in by name
    others = [p for p in PRODUCTS if p.layer not in ("q_proj", "k_proj", "v_proj", "lm_head")]
    seconds, missing = least_times(rates(0.25, others) + fused(0.5))
    assert seconds["attention"] == pytest.approx(alone - qkv * quarter / 2)
    assert seconds["loss"] == pytest.approx(flops_of(PRODUCTS, "lm_head") / PEAK)
    assert "the measured f32 peak stands in: 8x20x16, 8x16x20, 20x16x8" in missing
    # the head in chunks
    seq, few, many = 4 * FEWEST_TOKENS, FEWEST_TOKENS, CHUNK_LOGITS
    products = step_products(WORDY, 1, seq)
    for factor in (0.5, 0.1):
        chunks = [(few, many, 16), (few, 16, many), (many, 16, few)]
        rows = [ProductRate("f32", 1, *of, factor * PEAK, "a path") for of in chunks]
        seconds, _ = least_times(rates(0.25, products) + rows, "wordy", (1, seq))
        expected = flops_of(products, "loss") / PEAK / max(factor, 0.25)
        assert seconds["loss"] == pytest.approx(expected)


# 2000 bytes of the update fit the cache once read and once written, 2000 come from memory
UPDATE_LIGHT, SMALL_LIGHT = 2000 / CACHE + 2000 / MEMORY, 100 / CACHE
# of all products of a step at the peak, without masked scores
LEAST = (flops_of(PRODUCTS) - 6 / 16 * flops_of(PRODUCTS, *SCORES)) / PEAK
HEAD_LIGHT = flops_of(PRODUCTS, "loss") / PEAK


def step_cases(seconds: float = 1e-2, without: str = "", **other: float) -> list[MeasuredCase]:
    """A step and all its parts with blocks. `other`: seconds by component in place of 1e-5."""
    took = dict.fromkeys(("embedding", "block", "rms_norm", "loss", "optimizer"), 1e-5) | other
    found = [part_case(part, of) for part, of in took.items() if part != without]
    return [*found, case(str(STEP), seconds, model_flops=flops_of(PRODUCTS))]


def times_of(cases: Sequence[MeasuredCase], factor: float = 1.0) -> StepTimes:
    return step_times(result_set(cases, rates(factor, PRODUCTS)), STEP)


def part(found: StepTimes, name: str) -> TimedPart:
    return next(one for one in found.parts if one.name == name)


def test_the_light_of_a_step_is_the_sum_of_its_parts() -> None:
    seconds = 1e-2
    found = times_of(step_cases(seconds, block=1e-3, loss=8e-4, optimizer=7e-4))
    assert (found.refusal, found.errors) == ("", [])
    expected = {
        **{"embedding": SMALL_LIGHT, "block": LEAST - HEAD_LIGHT, "rms_norm": SMALL_LIGHT},
        **{"loss": HEAD_LIGHT, "optimizer": UPDATE_LIGHT, "rest": 0.0},
    }
    assert {one.name: one.light.seconds for one in found.parts} == pytest.approx(expected)
    took = {one.name: (one.count, one.seconds) for one in found.parts}
    assert took["block"] == (2, pytest.approx(2e-3))
    assert took["rest"][1] == pytest.approx(seconds - 2e-3 - 8e-4 - 7e-4 - 2e-5)
    whole = sum(expected.values())
    assert (found.total.light.products, found.total.light.seconds) == pytest.approx((LEAST, whole))
    assert found.share_percent == pytest.approx(100 * whole / seconds)
    assert sum(one.lost_seconds or 0.0 for one in found.parts) == pytest.approx(seconds - whole)
    # the larger of products and traffic counts; of any variant the least bytes
    more = case(HEAD.replace("baseline", "fused_loss"), 1e-2, bytes=104000.0)
    traffic = [*step_cases(without="loss"), case(HEAD, 1e-2, bytes=102000.0), more]
    assert part(times_of(traffic), "loss").light.seconds == pytest.approx(
        2000 / CACHE + 1e5 / MEMORY
    )


def test_what_is_missing_is_named() -> None:
    bare = [*step_cases(without="embedding"), part_case("embedding", bytes=0.0)]
    no_bytes = "no bytes, its light is that of its products"
    assert times_of(bare).missing[0] == f"embedding/forward_backward/{AXES}: {no_bytes}"
    found = times_of(step_cases(without="loss"))
    assert found.missing[:2] == [f"{HEAD}: not measured", f"{HEAD}: {no_bytes}"]
    assert part(found, "loss").seconds is None
    # rates of another type are nobody's
    bf16 = [replace(row, type_name="bf16") for row in rates(1.0, PRODUCTS)]
    other = step_times(result_set(step_cases(), bf16), STEP)
    assert other.total.light.products == pytest.approx(LEAST) and "every f32" in other.missing[0]
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
    faster = ["loss: 1 ns is faster than its speed of light"]
    for loss, words in ((1e-9, faster), (HEAD_LIGHT / 1.01, [])):
        found = times_of(step_cases(loss=loss, block=1e-3, optimizer=1e-3))
        assert [error.partition(",")[0] for error in found.errors] == words
        assert (found.share_percent is None) == bool(words)
        assert part(found, "block").lost_seconds is not None


@pytest.mark.parametrize("variant", ["baseline", "optimized"])
def test_the_parts_of_a_real_run(variant: str) -> None:
    measured = read_result_set([MEASURED])
    step = name_of(f"full_step/train/{variant}/tiny/f32/batch:8/seq:128")
    counters = measured.cases[str(step)].counters
    found = step_times(measured, step)
    # every product at the peak, without what is masked, and updates come on top
    peak = Machine.from_context(measured.context).peak_flops["f32"]
    assert found.total.light.products * peak == pytest.approx(counters["causal_flops"], rel=1e-12)
    unmasked = counters["causal_flops"] / counters["model_flops"]
    assert found.share_percent is not None and not found.errors
    assert counters["roof_percent"] * unmasked - 0.5 < found.share_percent < 100
    for seconds in ([one.seconds for one in found.parts], found.phases.values()):
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
        update = part_case("optimizer", axes=AXES.replace("baseline", variant))
        step = replace(STEP, variant=variant)
        results = result_set([*cases, case(str(step), 1e-3), update])
        assert bool(step_times(results, step).phases) == is_found, variant
