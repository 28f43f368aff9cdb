"""The result of a comparison: what every output is made from, and the file comparison.json.

Ratios are new / base: 1.05 is 5 % slower for times. Nothing here is computed; whoever compares
fills it in, and whoever writes for people reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tinyllama_tools.stats.attribution import PartChange
from tinyllama_tools.stats.verdicts import Outcome, exit_status

SCHEMA_VERSION = 1
Json = dict[str, Any]


@dataclass(frozen=True)
class Interval:
    """From `low` to `high` of the true ratio, with this confidence."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class CounterChange:
    """One counter of a case; None on a side that does not have it.

    `exact`: deterministic (memory, allocations, operators, kernels, FLOPs), compared to the last
    digit. `worse`: it moved in the direction that its users do not want; `better`: in the other.
    """

    name: str
    base: float | None
    new: float | None
    exact: bool
    worse: bool
    better: bool = False

    @property
    def is_one_sided(self) -> bool:
        """Whether only one side has it."""
        return self.base is None or self.new is None

    @property
    def ratio(self) -> float | None:
        """new / base, None where the base is 0 or a side does not have it."""
        return self.new / self.base if self.base and self.new is not None else None


@dataclass(frozen=True)
class Attribution:
    """Which parts explain a case's change. `parts`: largest share first. `unexplained`: what is
    left of 1. `culprit`: the part that the change is attributed to, None where none stands out.
    `missing`: parts that were not measured."""

    parts: tuple[PartChange, ...]
    unexplained: float
    culprit: str | None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparedCase:
    """One case. Without times on both sides, `ratio` and all that follows from it are None.

    `p_value`: corrected for looks and for the family. `blocks`: how many the verdict stands on.
    `base_seconds`, `new_seconds`: medians, of an iteration. `smallest_difference`: of an unclear
    case, what this data could have shown, as a fraction (0.04: 4 %); `seconds_needed`: time until
    it is likely to have an answer, None where more may not settle it. `note`: the reason of a
    failure or skip, or what else to know.
    """

    name: str
    outcome: Outcome
    ratio: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    blocks: int = 0
    base_seconds: float | None = None
    new_seconds: float | None = None
    smallest_difference: float | None = None
    seconds_needed: float | None = None
    note: str = ""
    counters: tuple[CounterChange, ...] = ()
    attribution: Attribution | None = None
    allowed: bool = False

    @property
    def grown(self) -> tuple[CounterChange, ...]:
        """Deterministic counters that got worse: a warning without noise."""
        return tuple(c for c in self.counters if c.exact and c.worse)


@dataclass(frozen=True)
class Comparison:
    """`method`: `in turn`, `whole processes` or `stored`. `base`, `new`: what the sides are called
    (commit, build folder, files). `alpha`: chance of a false `slower` or `faster` anywhere in the
    family. `margin`: a fraction. `warnings`: what to know before any number, most important first.
    `design`: looks and how the family was corrected, as plain values."""

    method: str
    base: str
    new: str
    cases: tuple[ComparedCase, ...]
    alpha: float
    margin: float
    warnings: tuple[str, ...] = ()
    design: Mapping[str, Any] = field(default_factory=dict)
    base_context: Mapping[str, Any] = field(default_factory=dict)
    new_context: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None

    def exit_status(self, *, strict: bool = False) -> int:
        """0, 1 or 3; see outcome.py. Cases allowed by name do not fail it."""
        return exit_status((c.outcome for c in self.cases if not c.allowed), strict=strict)

    def as_json(self) -> Json:
        """For comparison.json."""
        return {"schema_version": SCHEMA_VERSION, "kind": "tiny_llama comparison", **asdict(self)}
