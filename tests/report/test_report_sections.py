"""The other sections, and what sections say where their data is missing."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from pathlib import Path

import pytest
from played_grid import (
    DEVICE,
    PEAK,
    Grid,
    frontier_head,
    largest_batch,
    round_document,
)
from played_study import write, write_result, write_study
from report_tables import table

from tinyllama_tools.report.build import build_document
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.sections import (
    comparison,
    environment,
    frontier,
    training,
)
from tinyllama_tools.report.sources import source_of
from tinyllama_tools.report.summary import cost_sentence


def test_environment_has_the_peaks_with_their_sources(inputs: ReportInputs) -> None:
    found = environment.build(inputs)
    rows = {(row[0], row[1]): row[2:] for row in table(found, "peaks").rows}
    device = next(title for title, _ in rows if title.startswith(DEVICE))
    assert rows[device, "peak of f32 products"] == [
        *(PEAK / 1e9, None, "GFLOP/s", "product, 1024x1024x1024"),
    ]
    assert table(found, "sources").rows[0][0] == "a grid study"


def test_an_unfinished_study_is_said(inputs: ReportInputs) -> None:
    (study,) = inputs.studies
    description = {**study.description, "rounds_done": 1}
    changed = dataclasses.replace(study, description=description)
    text = environment.build(dataclasses.replace(inputs, studies=(changed,))).text
    assert "The grid study has 1 of 3 rounds: `scripts/study --resume` goes on with it." in text


def test_the_frontier_is_the_files(inputs: ReportInputs) -> None:
    found = frontier.build(inputs)
    rows = {(row[0], row[3]): row[4] for row in table(found, "frontier_seq").rows}
    assert rows["tiny", 128] == largest_batch("tiny", 128)
    nothing = [row for row in table(found, "frontier_seq").rows if row[4] == 0]
    assert nothing
    assert all(row[-1] == "not even 1 fits" for row in nothing)
    drawn = sum(len(trace["y"]) for trace in found.figures[0].traces)
    assert drawn == len(rows) - len(nothing)


def test_a_confirmed_frontier_over_batches_stands_beside(
    tmp_path: Path, inputs: ReportInputs
) -> None:
    point = {
        **{"size": "tiny", "variant": "baseline", "dtype": "f32", "batch": 4},
        **{"longest_seq": 900, "predicted_bytes": 1 << 30, "limit_bytes": 1 << 30},
        **{"confirmed": "880 ran, 881 did not", "confirmed_seq": 880, "apart_percent": 2.3},
    }
    document = frontier_head(1 << 30, "--memory-limit", DEVICE) | {"sequences": [point]}
    path = write(tmp_path / "frontier.json", document)
    other = read_inputs([source_of(path)]).frontiers
    found = frontier.build(dataclasses.replace(inputs, frontiers=(*other, *inputs.frontiers)))
    assert [one.id for one in found.tables] == ["frontier_seq", "frontier_batch"]
    assert table(found, "frontier_batch").rows[0][4:8] == [900, 1024, 880, 2.3]
    assert "1 of 1 point were tried." in found.text[1]


def test_what_was_tried_within_a_smaller_limit_stands_beside_what_fits(
    tmp_path: Path, inputs: ReportInputs
) -> None:
    point = {
        **{"size": "tiny", "variant": "baseline", "dtype": "f32", "seq": 128},
        **{"largest_batch": 30, "predicted_bytes": 1 << 30, "limit_bytes": 1 << 30},
        **{"confirmed": "30, as predicted", "confirmed_batch": 30, "apart_percent": 0.0},
    }
    document = frontier_head(1 << 30, "--memory-limit", DEVICE) | {"points": [point]}
    days = ("2026-03-05T00:00:00+00:00", "2026-03-03T00:00:00+00:00")
    for day, order in zip(days, (("", "_not_tried"), ("_tried", "")), strict=True):
        path = write(tmp_path / "frontier.json", document | {"date": day})
        other = read_inputs([source_of(path)]).frontiers
        both = dataclasses.replace(inputs, frontiers=(*inputs.frontiers, *other))
        found = frontier.build(both)
        tried, whole = (table(found, f"frontier_seq{end}") for end in order)
        assert tried.rows[0][4:8] == [30, 1024, 30, 0]
        assert len(whole.rows) > 5
        assert len({one.id for one in found.figures}) == len(found.figures) == 2
        # the largest limit is what there is
        assert "fits into 24 GiB up to batch" in cost_sentence(both)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"largest_batch": "many"}, r"points\[0\]: largest_batch is 'many'"),
        ({"size": None}, r"points\[0\]: size is None, must be a text"),
    ],
)
def test_a_bad_point_of_a_frontier_is_named(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    folder = write_study(tmp_path / "s", Grid(sizes=("tiny",), batches=(8,), seqs=(128,)))
    path = folder / "frontier.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["points"][0] |= change
    write(path, document)
    (error,) = read_inputs([source_of(folder)]).omissions
    assert error.is_error
    assert re.search(reason, error.reason)


def test_training_shows_phases_and_losses(inputs: ReportInputs) -> None:
    found = training.build(inputs)
    (run,) = inputs.trainings
    phases, losses = found.figures
    total = sum(trace["x"][0] for trace in phases.traces)
    of_phases = run.summary["summary"]["breakdown"].values()
    assert total == pytest.approx(1e3 * sum(of["seconds"] for of in of_phases))
    assert losses.traces[0]["y"] == [step["loss"] for step in run.summary["steps"]]


def test_comparison_is_a_geometric_mean(inputs: ReportInputs) -> None:
    found = comparison.build(inputs)
    (rows,) = [one.rows for one in found.tables]
    assert {row[1] for row in rows} == {case.split("/")[0] for case in inputs.sets[0].cases}
    assert statistics.median(row[2] for row in rows) == pytest.approx(1.5, rel=0.01)


def test_without_peaks_what_needs_them_says_so(tmp_path: Path) -> None:
    grid = Grid(sizes=("tiny",))
    document = round_document(grid, 1)
    document["context"]["peaks"] = {"measured": {}}
    built = build_document(read_inputs([source_of(write(tmp_path / "a.json", document))]))
    missing = {one.id: one.missing for one in built.sections if one.missing}
    assert "cache_bandwidth" in missing["roofline"]
    assert {"scaling", "time", "memory"}.isdisjoint(missing)
    assert "was measured without its peaks" in built.summary[0]


def test_a_size_without_a_name_has_laws_but_no_parts(tmp_path: Path) -> None:
    document = round_document(Grid(sizes=("tiny",)), 1)
    text = json.dumps(document).replace("/tiny/", "/custom/")
    built = build_document(read_inputs([source_of(write(tmp_path / "a.json", json.loads(text)))]))
    missing = {one.id: one.missing for one in built.sections if one.missing}
    assert "size 'custom' are not known" in missing["time"]
    assert "scaling" not in missing
    assert built.errors == 0


def test_a_failed_case_is_an_error_and_a_skipped_one_is_not(tmp_path: Path) -> None:
    grid = Grid(sizes=("tiny",), batches=(8,), seqs=(128,))
    path = write_result(tmp_path / "a.json", grid)
    document = json.loads(path.read_text(encoding="utf-8"))
    rows = document["benchmarks"]
    rows[0] |= {"error_occurred": True, "error_message": "wrong result"}
    rows[1] |= {"skipped": True, "skip_message": "does not fit"}
    write(path, document)
    built: Document = build_document(read_inputs([source_of(path)]))
    cases = {one.reason: one.is_error for one in built.omissions if one.kind == "case"}
    assert cases == {"wrong result": True, "does not fit": False}
    assert built.errors == 1
