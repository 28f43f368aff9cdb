"""The sections of a made-up performance_summary.json, computed from training_figures.Figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from training_figures import (
    FIRST_STEP,
    MEMORY_PROFILER,
    OPERATOR_PROFILER,
    PEAK_BANDWIDTH,
    PEAK_FLOPS,
    PRODUCTS,
    SECONDS_PER_LAUNCH,
    Figures,
)

Json = dict[str, Any]
FLOPS_STEP = 10
OPERATOR_STEPS, MEMORY_STEPS = (5, 10), (2, 4)
PHASES = ("data_loading", "forward", "backward", "optimizer", "evaluation", "other")
# How the time that is no product, no softmax and no update divides among operators.
ELEMENTWISE = (
    ("aten::mul", 0.22),
    ("aten::add_", 0.14),
    ("aten::copy_", 0.12),
    ("aten::sum", 0.09),
    ("aten::silu", 0.07),
    ("aten::silu_backward", 0.06),
    ("aten::cat", 0.05),
    ("aten::mean", 0.05),
    ("aten::rsqrt", 0.04),
    ("aten::pow", 0.04),
    ("aten::masked_fill_", 0.04),
    ("aten::_log_softmax", 0.03),
    ("aten::nll_loss_forward", 0.02),
    ("aten::embedding_dense_backward", 0.015),
    ("aten::neg", 0.01),
    ("aten::div", 0.005),
)
UPDATE = (
    ("aten::addcdiv_", 0.35),
    ("aten::addcmul_", 0.25),
    ("aten::lerp_", 0.2),
    ("aten::sqrt", 0.2),
)


def steps_part(figures: Figures, count: int, profilers: Sequence[str]) -> list[Json]:
    """`steps`."""
    return [one_step(figures, step, count, profilers) for step in range(1, count + 1)]


def within(step: int, steps: tuple[int, int]) -> bool:
    return steps[0] <= step <= steps[1]


def one_step(figures: Figures, step: int, count: int, profilers: Sequence[str]) -> Json:
    factor = 1 + 0.01 * (step % 3)
    operators = "operators" in profilers and within(step, OPERATOR_STEPS)
    memory = "memory" in profilers and within(step, MEMORY_STEPS)
    factor *= FIRST_STEP if step == 1 else 1
    factor *= OPERATOR_PROFILER if operators else 1
    factor *= MEMORY_PROFILER if memory else 1
    times = figures.seconds
    phases = {
        "data_loading": figures.data_loading,
        "forward": sum(f for name, (f, _) in times.items() if name != "optimizer"),
        "backward": sum(b for _, b in times.values()),
        "optimizer": times["optimizer"][0],
        "evaluation": 0.0,
        "other": figures.other,
    }
    phases = {name: value * factor for name, value in phases.items()}
    flops = "flops" in profilers and step == min(FLOPS_STEP, count)
    return {
        "step": step,
        "loss": 6.9 - 0.01 * step,
        "time_seconds": sum(phases.values()),
        **{f"{name}_seconds": value for name, value in phases.items()},
        "peak_memory_bytes": figures.peak_bytes,
        "profiled": operators or memory or flops,
        "evaluation_loss": None,
    }


def overhead(profiled: list[float], plain: list[float]) -> float | None:
    """Percent of the plain steps' median."""
    if not profiled or not plain:
        return None
    return 100 * (statistics.median(profiled) / statistics.median(plain) - 1)


