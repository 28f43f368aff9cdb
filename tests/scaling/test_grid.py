"""The grid of scripts/study with a fake program: files, rounds, faults, kills and options."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from grid_fake import HELD, Json, calls, make_program, measuring_calls, tell, value

from tinyllama_tools.commands import grid, study
from tinyllama_tools.commands.grid import GridProgress, GridStudy, Place, choose_step, run_rounds
from tinyllama_tools.commands.grid_plan import (
    CHECK_SECONDS,
    CHECK_STEPS,
    COMPONENTS,
    GridPlan,
    Record,
    number_list,
    read_record,
    write_record,
)
from tinyllama_tools.commands.study import parse_options
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.data.programs import CaseCost, SuiteError, TrainingError
from tools import run_tool

# 2 x 2 x 1 cells of two components with one pass each
SMALL_GRID = ("--grid-batch=1,2", "--grid-seq=8,16", "--grid-components=ffn,full_step")
CASES = 8
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def frontier(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path, str]]:
    """In place of the prediction; what it is called with. The fake's costs are no base for one."""
    asked: list[tuple[Path, Path, str]] = []
    monkeypatch.setattr(grid, "predict_frontier", lambda *given: asked.append(given))
    return asked


def places(tmp_path: Path) -> list[str]:
    return [f"--results={tmp_path / 'results'}", f"--build-folder={tmp_path / 'build'}"]


def run_grid(tmp_path: Path, *arguments: str) -> int:
    return run_tool(["study", *arguments, *places(tmp_path)])


def small_grid(tmp_path: Path, *arguments: str) -> int:
    """The grid of CASES cases a round at tiny, without training."""
    return run_grid(tmp_path, "tiny", "--grid=only", *SMALL_GRID, *arguments)


def grid_folder(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "results").glob("*_grid")
    return folder


def document(tmp_path: Path, name: str = "study.json") -> Json:
    return json.loads((grid_folder(tmp_path) / name).read_text())


def names_in(tmp_path: Path, name: str) -> list[str]:
    return [row["run_name"] for row in document(tmp_path, name)["benchmarks"]]


def journaled(tmp_path: Path, number: int) -> list[Json]:
    """The cases in the journal of a round so far, in order."""
    for path in (tmp_path / "results").glob(f"*_grid/round_{number}.journal.jsonl"):
        lines = [json.loads(text) for text in path.read_text().split("\n")[:-1]]
        return [line for line in lines if "case" in line]
    return []


def test_a_study_leaves_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], frontier: list[tuple[Path, Path, str]]
) -> None:
    build = make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=2", "--device=cpu") == 0
    record = document(tmp_path)
    wanted = {
        **{"kind": "grid", "schema_version": 1, "sizes": ["tiny"], "batch": [1, 2], "seq": [8, 16]},
        "components": ["ffn", "full_step"],
        "passes": ["forward_backward", "update", "train", "forward_loss"],
        **{"variants": ["baseline"], "dtypes": ["f32"], "rounds": 2, "rounds_done": 2},
        **{"left_out": "", "check_size": "medium", "device": "cpu"},
    }
    assert {key: record[key] for key in wanted} == wanted
    assert record["command"].startswith("scripts/study tiny --grid=only") and record["finished"]
    cases = {
        f"{component}/baseline/tiny/f32/batch:{batch}/seq:{seq}/manual_time"
        for component in ("ffn/forward_backward", "full_step/train")
        for batch, seq in itertools.product((1, 2), (8, 16))
    }
    for number in (1, 2):
        assert set(names_in(tmp_path, f"round_{number}.json")) == cases
        assert len(journaled(tmp_path, number)) == CASES
    # what may be published names no host, user or folder
    for path in grid_folder(tmp_path).glob("*.json"):
        assert not re.search(
            r"somebody|(?<![.\w])/(home|tmp|root)/", path.read_text(encoding="utf-8")
        ), path
    said = capsys.readouterr()
    assert f"round 1/2: {CASES} measured, 0 left out, 0 failed" in said.err
    assert said.out.splitlines()[-1] == "scripts/report makes the page of it."
    assert "round_2.json" in said.out
    program = build / "benchmarks/tiny_llama_bench"
    assert frontier == [(grid_folder(tmp_path), program, "cpu")]
    rounds = [c for c in measuring_calls(tmp_path) if "round_" in value(c, "benchmark_out")]
    assert [value(call, "verify") for call in rounds] == ["before", "off"]
    for call in rounds:
        wanted = {"benchmark_repetitions": "1", "benchmark_min_time": "0.1s"}
        assert {name: value(call, name) for name in wanted} == wanted


