"""What a report consists of: its sections, what they show of the files, and what is left out."""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from played_grid import (
    DEVICE,
    PEAK,
    SMALL,
    Grid,
    Json,
    frontier_document,
    frontier_head,
    frontier_point,
    largest_batch,
    round_document,
)
from played_study import change, read, table, write, write_result, write_training

from tinyllama_tools.report import command
from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import (
    Column,
    Document,
    Figure,
    Section,
    Table,
    axis,
    compact,
    with_log_ticks,
)
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.sections import comparison, environment, frontier, training

OF_SUITE = ("cases", "environment", "roofline", "speed_of_light", "time", "scaling")
BEHIND = ("predictions", "data_parallel", "ablation", "training", "comparison", "left_out")


def section(built: Document, identity: str) -> Section:
    return next(one for one in built.sections if one.id == identity)


def missing_of(built: Document) -> dict[str, str]:
    return {one.id: one.missing for one in built.sections if one.missing}


def test_sections_are_there_in_order_and_whole(built: Document) -> None:
    assert [one.id for one in built.sections] == [*OF_SUITE, "memory", "frontier", *BEHIND]
    assert missing_of(built) == {} and built.omissions == []
    assert built.title == "Tiny LLaMA on Played CPU · cccccccc · 2026-03-04"


def test_the_document_is_plain_json_with_units_and_own_ids(built: Document) -> None:
    found = json.loads(json.dumps(built.as_json(), allow_nan=False))
    assert list(found) == ["title", "generated", "summary", "sets", "sections", "comparison"]
    figures = [one for part in found["sections"] for one in part["figures"]]
    tables = [one for part in found["sections"] for one in part["tables"]]
    for kind in (figures, tables):
        assert len({one["id"] for one in kind}) == len(kind) > 10
    for figure in figures:
        values = [y for trace in figure["traces"] for y in trace["y"]]
        assert len(values) == figure["points"] > 0 and None not in values, figure["id"]
    texts = [*built.summary, *(text for one in built.sections for text in one.text)]
    for text in [*texts, *(f"{one['title']} {one['note']}" for one in figures)]:
        # such as a value that was formatted as None
        assert "None" not in text.replace("None was tried", "") and "  " not in text
        assert "nan" not in text.split()


def test_values_of_a_document() -> None:
    found = compact({"a": [1.23456789, math.nan, -0.0, math.inf], "n": 123456789, "t": True})
    assert found == {"a": [1.2346, None, 0, None], "n": 123456789, "t": True}
    assert json.dumps(compact(12.0)) == "12"
    with pytest.raises(ValueError, match="t: 1 cells under 2 headings"):
        Table("t", "T", [Column("a"), Column("b")], [[1]])
    assert Figure("f", "F", [{"y": [1, 2]}, {"y": [3]}], {}).points == 3


@pytest.mark.parametrize(
    ("values", "steps"),
    [([1, 2], None), ([1, 20], "D2"), ([1, 300], "D2"), ([1, 1e5], 1), ([1e-3, 1e9], 2)],
)
def test_logarithmic_axes_have_steps_that_leave_room(values: list[float], steps: object) -> None:
    traces = [{"x": [8, 16], "y": values}, {"x": [1], "y": [1e30], "yaxis": "y2"}]
    given = {"xaxis": axis("sequence", log=True, ticks=[16, 8]), "yaxis": axis("t", log=True)}
    found = with_log_ticks(given, traces)
    assert found["yaxis"].get("dtick") == steps
    assert found["xaxis"] == given["xaxis"] and found["xaxis"]["tickvals"] == [8, 16]
    assert "dtick" not in given["yaxis"]


def test_a_training_run_alone_names_what_is_missing(tmp_path: Path) -> None:
    built = build_document(read(write_training(tmp_path / "run")))
    found = missing_of(built)
    others = ("frontier", "predictions", "data_parallel", "ablation", "comparison")
    assert set(found) == {*OF_SUITE, *others}
    assert all("scripts/" in reason for reason in found.values())
    assert len(built.summary) == 5
    assert all("not" in text or "No " in text for text in built.summary)
    assert built.title == "Tiny LLaMA: performance_summary.json"
    assert build_document(ReportInputs(), "Mine").title == "Mine"


def test_a_single_point_is_named_with_what_a_law_needs(tmp_path: Path) -> None:
    built = build_document(read(write_result(tmp_path / "a.json", SMALL)))
    assert "1 size: 3 coefficients" in section(built, "scaling").missing
    laws = [one.name for one in built.omissions if one.kind == "time law"]
    assert "ffn/forward_backward/baseline/tiny/f32" in laws
    assert built.errors == 0
    assert len(section(built, "left_out").tables[0].rows) == len(built.omissions)


