"""The numbers of performance_summary.json follow from one another."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import pytest
from train_program import PHASES, FinishedRun, Json, Program, read_json, small

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


def test_averages_leave_the_first_step_out(summary: Json) -> None:
    first, *others = [step["time_seconds"] for step in summary["steps"]]
    means = summary["summary"]
    assert means["first_step_seconds"] == first
    assert means["steps_completed"] == len(others) + 1
    assert means["steps_averaged"] == len(others)
    assert means["average_step_seconds"] == close(statistics.mean(others))
    assert means["median_step_seconds"] == close(statistics.median(others))
    assert means["stddev_step_seconds"] == close(statistics.stdev(others))
    for phase in ("forward", "backward", "optimizer"):
        expected = statistics.mean(step[f"{phase}_seconds"] for step in summary["steps"][1:])
        assert means[f"average_{phase}_seconds"] == close(expected)


def test_breakdown_adds_up(summary: Json) -> None:
    means = summary["summary"]
    assert list(means["breakdown"]) == PHASES
    assert sum(share["percent"] for share in means["breakdown"].values()) == close(100)
    seconds = sum(share["seconds"] for share in means["breakdown"].values())
    assert seconds == close(means["average_step_seconds"])
    for phase, share in means["breakdown"].items():
        expected = statistics.mean(step[f"{phase}_seconds"] for step in summary["steps"][1:])
        assert share["seconds"] == close(expected)


def test_rates_count_all_micro_batches(summary: Json) -> None:
    means, asked = summary["summary"], summary["configuration"]
    samples = asked["batch_size"] * asked["gradient_accumulation_steps"]
    rate = samples / means["average_step_seconds"]
    assert means["samples_per_second"] == close(rate)
    assert means["tokens_per_second"] == close(rate * asked["seq_len"])


def test_peak_and_loss_are_those_of_the_steps(summary: Json) -> None:
    means, steps = summary["summary"], summary["steps"]
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


def test_timeline_reaches_the_peak(profiled_run: FinishedRun) -> None:
    timeline = read_json(profiled_run.folder / "memory_timeline.json")
    memory = profiled_run.summary["memory"]
    seconds = [row[0] for row in timeline["events"]]
    assert seconds == sorted(seconds)
    assert max(row[1] for row in timeline["events"]) == memory["peak_bytes"]
    assert timeline["events"][-1][1] == memory["live_bytes_after_steps"][-1]
    assert sorted({phase["step"] for phase in timeline["phases"]}) == [2, 3, 4]
    for before, after in pairwise(timeline["phases"]):
        assert before["begin_seconds"] <= before["end_seconds"] <= after["begin_seconds"]


def test_allocations_are_those_of_the_timeline(profiled_run: FinishedRun) -> None:
    timeline = read_json(profiled_run.folder / "memory_timeline.json")
    memory = profiled_run.summary["memory"]
    live = [memory["baseline_bytes"], *[row[1] for row in timeline["events"]]]
    grown = [after > before for before, after in pairwise(live)]
    assert memory["allocations_per_step"] == close(sum(grown) / 3)


def test_an_only_step_is_averaged(program: Program, tmp_path: Path) -> None:
    summary = program.trained(tmp_path, *small(num_steps=1))
    means = summary["summary"]
    assert means["steps_averaged"] == 1
    assert means["average_step_seconds"] == summary["steps"][0]["time_seconds"]
