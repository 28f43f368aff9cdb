"""The A/A blocks that were recorded on real machines and published: the judge keeps its rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyllama_tools.calibrate.command import MOST_BYTES
from tinyllama_tools.calibrate.draws import AS_MEASURED, TOSSED, PairedBlocks
from tinyllama_tools.calibrate.draws import DrawnSides as Sides
from tinyllama_tools.calibrate.rates import BROKEN, Effort, Rule, false_alarm_row
from tinyllama_tools.calibrate.record import read_recordings
from tinyllama_tools.core.app import RESULTS

PUBLISHED = sorted((RESULTS / "reference").glob("paired_blocks_*.jsonl"))
EFFORT = Effort(families=100, cases=20, tries=1, jobs=1, seed=1)

pytestmark = pytest.mark.skipif(not PUBLISHED, reason="no A/A recording is published")


@pytest.fixture(scope="module", params=PUBLISHED, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> PairedBlocks:
    path: Path = request.param
    assert path.stat().st_size <= MOST_BYTES
    return read_recordings([path]).blocks


@pytest.mark.parametrize("sides", [AS_MEASURED, TOSSED])
def test_families_of_recorded_blocks_keep_a_loose_level(
    recorded: PairedBlocks, sides: Sides
) -> None:
    rule = Rule(alpha=0.05, margin=0.03, looks=3)
    row = false_alarm_row("all", recorded, rule, EFFORT, sides=sides)
    assert row["standing"] != BROKEN


def test_families_of_recorded_blocks_raise_no_alarm_at_the_usual_level(
    recorded: PairedBlocks,
) -> None:
    rule = Rule(alpha=1e-3, margin=0.03, looks=3)
    row = false_alarm_row("all", recorded, rule, EFFORT, sides=TOSSED)
    assert row["false"]["count"] == 0
