"""A worksheet: the runs it is made of, its figures, rules, tick boxes, questions and head."""

from __future__ import annotations

import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jinja2

from tinyllama_tools.commands.profile_tables import draw_timelines
from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import cell, markdown_table
from tinyllama_tools.data.profiles import SUMMARY
from tinyllama_tools.data.programs import (
    REFUSED_OPTIONS,
    TrainingError,
    TrainingProgram,
    command_line,
)

NOT_MEASURED = "not measured"
# What a summary holds at a key: a number, text, list, object or nothing.
Held = Any
MEGABYTE = 2**20


@dataclass(frozen=True)
class Verdict:
    """Whether a statement holds; `reason` has the number and the rule that it was held against."""

    holds: bool
    reason: str


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


def number(value: float | None, unit: str = "") -> str:
    """Four digits where it is not whole; thousands apart."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return f"{value} {unit}".strip()
    plain = f"{value:,.0f}" if value == int(value) or abs(value) >= 10_000 else f"{value:.4g}"
    return f"{plain} {unit}".strip()


def tick(label: str, verdict: Verdict) -> str:
    """A tick box that says what decided it."""
    box, word = ("x", "yes") if verdict.holds else (" ", "no")
    return f"- [{box}] {label} — {word}: {verdict.reason}"


def _is_empty_row(line: str) -> bool:
    cells = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return any(not text.strip() for text in cells)


def _unanswered_question(lines: Sequence[str], index: int) -> bool:
    if not re.search(r"\?\W*$", lines[index]):
        return False
    following = next((line for line in lines[index + 1 :] if line.strip()), "")
    return not re.match(r"Answer: \S|- \[[x ]\] |\|", following)


def unanswered(page: str) -> list[str]:
    """Places that a reader would have to fill in, as `line 12: text`; none in a finished page.

    Blanks, empty cells, boxes that no rule decided (`[x] ... yes: why`, `[ ] ... no: why` are
    decided) and questions without an answer below. Code blocks are left out.
    """
    found, in_code = [], False
    lines = page.split("\n")
    for index, line in enumerate(lines):
        if line.startswith("```"):
            in_code = not in_code
            continue
        if in_code:
            continue
        box = re.match(r"\s*- \[([ xX]?)\]", line)
        word = "no" if box and box[1] == " " else "yes"
        undecided = box and not re.search(rf" — {word}: \S", line)
        stray = not box and re.search(r"\[ \]", line)
        blank = re.search(r"_{3,}", line)
        empty = line.startswith("|") and _is_empty_row(line)
        if undecided or stray or blank or empty or _unanswered_question(lines, index):
            found.append(f"line {index + 1}: {line}")
    return found


NO_TRANSFERS = "no GPU, so no transfers"


def _with(value: float, unit: str) -> str:
    return number(value, unit)


def above(value: float | None, limit: float, unit: str = "%") -> Verdict:
    """Holds above the limit, not at it."""
    rule = f"rule: above {_with(limit, unit)}"
    if value is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(value > limit, f"{_with(value, unit)}; {rule}")


def below(value: float | None, limit: float, unit: str = "%") -> Verdict:
    """Holds below the limit, not at it."""
    rule = f"rule: below {_with(limit, unit)}"
    if value is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(value < limit, f"{_with(value, unit)}; {rule}")


def within(value: float | None, low: float, high: float, unit: str = "%") -> Verdict:
    """Holds from `low` to below `high`, so that neighbouring ranges share no value.

    Either end may be infinite.
    """
    start = f"from {_with(low, '' if math.isfinite(high) else unit)}" if math.isfinite(low) else ""
    end = f"below {_with(high, unit)}" if math.isfinite(high) else ""
    rule = f"rule: {' to '.join(text for text in (start, end) if text)}"
    if value is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(low <= value < high, f"{_with(value, unit)}; {rule}")


def expected(value: float | None, low: float, high: float, unit: str) -> str:
    """`in the range`, or on which side of it."""
    if value is None:
        return NOT_MEASURED
    if low <= value <= high:
        return "in the range"
    side, times = "below", low / value if value > 0 else 0
    if value > high:
        side, times = "above", value / high if high > 0 else 0
    factor = f", by a factor of {times:.3g}" if times else ""
    return f"{side} the range{factor} ({_with(value, unit)})"


def largest(shares: Mapping[str, float | None]) -> str | None:
    """The name with the largest value, the first of equals; None where none was measured."""
    measured = {name: value for name, value in shares.items() if value is not None}
    return max(measured, key=lambda name: measured[name]) if measured else None


def is_largest(
    shares: Mapping[str, float | None], name: str, text: str, unit: str = "%"
) -> Verdict:
    """Holds for the one name of `shares` that is largest(); `text` says what the values are."""
    value, best = shares[name], largest(shares)
    rule = f"rule: the largest {text} wins"
    if value is None or best is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    if best == name:
        return Verdict(True, f"{_with(value, unit)}; {rule}")
    return Verdict(
        False, f"{_with(value, unit)} against {_with(shares[best] or 0, unit)} of {best}; {rule}"
    )


def transfers_verdict(run: MeasuredRun, limit: float) -> Verdict:
    """Whether a step copies more often than this between host and device; a CPU has no device."""
    copies = run.value("operators.transfers_per_step")
    found = above(copies, limit, "copies a step")
    if copies is None and run.value("context.device.backend") == "cpu":
        return Verdict(False, found.reason.replace(NOT_MEASURED, NO_TRANSFERS, 1))
    return found


def share_of(part: float | None, whole: float | None) -> float | None:
    """In percent; None where either is missing or there is no whole."""
    if part is None or not whole:
        return None
    return 100 * part / whole


def ratio(above_line: float | None, below_line: float | None) -> float | None:
    """None where either is missing or the divisor is 0."""
    if above_line is None or not below_line:
        return None
    return above_line / below_line


def all_hold(verdicts: Sequence[Verdict], what: str) -> Verdict:
    """Holds where all do; `what` names them in plural."""
    held = sum(verdict.holds for verdict in verdicts)
    return Verdict(held == len(verdicts), f"{held} of {len(verdicts)} {what}; rule: all of them")


INTERRUPTED = "interrupted"
# MFU: against the datasheet's peak, or the measured one where the device has no datasheet here
UTILIZATION = "flops.flops_profile.efficiency_metrics.mfu_percent"


@dataclass(frozen=True)
class PlannedRun:
    """One run of tiny_llama_train: `name` is its folder, `options` are the worksheet's."""

    name: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class MeasuredRun:
    """What a run left behind. `summary`: None where nothing was measured, for this `reason`.

    `link`: the folder as the worksheet refers to it.
    """

    name: str
    command: str
    summary: Json | None = None
    exit_status: int = 0
    reason: str = ""
    folder: Path = field(default_factory=Path)
    link: str = ""

    def value(self, key: str) -> Held:
        """At a dotted key; None where a part of it is absent or null."""
        value: Held = self.summary
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    @property
    def is_complete(self) -> bool:
        """Whether every planned step was made and the loss stayed finite."""
        wanted, done = self.value("configuration.num_steps"), self.value("summary.steps_completed")
        return self.exit_status == 0 and done is not None and done == wanted