def test_rounds_go_through_the_axes_in_orders_of_their_own_that_repeat() -> None:
    plan = GridPlan(("tiny", "small"))
    axes = ("sizes", "batch", "seq")
    orders = [tuple(value(plan.round(n), axis) for axis in axes) for n in range(1, 9)]
    assert len(set(orders)) > 1
    for order in orders:
        assert [sorted(text.split(",")) for text in order] == [
            sorted(map(str, getattr(plan, axis))) for axis in axes
        ]
    assert plan.round(3) == plan.round(3)


def test_costs_are_of_the_grid_the_check_and_every_size_at_its_own_shape(tmp_path: Path) -> None:
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=1") == 0
    costs = document(tmp_path, "costs.json")
    assert costs["memory_budget_bytes"] == 2**30
    assert (costs["device"], costs["git_commit"]) == ({"name": "card"}, "0123abcd")
    names = [case["name"] for case in costs["cases"]]
    assert len(names) == len(set(names))
    assert {
        "ffn/forward_backward/baseline/tiny/f32/batch:2/seq:16",
        "ffn/forward_backward/baseline/medium/f32/batch:4/seq:512",
        "rms_norm/forward_backward/baseline/medium/f32/batch:16/seq:512",
    } < set(names)
    sizes = {name.split("/")[3] for name in names if name.startswith("full_step/train")}
    assert sizes == {"tiny", "small", "medium", "large", "very_large"}


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        # 8 x 128, 8 x 256, and twice 2 x 16, which the fake names once a size
        (["--grid-sizes=tiny,small", *SMALL_GRID], ["1024", "2048", "32", "32"]),
        (["--grid-batch=1,8", "--grid-seq=128,64", "--grid-components=ffn"], ["1024"]),
    ],
)
def test_products_are_of_each_size_and_of_the_largest_cell_once(
    tmp_path: Path, options: list[str], shapes: list[str]
) -> None:
    make_program(tmp_path)
    assert run_grid(tmp_path, "tiny", "--grid=only", "--rounds=1", *options) == 0
    names = names_in(tmp_path, "products.json")
    assert [name.split("/")[3] for name in names] == [f"{n}x256x256" for n in shapes]
    assert not list(grid_folder(tmp_path).glob("products_*"))


@pytest.mark.parametrize(
    ("minutes", "durations", "left_out"),
    [
        (10.0, (100, 100, 100), ""),
        (10.0, (300, 200), "round 3 left out"),
        (10.0, (500,), "rounds 2 to 3 left out"),
        (0.1, (500,), "rounds 2 to 3 left out"),
    ],
)
def test_later_rounds_are_left_out_where_the_budget_is_spent(
    tmp_path: Path, minutes: float, durations: tuple[float, ...], left_out: str
) -> None:
    program = make_program(tmp_path) / "benchmarks/tiny_llama_bench"
    plan = GridPlan(("tiny",), (1,), (8,), ("ffn",), minutes=minutes)
    names = ["ffn/forward_backward/baseline/tiny/f32/batch:1/seq:8"]
    # two looks a round: at its start and its end
    looks = itertools.accumulate(itertools.chain.from_iterable((0.0, s) for s in durations))
    folder = tmp_path / "results/x_grid"
    folder.mkdir(parents=True)
    stream = io.StringIO()
    run_rounds(
        GridStudy(folder, program, Record(plan), lambda: next(looks)),
        names,
        GridProgress({}, stream),
    )
    record = document(tmp_path)
    assert record["round_seconds"] == list(durations) and record["rounds_done"] == len(durations)
    assert record["left_out"].startswith(left_out) and bool(record["left_out"]) == bool(left_out)
    assert record["left_out"] in stream.getvalue()


