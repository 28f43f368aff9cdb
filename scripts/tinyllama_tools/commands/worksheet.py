"""A worksheet of the workshop: its runs, and the functions that its template answers with.

The templates hold every question and sentence; a tick box is one call there: label, value, limits.
Behind each box stand the number and the rule that decided it.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from tinyllama_tools.commands.profile_tables import PAGE, draw_timelines
from tinyllama_tools.core.app import REFUSED_OPTIONS, Json
from tinyllama_tools.core.text import cell, markdown_table
from tinyllama_tools.data.profiles import SUMMARY
from tinyllama_tools.data.programs import TrainingError, TrainingProgram, command_line

NOT_MEASURED, INTERRUPTED = "not measured", "interrupted"
MEGABYTE = 2**20
# MFU: against the datasheet's peak, or the measured one where the device has no datasheet here
UTILIZATION = "flops.flops_profile.efficiency_metrics.mfu_percent"
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
# What a summary holds at a key: a number, text, list, object or nothing.
Held = Any
Plan = Mapping[str, Sequence[str]]


def say(text: str) -> None:
    """Progress, a line a step."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class MeasuredRun:
    """What a run left behind; called with a dotted key it gives the summary's value, or None.

    `summary`: None where nothing was measured, for this `reason`. `link`: the folder as the
    worksheet refers to it.
    """

    name: str
    command: str
    summary: Json | None = None
    exit_status: int = 0
    reason: str = ""
    folder: Path = field(default_factory=Path)
    link: str = ""

    def __call__(self, key: str) -> Held:
        value: Held = self.summary
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    @property
    def is_complete(self) -> bool:
        """Whether every planned step was made and the loss stayed finite."""
        wanted, done = self("configuration.num_steps"), self("summary.steps_completed")
        return self.exit_status == 0 and done is not None and done == wanted

    @property
    def plain_times(self) -> list[float]:
        """Seconds of the steps that no profiler touched, without the first."""
        steps = self("steps") or []
        return [s["time_seconds"] for s in steps if s["step"] > 1 and not s["profiled"]]

    @property
    def step_seconds(self) -> float | None:
        """Median of the plain steps; of all where none is plain."""
        times = self.plain_times
        return statistics.median(times) if times else self("summary.median_step_seconds")

    @property
    def speed(self) -> float | None:
        """Samples a second, of the median step."""
        micro = self("configuration.gradient_accumulation_steps") or 1
        return ratio((self("configuration.batch_size") or 0) * micro or None, self.step_seconds)


def measure_all(
    planned: Plan,
    program: TrainingProgram,
    folder: Path,
    page_folder: Path,
    *,
    has_measured: bool = False,
) -> dict[str, MeasuredRun]:
    """Every run of name -> options in turn. What fails keeps its reason; Ctrl-C leaves the rest.

    `has_measured`: whether runs before these left a summary. Raises TrainingError where the program
    refuses what it was given before anything was measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, MeasuredRun] = {}
    stopped = False
    for number_, (name, options) in enumerate(planned.items(), start=1):
        command, target = command_line(options), folder / name
        if not stopped:
            say(f"run {number_} of {len(planned)}: {command}")
        try:
            if stopped:
                raise KeyboardInterrupt
            run = program.run(options, target, log=folder / f"{name}.log")
            draw_timelines(target)
            reason = "" if run.summary else f"no {SUMMARY} was written"
            link = Path(os.path.relpath(target, page_folder)).as_posix()
            status, summary = run.exit_status, run.summary
            runs[name] = MeasuredRun(name, command, summary, status, reason, target, link)
        except KeyboardInterrupt:
            stopped = True
            runs[name] = MeasuredRun(name, command, reason=INTERRUPTED)
        except TrainingError as error:
            is_first = not has_measured and not any(run.summary for run in runs.values())
            if is_first and error.exit_status == REFUSED_OPTIONS:
                raise
            # what the program said last may have many lines
            reason = " ".join(str(error).split())
            runs[name] = MeasuredRun(name, command, reason=reason, exit_status=1)
        if runs[name].reason and not stopped:
            say(f"   not measured: {runs[name].reason}")
    return runs


def was_interrupted(runs: Mapping[str, MeasuredRun]) -> bool:
    """Whether Ctrl-C ended the measuring."""
    return any(run.reason == INTERRUPTED for run in runs.values())


def missing_of(runs: Mapping[str, MeasuredRun], wanted: Plan) -> list[str]:
    """Why runs lack the parts wanted of their summaries, a text each; empty where nothing is."""
    found = [f"{name}: {runs[name].reason}" for name in wanted if runs[name].reason]
    return found + [
        f"{name}: its summary has no `{part}`"
        for name, parts in wanted.items()
        for part in parts
        if runs[name].summary and runs[name](part) is None
    ]


# Figures as the pages show them.


def megabytes(size: float | None) -> str:
    """`131.8 MB`: 2^20 bytes each, PyTorch's habitual meaning."""
    if size is None:
        return NOT_MEASURED
    amount = size / MEGABYTE
    return f"{amount:,.1f} MB" if abs(amount) >= 0.1 or not amount else f"{size:,.0f} bytes"


