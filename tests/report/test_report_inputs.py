"""The results that a report is made from: found, told apart, read, refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
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
    write_training,
)

from tinyllama_tools.core.app import BadInputError, Json
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
    return write_study(tmp_path / "study", rounds=2)


def only_error(inputs: ReportInputs) -> Omission:
    (error,) = [omission for omission in inputs.omissions if omission.is_error]
    return error


def test_every_kind_is_told_apart_and_read_whole(tmp_path: Path) -> None:
    grid, suite, _, _, scaling = paths = write_everything(tmp_path)
    kinds = (Kind.STUDY, Kind.SUITE, Kind.TRAINING, Kind.ABLATION, Kind.SCALING)
    assert tuple(source_of(path).kind for path in paths) == kinds
    assert source_of(grid / "study.json") == Source(Kind.STUDY, grid)
    assert source_of(grid / "frontier.json").kind == Kind.FRONTIER
    assert source_of(suite.parent) == Source(Kind.SUITE, suite)
    assert source_of(scaling / "scaling.json") == Source(Kind.SCALING, scaling)
    with pytest.raises(BadInputError, match=r"holds none of study\.json, results\.json"):
        source_of(tmp_path)
    for content, reason in (([1], "holds no object"), ({"a": 1}, "its keys are a"), ({}, "none")):
        with pytest.raises(BadInputError, match=reason):
            source_of(write(tmp_path / "x.json", content))
    inputs = read(*paths)
    assert inputs.main is not None and inputs.main.products and inputs.omissions == ()
    assert {len(case.seconds) for case in inputs.main.cases.values()} == {3}
    assert {cost.name.size for cost in inputs.costs} >= {"tiny", "very_large"}
    assert inputs.frontiers == (document("frontier.json"),)


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


def test_a_check_is_beside_the_rounds_and_no_part_of_them(inputs: ReportInputs) -> None:
    """So that rates do not know of it, and predictions can be checked by it."""
    (case,) = inputs.check_cases
    assert str(case.name) == CHECK_STEP and CHECK_STEP not in inputs.sets[0].cases
    (checked,) = [s for s in inputs.predictions.steps if str(s.cost.name) == CHECK_STEP]
    assert (checked.measured, checked.kind) == (case, CHECKED)
    seconds = median_ms(CHECK_STEP, ("check.json",)) / 1e3
    assert case.median_seconds == pytest.approx(seconds)


def test_a_training_run_checks_no_prediction(inputs: ReportInputs) -> None:
    """It may accumulate gradients, run on several ranks, or be profiled."""
    (run,), (study,) = inputs.trainings, inputs.studies
    shape = {"size": "medium", "batch_size": 4, "seq_len": 512, "gradient_accumulation_steps": 8}
    summary = run.summary | {"configuration": run.summary["configuration"] | shape}
    assert inputs.main is not None
    run = run._replace(summary=summary | {"context": inputs.main.context})
    found = replace(inputs, trainings=(run,), studies=(study._replace(check=None),))
    assert str(run.step_name) == CHECK_STEP
    assert CHECKED not in {step.kind for step in found.predictions.steps}


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


def test_products_raise_the_peak_of_all_and_costs_are_of_one_machine(
    tmp_path: Path, study: Path
) -> None:
    twice = 2 * peak("f32", "flops_per_second")
    faster = {"f32": {"flops_per_second": twice, "source": "product"}}
    change(study / "products.json", lambda of: of["context"]["peaks"]["measured"].update(**faster))
    inputs = read(study, write_result(tmp_path / "other.json", device="Another CPU"))
    assert inputs.main is not None and inputs.omissions == ()
    measured = inputs.main.context["peaks"]["measured"]["f32"]
    assert measured["flops_per_second"] == pytest.approx(twice)
    # what fits on one machine says nothing of another
    assert inputs.costs
    assert replace(inputs, sets=inputs.sets[::-1]).costs == ()


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


def frontier(of_file: Json, of_point: Json) -> Json:
    """Of one point, over sequences."""
    found = document("frontier.json")
    del found["sequences"]
    return {**found, "points": [found["points"][0] | of_point], **of_file}


BAD_FILES = [
    ("study", {"schema_version": 2}, "schema_version: "),
    ("study", {"kind": "other"}, "kind: "),
    ("training", {"summary": {"final_loss": math.nan}}, "summary.final_loss: nan"),
    ("ablation", {"format_version": 99}, "format_version: 1 was expected"),
    ("ablation", {"context": 5}, "context: 5 is not of type 'object'"),
    ("frontier", {"schema_version": None}, "schema_version: 1 was expected"),
    ("frontier", {"overhead": None}, "overhead: None is not of type 'object'"),
    ("frontier", {"limit_bytes": -1}, "limit_bytes: -1 is less than the minimum of 0"),
    ("frontier", {"points": []}, "points: [] should be non-empty"),
    ("point", {"largest_batch": "many"}, "points[0].largest_batch: 'many' is not"),
    ("point", {"predicted_bytes": math.inf}, "points[0].predicted_bytes: inf is not"),
]


@pytest.mark.parametrize(("kind", "wrong", "reason"), BAD_FILES)
def test_bad_values_of_other_kinds_are_named(
    tmp_path: Path, inputs: ReportInputs, kind: str, wrong: Json, reason: str
) -> None:
    source = Source(Kind.FRONTIER, tmp_path / "frontier.json")
    if kind == "study":
        source = Source(Kind.STUDY, write_study(tmp_path))
        change(tmp_path / "study.json", lambda found: found.update(wrong))
    elif kind == "training":
        source = source_of(write_training(tmp_path))
        change(source.path, lambda found: found["summary"].update(wrong["summary"]))
    elif kind == "ablation":
        (ablation,) = inputs.ablations
        text = ablation.path.read_text(encoding="utf-8")
        (tmp_path / "ablation.json").write_text(text, encoding="utf-8")
        source = source_of(change(tmp_path / "ablation.json", lambda found: found.update(wrong)))
    else:
        write(source.path, frontier(*((wrong, {}) if kind == "frontier" else ({}, wrong))))
    found = read_inputs([source])
    assert reason in only_error(found).reason and found.is_empty


def test_the_result_with_a_steps_parts_is_the_one_analysed(tmp_path: Path) -> None:
    bare = write_result(tmp_path / "bare.json", "^full_step.*/tiny/f32/batch:8/seq:128/")
    whole = write_result(tmp_path / "whole.json", device="Whole")
    again = write_result(tmp_path / "later" / "results.json", device="Whole")
    inputs = read(bare, whole, whole, again)
    # what was named twice is read once; results of one commit and day have titles of their own
    assert [of.title.split(" ")[0] for of in inputs.sets] == ["Whole", "Intel(R)", "Whole"]
    titles = [of.title.rpartition(" · ")[2] for of in inputs.sets]
    assert (titles[0], titles[2]) == ("whole.json", "later")


def test_the_newest_of_each_kind_is_found(tmp_path: Path) -> None:
    write_everything(tmp_path)
    newest = write_study(tmp_path / "20260401T000000Z_grid")
    write_study(tmp_path / "20250101T000000Z_grid")
    tiny = write_training(tmp_path / "performance_results_tiny_20260401_000000")
    small = write_training(tmp_path / "performance_results_small_20260101_000000")
    found = newest_sources(tmp_path)
    paths = {kind: [of.path for of in found.sources if of.kind is kind] for kind in Kind}
    assert paths[Kind.STUDY] == [newest]
    assert paths[Kind.TRAINING] == [tiny, small]
    assert len(paths[Kind.SUITE]) == len(paths[Kind.ABLATION]) == len(paths[Kind.SCALING]) == 1
    assert found.absent == []
    # a frontier is a study's own
    absent = [kind for kind in Kind if kind is not Kind.FRONTIER]
    assert newest_sources(tmp_path / "none").absent == absent


def test_a_study_that_has_measured_nothing_hides_no_other_but_a_damaged_one_does(
    tmp_path: Path,
) -> None:
    good = write_study(tmp_path / "20260301T000000Z_grid")
    running = write_study(tmp_path / "20260302T000000Z_grid", rounds=0)
    change(running / "study.json", lambda found: found.pop("finished"))
    assert "nothing was measured" in only_error(read(running)).reason
    journal = '{"header": {}}\n{"case": "a"}\n{"case":"b"}\n{"case": "cut'
    (running / "round_1.journal.jsonl").write_text(journal, encoding="utf-8")
    found = newest_sources(tmp_path)
    assert found.sources == [Source(Kind.STUDY, good)]
    ((name, reason),) = [(one.name, one.reason) for one in found.passed_over]
    assert name == str(running) and "2 cases in its journal; scripts/study --resume" in reason
    damaged = write_study(tmp_path / "20260401T000000Z_grid")
    cut_short(damaged / "study.json")
    sources = newest_sources(tmp_path).sources
    assert sources == [Source(Kind.STUDY, damaged)]
    assert "is cut short" in only_error(read_inputs(sources)).reason
