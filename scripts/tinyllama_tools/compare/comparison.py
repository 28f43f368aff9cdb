"""What a comparison says of its cases, the exit status that follows, and what else than their code
may be why the two sides differ."""

import argparse
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any

from tinyllama_tools.core.app import INTERRUPTED, is_number, read_json
from tinyllama_tools.core.installation import DATA
from tinyllama_tools.core.text import value_at
from tinyllama_tools.data.machine import plugins_text, unit_of
from tinyllama_tools.data.profiles import SAME_WORK
from tinyllama_tools.data.results import SPEEDUP
from tinyllama_tools.stats.rank_tests import Interval
from tinyllama_tools.stats.verdicts import (
    BAD_INPUT,
    NO_REGRESSION,
    REGRESSION,
    STILL_UNCLEAR,
    Attribution,
    Judgement,
    Outcome,
)


@dataclass(frozen=True)
class CounterChange:
    """One counter of a case; None on a side that does not have it.

    `exact`: deterministic (memory, allocations, operators, kernels, FLOPs), compared to the last
    digit. `worse`: it moved against the direction that its users want.
    """

    name: str
    base: float | None
    new: float | None
    exact: bool
    worse: bool

    @property
    def is_one_sided(self) -> bool:
        return self.base is None or self.new is None

    @property
    def is_other(self) -> bool:
        """Known on both sides, and not the same."""
        return not self.is_one_sided and self.base != self.new


@dataclass(frozen=True)
class ComparedCase:
    """One case. Without times on both sides, `ratio` and all that follows from it are None.

    `p_value`: of a change beyond the margin, corrected for directions, looks and the family; None
    where the verdict is by the interval alone. `blocks`: how many the verdict rests on.
    `autocorrelation`: of neighbouring blocks, which interval and p-value take into account.
    `base_seconds`, `new_seconds`: medians, of an iteration. `seconds_needed`: measuring time after
    which an unclear case is likely to have an answer, None where none of the planned looks is.
    `note`: the reason of a failure or skip, or what else to know. `allowed`: missing or failed, but
    excused by --allow-missing.
    """

    name: str
    outcome: Outcome
    ratio: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    blocks: int = 0
    autocorrelation: float = 0.0
    base_seconds: float | None = None
    new_seconds: float | None = None
    seconds_needed: float | None = None
    note: str = ""
    counters: tuple[CounterChange, ...] = ()
    attribution: Attribution | None = None
    allowed: bool = False

    @property
    def is_other_work(self) -> bool:
        """Whether the sides were not asked to do the same."""
        return any(c.name in WORK_COUNTERS and c.exact and c.is_other for c in self.counters)

    @property
    def fails(self) -> bool:
        """Whether it is a regression that --allow-missing does not excuse."""
        return self.outcome.is_regression and not self.allowed

    @property
    def grown(self) -> bool:
        """Whether a deterministic counter got worse: a warning without noise."""
        return any(c.exact and c.worse for c in self.counters)


@dataclass(frozen=True)
class Comparison:
    """`method`: `interleaved` or `stored`. `base`, `new`: what the sides are called
    (commit, build folder, files). `alpha`: the chance that any case at all is called `slower` or
    `faster` though its true change is within the `margin`, a fraction. `failure`: why less was
    measured, judged or written than was asked for; empty where nothing went wrong. `warnings`: what
    to know before any number, most important first. `unlike`: what differs between the sides beside
    their code, and changes what a time means. `design`: looks and how p-values were corrected for
    the number of cases, as plain values."""

    method: str
    base: str
    new: str
    cases: tuple[ComparedCase, ...]
    alpha: float
    margin: float
    warnings: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    design: Mapping[str, Any] = field(default_factory=dict)
    base_context: Mapping[str, Any] = field(default_factory=dict)
    new_context: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    exit_status: int = NO_REGRESSION
    failure: str = ""

    @property
    def alike(self) -> list[ComparedCase]:
        """The cases with a ratio whose sides did the same work."""
        return [case for case in self.cases if case.ratio and not case.is_other_work]

    @property
    def geometric_mean_ratio(self) -> float | None:
        """Of new over base, of the cases that both sides measured at the same work."""
        logarithms = [math.log(case.ratio) for case in self.alike]
        return math.exp(statistics.fmean(logarithms)) if logarithms else None


