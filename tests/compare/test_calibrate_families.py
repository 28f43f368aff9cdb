"""Families of drawn blocks: their intervals, attribution, and one try of the comparison."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrated_machine import PARTS, case_name, seconds, write_recording
from scipy.stats import binom
from tinyllama_tools.calibrate.draws import (
    AS_MEASURED,
    CHUNK,
    IN_ORDER,
    SCENARIOS,
    TOSSED,
    Costs,
    Judgements,
    PairedBlocks,
    draw_blocks,
    draw_family,
    draw_windows,
    drawing_words,
    false_alarms,
    has_enough_blocks,
    judge_looks,
    simulate,
    simulated_slices,
)
from tinyllama_tools.calibrate.standing import BROKEN, HELD, IN_ALL, NOT_SHOWN, share, standing

from tinyllama_tools.calibrate import draws as simulated_families
from tinyllama_tools.calibrate import rates
from tinyllama_tools.calibrate.command import autocorrelation, document_standing, fraction_inside
from tinyllama_tools.calibrate.rates import (
    Effort,
    Rule,
    attribution_row,
    detection_numbers,
    detections,
    false_alarm_row,
    recorded_rows,
    simulated_row,
    simulated_rows,
)
from tinyllama_tools.calibrate.rates import rows_together as together
from tinyllama_tools.calibrate.record import read_recordings
from tinyllama_tools.compare.blocks import SIDES, CaseBlock, CaseOpening, Measured, Opened
from tinyllama_tools.compare.sequential_run import RunProgress, SequentialRun
from tinyllama_tools.core.app import RESULTS, BadInputError
from tinyllama_tools.stats.looks import judge_family
from tinyllama_tools.stats.rank_tests import Block, BlockSummary, summarise
from tinyllama_tools.stats.verdicts import Design, Outcome, plan_design

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
    slices = simulated_slices("two modes", cases=6, blocks=120, seed=2)
    pairs = {
        id(summary): [
            summarise(Block((base,), (new,)))
            for base, new in zip(block.base, block.new, strict=True)
        ]
        for name in blocks.cases
        for summary, block in zip(blocks.summaries[name], slices[name], strict=True)
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


def test_a_false_faster_is_a_false_alarm_too_and_no_false_slower() -> None:
    blocks = data("two modes")
    quicker = {
        name: tuple(replace(s, log_ratio=s.log_ratio - 1.0) for s in found)
        for name, found in blocks.summaries.items()
    }
    effort = replace(EFFORT, families=20)
    row = false_alarm_row("faster", PairedBlocks(quicker, blocks.costs), RULE, effort)
    assert (row["false"]["count"], row["slower"]["count"]) == (20, 0)


def counted(false: int, families: int, *, slower: int, same: int) -> dict[str, Any]:
    """A row as far as adding up needs it, held against 1 of 1,000."""
    return {
        "data": "one of several",
        "sides": "tossed anew",
        "cases": 6,
        "blocks": 100,
        "blocks_needed": 50,
        "alpha": 1e-3,
        "false": share(false, families),
        "slower": share(slower, families),
        "verdicts": {"slower": slower, "same": same},
        "standing": standing(share(false, families), 1e-3),
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
    *rows, last = simulated_rows(RULE, effort)
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
    assert judged[1]["families"] == CHUNK + 20


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
    wandering = PairedBlocks(shifted, blocks.costs)
    effort = replace(EFFORT, families=60)
    drawn, tossed, windows = recorded_rows("wandering", wandering, RULE, effort)
    assert [row["sides"] for row in (drawn, tossed, windows)] == ["as measured", TOSSED, IN_ORDER]
    assert windows["standing"] == BROKEN
    assert windows["false"]["count"] > 3 * drawn["false"]["count"]
    found = autocorrelation([s.log_ratio for s in wandering.summaries["case 0"]])
    assert found is not None
    assert found > 0.8
    calm = autocorrelation([s.log_ratio for s in blocks.summaries["case 0"]])
    assert calm is not None
    assert abs(calm) < 0.3


def test_the_autocorrelation_of_a_line_is_known_and_of_one_value_is_none() -> None:
    line = [-1.0, 0.0, 1.0, 0.0, -1.0]
    # apart: -0.8, 0.2, 1.2, 0.2, -0.8; products -0.16, 0.24, 0.24, -0.16 over 2.8
    assert autocorrelation(line) == pytest.approx(0.16 / 2.8)
    assert autocorrelation(line[:2]) is None
    assert autocorrelation([line[0]] * 5) is None


def first_blocks(blocks: PairedBlocks, count: int) -> PairedBlocks:
    found = {name: found[:count] for name, found in blocks.summaries.items()}
    return PairedBlocks(found, blocks.costs)


def test_a_row_from_too_few_blocks_is_never_held() -> None:
    # never an alarm: the margin is far beyond the noise
    wide = replace(RULE, margin=0.9)
    last = wide.design(12).looks[-1]
    effort = replace(EFFORT, families=100, cases=12)
    rows = {
        count: false_alarm_row("a", first_blocks(data("drift"), count), wide, effort)
        for count in (2 * last, 2 * last - 1, last - 1)
    }
    assert {row["false"]["count"] for row in rows.values()} == {0}
    assert [row["standing"] for row in rows.values()] == [HELD, NOT_SHOWN, NOT_SHOWN]
    assert {row["blocks_needed"] for row in rows.values()} == {2 * last}
    assert standing(share(90, 100), 0.05, has_enough=False) == BROKEN


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
    row = simulated_row("ties", RULE, effort)
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
    drawn = draw_family(blocks, 8, RULE.design(8).looks[-1], AS_MEASURED, np.random.default_rng(4))
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
    drawn = draw_family(blocks, 6, RULE.design(6).looks[-1], TOSSED, np.random.default_rng(6))
    found = [s.log_ratio for s in drawn["case 0 #0"]]
    turned = sum(value not in known for value in found)
    assert all(value in known or -value in known for value in found)
    assert 0 < turned < len(found)


@pytest.mark.parametrize(("count", "trials"), [(0, 50), (1, 7), (4, 10_000), (30, 200)])
def test_intervals_leave_half_of_five_percent_on_either_side(count: int, trials: int) -> None:
    found = share(count, trials)
    low, high = found["interval_95"]
    assert binom.cdf(count, trials, high) == pytest.approx(0.025)
    assert low == 0 if count == 0 else binom.sf(count - 1, trials, low) == pytest.approx(0.025)
    assert binom.cdf(count, trials, found["upper_bound_95"]) == pytest.approx(0.05)


def test_four_of_ten_thousand_families_show_one_in_a_thousand_and_five_do_not() -> None:
    bounds = [share(count, 10_000)["upper_bound_95"] for count in (4, 5)]
    assert bounds[0] <= 1e-3 < bounds[1]
    assert share(9, 9)["upper_bound_95"] == 1


DESIGN = plan_design(7, alpha=0.01, looks=2)


def recorded(tmp_path: Path, **slowed: float) -> PairedBlocks:
    write_recording(tmp_path / "r.jsonl", 30, slowed)
    return read_recordings([tmp_path / "r.jsonl"]).blocks


def test_a_slower_ffn_is_blamed_for_the_slower_step(tmp_path: Path) -> None:
    inside = 0.05 * seconds({})["full_step"] / (4 * PARTS["ffn"][0])
    blocks = recorded(tmp_path, ffn=inside)
    row = attribution_row(blocks, "ffn", DESIGN, replace(EFFORT, tries=12))
    assert row["change"] == pytest.approx(0.05, abs=0.01)
    assert row["found"]["share"] == row["attributed"]["share"] == 1
    assert row["culprits"] == {"ffn": 12}


def test_blaming_another_part_does_not_count(tmp_path: Path) -> None:
    blocks = recorded(tmp_path, ffn=0.2)
    row = attribution_row(blocks, "attention", DESIGN, replace(EFFORT, tries=6))
    assert (row["found"]["share"], row["attributed"]["count"]) == (1, 0)


def test_a_step_that_did_not_change_is_not_found(tmp_path: Path) -> None:
    row = attribution_row(recorded(tmp_path), "ffn", DESIGN, replace(EFFORT, tries=6))
    assert (row["found"]["count"], row["attributed"]["count"], row["culprits"]) == (0, 0, {})


def test_without_a_step_there_is_nothing_to_attribute(tmp_path: Path) -> None:
    blocks = recorded(tmp_path).only([case_name("ffn")])
    with pytest.raises(ValueError, match="0 cases of full_step"):
        attribution_row(blocks, "ffn", DESIGN, EFFORT)


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


SLOW = ("case 1", "case 4")
Slices = dict[str, list[Block]]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Played:
    """Hands out recorded blocks, and lets time pass as the recording says."""

    method = "interleaved"

    def __init__(self, costs: Costs, slices: Slices, clock: Clock) -> None:
        self.costs, self.slices, self.clock = costs, slices, clock

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[Opened]:
        assert verify
        self.clock.now += self.costs.opening
        for case in cases:
            for side in SIDES:
                yield CaseOpening(case, side, 0.01)

    def measure(self, index: int, cases: Sequence[str]) -> Iterator[Measured]:
        for case in cases:
            self.clock.now += self.costs.cases[case]
            yield CaseBlock(index, case, self.slices[case][index - 1], (), self.clock.now)
        self.clock.now += self.costs.block


def mixed() -> tuple[PairedBlocks, Slices]:
    """Cases of different noise, two of them slower."""
    slices: Slices = {}
    for scenario in ("two modes", "ties", "spikes"):
        found = simulated_slices(scenario, cases=2, blocks=40, seed=11)
        for blocks in found.values():
            name = f"case {len(slices)}"
            slow = 1.3 if name in SLOW else 1.0
            slices[name] = [Block(b.base, [slow * value for value in b.new]) for b in blocks]
    each = {name: 0.2 + 0.1 * number for number, name in enumerate(slices)}
    summaries = {name: tuple(map(summarise, blocks)) for name, blocks in slices.items()}
    return PairedBlocks(summaries, Costs(1.0, each, opening=7.0)), slices


@pytest.mark.parametrize("budget", [1e6, 52.0, 60.0, 70.0])
def test_verdicts_are_those_of_the_sequential_run(budget: float) -> None:
    blocks, slices = mixed()
    design = plan_design(6, alpha=0.05, margin=0.1, looks=4)
    clock = Clock()
    run = SequentialRun(
        Played(blocks.costs, slices, clock),
        blocks.cases,
        design,
        budget,
        keep=lambda _: None,
        progress=RunProgress(io.StringIO()),
        clock=clock,
    )
    run.run(verify=True)
    found = judge_looks(blocks.summaries, design, blocks.costs, budget=budget)
    measured = {name: len(record.blocks) for name, record in run.record.cases.items()}
    judged = {name: run.record.judgements[name] for name in blocks.cases}
    assert {n: v.outcome for n, v in found.items()} == {
        n: j.outcome for n, j in judged.items() if j
    }
    assert {n: v.blocks for n, v in found.items()} == measured
    assert max(v.seconds for v in found.values()) == pytest.approx(clock.now)
    assert [found[name].outcome is Outcome.SLOWER for name in SLOW].count(True) >= (budget > 52)


def test_without_time_for_the_first_look_nothing_is_known() -> None:
    blocks, _ = mixed()
    design = plan_design(6, alpha=0.05, looks=4)
    found = judge_looks(blocks.summaries, design, blocks.costs, budget=10)
    assert {v.outcome for v in found.values()} == {Outcome.UNCLEAR}
    assert {v.blocks for v in found.values()} == {0}


@cache
def quiet() -> PairedBlocks:
    return simulate("spikes", cases=3, blocks=90, seed=21)


def test_more_is_found_of_a_larger_slowdown_and_sooner() -> None:
    design = plan_design(3, alpha=0.01, looks=3)
    found = [
        detection_numbers(
            "c", detections(quiet(), quiet().slowed(x), "case 1", design, 1e6, 40, seed=1)
        )
        for x in (0.0, 0.2, 0.6)
    ]
    shares = [row["found"]["share"] for row in found]
    assert shares[0] < shares[1] <= shares[2] == 1
    assert found[2]["median_seconds"] < found[1]["median_seconds"]
    assert found[0]["seconds_for_95_percent"] is None


def test_what_is_found_later_than_the_limit_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    design = plan_design(3, alpha=0.01, looks=3)
    found = detections(quiet(), quiet().slowed(0.4), "case 0", design, 1e6, 20, seed=1)
    first = design.looks[0] * quiet().costs.of(quiet().cases)
    counts = []
    for limit in (first - 0.1, first + 0.1):
        monkeypatch.setattr(rates, "FIVE_MINUTES", limit)
        counts.append(detection_numbers("c", found)["found_in_5_minutes"]["count"])
    assert counts[0] == 0 < counts[1]


PUBLISHED = sorted((RESULTS / "reference").glob("paired_blocks_*.jsonl"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
@pytest.mark.parametrize(("alpha", "sides"), [(0.05, AS_MEASURED), (0.05, TOSSED), (1e-3, TOSSED)])
def test_families_of_blocks_recorded_on_real_machines_keep_the_level(
    path: Path, alpha: float, sides: str
) -> None:
    rule = Rule(alpha=alpha, margin=0.03, looks=3)
    effort = Effort(families=100, cases=20, tries=1, jobs=1, seed=1)
    row = false_alarm_row("all", read_recordings([path]).blocks, rule, effort, sides=sides)
    assert row["standing"] != BROKEN
    assert alpha > 1e-3 or row["false"]["count"] == 0
