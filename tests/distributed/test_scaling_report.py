"""Data-parallel runs in a report: the section, what it names as missing, and how it finds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from made_up_scaling import World, document, write_run, write_world
from tinyllama_tools.report import inputs as loading
from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import Document, Section
from tinyllama_tools.report.inputs import ReportInputs, ScalingRun, read_inputs, read_scaling_run
from tinyllama_tools.report.output import figures_of_merit
from tinyllama_tools.report.sources import Kind, Source, newest_sources, source_of
from tools import scaling as main

LINKS = "--interconnects=nvlink4_ndr,ethernet_10g"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with its scaling.json."""
    made = write_run(tmp_path_factory.mktemp("results") / "20260304T050607Z_scaling")
    assert main([f"--from={made}", LINKS]) == 0
    return made


@pytest.fixture(scope="module")
def inputs(folder: Path) -> ReportInputs:
    return read_inputs([source_of(folder)])


@pytest.fixture(scope="module")
def built(inputs: ReportInputs) -> Document:
    return build_document(inputs)


def section(built: Document) -> Section:
    return next(one for one in built.sections if one.id == "data_parallel")


def rows(of: Section, identity: str) -> list[list[object]]:
    return [list(row) for table in of.tables if table.id == identity for row in table.rows]


def test_a_folder_and_its_files_are_told_from_other_results(folder: Path, tmp_path: Path) -> None:
    assert source_of(folder) == Source(Kind.SCALING, folder)
    assert source_of(folder / "scaling.json") == Source(Kind.SCALING, folder)
    alone = folder / "ranks_2.json"
    assert source_of(alone) == Source(Kind.SCALING, alone)
    bare = write_run(tmp_path / "bare", ranks=(2,))
    assert source_of(bare) == Source(Kind.SCALING, bare)
    assert Source(Kind.SCALING, folder) in newest_sources(folder.parent).sources
    assert Kind.SCALING in newest_sources(tmp_path).absent


def test_the_section_has_every_figure_and_table(built: Document) -> None:
    found = section(built)
    assert found.missing == ""
    assert {figure.id for figure in found.figures} == {
        *("speedup", "scaling_loss", "collectives_2", "collectives_4"),
        *("projection_weak", "projection_strong"),
    }
    assert {table.id for table in found.tables} == {
        *("parallel_efficiency", "scaling_losses", "collective_fits", "projection_checks"),
        *("local_steps", "projections", "projection_links"),
    }
    assert all(figure.points for figure in found.figures)
    assert any("4 ranks reach an efficiency of 9" in text for text in found.text)
    whole = built.as_json()
    assert "None" not in json.dumps(whole, allow_nan=False)
    (drawn,) = (one for one in whole["sections"] if one["id"] == "data_parallel")
    for figure in drawn["figures"]:
        assert figure["id"].isidentifier()
        for trace in figure["traces"]:
            assert len(trace["x"]) == len(trace["y"]) > 0, figure["id"]
            assert None not in trace["y"]
    for table in drawn["tables"]:
        titles = [column["title"] for column in table["columns"]]
        assert len(titles) == len(set(titles)), table["id"]
    assert all("  " not in text for text in drawn["text"])


def test_losses_of_each_world_make_up_the_whole(built: Document) -> None:
    losses = rows(section(built), "scaling_losses")
    for ranks in (2, 4):
        of = [row[2] for row in losses if row[0] == ranks]
        assert len(of) == 4
        assert sum(of) == pytest.approx(100)
    (figure,) = (one for one in section(built).figures if one.id == "scaling_loss")
    stacked = [sum(trace["y"][i] for trace in figure.traces) for i in range(2)]
    assert stacked == pytest.approx([100, 100])


def test_every_projection_is_marked_as_one(built: Document) -> None:
    found = rows(section(built), "projections")
    assert found and {row[-1] for row in found} == {"projection"}
    drawn = [one for one in section(built).figures if one.id.startswith("projection_")]
    assert all(one.title.startswith("Projection: ") for one in drawn)
    assert all(one.note.startswith("Projections, not measurements") for one in drawn)


def test_a_single_file_has_no_projection_and_says_so(folder: Path) -> None:
    inputs = read_inputs([source_of(folder / "ranks_4.json")])
    built = build_document(inputs)
    assert rows(section(built), "projections") == []
    (omission,) = (one for one in built.omissions if one.kind == "projection")
    assert "scripts/scaling --from" in omission.reason
    assert built.errors == 0