def summary_part(figures: Figures, steps: list[Json]) -> Json:
    """`summary`."""
    counted = steps[1:] or steps
    seconds = [s["time_seconds"] for s in counted]
    average = statistics.mean(seconds)
    plain = [s["time_seconds"] for s in counted if not s["profiled"]]
    touched = [s for s in counted if s["profiled"]]
    operators = [s["time_seconds"] for s in touched if within(s["step"], OPERATOR_STEPS)]
    memory = [s["time_seconds"] for s in touched if within(s["step"], MEMORY_STEPS)]
    phases = {name: statistics.mean(s[f"{name}_seconds"] for s in counted) for name in PHASES}
    return {
        "steps_completed": len(steps),
        "interrupted": False,
        "first_step_seconds": steps[0]["time_seconds"],
        "steps_averaged": len(counted),
        "average_step_seconds": average,
        "median_step_seconds": statistics.median(seconds),
        "stddev_step_seconds": statistics.pstdev(seconds),
        "samples_per_second": figures.batch / average,
        "tokens_per_second": figures.batch * figures.seq / average,
        "peak_memory_bytes": figures.peak_bytes,
        "final_loss": steps[-1]["loss"],
        **{
            f"average_{name}_seconds": phases[name] for name in ("forward", "backward", "optimizer")
        },
        "breakdown": {
            name: {"seconds": value, "percent": 100 * value / average}
            for name, value in phases.items()
        },
        "plain_steps": len(plain),
        "plain_average_step_seconds": statistics.mean(plain) if plain else None,
        "operator_profiled_average_step_seconds": statistics.mean(operators) if operators else None,
        "memory_profiled_average_step_seconds": statistics.mean(memory) if memory else None,
        "operator_profiling_overhead_percent": overhead(operators, plain),
        "memory_profiling_overhead_percent": overhead(memory, plain),
    }


