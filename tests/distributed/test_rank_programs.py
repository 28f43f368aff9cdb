"""The two programs over several real ranks: rows of tiny_llama_scaling and their figures,
tiny_llama_train against one process with all samples, the launchers people use; and ranks that die,
hang or differ: every other one ends in time and says why, and what was measured before is kept. The
C++ tests beside the programs have every other place where ranks cannot meet."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import load_file

from built_programs import (
    ON_CPU,
    PROJECT_ROOT,
    SMALL_OPTIONS,
    Json,
    Program,
    built_program,
    environment,
    read_json,
    wait_until,
)
from tinyllama_tools.commands.ranks import free_port
from tinyllama_tools.data.profiles import SCHEMA
from tinyllama_tools.models.collectives import buckets_of

RESULT_SCHEMA = PROJECT_ROOT / "results/schema.json"
# what a rank needs to start and to end; nothing in these tests computes for long
PATIENCE_S = 60.0
SMALL = (*ON_CPU, *SMALL_OPTIONS)
# of each program; and such that no timeout ends it, nor itself
TRAIN = (*SMALL, "--batch-size=2", "--seq-len=8")
SCALE = (*SMALL, "--seq=8", "--min-time=0.01")
ENDLESS_TRAIN = (*TRAIN, "--num-steps=1000000")
ENDLESS_SCALE = (*SCALE, "--batch=2", "--components=full_step", "--rounds=100000")


@pytest.fixture(scope="module")
def scaling_program() -> Path:
    return built_program("benchmarks/tiny_llama_scaling")


class Ranks:
    """The processes of a run, one of each program, started as torchrun would, all killed when it is
    left. What rank N says is in N.out and N.err of the folder."""

    def __init__(self, folder: Path, programs: Sequence[Path], options: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        place["WORLD_SIZE"] = str(len(programs))
        for rank, program in enumerate(programs):
            of = environment(**place, RANK=str(rank), LOCAL_RANK=str(rank))
            with (folder / f"{rank}.out").open("w") as out, (folder / f"{rank}.err").open("w") as e:
                command = [program, *map(str, options)]
                started = subprocess.Popen(
                    command, env=of, stdin=subprocess.DEVNULL, stdout=out, stderr=e
                )
                self.processes.append(started)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def said(self, rank: int, stream: str = "err") -> str:
        return (self.folder / f"{rank}.{stream}").read_text(encoding="utf-8")

    def wait_for(self, words: str) -> None:
        """Of rank 0: a step is told on standard output, all else on standard error."""
        stream, first = "out" if words.startswith("Step") else "err", self.processes[0]
        wait_until(lambda: words in self.said(0, stream) or first.poll() is not None)
        assert words in self.said(0, stream), f"rank 0 ended before '{words}'"

    def statuses(self, seconds: float = PATIENCE_S, but: int | None = None) -> list[int]:
        """Every rank's, in their order, but one's. Raises TimeoutExpired where one goes on."""
        deadline = time.monotonic() + seconds
        others = [process for rank, process in enumerate(self.processes) if rank != but]
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in others]


def run_ranks(folder: Path, program: Path, ranks: int, *options: str) -> None:
    """To the end: no rank fails, and rank 0 alone speaks on standard output."""
    with Ranks(folder, [program] * ranks, options) as started:
        statuses = started.statuses()
    assert statuses == [0] * ranks, started.said(0)
    assert all(started.said(rank, "out") == "" for rank in range(1, ranks))


def summary(folder: Path) -> Json:
    """What a training wrote."""
    return read_json(folder / "performance_summary.json")


def rows_of(file: Path) -> dict[str, list[Json]]:
    """Repetitions by the name of their row."""
    rows: dict[str, list[Json]] = {}
    for row in read_json(file)["benchmarks"]:
        if row["run_type"] == "iteration":
            rows.setdefault(row["run_name"], []).append(row)
    return rows


STEP = "full_step/train/baseline/custom/f32"
START = f"{STEP}/batch:2/seq:8/ranks:2"


def measured(folder: Path, program: Path, ranks: int, *options: str) -> Json:
    file = folder / "result.json"
    run_ranks(folder, program, ranks, *options, "--rounds=2", f"--benchmark_out={file}")
    jsonschema.validate(found := read_json(file), read_json(RESULT_SCHEMA))
    return found


def test_weak_scaling(scaling_program: Path, tmp_path: Path) -> None:
    """A row for every way of running a step, of the slowest rank, whose losses add up, with the
    memory that this way needs; and of every collective. Of many parameters and few tokens."""
    sizes = "hidden-dim=256 n-layers=2 n-heads=4 n-kv-heads=2 intermediate-dim=512 vocab-size=64"
    options = [*ON_CPU, *(f"--{size}" for size in f"{sizes} seq=4 batch=1".split())]
    options += ["--variant=foreach_adamw", "--min-time=0.01", "--shard-optimizer"]
    options += ["--bucket-mb=0.5"]
    options += ["--components=full_step,all_reduce", "--max-bytes=4KiB"]
    result = measured(tmp_path, scaling_program, 4, *options)
    rows, found = rows_of(tmp_path / "result.json"), result["context"]["distributed"]
    modes = ["alone", "local", "no_overlap", "overlap", "communication", "sharded"]
    start = "full_step/train/foreach_adamw/custom/f32/batch:1/seq:4/ranks:4"
    assert list(rows)[:6] == [f"{start}/{mode}" for mode in modes]
    row = rows["all_reduce/f32/bytes:4096/ranks:4"][0]
    rate = 1e-9 * 4096 / (row["real_time"] * 1e-6)
    # nccl-tests: 2 (N - 1) / N
    assert row["algorithm_GB_per_second"] == pytest.approx(rate)
    assert row["bus_GB_per_second"] == pytest.approx(1.5 * rate)
    for mode in modes:
        rounds = result["rank_samples"][f"{start}/{mode}"]
        assert len(rounds) == 2
        for row, a_round in zip(rows[f"{start}/{mode}"], rounds, strict=True):
            assert [bool(rank) for rank in a_round] == [True, *[mode != "alone"] * 3]
            at_work = [rank for rank in a_round if rank]
            slowest = [max(step) for step in zip(*at_work, strict=True)]
            assert row["real_time"] == pytest.approx(1e3 * np.median(slowest), rel=1e-6)
            assert row["iterations"] == len(slowest)
    for mode in modes[2:]:
        name = f"{start}/{mode}"
        for row, waits, a_round in zip(
            rows[name], result["rank_waits"][name], result["rank_samples"][name], strict=True
        ):
            each = waits["wait_ms"], waits["transfer_ms"]
            assert max(np.max(of) for of in each) <= 1e3 * max(map(max, a_round))
            assert (row["wait_ms"], row["transfer_ms"]) == pytest.approx(
                [np.mean(of) for of in each]
            )
            assert sum(waits["times_last"]) == waits["collectives"]
            assert waits["collectives"] % row["iterations"] == 0
            # on one host
            assert 0 < waits["clock_uncertainty_ms"] < 1000
    for row in rows[f"{start}/overlap"]:
        lost = sum(value for name, value in row.items() if name.startswith("loss_"))
        assert row["weak_efficiency_percent"] + lost == pytest.approx(100, abs=1e-6)
        assert 0 <= row["max_rel_error"] < 1e-6
    assert (found["world_size"], found["backend"], found["scaling"]) == (4, "gloo", "weak")
    assert sum(found["bucket_bytes"]) == found["gradient_bytes"] == found["parameter_bytes"]
    dimensions = dict(size.replace("-", "_").split("=") for size in sizes.split())
    planned = buckets_of({name: int(value) for name, value in dimensions.items()}, "f32", 2**19)
    assert found["bucket_bytes"] == planned and len(planned) > 2
    peaks = {mode: rows[f"{start}/{mode}"][0].get("peak_memory_MiB") for mode in modes}
    assert peaks.pop("communication") is None
    of_weights = {m: peak * 2**20 / found["parameter_bytes"] for m, peak in peaks.items()}
    # flat weights and gradients, a fourth of two moments, messages and AdamW's denominators, and
    # what Gloo copies of the former two while it sends them, more or less at a time
    assert 3 < of_weights.pop("sharded") < 6
    # beside the weights those four, whole; and nothing because another way needs it
    assert of_weights == pytest.approx(dict.fromkeys(of_weights, 5), rel=0.01)


def test_strong_scaling_and_a_world_of_one(scaling_program: Path, tmp_path: Path) -> None:
    measured(tmp_path, scaling_program, 2, *SCALE, "--global-batch=4", "--components=full_step")
    rows = rows_of(tmp_path / "result.json")
    assert f"{STEP}/batch:4/seq:8/ranks:2/alone" in rows
    counters = rows[f"{START}/overlap"][0].keys()
    assert {"strong_efficiency_percent", "loss_small_batch_percent"} <= counters
    # a world of one has a plain and a data-parallel step
    result = measured(tmp_path, scaling_program, 1, *SCALE, "--batch=2")
    start = f"{STEP}/batch:2/seq:8/ranks:1"
    assert list(rows_of(tmp_path / "result.json")) == [f"{start}/alone", f"{start}/overlap"]
    assert result["context"]["distributed"]["backend"] == "none"


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("share", ["zero3", "tensor"])
def test_ways_to_share_a_step(
    scaling_program: Path, tmp_path: Path, share: str, ranks: int
) -> None:
    """Rows beside those of ddp, proved, with losses that add up, and the memory of a share."""
    sizes = "hidden-dim=256 n-layers=8 n-heads=8 n-kv-heads=4 intermediate-dim=512 vocab-size=64"
    options = [*ON_CPU, *(f"--{size}" for size in f"{sizes} seq=4 batch=1".split())]
    options += ["--min-time=0.01", f"--share={share}", "--components=full_step"]
    result = measured(tmp_path, scaling_program, ranks, *options)
    rows = rows_of(tmp_path / "result.json")
    modes = {
        "zero3": ("zero3_no_overlap", "zero3", "zero3_communication"),
        "tensor": ("tensor_local", "tensor", "tensor_communication"),
    }[share]
    ddp = ("alone", "local", "no_overlap", "overlap", "communication")
    start = f"{STEP}/batch:1/seq:4/ranks:{ranks}"
    assert list(rows) == [f"{start}/{mode}" for mode in (*ddp, *modes)]
    kind = "strong" if share == "tensor" else "weak"
    for row in rows[f"{start}/{share}"]:
        lost = sum(value for name, value in row.items() if name.startswith("loss_"))
        assert row[f"{kind}_efficiency_percent"] + lost == pytest.approx(100, abs=1e-6)
        assert 0 <= row["max_rel_error"] < 3e-4
        samples = row["samples_per_second"] * row["real_time"] * 1e-3
        assert samples == pytest.approx(1 if share == "tensor" else ranks)
    weights = result["context"]["distributed"]["parameter_bytes"]
    assert result["context"]["distributed"]["share"] == share
    of_weights = {
        mode: rows[f"{start}/{mode}"][0]["peak_memory_MiB"] * 2**20 / weights
        for mode in ("alone", share)
    }
    assert of_weights["alone"] == pytest.approx(4, abs=0.2)
    # shares of parameters, gradients and two moments; with zero3 parts on their way, and what Gloo
    # copies of them
    on_top = 1.2 if share == "zero3" else 0.2
    assert 4 / ranks < of_weights[share] < 4 / ranks + on_top


def test_losses_and_weights_are_those_of_one_process_with_all_samples(
    train_program: Path, tmp_path: Path
) -> None:
    """Of four batches a step: one rank of several accumulates them."""

    def trained(name: str, ranks: int, *options: str) -> tuple[Json, dict[str, np.ndarray]]:
        folder = tmp_path / name
        given = (*TRAIN, "--num-steps=4", "--learning-rate=1e-3", *options)
        given = (*given, f"--output-dir={folder}", f"--save-weights={folder / 'weights'}")
        run_ranks(folder, train_program, ranks, *given)
        return summary(folder), load_file(folder / "weights/model.safetensors")

    one, expected = trained("one", 1, "--gradient-accumulation-steps=4")
    losses = [step["loss"] for step in one["steps"]]
    accumulated = "--gradient-accumulation-steps=2"
    for name, share, ranks, more in (
        ("buckets", "ddp", 4, ("--bucket-mb=0.01",)),
        ("sharded", "zero1", 4, ("--bucket-mb=0.01", "--shard-optimizer")),
        ("accumulated", "ddp", 2, (accumulated, "--no-overlap")),
        ("zero3", "zero3", 4, ("--share=zero3",)),
        ("zero3_accumulated", "zero3", 2, ("--share=zero3", accumulated, "--no-overlap")),
        # the same samples on both
        ("tensor", "tensor", 2, ("--share=tensor", "--gradient-accumulation-steps=4")),
    ):
        document, weights = trained(name, ranks, *more)
        assert [step["loss"] for step in document["steps"]] == pytest.approx(losses, rel=1e-5)
        assert weights.keys() == expected.keys()
        for tensor, values in expected.items():
            # AdamW's first step is the sign of a gradient: where that is nearly 0, rounding decides
            assert np.abs(weights[tensor] - values).max() < 2e-2 * np.abs(values).max(), tensor
        found, of_all = document["distributed"], document["summary"]
        assert (found["world_size"], found["weights_are_identical"]) == (ranks, True)
        assert found["share"] == share
        # the speed of all ranks together
        in_a_step = of_all["samples_per_second"] * of_all["median_step_seconds"]
        assert in_a_step == pytest.approx(2 * 4, rel=0.01)
        # scripts/profile reads what is like the schema only
        jsonschema.validate(document, read_json(SCHEMA))


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, "--gradient-accumulation-steps=2"),
        (2, "--share=ddp --gradient-accumulation-steps=2"),
        (4, "--share=ddp --bucket-mb=0.1 --compress=bf16"),
        (2, "--share=zero1"),
        (4, "--share=zero1 --bucket-mb=0.1 --no-overlap"),
        (2, "--share=zero1 --gradient-accumulation-steps=2 --variant=foreach_adamw"),
        (2, "--share=zero3 --gradient-accumulation-steps=2"),
        (2, "--share=tensor --gradient-accumulation-steps=2 --eval-interval=2 --eval-iters=2"),
    ],
)
def test_a_rank_needs_the_memory_that_is_predicted(
    train_program: Path, tmp_path: Path, ranks: int, options: str
) -> None:
    """No byte more, and not much less: by the prediction a training is refused."""
    sizes = "hidden-dim=64 n-layers=3 n-heads=4 n-kv-heads=2 intermediate-dim=96 vocab-size=101"
    model = [*ON_CPU, *(f"--{size}" for size in f"{sizes} batch-size=2 seq-len=16".split())]
    folder = f"--output-dir={tmp_path}"
    run_ranks(tmp_path, train_program, ranks, *model, "--num-steps=4", folder, *options.split())
    found = summary(tmp_path)
    needed = found["summary"]["peak_memory_bytes"]
    predicted = found["model"]["predicted_peak_memory_bytes"]
    assert 0.75 * predicted < needed <= predicted


def test_compressed_gradients_say_so_and_have_the_rounding_of_their_type(
    scaling_program: Path, train_program: Path, tmp_path: Path
) -> None:
    for kind, allowed in (("bf16", 2e-2), ("f16", 5e-3)):
        folder = tmp_path / kind
        options = (*SCALE, "--batch=2", "--components=full_step", f"--compress={kind}")
        found = measured(folder, scaling_program, 2, *options)["context"]["distributed"]
        assert (found["compress"], 2 * sum(found["bucket_bytes"])) == (
            kind,
            found["gradient_bytes"],
        )
        rows = rows_of(folder / "result.json")
        for mode in ("no_overlap", "overlap"):
            for row in rows[f"{START}/{mode}"]:
                assert row["label"].startswith(f"gradients sent and summed as {kind}")
                assert allowed / 300 < row["max_rel_error"] < allowed
        assert "gradients" not in rows[f"{START}/local"][0].get("label", "")
    losses = {}
    for kind in ("none", "bf16"):
        folder = tmp_path / f"train_{kind}"
        given = (*TRAIN, "--num-steps=4", f"--compress={kind}", f"--output-dir={folder}")
        run_ranks(folder, train_program, 2, *given)
        document = summary(folder)
        assert document["distributed"]["compress"] == kind
        assert document["distributed"]["weights_are_identical"] is True
        jsonschema.validate(document, read_json(SCHEMA))
        losses[kind] = [step["loss"] for step in document["steps"]]
    assert losses["bf16"] == pytest.approx(losses["none"], rel=1e-3)
    assert losses["bf16"] != losses["none"]


def test_launchers_that_people_use(
    train_program: Path, scaling_program: Path, tmp_path: Path
) -> None:
    """A training by torchrun, a measurement by Open MPI."""
    torchrun, mpirun = Path(sys.executable).with_name("torchrun"), shutil.which("mpirun")
    if not torchrun.is_file() or mpirun is None:
        pytest.skip("no torchrun beside this Python (torch), or no mpirun (openmpi-bin)")
    few = ("--components=full_step", "--rounds=1", f"--benchmark_out={tmp_path / 'result.json'}")
    launch = ("--nproc-per-node=2", f"--master-port={free_port()}", "--no-python", train_program)
    done = Program(torchrun).run(*launch, *TRAIN, "--num-steps=3", f"--output-dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    launch = ("--allow-run-as-root", "--oversubscribe", "-np", "2", scaling_program)
    done = Program(Path(mpirun)).run(*launch, *SCALE, *few)
    assert done.returncode == 0, done.stderr
    context = read_json(tmp_path / "result.json")["context"]
    for found, launcher in ((summary(tmp_path), "torchrun"), (context, "open_mpi")):
        of = found["distributed"]
        assert (of["world_size"], of["started_by"]) == (2, launcher)


def finished_in(file: Path) -> int:
    """Steps of a training, or rounds of a measurement."""
    found = read_json(file)
    if "steps" in found:
        return len(found["steps"])
    return next(len(rows) for name, rows in rows_of(file).items() if name.endswith("/overlap"))


TIMEOUT_S = 6
# beyond the timeout, at the most: what ranks wait for each other's signs of life (11 s), and the
# end of a process on a loaded machine
LONGEST_S = TIMEOUT_S + 20


def endless_run(kind: str, folder: Path) -> tuple[Path, list[str], str, Path]:
    """A program, options, what rank 0 says in the midst of it, and the file that it writes."""
    file = folder / {"train": "performance_summary.json", "scaling": "result.json"}[kind]
    options = [*ENDLESS_TRAIN, f"--output-dir={folder}"]
    if kind == "scaling":
        options = [*ENDLESS_SCALE, f"--benchmark_out={file}"]
    words = {"train": "Step 5/", "scaling": "round 4 of"}[kind]
    program = built_program(f"benchmarks/tiny_llama_{kind}")
    return program, [*options, f"--timeout={TIMEOUT_S}"], words, file


@pytest.mark.parametrize("kind", ["train", "scaling"])
def test_a_signal_to_one_rank_ends_all_and_keeps_what_was_done(tmp_path: Path, kind: str) -> None:
    program, options, words, file = endless_run(kind, tmp_path)
    with Ranks(tmp_path, [program] * 2, options) as started:
        started.wait_for(words)
        started.processes[1].terminate()
        assert started.statuses() == [130, 130], started.said(0)
    assert finished_in(file) >= 3
    if kind == "train":
        found = summary(tmp_path)
        assert found["summary"]["interrupted"] is True
        assert found["distributed"]["weights_are_identical"] is True


@pytest.mark.parametrize(
    ("kind", "share", "ranks", "lost", "how"),
    [
        ("scaling", "ddp", 2, 0, signal.SIGKILL),
        ("scaling", "ddp", 2, 1, signal.SIGKILL),
        ("train", "ddp", 3, 0, signal.SIGSTOP),
        ("train", "ddp", 3, 1, signal.SIGSTOP),
        # Gloo tells the neighbours only; rank 0 hears of it from them, long before its timeout
        ("train", "ddp", 4, 2, signal.SIGKILL),
        ("train", "zero3", 4, 2, signal.SIGKILL),
        ("train", "tensor", 2, 1, signal.SIGKILL),
    ],
)
def test_a_lost_rank_is_named_by_all_others_and_what_was_done_is_kept(
    tmp_path: Path, kind: str, share: str, ranks: int, lost: int, how: signal.Signals
) -> None:
    program, options, words, file = endless_run(kind, tmp_path)
    with Ranks(tmp_path, [program] * ranks, [*options, f"--share={share}"]) as started:
        started.wait_for(words)
        started.processes[lost].send_signal(how)
        if lost != 0:
            # before it asks for the lost one, which takes long: mpirun kills it soon after a loss
            started.wait_for("failed, asking who is lost")
            first = started.processes[0]
            wait_until(lambda: file.exists() or first.poll() is not None)
            assert file.exists() and first.poll() is None
        assert started.statuses(LONGEST_S, but=lost) == [1] * (ranks - 1), started.said(0)
    for rank in set(range(ranks)) - {lost}:
        assert f"rank {rank} of {ranks}: " in started.said(rank)
        assert f"rank {lost} does not answer" in started.said(rank)
        assert kind == "scaling" or f"rank {rank} of {ranks}: step " in started.said(rank)
    # a training's rank 0 writes in the end, a measurement's after every round
    assert (kind, lost) == ("train", 0) or finished_in(file) >= 3


@pytest.mark.long
@pytest.mark.parametrize("kind", ["train", "scaling"])
def test_25_kills_at_random_moments_leave_results_whole(tmp_path: Path, kind: str) -> None:
    """Of any of four ranks, before they meet, in a proof, a step, a collective or while a file is
    written. The moments are drawn anew each time; a failure shows the seed, in the folder."""
    seed = time.time_ns()
    draw = random.Random(seed)
    kept = 0
    for number in range(25):
        folder = tmp_path / f"seed_{seed}_kill_{number}"
        program, options, _, file = endless_run(kind, folder)
        with Ranks(folder, [program] * 4, options) as started:
            lost = draw.randrange(4)
            time.sleep(draw.uniform(0, 12))
            started.processes[lost].kill()
            # 2 where they had not met yet
            statuses = set(started.statuses(2 * LONGEST_S, but=lost))
        assert statuses <= {1, 2}, (folder, statuses)
        # a file that the killed rank was writing
        assert lost == 0 or not list(folder.glob("*.tmp"))
        if file.exists():
            kept += 1
            assert finished_in(file) >= 1
    assert kept > 5, "no kill came in the midst of the work"


def test_ranks_that_cannot_begin_say_why(
    scaling_program: Path, train_program: Path, tmp_path: Path
) -> None:
    # of one commit there are many builds
    (tmp_path / "bin").mkdir()
    other = Path(shutil.copy(train_program, tmp_path / "bin"))
    # with the data beside it
    (tmp_path / "share").symlink_to(train_program.parents[1] / "share")
    with other.open("ab") as stream:
        stream.write(b"another build")
    with Ranks(tmp_path, [train_program, other], ENDLESS_TRAIN) as started:
        assert started.statuses() == [2, 2]
    assert all("digest of the program: " in started.said(rank) for rank in range(2))
    # and one alone, before it measures anything
    for program, options, said in (
        (scaling_program, (*ENDLESS_SCALE, "--benchmark_out=/no/such/folder/r.json"), "/no/such/"),
        (scaling_program, ("--device=cpu", "--max-bytes=5000000TiB"), "--max-bytes 549755813888"),
        (train_program, (*TRAIN, "--shard-optimizer"), "--share zero1"),
        (scaling_program, ("--shard-optimizer", "--share=tensor"), "--share tensor: it is short"),
    ):
        finished = Program(program).run(*options)
        assert finished.returncode == 2 and "round" not in finished.stderr
        assert said in finished.stderr
