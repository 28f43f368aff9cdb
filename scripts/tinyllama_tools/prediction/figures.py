"""What a case has to do, from the counters of its row or from the cost formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tinyllama_tools.case_costs import CaseCost
from tinyllama_tools.prediction.refusal import RatesRefusedError
from tinyllama_tools.reading.result_set import MeasuredCase


@dataclass(frozen=True)
class Figures:
    """Of one iteration, by the suite's formulas (model/cost.hpp). `hardware_flops`: the products
    that the variant really runs."""

    parameters: float
    model_flops: float
    hardware_flops: float
    elementwise_flops: float
    bytes: float


NAMES = tuple(field.name for field in fields(Figures))


def figures_of_cost(cost: CaseCost) -> Figures:
    """Of a case that nobody ran."""
    return Figures(*(float(getattr(cost, name)) for name in NAMES))


def checked(value: float, name: object, key: str) -> float:
    """The value; RatesRefusedError where it is no number to compute with."""
    if not math.isfinite(value) or value < 0:
        raise RatesRefusedError(
            f"{name}: {key} is {value}, must be a finite number of 0 or more; measure again"
        )
    return float(value)


def seconds_of(case: MeasuredCase) -> float:
    """Of an iteration; RatesRefusedError where that is no time."""
    seconds = checked(case.median_seconds, case.name, "time")
    if seconds == 0:
        raise RatesRefusedError(f"{case.name}: its time is 0 s; measure again")
    return seconds


def figures_of_case(case: MeasuredCase, cost: CaseCost | None) -> Figures:
    """Of a measured row; `cost` where the row lacks a counter.

    RatesRefusedError naming the counter that neither has, or that is not finite.
    """
    found = []
    for name in NAMES:
        value = case.counters.get(name)
        if value is None and cost is not None:
            value = getattr(cost, name)
        if value is None:
            raise RatesRefusedError(
                f"{case.name}: the row has no counter {name}; measure again with this version"
            )
        found.append(checked(value, case.name, name))
    return Figures(*found)
