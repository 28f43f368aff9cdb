"""A comparison as text, Markdown, CSV, JSON and one HTML page, all from the same rows."""

import csv
import html
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tinyllama_tools.compare.comparison import (
    CHANGED,
    HEADLINE,
    ComparedCase,
    Comparison,
    CounterChange,
    context_value,
    with_failure,
)
from tinyllama_tools.core.app import INTERRUPTED, BadInputError, write_whole
from tinyllama_tools.core.text import (
    NOT_MEASURED,
    cell,
    change_text,
    compact_json,
    duration,
    markdown_table,
    seconds_text,
    template,
)
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.rank_tests import Interval
from tinyllama_tools.stats.verdicts import (
    BAD_INPUT,
    DECIDED,
    NO_REGRESSION,
    REGRESSION,
    STILL_UNCLEAR,
    Outcome,
)

SCHEMA_VERSION = 1
TEMPLATES = Path(__file__).with_name("templates")
# of an exit status, and the colour of its page
MEANINGS = {
    NO_REGRESSION: ("no regression shown", "green"),
    REGRESSION: ("regression", "red"),
    BAD_INPUT: ("something failed; the first warning says what", "grey"),
    STILL_UNCLEAR: ("not every case has an answer (--strict)", "yellow"),
    INTERRUPTED: ("interrupted", "grey"),
}
MISSING_ONLY = "no regression in what both sides have, but cases of the base are missing in the new"
NOTHING_SHOWN = "no case has an answer, so neither a regression nor its absence is shown"
HEADER = ("case", "base", "new", "change", "interval", "verdict", "blocks", "note")
# what has to be looked at comes first, what is not on both sides last
ORDER = (
    *(Outcome.SLOWER, Outcome.FAILED, Outcome.UNCLEAR, Outcome.FASTER, Outcome.NO_VERDICT),
    *(Outcome.SAME, Outcome.MISSING, Outcome.ADDED, Outcome.SKIPPED),
)
# Of the cases that one side alone has: more than so many get no rows of their own, but one line
# with their number and a few names.
MOST_LONE, NAMED_LONE = 4, 3
MARKS = {"red": "🔴", "green": "🟢", "yellow": "🟡", "grey": "⚪"}
# GitHub refuses comments of more than 65,536 characters
MOST_ROWS_OF_COMMENT, MOST_NOTE_OF_COMMENT = 150, 100
MOST_DETAILS_OF_COMMENT = 20
CONTEXT_ROWS = ("git_commit", "git_dirty", "device name", "torch_version", "threads")
# The bar of an interval shows changes up to that of the widest interval, but no more than a factor
# of 2 and no less than twice the margin.
WIDEST = math.log(2.0)
NARROWEST_IN_MARGINS = 2.0


def _value(value: float | None) -> str:
    """A whole number with all its digits, another with five."""
    is_whole = value is not None and value == int(value) and abs(value) < 1e15
    return f"{value:,.0f}" if is_whole else f"{value:,.5g}"


def counter_text(change: CounterChange) -> str:
    """`allocations 29 -> 31 (+6.9 %), worse`, or `kernels 7 in the new only`."""
    base, new = change.base, change.new
    if base is None or new is None:
        side, value = ("new", new) if base is None else ("base", base)
        return f"{change.name} {_value(value)} in the {side} only"
    moved = f" ({change_text(new / base)})" if base else ""
    worse = ", worse" if change.worse else ""
    return f"{change.name} {_value(base)} -> {_value(new)}{moved}{worse}"


def _part(case: str) -> str:
    """`ffn/forward_backward`: the rest of a part's name is that of the whole's."""
    name = parse_case_name(case)
    return f"{name.component}/{name.pass_name}" if name and not name.is_data_parallel else case


