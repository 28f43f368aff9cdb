"""Judging in calibration is the run's own: same verdicts, same blocks, same cases left out."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import cache

import pytest

from tinyllama_tools.calibrate.draws import Costs, PairedBlocks, judge_in_turn, simulate
from tinyllama_tools.calibrate.rates import detections, together
from tinyllama_tools.compare.blocks import SIDES, CaseBlock, CaseOpening, Measured, Opened
from tinyllama_tools.compare.sequential_run import RunProgress, SequentialRun
from tinyllama_tools.stats.verdicts import Outcome, plan_design

SLOW = ("case 1", "case 4")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Played:
    """Hands out recorded blocks, and lets time pass as the recording says."""

    method = "interleaved"

    def __init__(self, blocks: PairedBlocks, clock: Clock) -> None:
        self.blocks = blocks
        self.clock = clock

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[Opened]:
        assert verify
        self.clock.now += self.blocks.costs.opening
        for case in cases:
            for side in SIDES:
                yield CaseOpening(case, side, 0.01)

    def measure(self, index: int, cases: Sequence[str]) -> Iterator[Measured]:
        for case in cases:
            self.clock.now += self.blocks.costs.cases[case]
            yield CaseBlock(index, case, self.blocks.slices[case][index - 1], (), self.clock.now)
        self.clock.now += self.blocks.costs.block


def mixed() -> PairedBlocks:
    """Cases of different noise, two of them slower."""
    parts = [
        simulate(scenario, cases=2, blocks=40, seed=11).slowed(0)
        for scenario in ("two modes", "ties", "spikes")
    ]
    names = [f"case {number}" for number in range(6)]
    found = [part.slices[f"case {i}"] for part in parts for i in range(2)]
    slow = simulate("spikes", cases=6, blocks=40, seed=12).slowed(0.3)
    slices = {
        name: slow.slices[name] if name in SLOW else blocks
        for name, blocks in zip(names, found, strict=True)
    }
    summaries = {
        name: slow.summaries[name] if name in SLOW else parts[at // 2].summaries[f"case {at % 2}"]
        for at, name in enumerate(names)
    }
    each = {name: 0.2 + 0.1 * number for number, name in enumerate(names)}
    return PairedBlocks(summaries, slices, Costs(1.0, each, opening=7.0))


@pytest.mark.parametrize("budget", [1e6, 52.0, 60.0, 70.0])
def test_verdicts_are_those_of_the_sequential_run(budget: float) -> None:
    blocks = mixed()
    design = plan_design(6, alpha=0.05, margin=0.1, looks=4)
    clock = Clock()
    run = SequentialRun(
        Played(blocks, clock),
        blocks.cases,
        design,
        budget,
        keep=lambda _: None,
        progress=RunProgress(io.StringIO()),
        clock=clock,
    )
    run.run(verify=True)
    found = judge_in_turn(blocks.summaries, design, blocks.costs, budget=budget)
    measured = {name: len(record.blocks) for name, record in run.record.cases.items()}
    judged = {name: run.record.judgements[name] for name in blocks.cases}
    assert {n: v.outcome for n, v in found.items()} == {
        n: j.outcome for n, j in judged.items() if j
    }
    assert {n: v.blocks for n, v in found.items()} == measured
    assert max(v.seconds for v in found.values()) == pytest.approx(clock.now)
    assert [found[name].outcome is Outcome.SLOWER for name in SLOW].count(True) >= (budget > 52)


def test_without_time_for_the_first_look_nothing_is_known() -> None:
    blocks = mixed()
    design = plan_design(6, alpha=0.05, looks=4)
    found = judge_in_turn(blocks.summaries, design, blocks.costs, budget=10)
    assert {v.outcome for v in found.values()} == {Outcome.UNCLEAR}
    assert {v.blocks for v in found.values()} == {0}


@cache
def quiet() -> PairedBlocks:
    return simulate("spikes", cases=3, blocks=90, seed=21)


def test_more_is_found_of_a_larger_slowdown_and_sooner() -> None:
    design = plan_design(3, alpha=0.01, looks=3)
    found = [
        detections(quiet(), quiet().slowed(x), "case 1", design, budget=1e6, tries=40, seed=1)
        for x in (0.0, 0.08, 0.4)
    ]
    shares = [d.share(Outcome.SLOWER).value for d in found]
    assert shares[0] < shares[1] <= shares[2] == 1
    assert found[2].seconds_until(0.95) <= found[1].seconds_until(shares[1])
    assert found[0].seconds_until(0.95) is None
    assert together(found).share(Outcome.SLOWER).trials == 120


def test_what_is_found_later_than_the_limit_does_not_count() -> None:
    design = plan_design(3, alpha=0.01, looks=3)
    slow = quiet().slowed(0.4)
    found = detections(quiet(), slow, "case 0", design, budget=1e6, tries=20, seed=1)
    first = design.looks[0] * quiet().costs.of(quiet().cases)
    assert found.found_within(first + 0.1).count > 0
    assert found.found_within(first - 0.1).count == 0


def test_a_case_that_was_not_recorded_is_named() -> None:
    with pytest.raises(ValueError, match="case 9: not in a recording"):
        detections(quiet(), quiet(), "case 9", plan_design(3), budget=1, tries=1)
