"""Files beside the rounds of a study: they must be of the same run, machine and program."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played_grid import PEAK, Grid, round_document
from played_study import write, write_study

from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.sources import source_of

SMALL = Grid(sizes=("tiny",), batches=(8,), seqs=(128,), rounds=2)
MEDIUM = Grid(sizes=("medium",), batches=(1,), seqs=(128,), components=("full_step",))


def study(folder: Path, grid: Grid) -> Path:
    """Without its frontier, which other tests are about."""
    written = write_study(folder / "study", grid)
    (written / "frontier.json").unlink()
    return written


def read(folder: Path) -> ReportInputs:
    return read_inputs([source_of(folder)])


def change(path: Path, what: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    what(content)
    write(path, content)


def test_products_raise_the_peak_of_all(tmp_path: Path) -> None:
    folder = study(tmp_path, SMALL)

    def faster(content: dict[str, Any]) -> None:
        content["context"]["peaks"]["measured"]["f32"]["flops_per_second"] = 2 * PEAK

    change(folder / "products.json", faster)
    inputs = read(folder)
    assert inputs.main is not None
    measured = inputs.main.context["peaks"]["measured"]["f32"]
    assert measured["flops_per_second"] == pytest.approx(2 * PEAK)
    assert inputs.omissions == ()


@pytest.mark.parametrize(
    ("key", "value"), [("threads", 64), ("git_commit", "d" * 40), ("git_dirty", True)]
)
@pytest.mark.parametrize("name", ["products.json", "check.json"])
def test_another_run_beside_the_rounds_is_named(
    tmp_path: Path, name: str, key: str, value: object
) -> None:
    folder = study(tmp_path, SMALL)
    write(folder / "check.json", round_document(MEDIUM, 1))
    change(folder / name, lambda content: content["context"].update({key: value}))
    inputs = read(folder)
    (error,) = inputs.omissions
    assert error.is_error
    assert (error.name, f"{key} is {value!r}" in error.reason) == (str(folder / name), True)
    assert str(tmp_path) not in error.reason
    assert inputs.main is not None
    assert bool(inputs.main.products) == (name != "products.json")
    assert (inputs.studies[0].check is None) == (name == "check.json")


def test_the_check_is_no_part_of_what_is_analysed(tmp_path: Path) -> None:
    folder = study(tmp_path, SMALL)
    write(folder / "check.json", round_document(MEDIUM, 1))
    inputs = read(folder)
    assert len(inputs.sets) == 1
    assert inputs.main is not None
    assert {case.name.size for case in inputs.main.cases.values()} == {"tiny"}
    check = inputs.studies[0].check
    assert check is not None
    assert {case.name.size for case in check.cases.values()} == {"medium"}


@pytest.mark.parametrize("key", ["parameters", "model_flops", "bytes"])
def test_costs_of_another_program_are_named(tmp_path: Path, key: str) -> None:
    folder = study(tmp_path, SMALL)

    def other(content: dict[str, Any]) -> None:
        entry = next(
            e for e in content["cases"] if e["name"].startswith("ffn/") and "tiny" in e["name"]
        )
        entry[key] += 8

    change(folder / "costs.json", other)
    inputs = read(folder)
    (error,) = inputs.omissions
    assert f": {key} is " in error.reason
    assert "the rounds have" in error.reason
    assert inputs.costs == ()


def test_a_bad_counter_costs_its_case_only(tmp_path: Path) -> None:
    folder = study(tmp_path, replace(SMALL, rounds=3))

    def spoil(content: dict[str, Any]) -> None:
        content["benchmarks"][0]["bytes"] = float("nan")

    change(folder / "round_2.json", spoil)
    inputs = read(folder)
    assert inputs.main is not None
    assert len(inputs.main.paths) == 3
    (left,) = inputs.main.left_out
    assert left.reason == "counter bytes is nan, must be finite"
    assert inputs.omissions == ()
