"""What a comparison says of its cases, and the exit status that follows from it."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyllama_tools.core.app import PROBLEM_SIZES
from tinyllama_tools.stats.rank_tests import Interval
from tinyllama_tools.stats.verdicts import (
    NO_REGRESSION,
    REGRESSION,
    STILL_UNCLEAR,
    Judgement,
    Outcome,
)

if TYPE_CHECKING:
    from tinyllama_tools.data.names import SideState
    from tinyllama_tools.stats.looks import Attribution

if TYPE_CHECKING:
    from tinyllama_tools.stats.looks import Attribution


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
    def grown(self) -> bool:
        """Whether a deterministic counter got worse: a warning without noise."""
        return any(c.exact and c.worse for c in self.counters)

    @property
    def fails(self) -> bool:
        """A regression that was not allowed by name."""
        return self.outcome.is_regression and not self.allowed


@dataclass(frozen=True)
class Comparison:
    """`method`: `interleaved` or `stored`. `base`, `new`: what the sides are called
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


MEANINGS = {
    NO_REGRESSION: "no regression shown",
    REGRESSION: "regression",
    STILL_UNCLEAR: "not every case has an answer (--strict)",
}


def geometric_mean_ratio(cases: Iterable[ComparedCase]) -> float | None:
    """Of new over base, of the cases that both sides measured; None where there is none."""
    logarithms = [math.log(case.ratio) for case in cases if case.ratio]
    return math.exp(statistics.fmean(logarithms)) if logarithms else None


def is_absence_shown(cases: Iterable[ComparedCase]) -> bool:
    """Whether every case is `same` or `faster`: no regression, and not only none that was seen."""
    found = {case.outcome for case in cases}
    return bool(found) and found <= {Outcome.SAME, Outcome.FASTER}


@dataclass(frozen=True)
class Gate:
    """What fails beside regressions. `strict`: cases without an answer; `fail_on_growth`: a
    deterministic counter that got worse."""

    strict: bool = False
    fail_on_growth: bool = False

    def status(self, comparison: Comparison) -> int:
        """0, 1 or 3. Cases allowed by name do not fail it."""
        if self.fail_on_growth and any(case.grown for case in comparison.cases):
            return REGRESSION
        if any(case.fails for case in comparison.cases):
            return REGRESSION
        outcomes = {case.outcome for case in comparison.cases if not case.allowed}
        is_open = not outcomes.isdisjoint({Outcome.UNCLEAR, Outcome.NO_VERDICT})
        return STILL_UNCLEAR if self.strict and is_open else NO_REGRESSION

    def colour(self, comparison: Comparison) -> str:
        """The one that every output gives the whole: grey where nothing failed and nothing was
        shown either."""
        shown = "green" if is_absence_shown(comparison.cases) else "grey"
        colours = {NO_REGRESSION: shown, REGRESSION: "red", STILL_UNCLEAR: "yellow"}
        return colours[self.status(comparison)]


REGRESSIONS_ONLY = Gate()


def gate_of(options: argparse.Namespace) -> Gate:
    """From the options that every comparison has."""
    return Gate(strict=options.strict, fail_on_growth=options.fail_on_growth)


def interval_of(judgement: Judgement) -> Interval | None:
    """Of the ratio; None where so few blocks cannot give one."""
    found = judgement.evidence
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return None
    return Interval(math.exp(found.low), math.exp(found.high), found.confidence)


def unsettled_text(judgement: Judgement, samples: str = "blocks") -> str:
    """Of an unclear case that more samples may not settle; else empty."""
    if judgement.outcome is not Outcome.UNCLEAR or judgement.evidence.blocks_needed is not None:
        return ""
    return f"near the margin for such scatter: more {samples} may not settle it"


