"""A comparison as text, Markdown, JSON and one HTML page."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tinyllama_tools.compare.comparison import (
    HEADLINE,
    MEANINGS,
    REGRESSIONS_ONLY,
    ComparedCase,
    Comparison,
    CounterChange,
    Gate,
    geometric_mean_ratio,
    is_absence_shown,
)
from tinyllama_tools.core.app import BadInputError, write_whole
from tinyllama_tools.core.text import (
    NOT_MEASURED,
    cell,
    change_text,
    duration,
    markdown_table,
    seconds_text,
    template,
)
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.rank_tests import Interval
from tinyllama_tools.stats.verdicts import NO_REGRESSION, REGRESSION, Outcome

if TYPE_CHECKING:
    from tinyllama_tools.stats.looks import Attribution

SCHEMA_VERSION = 1
HEADER = ("case", "base", "new", "change", "interval", "verdict", "blocks", "note")
# columns of text; those of numbers are aligned at their right
LEFT = {"case", "verdict", "note"}
CLASSES = {"case": "name", "verdict": "verdict-cell", "note": "note"}
# what needs somebody's eyes comes first
ORDER = (
    *(Outcome.SLOWER, Outcome.FAILED, Outcome.MISSING, Outcome.UNCLEAR, Outcome.FASTER),
    *(Outcome.NO_VERDICT, Outcome.SAME, Outcome.ADDED, Outcome.SKIPPED),
)
JUDGED = {Outcome.SLOWER, Outcome.FASTER, Outcome.SAME, Outcome.UNCLEAR}
TEMPLATES = Path(__file__).with_name("templates")
# of the terminal, and of Markdown
CODES = {"red": "31", "green": "32", "yellow": "33", "grey": "90"}
MARKS = {"red": "🔴", "green": "🟢", "yellow": "🟡", "grey": "⚪"}
# GitHub refuses comments of more than 65,536 characters
MOST_CHARACTERS = 60_000
MOST_DETAILS_OF_COMMENT, MOST_DETAILS_OF_PAGE = 20, 50
CONTEXT_ROWS = ("git_commit", "git_dirty", "device", "torch_version", "threads", "settings")
# the picture ends here on either side, as a log-ratio: one that is further out touches the edge
WIDEST = math.log(2.0)
NARROWEST_IN_MARGINS = 2.0


def colour_of(case: ComparedCase) -> str:
    """The outcome's colour; what was allowed by name alarms nobody."""
    return "grey" if case.allowed else case.outcome.colour


def _verdict(case: ComparedCase) -> str:
    return f"{case.outcome.value} (allowed)" if case.allowed else case.outcome.value


def _value(value: float | None) -> str:
    """All digits of a whole number, five of another."""
    is_whole = value is not None and value == int(value) and abs(value) < 1e15
    return f"{value:,.0f}" if is_whole else f"{value:,.5g}"


def counter_text(change: CounterChange) -> str:
    """`allocations 29 -> 31 (+6.9 %), worse`, or `kernels 7 in the new only`."""
    base, new = change.base, change.new
    if base is None:
        return f"{change.name} {_value(new)} in the new only"
    if new is None:
        return f"{change.name} {_value(base)} in the base only"
    text = f"{change.name} {_value(base)} -> {_value(new)}"
    if base == new:
        return f"{text} (as before)"
    moved = f" ({change_text(new / base)})" if base else ""
    return text + moved + (", better" if change.better else ", worse" if change.worse else "")


def _cases(count: int) -> str:
    return "case" if count == 1 else "cases"


def warning_texts(comparison: Comparison) -> list[str]:
    """What to know before any number: the comparison's own, and counters that a side lacks."""
    texts = list(comparison.warnings)
    lone = [c for case in comparison.cases for c in case.counters if c.is_one_sided]
    for side, lacks in (("base", "new"), ("new", "base")):
        counts = Counter(c.name for c in lone if getattr(c, lacks) is None)
        names = ", ".join(f"{name} ({n} {_cases(n)})" for name, n in counts.items())
        texts += [f"counters of the {side} only: {names}"] if names else []
    return texts


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
        times = f"{part.count} x " if part.count > 1 else ""
        lines.append(
            f"{times}{part_text(part.case)}: {1e3 * part.seconds:+.4g} ms, {100 * part.share:.0f} "
            f"% of the change [{100 * part.low:.0f} %, {100 * part.high:.0f} %]"
        )
    lines.append(f"not explained by these parts: {100 * attribution.unexplained:.0f} %")
    if attribution.missing:
        lines.append(
            f"parts that were not measured: {', '.join(map(part_text, attribution.missing))}"
        )
    return lines


