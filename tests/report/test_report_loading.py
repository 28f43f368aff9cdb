"""The results that a report is made from: found, read, refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played_grid import Grid, cells_of, context, cost_entry, round_document, study_document
from played_study import (
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

Json = dict[str, Any]
SMALL = Grid(sizes=("tiny",), batches=(8,), seqs=(128,), rounds=2)


def read(*paths: Path) -> ReportInputs:
    return read_inputs([source_of(path) for path in paths])


def errors(inputs: ReportInputs) -> list[Omission]:
    return [omission for omission in inputs.omissions if omission.is_error]


def test_every_kind_is_told_apart(tmp_path: Path) -> None:
    paths = write_everything(tmp_path)
    kinds = {source_of(path).kind for path in paths}
    assert kinds == {Kind.STUDY, Kind.SUITE, Kind.TRAINING, Kind.ABLATION, Kind.SCALING}
    assert source_of(paths[0] / "study.json") == Source(Kind.STUDY, paths[0])
    assert source_of(paths[0] / "frontier.json").kind == Kind.FRONTIER
    assert source_of(paths[1].parent) == Source(Kind.SUITE, paths[1])


def test_a_study_is_read_whole(tmp_path: Path) -> None:
    inputs = read(write_study(tmp_path / "study", SMALL))
    (study,) = inputs.studies
    assert study.results is not None
    assert inputs.main is not None
    assert inputs.main.products
    assert all(len(case.seconds) == 2 for case in inputs.main.cases.values())
    assert {cost.name.size for cost in inputs.costs} >= {"tiny", "very_large"}
    assert inputs.frontiers[0].limit_bytes == 24 * 2**30
    assert inputs.omissions == ()


def test_a_check_is_beside_the_rounds_and_no_part_of_them(tmp_path: Path) -> None:
    """So that rates do not know of it, and predictions can be checked by it."""
    folder = write_study(tmp_path / "study", Grid(rounds=2))
    medium = Grid(sizes=("medium",), batches=(4,), seqs=(512,), components=("full_step",))
    write(folder / "check.json", round_document(medium, 1))
    costs = json.loads((folder / "costs.json").read_text(encoding="utf-8"))
    costs["cases"] += [
        cost_entry(name, of) for name, _, of, _ in cells_of(Grid(), "medium", 4, 512)
    ]
    write(folder / "costs.json", costs)
    inputs = read(folder)
    assert inputs.omissions == ()
    assert len(inputs.sets) == 1
    (case,) = inputs.check_cases
    assert inputs.main is not None and str(case.name) not in inputs.main.cases
    assert inputs.known_steps[str(case.name)] == case
    (checked,) = [s for s in inputs.predictions.steps if s.cost.name == case.name]
    assert checked.measured_seconds == case.median_seconds
    assert checked.kind == CHECKED


def test_a_check_of_another_machine_is_no_check(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", SMALL)
    medium = Grid(
        **{"sizes": ("medium",), "batches": (4,), "seqs": (512,), "device": "Another CPU"},
        components=("full_step",),
    )
    write(folder / "check.json", round_document(medium, 1))
    inputs = read(folder)
    assert inputs.check_cases == ()
    assert [error.name for error in errors(inputs)] == [str(folder / "check.json")]


def test_costs_of_another_machine_say_nothing_of_what_fits_here(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", SMALL)
    other = write_result(tmp_path / "other.json", replace(SMALL, device="Another CPU"))
    inputs = read(study, other)
    assert inputs.costs
    first, second = inputs.sets
    assert replace(inputs, sets=(second, first)).costs == ()


def test_rounds_are_taken_in_their_order(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", replace(SMALL, rounds=11))
    (study,) = read(folder).studies
    assert study.results is not None
    numbers = [int(path.stem.partition("_")[2]) for path in study.results.paths]
    assert numbers == list(range(1, 12))


def cut_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: len(text) // 2], encoding="utf-8")


def changed(change: Callable[[Json], None]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        document = json.loads(path.read_text(encoding="utf-8"))
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")

    return apply


BAD_ROUNDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (cut_short, "is cut short"),
    "another schema": (
        changed(lambda d: d["context"].update(schema_version=1)),
        "schema_version is 1, must be 3",
    ),
    "NaN": (
        changed(lambda d: d["benchmarks"][0].update(real_time=math.nan)),
        "real_time nan ms, must be a positive, finite number",
    ),
    "another device": (
        changed(lambda d: d["context"]["device"].update(name="Another CPU")),
        "device.name is 'Another CPU'",
    ),
    "another benchmark's": (
        changed(lambda d: d["context"].pop("schema_version")),
        "of another benchmark",
    ),
    "empty": (lambda path: path.write_text("", encoding="utf-8"), "is empty"),
}


@pytest.mark.parametrize("what", BAD_ROUNDS)
def test_a_bad_round_is_named_and_the_others_stay(tmp_path: Path, what: str) -> None:
    spoil, reason = BAD_ROUNDS[what]
    folder = write_study(tmp_path / "study", replace(SMALL, rounds=3))
    spoil(folder / "round_2.json")
    inputs = read(folder)
    (error,) = errors(inputs)
    assert error.name == str(folder / "round_2.json")
    assert reason in error.reason
    assert inputs.main is not None
    assert [path.name for path in inputs.main.paths] == ["round_1.json", "round_3.json"]


@pytest.mark.parametrize("name", ["products.json", "costs.json", "frontier.json"])
def test_a_damaged_file_beside_the_rounds_costs_its_part_only(tmp_path: Path, name: str) -> None:
    folder = write_study(tmp_path / "study", SMALL)
    cut_short(folder / name)
    inputs = read(folder)
    (error,) = errors(inputs)
    assert error.name == str(folder / name)
    assert inputs.main is not None
    lost = {
        "products.json": not inputs.main.products,
        "costs.json": not inputs.costs,
        "frontier.json": not inputs.frontiers,
    }
    assert [key for key, is_lost in lost.items() if is_lost] == [name]


def test_a_missing_file_beside_the_rounds_is_no_error(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", SMALL)
    for name in ("products.json", "costs.json", "frontier.json"):
        (folder / name).unlink()
    inputs = read(folder)
    assert inputs.omissions == ()
    assert inputs.main is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": 2}, "schema_version is 2, must be 1"),
        ({"kind": "other"}, "is no study of a grid"),
    ],
)
def test_another_study_is_refused(tmp_path: Path, change: Json, reason: str) -> None:
    folder = write_study(tmp_path / "study", SMALL)
    write(folder / "study.json", study_document(SMALL) | change)
    inputs = read_inputs([Source(Kind.STUDY, folder)])
    assert reason in errors(inputs)[0].reason
    assert inputs.is_empty


def test_a_study_without_a_round_is_named(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", replace(SMALL, rounds=0))
    (error,) = errors(read(folder))
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
    with pytest.raises(BadInputError, match=reason):
        source_of(write(tmp_path / "x.json", content))


def test_a_folder_without_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"holds none of results\.json, study\.json"):
        source_of(tmp_path)


def test_nan_in_a_training_run_is_named(tmp_path: Path) -> None:
    path = write_training(tmp_path / "run")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"final_loss": ', '"final_loss": NaN, "x": ', 1))
    (error,) = errors(read(path))
    assert error.reason.startswith("holds NaN")


def test_an_ablation_of_another_version_is_named(tmp_path: Path) -> None:
    path = write_ablation(tmp_path)
    changed(lambda d: d.update(format_version=99))(path)
    (error,) = errors(read(path))
    assert "format_version 99: must be 1" in error.reason


def test_the_result_with_a_steps_parts_is_the_one_analysed(tmp_path: Path) -> None:
    steps = Grid(sizes=("tiny",), batches=(8,), seqs=(128,), components=("full_step",))
    bare = write_result(tmp_path / "bare.json", steps)
    whole = write_result(tmp_path / "whole.json", replace(SMALL, device="Whole"))
    inputs = read(bare, whole)
    assert inputs.main is not None
    assert inputs.main.title.startswith("Whole")
    assert len(inputs.sets) == 2


def test_results_of_one_commit_and_day_have_titles_of_their_own(tmp_path: Path) -> None:
    a = write_result(tmp_path / "a.json", SMALL)
    b = write_result(tmp_path / "later" / "results.json", SMALL)
    titles = [results.title for results in read(a, b).sets]
    assert [title.rpartition(" · ")[2] for title in titles] == ["a.json", "later"]


def test_a_result_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write_result(tmp_path / "a.json", SMALL)
    assert len(read(path, path).sets) == 1


def test_the_played_round_has_what_the_suite_writes() -> None:
    assert round_document(SMALL, 1)["context"] == context(SMALL)


def test_the_newest_of_each_kind_is_found(tmp_path: Path) -> None:
    write_everything(tmp_path)
    newest = write_study(tmp_path / "20260401T000000Z_grid", SMALL)
    write_study(tmp_path / "20250101T000000Z_grid", SMALL)
    tiny = write_training(tmp_path / "performance_results_tiny_20260401_000000")
    small = write_training(tmp_path / "performance_results_small_20260101_000000")
    newest_found = newest_sources(tmp_path)
    sources, absent = newest_found.sources, newest_found.absent
    found: dict[Kind, list[Path]] = {}
    for source in sources:
        found.setdefault(source.kind, []).append(source.path)
    assert found[Kind.STUDY] == [newest]
    assert found[Kind.TRAINING] == [tiny, small]
    assert len(found[Kind.SUITE]) == len(found[Kind.ABLATION]) == 1
    # the study has a frontier of its own
    assert absent == []
    (newest / "frontier.json").unlink()
    assert newest_sources(tmp_path).absent == [Kind.FRONTIER]


def test_a_study_that_has_measured_nothing_yet_hides_no_other(tmp_path: Path) -> None:
    good = write_study(tmp_path / "20260301T000000Z_grid", SMALL)
    running = write_study(tmp_path / "20260302T000000Z_grid", SMALL)
    begun = write_study(tmp_path / "20260303T000000Z_grid", SMALL)
    for folder in (running, begun):
        for path in folder.glob("round_*.json"):
            path.unlink()
    lines = ['{"header": {}}', '{"case": "a"}', '{"case":"b"}', '{"case": "cut']
    (running / "round_1.journal.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = newest_sources(tmp_path)
    assert found.sources == [Source(Kind.STUDY, good)]
    assert [(one.name, one.reason, one.is_error) for one in found.passed_over] == [
        (
            str(begun),
            "round 1 did not end: nothing was measured; scripts/study --resume goes on with it",
            False,
        ),
        (
            str(running),
            "round 1 did not end: 2 cases in its journal; scripts/study --resume goes on with it",
            False,
        ),
    ]
    assert read_inputs(found.sources, found.absent, found.passed_over).omissions[0].name


def test_a_frontier_older_than_the_studys_own_is_not_taken(tmp_path: Path) -> None:
    study = write_study(tmp_path / "20260302T000000Z_grid", SMALL)
    document = json.loads((study / "frontier.json").read_text(encoding="utf-8"))
    write(tmp_path / "20260301T000000Z_frontier" / "frontier.json", document)
    assert newest_sources(tmp_path).sources == [Source(Kind.STUDY, study)]
    newer = write(tmp_path / "20260303T000000Z_frontier" / "frontier.json", document)
    assert Source(Kind.FRONTIER, newer) in newest_sources(tmp_path).sources
    (study / "frontier.json").unlink()
    older = tmp_path / "20260301T000000Z_frontier" / "frontier.json"
    newer.unlink()
    assert Source(Kind.FRONTIER, older) in newest_sources(tmp_path).sources


def test_a_study_that_was_damaged_is_still_the_newest(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "20260401T000000Z_grid", SMALL)
    (folder / "study.json").write_text('{"kind": "grid", ', encoding="utf-8")
    sources = newest_sources(tmp_path).sources
    assert sources == [Source(Kind.STUDY, folder)]
    assert "is cut short" in read_inputs(sources).omissions[0].reason


def test_without_a_results_folder_every_kind_is_absent(tmp_path: Path) -> None:
    found = newest_sources(tmp_path / "none")
    assert (found.sources, found.absent) == ([], list(Kind))