def memory_part(figures: Figures) -> Json:
    """`memory`."""
    activations, parameters = figures.activation_bytes, 4 * figures.parameters
    kept, peak = sum(activations.values()), figures.peak_bytes
    scores = int(0.8 * activations["attention/core"])
    logits = activations["loss/cross_entropy"]
    tensor = {"count": 1, "phase": "forward"}
    core = {"component": "attention/core", "operator": "aten::bmm"}
    head = {"component": "loss/lm_head", "operator": "aten::mm"}
    tensors = [
        {"name": "attention scores", "bytes": scores // figures.dims["n_layers"], **tensor, **core},
        {"name": "logits", "bytes": logits // 3, **tensor, **head},
    ]
    return {
        "first_step": MEMORY_STEPS[0],
        "last_step": MEMORY_STEPS[1],
        "peak_bytes": peak,
        "average_bytes": int(0.7 * peak),
        "peak_to_average": peak / int(0.7 * peak),
        "forward_peak_bytes": int(0.95 * peak),
        "backward_peak_bytes": peak,
        "optimizer_peak_bytes": 4 * parameters,
        "peak_phase": "backward",
        "peak_component": "attention/core",
        "peak_operator": "aten::bmm",
        "peak_seconds": 0.4 * figures.step_seconds,
        "baseline_bytes": 3 * parameters,
        "live_bytes_after_steps": [3 * parameters] * 3,
        "allocations_per_step": 2 * figures.launches,
        "small_allocations_per_step": figures.launches,
        "largest_tensors": sorted(tensors, key=lambda t: -t["bytes"]),
        "largest_spike": {"bytes": logits // 3, **head, "phase": "forward"},
        "breakdown_at_peak": {
            "parameters": parameters,
            "gradients": parameters,
            "optimizer_states": 2 * parameters,
            "activations": kept - scores - kept // 10,
            "attention_scores": scores,
            "temporary": kept // 10,
        },
        "component_activation_bytes": activations,
        "fragmentation": {
            "allocated_bytes": peak,
            "held_bytes": int(peak / 0.96),
            "percent": 4.0,
            "definition": "held_bytes not allocated, of held_bytes",
        },
    }


def operator_row(name: str, seconds: float, total: float, calls: int, gpu: bool) -> Json:
    launch = calls * SECONDS_PER_LAUNCH
    steps = OPERATOR_STEPS[1] - OPERATOR_STEPS[0] + 1
    cpu = launch if gpu else seconds
    return {
        "name": name,
        "calls": calls * steps,
        "cpu_self_seconds": cpu * steps,
        "cpu_total_seconds": 1.2 * cpu * steps,
        "device_self_seconds": seconds * steps if gpu else None,
        "device_total_seconds": seconds * steps if gpu else None,
        "share_percent": 100 * seconds / total,
        "self_memory_bytes": 4096 * calls,
    }


def operator_seconds(figures: Figures) -> dict[str, float]:
    """Of a step, by operator."""
    times = {name: f + b for name, (f, b) in figures.seconds.items()}
    rest = sum(t for n, t in times.items() if n not in {*PRODUCTS, "attention/core", "optimizer"})
    core = times["attention/core"]
    found = {"aten::mm": sum(times[name] for name in PRODUCTS), "aten::bmm": 0.7 * core}
    found |= {"aten::_softmax": 0.1 * core, "aten::_softmax_backward_data": 0.2 * core}
    found |= {name: share * rest for name, share in ELEMENTWISE}
    return found | {name: share * times["optimizer"] for name, share in UPDATE}


def by_shape(row: Json, shapes: Sequence[str]) -> list[Json]:
    """As many rows as shapes; the first shape takes most, and what is counted stays whole."""
    parts = [1.0] if len(shapes) == 1 else [0.75, 0.25]
    sums = ("calls", "cpu_self_seconds", "cpu_total_seconds", "share_percent", "self_memory_bytes")
    on_gpu = row["device_self_seconds"] is not None
    sums += ("device_self_seconds", "device_total_seconds") if on_gpu else ()
    return [
        row | {"input_shapes": shape} | {key: type(row[key])(row[key] * part) for key in sums}
        for shape, part in zip(shapes, parts, strict=True)
    ]


def operators_part(figures: Figures, gpu: bool = False, shapes: bool = False) -> Json:
    """`operators`; with `shapes`, products have two rows each, as --profile-operators gives."""
    found = operator_seconds(figures)
    total = sum(found.values())
    calls = figures.launches // len(found)
    rows = [operator_row(name, seconds, total, calls, gpu) for name, seconds in found.items()]
    if shapes:
        products_shapes = ["[1024, 256], [256, 512]", "[1024, 512], [512, 256]"]
        wanted = {"aten::mm": products_shapes, "aten::bmm": products_shapes}
        rows = [r for row in rows for r in by_shape(row, wanted.get(row["name"], ["[1024, 256]"]))]
    products = 100 * (found["aten::mm"] + found["aten::bmm"]) / total
    softmax = 100 * (found["aten::_softmax"] + found["aten::_softmax_backward_data"]) / total
    components = [
        {"name": n, "forward_seconds": f, "backward_seconds": b, "percent": 100 * (f + b) / total}
        for n, (f, b) in figures.seconds.items()
    ]
    return {
        "first_step": OPERATOR_STEPS[0],
        "last_step": OPERATOR_STEPS[1],
        "steps": OPERATOR_STEPS[1] - OPERATOR_STEPS[0] + 1,
        "device_time": "gpu" if gpu else "cpu",
        "table": sorted(rows, key=lambda row: -row["share_percent"]),
        "distinct_operators": len(rows),
        "operator_calls_per_step": figures.launches,
        "kernels_per_step": figures.launches if gpu else None,
        "distinct_kernels": 40 if gpu else None,
        "matrix_product_percent": products,
        "softmax_percent": softmax,
        "linear_projections_per_step": 7 * figures.dims["n_layers"] + 1,
        "launch_overhead_percent": 100 * figures.launches * SECONDS_PER_LAUNCH / total,
        "launch_overhead_definition": "launches x their cost, of the recorded time",
        "transfers_per_step": 1 if gpu else None,
        "components": sorted(components, key=lambda c: -c["percent"]),
    }


# What the program draws beside the step: groups, not the leaves of the operator profile;
# and the optimizer.
DRAWN = ("embedding", "rms_norm", "attention", "attention/rotary", "ffn", "loss")
UPDATE_FLOPS = 12


def classification(mfu: float) -> str:
    """In exercise 3's words."""
    if mfu < 20:
        return "severely underutilized (kernel overhead dominant)"
    if mfu < 40:
        return "memory-bound workload"
    return (
        "mixed workload with optimization opportunities"
        if mfu < 60
        else ("well-optimized compute-bound workload")
    )


def component_rows(figures: Figures) -> list[Json]:
    """`components` of flops_profile.json."""
    rows = []
    for name, part in figures.parts.items():
        forward, backward = figures.seconds[name]
        rows.append(
            {
                "name": name,
                "parameters": part.parameters,
                "forward_flops": part.flops,
                "backward_flops": 2 * part.flops,
                "elementwise_flops": part.bytes / 4,
                "bytes": 3 * part.bytes,
                "forward_seconds": forward,
                "backward_seconds": backward,
                "percent": 100 * (forward + backward) / figures.step_seconds,
                "flops_per_sec": 3 * part.flops / (forward + backward),
                "arithmetic_intensity_flops_per_byte": part.flops / part.bytes,
            }
        )
    return rows


def roofline_point(name: str, intensity: float, achieved: float) -> Json:
    attainable = min(PEAK_FLOPS, intensity * PEAK_BANDWIDTH)
    return {
        "name": name,
        "arithmetic_intensity_flops_per_byte": intensity,
        "achieved_flops_per_sec": achieved,
        "attainable_flops_per_sec": attainable,
        "percent_of_attainable": 100 * achieved / attainable if attainable else None,
        "attainable_bandwidth": PEAK_BANDWIDTH,
        "bound": "compute" if attainable >= PEAK_FLOPS else "memory",
    }


def group_point(components: list[Json], name: str) -> Json:
    """Of a component and all below it, products and element-wise work."""
    parts = [c for c in components if c["name"] == name or c["name"].startswith(f"{name}/")]
    flops = sum(c["forward_flops"] + c["backward_flops"] + c["elementwise_flops"] for c in parts)
    moved = sum(c["bytes"] for c in parts)
    seconds = sum(c["forward_seconds"] + c["backward_seconds"] for c in parts)
    return roofline_point(name, flops / moved, flops / seconds)


def flops_part(figures: Figures) -> Json:
    """`flops`."""
    achieved = figures.flops / figures.step_seconds
    mfu, intensity = 100 * achieved / PEAK_FLOPS, figures.flops / figures.bytes
    used = figures.bytes / figures.step_seconds
    components = component_rows(figures)
    bound = "memory-bound" if intensity < 10 else "mixed" if intensity <= 100 else "compute-bound"
    points = [roofline_point("step", intensity, achieved)]
    points += [group_point(components, name) for name in DRAWN]
    seconds, moved = figures.seconds["optimizer"][0], 28 * figures.parameters
    work = UPDATE_FLOPS * figures.parameters
    points.append(roofline_point("optimizer", work / moved, work / seconds))
    return {
        "flops_profile": {
            "step": FLOPS_STEP,
            "flops_analysis": {
                "avg_flops_per_step": figures.flops,
                "flops_per_parameter": figures.flops / figures.parameters,
                "model_flops": figures.flops,
                "causal_flops": 0.9 * figures.flops,
                "hardware_flops": figures.flops,
            },
            "performance_metrics": {
                "flops_per_sec": achieved,
                "throughput_samples_per_sec": figures.batch / figures.step_seconds,
            },
            "efficiency_metrics": {
                "mfu_percent": mfu,
                "achieved_flops_per_sec": achieved,
                "device_peak_flops": PEAK_FLOPS,
                "device_peak_source": "made up",
                "efficiency_ratio": mfu / 100,
                "measured_peak_flops": 0.9 * PEAK_FLOPS,
                "measured_peak_percent": mfu / 0.9,
                "classification": classification(mfu),
            },
            "components": components,
        },
        "computational_intensity": {
            "arithmetic_intensity_flops_per_byte": intensity,
            "memory_traffic_bytes_per_step": figures.bytes,
            "memory_bandwidth_used_gb_per_sec": used / 1e9,
            "memory_bandwidth_utilization_percent": 100 * used / PEAK_BANDWIDTH,
            "device_memory_bandwidth_gb_per_sec": PEAK_BANDWIDTH / 1e9,
            "device_memory_bandwidth_source": "made up",
            "memory_bound_vs_compute_bound": bound,
            "roofline_metrics": {
                "peak_flops": PEAK_FLOPS,
                "peak_memory_bandwidth": PEAK_BANDWIDTH,
                "achieved_bandwidth": used,
            },
        },
        "roofline_data": {
            "peak_flops": PEAK_FLOPS,
            "peak_memory_bandwidth": PEAK_BANDWIDTH,
            "cache_bandwidth": 4 * PEAK_BANDWIDTH,
            "ridge_point_flops_per_byte": PEAK_FLOPS / PEAK_BANDWIDTH,
            "points": points,
        },
    }
