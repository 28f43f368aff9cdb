"""What --base and --new name, and the worktrees that git commits are built in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from turns_stand_in import PROGRAM, make_build

from tinyllama_tools.compare.sides import KEPT_WORKTREES, Builder, carried_settings
from tinyllama_tools.core.app import BadInputError

# builds a "program" that says which commit and which settings it is of
PROJECT_FILE = """\
cmake_minimum_required(VERSION 3.20)
project(stand_in LANGUAGES NONE)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/benchmarks)
add_custom_target(tiny_llama_bench
  COMMAND sh ${CMAKE_SOURCE_DIR}/make.sh "${CMAKE_BINARY_DIR}/benchmarks/tiny_llama_bench"
    "${Torch_DIR} ${TINY_LLAMA_BUILD_TESTS}")
"""
MAKE = 'printf "#!/bin/sh\\necho {text} $2\\n" > "$1"; chmod +x "$1"; echo built >> {log}\n'
CACHE = """\
# comment
Torch_DIR:UNINITIALIZED=/opt/torch/Torch
CMAKE_BUILD_TYPE:STRING=Release
CMAKE_CXX_COMPILER_LAUNCHER:STRING=
benchmark_DIR:INTERNAL=/project/build/pkgRedirects
FETCHCONTENT_SOURCE_DIR_BENCHMARK:PATH=/project/.deps/benchmark
TINY_LLAMA_WITH_HIP:STRING=ON
TINY_LLAMA_HIPCC:FILEPATH=TINY_LLAMA_HIPCC-NOTFOUND
TINY_LLAMA_BUILD_TESTS:BOOL=ON
CMAKE_HOME_DIRECTORY:INTERNAL=/project
SOMETHING_ELSE:STRING=1
"""


class Checkout:
    """A git project whose commits build in an instant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.parent / "builds"
        self.said: list[str] = []
        folder.mkdir()
        self.git("init", "-q")
        (folder / "build").mkdir()
        (folder / "build/CMakeCache.txt").write_text("Torch_DIR:PATH=/opt/torch\n")
        (folder / ".gitignore").write_text("/build/\n/.deps/\n")
        (folder / "CMakeLists.txt").write_text(PROJECT_FILE)

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        command = ["git", *who, *arguments]
        found = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True)
        return found.stdout.strip()

    def commit(self, text: str, make: str = MAKE) -> str:
        (self.folder / "make.sh").write_text(make.format(text=text, log=self.log))
        self.git("add", ".")
        self.git("commit", "-q", "-m", text)
        return self.git("rev-parse", "HEAD")

    def builder(self, *, rebuild: bool = False) -> Builder:
        return Builder(self.folder / "build", self.folder, rebuild, self.said.append)

    @property
    def builds(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "project")


def said_by(program: Path) -> str:
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.strip()


def test_a_build_folder_and_a_program_are_taken_as_they_are(
    checkout: Checkout, tmp_path: Path
) -> None:
    build = make_build(tmp_path / "build")
    for text in (build, build / PROGRAM):
        side = checkout.builder().resolve(str(text), "--base")
        assert (side.name, side.program, side.commit) == (str(text), build / PROGRAM, "")


def test_a_commit_is_built_in_a_worktree_with_this_builds_settings(checkout: Checkout) -> None:
    first = checkout.commit("one")
    checkout.commit("two")
    side = checkout.builder().resolve("HEAD~1", "--base")
    assert (side.name, side.commit) == (f"HEAD~1 ({first[:12]})", first)
    assert side.program.is_relative_to(checkout.folder / ".deps/compare" / first)
    assert said_by(side.program) == "one /opt/torch OFF"
    assert checkout.git("status", "--porcelain") == ""
    assert (checkout.folder / "make.sh").read_text().startswith('printf "#!/bin/sh\\necho two')


