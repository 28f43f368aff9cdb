"""Results of made-up machines as files: a grid study, and one result of every other kind."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from played_grid import (
    Grid,
    costs_document,
    frontier_document,
    products_document,
    round_document,
    study_document,
)

from fake_ablation import FakeProgram, measurement, study
from fake_training import made_up_summary
from made_up_scaling import write_run
from tinyllama_tools.commands.ablation import Effort, parse_options, run_study
from tinyllama_tools.models.ablations import result_text
from tinyllama_tools.report.build import build_document
from tinyllama_tools.report.inputs import read_inputs
from tinyllama_tools.report.sources import source_of
from tools import scaling


def write(path: Path, content: object) -> Path:
    """As JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_study(folder: Path, grid: Grid | None = None) -> Path:
    """The folder, filled."""
    played = grid or Grid()
    write(folder / "study.json", study_document(played))
    for number in range(1, played.rounds + 1):
        write(folder / f"round_{number}.json", round_document(played, number))
    write(folder / "products.json", products_document(played))
    write(folder / "costs.json", costs_document(played))
    write(folder / "frontier.json", frontier_document(played))
    return folder


def write_result(path: Path, grid: Grid | None = None) -> Path:
    """A run of the suite: one file."""
    return write(path, round_document(grid or Grid(), 1))


def write_ablation(folder: Path) -> Path:
    """An ablation.json of the fake for the suite."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ablation.json"
    only_main = ("--switches=qkv,sdpa,graph", "--dtypes=f32", "--points=8x128", "--only=main")
    options = parse_options([*only_main, "--turns=6"])
    made = study(*options.switches, combinations=options.combinations)
    effort = Effort(options.turns, options.steps, options.seed, options.slow_seconds)
    run_study(made, measurement(FakeProgram(), effort), options, lambda: None, 120)
    path.write_text(result_text(made), encoding="utf-8")
    return path


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


def document(folder: Path, paths: Sequence[Path] | None = None) -> Mapping[str, Any]:
    """The report's document as the page takes it, of a result of every kind unless told."""
    named = write_everything(folder) if paths is None else paths
    inputs = read_inputs([source_of(path) for path in named])
    return build_document(inputs).as_json()