def _note(case: ComparedCase) -> str:
    """What else to know of a case: its reason, and of an unclear one what the data could show."""
    # a reason may be the last words of a program, on several lines
    notes = [" ".join(case.note.split())] if case.note else []
    if case.outcome is Outcome.UNCLEAR and case.smallest_difference is not None:
        notes.append(f"could have shown {100.0 * case.smallest_difference:.1f} %")
        if case.seconds_needed is not None:
            notes.append(f"an answer needs about {duration(case.seconds_needed)} more")
    return "; ".join(notes)


def _counts(comparison: Comparison) -> str:
    """`2 slower, 38 same`, in the order of Outcome."""
    counts = Counter(case.outcome for case in comparison.cases)
    return ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])


def verdict_sentence(comparison: Comparison, gate: Gate) -> str:
    """The whole comparison in one sentence."""
    status, cases, counts = gate.status(comparison), comparison.cases, _counts(comparison)
    every = f"{len(cases)} {_cases(len(cases))}"
    if status == REGRESSION:
        failed = Counter(case.outcome for case in cases if case.fails)
        if not failed:
            grown = sum(case.grown for case in cases)
            return f"Regression: deterministic counters got worse in {grown} {_cases(grown)}."
        parts = ", ".join(f"{n} {outcome.value}" for outcome, n in failed.items())
        slower = [c for c in cases if c.outcome is Outcome.SLOWER]
        worst = max(slower, key=lambda case: case.ratio or 0.0, default=None)
        said = f"; the worst is {worst.name}, {change_text(worst.ratio)}" if worst else ""
        return f"Regression: {parts} of {every}{said}."
    outcomes = {case.outcome for case in cases}
    if Outcome.NO_VERDICT in outcomes and not outcomes & JUDGED:
        strict = " (--strict makes that exit status 3)" if status == NO_REGRESSION else ""
        return f"No verdict on times: {counts}{strict}."
    if status == NO_REGRESSION:
        shown = "No regression" if is_absence_shown(cases) else "No regression shown"
        return f"{shown} in {every}: {counts}."
    return f"No regression shown, but not every case has an answer: {counts}."


def mean_text(comparison: Comparison) -> str:
    """Of the whole comparison in one figure; empty where fewer than two cases have one."""
    count = sum(case.ratio is not None for case in comparison.cases)
    mean = geometric_mean_ratio(comparison.cases)
    if mean is None or count < 2:
        return ""
    return f"geometric mean of new / base over {count} cases: {mean:.4f} ({change_text(mean)})"


