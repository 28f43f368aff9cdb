"""Block after block until every case has its verdict, on a clock of its own; the recording; and the
commits that a side may be."""

from __future__ import annotations

import io
import json
import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fake_bench import FFN, LOSS, PROGRAM, make_build

from tinyllama_tools.compare.blocks import (
    SIDES,
    BothReady,
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Measured,
    Opened,
    RecordingHeader,
    RecordingWriter,
    Side,
    read_recording,
)
from tinyllama_tools.compare.run import (
    ALL_DECIDED,
    ALL_LOOKS,
    BUDGET_USED,
    TOO_SHORT,
    SequentialRun,
)
from tinyllama_tools.compare.sides import KEPT_WORKTREES, Builder, carried_settings
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.core.process import Progress
from tinyllama_tools.stats.rank_tests import Block
from tinyllama_tools.stats.verdicts import plan_design

PAIRS = 4
NEVER = 10**6


@dataclass
class Played:
    """Draws blocks; a case takes a second, or what `costs` says, and the processes' start one more.
    From block `slower_from` on, cases take `slower_by` times as long."""

    factors: dict[str, float]
    scatter: dict[str, float] = field(default_factory=dict)
    failures: dict[tuple[str, int], Side] = field(default_factory=dict)
    skips: set[str] = field(default_factory=set)
    unopened: set[str] = field(default_factory=set)
    costs: dict[str, float] = field(default_factory=dict)
    slower_from: int = NEVER
    slower_by: float = 30.0
    interrupt_at: int = NEVER
    now: float = 0.0
    asked: list[list[str]] = field(default_factory=list)

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[Opened]:
        assert verify
        for case in cases:
            for side in SIDES:
                wrong = CaseFailure(0, case, side, "wrong result")
                is_wrong = case in self.unopened and side is Side.NEW
                yield wrong if is_wrong else CaseOpening(case, side, 0.01)

    def measure(self, index: int, cases: Sequence[str]) -> Iterator[Measured | BothReady]:
        self.asked.append(list(cases))
        self.now += 1.0
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
        base, new = ([order.lognormvariate(0, 0.001) for _ in range(PAIRS)] for _ in SIDES)
        return Block(tuple(base), tuple(ratio * value for value in new))


def ran(played: Played, *, budget: float = 1e6, looks: int = 6) -> tuple[SequentialRun, str]:
    said = io.StringIO()
    kept: list[Measured | Opened] = []
    run = SequentialRun(
        played, list(played.factors), plan_design(len(played.factors), looks=looks), budget,
        keep=kept.append, progress=Progress(said), clock=lambda: played.now,
    )  # fmt: skip
    try:
        run.run(verify=True)
    except KeyboardInterrupt:
        run.judge()
    blocks = sum(len(record.blocks) for record in run.cases.values())
    assert sum(isinstance(item, CaseBlock) for item in kept) == blocks
    return run, said.getvalue()


def outcomes(run: SequentialRun) -> dict[str, str | None]:
    return {name: found.outcome.value if found else None for name, found in run.judgements.items()}


def test_decided_cases_drop_out_so_that_time_goes_to_the_open_ones() -> None:
    looks = plan_design(4).looks
    factors = {"a": 1.0, "b": 1.2, "c": 0.8, "noisy": 1.0}
    played = Played(factors, scatter={"noisy": 0.05})
    run, said = ran(played)
    assert played.asked[: looks[0]] == [list(factors)] * looks[0]
    assert all(cases == ["noisy"] for cases in played.asked[looks[0] :])
    assert len(played.asked) == run.blocks > looks[0]
    assert [outcomes(run)[name] for name in "abc"] == ["same", "slower", "faster"]
    assert f"after {looks[0]} blocks: 1 same, 1 slower, 1 faster; 1 open" in said
    # the processes' start is no case's own time
    assert run.cost.around == pytest.approx(1.0)
    assert run.cost.of_block(["noisy"]) == pytest.approx(2.0)
    assert run.cost.of_block(list(factors)) == pytest.approx(5.0)
    run, _ = ran(Played({"a": 1.0}))
    assert (run.blocks, run.ended) == (plan_design(1).looks[0], ALL_DECIDED)
    run, _ = ran(Played({"noisy": 1.03}, scatter={"noisy": 0.05}), looks=3)
    assert (run.blocks, run.ended) == (plan_design(1, looks=3).looks[-1], ALL_LOOKS)
    assert outcomes(run) == {"noisy": "unclear"}