# ---- the steps of a bigger size that predictions are checked by

# every batch of medium takes as many more FLOPs
FLOPS_A_SAMPLE = 1_000_000


@pytest.mark.parametrize(
    ("rate", "fitting", "batch", "why"),
    [
        (16, 16, 16, ""),
        (7, 16, 4, ""),
        (16, 2, 2, ""),
        (0.1, 16, None, "4 steps would take 10 min at batch 1 and sequence 512"),
        (16, 0, None, "too large at batch 1 and sequence 512"),
        (16, None, None, "its costs at medium are not known"),
    ],
)
def test_the_largest_step_that_fits_and_is_quick_checks(
    rate: float, fitting: int | None, batch: int | None, why: str
) -> None:
    """`rate`: so many samples take all of the time."""
    plan, costs = GridPlan(("tiny", "small")), []
    assert plan.check_shapes == [(16, 512), (8, 512), (4, 512), (2, 512), (1, 512)]
    for of, seq in plan.check_shapes if fitting is not None else ():
        name = parse_case_name(f"full_step/train/baseline/medium/f32/batch:{of}/seq:{seq}")
        assert name is not None
        flops, reason = FLOPS_A_SAMPLE * of, "" if of <= fitting else "too large"
        costs.append(CaseCost(name, 1, flops, flops, flops, 1, 1, 1, not reason, reason))
    attained = 1.001 * (CHECK_STEPS + 1) * FLOPS_A_SAMPLE * rate / CHECK_SECONDS
    step, said = choose_step(plan, costs, attained)
    assert (step.name.batch if step else None, said) == (batch, why)


def test_a_study_checks_a_size_that_is_not_in_its_grid(tmp_path: Path) -> None:
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=1") == 0
    (name,) = names_in(tmp_path, "check.json")
    assert name.startswith("full_step/train/baseline/medium/f32/batch:16/seq:512")
    assert "medium" not in "".join(names_in(tmp_path, "round_1.json"))
    (call,) = [c for c in measuring_calls(tmp_path) if "check.json" in value(c, "benchmark_out")]
    wanted = {"benchmark_repetitions": "3", "benchmark_min_time": "1x", "verify": "off"}
    assert {key: value(call, key) for key in wanted} == wanted
    # no step that the study affords is too slow for the program
    assert float(value(call, "max-seconds-per-case")) >= CHECK_SECONDS


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--check-size=off", ""),
        ("--check-size=tiny", ""),
        ("--grid-components=ffn", "check.json is left out: no training step was measured"),
    ],
)
def test_no_check_where_none_is_wanted_or_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, said: str
) -> None:
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=1", option) == 0
    assert not (grid_folder(tmp_path) / "check.json").exists()
    assert said in capsys.readouterr().err


# ---- with the training before it


@pytest.mark.parametrize(
    ("status", "failing", "wanted"), [(0, [], 0), (1, [], 1), (0, ["ffn"], 1), (0, ["/medium/"], 1)]
)
def test_sizes_are_trained_and_then_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, failing: list[str], wanted: int
) -> None:
    trained = []
    monkeypatch.setattr(study, "train", lambda options, _: trained.append(options.sizes) or status)
    make_program(tmp_path, fail=failing)
    assert run_grid(tmp_path, "tiny", "medium", *SMALL_GRID, "--rounds=1") == wanted
    assert trained == [("tiny", "medium")]
    assert document(tmp_path)["sizes"] == ["tiny"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, 2),
        (TrainingError("tiny_llama_train: no memory", 1), 1),
        (SuiteError("tiny_llama_bench: no device"), 2),
    ],
)
def test_a_training_that_ends_the_study_ends_it_before_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, status: int
) -> None:
    def train(*_: object) -> int:
        if error:
            raise error
        return 2

    monkeypatch.setattr(study, "train", train)
    make_program(tmp_path)
    assert run_grid(tmp_path, "tiny", *SMALL_GRID) == status
    assert measuring_calls(tmp_path) == []
    assert list((tmp_path / "results").iterdir()) == []


