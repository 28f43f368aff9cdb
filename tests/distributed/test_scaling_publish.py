"""scripts/scaling --publish: what is tracked by git of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from made_up_scaling import write_run
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.models.collectives import ScalingResult, read_scaling_result
from tinyllama_tools.scaling.results import check_publishable, publish_results
from tools import scaling as main

HOST = "somebodys-host"


def changed(path: Path, **context: object) -> ScalingResult:
    document = json.loads(path.read_text(encoding="utf-8"))
    document["context"].update(context)
    path.write_text(json.dumps(document), encoding="utf-8")
    return read_scaling_result(path)


def measured(folder: Path) -> list[ScalingResult]:
    """On a host that has a name."""
    paths = [write_run(folder, ranks=(ranks,)) / f"ranks_{ranks}.json" for ranks in (1, 2)]
    found = []
    for path in paths:
        found.append(changed(path, host_name=HOST, git_dirty=False))
    return found


def test_tables_are_the_same_from_what_is_published(tmp_path: Path) -> None:
    source, place = tmp_path / "run", tmp_path / "reference" / "ranks_here"
    before = measured(source)
    place.mkdir(parents=True)
    (place / "ranks_64.json").write_text("of the run before")
    publish_results(source, place)
    assert [path.name for path in sorted(place.iterdir())] == ["ranks_1.json", "ranks_2.json"]
    for path in place.iterdir():
        assert HOST not in path.read_text(encoding="utf-8")
    for old in before:
        new = read_scaling_result(place / old.path.name)
        assert (new.steps, new.collectives) == (old.steps, old.collectives)
        assert new.rank_samples == old.rank_samples


def test_the_command_writes_files_and_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(tmp_path / "run")
    monkeypatch.setattr("tinyllama_tools.scaling.command.changed_files", lambda _: "")
    given = [f"--from={tmp_path / 'run'}", "--publish=here", f"--results={tmp_path}"]
    assert main([*given, "--interconnects=nvlink4_ndr"]) == 0
    place = tmp_path / "reference/ranks_here"
    names = {path.name for path in place.iterdir()}
    assert names == {"ranks_1.json", "ranks_2.json", "scaling.json", "scaling.md"}
    page = (place / "scaling.md").read_text(encoding="utf-8")
    made_by = "scripts/scaling --from results/reference/ranks_here --interconnects nvlink4_ndr"
    assert f"Made by `{made_by}`" in page
    assert not (tmp_path / "run/scaling.md").exists()


def test_only_results_of_a_commit_are_published(tmp_path: Path) -> None:
    source = tmp_path / "run"
    results = measured(source)
    with pytest.raises(BadInputError, match="commit first"):
        check_publishable(source, results, changed=" M model/ffn.cpp")
    dirty = changed(results[1].path, git_dirty=True)
    with pytest.raises(BadInputError, match="measured with changed files"):
        check_publishable(source, [results[0], dirty], changed="")
    with pytest.raises(BadInputError, match="name the folder of a run"):
        check_publishable(results[0].path, results[:1], changed="")
    (source / "scaling.json").write_text(
        json.dumps({"failures": [{"ranks": 4, "status": -9, "words": "killed"}]})
    )
    with pytest.raises(BadInputError, match="4 ranks failed"):
        check_publishable(source, results, changed="")


def test_what_is_published_stays_until_the_new_tables_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(tmp_path / "run")
    monkeypatch.setattr("tinyllama_tools.scaling.command.changed_files", lambda _: "")
    kept = tmp_path / "reference/ranks_here/ranks_2.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("of the run before")
    given = [f"--from={tmp_path / 'run'}", "--publish=here", f"--results={tmp_path}"]
    assert main([*given, f"--local-step={tmp_path / 'no_such_result.json'}"]) == 2
    assert kept.read_text() == "of the run before"


def test_what_was_not_measured_is_not_published(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--publish=here"])
    assert ended.value.code == 2
    assert "name it with --from FOLDER" in capsys.readouterr().err