def test_a_fault_in_one_part_leaves_the_others(
    inputs: ReportInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: ReportInputs) -> Section:
        raise KeyError("nothing here")

    of_sections = (("roofline", "Roofline", broken), *command.BUILDERS[1:])
    monkeypatch.setattr(command, "BUILDERS", of_sections)
    sentences = (("the machine", broken), *command.ALL_SENTENCES[1:])
    monkeypatch.setattr(command, "ALL_SENTENCES", sentences)
    built = build_document(inputs)
    reason = "not foreseen: KeyError: 'nothing here'"
    assert missing_of(built) == {"roofline": reason}
    assert built.summary[0] == "There is no sentence on the machine: Left out says why."
    assert built.summary[1].startswith("A training step")
    found = [(one.kind, one.reason) for one in built.omissions if one.is_error]
    assert found == [("summary", reason), ("section", reason)] and built.errors == 2


def test_a_table_without_a_row_is_a_sentence(tmp_path: Path) -> None:
    def bare(content: Json) -> None:
        content["context"] |= {"peaks": {"measured": {}}, "settings": {}}
        for name in ("verify", "cold_cache", "seed", "memory_source"):
            del content["context"][name]

    built = build_document(read(change(write_result(tmp_path / "a.json", SMALL), bare)))
    found = section(built, "environment")
    assert [table.id for table in found.tables] == ["results", "sources"]
    assert found.text[-1].startswith("Nothing was measured for: Peaks; Settings of ")
    # what needs the peaks says so
    assert "cache_bandwidth" in missing_of(built)["roofline"]
    assert {"time", "memory"}.isdisjoint(missing_of(built))
    assert "was measured without its peaks" in built.summary[0]


def test_the_comparison_has_every_case_and_geometric_means(
    inputs: ReportInputs, built: Document
) -> None:
    found = built.as_json()["comparison"]
    first, second = (one["seconds"] for one in found["sets"])
    assert len(found["cases"]) == len(first) == len(second)
    step = found["cases"].index("full_step/train/baseline/tiny/f32/batch:8/seq:128")
    assert first[step] / second[step] == pytest.approx(1.5, rel=0.05)
    (rows,) = [one.rows for one in comparison.build(inputs).tables]
    assert {row[1] for row in rows} == {case.split("/")[0] for case in inputs.sets[0].cases}
    assert statistics.median(row[2] for row in rows) == pytest.approx(1.5, rel=0.01)


def test_environment_has_the_peaks_with_their_sources(inputs: ReportInputs) -> None:
    found = environment.build(inputs)
    rows = {(row[0], row[1]): row[2:] for row in table(found, "peaks").rows}
    device = next(title for title, _ in rows if title.startswith(DEVICE))
    expected = [PEAK / 1e9, None, "GFLOP/s", "product, 1024x1024x1024"]
    assert rows[device, "peak of f32 GEMMs"] == expected
    assert table(found, "sources").rows[0][0] == "a grid study"
    (study,) = inputs.studies
    begun = replace(study, description={**study.description, "rounds_done": 1})
    said = "The grid study has 1 of 3 rounds: `scripts/study --resume` goes on with it."
    assert said in environment.build(replace(inputs, studies=(begun,))).text


def test_every_case_is_in_the_first_table(inputs: ReportInputs, built: Document) -> None:
    (found,) = section(built, "cases").tables
    assert inputs.main is not None
    rows = {row[0]: row for row in found.rows}
    assert set(rows) == set(inputs.main.cases)
    for name, case in inputs.main.cases.items():
        _, time, low, high, _, mfu, roof, bound = rows[name]
        assert time == pytest.approx(1e3 * case.median_seconds)
        assert (low, high) == (1e3 * min(case.seconds), 1e3 * max(case.seconds))
        assert mfu == case.counters.get("MFU_percent")
        if roof is not None and case.counters["hardware_flops"]:
            peak = case.counters["peak_percent"]
            assert bound == ("compute" if peak == pytest.approx(roof) else "bandwidth"), name


def test_training_shows_phases_and_losses(inputs: ReportInputs) -> None:
    (run,) = inputs.trainings
    phases, losses = training.build(inputs).figures
    of_phases = run.summary["summary"]["breakdown"].values()
    total = 1e3 * sum(of["seconds"] for of in of_phases)
    assert sum(trace["x"][0] for trace in phases.traces) == pytest.approx(total)
    assert losses.traces[0]["y"] == [step["loss"] for step in run.summary["steps"]]