def test_an_interrupted_training_leaves_the_grid_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "train", lambda *_: 130)
    make_program(tmp_path)
    assert run_grid(tmp_path, "tiny", *SMALL_GRID, "--rounds=1") == 130
    assert "the grid was not begun; scripts/study --resume" in capsys.readouterr().err
    assert measuring_calls(tmp_path) == []
    assert run_grid(tmp_path, "--resume") == 0
    assert document(tmp_path)["rounds_done"] == 1
    begun = f"Resuming {grid_folder(tmp_path)}, begun as: scripts/study tiny"
    assert begun in capsys.readouterr().out


# ---- faults


def test_what_the_program_refuses_is_said_before_anything_is_trained_or_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_program(tmp_path, refuse="tiny_llama_bench: --variants 'foo': must be one of baseline")
    assert run_grid(tmp_path, "tiny", "--grid-variants=foo") == 2
    assert "--variants 'foo': must be one of baseline" in capsys.readouterr().err
    assert not (tmp_path / "results").exists() and measuring_calls(tmp_path) == []


def test_a_dry_run_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_program(tmp_path)
    assert small_grid(tmp_path, "--dry-run") == 0
    wanted = f"Grid: {CASES} cases of 2 components, tiny x batch 1, 2 x seq 8, 16"
    assert wanted in capsys.readouterr().out
    assert not (tmp_path / "results").exists() and len(calls(tmp_path)) == 1


def test_what_cannot_be_started_or_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert small_grid(tmp_path) == 2
    assert "tiny_llama_bench cannot be started" in capsys.readouterr().err
    make_program(tmp_path)
    (tmp_path / "results").write_text("")
    assert small_grid(tmp_path) == 2
    assert str(tmp_path / "results") in capsys.readouterr().err


def test_a_case_that_fails_or_is_left_out_does_not_end_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = "ffn/forward_backward/baseline/tiny/f32/batch:1/seq:8"
    make_program(tmp_path, fail=[failing], skip=["seq:16"])
    assert small_grid(tmp_path, "--rounds=2") == 1
    assert document(tmp_path)["rounds_done"] == 2
    said = capsys.readouterr().err
    assert f"{failing}: FAILED: wrong" in said
    assert "round 2/2: 3 measured, 4 left out, 1 failed" in said


