"""Numbers and sentences of a comparison as people read them, the same in every output."""

from __future__ import annotations

from collections import Counter

from tinyllama_tools.compare.comparison import (
    Attribution,
    ComparedCase,
    Comparison,
    CounterChange,
    Interval,
)
from tinyllama_tools.compare.gate import MEANINGS, Gate, failing, growing, is_absence_shown
from tinyllama_tools.core.text import duration
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.verdicts import NO_REGRESSION, REGRESSION, Outcome

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
NOTHING = "-"
# above it, a ratio reads better than percents
LARGEST_PERCENT = 1000.0


def seconds_text(seconds: float | None) -> str:
    """`12.35 ms`."""
    if seconds is None:
        return NOTHING
    size, unit = next((u for u in UNITS if seconds >= u[0]), UNITS[-1])
    return f"{seconds / size:.4g} {unit}"


def change_text(ratio: float | None) -> str:
    """`+5.1 %` of new / base."""
    if ratio is None:
        return NOTHING
    percent = 100.0 * (ratio - 1.0)
    if percent >= LARGEST_PERCENT:
        return f"{ratio:.3g}x"
    # no "-0.0 %"
    return f"{round(percent, 1) + 0.0:+.1f} %"


def interval_text(interval: Interval | None) -> str:
    """`[+3.9 %, +6.4 %]`."""
    if interval is None:
        return NOTHING
    return f"[{change_text(interval.low)}, {change_text(interval.high)}]"


def verdict_text(case: ComparedCase) -> str:
    """The outcome's word, and whether it was allowed by name."""
    return f"{case.outcome.value} (allowed)" if case.allowed else case.outcome.value


def colour_of(case: ComparedCase) -> str:
    """The outcome's colour; what was allowed by name alarms nobody."""
    return "grey" if case.allowed else case.outcome.colour


def p_value_text(p_value: float) -> str:
    """It is no p-value of one test: every correction that alpha stands for is in it."""
    return f"p = {p_value:.2g}, with all corrections, as held against alpha"


def value_text(value: float | None) -> str:
    """All digits of a whole number, five of another."""
    if value is None:
        return NOTHING
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.5g}"


def counter_text(change: CounterChange) -> str:
    """`allocations 29 -> 31 (+6.9 %), worse`, or `kernels 7 in the new only`."""
    if change.base is None:
        return f"{change.name} {value_text(change.new)} in the new only"
    if change.new is None:
        return f"{change.name} {value_text(change.base)} in the base only"
    text = f"{change.name} {value_text(change.base)} -> {value_text(change.new)}"
    if change.base == change.new:
        return f"{text} (as before)"
    if change.ratio is not None:
        text += f" ({change_text(change.ratio)})"
    if change.better:
        return f"{text}, better"
    return f"{text}, worse" if change.worse else text


def warning_texts(comparison: Comparison) -> list[str]:
    """What to know before any number: the comparison's own, and counters that a side lacks."""
    found: dict[str, Counter[str]] = {"base": Counter(), "new": Counter()}
    for case in comparison.cases:
        for change in case.counters:
            if change.is_one_sided:
                found["base" if change.new is None else "new"][change.name] += 1
    lone = []
    for side, counts in found.items():
        if counts:
            names = ", ".join(f"{name} ({n} {_cases(n)})" for name, n in counts.items())
            lone.append(f"counters of the {side} only: {names}")
    return [*comparison.warnings, *lone]


def share_text(share: float) -> str:
    """`92 %`."""
    return f"{100.0 * share:.0f} %"


def part_text(case: str) -> str:
    """`ffn/forward_backward`: the other axes are those of the whole."""
    name = parse_case_name(case)
    is_part = name is not None and not name.is_data_parallel
    return f"{name.component}/{name.pass_name}" if is_part else case


def attribution_text(attribution: Attribution) -> list[str]:
    """A line for the culprit, and one for each part."""
    culprit = attribution.culprit
    lines = [f"attributed to {part_text(culprit)}" if culprit else "attributed to no single part"]
    for part in attribution.parts:
        milliseconds = f"{1e3 * part.seconds:+.4g} ms"
        interval = f"[{share_text(part.low)}, {share_text(part.high)}]"
        times = f"{part.count} x " if part.count > 1 else ""
        lines.append(
            f"{times}{part_text(part.case)}: {milliseconds}, {share_text(part.share)} of the "
            f"change {interval}"
        )
    lines.append(f"not explained by these parts: {share_text(attribution.unexplained)}")
    if attribution.missing:
        names = ", ".join(map(part_text, attribution.missing))
        lines.append(f"parts that were not measured: {names}")
    return lines


def note_text(case: ComparedCase) -> str:
    """What else to know of a case: its reason, and of an unclear one what the data could show."""
    # a reason may be the last words of a program, on several lines
    notes = [" ".join(case.note.split())] if case.note else []
    if case.outcome is Outcome.UNCLEAR and case.smallest_difference is not None:
        notes.append(f"could have shown {100.0 * case.smallest_difference:.1f} %")
        if case.seconds_needed is not None:
            notes.append(f"an answer needs about {duration(case.seconds_needed)} more")
    return "; ".join(notes)


def counts_text(comparison: Comparison) -> str:
    """`2 slower, 38 same`, in the order of Outcome."""
    counts = Counter(case.outcome for case in comparison.cases)
    return ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])


def last_line(comparison: Comparison, gate: Gate) -> str:
    """Counts of each outcome, and what the exit status means."""
    status = gate.status(comparison)
    counts = counts_text(comparison) or "no case"
    return f"{counts}; exit status {status}: {MEANINGS[status]}"


def _regression_sentence(comparison: Comparison) -> str:
    failed = failing(comparison.cases)
    if not failed:
        grown = len(growing(comparison.cases))
        return f"Regression: deterministic counters got worse in {grown} {_cases(grown)}."
    counts = Counter(case.outcome for case in failed)
    parts = [f"{n} {outcome.value}" for outcome, n in counts.items()]
    text = f"Regression: {', '.join(parts)} of {len(comparison.cases)} {_cases(comparison.cases)}"
    slower = [c for c in failed if c.outcome is Outcome.SLOWER and c.ratio is not None]
    if slower:
        worst = max(slower, key=lambda case: case.ratio or 0.0)
        text += f"; the worst is {worst.name}, {change_text(worst.ratio)}"
    return f"{text}."


def _cases(what: int | tuple[ComparedCase, ...]) -> str:
    count = what if isinstance(what, int) else len(what)
    return "case" if count == 1 else "cases"


def verdict_sentence(comparison: Comparison, gate: Gate) -> str:
    """The whole comparison in one sentence."""
    status, cases = gate.status(comparison), comparison.cases
    if status == REGRESSION:
        return _regression_sentence(comparison)
    outcomes = {case.outcome for case in cases}
    if Outcome.NO_VERDICT in outcomes and not outcomes & {
        Outcome.SLOWER,
        Outcome.FASTER,
        Outcome.SAME,
        Outcome.UNCLEAR,
    }:
        return f"No verdict on times: {counts_text(comparison)}."
    if status == NO_REGRESSION:
        shown = "No regression" if is_absence_shown(cases) else "No regression shown"
        return f"{shown} in {len(cases)} {_cases(cases)}: {counts_text(comparison)}."
    return f"No regression shown, but not every case has an answer: {counts_text(comparison)}."
