"""What a report consists of: sections, texts, local steps."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from pathlib import Path

import pytest
from played_grid import DEVICE, PEAK, Grid, frontier_head, largest_batch, round_document
from played_study import document, write, write_result, write_study, write_training
from report_tables import table

from made_up_scaling import World, analysis_of, write_world
from tinyllama_tools.commands.scaling_page import local_table, overview
from tinyllama_tools.models.collectives import read_interconnects
from tinyllama_tools.models.scaling_projection import (
    MEASURED,
    PREDICTED,
    LocalSteps,
    local_steps,
    projections_of,
)
from tinyllama_tools.report import build
from tinyllama_tools.report.build import build_document
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
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.sections import comparison, environment, frontier, training
from tinyllama_tools.report.sources import source_of
from tinyllama_tools.report.summary import cost_sentence

ORDER = [
    "cases",
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
        *("cases", "environment", "roofline", "speed_of_light", "time", "scaling"),
        *("frontier", "predictions", "data_parallel", "ablation", "comparison"),
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


def test_environment_has_the_peaks_with_their_sources(inputs: ReportInputs) -> None:
    found = environment.build(inputs)
    rows = {(row[0], row[1]): row[2:] for row in table(found, "peaks").rows}
    device = next(title for title, _ in rows if title.startswith(DEVICE))
    assert rows[device, "peak of f32 GEMMs"] == [
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


NO_PROGRAM = Path("no_such_program")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"), Grid(rounds=1))


@pytest.fixture(scope="module")
def found(study: Path) -> LocalSteps:
    return local_steps([], [study], NO_PROGRAM, "f32", "baseline")


def test_sizes_that_were_run_are_measured_and_others_predicted(found: LocalSteps) -> None:
    kinds = {size: step.kind for size, step in found.steps.items()}
    assert kinds["tiny"] == MEASURED
    assert kinds["large"] == kinds["very_large"] == PREDICTED
    assert found.missing == {}
    for step in found.steps.values():
        assert step.low <= step.seconds <= step.high
        assert (step.low < step.high) == (step.kind == PREDICTED)
        assert step.knows_small_batches == (step.kind == MEASURED)


def test_projections_say_which_local_steps_are_predictions(study: Path, tmp_path: Path) -> None:
    write_world(tmp_path, World(ranks=2))
    links = read_interconnects(names=["mi300x_ndr"])
    projections = projections_of(analysis_of(tmp_path), [study], links, NO_PROGRAM)
    of_size = {step.size: step.local_kind for step in projections.steps}
    assert of_size["tiny"] == MEASURED
    assert of_size["very_large"] == PREDICTED
    rows = [line for line in overview(projections) if "very_large" in line]
    assert rows and all("| predicted" in row and "| projection |" in row for row in rows)
    (line,) = (line for line in local_table(projections.local.values()) if "very_large" in line)
    assert projections.local["very_large"].range_words in line


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


def test_every_case_is_in_the_first_table(inputs: ReportInputs, built: Document) -> None:
    (table,) = section(built, "cases").tables
    main = inputs.main
    assert main is not None
    rows = {row[0]: row for row in table.rows}
    assert set(rows) == set(main.cases)
    for name, case in main.cases.items():
        _, time, low, high, _, mfu, roof, bound = rows[name]
        assert time == pytest.approx(1e3 * case.median_seconds)
        assert (low, high) == (1e3 * min(case.seconds), 1e3 * max(case.seconds))
        assert mfu == case.counters.get("MFU_percent")
        if roof is not None and case.counters["hardware_flops"]:
            peak = case.counters["peak_percent"]
            assert bound == ("compute" if peak == pytest.approx(roof) else "bandwidth"), name