@pytest.mark.parametrize(
    ("crash_at", "where", "rounds_done", "left"),
    [
        ("full_step/train/baseline/tiny", "round_1.json", 0, 4),
        ("peak/gemm", "products_own.json", 1, 3),
        ("/medium/", "check.json", 1, 1),
    ],
)
def test_a_program_that_dies_leaves_what_it_measured_and_can_go_on(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    crash_at: str,
    where: str,
    rounds_done: int,
    left: int,
) -> None:
    """`left`: processes of round, products (two) and check that are still to be run."""
    make_program(tmp_path, crash_at=crash_at)
    assert small_grid(tmp_path, "--rounds=1") == 1
    said = capsys.readouterr().err
    assert f"was ended by signal SIGKILL in {where}" in said
    assert f"scripts/study --resume --results {tmp_path / 'results'} continues" in said
    record = document(tmp_path)
    assert (record["rounds_done"], record["finished"]) == (rounds_done, "")
    kept, before = journaled(tmp_path, 1), len(measuring_calls(tmp_path))
    assert len(kept) == (CASES if rounds_done else CASES // 2)
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    assert len(measuring_calls(tmp_path)) == before + left
    assert journaled(tmp_path, 1)[: len(kept)] == kept
    for name in ("round_1.json", "products.json", "check.json"):
        assert names_in(tmp_path, name)


def test_a_frontier_that_cannot_be_predicted_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise SuiteError("no device")

    make_program(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(grid, "predict_frontier", refuse)
        assert small_grid(tmp_path, "--rounds=1") == 1
    assert "frontier.json is left out: no device; scripts/study --resume" in capsys.readouterr().err
    assert not document(tmp_path)["finished"]
    before = len(measuring_calls(tmp_path))
    assert run_grid(tmp_path, "--resume") == 0
    assert document(tmp_path)["finished"] and len(measuring_calls(tmp_path)) == before


def test_a_result_that_is_not_whole_does_not_pass_for_a_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=1") == 0
    folder = grid_folder(tmp_path)
    record = document(tmp_path) | {"finished": "", "rounds_done": 0}
    (folder / "study.json").write_text(json.dumps(record))
    (folder / "round_1.journal.jsonl").unlink()
    cut = document(tmp_path, "round_1.json")
    cut["benchmarks"] = cut["benchmarks"][:3]
    (folder / "round_1.json").write_text(json.dumps(cut))
    tell(tmp_path, stale_at="ffn")
    assert run_grid(tmp_path, "--resume") == 1
    said = capsys.readouterr().err
    assert f"round_1.json lacks {CASES - 3} of {CASES} cases" in said and "No space left" in said
    assert document(tmp_path)["rounds_done"] == 0


# ---- interrupts and kills


def heed_signals() -> None:
    """The tests themselves may run where some of these are ignored, and so a program of theirs."""
    for number in ASKING:
        signal.signal(number, signal.SIG_DFL)


def started(tmp_path: Path, number: int, rounds: int, **told: object) -> subprocess.Popen[bytes]:
    """A study that has heard of the last case before the one that is held in that round. From then
    on it listens; that the case is in the journal says no more than that the program runs, which
    the study may still be starting, in the midst of Popen."""
    make_program(tmp_path, hold_in=f"round_{number}", **told)
    options = ["tiny", "--grid=only", *SMALL_GRID, f"--rounds={rounds}", *places(tmp_path)]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tinyllama_tools", "study", *options],
            env=os.environ | {"PYTHONPATH": str(PROJECT / "scripts")},
            stderr=said,
            stdout=subprocess.DEVNULL,
            preexec_fn=heed_signals,
        )
    line = f"round {number}/{rounds} [{(number - 1) * CASES + HELD}/{rounds * CASES} cases"
    wait_until(lambda: line in (tmp_path / "said").read_text(), process)
    assert len(journaled(tmp_path, number)) == HELD
    return process


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def asked_to_end(tmp_path: Path, number: int, by: signal.Signals = signal.SIGINT) -> str:
    """What was said."""
    process = started(tmp_path, number, 2)
    process.send_signal(by)
    status, said = process.wait(60), (tmp_path / "said").read_text()
    assert status == 130, said
    return said


@pytest.mark.parametrize("by", ASKING)
def test_an_interrupted_study_keeps_what_it_measured_and_says_how_to_go_on(
    tmp_path: Path, by: signal.Signals
) -> None:
    said = asked_to_end(tmp_path, 1, by)
    assert "ending after the case in hand" in said
    assert (
        "interrupted: 0 of 2 rounds are done, and nothing is lost; scripts/study --resume "
        f"--results {tmp_path / 'results'} continues" in said
    )
    kept = journaled(tmp_path, 1)
    # the one in hand was ended, if it had begun when the signal came
    assert len(kept) in {HELD, HELD + 1}
    assert len(names_in(tmp_path, "round_1.json")) == len(kept)
    record = document(tmp_path)
    assert (record["rounds_done"], record["finished"]) == (0, "")
    assert record["round_seconds"][0] > 0


def test_a_resumed_study_measures_only_what_is_missing(tmp_path: Path) -> None:
    asked_to_end(tmp_path, 2)
    first, kept = journaled(tmp_path, 1), journaled(tmp_path, 2)
    before, seconds = len(measuring_calls(tmp_path)), document(tmp_path)["round_seconds"]
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    record = document(tmp_path)
    assert record["rounds_done"] == 2 and record["finished"]
    assert record["round_seconds"][0] == seconds[0] and record["round_seconds"][1] > seconds[1]
    assert journaled(tmp_path, 1) == first
    assert journaled(tmp_path, 2)[: len(kept)] == kept and len(journaled(tmp_path, 2)) == CASES
    again = measuring_calls(tmp_path)[before:]
    assert [Path(value(call, "benchmark_out")).name for call in again] == [
        *("round_2.json", "products_own.json", "products_largest.json", "check.json")
    ]


def test_a_killed_study_goes_on_from_its_journal(tmp_path: Path) -> None:
    process = started(tmp_path, 1, 1)
    process.kill()
    process.wait(60)
    kept = journaled(tmp_path, 1)
    with (grid_folder(tmp_path) / "round_1.journal.jsonl").open("a") as stream:
        stream.write('{"case": "cut sho')
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    assert journaled(tmp_path, 1)[: len(kept)] == kept
    assert len(names_in(tmp_path, "round_1.json")) == CASES


def test_ctrl_c_twice_ends_at_once(tmp_path: Path) -> None:
    process = started(tmp_path, 1, 3, is_stubborn=True)
    said = tmp_path / "said"
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "Ctrl-C once more ends at once" in said.read_text(), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, said.read_text()
    assert "interrupted: 0 of 3 rounds are done" in said.read_text().splitlines()[-1]
    assert len(journaled(tmp_path, 1)) == HELD


@pytest.mark.parametrize("is_between_rounds", [False, True])
def test_another_build_is_refused_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_between_rounds: bool
) -> None:
    if is_between_rounds:
        make_program(tmp_path)
        assert small_grid(tmp_path, "--rounds=1") == 0
        record = document(tmp_path) | {"rounds": 2, "finished": ""}
        (grid_folder(tmp_path) / "study.json").write_text(json.dumps(record))
    else:
        asked_to_end(tmp_path, 1)
    kept = journaled(tmp_path, 1)
    tell(tmp_path, commit="def")
    assert run_grid(tmp_path, "--resume") == 2
    said = capsys.readouterr().err
    assert 'git_commit = "abc", this run has "def"' in said
    assert "begun with another build, commit or machine" in said
    assert journaled(tmp_path, 1) == kept
    assert not (grid_folder(tmp_path) / "round_2.json").exists()


