"""Figures of a training run: times, FLOPs, losses."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest
from train_program import SMALL_BATCH, SUMMARY, Program, losses, small, step_lines

from built_programs import ON_CPU, FinishedRun, Json, read_json

FAST = {"learning_rate": "0.01"}
COMPUTING = ("forward", "backward", "optimizer")
PHASES = ["data_loading", *COMPUTING, "evaluation", "other"]


def close(expected: Json) -> Json:
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.fixture(scope="module")
def evaluated(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """A run with every phase, and micro-batches."""
    options = small(num_steps=6, gradient_accumulation_steps=3, eval_interval=2, eval_iters=2)
    return program.trained(tmp_path_factory.mktemp("evaluated"), *options)


def test_steps_averages_and_rates(evaluated: Json, profiled_run: FinishedRun) -> None:
    for summary in (evaluated, profiled_run.result):
        means, asked, steps = summary["summary"], summary["configuration"], summary["steps"]
        for step in steps:
            assert sum(step[f"{phase}_seconds"] for phase in PHASES) == close(step["time_seconds"])
            assert min(step[f"{phase}_seconds"] for phase in COMPUTING) > 0
        first, *others = steps
        # the first step is in no average
        assert means["first_step_seconds"] == first["time_seconds"]
        assert (means["steps_completed"], means["steps_averaged"]) == (len(steps), len(others))
        times = [step["time_seconds"] for step in others]
        for name, of in (("average", "mean"), ("median", "median"), ("stddev", "stdev")):
            assert means[f"{name}_step_seconds"] == close(getattr(statistics, of)(times))
        assert list(means["breakdown"]) == PHASES
        for phase, share in means["breakdown"].items():
            seconds = statistics.mean(step[f"{phase}_seconds"] for step in others)
            percent = 100 * seconds / means["average_step_seconds"]
            assert share == close({"seconds": seconds, "percent": percent})
        # all micro-batches count
        samples = asked["batch_size"] * asked["gradient_accumulation_steps"]
        rate = samples / means["average_step_seconds"]
        assert means["samples_per_second"] == close(rate)
        assert means["tokens_per_second"] == close(rate * asked["seq_len"])
        assert means["peak_memory_bytes"] == max(step["peak_memory_bytes"] for step in steps)
        assert means["final_loss"] == steps[-1]["loss"]
    flops = [summary["model"]["flops_per_step"] for summary in (evaluated, profiled_run.result)]
    assert flops[0] == 3 * flops[1]
    for step in evaluated["steps"]:
        assert (step["evaluation_seconds"] > 0) == (step["step"] % 2 == 0)
        assert (step["evaluation_loss"] is not None) == (step["step"] % 2 == 0)
    # memory_analysis_test.cpp has it to the byte
    memory, steps = profiled_run.result["memory"], profiled_run.result["steps"][1:4]
    assert memory["peak_bytes"] == max(step["peak_memory_bytes"] for step in steps)
    assert sum(memory["breakdown_at_peak"].values()) == memory["peak_bytes"]


def test_flops_utilization_and_bandwidth(flops_run: FinishedRun) -> None:
    """flops_analysis_test.cpp has the parts of a step, what bounds them and their roofline."""
    summary = flops_run.result
    flops, model = summary["flops"], summary["model"]
    profile, intensity = flops["flops_profile"], flops["computational_intensity"]
    counts, found = profile["flops_analysis"], profile["efficiency_metrics"]
    assert counts["avg_flops_per_step"] == counts["model_flops"] == model["flops_per_step"]
    per_parameter = model["flops_per_step"] / model["total_parameters"]
    assert counts["flops_per_parameter"] == close(per_parameter)
    assert profile["step"] == 10
    assert [step["step"] for step in summary["steps"] if step["profiled"]] == [10]
    # rates are those of plain steps
    seconds = summary["summary"]["plain_average_step_seconds"]
    rate = model["flops_per_step"] / seconds
    assert profile["performance_metrics"]["flops_per_sec"] == close(rate)
    assert profile["performance_metrics"]["throughput_samples_per_sec"] == close(2 / seconds)
    assert found["mfu_percent"] == close(100 * rate / found["device_peak_flops"])
    used = 1e-9 * model["bytes_per_step"] / seconds
    device = intensity["device_memory_bandwidth_gb_per_sec"]
    assert intensity["memory_bandwidth_used_gb_per_sec"] == close(used)
    assert intensity["memory_bandwidth_utilization_percent"] == close(100 * used / device)
    per_byte = model["flops_per_step"] / model["bytes_per_step"]
    assert intensity["arithmetic_intensity_flops_per_byte"] == close(per_byte)


def test_text_is_learned_and_evaluated(program: Program, tmp_path: Path) -> None:
    text = tmp_path / "fox.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 500, encoding="utf-8")
    options = small(num_steps=90, data=text, eval_interval=30, eval_iters=2, **FAST)
    completed = program.run(*options, "--log-interval=30", f"--output-dir={tmp_path}")
    assert completed.returncode == 0, completed.stderr
    summary = read_json(tmp_path / SUMMARY)
    assert summary["configuration"]["data"] == "fox.txt"
    assert sum(losses(summary)[-5:]) < 0.6 * sum(losses(summary)[:5])
    evaluated = {s["step"]: s["evaluation_loss"] for s in summary["steps"] if s["evaluation_loss"]}
    assert list(evaluated) == [30, 60, 90]
    assert evaluated[90] < evaluated[30]
    said = re.findall(r"^Evaluation after step (\d+): Loss = ([\d.]+)$", completed.stdout, re.M)
    assert said == [(str(step), f"{loss:.4f}") for step, loss in evaluated.items()]
    assert [line["step"] for line in step_lines(completed.stdout)] == ["1", "30", "60", "90"]
    # with next to no learning the loss varies with what was read alone
    still = program.trained(tmp_path, *small(num_steps=6, data=text, learning_rate="1e-30"))
    assert len(set(losses(still))) == 6


def test_a_seed_decides_every_bit(program: Program, tmp_path: Path) -> None:
    def run(seed: int) -> Json:
        options = [o for o in small(num_steps=3, seed=seed) if not o.startswith("--threads")]
        return program.trained(tmp_path, *options, "--threads=2", "--deterministic")

    first = run(42)
    assert first["configuration"]["deterministic"] is True
    assert first["context"]["settings"]["deterministic_algorithms"] == "true"
    assert losses(run(42)) == losses(first)
    assert not set(losses(run(43))) & set(losses(first))


def test_a_run_goes_on_from_saved_weights(program: Program, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    # one step of seven sees the loss of the weights that six steps made
    whole = losses(program.trained(tmp_path, *small(num_steps=7, **FAST)))
    part = program.trained(tmp_path, *small(num_steps=6, save_weights=weights, **FAST))
    assert losses(part) == whole[:6]
    batch = [f"{name}={value}" for name, value in SMALL_BATCH.items()]
    options = [*ON_CPU, *batch, "--num-steps=1", f"--weights={weights}"]
    continued = program.trained(tmp_path, *options)
    assert continued["model"] == part["model"]
    assert losses(continued) == pytest.approx(whole[6:], rel=1e-6)
    assert whole == sorted(whole, reverse=True)
