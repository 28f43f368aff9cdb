"""What a counted rate shows of a promise: its interval, and whether the promise held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scipy.stats import binomtest

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json

HELD, BROKEN, NOT_SHOWN = "held", "broken", "not shown"
# whole runs without an alarm that a claim of theirs takes
ENOUGH_RUNS = 50
# of a row whose families count with those of others
IN_ALL = "in all"
# what the names of rows of simulated data begin with
SIMULATED = "simulated: "
# for which a detection is told
FIVE_MINUTES, TEN_MINUTES = 300.0, 600.0
# who is blamed where no part is
NOBODY = "nobody"


def share(count: int, trials: int) -> Json:
    """`count` of at least one trial, with exact binomial intervals (Clopper and Pearson):
    two-sided, and the one-sided upper bound that a rate has to stay below, both at 95 %."""
    two_sided = binomtest(count, trials).proportion_ci(0.95)
    below = binomtest(count, trials, alternative="less").proportion_ci(0.95)
    return {
        "count": count,
        "trials": trials,
        "share": count / trials,
        "interval_95": [float(two_sided.low), float(two_sided.high)],
        "upper_bound_95": float(below.high),
    }


def standing(found: Json, alpha: float, *, has_enough: bool = True) -> str:
    """`held`: the upper bound is at most alpha. `broken`: the true rate is above it, as far as
    an interval of 95 % can say. `not shown`: too few families for either, or not enough blocks
    that they were drawn from."""
    if found["interval_95"][0] > alpha:
        return BROKEN
    return HELD if found["upper_bound_95"] <= alpha and has_enough else NOT_SHOWN