def plain_steps(run: MeasuredRun) -> list[Json]:
    """Steps that no profiler touched, without the first."""
    steps = (run.summary or {}).get("steps") or []
    return [step for step in steps if step["step"] > 1 and not step["profiled"]]


def median_step_seconds(run: MeasuredRun) -> float | None:
    """Median time of the plain steps; of all steps where none is plain."""
    times = [step["time_seconds"] for step in plain_steps(run)]
    return statistics.median(times) if times else run.value("summary.median_step_seconds")


def samples_per_second(run: MeasuredRun) -> float | None:
    """Batch size over the median time of a plain step."""
    seconds, batch = median_step_seconds(run), run.value("configuration.batch_size")
    micro = run.value("configuration.gradient_accumulation_steps") or 1
    return batch * micro / seconds if seconds and batch else None


def _measure(
    planned: PlannedRun,
    program: TrainingProgram,
    folder: Path,
    page_folder: Path,
    *,
    is_first: bool,
) -> MeasuredRun:
    command = command_line(planned.options)
    target = folder / planned.name
    link = Path(os.path.relpath(target, page_folder)).as_posix()
    try:
        run = program.run(planned.options, target, log=folder / f"{planned.name}.log")
    except TrainingError as error:
        if is_first and error.exit_status == REFUSED_OPTIONS:
            raise
        return MeasuredRun(planned.name, command, reason=str(error), exit_status=1)
    draw_timelines(target)
    reason = "" if run.summary else f"no {SUMMARY} was written"
    return MeasuredRun(planned.name, command, run.summary, run.exit_status, reason, target, link)


