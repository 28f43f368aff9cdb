"""The largest cells held out: which they are, the errors, and how many intervals hold them."""

from __future__ import annotations

import pytest
from synthetic_grids import SIZES, time_grid

from tinyllama_tools.stats.law_fits import check_held_out, fit_time_law
from tinyllama_tools.stats.laws import GridPoint, LawRefusedError

TRUTH = (10e-3, 64e-6, 117e-9)


def times(point: GridPoint, factor: float) -> GridPoint:
    return GridPoint(point.batch, point.seq, tuple(factor * value for value in point.rounds))


def test_cells_from_half_of_the_largest_on_are_held_out() -> None:
    # the largest is 16 x 512 = 8192
    found = check_held_out(time_grid(TRUTH), fit_time_law)
    assert [(p.batch, p.seq) for p in found.held] == [(8, 512), (16, 256), (16, 512)]
    assert len(found.law.points) == len(SIZES) - 3
    assert not set(found.law.points) & set(found.held)
    assert found.median_percent == pytest.approx(0, abs=1e-6)


def test_errors_are_predicted_over_measured() -> None:
    points = time_grid(TRUTH, noise=1e-6)
    wrong = {(8, 512): 1.25, (16, 256): 0.5, (16, 512): 1.0}
    moved = [times(p, wrong.get((p.batch, p.seq), 1.0)) for p in points]
    found = check_held_out(moved, fit_time_law)
    # 1 / 1.25 - 1, 1 / 0.5 - 1, 0
    assert found.errors_percent == pytest.approx((-20, 100, 0), abs=1e-2)
    assert found.median_percent == pytest.approx(20, abs=1e-2)
    assert found.covered <= 1
    assert found.median_width_percent < 0.01


def test_what_lies_in_the_intervals_is_covered() -> None:
    found = check_held_out(time_grid(TRUTH, noise=0.1), fit_time_law)
    inside = [
        low <= p.value <= high
        for p in found.held
        for low, high in [found.law.interval(p.batch, p.seq)]
    ]
    assert found.covered == sum(inside) >= 2
    assert 10 < found.median_width_percent < 100


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([], "0 sizes: none to hold out"),
        ([(8, 128)], "of the 0 sizes that are not held out, 0 sizes: 3 coefficients"),
        ([(8, 16), (8, 32), (8, 128)], "of the 2 sizes .* need at least 3"),
    ],
)
def test_too_few_kept_cells_are_refused(sizes: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        check_held_out(time_grid(TRUTH, sizes=sizes), fit_time_law)