def test_a_worktree_is_kept_and_made_anew_where_asked_or_torn(checkout: Checkout) -> None:
    commit = checkout.commit("one")
    checkout.builder().resolve("HEAD", "--new")
    tree = checkout.folder / ".deps/compare" / commit
    mark = tree / "mark"
    mark.write_text("")
    checkout.builder().resolve(commit[:10], "--new")
    assert mark.exists()
    checkout.builder(rebuild=True).resolve("HEAD", "--new")
    assert not mark.exists()
    (tree / "make.sh").write_text("exit 1\n")
    assert said_by(checkout.builder().resolve("HEAD", "--new").program) == "one /opt/torch OFF"


def test_other_settings_configure_anew(checkout: Checkout) -> None:
    checkout.commit("one")
    checkout.builder().resolve("HEAD", "--new")
    (checkout.folder / "build/CMakeCache.txt").write_text("Torch_DIR:PATH=/other\n")
    side = checkout.builder().resolve("HEAD", "--new")
    assert said_by(side.program) == "one /other OFF"


def test_the_newest_worktrees_are_kept(checkout: Checkout) -> None:
    commits = [checkout.commit(str(i)) for i in range(KEPT_WORKTREES + 1)]
    for commit in commits:
        checkout.builder().resolve(commit, "--new")
    trees = {path.name for path in (checkout.folder / ".deps/compare").iterdir() if path.is_dir()}
    assert trees == set(commits[1:])
    assert commits[0] not in checkout.git("worktree", "list")


def test_a_commit_that_does_not_build_shows_the_end_of_the_log(checkout: Checkout) -> None:
    commit = checkout.commit("bad", "echo 'error: no such thing'; exit 1\n")
    with pytest.raises(BadInputError) as caught:
        checkout.builder().resolve("HEAD", "--base")
    message = str(caught.value)
    assert f"--base: commit {commit[:12]} does not build" in message
    assert "| error: no such thing" in message
    log = checkout.folder / f".deps/log/compare_{commit[:12]}.log"
    assert str(log) in message
    assert "no such thing" in log.read_text()


def test_a_commit_that_does_not_configure_is_told(checkout: Checkout) -> None:
    (checkout.folder / "CMakeLists.txt").write_text("message(FATAL_ERROR torn)\n")
    checkout.commit("bad")
    with pytest.raises(BadInputError, match="does not configure"):
        checkout.builder().resolve("HEAD", "--new")


@pytest.mark.parametrize("text", ["no_such_ref", "--output=x", "HEAD:make.sh"])
def test_what_is_neither_is_named(checkout: Checkout, text: str) -> None:
    checkout.commit("one")
    with pytest.raises(BadInputError, match=rf"--base {text}: must be a build folder \(no such"):
        checkout.builder().resolve(text, "--base")


def test_a_folder_without_a_program_and_a_file_that_is_none_are_named(
    checkout: Checkout, tmp_path: Path
) -> None:
    checkout.commit("one")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match=r"no benchmarks/tiny_llama_bench in that folder"):
        checkout.builder().resolve(str(tmp_path / "empty"), "--new")
    (tmp_path / "text").write_text("")
    with pytest.raises(BadInputError, match="cannot be executed"):
        checkout.builder().resolve(str(tmp_path / "text"), "--new")


def test_without_a_build_of_its_own_the_settings_are_missing(checkout: Checkout) -> None:
    checkout.commit("one")
    (checkout.folder / "build/CMakeCache.txt").unlink()
    with pytest.raises(BadInputError, match=r"has no CMakeCache.txt.*scripts/bench --setup-only"):
        checkout.builder().resolve("HEAD", "--new")


def test_settings_of_compiler_and_libraries_are_carried_over(tmp_path: Path) -> None:
    cache = tmp_path / "CMakeCache.txt"
    inside = f"TINY_LLAMA_INSIDE:PATH={tmp_path}/made\n"
    cache.write_text(CACHE + inside)
    assert carried_settings(cache, tmp_path) == {
        "Torch_DIR": "/opt/torch/Torch",
        "CMAKE_BUILD_TYPE": "Release",
        "FETCHCONTENT_SOURCE_DIR_BENCHMARK": "/project/.deps/benchmark",
        "TINY_LLAMA_WITH_HIP": "ON",
    }