def detail_lines(case: ComparedCase) -> list[str]:
    """What stands below a case that changed: the counters that users look at first, each
    deterministic counter that changed, those that one side lacks, and which parts explain the
    change."""
    lines = [
        counter_text(c)
        for c in case.counters
        if c.name in HEADLINE or c.is_one_sided or (c.exact and c.base != c.new)
    ]
    if case.p_value is not None:
        # a reader could take it for that of a single test
        lines.append(f"p = {case.p_value:.2g}, with all corrections, as held against alpha")
    if case.attribution is None:
        return lines
    found = case.attribution
    lines.append(f"attributed to {_part(found.culprit) if found.culprit else 'no single part'}")
    lines += [
        f"{part.count} x {_part(part.case)}: {1e3 * part.seconds:+.4g} ms, {100 * part.share:.0f} "
        f"% of the change [{100 * part.low:.0f} %, {100 * part.high:.0f} %]"
        for part in found.parts
    ]
    missing = ", ".join(map(_part, found.missing)) or "none"
    lines.append(f"not explained: {100 * found.unexplained:.0f} %; parts not measured: {missing}")
    return lines


def warning_texts(comparison: Comparison) -> list[str]:
    """What to know before any number: the comparison's own, and counters that a side lacks."""
    texts = list(comparison.warnings)
    lone = [c for case in comparison.cases for c in case.counters if c.is_one_sided]
    for side, lacks in (("base", "new"), ("new", "base")):
        counts = Counter(c.name for c in lone if getattr(c, lacks) is None)
        names = ", ".join(f"{name} (cases: {n})" for name, n in counts.items())
        texts += [f"counters of the {side} only: {names}"] if names else []
    return texts


def _note(case: ComparedCase) -> str:
    # a reason may be the last words of a program, on several lines
    notes = [" ".join(case.note.split())] if case.note else []
    if case.seconds_needed is not None:
        notes.append(f"an answer needs about {duration(case.seconds_needed)} more")
    return "; ".join(notes)


