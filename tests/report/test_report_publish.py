"""scripts/report --publish: what is written of a study, what is left out of it, what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from played_grid import LIMIT, Grid, frontier_head
from played_study import write, write_result, write_study

import tools
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.publish import names_alone
from tinyllama_tools.report import command as main
from tinyllama_tools.report import command as publish
from tinyllama_tools.report import output as png
from tinyllama_tools.report.build import build_document
from tinyllama_tools.report.command import NOTHING_USABLE, WITH_ERRORS, WRITTEN, Place
from tinyllama_tools.report.inputs import read_inputs
from tinyllama_tools.report.sources import source_of

SMALL = Grid(sizes=("tiny",), batches=(1, 2, 4), seqs=(64, 128, 256), components=("full_step",))
PICTURE = b"\x89PNG and so on"
Json = dict[str, Any]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn, and the checkout is of a commit."""
    monkeypatch.setattr(png, "picture_of", lambda *_: PICTURE)
    monkeypatch.setattr(main, "changed_files", lambda _: "")


def change(path: Path, what: Callable[[Json], None]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    what(content)
    write(path, content)


def study(tmp_path: Path, grid: Grid = SMALL) -> Path:
    """As scripts/study leaves it: with journals, the machine's own words, and aggregates."""
    folder = write_study(tmp_path / "20260304T050607Z_grid", grid)
    (folder / "round_1.journal.jsonl").write_text("{}\n", encoding="utf-8")
    own = {"host_name": "janes-pc", "executable": "/home/jane/bench", "load_avg": [1.0]}

    def with_own(content: Json) -> None:
        content["context"] |= own
        content["context"]["settings"]["env.OMP_X"] = "/opt/jane/omp.so:/root/lib/x.so"
        first = content["benchmarks"][0]
        medians = {"run_type": "aggregate", "aggregate_name": "median"}
        content["benchmarks"].append({**first, **medians, "label": "in /home/jane/x"})

    for path in [*folder.glob("round_*.json"), folder / "products.json"]:
        change(path, with_own)
    finished = {"finished": "2026-03-04T06:00:00+00:00", "build_folder": "/scratch/jane/build"}
    command = {"command": "scripts/study tiny --results=/scratch/jane/results"}
    change(folder / "study.json", lambda content: content.update(finished | command))
    return folder


def frontier(path: Path, key: str = "points", device: str = SMALL.device) -> Path:
    line = {"size": "tiny", "variant": "baseline", "dtype": "f32", "predicted_bytes": 9}
    line |= {"seq": 64, "largest_batch": 7} if key == "points" else {"batch": 1, "longest_seq": 7}
    head = frontier_head(LIMIT, "--memory-limit", device) | {"command": f"x --results={path}"}
    return write(path, {**head, key: [line | {"confirmed": "7, as predicted"}]})


def run(*arguments: object, results: Path) -> int:
    return tools.report([*map(str, arguments), "--publish=card", f"--results-folder={results}"])


def figures_of(folder: Path) -> Json:
    """The report's document, but for when it was made and where its files are."""
    document = build_document(read_inputs([source_of(folder)])).as_json()
    environment = document["sections"][0]
    tables = [one for one in environment["tables"] if one["id"] != "sources"]
    settings = {"generated": "", "sections": document["sections"][1:]}
    rows = [one for one in tables if one["id"] != "settings"]
    return document | settings | {"environment": rows}


def test_what_is_published_gives_the_same_figures(tmp_path: Path, capsys: Capture) -> None:
    folder = study(tmp_path)
    assert run(folder, results=tmp_path / "results") == WRITTEN
    place = Place(tmp_path / "results/reference", "card")
    written = {path.name for path in place.study.iterdir()}
    assert written == {path.name for path in folder.glob("*.json")}
    assert place.page.read_text(encoding="utf-8").lstrip().startswith("<!doctype html>")
    assert place.picture.read_bytes() == PICTURE
    assert figures_of(place.study) == figures_of(folder)
    said = capsys.readouterr()
    assert said.out == ""
    assert f"wrote {place.page}" in said.err.splitlines()


def test_nothing_of_the_machines_owner_is_published(tmp_path: Path) -> None:
    assert run(study(tmp_path), results=tmp_path / "results") == WRITTEN
    place = Place(tmp_path / "results/reference", "card")
    texts = [path.read_text(encoding="utf-8") for path in place.study.iterdir()]
    for text in [*texts, place.page.read_text(encoding="utf-8")]:
        for own in ("jane", "/root", "/scratch", "host_name", "load_avg", '"executable"'):
            assert own not in text, own
    record = json.loads((place.study / "study.json").read_text(encoding="utf-8"))
    assert (record["build_folder"], record["command"][-17:]) == ("build", "--results=results")
    context = json.loads((place.study / "round_1.json").read_text(encoding="utf-8"))["context"]
    assert context["settings"]["env.OMP_X"] == "omp.so:x.so"
    assert context["device"]["name"] == SMALL.device


def test_repetitions_are_kept_and_what_follows_from_them_is_not(tmp_path: Path) -> None:
    folder = study(tmp_path)
    assert run(folder, results=tmp_path / "results") == WRITTEN
    before, after = (
        json.loads((of / "round_2.json").read_text(encoding="utf-8"))["benchmarks"]
        for of in (folder, tmp_path / "results/reference/study_card")
    )
    kept = [row for row in before if row["run_type"] == "iteration"]
    assert len(after) == len(kept) == len(before) - 1
    for old, new in zip(kept, after, strict=True):
        assert new == {key: old[key] for key in new}
        assert set(old) - set(new) == {"name", "repetitions", "threads"}


def test_a_study_with_fewer_rounds_leaves_none_of_the_other(tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert run(study(tmp_path), results=results) == WRITTEN
    place = Place(results / "reference", "card")
    (tmp_path / "again").mkdir()
    fewer = study(tmp_path / "again", Grid(**{**vars(SMALL), "rounds": 2}))
    assert run(fewer, results=results) == WRITTEN
    assert len(list(place.study.glob("round_*.json"))) == 2
    first = {path.name: path.read_bytes() for path in place.study.iterdir()}
    # what is published can be published anew, with the page of today
    assert run(place.study, results=results) == WRITTEN
    assert {path.name: path.read_bytes() for path in place.study.iterdir()} == first
    assert not list(place.folder.glob("*.part"))


def test_frontiers_are_published_beside_it(tmp_path: Path) -> None:
    by_seq = frontier(tmp_path / "a" / "frontier.json")
    by_batch = frontier(tmp_path / "b" / "frontier.json", "sequences")
    folder, results = study(tmp_path), tmp_path / "results"
    assert run(folder, by_seq, by_batch, results=results) == WRITTEN
    for axis, text in (("seq", "seq"), ("batch", "batch")):
        path = results / f"reference/frontier_by_{axis}_card.json"
        assert str(tmp_path) not in path.read_text(encoding="utf-8"), text
        assert source_of(path).path == path


def test_an_error_of_the_report_is_published_and_said(tmp_path: Path) -> None:
    folder = study(tmp_path)

    def spoil(content: Json) -> None:
        content["benchmarks"][0] |= {"error_occurred": True, "error_message": "wrong result"}

    change(folder / "round_1.json", spoil)
    assert run(folder, results=tmp_path / "results") == WITH_ERRORS
    assert (tmp_path / "results/reference/scaling_card.html").is_file()


def unfinished(folder: Path) -> None:
    change(folder / "study.json", lambda content: content.update(finished=""))


def dirty(folder: Path) -> None:
    for path in [*folder.glob("round_*.json"), folder / "products.json"]:
        change(path, lambda content: content["context"].update(git_dirty=True))


def damaged(folder: Path) -> None:
    (folder / "costs.json").write_text("{", encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (unfinished, "the study did not end; scripts/study --resume goes on with it"),
        (dirty, "measured with changed files; commit, build and measure again"),
        (damaged, "costs.json: is cut short"),
    ],
)
def test_what_is_not_whole_is_not_published(
    tmp_path: Path, capsys: Capture, spoil: Callable[[Path], None], why: str
) -> None:
    folder = study(tmp_path)
    spoil(folder)
    assert run(folder, results=tmp_path / "results") == NOTHING_USABLE
    assert why in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_what_has_no_place_there_is_refused(tmp_path: Path, capsys: Capture) -> None:
    folder, results = study(tmp_path), tmp_path / "results"
    refusals = (
        ([write_result(tmp_path / "a.json", SMALL)], "0 grid studies: must be one"),
        ([folder, tmp_path / "a.json"], "a run of the suite is not published with it"),
        ([folder, frontier(tmp_path / "f.json", device="other")], "is of other, the study of "),
        ([folder, frontier(tmp_path / "g.json"), frontier(tmp_path / "h.json")], "as another one"),
    )
    for named, why in refusals:
        assert run(*named, results=results) == NOTHING_USABLE
        assert why in capsys.readouterr().err
        assert not (results / "reference/scaling_card.html").exists()


def test_changed_files_are_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(main, "changed_files", lambda _: " M model/cost.cpp")
    assert run(study(tmp_path), results=tmp_path / "results") == NOTHING_USABLE
    assert "--publish: commit first, these files are changed:\n M model" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "most"), [("MOST_BYTES", 1000), ("MOST_PICTURE_BYTES", 3)])
