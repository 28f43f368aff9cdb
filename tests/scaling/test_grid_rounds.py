"""Rounds of a grid: processes that are listened to, progress and budget."""

from __future__ import annotations

import io
import itertools
import json
import re
from pathlib import Path

import pytest
from grid_runs import CASES, document, grid_folder, names_in, run_grid, small_grid, without_frontier
from grid_stand_in import make_program, measuring_calls, value

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.data.results import read_result_set
from tinyllama_tools.study.grid import (
    GridProgress,
    GridStudy,
    Place,
    costs_of,
    planned_names,
    run_rounds,
)
from tinyllama_tools.study.grid_plan import (
    BATCH,
    COMPONENTS,
    SEQ,
    GridPlan,
    Record,
    axis_options,
    product_options,
    round_options,
    write_record,
)
from tools import study as main


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


NAMES = [f"ffn/forward_backward/baseline/tiny/f32/batch:{b}/seq:8" for b in range(1, 41)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ProgressClock:
    """A second each time it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def told(name: str, outcome: str = "1.27 ms") -> str:
    return f"[1/40] {name}  {outcome}"


def measured(
    progress: GridProgress, clock: ProgressClock, names: list[str], seconds: float = 1.0
) -> None:
    for name in names:
        clock.now += seconds
        progress.hear(told(name))


def progress_of(
    stream: io.StringIO, place: Place | None = None, weights: dict[str, float] | None = None
) -> tuple[GridProgress, ProgressClock]:
    clock = ProgressClock()
    progress = GridProgress(weights or dict.fromkeys(NAMES, 1.0), stream, clock)
    progress.begin("round 1/3", NAMES, place=place)
    return progress, clock


def test_cases_of_all_rounds_are_counted() -> None:
    terminal = Terminal()
    progress, clock = progress_of(terminal, Place(2, 3, 1e9))
    measured(progress, clock, NAMES[:3])
    last = terminal.getvalue().rpartition("\r")[2]
    assert last.startswith("round 1/3 [43/120 cases, ")
    assert NAMES[2][:20] in last


def test_time_left_is_that_of_all_rounds() -> None:
    progress, clock = progress_of(Terminal(), Place(1, 3, 1e9))
    assert progress.seconds_left is None
    clock.now += 100  # the peaks, which count for nothing
    measured(progress, clock, NAMES[:21])
    # 19 cases of this round and 80 of the others, a second each
    assert progress.seconds_left == pytest.approx(99)


def test_time_left_of_later_rounds_ends_with_the_budget() -> None:
    progress, clock = progress_of(Terminal(), Place(1, 3, 50.0))
    measured(progress, clock, NAMES[:21])
    # 21 of 50 seconds are spent, 19 this round needs still
    assert progress.seconds_left == pytest.approx(29)
    measured(progress, clock, NAMES[21:], seconds=3.0)
    assert progress.seconds_left == pytest.approx(0)


def test_large_cases_count_for_more() -> None:
    weights = dict.fromkeys(NAMES, 1.0) | {NAMES[-1]: 61.0}
    progress, clock = progress_of(Terminal(), Place(), weights)
    measured(progress, clock, NAMES[:21])
    assert progress.seconds_left == pytest.approx(18 + 61)


def test_what_is_there_already_is_not_measured_again() -> None:
    stream = io.StringIO()
    progress = GridProgress({}, stream, ProgressClock())
    progress.begin("round 1/1", NAMES, [*NAMES[:30], "from another grid"])
    assert "[30/40 cases]" in stream.getvalue()


def test_a_line_of_the_terminal_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    progress, clock = progress_of(terminal)
    measured(progress, clock, NAMES[:2])
    assert len(terminal.getvalue().rpartition("\r")[2].removesuffix("\033[K")) == 39


def test_elsewhere_there_are_a_few_plain_lines() -> None:
    stream = io.StringIO()
    progress, clock = progress_of(stream)
    measured(progress, clock, NAMES)
    text = stream.getvalue()
    assert "\r" not in text and "\033" not in text
    assert len(text.splitlines()) == 11
    assert "[40/40 cases, 0 s left]" in text.splitlines()[-1]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_failure_is_told_at_once(kind: type[io.StringIO]) -> None:
    stream = kind()
    progress, _ = progress_of(stream)
    progress.hear(told(NAMES[4], "FAILED: wrong result: loss differs"))
    assert f"{NAMES[4]}: FAILED: wrong result: loss differs\n" in stream.getvalue()


def test_other_words_of_the_program_are_no_cases() -> None:
    stream = io.StringIO()
    progress, _ = progress_of(stream)
    before = stream.getvalue()
    for line in ("measured peak f32: 369.68 GFLOP/s (oneDNN)", "[1/40] half a", ""):
        progress.hear(line)
    assert stream.getvalue() == before


# of each component, and the model's forward_loss
PASSES = {c: {"forward_backward"} for c in COMPONENTS} | {
    "model": {"forward_backward", "forward_loss"},
    "optimizer": {"update"},
    "full_step": {"train"},
}


def passes_of(names: list[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for text in names:
        name = parse_case_name(text)
        assert name is not None, text
        found.setdefault(name.component, set()).add(name.pass_name)
    return found


def test_the_grid_has_every_component_and_no_peak(bench_program: Path) -> None:
    names = planned_names(bench_program, axis_options(GridPlan(("tiny", "small"))))
    assert passes_of(names) == PASSES
    cells = len(BATCH) * len(SEQ) * 2
    assert len(names) == len(set(names)) == cells * sum(map(len, PASSES.values()))


def test_every_round_has_the_same_cases_in_another_order(bench_program: Path) -> None:
    plan = GridPlan(("tiny", "small"))
    first, second = (planned_names(bench_program, round_options(plan, n)) for n in (1, 2))
    assert first != second and set(first) == set(second)


def test_variants_add_rows_only_where_they_change_something(bench_program: Path) -> None:
    plan = GridPlan(("tiny",), (1,), (64,), variants=("baseline", "sdpa"))
    names = planned_names(bench_program, axis_options(plan))
    assert "attention/forward_backward/sdpa/tiny/f32/batch:1/seq:64" in names
    assert "rms_norm/forward_backward/sdpa/tiny/f32/batch:1/seq:64" not in names


def test_products_have_shapes(bench_program: Path) -> None:
    for options in product_options(GridPlan(("tiny",))).values():
        names = planned_names(bench_program, options)
        assert len(names) > 10
        assert all(re.fullmatch(r"peak/gemm/f32/(\d+x)?\d+x\d+x\d+", name) for name in names)


def test_costs_are_told(bench_program: Path, tmp_path: Path) -> None:
    study = GridStudy(tmp_path, bench_program, Record(GridPlan(("tiny",), (1,), (64,))))
    costs = costs_of(study)
    steps = {cost.name.size: cost for cost in costs if cost.name.component == "full_step"}
    assert set(steps) == set(problem_sizes())
    own = [cost.name for cost in costs if cost.name.component == "rms_norm"]
    # the sizes' own shapes, the grid's cell, and medium with smaller batches
    smaller = len(study.record.plan.check_shapes) - 1
    assert len(own) == len(problem_sizes()) + 1 + smaller
    assert costs_of(study) == costs


@pytest.mark.long
def test_a_study_of_two_rounds(bench_program: Path, tmp_path: Path) -> None:
    options = [
        *("tiny", "--grid=only", "--grid-batch=1,2", "--grid-seq=16", "--rounds=2"),
        *(f"--results={tmp_path / 'results'}", f"--build-folder={bench_program.parents[1]}"),
    ]
    assert main(options) == 0
    folder = grid_folder(tmp_path)
    assert document(folder, "study.json")["rounds_done"] == 2
    rounds = read_result_set([folder / "round_1.json", folder / "round_2.json"])
    assert len(rounds.cases) == 2 * sum(map(len, PASSES.values()))
    assert all(len(case.seconds) == 2 for case in rounds.cases.values())
    proved = document(folder, "round_1.json")["benchmarks"]
    assert all(row["max_rel_error"] <= 1e-5 for row in proved)
    products = read_result_set([folder / "products.json"]).products
    assert products and all(rate.flops_per_second > 1e9 for rate in products)
    assert (folder / "frontier.json").is_file()
    check = read_result_set([folder / "check.json"])
    (step,) = check.cases.values()
    assert (step.name.component, step.name.size) == ("full_step", "medium")
    assert step.counters["peak_memory_MiB"] > 0
