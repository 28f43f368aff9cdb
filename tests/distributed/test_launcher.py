"""Local ranks: their environment, cores and port, and that none is left, however they end."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from made_up_scaling import write_run
from tinyllama_tools.commands import ranks as measuring
from tinyllama_tools.commands.ranks import (
    allowed_cores,
    cause_of,
    core_order,
    core_sets,
    measure,
    watch,
)
from tinyllama_tools.commands.scaling import parse_options
from tinyllama_tools.core.app import INTERRUPTED, BadInputError, Json
from tinyllama_tools.core.process import Progress
from tinyllama_tools.data.ranks import Failure

FAKE = Path(__file__).with_name("scaling_fake.py")
# a loaded machine may take long to start a process
SOON = 20.0
LOST = "rank 1 did not answer in step 3"


class Launch:
    """A build folder with the fake, and where it leaves what it saw."""

    def __init__(self, root: Path) -> None:
        self.build, self.folder, self.out = root / "build", root / "seen", root / "results"
        program = self.build / measuring.PROGRAM
        program.parent.mkdir(parents=True)
        shutil.copy(FAKE, program)
        write_run(self.folder, rounds=1)
        self.said = io.StringIO()

    def options(self, *arguments: str) -> argparse.Namespace:
        return parse_options([f"--build-folder={self.build}", *arguments])

    def measure(self, *arguments: str) -> tuple[int, list[Failure]]:
        options = self.options("--oversubscribe", *arguments)
        return measure(options, self.out, Progress(self.said))

    def seen(self, rank: int) -> Json:
        return json.loads((self.folder / f"seen_{rank}.json").read_text(encoding="utf-8"))

    def assert_none_is_left(self) -> None:
        """Of the two ranks, and of what those started."""
        started = [self.seen(rank) for rank in range(2)]
        assert_ended(pid for seen in started for pid in (seen["pid"], *seen["children"]))


def is_running(pid: int) -> bool:
    """A zombie that nobody has waited for does not run."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def assert_ended(pids: Iterable[int]) -> None:
    """What was killed by now need not have ended yet."""
    left, until = list(pids), time.monotonic() + SOON
    while left := [pid for pid in left if is_running(pid)]:
        assert time.monotonic() < until, f"{left} still run"
        time.sleep(0.01)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    made = Launch(tmp_path)
    monkeypatch.setenv("FAKE_FOLDER", str(made.folder))
    monkeypatch.delenv("FAKE_FAULT", raising=False)
    return made