def test_too_much_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str, most: int
) -> None:
    monkeypatch.setattr(publish, name, most)
    assert run(study(tmp_path), results=tmp_path / "results") == NOTHING_USABLE
    assert re.search(
        rf"bytes: must be {most:,} at most: .*roofline_card.png 1", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["a", "--publish=Card 1"], "'Card 1': must be letters a-z, digits and _"),
        (["a", "--publish=card", "-o", "x"], "so without -o and --format"),
        (["a", "--publish=card", "--format=md"], "so without -o and --format"),
        (["--publish=card"], "name the folder of the grid study"),
    ],
)
def test_a_contradiction_ends_with_2(arguments: list[str], why: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        tools.report(arguments)
    assert ended.value.code == NOTHING_USABLE
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/data/jane/x.so", "x.so"),
        ("--results=/a/b/c --seq=1", "--results=c --seq=1"),
        ("file:///a/b/c", "file://c"),
        ("https://example.com/a/b", "https://example.com/a/b"),
        ("ffn/forward/tiny/f32/batch:1/seq:2", "ffn/forward/tiny/f32/batch:1/seq:2"),
        ("12 FLOP/s and 1 / 2", "12 FLOP/s and 1 / 2"),
        ("build-asan/x", "build-asan/x"),
    ],
)
def test_of_a_path_its_name_is_kept(text: str, kept: str) -> None:
    assert names_alone(text) == kept


def test_without_the_figure_there_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(BadInputError, match="no figure roofline_plot to draw"):
        png.picture_of({"title": "t", "sections": []}, "roofline_plot")
