"""What is said of a case: its time and speed-up with their intervals, its rates; every case as CSV.

An interval of 95 % is of medians of repetitions, or of several files of medians of files
(docs/counters.md); that of a speed-up comes from both times' unless the program wrote its own."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
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
    Quotient,
    ends_of_median,
    quotient_of_medians,
)


@dataclass(frozen=True)
class CaseFigures:
    """`baseline`: the case that its speed-up is over; None where that was not measured."""

    case: MeasuredCase
    baseline: MeasuredCase | None

    @property
    def name(self) -> CaseName:
        """Of the case."""
        return self.case.name

    @property
    def seconds(self) -> float:
        """Median."""
        return self.case.median_seconds

    @cached_property
    def ends(self) -> Ends | None:
        """The interval of the time; None of a single repetition."""
        times = self.case.seconds if len(self.case.seconds) > 1 else self.case.each
        return ends_of_median(times) if len(times) > 1 else None

    @property
    def interval_ms(self) -> Interval | None:
        """The same."""
        return self.ends and Interval(*(KILO * end for end in self.ends), WANTED_CONFIDENCE)

    @property
    def half_width_percent(self) -> float | None:
        """Of the time."""
        return self.ends and 50 * (self.ends[1] - self.ends[0]) / self.seconds

    @property
    def spread_percent(self) -> float | None:
        """The longest repetition less the shortest, of the time."""
        each = self.case.each or self.case.seconds
        return 100 * (max(each) - min(each)) / self.seconds if len(each) > 1 else None

    @cached_property
    def speedup(self) -> Quotient | None:
        """Over the baseline; None of the baseline itself."""
        if self.baseline is None or self.name.variant == BASELINE:
            return None
        value, *own = (self.case.counters.get(f"speedup{end}") for end in ("", "_low", "_high"))
        if value is not None and None not in own:
            return Quotient(value, Interval(*own, WANTED_CONFIDENCE))
        return CaseFigures(self.baseline, None).over(self)

    def over(self, other: CaseFigures) -> Quotient:
        """Its time over another's."""
        return quotient_of_medians(self.seconds, self.ends, other.seconds, other.ends)


def figures_of(results: ResultSet) -> list[CaseFigures]:
    """Of every case, in the order of tables."""
    every = sorted(results.cases.values(), key=lambda case: name_rank(case.name))
    baselines = (results.cases.get(str(replace(of.name, variant=BASELINE))) for of in every)
    return [CaseFigures(*of) for of in zip(every, baselines, strict=True)]


AXES = ("component", "pass_name", "variant", "size", "dtype", "batch", "seq")
TIMES = {
    "time_ms": lambda of: KILO * of.seconds,
    "time_low_ms": lambda of: of.ends and KILO * of.ends[0],
    "time_high_ms": lambda of: of.ends and KILO * of.ends[1],
    "spread_percent": lambda of: of.spread_percent,
    "speedup": lambda of: value_at(of.speedup, "median"),
    "speedup_low": lambda of: value_at(of.speedup, "interval.low"),
    "speedup_high": lambda of: value_at(of.speedup, "interval.high"),
}
# as in a result file
COUNTERS = (
    *("TFLOPS", "MFU_percent", "peak_percent", "roof_percent", "GB_per_second"),
    *("samples_per_second", "tokens_per_second", "peak_memory_MiB"),
)
COLUMNS = ("pass" if axis == "pass_name" else axis for axis in AXES)
HEADER = (*COLUMNS, *TIMES, *COUNTERS, "device", "commit", "no figure because")


def _rows(results: ResultSet) -> Iterator[list[object]]:
    context: Mapping[str, object] = results.context
    of_run = [value_at(context, "device.name"), context.get("git_commit")]
    for of in figures_of(results):
        figures = [*(get(of) for get in TIMES.values()), *map(of.case.counters.get, COUNTERS)]
        texts = ["" if v is None or not math.isfinite(v) else f"{v:.6g}" for v in figures]
        yield [*(getattr(of.name, axis) for axis in AXES), *texts, *of_run, ""]
    empty = [""] * (len(TIMES) + len(COUNTERS))
    for text, case in results.left_out.items():
        if name := parse_case_name(text):
            yield [*(getattr(name, axis) for axis in AXES), *empty, *of_run, case.reason]


def csv_of(results: ResultSet) -> str:
    """A row a case (RFC 4180, with line feeds); those without a figure last, with their reason.
    BadInputError where there is neither."""
    if not (results.cases or results.left_out):
        raise BadInputError("no result of the suite was given, whose cases would be the rows")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(_rows(results))
    return text.getvalue()
