"""A comparison as text, Markdown, JSON and one HTML page."""

from __future__ import annotations

import functools
import html
import itertools
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import jinja2

from tinyllama_tools.compare.comparison import (
    HEADLINE,
    MEANINGS,
    REGRESSIONS_ONLY,
    Attribution,
    ComparedCase,
    Comparison,
    CounterChange,
    Gate,
    Interval,
    failing,
    growing,
    is_absence_shown,
)
from tinyllama_tools.core.app import BadInputError, write_whole
from tinyllama_tools.core.text import cell, duration, markdown_table
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


HEADER = ("case", "base", "new", "change", "interval", "verdict", "blocks", "note")
# what needs somebody's eyes comes first
ORDER = (
    Outcome.SLOWER,
    Outcome.FAILED,
    Outcome.MISSING,
    Outcome.UNCLEAR,
    Outcome.FASTER,
    Outcome.NO_VERDICT,
    Outcome.SAME,
    Outcome.ADDED,
    Outcome.SKIPPED,
)
JSON, MARKDOWN, PAGE = "comparison.json", "comparison.md", "comparison.html"
TEMPLATES = Path(__file__).with_name("templates")
# of the terminal, and of Markdown
CODES = {"red": "31", "green": "32", "yellow": "33", "grey": "90"}
MARKS = {"red": "🔴", "green": "🟢", "yellow": "🟡", "grey": "⚪"}
# columns of text; those of numbers are aligned at their right
LEFT = {"case", "verdict", "note"}
GAP = "  "
# GitHub refuses comments of more than 65,536 characters
MOST_CHARACTERS = 60_000
MOST_DETAILS_OF_COMMENT, MOST_DETAILS_OF_PAGE = 20, 50
CONTEXT_ROWS = ("git_commit", "git_dirty", "device", "torch_version", "threads", "settings")
# the picture ends here on either side, as a log-ratio: one that is further out touches the edge
WIDEST = math.log(2.0)
NARROWEST_IN_MARGINS = 2.0


@dataclass(frozen=True)
class Row:
    """A case as texts; `cells` under HEADER."""

    case: ComparedCase
    cells: tuple[str, ...]


def in_order(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    """Regressions first, the largest change first among equals; allowed ones after the others."""
    return sorted(
        cases,
        key=lambda case: (
            case.allowed,
            ORDER.index(case.outcome),
            -(case.ratio or 0.0) if case.outcome is not Outcome.FASTER else (case.ratio or 0.0),
            case.name,
        ),
    )


def table_rows(cases: Iterable[ComparedCase]) -> list[Row]:
    """In that order."""
    return [
        Row(
            case,
            (
                case.name,
                seconds_text(case.base_seconds),
                seconds_text(case.new_seconds),
                change_text(case.ratio),
                interval_text(case.interval),
                verdict_text(case),
                str(case.blocks) if case.blocks else "-",
                note_text(case),
            ),
        )
        for case in in_order(cases)
    ]


def headline_counters(case: ComparedCase) -> list[str]:
    """What matters of a changed case beside time, every deterministic counter that moved, and
    those that a side lacks."""
    shown = [
        c
        for c in case.counters
        if c.name in HEADLINE or c.is_one_sided or (c.exact and c.base != c.new)
    ]
    return [counter_text(change) for change in shown]


def _plain(text: str) -> str:
    """Text of files and programs, which is no HTML and cannot end a table's cell or a list."""
    return cell(html.escape(text, quote=False))


@functools.cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=name.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"plain": _plain, "cell": cell}
    return environment.get_template(name)


def _rendered(name: str, comparison: Comparison, gate: Gate, most: int | None, **more: Any) -> str:  # noqa: ANN401
    """`most`: of the cases whose details are shown, those with another time or a counter that
    grew; None for all."""
    changed = in_order(
        case
        for case in comparison.cases
        if case.outcome in {Outcome.SLOWER, Outcome.FASTER} or case.grown
    )
    values = {
        "comparison": comparison,
        "sentence": verdict_sentence(comparison, gate),
        "last_line": last_line(comparison, gate),
        "level": f"family-wise alpha {comparison.alpha:g}, margin {100 * comparison.margin:g} %",
        "warnings": warning_texts(comparison),
        "grown": len(growing(comparison.cases)),
        "details": [
            {
                "case": case,
                "verdict": verdict_text(case),
                "counters": headline_counters(case),
                "p_value": [] if case.p_value is None else [p_value_text(case.p_value)],
                "attribution": attribution_text(case.attribution) if case.attribution else [],
            }
            for case in changed[:most]
        ],
        "more": 0 if most is None else max(0, len(changed) - most),
    }
    return _template(name).render({**values, **more})


def _paint(text: str, colour: str, *, use_colour: bool) -> str:
    return f"\033[{CODES[colour]}m{text}\033[0m" if use_colour else text


def _aligned(rows: Sequence[Row], *, colour: bool) -> list[str]:
    widths = [
        max(map(len, column)) for column in zip(HEADER, *(r.cells for r in rows), strict=True)
    ]

    def padded(cells: Sequence[str]) -> list[str]:
        return [
            text.ljust(width) if title in LEFT else text.rjust(width)
            for text, title, width in zip(cells, HEADER, widths, strict=True)
        ]

    lines = [GAP.join(padded(HEADER)).rstrip()]
    verdict = HEADER.index("verdict")
    for row in rows:
        cells = padded(row.cells)
        # padding first, so that invisible codes do not shift the columns
        last = GAP.join(cells[verdict + 1 :]).rstrip()
        painted = _paint(cells[verdict], colour_of(row.case), use_colour=colour)
        lines.append(GAP.join([*cells[:verdict], painted, last]).rstrip())
    return lines


