"""Where the rest of an ideal step went: parts that add up to the whole loss.

Of a step, in percent of it (L_r: rank r's step without communication, A: a step alone):
    slower local work  (mean of L_r - A) / step        ranks share memory, caches and clock
    imbalance          (slowest L_r - mean of L_r) / step
    communication      (step - slowest L_r) / step     what is not hidden
    small batch        (A(B) - A(N B) / N) / step      strong scaling only: B is the batch of a rank
Their sum is 100 % less the efficiency, in every round. Parts are means over rounds, since means add
up and medians do not; their intervals are Student's.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from scipy import stats

from tinyllama_tools.scaling.scaling_result import ScalingResult, StepRow
from tinyllama_tools.scaling.weak_strong import STRONG
from tinyllama_tools.stats.rank_tests import WANTED_CONFIDENCE

EFFICIENCY = {"weak": "weak_efficiency_percent", "strong": "strong_efficiency_percent"}
# counter: its name for people
PARTS = {
    "loss_small_batch_percent": "small batch",
    "loss_slower_local_percent": "slower local work",
    "loss_imbalance_percent": "imbalance between ranks",
    "loss_communication_percent": "communication",
}
SMALL_BATCH = "loss_small_batch_percent"
# percentage points; counters are written with some ten digits
TOLERANCE = 0.01


@dataclass(frozen=True)
class LossPart:
    """`percent` of the step, mean over rounds; `low`, `high`: None for one round."""

    name: str
    percent: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class LossWaterfall:
    """`efficiency` and `parts` add up to 100. `refusal`: why there is no waterfall."""

    ranks: int
    efficiency: float = 0.0
    parts: tuple[LossPart, ...] = ()
    rounds: int = 0
    refusal: str = ""


def _part(name: str, values: list[float]) -> LossPart:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return LossPart(name, mean)
    error = statistics.stdev(values) / math.sqrt(len(values))
    reach = error * float(stats.t.ppf((1 + WANTED_CONFIDENCE) / 2, len(values) - 1))
    return LossPart(name, mean, mean - reach, mean + reach)


def _wrong_sum(row: StepRow, names: list[str], rounds: list[int]) -> str:
    """The first round whose parts do not make up the whole; empty where all do."""
    for number in rounds:
        whole = sum(row.counters[name][number] for name in names)
        if not math.isclose(whole, 100, abs_tol=TOLERANCE):
            return (
                f"round {number}: efficiency and losses add up to {whole:.4g} %, must be 100 % "
                f"within {TOLERANCE:g}; measure again with this version of the suite"
            )
    return ""


def waterfall_of(result: ScalingResult) -> LossWaterfall:
    """Of the main data-parallel step. A refusal where a counter is missing or the parts do not add
    up to the whole."""
    row = result.step
    if row is None:
        return LossWaterfall(result.ranks, refusal="no data-parallel step was measured")
    wanted = [n for n in PARTS if n != SMALL_BATCH or result.scaling == STRONG]
    names = [EFFICIENCY[result.scaling], *wanted]
    missing = [name for name in names if name not in row.counters]
    if missing:
        return LossWaterfall(result.ranks, refusal=f"not measured: {', '.join(missing)}")
    rounds = sorted(set.intersection(*(set(row.counters[name]) for name in names)))
    if not rounds:
        return LossWaterfall(result.ranks, refusal="no round has all of the counters")
    wrong = _wrong_sum(row, names, rounds)
    if wrong:
        return LossWaterfall(result.ranks, refusal=wrong)
    means = [_part(n, [row.counters[n][number] for number in rounds]) for n in names]
    parts = tuple(
        LossPart(PARTS[part.name], part.percent, part.low, part.high) for part in means[1:]
    )
    return LossWaterfall(result.ranks, means[0].percent, parts, len(rounds))
