"""Runs the grid of scripts/study with the stand-in program, and reads what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grid_stand_in import Json

from tinyllama_tools.study import grid as afterwards
from tools import study as main

# 2 x 2 x 1 cells of two components with one pass each
SMALL_GRID = ("--grid-batch=1,2", "--grid-seq=8,16", "--grid-components=ffn,full_step")
CASES = 8


def without_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's costs are no base for one."""
    monkeypatch.setattr(afterwards, "write_frontier", lambda *_, **__: None)


def run_grid(tmp_path: Path, *arguments: str) -> int:
    """The exit status of scripts/study with the build and results of `tmp_path`."""
    places = (f"--results={tmp_path / 'results'}", f"--build-folder={tmp_path / 'build'}")
    return main([*arguments, *places])


def small_grid(tmp_path: Path, *arguments: str) -> int:
    """The grid of CASES cases a round at tiny, without training."""
    return run_grid(tmp_path, "tiny", "--grid=only", *SMALL_GRID, *arguments)


def grid_folder(tmp_path: Path) -> Path:
    """The only one."""
    (folder,) = (tmp_path / "results").glob("*_grid")
    return folder


def document(folder: Path, name: str) -> Json:
    """A file of the folder."""
    return json.loads((folder / name).read_text())


def names_in(folder: Path, name: str) -> list[str]:
    """Of the rows of a result."""
    return [row["run_name"] for row in document(folder, name)["benchmarks"]]