# ---- options


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8", (8,)),
        ("16,4,16", (16, 4)),
        ("64:512:*2", (64, 128, 256, 512)),
        ("64:500:*2", (64, 128, 256)),
        ("128:1024:+128", tuple(range(128, 1025, 128))),
        ("1,2:8:*2,3", (1, 2, 4, 8, 3)),
        ("7:7:+1", (7,)),
        ("9223372036854775807", (2**63 - 1,)),
        ("1:1000:+1", tuple(range(1, 1001))),
    ],
)
def test_lists_of_numbers_are_those_of_the_suite(text: str, numbers: tuple[int, ...]) -> None:
    assert number_list(text) == numbers


@pytest.mark.parametrize(
    ("texts", "rule"),
    [
        (["", "4,", "-4", "4.0", "²", "9223372036854775808", "1" * 5000], "write numbers as"),
        (["1:8", "1:8:2", "1:8:*", "1:8:*2:3"], "write numbers as"),
        (["0", "1:8:+0"], "not at least 1"),
        (["8:4:*2"], "the last value is below the first"),
        (["1:8:*1"], "a factor must be at least 2"),
        (["1:1001:+1", "1:9223372036854775807:+1"], "more than 1000 values"),
    ],
)
def test_what_is_no_list_is_named_with_the_rule(texts: list[str], rule: str) -> None:
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=rule) as refused:
            number_list(text)
        assert text in str(refused.value)


TINY = GridPlan(("tiny",))