def test_no_block_is_begun_that_cannot_reach_a_look_within_the_budget() -> None:
    looks = plan_design(2).looks
    played = Played({"far": 1.03, "near": 1.1}, scatter={"far": 0.2, "near": 0.1})
    # to the first look with both cases; the second look needs more than is left then
    run, _ = ran(played, budget=3.0 * looks[0] + 5)
    assert (run.blocks, run.ended) == (looks[0], BUDGET_USED)
    # where only one can go on, it is the one that is nearer to a verdict
    played = Played({"far": 1.03, "near": 1.1}, scatter={"far": 0.2, "near": 0.1})
    run, _ = ran(played, budget=3.0 * looks[0] + 2.0 * (looks[1] - looks[0]) + 0.5)
    assert played.asked[looks[0] :] == [["near"]] * (looks[1] - looks[0])
    assert run.cases["far"].closed == BUDGET_USED


def test_a_budget_that_reaches_no_look_is_refused_after_the_first_block() -> None:
    first = plan_design(2).looks[0]
    run, _ = ran(Played({"a": 1.0, "b": 1.0}), budget=3.0 * first - 2)
    assert (run.ended, run.blocks) == (TOO_SHORT, 1)
    assert f"need {first} blocks of 3.0 s, {3.0 * first / 60:.1f} minutes in all" in run.refusal
    assert ran(Played({"a": 1.0, "b": 1.0}), budget=3.0 * first)[0].refusal == ""


def test_blocks_that_became_slow_do_not_overrun_the_budget_for_ever() -> None:
    played = Played({"a": 1.0, "b": 1.0}, slower_from=5)
    run, _ = ran(played, budget=60)
    assert (run.ended, outcomes(run)) == (BUDGET_USED, {})
    # one block of 61 s is what nobody could foresee
    assert played.now < 60 * 1.15 + 61
    # before the first look the costliest cases go
    first = plan_design(2).looks[0]
    costs = {"step": 8.0, "part": 1.0}
    played = Played({"step": 1.0, "part": 1.0}, costs=costs, slower_from=4, slower_by=1.5)
    run, _ = ran(played, budget=10.0 * first)
    assert run.cases["step"].closed == BUDGET_USED
    assert outcomes(run) == {"step": None, "part": "same"}
    assert played.now <= 10.0 * first


def test_failures_and_skips() -> None:
    """Two failures of a side close the case, one costs one block; the rest goes on."""
    failures = {("bad", 2): Side.NEW, ("bad", 4): Side.NEW, ("once", 3): Side.BASE}
    factors = dict.fromkeys(("bad", "once", "wrong", "large"), 1.0)
    played = Played(factors, failures=failures, skips={"large"}, unopened={"wrong"})
    run, said = ran(played)
    first = plan_design(4).looks[0]
    assert played.asked[:2] == [["bad", "once", "large"], ["bad", "once"]]
    assert played.asked[3:] == [["bad", "once"], *[["once"]] * (first + 1 - 4)]
    assert outcomes(run)["once"] == "same"
    state = {name: record.state(Side.NEW) for name, record in run.cases.items()}
    assert state["bad"].failed == "crash 4"
    assert state["wrong"].failed == "wrong result"
    assert state["large"].skipped == "too large"
    assert run.cases["once"].state(Side.BASE).is_measured
    assert "wrong: left out: new: wrong result" in said
    assert "bad: given up: new: crash 4" in said
    run, _ = ran(Played({"wrong": 1.0}, unopened={"wrong"}))
    assert (run.blocks, run.ended) == (0, ALL_DECIDED)


