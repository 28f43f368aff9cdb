"""The grid with the built tiny_llama_bench: that it understands what is asked of it, and how well
laws and predictions meet what it measured."""

from __future__ import annotations

import itertools
import json
import re
import statistics
from pathlib import Path

import pytest

from tinyllama_tools.commands.grid import (
    BATCH,
    COMPONENTS,
    SEQ,
    GridPlan,
    planned_names,
    predict_frontier,
)
from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.data.programs import ask_costs
from tinyllama_tools.report.inputs import read_inputs, source_of
from tools import run_tool

# of each component, and the model's forward_loss
PASSES = {c: {"forward_backward"} for c in COMPONENTS} | {
    "model": {"forward_backward", "forward_loss"},
    "optimizer": {"update"},
    "full_step": {"train"},
}


def test_rounds_and_products_are_what_is_planned(bench_program: Path) -> None:
    plan = GridPlan(("tiny", "small"))
    names, second = (planned_names(bench_program, plan.round(n)) for n in (1, 2))
    # every component and no peak, in another order each time
    assert names != second and set(names) == set(second)
    found: dict[str, set[str]] = {}
    for text in names:
        name = parse_case_name(text)
        assert name is not None, text
        found.setdefault(name.component, set()).add(name.pass_name)
    assert found == PASSES
    cells = len(BATCH) * len(SEQ) * 2
    assert len(names) == len(set(names)) == cells * sum(map(len, PASSES.values()))
    # variants add rows only where they change something
    plan = GridPlan(("tiny",), (1,), (64,), variants=("baseline", "sdpa"))
    names = planned_names(bench_program, plan.grid())
    assert "attention/forward_backward/sdpa/tiny/f32/batch:1/seq:64" in names
    assert "rms_norm/forward_backward/sdpa/tiny/f32/batch:1/seq:64" not in names
    # costs are of the grid's cells, every size at its own shape, and medium with smaller batches
    priced = [planned_names(bench_program, options) for options in plan.priced()]
    own = {name for names in priced for name in names if name.startswith("rms_norm/")}
    batches = plan.check_axes["batch"]
    # medium's own shape is among both
    assert len(own) == len(problem_sizes()) + len(batches)
    names = planned_names(bench_program, plan.check())
    start = "full_step/train/baseline/medium/f32/batch:"
    assert [name for name in names if "/baseline/" in name] == [
        f"{start}{batch}/seq:512" for batch in batches
    ]
    names = planned_names(bench_program, plan.products())
    assert len(names) > 10
    assert all(re.fullmatch(r"peak/gemm/f32/(\d+x)?\d+x\d+x\d+", name) for name in names)


def test_the_frontier_has_every_size_and_the_memory_of_each_limit(
    bench_program: Path, tmp_path: Path
) -> None:
    """The memory that is free changes meanwhile, what a step needs does not."""
    predict_frontier(tmp_path, bench_program, "cpu")
    found = json.loads((tmp_path / "frontier.json").read_text())
    for key in ("points", "sequences"):
        assert {point["size"] for point in found[key]} == set(problem_sizes())
        assert {(p["variant"], p["dtype"]) for p in found[key]} == {
            *itertools.product(("baseline", "optimized"), ("f32", "bf16"))
        }
    wanted = ("tiny", "baseline", "f32", 2048)
    keys = ("size", "variant", "dtype", "seq")
    (tiny,) = (p for p in found["points"] if tuple(p[key] for key in keys) == wanted)
    shape = (f"--batch={tiny['largest_batch']}", "--seq=2048")
    asked = ["--components=full_step", "--sizes=tiny", "--dtypes=f32", "--variants=baseline"]
    costs = ask_costs(bench_program, [*asked, *shape, "--device=cpu"])
    (cost,) = [one for one in costs if one.name.is_training_step]
    assert cost.predicted_memory_bytes == tiny["predicted_bytes"] > 2**28


@pytest.mark.long
def test_laws_and_predictions_meet_what_was_not_fitted(bench_program: Path, tmp_path: Path) -> None:
    places = (f"--results={tmp_path}", f"--build-folder={bench_program.parents[1]}")
    assert run_tool(["study", "--grid", "tiny", "small", *places]) == 0
    (folder,) = tmp_path.glob("*_grid")
    measured = read_inputs([source_of(folder)])
    for size in ("tiny", "small"):
        held = [c for fit in measured.time_fits if fit.name.size == size for c in fit.held_out]
        median = statistics.median(abs(cell.error_percent) for cell in held)
        print(f"{size}: median error {median:.2f} % of {len(held)} held-out cells")
        assert median <= 15
    # none where a step of medium does not fit here, or takes too long
    for case in measured.check_cases:
        (found,) = [s for s in measured.predictions.steps if s.prediction.name == case.name]
        of, peak = found.prediction, 2**20 * case.counters["peak_memory_MiB"]
        print(f"{case.name}: {of.low} to {of.high} s")
        assert of.low <= case.median_seconds <= of.high
        assert abs(found.cost.predicted_memory_bytes / peak - 1) <= 0.05
