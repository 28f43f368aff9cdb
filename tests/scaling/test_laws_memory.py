"""Laws of memory: terms, the moment that is the peak, ranges of misfits, refusals."""

from __future__ import annotations

import pytest
from synthetic_grids import LENGTHS, SIZES, memory_grid, step_grid, step_peak

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.stats.law_fits import check_held_out, fit_memory_law, fit_relative
from tinyllama_tools.stats.laws import BASE, LINEAR, GridPoint, Law, LawRefusedError, RangeKind

BASE_B, BATCH_B, LINEAR_B, QUADRATIC_B, TABLE_B, MASK_B = 33e6, 350e3, 76e3, 155.0, 4e3, 32.0
MIB = 2**20


def supported(law: Law) -> list[str]:
    return [c.name for c in law.coefficients if c.supported]


def test_the_law_comes_back_from_exact_peaks() -> None:
    truth = (BASE_B, BATCH_B, LINEAR_B, QUADRATIC_B, TABLE_B, MASK_B)
    law = fit_memory_law(memory_grid(truth))
    assert supported(law) == ["base", "batch", "linear", "quadratic", "table", "mask"]
    assert [c.value for c in law.coefficients] == pytest.approx(truth)
    assert law.below == ()
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
def test_terms_that_are_not_there_are_not_supported(
    truth: tuple[float, ...], kept: list[str]
) -> None:
    law = fit_memory_law(memory_grid(truth))
    assert supported(law) == kept
    for coefficient in law.coefficients:
        assert (coefficient.reason == "") == coefficient.supported
        assert coefficient.low <= coefficient.value <= coefficient.high
        assert coefficient.supported or coefficient.value == 0


def test_memory_has_no_interval_but_a_misfit() -> None:
    law = fit_memory_law(memory_grid((BASE_B,)))
    assert law.range_kind is RangeKind.MISFIT
    # 0.1 % is the least that is said
    assert law.interval(64, 4096) == pytest.approx((BASE_B / 1.001, BASE_B * 1.001))


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


def test_one_batch_size_is_refused() -> None:
    sizes = [(8, s) for s in (64, 128, 256, 512, 1024)]
    with pytest.raises(LawRefusedError, match=r"base, batch, .* apart .batches 8;"):
        fit_memory_law(memory_grid((BASE_B, BATCH_B, LINEAR_B, QUADRATIC_B), sizes))


def test_a_cross_of_sizes_cannot_tell_what_samples_share() -> None:
    sizes = [*((b, 128) for b in (1, 2, 4, 16)), *((8, s) for s in (*LENGTHS, 1024))]
    law = fit_memory_law(memory_grid((BASE_B, 0, LINEAR_B), sizes))
    assert supported(law) == ["base", "linear"]
    assert law.coefficients[5].reason == "the sizes do not tell it from the others"


def test_peaks_without_any_law_are_refused() -> None:
    points = [GridPoint(b, s, (1e6 * (1 + 9 * (i % 3 == 1)),)) for i, (b, s) in enumerate(SIZES)]
    with pytest.raises(LawRefusedError, match=r"no law of memory .* off by"):
        fit_memory_law(points)
