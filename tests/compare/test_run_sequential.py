"""Block after block until every case has its verdict, and the recording of them."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fake_bench import FFN, LOSS

from tinyllama_tools.compare.blocks import (
    SIDES,
    BothReady,
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Measured,
    Opened,
    Side,
)
from tinyllama_tools.compare.recording import RecordingHeader, RecordingWriter, read_recording
from tinyllama_tools.compare.sequential_run import (
    ALL_DECIDED,
    ALL_LOOKS,
    BUDGET_USED,
    TOO_SHORT,
    RunProgress,
    RunRecord,
    SequentialRun,
)
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.stats.rank_tests import Block
from tinyllama_tools.stats.verdicts import Outcome, plan_design

PAIRS = 4


@dataclass
class Played:
    """Draws blocks; every case takes a second, and the processes' start `start`, one more.
    `interrupt_opening`: openings before it."""

    factors: dict[str, float]
    scatter: dict[str, float] = field(default_factory=dict)
    failures: dict[tuple[str, int], Side] = field(default_factory=dict)
    skips: set[str] = field(default_factory=set)
    unopened: set[str] = field(default_factory=set)
    interrupt_at: int = 10**6
    method: str = "interleaved"
    now: float = 0.0
    asked: list[list[str]] = field(default_factory=list)
    slower_from: int = 10**6
    slower_by: float = 30.0
    costs: dict[str, float] = field(default_factory=dict)
    start: float = 1.0
    interrupt_opening: int = 10**6

    def clock(self) -> float:
        return self.now

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[Opened]:
        for number, (case, side) in enumerate((c, s) for c in cases for s in SIDES):
            if number == self.interrupt_opening:
                raise KeyboardInterrupt
            if case in self.unopened and side is Side.NEW:
                yield CaseFailure(0, case, side, f"wrong result, verify {verify}")
            else:
                yield CaseOpening(case, side, 0.01)

    def measure(self, index: int, cases: Sequence[str]) -> Iterator[Measured | BothReady]:
        self.asked.append(list(cases))
        self.now += self.start
        if index == self.interrupt_at:
            raise KeyboardInterrupt
        yield BothReady()
        # in another order each time, as they come in truth
        for case in random.Random(index).sample(cases, len(cases)):
            seconds = self.costs.get(case, 1.0)
            self.now += seconds if index < self.slower_from else self.slower_by * seconds
            if case in self.skips:
                yield CaseSkip(case, Side.NEW, "too large")
            elif (case, index) in self.failures:
                yield CaseFailure(index, case, self.failures[(case, index)], f"crash {index}")
            else:
                yield CaseBlock(index, case, self.block(case, index), (0, 1) * (PAIRS // 2))

    def block(self, case: str, index: int) -> Block:
        order = random.Random(f"{case} {index}")
        ratio = self.factors[case] * order.lognormvariate(0, self.scatter.get(case, 0.001))
        drawn = [order.lognormvariate(0, 0.001) for _ in range(2 * PAIRS)]
        base, new = drawn[:PAIRS], drawn[PAIRS:]
        return Block(tuple(base), tuple(ratio * value for value in new))


def ran(played: Played, *, budget: float = 1e6, looks: int = 6) -> tuple[RunRecord, str]:
    said = io.StringIO()
    design = plan_design(len(played.factors), looks=looks)
    kept: list[Measured | Opened] = []
    run = SequentialRun(
        played,
        list(played.factors),
        design,
        budget,
        keep=kept.append,
        progress=RunProgress(said, played.clock),
        clock=played.clock,
    )
    try:
        run.run(verify=True)
    except KeyboardInterrupt:
        run.judge()
    blocks = sum(len(record.blocks) for record in run.record.cases.values())
    assert sum(isinstance(item, CaseBlock) for item in kept) == blocks
    return run.record, said.getvalue()


def outcomes(record: RunRecord) -> dict[str, Outcome | None]:
    return {name: found.outcome if found else None for name, found in record.judgements.items()}


def test_a_clear_run_ends_at_its_first_look() -> None:
    played = Played({"a": 1.0, "b": 1.2, "c": 0.8})
    record, said = ran(played)
    first = plan_design(3).looks[0]
    assert record.blocks == first == len(played.asked)
    assert record.ended == ALL_DECIDED
    assert outcomes(record) == {"a": Outcome.SAME, "b": Outcome.SLOWER, "c": Outcome.FASTER}
    assert f"after {first} blocks: 1 same, 1 slower, 1 faster; 0 open" in said


def test_decided_cases_drop_out_so_that_time_goes_to_the_open_ones() -> None:
    played = Played({"clear": 1.0, "noisy": 1.0}, scatter={"noisy": 0.05})
    record, _ = ran(played)
    first = plan_design(2).looks[0]
    assert played.asked[:first] == [["clear", "noisy"]] * first
    assert all(cases == ["noisy"] for cases in played.asked[first:])
    assert len(played.asked) > first
    assert len(record.cases["clear"].blocks) == first


def test_a_case_that_stays_open_ends_with_the_last_look() -> None:
    played = Played({"noisy": 1.03}, scatter={"noisy": 0.05})
    record, _ = ran(played, looks=3)
    assert record.blocks == plan_design(1, looks=3).looks[-1]
    assert record.ended == ALL_LOOKS
    assert outcomes(record) == {"noisy": Outcome.UNCLEAR}


def test_no_block_is_begun_that_cannot_reach_a_look_within_the_budget() -> None:
    played = Played({"noisy": 1.03, "b": 1.0}, scatter={"noisy": 0.05})
    looks = plan_design(2).looks
    # to the first look with both cases; the second look needs more than is left then
    record, _ = ran(played, budget=3.0 * looks[0] + 5)
    assert record.blocks == looks[0]
    assert record.ended == BUDGET_USED
    assert outcomes(record)["noisy"] is Outcome.UNCLEAR


def test_where_only_some_can_go_on_it_is_those_nearest_to_a_verdict() -> None:
    played = Played({"far": 1.03, "near": 1.1}, scatter={"far": 0.2, "near": 0.1})
    looks = plan_design(2).looks
    room = 2.0 * (looks[1] - looks[0]) + 0.5
    record, _ = ran(played, budget=3.0 * looks[0] + room)
    assert played.asked[looks[0] :] == [["near"]] * (looks[1] - looks[0])
    assert record.cases["far"].out_of_time


def test_a_budget_that_reaches_no_look_is_refused_after_the_first_block() -> None:
    played = Played({"a": 1.0, "b": 1.0})
    first = plan_design(2).looks[0]
    record, _ = ran(played, budget=3.0 * first - 2)
    message = record.refusal
    assert record.ended == TOO_SHORT
    assert len(played.asked) == record.blocks == 1
    assert f"need {first} blocks of 3.0 s, {3.0 * first / 60:.1f} minutes in all" in message
    assert "give --budget 1m or more" in message


def test_the_processes_start_is_no_case_s_own_time() -> None:
    """Else the estimate of a block is the lower the fewer cases are left."""
    played = Played(
        {f"case {i}": 1.0 for i in range(10)},
        scatter={"case 7": 0.2},
        start=2.0,
    )
    record, _ = ran(played, looks=2)
    assert played.asked[-1] == ["case 7"]
    assert record.cost.around == pytest.approx(2.0)
    assert record.cost.of_block(["case 7"]) == pytest.approx(3.0)
    assert record.cost.of_block(list(record.cases)) == pytest.approx(12.0)


def test_what_cannot_be_kept_is_known_all_the_same() -> None:
    played = Played({"a": 1.0})

    def keep(item: Measured | Opened) -> None:
        if isinstance(item, CaseBlock) and item.index == 3:
            raise OSError("no space left")

    run = SequentialRun(
        played, ["a"], plan_design(1), 1e6,
        keep=keep, progress=RunProgress(io.StringIO(), played.clock), clock=played.clock,
    )  # fmt: skip
    with pytest.raises(OSError, match="no space left"):
        run.run(verify=True)
    assert len(run.record.cases["a"].blocks) == 3
    assert run.record.ended == ""


def test_blocks_that_became_slow_do_not_overrun_the_budget_for_ever() -> None:
    played = Played({"a": 1.0, "b": 1.0}, slower_from=5)
    record, _ = ran(played, budget=60)
    assert record.ended == BUDGET_USED
    # one block of 61 s is what nobody could foresee
    assert played.now < 60 * 1.15 + 61
    assert outcomes(record) == {}


def test_where_blocks_became_slow_before_the_first_look_the_costliest_cases_go() -> None:
    costs = {"step": 8.0, "part": 1.0}
    played = Played({"step": 1.0, "part": 1.0}, costs=costs, slower_from=4, slower_by=1.5)
    first = plan_design(2).looks[0]
    record, _ = ran(played, budget=10.0 * first)
    assert record.cases["step"].out_of_time
    assert len(record.cases["part"].blocks) == first
    assert outcomes(record) == {"step": None, "part": Outcome.SAME}
    assert played.now <= 10.0 * first


def test_two_failures_of_a_side_close_the_case_and_the_rest_goes_on() -> None:
    failures = {("bad", 2): Side.NEW, ("bad", 4): Side.NEW}
    played = Played({"bad": 1.0, "good": 1.0}, failures=failures)
    record, said = ran(played)
    assert played.asked[3] == ["bad", "good"]
    assert all(cases == ["good"] for cases in played.asked[4:])
    assert record.cases["bad"].state(Side.NEW).failed == "crash 4"
    assert outcomes(record)["good"] is Outcome.SAME
    assert "bad: given up: new: crash 4" in said


def test_one_failure_costs_one_block() -> None:
    played = Played({"bad": 1.0, "good": 1.0}, failures={("bad", 2): Side.BASE})
    record, _ = ran(played)
    first = plan_design(2).looks[0]
    assert record.blocks == first + 1
    assert played.asked[-1] == ["bad"]
    assert outcomes(record) == {"bad": Outcome.SAME, "good": Outcome.SAME}
    assert record.cases["bad"].state(Side.BASE).is_measured


def test_cases_that_cannot_be_opened_or_are_skipped_are_not_timed_again() -> None:
    played = Played({"wrong": 1.0, "large": 1.0, "good": 1.0}, skips={"large"}, unopened={"wrong"})
    record, said = ran(played)
    assert played.asked[0] == ["large", "good"]
    assert played.asked[1] == ["good"]
    assert record.cases["wrong"].state(Side.NEW).failed == "wrong result, verify True"
    assert record.cases["large"].state(Side.NEW).skipped == "too large"
    assert "wrong: left out: new: wrong result" in said


def test_a_run_in_which_nothing_can_be_opened_ends_at_once() -> None:
    played = Played({"wrong": 1.0}, unopened={"wrong"})
    record, _ = ran(played)
    assert (record.blocks, played.asked) == (0, [])


def test_an_interrupted_run_is_judged_at_the_looks_it_reached() -> None:
    first = plan_design(2).looks[0]
    played = Played({"slow": 1.2, "noisy": 1.0}, scatter={"noisy": 0.05}, interrupt_at=first + 2)
    record, _ = ran(played)
    assert record.ended == ""
    assert outcomes(record) == {"slow": Outcome.SLOWER, "noisy": Outcome.UNCLEAR}
    early, _ = ran(Played({"a": 1.0}, interrupt_at=3))
    assert outcomes(early) == {"a": None}
    assert early.seconds == 5.0


HEADER = RecordingHeader(
    base="main",
    new="build",
    method="interleaved",
    pairs=2,
    slice_seconds=0.015,
    seed=7,
    started="2026-01-01T00:00:00+00:00",
    base_context={"threads": 2},
)
ITEMS: list[Measured | Opened] = [
    CaseOpening(FFN, Side.BASE, 0.01, {"operators": 20.0}),
    CaseFailure(0, LOSS, Side.NEW, "gradient differs"),
    CaseBlock(1, FFN, Block((0.01, 0.012), (0.011, 0.0125)), (0, 1), 1.5),
    CaseSkip(LOSS, Side.BASE, "too large"),
    CaseBlock(2, FFN, Block((0.02,), (0.021,)), (1,), 3.0),
]


def written(path: Path) -> Path:
    with RecordingWriter(path, HEADER) as writer:
        for item in ITEMS:
            writer.add(item)
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path / "new" / "blocks.jsonl"))
    assert recording.header == HEADER
    assert list(recording.case_blocks) == [ITEMS[2], ITEMS[4]]
    assert list(recording.failures) == [ITEMS[1]]
    assert list(recording.skips) == [ITEMS[3]]
    assert recording.blocks == {FFN: [ITEMS[2].block, ITEMS[4].block]}
    assert recording.counters == {"base": {FFN: {"operators": 20.0}}, "new": {}}


def test_each_line_is_there_as_soon_as_it_is_known(tmp_path: Path) -> None:
    path = tmp_path / "blocks.jsonl"
    with RecordingWriter(path, HEADER) as writer:
        for count, item in enumerate(ITEMS, start=2):
            writer.add(item)
            assert len(path.read_text().splitlines()) == count


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "blocks.jsonl")
    path.write_text(path.read_text()[:-10])
    assert list(read_recording(path).case_blocks) == [ITEMS[2]]


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    path = written(tmp_path / "blocks.jsonl")
    before = path.read_text()
    with pytest.raises(BadInputError, match=r"blocks\.jsonl: is there already"):
        RecordingWriter(path, HEADER)
    assert path.read_text() == before


def test_a_full_disk_is_named_whatever_closing_says(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "blocks.jsonl", HEADER)
    writer._file.close()
    # closing tries once more to write what is left in the buffer
    writer._file = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115
    with (
        pytest.raises(BadInputError, match=r"blocks\.jsonl: .* cannot be written: .* space"),
        writer,
    ):
        writer.add(ITEMS[0])
    assert writer._file.closed


def test_settings_are_read_back_and_older_recordings_have_none(tmp_path: Path) -> None:
    settings = {"arguments": ["--threads=1"], "new_environment": {"A": "1"}}
    with RecordingWriter(tmp_path / "new.jsonl", replace(HEADER, settings=settings)):
        pass
    assert read_recording(tmp_path / "new.jsonl").header.settings == settings
    older = json.loads((tmp_path / "new.jsonl").read_text())
    del older["settings"]
    (tmp_path / "old.jsonl").write_text(json.dumps(older) + "\n")
    assert read_recording(tmp_path / "old.jsonl").header == HEADER


def replaced(path: Path, line: int, text: str) -> None:
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")


BLOCK = {"block": 1, "case": FFN, "first": [0], "at": 1.0}


@pytest.mark.parametrize(
    ("line", "text", "expected"),
    [
        (1, "{}", "not a recording"),
        (1, "[1]", "not a recording"),
        (1, "half", "not a recording"),
        (1, '{"recording": "other", "schema_version": 1}', "recording 'other'"),
        (
            1,
            '{"recording": "tiny_llama paired blocks", "schema_version": 2}',
            "schema_version 2: must be",
        ),
        (3, "{", "line 3"),
        (4, json.dumps({**BLOCK, "base": [0.1], "new": [0.1, 0.2]}), "line 4.*as many"),
        (4, json.dumps({**BLOCK, "base": [0.0], "new": [0.1]}), "line 4.*positive"),
        (4, json.dumps({**BLOCK, "base": [float("nan")], "new": [0.1]}), "line 4.*positive"),
        (4, json.dumps({**BLOCK, "base": [0.1]}), "line 4.*new"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: int, text: str, expected: str) -> None:
    path = written(tmp_path / "blocks.jsonl")
    replaced(path, line, text)
    with pytest.raises(BadInputError, match=expected) as caught:
        read_recording(path)
    assert str(path) in str(caught.value)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.jsonl: cannot be read"):
        read_recording(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(BadInputError, match=r"empty\.jsonl: empty"):
        read_recording(tmp_path / "empty.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="cannot be written"):
        RecordingWriter(tmp_path / "file" / "blocks.jsonl", HEADER)