CHANGED = frozenset({Outcome.SLOWER, Outcome.FASTER})
OPEN = frozenset({Outcome.UNCLEAR, Outcome.NO_VERDICT})


def is_allowed(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name or pattern (`loss/*`) covers the case."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def concluded(
    cases: Iterable[ComparedCase],
    options: argparse.Namespace,
    *,
    is_interrupted: bool = False,
    **more: Any,  # noqa: ANN401
) -> Comparison:
    """With the exit status that its cases give: 0, 1 or 3, or 130. --allow-missing marks missing
    and failed cases of these names, which fail nothing then; with --fail-on-growth a deterministic
    counter that got worse is a regression, and with --strict cases without an answer give 3."""
    excusable = {Outcome.MISSING, Outcome.FAILED}
    marked = tuple(
        replace(c, allowed=c.outcome in excusable and is_allowed(c.name, options.allow_missing))
        for c in cases
    )
    judged = [case for case in marked if not case.allowed]
    is_grown = options.fail_on_growth and any(case.grown for case in judged)
    status = NO_REGRESSION
    if is_interrupted:
        status = INTERRUPTED
    elif is_grown or any(case.fails for case in judged):
        status = REGRESSION
    elif options.strict and any(case.outcome in OPEN for case in judged):
        status = STILL_UNCLEAR
    rule = {"alpha": options.alpha, "margin": options.margin}
    return Comparison(cases=marked, exit_status=status, **rule, **more)


def with_failure(comparison: Comparison, failure: str) -> Comparison:
    """With exit status 2 for this reason, which is a warning too; but a regression that is known
    stays one, and an interrupted run interrupted."""
    keeps = comparison.exit_status in {REGRESSION, INTERRUPTED}
    status = comparison.exit_status if keeps else BAD_INPUT
    warnings = (failure, *comparison.warnings)
    return replace(comparison, failure=failure, exit_status=status, warnings=warnings)


@dataclass(frozen=True)
class SideCase:
    """What became of a case on one side; nothing set: the side knows no such case. `is_pending`: it
    lists the case, and was interrupted before it came to it. `seconds`: its median. `varying`:
    counters that are not the same in all runs of the side, so that they are not compared exactly.
    Of stored results, `files`: its time in each file that measured it; `remark`: that some files
    lack it, that it was disturbed, or why it has no shares of peaks."""

    is_measured: bool = False
    skipped: str = ""
    failed: str = ""
    is_pending: bool = False
    seconds: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    varying: frozenset[str] = frozenset()
    files: tuple[float, ...] = ()
    remark: str = ""

    def words(self, side: str) -> str:
        """Why it was not measured; empty where it was."""
        if self.failed or self.skipped:
            became = "failed" if self.failed else "skipped"
            return f"{became} in the {side}: {self.failed or self.skipped}"
        if self.is_pending:
            return f"not tried in the {side}"
        return "" if self.is_measured else f"not in the {side}"


def compared_case(
    name: str,
    base: SideCase,
    new: SideCase,
    judgement: Judgement | None = None,
    **more: Any,  # noqa: ANN401
) -> ComparedCase:
    """`more`: fields of a case with times, where no judgement has them."""
    counters = compare_counters(base.counters, new.counters, base.varying | new.varying)
    times = {"base_seconds": base.seconds, "new_seconds": new.seconds, "counters": counters}
    if untimed := outcome_without_times(base, new):
        return ComparedCase(name, untimed[0], note=untimed[1], **times)
    if judgement is None:
        return ComparedCase(name, Outcome.NO_VERDICT, **times, **more)
    ends = (judgement.low, judgement.high)
    # of too few blocks for this confidence it is infinite
    is_bounded = all(map(math.isfinite, ends))
    judged = {
        "ratio": math.exp(judgement.estimate),
        "interval": Interval(*map(math.exp, ends), judgement.confidence) if is_bounded else None,
        "p_value": judgement.adjusted_p_value,
        "blocks": judgement.blocks,
        "autocorrelation": judgement.autocorrelation,
    }
    return ComparedCase(name, judgement.outcome, **{**times, **more, **judged})


