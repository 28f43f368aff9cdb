"""The frontier of the built program: how far its predictions are from what really fits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinyllama_tools.suite_run import PROJECT

# What a prediction may be off by: a batch, or this share.
MOST_PERCENT = 5.0


def frontier(bench_program: Path, tmp_path: Path, *options: str) -> dict[str, Any]:
    """frontier.json of the command."""
    places = [f"--build-folder={bench_program.parents[1]}", f"--results={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "tinyllama_tools.frontier.command", *options, *places],
        env={"PYTHONPATH": str(PROJECT / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    (path,) = tmp_path.glob("*_frontier/frontier.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_program_answers_for_a_machine_that_is_not_this_one(
    bench_program: Path, tmp_path: Path
) -> None:
    options = ("tiny", "very_large", "--seq=128,2048", "--device=cpu", "--memory-limit=80GiB")
    points = frontier(bench_program, tmp_path, *options)["points"]
    assert len(points) == 2 * 2 * 2 * 2
    by_name = {(p["size"], p["variant"], p["dtype"], p["seq"]): p for p in points}
    few = by_name["tiny", "baseline", "f32", 2048]["largest_batch"]
    assert 0 < few < by_name["tiny", "optimized", "f32", 2048]["largest_batch"]
    assert few < by_name["tiny", "baseline", "f32", 128]["largest_batch"] / 16
    assert by_name["very_large", "baseline", "f32", 128]["largest_batch"] == 0
    assert all(p["predicted_bytes"] <= 80 * 2**30 for p in points if p["largest_batch"])


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        ("tiny", "--seq=128,512", "--dtypes=f32,bf16", "--memory-limit=200MiB"),
        ("small", "--seq=256", "--dtypes=f32", "--memory-limit=700MiB"),
        ("tiny", "--by=batch", "--batch=2", "--dtypes=f32", "--memory-limit=200MiB"),
    ],
    ids=["tiny", "small", "by_batch"],
)
def test_what_is_predicted_is_what_fits(
    bench_program: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    document = frontier(bench_program, tmp_path, *options, "--device=cpu", "--confirm")
    for point in document["points"] + document["sequences"]:
        predicted = point.get("largest_batch", point.get("longest_seq"))
        confirmed = point.get("confirmed_batch", point.get("confirmed_seq"))
        assert confirmed is not None, point
        is_next = abs(predicted - confirmed) <= 1
        assert is_next or abs(point["apart_percent"]) <= MOST_PERCENT, point
    ended = {one["why"] for one in document["tries"] if one["fits"] is False}
    assert "out of memory" in ended
