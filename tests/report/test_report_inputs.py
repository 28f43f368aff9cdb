"""The results that a report is made from: found, told apart, read, refused."""

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
from tinyllama_tools.report.inputs import (
    Kind,
    ReportInputs,
    Source,
    newest_sources,
    read_inputs,
    source_of,
)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path / "study", SMALL)


def only_error(inputs: ReportInputs) -> Omission:
    (error,) = [omission for omission in inputs.omissions if omission.is_error]
    return error


def cut_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: len(text) // 2], encoding="utf-8")


def test_every_kind_is_told_apart(tmp_path: Path) -> None:
    paths = write_everything(tmp_path)
    kinds = {source_of(path).kind for path in paths}
    assert kinds == {Kind.STUDY, Kind.SUITE, Kind.TRAINING, Kind.ABLATION, Kind.SCALING}
    assert source_of(paths[0] / "study.json") == Source(Kind.STUDY, paths[0])
    assert source_of(paths[0] / "frontier.json").kind == Kind.FRONTIER
    assert source_of(paths[1].parent) == Source(Kind.SUITE, paths[1])
    assert source_of(paths[4] / "scaling.json") == Source(Kind.SCALING, paths[4])
    with pytest.raises(BadInputError, match=r"holds none of study\.json, results\.json"):
        source_of(tmp_path)
    for content, reason in (([1], "holds no object"), ({"a": 1}, "its keys are a"), ({}, "none")):
        with pytest.raises(BadInputError, match=reason):
            source_of(write(tmp_path / "x.json", content))


def test_a_study_is_read_whole(study: Path) -> None:
    inputs = read(study)
    assert inputs.main is not None and inputs.main.products
    assert all(len(case.seconds) == 2 for case in inputs.main.cases.values())
    assert {cost.name.size for cost in inputs.costs} >= {"tiny", "very_large"}
    assert inputs.frontiers[0]["limit_bytes"] == LIMIT
    assert inputs.omissions == ()


PARTS = ("products.json", "costs.json", "frontier.json")


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_missing_is_no_error_and_a_damaged_one_costs_itself_only(
    study: Path, name: str
) -> None:
    def lost(inputs: ReportInputs) -> list[str]:
        assert inputs.main is not None
        found = (inputs.main.products, inputs.costs, inputs.frontiers)
        return [file for file, part in zip(PARTS, found, strict=True) if not part]

    cut_short(study / name)
    inputs = read(study)
    assert (only_error(inputs).name, lost(inputs)) == (str(study / name), [name])
    (study / name).unlink()
    inputs = read(study)
    assert (inputs.omissions, lost(inputs)) == ((), [name])


def test_a_check_is_beside_the_rounds_and_no_part_of_them(tmp_path: Path) -> None:
    """So that rates do not know of it, and predictions can be checked by it."""
    folder = write_study(tmp_path / "study", Grid(rounds=2))
    write(folder / "check.json", round_document(replace(MEDIUM, batches=(4,))))
    entries = [cost_entry(name, of) for name, _, of, _ in cells_of(Grid(), "medium", 4, 512)]
    change(folder / "costs.json", lambda found: found["cases"].extend(entries))
    inputs = read(folder)
    assert inputs.omissions == () and len(inputs.sets) == 1
    (case,) = inputs.check_cases
    assert inputs.main is not None and str(case.name) not in inputs.main.cases
    assert inputs.known_steps[str(case.name)] == case
    (checked,) = [s for s in inputs.predictions.steps if s.cost.name == case.name]
    assert (checked.measured_seconds, checked.kind) == (case.median_seconds, CHECKED)


@pytest.mark.parametrize("name", ["products.json", "check.json"])
@pytest.mark.parametrize(("key", "value"), [("threads", 64), ("git_commit", "d" * 40)])
def test_another_run_beside_the_rounds_is_named(
    study: Path, name: str, key: str, value: object
) -> None:
    write(study / "check.json", round_document(MEDIUM))
    change(study / name, lambda content: content["context"].update({key: value}))
    inputs = read(study)
    error = only_error(inputs)
    assert (error.name, f"{key} is {value!r}" in error.reason) == (str(study / name), True)
    assert inputs.main is not None
    assert bool(inputs.main.products) == (name != "products.json")
    assert bool(inputs.check_cases) == (name != "check.json")


def test_products_raise_the_peak_of_all_and_costs_are_of_one_machine(
    tmp_path: Path, study: Path
) -> None:
    faster = {"f32": {"flops_per_second": 2 * PEAK, "source": "product"}}
    change(study / "products.json", lambda of: of["context"]["peaks"]["measured"].update(**faster))
    other = write_result(tmp_path / "other.json", replace(SMALL, device="Another CPU"))
    inputs = read(study, other)
    assert inputs.main is not None and inputs.omissions == ()
    measured = inputs.main.context["peaks"]["measured"]["f32"]
    assert measured["flops_per_second"] == pytest.approx(2 * PEAK)
    # what fits on one machine says nothing of another
    assert inputs.costs
    assert replace(inputs, sets=inputs.sets[::-1]).costs == ()


@pytest.mark.parametrize("key", ["parameters", "model_flops", "bytes"])
def test_costs_of_another_program_are_named(study: Path, key: str) -> None:
    def other(content: Json) -> None:
        next(e for e in content["cases"] if e["name"].startswith("ffn/"))[key] += 8

    change(study / "costs.json", other)
    inputs = read(study)
    assert f": {key} is " in only_error(inputs).reason and inputs.costs == ()


