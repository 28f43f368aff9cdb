"""python -m tinyllama_tools.calibrate.coverage FILE...: how often the 95 % interval of a case's
time covers what it claims to.

Of result files of tiny_llama_bench with many repetitions (--benchmark_repetitions=30): each case's
repetitions in their order make groups of as many as a run has by default. The interval of a group
is the one that a run of so many repetitions writes (repetitions_interval in
benchmarks/harness/measure.cpp). Of two groups of a case both intervals should cover the time that
a run of both would say, the median of their repetitions' medians: in 95 % of pairs, at least 90.
Beside it stands the share that covers the median of all samples of both, which is no claim: there
a repetition that was disturbed, and so has few samples, hardly counts.

Exit status: 0 where at least 90 % of pairs are covered, 1 where not, 2 for a file that cannot be
used."""

import argparse
import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinyllama_tools.core.app import BadInputError, Json, read_json, run_command
from tinyllama_tools.data.names import ITERATION, UNITS
from tinyllama_tools.stats.rank_tests import ends_of_median

REPETITIONS, LEAST_COVERED = 3, 0.90


@dataclass(frozen=True)
class Repetition:
    """Its samples, and their median, in ns."""

    samples: Sequence[float]
    median: float


@dataclass(frozen=True)
class Coverage:
    """Pairs of groups of repetitions; of them those whose intervals both cover the time of both,
    those that cover the median of all samples of both, and those without a common value.
    `half_widths`: of each interval over its time."""

    pairs: int = 0
    covered: int = 0
    samples_covered: int = 0
    disjoint: int = 0
    half_widths: tuple[float, ...] = ()

    def __add__(self, other: "Coverage") -> "Coverage":
        return Coverage(
            self.pairs + other.pairs,
            self.covered + other.covered,
            self.samples_covered + other.samples_covered,
            self.disjoint + other.disjoint,
            self.half_widths + other.half_widths,
        )

    @property
    def text(self) -> str:
        """`95.6 % of 45 pairs covered (80.0 % by samples), 0 disjoint; +- 2.1 % (median)`."""
        share, by_samples = (100 * n / self.pairs for n in (self.covered, self.samples_covered))
        reach = 100 * statistics.median(self.half_widths)
        covered = f"{share:.1f} % of {self.pairs} pairs covered ({by_samples:.1f} % by samples)"
        return f"{covered}, {self.disjoint} disjoint; +- {reach:.1f} % (median)"


def coverage(repetitions: Sequence[Repetition], group: int) -> Coverage:
    """Of a case: all pairs of its groups of so many neighbours."""
    starts = range(0, len(repetitions) - group + 1, group)
    groups = [repetitions[start : start + group] for start in starts]
    intervals = [ends_of_median([one.median for one in of]) for of in groups]
    widths = tuple(
        (high - low) / 2 / statistics.median(one.median for one in of)
        for (low, high), of in zip(intervals, groups, strict=True)
    )
    covered = samples_covered = disjoint = 0
    for i, j in itertools.combinations(range(len(groups)), 2):
        both, ends = (*groups[i], *groups[j]), (intervals[i], intervals[j])
        time = statistics.median(one.median for one in both)
        of_samples = np.median(np.concatenate([one.samples for one in both]))
        covered += all(low <= time <= high for low, high in ends)
        samples_covered += all(low <= of_samples <= high for low, high in ends)
        disjoint += ends[0][1] < ends[1][0] or ends[1][1] < ends[0][0]
    pairs = len(groups) * (len(groups) - 1) // 2
    return Coverage(pairs, covered, samples_covered, disjoint, widths)


def read_repetitions(document: Json) -> Mapping[str, list[Repetition]]:
    """By case, in their order."""
    found: dict[str, list[Repetition]] = {}
    for row in document.get("benchmarks", []):
        if row.get("run_type") == ITERATION and row.get("samples_ns"):
            nanoseconds = row["real_time"] * UNITS[row["time_unit"]] * 1e9
            found.setdefault(row["run_name"], []).append(Repetition(row["samples_ns"], nanoseconds))
    return found


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="coverage", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--group", type=int, default=REPETITIONS, help="repetitions of a run")
    options = parser.parse_args(arguments)
    total = Coverage()
    for path in options.files:
        for name, repetitions in read_repetitions(read_json(path)[0]).items():
            if len(repetitions) < 2 * options.group:
                continue
            of_case = coverage(repetitions, options.group)
            print(f"{name}: {of_case.text}")
            total += of_case
    if not total.pairs:
        what = f"no case has {2 * options.group} repetitions"
        needed = f"measure with --benchmark_repetitions={10 * options.group}"
        raise BadInputError(f"{options.files[0]}: {what}; {needed}")
    print(f"all: {total.text}")
    return 0 if total.covered >= LEAST_COVERED * total.pairs else 1


if __name__ == "__main__":
    sys.exit(run_command("coverage", lambda: main(sys.argv[1:])))
