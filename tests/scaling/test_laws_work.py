"""Which terms of a law of time the counted work of a series has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from synthetic_grids import SIZES

from tinyllama_tools.stats.laws import LAUNCH, LINEAR, QUADRATIC, TIME_TERMS, Term, terms_of_work

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
