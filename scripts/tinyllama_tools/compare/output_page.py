"""A comparison as one HTML file that needs nothing else: verdict, changes, and all cases."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from tinyllama_tools.compare.comparison import ComparedCase, Comparison, Interval
from tinyllama_tools.compare.gate import MEANINGS, REGRESSIONS_ONLY, Gate
from tinyllama_tools.compare.table_rows import (
    HEADER,
    headline_counters,
    in_order,
    is_changed,
    table_rows,
)
from tinyllama_tools.compare.wording import (
    attribution_text,
    colour_of,
    last_line,
    p_value_text,
    verdict_sentence,
    warning_texts,
)
from tinyllama_tools.stats.verdicts import Outcome

TEMPLATE = Path(__file__).with_name("comparison_page.html.j2")
CONTEXT_ROWS = ("git_commit", "git_dirty", "device", "torch_version", "threads", "settings")
MOST_DETAILS = 50
# the picture ends here on either side, as a log-ratio: one that is further out touches the edge
WIDEST = math.log(2.0)
NARROWEST_IN_MARGINS = 2.0


@dataclass(frozen=True)
class Bar:
    """An interval as a picture, in percent of its width."""

    low: float
    high: float
    point: float


def half_width(comparison: Comparison) -> float:
    """Of all bars' common scale, as a log-ratio: the widest interval, within limits."""
    found = [
        abs(math.log(end))
        for case in comparison.cases
        if case.interval is not None
        for end in (case.interval.low, case.interval.high)
        if 0 < end < math.inf
    ]
    return min(WIDEST, max([NARROWEST_IN_MARGINS * math.log1p(comparison.margin), *found]))


def place(ratio: float, half: float) -> float:
    """0 to 100; no change is at 50."""
    if ratio <= 0:
        return 0.0
    return round(50.0 * (1.0 + max(-1.0, min(1.0, math.log(ratio) / half))), 2)


def bar_of(case: ComparedCase, half: float) -> Bar | None:
    """None where there is no ratio."""
    if case.ratio is None:
        return None
    ends = case.interval or Interval(case.ratio, case.ratio, 0.0)
    return Bar(place(ends.low, half), place(ends.high, half), place(case.ratio, half))


def _context_lines(comparison: Comparison) -> Iterable[tuple[str, str, str]]:
    for key in CONTEXT_ROWS:
        sides = [context.get(key) for context in (comparison.base_context, comparison.new_context)]
        if any(side is not None for side in sides):
            yield key, _plain(sides[0]), _plain(sides[1])


def _plain(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, dict):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items() if inner != "")
    return "-" if value is None else str(value)


def _details(comparison: Comparison) -> list[dict[str, Any]]:
    changed = in_order(filter(is_changed, comparison.cases))
    return [
        {
            "case": case,
            "counters": headline_counters(case),
            "p_value": None if case.p_value is None else p_value_text(case.p_value),
            "attribution": attribution_text(case.attribution) if case.attribution else [],
            "parts": case.attribution.parts if case.attribution else (),
        }
        for case in changed[:MOST_DETAILS]
    ]


def page_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY) -> str:
    """The HTML; texts from files are escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    half, status = half_width(comparison), gate.status(comparison)
    margin = 1.0 + comparison.margin
    return template.render(
        comparison=comparison,
        sentence=verdict_sentence(comparison, gate),
        last_line=last_line(comparison, gate),
        meaning=MEANINGS[status],
        colour=gate.colour(comparison),
        warnings=warning_texts(comparison),
        header=HEADER,
        rows=[
            (row, bar_of(row.case, half), colour_of(row.case))
            for row in table_rows(comparison.cases)
        ],
        outcomes=[o.value for o in Outcome if any(c.outcome is o for c in comparison.cases)],
        band=(place(1 / margin, half), place(margin, half)),
        edge=f"{100 * math.expm1(half):.0f}",
        details=_details(comparison),
        more=max(0, sum(map(is_changed, comparison.cases)) - MOST_DETAILS),
        context=list(_context_lines(comparison)),
    )