def milliseconds(seconds: float | None) -> str:
    """`92.8 ms`."""
    if seconds is None:
        return NOT_MEASURED
    amount = 1000 * seconds
    return f"{amount:,.0f} ms" if amount >= 1000 else f"{amount:.3g} ms"


def percent(value: float | None) -> str:
    """`43.1 %`."""
    return NOT_MEASURED if value is None else f"{value:.1f} %"


def times(factor: float | None) -> str:
    """`1.85x`."""
    return NOT_MEASURED if factor is None else f"{factor:.2f}x"


def number(value: float | None, unit: str = "") -> str:
    """Four digits where it is not whole; thousands apart."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return f"{value} {unit}".strip()
    plain = f"{value:,.0f}" if value == int(value) or abs(value) >= 10_000 else f"{value:.4g}"
    return f"{plain} {unit}".strip()


def ratio(above: float | None, below: float | None) -> float | None:
    """None where either is missing or the divisor is 0."""
    return above / below if above is not None and below else None


def share_of(part: float | None, whole: float | None) -> float | None:
    """In percent; None where either is missing or there is no whole."""
    found = ratio(part, whole)
    return None if found is None else 100 * found


# Tick boxes.


def decide(label: str, holds: bool, reason: str) -> str:
    """A tick box and what decided it."""
    box, word = ("x", "yes") if holds else (" ", "no")
    return f"- [{box}] {label} — {word}: {reason}"


def tick(
    label: str,
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    unit: str = "%",
    *,
    note: str = "",
    missing: str = NOT_MEASURED,
) -> str:
    """Decided by limits: above `low`, or below `high`, or from low to below high where both are.

    Ranges next to each other so share no value. `note` stands before the number, `missing` in its
    place.
    """
    if low is None or high is None:
        limit = low if high is None else high
        assert limit is not None
        rule = f"{'above' if high is None else 'below'} {number(limit, unit)}"
        holds = value is not None and (value > limit if high is None else value < limit)
    else:
        ends = [f"from {number(low, '' if math.isfinite(high) else unit)}"] * math.isfinite(low)
        ends += [f"below {number(high, unit)}"] * math.isfinite(high)
        rule, holds = " to ".join(ends), value is not None and low <= value < high
    shown = missing if value is None else f"{note}{number(value, unit)}"
    return decide(label, holds, f"{shown}; rule: {rule}")


def largest_of(values: Mapping[str, float | None]) -> str | None:
    """The name with the largest value, the first of equals; None where none was measured."""
    known = {name: value for name, value in values.items() if value is not None}
    return max(known, key=lambda name: known[name]) if known else None


def largest(
    values: Mapping[str, float | None],
    what: str,
    unit: str = "%",
    grounds: Mapping[str, str] | None = None,
    only: str | None = None,
) -> str:
    """Boxes of which the one with the largest value holds (`only`: that box alone).

    `grounds`: what a value rests on; the winner's stands beside every value it is compared to.
    """
    winner, ticks, grounds = largest_of(values), [], grounds or {}
    for name, value in values.items():
        reason = number(value, unit)
        if value is not None and winner and winner != name:
            reason += f" against {number(values[winner], unit)} of {winner}"
        reason += f"; rule: the largest {what} wins"
        if grounds.get(name):
            reason += f"; {grounds[name]}"
        if winner and winner != name and grounds.get(winner):
            reason += f"; {winner}: {grounds[winner]}"
        if only in (None, name):
            ticks.append(decide(name, name == winner, reason))
    return "\n".join(ticks)


def all_of(label: str, known: int, count: int, what: str) -> str:
    """Whether all of some were found."""
    return decide(label, known == count, f"{known} of {count} {what}; rule: all of them")


def ready(label: str, ticks: str) -> str:
    """Whether every box of these lines is ticked."""
    return all_of(label, ticks.count("- [x] "), ticks.count("- ["), "criteria above hold")


def expected(value: float | None, low: float, high: float, unit: str = "%") -> str:
    """`in the range`, or on which side of it."""
    if value is None:
        return NOT_MEASURED
    if low <= value <= high:
        return "in the range"
    side = "above" if value > high else "below"
    factor = ratio(value, high) if value > high else ratio(low, value) if value > 0 else None
    apart = f", by a factor of {factor:.3g}" if factor else ""
    return f"{side} the range{apart} ({number(value, unit)})"


def range_row(label: str, value: float | None, low: float, high: float, unit: str = "%") -> str:
    """A line of `Expected results`: what, expected, measured, and whether it is in the range."""
    where = expected(value, low, high, unit)
    return f"| {label} | {low}-{high} {unit} | {number(value, unit)} | {where} |"


# The page.


def unanswered(page: str) -> list[str]:
    """Places that a reader would have to fill in, as `line 12: text`; none in a finished page.

    Blanks, empty cells, boxes that no rule decided and questions without an answer below.
    """
    found = []
    lines = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), page, flags=re.S).split("\n")
    for index, line in enumerate(lines):
        box = re.match(r"\s*- \[([ xX]?)\]", line)
        word = "no" if box and box[1] == " " else "yes"
        undecided = box and not re.search(rf" — {word}: \S", line)
        blank = re.search(r"_{3,}", line) or (not box and "[ ]" in line)
        cells = re.split(r"(?<!\\)\|", line.strip())[1:-1] if line.startswith("|") else []
        following = next((text for text in lines[index + 1 :] if text.strip()), "")
        open_question = re.search(r"\?\W*$", line) and not re.match(
            r"Answer: \S|- \[[x ]\] |\|", following
        )
        if undecided or blank or open_question or not all(text.strip() for text in cells):
            found.append(f"line {index + 1}: {line}")
    return found


# What changes no work of a step; a median of fewer than FEWEST_STEPS says little.
OF_THE_RUN, FEWEST_STEPS = frozenset({"num_steps", "seed", "learning_rate"}), 3
MOST_DIFFERENCE_PERCENT = 20.0


def disagreement(runs: Iterable[MeasuredRun]) -> str:
    """A sentence about the worst of runs of the same work that differ too much; or empty."""
    groups: dict[str, list[tuple[float, str]]] = {}
    for run in runs:
        if run("configuration") and len(run.plain_times) >= FEWEST_STEPS:
            work = {k: repr(v) for k, v in run("configuration").items() if k not in OF_THE_RUN}
            found = (statistics.median(run.plain_times), run.name)
            groups.setdefault(repr(sorted(work.items())), []).append(found)
    pairs = [(min(group), max(group)) for group in groups.values() if min(group)[0] > 0]
    more = {100 * (slow[0] / fast[0] - 1): (fast, slow) for fast, slow in pairs}
    worst = max(more, default=0.0)
    if worst <= MOST_DIFFERENCE_PERCENT:
        return ""
    fast, slow = more[worst]
    return (
        f"the machine was not quiet: the same plain step took {milliseconds(fast[0])} in {fast[1]} "
        f"and {milliseconds(slow[0])} in {slow[1]} (medians), {worst:.0f} % more (rule: above "
        f"{MOST_DIFFERENCE_PERCENT:.0f} %); times that differ by less than that decide nothing"
    )


@dataclass(frozen=True)
class Sheet:
    """A worksheet in Markdown and the exit status of the command that made it.

    `has_measurements`: whether any run left figures; without, it replaces no earlier worksheet.
    """

    page: str
    exit_status: int = 0
    has_measurements: bool = True


HELPERS: dict[str, Callable[..., Held]] = {
    function.__name__: function
    for function in (tick, decide, largest, all_of, ready, expected, range_row, ratio, share_of)
}


def make_sheet(
    template: str,
    runs: Mapping[str, MeasuredRun],
    missing: Sequence[str],
    *,
    also: Sequence[MeasuredRun] = (),
    interrupted: bool = False,
    **values: Held,
) -> Sheet:
    """Of a template in templates/, which sees `runs` by their names too, `missing` and `values`.

    `also`: runs that do not decide the exit status. Where anything is missing only the part of the
    page that needs none of it is made.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=lambda value: NOT_MEASURED if value is None else value,
    )
    environment.filters.update(
        mb=megabytes, ms=milliseconds, pct=percent, num=number, times=times, cell=cell
    )
    environment.globals.update(
        HELPERS,
        inf=math.inf,
        timeline_page=PAGE,
        MFU=UTILIZATION,
        INTENSITY=INTENSITY,
        table=lambda header, rows: "\n".join(markdown_table(header, rows)),
    )
    every = (*also, *runs.values())
    stands_for_all = next((run for run in every if run.summary), None)
    page = environment.get_template(template).render(
        {**runs, **values},
        runs=runs,
        missing=missing,
        measured=stands_for_all,
        warning=disagreement(every),
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
