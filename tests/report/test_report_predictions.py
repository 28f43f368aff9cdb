"""Predictions, what fits into memory and what that consists of, as the report shows them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from played_costs import PlayedSize
from played_grid import DEVICE, Grid, frontier_document, true_seconds
from played_study import write, write_result, write_study
from report_tables import table

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.results import MeasuredCase
from tinyllama_tools.report.analysis import predictions_of
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.law_parts import GRADIENTS, REST, WEIGHTS, measured_parts
from tinyllama_tools.report.sections import frontier, predictions
from tinyllama_tools.report.sources import source_of

MIB = 2**20
MEDIUM = CaseName("full_step", "train", "baseline", "medium", "f32", 16, 512)


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
    (medium,) = [row for row in table(found, "predicted_steps").rows if row[0] == "medium"]
    headings = [one.title for one in table(found, "predicted_steps").columns]
    assert medium[headings.index("from and to")] == "95 % interval"
    memory = headings.index("peak memory")
    assert medium[memory + 1] < medium[memory] < medium[memory + 2]


def test_one_size_makes_an_assumed_range(tmp_path: Path) -> None:
    grid = Grid(sizes=("tiny",))
    alone = read_inputs([source_of(write_study(tmp_path / "s", grid))])
    found = table(predictions.build(alone), "predicted_steps")
    assert {row[6] for row in found.rows} == {"assumed range"}


def test_a_step_that_was_run_elsewhere_checks_its_prediction(
    tmp_path: Path, inputs: ReportInputs
) -> None:
    medium = Grid(sizes=("medium",), batches=(16,), seqs=(512,), components=("full_step",))
    other = read_inputs([source_of(write_result(tmp_path / "m.json", medium))]).sets
    both = dataclasses.replace(inputs, sets=(*inputs.sets, *other))
    (checked,) = [one for one in both.predictions.steps if one.cost.name.size == "medium"]
    assert checked.kind == "prediction, checked"
    assert checked.check is not None
    assert checked.check.is_inside
    assert checked.measured_seconds is not None
    said = predictions.build(both).text[1]
    assert said.startswith("medium (16 x 512) was run too, which the rates do not know of")
    assert "inside the 95 % interval; the predicted memory by " in said
    assert said.endswith("inside its range.")


@pytest.mark.parametrize(("slower", "place"), [(1.0, "inside"), (9.0, "outside")])
def test_a_check_at_a_smaller_shape_says_time_and_memory(
    inputs: ReportInputs, slower: float, place: str
) -> None:
    (cost,) = [one for one in inputs.costs if one.name == MEDIUM]
    small = dataclasses.replace(MEDIUM, batch=2, seq=256)
    costs = [
        dataclasses.replace(
            one,
            name=dataclasses.replace(one.name, batch=2, seq=256),
            **{
                key: getattr(one, key) // 16
                for key in ("model_flops", "hardware_flops", "elementwise_flops", "bytes")
            },
        )
        for one in inputs.costs
        if one.name.size == "medium" and one.name.batch == 16
    ]
    seconds = slower * true_seconds(
        "full_step", PlayedSize("medium", 2, 256).case("full_step", "train")
    )
    memory = cost.predicted_memory_bytes / MIB
    case = MeasuredCase(small, (seconds,), {"peak_memory_MiB": 1.25 * memory})
    found = predictions_of(inputs.main, [*inputs.costs, *costs], {str(small): case})
    (checked,) = [one for one in found.steps if one.kind == "prediction, checked"]
    assert (checked.cost.name, found.steps[3]) == (small, checked)
    section = predictions.build(_with_predictions(inputs, found))
    assert (
        f"{place} the 95 % interval; the predicted memory by -20.00 %, outside" in section.text[1]
    )
    row = next(row for row in table(section, "predicted_steps").rows if row[1] == "2 x 256")
    assert row[9] == ("yes" if place == "inside" else "no")


def _with_predictions(inputs: ReportInputs, found: object) -> ReportInputs:
    """Inputs whose predictions are these."""
    changed = dataclasses.replace(inputs)
    changed.__dict__["predictions"] = found
    return changed


def test_a_step_of_another_machine_checks_nothing(tmp_path: Path, inputs: ReportInputs) -> None:
    medium = Grid(
        **{"sizes": ("medium",), "batches": (16,), "seqs": (512,)},
        components=("full_step",),
        device="Another CPU",
    )
    other = read_inputs([source_of(write_result(tmp_path / "m.json", medium))]).sets
    both = dataclasses.replace(inputs, sets=(*inputs.sets, *other))
    assert all(one.kind != "prediction, checked" for one in both.predictions.steps)


def another_frontier(tmp_path: Path, date: str, device: str = DEVICE) -> Path:
    """Of one point, the rest of it as the study's."""
    grid = Grid(sizes=("tiny",), seqs=(128,))
    document = frontier_document(grid)
    document["points"][0]["largest_batch"] = 7
    changes = {"points": document["points"][:1], "date": date, "device": device}
    return write(tmp_path / "frontier.json", document | changes)