def test_a_size_without_a_name_has_laws_but_no_parts(tmp_path: Path) -> None:
    text = json.dumps(round_document(Grid(sizes=("tiny",)))).replace("/tiny/", "/custom/")
    built = build_document(read(write(tmp_path / "a.json", json.loads(text))))
    assert "size 'custom' are not known" in missing_of(built)["time"]
    assert "scaling" not in missing_of(built) and built.errors == 0


def test_a_failed_case_is_an_error_and_a_skipped_one_is_not(tmp_path: Path) -> None:
    def spoil(content: Json) -> None:
        rows = content["benchmarks"]
        rows[0] |= {"error_occurred": True, "error_message": "wrong result"}
        rows[1] |= {"skipped": True, "skip_message": "does not fit"}

    built = build_document(read(change(write_result(tmp_path / "a.json", SMALL), spoil)))
    cases = {one.reason: one.is_error for one in built.omissions if one.kind == "case"}
    assert cases == {"wrong result": True, "does not fit": False}
    assert built.errors == 1


def of_files(inputs: ReportInputs, *documents: Json, folder: Path, alone: bool = False) -> Section:
    """The section on frontiers with those of more files before the study's."""
    paths = [write(folder / f"{i}.json", document) for i, document in enumerate(documents)]
    found = read(*paths).frontiers
    return frontier.build(replace(inputs, frontiers=(*found, *(() if alone else inputs.frontiers))))


def test_the_frontier_is_the_files(inputs: ReportInputs) -> None:
    found = frontier.build(inputs)
    rows = {(row[0], row[3]): row[4] for row in table(found, "frontier_seq").rows}
    assert rows["tiny", 128] == largest_batch("tiny", 128)
    nothing = [row for row in table(found, "frontier_seq").rows if row[4] == 0]
    assert nothing and all(row[-1] == "not even 1 fits" for row in nothing)
    drawn = sum(len(trace["y"]) for trace in found.figures[0].traces)
    assert drawn == len(rows) - len(nothing)
    assert "memory beyond them: none: made up." in found.text[0]
    assert f"Made on {DEVICE}, commit cccccccc, 2026-03-04" in found.text[0]


def test_a_confirmed_frontier_over_batches_stands_beside(
    tmp_path: Path, inputs: ReportInputs
) -> None:
    tried = {"confirmed": "880 ran, 881 did not", "confirmed_seq": 880, "apart_percent": 2.3}
    point = frontier_point(batch=4, longest_seq=900, **tried)
    over_batches = frontier_head(1 << 30, "--memory-limit") | {"sequences": [point]}
    found = of_files(inputs, over_batches, folder=tmp_path)
    assert [one.id for one in found.tables] == ["frontier_seq", "frontier_batch"]
    assert table(found, "frontier_batch").rows[0][4:8] == [900, 1024, 880, 2.3]
    assert "1 of 1 point were tried." in found.text[1]
    both = frontier_document(SMALL) | {"sequences": [point]}
    found = of_files(inputs, both, folder=tmp_path, alone=True)
    assert [one.id for one in found.tables] == ["frontier_seq", "frontier_batch"]


@pytest.mark.parametrize(
    ("day", "ids"), [(5, ("", "_not_tried")), (3, ("_tried", ""))], ids=["newer", "older"]
)
def test_what_was_tried_within_a_smaller_limit_stands_beside_what_fits(
    tmp_path: Path, inputs: ReportInputs, day: int, ids: tuple[str, str]
) -> None:
    tried = {"confirmed": "30, as predicted", "confirmed_batch": 30, "apart_percent": 0.0}
    points = [frontier_point(seq=128, largest_batch=30, **tried)]
    head = frontier_head(1 << 30, "--memory-limit") | {"date": f"2026-03-0{day}T00:00:00+00:00"}
    path = write(tmp_path / "frontier.json", head | {"points": points})
    both = replace(inputs, frontiers=(*inputs.frontiers, *read(path).frontiers))
    found = frontier.build(both)
    of_tries, whole = (table(found, f"frontier_seq{end}") for end in ids)
    assert of_tries.rows[0][4:8] == [30, 1024, 30, 0]
    assert len(whole.rows) > 5
    assert len({one.id for one in found.figures}) == len(found.figures) == 2
    # the largest limit is what there is
    assert re.search(r"fits into 24 GiB up to batch", build_document(both).summary[4])


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
    head = frontier_head() | {"date": date, "device": device}
    other = head | {"points": [frontier_point(seq=128, largest_batch=7)]}
    found = of_files(inputs, other, folder=tmp_path)
    assert (len(table(found, "frontier_seq").rows) == 1) == is_taken
    alone = of_files(inputs, other, folder=tmp_path, alone=True)
    assert table(alone, "frontier_seq").rows[0][4] == 7
