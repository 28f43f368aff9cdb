"""False alarms of simulated families, every few of which have a simulation of their own.

Families drawn from one simulation share its blocks; what that one happened to be like would be in
all of them, and an interval over families would not know.
"""

from __future__ import annotations

from functools import partial

from tinyllama_tools.calibrate.resample import AaFamilies, FamilyCounts, in_chunks
from tinyllama_tools.calibrate.simulate import simulate
from tinyllama_tools.stats.verdicts import Design

FAMILIES_A_SIMULATION = 50
# of the blocks that a family needs: what the families of one simulation choose from
SPARE = 3


def simulated_false_alarms(
    scenario: str, design: Design, *, family: int, families: int, seed: int, jobs: int = 1
) -> tuple[FamilyCounts, int]:
    """False verdicts in `families` of `family` cases, and how many blocks were simulated in all."""
    work = partial(_count, scenario, design, family)
    counts = in_chunks(work, families, seed, jobs, FAMILIES_A_SIMULATION)
    return sum(counts[1:], counts[0]), len(counts) * SPARE * design.looks[-1]


def _count(scenario: str, design: Design, family: int, families: int, seed: int) -> FamilyCounts:
    blocks = SPARE * design.looks[-1]
    data = simulate(scenario, cases=family, blocks=blocks, seed=seed).summaries_only()
    return AaFamilies(data, family, design).count(families, seed)
