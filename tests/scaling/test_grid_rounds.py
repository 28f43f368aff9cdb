"""What the rounds of a grid ask of the program, and what they leave."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from grid_runs import CASES, document, grid_folder, names_in, run_grid, small_grid, without_frontier
from grid_stand_in import make_program, measuring_calls, value

from tinyllama_tools.study.grid import GridProgress, GridStudy, run_rounds
from tinyllama_tools.study.grid_plan import (
    GridPlan,
    Record,
    axis_options,
    product_options,
    round_options,
    write_record,
)


@pytest.fixture(autouse=True)
def no_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    without_frontier(monkeypatch)


def sorted_numbers(text: str) -> list[int]:
    return sorted(map(int, text.split(",")))


def test_a_study_leaves_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_program(tmp_path)
    assert small_grid(tmp_path, "--rounds=2") == 0
    folder = grid_folder(tmp_path)
    record = document(folder, "study.json")
    assert record["kind"] == "grid" and record["schema_version"] == 1
    assert record["command"].startswith("scripts/study tiny --grid=only")
    assert (record["sizes"], record["batch"], record["seq"]) == (["tiny"], [1, 2], [8, 16])
    assert record["components"] == ["ffn", "full_step"]
    assert record["passes"] == ["forward_backward", "update", "train", "forward_loss"]
    assert (record["variants"], record["dtypes"]) == (["baseline"], ["f32"])
    assert (record["rounds"], record["rounds_done"]) == (2, 2)
    assert record["finished"] and not record["left_out"]
    wanted = {
        f"{component}/baseline/tiny/f32/batch:{batch}/seq:{seq}/manual_time"
        for component in ("ffn/forward_backward", "full_step/train")
        for batch, seq in itertools.product((1, 2), (8, 16))
    }
    for number in (1, 2):
        assert set(names_in(folder, f"round_{number}.json")) == wanted
        lines = (folder / f"round_{number}.journal.jsonl").read_text().splitlines()
        assert sum("case" in json.loads(line) for line in lines) == CASES
    said = capsys.readouterr()
    assert f"round 1/2: {CASES} measured, 0 left out, 0 failed" in said.err
    assert said.out.splitlines()[-1] == "scripts/report makes the page of it."
    assert "round_2.json" in said.out


def test_the_first_round_proves_and_no_other(tmp_path: Path) -> None:
    make_program(tmp_path)
    small_grid(tmp_path, "--rounds=3")
    every = measuring_calls(tmp_path)
    rounds = [c for c in every if Path(value(c, "benchmark_out")).name.startswith("round_")]
    assert [value(call, "verify") for call in rounds] == ["before", "off", "off"]
    for call in rounds:
        assert value(call, "benchmark_repetitions") == "1"
        assert value(call, "benchmark_min_time") == "0.1s"
        assert value(call, "max-seconds-per-case") == "30"
        assert value(call, "device") == "auto"


def test_rounds_go_through_the_axes_in_orders_of_their_own_that_repeat() -> None:
    plan = GridPlan(("tiny", "small"))
    orders = [
        tuple(value(round_options(plan, n), axis) for axis in ("sizes", "batch", "seq"))
        for n in range(1, 9)
    ]
    assert len(set(orders)) > 1
    for sizes, batch, seq in orders:
        assert sorted(sizes.split(",")) == ["small", "tiny"]
        assert sorted_numbers(batch) == list(plan.batch)
        assert sorted_numbers(seq) == list(plan.seq)
    assert round_options(plan, 3) == round_options(plan, 3)


def test_all_components_are_left_unnamed_so_that_a_variant_adds_no_skipped_rows() -> None:
    assert not value(axis_options(GridPlan(("tiny",))), "components")
    some = axis_options(GridPlan(("tiny",), components=("ffn",)))
    assert value(some, "components") == "ffn"


def test_costs_are_of_the_grid_and_of_every_size_at_its_own_shape(tmp_path: Path) -> None:
    make_program(tmp_path)
    small_grid(tmp_path, "--rounds=1")
    costs = document(grid_folder(tmp_path), "costs.json")
    assert costs["memory_budget_bytes"] == 2**30
    assert (costs["device"], costs["git_commit"]) == ({"name": "card"}, "0123abcd")
    names = [case["name"] for case in costs["cases"]]
    assert len(names) == len(set(names))
    assert "ffn/forward_backward/baseline/tiny/f32/batch:2/seq:16" in names
    steps = [name for name in names if name.startswith("full_step/train")]
    assert {name.split("/")[3] for name in steps} == {
        *("tiny", "small", "medium", "large", "very_large")
    }
    assert "rms_norm/forward_backward/baseline/medium/f32/batch:16/seq:512" in names


def test_products_are_of_each_size_and_of_the_largest_cell(tmp_path: Path) -> None:
    make_program(tmp_path)
    small_grid(tmp_path, "--rounds=1", "--grid-sizes=tiny,small")
    folder = grid_folder(tmp_path)
    rows = names_in(folder, "products.json")
    shapes = [name.split("/")[3] for name in rows]
    # 8 x 128, 8 x 256, and twice 2 x 16, which is once in the file
    assert shapes == ["1024x256x256", "2048x256x256", "32x256x256", "32x256x256"]
    assert not list(folder.glob("products_*"))


def test_products_of_the_same_shape_are_there_once(tmp_path: Path) -> None:
    make_program(tmp_path)
    grid = ("--grid-batch=8", "--grid-seq=128", "--grid-components=ffn", "--rounds=1")
    run_grid(tmp_path, "tiny", "--grid=only", *grid)
    assert len(names_in(grid_folder(tmp_path), "products.json")) == 1


def test_the_largest_cell_is_the_largest_of_both_axes() -> None:
    options = product_options(GridPlan(("tiny",), batch=(8, 1), seq=(64, 512, 128)))
    assert (value(options["largest"], "batch"), value(options["largest"], "seq")) == ("8", "512")
    assert (value(options["own"], "batch"), value(options["own"], "seq")) == ("", "")


class Clock:
    """Advances by so many seconds at each look."""

    def __init__(self, *seconds: float) -> None:
        self.steps = list(seconds)
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.steps.pop(0) if self.steps else 0.0
        return self.now


@pytest.mark.parametrize(
    ("minutes", "durations", "done"),
    [(10.0, (100, 100, 100), 3), (10.0, (300, 200, 200), 2), (10.0, (500,), 1), (0.1, (500,), 1)],
)
def test_later_rounds_are_left_out_where_the_budget_is_spent(
    tmp_path: Path, minutes: float, durations: tuple[float, ...], done: int
) -> None:
    program = make_program(tmp_path) / "benchmarks/tiny_llama_bench"
    plan = GridPlan(("tiny",), (1,), (8,), ("ffn",), minutes=minutes)
    names = ["ffn/forward_backward/baseline/tiny/f32/batch:1/seq:8"]
    # two looks a round: at its start and its end
    clock = Clock(*itertools.chain.from_iterable((0.0, seconds) for seconds in durations))
    study = GridStudy(tmp_path, program, Record(plan), clock)
    with (tmp_path / "said").open("w") as stream:
        run_rounds(study, names, GridProgress({}, stream))
    record = document(tmp_path, "study.json")
    assert record["rounds_done"] == done == len(record["round_seconds"])
    assert record["round_seconds"] == list(durations[:done])
    left_out = record["left_out"]
    if done == 3:
        assert left_out == ""
    else:
        which = "round 3" if done == 2 else "rounds 2 to 3"
        assert left_out.startswith(f"{which} left out") and "--grid-minutes" in left_out
        assert left_out in (tmp_path / "said").read_text()


def test_the_time_of_a_round_adds_up_over_interruptions(tmp_path: Path) -> None:
    study = GridStudy(tmp_path, tmp_path, Record(GridPlan(("tiny",))))
    write_record(tmp_path, study.record)
    study.spend(1, 10.0)
    study.spend(2, 5.0)
    study.spend(2, 2.0)
    assert study.record.round_seconds == (10.0, 7.0)
    assert document(tmp_path, "study.json")["round_seconds"] == [10.0, 7.0]
