"""Markdown pages about runs of the training program: figures, tables, and boxes of a worksheet.

The templates hold every question and sentence. A tick box is one call there, with a label, a value
and a rule; the page shows the value and the rule that decided it.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import INTERRUPTED, Json
from tinyllama_tools.core.text import cell, markdown_table, template, value_at
from tinyllama_tools.data.profiles import (
    INTERRUPTED_REASON,
    MeasuredRun,
    Runs,
    group_shares,
    operator_shares,
    was_interrupted,
)
from tinyllama_tools.models.roofline import POSITIONS, roofline_position

TEMPLATES = Path(__file__).parent / "templates"
# against the datasheet's peak, or the measured one where fixtures/ has none of the device
MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
PEAK = "summary.peak_memory_bytes"

# rows of the table of what ran, and where: label, key, unit
CONFIGURATION = (
    *(("size", "configuration.size", ""), ("batch", "configuration.batch_size", "")),
    *(("sequence", "configuration.seq_len", ""), ("steps", "configuration.num_steps", "")),
    *(("data type", "configuration.dtype", ""), ("variant", "configuration.variant", "")),
    *(("parameters", "model.total_parameters", ""), ("device", "context.device.name", "")),
    ("backend", "context.device.backend", ""),
    ("device memory", "context.device.memory_bytes", "MB"),
    *(("threads", "context.threads", ""), ("libtorch", "context.torch_version", "")),
    ("runtime", "context.device.runtime_version", ""),
    ("driver", "context.device.driver_version", ""),
    *(("commit", "context.git_commit", ""), ("with changes", "context.git_dirty", "")),
    *(("memory is counted by", "context.memory_source", ""), ("started", "started", "")),
)


def digits(value: float) -> str:
    """`1,234` for a whole or large number, else four significant digits."""
    if not math.isfinite(value):
        return str(value)
    whole = value == int(value) or abs(value) >= 10_000
    return f"{value:,.0f}" if whole else f"{value:.4g}"


def shown(value: float | str | None, unit: str = "") -> str:
    """The value with its unit. It is given in seconds for `ms` and in bytes for `MB` and `MiB`
    (both 2^20); `%`, `x` and `FLOP/s` have formats of their own."""
    if value is None:
        return "not measured"
    if isinstance(value, str):
        return cell(value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit in ("MB", "MiB"):
        amount = value / 2**20
        is_small = 0 < abs(amount) < 0.1
        return f"{value:,.0f} bytes" if is_small else f"{amount:,.1f} {unit}"
    if unit == "ms":
        return f"{digits(1000 * value)} ms"
    formats = {"%": ".1f", "x": ".2f", "FLOP/s": ".3e"}
    if unit in formats:
        return f"{value:,{formats[unit]}}{'' if unit == 'x' else ' '}{unit}"
    return f"{digits(value)} {unit}".rstrip()


def figures(document: Json, rows: Iterable[tuple[str, Any, str]]) -> str:
    """A table of rows of label, key in the document (or the value itself, if not text), and
    unit."""
    cells = [
        (label, shown(value_at(document, at) if isinstance(at, str) else at, unit))
        for label, at, unit in rows
    ]
    return "\n".join(markdown_table(("figure", "measured"), cells))


def listing(rows: Iterable[Any], columns: Sequence[tuple[str, str | int, str]]) -> str:
    """A table of these rows. A column: heading, the key, name or index of the value in a row ("#":
    the row's number), and unit."""
    cells = [
        [shown(rank if key == "#" else value_at(row, str(key)), unit) for _, key, unit in columns]
        for rank, row in enumerate(rows, start=1)
    ]
    return "\n".join(markdown_table([heading for heading, _, _ in columns], cells))


def ratio(above: float | None, below: float | None) -> float | None:
    """The quotient; None where either is missing or the divisor is 0."""
    return above / below if above is not None and below else None


def share_of(part: float | None, whole: float | None) -> float | None:
    """The percentage; None where either is missing or the whole is 0."""
    found = ratio(part, whole)
    return None if found is None else 100 * found


def growth_exponent(x: Sequence[float], y: Sequence[float | None]) -> float | None:
    """Slope of log y over log x; None for fewer than two positive points of different x."""
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a and b and b > 0]
    if len({a for a, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def box(label: str, holds: object, reason: str) -> str:
    """A tick box with what decided it."""
    mark, word = ("x", "yes") if holds else (" ", "no")
    return f"- [{mark}] {label} — {word}: {reason}"


RULE = re.compile(r"(?:(above|below|from) )?(-?[\d.]+)(?: to (below )?(-?[\d.]+))? ?(.*)")


def holds(value: float, rule: str) -> bool:
    """Whether a value keeps a rule: `above 5 x`, `below 5 x`, `from 5 x`, `from 5 to 7 x`, `from 5
    to below 7 x`."""
    found = RULE.fullmatch(rule)
    assert found is not None, rule
    word, low, is_below, high, _ = found.groups()
    if word == "above":
        return value > float(low)
    if word == "below":
        return value < float(low)
    is_under = high is None or (value < float(high) if is_below else value <= float(high))
    return value >= float(low) and is_under


def tick(label: str, value: float | None, rule: str, missing: str = "not measured") -> str:
    """A box that is decided by a rule of holds(), whose unit is that of the value."""
    unit = RULE.sub(r"\5", rule)
    text = missing if value is None else shown(value, unit)
    return box(label, value is not None and holds(value, rule), f"{text}; rule: {rule}")


def largest_of(values: Mapping[str, float | None]) -> str | None:
    """The name of the largest value, of equals the first; None where none was measured."""
    known = {name: value for name, value in values.items() if value is not None}
    return max(known, key=lambda name: known[name]) if known else None


def largest(
    values: Mapping[str, float | None], unit: str = "%", notes: Mapping[str, str] | None = None
) -> str:
    """Boxes of which that with the largest value is ticked. `notes`: what a value rests on."""
    winner, lines = largest_of(values), []
    for name, value in values.items():
        note = f", {notes[name]}" if notes and notes.get(name) else ""
        reason = f"{shown(value, unit)}{note}; rule: the largest of these"
        lines.append(box(name, name == winner, reason))
    return "\n".join(lines)


def criteria(boxes: Sequence[str], label: str) -> str:
    """These boxes, and one that is ticked where they all are."""
    known = sum(line.startswith("- [x]") for line in boxes)
    reason = f"{known} of {len(boxes)} of the above; rule: all"
    return "\n".join([*boxes, box(label, known == len(boxes), reason)])


def within(value: float | None, low: float, high: float) -> str:
    """Whether a value lies in a range, in words."""
    if value is None:
        return "not measured"
    if low <= value <= high:
        return "in the range"
    return f"{'above' if value > high else 'below'} the range"


def ranges(rows: Iterable[tuple[str, float, float, str, float | None]]) -> str:
    """A table of what was expected (label, low, high, unit) beside what was measured."""
    header = ("what", "the workshop expects", "measured", "in the range?")
    cells = [
        (label, f"{low:g}-{high:g} {unit}", shown(value, unit), within(value, low, high))
        for label, low, high, unit, value in rows
    ]
    return "\n".join(markdown_table(header, cells))


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(shown, figures, listing, ratio, share_of, box, tick, largest, criteria, within, ranges),
    *(group_shares, operator_shares, roofline_position),
)
HELPERS: dict[str, Any] = {
    **{function.__name__: function for function in FUNCTIONS},
    **{"MFU": MFU, "INTENSITY": INTENSITY, "PEAK": PEAK},
    **{"positions": POSITIONS, "configuration": CONFIGURATION},
}


def page_of(name: str, **values: Any) -> str:  # noqa: ANN401
    """The page of a template, with the empty lines that Markdown needs, whatever the template has:
    rows of a table and items of a list stand together, any other line is a paragraph."""
    page = template(TEMPLATES / name).render({**HELPERS, **values})
    lines, before = [], ""
    for line in filter(str.strip, page.split("\n")):
        kind = re.match(r"\|| *- |", line)[0].strip()  # type: ignore[index]
        lines += [line] if kind and kind == before else ["", line]
        before = kind
    return "\n".join(lines).strip() + "\n"


def make_sheet(
    name: str,
    runs: Runs,
    wanted: Mapping[str, Sequence[str]],
    values: Callable[[], Json],
    *,
    also_missing: Sequence[str] = (),
    also: Sequence[MeasuredRun] = (),
    interrupted: bool = False,
    **about: Any,  # noqa: ANN401
) -> tuple[str, int]:
    """The worksheet in Markdown, empty where no run has any figure, and the command's exit status.

    Its template gets each run under its name, `missing`, `about` and `values`. `wanted`: by run,
    the parts of its summary that the answers need; where any is missing, the page has only its head
    and the table of runs. `also`: runs that do not decide the exit status. Where `values` has the
    `reason` INTERRUPTED_REASON, computing them was interrupted."""
    missing = [f"{run}: {runs[run].reason}" for run in wanted if runs[run].reason]
    missing += [
        f"{run}: its summary has no `{part}`"
        for run, parts in wanted.items()
        for part in parts
        if runs[run].summary and runs[run](part) is None
    ]
    missing += also_missing
    found = {} if missing else values()
    interrupted |= found.get("reason") == INTERRUPTED_REASON or was_interrupted(runs)
    every = (*runs.values(), *also)
    first = next((run.summary for run in every if run.summary), None)
    about |= {**runs, "every": every, "missing": missing, "summary": first}
    page = page_of(name, **about, **found) if first else ""
    status = 0 if all(run.is_complete for run in runs.values()) and not missing else 1
    return page, INTERRUPTED if interrupted else status
