"""Laws of time and memory: terms, fits, exponents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from synthetic_grids import LENGTHS, SIZES, memory_grid, step_grid, step_peak, time_grid

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.stats.law_fits import (
    check_held_out,
    corrected_aic,
    fit_exponents,
    fit_memory_law,
    fit_relative,
    fit_time_law,
)
from tinyllama_tools.stats.laws import (
    BASE,
    LAUNCH,
    LINEAR,
    QUADRATIC,
    TIME_TERMS,
    GridPoint,
    Law,
    LawRefusedError,
    Quantity,
    RangeKind,
    Term,
    terms_of_work,
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
    assert supported(law) == ["launch", "linear", "quadratic"]
    assert values(law) == pytest.approx([LAUNCH_S, LINEAR_S, QUADRATIC_S])
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
    assert corrected_aic(fit_relative(points[:3], (BASE,), non_negative=True)) == math.inf


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


@pytest.mark.parametrize(
    ("rounds", "reason"),
    [
        *(((0.1, bad, 0.1), r"\S+ in round 2 is not") for bad in (math.nan, math.inf, 0.0, -1e-3)),
        ((0.1, 0.1), "number of rounds 2, of the others 3"),
        ((), "nothing"),
    ],
)
def test_what_is_no_measured_value_is_refused_by_name(
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


BASE_B, BATCH_B, LINEAR_B, QUADRATIC_B, TABLE_B, MASK_B = 33e6, 350e3, 76e3, 155.0, 4e3, 32.0
MIB = 2**20


def test_the_law_comes_back_from_exact_peaks() -> None:
    truth = (BASE_B, BATCH_B, LINEAR_B, QUADRATIC_B, TABLE_B, MASK_B)
    law = fit_memory_law(memory_grid(truth))
    assert supported(law) == ["base", "batch", "linear", "quadratic", "table", "mask"]
    assert [c.value for c in law.coefficients] == pytest.approx(truth)
    assert (law.below, law.range_kind) == ((), RangeKind.MISFIT)
    # 0.1 % is the least that is said
    assert law.interval(8, 256) == pytest.approx((law.at(8, 256) / 1.001, law.at(8, 256) * 1.001))
    assert law.formula == (
        "memory = 31.5 MiB + 342 KiB x B + 74.2 KiB x B S + 155 bytes x B S² + 3.91 KiB x S + "
        "32 bytes x S²"
    )


@pytest.mark.parametrize(
    ("truth", "kept"),
    [
        ((BASE_B,), ["base"]),
        ((BASE_B, 0, LINEAR_B), ["base", "linear"]),
        ((BASE_B, 0, LINEAR_B, QUADRATIC_B), ["base", "linear", "quadratic"]),
        ((0, 0, LINEAR_B, 0, TABLE_B), ["linear", "table"]),
        ((BASE_B, 0, LINEAR_B, 0, 0, MASK_B), ["base", "linear", "mask"]),
    ],
)
def test_memory_terms_that_are_not_there_are_not_supported(
    truth: tuple[float, ...], kept: list[str]
) -> None:
    law = fit_memory_law(memory_grid(truth))
    assert supported(law) == kept
    for coefficient in law.coefficients:
        assert (coefficient.reason == "") == coefficient.supported
        assert coefficient.low <= coefficient.value <= coefficient.high
        assert coefficient.supported or coefficient.value == 0


def test_the_range_is_the_misfit_of_each_size_by_the_law_of_the_others() -> None:
    # every fourth size is 3 % higher: no term is like that
    exact = memory_grid((BASE_B, 0, LINEAR_B))
    law = fit_memory_law(
        [
            GridPoint(p.batch, p.seq, (p.value * (1.03 if i % 4 == 1 else 1.0),))
            for i, p in enumerate(exact)
        ]
    )
    assert supported(law) == ["base", "linear"]
    values, misfits = [law.at(8, 256)], []
    for left in law.points:
        others = [point for point in law.points if point is not left]
        base, linear = fit_relative(others, (BASE, LINEAR), non_negative=True).coefficients
        values.append(base + 2048 * linear)
        misfits.append(abs((base + left.tokens * linear) / left.value - 1))
    worst = 1 + max(misfits)
    assert 1.02 < worst < 1.05
    assert law.interval(8, 256) == pytest.approx((min(values) / worst, max(values) * worst))


def test_a_peak_that_does_not_depend_on_the_size_is_no_part_of_the_law() -> None:
    floor = 60 * MIB
    truth = (BASE_B, 0, LINEAR_B, QUADRATIC_B)
    exact = memory_grid(truth)
    points = [GridPoint(p.batch, p.seq, (max(floor, p.value),)) for p in exact]
    law = fit_memory_law(points)
    assert [c.value for c in law.coefficients[:4]] == pytest.approx(truth, rel=1e-6)
    assert {(p.batch, p.seq) for p in law.below} == {
        (p.batch, p.seq) for p in exact if p.value < floor
    }
    assert len(law.points) + len(law.below) == len(points)
    assert law.at(2, 64) == floor
    assert law.formula.endswith("155 bytes x B S², at least 60 MiB")


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_a_step_is_predicted_within_the_goal(size: str) -> None:
    # peaks of the update, of the loss and of attention; the update's is that of four and more
    points = step_grid(size)
    assert sum(p.value <= 1.01 * min(q.value for q in points) for p in points) >= 4
    found = check_held_out(points, fit_memory_law)
    assert len(found.held) == 3
    assert found.median_percent < 5
    assert found.covered == 3
    assert found.median_width_percent < 5
    # and a size that is four times as large as any of them
    law = fit_memory_law(points)
    low, high = law.interval(16, 1024)
    assert low <= step_peak(problem_sizes()[size], 16, 1024) <= high


def test_too_few_sizes_above_the_update_are_refused() -> None:
    with pytest.raises(
        LawRefusedError, match=r"above 3.12 GiB: 1 of 13, too few .* measure larger"
    ):
        check_held_out(step_grid("medium"), fit_memory_law)


def test_a_cross_of_sizes_cannot_tell_what_samples_share() -> None:
    sizes = [*((b, 128) for b in (1, 2, 4, 16)), *((8, s) for s in (*LENGTHS, 1024))]
    law = fit_memory_law(memory_grid((BASE_B, 0, LINEAR_B), sizes))
    assert supported(law) == ["base", "linear"]
    assert law.coefficients[5].reason == "the sizes do not tell it from the others"


def test_peaks_without_any_law_are_refused() -> None:
    points = [GridPoint(b, s, (1e6 * (1 + 9 * (i % 3 == 1)),)) for i, (b, s) in enumerate(SIZES)]
    with pytest.raises(LawRefusedError, match=r"no law of memory .* off by"):
        fit_memory_law(points)


def test_exact_powers_come_back() -> None:
    found = fit_exponents([GridPoint(b, s, (3e-6 * b**0.9 * s**1.5,)) for b, s in SIZES])
    assert found.batch.value == pytest.approx(0.9)
    assert found.seq.value == pytest.approx(1.5)
    assert found.seq.high - found.seq.low < 1e-9
    assert found.r_squared == pytest.approx(1)


def test_intervals_by_hand() -> None:
    # residuals d (+, -, -, +) are orthogonal to every column, so the exponents are those of the
    # exact values; variance 4 d^2 / 1, that of an exponent s^2 / (4 (ln 2 / 2)^2), t = 12.706
    off = 0.01
    signs = {(2, 16): 1, (2, 32): -1, (4, 16): -1, (4, 32): 1}
    points = [GridPoint(b, s, (b * s * math.exp(off * sign),)) for (b, s), sign in signs.items()]
    found = fit_exponents(points)
    reach = 12.7062 * 2 * off / math.log(2)
    for exponent in (found.batch, found.seq):
        assert exponent.value == pytest.approx(1)
        assert exponent.high - 1 == pytest.approx(reach, rel=1e-5)
        assert 1 - exponent.low == pytest.approx(reach, rel=1e-5)
    explained = 2 * 4 * (math.log(2) / 2) ** 2
    assert found.r_squared == pytest.approx(explained / (explained + 4 * off**2))


def test_what_never_varies_has_exponents_of_zero() -> None:
    found = fit_exponents([GridPoint(b, s, (0.5,)) for b, s in SIZES])
    assert found.batch.value == pytest.approx(0, abs=1e-12)
    assert found.seq.value == pytest.approx(0, abs=1e-12)
    assert found.r_squared == 1


def test_intervals_hold_the_exponent() -> None:
    found = [fit_exponents(time_grid((0, 1e-6, 0), noise=0.1, seed=s)) for s in range(100)]
    held = sum(f.batch.low <= 1 <= f.batch.high for f in found)
    held += sum(f.seq.low <= 1 <= f.seq.high for f in found)
    assert 180 <= held < 200


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([(8, 128), (8, 256), (4, 128)], "3 sizes: .* 1 more to tell the scatter need at least 4"),
        ([(8, 64), (8, 128), (8, 256), (8, 512)], "both must vary"),
        ([(2, 64), (4, 128), (8, 256), (16, 512)], "not together"),
    ],
)
def test_sizes_that_do_not_decide_are_refused(sizes: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        fit_exponents([GridPoint(b, s, (float(b * s),)) for b, s in sizes])


Count = Callable[[int, int], float]


@pytest.mark.parametrize(
    ("count", "terms"),
    [
        (lambda _b, _s: 7e6, (LAUNCH,)),
        (lambda b, s: 1e6 + 40 * b * s, (LAUNCH, LINEAR)),
        # tables and sums besides
        (lambda b, s: 1e6 + 40 * b * s + 512 * s + 8 * b, (LAUNCH, LINEAR)),
        (lambda b, s: 1e6 + 40 * b * s + 2 * b * s * s, TIME_TERMS),
    ],
)
def test_terms_are_those_of_the_counts(count: Count, terms: tuple[Term, ...]) -> None:
    counts = {(b, s): float(count(b, s)) for b, s in SIZES}
    assert terms_of_work({"bytes": counts}) == terms


def test_any_counter_counts() -> None:
    none = dict.fromkeys(SIZES, 0.0)
    flops = {(b, s): float(b * s * s) for b, s in SIZES}
    assert terms_of_work({"bytes": none, "hardware_flops": flops}) == (LAUNCH, LINEAR, QUADRATIC)
    assert terms_of_work({"bytes": none}) == (LAUNCH,)


def test_what_cannot_be_told_is_not_excluded() -> None:
    two_lengths = {(b, s): float(b * s) for b, s in SIZES if s in (64, 128)}
    assert terms_of_work({"bytes": two_lengths}) == TIME_TERMS
    assert terms_of_work({"bytes": {(8, 128): 1e6}}) == TIME_TERMS
    assert terms_of_work({}) == TIME_TERMS