def in_order(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    """Regressions first, the largest change first among equals; allowed ones after the others."""

    def key(case: ComparedCase) -> tuple[bool, int, float, str]:
        change = (case.ratio or 0.0) * (1 if case.outcome is Outcome.FASTER else -1)
        return case.allowed, ORDER.index(case.outcome), change, case.name

    return sorted(cases, key=key)


def table_rows(cases: Iterable[ComparedCase]) -> list[tuple[ComparedCase, tuple[str, ...]]]:
    """In that order, each with its texts under HEADER."""

    def cells(case: ComparedCase) -> tuple[str, ...]:
        ends = case.interval
        return (
            case.name,
            seconds_text(case.base_seconds),
            seconds_text(case.new_seconds),
            change_text(case.ratio),
            f"[{change_text(ends.low)}, {change_text(ends.high)}]" if ends else NOT_MEASURED,
            _verdict(case),
            str(case.blocks or NOT_MEASURED),
            _note(case),
        )

    return [(case, cells(case)) for case in in_order(cases)]


def _plain(text: str) -> str:
    """Text of files and programs, which is no HTML and cannot end a table's cell or a list."""
    return cell(html.escape(text, quote=False))


def _rendered(
    name: str,
    comparison: Comparison,
    gate: Gate,
    most: int | None = None,
    **more: Any,  # noqa: ANN401
) -> str:
    """`most`: of the cases whose details are shown, those with another time or a counter that
    grew; None for all."""
    changed = in_order(
        case
        for case in comparison.cases
        if case.outcome in {Outcome.SLOWER, Outcome.FASTER} or case.grown
    )
    status = gate.status(comparison)
    counts = _counts(comparison) or "no case"
    values = {
        "comparison": comparison,
        "sentence": verdict_sentence(comparison, gate),
        "meaning": MEANINGS[status],
        "last_line": f"{counts}; exit status {status}: {MEANINGS[status]}",
        "level": f"family-wise alpha {comparison.alpha:g}, margin {100 * comparison.margin:g} %",
        "warnings": warning_texts(comparison),
        "grown": sum(case.grown for case in comparison.cases),
        "details": [
            {
                "case": case,
                "verdict": _verdict(case),
                # what matters beside time, every deterministic counter that moved, and those that
                # a side lacks
                "counters": [
                    counter_text(c)
                    for c in case.counters
                    if c.name in HEADLINE or c.is_one_sided or (c.exact and c.base != c.new)
                ],
                # no p-value of one test: every correction that alpha stands for is in it
                "p_value": []
                if case.p_value is None
                else [f"p = {case.p_value:.2g}, with all corrections, as held against alpha"],
                "attribution": attribution_text(case.attribution) if case.attribution else [],
            }
            for case in changed[:most]
        ],
        "more": 0 if most is None else max(0, len(changed) - most),
        "mean": mean_text(comparison),
        "plain": _plain,
    }
    return template(TEMPLATES / name).render({**values, **more})


def text_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY, *, colour: bool = False) -> str:
    """For a terminal; the last line has the counts and the meaning of the exit status."""

    def paint(text: str, name: str) -> str:
        return f"\033[{CODES[name]}m{text}\033[0m" if colour else text

    rows = table_rows(comparison.cases)
    columns = zip(HEADER, *(cells for _, cells in rows), strict=True)
    widths = [max(map(len, column)) for column in columns]
    verdict, lines = HEADER.index("verdict"), []
    for case, cells in [(None, HEADER), *rows] if rows else []:
        padded = [
            text.ljust(width) if title in LEFT else text.rjust(width)
            for text, title, width in zip(cells, HEADER, widths, strict=True)
        ]
        # padding first, so that invisible codes do not shift the columns
        if case:
            padded[verdict] = paint(padded[verdict], colour_of(case))
        lines.append("  ".join(padded).rstrip())
    sentence = paint(verdict_sentence(comparison, gate), gate.colour(comparison))
    return _rendered("comparison.txt.j2", comparison, gate, table=lines, sentence=sentence)


def _marked(cases: Iterable[ComparedCase]) -> list[str]:
    """A Markdown table of them."""
    rows = [
        (
            f"`{name}`",
            *figures,
            f"{MARKS[colour_of(case)]} {verdict}",
            blocks,
            html.escape(note, quote=False),
        )
        for case, (name, *figures, verdict, blocks, note) in table_rows(cases)
    ]
    return markdown_table(HEADER, rows) if rows else []


def markdown_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY) -> str:
    """For a comment of a pull request: verdict, regressions, and a folded table of all cases; at
    most 60,000 characters, however many cases there are."""
    failed = in_order(case for case in comparison.cases if case.fails)
    regressions = _marked(failed[:MOST_DETAILS_OF_COMMENT])

    def rendered(table: Sequence[str], more_cases: int) -> str:
        return _rendered(
            "comparison.md.j2",
            comparison,
            gate,
            MOST_DETAILS_OF_COMMENT,
            regressions=regressions,
            more_regressions=max(0, len(failed) - MOST_DETAILS_OF_COMMENT),
            table=table,
            more_cases=more_cases,
        )

    lines = _marked(comparison.cases)
    used = itertools.accumulate(len(line) + 1 for line in lines)
    room = MOST_CHARACTERS - len(rendered([], 0)) - 200
    kept = max(2, sum(characters <= room for characters in used))
    return rendered(lines[:kept], len(lines) - kept)


def _context(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, dict):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items() if inner != "")
    return NOT_MEASURED if value is None else str(value)


