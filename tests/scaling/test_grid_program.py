"""The grid with the built tiny_llama_bench: that it understands what is asked of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from grid_runs import document, grid_folder

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.data.results import read_result_set
from tinyllama_tools.study.command import main
from tinyllama_tools.study.grid import GridStudy, costs_of, planned_names
from tinyllama_tools.study.grid_plan import (
    BATCH,
    COMPONENTS,
    SEQ,
    GridPlan,
    Record,
    axis_options,
    product_options,
    round_options,
)

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
