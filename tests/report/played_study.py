"""Results of made-up machines as files: a grid study, and one result of every other kind."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from played_grid import (
    Grid,
    Json,
    costs_document,
    frontier_document,
    products_document,
    round_document,
    study_document,
)

from fake_training import made_up_summary
from made_up_scaling import write_run
from tinyllama_tools.core.app import RESULTS
from tinyllama_tools.report.document import Section, Table
from tinyllama_tools.report.inputs import ReportInputs, read_inputs, source_of
from tools import scaling


def read(*paths: Path) -> ReportInputs:
    """What a report is made from."""
    return read_inputs([source_of(path) for path in paths])


def write(path: Path, content: object) -> Path:
    """As JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def change(path: Path, what: Callable[[Json], object]) -> Path:
    """The file with its content changed."""
    content = json.loads(path.read_text(encoding="utf-8"))
    what(content)
    return write(path, content)


def write_study(folder: Path, grid: Grid | None = None) -> Path:
    """The folder, filled."""
    played = grid or Grid()
    documents = (study_document, products_document, costs_document, frontier_document)
    for name, of in zip(("study", "products", "costs", "frontier"), documents, strict=True):
        write(folder / f"{name}.json", of(played))
    for number in range(1, played.rounds + 1):
        write(folder / f"round_{number}.json", round_document(played, number))
    return folder


def write_result(path: Path, grid: Grid | None = None) -> Path:
    """A run of the suite: one file."""
    return write(path, round_document(grid or Grid()))


def write_ablation(folder: Path) -> Path:
    """The published one."""
    (published,) = (RESULTS / "reference").glob("ablation_*.json")
    return write(folder / "ablation.json", json.loads(published.read_text(encoding="utf-8")))


def write_training(folder: Path, **options: Any) -> Path:  # noqa: ANN401
    """A performance_summary.json with memory and FLOPs."""
    return write(folder / "performance_summary.json", made_up_summary(**options))


def write_scaling(folder: Path) -> Path:
    """A folder of scripts/scaling with its projections over two interconnects."""
    write_run(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        status = scaling([f"--from={folder}", "--interconnects=mi300x_ndr,ethernet_10g"])
    assert status == 0
    return folder


def write_everything(folder: Path) -> list[Path]:
    """A result of every kind; the second machine is half as fast again."""
    other = Grid(rounds=1, speed=1.5, device="Another CPU", commit="d" * 40)
    return [
        write_study(folder / "20260304T050607Z_grid"),
        write_result(folder / "20260304T060000Z_another_cpu" / "results.json", other),
        write_training(folder / "performance_results_tiny_20260304_070000"),
        write_ablation(folder / "20260304T080000Z_ablation"),
        write_scaling(folder / "20260304T090000Z_scaling"),
    ]


def table(section: Section, identity: str) -> Table:
    """Of a section, by its id."""
    return next(one for one in section.tables if one.id == identity)


def cell(of: Table, row: str, column: str) -> Any:  # noqa: ANN401
    """By the first column's text and the heading without its unit."""
    headings = [heading.partition(" [")[0] for heading in of.columns]
    return next(one for one in of.rows if one[0] == row)[headings.index(column)]
