"""A step that became slower inside one part: found, and blamed on that part."""

from __future__ import annotations

from pathlib import Path

import pytest
from calibrated_machine import PARTS, case_name, seconds, write_recording

from tinyllama_tools.calibrate.command import fraction_inside
from tinyllama_tools.calibrate.draws import PairedBlocks
from tinyllama_tools.calibrate.rates import NOBODY, attribution_rate
from tinyllama_tools.calibrate.record import read_recordings
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.stats.verdicts import plan_design

DESIGN = plan_design(7, alpha=0.01, looks=2)


def recorded(tmp_path: Path, **slowed: float) -> PairedBlocks:
    write_recording(tmp_path / "r.jsonl", 30, slowed)
    return read_recordings([tmp_path / "r.jsonl"]).blocks


def test_a_slower_ffn_is_blamed_for_the_slower_step(tmp_path: Path) -> None:
    inside = 0.05 * seconds({})["full_step"] / (4 * PARTS["ffn"][0])
    blocks = recorded(tmp_path, ffn=inside)
    rate = attribution_rate(blocks, "ffn", DESIGN, budget=1e6, tries=12, seed=1)
    assert rate.change == pytest.approx(0.05, abs=0.01)
    assert rate.found.value == 1
    assert rate.attributed.value == 1
    assert rate.culprits == {"ffn": 12}


def test_blaming_another_part_does_not_count(tmp_path: Path) -> None:
    blocks = recorded(tmp_path, ffn=0.2)
    rate = attribution_rate(blocks, "attention", DESIGN, budget=1e6, tries=6, seed=1)
    assert rate.found.value == 1
    assert rate.attributed.count == 0


def test_a_step_that_did_not_change_is_not_found(tmp_path: Path) -> None:
    rate = attribution_rate(recorded(tmp_path), "ffn", DESIGN, budget=1e6, tries=6, seed=1)
    assert rate.found.count == rate.attributed.count == 0
    assert rate.culprits.total() == 0
    assert NOBODY not in rate.culprits


def test_without_a_step_there_is_nothing_to_attribute(tmp_path: Path) -> None:
    blocks = recorded(tmp_path).only([case_name("ffn")])
    with pytest.raises(ValueError, match="0 cases of full_step"):
        attribution_rate(blocks, "ffn", DESIGN, budget=1, tries=1)


def test_the_fraction_of_a_part_is_what_changes_the_step_by_five_percent(tmp_path: Path) -> None:
    quiet = recorded(tmp_path)
    fraction = fraction_inside(quiet, "ffn", 0.05)
    assert seconds({"ffn": fraction})["full_step"] == pytest.approx(
        1.05 * seconds({})["full_step"], rel=0.01
    )
    with pytest.raises(BadInputError, match="too small a part"):
        fraction_inside(quiet, "embedding", 2.0)
    with pytest.raises(BadInputError, match="rotary: not recorded"):
        fraction_inside(quiet, "rotary", 0.05)
