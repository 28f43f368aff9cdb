"""What a comparison says of its cases, and the exit status that follows from it."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import PROBLEM_SIZES, Json
from tinyllama_tools.data.parts import wholes_among
from tinyllama_tools.stats.looks import Attribution, BlockSummary, attribute
from tinyllama_tools.stats.verdicts import (
    NO_REGRESSION,
    REGRESSION,
    STILL_UNCLEAR,
    Judgement,
    Outcome,
    exit_status,
)

SCHEMA_VERSION = 1


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

    def exit_status(self, *, strict: bool = False) -> int:
        """0, 1 or 3; see outcome.py. Cases allowed by name do not fail it."""
        return exit_status((c.outcome for c in self.cases if not c.allowed), strict=strict)

    def as_json(self) -> Json:
        """For comparison.json."""
        return {"schema_version": SCHEMA_VERSION, "kind": "tiny_llama comparison", **asdict(self)}


MEANINGS = {
    NO_REGRESSION: "no regression shown",
    REGRESSION: "regression",
    STILL_UNCLEAR: "not every case has an answer (--strict)",
}
ABSENCE_SHOWN = frozenset({Outcome.SAME, Outcome.FASTER})


@dataclass(frozen=True)
class Gate:
    """What fails beside regressions. `strict`: cases without an answer; `fail_on_growth`: a
    deterministic counter that got worse."""

    strict: bool = False
    fail_on_growth: bool = False

    def status(self, comparison: Comparison) -> int:
        """0, 1 or 3."""
        if self.fail_on_growth and growing(comparison.cases):
            return REGRESSION
        return comparison.exit_status(strict=self.strict)

    def colour(self, comparison: Comparison) -> str:
        """The one that every output gives the whole: red, yellow, green, or grey where nothing
        failed and nothing was shown either."""
        status = self.status(comparison)
        if status != NO_REGRESSION:
            return "red" if status == REGRESSION else "yellow"
        return "green" if is_absence_shown(comparison.cases) else "grey"


REGRESSIONS_ONLY = Gate()


def is_absence_shown(cases: Iterable[ComparedCase]) -> bool:
    """Whether every case is `same` or `faster`: no regression, and not only none that was seen."""
    found = {case.outcome for case in cases}
    return bool(found) and found <= ABSENCE_SHOWN


def failing(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    """Regressions that were not allowed by name."""
    return [case for case in cases if case.outcome.is_regression and not case.allowed]


def growing(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    """Those with a deterministic counter that got worse."""
    return [case for case in cases if case.grown]


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


@dataclass(frozen=True)
class Kind:
    """`is_better_when`: +1 larger, -1 smaller, 0 neither. `exact`: the same of every run."""

    is_better_when: int
    exact: bool


SMALLER, LARGER, NEITHER = -1, 1, 0
RATE = Kind(LARGER, exact=False)
COST = Kind(SMALLER, exact=True)
FACT = Kind(NEITHER, exact=True)
LOSS = Kind(SMALLER, exact=False)
KINDS: Mapping[str, Kind] = {
    "samples_per_second": RATE,
    "tokens_per_second": RATE,
    "speedup": RATE,
    "TFLOPS": RATE,
    "MFU_percent": RATE,
    "MFU_causal_percent": RATE,
    "peak_percent": RATE,
    "roof_percent": RATE,
    "GB_per_second": RATE,
    "peak_memory_MiB": COST,
    "allocations": COST,
    "operators": COST,
    "kernels": COST,
    "hardware_flops": COST,
    "counted_flops": COST,
    "parameters": FACT,
    "model_flops": COST,
    "causal_flops": COST,
    "elementwise_flops": COST,
    "lookup_flops": COST,
    "opaque_flops": COST,
    "bytes": COST,
    "predicted_memory_MiB": COST,
    # a library's own decision, which may differ from run to run
    "library_scratch_MiB": Kind(SMALLER, exact=False),
    "flop_per_byte": FACT,
    # threads may add up in another order, so that the last digits differ from run to run
    "max_rel_error": Kind(SMALLER, exact=False),
    # of data-parallel steps and of collectives; what is lost or waited for is the less the better
    "ranks": FACT,
    "message_bytes": FACT,
    "weak_efficiency_percent": RATE,
    "strong_efficiency_percent": RATE,
    "overlap_percent": RATE,
    "algorithm_GB_per_second": RATE,
    "bus_GB_per_second": RATE,
    "communication_percent": LOSS,
    "loss_small_batch_percent": LOSS,
    "loss_slower_local_percent": LOSS,
    "loss_imbalance_percent": LOSS,
    "loss_communication_percent": LOSS,
    # of the training program
    "final_loss": Kind(NEITHER, exact=False),
}
# an unknown counter is shown, but nobody can say that it got worse
UNKNOWN = Kind(NEITHER, exact=False)
# What is shown of a case whose time changed, beside time itself.
HEADLINE = ("samples_per_second", "TFLOPS", "MFU_percent", "peak_memory_MiB")
ORDER = {name: i for i, name in enumerate(dict.fromkeys((*HEADLINE, *KINDS)))}


def counter_change(
    name: str, base: float | None, new: float | None, *, varies: bool = False
) -> CounterChange:
    """Exact counters to the last digit; `worse` of the others is only which way they moved.

    None: a side does not have it, which is neither worse nor better. `varies`: runs of one side
    disagree about it, so it is not exact after all.
    """
    kind = KINDS.get(name, UNKNOWN)
    moved = 0.0 if base is None or new is None else (new - base) * kind.is_better_when
    is_exact = kind.exact and not varies
    return CounterChange(name, base, new, is_exact, worse=moved < 0, better=moved > 0)


def compare_counters(
    base: Mapping[str, float], new: Mapping[str, float], varying: Collection[str] = ()
) -> tuple[CounterChange, ...]:
    """Every counter of either side, in the order in which people read them.

    None at all where a side has no counter: it was not measured there, which its case says itself.
    """
    if not base or not new:
        return ()
    names = sorted(base.keys() | new.keys(), key=lambda name: (ORDER.get(name, len(ORDER)), name))
    return tuple(
        counter_change(name, base.get(name), new.get(name), varies=name in varying)
        for name in names
    )


@dataclass(frozen=True)
class SideState:
    """What became of a case on one side; nothing set: the side knows no such case. `is_pending`: it
    lists the case, and was interrupted before it came to it."""

    is_measured: bool = False
    skipped: str = ""
    failed: str = ""
    is_pending: bool = False


def outcome_without_times(base: SideState, new: SideState) -> tuple[Outcome, str] | None:
    """The outcome and its reason; None where both sides measured it and the new never failed.

    A case that the base lists but fails at has no verdict: nothing shows that the new is no slower.
    """
    if base.is_pending or new.is_pending:
        return Outcome.NO_VERDICT, "interrupted before it was opened"
    if base.is_measured and new.failed:
        return Outcome.FAILED, new.failed
    if base.is_measured and not new.is_measured:
        # a case that is skipped now would hide a slowdown as well as one that is gone
        reason = f"skipped in the new: {new.skipped}" if new.skipped else "not in the new"
        return Outcome.MISSING, reason
    if base.is_measured:
        return None
    before = base.failed or base.skipped
    words = f"{'failed' if base.failed else 'skipped'} in the base: {before}" if before else ""
    if new.is_measured and not new.failed:
        return Outcome.NO_VERDICT if base.failed else Outcome.ADDED, words or "not in the base"
    now = f"failed in the new: {new.failed}" if new.failed else f"skipped in the new: {new.skipped}"
    known = now if new.failed or new.skipped else "not in the new"
    return Outcome.SKIPPED, "; ".join(filter(None, [words or "not in the base", known]))


def is_allowed(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name or pattern (`loss/*`) covers the case."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def unknown_patterns(cases: Sequence[ComparedCase], patterns: Iterable[str]) -> list[str]:
    """Patterns that no case has: perhaps misspelt, perhaps of a case that is gone for good."""
    return [p for p in patterns if not any(is_allowed(case.name, [p]) for case in cases)]


def allow_missing(
    cases: Sequence[ComparedCase], patterns: Sequence[str]
) -> tuple[ComparedCase, ...]:
    """Marks missing and failed cases of these names as allowed; others stay what they are."""
    excusable = {Outcome.MISSING, Outcome.FAILED}
    return tuple(
        replace(case, allowed=True)
        if case.outcome in excusable and is_allowed(case.name, patterns)
        else case
        for case in cases
    )


Summaries = Sequence[BlockSummary]
# fewer blocks have no scatter to take an interval from
FEWEST_BLOCKS = 2


def layers_by_size(path: Path = PROBLEM_SIZES) -> dict[str, int]:
    """Number of layers of each named problem size; OSError or ValueError of a bad file."""
    sizes = json.loads(path.read_text(encoding="utf-8"))
    return {name: size["n_layers"] for name, size in sizes.items()}


def attributions(
    cases: Mapping[str, Summaries], layers: Mapping[str, int]
) -> dict[str, Attribution]:
    """Of every case that changed at all and has parts among the others, by its name.

    `cases`: blocks by case name. `layers`: of each size. A whole or part with fewer than two blocks
    counts as not measured.
    """
    known = {name: blocks for name, blocks in cases.items() if len(blocks) >= FEWEST_BLOCKS}
    found = {}
    for whole, parts in wholes_among(known, layers):
        # a whole whose blocks say exactly 0 has no change to divide
        with contextlib.suppress(ValueError):
            measured = {part.case: (part.count, known[part.case]) for part in parts.measured}
            found[whole] = attribute(known[whole], measured, parts.missing)
    return found