def measure_all(
    planned: Sequence[PlannedRun],
    program: TrainingProgram,
    folder: Path,
    page_folder: Path,
    say: Callable[[str], None],
    *,
    has_measured: bool = False,
) -> dict[str, MeasuredRun]:
    """Every run in turn, by name. What fails keeps its reason; Ctrl-C leaves the rest unmeasured.

    `page_folder`: of the worksheet, which links to the runs' files. `has_measured`: whether runs
    before these left a summary. Raises OSError where the folder cannot be made, and TrainingError
    where the program refuses what it was given before anything was measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, MeasuredRun] = {}
    for number, run in enumerate(planned, start=1):
        command = command_line(run.options)
        say(f"run {number} of {len(planned)}: {command}")
        is_first = not has_measured and not has_summary(runs)
        try:
            runs[run.name] = _measure(run, program, folder, page_folder, is_first=is_first)
        except KeyboardInterrupt:
            for left in planned[number - 1 :]:
                command = command_line(left.options)
                runs[left.name] = MeasuredRun(left.name, command, reason=INTERRUPTED)
            return runs
        if runs[run.name].reason:
            say(f"   not measured: {runs[run.name].reason}")
    return runs


def has_summary(runs: Mapping[str, MeasuredRun]) -> bool:
    """Whether any of them measured something."""
    return any(run.summary for run in runs.values())


def was_interrupted(runs: dict[str, MeasuredRun]) -> bool:
    """Whether Ctrl-C ended the measuring."""
    return any(run.reason == INTERRUPTED for run in runs.values())


def missing_of(wanted: Iterable[tuple[MeasuredRun, Sequence[str]]]) -> list[str]:
    """Why runs lack what is wanted of their summaries, a text each; empty where nothing is."""
    found = []
    for run, parts in wanted:
        if run.reason:
            found.append(f"{run.name}: {run.reason}")
        found += [
            f"{run.name}: its summary has no `{part}`"
            for part in parts
            if run.summary and run.value(part) is None
        ]
    return found


MOST_DIFFERENCE_PERCENT = 20.0
# A median of fewer says little.
FEWEST_STEPS = 3
# What changes no work of a step.
OF_THE_RUN = frozenset({"num_steps", "seed", "learning_rate"})


def same_work(configuration: Json) -> str:
    """Equal for runs whose steps do the same."""
    return repr(sorted((k, repr(v)) for k, v in configuration.items() if k not in OF_THE_RUN))


def plain_medians(runs: Sequence[MeasuredRun]) -> list[list[tuple[float, str]]]:
    """Median seconds of a plain step and the run's name, fastest first, a list a configuration."""
    groups: dict[str, list[tuple[float, str]]] = {}
    for run in runs:
        times = [step["time_seconds"] for step in plain_steps(run)]
        configuration = run.value("configuration")
        if configuration and len(times) >= FEWEST_STEPS:
            found = (statistics.median(times), run.name)
            groups.setdefault(same_work(configuration), []).append(found)
    return [sorted(group) for group in groups.values()]


