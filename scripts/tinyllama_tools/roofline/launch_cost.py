"""What it costs to start one operator, inferred from the cells of a run that show it.

Nothing measures it directly. What the best cell leaves above its roofline time is the operators'
starts and whatever else its operators take, so this is an upper bound on what starting an operator
costs here. It says nothing new of the cell that it comes from, which is for that reason never
called latency-bound by it (points.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tinyllama_tools.reading.machine import Machine
from tinyllama_tools.reading.result_set import ResultSet
from tinyllama_tools.roofline.case_work import LeastTime, least_time, work_of

# A cell that the roofline explains further than this has too small a rest to divide.
LARGEST_ROOF_SHARE = 0.5
# An operator that takes longer than this, even where it takes least, does work of its own: the
# run has no cell small enough to show what the start alone costs.
LARGEST_SECONDS = 20e-6


@dataclass(frozen=True)
class TimedCell:
    """A case with its operators per iteration (> 0) and its least time, in seconds."""

    name: str
    seconds: float
    operators: float
    least: LeastTime


@dataclass(frozen=True)
class LaunchCost:
    """`seconds` per operator, an upper bound; `source`: the case that it was inferred from."""

    seconds: float
    source: str


def launch_cost_of(cells: Iterable[TimedCell]) -> LaunchCost | None:
    """The least time per operator that a cell leaves above its roofline time: an upper bound.

    Taken of cells of which the roofline explains less than half; never more than the whole time of
    any cell per operator, which bounds it from above. None where it is more than 20 us.
    """
    costs = []
    for cell in cells:
        time = cell.seconds
        if cell.least.seconds <= LARGEST_ROOF_SHARE * cell.seconds:
            time -= cell.least.seconds
        costs.append(LaunchCost(time / cell.operators, cell.name))
    best = min(costs, key=lambda cost: cost.seconds, default=None)
    return best if best is not None and best.seconds <= LARGEST_SECONDS else None


def timed_cells(result_set: ResultSet, machine: Machine) -> list[TimedCell]:
    """The cases that count operators and have a least time."""
    cells = []
    for name, case in result_set.cases.items():
        work = work_of(case)
        least = least_time(work, case.name.dtype, machine) if work else None
        if work and least and work.operators:
            cells.append(TimedCell(name, case.median_seconds, work.operators, least))
    return cells


def launch_cost(result_set: ResultSet, machine: Machine) -> LaunchCost | None:
    """Of the set's own cells; None where none of them is small enough to show it."""
    return launch_cost_of(timed_cells(result_set, machine))
