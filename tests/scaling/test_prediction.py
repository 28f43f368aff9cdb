"""Predicted training steps: rates, terms, ranges."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student
from simulated_machine import (
    BLOCK,
    PARTS,
    SIZES,
    SimulatedMachine,
    cost,
    costs,
    figures,
    named,
    own_cell,
    part_figures,
)

from tinyllama_tools.data.results import MeasuredCase, ResultSet, read_result_set
from tinyllama_tools.models.prediction import (
    ASSUMED_DEGREES,
    ASSUMED_GROWTH,
    ASSUMED_SCATTER,
    MOST_TRAFFIC,
    PRODUCTS,
    TRAFFIC,
    CalibratedRange,
    Cell,
    Figures,
    HeldOutStep,
    Rates,
    RatesRefusedError,
    StepCell,
    StepPrediction,
    calibrate_rates,
    check_against,
    closure_of,
    fit_terms,
    layer_counts,
    layers_of,
    memory_overhead,
    operator_rule,
    predict_steps,
    spread_of,
)

REFERENCE = Path(__file__).parents[2] / "results/reference/tiny_f32_2core_xeon_avx512.json"
GRID = [(s, b, q) for s in ("tiny", "small") for b in (1, 4, 16) for q in (64, 128, 256)]
COARSE = ("embedding", "block", "rms_norm", "loss", "optimizer", "full_step")
TINY = [cell for cell in GRID if cell[0] == "tiny"]


def calibrate(result_set: ResultSet) -> Rates:
    return calibrate_rates(result_set, "f32", "baseline")


def measured(machine: SimulatedMachine, **how: Any) -> ResultSet:  # noqa: ANN401
    return machine.measure(how.pop("cells", GRID), np.random.default_rng(1), **how)


def test_the_simulated_machine_counts_as_the_suite_does() -> None:
    cases = read_result_set([REFERENCE]).cases
    for part in ("embedding", "rms_norm", "loss", "optimizer"):
        counters = cases[str(named(part, "tiny", 8, 128))].counters
        for key, value in part_figures(part, "tiny", 8, 128).items():
            assert value == counters[key], (part, key)
    # a real block has two residual additions besides: forward and backward, an element each
    residual = 4 * 8 * 128 * 256
    block = figures("block", "tiny", 8, 128)
    counters = cases[str(named("block", "tiny", 8, 128))].counters
    assert block["model_flops"] == counters["model_flops"]
    assert block["elementwise_flops"] + residual == counters["elementwise_flops"]
    assert block["bytes"] + 4 * residual == counters["bytes"]


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_rates_come_back(noise: float) -> None:
    machine = SimulatedMachine(noise=noise)
    rates = calibrate(measured(machine))
    close = 0.01 + 4 * noise
    for part in ("attention", "ffn", "loss"):
        rate = rates.parts[part].flops_per_second
        assert rate == pytest.approx(machine.flops_per_second, rel=close), part
    for part in ("embedding", "rms_norm", "optimizer"):
        assert rates.parts[part].flops_per_second is None
        assert rates.parts[part].launch_seconds == pytest.approx(machine.launch, rel=2 * close)
    for _, ratio in rates.closure.ratios:
        assert ratio == pytest.approx(machine.step_over_parts, rel=0.001 + noise)
    assert rates.closure.scatter < 0.001 + 2 * noise
    assert rates.sizes == ("tiny", "small")


def test_what_the_closure_explains_is_no_scatter() -> None:
    rates = calibrate(measured(SimulatedMachine(noise=0.0, step_over_parts=1.5)))
    assert rates.spread.base < 0.01
    assert all(abs(held.error) < 0.1 for held in rates.spread.held_out)


def test_every_part_is_described_at_every_cell_and_beyond() -> None:
    machine = SimulatedMachine()
    rates = calibrate(measured(machine))
    for size, batch, seq in (*GRID, own_cell("medium")):
        for part in ("rms_norm", "embedding", "attention", "ffn"):
            work = {k: float(v) for k, v in part_figures(part, size, batch, seq).items()}
            found = rates.parts[part].seconds(Figures(**work), batch * seq, 4, rates.machine)
            assert found == pytest.approx(machine.part_seconds(part, size, batch, seq), rel=0.06)


def test_a_block_stands_for_its_parts_where_it_was_measured_at_more_sizes() -> None:
    machine = SimulatedMachine(noise=0.0)
    blocks = measured(machine, components=COARSE)
    rates = calibrate(blocks)
    assert set(rates.parts) == {"embedding", "block", "rms_norm", "loss", "optimizer"}
    assert rates.closure.ratio_at(1e8) == pytest.approx(machine.step_over_parts, rel=1e-6)
    fine = measured(machine, cells=TINY, components=tuple(BLOCK))
    both = dataclasses.replace(blocks, cases={**blocks.cases, **fine.cases})
    assert "block" in calibrate(both).parts
    assert (
        "block"
        not in calibrate(
            dataclasses.replace(both, cases={**both.cases, **measured(machine).cases})
        ).parts
    )


def test_an_optimizer_measured_once_a_size_serves_every_step() -> None:
    machine = SimulatedMachine(noise=0.0)
    full = measured(machine)
    kept = {
        name: case
        for name, case in full.cases.items()
        if case.name.component != "optimizer" or (case.name.batch, case.name.seq) == (4, 128)
    }
    rates = calibrate(dataclasses.replace(full, cases=kept))
    assert rates.parts["optimizer"].cells == 2
    assert rates.steps == len(GRID)


def changed(result_set: ResultSet, part: str, **changes: Any) -> ResultSet:  # noqa: ANN401
    """With the first case of a part replaced."""
    name, case = next((n, c) for n, c in result_set.cases.items() if n.startswith(part))
    return dataclasses.replace(
        result_set, cases={**result_set.cases, name: dataclasses.replace(case, **changes)}
    )


def without(result_set: ResultSet, part: str) -> ResultSet:
    kept = {n: c for n, c in result_set.cases.items() if not n.startswith(part)}
    return dataclasses.replace(result_set, cases=kept)


@pytest.mark.parametrize("part", [p for p in PARTS if p not in ("optimizer", "attention")])
def test_a_part_that_nobody_measured_is_named(part: str) -> None:
    with_costs = without(measured(SimulatedMachine()), part)
    with pytest.raises(RatesRefusedError, match=f"not measured: {part}/"):
        calibrate_rates(with_costs, "f32", "baseline", costs(TINY))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": (math.nan,)}, "loss/.*: time is nan, must be a finite number"),
        ({"seconds": (0.0,)}, "loss/.*: its time is 0 s"),
        ({"counters": {}}, "loss/.*: the row has no counter operators"),
        ({"counters": {"operators": 1.0, "parameters": math.inf}}, r"loss/.*: parameters is inf"),
    ],
)
def test_a_bad_row_is_named(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(RatesRefusedError, match=message):
        calibrate(changed(measured(SimulatedMachine()), "loss", **changes))


def test_a_bandwidth_that_was_not_measured_is_named() -> None:
    good = measured(SimulatedMachine())
    bare = {**good.context, "peaks": {"measured": {"f32": {"flops_per_second": 1e9}}}}
    with pytest.raises(RatesRefusedError, match="cache_bandwidth"):
        calibrate(dataclasses.replace(good, context=bare))


@pytest.mark.parametrize(("dtype", "variant"), [("bf16", "baseline"), ("f32", "sdpa")])
def test_nothing_of_that_dtype_or_variant(dtype: str, variant: str) -> None:
    with pytest.raises(RatesRefusedError, match=f"{dtype}|{variant}"):
        calibrate_rates(measured(SimulatedMachine()), dtype, variant)


@pytest.mark.parametrize("variant", ["baseline", "optimized"])
def test_one_real_size_calibrates_and_says_how_little_that_is(variant: str) -> None:
    reference = read_result_set([REFERENCE])
    rates = calibrate_rates(reference, "f32", variant)
    assert set(rates.parts) == {"embedding", "block", "rms_norm", "loss", "optimizer"}
    for part in ("block", "loss"):
        assert rates.parts[part].flops_per_second <= rates.machine.peak_flops["f32"]
    step = f"full_step/train/{variant}/tiny/f32/batch:8/seq:128"
    real: MeasuredCase = reference.cases[step]
    asked = [
        dataclasses.replace(each, name=dataclasses.replace(each.name, variant=name))
        for size in ("tiny", "small", "medium")
        for each in (cost(part, *own_cell(size)) for part in COARSE)
        for name in dict.fromkeys(("baseline", variant))
    ]
    (tiny, small, medium), _ = predict_steps(rates, asked)
    assert tiny.seconds == pytest.approx(real.median_seconds, rel=0.05)
    # 276 GFLOPs against 17.7, and 8.8 TFLOPs
    assert 8 < small.seconds / tiny.seconds < 25
    assert 200 < medium.seconds / tiny.seconds < 800
    assert tiny.high / tiny.low < small.high / small.low < medium.high / medium.low
    assert "only one size was measured (tiny)" in small.basis


PEAK = 400e9
# launch, seconds a FLOP, seconds an elementwise FLOP, times the least traffic
TRUE = np.array([3e-6, 1 / 300e9, 1 / 8e9, 1.5])


def cells(count: int = 40, seed: int = 1) -> np.ndarray:
    """Amounts that differ in what they are made of."""
    random = np.random.default_rng(seed)
    sizes = np.exp(random.uniform(0, 5, (count, 4)))
    return sizes * np.array([10, 1e8, 1e6, 1e-5])


def test_coefficients_come_back() -> None:
    amounts = cells()
    found = fit_terms({"a": (amounts, amounts @ TRUE)}, PEAK)["a"]
    assert found == pytest.approx(TRUE, rel=0.01)


def test_no_product_beats_the_peak() -> None:
    amounts = cells()
    found = fit_terms({"a": (amounts, amounts @ TRUE)}, 250e9)["a"]
    assert found[PRODUCTS] >= 1 / 250e9
    assert fit_terms({"a": (amounts, amounts @ TRUE)}, None)["a"][PRODUCTS] < 1 / 290e9


def test_traffic_is_no_more_than_a_few_times_the_least() -> None:
    amounts = cells()
    dozens = TRUE * np.array([1, 1, 1, 20])
    found = fit_terms({"a": (amounts, amounts @ dozens)}, PEAK)["a"]
    assert found[TRAFFIC] == MOST_TRAFFIC
    assert (found >= 0).all()


def test_parts_tell_apart_what_one_part_cannot() -> None:
    tokens = np.array([256.0, 512, 1024, 2048])[:, None]
    mixed = tokens * np.array([[0, 3e6, 1e4, 2e-8]]) + np.array([[200, 0, 0, 0]])
    plain = tokens * np.array([[0, 0, 1e4, 2e-8]]) + np.array([[60, 0, 0, 0]])
    # products at the peak but for a little: without `plain` the rest could be anything
    true = np.array([3e-6, 1 / 300e9, 1 / 8e9, 1.0])
    found = fit_terms({"a": (mixed, mixed @ true), "b": (plain, plain @ true)}, PEAK)["a"]
    assert 1 / found[PRODUCTS] == pytest.approx(300e9, rel=0.05)


def rule(component: str, *counted: tuple[float, int, int]) -> Sequence[float]:
    """Operators at (1024 tokens, 4 layers), (4096, 4) and (1024, 12)."""
    found = operator_rule(component, *zip(*counted, strict=True))
    return [found.at(1024, 4), found.at(4096, 4), found.at(1024, 12)]


@pytest.mark.parametrize(
    ("component", "counted", "expected"),
    [
        # of one layer or alone: the same everywhere
        ("attention", [(340, 512, 4), (340, 2048, 8)], [340, 340, 340]),
        # chunks of tokens
        ("loss", [(67 + 8, 512, 4), (67 + 32, 2048, 4)], [67 + 16, 67 + 64, 67 + 16]),
        # 28 a weight tensor: 39 at four layers, 111 at twelve
        ("optimizer", [(1092, 512, 4)], [1092, 1092, 28 * 111]),
        ("optimizer", [(1092, 512, 4), (28 * 75, 512, 8)], [1092, 1092, 28 * 111]),
        # one operator for all weights
        ("optimizer", [(1, 512, 4)], [1, 1, 1]),
        ("optimizer", [(1, 512, 4), (1, 512, 8)], [1, 1, 1]),
    ],
)
def test_operators_of_a_size_that_was_not_run(
    component: str, counted: list[tuple[float, int, int]], expected: list[float]
) -> None:
    assert rule(component, *counted) == pytest.approx(expected)


STEP_PARTS = ("embedding", "loss", "rms_norm", "attention", "ffn", "optimizer")


def parameters(size: str) -> dict[str, float]:
    return {part: float(part_figures(part, size, 1, 2)["parameters"]) for part in STEP_PARTS}


@pytest.mark.parametrize(("size", "layers"), [("tiny", 4), ("medium", 12), ("very_large", 24)])
def test_layers_follow_from_parameters(size: str, layers: int) -> None:
    known = parameters(size)
    assert layers_of(size, known) == layers
    block = known["attention"] + known["ffn"] + 2 * known["rms_norm"]
    coarse = {key: known[key] for key in ("embedding", "loss", "rms_norm", "optimizer")}
    assert layers_of(size, coarse | {"block": block}) == layers
    assert layers_of(size, coarse) is None


def test_two_models_under_one_name_are_refused() -> None:
    mixed = parameters("tiny") | {"optimizer": parameters("small")["optimizer"]}
    with pytest.raises(RatesRefusedError, match=r"'tiny': .* no whole number of layers"):
        layer_counts({("tiny", part): value for part, value in mixed.items()})


def step(predicted: float, measured: float, size: str = "tiny") -> MeasuredCase:
    counters = {"predicted_memory_MiB": predicted, "peak_memory_MiB": measured}
    return MeasuredCase(named("full_step", size, int(predicted), 2), (1.0,), counters)


def test_memory_beyond_the_formulas_is_fixed_and_a_share() -> None:
    found = memory_overhead([step(p, 32 + 1.02 * p) for p in (100, 400, 1600)])
    assert found.steps == 3
    assert found.peak_bytes(10_000 * 2**20) == pytest.approx((32 + 10_200) * 2**20, rel=1e-3)
    assert found.in_words().startswith("measured on 3 steps of tiny: 32.0 MiB + 2.00 %")


def test_memory_is_never_below_the_formulas() -> None:
    assert memory_overhead([step(100, 90), step(400, 350)]).peak_bytes(1e9) == pytest.approx(1e9)
    assert memory_overhead([step(100, 110)]).peak_bytes(1e9) == pytest.approx(1.1e9)
    assert memory_overhead([step(100, 132), step(400, 396)]).share == 0
    assert memory_overhead([step(100, 90), step(400, 440)]).fixed_bytes == 0
    assert memory_overhead([]).in_words() == "not measured, so none is assumed"


def test_what_fits_has_to_fit_with_the_largest_misfit() -> None:
    found = memory_overhead(
        [step(p, p * more) for p, more in ((100, 1.0), (400, 1.0), (900, 1.09))]
    )
    low, high = found.interval(1e9)
    assert low < found.peak_bytes(1e9) < high
    # the step that took most fits into what it took
    assert found.interval(900 * 2**20)[1] >= 0.999 * 900 * 1.09 * 2**20


def test_memory_ranges_come_from_sizes_left_out() -> None:
    tiny = [step(p, 1.00 * p, "tiny") for p in (100, 400)]
    small = [step(p, 1.10 * p, "small") for p in (800, 3200)]
    low, high = memory_overhead([*tiny, *small]).interval(1.0)
    # small is 10 % above what tiny alone says, and may be so beyond both
    assert high == pytest.approx(1.1 * memory_overhead([*tiny, *small]).peak_bytes(1.0), rel=0.01)
    assert low <= 1.0
    exact = memory_overhead([step(p, 32 + p, size) for p, size in ((100, "tiny"), (900, "small"))])
    assert exact.sizes == ("tiny", "small")


RANGE = CalibratedRange((1e7, 1e8), (2048, 4096), 2e10)


def test_distance_counts_model_and_tokens() -> None:
    assert RANGE.distance(5e7 * 3000, 3000) == 0
    assert RANGE.distance(1e9 * 4096, 4096) == pytest.approx(math.log(10))
    assert RANGE.distance(1e9 * 8192, 8192) == pytest.approx(math.log(20))
    assert RANGE.distance(1e7 * 512, 512) == pytest.approx(math.log(2e10 / (1e7 * 512)))
    # few tokens of a large model are no small step
    assert RANGE.distance(1e8 * 512, 512) == 0


def held(error: float, distance: float = 2.0) -> list[HeldOutStep]:
    """Two sizes, each from the other."""
    return [HeldOutStep("tiny", -error, distance), HeldOutStep("small", error, distance)]


def test_errors_of_sizes_left_out_widen_the_interval() -> None:
    narrow, wide = spread_of(0.02, held(0.02)), spread_of(0.02, held(0.6))
    assert narrow.factor(0) == wide.factor(0)
    assert narrow.factor(0) < narrow.factor(2) < narrow.factor(5) < wide.factor(5)
    assert wide.words == "95 % interval"


def test_two_sizes_are_one_comparison() -> None:
    # a comparison that came out well by chance does not end the doubt
    lucky, alone = spread_of(0.02, held(0.0)), spread_of(0.02, [])
    assert lucky.growth == pytest.approx(
        ASSUMED_GROWTH * math.sqrt(ASSUMED_DEGREES / (ASSUMED_DEGREES + 1))
    )
    assert lucky.quantile == pytest.approx(student.ppf(0.975, ASSUMED_DEGREES + 1))
    assert alone.quantile == pytest.approx(student.ppf(0.975, ASSUMED_DEGREES))
    third = [*held(0.0), HeldOutStep("medium", 0.0, 2.0)]
    assert spread_of(0.02, third).quantile < lucky.quantile


def test_one_size_shows_no_growth_so_it_is_assumed() -> None:
    alone = spread_of(0.02, [])
    assert (alone.growth, alone.held_out) == (ASSUMED_GROWTH, ())
    assert alone.words == "assumed range"
    alike = spread_of(0.02, held(0.1, distance=0.0))
    assert (alike.growth, alike.base) == (ASSUMED_GROWTH, pytest.approx(0.1))


def step_cell(size: str, tokens: int, over_parts: float) -> StepCell:
    """Of parts that took a second."""
    name = named("full_step", size, 1, tokens)
    flops = Figures(1.0, tokens * {"tiny": 1e7, "small": 1e8}[size], 0.0, 0.0, 0.0)
    return StepCell(name, over_parts, ((Cell(name, 1.0, flops, 1.0, 4), 1),))


def test_the_closure_is_that_of_large_steps_of_the_nearest_size() -> None:
    tiny = [step_cell("tiny", tokens, 1.4) for tokens in (64, 128, 256, 512)]
    tiny += [step_cell("tiny", tokens, 1.1) for tokens in (2048, 4096)]
    small = [step_cell("small", tokens, 1.0) for tokens in (2048, 4096)]
    found = closure_of([*tiny, *small])
    assert found.steps == 4
    assert found.ratio_at(1e7) == pytest.approx(1.1)
    assert found.ratio_at(1e9) == pytest.approx(1.0)
    # what lies between the sizes is no less than the scatter
    assert found.scatter == pytest.approx(math.log(1.1))
    assert closure_of([]).ratio_at(1e7) == 1
    assert closure_of([step_cell("tiny", 64, 1.2)]).scatter == ASSUMED_SCATTER


LARGER = ("medium", "large", "very_large")
TRIES = 40


def rates_of(machine: SimulatedMachine, seed: int = 1, sizes: tuple[str, ...] = ()) -> Rates:
    cells = [cell for cell in GRID if not sizes or cell[0] in sizes]
    return calibrate_rates(machine.measure(cells, np.random.default_rng(seed)), "f32", "baseline")


def predict(rates: Rates, *sizes: str) -> list[StepPrediction]:
    found, refused = predict_steps(rates, costs(own_cell(size) for size in sizes))
    assert refused == []
    return found


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
        (medium,) = predict(rates_of(machine, seed), "medium")
        check = check_against(medium, machine.case("full_step", *own_cell("medium")))
        inside.append(check.is_inside)
        widths.append(medium.high / medium.seconds)
        errors.append(abs(check.percent_off))
    assert sum(inside) >= 0.9 * TRIES
    # an interval that is always right because it is endless would be of no use
    assert statistics.median(widths) < widest
    assert statistics.median(errors) < 4 + 300 * unknown + 100 * common


def test_intervals_widen_with_the_distance() -> None:
    found = predict(rates_of(machine_of(1, 0.04)), "small", *LARGER)
    widths = [p.high / p.low for p in found]
    assert [p.name.size for p in found] == ["small", *LARGER]
    assert widths == sorted(widths)
    assert widths[0] < widths[1] / 1.2
    assert all(p.low < p.seconds < p.high for p in found)


def test_one_size_alone_is_less_sure_and_says_so() -> None:
    machine = SimulatedMachine()
    (both,), (alone,) = (predict(rates_of(machine, sizes=s), "medium") for s in ((), ("tiny",)))
    assert alone.high / alone.low > 1.5 * both.high / both.low
    assert (alone.range_words, both.range_words) == ("assumed range", "95 % interval")
    assert "only one size was measured (tiny)" in alone.basis
    assert "tiny from the others" in both.basis
    assert "small from the others" in both.basis
    assert both.basis.startswith("predicted, not run: rates of 108 cells of tiny and small (f32")
    assert "memory: measured on 18 steps of tiny, small" in both.basis
    assert "times the FLOPs a token and 2 times the tokens of the largest" in both.basis
    true = machine.seconds("full_step", *own_cell("medium"))
    assert alone.low < true < alone.high


def test_parts_and_closure_make_the_step() -> None:
    rates = rates_of(SimulatedMachine())
    (medium,) = predict(rates, "medium")
    assert set(medium.parts) == set(PARTS)
    assert sum(medium.parts.values()) * medium.step_over_parts == pytest.approx(medium.seconds)
    assert medium.step_over_parts == rates.closure.ratio_at(1e9)
    machine = SimulatedMachine()
    layers = SIZES["medium"]["n_layers"]
    true = layers * machine.part_seconds("ffn", *own_cell("medium"))
    assert medium.parts["ffn"] == pytest.approx(true, rel=0.1)


def test_memory_is_the_formulas_and_the_measured_overhead() -> None:
    rates = rates_of(SimulatedMachine())
    (medium,) = predict(rates, "medium")
    known = cost("full_step", *own_cell("medium")).predicted_memory_bytes
    assert medium.memory_bytes == pytest.approx(known)
    assert medium.memory_low < medium.memory_bytes < medium.memory_high
    assert medium.memory_high == pytest.approx(known, rel=0.01)
    wider = dataclasses.replace(rates, memory=dataclasses.replace(rates.memory, share=0.05))
    assert predict(wider, "medium")[0].memory_bytes == pytest.approx(1.05 * known)


def test_no_part_is_faster_than_its_traffic_allows() -> None:
    machine = SimulatedMachine(noise=0.0)
    rates = rates_of(machine)
    free = {
        name: dataclasses.replace(part, coefficients=(0.0, 0.0, 0.0, 0.0))
        for name, part in rates.parts.items()
    }
    (medium,) = predict(dataclasses.replace(rates, parts=free), "medium")
    least = machine.traffic_seconds(cost("optimizer", *own_cell("medium")).bytes)
    assert medium.parts["optimizer"] == pytest.approx(least)


def test_an_update_beyond_the_cache_does_not_move_everything_from_memory_each_time() -> None:
    # operators one by one: only the first pass over a tensor goes to the memory
    machine = SimulatedMachine(noise=0.0, traffic_factor=5.0, cache_bytes=272 * 2**20)
    (medium,) = predict(rates_of(machine), "medium")
    true = machine.part_seconds("optimizer", *own_cell("medium"))
    assert medium.parts["optimizer"] == pytest.approx(true, rel=0.5)


def test_what_does_not_fit_is_predicted_and_says_why_it_was_not_run() -> None:
    asked = costs([own_cell("large")])
    asked = [dataclasses.replace(c, fits=False, reason="too large") for c in asked]
    ((large,), _) = predict_steps(rates_of(SimulatedMachine()), asked)
    assert (large.fits, large.reason) == (False, "too large")
    assert large.seconds > 0


def test_a_step_without_the_costs_of_its_parts_is_refused_by_name() -> None:
    rates = rates_of(SimulatedMachine())
    asked = costs([own_cell("medium"), own_cell("large")])
    asked = [c for c in asked if (c.name.component, c.name.size) != ("ffn", "large")]
    (found,), (refused,) = predict_steps(rates, asked)
    assert found.name.size == "medium"
    assert refused.name == str(cost("full_step", *own_cell("large")).name)
    assert "costs of its parts are not known" in refused.reason
    # those of another dtype are left alone
    other = [dataclasses.replace(c, name=dataclasses.replace(c.name, dtype="bf16")) for c in asked]
    assert [len(of) for of in predict_steps(rates, [*asked, *other])] == [1, 1]
    elsewhere = [cost("ffn", "large", 1, 2), *asked]
    _, (refused,) = predict_steps(rates, elsewhere)
    assert "no cost or no rate of ffn/forward_backward/baseline/large" in refused.reason


def test_a_check_gives_percent_and_place() -> None:
    machine = SimulatedMachine(noise=0.0)
    (medium,) = predict(rates_of(machine), "medium")
    case = machine.case("full_step", *own_cell("medium"))
    exact = dataclasses.replace(case, seconds=(medium.seconds / 1.1,))
    found = check_against(dataclasses.replace(medium, low=0.0, high=10 * medium.seconds), exact)
    assert found.percent_off == pytest.approx(10)
    assert found.is_inside
    assert found.memory_percent_off == pytest.approx(0, abs=1e-6)
    assert found.is_memory_inside
    smaller = dataclasses.replace(medium, memory_high=0.9 * medium.memory_bytes)
    assert not check_against(smaller, exact).is_memory_inside
    bare = check_against(medium, dataclasses.replace(exact, counters={}))
    assert (bare.memory_percent_off, bare.is_memory_inside) == (None, None)
    late = dataclasses.replace(case, seconds=(2 * medium.high,))
    assert not check_against(medium, late).is_inside


def test_a_check_against_another_case_is_refused() -> None:
    machine = SimulatedMachine()
    (medium,) = predict(rates_of(machine), "medium")
    with pytest.raises(RatesRefusedError, match="the prediction is of full_step"):
        check_against(medium, machine.case("full_step", *own_cell("large")))
    bad = dataclasses.replace(machine.case("full_step", *own_cell("medium")), seconds=(math.nan,))
    with pytest.raises(RatesRefusedError, match="time is nan"):
        check_against(medium, bad)
