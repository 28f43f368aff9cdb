"""Resampled A/A families: the judge keeps its rate, and one that is broken is found out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tinyllama_tools.calibrate.false_alarm_rows import (
    BROKEN,
    HELD,
    LEVELS,
    Effort,
    Rule,
    calibrated_rule,
    false_alarm_row,
)
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.resample import (
    CHUNK,
    AaFamilies,
    draw_blocks,
    drawing_words,
    false_alarms,
)
from tinyllama_tools.calibrate.simulate import SCENARIOS, simulate
from tinyllama_tools.calibrate.turns import Judgements
from tinyllama_tools.judging.block_summary import BlockSummary, summarise
from tinyllama_tools.judging.blocks import Block
from tinyllama_tools.judging.design import Design
from tinyllama_tools.judging.family import judge_family

# loose, so that a few hundred families are enough
RULE = Rule(alpha=0.05, margin=0.03, looks=2)
EFFORT = Effort(families=300, cases=6, tries=1, jobs=1, seed=3)


@cache
def data(scenario: str) -> PairedBlocks:
    return simulate(scenario, cases=6, blocks=120, seed=2)


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_the_judge_does_not_break_its_rate(scenario: str) -> None:
    row = false_alarm_row(scenario, data(scenario), RULE, EFFORT, allowed=RULE.alpha, exchange=True)
    assert row["standing"] != BROKEN
    assert row["false"]["trials"] == EFFORT.families
    assert sum(row["verdicts"].values()) == EFFORT.families * EFFORT.cases


def five_times_the_rate(cases: Mapping[str, Sequence[BlockSummary]], design: Design) -> Judgements:
    """A quarter of alpha is spent: 19 x 0.05 / 4 = 0.24."""
    return judge_family(cases, replace(design, alpha=19 * design.alpha))


def test_a_judge_with_five_times_the_rate_is_found_out() -> None:
    row = false_alarm_row(
        "two modes",
        data("two modes"),
        RULE,
        EFFORT,
        allowed=RULE.alpha,
        exchange=True,
        judge=five_times_the_rate,
    )
    assert row["standing"] == BROKEN
    assert row["false"]["share"] > 2 * RULE.alpha


def test_a_judge_that_takes_pairs_as_the_sample_is_found_out() -> None:
    blocks = data("two modes")
    pairs = {
        id(summary): [
            summarise(Block((base,), (new,)))
            for base, new in zip(block.base, block.new, strict=True)
        ]
        for name in blocks.cases
        for summary, block in zip(blocks.summaries[name], blocks.slices[name], strict=True)
    }

    def pairs_as_sample(cases: Mapping[str, Sequence[BlockSummary]], design: Design) -> Judgements:
        spread = {
            name: [pair for summary in found for pair in pairs[id(summary)]]
            for name, found in cases.items()
        }
        return judge_family(spread, replace(design, looks=tuple(8 * n for n in design.looks)))

    effort = replace(EFFORT, families=60)
    row = false_alarm_row(
        "pairs", blocks, RULE, effort, allowed=RULE.alpha, exchange=False, judge=pairs_as_sample
    )
    assert row["standing"] == BROKEN
    honest = false_alarm_row("blocks", blocks, RULE, effort, allowed=RULE.alpha, exchange=False)
    assert honest["standing"] != BROKEN


def test_calibration_goes_down_to_a_level_that_is_kept() -> None:
    rule, rows = calibrated_rule(data("two modes"), RULE, EFFORT, judge=five_times_the_rate)
    assert rule.alpha < RULE.alpha
    assert [row["alpha"] for row in rows] == [RULE.alpha * x for x in LEVELS[: len(rows)]]
    assert rows[0]["standing"] == BROKEN
    assert rows[-1]["standing"] == HELD


def test_calibration_leaves_a_good_level_alone() -> None:
    # as good as never wrong: the margin is far beyond the noise
    wide = replace(RULE, margin=0.9)
    rule, rows = calibrated_rule(data("drift"), wide, EFFORT)
    assert rule == wide
    assert len(rows) == 1


def test_the_result_depends_on_the_seed_and_not_on_the_number_of_processes() -> None:
    design = RULE.design(6)
    judged = {
        jobs: false_alarms(
            data("ties"), design, family=6, families=CHUNK + 20, seed=5, exchange=True, jobs=jobs
        )
        for jobs in (1, 2)
    }
    assert judged[1] == judged[2]
    assert isinstance(judged[1].cases, Counter)


def test_blocks_of_a_family_are_drawn_once_where_there_are_enough() -> None:
    rng = np.random.default_rng(1)
    once = draw_blocks(rng, 40, 10, 4)
    assert sorted(once.ravel().tolist()) == list(range(40))
    within = draw_blocks(rng, 39, 10, 4)
    assert all(len(set(row.tolist())) == 10 for row in within)
    again = draw_blocks(rng, 9, 10, 4)
    assert again.shape == (4, 10)
    words = [drawing_words(available, 10, 4) for available in (40, 39, 9)]
    assert words[0] == "without replacement in a family"
    assert "overlap" in words[1]
    assert words[2].startswith("with replacement: 9 blocks")


def test_a_family_keeps_the_cases_of_a_block_together() -> None:
    blocks = data("shared noise")
    drawn = AaFamilies(blocks, 8, RULE.design(8)).draw(np.random.default_rng(4))
    assert len(drawn) == 8
    numbers = {
        name: [blocks.summaries[name.split(" #")[0]].index(s) for s in found]
        for name, found in drawn.items()
    }
    first, second = numbers["case 0 #0"], numbers["case 0 #1"]
    assert all(numbers[f"case {i} #0"] == first for i in range(6))
    assert numbers["case 1 #1"] == second
    assert not set(first) & set(second)


def test_tossing_sides_turns_the_log_ratios_of_about_half_of_the_blocks() -> None:
    blocks = data("two modes")
    known = {s.log_ratio for s in blocks.summaries["case 0"]}
    drawn = AaFamilies(blocks, 6, RULE.design(6), exchange=True).draw(np.random.default_rng(6))
    found = [s.log_ratio for s in drawn["case 0 #0"]]
    turned = sum(value not in known for value in found)
    assert all(value in known or -value in known for value in found)
    assert 0 < turned < len(found)


def test_an_unknown_scenario_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'weather': must be one of drift, spikes"):
        simulate("weather", cases=1, blocks=2)