def disagreement(runs: Sequence[MeasuredRun]) -> str:
    """A line where runs of the same work differ too much, about the worst; empty where none do."""
    spreads = [
        (100 * (group[-1][0] / group[0][0] - 1), group[0], group[-1])
        for group in plain_medians(runs)
        if group[0][0] > 0
    ]
    percent, fast, slow = max(spreads, default=(0.0, (0.0, ""), (0.0, "")))
    if percent <= MOST_DIFFERENCE_PERCENT:
        return ""
    return (
        f"the machine was not quiet: the same plain step took {milliseconds(fast[0])} in {fast[1]} "
        f"and {milliseconds(slow[0])} in {slow[1]} (medians), {percent:.0f} % more (rule: above "
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


def say(text: str) -> None:
    """Progress, a line a step."""
    print(text, file=sys.stderr, flush=True)


def head(title: str, runs: Sequence[MeasuredRun]) -> list[str]:
    """Title, what the figures belong to, and whether the machine was quiet while they were taken.

    The first of `runs` with a summary stands for all.
    """
    lines = [
        f"# {title}",
        "",
        "Filled in from measurements: behind each answer stand the number and the rule that",
        "decided it, and under the lists and tables the files that they are from, below the folder",
        "of the profiles.",
        "MB are 2^20 bytes; times are medians of steps without the first unless said otherwise.",
        "",
    ]
    run = next((found for found in runs if found.summary), None)
    if run is None:
        return lines
    changed = ", with changes" if run.value("context.git_dirty") else ""
    warning = disagreement(runs)
    return [
        *lines,
        *([f"Warning: {warning}.", ""] if warning else []),
        f"- device: {run.value('context.device.name')} ({run.value('context.device.backend')}), "
        f"{run.value('context.threads')} threads, libtorch {run.value('context.torch_version')}",
        f"- commit: {run.value('context.git_commit')}{changed}; started {run.value('started')}",
        f"- memory is counted by: {run.value('context.memory_source')}",
        f"- model: {run.value('configuration.size')}, {run.value('configuration.dtype')}, "
        f"variant {run.value('configuration.variant')}",
        "",
    ]


def failure_lines(reasons: Sequence[str]) -> list[str]:
    """Why a worksheet has no answers."""
    return [
        "**Not complete.** The questions need runs that are missing:",
        "",
        *(f"- {reason}" for reason in reasons),
        "",
    ]


class Runs(Protocol):
    """The runs of an exercise as a page asks them."""

    def value(self, key: str) -> Held:
        """At a dotted key, of the run that measures it."""


@dataclass(frozen=True)
class FigureRow:
    """A line of a table of figures: `key` of a summary, or a function of the runs; its unit."""

    label: str
    key: str | Callable[[Any], Held]
    unit: str = ""


@dataclass(frozen=True)
class Rule:
    """A tick box: `key` of a summary or a function of the runs, and the limits that decide it.

    Only `low`: above it; only `high`: below it; both: from low to below high. A function may
    return a Verdict itself.
    """

    label: str
    key: str | Callable[[Any], Held]
    low: float | None = None
    high: float | None = None
    unit: str = "%"

    def verdict(self, runs: Runs) -> Verdict:
        """What the runs' value decides."""
        value = look_up(runs, self.key)
        if isinstance(value, Verdict):
            return value
        if self.low is not None and self.high is not None:
            return within(value, self.low, self.high, self.unit)
        if self.low is not None:
            return above(value, self.low, self.unit)
        if self.high is None:
            raise ValueError(f"{self.label}: a rule needs a limit")
        return below(value, self.high, self.unit)


def look_up(runs: Runs, key: str | Callable[[Any], Held]) -> Held:
    """A value of the runs; they have `value(key)`, which picks the run that measured it."""
    return key(runs) if callable(key) else runs.value(key)


def in_unit(value: Held, unit: str) -> str:
    """As the page shows it: MB of bytes, ms of seconds, %, or a number with its unit."""
    if isinstance(value, str):
        return value
    shown = {"MB": megabytes, "ms": milliseconds, "%": percent}.get(unit)
    return shown(value) if shown else number(value, unit)


def range_rows(rows: Iterable[tuple[FigureRow, float, float]], runs: Runs) -> list[tuple[str, ...]]:
    """Label, expected range, measured value and where it lies, of figures with such a range."""
    found = []
    for row, low, high in rows:
        value = look_up(runs, row.key)
        measured = number(value, row.unit)
        where = expected(value, low, high, row.unit)
        found.append((row.label, f"{low}-{high} {row.unit}", measured, where))
    return found


def render(template: str, runs: Runs, **values: Held) -> list[str]:
    """Lines of a template of this folder.

    It has `runs` and `values`; v(key), a value of the runs; figures(rows), ticks(rules) and
    tick(label, verdict), table(header, rows); filters mb, ms, pct, num, times,
    rate, cell and range.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters.update(
        mb=megabytes, ms=milliseconds, pct=percent, num=number, times=times_text, range=expected,
        cell=cell, rate=flops_rate,
    )  # fmt: skip

    def figures(rows: Iterable[FigureRow]) -> str:
        cells = [(row.label, in_unit(look_up(runs, row.key), row.unit)) for row in rows]
        return "\n".join(markdown_table(("figure", "measured"), cells))

    environment.globals.update(
        v=runs.value,
        figures=figures,
        ticks=lambda rules: "\n".join(tick(rule.label, rule.verdict(runs)) for rule in rules),
        tick=tick,
        table=lambda header, rows: "\n".join(markdown_table(header, rows)),
    )
    return environment.get_template(template).render(runs=runs, **values).split("\n")


def times_text(factor: float | None) -> str:
    """`1.85x`."""
    return NOT_MEASURED if factor is None else f"{factor:.2f}x"


def flops_rate(value: float | None) -> str:
    """`1.700e+11 FLOP/s`."""
    return NOT_MEASURED if value is None else f"{value:.3e} FLOP/s"


def all_of(known: int, count: int, what: str, which: str = "all of them") -> Verdict:
    """Whether all of some were found."""
    return Verdict(known == count, f"{known} of {count} {what}; rule: {which}")


def decided(verdicts: Mapping[str, Verdict]) -> list[Rule]:
    """Boxes of which one decision settles all."""
    return [Rule(label, _always(verdict)) for label, verdict in verdicts.items()]


def _always(verdict: Verdict) -> Callable[[Any], Verdict]:
    return lambda _: verdict
