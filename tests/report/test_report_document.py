"""The document as a whole: its form, its completeness, and what happens where data is missing."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from played_grid import Grid
from played_study import document, write_result, write_training

from tinyllama_tools.report import build
from tinyllama_tools.report.document import Column, Document, Figure, Section, Table, compact
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.sources import source_of

ORDER = [
    "environment",
    "roofline",
    "speed_of_light",
    "time",
    "scaling",
    "memory",
    "frontier",
    "predictions",
    "data_parallel",
    "ablation",
    "training",
    "comparison",
    "left_out",
]


def section(built: Document, identity: str) -> Section:
    return next(one for one in built.sections if one.id == identity)


def test_sections_are_there_in_order(built: Document) -> None:
    assert [one.id for one in built.sections] == ORDER
    assert [one.id for one in built.sections if one.missing] == []
    assert built.omissions == []


def test_the_document_is_plain_json(built: Document) -> None:
    text = json.dumps(built.as_json(), allow_nan=False)
    assert set(json.loads(text)) == {
        *("title", "generated", "summary", "sets", "sections", "comparison"),
    }


def test_ids_are_unique(built: Document) -> None:
    found = [one.id for one in built.sections]
    found += [figure.id for one in built.sections for figure in one.figures]
    found += [table.id for one in built.sections for table in one.tables]
    assert len(found) == len(set(found))
    assert all(identity.isidentifier() for identity in found)


def test_no_figure_and_no_table_is_empty(built: Document) -> None:
    for one in built.sections:
        assert all(figure.points > 0 for figure in one.figures), one.id
        assert all(table.rows for table in one.tables), one.id


def test_points_are_those_of_the_traces(built: Document) -> None:
    for one in built.as_json()["sections"]:
        for figure in one["figures"]:
            lengths = [len(trace["y"]) for trace in figure["traces"]]
            assert figure["points"] == sum(lengths), figure["id"]
            assert lengths == [len(trace["x"]) for trace in figure["traces"]], figure["id"]
            assert all(value is not None for t in figure["traces"] for value in t["y"])


def test_texts_have_no_gap(built: Document) -> None:
    """Such as a value that was formatted as None."""
    texts = [*built.summary, *(text for one in built.sections for text in one.text)]
    texts += [f"{figure.title} {figure.note}" for one in built.sections for figure in one.figures]
    for text in texts:
        assert "None" not in text.replace("None was tried", "")
        assert "  " not in text
        assert "nan" not in text.split()


def test_numbers_are_rounded_and_never_nan() -> None:
    found = compact({"a": [1.23456789, math.nan, -0.0, math.inf], "n": 123456789, "t": True})
    assert found == {"a": [1.2346, None, 0, None], "n": 123456789, "t": True}
    assert json.dumps(compact(12.0)) == "12"


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="t: 1 cells under 2 headings"):
        Table("t", "T", [Column("a"), Column("b")], [[1]])


def test_points_count_every_trace() -> None:
    assert Figure("f", "F", [{"y": [1, 2]}, {"y": [3]}], {}).points == 3


def test_a_training_run_alone_names_what_is_missing(tmp_path: Path) -> None:
    made = document(tmp_path, [write_training(tmp_path / "run")])
    missing = {one["id"]: one["missing"] for one in made["sections"] if one["missing"]}
    assert set(missing) == {
        *("environment", "roofline", "speed_of_light", "time", "scaling", "frontier"),
        *("predictions", "data_parallel", "ablation", "comparison"),
    }
    assert all("scripts/" in reason for reason in missing.values())
    assert len(made["summary"]) == 5
    assert all("not" in text or "No " in text for text in made["summary"])


def test_a_single_point_is_named_with_what_a_law_needs(tmp_path: Path) -> None:
    grid = Grid(sizes=("tiny",), batches=(8,), seqs=(128,))
    inputs = read_inputs([source_of(write_result(tmp_path / "a.json", grid))])
    built = build.build_document(inputs)
    assert "1 size: 3 coefficients" in section(built, "scaling").missing
    laws = [one for one in built.omissions if one.kind == "time law"]
    assert "ffn/forward_backward/baseline/tiny/f32" in [one.name for one in laws]
    assert built.errors == 0
    rows = section(built, "left_out").tables[0].rows
    assert len(rows) == len(built.omissions)


def test_a_fault_in_one_section_leaves_the_others(
    inputs: ReportInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: ReportInputs) -> Section:
        raise KeyError("nothing here")

    builders = [("roofline", "Roofline", broken), *build.BUILDERS[1:]]
    monkeypatch.setattr(build, "BUILDERS", tuple(builders))
    built = build.build_document(inputs)
    assert built.sections[0].missing == "not foreseen: KeyError: 'nothing here'"
    assert built.errors == 1
    assert not section(built, "scaling").missing


def test_a_fault_in_one_sentence_leaves_the_others(
    inputs: ReportInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: ReportInputs) -> str:
        raise TypeError("no number")

    monkeypatch.setattr(build, "SENTENCES", (("the machine", broken), *build.SENTENCES[1:]))
    built = build.build_document(inputs)
    assert built.summary[0] == "There is no sentence on the machine: Left out says why."
    assert built.summary[1].startswith("A training step")
    (error,) = [one for one in built.omissions if one.is_error]
    assert (error.kind, error.reason) == ("summary", "not foreseen: TypeError: no number")


def test_a_table_without_a_row_is_a_sentence(tmp_path: Path) -> None:
    grid = Grid(sizes=("tiny",), batches=(8,), seqs=(128,), rounds=1)
    path = write_result(tmp_path / "a.json", grid)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["context"] |= {"peaks": {"measured": {}}, "settings": {}}
    for name in ("verify", "cold_cache", "seed", "memory_source"):
        del content["context"][name]
    path.write_text(json.dumps(content), encoding="utf-8")
    built = build.build_document(read_inputs([source_of(path)]))
    environment = section(built, "environment")
    assert [table.id for table in environment.tables] == ["results", "sources"]
    assert environment.text[-1].startswith("Nothing was measured for: Peaks; Settings of ")


def test_the_title_is_the_devices_or_the_one_given(inputs: ReportInputs, built: Document) -> None:
    assert built.title == "Tiny LLaMA on Played CPU · cccccccc · 2026-03-04"
    nothing = dataclasses.replace(inputs, sets=(), studies=())
    assert build.default_title(nothing).startswith("Tiny LLaMA: ")
    assert build.build_document(ReportInputs(), "Mine").title == "Mine"


def test_the_comparison_has_every_case_of_every_set(built: Document) -> None:
    comparison = built.as_json()["comparison"]
    first, second = comparison["sets"]
    assert len(comparison["cases"]) == len(first["seconds"]) == len(second["seconds"])
    step = comparison["cases"].index("full_step/train/baseline/tiny/f32/batch:8/seq:128")
    assert first["seconds"][step] / second["seconds"][step] == pytest.approx(1.5, rel=0.05)
