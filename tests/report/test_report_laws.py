"""Laws, memory and predictions: they find what the machine was made up with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from played_costs import PlayedSize
from played_grid import (
    BANDWIDTH,
    MIB,
    RATE,
    Grid,
    true_seconds,
)
from played_study import write_result
from report_tables import cell, table

from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.kinds import source_of
from tinyllama_tools.report.loading import read_inputs
from tinyllama_tools.report.sections import (
    memory,
    predictions,
    scaling,
)

STEP = "full_step/train/baseline/small/f32/batch:8/seq:256"


def test_laws_are_those_of_the_machine(inputs: ReportInputs) -> None:
    laws = table(scaling.build(inputs), "time_laws")
    name = "ffn/forward_backward/baseline/tiny/f32"
    one = PlayedSize("tiny", 1, 1).part("ffn")
    two = PlayedSize("tiny", 2, 1).part("ffn")
    a_token = (two.model_flops - one.model_flops) / RATE + (two.bytes - one.bytes) / BANDWIDTH
    assert cell(laws, name, "per token") == pytest.approx(1e9 * a_token, rel=0.02)
    # an FFN does nothing that grows with the square of the sequence
    assert cell(laws, name, "per token and token") is None
    assert "quadratic: " in str(cell(laws, name, "not supported"))


def test_held_out_cells_are_met(inputs: ReportInputs) -> None:
    found = scaling.build(inputs)
    for name in ("tiny", "small"):
        summary = table(found, "held_out_time")
        assert cell(summary, name, "held-out cells") == 33
        assert cell(summary, name, "median error") < 3
        assert cell(summary, name, "in the interval") > 70
    by_series = table(found, "held_out_time_series")
    counts = {row[1] for row in by_series.rows}
    assert counts == {3}


def test_a_scaling_figure_has_every_point_and_the_held_out(inputs: ReportInputs) -> None:
    figures = {figure.id: figure for figure in scaling.build(inputs).figures}
    figure = figures["time_full_step_train_baseline_small_f32"]
    by_role: dict[str, int] = {}
    for trace in figure.traces:
        by_role[trace["role"]] = by_role.get(trace["role"], 0) + len(trace["y"])
    assert by_role["measured"] == 12
    assert by_role["held_out"] == 3
    assert figure.note.startswith("time = ")


def test_memory_is_stacked_to_the_measured_peak(inputs: ReportInputs) -> None:
    found = memory.build(inputs)
    stack = next(figure for figure in found.figures if figure.id == "memory_parts")
    labels = stack.traces[0]["x"]
    place = labels.index("8 x 256")
    total = sum(trace["y"][place] for trace in stack.traces)
    costs = PlayedSize("small", 8, 256).case("full_step", "train")
    assert total == pytest.approx(costs.memory / MIB)
    weights = next(trace for trace in stack.traces if trace["name"] == "weights")
    assert weights["y"][place] == pytest.approx(4 * costs.parameters / MIB)
    sizes = next(figure for figure in found.figures if figure.id == "memory_of_sizes")
    assert len(sizes.traces[0]["x"]) == 5
    assert sum(trace["y"][4] for trace in sizes.traces) == pytest.approx(100)
    agreement = table(found, "memory_agreement")
    assert all(row[2] == pytest.approx(0) for row in agreement.rows)


def test_memory_of_a_training_run_is_its_profilers(inputs: ReportInputs) -> None:
    found = memory.build(dataclasses.replace(inputs, sets=(), studies=()))
    assert [figure.id for figure in found.figures] == ["memory_at_peak"]


def test_predictions_are_marked_and_hold_what_the_machine_would_take(
    inputs: ReportInputs,
) -> None:
    steps = inputs.predictions.steps
    assert [one.cost.name.size for one in steps] == [
        *("tiny", "small", "medium", "large", "very_large"),
    ]
    kinds = [one.kind for one in steps]
    assert kinds == ["calibrated on this size"] * 2 + ["prediction"] * 3
    for one in steps:
        name = one.cost.name
        costs = PlayedSize(name.size, name.batch, name.seq).case("full_step", "train")
        truth = true_seconds("full_step", costs)
        assert one.prediction.low <= truth <= one.prediction.high, name.size
    found = predictions.build(inputs)
    assert found.figures[0].traces[0]["role"] == "predicted"
    assert found.text[0].startswith("Predictions, not measurements")


def test_a_step_that_was_run_elsewhere_checks_its_prediction(
    tmp_path: Path, inputs: ReportInputs
) -> None:
    medium = Grid(sizes=("medium",), batches=(16,), seqs=(512,), components=("full_step",))
    other = read_inputs([source_of(write_result(tmp_path / "m.json", medium))]).sets
    both = dataclasses.replace(inputs, sets=(*inputs.sets, *other))
    (checked,) = [one for one in both.predictions.steps if one.cost.name.size == "medium"]
    assert checked.kind == "prediction, checked"
    assert checked.measured_seconds is not None
    assert "medium was run too" in predictions.build(both).text[1]


def test_a_step_of_another_machine_checks_nothing(tmp_path: Path, inputs: ReportInputs) -> None:
    medium = Grid(
        **{"sizes": ("medium",), "batches": (16,), "seqs": (512,)},
        components=("full_step",),
        device="Another CPU",
    )
    other = read_inputs([source_of(write_result(tmp_path / "m.json", medium))]).sets
    both = dataclasses.replace(inputs, sets=(*inputs.sets, *other))
    assert all(one.kind != "prediction, checked" for one in both.predictions.steps)
