"""Figures of a training run: times, FLOPs, losses."""

from __future__ import annotations

import re
import statistics
from itertools import pairwise
from pathlib import Path

import pytest
from train_program import (
    ON_CPU,
    PHASES,
    SMALL_BATCH,
    FinishedRun,
    Json,
    Program,
    losses,
    read_json,
    read_summary,
    small,
)

CLOSE = 1e-9


def close(expected: Json) -> Json:
    return pytest.approx(expected, rel=CLOSE, abs=1e-12)


@pytest.fixture(scope="module")
def evaluated(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """A run with every phase, and micro-batches."""
    options = small(num_steps=6, gradient_accumulation_steps=3, eval_interval=2, eval_iters=2)
    return program.trained(tmp_path_factory.mktemp("evaluated"), *options)


@pytest.fixture(scope="module", params=["profiled", "flops", "evaluated"])
def summary(request: pytest.FixtureRequest) -> Json:
    if request.param == "evaluated":
        return request.getfixturevalue("evaluated")
    return request.getfixturevalue(f"{request.param}_run").summary


def test_phases_add_up_to_the_step(summary: Json) -> None:
    for step in summary["steps"]:
        assert sum(step[f"{phase}_seconds"] for phase in PHASES) == close(step["time_seconds"])
        assert step["forward_seconds"] > 0
        assert step["backward_seconds"] > 0
        assert step["optimizer_seconds"] > 0


def test_evaluation_takes_time_where_it_happens(evaluated: Json) -> None:
    for step in evaluated["steps"]:
        assert (step["evaluation_seconds"] > 0) == (step["step"] % 2 == 0)
        assert (step["evaluation_loss"] is not None) == (step["step"] % 2 == 0)


def test_averages_leave_the_first_step_out_and_add_up(summary: Json) -> None:
    means, (first, *others) = summary["summary"], summary["steps"]

    def of(key: str) -> list[float]:
        return [step[f"{key}_seconds"] for step in others]

    assert means["first_step_seconds"] == first["time_seconds"]
    assert (means["steps_completed"], means["steps_averaged"]) == (len(others) + 1, len(others))
    for kind, average in (
        ("average", statistics.mean),
        ("median", statistics.median),
        ("stddev", statistics.stdev),
    ):
        assert means[f"{kind}_step_seconds"] == close(average(of("time")))
    assert list(means["breakdown"]) == PHASES
    for phase, share in means["breakdown"].items():
        seconds = statistics.mean(of(phase))
        percent = 100 * seconds / means["average_step_seconds"]
        assert share == close({"seconds": seconds, "percent": percent})
    assert sum(share["percent"] for share in means["breakdown"].values()) == close(100)
    for phase in ("forward", "backward", "optimizer"):
        assert means[f"average_{phase}_seconds"] == means["breakdown"][phase]["seconds"]


def test_rates_peak_and_loss_are_those_of_the_steps(summary: Json) -> None:
    means, asked, steps = summary["summary"], summary["configuration"], summary["steps"]
    # all micro-batches count
    samples = asked["batch_size"] * asked["gradient_accumulation_steps"]
    rate = samples / means["average_step_seconds"]
    assert means["samples_per_second"] == close(rate)
    assert means["tokens_per_second"] == close(rate * asked["seq_len"])
    assert means["peak_memory_bytes"] == max(step["peak_memory_bytes"] for step in steps)
    assert means["final_loss"] == steps[-1]["loss"]
    assert means["peak_memory_bytes"] > 3 * summary["model"]["model_size_bytes"]


def without_evaluation(steps: list[Json], profiled: range) -> list[float]:
    wanted = [step for step in steps if step["step"] in profiled]
    return [step["time_seconds"] - step["evaluation_seconds"] for step in wanted]


def test_overhead_compares_with_the_plain_steps(profiled_run: FinishedRun) -> None:
    steps, means = profiled_run.summary["steps"], profiled_run.summary["summary"]
    plain = without_evaluation(steps, range(11, 13))
    assert means["plain_steps"] == 2
    assert means["plain_average_step_seconds"] == close(statistics.mean(plain))
    for name, recorded in (("memory", range(2, 5)), ("operator", range(5, 11))):
        seconds = without_evaluation(steps, recorded)
        average = means[f"{name}_profiled_average_step_seconds"]
        assert average == close(statistics.mean(seconds))
        ratio = statistics.median(seconds) / statistics.median(plain)
        assert means[f"{name}_profiling_overhead_percent"] == close(100 * (ratio - 1))


def test_model_counts_what_it_has(evaluated: Json, profiled_run: FinishedRun) -> None:
    model = evaluated["model"]
    # embedding and head, two blocks of attention, FFN and two norms, the last norm
    block = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48 + 2 * 32
    assert model["total_parameters"] == 2 * 300 * 32 + 2 * block + 32
    assert model["model_size_bytes"] == 4 * model["total_parameters"]
    # three micro-batches against one
    assert model["flops_per_step"] == 3 * profiled_run.summary["model"]["flops_per_step"]


def test_operator_shares_add_up(profiled_run: FinishedRun) -> None:
    operators = profiled_run.summary["operators"]
    assert (operators["first_step"], operators["last_step"], operators["steps"]) == (5, 10, 6)
    shares = [row["share_percent"] for row in operators["table"]]
    assert sum(shares) == pytest.approx(100, abs=1e-6)
    assert shares == sorted(shares, reverse=True)
    assert sum(c["percent"] for c in operators["components"]) == pytest.approx(100, abs=1e-6)
    # Q, K, V, output, gate, up and down of each block, and the head
    assert operators["linear_projections_per_step"] == 2 * 7 + 1
    assert all(row["cpu_self_seconds"] <= row["cpu_total_seconds"] for row in operators["table"])


def test_memory_at_the_peak_adds_up(profiled_run: FinishedRun) -> None:
    memory = profiled_run.summary["memory"]
    parts = memory["breakdown_at_peak"]
    assert sum(parts.values()) == memory["peak_bytes"]
    assert parts["parameters"] == profiled_run.summary["model"]["model_size_bytes"]
    assert parts["optimizer_states"] >= 2 * parts["parameters"]
    phases = [memory[f"{phase}_peak_bytes"] for phase in ("forward", "backward", "optimizer")]
    assert max(phases) == memory["peak_bytes"]
    assert memory[f"{memory['peak_phase']}_peak_bytes"] == memory["peak_bytes"]
    assert memory["peak_to_average"] == close(memory["peak_bytes"] / memory["average_bytes"])
    recorded = profiled_run.summary["steps"][1:4]
    assert memory["peak_bytes"] == max(step["peak_memory_bytes"] for step in recorded)


def test_memory_lists_are_in_order(profiled_run: FinishedRun) -> None:
    memory = profiled_run.summary["memory"]
    sizes = [tensor["bytes"] for tensor in memory["largest_tensors"]]
    assert 0 < len(sizes) <= 10
    assert sizes == sorted(sizes, reverse=True)
    assert memory["small_allocations_per_step"] <= memory["allocations_per_step"]
    # nothing is left over from step to step
    assert len(set(memory["live_bytes_after_steps"])) == 1
    assert len(memory["live_bytes_after_steps"]) == 3


def test_timeline_has_the_peak_and_the_allocations(profiled_run: FinishedRun) -> None:
    timeline = read_json(profiled_run.folder / "memory_timeline.json")
    memory = profiled_run.summary["memory"]
    seconds = [row[0] for row in timeline["events"]]
    assert seconds == sorted(seconds)
    assert max(row[1] for row in timeline["events"]) == memory["peak_bytes"]
    assert timeline["events"][-1][1] == memory["live_bytes_after_steps"][-1]
    assert sorted({phase["step"] for phase in timeline["phases"]}) == [2, 3, 4]
    for before, after in pairwise(timeline["phases"]):
        assert before["begin_seconds"] <= before["end_seconds"] <= after["begin_seconds"]
    live = [memory["baseline_bytes"], *[row[1] for row in timeline["events"]]]
    grown = [after > before for before, after in pairwise(live)]
    assert memory["allocations_per_step"] == close(sum(grown) / 3)


@pytest.fixture(scope="module")
def profile(flops_run: FinishedRun) -> Json:
    return flops_run.summary["flops"]["flops_profile"]


@pytest.fixture(scope="module")
def intensity(flops_run: FinishedRun) -> Json:
    return flops_run.summary["flops"]["computational_intensity"]


@pytest.fixture(scope="module")
def roofline(flops_run: FinishedRun) -> Json:
    return flops_run.summary["flops"]["roofline_data"]


def test_counts_are_those_of_the_model(flops_run: FinishedRun, profile: Json) -> None:
    counts, model = profile["flops_analysis"], flops_run.summary["model"]
    assert counts["avg_flops_per_step"] == counts["model_flops"] == model["flops_per_step"]
    assert counts["causal_flops"] == model["causal_flops_per_step"] < counts["model_flops"]
    expected = model["flops_per_step"] / model["total_parameters"]
    assert counts["flops_per_parameter"] == close(expected)


def test_rates_are_those_of_plain_steps(flops_run: FinishedRun, profile: Json) -> None:
    seconds = flops_run.summary["summary"]["plain_average_step_seconds"]
    model = flops_run.summary["model"]
    rate = model["flops_per_step"] / seconds
    assert profile["performance_metrics"]["flops_per_sec"] == close(rate)
    assert profile["performance_metrics"]["throughput_samples_per_sec"] == close(2 / seconds)
    assert profile["efficiency_metrics"]["achieved_flops_per_sec"] == close(rate)


def test_utilization_is_a_share_of_the_peaks(profile: Json) -> None:
    found = profile["efficiency_metrics"]
    achieved = found["achieved_flops_per_sec"]
    assert found["mfu_percent"] == close(100 * achieved / found["device_peak_flops"])
    assert found["efficiency_ratio"] == close(found["mfu_percent"] / 100)
    # the baseline runs what the model counts
    assert found["measured_peak_percent"] == close(100 * achieved / found["measured_peak_flops"])
    assert 0 < found["mfu_percent"] < 100
    # so small a model never keeps a processor busy
    assert found["classification"] == "severely underutilized (kernel overhead dominant)"


def test_step_10_is_profiled(flops_run: FinishedRun, profile: Json) -> None:
    assert profile["step"] == 10
    assert [s["step"] for s in flops_run.summary["steps"] if s["profiled"]] == [10]


def test_components_add_up(profile: Json) -> None:
    shares = {component["name"]: component["percent"] for component in profile["components"]}
    assert len(shares) == len(profile["components"])
    assert sum(p for name, p in shares.items() if "/" not in name) == pytest.approx(100)
    for name in ("ffn", "attention", "loss"):
        # the softmax stands beside the core that holds it
        below = {n: p for n, p in shares.items() if n.startswith(f"{name}/")}
        below.pop("attention/softmax", None)
        assert shares[name] == pytest.approx(sum(below.values()))
    assert shares["attention/softmax"] < shares["attention/core"]


def test_components_hold_all_flops_and_parameters(flops_run: FinishedRun, profile: Json) -> None:
    outer = [c for c in profile["components"] if "/" not in c["name"]]
    flops = sum(c["forward_flops"] + c["backward_flops"] for c in outer)
    assert flops == profile["flops_analysis"]["model_flops"]
    parameters = sum(component["parameters"] for component in outer)
    assert parameters == flops_run.summary["model"]["total_parameters"]
    for component in profile["components"]:
        assert component["backward_flops"] == 2 * component["forward_flops"]


def test_bandwidth_follows_from_traffic(flops_run: FinishedRun, intensity: Json) -> None:
    seconds = flops_run.summary["summary"]["plain_average_step_seconds"]
    traffic = intensity["memory_traffic_bytes_per_step"]
    assert traffic == flops_run.summary["model"]["bytes_per_step"]
    used = traffic / seconds
    assert intensity["memory_bandwidth_used_gb_per_sec"] == close(used * 1e-9)
    assert intensity["roofline_metrics"]["achieved_bandwidth"] == close(used)
    device = intensity["device_memory_bandwidth_gb_per_sec"]
    assert intensity["memory_bandwidth_utilization_percent"] == close(100 * used * 1e-9 / device)


def test_intensity_is_classified(flops_run: FinishedRun, intensity: Json) -> None:
    model = flops_run.summary["model"]
    expected = model["flops_per_step"] / model["bytes_per_step"]
    found = intensity["arithmetic_intensity_flops_per_byte"]
    assert found == close(expected)
    assert found < 10
    assert intensity["memory_bound_vs_compute_bound"] == "memory-bound"


def test_roofline_points_lie_under_their_roof(intensity: Json, roofline: Json) -> None:
    assert roofline["peak_flops"] == intensity["roofline_metrics"]["peak_flops"]
    bandwidth = roofline["peak_memory_bandwidth"]
    assert roofline["ridge_point_flops_per_byte"] == close(roofline["peak_flops"] / bandwidth)
    step, *components = roofline["points"]
    assert step["name"] == "step"
    assert {"attention", "ffn", "loss", "optimizer"} <= {c["name"] for c in components}
    for point in roofline["points"]:
        share = 100 * point["achieved_flops_per_sec"] / point["attainable_flops_per_sec"]
        assert point["percent_of_attainable"] == close(share)
        by_memory = point["arithmetic_intensity_flops_per_byte"] * point["attainable_bandwidth"]
        roof = min(by_memory, roofline["peak_flops"])
        assert point["attainable_flops_per_sec"] == close(roof)
        assert point["bound"] == ("memory" if by_memory < roofline["peak_flops"] else "compute")
        # all of so small a model fits into a cache
        low, high = sorted((bandwidth, roofline["cache_bandwidth"]))
        rounding = 1 + 1e-12
        assert low / rounding <= point["attainable_bandwidth"] <= high * rounding


TEXT = "the quick brown fox jumps over the lazy dog; " * 500
FAST = {"learning_rate": "0.01"}


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "fox.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


def test_text_is_learned_and_evaluated(program: Program, tmp_path: Path, text_file: Path) -> None:
    options = small(num_steps=90, data=str(text_file), eval_interval=30, eval_iters=2, **FAST)
    completed = program.run(*options, f"--output-dir={tmp_path}")
    assert completed.returncode == 0, completed.stderr
    summary = read_summary(tmp_path)
    found = losses(summary)
    assert summary["configuration"]["data"] == "fox.txt"
    assert sum(found[-5:]) < 0.6 * sum(found[:5])
    evaluated = {s["step"]: s["evaluation_loss"] for s in summary["steps"] if s["evaluation_loss"]}
    assert list(evaluated) == [30, 60, 90]
    assert evaluated[90] < evaluated[30]
    said = re.findall(r"^Evaluation after step (\d+): Loss = ([\d.]+)$", completed.stdout, re.M)
    assert said == [(str(step), f"{loss:.4f}") for step, loss in evaluated.items()]


def test_text_is_evaluated_by_default(program: Program, tmp_path: Path, text_file: Path) -> None:
    summary = program.trained(tmp_path, *small(num_steps=101, data=str(text_file)))
    evaluated = [s["step"] for s in summary["steps"] if s["evaluation_loss"] is not None]
    assert evaluated == [100]


def test_each_step_reads_another_part_of_the_text(
    program: Program, tmp_path: Path, text_file: Path
) -> None:
    # with next to no learning the loss varies with what was read alone
    options = small(num_steps=6, data=str(text_file), learning_rate="1e-30")
    assert len(set(losses(program.trained(tmp_path, *options)))) == 6


def test_synthetic_tokens_are_learned(program: Program, tmp_path: Path) -> None:
    found = losses(program.trained(tmp_path, *small(num_steps=20, **FAST)))
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.5 * found[0]


def test_a_seed_decides_every_bit(program: Program, tmp_path: Path) -> None:
    def run(seed: int) -> list[float]:
        options = [o for o in small(num_steps=8, seed=seed) if not o.startswith("--threads")]
        return losses(program.trained(tmp_path, *options, "--threads=2", "--deterministic"))

    first = run(42)
    assert run(42) == first
    assert [a == b for a, b in zip(run(43), first, strict=True)] == [False] * 8


def test_determinism_is_recorded_and_an_only_step_averaged(
    program: Program, tmp_path: Path
) -> None:
    summary = program.trained(tmp_path, *small(num_steps=1), "--deterministic")
    assert summary["configuration"]["deterministic"] is True
    assert summary["context"]["settings"]["deterministic_algorithms"] == "true"
    assert summary["summary"]["steps_averaged"] == 1
    assert summary["summary"]["average_step_seconds"] == summary["steps"][0]["time_seconds"]


def test_a_run_goes_on_from_saved_weights(program: Program, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    # one step of seven sees the loss of the weights that six steps made
    whole = losses(program.trained(tmp_path, *small(num_steps=7, **FAST)))
    part = program.trained(tmp_path, *small(num_steps=6, **FAST), f"--save-weights={weights}")
    assert losses(part) == whole[:6]
    assert {path.name for path in weights.iterdir()} == {"config.json", "model.safetensors"}
    batch = [f"--{name}={value}" for name, value in SMALL_BATCH.items()]
    continued = program.trained(tmp_path, *ON_CPU, *batch, "--num-steps=2", f"--weights={weights}")
    assert continued["model"] == part["model"]
    assert losses(continued)[0] == pytest.approx(whole[6], rel=1e-6)
    assert losses(continued)[1] < whole[6]


def test_micro_batches_make_the_same_step_in_less_memory(program: Program, tmp_path: Path) -> None:
    # every window of such a text is the same, so four samples twice are eight samples
    file = tmp_path / "text"
    file.write_bytes(b"a" * 2000)
    options = {"num_steps": 6, "data": str(file), "seq_len": 64, **FAST}
    whole = program.trained(tmp_path / "w", *small(batch_size=8, **options))
    halves = program.trained(
        tmp_path / "h", *small(batch_size=4, gradient_accumulation_steps=2, **options)
    )
    assert losses(halves) == pytest.approx(losses(whole), rel=1e-4)
    assert losses(halves)[-1] < 0.9 * losses(halves)[0]
    peaks = [run["summary"]["peak_memory_bytes"] for run in (halves, whole)]
    assert peaks[0] < 0.7 * peaks[1]
    assert halves["model"]["flops_per_step"] == whole["model"]["flops_per_step"]


def test_micro_batches_are_different_samples(program: Program, tmp_path: Path) -> None:
    options = [small(num_steps=1), small(num_steps=1, gradient_accumulation_steps=2)]
    one, two = [losses(program.trained(tmp_path, *o))[0] for o in options]
    # the mean over two batches, one of which is the other run's
    assert one != two
    assert two == pytest.approx(one, rel=0.1)


@pytest.fixture(scope="module")
def baseline(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Json:
    return program.trained(tmp_path_factory.mktemp("baseline"), *small(num_steps=5, **FAST))


@pytest.mark.parametrize("variant", ["fused", "optimized"])
def test_variants_learn_the_same(
    program: Program, tmp_path: Path, baseline: Json, variant: str
) -> None:
    options = small(num_steps=5, variant=variant, **FAST)
    summary = program.trained(tmp_path, *options)
    assert losses(summary) == pytest.approx(losses(baseline), rel=1e-3)
    assert summary["configuration"]["variant"] == variant
    assert {"qkv", "gate_up"} < set(summary["configuration"]["switches"].split("+"))
    assert baseline["configuration"]["switches"] == "baseline"


@pytest.mark.parametrize(
    ("options", "dtype"),
    [(["--use-amp"], "amp_bf16"), (["--use-amp", "--dtype=amp_bf16"], "amp_bf16")],
)
def test_mixed_precision_is_close_but_not_the_same(
    program: Program, tmp_path: Path, baseline: Json, options: list[str], dtype: str
) -> None:
    summary = program.trained(tmp_path, *small(num_steps=5, **FAST), *options)
    assert summary["configuration"]["dtype"] == dtype
    assert losses(summary) != losses(baseline)
    assert losses(summary) == pytest.approx(losses(baseline), rel=0.02)
    # weights stay in float32
    assert summary["model"]["model_size_bytes"] == baseline["model"]["model_size_bytes"]
