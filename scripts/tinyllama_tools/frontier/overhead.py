"""How much more memory steps took than was predicted, from results that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.grid_files import ROUNDS, rounds_of
from tinyllama_tools.prediction.memory_overhead import MemoryOverhead, memory_overhead
from tinyllama_tools.profile_text import shown
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.result_set import ResultSet, read_result_set
from tinyllama_tools.result_files import SUITE_FILE


@dataclass(frozen=True)
class Overhead:
    """`model`: what a step needs beyond the formulas; `source`: where it was seen, or why it is
    not known; `device`: that it was measured on."""

    model: MemoryOverhead = field(default_factory=MemoryOverhead)
    source: str = ""
    device: str = ""


NOT_MEASURED = Overhead(source="no --measured results were given, so none is assumed")


def result_files(place: Path) -> list[Path]:
    """Files of a set: the file itself, or a folder's rounds. BadInputError for another folder."""
    if not place.is_dir():
        return [place]
    files = rounds_of(place)
    if not files and (place / SUITE_FILE).is_file():
        files = [place / SUITE_FILE]
    if not files:
        raise BadInputError(
            f"{shown(place)}: holds neither {ROUNDS} nor {SUITE_FILE}; name a folder of "
            "scripts/study --grid or of scripts/bench, or a result file"
        )
    return files


def _overhead_of(results: ResultSet) -> Overhead:
    """BadInputError where no training step has both figures."""
    model = memory_overhead(results.cases.values())
    if not model.steps:
        files = ", ".join(shown(path) for path in results.paths)
        raise BadInputError(
            f"{files}: no full_step/train case with peak_memory_MiB and predicted_memory_MiB; "
            "measure some (--components full_step) or leave --measured out"
        )
    device = str((results.context.get("device") or {}).get("name") or "")
    return Overhead(model, f"{model.in_words()} ({results.title})", device)


def measured_overheads(places: Sequence[Path]) -> tuple[Overhead, ...]:
    """Of each place, whose results are a set of their own; NOT_MEASURED alone without any."""
    found = tuple(_overhead_of(read_result_set(result_files(place))) for place in places)
    return found or (NOT_MEASURED,)


def tightest(overheads: Sequence[Overhead], limit_bytes: int) -> Overhead:
    """Which lets the fewest steps fit the limit: a fixed overhead weighs more where that is small,
    a share where it is large."""
    return min(overheads, key=lambda overhead: overhead.model.formula_bytes(limit_bytes))
