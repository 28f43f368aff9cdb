"""The figures of a case: time and speed-up with their intervals, and rates; and every case as CSV.

A 95 % interval of a time is over the repetitions' medians, or where there are several files over
the files' medians (docs/counters.md). That of a speed-up comes from the intervals of both times,
unless the program wrote one."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.core.text import value_at
from tinyllama_tools.data.names import BASELINE, CaseName, parse_case_name
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.report.document import KILO
from tinyllama_tools.report.order import name_rank
from tinyllama_tools.stats.rank_tests import (
    WANTED_CONFIDENCE,
    Ends,
    Interval,
    Median,
    Quotient,
    ends_of_median,
    quotient_of_medians,
)


@dataclass(frozen=True)
class CaseFigures:
    """`baseline`: the case that the speed-up is over; None where it was not measured."""

    case: MeasuredCase
    baseline: MeasuredCase | None

    @property
    def name(self) -> CaseName:
        return self.case.name

    @property
    def seconds(self) -> float:
        """The median."""
        return self.case.median_seconds

    @cached_property
    def ends(self) -> Ends | None:
        """Of the time's interval, in seconds; None after a single repetition."""
        times = self.case.seconds if len(self.case.seconds) > 1 else self.case.each
        return ends_of_median(times) if len(times) > 1 else None

    @property
    def milliseconds(self) -> Median:
        """The median with its interval."""
        ends = self.ends and Interval(*(KILO * end for end in self.ends), WANTED_CONFIDENCE)
        return Median(KILO * self.seconds, ends)

    @property
    def half_width_percent(self) -> float | None:
        """Half the width of the interval, of the time."""
        return self.ends and 50 * (self.ends[1] - self.ends[0]) / self.seconds

    @property
    def range_percent(self) -> float | None:
        """The longest repetition less the shortest, of the time."""
        each = self.case.each or self.case.seconds
        return 100 * (max(each) - min(each)) / self.seconds if len(each) > 1 else None

    @cached_property
    def speedup(self) -> Quotient | None:
        """Over the baseline; None for the baseline itself."""
        if self.baseline is None or self.name.variant == BASELINE:
            return None
        value, *own = (self.case.counters.get(f"speedup{end}") for end in ("", "_low", "_high"))
        if value is not None and None not in own:
            return Quotient(value, Interval(*own, WANTED_CONFIDENCE))
        return CaseFigures(self.baseline, None).over(self)

    def over(self, other: "CaseFigures") -> Quotient:
        """Its time over the other's."""
        return quotient_of_medians(self.seconds, self.ends, other.seconds, other.ends)

    @property
    def mark(self) -> str:
        """`!` where the case was disturbed."""
        return "!" if self.case.disturbance else ""

    @property
    def marked_disturbance(self) -> str:
        """`! 1 of 3 rounds: mean 1.37 ms, median 0.80 ms: ...`; empty where nothing was found."""
        return f"! {self.case.disturbance}" if self.case.disturbance else ""


def figures_of(results: ResultSet) -> list[CaseFigures]:
    """Every case, in the order of tables."""
    every = sorted(results.cases.values(), key=lambda case: name_rank(case.name))
    baselines = (results.cases.get(str(replace(c.name, variant=BASELINE))) for c in every)
    return list(map(CaseFigures, every, baselines))


# ---- CSV; docs/report.md has its columns

FIGURES = {
    "time_ms": lambda case: KILO * case.seconds,
    "time_low_ms": lambda case: case.ends and KILO * case.ends[0],
    "time_high_ms": lambda case: case.ends and KILO * case.ends[1],
    "time_range_percent": lambda case: case.range_percent,
    "speedup": lambda case: value_at(case.speedup, "median"),
    "speedup_low": lambda case: value_at(case.speedup, "interval.low"),
    "speedup_high": lambda case: value_at(case.speedup, "interval.high"),
}
# named as in a result file
COUNTERS = (
    *("TFLOPS", "MFU_percent", "peak_percent", "roof_percent", "GB_per_second"),
    *("samples_per_second", "tokens_per_second", "peak_memory_MiB"),
)
AXES = ("component", "pass", "variant", "size", "dtype", "batch", "seq")
RUN = {"device": "device.name", "architecture": "device.architecture", "threads": "threads"}
RUN |= {"git_commit": "git_commit"}
HEADER = (*AXES, "status", *FIGURES, *COUNTERS, "disturbed", "reason", *RUN)


def _rows(results: ResultSet) -> Iterator[dict[str, object]]:
    """By column; what a case has no figure of is left out."""
    run = {name: value_at(results.context, path) for name, path in RUN.items()}
    for found in figures_of(results):
        figures = {name: figure(found) for name, figure in FIGURES.items()}
        figures |= {name: found.case.counters.get(name) for name in COUNTERS}
        known = {k: f"{v:.6g}" for k, v in figures.items() if v is not None and math.isfinite(v)}
        own = {"status": "measured", "disturbed": found.case.disturbance}
        yield found.name.axes | own | known | run
    for text, case in results.left_out.items():
        if name := parse_case_name(text):
            status = "failed" if case.failed else "skipped"
            yield name.axes | {"status": status, "reason": case.reason} | run


def csv_of(sets: Sequence[ResultSet]) -> str:
    """A row for each case (RFC 4180, with line feeds); of each set those without a figure last.
    BadInputError where there is no row."""
    if not any(results.cases or results.left_out for results in sets):
        raise BadInputError("no result of the suite was given, whose cases would be the rows")
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADER, restval="", lineterminator="\n")
    writer.writeheader()
    for results in sets:
        writer.writerows(_rows(results))
    return text.getvalue()
