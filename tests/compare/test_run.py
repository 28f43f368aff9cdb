"""scripts/compare run between fakes: verdicts, blocks, processes that fail, endings."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_bench import FFN, LOSS, NORM, PROGRAM, STEP, make_build, requests_of, starts_of
from samples import LONG, START, Json, cut_wait_short, ran

from tinyllama_tools.compare.blocks import (
    SIDES,
    Interleaved,
    RecordingWriter,
    SliceEffort,
    balanced_order,
    read_recording,
)
from tinyllama_tools.compare.run import SequentialRun
from tinyllama_tools.compare.sides import (
    SHORT_SPIN,
    WAITING,
    ServedProcess,
    ServedProgram,
)
from tinyllama_tools.core.app import PLACING, PROJECT, BadInputError
from tinyllama_tools.stats.looks import judge_family
from tinyllama_tools.stats.rank_tests import BlockSummary, hodges_lehmann, summarise
from tinyllama_tools.stats.verdicts import fewest_blocks, plan_design

CASES = [FFN, LOSS, NORM]


@pytest.fixture(autouse=True)
def without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """What whoever runs the tests has set must not decide about them."""
    for name in (*WAITING, *PLACING):
        monkeypatch.delenv(name, raising=False)


def recorded(output: Path, case: str = FFN) -> list[Json]:
    items = read_recording(output / "blocks.jsonl").items
    return [item for item in items if "base" in item and item["case"] == case]


def summaries(items: list[Json]) -> list[BlockSummary]:
    return [summarise(item["base"], item["new"]) for item in items]


def test_verdicts_figures_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flops = {"operators": 20.0, "allocations": 5.0, "model_flops": 4e9}
    times = {FFN: 0.010, LOSS: 0.005, NORM: 0.002, STEP: 0.2}
    base = make_build(tmp_path / "base", counters=flops, cases=times)
    factor = {FFN: 2.0, LOSS: 0.8, STEP: 1 + 4 * 0.010 / 0.2}
    grown = flops | {"operators": 21.0, "allocations": 4.0}
    new = make_build(tmp_path / "new", counters=grown, factor=factor, cases=times)
    found = ran(base, new, tmp_path / "out", f"--allow-missing={FFN}")
    # being slower cannot be allowed
    assert found.status == found.document["exit_status"] == 1
    assert found.outcomes == {FFN: "slower", LOSS: "faster", NORM: "same", STEP: "slower"}
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 slower, 1 faster, 1 same; exit")
    blocks = summaries(recorded(tmp_path / "out"))
    ffn = found.cases[FFN]
    assert len(blocks) == ffn["blocks"] == fewest_blocks(4, 0.2, 1)
    logs = [block.log_ratio for block in blocks]
    assert math.log(ffn["ratio"]) == pytest.approx(hodges_lehmann(logs))
    assert ffn["base_seconds"] == statistics.median(b.base_seconds for b in blocks)
    # both ways of as many signs as there are blocks, four cases, a quarter of alpha
    assert ffn["p_value"] == pytest.approx(4 * 4 * 2 / 2 ** len(blocks))
    assert [c["name"] for c in ffn["counters"] if c["worse"]] == ["operators"]
    attribution = found.cases[STEP]["attribution"]
    assert attribution["culprit"] == FFN
    assert attribution["parts"][0]["share"] == pytest.approx(1.0, abs=0.2)
    assert ffn["attribution"] is None
    assert found.document["method"] == "interleaved"
    assert (found.document["base"], found.document["new"]) == (str(base), str(new))
    header = read_recording(tmp_path / "out/blocks.jsonl").header
    assert header["seed"] == found.document["design"]["seed"] == 5
    # an earlier recording is kept, and nothing is started
    starts = len(starts_of(base))
    assert ran(base, new, tmp_path / "out").status == 2
    assert "is there already" in capsys.readouterr().err
    assert len(starts_of(base)) == starts


def test_options_environments_and_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    context = {"schema_version": 1, "device": {"name": "fake"}, "threads": 2}
    cases = ({FFN: 0.01, LOSS: 0.01}, {FFN: 0.01, NORM: 0.01})
    base, new = make_build(tmp_path / "base", cases=cases[0]), tmp_path / "new"
    make_build(new, cases=cases[1], context=context)
    more = [
        "--environment-new=SIDE_N=1",
        "--environment-base=SIDE_B=2",
        "--environment-base=SIDE=3",
    ]
    more += ["--environment-new=SIDE=3", "--sizes=small", "--filter=ffn", "--threads=3"]
    found = ran(base, new, tmp_path / "out", *more, "--verify=off")
    assert found.outcomes == {FFN: "same", LOSS: "missing", NORM: "added"}
    assert {s["environment"].get("SIDE_N") for s in starts_of(base)} == {None}
    assert {s["environment"]["SIDE_N"] for s in starts_of(new)} == {"1"}
    for build in (base, new):
        given = set(starts_of(build)[0]["arguments"])
        assert {"--sizes=small", "--benchmark_filter=ffn", "--threads=3"} < given
        assert "--variants=baseline" in given
    assert [text.partition(":")[0] for text in found.warnings] == [
        "environment SIDE_B",
        "environment SIDE_N",
        "OMP_WAIT_POLICY=active decides how OpenMP's workers wait",
        "--verify off",
        "threads",
    ]
    settings = found.document["design"]["settings"]
    assert settings["base_environment"] == {"SIDE_B": "2", "SIDE": "3"}
    assert settings == read_recording(tmp_path / "out/blocks.jsonl").header["settings"]


def test_an_unclear_case_says_how_long_an_answer_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    design = plan_design(1, alpha=0.2, looks=6)
    measure = Interleaved.measure

    def interrupted(self: Interleaved, index: int, cases: list[str]) -> Iterator[object]:
        if index > design.looks[0]:
            raise KeyboardInterrupt
        yield from measure(self, index, cases)

    monkeypatch.setattr(Interleaved, "measure", interrupted)
    builds = [make_build(tmp_path / s, cases={FFN: 0.01}, between=0.014) for s in ("base", "new")]
    found = ran(*builds, tmp_path / "out", "--looks=6")
    assert (found.status, found.outcomes) == (130, {FFN: "unclear"})
    items = recorded(tmp_path / "out")
    judged = judge_family({FFN: summaries(items)}, design)[FFN]
    assert judged is not None
    needed = next(look for look in design.looks[1:] if look >= judged.distance)
    further = needed - len(items)
    pairs = itertools.pairwise(items)
    block = statistics.median(after["at"] - before["at"] for before, after in pairs)
    assert found.cases[FFN]["seconds_needed"] == pytest.approx(further * block, rel=0.4)
    # the only look leaves it open, which a strict gate does not let pass
    found = ran(*builds, tmp_path / "strict", "--strict")
    assert (found.status, found.outcomes) == (3, {FFN: "unclear"})


def interleaved(base: Path, new: Path, *, seed: int = 1, pairs: int = 4) -> Interleaved:
    builds = zip(SIDES, (base, new), strict=True)
    programs = {side: ServedProgram(side, build / PROGRAM) for side, build in builds}
    return Interleaved(programs, SliceEffort(pairs, 0.015, LONG), seed)


def one_block(base: Path, new: Path, cases: list[str], **effort: int) -> dict[str, Json]:
    """What a block says of each case, after both sides are there."""
    items = interleaved(base, new, **effort).measure(1, cases)
    return {item.get("case") or item["skipped"]: item for item in items}


def test_a_block_has_every_case_once_from_one_fresh_pair_of_processes(tmp_path: Path) -> None:
    times = {FFN: 0.15, LOSS: 0.005, NORM: 0.002}
    steady = {"cases": times, "within": 0.0, "between": 0.0}
    base = make_build(tmp_path / "base", **steady, factor={FFN: 3.0})
    new = make_build(tmp_path / "new", **steady)
    found = one_block(base, new, CASES, pairs=8)
    assert len(starts_of(base)) == len(starts_of(new)) == 1
    # by the less disturbed side 1.5 / (2 x 0.15) = 5; by the other it would be the fewest, 4
    for case, pairs in ((FFN, 5), (LOSS, 8), (NORM, 8)):
        assert found[case]["new"] == pytest.approx([times[case]] * pairs)
        assert sum(found[case]["first"]) in {pairs // 2, pairs - pairs // 2}
    # never fewer than 4 where as many are asked for; a long slice counts as a long iteration
    asked = ((8, 0.015, 0.25), (2, 0.015, 60.0), (100, 0.1, 0.001))
    assert [SliceEffort(n, length).pairs_for(s) for n, length, s in asked] == [4, 2, 7]
    orders = {tuple(balanced_order(8, random.Random(seed))) for seed in range(20)}
    assert len(orders) > 10
    assert {sum(order) for order in orders} == {4}


def test_orders_repeat_with_the_seed_and_sides_take_turns(tmp_path: Path) -> None:
    seen = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        builds = [make_build(tmp_path / name / side) for side in ("base", "new")]
        measurer = interleaved(*builds, seed=seed)
        items = [item for index in range(6) for item in measurer.measure(index, CASES)]
        orders = [(item["case"], item["first"]) for item in items]
        paddings = [len(s["environment"]["TINY_LLAMA_PADDING"]) for s in starts_of(builds[0])]
        assert len({*paddings}) == 6
        seen.append((orders, paddings))
        # the time of each request of both sides
        asked = sorted((r["at"], side, r) for side in (0, 1) for r in requests_of(builds[side]))
        timed = [side for _, side, r in asked if r["do"] == "time"]
        assert timed == [s for _, first in orders for f in first for s in (f, 1 - f)]
        # of every two blocks, each side is first to close its cases in one
        closed = [
            [s for _, s, r in asked if r["do"] == "close" and r["process"] == p]
            for p in range(1, 7)
        ]
        firsts = [one[0] for one in closed]
        assert all(one == [first, 1 - first] * 3 for one, first in zip(closed, firsts, strict=True))
        assert [sum(firsts[i : i + 2]) for i in (0, 2, 4)] == [1, 1, 1]
    assert seen[0] == seen[1] != seen[2]


# what is said of it, and of some only at the first request
ENDINGS = {
    "failed": "told to be failed",
    "skipped": "told to be skipped",
    "crash": "ended with 3 at {} loss/.*; it last said: out of luck",
    "hang": r"no answer to {} loss/.* within 0\.3 s",
    "nonsense": r"answered {} loss/.* with '\[\"what\?\"\]'",
}
ONLY_AT_OPEN = {
    "signal": "ended by signal SIGSEGV at {} loss/",
    "zero": "answered {} with seconds",
    "endless": r"no answer to {} loss/.* within 0\.3 s",
}


@pytest.mark.parametrize(
    ("at", "how"),
    [
        *(("open", x) for x in ENDINGS | ONLY_AT_OPEN),
        *(("time", x) for x in ENDINGS),
        ("close", "crash"),
    ],
)
def test_a_case_that_a_side_fails_does_not_touch_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, how: str
) -> None:
    failing, other = ("new", "base") if at != "time" else ("base", "new")
    trouble = {LOSS: {"at": at, "how": how}}
    builds = {failing: make_build(tmp_path / failing, trouble=trouble)}
    builds[other] = make_build(tmp_path / other)
    if how in {"hang", "endless"}:
        cut_wait_short(monkeypatch, builds[failing], f"{at} {LOSS}")
    found = one_block(builds["base"], builds["new"], CASES)
    left = found[LOSS] if how == "skipped" else found[LOSS]["failed"]
    assert left["side"] == failing
    assert re.search((ENDINGS | ONLY_AT_OPEN)[how].format(at), left["reason"])
    assert all("base" in found[case] for case in (FFN, NORM))
    # others come after it, so that an answer left unread would show
    assert list(found)[-1] != LOSS


@pytest.mark.parametrize("how", ["crash", "hang"])
def test_a_side_that_does_not_start_fails_every_case_without_waiting_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", trouble={"start": {"at": "start", "how": how}})
    if how == "hang":
        cut_wait_short(monkeypatch, new, START)
    found = one_block(base, new, CASES)
    assert len(starts_of(new)) == 2
    assert found.keys() == set(CASES)
    assert all("its start" in item["failed"]["reason"] for item in found.values())
    assert all(item["failed"]["side"] == "new" for item in found.values())


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 2 * LONG
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_how_workers_wait_and_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(of_side: dict[str, str]) -> dict[str, str]:
        found = ServedProgram("base", Path("program"), (), of_side).environment_with(0)
        return {name: found[name] for name in (*WAITING, *PLACING) if name in found}

    bound = {"OMP_PROC_BIND": "true"}
    assert seen({}) == SHORT_SPIN | bound
    # how workers wait, and where threads are, is the user's choice
    for variables, added in (
        ({"OMP_WAIT_POLICY": "passive"}, bound),
        ({"KMP_BLOCKTIME": "200"}, bound),
        ({"OMP_NUM_THREADS": "2"}, SHORT_SPIN),
    ):
        assert seen(variables) == added | variables
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            assert seen({}) == added | variables


def test_programs_that_cannot_be_served_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, good = make_build(tmp_path / "old", is_served=False), make_build(tmp_path / "good")
    refusing, absent = make_build(tmp_path / "refusing"), make_build(tmp_path / "absent")
    (refusing / PROGRAM).write_text("#!/bin/sh\necho 'bench: --sizes huge: unknown' >&2\nexit 2\n")
    (absent / PROGRAM).write_text("#!/no/such/interpreter\n")
    other = make_build(tmp_path / "other", cases={NORM.replace("f32", "bf16"): 0.1})
    for build, expected in (
        (old, "new: tiny_llama_bench: argument not expected: --serve"),
        (refusing, "new: bench: --sizes huge: unknown"),
        (absent, "cannot be started: No such file"),
        (other, "no case to compare (3 on the base side, 1 on the new side"),
    ):
        assert ran(good, build, tmp_path / "out").status == 2
        assert expected in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_closing_ends_a_process_that_hangs_with_all_its_children(tmp_path: Path) -> None:
    script, child = tmp_path / "hanging", tmp_path / "child"
    script.write_text(f"#!/bin/sh\nsleep 300 &\necho $! >{child}\nwait\n")
    script.chmod(0o755)
    process = ServedProcess(ServedProgram("base", script), limit=LONG, padding=0)
    wait_until(lambda: child.exists() and child.read_text().strip() != "")
    process.close(wait=False)
    state = Path(f"/proc/{child.read_text().strip()}/stat")

    def is_gone() -> bool:
        with contextlib.suppress(OSError):
            return state.read_text().rpartition(")")[2].split()[0] == "Z"
        return True

    wait_until(is_gone)


def test_a_side_that_fails_twice_fails_the_case_only(tmp_path: Path) -> None:
    trouble = {LOSS: {"at": "time", "how": "crash"}}
    good, bad = make_build(tmp_path / "base"), make_build(tmp_path / "new", trouble=trouble)
    found = ran(good, bad, tmp_path / "out")
    assert (found.status, found.outcomes) == (1, {FFN: "same", LOSS: "failed", NORM: "same"})
    assert "at time" in found.cases[LOSS]["note"]
    items = read_recording(tmp_path / "out/blocks.jsonl").items
    assert [item["block"] for item in items if "failed" in item] == [1, 2]
    assert ran(good, bad, tmp_path / "allowed", "--allow-missing=loss/*").status == 0
    # of the base it is no fault of the new, but no answer either
    found = ran(bad, good, tmp_path / "swapped")
    assert (found.status, found.outcomes[LOSS]) == (0, "no verdict")
    assert found.cases[LOSS]["note"].startswith("failed in the base: the process ended")
    assert ran(bad, good, tmp_path / "strict", "--strict").status == 3


def test_a_wrong_result_is_never_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a process that was lost at an opening has another chance."""
    once = {FFN: {"at": "open", "how": "crash", "processes": [2]}}
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", wrong=[NORM], trouble=once)
    found = ran(base, new, tmp_path / "out")
    assert (found.status, found.outcomes) == (1, {FFN: "same", LOSS: "same", NORM: "failed"})
    assert found.cases[FFN]["note"].startswith("failed once on the new side: the process ended")
    assert found.cases[NORM]["note"] == "gradient differs by 0.5"
    assert all(r["case"] != NORM for r in requests_of(base) if r["do"] == "time")
    assert ran(base, new, tmp_path / "off", "--verify=off").outcomes[NORM] == "same"
    # nothing is known where the base is wrong everywhere
    wrong = make_build(tmp_path / "wrong", wrong=CASES)
    assert ran(wrong, base, tmp_path / "wrong").status == 2
    assert "nothing comparable: no case was measured on both sides" in capsys.readouterr().err


