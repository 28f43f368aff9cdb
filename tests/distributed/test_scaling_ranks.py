"""tiny_llama_scaling over several ranks: its rows, its proofs, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rank_programs import ON_CPU, SMALL_MODEL, Json, Ranks, assert_all_well, run_ranks

from built_programs import built_program

QUICK = (*ON_CPU, *SMALL_MODEL, "--batch=2", "--seq=8", "--rounds=2", "--min-time=0.02")
STEP = "full_step/train/baseline/custom/f32"


@pytest.fixture(scope="session")
def scaling_program() -> Path:
    """The built tiny_llama_scaling."""
    return built_program("benchmarks/tiny_llama_scaling")


def measured(program: Path, ranks: int, folder: Path, *options: str) -> Json:
    file = folder / "result.json"
    assert_all_well(run_ranks(program, ranks, *QUICK, *options, f"--benchmark_out={file}"))
    return json.loads(file.read_text(encoding="utf-8"))


def row_names(result: Json) -> list[str]:
    return list(dict.fromkeys(row["run_name"] for row in result["benchmarks"]))


def repetitions(result: Json, name: str) -> list[Json]:
    rows = [row for row in result["benchmarks"] if row["run_name"] == name]
    return [row for row in rows if row["run_type"] == "iteration"]


def test_weak_scaling_has_a_row_for_every_way_of_running_a_step(
    scaling_program: Path, tmp_path: Path
) -> None:
    result = measured(scaling_program, 2, tmp_path, "--components=full_step", "--shard-optimizer")
    start = f"{STEP}/batch:2/seq:8/ranks:2"
    modes = ["alone", "local", "no_overlap", "overlap", "sharded", "communication"]
    assert row_names(result) == [f"{start}/{mode}" for mode in modes]
    for mode in modes:
        assert len(repetitions(result, f"{start}/{mode}")) == 2
        samples = result["rank_samples"][f"{start}/{mode}"]
        assert [len(a_round) for a_round in samples] == [2, 2]
        assert all(
            bool(rank) is (mode != "alone" or index == 0)
            for a_round in samples
            for index, rank in enumerate(a_round)
        )
    for row in repetitions(result, f"{start}/overlap"):
        lost = sum(value for name, value in row.items() if name.startswith("loss_"))
        assert row["weak_efficiency_percent"] + lost == pytest.approx(100, abs=1e-6)
        assert 0 <= row["max_rel_error"] < 1e-6
    found = result["context"]["distributed"]
    assert (found["world_size"], found["backend"], found["scaling"]) == (2, "gloo", "weak")
    assert sum(found["bucket_bytes"]) == found["gradient_bytes"]
    assert [rank["node"] for rank in found["ranks"]] == [0, 0]


def test_a_repetition_is_the_slowest_rank_of_its_round(
    scaling_program: Path, tmp_path: Path
) -> None:
    result = measured(scaling_program, 2, tmp_path, "--components=full_step")
    name = f"{STEP}/batch:2/seq:8/ranks:2/overlap"
    for row, a_round in zip(repetitions(result, name), result["rank_samples"][name], strict=True):
        slowest = [max(step) for step in zip(*a_round, strict=True)]
        assert row["real_time"] == pytest.approx(1e3 * sum(slowest) / len(slowest), rel=1e-6)
        assert row["iterations"] == len(slowest)


def test_strong_scaling_shares_one_batch(scaling_program: Path, tmp_path: Path) -> None:
    result = measured_strong(scaling_program, tmp_path)
    names = row_names(result)
    assert f"{STEP}/batch:4/seq:8/ranks:2/alone" in names
    assert f"{STEP}/batch:2/seq:8/ranks:2/overlap" in names
    row = repetitions(result, f"{STEP}/batch:2/seq:8/ranks:2/overlap")[0]
    assert "strong_efficiency_percent" in row
    assert "loss_small_batch_percent" in row


def measured_strong(program: Path, folder: Path) -> Json:
    file = folder / "result.json"
    options = [option for option in QUICK if not option.startswith("--batch")]
    ends = run_ranks(
        program,
        2,
        *options,
        "--global-batch=4",
        "--components=full_step",
        f"--benchmark_out={file}",
    )
    assert_all_well(ends)
    return json.loads(file.read_text(encoding="utf-8"))


def test_collectives_have_the_bandwidths_of_nccl_tests(
    scaling_program: Path, tmp_path: Path
) -> None:
    result = measured(
        scaling_program,
        3,
        tmp_path,
        "--components=all_reduce,reduce_scatter,all_gather",
        "--max-bytes=16KiB",
    )
    factors = {"all_reduce": 4 / 3, "reduce_scatter": 2 / 3, "all_gather": 2 / 3}
    names = row_names(result)
    for operation, factor in factors.items():
        own = [name for name in names if name.startswith(f"{operation}/f32/bytes:")]
        assert len(own) >= 3
        for name in own:
            row = repetitions(result, name)[0]
            seconds = row["real_time"] * 1e-6
            assert row["algorithm_GB_per_second"] == pytest.approx(
                row["message_bytes"] / seconds * 1e-9
            )
            assert row["bus_GB_per_second"] == pytest.approx(
                factor * row["algorithm_GB_per_second"]
            )


def test_a_world_of_one_has_a_plain_and_a_data_parallel_step(
    scaling_program: Path, tmp_path: Path
) -> None:
    result = measured(scaling_program, 1, tmp_path)
    start = f"{STEP}/batch:2/seq:8/ranks:1"
    assert row_names(result) == [f"{start}/alone", f"{start}/overlap"]
    assert result["context"]["distributed"]["backend"] == "none"


def test_a_signal_keeps_what_was_measured(scaling_program: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    options = [*QUICK, "--rounds=100000", "--components=full_step", f"--benchmark_out={file}"]
    options.remove("--rounds=2")
    with Ranks(scaling_program, 2, [options] * 2) as started:
        errors = started.processes[0].stderr
        assert errors is not None
        for line in errors:
            if line.startswith("round 2 of"):
                break
        started.processes[1].terminate()
        ends = started.ends()
    assert [end.status for end in ends] == [130, 130]
    result = json.loads(file.read_text(encoding="utf-8"))
    assert len(repetitions(result, f"{STEP}/batch:2/seq:8/ranks:2/overlap")) >= 2


def test_a_batch_that_cannot_be_shared_is_refused_by_all(scaling_program: Path) -> None:
    options = [option for option in QUICK if not option.startswith("--batch")]
    ends = run_ranks(scaling_program, 2, *options, "--global-batch=3")
    for rank, end in enumerate(ends):
        assert end.status == 2
        assert f"rank {rank} of 2: --global-batch 3: must be a multiple of the 2 ranks" in end.error
