"""A worksheet of the workshop: its runs, and the functions that its template answers with.

The templates hold every question and sentence; a tick box is one call there: label, value, rule.
Behind each box stand the number and the rule that decided it.
"""

from __future__ import annotations

import math
import os
import re
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.commands.profile_report import (
    HELPERS,
    PAGE,
    TEMPLATES,
    draw_timelines,
    listing,
    say,
    shown,
)
from tinyllama_tools.core.app import REFUSED_OPTIONS, Json
from tinyllama_tools.core.text import template
from tinyllama_tools.data.profiles import SUMMARY, median, step_times, value_at
from tinyllama_tools.data.programs import TrainingError, TrainingProgram, command_line

INTERRUPTED_REASON = "interrupted"
# MFU: against the datasheet's peak, or the measured one where the device has no datasheet here
MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
PEAK = "summary.peak_memory_bytes"
Plan = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class MeasuredRun:
    """What a run left behind; called with a dotted key it gives the summary's value, or None.

    `summary`: None where nothing was measured, for this `reason`. `link`: its folder as the
    worksheet refers to it.
    """

    name: str
    command: str
    summary: Json | None = None
    exit_status: int = 0
    reason: str = ""
    link: str = ""

    def __call__(self, key: str) -> Any:  # noqa: ANN401
        return value_at(self.summary, key)

    @property
    def is_complete(self) -> bool:
        """Whether every planned step was made and the loss stayed finite."""
        wanted, done = self("configuration.num_steps"), self("summary.steps_completed")
        return self.exit_status == 0 and done is not None and done == wanted

    @property
    def step_seconds(self) -> float | None:
        """Median of the steps that no profiler touched, without the first; of all where there is
        none."""
        plain = step_times(self.summary, profiled=False)
        return median(plain) or self("summary.median_step_seconds")

    @property
    def speed(self) -> float | None:
        """Samples a second, of the median step."""
        micro = self("configuration.gradient_accumulation_steps") or 1
        return ratio((self("configuration.batch_size") or 0) * micro or None, self.step_seconds)


Runs = Mapping[str, MeasuredRun]


def measure_all(
    planned: Plan, program: TrainingProgram, options: Namespace, *, has_measured: bool = False
) -> dict[str, MeasuredRun]:
    """Every run of name -> options in turn, its files below `options.profile_dir`. What fails keeps
    its reason; Ctrl-C leaves the rest.

    `has_measured`: whether runs before these left a summary. Raises TrainingError where the program
    refuses what it was given before anything was measured.
    """
    folder = options.profile_dir
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, MeasuredRun] = {}
    for number, (name, given) in enumerate(planned.items(), start=1):
        command, target = command_line([*program.arguments, *given]), folder / name
        if was_interrupted(runs):
            runs[name] = MeasuredRun(name, command, reason=INTERRUPTED_REASON)
            continue
        say(f"run {number} of {len(planned)}: {command}")
        try:
            run = program.run(given, target, log=folder / f"{name}.log")
            draw_timelines(target)
            reason = "" if run.summary else f"no {SUMMARY} was written"
            link = Path(os.path.relpath(target, options.output.parent)).as_posix()
            found = MeasuredRun(name, command, run.summary, run.exit_status, reason, link)
        except KeyboardInterrupt:
            found = MeasuredRun(name, command, reason=INTERRUPTED_REASON)
        except TrainingError as error:
            is_first = not has_measured and not any(run.summary for run in runs.values())
            if is_first and error.exit_status == REFUSED_OPTIONS:
                raise
            # what the program said last may have many lines
            reason = " ".join(str(error).split())
            found = MeasuredRun(name, command, reason=reason, exit_status=1)
        runs[name] = found
        if found.reason:
            say(f"   not measured: {found.reason}")
    return runs


def was_interrupted(runs: Runs) -> bool:
    """Whether Ctrl-C ended the measuring."""
    return any(run.reason == INTERRUPTED_REASON for run in runs.values())


def missing_of(runs: Runs, wanted: Plan) -> list[str]:
    """Why runs lack the parts wanted of their summaries, a text each; empty where nothing is."""
    found = [f"{name}: {runs[name].reason}" for name in wanted if runs[name].reason]
    return found + [
        f"{name}: its summary has no `{part}`"
        for name, parts in wanted.items()
        for part in parts
        if runs[name].summary and runs[name](part) is None
    ]


# What the templates answer with.


def ratio(above: float | None, below: float | None) -> float | None:
    """None where either is missing or the divisor is 0."""
    return above / below if above is not None and below else None


def share_of(part: float | None, whole: float | None) -> float | None:
    """In percent; None where either is missing or there is no whole."""
    found = ratio(part, whole)
    return None if found is None else 100 * found


