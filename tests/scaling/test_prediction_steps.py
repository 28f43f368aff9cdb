"""Steps of sizes that were held out: predicted within their interval, or refused with a reason."""

from __future__ import annotations

import dataclasses
import math
import statistics

import numpy as np
import pytest
from simulated_machine import PARTS, SIZES, SimulatedMachine, cost, costs, own_cell

from tinyllama_tools.models.prediction import (
    Rates,
    RatesRefusedError,
    StepPrediction,
    calibrate_rates,
    check_against,
    predict_steps,
)

GRID = [(s, b, q) for s in ("tiny", "small") for b in (1, 4, 16) for q in (64, 128, 256)]
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
    true = machine.seconds("full_step", *own_cell("medium"))
    assert alone.low < true < alone.high


def test_the_basis_names_rates_and_cells() -> None:
    (medium,) = predict(rates_of(SimulatedMachine()), "medium")
    assert medium.basis.startswith("predicted, not run: rates of 108 cells of tiny and small (f32")
    assert "attention 3" in medium.basis
    assert "GFLOP/s" in medium.basis
    assert "us an operator" in medium.basis
    assert "of all sizes" in medium.basis
    assert "memory: measured on 18 steps of tiny, small" in medium.basis
    assert "an assumed 20 % for each factor of 10 in FLOPs, which counts as 3 sizes" in medium.basis
    assert "times the FLOPs a token and 2 times the tokens of the largest" in medium.basis


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
    elsewhere = [cost("ffn", "large", 1, 2), *asked]
    _, (refused,) = predict_steps(rates, elsewhere)
    assert "no cost or no rate of ffn/forward_backward/baseline/large" in refused.reason


def test_other_dtypes_and_variants_are_left_alone() -> None:
    asked = costs([own_cell("medium")])
    other = [dataclasses.replace(c, name=dataclasses.replace(c.name, dtype="bf16")) for c in asked]
    found, refused = predict_steps(rates_of(SimulatedMachine()), [*asked, *other])
    assert (len(found), refused) == (1, [])


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
