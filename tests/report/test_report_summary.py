"""Five sentences from the data, and what they say where data is missing."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from played_grid import Grid
from played_study import write_result, write_study

from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.sources import source_of
from tinyllama_tools.report.summary import SENTENCES

ONE_CELL = Grid(sizes=("tiny",), batches=(8,), seqs=(128,), rounds=1)


def five_sentences(inputs: ReportInputs) -> list[str]:
    return [sentence(inputs) for _, sentence in SENTENCES]


def test_all_five_have_their_numbers(inputs: ReportInputs) -> None:
    machine, speed, limit, scaling, cost = five_sentences(inputs)
    assert machine == (
        "Played CPU multiplies matrices at 300 GFLOP/s in f32 and moves 40 GB/s from memory and "
        "200 GB/s from the last-level cache at best."
    )
    assert speed.startswith(
        "A training step (small, baseline, f32, batch 8 x sequence 256) takes 1."
    )
    assert speed.endswith("% of its speed of light.")
    assert limit.startswith("Most time against the speed of light is lost in ffn: ")
    assert scaling.startswith(
        "At small (baseline, f32) a step of batch B and sequence S follows time = "
    )
    assert "inside the 95 % interval" in scaling
    assert re.match(
        r"At sequence [\d,]+, medium \(baseline, f32\) fits into 24 GiB up to batch \d+, and a ",
        cost,
    )
    assert "at medium" in cost
    assert "at tiny" not in cost


def test_each_is_one_sentence(inputs: ReportInputs) -> None:
    for text in [*five_sentences(inputs), *five_sentences(ReportInputs())]:
        assert text.endswith(".")
        assert ". " not in text


def test_without_anything_each_says_what_makes_it() -> None:
    sentences = five_sentences(ReportInputs())
    assert all("not" in text or "No " in text for text in sentences)
    assert all("`scripts/" in text for text in sentences)


def test_one_cell_does_not_scale(tmp_path: Path) -> None:
    inputs = read_inputs([source_of(write_result(tmp_path / "a.json", ONE_CELL))])
    scaling, cost = five_sentences(inputs)[3:]
    assert scaling.startswith("How the step scales is not known (1 size: ")
    assert "costs.json" in cost


def test_a_frontier_over_batches_alone_is_told(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", dataclasses.replace(ONE_CELL, sizes=("tiny",)))
    path = folder / "frontier.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    line = {"variant": "baseline", "dtype": "f32", "predicted_bytes": 1, "confirmed": ""}
    document["points"] = []
    document["sequences"] = [
        line | {"size": size, "batch": batch, "longest_seq": longest}
        for size, batch, longest in (("tiny", 4, 9000), ("small", 4, 3000), ("small", 16, 0))
    ]
    path.write_text(json.dumps(document), encoding="utf-8")
    cost = five_sentences(read_inputs([source_of(folder)]))[4]
    assert cost.startswith(
        "At batch 4, small (baseline, f32) fits into 24 GiB up to sequence 3,000"
    )


@pytest.mark.parametrize("lost", ["costs.json", "frontier.json"])
def test_the_last_sentence_takes_what_there_is(tmp_path: Path, lost: str) -> None:
    folder = write_study(tmp_path / "study")
    (folder / lost).unlink()
    cost = five_sentences(read_inputs([source_of(folder)]))[4]
    if lost == "costs.json":
        assert "; what sizes that were not run would cost is not known" in cost
    else:
        assert cost.startswith("A step is predicted to take ")


def test_without_parts_nothing_is_said_of_where_time_is_lost(tmp_path: Path) -> None:
    grid = dataclasses.replace(ONE_CELL, components=("full_step",))
    inputs = read_inputs([source_of(write_result(tmp_path / "a.json", grid))])
    assert five_sentences(inputs)[2].startswith("What limits the step is not known (no part")
