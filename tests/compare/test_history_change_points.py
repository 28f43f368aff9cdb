"""Change points: found where a change is, not where noise is, and named by their commit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from history_samples import CASE, entry

from tinyllama_tools.history.change_points import (
    FEWEST_FILES,
    ChangePoint,
    change_indices,
    find_change_points,
)
from tinyllama_tools.history.store import HistoryStore, ResultEntry


def noise(kind: str, random: np.random.Generator, files: int) -> np.ndarray:
    """Logarithms of times without a change."""
    if kind == "normal":
        return random.normal(0, 0.05, files)
    if kind == "heavy tails":
        return random.standard_t(3, files) * 0.04
    if kind == "spikes":
        spiked = random.random(files) < 0.1
        return random.normal(0, 0.03, files) + spiked * random.exponential(0.4, files)
    if kind == "two modes":
        return random.normal(0, 0.01, files) + 0.1 * (random.random(files) < 0.3)
    values = random.normal(0, 0.03, files)
    for i in range(1, files):
        values[i] += 0.3 * values[i - 1]
    return values


@pytest.mark.parametrize(
    ("kind", "most"),
    [("normal", 6), ("heavy tails", 6), ("spikes", 6), ("two modes", 6), ("neighbours", 16)],
)
def test_noise_rarely_makes_a_change(kind: str, most: int) -> None:
    """300 series: 6 is beyond what a rate of 1 in 100 gives in 95 of 100 tries; 16 of 3 to 4."""
    random = np.random.default_rng(7)
    lengths = [12, 20, 50] * 100
    found = sum(bool(change_indices(np.exp(noise(kind, random, n)).tolist())) for n in lengths)
    assert found <= most


@pytest.mark.parametrize(("shift", "least"), [(0.2, 98), (0.1, 65)])
def test_a_change_is_found_where_it_is(shift: float, least: int) -> None:
    """Twenty files of 4 % scatter, 100 series."""
    random = np.random.default_rng(8)
    step = np.repeat([0.0, shift], 10)
    found = [change_indices(np.exp(step + random.normal(0, 0.04, 20)).tolist()) for _ in range(100)]
    assert sum(any(abs(i - 10) <= 2 for i in indices) for indices in found) >= least


def test_a_gain_and_a_loss_in_one_series() -> None:
    steps = np.repeat([0.0, -0.3, 0.1], 10)
    values = np.exp(steps + np.random.default_rng(9).normal(0, 0.02, 30))
    assert change_indices(values.tolist()) == [10, 20]


def test_one_bad_file_is_no_change() -> None:
    seconds = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 5.0, 1.0, 1.01, 0.99, 1.0, 1.01]
    assert change_indices(seconds) == []


def test_changes_below_the_margin_are_left_out() -> None:
    seconds = [1.0] * 10 + [1.02] * 10
    assert change_indices(seconds, margin=0.03) == []
    assert change_indices(seconds, margin=0.01) == [10]


def test_too_few_files_have_no_change() -> None:
    half = FEWEST_FILES // 2
    seconds = [1.0] * half + [2.0] * (FEWEST_FILES - half)
    assert change_indices(seconds[1:]) == []
    seconds = [value * (1 + 1e-3 * i) for i, value in enumerate(seconds)]
    assert change_indices(seconds) == [half]


def points_of(path: Path, entries: list[ResultEntry]) -> list[ChangePoint]:
    with HistoryStore(path / "history.sqlite", create=True) as store:
        for one in entries:
            store.add(one)
        return find_change_points(store.series())


def step(index: int) -> dict[str, float]:
    """0.010 s until day 7, 0.012 s from day 8."""
    return {CASE: (0.010 if index < 8 else 0.012) * (1 + 1e-3 * (index % 3))}


def test_a_point_names_the_commit_and_its_files(tmp_path: Path) -> None:
    # added in another order than they were committed in
    (point,) = points_of(tmp_path, [entry(i, step(i)) for i in reversed(range(16))])
    assert point.case == CASE
    assert point.after[0].commit.startswith("0008")
    assert point.before[-1].commit.startswith("0007")
    assert [r.commit[:4] for r in point.after] == [f"{i:04d}" for i in range(8, 16)]
    assert point.ratio == pytest.approx(1.2, rel=5e-3)
    assert point.remark == ""


def test_what_else_changed_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    same = [entry(i, step(i), commit="f" * 40) for i in range(16)]
    (point,) = points_of(tmp_path / "a", same)
    assert "no commit lies between" in point.remark
    (tmp_path / "b").mkdir()
    version = [
        entry(i, step(i), torch_version="2.13.0" if i < 8 else "2.14.0", dirty=i == 8)
        for i in range(16)
    ]
    (point,) = points_of(tmp_path / "b", version)
    assert "libtorch 2.13.0 before, 2.14.0 after" in point.remark
    assert "uncommitted" in point.remark
