"""Exercise 2's law of memory against batch and sequence."""

import pytest

from tinyllama_tools.stats.laws import GridPoint, LawRefusedError
from tinyllama_tools.study.size_predictions import MemoryLaw

SIZES = ((4, 128), (8, 128), (16, 128), (8, 64), (8, 256), (4, 512))
BASE, LINEAR, QUADRATIC = 46e6, 70e3, 300.0


def points(off: float = 0.0, base: float = BASE) -> list[GridPoint]:
    """Exactly on the law; the last one `off` times away from it."""
    peaks = [base + b * (LINEAR * s + QUADRATIC * s * s) for b, s in SIZES]
    peaks[-1] *= 1 + off
    return [GridPoint(*size, (peak,)) for size, peak in zip(SIZES, peaks, strict=True)]


def test_the_coefficients_come_back() -> None:
    law = MemoryLaw.fitted_to(points())
    assert law.base == pytest.approx(BASE)
    assert law.linear == pytest.approx(LINEAR)
    assert law.quadratic == pytest.approx(QUADRATIC)
    assert law.largest_residual_percent < 1e-6
    assert law.at(8, 128) == pytest.approx(points()[1].value)


def test_no_coefficient_is_left_out_and_one_may_be_negative() -> None:
    law = MemoryLaw.fitted_to(points(base=-1e6))
    assert law.base == pytest.approx(-1e6)
    assert MemoryLaw.fitted_to(points(base=0.0)).base == pytest.approx(0, abs=1)


def test_shares_add_up_and_the_quadratic_part_grows() -> None:
    law = MemoryLaw.fitted_to(points())
    short, long = law.shares_percent(8, 64), law.shares_percent(4, 512)
    assert sum(short.values()) == pytest.approx(100)
    assert long["quadratic"] > short["quadratic"]
    assert long["base"] < short["base"]
    assert short["base"] == pytest.approx(100 * BASE / points()[3].value)


def test_what_does_not_follow_the_law_shows_in_the_residuals() -> None:
    law = MemoryLaw.fitted_to(points(off=0.2))
    assert law.largest_residual_percent > 1
    assert len(law.residuals_percent) == len(SIZES)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([(8, 128), (8, 256)], "2 sizes"),
        ([(4, 128), (8, 128), (16, 128)], "too alike"),
        ([(8, 128), (8, 128), (8, 128)], "1 size"),
    ],
)
def test_too_few_sizes_are_an_error(sizes: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        MemoryLaw.fitted_to([GridPoint(b, s, (1e6 + b * s,)) for b, s in sizes])


def test_a_peak_of_nothing_is_an_error() -> None:
    with pytest.raises(LawRefusedError, match="batch 4, sequence 128: 0 in round 1"):
        MemoryLaw.fitted_to([GridPoint(b, s, (0.0,)) for b, s in SIZES])