@pytest.mark.parametrize(
    ("date", "device", "is_taken"),
    [
        ("2099-01-01T00:00:00+00:00", DEVICE, True),
        ("2001-01-01T00:00:00+00:00", DEVICE, False),
        ("2099-01-01T00:00:00+00:00", "Another CPU", False),
        ("2099-01-01T00:00:00+00:00", "", True),
        ("", DEVICE, False),
    ],
)
def test_a_studys_frontier_stays_unless_a_newer_one_is_of_its_device(
    tmp_path: Path, inputs: ReportInputs, date: str, device: str, *, is_taken: bool
) -> None:
    other = read_inputs([source_of(another_frontier(tmp_path, date, device))]).frontiers
    found = frontier.build(dataclasses.replace(inputs, frontiers=(*other, *inputs.frontiers)))
    assert (len(table(found, "frontier_seq").rows) == 1) == is_taken
    # alone, every one is shown
    alone = frontier.build(dataclasses.replace(inputs, frontiers=other))
    assert table(alone, "frontier_seq").rows[0][4] == 7


def test_a_frontier_says_what_it_rests_on(inputs: ReportInputs) -> None:
    (file,) = inputs.frontiers
    known = dataclasses.replace(file, overhead="measured on 9 steps of tiny: 3.0 MiB + 1.00 %")
    text = frontier.build(dataclasses.replace(inputs, frontiers=(known,))).text[0]
    assert "memory beyond them: measured on 9 steps of tiny: 3.0 MiB + 1.00 %" in text
    assert f"Made on {DEVICE}, commit cccccccc, 2026-03-04" in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": None}, "schema_version is None, must be 1"),
        ({"overhead": None}, "overhead: is no object"),
        ({"limit_bytes": "all"}, "limit_bytes is 'all', must be a number from 0"),
    ],
)
def test_a_frontier_without_its_fields_is_named(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    path = another_frontier(tmp_path, "")
    write(path, json.loads(path.read_text(encoding="utf-8")) | change)
    (error,) = read_inputs([source_of(path)]).omissions
    assert reason in error.reason


@pytest.mark.parametrize("key", ["confirmed_batch", "apart_percent"])
@pytest.mark.parametrize("value", ["12", True, float("inf")])
def test_a_bad_confirmation_is_named(tmp_path: Path, key: str, value: object) -> None:
    path = another_frontier(tmp_path, "")
    document = json.loads(path.read_text(encoding="utf-8"))
    document["points"][0][key] = value
    write(path, document)
    (error,) = read_inputs([source_of(path)]).omissions
    assert f"points[0]: {key} is {value!r}, must be a number or null" in error.reason


def test_both_axes_of_a_file_are_shown(tmp_path: Path, inputs: ReportInputs) -> None:
    document = frontier_document(Grid(sizes=("tiny",), seqs=(128,)))
    point = {key: document["points"][0][key] for key in ("size", "variant", "dtype")}
    point |= {"batch": 4, "longest_seq": 900, "predicted_bytes": 1 << 30}
    path = write(tmp_path / "frontier.json", document | {"sequences": [point]})
    both = read_inputs([source_of(path)]).frontiers
    found = frontier.build(dataclasses.replace(inputs, frontiers=both))
    assert [one.id for one in found.tables] == ["frontier_seq", "frontier_batch"]


def step(batch: int, peak_bytes: float, variant: str = "baseline") -> MeasuredCase:
    name = CaseName("full_step", "train", variant, "tiny", "f32", batch, 64)
    counters = {"parameters": PARAMETERS, "peak_memory_MiB": peak_bytes / MIB}
    return MeasuredCase(name, (1.0,), counters)


PARAMETERS = 2_873_600.0


def test_gradients_are_a_part_where_the_update_is_the_peak() -> None:
    of = problem_sizes()["tiny"]
    hidden, heads = of["hidden_dim"], of["n_heads"]
    largest = hidden * max(of["vocab_size"], of["intermediate_dim"])
    inputs_bytes = 4 * (2 * 64 * hidden // heads + heads // of["n_kv_heads"] * 64**2) + 16 * 64
    update = 16 * PARAMETERS + 4 * largest + inputs_bytes
    parts = measured_parts(step(1, update))
    assert parts is not None
    assert parts.bytes_by_part[GRADIENTS] == parts.bytes_by_part[WEIGHTS] == 4 * PARAMETERS
    assert sum(parts.bytes_by_part.values()) == pytest.approx(update)
    # 1 % above it the backward pass is the peak, and how many gradients there are is not known
    backward = measured_parts(step(1, 1.01 * update))
    assert backward is not None
    assert (GRADIENTS in backward.bytes_by_part, REST in backward.bytes_by_part) == (False, True)
    # another update needs another scratch, which no count tells
    optimized = measured_parts(step(1, update, "optimized"))
    assert optimized is not None
    assert GRADIENTS not in optimized.bytes_by_part
    assert measured_parts(step(1, 11 * PARAMETERS)) is None