def test_a_fit_that_is_refused_is_left_out_by_name(tmp_path: Path) -> None:
    changed = document(World())
    changed["benchmarks"] = [
        e
        for e in changed["benchmarks"]
        if not e["run_name"].startswith("all_gather") or "bytes:1024/" in e["run_name"]
    ]
    path = write_world(tmp_path, World())
    path.write_text(json.dumps(changed), encoding="utf-8")
    built = build_document(read_inputs([source_of(path)]))
    (omission,) = (one for one in built.omissions if one.kind == "latency and bandwidth")
    assert omission.name == "all_gather, 2 ranks"
    assert "1 sizes, at least 3 are needed" in omission.reason


def test_a_damaged_scaling_file_is_named(folder: Path, tmp_path: Path) -> None:
    damaged = write_run(tmp_path / "run", ranks=(2,))
    found = json.loads((folder / "scaling.json").read_text(encoding="utf-8"))
    found["projection"]["steps"][3]["ranks"] = "many"
    (damaged / "scaling.json").write_text(json.dumps(found), encoding="utf-8")
    run = read_scaling_run(damaged)
    assert "projection.steps[3].ranks: 'many'" in run.refusal
    of = section(build_document(read_inputs([source_of(damaged)])))
    (omission,) = (one for one in of.omissions if one.is_error)
    assert (omission.kind, omission.reason) == ("projection", run.refusal)
    assert rows(of, "parallel_efficiency"), "the measured part stays"


def test_without_a_run_the_section_says_what_makes_one() -> None:
    built = build_document(ReportInputs())
    assert "scripts/scaling --processes 1,2 makes one" in section(built).missing


def test_figures_of_merit_follow_the_efficiency(inputs: ReportInputs) -> None:
    found = {figure.name: figure for figure in figures_of_merit(inputs)}
    name = "full_step/train/baseline/tiny/f32/batch:8/seq:128/ranks:4/overlap"
    assert 85 < found[f"{name}/weak_efficiency_percent"].value < 100
    assert found[f"{name}/time"].unit == "s"
    assert f"{name}/communication_percent" in found


def test_a_figure_of_merit_is_of_one_run(
    inputs: ReportInputs, folder: Path, tmp_path: Path
) -> None:
    other = write_run(tmp_path / "other", ranks=(2, 3), rounds=3)
    both = read_inputs([source_of(folder), source_of(other)])
    figures = figures_of_merit(both)
    names = [figure.name for figure in figures]
    assert len(names) == len(set(names))
    assert figures[: len(figures_of_merit(inputs))] == figures_of_merit(inputs)
    assert any("/ranks:3/" in name for name in names)
    (omission,) = (
        one for one in section(build_document(both)).omissions if one.kind == "figures of merit"
    )
    assert "an earlier run has steps of the same names" in omission.reason


def test_a_world_without_a_usable_result_does_not_cost_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", ranks=(1, 2, 4))
    (run / "ranks_4.json").write_text("{", encoding="utf-8")
    assert main([f"--from={run}", LINKS]) == 1
    assert "ranks_4.json: is cut short" in capsys.readouterr().out
    built = build_document(read_inputs([source_of(run)]))
    assert {row[0] for row in rows(section(built), "parallel_efficiency")} == {1, 2}
    (omission,) = (one for one in built.omissions if one.kind == "ranks")
    assert omission.is_error and omission.name.endswith("4 ranks")
    # what is known to have failed fails no second time
    assert main([f"--from={run}", LINKS]) == 0
    for ranks in (1, 2):
        (run / f"ranks_{ranks}.json").unlink()
    assert main([f"--from={run}", LINKS]) == 2


def test_the_range_of_a_predicted_local_step_is_shown(folder: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ranks=(2,))
    found = json.loads((folder / "scaling.json").read_text(encoding="utf-8"))
    step = found["projection"]["local_steps"][0]
    predicted = {"kind": "predicted", "low": 1.0, "high": 3.0, "range_words": "95 % interval"}
    found["projection"]["local_steps"].append(step | predicted)
    (run / "scaling.json").write_text(json.dumps(found), encoding="utf-8")
    shown = rows(section(build_document(read_inputs([source_of(run)]))), "local_steps")
    assert [row[3:6] for row in shown] == [[None, None, ""], [1000.0, 3000.0, "95 % interval"]]


def test_a_fault_of_ours_in_one_file_does_not_cost_the_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_run(tmp_path / "other", ranks=(2,))
    read = loading.read_scaling_run

    def faulty(path: Path) -> ScalingRun:
        if path == other:
            raise TypeError("no number")
        return read(path)

    monkeypatch.setattr(loading, "read_scaling_run", faulty)
    found = read_inputs([source_of(folder), source_of(other)])
    assert [run.path for run in found.scalings] == [folder]
    (omission,) = found.omissions
    assert omission.reason == "not foreseen: TypeError: no number"