# of what is the faster, the higher; and of a counter that is not in results/schema.json, which is
# shown, but never called worse
RATE, UNKNOWN = (1, False), (0, False)
# what is shown of a case whose time changed, beside time itself
HEADLINE = ("samples_per_second", "TFLOPS", "MFU_percent", "peak_memory_MiB")


def _kinds() -> Mapping[str, tuple[int, bool]]:
    """Of each counter of results/schema.json, in its order: which direction is better (+1 larger,
    -1 smaller, 0 neither), and whether every run of one program has the same value."""
    ways = {"higher": 1, "lower": -1}
    definitions = read_json(DATA / "results/schema.json")[0]["$defs"]
    return {
        name: (ways.get(kind.get("better"), 0), kind.get("exact", False))
        for definition in definitions.values()
        for name, rule in definition.get("properties", {}).items()
        if (kind := rule.get("x-counter")) is not None
    }


KINDS = _kinds()
ORDER = {name: i for i, name in enumerate(dict.fromkeys((*HEADLINE, *KINDS)))}


def compare_counters(
    base: Mapping[str, float], new: Mapping[str, float], varying: Collection[str] = ()
) -> tuple[CounterChange, ...]:
    """Every counter of either side, but for speedups, which are times over those of another row; no
    counter at all where a side was not measured, as the case itself says."""
    if not base or not new:
        return ()
    changes = []
    names = (name for name in {*base, *new} if not name.startswith(SPEEDUP))
    for name in sorted(names, key=lambda name: (ORDER.get(name, len(ORDER)), name)):
        better_when, exact = KINDS.get(name, UNKNOWN)
        before, after = base.get(name), new.get(name)
        moved = 0.0 if before is None or after is None else (after - before) * better_when
        exact = exact and name not in varying
        changes.append(CounterChange(name, before, after, exact, moved < 0))
    return tuple(changes)


def outcome_without_times(base: SideCase, new: SideCase) -> tuple[Outcome, str] | None:
    """The outcome and its reason; None where both sides measured it and the new never failed.

    A case that failed in the base alone has no verdict: there is no time to compare the new one's
    with.
    """
    # what the base skips is not asked of the new
    if (base.is_pending or new.is_pending) and not base.skipped:
        return Outcome.NO_VERDICT, "interrupted before it was opened"
    if base.is_measured:
        if new.failed:
            return Outcome.FAILED, new.failed
        # a case that is skipped now would hide a slowdown as well as one that is gone
        return None if new.is_measured else (Outcome.MISSING, new.words("new"))
    if new.is_measured and not new.failed:
        return Outcome.NO_VERDICT if base.failed else Outcome.ADDED, base.words("base")
    return Outcome.SKIPPED, f"{base.words('base')}; {new.words('new')}"


Contexts = Sequence[Mapping[str, Any]]
# counters of the work that was asked for; others depend on how it was done
WORK_COUNTERS = ("model_flops", "parameters")
# What in a context changes the meaning of a time, the most important first. With the
# schema_version it changed which statistic of its samples a row's time is.
KEYS = (
    "schema_version",
    *("distributed world_size", "distributed backend", "distributed bucket_MiB"),
    "distributed compress",
    *("distributed started_by", "distributed scaling", "device name", "device backend"),
    *("device architecture", "host_name", "threads", "device driver_version"),
    *("device runtime_version", "torch_version", "library_version", "cold_cache", "verify"),
    *("seed", "weights fingerprint", "memory_source", "num_cpus", "cpu_scaling_enabled"),
)
# of these, those that make times differ even where the code is the same
MEANING = (
    "schema_version",
    *("device name", "device architecture", "device backend", "threads", "torch_version"),
    *("cold_cache", "settings float32_matmul_precision"),
)
# what a training run was asked to do
WORK = (*SAME_WORK, "seed", "deterministic", "data", "variant", "learning_rate")
# their libraries are what a comparison may be about, as the commit is: no setting of a time
PLUG_INS = "plug-ins"
# of a measured peak: more than two runs of one machine differ by chance
PEAK_CHANGE = 0.10


