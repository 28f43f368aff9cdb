"""scripts/scaling with a fake program: environment and cores of local ranks, how they end, that
none is left, files and exit status."""

import io
import json
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from built_programs import TIMEOUT_S, Json, read_json, start_tool, wait_until
from published import write_run
from tinyllama_tools.commands import ranks as measuring
from tinyllama_tools.commands.ranks import (
    allowed_cores,
    cause_of,
    core_order,
    core_sets,
    run_world,
    watch,
)
from tinyllama_tools.core.app import INTERRUPTED
from tinyllama_tools.core.process import Progress
from tools import scaling

FAKE = Path(__file__).with_name("scaling_fake.py")
# a loaded machine may take long to start a process
SOON = 20.0


class Launch:
    """A build folder with the fake, which finds results, and where it leaves what it saw."""

    def __init__(self, root: Path) -> None:
        self.build, self.seen, self.out = root / "build", root / "seen", root / "results"
        self.program = self.build / "benchmarks" / measuring.PROGRAM
        self.program.parent.mkdir(parents=True)
        shutil.copy(FAKE, self.program)
        write_run(self.seen, rounds=1)

    def arguments(self, *more: str) -> list[str]:
        folders = [f"--build-folder={self.build}", f"--out={self.out}"]
        return ["--oversubscribe", *folders, *more]

    def run(self, *more: str) -> int:
        return scaling(self.arguments(*more))

    def found(self) -> Json:
        return read_json(self.out / "scaling.json")

    def rank(self, number: int) -> Json:
        return read_json(self.seen / f"seen_{number}.json")

    def assert_none_is_left(self) -> None:
        """Of two ranks; what was killed by now need not have ended yet."""
        wait_until(lambda: not any(is_running(self.rank(number)["pid"]) for number in range(2)))


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
    monkeypatch.setenv("FAKE_FOLDER", str(made.seen))
    return made


