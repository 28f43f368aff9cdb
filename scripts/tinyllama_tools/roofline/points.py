"""Where each case and each matrix product stands under the roofline, and what bounds it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.reading.machine import Machine, product_type
from tinyllama_tools.reading.product_rates import ProductRate
from tinyllama_tools.reading.result_set import MeasuredCase, ResultSet
from tinyllama_tools.roofline.case_work import LeastTime, least_time, work_of
from tinyllama_tools.roofline.launch_cost import LaunchCost, launch_cost
from tinyllama_tools.roofline.wording import time_text

Bound = Literal["compute", "bandwidth", "latency"]
# Of the measured time: from here on, the starts of operators explain most of it.
MOSTLY = 0.5
ELEMENT_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}
NO_LAUNCH_COST = "no cell is small enough to show what the start of an operator costs"
SHOWS_LAUNCH_COST = (
    "what it takes beyond them is the largest that the start of its operators can cost, inferred "
    "from this very case, so it does not show that latency bounds it"
)


@dataclass(frozen=True)
class RooflinePoint:
    """`intensity` in FLOP/byte: of the products that really ran, elementwise where a case has
    none. `attainable`: FLOP/s that the roofline allows at that intensity. `percent` of it; None
    where it is above 100, or above a peak as the file says, which `error` tells. `why`: in words
    what bounds it. `case`: None for a matrix product of its own."""

    name: str
    intensity: float
    flops_per_second: float
    attainable: float
    percent: float | None
    bound: Bound
    why: str
    error: str = ""
    case: CaseName | None = None


def _starts_text(operators: float, starts: float, launch: LaunchCost) -> str:
    return (
        f", the start of {operators:.0f} operator{'' if operators == 1 else 's'} at most "
        f"{time_text(starts)} "
        f"({time_text(launch.seconds)} each, inferred from {launch.source})"
    )


def _bound(
    name: str,
    seconds: float,
    least: LeastTime,
    operators: float | None,
    launch: LaunchCost | None,
) -> tuple[Bound, str]:
    times = (
        f"of {time_text(seconds)}, products at the peak take {time_text(least.products)}, traffic "
        f"{time_text(least.traffic)}"
    )
    starts = 0.0
    if launch is None:
        times += f"; {NO_LAUNCH_COST}"
    elif launch.source == name:
        times += f"; {SHOWS_LAUNCH_COST}"
    elif operators:
        starts = operators * launch.seconds
        times += _starts_text(operators, starts, launch)
    if starts > least.seconds and starts >= MOSTLY * seconds:
        return "latency", times
    return ("compute" if least.products > least.traffic else "bandwidth"), times


def _point(
    name: str,
    flops: float,
    bytes_moved: float,
    seconds: float,
    least: LeastTime,
    bound: tuple[Bound, str],
    case: CaseName | None = None,
    above_peak: str = "",
) -> RooflinePoint:
    percent: float | None = 100.0 * least.seconds / seconds
    error = above_peak
    if least.seconds > seconds:
        error = error or (
            f"{time_text(seconds)} is {percent:.1f} % of what the roofline allows: the peak was "
            "measured too low, or the time or the count is wrong"
        )
    if error:
        percent = None
    return RooflinePoint(
        name,
        flops / bytes_moved,
        flops / seconds,
        flops / least.seconds,
        percent,
        *bound,
        error,
        case,
    )


def point_of(
    case: MeasuredCase, machine: Machine, launch: LaunchCost | None
) -> RooflinePoint | str:
    """Or the reason why the case has no point."""
    work = work_of(case)
    if work is None:
        return "its counters lack bytes or FLOPs"
    least = least_time(work, case.name.dtype, machine)
    if least is None:
        return f"no peak of {product_type(case.name.dtype)} products was measured"
    name, seconds = str(case.name), case.median_seconds
    bound = _bound(name, seconds, least, work.operators, launch)
    return _point(name, work.flops, work.bytes, seconds, least, bound, case.name, case.above_peak)


def roofline_points(result_set: ResultSet) -> list[RooflinePoint]:
    """Of every case that has costs, in the set's order; left_out_of_roofline names the others.

    Latency bounds a case where the start of its operators, at the cost inferred from another case
    of this set (launch_cost.py), takes longer than both products and traffic at their peaks, and at
    least half of the measured time. BadInputError for a context without measured peaks.
    """
    machine = Machine.from_context(result_set.context)
    launch = launch_cost(result_set, machine)
    found = (point_of(case, machine, launch) for case in result_set.cases.values())
    return [point for point in found if isinstance(point, RooflinePoint)]


def left_out_of_roofline(result_set: ResultSet) -> list[str]:
    """`<case>: <reason>` for every case and every product without a point."""
    machine = Machine.from_context(result_set.context)
    found = {name: point_of(case, machine, None) for name, case in result_set.cases.items()}
    found |= {rate.name: product_point(rate, machine, None) for rate in result_set.products}
    return [f"{name}: {reason}" for name, reason in found.items() if isinstance(reason, str)]


def product_point(
    rate: ProductRate, machine: Machine, launch: LaunchCost | None
) -> RooflinePoint | str:
    """Its traffic is each operand once and the result once. Or the reason why it has no point."""
    peak, size = machine.peak_flops.get(rate.type_name), ELEMENT_BYTES.get(rate.type_name)
    if peak is None:
        return f"no peak of {rate.type_name} products was measured"
    if size is None:
        return f"how many bytes a value of {rate.type_name} has is not known"
    m, n, k = rate.m, rate.n, rate.k
    flops = 2.0 * rate.batch * m * n * k
    bytes_moved = float(size * rate.batch * (m * k + k * n + m * n))
    seconds = flops / rate.flops_per_second
    least = LeastTime(flops / peak, machine.traffic_seconds(bytes_moved))
    bound = _bound(rate.name, seconds, least, 1, launch)
    return _point(rate.name, flops, bytes_moved, seconds, least, bound)


def product_points(result_set: ResultSet) -> list[RooflinePoint]:
    """Of every matrix product measured at its own shape; left_out_of_roofline names the others."""
    machine = Machine.from_context(result_set.context)
    launch = launch_cost(result_set, machine)
    found = (product_point(rate, machine, launch) for rate in result_set.products)
    return [point for point in found if isinstance(point, RooflinePoint)]
