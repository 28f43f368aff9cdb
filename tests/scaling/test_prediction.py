"""Predicted training steps: rates, what is refused, and how good predictions and ranges are."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping

import numpy as np
import pytest
from result_documents import MEASURED
from scipy.stats import t as student
from simulated_machine import (
    PARTS,
    SIZES,
    STEP,
    SimulatedMachine,
    cost,
    costs,
    named,
    own_cell,
)

from tinyllama_tools.data.results import MeasuredCase, ResultSet, read_result_set
from tinyllama_tools.models.prediction import (
    ASSUMED_DEGREES,
    ASSUMED_GROWTH,
    MOST_TRAFFIC,
    PRODUCTS,
    TRAFFIC,
    HeldOutStep,
    Rates,
    RatesRefusedError,
    StepPrediction,
    calibrate_rates,
    fit_terms,
    predict_steps,
    spread_of,
)

GRID = [(s, b, q) for s in ("tiny", "small") for b in (1, 4, 8) for q in (64, 128, 512)]
TINY = [cell for cell in GRID if cell[0] == "tiny"]
COARSE = ("embedding", "block", "rms_norm", "loss", "optimizer", STEP)
QUIET = SimulatedMachine(noise=0.0)


def calibrate(results: ResultSet) -> Rates:
    return calibrate_rates(results, "f32", "baseline")


def predict(rates: Rates, *sizes: str) -> list[StepPrediction]:
    found, refused = predict_steps(rates, costs(own_cell(size) for size in sizes))
    assert refused == []
    return found


def with_cases(results: ResultSet, cases: Mapping[str, MeasuredCase]) -> ResultSet:
    return dataclasses.replace(results, cases=cases)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_rates_come_back(noise: float) -> None:
    machine = SimulatedMachine(noise=noise, step_over_parts=1.5)
    rates = calibrate(machine.measure(GRID))
    close = 0.01 + 4 * noise
    for part in ("attention", "ffn", "loss"):
        rate = rates.parts[part].flops_per_second
        assert rate == pytest.approx(machine.flops_per_second, rel=close), part
    # of an optimizer two sizes do not tell operators from traffic
    for part in ("embedding", "rms_norm"):
        assert rates.parts[part].coefficients[0] == pytest.approx(machine.launch, rel=2 * close)
    for part in ("optimizer", "embedding", "rms_norm"):
        assert rates.parts[part].flops_per_second is None
    for _, ratio in rates.closure.ratios:
        assert ratio == pytest.approx(1.5, rel=0.001 + noise)
    # what the closure explains is no scatter
    assert rates.closure.scatter < 0.001 + 2 * noise
    assert rates.spread.base < 0.01 + 2 * noise
    # one size alone hardly tells apart what grows with the tokens
    held = rates.held_out_percent()
    assert set(held) == {"tiny", "small"} and max(map(abs, held.values())) < 8 + 200 * noise
    assert rates.basis() == "rates of 108 cells of tiny, small (f32, baseline)"
    (step,) = predict(rates, "medium")
    true = machine.seconds(STEP, *own_cell("medium"))
    assert step.seconds == pytest.approx(true, rel=0.04 + 2 * noise)


def test_blocks_serve_where_only_those_were_measured() -> None:
    full, blocks = QUIET.measure(GRID), QUIET.measure(GRID, components=COARSE)
    rates = calibrate(blocks)
    assert set(rates.parts) == {"embedding", "block", "rms_norm", "loss", "optimizer"}
    assert rates.closure.ratio_at(1e8) == pytest.approx(QUIET.step_over_parts, rel=1e-6)
    assert "block" not in calibrate(with_cases(blocks, {**blocks.cases, **full.cases})).parts


def test_what_cannot_be_calibrated_on_is_named() -> None:
    good = QUIET.measure(GRID)
    name, loss = next((n, c) for n, c in good.cases.items() if n.startswith("loss"))
    bare = dataclasses.replace(loss, counters={})
    without = [
        (with_cases(good, {n: c for n, c in good.cases.items() if not n.startswith(part)}), part)
        for part in ("embedding", "ffn", "rms_norm", "loss")
    ]
    peaks = {"measured": {"f32": {"flops_per_second": 1e9}}}
    for results, words in (
        *((results, f"not measured: {part}/") for results, part in without),
        (with_cases(good, {**good.cases, name: bare}), "loss/.*: the row has no counter model_"),
        (dataclasses.replace(good, context={**good.context, "peaks": peaks}), "cache_bandwidth"),
    ):
        with pytest.raises(RatesRefusedError, match=words):
            calibrate(results)
    for dtype, variant in (("bf16", "baseline"), ("f32", "sdpa")):
        with pytest.raises(RatesRefusedError, match=f"{dtype}|{variant}"):
            calibrate_rates(good, dtype, variant)


@pytest.mark.parametrize("variant", ["baseline", "optimized"])
def test_one_real_size_calibrates_and_says_how_little_that_is(variant: str) -> None:
    reference = read_result_set([MEASURED])
    asked = [
        dataclasses.replace(each, name=dataclasses.replace(each.name, variant=name))
        for each in costs(map(own_cell, ("tiny", "small", "medium")), COARSE)
        for name in dict.fromkeys(("baseline", variant))
    ]
    (tiny, small, medium), _ = predict_steps(calibrate_rates(reference, "f32", variant), asked)
    real = reference.cases[f"full_step/train/{variant}/tiny/f32/batch:8/seq:128"]
    assert tiny.seconds == pytest.approx(real.median_seconds, rel=0.05)
    # 276 GFLOPs against 17.7, and 8.8 TFLOPs
    assert 8 < small.seconds / tiny.seconds < 25
    assert 200 < medium.seconds / tiny.seconds < 800
    assert tiny.high / tiny.low < small.high / small.low < medium.high / medium.low
    assert medium.range_words == "assumed range"


PEAK = 400e9
# launch, seconds a FLOP, seconds an elementwise FLOP, times the least traffic
TRUE = np.array([3e-6, 1 / 300e9, 1 / 8e9, 1.5])


def test_coefficients_come_back_within_their_bounds() -> None:
    # amounts that differ in what they are made of
    sizes = np.exp(np.random.default_rng(1).uniform(0, 5, (40, 4)))
    amounts = sizes * np.array([10, 1e8, 1e6, 1e-5])
    seconds = amounts @ TRUE
    assert fit_terms(amounts, seconds, PEAK) == pytest.approx(TRUE, rel=0.01)
    # no product beats the peak
    assert fit_terms(amounts, seconds, 250e9)[PRODUCTS] >= 1 / 250e9
    assert fit_terms(amounts, seconds, None)[PRODUCTS] < 1 / 290e9
    # traffic is no more than a few times the least
    found = fit_terms(amounts, amounts @ (TRUE * np.array([1, 1, 1, 20])), PEAK)
    assert found[TRAFFIC] == MOST_TRAFFIC and (found >= 0).all()


def test_the_closure_is_that_of_large_steps_of_the_nearest_size() -> None:
    found = QUIET.measure(GRID)

    def took_more(case: MeasuredCase) -> MeasuredCase:
        """Small steps wait for launches; those of small do not, nor large ones of tiny."""
        more = 1.0 if case.name.size == "small" else 1.1
        more = 1.4 if case.name.batch * case.name.seq < 2048 else more
        factor = more / QUIET.step_over_parts if case.name.component == STEP else 1.0
        return dataclasses.replace(case, seconds=(factor * case.median_seconds,))

    of = calibrate(with_cases(found, {n: took_more(c) for n, c in found.cases.items()})).closure
    assert (of.ratio_at(1e9), of.ratio_at(1e13)) == pytest.approx((1.1, 1.0))
    # what lies between the sizes is no less than the scatter
    assert of.scatter == pytest.approx(math.log(1.1))


def held(error: float) -> list[HeldOutStep]:
    """Two sizes, each from the other."""
    return [HeldOutStep("tiny", -error, 2.0), HeldOutStep("small", error, 2.0)]


def test_errors_of_sizes_left_out_widen_the_interval() -> None:
    narrow, wide = spread_of(0.02, held(0.02)), spread_of(0.02, held(0.6))
    assert narrow.factor(0) == wide.factor(0) == pytest.approx(math.exp(0.02 * narrow.quantile))
    assert narrow.factor(0) < narrow.factor(2) < narrow.factor(5) < wide.factor(5)
    # two sizes are one comparison: one that came out well by chance does not end the doubt
    lucky, alone = spread_of(0.02, held(0.0)), spread_of(0.02, [])
    pooled = ASSUMED_DEGREES / (ASSUMED_DEGREES + 1)
    assert lucky.growth == pytest.approx(ASSUMED_GROWTH * math.sqrt(pooled))
    assert lucky.quantile == pytest.approx(student.ppf(0.975, ASSUMED_DEGREES + 1))
    assert alone.quantile == pytest.approx(student.ppf(0.975, ASSUMED_DEGREES))
    assert alone.growth == ASSUMED_GROWTH


TRIES = 40


def machine_of(seed: int, unknown: float, common: float = 0.0) -> SimulatedMachine:
    """Rates drawn by chance. What no formula knows: `unknown`, deviation that each part has at each
    size by itself, beside a rate of products that grows with their width; `common`, deviation that
    all parts of a size share."""
    random = np.random.default_rng(1000 + seed)
    shared = {size: random.normal(0, common) for size in SIZES}
    off = {
        (part, size): math.exp(shared[size] + random.normal(0, unknown))
        for part in PARTS
        for size in SIZES
    }
    return SimulatedMachine(
        launch=math.exp(random.uniform(math.log(1e-6), math.log(8e-6))),
        flops_per_second=random.uniform(200e9, 370e9),
        elementwise_per_second=math.exp(random.uniform(math.log(4e9), math.log(2e10))),
        traffic_factor=random.uniform(1, 6),
        width_half=random.uniform(0, 150) if unknown else 0.0,
        noise=random.uniform(0.01, 0.05),
        step_over_parts=random.uniform(0.95, 1.15),
        cache_bytes=int(math.exp(random.uniform(math.log(2e6), math.log(3e8)))),
        off=off,
    )


@pytest.mark.parametrize(
    ("unknown", "common", "widest"), [(0.0, 0.0, 1.8), (0.04, 0.0, 1.9), (0.04, 0.12, 2.2)]
)
def test_a_larger_size_lies_within_its_interval(
    unknown: float, common: float, widest: float
) -> None:
    inside, widths, errors = [], [], []
    for seed in range(TRIES):
        machine = machine_of(seed, unknown, common)
        (medium,) = predict(calibrate(machine.measure(GRID, seed)), "medium")
        true = machine.seconds(STEP, *own_cell("medium"))
        inside.append(medium.low <= true <= medium.high)
        widths.append(medium.high / medium.seconds)
        errors.append(100 * abs(medium.seconds / true - 1))
    assert sum(inside) >= 0.9 * TRIES
    # an interval that is always right because it is endless would be of no use
    assert statistics.median(widths) < widest
    assert statistics.median(errors) < 4 + 300 * unknown + 100 * common


def test_intervals_widen_with_the_distance_and_with_one_size_alone() -> None:
    sizes = ["small", "medium", "large", "very_large"]
    found = predict(calibrate(machine_of(1, 0.04).measure(GRID)), *sizes)
    widths = [p.high / p.low for p in found]
    assert [p.name.size for p in found] == sizes and widths == sorted(widths)
    assert widths[0] < widths[1] / 1.2
    machine = SimulatedMachine()
    (both,), (alone,) = (predict(calibrate(machine.measure(of)), "medium") for of in (GRID, TINY))
    assert alone.high / alone.low > 1.5 * both.high / both.low
    assert (alone.range_words, both.range_words) == ("assumed range", "95 % interval")
    assert alone.low < machine.seconds(STEP, *own_cell("medium")) < alone.high


def test_no_step_is_faster_than_its_traffic_allows() -> None:
    rates = calibrate(SimulatedMachine().measure(GRID))
    free = {
        name: dataclasses.replace(part, coefficients=np.zeros(4))
        for name, part in rates.parts.items()
    }
    (medium,) = predict(dataclasses.replace(rates, parts=free), "medium")
    least = SimulatedMachine().traffic_seconds(cost("optimizer", *own_cell("medium")).bytes)
    assert medium.seconds > least


def test_a_step_without_the_costs_of_its_parts_is_refused_by_name() -> None:
    rates = calibrate(QUIET.measure(GRID))
    asked = costs([own_cell("medium"), own_cell("large")])
    asked = [c for c in asked if (c.name.component, c.name.size) != ("ffn", "large")]
    # those of another dtype are left alone
    other = [dataclasses.replace(c, name=dataclasses.replace(c.name, dtype="bf16")) for c in asked]
    (found,), (refused,) = predict_steps(rates, [*asked, *other])
    assert found.name.size == "medium"
    assert refused.name == str(named(STEP, *own_cell("large")))
    assert "no cost or no rate of ffn/forward_backward/baseline/large" in refused.reason
    step = cost(STEP, *own_cell("medium"))
    custom = dataclasses.replace(step, name=dataclasses.replace(step.name, size="custom"))
    _, (refused,) = predict_steps(rates, [custom])
    assert "none of fixtures/problem_sizes.json" in refused.reason
