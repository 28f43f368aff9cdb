"""The fitted law of memory against batch and sequence."""

import pytest

from tinyllama_tools.memory_law import MemoryPoint, fit_memory_law

SIZES = ((4, 128), (8, 128), (16, 128), (8, 64), (8, 256), (4, 512))
BASE, LINEAR, QUADRATIC = 46e6, 70e3, 300.0


def points(off: float = 0.0) -> list[MemoryPoint]:
    """Exactly on the law; the last one `off` times away from it."""
    found = [MemoryPoint(b, s, BASE + b * (LINEAR * s + QUADRATIC * s * s)) for b, s in SIZES]
    last = found[-1]
    return [*found[:-1], MemoryPoint(last.batch, last.seq, last.peak_bytes * (1 + off))]


def test_the_coefficients_come_back() -> None:
    law = fit_memory_law(points())
    assert law.base == pytest.approx(BASE)
    assert law.linear == pytest.approx(LINEAR)
    assert law.quadratic == pytest.approx(QUADRATIC)
    assert law.largest_residual_percent < 1e-6
    assert law.at(8, 128) == pytest.approx(points()[1].peak_bytes)


def test_shares_add_up_and_the_quadratic_part_grows() -> None:
    law = fit_memory_law(points())
    short, long = law.shares_percent(8, 64), law.shares_percent(4, 512)
    assert sum(short.values()) == pytest.approx(100)
    assert long["quadratic"] > short["quadratic"]
    assert long["base"] < short["base"]
    assert short["base"] == pytest.approx(100 * BASE / points()[3].peak_bytes)


def test_what_does_not_follow_the_law_shows_in_the_residuals() -> None:
    law = fit_memory_law(points(off=0.2))
    assert law.largest_residual_percent > 1
    assert len(law.residuals_percent) == len(SIZES)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([(8, 128), (8, 256)], "2 sizes"),
        ([(4, 128), (8, 128), (16, 128)], "too alike"),
        ([(8, 128), (8, 128), (8, 128)], "too alike"),
    ],
)
def test_too_few_sizes_are_an_error(sizes: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fit_memory_law([MemoryPoint(b, s, 1e6 + b * s) for b, s in sizes])


def test_a_peak_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        fit_memory_law([MemoryPoint(b, s, 0) for b, s in SIZES])