def test_an_interrupted_run_is_judged_at_the_looks_it_reached() -> None:
    first = plan_design(2).looks[0]
    played = Played({"slow": 1.2, "noisy": 1.0}, scatter={"noisy": 0.05}, interrupt_at=first + 2)
    run, _ = ran(played)
    assert (run.ended, outcomes(run)) == ("", {"slow": "slower", "noisy": "unclear"})
    early, _ = ran(Played({"a": 1.0}, interrupt_at=3))
    assert (outcomes(early), early.seconds) == ({"a": None}, 5.0)


HEADER = RecordingHeader("main", "build", "interleaved", 2, 0.015, 7, "2026-01-01", {"threads": 2})
ITEMS: list[Measured | Opened] = [
    CaseOpening(FFN, Side.BASE, 0.01, {"operators": 20.0}),
    CaseFailure(0, LOSS, Side.NEW, "gradient differs"),
    CaseBlock(1, FFN, Block((0.01, 0.012), (0.011, 0.0125)), (0, 1), 1.5),
    CaseSkip(LOSS, Side.BASE, "too large"),
    CaseBlock(2, FFN, Block((0.02,), (0.021,)), (1,), 3.0),
]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "new/blocks.jsonl"
    with RecordingWriter(path, HEADER) as writer:
        for count, item in enumerate(ITEMS, start=2):
            writer.add(item)
            # each line is there as soon as it is known
            assert len(path.read_text().splitlines()) == count
    return path


def test_what_is_written_is_read_back_and_never_written_over(written: Path) -> None:
    recording = read_recording(written)
    assert (recording.header, list(recording.items)) == (HEADER, ITEMS)
    before = written.read_text()
    with pytest.raises(BadInputError, match=r"blocks\.jsonl: is there already"):
        RecordingWriter(written, HEADER)
    assert written.read_text() == before
    # a last line cut short is left out
    written.write_text(before[:-10])
    assert list(read_recording(written).items) == ITEMS[:-1]
    # older ones have no settings, and another word
    head = {k: v for k, v in json.loads(before.splitlines()[0]).items() if k != "settings"}
    written.write_text(json.dumps({**head, "method": "in turn"}) + "\n")
    assert read_recording(written).header == HEADER
    with pytest.raises(BadInputError, match="cannot be written"):
        RecordingWriter(written / "blocks.jsonl", replace(HEADER, settings={"a": 1}))


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


BLOCK = {"block": 1, "case": FFN, "first": [0], "at": 1.0}


def test_bad_lines_are_named(written: Path) -> None:
    whole = written.read_text().splitlines()
    for line, text, expected in (
        (1, "[1]", "not a recording.*line 1"),
        (1, '{"recording": "other", "schema_version": 1}', "not a recording.*other"),
        (1, '{"recording": "tiny_llama paired blocks", "schema_version": 2}', "2.*: must be"),
        (3, "{", "line 3"),
        (4, json.dumps({**BLOCK, "base": [0.1], "new": [0.1, 0.2]}), "line 4.*as many"),
        (4, json.dumps({**BLOCK, "base": [0.0], "new": [0.1]}), "line 4.*positive"),
        (4, json.dumps({**BLOCK, "base": [0.1]}), "line 4.*new"),
    ):
        lines = [*whole[: line - 1], text, *whole[line:]]
        written.write_text("\n".join(lines) + "\n")
        with pytest.raises(BadInputError, match=rf"blocks\.jsonl: .*{expected}"):
            read_recording(written)
    written.write_text("")
    with pytest.raises(BadInputError, match="empty"):
        read_recording(written)


