"""Families of drawn blocks: their intervals, attribution, and one try of the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrated_machine import PARTS, case_name, seconds, write_recording
from scipy.stats import binom

from tinyllama_tools.calibrate import draws as simulated_families
from tinyllama_tools.calibrate.command import (
    autocorrelation,
    document_standing,
    fraction_inside,
    simulated_rows,
)
from tinyllama_tools.calibrate.draws import (
    CHUNK,
    IN_ORDER,
    SCENARIOS,
    TOSSED,
    AaFamilies,
    Judgements,
    PairedBlocks,
    Share,
    draw_blocks,
    draw_windows,
    drawing_words,
    false_alarms,
    has_enough_blocks,
    lower_bound,
    simulate,
    upper_bound,
)
from tinyllama_tools.calibrate.rates import (
    BROKEN,
    HELD,
    IN_ALL,
    NOBODY,
    NOT_SHOWN,
    Effort,
    Rule,
    attribution_rate,
    false_alarm_row,
    recorded_rows,
    simulated_row,
    standing,
)
from tinyllama_tools.calibrate.rates import rows_together as together
from tinyllama_tools.calibrate.record import read_recordings
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.stats.looks import Block, BlockSummary, judge_family, summarise
from tinyllama_tools.stats.verdicts import Design, plan_design

# loose, so that a few hundred families are enough
RULE = Rule(alpha=0.05, margin=0.03, looks=2)
EFFORT = Effort(families=300, cases=6, tries=1, jobs=1, seed=3)


@cache
def data(scenario: str) -> PairedBlocks:
    return simulate(scenario, cases=6, blocks=120, seed=2)


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_the_judge_does_not_break_its_rate(scenario: str) -> None:
    row = false_alarm_row(scenario, data(scenario), RULE, EFFORT, sides=TOSSED)
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
        sides=TOSSED,
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
    row = false_alarm_row("pairs", blocks, RULE, effort, judge=pairs_as_sample)
    assert row["standing"] == BROKEN
    honest = false_alarm_row("blocks", blocks, RULE, effort)
    assert honest["standing"] != BROKEN


def counted(false: int, families: int, *, slower: int, same: int) -> dict[str, Any]:
    """A row as far as adding up needs it, held against 1 of 1,000."""
    return {
        "data": "one of several",
        "sides": "tossed anew",
        "cases": 6,
        "blocks": 100,
        "blocks_needed": 50,
        "alpha": 1e-3,
        "false": Share(false, families).as_json(),
        "slower": Share(slower, families).as_json(),
        "verdicts": {"slower": slower, "same": same},
        "standing": standing(Share(false, families), 1e-3),
    }


def test_rows_that_show_nothing_alone_are_held_together() -> None:
    # 1 - 0.05^(1 / 1000) = 0.0030 is above 1 of 1,000; 1 - 0.05^(1 / 3000) = 0.000998 is not
    rows = [counted(0, 1000, slower=0, same=6000) for _ in range(3)]
    assert [row["standing"] for row in rows] == [NOT_SHOWN] * 3
    found = together("all", rows)
    assert found["standing"] == HELD
    assert (found["data"], found["sides"], found["cases"]) == ("all", "tossed anew", 6)
    assert (found["false"]["count"], found["false"]["trials"]) == (0, 3000)
    assert found["false"]["upper_bound_95"] == pytest.approx(1 - 0.05 ** (1 / 3000))
    assert [row["standing"] for row in rows] == [IN_ALL] * 3
    assert document_standing({"false_alarms": [*rows, found]}) == HELD


def test_what_rows_count_is_added_up() -> None:
    rows = [counted(3, 1000, slower=2, same=10), counted(1, 500, slower=1, same=4)]
    del rows[1]["verdicts"]["slower"]
    found = together("all", rows)
    assert (found["false"]["count"], found["false"]["trials"]) == (4, 1500)
    assert (found["slower"]["count"], found["slower"]["trials"]) == (3, 1500)
    assert found["verdicts"] == {"slower": 2, "same": 14}


def test_a_row_that_is_broken_stays_so_among_good_ones() -> None:
    # 5 of 1,000 have a lower bound of 0.0016, 5 of 13,000 an upper bound of 10.51 / 13,000
    rows = [counted(0, 12_000, slower=0, same=0), counted(5, 1000, slower=5, same=0)]
    assert [row["standing"] for row in rows] == [HELD, BROKEN]
    found = together("all", rows)
    assert found["standing"] == HELD
    assert [row["standing"] for row in rows] == [HELD, BROKEN]
    assert document_standing({"false_alarms": [*rows, found]}) == BROKEN


def test_too_few_families_show_nothing_together_either() -> None:
    rows = [counted(0, 1000, slower=0, same=0) for _ in range(2)]
    found = together("all", rows)
    assert found["standing"] == NOT_SHOWN
    assert document_standing({"false_alarms": [*rows, found]}) == NOT_SHOWN


def test_scenarios_share_the_families() -> None:
    effort = replace(EFFORT, families=2 * len(SCENARIOS) - 1, cases=2)
    *rows, last = simulated_rows(RULE, effort, lambda _: None)
    assert [row["data"] for row in rows] == [f"simulated: {name}" for name in SCENARIOS]
    assert {row["false"]["trials"] for row in rows} == {2}
    assert last["false"]["trials"] == 2 * len(SCENARIOS)
    assert sum(last["verdicts"].values()) == 2 * 2 * len(SCENARIOS)


def test_the_result_depends_on_the_seed_and_not_on_the_number_of_processes() -> None:
    design = RULE.design(6)
    judged = {
        jobs: false_alarms(
            data("ties"), design, family=6, families=CHUNK + 20, seed=5, sides=TOSSED, jobs=jobs
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
    assert words[0] == "from 40 recorded blocks, without replacement in a family"
    assert "overlap" in words[1]
    assert words[2] == "from 9 recorded blocks, with replacement: 10 are needed"
    assert [has_enough_blocks(available, 10, 4) for available in (40, 39, 9)] == [
        True,
        False,
        False,
    ]


def test_windows_keep_the_order_in_time() -> None:
    rng = np.random.default_rng(7)
    drawn = [draw_windows(rng, 30, 10, 3) for _ in range(200)]
    assert all((np.diff(windows, axis=1) == 1).all() for windows in drawn)
    starts = {int(start) for windows in drawn for start in windows[:, 0]}
    assert starts == set(range(21))
    # the first follows the last where there are too few
    assert sorted(draw_windows(rng, 4, 6, 1)[0].tolist()) == [0, 0, 1, 1, 2, 3]


def test_what_lasts_for_several_blocks_is_seen_by_windows_only() -> None:
    blocks = data("two modes")
    numbers = np.arange(blocks.blocks)
    lasting = 0.5 * np.sign(np.sin(2 * np.pi * (numbers + 0.5) / 60))
    shifted = {
        name: tuple(
            replace(s, log_ratio=s.log_ratio + float(shift))
            for s, shift in zip(found, lasting, strict=True)
        )
        for name, found in blocks.summaries.items()
    }
    wandering = PairedBlocks(shifted, {}, blocks.costs)
    effort = replace(EFFORT, families=60)
    drawn, tossed, windows = recorded_rows("wandering", wandering, RULE, effort)
    assert [row["sides"] for row in (drawn, tossed, windows)] == ["as measured", TOSSED, IN_ORDER]
    assert windows["standing"] == BROKEN
    assert windows["false"]["count"] > 3 * drawn["false"]["count"]
    found = autocorrelation(wandering.summaries["case 0"])
    assert found is not None
    assert found > 0.8
    calm = autocorrelation(blocks.summaries["case 0"])
    assert calm is not None
    assert abs(calm) < 0.3


def test_the_autocorrelation_of_a_line_is_known_and_of_one_value_is_none() -> None:
    line = [BlockSummary(float(x), 0.0, 1.0, 1.0) for x in (-1, 0, 1, 0, -1)]
    # apart: -0.8, 0.2, 1.2, 0.2, -0.8; products -0.16, 0.24, 0.24, -0.16 over 2.8
    assert autocorrelation(line) == pytest.approx(0.16 / 2.8)
    assert autocorrelation(line[:2]) is None
    assert autocorrelation([line[0]] * 5) is None


def test_a_row_from_too_few_blocks_is_never_held() -> None:
    # never an alarm: the margin is far beyond the noise
    wide = replace(RULE, margin=0.9)
    last = wide.design(12).looks[-1]
    effort = replace(EFFORT, families=100, cases=12)
    rows = {
        count: false_alarm_row("a", data("drift").part(0, count), wide, effort)
        for count in (2 * last, 2 * last - 1, last - 1)
    }
    assert {row["false"]["count"] for row in rows.values()} == {0}
    assert [row["standing"] for row in rows.values()] == [HELD, NOT_SHOWN, NOT_SHOWN]
    assert {row["blocks_needed"] for row in rows.values()} == {2 * last}
    assert standing(Share(90, 100), 0.05, has_enough=False) == BROKEN


def test_every_few_simulated_families_have_a_simulation_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[int] = []
    real = simulated_families.simulate

    def seen(scenario: str, *, cases: int, blocks: int, seed: int) -> PairedBlocks:
        seeds.append(seed)
        return real(scenario, cases=cases, blocks=blocks, seed=seed)

    monkeypatch.setattr(simulated_families, "simulate", seen)
    effort = replace(EFFORT, families=2 * simulated_families.FAMILIES_A_SIMULATION + 1, cases=2)
    row = simulated_row("a", "ties", RULE, effort)
    assert len(set(seeds)) == len(seeds) == 3
    assert (row["sides"], row["false"]["trials"]) == ("as simulated", effort.families)
    assert "50 families" in row["drawing"]


def test_a_broken_check_breaks_the_whole_calibration() -> None:
    held = counted(0, 5000, slower=0, same=1)
    assert document_standing({"false_alarms": [held]}) == HELD
    broken = counted(50, 5000, slower=50, same=1)
    assert document_standing({"false_alarms": [held], "check": broken}) == BROKEN
    unknown = counted(0, 10, slower=0, same=1)
    assert document_standing({"false_alarms": [held], "check": unknown}) == HELD


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
    drawn = AaFamilies(blocks, 6, RULE.design(6), sides=TOSSED).draw(np.random.default_rng(6))
    found = [s.log_ratio for s in drawn["case 0 #0"]]
    turned = sum(value not in known for value in found)
    assert all(value in known or -value in known for value in found)
    assert 0 < turned < len(found)


def test_an_unknown_scenario_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'weather': must be one of drift, spikes"):
        simulate("weather", cases=1, blocks=2)


@pytest.mark.parametrize(("count", "trials"), [(0, 50), (1, 7), (4, 10_000), (19, 20)])
def test_at_the_upper_bound_so_few_have_a_chance_of_one_in_twenty(count: int, trials: int) -> None:
    bound = upper_bound(count, trials)
    assert binom.cdf(count, trials, bound) == pytest.approx(0.05)


@pytest.mark.parametrize(("count", "trials"), [(1, 7), (57, 100), (20, 20)])
def test_at_the_lower_bound_so_many_have_a_chance_of_one_in_twenty(count: int, trials: int) -> None:
    bound = lower_bound(count, trials)
    assert binom.sf(count - 1, trials, bound) == pytest.approx(0.05)


def test_four_of_ten_thousand_families_show_one_in_a_thousand_and_five_do_not() -> None:
    assert upper_bound(4, 10_000) <= 1e-3 < upper_bound(5, 10_000)


def test_ends() -> None:
    assert lower_bound(0, 9) == 0
    assert upper_bound(9, 9) == 1


def test_the_interval_leaves_half_of_five_percent_on_either_side() -> None:
    low, high = Share(30, 200).interval
    assert binom.cdf(30, 200, high) == pytest.approx(0.025)
    assert binom.sf(29, 200, low) == pytest.approx(0.025)
    assert low < Share(30, 200).value < high


@pytest.mark.parametrize(("count", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(count: int, trials: int) -> None:
    with pytest.raises(ValueError, match=f"{count} of {trials}"):
        Share(count, trials)


def test_impossible_confidence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        upper_bound(1, 2, 1.5)


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
