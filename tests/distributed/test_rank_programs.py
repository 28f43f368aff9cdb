"""tiny_llama_scaling over several ranks: its rows and their figures; tiny_llama_train over several
ranks computes what one process with all samples computes; both under the launchers people use."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from rank_programs import (
    SCALE,
    SMALL,
    TRAIN,
    Ranks,
    assert_all_well,
    free_port,
    run,
    run_ranks,
    summary,
)
from safetensors.numpy import load_file

from built_programs import Json, read_json
from tinyllama_tools.data.profiles import SCHEMA

STEP = "full_step/train/baseline/custom/f32"
START = f"{STEP}/batch:2/seq:8/ranks:2"


def measured(program: Path, ranks: int, folder: Path, *options: str) -> Json:
    file = folder / "result.json"
    given = (*SCALE, "--rounds=2", *options, f"--benchmark_out={file}")
    assert_all_well(run_ranks(program, ranks, *given))
    return read_json(file)


def row_names(result: Json) -> list[str]:
    return list(dict.fromkeys(row["run_name"] for row in result["benchmarks"]))


def repetitions(result: Json, name: str) -> list[Json]:
    rows = [row for row in result["benchmarks"] if row["run_name"] == name]
    return [row for row in rows if row["run_type"] == "iteration"]


def test_weak_scaling(scaling_program: Path, tmp_path: Path) -> None:
    """A row for every way of running a step, of the slowest rank, whose losses add up; and of every
    collective."""
    options = ("--batch=2", "--components=full_step,all_reduce", "--shard-optimizer")
    result = measured(scaling_program, 2, tmp_path, *options, "--max-bytes=4KiB")
    modes = ["alone", "local", "no_overlap", "overlap", "sharded", "communication"]
    assert row_names(result)[:6] == [f"{START}/{mode}" for mode in modes]
    row = repetitions(result, "all_reduce/f32/bytes:4096/ranks:2")[0]
    rate = 1e-9 * 4096 / (row["real_time"] * 1e-6)
    # nccl-tests: of two ranks a factor of 1
    assert row["algorithm_GB_per_second"] == row["bus_GB_per_second"] == pytest.approx(rate)
    for mode in modes:
        rows, rounds = repetitions(result, f"{START}/{mode}"), result["rank_samples"]
        rounds = rounds[f"{START}/{mode}"]
        assert len(rows) == len(rounds) == 2
        for row, a_round in zip(rows, rounds, strict=True):
            assert [bool(rank) for rank in a_round] == [True, mode != "alone"]
            at_work = [rank for rank in a_round if rank]
            slowest = [max(step) for step in zip(*at_work, strict=True)]
            assert row["real_time"] == pytest.approx(1e3 * np.mean(slowest), rel=1e-6)
            assert row["iterations"] == len(slowest)
    for row in repetitions(result, f"{START}/overlap"):
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
    options = [f"--{size}" for size in f"{sizes} seq=4 batch=1 device=cpu threads=1".split()]
    options += ["--components=full_step", "--variant=foreach_adamw", "--min-time=0.01"]
    peaks: list[dict[str, float]] = []
    for more in ((), ("--shard-optimizer",)):
        file = tmp_path / "result.json"
        given = (*options, "--rounds=2", *more, f"--benchmark_out={file}")
        assert_all_well(run_ranks(scaling_program, 4, *given))
        result = read_json(file)
        first = {
            name.rpartition("/")[2]: repetitions(result, name)[0] for name in row_names(result)
        }
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
    options = ("--global-batch=4", "--components=full_step")
    result = measured(scaling_program, 2, tmp_path, *options)
    assert f"{STEP}/batch:4/seq:8/ranks:2/alone" in row_names(result)
    row = repetitions(result, f"{START}/overlap")[0]
    assert {"strong_efficiency_percent", "loss_small_batch_percent"} <= row.keys()
    # a world of one has a plain and a data-parallel step, and nobody to share an optimizer with
    result = measured(scaling_program, 1, tmp_path, "--batch=2")
    start = f"{STEP}/batch:2/seq:8/ranks:1"
    assert row_names(result) == [f"{start}/alone", f"{start}/overlap"]
    assert result["context"]["distributed"]["backend"] == "none"
    finished = run(train_program, *TRAIN, "--shard-optimizer")
    assert finished.returncode == 2 and "--shard-optimizer" in finished.stderr


def trained(program: Path, folder: Path, ranks: int, *options: str) -> list[float]:
    """Losses of four steps. One rank of several batches accumulates them."""
    given = (*TRAIN, "--num-steps=4", "--learning-rate=1e-3", *options)
    given = (*given, f"--output-dir={folder}", f"--save-weights={folder / 'weights'}")
    if ranks == 1:
        finished = run(program, *given)
        assert finished.returncode == 0, finished.stderr
    else:
        assert_all_well(run_ranks(program, ranks, *given))
    return [step["loss"] for step in summary(folder)["steps"]]


@pytest.mark.parametrize(
    ("ranks", "batches", "more"),
    [
        (2, 2, ()),
        (2, 2, ("--no-overlap",)),
        (3, 3, ("--bucket-mb=0.01",)),
        (4, 4, ()),
        (2, 2, ("--shard-optimizer",)),
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


def test_a_signal_to_one_rank_ends_all_and_keeps_what_was_done(
    scaling_program: Path, train_program: Path, tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    scale = (*SCALE, "--batch=2", "--rounds=100000", "--components=full_step")
    train = (*TRAIN, "--num-steps=1000000", f"--output-dir={tmp_path}")
    for program, options, line in (
        (scaling_program, (*scale, f"--benchmark_out={file}"), "round 2 of"),
        (train_program, train, "Step 5/"),
    ):
        with Ranks(program, 2, [options] * 2) as started:
            started.wait_for(line)
            started.processes[1].terminate()
            ends = started.ends()
        assert [end.status for end in ends] == [130, 130], [end.error for end in ends]
    result = read_json(file)
    assert len(repetitions(result, f"{START}/overlap")) >= 2
    found = summary(tmp_path)
    assert found["summary"]["interrupted"] is True
    assert found["distributed"]["weights_are_identical"] is True


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
    train = (*launcher(), train_program, *TRAIN, f"--output-dir={tmp_path}")
    finished = run(*train, "--num-steps=3")
    assert finished.returncode == 0, finished.stderr
    found = summary(tmp_path)["distributed"]
    assert (found["world_size"], found["started_by"]) == (2, started_by)
    assert run(*train, "--num-steps=0").returncode != 0
    file = tmp_path / "result.json"
    scale = (*SMALL, "--batch=2", "--seq=8", "--rounds=1", "--min-time=0.01", "--max-bytes=4KiB")
    finished = run(*launcher(), scaling_program, *scale, f"--benchmark_out={file}")
    assert finished.returncode == 0, finished.stderr
    result = read_json(file)
    assert result["context"]["distributed"]["started_by"] == started_by
