"""What is measured on a fake GPU: kernels and their time by the profiler, whether a case waits for
the host, memory to the byte, the largest batch to the sample, attention's library, traces, cases
that stay open, and ranks on two devices."""

import json
from pathlib import Path

import pytest
from fake_gpu import POINT, QUICK, SMALL, GpuProgram, counted, losses

from built_programs import Completed, Json, built_program, finish, read_json, start
from tinyllama_tools.commands.ranks import free_port

STEP = ("--components=full_step", "--variants=baseline", *POINT)


@pytest.fixture(scope="module")
def bench() -> GpuProgram:
    return GpuProgram("tiny_llama_bench")


def measured(
    program: GpuProgram, folder: Path, *arguments: str, **fake: str | int
) -> tuple[Completed, dict[str, Json]]:
    """Rows by the names of their cases, each the first repetition's."""
    out = folder / "out.json"
    options = (*QUICK, f"--benchmark_out={out}", *SMALL, *arguments)
    completed = program.on_gpu(*options, **fake)
    assert completed.returncode == 0, completed.stderr[-2000:]
    rows: dict[str, Json] = {}
    for row in read_json(out)["benchmarks"]:
        if row["run_type"] == "iteration":
            rows.setdefault(row["run_name"], row)
    return completed, rows


def test_kernels_are_counted_and_timed(bench: GpuProgram, tmp_path: Path) -> None:
    variants = "--variants=baseline,library_adamw,library_adamw+graph"
    _, rows = measured(bench, tmp_path, "--components=full_step", variants, *POINT)
    eager, one_update, graph = rows.values()
    # a fused update is one kernel in place of many
    assert eager["kernels"] > one_update["kernels"] > 50
    # a replay runs the kernels that it captured, without an operator
    assert graph["kernels"] == one_update["kernels"]
    assert graph.get("operators", 0) < one_update["operators"] / 10
    assert all(row["device_ms"] > 0 for row in rows.values())


def test_a_case_waits_for_the_host_or_for_the_device(bench: GpuProgram, tmp_path: Path) -> None:
    # a kernel that takes long makes the device the one that all wait for
    _, quick = measured(bench, tmp_path, *STEP)
    _, slow = measured(bench, tmp_path, *STEP, kernel_us=500)
    (of_quick,), (of_slow,) = quick.values(), slow.values()
    assert (of_quick["host_bound"], of_slow["host_bound"]) == (1, 0)
    assert of_slow["kernels"] == of_quick["kernels"]
    # by events, and not by a host that has run ahead
    least_ms = 0.5 * of_slow["kernels"]
    assert of_slow["device_ms"] >= least_ms and of_slow["real_time"] >= least_ms


def test_memory_is_predicted_to_the_byte(bench: GpuProgram, tmp_path: Path) -> None:
    variants = "--variants=baseline,qkv+gate_up,checkpoint,library_adamw"
    components = "--components=full_step,attention,block,loss"
    _, rows = measured(bench, tmp_path, variants, components, "--dtypes=f32,bf16", *POINT)
    rows = {name: row for name, row in rows.items() if "peak_memory_MiB" in row}
    assert len(rows) > 20
    for name, row in rows.items():
        assert row["peak_memory_MiB"] == row["predicted_memory_MiB"], name


# captures need so much for their segments to differ from those of the same step without
@pytest.mark.parametrize(
    ("memory", "variants"),
    [
        (100_000_000, "baseline,sdpa,library_adamw,library_adamw+graph"),
        (314_572_800, "library_adamw+graph,foreach_adamw+graph"),
    ],
)
def test_the_largest_batch_fits_and_one_more_does_not(
    bench: GpuProgram, memory: int, variants: str
) -> None:
    cases = ("--components=full_step,ffn", "--passes=train,forward_backward", "--seq=128")
    large = ("--sizes=tiny", "--threads=1", "--dtypes=f32,amp_bf16")
    options = ("--find-limit=batch", "--confirm", "--benchmark_format=json", *large, *cases)
    completed = bench.on_gpu(*options, f"--variants={variants}", memory=memory)
    assert completed.returncode == 0, completed.stdout[-3000:]
    limits = [limit for limit in json.loads(completed.stdout)["limits"] if limit["largest"]]
    assert len(limits) >= 4
    for limit in limits:
        assert limit["tried"]["fits"] and not limit["tried_beyond"]["fits"], limit
        assert "out of memory" in limit["tried_beyond"]["failure"]
        # what the tensors ask for is not all: the allocator's segments hold more
        assert limit["predicted_memory_bytes"] <= memory


