"""What predictions are made of: terms, operators, layers, memory and the width of intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import t as student
from simulated_machine import named, part_figures

from tinyllama_tools.data.results import MeasuredCase
from tinyllama_tools.models.prediction import (
    ASSUMED_DEGREES,
    ASSUMED_GROWTH,
    ASSUMED_SCATTER,
    MOST_TRAFFIC,
    PRODUCTS,
    TRAFFIC,
    CalibratedRange,
    Cell,
    CountedCell,
    Figures,
    HeldOutStep,
    RatesRefusedError,
    StepCell,
    closure_of,
    fit_terms,
    layer_counts,
    layers_of,
    memory_overhead,
    operator_rule,
    spread_of,
)

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
    assert low < found.peak_bytes(1e9) < high == found.most_bytes(1e9)
    # the step that took most fits into what it took
    assert found.most_bytes(900 * 2**20) >= 0.999 * 900 * 1.09 * 2**20


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
    assert not wide.is_assumed
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
    assert alone.is_assumed
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
