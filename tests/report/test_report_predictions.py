"""Predictions, what checks them, and what memory consists of, as the report shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from played_grid import MEDIUM, MIB, Grid, step_costs, true_seconds
from played_study import read, table, write_result, write_study

from made_up_scaling import World, analysis_of, write_world
from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.results import MeasuredCase
from tinyllama_tools.models.collectives import read_interconnects
from tinyllama_tools.models.scaling_projection import (
    MEASURED,
    PREDICTED,
    local_steps,
    projection_of,
    read_step_source,
)
from tinyllama_tools.report.inputs import ReportInputs, predictions_of
from tinyllama_tools.report.law_parts import GRADIENTS, REST, WEIGHTS, measured_parts
from tinyllama_tools.report.sections import predictions
from tinyllama_tools.report.sections.data_parallel import tables_of

STEP = CaseName("full_step", "train", "baseline", "medium", "f32", 16, 512)
NO_PROGRAM = Path("no_such_program")


def test_predictions_are_marked_and_hold_what_the_machine_would_take(
    inputs: ReportInputs,
) -> None:
    steps = inputs.predictions.steps
    assert [one.cost.name.size for one in steps] == list(problem_sizes())
    kinds = ["calibrated on this size"] * 2 + ["prediction"] * 3
    assert [one.kind for one in steps] == kinds
    for one in steps:
        of = one.cost.name
        truth = true_seconds("full_step", step_costs(of.size, of.batch, of.seq))
        assert one.prediction.low <= truth <= one.prediction.high, of.size
    found = predictions.build(inputs)
    assert found.figures[0].traces[0]["role"] == "predicted"
    assert found.text[0].startswith("Predictions, not measurements")
    rows = table(found, "predicted_steps")
    headings = [one.title for one in rows.columns]
    (medium,) = [row for row in rows.rows if row[0] == "medium"]
    assert medium[headings.index("from and to")] == "95 % interval"
    memory = headings.index("peak memory")
    assert medium[memory + 1] < medium[memory] < medium[memory + 2]


def test_one_size_makes_an_assumed_range(tmp_path: Path) -> None:
    alone = read(write_study(tmp_path / "s", Grid(sizes=("tiny",))))
    found = table(predictions.build(alone), "predicted_steps")
    assert {row[6] for row in found.rows} == {"assumed range"}


@pytest.mark.parametrize("device", [MEDIUM.device, "Another CPU"])
def test_a_step_that_was_run_elsewhere_on_the_machine_checks_its_prediction(
    tmp_path: Path, inputs: ReportInputs, device: str
) -> None:
    other = read(write_result(tmp_path / "m.json", replace(MEDIUM, device=device))).sets
    both = replace(inputs, sets=(*inputs.sets, *other))
    checked = [one for one in both.predictions.steps if one.kind == "prediction, checked"]
    assert [one.cost.name for one in checked] == [STEP] * (device == MEDIUM.device)
    for one in checked:
        assert one.check is not None and one.check.is_inside
        assert one.measured_seconds is not None
        said = predictions.build(both).text[1]
        assert said.startswith("medium (16 x 512) was run too, which the rates do not know of")
        assert "inside the 95 % interval; the predicted memory by " in said
        assert said.endswith("inside its range.")


@pytest.mark.parametrize(("slower", "place"), [(1.0, "inside"), (9.0, "outside")])
def test_a_check_at_a_smaller_shape_says_time_and_memory(
    inputs: ReportInputs, slower: float, place: str
) -> None:
    work = ("model_flops", "hardware_flops", "elementwise_flops", "bytes")
    smaller = [
        replace(
            one,
            name=replace(one.name, batch=2, seq=256),
            **{key: getattr(one, key) // 16 for key in work},
        )
        for one in inputs.costs
        if one.name.size == "medium" and (one.name.batch, one.name.seq) == (16, 512)
    ]
    (cost,) = [one for one in inputs.costs if one.name == STEP]
    name = replace(STEP, batch=2, seq=256)
    seconds = slower * true_seconds("full_step", step_costs("medium", 2, 256))
    memory = {"peak_memory_MiB": 1.25 * cost.predicted_memory_bytes / MIB}
    case = MeasuredCase(name, (seconds,), memory)
    found = predictions_of(inputs.main, [*inputs.costs, *smaller], {str(name): case})
    (checked,) = [one for one in found.steps if one.kind == "prediction, checked"]
    assert (checked.cost.name, found.steps[3]) == (name, checked)
    changed = replace(inputs)
    changed.__dict__["predictions"] = found
    section = predictions.build(changed)
    said = f"{place} the 95 % interval; the predicted memory by -20.00 %, outside"
    assert said in section.text[1]
    row = next(row for row in table(section, "predicted_steps").rows if row[1] == "2 x 256")
    assert row[9] == ("yes" if place == "inside" else "no")


PARAMETERS = 2_873_600.0


def parts_of(peak_bytes: float, variant: str = "baseline") -> dict[str, float]:
    name = CaseName("full_step", "train", variant, "tiny", "f32", 1, 64)
    counters = {"parameters": PARAMETERS, "peak_memory_MiB": peak_bytes / MIB}
    found = measured_parts(MeasuredCase(name, (1.0,), counters))
    return dict(found.bytes_by_part) if found else {}


def test_gradients_are_a_part_where_the_update_is_the_peak() -> None:
    of = problem_sizes()["tiny"]
    hidden, heads = of["hidden_dim"], of["n_heads"]
    largest = hidden * max(of["vocab_size"], of["intermediate_dim"])
    inputs_bytes = 4 * (2 * 64 * hidden // heads + heads // of["n_kv_heads"] * 64**2) + 16 * 64
    update = 16 * PARAMETERS + 4 * largest + inputs_bytes
    parts = parts_of(update)
    assert parts[GRADIENTS] == parts[WEIGHTS] == 4 * PARAMETERS
    assert sum(parts.values()) == pytest.approx(update)
    # 1 % above it the backward pass is the peak, and how many gradients there are is not known
    backward = parts_of(1.01 * update)
    assert (GRADIENTS in backward, REST in backward) == (False, True)
    # another update needs another scratch, which no count tells
    assert GRADIENTS not in parts_of(update, "optimized")
    assert parts_of(11 * PARAMETERS) == {}


def test_projections_say_which_local_steps_are_predictions(tmp_path: Path) -> None:
    """Sizes that were run are measured, others predicted with a range."""
    study = read_step_source(write_study(tmp_path / "study", Grid(rounds=1)))
    steps, missing = local_steps([], [study], NO_PROGRAM, "f32", "baseline")
    assert missing == {}
    for size, step in steps.items():
        assert step.low <= step.seconds <= step.high
        is_run = size in ("tiny", "small")
        assert step.kind == (MEASURED if is_run else PREDICTED)
        assert (step.low < step.high, step.knows_small_batches) == (not is_run, is_run)
    analysis = analysis_of(write_world(tmp_path / "world", World(ranks=2)))
    links = read_interconnects(names=["mi300x_ndr"])
    projection = projection_of(analysis, [study], NO_PROGRAM, links, 4096)
    of_size = {step["size"]: step["local_kind"] for step in projection["steps"]}
    assert (of_size["tiny"], of_size["very_large"]) == (MEASURED, PREDICTED)
    tables = {table.id: table for table in tables_of(analysis, projection)}
    rows = [row for row in tables["projected_efficiency"].rows if "very_large" in row]
    assert rows and all("predicted" in row and row[-1] == "projection" for row in rows)
    (row,) = (row for row in tables["local_steps"].rows if "/very_large/" in str(row[0]))
    of = steps["very_large"]
    assert row[2:6] == (1e3 * of.seconds, 1e3 * of.low, 1e3 * of.high, of.range_words)
