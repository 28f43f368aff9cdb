"""How much more memory steps took than was predicted, from results that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.frontier.axis import COMPONENT, PASS
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.result_set import ResultSet, read_result_set

MEASURED, PREDICTED = "peak_memory_MiB", "predicted_memory_MiB"
# What a folder of results holds: rounds of a grid study, or one run of the suite.
ROUNDS, ONE_RUN = "round_*.json", "results.json"


@dataclass(frozen=True)
class Overhead:
    """`factor`: 1 or more, to multiply predictions with; `source`: where it was seen."""

    factor: float
    source: str


NOT_MEASURED = Overhead(1.0, "none: no --measured results were given")


def result_files(place: Path) -> list[Path]:
    """Files of a set: the file itself, or a folder's rounds. BadInputError for another folder."""
    if not place.is_dir():
        return [place]
    files = sorted(place.glob(ROUNDS))
    if not files and (place / ONE_RUN).is_file():
        files = [place / ONE_RUN]
    if not files:
        raise BadInputError(
            f"{place}: holds neither {ROUNDS} nor {ONE_RUN}; name a folder of scripts/study --grid "
            "or of scripts/bench, or a result file"
        )
    return files


def largest_overhead(results: ResultSet) -> Overhead:
    """The largest ratio over the measured training steps, 1 where all are below it.

    BadInputError where no training step has both figures.
    """
    ratios = {
        name: case.counters[MEASURED] / case.counters[PREDICTED]
        for name, case in results.cases.items()
        if (case.name.component, case.name.pass_name) == (COMPONENT, PASS)
        and case.counters.get(PREDICTED, 0) > 0
        and MEASURED in case.counters
    }
    if not ratios:
        files = ", ".join(map(str, results.paths))
        raise BadInputError(
            f"{files}: no {COMPONENT}/{PASS} case with {MEASURED} and {PREDICTED}; measure some "
            f"(--components {COMPONENT}) or leave --measured out"
        )
    name = max(ratios, key=lambda one: ratios[one])
    seen = f"{ratios[name]:.4f} at {name}, the largest of {len(ratios)} measured steps"
    return Overhead(max(1.0, ratios[name]), f"{seen} ({results.title})")


def measured_overhead(places: Sequence[Path]) -> Overhead:
    """The largest over all these results, each a set of its own; none where there are none."""
    if not places:
        return NOT_MEASURED
    found = [largest_overhead(read_result_set(result_files(place))) for place in places]
    return max(found, key=lambda overhead: overhead.factor)
