"""`flops` of a made-up performance_summary.json, computed from training_figures.Figures."""

from __future__ import annotations

from typing import Any

from training_figures import PEAK_BANDWIDTH, PEAK_FLOPS, Figures

Json = dict[str, Any]
FLOPS_STEP = 10
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