@pytest.mark.parametrize(
    ("arguments", "plan", "trains"),
    [
        ("tiny small", GridPlan(("tiny", "small")), True),
        ("medium,tiny", TINY, True),
        ("medium large", None, True),
        ("tiny --grid off", None, True),
        ("tiny --grid=only", TINY, False),
        ("--grid=only --grid-sizes=medium", GridPlan(("medium",)), False),
        ("tiny --variant=optimized", GridPlan(("tiny",), variants=("optimized",)), True),
        ("tiny --variant=optimized --grid-variants=baseline", TINY, True),
        (
            "medium --grid-sizes=medium,tiny --grid-batch=2:8:*2 --grid-seq=32,16 --rounds=5 "
            "--grid-components=ffn,full_step --grid-variants=baseline,sdpa+qkv --grid-minutes=1.5 "
            "--dtype=bf16 --device=cpu --check-size=off",
            GridPlan(
                *(("medium", "tiny"), (2, 4, 8), (32, 16), ("ffn", "full_step")),
                *(("baseline", "sdpa+qkv"), "bf16", "cpu", 5, 1.5),
                check_size="off",
            ),
            True,
        ),
    ],
)
def test_options_make_the_plan(arguments: str, plan: GridPlan | None, trains: bool) -> None:
    options = parse_options(arguments.split())
    assert (options.grid_plan, options.trains) == (plan, trains)


def test_the_defaults_of_a_grid() -> None:
    assert (TINY.batch, TINY.seq, TINY.components) == (
        (1, 2, 4, 8),
        (64, 128, 256, 512),
        COMPONENTS,
    )
    assert (TINY.rounds, TINY.minutes, TINY.check_size, TINY.is_checked) == (3, 20, "medium", True)
    assert not GridPlan(("tiny", "medium")).is_checked


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "required: SIZE"),
        ("tony", "size 'tony': must be one of tiny"),
        ("tiny --num-steps=0", "'0': must be a whole number"),
        ("tiny --max-minutes=x", "'x': must be a positive number of minutes"),
        ("tiny --grid=yes", "'yes'"),
        ("tiny --grid-batch=0", "--grid-batch: '0': 0 is not at least 1"),
        ("tiny --grid-components=fnn", "component 'fnn': must be one of embedding"),
        ("tiny --grid-variants=Q?K", "'Q?K': must be a name"),
        ("tiny --grid-sizes=tony", "size 'tony'"),
        ("tiny --rounds=0", "--rounds: '0'"),
        ("tiny --check-size=tony", "--check-size: invalid choice: 'tony'"),
        ("tiny --grid=off --check-size=off", "--check-size: has no effect with --grid off"),
        ("tiny --grid-minutes=nan", "--grid-minutes: 'nan'"),
        ("--grid=only", "--grid only: no SIZE; name tiny and small"),
        ("medium --grid=on", "--grid on: medium has no grid of its own"),
        ("medium --grid-batch=4", "--grid-batch: medium has no grid of its own"),
        ("tiny --grid=only --num-steps=9", "--num-steps: has no effect with --grid only"),
        ("tiny --grid-batch=1:900:+1", "3600 cells of size, variant, batch and sequence"),
        ("tiny --resume", "SIZE: not with --resume"),
        ("--resume --rounds=2", "--rounds: not with --resume"),
        ("--resume --dry-run", "--dry-run: not with --resume"),
        ("tiny --gridd=on", "--gridd"),
    ],
)
def test_bad_options_are_named(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments.split())
    assert ended.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def begun(results: Path, day: int, **changes: object) -> Path:
    folder = results / f"2026010{day}T000000Z_grid"
    folder.mkdir(parents=True)
    write_record(folder, Record(TINY))
    path = folder / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_resume_finds_the_newest_grid_that_did_not_end(tmp_path: Path) -> None:
    begun(tmp_path, 1)
    wanted = begun(tmp_path, 2)
    begun(tmp_path, 3, finished="2026-01-03T00:20:00+00:00")
    (tmp_path / "20260104T000000Z_grid").mkdir()
    options = parse_options(["--resume", f"--results={tmp_path}"])
    assert (options.unfinished, options.grid_plan, options.trains) == (wanted, None, False)