def growth_exponent(x: Sequence[float], y: Sequence[float | None]) -> float | None:
    """Slope of log y over log x; None of fewer than two different positive points."""
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a and b and b > 0]
    if len({a for a, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def box(label: str, holds: object, reason: str) -> str:
    """A tick box and what decided it."""
    mark, word = ("x", "yes") if holds else (" ", "no")
    return f"- [{mark}] {label} — {word}: {reason}"


RULE = re.compile(r"(?:(above|below|from) )?(-?[\d.]+)(?: to (below )?(-?[\d.]+))? ?(.*)")


def holds(value: float, rule: str) -> bool:
    """Of `above 5 x`, `below 5 x`, `from 5 x`, `from 5 to 7 x` or `from 5 to below 7 x`."""
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
    """A box decided by limits, which holds() knows; its unit is that of the value."""
    unit = RULE.sub(r"\5", rule)
    text = missing if value is None else shown(value, unit)
    return box(label, value is not None and holds(value, rule), f"{text}; rule: {rule}")


def largest_of(values: Mapping[str, float | None]) -> str | None:
    """The name with the largest value, the first of equals; None where none was measured."""
    known = {name: value for name, value in values.items() if value is not None}
    return max(known, key=lambda name: known[name]) if known else None


def largest(
    values: Mapping[str, float | None], unit: str = "%", notes: Mapping[str, str] | None = None
) -> str:
    """Boxes of which the one with the largest value holds. `notes`: what a value rests on."""
    winner, lines = largest_of(values), []
    for name, value in values.items():
        note = f", {notes[name]}" if notes and notes.get(name) else ""
        reason = f"{shown(value, unit)}{note}; rule: the largest of these"
        lines.append(box(name, name == winner, reason))
    return "\n".join(lines)


def criteria(boxes: Sequence[str], label: str) -> str:
    """These boxes, and one that holds where they all do."""
    known = sum(line.startswith("- [x]") for line in boxes)
    reason = f"{known} of {len(boxes)} of the above; rule: all"
    return "\n".join([*boxes, box(label, known == len(boxes), reason)])


def within(value: float | None, low: float, high: float) -> str:
    """Where a value lies."""
    if value is None:
        return "not measured"
    if low <= value <= high:
        return "in the range"
    return f"{'above' if value > high else 'below'} the range"


def ranges(rows: Iterable[tuple[str, float, float, str, float | None]]) -> str:
    """A table of what was expected (label, low, high, unit) beside what was measured."""
    cells = [
        (label, f"{low:g}-{high:g} {unit}", shown(value, unit), within(value, low, high))
        for label, low, high, unit, value in rows
    ]
    header = ("what", "the workshop expects", "measured", "in the range?")
    return listing(cells, [(name, index, "") for index, name in enumerate(header)])


@dataclass(frozen=True)
class Sheet:
    """A worksheet in Markdown and the exit status of the command that made it.

    `has_measurements`: whether any run left figures; without, it replaces no earlier worksheet.
    """

    page: str
    exit_status: int = 0
    has_measurements: bool = True


ANSWERING: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (box, tick, largest, criteria, within, ranges, ratio, share_of)
}


def make_sheet(
    name: str,
    runs: Runs,
    missing: Sequence[str],
    *,
    also: Sequence[MeasuredRun] = (),
    interrupted: bool = False,
    **values: Any,  # noqa: ANN401
) -> Sheet:
    """Of a template in templates/, which sees `runs` by their names too, `missing` and `values`.

    `also`: runs that do not decide the exit status. Where anything is missing only the head of the
    page and the table of runs is made.
    """
    every = (*also, *runs.values())
    stands_for_all = next((run for run in every if run.summary), None)
    page = template(TEMPLATES / name).render(
        {**HELPERS, **ANSWERING, **runs, **values},
        timeline_page=PAGE,
        MFU=MFU,
        INTENSITY=INTENSITY,
        PEAK=PEAK,
        runs=runs,
        every=every,
        missing=missing,
        measured=stands_for_all.summary if stands_for_all else None,
    )
    status = 0 if all(run.is_complete for run in runs.values()) and not missing else 1
    if interrupted or was_interrupted(runs):
        status = 130
    return Sheet(spaced(page), status, stands_for_all is not None)


def spaced(page: str) -> str:
    """The page with the empty lines that Markdown wants, whatever a template has.

    Rows of a table and items of a list stand together; any other line is a paragraph.
    """
    lines, before = [], ""
    for line in filter(str.strip, page.split("\n")):
        kind = re.match(r"\|| *- |", line)[0].strip()  # type: ignore[index]
        lines += [line] if kind and kind == before else ["", line]
        before = kind
    return "\n".join(lines).strip() + "\n"