def test_attention_says_which_kernel_computed_it(bench: GpuProgram, tmp_path: Path) -> None:
    cases = ("--components=attention", "--passes=forward", "--variants=sdpa", *POINT)
    _, rows = measured(bench, tmp_path, *cases, "--dtypes=f32,bf16")
    labels = [row["label"] for row in rows.values()]
    assert ["efficient" in labels[0], "flash (AOTriton)" in labels[1]] == [True, True], labels


def test_clock_and_power_are_those_of_the_vendors_library(tmp_path: Path) -> None:
    program = GpuProgram("tiny_llama_bench", with_kernels=True)
    library = built_program("tests/fakes/libnvml_fake.so")
    (tmp_path / "libnvidia-ml.so.1").symlink_to(library)
    out = tmp_path / "out.json"
    options = (*QUICK, *SMALL, *STEP, f"--benchmark_out={out}", "--device=cuda:0")
    around = program.surroundings() | {"LD_LIBRARY_PATH": str(tmp_path)}
    completed = program.run(*options, env=around)
    assert completed.returncode == 0, completed.stderr[-2000:]
    row = read_json(out)["benchmarks"][0]
    assert (row["power_W"], row["clock_MHz"], row["temperature_celsius"]) == (655.25, 1980, 64)
    joules = row["power_W"] * row["mean_ns"] * 1e-9 / (2 * 17)
    assert row["joules_per_token"] == pytest.approx(joules, rel=1e-6)
    assert "clock held down by power" in row["label"]


def test_a_trace_has_kernels_and_launches(bench: GpuProgram, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    measured(bench, tmp_path, *STEP, f"--trace={trace}")
    files = [trace] if trace.is_file() else sorted(trace.rglob("*.json"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert '"kernel"' in text and "hipLaunchKernel" in text


def test_cases_stay_open_on_a_gpu(bench: GpuProgram) -> None:
    serve = [bench.path, "--device=hip:1", "--serve", *SMALL, *STEP]
    case = "full_step/train/baseline/custom/f32/batch:2/seq:17"
    requests = [
        {"do": "open", "case": case, "verify": True, "meter": True},
        {"do": "time", "case": case, "seconds": 0.01},
        {"do": "close", "case": case},
    ]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    served = start(serve, env=bench.surroundings(), stdin=-1)
    out, err = served.communicate(lines, timeout=60)
    assert served.returncode == 0, err
    _, opened, timed, closed = [json.loads(line) for line in out.splitlines()]
    assert opened["opened"] == case and 0 < opened["max_rel_error"] < 1e-5
    assert opened["counters"]["kernels"] > 100
    assert all(seconds > 0 for seconds in timed["seconds"]) and closed == {"closed": case}


def run_ranks(program: GpuProgram, *options: str, device: str = "", **fake: int) -> list[Completed]:
    """Two, each on the device of its number."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [program.path, f"--device={device or program.device}", *options]
    around = program.surroundings(**fake)
    ranks = [
        start(command, env=around | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in (0, 1)
    ]
    return [finish(rank) for rank in ranks]


def test_two_ranks_train_on_two_devices(tmp_path: Path) -> None:
    program = GpuProgram("tiny_llama_train", with_kernels=True)
    options = (*SMALL, "--seq-len=17", "--num-steps=4")
    options += ("--batch-size=2", f"--output-dir={tmp_path}")
    on_cpu = run_ranks(program, *options, device="cpu")
    both = run_ranks(program, *options)
    assert [rank.returncode for rank in both] == [0, 0], both[1].stderr
    assert "Step 4/4" in both[0].stdout and "Step" not in both[1].stdout
    assert losses(both[0]) == pytest.approx(losses(on_cpu[0]), abs=1e-4)


def test_collectives_run_between_two_devices(tmp_path: Path) -> None:
    program = GpuProgram("tiny_llama_scaling", with_kernels=True)
    dimensions = [option for option in SMALL if "sizes" not in option]
    options = ("--batch=2", "--seq=17", "--rounds=2", "--min-time=0.01", "--max-bytes=64KiB")
    out = tmp_path / "out.json"
    ranks = run_ranks(program, *dimensions, *options, f"--benchmark_out={out}")
    assert [rank.returncode for rank in ranks] == [0, 0], ranks[0].stderr
    found = read_json(out)
    assert {row["run_name"].split("/")[0] for row in found["benchmarks"]} >= {
        *("full_step", "all_reduce", "reduce_scatter", "all_gather")
    }
    # two ranks of one device would measure each other
    shared = run_ranks(program, *dimensions, *options, partitions=1)
    assert {rank.returncode for rank in shared} != {0}


def test_a_run_is_resumed(bench: GpuProgram, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    completed, _ = measured(bench, tmp_path, *STEP, f"--journal={journal}")
    again, rows = measured(bench, tmp_path, *STEP, f"--journal={journal}", "--resume")
    assert counted(again)["kernels"] < counted(completed)["kernels"] / 2
    assert len(rows) == 1
