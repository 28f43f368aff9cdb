"""Rates come back from a machine whose rates are known, and what supports none is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_machine import (
    BLOCK,
    PARTS,
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
    Figures,
    Rates,
    RatesRefusedError,
    calibrate_rates,
    predict_steps,
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
    ],
)
def test_a_bad_row_is_named(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(RatesRefusedError, match=message):
        calibrate(changed(measured(SimulatedMachine()), "loss", **changes))


def test_a_counter_that_is_no_number_is_named() -> None:
    good = measured(SimulatedMachine())
    counters = {**good.cases[str(named("ffn", "tiny", 1, 64))].counters, "bytes": math.inf}
    with pytest.raises(RatesRefusedError, match=r"ffn/.*: bytes is inf"):
        calibrate(changed(good, "ffn", counters=counters))


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