def page_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY) -> str:
    """One HTML file that needs nothing else; texts from files are escaped."""
    intervals = [case.interval for case in comparison.cases if case.interval is not None]
    ends = [end for i in intervals for end in (i.low, i.high) if 0 < end < math.inf]
    margin = 1.0 + comparison.margin
    # all bars have one scale: that of the widest interval, within limits
    widest = max([NARROWEST_IN_MARGINS * math.log(margin), *(abs(math.log(end)) for end in ends)])
    half = min(WIDEST, widest)

    def place(ratio: float) -> float:
        """In percent of the picture's width; no change is at 50."""
        log = math.log(ratio) if ratio > 0 else -math.inf
        return round(50.0 * (1.0 + max(-1.0, min(1.0, log / half))), 2)

    def bar(case: ComparedCase) -> dict[str, float] | None:
        if case.ratio is None:
            return None
        ends = case.interval or Interval(case.ratio, case.ratio, 0.0)
        return {"low": place(ends.low), "high": place(ends.high), "point": place(case.ratio)}

    contexts = (comparison.base_context, comparison.new_context)
    return _rendered(
        "comparison.html.j2",
        comparison,
        gate,
        MOST_DETAILS_OF_PAGE,
        colour=gate.colour(comparison),
        columns=[(title, CLASSES.get(title, "")) for title in HEADER],
        rows=[(*row, bar(row[0]), colour_of(row[0])) for row in table_rows(comparison.cases)],
        outcomes=[o.value for o in Outcome if any(c.outcome is o for c in comparison.cases)],
        band=(place(1 / margin), place(margin)),
        edge=f"{100 * math.expm1(half):.0f}",
        context=[
            (key, *(_context(context.get(key)) for context in contexts))
            for key in CONTEXT_ROWS
            if any(context.get(key) is not None for context in contexts)
        ],
    )


def _plain_values(value: Any) -> Any:  # noqa: ANN401
    """A dataclass as an object; JSON knows no infinity, so an end that is not there is null."""
    return {
        key: None if isinstance(inner, float) and not math.isfinite(inner) else inner
        for key, inner in vars(value).items()
    }


def json_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY) -> str:
    """comparison.json, with the exit status and its meaning; a line for each case."""
    status = gate.status(comparison)
    kind = {"schema_version": SCHEMA_VERSION, "kind": "tiny_llama comparison"}
    ending = {"exit_status": status, "meaning": MEANINGS[status]}
    mean = {"geometric_mean_ratio": geometric_mean_ratio(comparison.cases)}
    head = {**kind, **vars(comparison), **mean, **ending}
    text = json.dumps({k: v for k, v in head.items() if k != "cases"}, indent=1, allow_nan=False)
    cases = [json.dumps(case, default=_plain_values, allow_nan=False) for case in comparison.cases]
    lines = ",\n  ".join(cases)
    return f'{text[:-2]},\n "cases": [\n  {lines}\n ]\n}}\n'


CSV_COLUMNS = (
    *("name", "outcome", "base_seconds", "new_seconds", "ratio"),
    *("low", "high", "p_value", "note"),
)


def csv_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY) -> str:
    """A line a case, in the order of the table; an interval's ends are ratios as well."""
    del gate
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for case in in_order(comparison.cases):
        times = (case.base_seconds, case.new_seconds, case.ratio)
        ends = (case.interval.low, case.interval.high) if case.interval else (None, None)
        writer.writerow([case.name, case.outcome.value, *times, *ends, case.p_value, _note(case)])
    return text.getvalue()


FORMS = {"json": json_of, "md": markdown_of, "html": page_of}


def write_comparison(
    comparison: Comparison, folder: Path, gate: Gate = REGRESSIONS_ONLY
) -> tuple[Path, ...]:
    """Writes comparison.json, .md and .html, each whole or not at all; the folder is made.

    BadInputError where it cannot be written.
    """
    texts = {f"comparison.{form}": made(comparison, gate) for form, made in FORMS.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise BadInputError(
            f"--output {folder}: cannot be written: {error.strerror}; name a folder that can"
        ) from error
    return tuple(folder / name for name in texts)


def print_comparison(
    comparison: Comparison,
    form: str = "text",
    gate: Gate = REGRESSIONS_ONLY,
    stream: TextIO | None = None,
) -> None:
    """`form`: text, md, json or csv. Colour on a terminal only (https://no-color.org)."""
    out = sys.stdout if stream is None else stream
    if form != "text":
        out.write({**FORMS, "csv": csv_of}[form](comparison, gate))
        return
    is_dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    out.write(text_of(comparison, gate, colour=out.isatty() and not is_dumb))
