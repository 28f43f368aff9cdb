"""How a grid ends: failures, interruptions, and the check of a bigger size."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from grid_runs import (
    CASES,
    SMALL_GRID,
    document,
    grid_folder,
    names_in,
    run_grid,
    small_grid,
    without_frontier,
)
from grid_stand_in import HELD, Json, calls, make_program, measuring_calls, tell, value

from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.study.grid import choose_step
from tinyllama_tools.study.grid_plan import CHECK_SECONDS, CHECK_STEPS, GridPlan


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


SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed_signals() -> None:
    """The tests themselves may run where some of these are ignored, and so a program of theirs."""
    for number in ASKING:
        signal.signal(number, signal.SIG_DFL)


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """What it says on standard error goes to a file, for said_by()."""
    places = (f"--results={tmp_path / 'results'}", f"--build-folder={tmp_path / 'build'}")
    options = ["tiny", "--grid=only", *SMALL_GRID, *arguments, *places]
    with (tmp_path / "said").open("w") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "tinyllama_tools", "study", *options],
            env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
            stderr=said,
            stdout=subprocess.DEVNULL,
            preexec_fn=heed_signals,
        )


def said_by(tmp_path: Path) -> str:
    """So far."""
    return (tmp_path / "said").read_text()


def journaled(tmp_path: Path, number: int) -> list[Json]:
    """The cases in the journal of a round so far, in order."""
    for folder in (tmp_path / "results").glob("*_grid"):
        path = folder / f"round_{number}.journal.jsonl"
        if path.exists():
            lines = [json.loads(text) for text in path.read_text().split("\n")[:-1]]
            return [line for line in lines if "case" in line]
    return []


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def wait_until_held(
    tmp_path: Path, number: int, rounds: int, process: subprocess.Popen[bytes]
) -> None:
    """Until the study says that it has heard of the last case before the one that is held. From
    then on it listens; that the case is in the journal says no more than that the program runs,
    which the study may still be starting, in the midst of Popen."""
    line = f"round {number}/{rounds} [{(number - 1) * CASES + HELD}/{rounds * CASES} cases"
    wait_until(lambda: line in said_by(tmp_path), process)
    assert len(journaled(tmp_path, number)) == HELD


def interrupted_in(tmp_path: Path, number: int, by: signal.Signals = signal.SIGINT) -> str:
    """What was said."""
    make_program(tmp_path, hold_in=f"round_{number}")
    process = start(tmp_path, "--rounds=2")
    wait_until_held(tmp_path, number, 2, process)
    process.send_signal(by)
    status = process.wait(60)
    assert status == 130, said_by(tmp_path)
    return said_by(tmp_path)


@pytest.mark.parametrize("by", ASKING)
def test_an_interrupted_study_keeps_what_it_measured_and_says_how_to_go_on(
    tmp_path: Path, by: signal.Signals
) -> None:
    said = interrupted_in(tmp_path, 1, by)
    assert "ending after the case in hand" in said
    results = tmp_path / "results"
    assert f"interrupted: 0 of 2 rounds are done, and nothing is lost; scripts/study --resume " \
           f"--results {results} continues" in said  # fmt: skip
    kept = journaled(tmp_path, 1)
    # the one in hand was ended, if it had begun when the signal came
    assert len(kept) in {HELD, HELD + 1}
    folder = grid_folder(tmp_path)
    assert len(names_in(folder, "round_1.json")) == len(kept)
    record = document(folder, "study.json")
    assert (record["rounds_done"], record["finished"]) == (0, "")
    assert record["round_seconds"][0] > 0


def test_a_resumed_study_measures_only_what_is_missing(tmp_path: Path) -> None:
    interrupted_in(tmp_path, 2)
    first, kept = journaled(tmp_path, 1), journaled(tmp_path, 2)
    before = len(measuring_calls(tmp_path))
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    folder = grid_folder(tmp_path)
    record = document(folder, "study.json")
    assert record["rounds_done"] == 2 and record["finished"]
    assert record["command"].startswith("scripts/study tiny --grid=only")
    assert journaled(tmp_path, 1) == first
    assert journaled(tmp_path, 2)[: len(kept)] == kept
    assert len(journaled(tmp_path, 2)) == CASES
    # the rest of round 2, twice the products, and the check
    again = measuring_calls(tmp_path)[before:]
    assert [Path(value(call, "benchmark_out")).name for call in again] == [
        *("round_2.json", "products_own.json", "products_largest.json", "check.json")
    ]
    assert value(again[0], "grid-batch") == "" and value(again[0], "batch") in {"1,2", "2,1"}
    assert (folder / "products.json").is_file()


def test_a_killed_study_goes_on_from_its_journal(tmp_path: Path) -> None:
    make_program(tmp_path, hold_in="round_1")
    process = start(tmp_path, "--rounds=1")
    wait_until(lambda: len(journaled(tmp_path, 1)) == HELD, process)
    process.kill()
    process.wait(60)
    kept = journaled(tmp_path, 1)
    journal = grid_folder(tmp_path) / "round_1.journal.jsonl"
    with journal.open("a") as stream:
        stream.write('{"case": "cut sho')
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    assert journaled(tmp_path, 1)[: len(kept)] == kept
    assert len(names_in(grid_folder(tmp_path), "round_1.json")) == CASES


def test_ctrl_c_twice_ends_at_once(tmp_path: Path) -> None:
    make_program(tmp_path, hold_in="round_1", is_stubborn=True)
    process = start(tmp_path)
    wait_until_held(tmp_path, 1, 3, process)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "Ctrl-C once more ends at once" in said_by(tmp_path), process)
    process.send_signal(signal.SIGINT)
    status = process.wait(60)
    said = said_by(tmp_path)
    assert status == 130, said
    assert "interrupted: 0 of 3 rounds are done" in said.splitlines()[-1]
    assert len(journaled(tmp_path, 1)) == HELD


def test_another_build_is_refused_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted_in(tmp_path, 1)
    kept = journaled(tmp_path, 1)
    tell(tmp_path, commit="def")
    assert run_grid(tmp_path, "--resume") == 2
    said = capsys.readouterr().err
    assert 'git_commit = "abc", this run has "def"' in said
    assert "begun with another build, commit or machine" in said
    assert journaled(tmp_path, 1) == kept


def test_another_build_is_refused_between_rounds_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_program(tmp_path)
    run_grid(tmp_path, "tiny", "--grid=only", *SMALL_GRID, "--rounds=1")
    folder = grid_folder(tmp_path)
    record = document(folder, "study.json") | {"rounds": 2, "finished": ""}
    (folder / "study.json").write_text(json.dumps(record))
    tell(tmp_path, commit="def")
    assert run_grid(tmp_path, "--resume") == 2
    assert 'git_commit = "abc", this run has "def"' in capsys.readouterr().err
    assert not (folder / "round_2.json").exists()


def test_a_study_that_ended_is_not_resumed(tmp_path: Path) -> None:
    make_program(tmp_path)
    assert run_grid(tmp_path, "tiny", "--grid=only", *SMALL_GRID, "--rounds=1") == 0
    with pytest.raises(SystemExit) as ended:
        run_grid(tmp_path, "--resume")
    assert ended.value.code == 2


PLAN = GridPlan(("tiny", "small"))
# every batch of medium takes as many more FLOPs
FLOPS_A_SAMPLE = 1_000_000


def costs(largest_that_fits: int = 16) -> list[CaseCost]:
    found = []
    for batch, seq in PLAN.check_shapes:
        name = parse_case_name(f"full_step/train/baseline/medium/f32/batch:{batch}/seq:{seq}")
        assert name is not None
        fits = batch <= largest_that_fits
        flops = FLOPS_A_SAMPLE * batch
        reason = "" if fits else "too large"
        found.append(CaseCost(name, 1, flops, flops, flops, 1, 1, 1, fits, reason))
    return found


def rate_for(batch: int) -> float:
    """At which so many samples take all of the time."""
    return (CHECK_STEPS + 1) * FLOPS_A_SAMPLE * batch / CHECK_SECONDS


def test_the_shapes_are_the_own_and_smaller_batches() -> None:
    assert PLAN.check_shapes == [(16, 512), (8, 512), (4, 512), (2, 512), (1, 512)]


@pytest.mark.parametrize(("rate", "fitting", "batch"), [(16, 16, 16), (7, 16, 4), (16, 2, 2)])
def test_the_largest_that_fits_and_is_quick_is_taken(rate: int, fitting: int, batch: int) -> None:
    step, why = choose_step(PLAN, costs(fitting), rate_for(rate) * 1.001)
    assert step is not None and step.name.batch == batch
    assert why == ""


@pytest.mark.parametrize(
    ("rate", "fitting", "why"),
    [
        (0.1, 16, "4 steps would take 10 min at batch 1 and sequence 512"),
        (16, 0, "too large at batch 1 and sequence 512"),
    ],
)
def test_where_none_will_do_the_reason_is_told(rate: float, fitting: int, why: str) -> None:
    assert choose_step(PLAN, costs(fitting), rate_for(1) * rate) == (None, why)


def test_without_costs_there_is_no_step() -> None:
    assert choose_step(PLAN, [], 1.0) == (None, "its costs at medium are not known")


def test_the_variant_that_is_looked_into_is_checked() -> None:
    plan = dataclasses.replace(PLAN, variants=("baseline", "optimized"))
    assert choose_step(plan, costs(), 1e30)[0] is None


def test_a_study_checks_a_size_that_is_not_in_its_grid(tmp_path: Path) -> None:
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=1") == 0
    folder = grid_folder(tmp_path)
    (name,) = names_in(folder, "check.json")
    assert name.startswith("full_step/train/baseline/medium/f32/batch:16/seq:512")
    assert "medium" not in "".join(names_in(folder, "round_1.json"))
    (call,) = [c for c in measuring_calls(tmp_path) if "check.json" in value(c, "benchmark_out")]
    assert value(call, "benchmark_repetitions") == str(CHECK_STEPS)
    assert value(call, "benchmark_min_time") == "1x"
    assert value(call, "verify") == "off"
    # no step that the study affords is too slow for the program
    assert float(value(call, "max-seconds-per-case")) >= CHECK_SECONDS
    priced = {case["name"] for case in document(folder, "costs.json")["cases"]}
    assert "ffn/forward_backward/baseline/medium/f32/batch:4/seq:512" in priced


@pytest.mark.parametrize("arguments", [["--check-size=off"], ["--check-size=tiny"]])
def test_no_check_where_none_is_wanted(tmp_path: Path, arguments: list[str]) -> None:
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=1", *arguments) == 0
    assert not (grid_folder(tmp_path) / "check.json").exists()


def test_without_a_step_there_is_nothing_to_estimate_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_program(tmp_path)
    only = ("--grid-components=ffn", "--grid-batch=1", "--grid-seq=8", "--rounds=1")
    assert run_grid(tmp_path, "tiny", "--grid=only", *only) == 0
    assert "check.json is left out: no training step was measured" in capsys.readouterr().err


def test_a_check_that_was_cut_off_is_made_by_a_resumed_study(tmp_path: Path) -> None:
    make_program(tmp_path, crash_at="/medium/")
    assert small_grid(tmp_path, "--rounds=1") == 1
    assert not document(grid_folder(tmp_path), "study.json")["finished"]
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    assert names_in(grid_folder(tmp_path), "check.json")
