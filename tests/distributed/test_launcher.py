"""Local ranks: their environment, cores and port, and that none is left, however they end."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from made_up_scaling import write_run
from tinyllama_tools.commands import ranks as measuring
from tinyllama_tools.commands.ranks import (
    Deadlines,
    Measured,
    WorldEnd,
    allowed_cores,
    core_order,
    core_sets,
    measure,
)
from tinyllama_tools.commands.scaling import parse_options
from tinyllama_tools.core.app import INTERRUPTED, BadInputError, Json
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
        self.said: list[str] = []

    def options(self, *arguments: str) -> argparse.Namespace:
        return parse_options(["--oversubscribe", f"--build-folder={self.build}", *arguments])

    def measure(self, *arguments: str) -> Measured:
        return measure(self.options(*arguments), self.out, self.said.append, lambda _: None)

    def seen(self, rank: int) -> Json:
        return json.loads((self.folder / f"seen_{rank}.json").read_text(encoding="utf-8"))

    def wait_for(self, ranks: int) -> None:
        until = time.monotonic() + SOON
        while not all((self.folder / f"seen_{r}.json").exists() for r in range(ranks)):
            assert time.monotonic() < until, "the ranks did not start"
            time.sleep(0.02)

    def left_over(self, ranks: int) -> list[int]:
        """Processes of the ranks, and what those started, that still run."""
        started = [self.seen(rank) for rank in range(ranks)]
        pids = [pid for seen in started for pid in (seen["pid"], *seen["children"])]
        # what was killed by now need not have ended yet
        until = time.monotonic() + SOON
        while any(map(is_running, pids)) and time.monotonic() < until:
            time.sleep(0.01)
        return [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    """A zombie that nobody has waited for does not run."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    made = Launch(tmp_path)
    monkeypatch.setenv("FAKE_FOLDER", str(made.folder))
    monkeypatch.delenv("FAKE_FAULT", raising=False)
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test need not wait for a rank that hangs as people do."""
    monkeypatch.setattr(measuring, "GRACE_SECONDS", 0.1)
    quick = lambda others: Deadlines(others, after_term=0.3)  # noqa: E731
    monkeypatch.setattr(measuring, "Deadlines", quick)


def test_ranks_get_the_environment_of_torchrun(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "7")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "7")
    assert launch.measure("--processes=2", "--", "--size=tiny").status == 0
    ports = set()
    for rank in range(2):
        seen = launch.seen(rank)
        ports.add(seen["environment"].pop("MASTER_PORT"))
        assert seen["environment"] == {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
        }
        assert not {"SLURM_PROCID", "OMPI_COMM_WORLD_RANK"} & set(seen["others"])
        assert {"--threads=1", "--timeout=60", "--size=tiny"} <= set(seen["arguments"])
    assert len(ports) == 1 and int(ports.pop()) > 1024
    assert json.loads((launch.out / "ranks_2.json").read_text(encoding="utf-8"))["benchmarks"]
    log = (launch.out / "ranks_2.log").read_text(encoding="utf-8").splitlines()
    assert sorted(log) == ["[rank 0] rank 0 of 2 is there", "[rank 1] rank 1 of 2 is there"]


def test_each_rank_is_pinned(launch: Launch) -> None:
    assert launch.measure("--processes=2").status == 0
    every = allowed_cores()
    cores = [launch.seen(rank)["cores"] for rank in range(2)]
    assert [len(one) for one in cores] == [1, 1]
    assert set(cores[0] + cores[1]) <= set(every)
    assert cores[0] != cores[1] or len(every) == 1


def test_cores_are_shared_out() -> None:
    # 0 and 4, 1 and 5, ... are the two threads of a core
    first = {core: core % 4 for core in range(8)}
    ordered = core_order(range(8), first)
    assert ordered == [0, 1, 2, 3, 4, 5, 6, 7]
    assert core_order([0, 1, 2, 3], {0: 0, 1: 0, 2: 2, 3: 2}) == [0, 2, 1, 3]
    assert core_sets(2, 2, ordered) == [(0, 1), (2, 3)]
    assert core_sets(3, 1, [5, 6], oversubscribe=True) == [(5,), (6,), (5,)]


def test_too_many_ranks_are_refused_before_any_starts(launch: Launch) -> None:
    many = 4 * len(allowed_cores())
    options = launch.options(f"--processes=1,{many}")
    options.oversubscribe = False
    with pytest.raises(BadInputError, match=rf"--processes {many} with .* logical processors"):
        measure(options, launch.out, launch.said.append, lambda _: None)
    assert not launch.out.exists()


@pytest.mark.parametrize(
    ("fault", "status", "ranks", "words"),
    [
        ("1:dies", 1, [2], ["rank 1 of 2 was ended by SIGKILL"]),
        ("1:hangs", 1, [2], ["rank 0 of 2 ended with 1; its last words:", LOST]),
        ("1:ignores_sigterm", 1, [2], ["rank 0 of 2 ended with 1; its last words:", LOST]),
        # the next world is measured after a wrong result, not after a refused option
        ("1:fails", 1, [2, 4], ["gradients differ by 0.5"]),
        ("0:refuses", 2, [2, 4], ["must be one of tiny, small"]),
        # all ranks end with 1 where a result is wrong, and rank 0 alone says so, perhaps last
        ("1:is_silent", 1, [2], ["rank 0 of 2 ended with 1; its last words: wrong result: grad"]),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_a_rank_that_fails_ends_the_others_and_is_quoted(
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    status: int,
    ranks: list[int],
    words: list[str],
) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    measured = launch.measure(f"--processes={','.join(map(str, ranks))}", "--timeout=0.5")
    assert measured.status == status
    assert [failure.ranks for failure in measured.failures] == ranks
    assert all(text in measured.failures[0].words for text in words)
    if status == 2:
        not_started = "not started, since the command ended before"
        assert measured.failures[1:] == [Failure(4, 2, not_started)]
    if fault in {"1:hangs", "1:ignores_sigterm"}:
        assert "2 ranks: ended by force: 1" in launch.said
    assert launch.left_over(2) == []
    log = (launch.out / "ranks_2.log").read_text(encoding="utf-8")
    if fault in {"1:dies", "1:fails", "1:hangs"}:
        assert f"[rank 0] tiny_llama_scaling: rank 0 of 2: {LOST}" in log


def test_an_interrupt_between_two_worlds_names_those_that_were_not_started(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> WorldEnd:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "run_world", interrupted)
    measured = launch.measure("--processes=1,2")
    assert measured.status == INTERRUPTED
    assert [(one.ranks, one.status) for one in measured.failures] == [
        (1, INTERRUPTED),
        (2, INTERRUPTED),
    ]


def test_a_port_that_was_taken_meanwhile_is_another_one(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAULT", "0:port_taken")
    assert launch.measure("--processes=2").status == 0
    ports = (launch.folder / "ports").read_text(encoding="utf-8").split()
    assert len(ports) == 2
    assert (launch.out / "ranks_2.json").exists()


def test_a_program_that_is_not_built_says_how(launch: Launch) -> None:
    (launch.build / measuring.PROGRAM).unlink()
    with pytest.raises(BadInputError, match="build it: scripts/bench --setup-only"):
        launch.measure("--processes=2")


# in the background of a shell SIGINT is ignored, and Python then leaves it so
LAUNCHER = """
import signal
import sys
from pathlib import Path
from tinyllama_tools.commands.ranks import measure
from tinyllama_tools.commands.scaling import parse_options
signal.signal(signal.SIGINT, signal.default_int_handler)
def show(line):
    print(line, flush=True)