# Which way a counter is better (+1 larger, -1 smaller, 0 neither), and whether every run of one
# program has the same: a rate, a cost, a fact, a loss that varies.
RATE, COST, FACT, LOSS = (1, False), (-1, True), (0, True), (-1, False)
# an unknown counter is shown, but nobody can say that it got worse
UNKNOWN = (0, False)
# what is shown of a case whose time changed, beside time itself
HEADLINE = ("samples_per_second", "TFLOPS", "MFU_percent", "peak_memory_MiB")
# in the order in which people read them
KINDS: Mapping[str, tuple[int, bool]] = {
    name: kind
    for kind, names in (
        (RATE, "samples_per_second tokens_per_second speedup TFLOPS MFU_percent"),
        (RATE, "MFU_causal_percent peak_percent roof_percent GB_per_second"),
        (COST, "peak_memory_MiB allocations operators kernels hardware_flops counted_flops"),
        (FACT, "parameters"),
        (COST, "model_flops causal_flops elementwise_flops lookup_flops opaque_flops bytes"),
        (COST, "predicted_memory_MiB"),
        # a library's own decision, which may differ from run to run
        (LOSS, "library_scratch_MiB"),
        (FACT, "flop_per_byte"),
        # threads may add up in another order, so that the last digits differ from run to run
        (LOSS, "max_rel_error"),
        # of GPUs
        (LOSS, "device_ms wall_ms power_W joules_per_token"),
        (UNKNOWN, "host_bound runs_per_sample clock_MHz temperature_celsius"),
        (UNKNOWN, "limited_by_power limited_by_temperature limited_by_hardware"),
        # of data-parallel steps and of collectives
        (FACT, "ranks message_bytes"),
        (RATE, "weak_efficiency_percent strong_efficiency_percent overlap_percent"),
        (RATE, "algorithm_GB_per_second bus_GB_per_second"),
        (LOSS, "communication_percent loss_small_batch_percent loss_slower_local_percent"),
        (LOSS, "loss_imbalance_percent loss_communication_percent"),
        # of the training program
        (UNKNOWN, "final_loss"),
    )
    for name in names.split()
}
ORDER = {name: i for i, name in enumerate(dict.fromkeys((*HEADLINE, *KINDS)))}


def compare_counters(
    base: Mapping[str, float], new: Mapping[str, float], varying: Collection[str] = ()
) -> tuple[CounterChange, ...]:
    """Every counter of either side; None at all where a side has none: it was not measured there,
    which its case says itself. `varying`: runs of one side disagree, so it is not exact after all.
    """
    if not base or not new:
        return ()
    changes = []
    names = base.keys() | new.keys()
    for name in sorted(names, key=lambda name: (ORDER.get(name, len(ORDER)), name)):
        better_when, exact = KINDS.get(name, UNKNOWN)
        before, after = base.get(name), new.get(name)
        moved = 0.0 if before is None or after is None else (after - before) * better_when
        exact = exact and name not in varying
        changes.append(CounterChange(name, before, after, exact, moved < 0, moved > 0))
    return tuple(changes)


def outcome_without_times(base: SideState, new: SideState) -> tuple[Outcome, str] | None:
    """The outcome and its reason; None where both sides measured it and the new never failed.

    A case that the base lists but fails at has no verdict: nothing shows that the new is no slower.
    """
    if base.is_pending or new.is_pending:
        return Outcome.NO_VERDICT, "interrupted before it was opened"
    if base.is_measured:
        if new.failed:
            return Outcome.FAILED, new.failed
        # a case that is skipped now would hide a slowdown as well as one that is gone
        return None if new.is_measured else (Outcome.MISSING, new.words("new"))
    if new.is_measured and not new.failed:
        return Outcome.NO_VERDICT if base.failed else Outcome.ADDED, base.words("base")
    return Outcome.SKIPPED, f"{base.words('base')}; {new.words('new')}"


def is_allowed(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name or pattern (`loss/*`) covers the case."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def allow_missing(
    cases: Sequence[ComparedCase], patterns: Sequence[str]
) -> tuple[ComparedCase, ...]:
    """Marks missing and failed cases of these names as allowed; others stay what they are."""
    excusable = {Outcome.MISSING, Outcome.FAILED}
    return tuple(
        replace(case, allowed=case.outcome in excusable and is_allowed(case.name, patterns))
        for case in cases
    )


def layers_by_size(path: Path = PROBLEM_SIZES) -> dict[str, int]:
    """Number of layers of each named problem size; OSError or ValueError of a bad file."""
    sizes = json.loads(path.read_text(encoding="utf-8"))
    return {name: size["n_layers"] for name, size in sizes.items()}
