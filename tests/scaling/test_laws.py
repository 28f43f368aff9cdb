"""Laws of time and memory, on grids whose laws are known: terms, fits, exponents, and how sure they
are."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import nnls
from simulated_machine import STEP, cost

from tinyllama_tools.stats.laws import (
    BASE,
    LAUNCH,
    LINEAR,
    TIME_TERMS,
    Fit,
    GridPoint,
    HeldOutCell,
    Law,
    LawRefusedError,
    RangeKind,
    Term,
    check_held_out,
    corrected_aic,
    drawn_shifts,
    fit_exponents,
    fit_memory_law,
    fit_time_law,
    non_negative_solutions,
    round_shifts,
    terms_of_work,
)

LENGTHS = (64, 128, 256, 512)
SIZES = tuple((batch, seq) for batch in (2, 4, 8, 16) for seq in LENGTHS)
Grid = list[GridPoint]
# launch, a token, a token and token of the sequence
TRUTH = (10e-3, 64e-6, 117e-9)
NOISE = 0.1
MIB = 2**20


def time_grid(
    truth: Sequence[float],
    noise: float = 0.0,
    seed: int = 0,
    sizes: Sequence[tuple[int, int]] = SIZES,
    rounds: int = 3,
    shift: float = 0.0,
) -> Grid:
    """Seconds. Standard deviations of logarithms: `noise` of every cell of a round, `shift` of a
    round, the same for all of its cells."""
    generator = np.random.default_rng(seed)
    common = shift * np.random.default_rng([seed, rounds]).standard_normal(rounds)
    launch, linear, quadratic = truth
    return [
        GridPoint(
            b,
            s,
            tuple(
                (launch + b * s * (linear + s * quadratic))
                * np.exp(common + noise * generator.standard_normal(rounds))
            ),
        )
        for b, s in sizes
    ]


def memory_grid(truth: Sequence[float], sizes: Sequence[tuple[int, int]] = SIZES) -> Grid:
    """Bytes; of the first terms, the others have none."""
    found = []
    for b, s in sizes:
        amounts = (1, b, b * s, b * s * s, s, s * s)
        value = sum(c * amount for c, amount in zip(truth, amounts, strict=False))
        found.append(GridPoint(b, s, (value,)))
    return found


def scaled(points: Grid, factor: Callable[[GridPoint], float]) -> Grid:
    return [GridPoint(p.batch, p.seq, tuple(factor(p) * v for v in p.rounds)) for p in points]


def supported(law: Law) -> list[str]:
    return [c.name for c in law.coefficients if c.supported]


def values(law: Law) -> list[float]:
    return [c.value for c in law.coefficients]


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_the_solver_agrees_with_that_of_scipy(terms: int) -> None:
    generator = np.random.default_rng(terms)
    rows = generator.uniform(size=(10, terms))
    targets = generator.standard_normal((60, 10)) + 0.3
    expected = np.array([nnls(rows, target)[0] for target in targets])
    assert (expected == 0).any() and (expected > 0).any()
    assert non_negative_solutions(rows, targets) == pytest.approx(expected, abs=1e-12)


def test_the_time_law_comes_back_from_exact_times() -> None:
    points = time_grid(TRUTH)
    # the median of the rounds counts
    slow = [GridPoint(p.batch, p.seq, (*p.rounds[:2], 9 * p.rounds[2])) for p in points]
    assert values(fit_time_law(slow)) == pytest.approx(TRUTH)
    law = fit_time_law(points)
    assert supported(law) == ["launch", "linear", "quadratic"]
    assert values(law) == pytest.approx(TRUTH)
    assert max(map(abs, law.residuals_percent)) < 1e-9
    assert law.at(3, 100) == pytest.approx(10e-3 + 300 * 64e-6 + 30000 * 117e-9)
    assert law.interval(3, 100) == pytest.approx((law.at(3, 100), law.at(3, 100)))
    assert law.formula == "time = 10 ms + 64 us x B S + 117 ns x B S²"


@pytest.mark.parametrize(
    ("truth", "kept"),
    [
        ((0.05, 0, 0), ["launch"]),
        ((0, 64e-6, 0), ["linear"]),
        ((10e-3, 64e-6, 0), ["launch", "linear"]),
        ((0, 64e-6, 117e-9), ["linear", "quadratic"]),
        ((10e-3, 0, 117e-9), ["launch", "quadratic"]),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_terms_that_are_not_there_are_not_supported(
    truth: tuple[float, ...], kept: list[str], noise: float
) -> None:
    # a seed of noise that feigns no term; one in forty does, for each term
    law = fit_time_law(time_grid(truth, noise, seed=4))
    assert supported(law) == kept
    assert all(c.low <= c.value <= c.high for c in law.coefficients)
    # the sum of the supported terms and of nothing else
    alone = [c.value if c.supported else 0 for c in law.coefficients]
    assert law.at(16, 512) == pytest.approx(alone[0] + 8192 * (alone[1] + 512 * alone[2]))
    assert ("B S²" in law.formula) == ("quadratic" in kept)


def test_few_terms_are_supported_by_chance() -> None:
    grids = [time_grid((0.05, 0, 0), NOISE, seed) for seed in range(40)]
    # two terms, each at 2.5 %
    assert sum(supported(fit_time_law(points)) != ["launch"] for points in grids) <= 6


def test_a_term_that_noise_hides_is_reported_and_not_used() -> None:
    # at the largest size 2 % of the time; the noise is 10 %
    law = fit_time_law(time_grid((10e-3, 64e-6, 2.5e-9), NOISE))
    hidden = law.coefficients[2]
    assert not hidden.supported and hidden.reason
    assert hidden.low == 0 and hidden.high > 2.5e-9
    launch, linear, _ = values(law)
    assert law.at(1, 1000) == pytest.approx(launch + 1000 * linear)
    # a term that the work does not have is not even fitted
    missing = fit_time_law(time_grid(TRUTH, 0.02), terms=(LAUNCH, LINEAR)).coefficients[2]
    assert (missing.value, missing.low, missing.high) == (0, 0, 0)
    assert missing.reason == "neither FLOPs nor bytes have it"
    # falls with the sequence: the best unconstrained law has a negative quadratic term
    falling = [GridPoint(b, s, (1e-2 + 1e-5 * b * s**0.6,)) for b, s in SIZES]
    law = fit_time_law(falling)
    assert min(c.low for c in law.coefficients) >= 0
    assert law.coefficients[2].reason == "the best fit has nothing of it"


def test_few_sizes_do_not_support_many_terms() -> None:
    # the interval excludes 0, and yet six sizes are too few for a third term that lowers little
    sizes = [(2, 64), (4, 64), (2, 256), (8, 128), (4, 512), (16, 128)]
    law = fit_time_law(time_grid((10e-3, 64e-6, 30e-9), 0.05, seed=1, sizes=sizes))
    assert law.coefficients[2].low > 0
    assert law.coefficients[2].reason == "the corrected AIC is not lower with it"
    # as many sizes as terms leave out a term
    law = fit_time_law(time_grid((0, 64e-6, 0), 0.01, sizes=[(2, 64), (4, 128), (8, 256)]))
    low, high = law.interval(8, 256)
    assert supported(law) == ["linear"] and 0 <= low < law.at(8, 256) < high


def test_fits_by_hand() -> None:
    # errors are relative: minimum of (1 - x)^2 + (1 - x / 2)^2 at x = (1 + 1/2) / (1 + 1/4)
    fit = Fit([GridPoint(1, 1, (1.0,)), GridPoint(1, 2, (2.0,))], (BASE,), is_bounded=True)
    assert fit.coefficients == pytest.approx([1.2])
    assert fit.residuals == pytest.approx([-0.2, 0.4])
    assert fit.freedom == 1
    line = [GridPoint(1, 1, (1.0,)), GridPoint(1, 2, (3.0,)), GridPoint(1, 3, (5.0,))]
    free, bounded = (Fit(line, (BASE, LINEAR), is_bounded=of) for of in (False, True))
    assert free.coefficients == pytest.approx([-1.0, 2.0])
    # of (1 - x)^2 + (1 - 2 x / 3)^2 + (1 - 3 x / 5)^2
    assert bounded.coefficients == pytest.approx([0, (1 + 2 / 3 + 3 / 5) / (1 + 4 / 9 + 9 / 25)])
    # six residuals of 1 %: 6 ln(1e-4) + 2 x 2 + 2 x 2 x 3 / (6 - 2 - 1)
    points = [GridPoint(1, s + 1, (1 / (1 - 0.01 * (-1) ** s),)) for s in range(6)]
    aic = corrected_aic(Fit(points, (BASE,), is_bounded=True))
    assert aic == pytest.approx(6 * math.log(1e-4) + 4 + 4, abs=1e-2)
    assert corrected_aic(Fit(points[:3], (BASE,), is_bounded=True)) == math.inf


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([], "0 sizes: 3 coefficients .launch, linear, quadratic. need at least 3"),
        ([(8, 128)] * 5, "1 size: 3 coefficients"),
        ([(4, 128), (8, 128), (16, 128), (32, 128)], "too alike"),
    ],
)
def test_too_few_or_alike_sizes_are_refused(sizes: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        fit_time_law(time_grid(TRUTH, sizes=sizes))


def test_values_without_any_law_are_refused() -> None:
    sizes = [(1, 64), (2, 128), (4, 32), (8, 256)]
    scattered = zip(sizes, (1e-6, 1.0, 1e-3, 1e-9), strict=True)
    with pytest.raises(LawRefusedError, match=r"supports no term .* scatter by"):
        fit_time_law([GridPoint(b, s, (v,)) for (b, s), v in scattered])
    jumping = [GridPoint(b, s, (1e6 * (1 + 9 * (i % 3 == 1)),)) for i, (b, s) in enumerate(SIZES)]
    with pytest.raises(LawRefusedError, match=r"no law of memory .* off by"):
        fit_memory_law(jumping)


BASE_B, BATCH_B, LINEAR_B, QUADRATIC_B, TABLE_B, MASK_B = 33e6, 350e3, 76e3, 155.0, 4e3, 32.0


def test_the_memory_law_comes_back_from_exact_peaks() -> None:
    truth = (BASE_B, BATCH_B, LINEAR_B, QUADRATIC_B, TABLE_B, MASK_B)
    law = fit_memory_law(memory_grid(truth))
    assert values(law) == pytest.approx(truth)
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
        assert coefficient.low <= coefficient.value <= coefficient.high
        assert coefficient.supported or coefficient.value == 0


def test_the_range_is_the_misfit_of_each_size_by_the_law_of_the_others() -> None:
    # every fourth size is 3 % higher: no term is like that
    exact = memory_grid((BASE_B, 0, LINEAR_B))
    higher = exact[1::4]
    law = fit_memory_law(scaled(exact, lambda p: 1.03 if p in higher else 1.0))
    assert supported(law) == ["base", "linear"]
    found, misfits = [law.at(8, 256)], []
    for left in law.points:
        others = [point for point in law.points if point is not left]
        base, linear = Fit(others, (BASE, LINEAR), is_bounded=True).coefficients
        found.append(base + 2048 * linear)
        misfits.append(abs((base + left.tokens * linear) / left.value - 1))
    worst = 1 + max(misfits)
    assert 1.02 < worst < 1.05
    assert law.interval(8, 256) == pytest.approx((min(found) / worst, max(found) * worst))


def test_a_peak_that_does_not_depend_on_the_size_is_no_part_of_the_law() -> None:
    floor, truth = 60 * MIB, (BASE_B, 0, LINEAR_B, QUADRATIC_B)
    exact = memory_grid(truth)
    law = fit_memory_law([GridPoint(p.batch, p.seq, (max(floor, p.value),)) for p in exact])
    assert values(law)[:4] == pytest.approx(truth, rel=1e-6)
    below = {(p.batch, p.seq) for p in exact if p.value < floor}
    assert {(p.batch, p.seq) for p in law.below} == below
    assert len(law.points) + len(law.below) == len(exact)
    assert law.at(2, 64) == floor
    assert law.formula.endswith("155 bytes x B S², at least 60 MiB")
    # but sizes below what the law of the others says have no other moment
    low = sorted(exact, key=lambda p: p.value)[:2]
    assert fit_memory_law(scaled(exact, lambda p: 0.7 if p in low else 1.0)).below == ()


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_a_peak_of_several_moments_is_predicted_within_the_goal(size: str) -> None:
    # as the program predicts it: of the smallest sizes, the update's is the highest
    grid = [(batch, seq) for batch in (1, 2, 4, 8) for seq in LENGTHS]
    peaks = {cell: float(cost(STEP, size, *cell).predicted_memory_bytes) for cell in grid}
    points = [GridPoint(*cell, (peak,)) for cell, peak in peaks.items()]
    assert fit_memory_law(points).below
    found = check_held_out(points, fit_memory_law)
    assert len(found) == 3
    for cell in found:
        assert abs(cell.error_percent) < 5 and cell.width_percent < 10


def test_sizes_that_do_not_tell_how_memory_grows() -> None:
    flat = memory_grid((BASE_B, 0, LINEAR_B))
    floor = sorted(p.value for p in flat)[-2]
    with pytest.raises(LawRefusedError, match=r"1 of 16, too few .* measure larger"):
        fit_memory_law([GridPoint(p.batch, p.seq, (max(floor, p.value),)) for p in flat])
    # a cross of sizes cannot tell what samples share
    sizes = [*((b, 128) for b in (1, 2, 4, 16)), *((8, s) for s in (*LENGTHS, 1024))]
    law = fit_memory_law(memory_grid((BASE_B, 0, LINEAR_B), sizes))
    assert supported(law) == ["base", "linear"]
    assert law.coefficients[5].reason == "the sizes do not tell it from the others"


def test_exponents_of_exact_powers_and_by_hand() -> None:
    found = fit_exponents([GridPoint(b, s, (3e-6 * b**0.9 * s**1.5,)) for b, s in SIZES])
    assert (found.batch.value, found.seq.value) == pytest.approx((0.9, 1.5))
    assert found.seq.high - found.seq.low < 1e-9 and found.r_squared == pytest.approx(1)
    # residuals d (+, -, -, +) are orthogonal to every column, so the exponents are those of the
    # exact values; variance 4 d^2 / 1, that of an exponent s^2 / (4 (ln 2 / 2)^2), t = 12.706
    off = 0.01
    signs = {(2, 16): 1, (2, 32): -1, (4, 16): -1, (4, 32): 1}
    points = [GridPoint(b, s, (b * s * math.exp(off * sign),)) for (b, s), sign in signs.items()]
    found = fit_exponents(points)
    reach = 12.7062 * 2 * off / math.log(2)
    for exponent in (found.batch, found.seq):
        assert exponent == pytest.approx((1, 1 - reach, 1 + reach), rel=1e-5)
    explained = 2 * 4 * (math.log(2) / 2) ** 2
    assert found.r_squared == pytest.approx(explained / (explained + 4 * off**2))
    never = fit_exponents([GridPoint(b, s, (0.5,)) for b, s in SIZES])
    assert (never.batch.value, never.seq.value) == pytest.approx((0, 0), abs=1e-12)
    assert never.r_squared == 1


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([(8, 128), (8, 256), (4, 128)], "3 sizes: .* need at least 4"),
        ([(8, 64), (8, 128), (8, 256), (8, 512)], "both must vary"),
        ([(2, 64), (4, 128), (8, 256), (16, 512)], "not together"),
    ],
)
def test_sizes_that_do_not_decide_exponents_are_refused(
    sizes: list[tuple[int, int]], reason: str
) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        fit_exponents([GridPoint(b, s, (float(b * s),)) for b, s in sizes])


@pytest.mark.parametrize(
    ("count", "terms"),
    [
        (lambda _b, _s: 7e6, (LAUNCH,)),
        # tables and sums besides
        (lambda b, s: 1e6 + 40 * b * s + 512 * s + 8 * b, (LAUNCH, LINEAR)),
        (lambda b, s: 1e6 + 40 * b * s + 2 * b * s * s, TIME_TERMS),
    ],
)
def test_terms_are_those_of_the_counts(
    count: Callable[[int, int], float], terms: tuple[Term, ...]
) -> None:
    counts = {(b, s): float(count(b, s)) for b, s in SIZES}
    assert terms_of_work({"bytes": counts}) == terms
    # any counter counts, and one of nothing says nothing
    assert terms_of_work({"hardware_flops": dict.fromkeys(SIZES, 0.0), "bytes": counts}) == terms
    # what cannot be told is not excluded
    two_lengths = {size: value for size, value in counts.items() if size[1] in (64, 128)}
    assert terms_of_work({"bytes": two_lengths}) in (TIME_TERMS, (LAUNCH,))
    assert terms_of_work({"bytes": {(8, 128): 1e6}}) == terms_of_work({}) == TIME_TERMS


def test_the_same_seed_gives_the_same_intervals() -> None:
    points = time_grid(TRUTH, NOISE)
    once, again, other = (fit_time_law(points, seed=seed) for seed in (1, 1, 2))
    assert once.interval(32, 512) == again.interval(32, 512) != other.interval(32, 512)
    assert once.interval(32, 512) == pytest.approx(other.interval(32, 512), rel=0.1)
    assert once.at(32, 512) == other.at(32, 512)


# standard deviation of a median of three, over that of one (normal values)
MEDIAN_OF_THREE = 0.67


def test_intervals_are_as_wide_as_the_noise() -> None:
    widths = []
    for noise in (0.01, NOISE):
        law = fit_time_law(time_grid(TRUTH, noise))
        low, high = law.interval(8, 256)
        widths.append((high - low) / law.at(8, 256))
    # 2 x 2.16 (t of 13 degrees of freedom) standard deviations, and some for the coefficients
    narrowest = 2 * 2.16 * MEDIAN_OF_THREE * NOISE
    assert 0.6 * narrowest < widths[1] < 2 * narrowest
    assert widths[1] / widths[0] == pytest.approx(10, rel=0.3)


def test_an_interval_allows_for_a_hidden_term_and_for_none() -> None:
    law = replace(fit_time_law(time_grid((10e-3, 64e-6, 0), NOISE, seed=8)), drift=0.0)
    assert [c.supported for c in law.coefficients] == [True, True, False]
    none, hidden = (
        np.quantile(
            draws.coefficients @ np.array([1, 64 * 512, 64 * 512**2]) * np.exp(draws.noise),
            [0.025, 0.975],
        )
        for draws in law.draws
    )
    assert none[0] < 0.97 * hidden[0] and hidden[1] > 1.03 * none[1]
    assert law.interval(64, 512) == pytest.approx((none[0], hidden[1]))
    # so does that of a supported coefficient
    ends = np.quantile([draws.coefficients for draws in law.draws], [0.025, 0.975], axis=1)
    linear = law.coefficients[1]
    assert (linear.low, linear.high) == (ends[0, :, 1].min(), ends[1, :, 1].max())
    assert ends[0, 0, 1] != ends[0, 1, 1] and ends[1, 0, 1] != ends[1, 1, 1]


def with_slow_round(points: Grid, by: float) -> Grid:
    return [GridPoint(p.batch, p.seq, (*p.rounds[:2], p.rounds[2] * np.exp(by))) for p in points]


def test_shifts_of_rounds_are_what_all_cells_have_in_common() -> None:
    # 1, 1 and e^0.3 times: around their mean -0.1, -0.1, 0.2
    drifting = with_slow_round(time_grid(TRUTH, 0.001), 0.3)
    # a few cells that were disturbed in one round do not move it
    drifting[3] = GridPoint(2, 512, tuple(np.array(drifting[3].rounds) * (1, 9, 1)))
    assert round_shifts(drifting) == pytest.approx([-0.1, -0.1, 0.2], abs=3e-3)
    # of two rounds the median is the mean: new less old is t s sqrt(2 / 2) with one degree
    shifts = np.array([-0.01, 0.01])
    was, will_be = drawn_shifts(shifts, np.random.default_rng(1))
    for share in (0.6, 0.75, 0.9):
        found = np.quantile((will_be - was) / shifts.std(ddof=1), share)
        assert found == pytest.approx(stats.t.ppf(share, 1), rel=0.15)


def test_a_slow_round_widens_every_interval() -> None:
    # means in place of medians: t of two degrees, 4.3, x sqrt(2 / 3) x s of 0, 0 and 0.03
    quiet = time_grid(TRUTH, 0.001)
    reach = 2 * 4.3 * np.sqrt(2 / 3) * 0.03 / np.sqrt(3)
    low, high = fit_time_law(with_slow_round(quiet, 0.03)).interval(8, 256)
    assert reach < (high - low) / high < 1.5 * reach
    low, high = fit_time_law(quiet).interval(8, 256)
    assert (high - low) / high < 0.02


def share_of_new_rounds(rounds: int, noise: float, shift: float, grids: int) -> float:
    """Of the medians of as many new rounds, each with shifts of its own, that intervals hold."""
    inside = []
    for seed in range(grids):
        law = fit_time_law(time_grid(TRUTH, noise, seed, rounds=rounds, shift=shift))
        for point in time_grid(TRUTH, noise, 10_000 + seed, rounds=rounds, shift=shift):
            low, high = law.interval(point.batch, point.seq)
            inside.append(float(low <= point.value <= high))
    return statistics.mean(inside)


def often(*arguments: object) -> object:
    """A case that takes minutes: 300 grids."""
    return pytest.param(*arguments, 300, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("rounds", "noise", "shift", "grids"),
    [
        *((rounds, 0.02, 0.05, 40) for rounds in (2, 3)),
        *(
            often(rounds, noise, shift)
            for rounds in (2, 3, 5)
            for noise, shift in ((0.02, 0.0), (0.02, 0.05), (NOISE, 0.05))
        ),
    ],
)
def test_intervals_hold_what_new_rounds_give(
    rounds: int, noise: float, shift: float, grids: int
) -> None:
    least = 0.94 if grids == 300 else 0.9
    assert share_of_new_rounds(rounds, noise, shift, grids) >= least


def test_one_round_says_nothing_of_others() -> None:
    # and it must not: most of new rounds lie outside
    law = fit_time_law(time_grid(TRUTH, 0.02, rounds=1, shift=0.05))
    assert law.range_kind is RangeKind.ONE_ROUND
    assert share_of_new_rounds(1, 0.02, 0.05, grids=40) < 0.7
    assert fit_time_law(time_grid(TRUTH, 0.02)).range_kind is RangeKind.NEW_ROUNDS


def test_beyond_the_sizes_the_drift_of_smaller_laws_counts_by_the_octave() -> None:
    # kept: up to 1024 tokens, (2, 512); held out: 2048 and 4096, 1.2 and 1.2^2 times what is exact
    sizes = [(b, s) for b in (1, 2, 4, 8) for s in LENGTHS]
    exact = time_grid((1e-3, 64e-6, 0.0), sizes=sizes)
    slower = scaled(exact, lambda p: 1.2 ** max(0.0, np.log2(p.tokens / 1024)))
    law = fit_time_law(slower, terms=(LAUNCH, LINEAR))
    assert law.drift == pytest.approx(np.log(1.2))
    assert fit_time_law(exact, terms=(LAUNCH, LINEAR)).drift < 1e-6
    # within the sizes nothing changes; two octaves beyond the largest, 4096, it is there twice
    without = replace(law, drift=0.0)
    assert law.interval(4, 512) == without.interval(4, 512)
    low, high = without.interval(32, 512)
    assert law.interval(32, 512) == pytest.approx((low / 1.2**2, high * 1.2**2))


LAWS = [TRUTH, (10e-3, 64e-6, 0.0), (10e-3, 64e-6, 30e-9), (1e-4, 64e-6, 117e-9)]
LAWS += [(1e-3, 0.0, 117e-9), (0.05, 0.0, 0.0)]


@pytest.mark.parametrize(
    ("truth", "noise", "rounds", "grids"),
    [
        *((truth, NOISE, 3, 40) for truth in LAWS[:3]),
        *(often(*of) for of in itertools.product(LAWS, (0.02, NOISE), (1, 3))),
    ],
)
def test_intervals_hold_what_is_held_out(
    truth: tuple[float, ...], noise: float, rounds: int, grids: int
) -> None:
    found = [
        cell
        for seed in range(grids)
        for cell in check_held_out(time_grid(truth, noise, seed, rounds=rounds), fit_time_law)
    ]
    assert sum(cell.is_covered for cell in found) >= 0.9 * len(found)
    a_cell = 100 * 4.3 * noise * (MEDIAN_OF_THREE if rounds == 3 else 1)
    # a term that the smaller sizes hide is a drift for their law
    assert 0.9 * a_cell < statistics.median(cell.width_percent for cell in found) < 5 * a_cell
    assert statistics.median(abs(cell.error_percent) for cell in found) < a_cell / 2


@pytest.mark.long
@pytest.mark.parametrize("truth", LAWS)
def test_coefficients_lie_in_their_intervals_in_300_grids(truth: tuple[float, ...]) -> None:
    laws = [fit_time_law(time_grid(truth, NOISE, seed)) for seed in range(300)]
    pairs = [(c, true) for law in laws for c, true in zip(law.coefficients, truth, strict=True)]
    inside = [c.low <= true <= c.high for c, true in pairs if c.supported and true > 0]
    assert statistics.mean(inside) >= 0.9
    # two terms at most are not there, each found at 2.5 %
    assert sum(c.supported and true == 0 for c, true in pairs) / 300 <= 0.08


def test_cells_from_half_of_the_largest_on_are_held_out() -> None:
    # the largest is 16 x 512 = 8192
    wrong = {(8, 512): 1.25, (16, 256): 0.5, (16, 512): 1.0}
    points = scaled(time_grid(TRUTH, 1e-6), lambda p: wrong.get((p.batch, p.seq), 1.0))
    found = check_held_out(points, fit_time_law)
    assert [(cell.point.batch, cell.point.seq) for cell in found] == list(wrong)
    # 1 / 1.25 - 1, 1 / 0.5 - 1, 0
    assert [cell.error_percent for cell in found] == pytest.approx([-20, 100, 0], abs=1e-2)
    assert [cell.is_covered for cell in found][:2] == [False, False]
    assert all(cell.width_percent < 0.01 for cell in found)
    assert HeldOutCell(GridPoint(1, 2, (2.0,)), 1.0, 0.5, 2.5).width_percent == 200
    few = time_grid(TRUTH, sizes=[(8, 16), (8, 32), (8, 128)])
    with pytest.raises(LawRefusedError, match=r"of the 2 sizes .* need at least 3"):
        check_held_out(few, fit_time_law)