# builds a "program" that says which commit and which settings it is of
PROJECT_FILE = """\
cmake_minimum_required(VERSION 3.20)
project(fake LANGUAGES NONE)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/benchmarks)
add_custom_target(tiny_llama_bench
  COMMAND sh ${CMAKE_SOURCE_DIR}/make.sh "${CMAKE_BINARY_DIR}/benchmarks/tiny_llama_bench"
    "${Torch_DIR} ${TINY_LLAMA_BUILD_TESTS}")
"""
MAKE = 'printf "#!/bin/sh\\necho {text} $2\\n" > "$1"; chmod +x "$1"\n'
CACHE = """\
# comment
Torch_DIR:UNINITIALIZED=/opt/torch/Torch
CMAKE_BUILD_TYPE:STRING=Release
CMAKE_CXX_COMPILER_LAUNCHER:STRING=
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
        (folder / "build/CMakeCache.txt").write_text("Torch_DIR:PATH=/opt/torch\n")
        (folder / ".gitignore").write_text("/build/\n/.deps/\n")
        (folder / "CMakeLists.txt").write_text(PROJECT_FILE)

    def git(self, *arguments: str) -> str:
        command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", *arguments]
        found = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True)
        return found.stdout.strip()

    def commit(self, text: str, make: str = MAKE) -> str:
        (self.folder / "make.sh").write_text(make.format(text=text))
        self.git("add", ".")
        self.git("commit", "-q", "-m", text)
        return self.git("rev-parse", "HEAD")

    def resolve(self, text: str, *, rebuild: bool = False) -> tuple[str, Path]:
        return Builder(self.folder / "build", self.folder, rebuild).resolve(text, "--base")

    def said_by(self, text: str) -> str:
        """By the program that this builds."""
        program = self.resolve(text)[1]
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "project")


def test_a_commit_is_built_in_a_worktree_with_this_builds_settings(checkout: Checkout) -> None:
    first, second = checkout.commit("one"), checkout.commit("two")
    name, program = checkout.resolve("HEAD~1")
    assert name == f"HEAD~1 ({first[:12]})"
    assert program.is_relative_to(checkout.folder / ".deps/compare" / first)
    assert checkout.said_by("HEAD~1") == "one /opt/torch OFF"
    assert checkout.git("status", "--porcelain") == ""
    # kept, and made anew where asked or torn
    tree = checkout.folder / ".deps/compare" / second
    checkout.resolve(second)
    mark = tree / "mark"
    mark.write_text("")
    checkout.resolve(second[:10])
    assert mark.exists()
    checkout.resolve("HEAD", rebuild=True)
    assert not mark.exists()
    (tree / "make.sh").write_text("exit 1\n")
    assert checkout.said_by("HEAD") == "two /opt/torch OFF"
    # other settings configure anew
    (checkout.folder / "build/CMakeCache.txt").write_text("Torch_DIR:PATH=/other\n")
    assert checkout.said_by("HEAD") == "two /other OFF"
    # the newest worktrees are kept
    commits = [checkout.commit(str(i)) for i in range(KEPT_WORKTREES)]
    for commit in commits:
        checkout.resolve(commit)
    trees = {path.name for path in tree.parent.iterdir() if path.is_dir()}
    assert trees == set(commits)
    assert second not in checkout.git("worktree", "list")


def test_sides_that_are_none(checkout: Checkout, tmp_path: Path) -> None:
    build = make_build(tmp_path / "build")
    for text in (str(build), str(build / PROGRAM)):
        assert checkout.resolve(text) == (text, build / PROGRAM)
    commit = checkout.commit("bad", "echo 'error: no such thing'; exit 1\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("")
    nowhere = r"must be a build folder \(no such"
    refused = [("no_such_ref", nowhere), ("--output=x", nowhere), ("HEAD:make.sh", nowhere)]
    refused += [(str(tmp_path / "empty"), "no benchmarks/tiny_llama_bench in that folder")]
    refused += [(str(tmp_path / "text"), "cannot be executed")]
    refused += [
        ("HEAD", rf"commit {commit[:12]} does not build; [^|]*\n  \| (.*\n)*.*no such thing")
    ]
    for text, expected in refused:
        with pytest.raises(BadInputError, match=rf"--base.*{expected}"):
            checkout.resolve(text)
    (checkout.folder / "build/CMakeCache.txt").unlink()
    with pytest.raises(BadInputError, match=r"has no CMakeCache.txt.*scripts/bench --setup-only"):
        checkout.resolve("HEAD")


def test_settings_of_compiler_and_libraries_are_carried_over(tmp_path: Path) -> None:
    (tmp_path / "CMakeCache.txt").write_text(CACHE.format(folder=tmp_path))
    assert carried_settings(tmp_path) == {
        "Torch_DIR": "/opt/torch/Torch",
        "CMAKE_BUILD_TYPE": "Release",
        "TINY_LLAMA_WITH_HIP": "ON",
    }
