"""The results that a report is made from: found, read, refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from played_grid import (
    LIMIT,
    MEDIUM,
    PEAK,
    SMALL,
    Grid,
    Json,
    cells_of,
    cost_entry,
    frontier_document,
    frontier_head,
    frontier_point,
    round_document,
    study_document,
)
from played_study import (
    change,
    read,
    write,
    write_ablation,
    write_everything,
    write_result,
    write_study,
    write_training,
)

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.report.analysis import CHECKED
from tinyllama_tools.report.document import Omission
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.sources import Kind, Source, newest_sources, source_of


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path / "study", SMALL)


def errors(inputs: ReportInputs) -> list[Omission]:
    return [omission for omission in inputs.omissions if omission.is_error]


def test_every_kind_is_told_apart(tmp_path: Path) -> None:
    paths = write_everything(tmp_path)
    kinds = {source_of(path).kind for path in paths}
    assert kinds == {Kind.STUDY, Kind.SUITE, Kind.TRAINING, Kind.ABLATION, Kind.SCALING}
    assert source_of(paths[0] / "study.json") == Source(Kind.STUDY, paths[0])
    assert source_of(paths[0] / "frontier.json").kind == Kind.FRONTIER
    assert source_of(paths[1].parent) == Source(Kind.SUITE, paths[1])


def test_a_study_is_read_whole(study: Path) -> None:
    inputs = read(study)
    assert inputs.main is not None and inputs.main.products
    assert all(len(case.seconds) == 2 for case in inputs.main.cases.values())
    assert {cost.name.size for cost in inputs.costs} >= {"tiny", "very_large"}
    assert inputs.frontiers[0].limit_bytes == LIMIT
    assert inputs.omissions == ()
    for name in ("products.json", "costs.json", "frontier.json"):
        (study / name).unlink()
    less = read(study)
    assert less.main is not None and not (less.main.products or less.costs or less.frontiers)
    assert less.omissions == ()


def test_a_check_is_beside_the_rounds_and_no_part_of_them(tmp_path: Path) -> None:
    """So that rates do not know of it, and predictions can be checked by it."""
    folder = write_study(tmp_path / "study", Grid(rounds=2))
    medium = replace(MEDIUM, batches=(4,))
    write(folder / "check.json", round_document(medium))
    entries = [cost_entry(name, of) for name, _, of, _ in cells_of(Grid(), "medium", 4, 512)]
    change(folder / "costs.json", lambda found: found["cases"].extend(entries))
    inputs = read(folder)
    assert inputs.omissions == () and len(inputs.sets) == 1
    (case,) = inputs.check_cases
    assert inputs.main is not None and str(case.name) not in inputs.main.cases
    assert inputs.known_steps[str(case.name)] == case
    (checked,) = [s for s in inputs.predictions.steps if s.cost.name == case.name]
    assert (checked.measured_seconds, checked.kind) == (case.median_seconds, CHECKED)


@pytest.mark.parametrize(
    ("key", "value"), [("threads", 64), ("git_commit", "d" * 40), ("git_dirty", True)]
)
@pytest.mark.parametrize("name", ["products.json", "check.json"])
def test_another_run_beside_the_rounds_is_named(
    study: Path, name: str, key: str, value: object
) -> None:
    write(study / "check.json", round_document(MEDIUM))
    change(study / name, lambda content: content["context"].update({key: value}))
    inputs = read(study)
    (error,) = errors(inputs)
    assert (error.name, f"{key} is {value!r}" in error.reason) == (str(study / name), True)
    assert str(study) not in error.reason
    assert inputs.main is not None
    assert bool(inputs.main.products) == (name != "products.json")
    assert bool(inputs.check_cases) == (name != "check.json")


def test_products_raise_the_peak_of_all(study: Path) -> None:
    faster = {"f32": {"flops_per_second": 2 * PEAK, "source": "product"}}
    change(study / "products.json", lambda of: of["context"]["peaks"]["measured"].update(**faster))
    inputs = read(study)
    assert inputs.main is not None and inputs.omissions == ()
    measured = inputs.main.context["peaks"]["measured"]["f32"]
    assert measured["flops_per_second"] == pytest.approx(2 * PEAK)


def test_costs_of_another_machine_say_nothing_of_what_fits_here(
    tmp_path: Path, study: Path
) -> None:
    other = write_result(tmp_path / "other.json", replace(SMALL, device="Another CPU"))
    inputs = read(study, other)
    assert inputs.costs
    assert replace(inputs, sets=inputs.sets[::-1]).costs == ()


@pytest.mark.parametrize("key", ["parameters", "model_flops", "bytes"])
def test_costs_of_another_program_are_named(study: Path, key: str) -> None:
    def other(content: Json) -> None:
        entry = next(e for e in content["cases"] if e["name"].startswith("ffn/"))
        entry[key] += 8

    change(study / "costs.json", other)
    inputs = read(study)
    (error,) = errors(inputs)
    assert f": {key} is " in error.reason and "the rounds have" in error.reason
    assert inputs.costs == ()


def test_rounds_are_taken_in_their_order(tmp_path: Path) -> None:
    inputs = read(write_study(tmp_path / "study", replace(SMALL, rounds=11)))
    assert inputs.main is not None
    assert [path.name for path in inputs.main.paths] == [f"round_{n}.json" for n in range(1, 12)]


def cut_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: len(text) // 2], encoding="utf-8")


BAD_ROUNDS: dict[str, Callable[[Json], object]] = {
    "schema_version is 1, must be 3": lambda d: d["context"].update(schema_version=1),
    "real_time nan ms, must be a positive, finite number": lambda d: d["benchmarks"][0].update(
        real_time=math.nan
    ),
    "device.name is 'Another CPU'": lambda d: d["context"]["device"].update(name="Another CPU"),
    "of another benchmark": lambda d: d["context"].pop("schema_version"),
}


@pytest.mark.parametrize("reason", ["is cut short", "is empty", *BAD_ROUNDS])
def test_a_bad_round_is_named_and_the_others_stay(tmp_path: Path, reason: str) -> None:
    folder = write_study(tmp_path / "study", replace(SMALL, rounds=3))
    bad = folder / "round_2.json"
    if reason in BAD_ROUNDS:
        change(bad, BAD_ROUNDS[reason])
    elif reason == "is empty":
        bad.write_text("", encoding="utf-8")
    else:
        cut_short(bad)
    inputs = read(folder)
    (error,) = errors(inputs)
    assert (error.name, reason in error.reason) == (str(bad), True)
    assert inputs.main is not None
    assert [path.name for path in inputs.main.paths] == ["round_1.json", "round_3.json"]


def test_a_bad_counter_costs_its_case_only(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", replace(SMALL, rounds=3))
    change(folder / "round_2.json", lambda d: d["benchmarks"][0].update(bytes=math.nan))
    inputs = read(folder)
    assert inputs.main is not None and len(inputs.main.paths) == 3
    (left,) = inputs.main.left_out
    assert left.reason == "counter bytes is nan, must be finite"
    assert inputs.omissions == ()


@pytest.mark.parametrize("name", ["products.json", "costs.json", "frontier.json"])
def test_a_damaged_file_beside_the_rounds_costs_its_part_only(study: Path, name: str) -> None:
    cut_short(study / name)
    inputs = read(study)
    (error,) = errors(inputs)
    assert error.name == str(study / name)
    assert inputs.main is not None
    parts = (inputs.main.products, inputs.costs, inputs.frontiers)
    names = ("products.json", "costs.json", "frontier.json")
    assert [file for file, part in zip(names, parts, strict=True) if not part] == [name]


@pytest.mark.parametrize(
    ("of_study", "reason"),
    [
        ({"schema_version": 2}, "schema_version is 2, must be 1"),
        ({"kind": "other"}, "is no study of a grid"),
    ],
)
def test_another_study_is_refused(study: Path, of_study: Json, reason: str) -> None:
    write(study / "study.json", study_document(SMALL) | of_study)
    inputs = read_inputs([Source(Kind.STUDY, study)])
    assert reason in errors(inputs)[0].reason
    assert inputs.is_empty


def test_a_study_without_a_round_is_named(tmp_path: Path) -> None:
    (error,) = errors(read(write_study(tmp_path / "study", replace(SMALL, rounds=0))))
    assert "nothing was measured" in error.reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([1, 2], "holds no object"),
        ({"a": 1}, "is no result that this report knows: its keys are a"),
        ({}, "its keys are none"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, content: object, reason: str) -> None:
    with pytest.raises(BadInputError, match=r"holds none of study\.json, results\.json"):
        source_of(tmp_path)
    with pytest.raises(BadInputError, match=reason):
        source_of(write(tmp_path / "x.json", content))


def test_bad_values_of_other_kinds_are_named(tmp_path: Path) -> None:
    training, ablation = write_training(tmp_path / "run"), write_ablation(tmp_path)
    change(training, lambda d: d["summary"].update(final_loss=math.nan))
    change(ablation, lambda d: d.update(format_version=99))
    of_training, of_ablation = errors(read(training, ablation))
    assert "summary.final_loss: nan is not of type 'number'" in of_training.reason
    assert "format_version 99: must be 1" in of_ablation.reason


POINT = {"seq": 128, "largest_batch": 7}


@pytest.mark.parametrize(
    ("of_file", "of_point", "reason"),
    [
        ({"schema_version": None}, {}, "schema_version: 1 was expected"),
        ({"overhead": None}, {}, "overhead: None is not of type 'object'"),
        ({"limit_bytes": "all"}, {}, "limit_bytes: 'all' is not of type 'number'"),
        ({"limit_bytes": -1}, {}, "limit_bytes: -1 is less than the minimum of 0"),
        ({"points": []}, {}, "points: [] should be non-empty"),
        ({}, {"largest_batch": "many"}, "points[0].largest_batch: 'many' is not"),
        ({}, {"size": None}, "points[0].size: None is not of type 'string'"),
        ({}, {"confirmed_batch": "12"}, "points[0].confirmed_batch: '12' is not"),
        ({}, {"apart_percent": True}, "points[0].apart_percent: True is not"),
        ({}, {"apart_percent": math.inf}, "points[0].apart_percent: inf is not"),
    ],
)
def test_a_bad_frontier_is_named(
    tmp_path: Path, of_file: Json, of_point: Json, reason: str
) -> None:
    points = [frontier_point(**POINT | of_point)]
    path = write(tmp_path / "frontier.json", frontier_head() | {"points": points} | of_file)
    (error,) = read(path).omissions
    assert error.is_error and reason in error.reason


def test_the_result_with_a_steps_parts_is_the_one_analysed(tmp_path: Path) -> None:
    bare = write_result(tmp_path / "bare.json", replace(SMALL, components=("full_step",)))
    whole = write_result(tmp_path / "whole.json", replace(SMALL, device="Whole"))
    inputs = read(bare, whole, whole)
    assert inputs.main is not None and inputs.main.title.startswith("Whole")
    # what was named twice is read once
    assert len(inputs.sets) == 2


def test_results_of_one_commit_and_day_have_titles_of_their_own(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "later" / "results.json"]
    titles = [results.title for results in read(*(write_result(p, SMALL) for p in paths)).sets]
    assert [title.rpartition(" · ")[2] for title in titles] == ["a.json", "later"]


def test_the_newest_of_each_kind_is_found(tmp_path: Path) -> None:
    write_everything(tmp_path)
    newest = write_study(tmp_path / "20260401T000000Z_grid", SMALL)
    write_study(tmp_path / "20250101T000000Z_grid", SMALL)
    tiny = write_training(tmp_path / "performance_results_tiny_20260401_000000")
    small = write_training(tmp_path / "performance_results_small_20260101_000000")
    found = newest_sources(tmp_path)
    paths = {kind: [of.path for of in found.sources if of.kind is kind] for kind in Kind}
    assert paths[Kind.STUDY] == [newest]
    assert paths[Kind.TRAINING] == [tiny, small]
    assert len(paths[Kind.SUITE]) == len(paths[Kind.ABLATION]) == len(paths[Kind.SCALING]) == 1
    # the study has a frontier of its own
    assert found.absent == []
    (newest / "frontier.json").unlink()
    assert newest_sources(tmp_path).absent == [Kind.FRONTIER]
    assert newest_sources(tmp_path / "none").absent == list(Kind)


def test_a_study_that_has_measured_nothing_yet_hides_no_other(tmp_path: Path) -> None:
    good, running, begun = (
        write_study(tmp_path / f"2026030{day}T000000Z_grid", SMALL) for day in (1, 2, 3)
    )
    for path in (*running.glob("round_*.json"), *begun.glob("round_*.json")):
        path.unlink()
    lines = ['{"header": {}}', '{"case": "a"}', '{"case":"b"}', '{"case": "cut']
    (running / "round_1.journal.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = newest_sources(tmp_path)
    assert found.sources == [Source(Kind.STUDY, good)]
    reason = "round 1 did not end: {}; scripts/study --resume goes on with it".format
    assert [(one.name, one.reason, one.is_error) for one in found.passed_over] == [
        (str(begun), reason("nothing was measured"), False),
        (str(running), reason("2 cases in its journal"), False),
    ]


def test_a_frontier_older_than_the_studys_own_is_not_taken(tmp_path: Path) -> None:
    study = write_study(tmp_path / "20260302T000000Z_grid", SMALL)
    older, newer = (
        write(tmp_path / f"2026030{day}T000000Z_frontier/frontier.json", frontier_document(SMALL))
        for day in (1, 3)
    )
    assert Source(Kind.FRONTIER, newer) in newest_sources(tmp_path).sources
    newer.unlink()
    assert newest_sources(tmp_path).sources == [Source(Kind.STUDY, study)]
    (study / "frontier.json").unlink()
    assert Source(Kind.FRONTIER, older) in newest_sources(tmp_path).sources


def test_a_study_that_was_damaged_is_still_the_newest(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "20260401T000000Z_grid", SMALL)
    (folder / "study.json").write_text('{"kind": "grid", ', encoding="utf-8")
    sources = newest_sources(tmp_path).sources
    assert sources == [Source(Kind.STUDY, folder)]
    assert "is cut short" in read_inputs(sources).omissions[0].reason
