"""scripts/compare run: verdicts, blocks, processes that fail and endings, between fakes; the rule
by which it goes on, on a clock of its own; and the commits that a side may be."""

import io
import itertools
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from samples import ATTENTION, EMBEDDING, OPTIMIZER, Json, Played, cut_wait_short, ran

from built_programs import read_json, start_tool, wait_until
from fake_bench import DEFAULTS, FFN, LOSS, NORM, PROGRAM, STEP, make_build, noted
from tinyllama_tools.calibrate.command import SLOW_PLUGIN
from tinyllama_tools.compare import blocks
from tinyllama_tools.compare.blocks import SIDES, Interleaved, pairs_for, read_recording
from tinyllama_tools.compare.comparison import SideCase, outcome_without_times
from tinyllama_tools.compare.run import (
    ALL_DECIDED,
    ALL_LOOKS,
    BUDGET_USED,
    TOO_SHORT,
    SequentialRun,
)
from tinyllama_tools.compare.sides import (
    KEPT_WORKTREES,
    SHORT_SPIN,
    WAITING,
    Builder,
    ServedProgram,
)
from tinyllama_tools.core.app import PLACING, BadInputError, run_command
from tinyllama_tools.core.process import Progress
from tinyllama_tools.stats.rank_tests import (
    BASE_SECONDS,
    LOG_RATIO,
    NEW_SECONDS,
    Array,
    hodges_lehmann,
    summarise,
)
from tinyllama_tools.stats.verdicts import Outcome, fewest_blocks, judge_family, plan_design

CASES = [FFN, LOSS, NORM]
LONG = 30.0


@pytest.fixture(autouse=True)
def without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """What whoever runs the tests has set must not decide about them."""
    for name in (*WAITING, *PLACING):
        monkeypatch.delenv(name, raising=False)


def recorded(output: Path, case: str = FFN) -> list[Json]:
    _, items = read_recording(output / "blocks.jsonl")
    return [item for item in items if "base" in item and item["case"] == case]


def summaries(items: list[Json]) -> Array:
    return np.array([summarise(item["base"], item["new"]) for item in items])


def placed_of(build: Path) -> dict[str, str]:
    """What its processes were told of how workers wait and where they are."""
    found = noted(build, "starts")[0]["environment"]
    return {name: found[name] for name in (*WAITING, *PLACING) if name in found}


def wait_until_gone(build: Path) -> None:
    """What was killed may take a moment to be."""
    command = ["pgrep", "-f", str(build / PROGRAM)]
    wait_until(lambda: subprocess.run(command, capture_output=True, check=False).returncode > 0)


def test_verdicts_figures_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flops = {"operators": 20.0, "allocations": 5.0, "model_flops": 4e9}
    rotary = ATTENTION.replace("attention", "rotary")
    times = {FFN: 0.010, LOSS: 0.005, ATTENTION: 0.002, rotary: 0.001, STEP: 0.2}
    base = make_build(tmp_path / "base", counters=flops, cases=times)
    factor = {FFN: 2.0, LOSS: 0.8, STEP: 1 + 4 * 0.010 / 0.2}
    grown = flops | {"operators": 21.0, "allocations": 4.0}
    new = make_build(tmp_path / "new", counters=grown, factor=factor, cases=times)
    found = ran(base, new, tmp_path / "out", f"--allow-missing={FFN}")
    # being slower cannot be allowed
    assert found.status == found.document["exit_status"] == 1
    changed = {FFN: "slower", LOSS: "faster", STEP: "slower"}
    assert found.outcomes == dict.fromkeys(times, "same") | changed
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("2 slower, 1 faster, 2 same; exit")
    blocks = summaries(recorded(tmp_path / "out"))
    ffn = found.cases[FFN]
    assert len(blocks) == ffn["blocks"] == fewest_blocks(5, 0.02, 1)
    assert math.log(ffn["ratio"]) == pytest.approx(hodges_lehmann(blocks[:, LOG_RATIO]))
    medians = np.median(blocks[:, [BASE_SECONDS, NEW_SECONDS]], axis=0).tolist()
    assert [ffn["base_seconds"], ffn["new_seconds"]] == medians
    # one of as many signs as there are blocks, five cases, a quarter of alpha each way
    assert ffn["p_value"] == pytest.approx(5 * 4 / 2 ** len(blocks))
    assert [c["name"] for c in ffn["counters"] if c["worse"]] == ["operators"]
    attribution = found.cases[STEP]["attribution"]
    assert attribution["culprit"] == FFN
    share = attribution["parts"][0]["share"]
    assert share == pytest.approx(1.0, abs=0.2)
    assert "attributed to ffn/forward_backward" in said
    assert f", {100 * share:.0f} % of the change [" in said
    # attention has a part too, and did not change
    assert [name for name, case in found.cases.items() if case["attribution"]] == [STEP]
    assert (found.document["base"], found.document["new"]) == (str(base), str(new))
    header, _ = read_recording(tmp_path / "out/blocks.jsonl")
    assert header["seed"] == found.document["design"]["seed"] == 5
    assert placed_of(base) == SHORT_SPIN | {"OMP_PROC_BIND": "true"}
    # an earlier recording is kept, and nothing is started
    starts = len(noted(base, "starts"))
    assert ran(base, new, tmp_path / "out").status == 2
    assert "is there already" in capsys.readouterr().err
    assert len(noted(base, "starts")) == starts


