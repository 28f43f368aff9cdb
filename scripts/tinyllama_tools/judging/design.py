"""When to look, and what a look may spend: fixed before anything is measured.

Looks are numbers of blocks. Of `looks` planned ones each may spend alpha / looks, so whoever stops
at any of them for any reason has made a false alarm with a chance of at most alpha (Bonferroni; the
simplest spending function of Lan and DeMets, Biometrika 70, 1983, and the only one that asks for
nothing about how looks depend on each other). Holm's strictest step then divides by the cases.

Only a quarter of alpha is spent. A procedure that errs in exactly 1 of 1,000 families cannot be
shown to err in at most 1 of 1,000: of 10,000 tries no more than 4 may err, and it would in 10. The
price is two blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

ALPHA = 1e-3
MARGIN = 0.03
LOOKS = 6
CONFIDENCE = 0.95
# of the number of blocks from look to look: few looks, and at most a quarter measured in vain
GROWTH = 1.27
# share of alpha that looks may spend
SPENT = 0.25
# of which the exact test is still a number with all its digits
MOST_BLOCKS = 1000


class DesignError(ValueError):
    """A design that cannot reach a verdict; the message says what it takes."""


def _check_fraction(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise DesignError(f"{name} {value}: must lie between 0 and 1, both excluded")


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise DesignError(f"{value} {name}: at least 1")


def fewest_blocks(cases: int, alpha: float, looks: int) -> int:
    """At which `slower` and `same` are possible at all.

    n blocks that all point the same way have the smallest p-value there is, 2 / 2^n; it has to pass
    the strictest step: 2^(1 - n) <= alpha / 4 / (cases x looks), as a quarter of alpha is spent.
    An interval over n blocks reaches at most a confidence of 1 - 2^(1 - n).
    """
    _check_count("cases", cases)
    _check_count("looks", looks)
    _check_fraction("alpha", alpha)
    return fewest_at(min(SPENT * alpha / cases, 1 - CONFIDENCE) / looks)


def fewest_at(level: float) -> int:
    """Blocks whose smallest p-value, 2^(1 - n), passes `level`."""
    blocks = 1
    while 2.0 ** (1 - blocks) > level:
        blocks += 1
    return blocks


def fewest_files(cases: int, alpha: float) -> int:
    """A side, of stored results, at which `slower` and `same` are possible at all.

    Of C(2 n, n) ways to divide 2 n files, the two that separate the sides have the smallest p-value
    there is: 2 / C(2 n, n) <= alpha / cases.
    """
    _check_count("cases", cases)
    _check_fraction("alpha", alpha)
    level = min(alpha / cases, 1 - CONFIDENCE)
    files = 1
    while 2 / math.comb(2 * files, files) > level:
        files += 1
    return files


@dataclass(frozen=True, kw_only=True)
class Design:
    """`cases`: of the family. `alpha`: chance of any false `slower` or `faster` in the family.

    `margin`: fraction below which a difference does not matter. `looks`: numbers of blocks at which
    it judges. `confidence`: of the interval that shows `same`, over all looks together.
    """

    cases: int
    alpha: float = ALPHA
    margin: float = MARGIN
    looks: tuple[int, ...]
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        _check_fraction("alpha", self.alpha)
        _check_fraction("margin", self.margin)
        _check_fraction("confidence", self.confidence)
        if not self.looks or any(later <= earlier for earlier, later in pairwise((0, *self.looks))):
            raise DesignError(f"looks {self.looks}: growing numbers of blocks, at least one")
        needed = fewest_blocks(self.cases, self.alpha, len(self.looks))
        if self.looks[0] < needed:
            raise DesignError(_too_few(self.looks[0], needed, self.cases, self.alpha))

    @property
    def look_confidence(self) -> float:
        """Of the interval at each look, so that all looks together keep `confidence`."""
        return 1 - (1 - self.confidence) / len(self.looks)

    @property
    def strictest_level(self) -> float:
        """What the p-value of one case at one look must not exceed to be sure of passing Holm."""
        return self.alpha / (self.cases * self.correction)

    @property
    def correction(self) -> float:
        """What the p-value of a look is multiplied by before it is held against alpha."""
        return len(self.looks) / SPENT


def _too_few(blocks: int, needed: int, cases: int, alpha: float) -> str:
    return (
        f"{blocks} blocks cannot reach a verdict: {needed} are needed for {cases} cases at alpha "
        f"{alpha:g}; allow more blocks (a larger budget), compare fewer cases or raise alpha"
    )


def plan_design(
    cases: int, *, alpha: float = ALPHA, margin: float = MARGIN, looks: int = LOOKS
) -> Design:
    """Looks from the fewest blocks on, each about 1.27 times the one before.

    Raises DesignError where a value is out of its range, or there are so many looks that the last
    ones pass what the exact test can take.
    """
    planned = [fewest_blocks(cases, alpha, looks)]
    while len(planned) < looks and planned[-1] <= MOST_BLOCKS:
        planned.append(math.ceil(GROWTH * planned[-1]))
    if planned[-1] > MOST_BLOCKS:
        raise DesignError(
            f"{looks} looks: look {len(planned)} would come after {planned[-1]} blocks, and the "
            f"exact test takes at most {MOST_BLOCKS}; plan fewer looks or a larger alpha"
        )
    return Design(cases=cases, alpha=alpha, margin=margin, looks=tuple(planned))
