"""The results that a report is made from: found, told apart, read, refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from stored import (
    CHECK_STEP,
    change,
    cut_short,
    document,
    median_ms,
    peak,
    read,
    write,
    write_everything,
    write_result,
    write_study,
)

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.report.analysis import CHECKED
from tinyllama_tools.report.document import Omission
from tinyllama_tools.report.inputs import Kind, ReportInputs, Source, newest_sources, source_of


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path / "study", rounds=2)


def only_error(inputs: ReportInputs) -> Omission:
    (error,) = [omission for omission in inputs.omissions if omission.is_error]
    return error


def test_every_kind_is_told_apart_and_read_whole(tmp_path: Path) -> None:
    grid, suite, scaling = paths = write_everything(tmp_path)
    kinds = (Kind.STUDY, Kind.SUITE, Kind.SCALING)
    assert tuple(source_of(path).kind for path in paths) == kinds
    assert source_of(grid / "study.json") == Source(Kind.STUDY, grid)
    assert source_of(suite.parent) == Source(Kind.SUITE, suite)
    assert source_of(scaling / "scaling.json") == Source(Kind.SCALING, scaling)
    assert source_of(scaling / "ranks_2.json").kind == Kind.SCALING
    with pytest.raises(BadInputError, match=r"holds none of study\.json, results\.json"):
        source_of(tmp_path)
    for content, reason in (([1], "holds no object"), ({"a": 1}, "its keys are a"), ({}, "none")):
        with pytest.raises(BadInputError, match=reason):
            source_of(write(tmp_path / "x.json", content))
    inputs = read(*paths)
    assert inputs.main is not None and inputs.main.products
    assert [omission.kind for omission in inputs.omissions] == ["result"]
    assert {len(case.seconds) for case in inputs.main.cases.values()} == {3}
    assert inputs.study is not None and inputs.study.frontier == document("frontier.json")
    assert {cost.name.size for cost in inputs.study.costs} >= {"tiny", "very_large"}


PARTS = ("products.json", "costs.json", "frontier.json")


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_missing_is_no_error_and_a_damaged_one_costs_itself_only(
    study: Path, name: str
) -> None:
    def lost(inputs: ReportInputs) -> list[str]:
        assert inputs.main is not None and inputs.study is not None
        found = (inputs.main.products, inputs.study.costs, inputs.study.frontier)
        return [file for file, part in zip(PARTS, found, strict=True) if not part]

    cut_short(study / name)
    inputs = read(study)
    assert (only_error(inputs).name, lost(inputs)) == (str(study / name), [name])
    (study / name).unlink()
    inputs = read(study)
    assert (inputs.omissions, lost(inputs)) == ((), [name])


def test_a_check_is_beside_the_rounds_and_no_part_of_them(inputs: ReportInputs) -> None:
    """So that rates do not know of it, and predictions can be checked by it."""
    (case,) = inputs.check_cases
    assert str(case.name) == CHECK_STEP and CHECK_STEP not in inputs.main.cases
    (checked,) = [s for s in inputs.predictions.steps if str(s.cost.name) == CHECK_STEP]
    assert (checked.measured, checked.kind) == (case, CHECKED)
    seconds = median_ms(CHECK_STEP, ("check.json",)) / 1e3
    assert case.median_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("name", ["products.json", "check.json"])
@pytest.mark.parametrize(("key", "value"), [("threads", 64), ("git_commit", "d" * 40)])
def test_another_run_beside_the_rounds_is_named(
    study: Path, name: str, key: str, value: object
) -> None:
    write(study / "check.json", document("check.json"))
    change(study / name, lambda content: content["context"].update({key: value}))
    inputs = read(study)
    error = only_error(inputs)
    assert (error.name, f"{key} is {value!r}" in error.reason) == (str(study / name), True)
    assert inputs.main is not None
    assert bool(inputs.main.products) == (name != "products.json")
    assert bool(inputs.check_cases) == (name != "check.json")


def test_products_raise_the_peak_of_all_and_a_study_of_another_machine_says_nothing(
    tmp_path: Path, study: Path
) -> None:
    twice = 2 * peak("f32", "flops_per_second")
    faster = {"f32": {"flops_per_second": twice, "source": "product"}}
    change(study / "products.json", lambda of: of["context"]["peaks"]["measured"].update(**faster))
    other = write_result(tmp_path / "other.json", device="Another CPU")
    inputs = read(study, other)
    assert inputs.main is not None and [of.name for of in inputs.omissions] == [str(other)]
    measured = inputs.main.context["peaks"]["measured"]["f32"]
    assert measured["flops_per_second"] == pytest.approx(twice)
    assert inputs.study is not None and read(other, study).study is None


BAD_ROUNDS: dict[str, Callable[[Json], object]] = {
    "schema_version is 1, must be 3": lambda d: d["context"].update(schema_version=1),
    "must be a positive, finite number": lambda d: d["benchmarks"][0].update(real_time=math.nan),
    "device.name is 'Another CPU'": lambda d: d["context"]["device"].update(name="Another CPU"),
}


@pytest.mark.parametrize("reason", ["is cut short", *BAD_ROUNDS])
def test_a_bad_round_is_named_and_the_others_stay(tmp_path: Path, reason: str) -> None:
    folder = write_study(tmp_path / "study", rounds=11)
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


BAD_FILES: list[tuple[str, Callable[[Json], object], str]] = [
    ("study", lambda of: of.update(schema_version=2), "schema_version: "),
    ("study", lambda of: of.update(kind="other"), "kind: "),
    ("frontier", lambda of: of.update(schema_version=None), "schema_version: 1 was expected"),
    ("frontier", lambda of: of.update(limit_bytes=-1), "limit_bytes: -1 is less than"),
    ("frontier", lambda of: of["points"][0].update(largest_batch="x"), "points[0].largest_batch"),
    ("frontier", lambda of: of["points"][0].update(predicted_bytes=math.inf), "inf is not"),
]


@pytest.mark.parametrize(("name", "spoil", "reason"), BAD_FILES)
def test_bad_values_of_other_files_are_named(
    study: Path, name: str, spoil: Callable[[Json], object], reason: str
) -> None:
    change(study / f"{name}.json", spoil)
    found = read(study)
    assert reason in only_error(found).reason
    assert found.is_empty == (name == "study")


def test_the_result_with_a_steps_parts_is_the_one_analysed(tmp_path: Path) -> None:
    bare = write_result(tmp_path / "bare.json", "^full_step.*/tiny/f32/batch:8/seq:128/")
    whole = write_result(tmp_path / "whole.json", device="Whole")
    # what was named twice is read once
    inputs = read(bare, whole, whole)
    assert inputs.main is not None and inputs.main.paths == (whole,)
    assert [(of.name, of.is_error) for of in inputs.omissions] == [(str(bare), False)]


def test_the_newest_of_each_kind_that_measured_something_is_found(tmp_path: Path) -> None:
    grid, suite, scaling = write_everything(tmp_path)
    expected = [Source(Kind.SUITE, suite), Source(Kind.SCALING, scaling)]
    write_study(tmp_path / "20250101T000000Z_grid")
    # what runs just now hides no other
    running = write_study(tmp_path / "20260501T000000Z_grid", rounds=0)
    change(running / "study.json", lambda found: found.pop("finished"))
    journal = '{"header": {}}\n{"case": "a"}\n{"case":"b"}\n{"case": "cut'
    (running / "round_1.journal.jsonl").write_text(journal, encoding="utf-8")
    reason = only_error(read(running)).reason
    assert "2 cases in its journal; scripts/study --resume" in reason
    assert newest_sources(tmp_path) == [Source(Kind.STUDY, grid), *expected]
    # but a damaged one does
    damaged = write_study(tmp_path / "20260401T000000Z_grid")
    cut_short(damaged / "study.json")
    assert newest_sources(tmp_path) == [Source(Kind.STUDY, damaged), *expected]
    assert "is cut short" in only_error(read(damaged)).reason
    assert newest_sources(tmp_path / "none") == []
