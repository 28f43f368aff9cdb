"""Block after block until every case has its verdict, on a clock of its own; the recording; and the
commits that a side may be."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest
from fake_bench import FFN, LOSS, PROGRAM, make_build
from samples import Json, Played, failed, skipped

from tinyllama_tools.compare.blocks import BASE, RecordingWriter, read_recording
from tinyllama_tools.compare.run import (
    ALL_DECIDED,
    ALL_LOOKS,
    BUDGET_USED,
    TOO_SHORT,
    SequentialRun,
)
from tinyllama_tools.compare.sides import KEPT_WORKTREES, Builder
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.core.process import Progress
from tinyllama_tools.stats.verdicts import plan_design


def ran(
    factors: dict[str, float], *, budget: float = 1e6, looks: int = 6, **more: object
) -> tuple[SequentialRun, Played, str]:
    """`more`: of Played, whose cases take a second."""
    played = Played(dict.fromkeys(factors, 1.0), factors, **more)
    said, kept = io.StringIO(), []
    run = SequentialRun(
        played, list(factors), plan_design(len(factors), looks=looks), budget,
        keep=kept.append, progress=Progress(said), clock=played,
    )  # fmt: skip
    try:
        run.run(verify=True)
    except KeyboardInterrupt:
        run.judge()
    blocks = sum(len(record.blocks) for record in run.cases.values())
    assert sum("base" in item for item in kept) == blocks
    return run, played, said.getvalue()


def outcomes(run: SequentialRun) -> dict[str, str | None]:
    return {name: found.outcome.value if found else None for name, found in run.judgements.items()}


def test_decided_cases_drop_out_so_that_time_goes_to_the_open_ones() -> None:
    looks = plan_design(4).looks
    factors = {"a": 1.0, "b": 1.2, "c": 0.8, "noisy": 1.0}
    run, played, said = ran(factors, scatter={"noisy": 0.1})
    assert played.asked[: looks[0]] == [list(factors)] * looks[0]
    assert all(cases == ["noisy"] for cases in played.asked[looks[0] :])
    assert len(played.asked) == run.blocks > looks[0]
    assert [outcomes(run)[name] for name in "abc"] == ["same", "slower", "faster"]
    assert f"after {looks[0]} blocks: 1 same, 1 slower, 1 faster; 1 open" in said
    assert run.costs.of(["noisy"]) == pytest.approx(2.0)
    assert run.costs.of(list(factors)) == pytest.approx(5.0)
    # the processes' start is no case's own time
    run, *_ = ran({"noisy": 1.0, "other": 1.0}, scatter={"noisy": 0.1, "other": 0.1})
    assert (run.costs.block, run.costs.cases["noisy"]) == pytest.approx((1.0, 1.0))
    run, *_ = ran({"a": 1.0})
    assert (run.blocks, run.ended) == (plan_design(1).looks[0], ALL_DECIDED)
    run, *_ = ran({"noisy": 1.03}, scatter={"noisy": 0.05}, looks=3)
    assert (run.blocks, run.ended) == (plan_design(1, looks=3).looks[-1], ALL_LOOKS)
    assert outcomes(run) == {"noisy": "unclear"}


def test_no_block_is_begun_that_cannot_reach_a_look_within_the_budget() -> None:
    first, second, *_ = plan_design(2).looks
    factors, scatter = {"far": 1.03, "near": 1.1}, {"far": 0.2, "near": 0.1}
    # to the first look with both cases; the second look needs more than is left then
    run, *_ = ran(factors, scatter=scatter, budget=3.0 * first + 5)
    assert (run.blocks, run.ended) == (first, BUDGET_USED)
    # where only one can go on, it is the one that is nearer to a verdict
    budget = 3.0 * first + 2.0 * (second - first) + 0.5
    run, played, _ = ran(factors, scatter=scatter, budget=budget)
    assert played.asked[first:] == [["near"]] * (second - first)
    assert run.cases["far"].closed == BUDGET_USED
    # a budget that reaches no look is refused after the first block
    run, *_ = ran({"a": 1.0, "b": 1.0}, budget=3.0 * first - 2)
    assert (run.ended, run.blocks) == (TOO_SHORT, 1)
    assert f"need {first} blocks of 3.0 s, {3.0 * first / 60:.1f} minutes in all" in run.refusal
    assert ran({"a": 1.0, "b": 1.0}, budget=3.0 * first)[0].refusal == ""


def test_blocks_that_became_slow_do_not_overrun_the_budget_for_ever() -> None:
    run, played, _ = ran({"a": 1.0, "b": 1.0}, slower_from=5, budget=60)
    assert (run.ended, outcomes(run)) == (BUDGET_USED, {})
    assert "--budget held 5 of the 17" in run.refusal
    # one block of 61 s is what nobody could foresee
    assert played.now < 60 * 1.15 + 61
    # before the first look the costliest cases go
    first, cases = plan_design(2).looks[0], {"step": 1.0, "part": 1.0}
    costs = {"step": 8.0, "part": 1.0}
    run, played, _ = ran(cases, costs=costs, slower_from=4, slower_by=1.5, budget=10.0 * first)
    assert run.cases["step"].closed == BUDGET_USED
    assert outcomes(run) == {"step": None, "part": "same"}
    assert (played.now <= 10.0 * first, run.refusal) == (True, "")


HEADER = {
    "recording": "tiny_llama paired blocks", "schema_version": 1, "base": "main", "new": "build",
    "pairs": 2, "slice_seconds": 0.015, "seed": 7, "started": "2026",
    "base_context": {"threads": 2}, "new_context": {},
}  # fmt: skip
BLOCK = {"block": 1, "case": FFN, "base": [0.01], "new": [0.011], "first": [0], "at": 1.5}
ITEMS: list[Json] = [
    {"opened": FFN, "side": BASE, "seconds": 0.01, "counters": {"operators": 20.0}},
    failed(0, LOSS),
    BLOCK,
    skipped(LOSS),
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
    assert read_recording(written) == (HEADER, ITEMS)
    before = written.read_text()
    with pytest.raises(BadInputError, match=r"blocks\.jsonl: is there already"):
        RecordingWriter(written, HEADER)
    assert written.read_text() == before
    # a last line cut short is left out
    written.write_text(before[:-10])
    assert read_recording(written).items == ITEMS[:-1]
    with pytest.raises(BadInputError, match="cannot be written"):
        RecordingWriter(written / "blocks.jsonl", HEADER)
    for line, text, expected in (
        (0, "[1]", r"\[0\]: \[1\] is not of type 'object'"),
        (0, json.dumps({**HEADER, "recording": "other"}), r"\[0\]\.recording: .* was expected"),
        (0, json.dumps({**HEADER, "schema_version": 2}), r"\[0\]\.schema_version: 1 was expected"),
        (2, "{", "line 3 cannot be read"),
        (3, json.dumps({**BLOCK, "base": [0.0]}), r"\[3\]\.base\[0\]: 0.0 is less than"),
        (3, json.dumps({"block": 1, "case": FFN, "base": [1.0]}), r"\[3\]: 'at' is a required"),
        (3, json.dumps({**BLOCK, "new": [0.01, 0.02]}), "line 4: not as many slices on both sides"),
        (1, "[" * 100_000, "line 2 cannot be read"),
    ):
        lines = before.splitlines()
        lines[line] = text
        written.write_text("\n".join(lines) + "\n")
        with pytest.raises(BadInputError, match=rf"blocks\.jsonl: .*{expected}"):
            read_recording(written)
    written.write_text("")
    with pytest.raises(BadInputError, match="empty"):
        read_recording(written)


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
        (folder / "build/CMakeCache.txt").write_text(CACHE.format(folder=folder / "build"))
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

    def resolve(self, text: str) -> tuple[str, Path]:
        return Builder(self.folder / "build", self.folder).resolve(text, "--base")

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
    assert checkout.said_by("HEAD~1") == "one /opt/torch OFF ON"
    assert checkout.git("status", "--porcelain") == ""
    # kept, and made anew where asked or torn
    tree = checkout.folder / ".deps/compare" / second
    checkout.resolve(second)
    mark = tree / "mark"
    mark.write_text("")
    checkout.resolve(second[:10])
    assert mark.exists()
    (tree / "make.sh").write_text("exit 1\n")
    assert checkout.said_by("HEAD") == "two /opt/torch OFF ON"
    assert not mark.exists()
    # other settings configure anew
    (checkout.folder / "build/CMakeCache.txt").write_text("Torch_DIR:PATH=/other\n")
    assert checkout.said_by("HEAD").startswith("two /other OFF")
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
    refused += [("HEAD", rf"commit {commit[:12]} does not build; (.*\n)*.*no such thing")]
    for text, expected in refused:
        with pytest.raises(BadInputError, match=rf"--base.*{expected}"):
            checkout.resolve(text)
    (checkout.folder / "build/CMakeCache.txt").unlink()
    with pytest.raises(BadInputError, match=r"has no CMakeCache.txt.*scripts/bench --setup-only"):
        checkout.resolve("HEAD")
