"""What data-parallel steps reach on the machine whose results are committed, computed from their
rounds anew.

`.venv/bin/python -m pytest -s tests/distributed/test_reference_ranks.py` shows the figures.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tinyllama_tools.core.app import RESULTS
from tinyllama_tools.data.ranks import read_scaling_result, result_files
from tinyllama_tools.data.studies import SCALING_FILE, SCALING_PAGE
from tinyllama_tools.models.collectives import Estimate, ScalingPoint
from tinyllama_tools.models.scaling_projection import Analysis, analyse

MACHINE = "2core_xeon_avx512"
# ranks that share two busy processors; the same with a link that is slower than they are
PLAIN, SLOW_LINK, STRONG = f"ranks_{MACHINE}", f"ranks_4gbit_{MACHINE}", f"ranks_strong_{MACHINE}"
FOLDER = RESULTS / "reference"
# percent, of small in f32
LEAST_WITHOUT_COMMUNICATION, LEAST_OF_ONE_PROCESS, LEAST_HIDDEN = 85.0, 98.0, 50.0


@cache
def analysis_of(name: str) -> Analysis:
    return analyse([read_scaling_result(path) for path in result_files(FOLDER / name)])


def point(name: str, ranks: int) -> ScalingPoint:
    """Of the step with overlap."""
    found = [p for p in analysis_of(name).points if (p.ranks, p.mode) == (ranks, "overlap")]
    assert len(found) == 1
    return found[0]


def told(what: str, found: Estimate | None) -> float:
    """Shows it. Over rounds enough for an interval of 95 %."""
    assert found is not None and found.interval is not None
    assert found.interval.confidence >= 0.95
    print(f"\n{what}: {found.text(1)} %, {found.rounds} rounds")
    return found.median


@pytest.mark.parametrize("name", [PLAIN, SLOW_LINK, STRONG])
def test_results_are_of_a_commit_and_of_nobody(name: str) -> None:
    for result in analysis_of(name).results:
        assert result.context["git_dirty"] is False
        assert result.context.get("host_name", "host_").startswith("host_")
        assert {place["node"] for place in result.distributed["ranks"]} == {0}
        step = result.name
        assert step is not None and (step.size, step.dtype) == ("small", "f32")
        assert result.context["threads"] == 1
    names = {path.name for path in (FOLDER / name).iterdir()}
    assert {SCALING_FILE, SCALING_PAGE} < names


def test_data_parallel_over_one_process_costs_little() -> None:
    assert told("over one process", point(PLAIN, 1).efficiency) >= LEAST_OF_ONE_PROCESS


def test_two_processes_reach_most_of_what_they_reach_without_communication() -> None:
    found = told("of what two reach without", point(PLAIN, 2).communication_free)
    assert found >= LEAST_WITHOUT_COMMUNICATION
    assert told("of twice one alone", point(PLAIN, 2).efficiency) <= found + 1


def test_overlap_hides_most_of_what_a_link_keeps_waiting() -> None:
    assert told("hidden of a slow link", point(SLOW_LINK, 2).overlap) >= LEAST_HIDDEN


def test_overlap_cannot_hide_what_keeps_the_processors_at_work() -> None:
    """The target of a half is missed there, by what the processors themselves need."""
    busy = told("processors at work for the sums", point(PLAIN, 2).busy)
    told("hidden where processors copy", point(PLAIN, 2).overlap)
    assert 100 - busy < LEAST_HIDDEN
    assert told("the same, of a slow link", point(SLOW_LINK, 2).busy) < 100 - LEAST_HIDDEN


def test_losses_and_efficiency_add_up() -> None:
    for name in (PLAIN, SLOW_LINK, STRONG):
        for one in analysis_of(name).waterfalls:
            assert not one.refusal
            whole = one.efficiency + sum(part.percent for part in one.parts)
            assert whole == pytest.approx(100, abs=0.01)


def test_the_page_says_what_the_results_say() -> None:
    page = (Path(__file__).parents[2] / "results" / "MEASURED.md").read_text(encoding="utf-8")
    for name in (PLAIN, SLOW_LINK, STRONG):
        assert f"(reference/{name}/" in page
    for estimate in (
        point(PLAIN, 1).efficiency,
        point(PLAIN, 2).efficiency,
        point(PLAIN, 2).communication_free,
        point(PLAIN, 2).overlap,
        point(PLAIN, 2).busy,
        point(SLOW_LINK, 2).overlap,
        point(SLOW_LINK, 2).busy,
        point(STRONG, 2).efficiency,
    ):
        assert estimate is not None
        assert f"{estimate.text(1).replace(' (', ' % (')}" in " ".join(page.split())