def test_options_environments_and_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    context = DEFAULTS["context"] | {"threads": 2}
    base = make_build(tmp_path / "base", cases={FFN: 0.01, LOSS: 0.01})
    new = make_build(tmp_path / "new", cases={FFN: 0.01, NORM: 0.01}, context=context)
    more = ["--environment-new=SIDE_N=1", "--environment-new=SIDE=3", "--environment-base=SIDE=3"]
    more += [
        "--environment-new=OMP_NUM_THREADS=2",
        "--sizes=small",
        "--filter=baseline",
        "--threads=3",
    ]
    found = ran(base, new, tmp_path / "out", *more, "--verify=off")
    assert found.outcomes == {FFN: "same", LOSS: "missing", NORM: "added"}
    for build, own in ((base, None), (new, "1")):
        assert {start["environment"].get("SIDE_N") for start in noted(build, "starts")} == {own}
        given = set(noted(build, "starts")[0]["arguments"])
        assert {"--sizes=small", "--benchmark_filter=baseline", "--threads=3"} < given
        assert "--variants=baseline" in given
    assert [text.partition(":")[0] for text in found.warnings] == [
        "environment SIDE_N",
        "environment OMP_NUM_THREADS",
        "OMP_WAIT_POLICY=active decides how idle OpenMP threads wait",
        "--verify off",
        "threads",
    ]
    settings = found.document["design"]["settings"]
    own = {"SIDE_N": "1", "SIDE": "3", "OMP_NUM_THREADS": "2"}
    assert settings["new_environment"] == own
    # how workers wait, and where threads are, is the user's choice
    assert placed_of(new) == {"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "2"}
    assert settings == read_recording(tmp_path / "out/blocks.jsonl")[0]["settings"]


def interrupted(what: str, after: int) -> Callable[..., Iterator[Json]]:
    """In place of this method of Interleaved: Ctrl-C after so many of its items."""
    method, seen = getattr(Interleaved, what), itertools.count(1)

    def run(*arguments: Any, **more: Any) -> Iterator[Json]:  # noqa: ANN401
        for item in method(*arguments, **more):
            yield item
            if next(seen) == after:
                raise KeyboardInterrupt

    return run


def test_an_unclear_case_says_how_long_an_answer_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    design = plan_design(1, alpha=0.02, margin=0.05, looks=6)
    monkeypatch.setattr(Interleaved, "measure", interrupted("measure", design.looks[0]))
    builds = [make_build(tmp_path / s, cases={FFN: 0.01}, between=0.05) for s in ("base", "new")]
    found = ran(*builds, tmp_path / "out", "--looks=6")
    assert (found.status, found.outcomes) == (130, {FFN: "unclear"})
    items = recorded(tmp_path / "out")
    judged = judge_family({FFN: summaries(items)}, design)[FFN]
    needed = next(look for look in design.looks[1:] if look >= judged.distance)
    times = [after["at"] - before["at"] for before, after in itertools.pairwise(items)]
    expected = (needed - len(items)) * statistics.median(times)
    assert found.cases[FFN]["seconds_needed"] == pytest.approx(expected, rel=0.4)
    # or why more blocks of this run will not do, in the figures that decide it
    builds = [make_build(tmp_path / s, cases={FFN: 0.01}, between=0.05) for s in ("one", "other")]
    case = ran(*builds, tmp_path / "last", "--looks=1").cases[FFN]
    assert (case["outcome"], case["seconds_needed"]) == ("unclear", None)
    margin, low, high = (math.log(v) for v in (1.05, *map(case["interval"].get, ("low", "high"))))
    away = 100 * math.expm1(abs(abs(math.log(case["ratio"])) - margin))
    assert case["note"] == (
        f"all planned looks are taken: the change is {away:.1f} % from the margin, its interval "
        f"reaches {100 * math.expm1((high - low) / 2):.1f} % to either side"
    )


def test_what_was_not_reached_while_opening_is_no_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Interleaved, "open_once", interrupted("open_once", 3))
    found = ran(make_build(tmp_path / "base"), make_build(tmp_path / "new"), tmp_path / "out")
    assert (found.status, found.document["exit_status"]) == (130, 130)
    assert capsys.readouterr().out.endswith("; exit status 130: interrupted\n")
    assert set(found.outcomes.values()) == {"no verdict"}
    notes = [case["note"] == "interrupted before it was opened" for case in found.cases.values()]
    assert notes == [False, True, True]


