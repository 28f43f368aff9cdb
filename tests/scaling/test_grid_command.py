"""scripts/study as a whole: training, grid and frontier, and what it needs to run."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from grid_runs import (
    SMALL_GRID,
    document,
    grid_folder,
    names_in,
    run_grid,
    small_grid,
    without_frontier,
)
from grid_stand_in import calls, make_program, measuring_calls, tell

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.programs import SuiteError, TrainingError
from tinyllama_tools.study import command as study
from tinyllama_tools.study import grid as afterwards

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


class Training:
    """In place of the training of the sizes."""

    def __init__(self, status: int = 0, error: Exception | None = None) -> None:
        self.status, self.error = status, error
        self.sizes: list[tuple[str, ...]] = []

    def __call__(self, options: argparse.Namespace, command: str) -> int:
        assert command.startswith("scripts/study ")
        self.sizes.append(options.sizes)
        if self.error:
            raise self.error
        return self.status


def play_training(monkeypatch: pytest.MonkeyPatch, training: Training) -> Training:
    monkeypatch.setattr(study, "train", training)
    return training


@pytest.fixture
def no_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    without_frontier(monkeypatch)


@pytest.mark.usefixtures("no_frontier")
@pytest.mark.parametrize(("status", "failing", "wanted"), [(0, [], 0), (1, [], 1), (0, ["ffn"], 1)])
def test_sizes_are_trained_and_then_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, failing: list[str], wanted: int
) -> None:
    training = play_training(monkeypatch, Training(status))
    make_program(tmp_path, fail=failing)
    grid = [*SMALL_GRID, "--rounds=1"]
    assert run_grid(tmp_path, "tiny", "medium", *grid) == wanted
    assert training.sizes == [("tiny", "medium")]
    assert document(grid_folder(tmp_path), "study.json")["sizes"] == ["tiny"]


def test_bigger_sizes_are_trained_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = play_training(monkeypatch, Training())
    make_program(tmp_path)
    assert run_grid(tmp_path, "medium") == 0
    assert training.sizes == [("medium",)] and calls(tmp_path) == []


@pytest.mark.usefixtures("no_frontier")
def test_only_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = play_training(monkeypatch, Training())
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=1") == 0
    assert training.sizes == []


@pytest.mark.parametrize(
    ("training", "status"),
    [
        (Training(2), 2),
        (Training(error=TrainingError("tiny_llama_train: no memory", 1)), 1),
        (Training(error=SuiteError("tiny_llama_bench: no device")), 2),
    ],
)
def test_a_training_that_ends_the_study_ends_it_before_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: Training, status: int
) -> None:
    play_training(monkeypatch, training)
    make_program(tmp_path)
    assert run_grid(tmp_path, "tiny", *SMALL_GRID) == status
    assert measuring_calls(tmp_path) == []
    assert list((tmp_path / "results").iterdir()) == []


@pytest.mark.usefixtures("no_frontier")
def test_an_interrupted_training_leaves_the_grid_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play_training(monkeypatch, Training(130))
    make_program(tmp_path)
    grid = [*SMALL_GRID, "--rounds=1"]
    assert run_grid(tmp_path, "tiny", *grid) == 130
    assert "the grid was not begun; scripts/study --resume" in capsys.readouterr().err
    assert measuring_calls(tmp_path) == []
    assert run_grid(tmp_path, "--resume") == 0
    folder = grid_folder(tmp_path)
    assert document(folder, "study.json")["rounds_done"] == 1
    assert f"Resuming {folder}, begun as: scripts/study tiny" in capsys.readouterr().out


def test_a_grid_that_the_program_refuses_is_told_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = play_training(monkeypatch, Training())
    make_program(tmp_path, refuse="tiny_llama_bench: --variants 'foo'")
    assert run_grid(tmp_path, "tiny", "--grid-variants=foo") == 2
    assert training.sizes == []


def put_frontier(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None = None
) -> list[tuple[Path, Path, str, object]]:
    """In place of the prediction; what it is called with."""
    asked: list[tuple[Path, Path, str, object]] = []

    def write_frontier(
        folder: Path, program: Path, device: str, memory_limit: object = None
    ) -> None:
        asked.append((folder, program, device, memory_limit))
        if error:
            raise error
        (folder / "frontier.json").write_text("{}")

    monkeypatch.setattr(afterwards, "write_frontier", write_frontier)
    return asked


def test_the_frontier_is_asked_for_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = put_frontier(monkeypatch)
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=1", "--device=cpu") == 0
    program = tmp_path / "build/benchmarks/tiny_llama_bench"
    assert asked == [(grid_folder(tmp_path), program, "cpu", None)]
    assert "frontier.json" in capsys.readouterr().out


@pytest.mark.parametrize("error", [SuiteError("no device"), BadInputError("no device")])
def test_a_frontier_that_cannot_be_predicted_leaves_the_rest(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    put_frontier(monkeypatch, error)
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=1") == 1
    assert "frontier.json is left out: no device; scripts/study --resume" in capsys.readouterr().err
    folder = grid_folder(tmp_path)
    assert not document(folder, "study.json")["finished"]
    before = len(measuring_calls(tmp_path))
    put_frontier(monkeypatch)
    assert run_grid(tmp_path, "--resume") == 0
    assert (folder / "frontier.json").is_file() and document(folder, "study.json")["finished"]
    assert len(measuring_calls(tmp_path)) == before


@pytest.mark.usefixtures("no_frontier")
def test_products_that_fail_are_measured_by_a_resumed_study(tmp_path: Path) -> None:
    make_program(tmp_path, crash_at="peak/gemm")
    assert small_grid(tmp_path, "--rounds=1") == 1
    folder = grid_folder(tmp_path)
    assert document(folder, "study.json")["rounds_done"] == 1
    tell(tmp_path)
    before = len(measuring_calls(tmp_path))
    assert run_grid(tmp_path, "--resume") == 0
    # twice the products, and the check
    assert len(measuring_calls(tmp_path)) == before + 3
    assert names_in(folder, "products.json")


@pytest.mark.usefixtures("no_frontier")
@pytest.mark.parametrize("what", ["peak/gemm", "/medium/"])
def test_products_or_checks_that_fail_are_a_failure(tmp_path: Path, what: str) -> None:
    make_program(tmp_path, fail=[what])
    assert small_grid(tmp_path, "--rounds=1") == 1
