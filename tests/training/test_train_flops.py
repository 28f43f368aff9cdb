"""The FLOPS profiler's numbers follow from one another, from the step and from the peaks."""

from __future__ import annotations

import pytest
from train_program import FinishedRun, Json

CLOSE = 1e-9


@pytest.fixture(scope="module")
def profile(flops_run: FinishedRun) -> Json:
    return flops_run.summary["flops"]["flops_profile"]


@pytest.fixture(scope="module")
def intensity(flops_run: FinishedRun) -> Json:
    return flops_run.summary["flops"]["computational_intensity"]


@pytest.fixture(scope="module")
def roofline(flops_run: FinishedRun) -> Json:
    return flops_run.summary["flops"]["roofline_data"]


def close(expected: float) -> Json:
    return pytest.approx(expected, rel=CLOSE)


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