BAD_ROUNDS: dict[str, Callable[[Json], object]] = {
    "schema_version is 1, must be 3": lambda d: d["context"].update(schema_version=1),
    "must be a positive, finite number": lambda d: d["benchmarks"][0].update(real_time=math.nan),
    "device.name is 'Another CPU'": lambda d: d["context"]["device"].update(name="Another CPU"),
}


@pytest.mark.parametrize("reason", ["is cut short", *BAD_ROUNDS])
def test_a_bad_round_is_named_and_the_others_stay(tmp_path: Path, reason: str) -> None:
    folder = write_study(tmp_path / "study", replace(SMALL, rounds=11))
    bad = folder / "round_2.json"
    if reason in BAD_ROUNDS:
        change(bad, BAD_ROUNDS[reason])
    else:
        cut_short(bad)
    inputs = read(folder)
    error = only_error(inputs)
    assert (error.name, reason in error.reason) == (str(bad), True)
    assert inputs.main is not None
    kept = [path.name for path in inputs.main.paths]
    assert kept == [f"round_{number}.json" for number in (1, *range(3, 12))]


def test_a_bad_counter_costs_its_case_only(study: Path) -> None:
    change(study / "round_2.json", lambda d: d["benchmarks"][0].update(bytes=math.nan))
    inputs = read(study)
    assert inputs.main is not None and len(inputs.main.paths) == 2
    (left,) = inputs.main.left_out
    assert left.reason == "counter bytes is nan, must be finite" and inputs.omissions == ()


@pytest.mark.parametrize("wrong", [{"schema_version": 2}, {"kind": "other"}])
def test_another_study_is_refused(study: Path, wrong: Json) -> None:
    write(study / "study.json", study_document(SMALL) | wrong)
    inputs = read_inputs([Source(Kind.STUDY, study)])
    assert f"{next(iter(wrong))}: " in only_error(inputs).reason and inputs.is_empty
    bare = read(write_study(study.with_name("bare"), replace(SMALL, rounds=0)))
    assert "nothing was measured" in only_error(bare).reason


def test_bad_values_of_other_kinds_are_named(tmp_path: Path) -> None:
    training, ablation = write_training(tmp_path / "run"), write_ablation(tmp_path)
    change(training, lambda d: d["summary"].update(final_loss=math.nan))
    change(ablation, lambda d: d.update(format_version=99))
    of_training, of_ablation = read(training, ablation).omissions
    assert of_training.is_error and "summary.final_loss: nan" in of_training.reason
    assert of_ablation.is_error and "format_version 99" in of_ablation.reason


@pytest.mark.parametrize(
    ("of_file", "of_point", "reason"),
    [
        ({"schema_version": None}, {}, "schema_version: 1 was expected"),
        ({"overhead": None}, {}, "overhead: None is not of type 'object'"),
        ({"limit_bytes": -1}, {}, "limit_bytes: -1 is less than the minimum of 0"),
        ({"points": []}, {}, "points: [] should be non-empty"),
        ({}, {"largest_batch": "many"}, "points[0].largest_batch: 'many' is not"),
        ({}, {"confirmed_batch": "12"}, "points[0].confirmed_batch: '12' is not"),
        ({}, {"apart_percent": math.inf}, "points[0].apart_percent: inf is not"),
    ],
)
def test_a_bad_frontier_is_named(
    tmp_path: Path, of_file: Json, of_point: Json, reason: str
) -> None:
    points = [frontier_point(**{"seq": 128, "largest_batch": 7} | of_point)]
    path = write(tmp_path / "frontier.json", frontier_head() | {"points": points} | of_file)
    assert reason in only_error(read(path)).reason


def test_the_result_with_a_steps_parts_is_the_one_analysed(tmp_path: Path) -> None:
    bare = write_result(tmp_path / "bare.json", replace(SMALL, components=("full_step",)))
    whole = write_result(tmp_path / "whole.json", replace(SMALL, device="Whole"))
    again = write_result(tmp_path / "later" / "results.json", replace(SMALL, device="Whole"))
    inputs = read(bare, whole, whole, again)
    # what was named twice is read once; results of one commit and day have titles of their own
    assert [of.title.split(" · ")[0] for of in inputs.sets] == ["Whole", "Played CPU", "Whole"]
    titles = [of.title.rpartition(" · ")[2] for of in inputs.sets]
    assert (titles[0], titles[2]) == ("whole.json", "later")


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


def test_a_study_that_has_measured_nothing_hides_no_other_but_a_damaged_one_does(
    tmp_path: Path,
) -> None:
    good, running = (write_study(tmp_path / f"2026030{day}T000000Z_grid", SMALL) for day in (1, 2))
    for path in running.glob("round_*.json"):
        path.unlink()
    journal = '{"header": {}}\n{"case": "a"}\n{"case":"b"}\n{"case": "cut'
    (running / "round_1.journal.jsonl").write_text(journal, encoding="utf-8")
    found = newest_sources(tmp_path)
    assert found.sources == [Source(Kind.STUDY, good)]
    ((name, reason),) = [(one.name, one.reason) for one in found.passed_over]
    assert name == str(running) and "2 cases in its journal; scripts/study --resume" in reason
    damaged = write_study(tmp_path / "20260401T000000Z_grid", SMALL)
    cut_short(damaged / "study.json")
    sources = newest_sources(tmp_path).sources
    assert sources == [Source(Kind.STUDY, damaged)]
    assert "is cut short" in only_error(read_inputs(sources)).reason


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