def test_ranks_get_the_environment_of_torchrun_and_cores(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
        monkeypatch.setenv(name, "7")
    assert launch.measure("--processes=2", "--", "--size=tiny") == (0, [])
    ranks = [launch.seen(rank) for rank in range(2)]
    ports = {seen["environment"].pop("MASTER_PORT") for seen in ranks}
    assert len(ports) == 1 and int(ports.pop()) > 1024
    for rank, seen in enumerate(ranks):
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        expected = {name: str(number) for name, number in numbers.items()}
        assert seen["environment"] == expected | {"MASTER_ADDR": "127.0.0.1"}
        assert not [name for name in seen["others"] if name.endswith(("PROCID", "RANK"))]
        assert {"--threads=1", "--timeout=60", "--size=tiny"} <= set(seen["arguments"])
    every = allowed_cores()
    assert ranks[0]["cores"] == every[:1]
    assert ranks[1]["cores"] == every[1 % len(every) :][:1]
    assert json.loads((launch.out / "ranks_2.json").read_text(encoding="utf-8"))["benchmarks"]
    log = (launch.out / "ranks_2.log").read_text(encoding="utf-8").splitlines()
    assert sorted(log) == ["[rank 0] rank 0 of 2 is there", "[rank 1] rank 1 of 2 is there"]


def test_cores_are_shared_out() -> None:
    # 0 and 4, 1 and 5, ... are the two threads of a core
    assert core_order(range(8), {core: core % 4 for core in range(8)}) == [*range(8)]
    assert core_order(range(4), {0: 0, 1: 0, 2: 2, 3: 2}) == [0, 2, 1, 3]
    assert core_sets(2, 2, [0, 2, 1, 3]) == [[0, 2], [1, 3]]
    assert core_sets(3, 1, [5, 6], oversubscribe=True) == [[5], [6], [5]]


def test_what_cannot_be_started_is_told(launch: Launch) -> None:
    many = 4 * len(allowed_cores())
    with pytest.raises(BadInputError, match=rf"--processes {many} with .* logical processors"):
        measure(launch.options(f"--processes=1,{many}"), launch.out, Progress())
    assert not launch.out.exists(), "before any rank is started"
    (launch.build / measuring.PROGRAM).unlink()
    with pytest.raises(BadInputError, match="build it: scripts/bench --setup-only"):
        launch.measure("--processes=2")


@pytest.mark.parametrize(
    ("fault", "worlds", "status", "failing", "words"),
    [
        ("1:dies", "2", 1, [2], "rank 1 of 2 was ended by SIGKILL"),
        ("1:hangs", "2", 1, [2], f"rank 0 of 2 ended with 1; its last words: .*{LOST}"),
        ("1:ignores_sigterm", "2", 1, [2], f"rank 0 of 2 ended with 1; its last words: .*{LOST}"),
        # the next world is measured after a wrong result, not after a refused option
        ("1:fails", "2,4", 1, [2, 4], "gradients differ by 0.5"),
        ("0:refuses", "2,4", 2, [2], "must be one of tiny, small"),
    ],
)
def test_a_rank_that_fails_ends_the_others_and_is_quoted(
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    worlds: str,
    status: int,
    failing: list[int],
    words: str,
) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    hangs = fault in ("1:hangs", "1:ignores_sigterm")
    # a test need not wait for a rank that hangs as people do
    monkeypatch.setattr(measuring, "GRACE_SECONDS", 0.1 if hangs else SOON)
    monkeypatch.setattr(measuring, "TERM_SECONDS", 0.3)
    found, failures = launch.measure(f"--processes={worlds}", "--timeout=0.5")
    assert (found, [failure.ranks for failure in failures]) == (status, failing)
    assert re.search(words, failures[0].words, re.DOTALL)
    assert failures[0].words.endswith("; ended by force: 1") == hangs
    assert f"2 ranks: {failures[0].words}" in launch.said.getvalue()
    launch.assert_none_is_left()
    log = (launch.out / "ranks_2.log").read_text(encoding="utf-8")
    assert fault == "0:refuses" or f"[rank 0] tiny_llama_scaling: rank 0 of 2: {LOST}" in log


def test_of_ranks_that_end_at_once_the_cause_is_named() -> None:
    for ends, words in (
        # a signal and a refusal are the cause, the 1 of others the effect
        ([(1, "lost"), (-9, "")], "rank 1 of 2 was ended by SIGKILL"),
        ([(1, "lost"), (2, "huge")], "rank 1 of 2 ended with 2; its last words: huge"),
        # all ranks end with 1 where a result is wrong, and one alone says so
        ([(1, ""), (1, "differs")], "rank 1 of 2 ended with 1; its last words: differs"),
        # the effect may end first
        (
            [(1, "rank 1 does not answer"), (1, "full")],
            "rank 1 of 2 ended with 1; its last words: full",
        ),
    ):
        ranks = []
        for number, (status, said) in enumerate(ends):
            rank = SimpleNamespace(number=number, status=None, words=[said] if said else [])
            rank.look = lambda rank=rank, status=status: setattr(rank, "status", status) or status
            rank.close = lambda: None
            ranks.append(rank)
        assert watch(ranks, SOON, Progress(io.StringIO())).what == words


def test_a_rank_that_hung_is_the_cause_of_what_others_missed() -> None:
    missed = SimpleNamespace(number=1, status=2, words=["rank 0: nobody answers there"])
    hung = SimpleNamespace(number=0, status=-15, words=[])
    end = cause_of([missed, hung], [0], 2)
    assert (end.status, end.what) == (1, "rank 0 of 2 did not end after the others had")


# in the background of a shell SIGINT is ignored, and Python then leaves it so
LAUNCHER = """
import signal
import sys
from tinyllama_tools.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def launcher(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, project_root: Path
) -> Iterator[subprocess.Popen[str]]:
    """scripts/scaling in another process, which has measured one rank and started two, the second
    of which hangs."""
    monkeypatch.setenv("FAKE_FAULT", "1:hangs")
    monkeypatch.setenv("PYTHONPATH", str(project_root / "scripts"))
    options = ["--oversubscribe", f"--build-folder={launch.build}", f"--results={launch.out}"]
    command = [sys.executable, "-c", LAUNCHER, "scaling", *options, "--processes=1,2,4"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until = time.monotonic() + SOON
    # the launcher watches its ranks, which it does not yet while it starts them
    logs = "*_scaling/ranks_2.log"
    while not any("rank 1 of 2 is" in log.read_text() for log in launch.out.glob(logs)):
        assert time.monotonic() < until, "the ranks did not start"
        time.sleep(0.02)
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_reaches_the_ranks_and_what_was_measured_is_written(
    launch: Launch, launcher: subprocess.Popen[str]
) -> None:
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=SOON)
    assert launcher.returncode == INTERRUPTED, output
    assert "2 ranks: interrupted" in output and "finish the round in hand" in output
    launch.assert_none_is_left()
    (file,) = launch.out.glob("*_scaling/scaling.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["processes"] == [1]
    assert [(one["ranks"], one["status"]) for one in found["failures"]] == [(2, 130)]


def test_ranks_do_not_outlive_a_launcher_that_was_killed(
    launch: Launch, launcher: subprocess.Popen[str]
) -> None:
    launcher.kill()
    launcher.wait(timeout=SOON)
    assert_ended(launch.seen(rank)["pid"] for rank in range(2))
    for rank in range(2):
        # of a real rank there are none: nobody is left to end what a rank itself started
        for child in launch.seen(rank)["children"]:
            os.kill(child, signal.SIGKILL)
