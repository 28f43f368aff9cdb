"""Laws of time: coefficients, supported terms, words, and refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from synthetic_grids import SIZES, time_grid

from tinyllama_tools.stats.law_fits import corrected_aic, fit_relative, fit_time_law
from tinyllama_tools.stats.laws import (
    BASE,
    LAUNCH,
    LINEAR,
    GridPoint,
    Law,
    LawRefusedError,
    Quantity,
)

# of noise that feigns no term; one in forty does, for each term
SEED = 4
LAUNCH_S, LINEAR_S, QUADRATIC_S = 10e-3, 64e-6, 117e-9


def supported(law: Law) -> list[str]:
    return [c.name for c in law.coefficients if c.supported]


def values(law: Law) -> list[float]:
    return [c.value for c in law.coefficients]


def test_the_time_law_comes_back_from_exact_times() -> None:
    law = fit_time_law(time_grid((LAUNCH_S, LINEAR_S, QUADRATIC_S)))
    assert [c.name for c in law.coefficients] == ["launch", "linear", "quadratic"]
    assert values(law) == pytest.approx([LAUNCH_S, LINEAR_S, QUADRATIC_S])
    assert supported(law) == ["launch", "linear", "quadratic"]
    assert max(map(abs, law.residuals_percent)) < 1e-9
    assert law.at(3, 100) == pytest.approx(10e-3 + 300 * 64e-6 + 30000 * 117e-9)
    assert law.interval(3, 100) == pytest.approx((law.at(3, 100), law.at(3, 100)))
    assert law.formula == "time = 10 ms + 64 us x B S + 117 ns x B S²"


@pytest.mark.parametrize(
    ("truth", "kept"),
    [
        ((0.05, 0, 0), ["launch"]),
        ((0, LINEAR_S, 0), ["linear"]),
        ((LAUNCH_S, LINEAR_S, 0), ["launch", "linear"]),
        ((0, LINEAR_S, QUADRATIC_S), ["linear", "quadratic"]),
        ((LAUNCH_S, 0, QUADRATIC_S), ["launch", "quadratic"]),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_terms_that_are_not_there_are_not_supported(
    truth: tuple[float, ...], kept: list[str], noise: float
) -> None:
    law = fit_time_law(time_grid(truth, noise, seed=SEED))
    assert supported(law) == kept
    for coefficient in law.coefficients:
        assert (coefficient.reason == "") == coefficient.supported
        assert coefficient.low <= coefficient.value <= coefficient.high
    # the sum of the supported terms and of nothing else
    alone = [c.value if c.supported else 0 for c in law.coefficients]
    assert law.at(16, 512) == pytest.approx(alone[0] + 8192 * (alone[1] + 512 * alone[2]))
    assert ("B S²" in law.formula) == ("quadratic" in kept)


def test_few_terms_are_supported_by_chance() -> None:
    grids = [time_grid((0.05, 0, 0), noise=0.1, seed=seed) for seed in range(40)]
    wrong = sum(supported(fit_time_law(points)) != ["launch"] for points in grids)
    # two terms, each at 2.5 %
    assert wrong <= 6


def test_a_term_that_noise_hides_is_reported_and_not_used() -> None:
    # at the largest size 2 % of the time; the noise is 10 %
    law = fit_time_law(time_grid((LAUNCH_S, LINEAR_S, 2.5e-9), noise=0.1))
    hidden = law.coefficients[2]
    assert not hidden.supported
    assert hidden.reason
    assert hidden.low == 0
    assert hidden.high > 2.5e-9
    assert law.at(1, 1000) == pytest.approx(
        law.coefficients[0].value + 1000 * law.coefficients[1].value
    )


def test_a_term_that_the_work_does_not_have_is_not_fitted() -> None:
    # a term of its own would be supported
    points = time_grid((LAUNCH_S, LINEAR_S, QUADRATIC_S), 0.02)
    law = fit_time_law(points, terms=(LAUNCH, LINEAR))
    missing = law.coefficients[2]
    assert not missing.supported
    assert (missing.value, missing.low, missing.high) == (0, 0, 0)
    assert missing.reason == "neither FLOPs nor bytes have it"
    assert "S²" not in law.formula


def test_coefficients_are_never_negative() -> None:
    # falls with the sequence: the best unconstrained law has a negative quadratic term
    points = [GridPoint(b, s, (1e-2 + 1e-5 * b * s**0.6,)) for b, s in SIZES]
    law = fit_time_law(points)
    assert min(c.low for c in law.coefficients) >= 0
    assert not law.coefficients[2].supported
    assert law.coefficients[2].reason == "the best fit has nothing of it"


def test_errors_are_relative() -> None:
    # minimum of (1 - x)^2 + (1 - x / 2)^2 is at x = (1 + 1/2) / (1 + 1/4)
    points = [GridPoint(1, 1, (1.0,)), GridPoint(1, 2, (2.0,))]
    fit = fit_relative(points, (BASE,), non_negative=True)
    assert fit.coefficients == pytest.approx([1.2])
    assert fit.residuals == pytest.approx([-0.2, 0.4])
    assert fit.freedom == 1


def test_a_negative_coefficient_is_found_where_it_is_allowed() -> None:
    points = [GridPoint(1, 1, (1.0,)), GridPoint(1, 2, (3.0,)), GridPoint(1, 3, (5.0,))]
    assert fit_relative(points, (BASE, LINEAR), non_negative=False).coefficients == pytest.approx(
        [-1.0, 2.0]
    )
    bounded = fit_relative(points, (BASE, LINEAR), non_negative=True)
    # of (1 - x)^2 + (1 - 2 x / 3)^2 + (1 - 3 x / 5)^2
    wanted = (1 + 2 / 3 + 3 / 5) / (1 + 4 / 9 + 9 / 25)
    assert bounded.coefficients == pytest.approx([0, wanted])


def test_corrected_aic_by_hand() -> None:
    # six residuals of 1 %: 6 ln(1e-4) + 2 x 2 + 2 x 2 x 3 / (6 - 2 - 1)
    values = [1 / (1 - 0.01), 1 / (1 + 0.01)] * 3
    points = [GridPoint(1, s, (v,)) for s, v in enumerate(values, start=1)]
    fit = fit_relative(points, (BASE,), non_negative=True)
    assert fit.coefficients == pytest.approx([1], abs=1e-3)
    assert corrected_aic(fit) == pytest.approx(6 * math.log(1e-4) + 4 + 4, abs=1e-2)
    assert corrected_aic(fit_relative(points[:3], (BASE,), non_negative=True)) is None


def test_no_residual_at_all_still_has_a_corrected_aic() -> None:
    points = [GridPoint(1, s, (1.0,)) for s in range(1, 7)]
    # as if the residuals were 1e-6
    fit = fit_relative(points, (BASE,), non_negative=True)
    assert corrected_aic(fit) == pytest.approx(6 * math.log(1e-12) + 8)


def test_few_sizes_do_not_support_many_terms() -> None:
    # the interval excludes 0, and yet six sizes are too few for a third term that lowers little
    sizes = [(2, 64), (4, 64), (2, 256), (8, 128), (4, 512), (16, 128)]
    law = fit_time_law(time_grid((LAUNCH_S, LINEAR_S, 30e-9), 0.05, seed=1, sizes=sizes))
    hidden = law.coefficients[2]
    assert hidden.low > 0
    assert hidden.reason == "the corrected AIC is not lower with it"
    assert supported(law) == ["launch", "linear"]


def test_the_median_of_the_rounds_counts() -> None:
    points = time_grid((LAUNCH_S, LINEAR_S, QUADRATIC_S))
    slow = [GridPoint(p.batch, p.seq, (*p.rounds[:2], 9 * p.rounds[2])) for p in points]
    assert values(fit_time_law(slow)) == pytest.approx([LAUNCH_S, LINEAR_S, QUADRATIC_S])


def test_as_many_sizes_as_terms_leave_out_a_term() -> None:
    sizes = [(2, 64), (4, 128), (8, 256)]
    law = fit_time_law(time_grid((0, LINEAR_S, 0), noise=0.01, sizes=sizes))
    assert supported(law) == ["linear"]
    low, high = law.interval(8, 256)
    assert 0 <= low < law.at(8, 256) < high


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([], "0 sizes: 3 coefficients .launch, linear, quadratic. need at least 3"),
        ([(8, 128)], "1 size: 3 coefficients"),
        ([(8, 128), (8, 256)], "2 sizes: 3 coefficients"),
        ([(8, 128)] * 5, "1 size: 3 coefficients"),
        ([(4, 128), (8, 128), (16, 128), (32, 128)], "too alike .* sequences 128"),
        ([(0, 128), (8, 128), (16, 256)], "batch 0, sequence 128: batch and sequence must be 1"),
    ],
)
def test_too_few_or_alike_sizes_are_refused(sizes: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        fit_time_law(time_grid((LAUNCH_S, LINEAR_S, QUADRATIC_S), sizes=sizes))


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1e-3])
def test_what_is_no_measured_value_is_refused_by_name(bad: float) -> None:
    points = time_grid((LAUNCH_S, LINEAR_S, QUADRATIC_S))
    odd = points[5]
    points[5] = GridPoint(odd.batch, odd.seq, (odd.rounds[0], bad, odd.rounds[2]))
    with pytest.raises(LawRefusedError, match=r"batch 4, sequence 128: \S+ in round 2 is not"):
        fit_time_law(points)


@pytest.mark.parametrize(
    ("rounds", "reason"), [((0.1, 0.1), "number of rounds 2, of the others 3"), ((), "nothing")]
)
def test_a_size_that_is_a_round_short_is_refused_by_name(
    rounds: tuple[float, ...], reason: str
) -> None:
    points = time_grid((LAUNCH_S, LINEAR_S, QUADRATIC_S))
    points[5] = GridPoint(4, 128, rounds)
    with pytest.raises(LawRefusedError, match=f"batch 4, sequence 128: {reason}"):
        fit_time_law(points)


def test_values_without_any_law_are_refused() -> None:
    sizes = [(1, 64), (2, 128), (4, 32), (8, 256)]
    scattered: Sequence[float] = (1e-6, 1.0, 1e-3, 1e-9)
    points = [GridPoint(b, s, (v,)) for (b, s), v in zip(sizes, scattered, strict=True)]
    with pytest.raises(LawRefusedError, match=r"supports no term .* scatter by"):
        fit_time_law(points)


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        (Quantity.TIME, 2.5, "2.5 s"),
        (Quantity.TIME, 1234.0, "1234 s"),
        (Quantity.TIME, 1.25e-2, "12.5 ms"),
        (Quantity.TIME, 999.6e-9, "1000 ns"),
        (Quantity.TIME, 3e-14, "0.03 ps"),
        (Quantity.MEMORY, 3 * 2**30, "3 GiB"),
        (Quantity.MEMORY, 1536.0, "1.5 KiB"),
        (Quantity.MEMORY, 0.25, "0.25 bytes"),
    ],
)
def test_coefficients_have_the_unit_that_suits(quantity: Quantity, value: float, text: str) -> None:
    assert quantity.text(value) == text