def test_a_study_of_before_the_check_can_be_resumed(tmp_path: Path) -> None:
    path = begun(tmp_path, 1) / "study.json"
    record = json.loads(path.read_text())
    assert record.pop("check_size") == "medium"
    path.write_text(json.dumps(record))
    assert not read_record(path.parent).plan.is_checked


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finished": "2026-01-03T00:20:00+00:00"}, "holds no grid that did not end"),
        ({"kind": "other"}, "kind: 'grid' was expected"),
        ({"schema_version": 2}, "schema_version: 1 was expected"),
        ({"sizes": []}, "sizes: [] "),
        ({"batch": [8, "4"]}, "batch[1]: '4' is not of type 'integer'"),
        ({"rounds": True}, "rounds: True is not"),
        ({"round_seconds": [None]}, "round_seconds[0]: None is not"),
        ({"minutes": None}, "minutes: None is not"),
    ],
)
def test_a_record_that_cannot_be_resumed_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(tmp_path, 3, **changes)
    with pytest.raises(SystemExit) as ended:
        parse_options(["--resume", f"--results={tmp_path}"])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert words in said and str(folder if "finished" not in changes else tmp_path) in said


# ---- progress

NAMES = [f"ffn/forward_backward/baseline/tiny/f32/batch:{b}/seq:8" for b in range(1, 41)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Played:
    """A round of NAMES on a stream, with a clock of its own."""

    def __init__(self, stream: io.StringIO, place: Place | None = None, last: float = 1.0) -> None:
        self.now, self.stream = 0.0, stream
        weights = dict.fromkeys(NAMES, 1.0) | {NAMES[-1]: last}
        self.progress = GridProgress(weights, stream, lambda: self.now)
        self.progress.begin("round 1/3", NAMES, ["of another grid"], place)

    def hear(self, names: list[str], seconds: float = 1.0, outcome: str = "1.27 ms") -> None:
        for name in names:
            self.now += seconds
            self.progress.hear(f"[1/40] {name}  {outcome}")


def test_time_left_is_that_of_all_rounds_and_ends_with_the_budget() -> None:
    endless = Played(Terminal(), Place(1, 3, 1e9))
    assert endless.progress.seconds_left is None
    endless.now += 100  # the peaks, which count for nothing
    endless.hear(NAMES[:21])
    # 19 cases of this round and 80 of the others, a second each
    assert endless.progress.seconds_left == pytest.approx(99)
    budget = Played(Terminal(), Place(1, 3, 50.0))
    budget.hear(NAMES[:21])
    # 21 of 50 seconds are spent, 19 this round needs still
    assert budget.progress.seconds_left == pytest.approx(29)
    # a large case counts for more
    uneven = Played(Terminal(), Place(), last=61.0)
    uneven.hear(NAMES[:21])
    assert uneven.progress.seconds_left == pytest.approx(18 + 61)


def test_a_terminal_has_one_line_and_other_places_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Played(Terminal(), Place(2, 3, 1e9))
    terminal.hear(NAMES[:3])
    last = terminal.stream.getvalue().rpartition("\r")[2].removesuffix("\033[K")
    # a line that wraps could not be taken away
    assert last.startswith("round 1/3 [43/120 cases, ") and len(last) == 59
    elsewhere = Played(io.StringIO())
    elsewhere.hear(NAMES)
    text = elsewhere.stream.getvalue()
    assert "\r" not in text and "\033" not in text and len(text.splitlines()) == 11
    assert "[40/40 cases, 0 s left]" in text.splitlines()[-1]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_failure_is_told_at_once_and_other_words_are_no_cases(kind: type[io.StringIO]) -> None:
    played = Played(kind())
    before = played.stream.getvalue()
    for line in ("measured peak f32: 369.68 GFLOP/s (oneDNN)", "[1/40] half a", ""):
        played.progress.hear(line)
    assert played.stream.getvalue() == before
    played.hear(NAMES[4:5], outcome="FAILED: wrong result: loss differs")
    assert f"{NAMES[4]}: FAILED: wrong result: loss differs\n" in played.stream.getvalue()
