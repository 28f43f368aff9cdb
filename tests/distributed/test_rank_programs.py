"""The two programs over several real ranks: rows of tiny_llama_scaling and their figures,
tiny_llama_train against one process with all samples, the launchers people use; and ranks that die,
hang or differ: every other one ends in time and says why, and what was measured before is kept. The
C++ tests beside the programs have every other place where ranks cannot meet."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import load_file

from built_programs import (
    ON_CPU,
    SMALL_OPTIONS,
    Completed,
    Json,
    Program,
    built_program,
    environment,
    finish,
    read_json,
    wait_until,
)
from tinyllama_tools.commands.ranks import free_port
from tinyllama_tools.data.profiles import SCHEMA

# what a rank needs to start and to end; nothing in these tests computes for long
PATIENCE_S = 60.0
SMALL = (*ON_CPU, *SMALL_OPTIONS)
# of each program, of tiny_llama_scaling without its batch; and such that no timeout ends it, nor
# itself
TRAIN = (*SMALL, "--batch-size=2", "--seq-len=8")
SCALE = (*SMALL, "--seq=8", "--min-time=0.01")
ENDLESS_TRAIN = (*TRAIN, "--num-steps=1000000")
ENDLESS_SCALE = (*SCALE, "--batch=2", "--components=full_step", "--rounds=100000")


@pytest.fixture(scope="module")
def scaling_program() -> Path:
    return built_program("benchmarks/tiny_llama_scaling")


class Ranks:
    """The processes of a run, started as torchrun would, all killed when it is left."""

    def __init__(
        self, programs: Sequence[Path], options: Sequence[str], port: int = 0, ranks: int = 0
    ) -> None:
        """A rank of each program. `ranks`: of how many, where some are not started."""
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
        place["WORLD_SIZE"] = str(ranks or len(programs))
        self.processes = [
            subprocess.Popen(
                [program, *map(str, options)],
                env=environment(**place, RANK=str(rank), LOCAL_RANK=str(rank)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, program in enumerate(programs)
        ]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait_for(self, words: str) -> None:
        """Of rank 0: a step is told on standard output, all else on standard error."""
        first = self.processes[0]
        stream = first.stdout if words.startswith("Step") else first.stderr
        assert any(words in said for said in stream or ()), f"rank 0 ended before '{words}'"

    def ends(self, seconds: float = PATIENCE_S, but: int | None = None) -> list[Completed]:
        """Every rank's end, in their order, but one's. Raises TimeoutExpired where one goes on."""
        deadline = time.monotonic() + seconds
        others = [process for rank, process in enumerate(self.processes) if rank != but]
        return [finish(process, max(0.1, deadline - time.monotonic())) for process in others]


def run_ranks(program: Path, ranks: int, *options: str) -> None:
    """To the end: no rank fails, and rank 0 alone speaks on standard output."""
    with Ranks([program] * ranks, options) as started:
        ends = started.ends()
    assert [end.returncode for end in ends] == [0] * ranks, [end.stderr for end in ends]
    assert all(end.stdout == "" for end in ends[1:])


def summary(folder: Path) -> Json:
    """What a training wrote."""
    return read_json(folder / "performance_summary.json")


STEP = "full_step/train/baseline/custom/f32"
START = f"{STEP}/batch:2/seq:8/ranks:2"


def measured(
    program: Path, ranks: int, folder: Path, *more: str, options: Sequence[str] = SCALE
) -> dict[str, list[Json]]:
    """Repetitions by the name of their row; and under `document` the whole file."""
    file = folder / "result.json"
    run_ranks(program, ranks, *options, "--rounds=2", *more, f"--benchmark_out={file}")
    found = read_json(file)
    rows: dict[str, list[Json]] = {}
    for row in found["benchmarks"]:
        if row["run_type"] == "iteration":
            rows.setdefault(row["run_name"], []).append(row)
    return rows | {"document": found}


def test_weak_scaling(scaling_program: Path, tmp_path: Path) -> None:
    """A row for every way of running a step, of the slowest rank, whose losses add up; and of every
    collective."""
    options = ("--batch=2", "--components=full_step,all_reduce", "--shard-optimizer")
    rows = measured(scaling_program, 2, tmp_path, *options, "--max-bytes=4KiB")
    modes = ["alone", "local", "no_overlap", "overlap", "sharded", "communication"]
    assert list(rows)[:6] == [f"{START}/{mode}" for mode in modes]
    row = rows["all_reduce/f32/bytes:4096/ranks:2"][0]
    rate = 1e-9 * 4096 / (row["real_time"] * 1e-6)
    # nccl-tests: of two ranks a factor of 1
    assert row["algorithm_GB_per_second"] == row["bus_GB_per_second"] == pytest.approx(rate)
    result = rows["document"]
    for mode in modes:
        rounds = result["rank_samples"][f"{START}/{mode}"]
        assert len(rounds) == 2
        for row, a_round in zip(rows[f"{START}/{mode}"], rounds, strict=True):
            assert [bool(rank) for rank in a_round] == [True, mode != "alone"]
            at_work = [rank for rank in a_round if rank]
            slowest = [max(step) for step in zip(*at_work, strict=True)]
            assert row["real_time"] == pytest.approx(1e3 * np.mean(slowest), rel=1e-6)
            assert row["iterations"] == len(slowest)
    for row in rows[f"{START}/overlap"]:
        lost = sum(value for name, value in row.items() if name.startswith("loss_"))
        assert row["weak_efficiency_percent"] + lost == pytest.approx(100, abs=1e-6)
        assert 0 <= row["max_rel_error"] < 1e-6
    found = result["context"]["distributed"]
    assert (found["world_size"], found["backend"], found["scaling"]) == (2, "gloo", "weak")
    assert sum(found["bucket_bytes"]) == found["gradient_bytes"]


def test_the_peak_of_a_step_is_of_what_that_step_needs(
    scaling_program: Path, tmp_path: Path
) -> None:
    """Of many parameters and few tokens. Of their size are, beside the weights: two moments,
    messages and AdamW's denominators; or flat weights, flat gradients and a fourth of those four,
    with what Gloo copies of both while it sends them, more or less at a time; and none of them
    because another step needs it."""
    sizes = "hidden-dim=256 n-layers=2 n-heads=4 n-kv-heads=2 intermediate-dim=512 vocab-size=64"
    options = [*ON_CPU, *(f"--{size}" for size in f"{sizes} seq=4 batch=1".split())]
    options += ["--components=full_step", "--variant=foreach_adamw", "--min-time=0.01"]
    peaks: list[dict[str, float]] = []
    for more in ((), ("--shard-optimizer",)):
        rows = measured(scaling_program, 4, tmp_path, *more, options=options)
        first = {n.rpartition("/")[2]: of[0] for n, of in rows.items() if n != "document"}
        assert "peak_memory_MiB" not in first.pop("communication")
        peaks.append({mode: row["peak_memory_MiB"] for mode, row in first.items()})
    plain, both = peaks
    # weights and four of their size, against weights, three and two copies
    assert both["sharded"] < 6 / 5 * both["overlap"]
    assert plain == pytest.approx({mode: both[mode] for mode in plain}, rel=0.01)
    assert both["local"] < 1.05 * both["overlap"]


def test_strong_scaling_and_a_world_of_one(
    scaling_program: Path, train_program: Path, tmp_path: Path
) -> None:
    rows = measured(scaling_program, 2, tmp_path, "--global-batch=4", "--components=full_step")
    assert f"{STEP}/batch:4/seq:8/ranks:2/alone" in rows
    counters = rows[f"{START}/overlap"][0].keys()
    assert {"strong_efficiency_percent", "loss_small_batch_percent"} <= counters
    # a world of one has a plain and a data-parallel step, and nobody to share an optimizer with
    rows = measured(scaling_program, 1, tmp_path, "--batch=2")
    start = f"{STEP}/batch:2/seq:8/ranks:1"
    assert list(rows) == [f"{start}/alone", f"{start}/overlap", "document"]
    assert rows["document"]["context"]["distributed"]["backend"] == "none"
    refused = Program(train_program).run(*TRAIN, "--shard-optimizer")
    assert refused.returncode == 2 and "--shard-optimizer" in refused.stderr


def trained(program: Path, folder: Path, ranks: int, *options: str) -> list[float]:
    """Losses of four steps. One rank of several batches accumulates them."""
    given = (*TRAIN, "--num-steps=4", "--learning-rate=1e-3", *options)
    given = (*given, f"--output-dir={folder}", f"--save-weights={folder / 'weights'}")
    run_ranks(program, ranks, *given)
    return [step["loss"] for step in summary(folder)["steps"]]


@pytest.mark.parametrize(
    ("ranks", "batches", "more"),
    [
        (2, 2, ("--no-overlap",)),
        (3, 3, ("--bucket-mb=0.01",)),
        (4, 4, ()),
        (3, 3, ("--shard-optimizer", "--bucket-mb=0.01")),
        (2, 4, ("--gradient-accumulation-steps=2",)),
    ],
)
def test_losses_and_weights_are_those_of_one_process_with_all_samples(
    train_program: Path, tmp_path: Path, ranks: int, batches: int, more: tuple[str, ...]
) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    expected = trained(train_program, one, 1, f"--gradient-accumulation-steps={batches}")
    assert trained(train_program, many, ranks, *more) == pytest.approx(expected, rel=1e-5)
    first, second = (load_file(of / "weights/model.safetensors") for of in (one, many))
    assert first.keys() == second.keys()
    for name in first:
        # AdamW's first step is the sign of a gradient: where that is nearly 0, rounding decides
        apart = np.abs(first[name] - second[name]).max() / np.abs(first[name]).max()
        assert apart < 2e-2, name
    document = summary(many)
    found, of_all = document["distributed"], document["summary"]
    assert (found["world_size"], found["weights_are_identical"]) == (ranks, True)
    assert found["shard_optimizer"] is ("--shard-optimizer" in more)
    # the speed of all ranks together
    in_a_step = of_all["samples_per_second"] * of_all["average_step_seconds"]
    assert in_a_step == pytest.approx(2 * batches, rel=0.01)
    # scripts/profile reads what is like the schema only
    jsonschema.validate(document, read_json(SCHEMA))


def torchrun() -> list[str]:
    program = Path(sys.executable).with_name("torchrun")
    if not program.is_file():
        pytest.skip("torchrun is not beside this Python: torch is not installed in it")
    return [str(program), "--nproc-per-node=2", f"--master-port={free_port()}", "--no-python"]


def mpirun() -> list[str]:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (openmpi-bin)")
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]


@pytest.mark.parametrize(("launcher", "started_by"), [(torchrun, "torchrun"), (mpirun, "open_mpi")])
def test_launchers_start_both_programs(
    scaling_program: Path,
    train_program: Path,
    tmp_path: Path,
    launcher: Callable[[], list[str]],
    started_by: str,
) -> None:
    def run(*command: str | Path) -> Completed:
        program, *words = launcher()
        return Program(Path(shutil.which(program))).run(*words, *command)

    train = (train_program, *TRAIN, f"--output-dir={tmp_path}")
    finished = run(*train, "--num-steps=3")
    assert finished.returncode == 0, finished.stderr
    found = summary(tmp_path)["distributed"]
    assert (found["world_size"], found["started_by"]) == (2, started_by)
    assert run(*train, "--num-steps=0").returncode != 0
    file = tmp_path / "result.json"
    scale = (*SCALE, "--rounds=1", "--max-bytes=4KiB", f"--benchmark_out={file}")
    finished = run(scaling_program, *scale)
    assert finished.returncode == 0, finished.stderr
    assert read_json(file)["context"]["distributed"]["started_by"] == started_by


def rounds_in(text: str) -> int:
    """Of the overlapped step."""
    names = [row["run_name"] for row in json.loads(text)["benchmarks"]]
    return names.count(f"{START}/overlap")


def test_a_signal_to_one_rank_ends_all_and_keeps_what_was_done(
    scaling_program: Path, train_program: Path, tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    for program, options, words in (
        (scaling_program, (*ENDLESS_SCALE, f"--benchmark_out={file}"), "round 2 of"),
        (train_program, (*ENDLESS_TRAIN, f"--output-dir={tmp_path}"), "Step 5/"),
    ):
        with Ranks([program] * 2, options) as started:
            started.wait_for(words)
            started.processes[1].terminate()
            ends = started.ends()
        assert [end.returncode for end in ends] == [130, 130], [end.stderr for end in ends]
    assert rounds_in(file.read_text(encoding="utf-8")) >= 2
    found = summary(tmp_path)
    assert found["summary"]["interrupted"] is True
    assert found["distributed"]["weights_are_identical"] is True


TIMEOUT_S = 6
# beyond the timeout, at the most: what ranks wait for each other's signs of life (11 s), and the
# end of a process on a loaded machine
LONGEST_S = TIMEOUT_S + 20


@pytest.mark.parametrize(
    ("ranks", "lost", "how"),
    [
        *((3, lost, how) for lost in (1, 0) for how in (signal.SIGKILL, signal.SIGSTOP)),
        # Gloo tells the neighbours only; rank 0 hears of it from them, long before its timeout
        (4, 2, signal.SIGKILL),
    ],
)
def test_a_lost_rank_is_named_by_all_others(
    train_program: Path, tmp_path: Path, ranks: int, lost: int, how: signal.Signals
) -> None:
    options = (*ENDLESS_TRAIN, f"--timeout={TIMEOUT_S}", f"--output-dir={tmp_path}")
    with Ranks([train_program] * ranks, options) as started:
        started.wait_for("Step 3/")
        started.processes[lost].send_signal(how)
        ends = started.ends(LONGEST_S, but=lost)
    others = [rank for rank in range(ranks) if rank != lost]
    for rank, end in zip(others, ends, strict=True):
        assert end.returncode == 1, end.stderr
        assert f"rank {rank} of {ranks}: step " in end.stderr
        assert f"rank {lost} does not answer" in end.stderr
    if lost != 0:
        assert len(summary(tmp_path)["steps"]) >= 3


@pytest.mark.parametrize("lost", [0, 1])
def test_the_rounds_before_a_loss_are_in_the_file(
    scaling_program: Path, tmp_path: Path, lost: int
) -> None:
    file = tmp_path / "result.json"
    out = (f"--timeout={TIMEOUT_S}", f"--benchmark_out={file}", "--benchmark_format=json")
    with Ranks([scaling_program] * 2, (*ENDLESS_SCALE, *out)) as started:
        started.wait_for("round 4 of")
        started.processes[lost].kill()
        (end,) = started.ends(LONGEST_S, but=lost)
    assert end.returncode == 1
    assert "failed, asking who is lost" in end.stderr
    assert f"rank {lost} does not answer" in end.stderr
    assert rounds_in(file.read_text(encoding="utf-8")) >= 3
    if lost != 0:
        assert rounds_in(end.stdout) >= 3


def test_what_was_done_is_written_before_the_lost_rank_is_asked_for(
    train_program: Path, scaling_program: Path, tmp_path: Path
) -> None:
    """With a timeout that outlasts the test: mpirun kills the others soon after a loss."""
    file, page = tmp_path / "result.json", tmp_path / "performance_summary.json"
    for program, options, words, written in (
        (train_program, (*ENDLESS_TRAIN, f"--output-dir={tmp_path}"), "Step 3/", page),
        (scaling_program, (*ENDLESS_SCALE, f"--benchmark_out={file}"), "round 4 of", file),
    ):
        with Ranks([program] * 2, (*options, "--timeout=1000")) as started:
            first = started.processes[0]
            started.wait_for(words)
            started.processes[1].kill()
            started.wait_for("failed, asking who is lost")
            # within the next moments, by a process that goes on asking
            wait_until(lambda file=written, rank=first: file.exists() or rank.poll() is not None)
            assert written.exists() and first.poll() is None
    assert len(summary(tmp_path)["steps"]) >= 3
    assert rounds_in(file.read_text(encoding="utf-8")) >= 3


def test_ranks_that_cannot_begin_say_why(
    scaling_program: Path, train_program: Path, tmp_path: Path
) -> None:
    # of one commit there are many builds
    other = Path(shutil.copy(train_program, tmp_path))
    with other.open("ab") as stream:
        stream.write(b"another build")
    with Ranks([train_program, other], ENDLESS_TRAIN) as started:
        ends = started.ends()
    assert [end.returncode for end in ends] == [2, 2]
    assert all("digest of the program: " in end.stderr for end in ends)
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Ranks([train_program], ENDLESS_TRAIN, port, ranks=2) as started:
            (end,) = started.ends(LONGEST_S)
    assert end.returncode == 2 and f"MASTER_PORT={port}" in end.stderr and "in use" in end.stderr
    # and one alone, before it measures anything
    nowhere = (*ENDLESS_SCALE, "--benchmark_out=/no/such/folder/r.json")
    finished = Program(scaling_program).run(*nowhere)
    assert finished.returncode == 2 and "round" not in finished.stderr
    assert "/no/such/folder" in finished.stderr