def context_value(context: Mapping[str, Any], keys: str) -> Any:  # noqa: ANN401
    """Of the keys `device name`, context["device"]["name"]; a whole key with blanks comes first."""
    return context[keys] if keys in context else value_at(context, keys.replace(" ", "."))


def compared_settings(context: Mapping[str, Any]) -> dict[str, Any]:
    """What a time depends on beside the code, by name: KEYS, and each of `settings` as `setting
    NAME`. Where two contexts differ in any of it, their times do not mean the same."""
    settings = context.get("settings") or {}
    named = {f"setting {name}": value for name, value in settings.items()}
    return {key: context_value(context, key) for key in KEYS} | named


def value_differences(
    names: Iterable[str], base: Contexts, new: Contexts, prefix: str = ""
) -> list[str]:
    """`threads: 2 in the base, 4 in the new`, for each name whose values are not all the same."""
    found = []
    for name in names:
        values = [[context_value(context, name) for context in side] for side in (base, new)]
        if any(value != values[0][0] for side in values for value in side):
            shown = [
                ", ".join(dict.fromkeys("not said" if v in (None, "") else str(v) for v in side))
                for side in values
            ]
            found.append(f"{prefix}{name}: {shown[0]} in the base, {shown[1]} in the new")
    return found


def utc(text: str) -> str:
    """An ISO 8601 time in UTC; without a zone it is taken for that already."""
    # Python 3.10 does not read the Z
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    known = at if at.tzinfo else at.replace(tzinfo=timezone.utc)
    return known.astimezone(timezone.utc).isoformat(timespec="seconds")


def one_after_the_other(base: Contexts, new: Contexts) -> str:
    """A warning where all files of one side are older than all of the other: what changed in
    between then looks like a difference of the sides. Empty where that is not so, or a file has no
    date."""
    try:
        before, after = ([utc(str(c.get("date"))) for c in side] for side in (base, new))
    except (ValueError, OverflowError):
        return ""
    if max(before) < min(after) or max(after) < min(before):
        return (
            "measured one after the other: what changed on the machine between the two periods "
            "counts as difference, and alpha does not hold; measure base and new alternately"
        )
    return ""


def _peaks(contexts: Contexts, name: str) -> dict[int, float]:
    """A measured peak, its mean over the contexts that have it: of the bandwidth curve by bytes of
    traffic, of any other peak under 0."""
    found: dict[int, list[float]] = {}
    for context in contexts:
        peak = context_value(context, f"peaks measured {name}") or {}
        for point in peak if isinstance(peak, list) else [peak]:
            rate = point.get(unit_of(name))
            if is_number(rate) and rate > 0:
                found.setdefault(point.get("bytes", 0), []).append(rate)
    return {size: statistics.fmean(rates) for size, rates in found.items()}


def peak_differences(base: Contexts, new: Contexts) -> list[str]:
    """Of the peaks that both sides measured of their machine."""
    found = []
    for name in context_value(base[0], "peaks measured") or {}:
        before, after = _peaks(base, name), _peaks(new, name)
        changes = [after[size] / before[size] - 1 for size in before.keys() & after.keys()]
        if changes and abs(change := statistics.median(changes)) > PEAK_CHANGE:
            found.append(
                f"the machine's own measured peak ({name}) is {100 * change:+.0f} % "
                "in the new: it was in another state"
            )
    return found


def context_differences(base: Contexts, new: Contexts) -> list[str]:
    """From the contexts of all files of a side; a debug build and another device come first."""
    sides = (("base", base), ("new", new))
    found = [
        f"debug build in the {side}: its figures mean nothing"
        for side, contexts in sides
        if any(context.get("library_build_type") == "debug" for context in contexts)
    ]
    settings = [
        [compared_settings(context) | {PLUG_INS: plugins_text(context)} for context in side]
        for side in (base, new)
    ]
    names = dict.fromkeys(name for side in settings for context in side for name in context)
    found += value_differences(names, *settings)
    found += [
        f"the {side} was built from files that are in no commit (git_dirty)"
        for side, contexts in sides
        if any(context.get("git_dirty") for context in contexts)
    ]
    return found + peak_differences(base, new)
