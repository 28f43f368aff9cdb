"""The steps of a bigger size that predictions are checked by."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from grid_runs import document, grid_folder, names_in, run_grid, small_grid, without_frontier
from grid_stand_in import make_program, measuring_calls, tell, value

from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.study.grid import choose_step
from tinyllama_tools.study.grid_plan import CHECK_SECONDS, CHECK_STEPS, GridPlan

PLAN = GridPlan(("tiny", "small"))
# every batch of medium takes as many more FLOPs
FLOPS_A_SAMPLE = 1_000_000


@pytest.fixture(autouse=True)
def no_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    without_frontier(monkeypatch)


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
