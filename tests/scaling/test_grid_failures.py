"""A grid whose cases fail, whose program dies or refuses, and whose files cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grid_runs import CASES, document, grid_folder, names_in, run_grid, small_grid, without_frontier
from grid_stand_in import calls, make_program, measuring_calls, tell


@pytest.fixture(autouse=True)
def no_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    without_frontier(monkeypatch)


def test_a_case_that_fails_or_is_left_out_does_not_end_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_program(tmp_path, fail=["ffn/forward_backward/baseline/tiny/f32/batch:1/seq:8"],
                 skip=["seq:16"])  # fmt: skip
    assert small_grid(tmp_path, "--rounds=2") == 1
    folder = grid_folder(tmp_path)
    assert document(folder, "study.json")["rounds_done"] == 2
    said = capsys.readouterr().err
    assert "ffn/forward_backward/baseline/tiny/f32/batch:1/seq:8: FAILED: wrong" in said
    assert "round 2/2: 3 measured, 4 left out, 1 failed" in said


def test_what_the_program_refuses_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_program(tmp_path, refuse="tiny_llama_bench: --variants 'foo': must be one of baseline")
    assert run_grid(tmp_path, "tiny", "--grid-variants=foo") == 2
    assert "--variants 'foo': must be one of baseline" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
    assert measuring_calls(tmp_path) == []


def test_a_dry_run_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_program(tmp_path)
    assert small_grid(tmp_path, "--dry-run") == 0
    assert f"Grid: {CASES} cases of 2 components, tiny x batch 1, 2 x seq 8, 16" in (
        capsys.readouterr().out
    )
    assert not (tmp_path / "results").exists() and len(calls(tmp_path)) == 1


def test_a_program_that_is_not_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert small_grid(tmp_path) == 2
    assert "tiny_llama_bench cannot be started" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_program(tmp_path)
    (tmp_path / "results").write_text("")
    assert small_grid(tmp_path) == 2
    assert str(tmp_path / "results") in capsys.readouterr().err


def test_a_program_that_dies_leaves_what_it_measured_and_can_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_program(tmp_path, crash_at="full_step")
    assert small_grid(tmp_path, "--rounds=1") == 1
    said = capsys.readouterr().err
    assert "was ended by signal SIGKILL in round_1.json" in said
    assert f"scripts/study --resume --results {tmp_path / 'results'} continues" in said
    assert "ffn/forward_backward" in (grid_folder(tmp_path) / "round_1.journal.jsonl").read_text()
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    assert len(names_in(grid_folder(tmp_path), "round_1.json")) == CASES


def test_a_result_that_is_not_whole_does_not_pass_for_a_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=1") == 0
    folder = grid_folder(tmp_path)
    record = document(folder, "study.json") | {"finished": "", "rounds_done": 0}
    (folder / "study.json").write_text(json.dumps(record))
    (folder / "round_1.journal.jsonl").unlink()
    cut = document(folder, "round_1.json")
    cut["benchmarks"] = cut["benchmarks"][:3]
    (folder / "round_1.json").write_text(json.dumps(cut))
    tell(tmp_path, stale_at="ffn")
    assert run_grid(tmp_path, "--resume") == 1
    said = capsys.readouterr().err
    assert f"round_1.json lacks {CASES - 3} of {CASES} cases" in said
    assert "No space left" in said
    assert document(folder, "study.json")["rounds_done"] == 0
