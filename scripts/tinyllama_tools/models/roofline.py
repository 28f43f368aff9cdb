"""Where each case and each GEMM stands under the roofline, and what bounds it there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.data.machine import LARGEST_SHARE, Machine, ProductRate, product_type

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.names import CaseName
    from tinyllama_tools.data.results import MeasuredCase, ResultSet


class LeastTime(NamedTuple):
    """Seconds that products and traffic take at best; `products` 0 where there are none."""

    products: float
    traffic: float

    @property
    def seconds(self) -> float:
        """Of both: they may overlap, so the larger; their sum would be no bound."""
        return max(self.products, self.traffic)


class LaunchCost(NamedTuple):
    """`seconds` per operator, an upper bound; `source`: the case that it was inferred from."""

    seconds: float
    source: str


Bound = Literal["compute", "bandwidth", "latency"]
# Of the measured time: from here on, the starts of operators explain most of it.
MOSTLY = 0.5


@dataclass(frozen=True)
class RooflinePoint:
    """A case, or a matrix product of its own, which has no `case`. `flops`: those of its intensity,
    of the products that really ran, else elementwise. `operators`: None where they were not
    counted. `above_peak`: as the file says."""

    name: str
    seconds: float
    flops: float
    bytes: float
    least: LeastTime
    operators: float | None
    case: CaseName | None = None
    above_peak: str = ""
    launch: LaunchCost | None = None

    @property
    def intensity(self) -> float:
        """FLOP/byte."""
        return self.flops / self.bytes

    @property
    def flops_per_second(self) -> float:
        """Reached."""
        return self.flops / self.seconds

    @property
    def attainable(self) -> float:
        """FLOP/s that the roofline allows at that intensity."""
        return self.flops / self.least.seconds

    @property
    def error(self) -> str:
        """Why there is no share of the attainable; empty where there is."""
        if self.above_peak or self.least.seconds <= LARGEST_SHARE * self.seconds:
            return self.above_peak
        percent = f"{100 * self.least.seconds / self.seconds:.1f} % of what the roofline allows"
        why = "the peak was measured too low, or the time or the count is wrong"
        return f"{seconds_text(self.seconds)} is {percent}: {why}"

    @property
    def percent(self) -> float | None:
        """Of the attainable."""
        return None if self.error else 100 * self.least.seconds / self.seconds

    @property
    def starts_seconds(self) -> float | None:
        """What the starts of its operators take at most; not known of the case that the cost of a
        start was inferred from."""
        if self.launch is None or self.launch.source == self.name or self.operators is None:
            return None
        return self.operators * self.launch.seconds

    @property
    def bound(self) -> Bound:
        """Latency where the starts take longer than products and traffic at their peaks, and at
        least half of the measured time."""
        starts = self.starts_seconds or 0.0
        if starts > self.least.seconds and starts >= MOSTLY * self.seconds:
            return "latency"
        return "compute" if self.least.products > self.least.traffic else "bandwidth"


def _of_case(case: MeasuredCase, machine: Machine) -> RooflinePoint | str:
    """Or the reason why it has no place under the roofline."""
    products, moved = (case.counters.get(key, 0.0) for key in ("hardware_flops", "bytes"))
    flops = products or case.counters.get("elementwise_flops", 0.0)
    if moved <= 0 or flops <= 0:
        return "its counters lack bytes or FLOPs"
    type_name = product_type(case.name.dtype)
    if products > 0 and type_name not in machine.peak_flops:
        return f"no peak of {type_name} products was measured"
    at_peak = products / machine.peak_flops[type_name] if products > 0 else 0.0
    least = LeastTime(at_peak, machine.traffic_seconds(moved))
    operators, seconds = case.counters.get("operators"), case.median_seconds
    names = (case.name, case.above_peak)
    return RooflinePoint(str(case.name), seconds, flops, moved, least, operators, *names)


ELEMENT_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


def _of_product(rate: ProductRate, machine: Machine) -> RooflinePoint | str:
    """Its traffic is each operand once and the result once. Or the reason, as above."""
    if rate.type_name not in machine.peak_flops.keys() & ELEMENT_BYTES.keys():
        return f"no peak of {rate.type_name} products was measured"
    m, n, k = rate.m, rate.n, rate.k
    flops = 2.0 * rate.batch * m * n * k
    moved = float(ELEMENT_BYTES[rate.type_name] * rate.batch * (m * k + k * n + m * n))
    least = LeastTime(flops / machine.peak_flops[rate.type_name], machine.traffic_seconds(moved))
    return RooflinePoint(rate.name, flops / rate.flops_per_second, flops, moved, least, 1)


# A cell that the roofline explains further than this has too small a rest to divide.
LARGEST_ROOF_SHARE = 0.5
# An operator that takes longer than this, even where it takes least, does work of its own: the
# run has no cell small enough to show what the start alone costs.
LARGEST_SECONDS = 20e-6


def _launch_cost(points: Sequence[RooflinePoint]) -> LaunchCost | None:
    """What it costs to start one operator, inferred from the cells of a run that show it.

    Nothing measures it directly. It is the least time per operator that a cell leaves above its
    roofline time, of cells of which the roofline explains less than half, and never more than the
    whole time of any cell per operator. That holds whatever else operators take, so it is an upper
    bound. It says nothing new of the cell that it comes from, which is for that reason never called
    latency-bound by it. None where it is more than 20 us.
    """
    costs = []
    for point in points:
        if point.operators:
            least = point.least.seconds
            explained = least if least <= LARGEST_ROOF_SHARE * point.seconds else 0.0
            costs.append(LaunchCost((point.seconds - explained) / point.operators, point.name))
    best = min(costs, default=None)
    return best if best is not None and best.seconds <= LARGEST_SECONDS else None


@dataclass(frozen=True)
class Roofline:
    """`points`: of the cases that have costs, in the set's order; `products`: of the matrix
    products measured at their own shapes; `left_out`: the others, with the reason."""

    machine: Machine
    launch: LaunchCost | None
    points: Sequence[RooflinePoint]
    products: Sequence[RooflinePoint]
    left_out: Mapping[str, str]


def roofline_of(results: ResultSet) -> Roofline:
    """BadInputError for results without measured peaks."""
    machine = Machine.from_context(results.context)

    def placed(of: Callable[..., RooflinePoint | str], item: object) -> RooflinePoint | str:
        try:
            return of(item, machine)
        except BadInputError as error:
            return str(error)

    cases = {name: placed(_of_case, case) for name, case in results.cases.items()}
    products = {rate.name: placed(_of_product, rate) for rate in results.products}
    launch = _launch_cost([of for of in cases.values() if isinstance(of, RooflinePoint)])
    points, of_products = (
        [replace(of, launch=launch) for of in found.values() if isinstance(of, RooflinePoint)]
        for found in (cases, products)
    )
    left_out = {name: of for name, of in {**cases, **products}.items() if isinstance(of, str)}
    return Roofline(machine, launch, points, of_products, left_out)


# Of what the roofline allows at the step's intensity: nearer than this, it is on the roof.
ON_THE_ROOF_PERCENT = 80.0
MEMORY_BOUND = "Below roofline - memory bound (optimize data movement)"
ON_ROOFLINE = "On roofline - balanced (optimize both)"
COMPUTE_BOUND = "Below compute ceiling - compute bound (optimize kernels)"
POSITIONS = (MEMORY_BOUND, ON_ROOFLINE, COMPUTE_BOUND)
# the point of the whole step in a training run's roofline_data
WHOLE = "step"


class RooflinePosition(NamedTuple):
    """`position` is one of POSITIONS."""

    position: str
    reason: str


def roofline_position(flops: Json | None) -> RooflinePosition | None:
    """Of the step; `flops` as in performance_summary.json. None where the peak is not known."""
    roofline = (flops or {}).get("roofline_data") or {}
    step = next((p for p in roofline.get("points", []) if p["name"] == WHOLE), None)
    if not step or step.get("percent_of_attainable") is None or step.get("bound") is None:
        return None
    percent = step["percent_of_attainable"]
    reason = f"{step['arithmetic_intensity_flops_per_byte']:.1f} FLOP/byte"
    # the ridge of the bandwidth that this working set sees, which may be a cache's
    bandwidth, peak = step.get("attainable_bandwidth"), roofline.get("peak_flops")
    if bandwidth and peak:
        reason += f" against a ridge at {peak / bandwidth:.1f}"
    position = MEMORY_BOUND if step["bound"] == "memory" else COMPUTE_BOUND
    if percent >= ON_THE_ROOF_PERCENT:
        position = ON_ROOFLINE
    return RooflinePosition(
        position, f"{reason}; {percent:.1f} % of what the roofline allows there"
    )


def roofline_point(points: Sequence[Json], component: str) -> Json | None:
    """The component's own point, else that of its nearest ancestor; None where neither has one.

    `attention/core` is drawn as part of `attention`, `attention/rotary` has a point of its own.
    """
    by_name = {point["name"]: point for point in points if point["name"] != WHOLE}
    while component and component not in by_name:
        component = component.rpartition("/")[0]
    return by_name.get(component)
