"""Which results a report takes where nobody named one."""

from __future__ import annotations

import json
from pathlib import Path

from played_grid import Grid
from played_study import write, write_everything, write_study, write_training

from tinyllama_tools.report.inputs import read_inputs
from tinyllama_tools.report.sources import Kind, Source, newest_sources

SMALL = Grid(sizes=("tiny",), batches=(8,), seqs=(128,), rounds=2)


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
