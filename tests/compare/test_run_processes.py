"""What a side names, and the resident process that measures it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from fake_bench import FFN, LOSS, PROGRAM, make_build, requests_of, starts_of

from tinyllama_tools.compare.served_process import (
    SHORT_SPIN,
    WAITING,
    CaseFailedError,
    CaseSkippedError,
    ProcessLostError,
    ServedProcess,
    ServedProgram,
)
from tinyllama_tools.compare.sides import KEPT_WORKTREES, Builder, carried_settings
from tinyllama_tools.core.app import PLACING, BadInputError

# a guard only, as a busy machine may take seconds to start a program; below the 50 s that a
# program here sleeps
LIMIT = 30.0


def started(build: Path, *, limit: float = LIMIT, padding: int = 0) -> ServedProcess:
    program = ServedProgram("base", build / PROGRAM, ("--threads=1",), {"SIDE": "b"})
    return ServedProcess(program, limit=limit, padding=padding)


def troubled(tmp_path: Path, at: str, how: str) -> Path:
    return make_build(tmp_path / "build", trouble={FFN: {"at": at, "how": how}})


def test_a_case_is_opened_timed_and_closed(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", within=0.0, between=0.0)
    with started(build) as process:
        greeting = process.greet()
        opened = process.open(FFN, meter=True)
        seconds = process.time(FFN, 0.015)
        process.close_case(FFN)
    assert FFN in greeting.cases
    assert greeting.context["device"] == {"name": "fake"}
    assert opened.counters["operators"] == 20
    assert seconds == [pytest.approx(0.010)] * 3
    assert not process.is_running
    asked = [(r["do"], r["case"], r.get("seconds")) for r in requests_of(build)]
    assert asked == [("open", FFN, None), ("time", FFN, 0.015), ("close", FFN, None)]


@pytest.fixture(autouse=True)
def without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """What whoever runs the tests has set must not decide about them."""
    for name in (*WAITING, *PLACING):
        monkeypatch.delenv(name, raising=False)


def openmp_settings(**of_side: str) -> dict[str, str]:
    """What a side's process sees of them."""
    found = ServedProgram("base", Path("program"), (), of_side).environment_with(0)
    return {name: found[name] for name in (*WAITING, *PLACING) if name in found}


def test_the_environment_is_padded_and_workers_spin_shortly(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build")
    with started(build, padding=77) as process:
        process.greet()
    (start,) = starts_of(build)
    assert start["arguments"] == ["--threads=1", "--serve"]
    assert start["environment"]["TINY_LLAMA_PADDING"] == "x" * 77
    assert start["environment"].items() >= SHORT_SPIN.items()
    # a passive policy would change what is measured
    assert "OMP_WAIT_POLICY" not in start["environment"]
    assert start["environment"]["SIDE"] == "b"


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "7"), ("KMP_BLOCKTIME", "200")],
)
def test_how_workers_wait_is_the_user_s_choice(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    pinned = {"OMP_PROC_BIND": "true"}
    assert openmp_settings() == {**SHORT_SPIN, **pinned}
    # of one side only
    assert openmp_settings(**{name: value}) == {name: value, **pinned}
    # of both
    monkeypatch.setenv(name, value)
    assert openmp_settings() == {name: value, **pinned}


@pytest.mark.parametrize(
    ("name", "value"), [("OMP_NUM_THREADS", "2"), ("OMP_PROC_BIND", "false"), ("OMP_PLACES", "{0}")]
)
def test_threads_are_placed_as_the_program_would_place_them(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """It pins them where nothing says how; what one side alone sets says it as well."""
    assert openmp_settings()["OMP_PROC_BIND"] == "true"
    assert openmp_settings(**{name: value}) == {**SHORT_SPIN, name: value}
    monkeypatch.setenv(name, value)
    assert openmp_settings() == {**SHORT_SPIN, name: value}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("crash", "ended with 3 at open ffn/.*; it last said: out of luck"),
        ("signal", "ended by signal SIGSEGV at open ffn/"),
        ("nonsense", r"answered open ffn/.* with '\[\"what\?\"\]'"),
        ("zero", r"answered open with '\{\"seconds\": \[0.0\]\}'"),
    ],
)
def test_a_process_that_fails_to_answer_is_lost(tmp_path: Path, how: str, expected: str) -> None:
    with started(troubled(tmp_path, "open", how)) as process:
        process.greet()
        with pytest.raises(ProcessLostError, match=expected):
            process.open(FFN)
        assert not process.is_running


@pytest.mark.parametrize("how", ["hang", "endless"])
def test_a_process_that_gives_no_answer_in_time_is_killed(tmp_path: Path, how: str) -> None:
    with started(troubled(tmp_path, "time", how)) as process:
        process.greet()
        process.open(FFN)
        # only now: the start and the opening are to be answered, however busy the machine is
        process._limit = 0.3
        began = time.monotonic()
        with pytest.raises(ProcessLostError, match=r"no answer to time ffn/.* within 0\.3 s"):
            process.time(FFN, 0.015)
        # the fake sleeps for a minute, or never ends
        assert time.monotonic() - began < 30.0
        assert not process.is_running


def test_a_failed_or_skipped_case_leaves_the_process_to_the_others(tmp_path: Path) -> None:
    trouble = {
        FFN: {"at": "open", "how": "failed"},
        LOSS: {"at": "open", "how": "skipped"},
    }
    with started(make_build(tmp_path / "build", trouble=trouble)) as process:
        process.greet()
        with pytest.raises(CaseFailedError, match="told to be failed"):
            process.open(FFN)
        with pytest.raises(CaseSkippedError, match="told to be skipped"):
            process.open(LOSS)
        assert process.is_running


def test_a_program_without_turns_is_told_from_one_that_refuses_its_options(tmp_path: Path) -> None:
    with (
        started(make_build(tmp_path / "old", is_served=False)) as process,
        pytest.raises(BadInputError, match="does not know --serve; compare stored results"),
    ):
        process.greet()
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\necho 'tiny_llama_bench: --sizes huge: unknown' >&2\nexit 2\n")
    refusing.chmod(0o755)
    program = ServedProgram("new", refusing)
    with (
        ServedProcess(program, limit=LIMIT, padding=0) as process,
        pytest.raises(BadInputError, match="new: tiny_llama_bench: --sizes huge: unknown"),
    ):
        process.greet()


def test_a_program_that_cannot_be_started_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be started: No such file"):
        ServedProcess(ServedProgram("base", tmp_path / "none"), limit=LIMIT, padding=0)


def test_closing_ends_a_process_that_hangs_with_all_its_children(tmp_path: Path) -> None:
    script = tmp_path / "hanging"
    script.write_text(f"#!/bin/sh\nsleep 50 &\necho $! >{tmp_path}/child\nwait\n")
    script.chmod(0o755)
    process = ServedProcess(ServedProgram("base", script), limit=LIMIT, padding=0)
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.close(wait=False)
    child = int((tmp_path / "child").read_text())
    while _is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z" and os.path.exists(f"/proc/{process}")  # noqa: PTH110


# builds a "program" that says which commit and which settings it is of
PROJECT_FILE = """\
cmake_minimum_required(VERSION 3.20)
project(fake LANGUAGES NONE)
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