def text_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY, *, colour: bool = False) -> str:
    """For a terminal; the last line has the counts and the meaning of the exit status."""
    sentence = verdict_sentence(comparison, gate)
    return _rendered(
        "comparison.txt.j2",
        comparison,
        gate,
        None,
        table=_aligned(table_rows(comparison.cases), colour=colour) if comparison.cases else [],
        sentence=_paint(sentence, gate.colour(comparison), use_colour=colour),
    )


def _marked(cases: Iterable[ComparedCase]) -> list[str]:
    """A Markdown table of them."""
    rows = []
    for row in table_rows(cases):
        name, *figures, verdict, blocks, note = row.cells
        marked = f"{MARKS[colour_of(row.case)]} {verdict}"
        rows.append((f"`{name}`", *figures, marked, blocks, html.escape(note, quote=False)))
    return markdown_table(HEADER, rows)


def markdown_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY) -> str:
    """For a comment of a pull request: verdict, regressions, and a folded table of all cases; at
    most 60,000 characters, however many cases there are."""
    failed = in_order(failing(comparison.cases))
    shown = failed[:MOST_DETAILS_OF_COMMENT]

    def rendered(table: Sequence[str], more_cases: int) -> str:
        return _rendered(
            "comparison.md.j2",
            comparison,
            gate,
            MOST_DETAILS_OF_COMMENT,
            regressions=_marked(shown) if shown else [],
            more_regressions=len(failed) - len(shown),
            table=table,
            more_cases=more_cases,
        )

    text = rendered([], 0)
    if not comparison.cases:
        return text
    lines = _marked(comparison.cases)
    used = itertools.accumulate(len(line) + 1 for line in lines)
    room = MOST_CHARACTERS - len(text) - 200
    kept = max(2, sum(characters <= room for characters in used))
    return rendered(lines[:kept], len(lines) - kept)


def place(ratio: float, half: float) -> float:
    """Of a ratio in the picture, 0 to 100; no change is at 50. `half`: its width, as a log."""
    if ratio <= 0:
        return 0.0
    return round(50.0 * (1.0 + max(-1.0, min(1.0, math.log(ratio) / half))), 2)


def _bar(case: ComparedCase, half: float) -> dict[str, float] | None:
    """An interval as a picture, in percent of its width; None where there is no ratio."""
    if case.ratio is None:
        return None
    ends = case.interval or Interval(case.ratio, case.ratio, 0.0)
    found = {"low": ends.low, "high": ends.high, "point": case.ratio}
    return {name: place(ratio, half) for name, ratio in found.items()}


def _context_text(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, dict):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items() if inner != "")
    return "-" if value is None else str(value)


def page_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY) -> str:
    """One HTML file that needs nothing else; texts from files are escaped."""
    ends = [
        abs(math.log(end))
        for case in comparison.cases
        if case.interval is not None
        for end in (case.interval.low, case.interval.high)
        if 0 < end < math.inf
    ]
    margin = 1.0 + comparison.margin
    # all bars have one scale: that of the widest interval, within limits
    half = min(WIDEST, max([NARROWEST_IN_MARGINS * math.log(margin), *ends]))
    contexts = (comparison.base_context, comparison.new_context)
    return _rendered(
        "comparison.html.j2",
        comparison,
        gate,
        MOST_DETAILS_OF_PAGE,
        meaning=MEANINGS[gate.status(comparison)],
        colour=gate.colour(comparison),
        header=HEADER,
        rows=[
            (row, _bar(row.case, half), colour_of(row.case)) for row in table_rows(comparison.cases)
        ],
        outcomes=[o.value for o in Outcome if any(c.outcome is o for c in comparison.cases)],
        band=(place(1 / margin, half), place(margin, half)),
        edge=f"{100 * math.expm1(half):.0f}",
        context=[
            (key, *(_context_text(context.get(key)) for context in contexts))
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
    # thousands of cases go to the encoder as they are, which is quicker than copying them first
    head = {**replace(comparison, cases=()).as_json(), "exit_status": status}
    del head["cases"]
    text = json.dumps({**head, "meaning": MEANINGS[status]}, indent=1, allow_nan=False)
    cases = [json.dumps(case, default=_plain_values, allow_nan=False) for case in comparison.cases]
    lines = ",\n  ".join(cases)
    return f'{text[:-2]},\n "cases": [\n  {lines}\n ]\n}}\n'


def write_comparison(
    comparison: Comparison, folder: Path, gate: Gate = REGRESSIONS_ONLY
) -> tuple[Path, ...]:
    """Writes comparison.json, .md and .html, each whole or not at all; the folder is made.

    BadInputError where it cannot be written.
    """
    texts = {
        JSON: json_of(comparison, gate),
        MARKDOWN: markdown_of(comparison, gate),
        PAGE: page_of(comparison, gate),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise BadInputError(
            f"--output {folder}: cannot be written: {error.strerror}; name a folder that can"
        ) from error
    return tuple(folder / name for name in texts)


def _has_colour(stream: TextIO) -> bool:
    # https://no-color.org
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_comparison(
    comparison: Comparison,
    form: str = "text",
    gate: Gate = REGRESSIONS_ONLY,
    stream: TextIO | None = None,
) -> None:
    """`form`: text, md or json. Colour on a terminal only."""
    out = sys.stdout if stream is None else stream
    if form == "json":
        out.write(json_of(comparison, gate))
    elif form == "md":
        out.write(markdown_of(comparison, gate))
    else:
        out.write(text_of(comparison, gate, colour=_has_colour(out)))
