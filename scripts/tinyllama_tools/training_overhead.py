"""What tiny_llama_train adds to a step: beside full_step of the suite, and with its profilers on.

The sides take turns in one session, and a turn is one ratio of medians; see ratio_statistics.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.markdown_table import markdown_table
from tinyllama_tools.ratio_statistics import Ratio, ratio_of_turns
from tinyllama_tools.result_files import RESULTS, write_whole
from tinyllama_tools.suite_run import (
    Json,
    SuiteCase,
    SuiteError,
    SuiteProgram,
    problem_sizes,
)
from tinyllama_tools.training_overhead_options import parse_options
from tinyllama_tools.training_run import TrainingError, TrainingProgram

PROFILERS = {
    "operators": ("--enable-pytorch-profiler", "--profile-steps=5"),
    "operators with shapes": (
        "--enable-pytorch-profiler",
        "--profile-operators",
        "--profile-steps=5",
    ),
    "memory": ("--profile-memory",),
}
# What the project promises: a run as fast as the suite's step, and profilers that cost little.
LARGEST_DIFFERENCE = 0.02
LARGEST_OVERHEAD = 0.15
BAD, INTERRUPTED = 2, 130


@dataclass(frozen=True)
class Comparison:
    """`ratio`: seconds of a step of `what` over those of a step of `against`; at most `limit`."""

    what: str
    against: str
    limit: float
    ratio: Ratio

    def holds(self) -> str:
        """By the interval: `yes`, `no`, or `not shown` where the limit lies inside it."""
        interval = self.ratio.interval
        low = interval.low if interval else self.ratio.median
        high = interval.high if interval else self.ratio.median
        if high <= self.limit:
            return "yes"
        return "no" if low > self.limit else "not shown"


def step_seconds(summary: Json, profiled: bool) -> float:
    """Median over the steps after the first that a profiler touched, or did not."""
    chosen = [s for s in summary["steps"] if s["step"] > 1 and s["profiled"] == profiled]
    return statistics.median(s["time_seconds"] - s["evaluation_seconds"] for s in chosen)


@dataclass
class Measurement:
    """Turns of one size and variant; `steps` of each side in a turn."""

    size: str
    variant: str
    dtype: str
    steps: int
    suite: SuiteProgram
    training: TrainingProgram

    def _train(self, *options: str) -> Json:
        axes = (f"--size={self.size}", f"--variant={self.variant}", f"--dtype={self.dtype}")
        with tempfile.TemporaryDirectory(prefix="tiny_llama_overhead_") as folder:
            run = self.training.run(
                (*axes, f"--num-steps={self.steps + 1}", *options), Path(folder) / "run"
            )
        if run.summary is None or run.exit_status != 0:
            raise TrainingError(f"tiny_llama_train ended with {run.exit_status}: {run.output}")
        return run.summary

    def _full_step(self) -> float:
        own = problem_sizes()[self.size]
        case = SuiteCase(self.size, self.dtype, own["batch"], own["seq"], self.variant)
        (run,) = self.suite.run([case], self.steps).cases
        if not run.seconds:
            raise SuiteError(f"{run.name}: {run.failed or run.skipped}")
        return statistics.median(run.seconds)

    def turn(self) -> dict[str, tuple[float, float]]:
        """Seconds of a step of each side and of what it is compared with."""
        found = {"tiny_llama_train": (step_seconds(self._train(), False), self._full_step())}
        for name, options in PROFILERS.items():
            summary = self._train(*options)
            found[name] = (step_seconds(summary, True), step_seconds(summary, False))
        return found


def compare(turns: Sequence[dict[str, tuple[float, float]]]) -> list[Comparison]:
    """One comparison for the program and for each profiler."""
    found = []
    for what in turns[0]:
        ratio = ratio_of_turns([t[what][0] for t in turns], [t[what][1] for t in turns])
        own = what == "tiny_llama_train"
        against = "full_step" if own else "plain steps of the same run"
        limit = 1 + (LARGEST_DIFFERENCE if own else LARGEST_OVERHEAD)
        found.append(Comparison(what, against, limit, ratio))
    return found


def table(variant: str, comparisons: Sequence[Comparison]) -> list[str]:
    """Lines of Markdown."""
    rows = [
        (variant, c.what, c.against, c.ratio.text(), f"{c.limit:.2f}", c.holds())
        for c in comparisons
    ]
    return markdown_table(("variant", "step of", "over", "ratio", "at most", "holds"), rows)


def measure(options: argparse.Namespace, suite: SuiteProgram, training: TrainingProgram) -> Json:
    """All variants, turn by turn; prints a table for each."""
    document: Json = {"size": options.size, "dtype": options.dtype, "steps": options.steps}
    for variant in options.variants:
        side = Measurement(options.size, variant, options.dtype, options.steps, suite, training)
        turns = []
        for number in range(options.turns):
            turns.append(side.turn())
            print(f"{variant}: turn {number + 1} of {options.turns}", file=sys.stderr, flush=True)
        comparisons = compare(turns)
        print("\n".join(table(variant, comparisons)), flush=True)
        document[variant] = [
            {
                "what": c.what,
                "against": c.against,
                "limit": c.limit,
                "holds": c.holds(),
                "ratio": c.ratio.as_json(),
            }
            for c in comparisons
        ]
    return document


def context(training: TrainingProgram) -> Json:
    """Machine and commit, as a short run tells them."""
    with tempfile.TemporaryDirectory(prefix="tiny_llama_overhead_") as folder:
        summary = training.run(("--num-steps=1",), Path(folder) / "run").summary
    if summary is None:
        raise TrainingError("tiny_llama_train wrote no summary")
    return {"started": summary["started"], **summary["context"]}


def complain(text: object) -> None:
    """Says what is wrong."""
    print(f"scripts/training_overhead: {text}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse_options(arguments)
    try:
        training = TrainingProgram()
        document = {"context": context(training)} | measure(options, SuiteProgram(), training)
    except SuiteError as error:
        complain(error)
        return 1
    except TrainingError as error:
        complain(error)
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    if options.publish:
        path = RESULTS / "reference" / f"training_overhead_{options.publish}.json"
        try:
            write_whole(path, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            complain(f"{error.filename or path}: {error.strerror}")
            return BAD
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