def test_what_was_not_reached_while_opening_is_no_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_once = Interleaved.open_once

    def interrupted(self: Interleaved, cases: list[str], *, verify: bool) -> Iterator[Json]:
        yield from itertools.islice(open_once(self, cases, verify=verify), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(Interleaved, "open_once", interrupted)
    found = ran(make_build(tmp_path / "base"), make_build(tmp_path / "new"), tmp_path / "out")
    assert (found.status, found.document["exit_status"]) == (130, 0)
    assert set(found.outcomes.values()) == {"no verdict"}
    notes = [case["note"] == "interrupted before it was opened" for case in found.cases.values()]
    assert notes == [False, True, True]


def test_what_was_found_is_not_lost_where_files_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", factor={FFN: 1.2})
    (tmp_path / "out/comparison.md").mkdir(parents=True)
    assert ran(base, new, tmp_path / "out").status == 2
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith("1 slower, 2 same; exit status 1")
    assert "out: cannot be written" in said.err.splitlines()[-1]
    add = RecordingWriter.add

    def full(self: RecordingWriter, item: Json) -> None:
        if item.get("block") == 4:
            raise BadInputError("blocks.jsonl: no space left")
        add(self, item)

    monkeypatch.setattr(RecordingWriter, "add", full)
    found = ran(base, new, tmp_path / "full")
    assert (found.status, found.outcomes[FFN]) == (2, "no verdict")
    assert sorted(case["blocks"] for case in found.cases.values()) == [3, 3, 4]
    assert "blocks.jsonl: no space left" in capsys.readouterr().err.splitlines()[-1]


ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed_signals() -> None:
    """The tests themselves may run where some of these are ignored, and so a program of theirs."""
    for number in ASKING:
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", ASKING)
def test_being_asked_to_end_judges_and_writes_what_was_measured(
    tmp_path: Path, number: signal.Signals
) -> None:
    builds = [make_build(tmp_path / s, cases={FFN: 0.01}, between=0.3) for s in ("base", "new")]
    output = tmp_path / "out"
    options = [f"--base={builds[0]}", f"--new={builds[1]}", f"--output={output}"]
    options += ["--alpha=0.2", "--looks=9"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tinyllama_tools", "compare", "run", *options],
        env=os.environ | {"PYTHONPATH": str(PROJECT / "scripts")},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=heed_signals,
    )
    recording = output / "blocks.jsonl"
    wait_until(lambda: process.poll() is not None or recording.exists())
    wait_until(lambda: process.poll() is not None or '"block": 4' in recording.read_text())
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    document = json.loads((output / "comparison.json").read_text(encoding="utf-8"))
    assert document["warnings"][0].startswith("interrupted after ")
    assert document["cases"][0]["outcome"] in {"unclear", "no verdict"}
    assert document["cases"][0]["blocks"] >= 3
    for build in builds:
        # what was killed may take a moment to be gone
        command = ["pgrep", "-f", str(build / PROGRAM)]
        wait_until(lambda: subprocess.run(command, capture_output=True, check=False).returncode > 0)  # noqa: B023


def test_a_budget_that_is_too_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first block, and where a regression is known all the same."""
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", wrong=[LOSS])
    assert ran(base, base, tmp_path / "a", "--budget=0.001s").status == 2
    assert "is too short: the first verdicts" in capsys.readouterr().err
    announce = SequentialRun._announce

    def slow(run: SequentialRun) -> None:
        # as if the first block had taken minutes
        run.costs = run.costs._replace(block=1000.0)
        announce(run)

    monkeypatch.setattr(SequentialRun, "_announce", slow)
    found = ran(base, new, tmp_path / "b", "--alpha=0.00001")
    assert (found.status, found.outcomes[LOSS], found.outcomes[FFN]) == (1, "failed", "no verdict")
    assert found.cases[FFN]["blocks"] == 1
    assert "is too short: the first verdicts" in found.warnings[0]
    assert ran(base, new, tmp_path / "c", "--alpha=0.00001", "--allow-missing=*").status == 2
    assert "is too short: the first verdicts" in capsys.readouterr().err

    def slower(run: SequentialRun) -> None:
        run.costs = run.costs._replace(block=2000.0)

    monkeypatch.setattr(SequentialRun, "_announce", slower)
    assert ran(base, base, tmp_path / "d").status == 2
    assert "blocks became slower, so that --budget held 1 of the" in capsys.readouterr().err


SHORT = ("--components=ffn", "--passes=forward_backward", "--device=cpu", "--threads=1")


@pytest.mark.parametrize(
    ("option", "status", "outcomes"),
    [
        ("--margin=0.2", 0, {"same", "unclear"}),
        # both sides are one program, so that nothing but the slowdown can be what fails; twice its
        # time is far beyond what other work on the machine makes of it
        ("--slow-new=^ffn/=1", 1, {"slower"}),
    ],
)
def test_the_built_program_compared_with_itself_passes_unless_slowed(
    option: str, status: int, outcomes: set[str], bench_program: Path, tmp_path: Path
) -> None:
    found = ran(bench_program, bench_program, tmp_path / "out", *SHORT, option, "--alpha=0.05")
    assert found.status == status
    ((name, case),) = found.cases.items()
    assert name == FFN
    assert case["outcome"] in outcomes
    assert case["blocks"] == fewest_blocks(1, 0.05, 1)
    assert {c["name"] for c in case["counters"]} > {"operators", "allocations", "model_flops"}
    assert not any(c["worse"] for c in case["counters"] if c["exact"])
