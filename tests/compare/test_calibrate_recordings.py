"""Recording, reading back, and the noise profile."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinyllama_tools.calibrate.draws import simulate, simulated_slices

from tinyllama_tools.calibrate.record import read_recordings, record_blocks, recording_paths
from tinyllama_tools.compare.blocks import (
    SIDES,
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Measured,
    Opened,
    Side,
)
from tinyllama_tools.compare.noise import noise_profile, read_noise_profile, scatter
from tinyllama_tools.compare.recording import RecordingHeader, RecordingWriter
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.stats.rank_tests import Block, BlockSummary

OPENING, OWN, EACH = 5.0, 1.0, 0.5


class Machine:
    """Plays simulated blocks; `events` replace a case of a block. Time passes as it measures."""

    method = "interleaved"

    def __init__(
        self,
        events: dict[tuple[int, str], Measured | type[KeyboardInterrupt]] | None = None,
    ) -> None:
        self.slices = simulated_slices("drift", cases=3, blocks=12, seed=4)
        self.events, self.now = events or {}, 0.0

    def __call__(self) -> float:
        return self.now

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[Opened]:
        assert verify
        self.now += OPENING
        for case in cases:
            for side in SIDES:
                yield CaseOpening(case, side, 0.01, {"operators": 3.0})

    def measure(self, index: int, cases: Sequence[str]) -> Iterator[Measured]:
        self.now += OWN
        # a random order in truth; here each comes first in turn
        turned = [*cases[index % len(cases) :], *cases[: index % len(cases)]]
        for case in turned:
            self.now += EACH
            event = self.events.get((index, case))
            if event is KeyboardInterrupt:
                raise KeyboardInterrupt
            block = self.slices[case][index - 1]
            yield event or CaseBlock(index, case, block, (0, 1) * 4, self.now)


def recorded(
    path: Path,
    machine: Machine,
    blocks: int | None = None,
    *,
    seconds: float = 1e6,
    started: str = "2026-01-01T00:00",
) -> int:
    header = RecordingHeader("a", "b", "interleaved", 8, 0.015, 1, started, {"threads": 2})
    cases = list(machine.slices)
    with RecordingWriter(path, header) as writer:
        return record_blocks(
            machine, cases, writer, seconds, blocks, say=lambda _: None, clock=machine
        )


SIMULATED = simulate("drift", cases=3, blocks=12, seed=4)


def test_what_was_recorded_is_read_back_with_what_it_cost(tmp_path: Path) -> None:
    path = tmp_path / "quiet_0001.jsonl"
    assert recorded(path, Machine(), 12) == 12
    found = read_recordings([path])
    assert found.blocks.cases == SIMULATED.cases
    assert found.blocks.blocks == 12
    for name, summaries in SIMULATED.summaries.items():
        read = [s.log_ratio for s in found.blocks.summaries[name]]
        assert read == pytest.approx([s.log_ratio for s in summaries], abs=1e-4)
    costs = found.blocks.costs
    assert (costs.block, costs.opening) == (pytest.approx(OWN), pytest.approx(OPENING))
    assert dict(costs.cases) == pytest.approx(dict.fromkeys(SIMULATED.cases, EACH))
    assert found.hours * 3600 == pytest.approx(OPENING + 12 * (OWN + 3 * EACH))


def test_a_block_is_finished_when_the_time_is_up_and_proofs_do_not_count(tmp_path: Path) -> None:
    seconds = 2 * (OWN + 3 * EACH) + 0.1
    assert recorded(tmp_path / "r.jsonl", Machine(), seconds=seconds) == 3


def test_an_interrupted_recording_keeps_what_it_has_and_is_continued(tmp_path: Path) -> None:
    first = tmp_path / "quiet_0001.jsonl"
    with pytest.raises(KeyboardInterrupt):
        recorded(first, Machine({(3, "case 1"): KeyboardInterrupt}), 12)
    # killed in the middle of a line
    with first.open("a", encoding="utf-8") as file:
        file.write('{"block": 3, "case": "case 2", "ba')
    second = tmp_path / "quiet_0002.jsonl"
    (tmp_path / "slowed_5_percent_0001.jsonl").touch()
    recorded(second, Machine(), 5, started="2026-01-02T00:00")
    assert recording_paths(tmp_path, "quiet") == [first, second]
    found = read_recordings([second, first])
    assert found.blocks.blocks == 2 + 5
    assert found.left_out == 1
    assert [header.started[:10] for header in found.headers] == ["2026-01-01", "2026-01-02"]


def test_a_case_is_left_out_after_a_skip_or_two_failures_and_the_rest_goes_on(
    tmp_path: Path,
) -> None:
    failure = {(i, "case 0"): CaseFailure(i, "case 0", Side.NEW, "crashed") for i in (2, 3)}
    skip = {(1, "case 2"): CaseSkip("case 2", Side.BASE, "too large")}
    machine = Machine({**failure, **skip})
    recorded(tmp_path / "r.jsonl", machine, 6)
    found = read_recordings([tmp_path / "r.jsonl"])
    assert found.blocks.cases == ("case 1",)
    assert found.blocks.blocks == 6


class FailsToOpen(Machine):
    """One side of a case cannot be opened."""

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[Opened]:
        for opened in super().open_once(cases, verify=verify):
            is_bad = opened.case == "case 1" and opened.side is Side.NEW
            yield CaseFailure(0, "case 1", Side.NEW, "wrong") if is_bad else opened


def test_a_case_that_a_side_cannot_open_is_left_out_at_once(tmp_path: Path) -> None:
    recorded(tmp_path / "r.jsonl", FailsToOpen(), 3)
    found = read_recordings([tmp_path / "r.jsonl"])
    assert found.blocks.cases == ("case 0", "case 2")
    assert found.left_out == 0


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("base_context.device.name", {"base_context": {"device": {"name": "X"}, "threads": 2}}),
        ("new_context.threads", {"new_context": {"threads": 7}}),
        ("pairs", {"pairs": 9}),
        ("slice_seconds", {"slice_seconds": 0.5}),
        ("method", {"method": "whole processes"}),
        ("new_environment", {"settings": {"new_environment": {"A": "b"}}}),
        ("new_environment", {"new": "b A=b"}),
    ],
)
def test_only_recordings_made_alike_are_joined(
    field: str, other: dict[str, Any], tmp_path: Path
) -> None:
    header = RecordingHeader(
        "a", "b", "interleaved", 8, 0.015, 1, "2026-01-01", {"threads": 2}, {"threads": 2}
    )
    block = CaseBlock(1, "case", Block((1.0,), (1.0,)), (0,), 1.0)
    for name, one in (("one", header), ("two", replace(header, started="2026-01-02", **other))):
        with RecordingWriter(tmp_path / name, one) as writer:
            writer.add(block)
    with pytest.raises(BadInputError, match=rf"two: {re.escape(field)} is .* in .*one: only"):
        read_recordings([tmp_path / "two", tmp_path / "one"])
    assert read_recordings([tmp_path / "one", tmp_path / "one"]).blocks.blocks == 2


def test_one_failure_costs_one_block(tmp_path: Path) -> None:
    event = {(2, "case 0"): CaseFailure(2, "case 0", Side.NEW, "crashed")}
    recorded(tmp_path / "r.jsonl", Machine(event), 6)
    found = read_recordings([tmp_path / "r.jsonl"])
    assert (found.blocks.blocks, found.left_out) == (5, 1)
    assert len(found.blocks.cases) == 3


def test_nothing_is_left_to_record_where_every_case_fails(tmp_path: Path) -> None:
    skips = {(1, name): CaseSkip(name, Side.BASE, "no") for name in SIMULATED.cases}
    with pytest.raises(BadInputError, match="nothing to record"):
        recorded(tmp_path / "r.jsonl", Machine(skips), 6)


def test_a_folder_without_recordings_is_told_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--record 30m"):
        read_recordings(recording_paths(tmp_path, "quiet"))


def summary(base: float, new: float) -> BlockSummary:
    return BlockSummary(math.log(new / base), 0.0, base, new)


def test_the_noise_profile_is_the_scatter_of_processes_between_blocks() -> None:
    rng = np.random.default_rng(3)
    # what both processes of a block share belongs to it, and is seen once
    shared, own = rng.normal(0, 0.3, 4000), rng.normal(0, 0.4, (2, 4000))
    base, new = np.exp(shared + own[0]), np.exp(shared + own[1])
    blocks = [summary(*pair) for pair in zip(base, new, strict=True)]
    value, degrees = scatter(blocks)
    assert value == pytest.approx(0.5, rel=0.05)
    assert degrees == 3999


def test_a_scatter_needs_two_blocks() -> None:
    with pytest.raises(ValueError, match="1 block"):
        scatter([summary(1, 1)])


def test_the_profile_is_read_by_comparisons_and_takes_the_worst_for_unknown_cases(
    tmp_path: Path,
) -> None:
    blocks = SIMULATED
    context = {"device": {"name": "Example CPU", "architecture": "x86-64"}, "threads": 2}
    context["host_name"] = "somebodys-desk"
    path = tmp_path / "noise_profile.json"
    path.write_text(
        json.dumps(noise_profile(blocks.summaries, context, "2026-01-01")), encoding="utf-8"
    )
    found = read_noise_profile(path)
    assert "somebodys" not in path.read_text(encoding="utf-8")
    assert found.mismatch([context]) == ""
    assert "host_name" in found.mismatch([{**context, "host_name": "another"}])
    assert "Example CPU" in found.mismatch([{**context, "device": {"name": "another"}}])
    scatters = {name: scatter(summaries)[0] for name, summaries in blocks.summaries.items()}
    assert {name: found.of(name).scatter for name in blocks.cases} == scatters
    assert found.of("case 99").scatter == max(scatters.values())
    assert found.of("case 99").degrees == found.of("case 0").degrees == 11
    assert min(scatters.values()) > 0.05