def test_ranks_get_the_environment_of_torchrun_and_cores(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And a file that cannot be used costs its world."""
    foreign = {"SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "TORCHELASTIC_RUN_ID"}
    for name in foreign:
        monkeypatch.setenv(name, "7")
    (launch.seen / "ranks_1.json").write_text("{", encoding="utf-8")
    assert launch.run("--processes=1,2", "--threads=1", "--", "--size=tiny") == 1
    assert capfd.readouterr().out.splitlines()[-1].endswith("scaling.json")
    every, ports = allowed_cores(), set()
    for rank in range(2):
        seen = launch.rank(rank)
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        own = {name: str(number) for name, number in own.items()} | {"MASTER_ADDR": "127.0.0.1"}
        assert own.items() <= seen["environment"].items()
        assert foreign.isdisjoint(seen["environment"])
        assert {"--threads=1", "--timeout=60", "--size=tiny"} <= set(seen["arguments"])
        assert seen["cores"] == [every[rank % len(every)]]
        ports.add(int(seen["environment"]["MASTER_PORT"]))
    assert len(ports) == 1 and ports.pop() > 1024
    log = (launch.out / "ranks_2.log").read_text(encoding="utf-8").splitlines()
    assert sorted(log) == ["[rank 0] rank 0 of 2 is there", "[rank 1] rank 1 of 2 is there"]
    (failure,) = launch.found()["failures"]
    assert (launch.found()["processes"], failure["ranks"]) == ([2], 1)
    assert "is cut short" in failure["words"]
    launch.program.write_text('#!/bin/sh\necho "its own $*"\n', encoding="utf-8")
    assert launch.run("--", "--help") == 0
    assert capfd.readouterr().out == "its own --help\n"


def test_cores_are_shared_out() -> None:
    # 0 and 4, 1 and 5, ... are the two threads of a core; then neighbours are
    assert core_order({processor: str(processor % 4) for processor in range(8)}) == [*range(8)]
    assert core_order({0: "a", 1: "a", 2: "b", 3: "b", 5: "c"}) == [0, 2, 5, 1, 3]
    assert core_sets(2, 2, [0, 2, 1, 3]) == [[0, 2], [1, 3]]
    assert core_sets(3, 1, [5, 6], oversubscribe=True) == [[5], [6], [5]]


@pytest.mark.parametrize(
    ("fault", "status", "failing", "words"),
    [
        ("dies", 1, [2, 4], "was ended by signal SIGKILL; .* rank 1 of 2 is there$"),
        ("ignores_sigterm", 1, [2, 4], "did not end after .*; ended by force: 1$"),
        # the next world is measured after a wrong result, not after a refused option
        ("fails", 1, [2, 4], "ended with 1; its last words: .* differ by 0.5$"),
        ("refuses", 2, [2], "ended with 2; .*must be one of tiny, small$"),
    ],
)
def test_a_rank_that_fails_ends_the_others_and_what_was_measured_is_written(
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    status: int,
    failing: list[int],
    words: str,
) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    # a test need not wait for a rank that hangs as people do
    monkeypatch.setattr(measuring, "GRACE_SECONDS", 0.1 if "ignores" in fault else SOON)
    monkeypatch.setattr(measuring, "TERM_SECONDS", 0.3)
    assert launch.run("--processes=1,2,4", "--timeout=0.5") == status
    found = launch.found()
    assert found["processes"] == [1]
    assert [failure["ranks"] for failure in found["failures"]] == failing
    said = found["failures"][0]["words"]
    assert re.search(f"rank 1 of 2 {words}", said, re.DOTALL)
    assert f"2 ranks: {said}" in capsys.readouterr().err
    launch.assert_none_is_left()
    names = {path.name for path in launch.out.iterdir()}
    logs = {f"ranks_{ranks}.log" for ranks in (1, *failing)}
    assert names == {"ranks_1.json", "scaling.json", "scaling.md", *logs}
    page = (launch.out / "scaling.md").read_text(encoding="utf-8")
    assert " ".join(said.split()) in page
    # what may be tracked as it is: no path outside the checkout
    assert str(launch.out) not in page + json.dumps(found)


def test_a_refused_option_leaves_no_folder(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nothing was measured before it; the program says what is wrong."""
    monkeypatch.setenv("FAKE_FAULT", "refuses")
    assert launch.run("--processes=2,4", "--timeout=0.5", "--", "--size=huge") == 2
    said = capsys.readouterr().err
    assert "--size 'huge': must be one of tiny, small" in said.splitlines()[-1]
    assert not launch.out.exists()
    # nor does one that holds another run lose anything
    launch.out.mkdir()
    (launch.out / "ranks_8.json").write_text("kept", encoding="utf-8")
    assert launch.run("--processes=2", "--", "--size=tiny") == 2
    assert "File exists" in capsys.readouterr().err
    assert [path.read_text(encoding="utf-8") for path in launch.out.iterdir()] == ["kept"]


def test_a_log_that_cannot_be_written_is_told_and_what_ranks_say_is_heard() -> None:
    told = io.StringIO()
    command = ("sh", "-c", "echo first; echo second")
    cores = allowed_cores()[:1]
    found = run_world(command, [cores], SOON, Path("/dev/full"), Progress(told))
    assert found is None
    assert told.getvalue().count("/dev/full: cannot be written: No space left on device") == 1


def test_of_ranks_that_end_at_once_the_cause_is_named() -> None:
    for ends, words in (
        # a signal and a refusal are the cause, the 1 of others the effect
        ([(1, "lost"), (-9, "")], "was ended by signal SIGKILL"),
        ([(1, "lost"), (2, "huge")], "ended with 2; its last words: huge"),
        # all ranks end with 1 where a result is wrong, and one alone says so
        ([(1, ""), (1, "differs")], "ended with 1; its last words: differs"),
        # the effect may end first
        ([(1, "rank 1 does not answer"), (1, "full")], "ended with 1; its last words: full"),
    ):
        ranks = [
            SimpleNamespace(number=n, status=status, words=[said] * bool(said), close=lambda: None)
            for n, (status, said) in enumerate(ends)
        ]
        assert watch(ranks, SOON, Progress(io.StringIO())).words == f"rank 1 of 2 {words}"


def test_a_rank_that_hung_is_the_cause_and_not_who_missed_it() -> None:
    for words in ("nobody answers there", "what listens there is not rank 0 of this run; set"):
        missed, hung = (
            SimpleNamespace(number=n, status=status, words=[said] * bool(said))
            for n, status, said in ((1, 2, words), (0, -9, ""))
        )
        found = cause_of([missed, hung], [0], 2)
        assert found.status == 1
        assert found.words.startswith("rank 0 of 2 did not end after the others had")


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_outlives_its_launcher_and_what_was_measured_is_written(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, by: signal.Signals
) -> None:
    """In another process, which has measured one rank and started two, one of which hangs."""
    monkeypatch.setenv("FAKE_FAULT", "hangs")
    with start_tool("scaling", *launch.arguments("--processes=1,2,4")) as process:
        # the launcher watches its ranks, which it does not yet while it starts them
        log = launch.out / "ranks_2.log"
        wait_until(lambda: log.is_file() and "rank 1 of 2 is" in log.read_text())
        process.send_signal(by)
        _, said = process.communicate(timeout=TIMEOUT_S)
    launch.assert_none_is_left()
    if by == signal.SIGINT:
        assert process.returncode == INTERRUPTED, said
        assert "2 ranks: interrupted" in said and "finish the round in hand" in said
        found = launch.found()
        assert found["processes"] == [1]
        assert [(one["ranks"], one["status"]) for one in found["failures"]] == [(2, 130)]


def test_bad_places_and_files_are_told_before_anything_is_measured(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = 4 * len(allowed_cores())
    for arguments, said in (
        (f"--processes=1,{many}", f"--processes {many} with --threads 1: {many} logic"),
        ("--from=no_such_folder/ranks_2.json", "cannot be read: No such file"),
        ("--build-folder=none", "tiny_llama_scaling: no such program that can be started; build"),
    ):
        build, output = launch.arguments()[1:]
        places = [build] if "--from" in arguments else [build, output]
        status = scaling([*places, *arguments.split()])
        assert (status, said in capsys.readouterr().err) == (2, True), arguments
        assert not launch.out.exists()