def interleaved(base: Path, new: Path, *, seed: int = 1, pairs: int = 4) -> Interleaved:
    builds = zip(SIDES, (base, new), strict=True)
    programs = {side: ServedProgram(side, build / PROGRAM) for side, build in builds}
    return Interleaved(programs, seed, pairs=pairs, slice_seconds=0.015, limit=LONG)


def one_block(base: Path, new: Path, cases: Sequence[str], **more: int) -> dict[str, Json]:
    """What a block says of each case."""
    items = interleaved(base, new, **more).measure(1, cases)
    return {item.get("case") or item["skipped"]: item for item in items}


def test_a_block_has_every_case_once_from_one_fresh_pair_of_processes(tmp_path: Path) -> None:
    times = {FFN: 0.15, LOSS: 0.005, NORM: 0.002}
    steady = {"cases": times, "within": 0.0, "between": 0.0}
    base = make_build(tmp_path / "base", **steady, factor={FFN: 3.0})
    new = make_build(tmp_path / "new", **steady)
    found = one_block(base, new, CASES, pairs=8)
    assert len(noted(base, "starts")) == len(noted(new, "starts")) == 1
    # by the less disturbed side 1.5 / (2 x 0.15) = 5; by the other it would be the fewest, 4
    for case, pairs in ((FFN, 5), (LOSS, 8), (NORM, 8)):
        assert found[case]["new"] == pytest.approx([times[case]] * pairs)
        assert sum(found[case]["first"]) in {pairs // 2, pairs - pairs // 2}
    # never fewer than 4 where as many are asked for; a long slice counts as a long iteration
    asked = ((0.25, 8, 0.015), (60.0, 2, 0.015), (0.001, 100, 0.1))
    assert [pairs_for(*case) for case in asked] == [4, 2, 7]


def test_orders_repeat_with_the_seed_and_sides_alternate(tmp_path: Path) -> None:
    seen = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        builds = [make_build(tmp_path / name / side) for side in ("base", "new")]
        measurer = interleaved(*builds, seed=seed)
        items = [item for index in range(4) for item in measurer.measure(index, CASES)]
        orders = [(item["case"], item["first"]) for item in items]
        paddings = [len(s["environment"]["TINY_LLAMA_PADDING"]) for s in noted(builds[0], "starts")]
        assert len({*paddings}) == 4
        seen.append((orders, paddings))
        # the time of each request of both sides
        asked = sorted(
            (r["at"], side, r) for side in (0, 1) for r in noted(builds[side], "requests")
        )
        timed = [side for _, side, r in asked if r["do"] == "time"]
        assert timed == [s for _, first in orders for f in first for s in (f, 1 - f)]
        # of every two blocks, each side is first to close its cases in one
        closed = [
            [s for _, s, r in asked if r["do"] == "close" and r["process"] == p]
            for p in range(1, 5)
        ]
        firsts = [one[0] for one in closed]
        assert all(one == [first, 1 - first] * 3 for one, first in zip(closed, firsts, strict=True))
        assert [sum(firsts[i : i + 2]) for i in (0, 2)] == [1, 1]
    assert seen[0] == seen[1] != seen[2]


def test_cases_that_a_side_fails_do_not_touch_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {
        FFN: ("new", "open", "skipped", "told to be skipped"),
        LOSS: ("new", "open", "signal", "ended by signal SIGSEGV at open loss/"),
        NORM: ("new", "open", "zero", "answered open with seconds"),
        STEP: ("base", "time", "crash", "ended with 3 at time full_step/.*; it last said: out of"),
        ATTENTION: ("base", "time", "hang", r"no answer to time attention/.* within 0\.3 s"),
        OPTIMIZER: ("base", "time", "nonsense", r"answered time opt.* with '\[\"what\?\"\]'"),
        "zero/x": ("new", "time", "zero", "answered time with seconds"),
        "error/x": ("new", "time", "error", "told to be error"),
    }
    cases = dict.fromkeys([*table, EMBEDDING], 0.005)
    builds = []
    for side in SIDES:
        own = {case: row for case, row in table.items() if row[0] == side}
        trouble = {case: {"at": at, "how": how} for case, (_, at, how, _) in own.items()}
        builds.append(make_build(tmp_path / side, cases=cases, trouble=trouble))
    cut_wait_short(monkeypatch, "base", f"time {ATTENTION}")
    found = one_block(*builds, list(cases), seed=17)
    for case, (side, _, _, said) in table.items():
        left = found[case].get("failed", found[case])
        assert left["side"] == side
        assert re.search(said, left["reason"])
    # with this seed it comes after all others, so that an answer left unread would show
    assert list(found)[-1] == EMBEDDING and "base" in found[EMBEDDING]
    for build in builds:
        wait_until_gone(build)


@pytest.mark.parametrize("how", ["crash", "hang"])
def test_a_side_that_does_not_start_fails_every_case_without_waiting_for_each(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", trouble={"start": {"at": "start", "how": how}})
    if how == "hang":
        cut_wait_short(monkeypatch, "new", "its start")
    found = one_block(base, new, CASES)
    # the second may be killed before it notes its start
    assert len(noted(new, "starts")) <= 2
    assert found.keys() == set(CASES)
    assert all("its start" in item["failed"]["reason"] for item in found.values())
    assert all(item["failed"]["side"] == "new" for item in found.values())


def test_programs_that_cannot_be_served_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, old, absent = (make_build(tmp_path / name) for name in ("good", "old", "absent"))
    refusal = "tiny_llama_bench: argument not expected: --serve"
    (old / PROGRAM).write_text(f"#!/bin/sh\necho {refusal} >&2; exit 2\n")
    (absent / PROGRAM).write_text("#!/no/such/interpreter\n")
    other = make_build(tmp_path / "other", cases={NORM.replace("f32", "bf16"): 0.1})
    for build, expected in (
        (old, f"new: {refusal}"),
        (absent, "cannot be started: No such file"),
        (other, "no case to compare (3 on the base side, 1 on the new side"),
    ):
        assert ran(good, build, tmp_path / "out").status == 2
        assert expected in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_a_side_that_fails_twice_or_is_wrong_fails_the_case_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a process that was lost at an opening has another chance."""
    trouble = {LOSS: {"at": "time", "how": "crash"}}
    trouble[FFN] = {"at": "open", "how": "crash", "processes": [2]}
    trouble[NORM] = {"at": "open", "how": "failed"}
    good = make_build(tmp_path / "base")
    bad = make_build(tmp_path / "new", trouble=trouble)
    found = ran(good, bad, tmp_path / "out")
    assert (found.status, found.outcomes) == (1, {FFN: "same", LOSS: "failed", NORM: "failed"})
    assert found.cases[FFN]["note"].startswith("failed once on the new side: the process ended")
    assert "at time" in found.cases[LOSS]["note"]
    _, items = read_recording(tmp_path / "out/blocks.jsonl")
    assert [i["block"] for i in items if i.get("case") == LOSS and "failed" in i] == [1, 2]
    # a wrong result is never timed
    assert found.cases[NORM]["note"] == "told to be failed"
    assert all(r["case"] != NORM for r in noted(good, "requests") if r["do"] == "time")
    # of the second process, the first being one that was asked for its cases
    proved = [r for r in noted(good, "requests") if r["do"] == "open" and r["verify"]]
    assert [(r["case"], r["process"]) for r in proved] == [(case, 2) for case in CASES]
    # of the base it is no fault of the new, but no answer either
    found = ran(bad, good, tmp_path / "swapped", "--strict")
    assert (found.status, found.outcomes[LOSS]) == (3, "no verdict")
    assert found.cases[LOSS]["note"].startswith("failed in the base: the process ended")
    # nothing is known where the base is wrong everywhere
    wrong = make_build(tmp_path / "wrong", trouble=dict.fromkeys(CASES, trouble[NORM]))
    found = ran(wrong, good, tmp_path / "wrong")
    assert (found.status, found.document["exit_status"]) == (2, 2)
    said = capsys.readouterr()
    assert "nothing comparable: no case was measured on both sides" in said.err
    assert said.out.endswith(
        "3 no verdict; exit status 2: something failed; the first warning says what\n"
    )


def test_the_same_program_on_both_sides_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = make_build(tmp_path / "base")
    copy = shutil.copytree(build, tmp_path / "copy")
    for other in (build, copy):
        assert ran(build, other, tmp_path / "out").status == 2
        assert "are the same program, to the last byte" in capsys.readouterr().err
    assert not noted(build, "starts")
    # what differs is asked for, or it is a test
    for more in ("--same", "--environment-new=SIDE=1"):
        assert ran(build, copy, tmp_path / more, more).status in {0, 1}


def test_what_was_found_is_not_lost_where_files_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", factor={FFN: 1.2})
    (tmp_path / "out/comparison.md").mkdir(parents=True)
    assert ran(base, new, tmp_path / "out").status == 1
    said = capsys.readouterr()
    assert re.search(r"^1 slower, .*; exit status 1: regression$", said.out.splitlines()[-1])
    assert "out/comparison.md" in said.err.splitlines()[-1]
    assert "out/comparison.md: Is a directory" in said.out.splitlines()[1]

    def failing(item: Json) -> str:
        if item.get("block") == 4:
            opened = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
            recording = next(link for link in opened if link.readlink().name == "blocks.jsonl")
            os.dup2(os.open("/dev/full", os.O_WRONLY), int(recording.name))
        return json.dumps(item)

    monkeypatch.setattr(blocks, "json", SimpleNamespace(dumps=failing))
    found = ran(base, new, tmp_path / "full")
    assert (found.status, found.document["exit_status"]) == (2, 2)
    assert found.outcomes[FFN] == "no verdict"
    assert sorted(case["blocks"] for case in found.cases.values()) == [3, 3, 4]
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"ended after \d blocks: \[Errno 28\].*/blocks.jsonl", said)
    # a case that the new side fails is a regression, whatever else happened
    broken = make_build(tmp_path / "broken", trouble={NORM: {"at": "open", "how": "crash"}})
    assert ran(base, broken, tmp_path / "more").status == 1
    assert "ended after" in capsys.readouterr().err


def test_being_asked_to_end_judges_and_writes_what_was_measured(tmp_path: Path) -> None:
    builds = [make_build(tmp_path / s, cases={FFN: 0.01}, between=0.3) for s in ("base", "new")]
    output = tmp_path / "out"
    options = [f"--base={builds[0]}", f"--new={builds[1]}", f"--out={output}"]
    options += ["--alpha=0.2", "--looks=9"]
    process = start_tool("compare", "run", *options)
    recording = output / "blocks.jsonl"
    wait_until(lambda: process.poll() is not None or recording.exists())
    wait_until(lambda: process.poll() is not None or '"block": 4' in recording.read_text())
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    document = read_json(output / "comparison.json")
    assert document["warnings"][0].startswith("interrupted after ")
    assert document["cases"][0]["outcome"] in {"unclear", "no verdict"}
    assert document["cases"][0]["blocks"] >= 3
    for build in builds:
        wait_until_gone(build)


def test_a_budget_that_is_too_short_and_a_regression_that_is_known_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {LOSS: {"at": "open", "how": "failed"}}
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", trouble=wrong)
    short = ("--alpha=0.00001", "--budget=1ms")
    found = ran(base, new, tmp_path / "a", *short)
    assert (found.status, found.outcomes[LOSS], found.outcomes[FFN]) == (1, "failed", "no verdict")
    assert found.cases[FFN]["blocks"] == 1
    assert "is too short: the first verdicts" in found.warnings[0]
    capsys.readouterr()
    found = ran(base, new, tmp_path / "b", *short, "--allow-missing=*")
    assert (found.status, found.document["exit_status"]) == (2, 2)
    said = capsys.readouterr()
    assert "is too short: the first verdicts" in said.err
    assert said.out.splitlines()[-1].endswith(
        "exit status 2: something failed; the first warning says what"
    )
    assert "is too short: the first verdicts" in said.out.splitlines()[1]


def test_what_the_base_skips_is_skipped_whatever_the_new_does(tmp_path: Path) -> None:
    trouble = {FFN: {"at": "open", "how": "skipped"}}
    builds = [make_build(tmp_path / "base", trouble=trouble), make_build(tmp_path / "new")]
    found = ran(*builds, tmp_path / "out")
    assert found.outcomes == {FFN: "skipped", LOSS: "same", NORM: "same"}
    pending = SideCase(is_pending=True)
    told = "skipped in the base: too large; not tried in the new"
    assert outcome_without_times(SideCase(skipped="too large"), pending) == (Outcome.SKIPPED, told)
    interrupted = (Outcome.NO_VERDICT, "interrupted before it was opened")
    assert outcome_without_times(pending, pending) == interrupted
    assert outcome_without_times(SideCase(is_measured=True), pending) == interrupted


def test_the_built_program_compared_with_itself_passes_unless_slowed(
    bench_program: Path, tmp_path: Path
) -> None:
    """A plug-in that is a copy of ours, and on the new side spins. Four times its time is far
    beyond what other work on the machine makes of it, but for single blocks: hence later looks."""
    plugin = bench_program.parents[1] / SLOW_PLUGIN
    short = ("--components=rms_norm", "--passes=forward,backward", "--batch=2", "--seq=32")
    slow = (f"--plugin={plugin}", "--variants=slow::rms_norm", "--environment-new=SPIN_FRACTION=3")
    alone = ("--device=cpu", "--threads=1", "--margin=0.3", "--looks=3", "--same")
    found = ran(bench_program, bench_program, tmp_path / "out", *short, *slow, *alone)
    forward, backward = (
        f"rms_norm/{name}/slow::rms_norm/tiny/f32/batch:2/seq:32"
        for name in ("forward", "backward")
    )
    assert (found.status, found.outcomes[forward]) == (1, "slower")
    assert found.outcomes[backward] in {"same", "unclear"}
    for case in found.cases.values():
        assert case["blocks"] in plan_design(2, alpha=0.02, looks=3).looks
        assert {c["name"] for c in case["counters"]} > {"operators", "allocations", "model_flops"}
        assert not any(c["worse"] for c in case["counters"] if c["exact"])


def test_the_new_side_runs_with_the_operators_of_a_plugin(
    bench_program: Path, tmp_path: Path
) -> None:
    """In every variant, under the names of the cases without them; cases that no operator changes
    are left out."""
    plugin = bench_program.parents[1] / SLOW_PLUGIN
    cases = ("--components=rms_norm,rotary", "--passes=forward", "--batch=2", "--seq=32")
    variants = ("--variants=baseline,optimized", "--environment-new=SPIN_FRACTION=5")
    alone = ("--device=cpu", "--threads=1", "--margin=0.3", "--looks=3")
    asked = (f"--plugin={plugin}", *cases, *variants, *alone)
    found = ran(bench_program, bench_program, tmp_path / "out", *asked)
    names = {
        f"rms_norm/forward/{name}/tiny/f32/batch:2/seq:32" for name in ("baseline", "optimized")
    }
    assert set(found.outcomes) == names
    # beside ours, which it is a copy of; what it replaces in the baseline is several operators
    assert found.outcomes[max(names)] == "slower"
    assert found.document["new"].endswith(f" with {plugin.name}")
    assert found.document["new_context"]["plugins"][0]["file"] == plugin.name
    assert "plugins" not in found.document["base_context"]


# ---- block after block until every case has its verdict


def played(
    factors: dict[str, float], *, budget: float = 1e6, looks: int = 6, **more: object
) -> tuple[SequentialRun, Played, str]:
    """`more`: of Played, whose cases take a second."""
    measurer, said = Played(dict.fromkeys(factors, 1.0), factors, **more), io.StringIO()
    design, kept = plan_design(len(factors), looks=looks), []
    run = SequentialRun(
        measurer, factors, design, budget,
        keep=kept.append, progress=Progress(said), clock=measurer,
    )  # fmt: skip
    run.run(verify=True)
    blocks = sum(len(record.blocks) for record in run.cases.values())
    assert sum("base" in item for item in kept) == blocks
    return run, measurer, said.getvalue()


def outcomes(run: SequentialRun) -> dict[str, str | None]:
    return {name: found.outcome.value if found else None for name, found in run.judgements.items()}


def test_decided_cases_drop_out_so_that_time_goes_to_the_open_ones() -> None:
    looks = plan_design(4).looks
    factors = {"a": 1.0, "b": 1.2, "c": 0.8, "noisy": 1.0}
    run, measurer, said = played(factors, scatter={"noisy": 0.1})
    assert measurer.asked[: looks[0]] == [list(factors)] * looks[0]
    assert all(cases == ["noisy"] for cases in measurer.asked[looks[0] :])
    assert len(measurer.asked) == run.blocks > looks[0]
    assert [outcomes(run)[name] for name in "abc"] == ["same", "slower", "faster"]
    assert f"after {looks[0]} blocks: 1 same, 1 slower, 1 faster; 1 open" in said
    # the processes' start is no case's own time
    assert run.costs.of(["noisy"]) == pytest.approx(2.0)
    assert run.costs.of(list(factors)) == pytest.approx(5.0)
    run, *_ = played({"a": 1.0}, seed=4)
    assert (run.blocks, run.ended) == (plan_design(1).looks[0], ALL_DECIDED)
    run, *_ = played({"noisy": 1.03}, scatter={"noisy": 0.05}, looks=3)
    assert (run.blocks, run.ended) == (plan_design(1, looks=3).looks[-1], ALL_LOOKS)
    assert outcomes(run) == {"noisy": "unclear"}


def test_no_block_is_begun_that_cannot_reach_a_look_within_the_budget() -> None:
    first, second, *_ = plan_design(2).looks
    factors, scatter = {"far": 1.03, "near": 1.1}, {"far": 0.2, "near": 0.1}
    # to the first look with both cases; the second look needs more than is left then
    run, *_ = played(factors, scatter=scatter, budget=3.0 * first + 5)
    assert (run.blocks, run.ended) == (first, BUDGET_USED)
    # where only one can go on, it is the one that is nearer to a verdict
    budget = 3.0 * first + 2.0 * (second - first) + 0.5
    run, measurer, _ = played(factors, scatter=scatter, budget=budget)
    assert measurer.asked[first:] == [["near"]] * (second - first)
    assert run.cases["far"].closed == BUDGET_USED
    # a budget that reaches no look is refused after the first block
    run, *_ = played({"a": 1.0, "b": 1.0}, budget=3.0 * first - 2)
    assert (run.ended, run.blocks) == (TOO_SHORT, 1)
    assert f"need {first} blocks of 3.0 s, {3.0 * first / 60:.1f} minutes in all" in run.refusal
    assert played({"a": 1.0, "b": 1.0}, budget=3.0 * first)[0].refusal == ""


def test_blocks_that_became_slow_do_not_overrun_the_budget_for_ever() -> None:
    more = {"cost": lambda index, _: 1.0 if index < 5 else 30.0, "budget": 60}
    run, measurer, _ = played({"a": 1.0, "b": 1.0}, **more)
    assert (run.ended, outcomes(run)) == (BUDGET_USED, {})
    assert f"only 5 of the {plan_design(2).looks[0]}" in run.refusal
    # one block of 61 s is what nobody could foresee
    assert measurer.now < 60 * 1.15 + 61
    # before the first look the costliest cases go
    first, costs = plan_design(2).looks[0], {"step": 8.0, "part": 1.0}
    more = {"cost": lambda index, case: costs[case] * (1.0 if index < 4 else 1.5)}
    run, measurer, _ = played(dict.fromkeys(costs, 1.0), **more, budget=10.0 * first)
    assert run.cases["step"].closed == BUDGET_USED
    assert outcomes(run) == {"step": None, "part": "same"}
    assert (measurer.now <= 10.0 * first, run.refusal) == (True, "")


# ---- commits

# builds a "program" that says which commit and which settings it is of
PROJECT_FILE = """\
cmake_minimum_required(VERSION 3.20)
project(fake LANGUAGES NONE)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/benchmarks)
set(seen "${Torch_DIR} ${TINY_LLAMA_BUILD_TESTS} ${TINY_LLAMA_WITH_HIP}")
string(APPEND seen "${TINY_LLAMA_HIPCC}${TINY_LLAMA_INSIDE}${SOMETHING_ELSE}")
add_custom_target(tiny_llama_bench
  COMMAND sh ${CMAKE_SOURCE_DIR}/make.sh "${CMAKE_BINARY_DIR}/benchmarks/tiny_llama_bench"
    "${seen}")
"""
MAKE = 'printf "#!/bin/sh\\necho {text} $2\\n" > "$1"; chmod +x "$1"\n'
# what is carried over, and what is not
CACHE = """\
# comment
Torch_DIR:UNINITIALIZED=/opt/torch
benchmark_DIR:INTERNAL=/project/build/pkgRedirects
TINY_LLAMA_WITH_HIP:STRING=ON
TINY_LLAMA_HIPCC:FILEPATH=TINY_LLAMA_HIPCC-NOTFOUND
TINY_LLAMA_BUILD_TESTS:BOOL=ON
TINY_LLAMA_INSIDE:PATH={folder}/made
SOMETHING_ELSE:STRING=1
"""


class Checkout:
    """A git project whose commits build in an instant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "build").mkdir(parents=True)
        self.git("init", "-q")
        (folder / "build/CMakeCache.txt").write_text(CACHE.format(folder=folder / "build"))
        (folder / ".gitignore").write_text("/build/\n/.deps/\n")
        (folder / "CMakeLists.txt").write_text(PROJECT_FILE)

    def git(self, *arguments: str) -> str:
        own = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org")
        return subprocess.check_output([*own, *arguments], cwd=self.folder, text=True).strip()

    def commit(self, text: str, make: str = MAKE) -> str:
        (self.folder / "make.sh").write_text(make.format(text=text))
        self.git("add", ".")
        self.git("commit", "-q", "-m", text)
        return self.git("rev-parse", "HEAD")

    def resolve(self, text: str) -> tuple[str, Path]:
        return Builder(self.folder / "build", self.folder).resolve(text, "--base")

    def built(self, text: str) -> str:
        """What the program says that this builds."""
        return subprocess.check_output(self.resolve(text)[1], text=True).strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "project")