measured = measure(parse_options(sys.argv[2:]), Path(sys.argv[1]), print, show)
sys.exit(measured.status)
"""


@pytest.fixture
def launcher(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, project_root: Path
) -> Iterator[subprocess.Popen[str]]:
    """Another process that has started two ranks, the second of which hangs."""
    monkeypatch.setenv("FAKE_FAULT", "1:hangs")
    monkeypatch.setenv("PYTHONPATH", str(project_root / "scripts"))
    options = ["--oversubscribe", f"--build-folder={launch.build}", "--processes=2"]
    command = [sys.executable, "-c", LAUNCHER, str(launch.out), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    launch.wait_for(2)
    # the launcher watches its ranks, which it does not yet while it starts them
    assert process.stdout is not None
    while process.stdout.readline() not in {"rank 0 of 2 is there\n", ""}:
        pass
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_reaches_the_ranks_and_leaves_none(
    launch: Launch, launcher: subprocess.Popen[str]
) -> None:
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=SOON)
    assert launcher.returncode == INTERRUPTED, output
    assert "2 ranks: interrupted" in output
    assert "finish the round in hand" in output
    assert launch.left_over(2) == []


def test_ranks_do_not_outlive_a_launcher_that_was_killed(
    launch: Launch, launcher: subprocess.Popen[str]
) -> None:
    launcher.kill()
    launcher.wait(timeout=SOON)
    ranks = [launch.seen(rank)["pid"] for rank in range(2)]
    until = time.monotonic() + SOON
    while any(map(is_running, ranks)):
        assert time.monotonic() < until, "a rank outlived its launcher"
        time.sleep(0.02)
    for rank in range(2):
        # of a real rank there are none: nobody is left to end what a rank itself started
        for child in launch.seen(rank)["children"]:
            os.kill(child, signal.SIGKILL)
