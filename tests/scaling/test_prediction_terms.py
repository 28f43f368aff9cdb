"""What predictions are made of: terms, operators, layers, memory and the width of intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from simulated_machine import named, part_figures

from tinyllama_tools.prediction.layers import layer_counts, layers_of
from tinyllama_tools.prediction.memory_overhead import memory_overhead
from tinyllama_tools.prediction.operator_rule import CountedCell, operator_rule
from tinyllama_tools.prediction.refusal import RatesRefusedError
from tinyllama_tools.prediction.spread import (
    ASSUMED_GROWTH,
    CalibratedRange,
    HeldOutStep,
    spread_of,
)
from tinyllama_tools.prediction.terms import MOST_TRAFFIC, PRODUCTS, TRAFFIC, fit_terms
from tinyllama_tools.reading.result_set import MeasuredCase

PEAK = 400e9
# launch, seconds a FLOP, seconds an elementwise FLOP, times the least traffic
TRUE = np.array([3e-6, 1 / 300e9, 1 / 8e9, 3.0])


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
    found = operator_rule(component, [CountedCell(*cell) for cell in counted])
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


PARTS = ("embedding", "loss", "rms_norm", "attention", "ffn", "optimizer")


def parameters(size: str) -> dict[str, float]:
    return {part: float(part_figures(part, size, 1, 2)["parameters"]) for part in PARTS}


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


def step(predicted: float, measured: float) -> MeasuredCase:
    counters = {"predicted_memory_MiB": predicted, "peak_memory_MiB": measured}
    return MeasuredCase(named("full_step", "tiny", int(predicted), 2), (1.0,), counters)


def test_memory_beyond_the_formulas_is_fixed_and_a_share() -> None:
    found = memory_overhead([step(p, 32 + 1.02 * p) for p in (100, 400, 1600)])
    assert found.steps == 3
    assert found.peak_bytes(10_000 * 2**20) == pytest.approx((32 + 10_200) * 2**20, rel=1e-3)


def test_memory_is_never_below_the_formulas() -> None:
    assert memory_overhead([step(100, 90), step(400, 350)]).peak_bytes(1e9) == pytest.approx(1e9)
    assert memory_overhead([step(100, 110)]).peak_bytes(1e9) == pytest.approx(1.1e9)
    assert memory_overhead([]).steps == 0


RANGE = CalibratedRange((1e7, 1e8), (2048, 4096))


def test_distance_counts_model_and_tokens() -> None:
    assert RANGE.distance(5e7 * 3000, 3000) == 0
    assert RANGE.distance(1e9 * 4096, 4096) == pytest.approx(math.log(10))
    assert RANGE.distance(1e9 * 8192, 8192) == pytest.approx(math.log(20))
    assert RANGE.distance(1e7 * 512, 512) == pytest.approx(math.log(4))


def test_errors_of_sizes_left_out_widen_the_interval() -> None:
    true = [HeldOutStep("tiny", -0.02, 2.0), HeldOutStep("small", 0.02, 2.0)]
    wrong = [HeldOutStep("tiny", -0.2, 2.0), HeldOutStep("small", 0.2, 2.0)]
    narrow, wide = spread_of(0.02, true), spread_of(0.02, wrong)
    assert narrow.factor(0) == wide.factor(0)
    assert narrow.factor(0) < narrow.factor(2) < narrow.factor(5) < wide.factor(5)
    # at the distance of those left out: their error, with the quantile
    assert math.log(wide.factor(2)) == pytest.approx(wide.quantile * 0.2, rel=0.01)


def test_one_size_shows_no_growth_so_it_is_assumed() -> None:
    alone = spread_of(0.02, [])
    assert (alone.growth, alone.held_out) == (ASSUMED_GROWTH, ())
    alike = spread_of(0.02, [HeldOutStep("a", 0.1, 0.0), HeldOutStep("b", 0.1, 0.0)])
    assert (alike.growth, alike.base) == (ASSUMED_GROWTH, pytest.approx(0.1))