def in_order(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    """Regressions first, and of the same outcome the largest change; excused cases last."""

    def key(case: ComparedCase) -> tuple[bool, int, float, str]:
        change = (case.ratio or 0.0) * (1 if case.outcome is Outcome.FASTER else -1)
        return case.allowed, ORDER.index(case.outcome), change, case.name

    return sorted(cases, key=key)


class Row(NamedTuple):
    """A case as people read it: `texts` under HEADER. What --allow-missing excuses is grey."""

    case: ComparedCase
    texts: tuple[str, ...]
    colour: str


def rows_of(cases: Iterable[ComparedCase]) -> list[Row]:
    rows = []
    for case in in_order(cases):
        ends = case.interval
        texts = (
            case.name,
            seconds_text(case.base_seconds),
            seconds_text(case.new_seconds),
            change_text(case.ratio),
            f"[{change_text(ends.low)}, {change_text(ends.high)}]" if ends else NOT_MEASURED,
            f"{case.outcome.value} (allowed)" if case.allowed else case.outcome.value,
            str(case.blocks or NOT_MEASURED),
            _note(case),
        )
        rows.append(Row(case, texts, "grey" if case.allowed else case.outcome.colour))
    return rows


def colour_of(comparison: Comparison) -> str:
    """Of the whole: green where every case has an answer and none is a regression."""
    found = {case.outcome for case in comparison.cases}
    is_partly = comparison.exit_status == NO_REGRESSION and not (found and found <= DECIDED)
    return "grey" if is_partly else MEANINGS[comparison.exit_status][1]


def meaning_of(comparison: Comparison) -> str:
    """Of the exit status."""
    status, cases = comparison.exit_status, comparison.cases
    # a counter that grew may be what fails
    failed = [case for case in cases if case.fails or (case.grown and not case.allowed)]
    if status == REGRESSION and all(case.outcome is Outcome.MISSING for case in failed):
        return MISSING_ONLY
    if status == NO_REGRESSION and not any(case.outcome in DECIDED for case in cases):
        return NOTHING_SHOWN
    return MEANINGS[status][0]


def headline(comparison: Comparison) -> str:
    """`2 slower, 38 same; exit status 1: regression`."""
    counts = Counter(case.outcome for case in comparison.cases)
    said = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    status = comparison.exit_status
    return f"{said or 'no case'}; exit status {status}: {meaning_of(comparison)}"


def without_lone(comparison: Comparison) -> tuple[list[Row], list[str]]:
    """The rows of a table, and what stands below it of the cases that one side alone has, where
    they are many: `not in the new: 27 cases (ffn/..., loss/..., rotary/..., ...)`."""
    lone: dict[str, list[str]] = {}
    for case in comparison.cases:
        if case.outcome in {Outcome.MISSING, Outcome.ADDED} and case.note.startswith("not in the"):
            lone.setdefault(case.note, []).append(case.name)
    many = {said: names for said, names in lone.items() if len(names) > MOST_LONE}
    counted = {name for names in many.values() for name in names}
    return [row for row in rows_of(comparison.cases) if row.case.name not in counted], [
        f"{said}: {len(names)} cases ({', '.join(names[:NAMED_LONE])}, ...)"
        for said, names in many.items()
    ]


def _rendered(
    name: str,
    comparison: Comparison,
    most_details: int | None,
    **more: Any,  # noqa: ANN401
) -> str:
    """`most_details`: of the cases with another time or a counter that grew; None for all."""
    cases = (case for case in comparison.cases if case.outcome in CHANGED or case.grown)
    changed = rows_of(cases)
    count, mean = len(comparison.alike), ""
    ratio = comparison.geometric_mean_ratio
    if ratio is not None and count > 1:
        mean = (
            f"geometric mean of new / base over {count} cases: {ratio:.4f} ({change_text(ratio)})"
        )
        if comparison.unlike:
            mean += f", not of the code alone: {', '.join(comparison.unlike)} differ"
    took = "" if comparison.seconds is None else f"; {comparison.seconds:.0f} s of measuring"
    has_alpha = any(case.p_value is not None for case in comparison.cases)
    alpha = f"family-wise alpha {comparison.alpha:g}, " if has_alpha else ""
    return template(TEMPLATES / name).render(
        comparison=comparison,
        headline=headline(comparison),
        method=f"{comparison.method}; {alpha}margin {100 * comparison.margin:g} %{took}",
        warnings=warning_texts(comparison),
        mean=mean,
        grown=sum(case.grown for case in comparison.cases),
        details=[(row, detail_lines(row.case)) for row in changed[:most_details]],
        more_details=len(changed[most_details:]) if most_details else 0,
        **more,
    )


def text_of(comparison: Comparison) -> str:
    """For a terminal; the last line has the counts and the meaning of the exit status."""
    rows, lone = without_lone(comparison)
    table = [HEADER, *(row.texts for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()
        for texts in table
    ]
    shown: Callable[[str], str] = str
    more = {"is_comment": False, "table": lines, "lone": lone, "shown": shown}
    return _rendered("comparison.md.j2", comparison, None, **more)


def _plain(text: str) -> str:
    """What files and programs said, escaped: it must not act as HTML, or end a table's cell."""
    return cell(html.escape(text, quote=False))


def markdown_of(comparison: Comparison) -> str:
    """For a comment of a pull request: headline, details, and a folded table of cases, as many as
    a comment may hold."""
    (found, lone), rows, failed = without_lone(comparison), [], []
    for row in found:
        name, *figures, verdict, blocks, note = row.texts
        short = html.escape(note[:MOST_NOTE_OF_COMMENT], quote=False)
        rows.append((f"`{name}`", *figures, f"{MARKS[row.colour]} {verdict}", blocks, short))
        if row.case.fails:
            failed.append(rows[-1])
    return _rendered(
        "comparison.md.j2",
        comparison,
        MOST_DETAILS_OF_COMMENT,
        is_comment=True,
        lone=lone,
        table=markdown_table(HEADER, rows[:MOST_ROWS_OF_COMMENT]),
        left_out=len(rows[MOST_ROWS_OF_COMMENT:]),
        regressions=markdown_table(HEADER, failed[:MOST_DETAILS_OF_COMMENT]) if failed else [],
        shown=_plain,
    )


def page_of(comparison: Comparison) -> str:
    """One HTML file that needs no other; texts from files are escaped."""
    intervals = [case.interval for case in comparison.cases if case.interval is not None]
    ends = [abs(math.log(e)) for i in intervals for e in (i.low, i.high) if 0 < e < math.inf]
    margin = 1.0 + comparison.margin
    # one scale for all bars, so that they can be compared
    half = min(WIDEST, max([NARROWEST_IN_MARGINS * math.log(margin), *ends]))

    def place(ratio: float) -> float:
        """In percent of a bar's width: 50 is no change."""
        log = math.log(ratio) if ratio > 0 else -math.inf
        return round(50.0 * (1.0 + max(-1.0, min(1.0, log / half))), 2)

    def bar(case: ComparedCase) -> tuple[float, float, float] | None:
        if case.ratio is None:
            return None
        found = case.interval or Interval(case.ratio, case.ratio, 0.0)
        return place(found.low), place(case.ratio), place(found.high)

    rows = rows_of(comparison.cases)
    contexts = (comparison.base_context, comparison.new_context)
    return _rendered(
        "comparison.html.j2",
        comparison,
        None,
        colour=colour_of(comparison),
        header=HEADER,
        bars=[(row, bar(row.case)) for row in rows],
        band=(place(1 / margin), place(margin)),
        edge=f"{100 * math.expm1(half):.0f}",
        context=[(key, *(context_value(c, key) for c in contexts)) for key in CONTEXT_ROWS],
    )


def json_of(comparison: Comparison) -> str:
    """comparison.json, with the exit status and its meaning; a line for each case. Infinity, which
    JSON does not have, is null."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "tiny_llama comparison",
        **vars(comparison),
        "geometric_mean_ratio": comparison.geometric_mean_ratio,
        "meaning": meaning_of(comparison),
    }
    text = compact_json(document, ("cases",))
    if "Infinity" in text or "NaN" in text:
        text = compact_json(json.loads(text, parse_constant=lambda _: None), ("cases",))
    return text


AXES = ("component", "pass_name", "variant", "size", "dtype", "batch", "seq")
CSV_COLUMNS = (
    *("case", "component", "pass", *AXES[2:], "verdict", "base_seconds", "new_seconds"),
    *("ratio", "ratio_low", "ratio_high", "p_value", "blocks", "note"),
)


def csv_of(comparison: Comparison) -> str:
    """A line a case, in the order of the table, for a spreadsheet. What is not known is empty, as
    are the axes of cases that are not named as the suite names its own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for case in in_order(comparison.cases):
        name, ends = parse_case_name(case.name), case.interval
        axes = [getattr(name, axis) if name else "" for axis in AXES]
        bounds = (ends.low, ends.high) if ends else (None, None)
        times = (case.base_seconds, case.new_seconds, case.ratio, *bounds)
        more = (case.p_value, case.blocks or None, _note(case))
        writer.writerow([case.name, *axes, case.outcome.value, *times, *more])
    return text.getvalue()


FILES = {"json": json_of, "md": markdown_of, "csv": csv_of, "html": page_of}


def deliver(
    comparison: Comparison, form: str, folder: Path | None, say: Callable[[str], object]
) -> int:
    """Writes comparison.json, .md, .html and .csv into the folder, where there is one, naming each
    by `say`; then prints the comparison, even where a file could not be written. `form`: text, md,
    csv or json.

    The exit status, which is the one that was printed; where there was a failure, a BadInputError
    with that status and the reason.
    """
    try:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            for suffix, made in FILES.items():
                write_whole(folder / f"comparison.{suffix}", made(comparison))
                say(f"{folder}/comparison.{suffix}")
    except OSError as error:
        comparison = with_failure(
            comparison, f"{error.filename2 or error.filename}: {error.strerror}"
        )
    sys.stdout.write((FILES | {"text": text_of})[form](comparison))
    if comparison.failure:
        failure = BadInputError(comparison.failure)
        failure.exit_status = comparison.exit_status
        raise failure
    return comparison.exit_status