def test_a_commit_is_built_in_a_worktree_with_this_builds_settings(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = checkout.commit("one"), checkout.commit("two")
    name, program = checkout.resolve("HEAD~1")
    assert name == f"HEAD~1 ({first[:12]})"
    assert program.is_relative_to(checkout.folder / ".deps/compare" / first)
    assert checkout.built("HEAD~1") == "one /opt/torch OFF ON"
    # of two builds in one worktree, the first says how to remove it
    assert capsys.readouterr().out.count("to remove it: rm -r") == 1
    assert checkout.git("status", "--porcelain") == ""
    # kept, and made anew where torn
    tree = checkout.folder / ".deps/compare" / second
    checkout.resolve(second)
    mark = tree / "mark"
    mark.write_text("")
    checkout.resolve(second[:10])
    assert mark.exists()
    (tree / "make.sh").write_text("exit 1\n")
    assert checkout.built("HEAD") == "two /opt/torch OFF ON"
    assert not mark.exists()
    # other settings configure anew
    (checkout.folder / "build/CMakeCache.txt").write_text("Torch_DIR:PATH=/other\n")
    assert checkout.built("HEAD").startswith("two /other OFF")
    # the newest worktrees are kept
    commits = [checkout.commit(str(i)) for i in range(KEPT_WORKTREES)]
    for commit in commits:
        checkout.resolve(commit)
    trees = {path.name for path in tree.parent.iterdir() if path.is_dir()}
    assert trees == set(commits)
    assert second not in checkout.git("worktree", "list")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_build_and_all_that_it_started(
    number: int, checkout: Checkout, capfd: pytest.CaptureFixture[str]
) -> None:
    """The worktree that was made for it is named once, with how to remove it."""
    commit = checkout.commit("slow", 'echo $$ > "$1.pid"; exec sleep 600\n')
    tree = checkout.folder / ".deps/compare" / commit
    started = tree / "build/benchmarks/tiny_llama_bench.pid"

    def build() -> int:
        checkout.resolve("HEAD")
        return 0

    building = get_context("fork").Process(
        target=lambda: os._exit(run_command("compare run", build))
    )
    building.start()
    wait_until(lambda: started.exists() and started.read_text().endswith("\n"))
    os.kill(building.pid, number)
    building.join(timeout=30)
    assert building.exitcode == 130
    child = Path("/proc", started.read_text().strip(), "cmdline")
    wait_until(lambda: not child.exists() or b"sleep" not in child.read_bytes())
    said = capfd.readouterr()
    assert said.out.splitlines()[-1] == "build stopped; the same command continues from there"
    assert said.err == "scripts/compare run: interrupted\n"
    assert said.out.count(f"to remove it: rm -r {tree}\n") == 1


def test_sides_that_are_none(checkout: Checkout, tmp_path: Path) -> None:
    build = make_build(tmp_path / "build")
    for text in (str(build), str(build / PROGRAM)):
        assert checkout.resolve(text) == (text, build / PROGRAM)
    commit = checkout.commit("bad", "echo 'error: no such thing'; exit 1\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("")
    for text, expected in (
        ("no_such_ref", r"must be a build folder or a prefix \(no such"),
        ("--out=x", r"must be a build folder or a prefix \(no such"),
        (str(tmp_path / "empty"), "no benchmarks/tiny_llama_bench in that folder"),
        (str(tmp_path / "text"), "cannot be executed"),
        ("HEAD", rf"commit {commit[:12]} does not build; (.*\n)*.*no such thing"),
    ):
        with pytest.raises(BadInputError, match=rf"--base.*{expected}"):
            checkout.resolve(text)
    (checkout.folder / "build/CMakeCache.txt").unlink()
    with pytest.raises(BadInputError, match=r"has no CMakeCache.txt.*scripts/bench --setup-only"):
        checkout.resolve("HEAD")
