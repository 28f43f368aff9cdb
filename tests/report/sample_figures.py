"""Figures of every kind that a report has, for the tests of its page."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

# name, milliseconds, FLOP/byte, GFLOP/s
COMPONENTS = (
    ("embedding", 0.1915, 0.063, 2.0),
    ("rms_norm", 0.5301, 0.60, 3.1),
    ("rotary", 0.412, 0.40, 4.4),
    ("attention", 12.31, 44.1, 96.0),
    ("ffn", 13.02, 121.0, 201.0),
    ("block", 28.21, 85.6, 142.8),
    ("loss", 6.271, 252.0, 250.8),
    ("optimizer", 3.351, 0.5, 2.2),
    ("full_step", 92.84, 62.2, 190.4),
)
PEAK, MEMORY_BANDWIDTH, CACHE_BANDWIDTH = 374.8, 39.0, 217.7


def case_name(component: str, variant: str = "baseline", batch: int = 8, seq: int = 128) -> str:
    work = {"optimizer": "update", "full_step": "train"}.get(component, "forward_backward")
    return f"{component}/{work}/{variant}/tiny/f32/batch:{batch}/seq:{seq}"


def figure(
    identifier: str, title: str, traces: Sequence[Json], layout: Json, note: str = ""
) -> Json:
    points = sum(len(trace["y"]) for trace in traces)
    texts = {"id": identifier, "title": title, "note": note}
    return {**texts, "traces": list(traces), "layout": layout, "points": points}


def axis(title: str, kind: str = "") -> Json:
    """`kind`: "log", or what the values ask for."""
    return {"title": {"text": title}} | ({"type": kind} if kind else {})


def roofline(points: Sequence[tuple[str, float, float]]) -> Json:
    """`points`: name, FLOP/byte, GFLOP/s."""
    ends = [0.02, PEAK / MEMORY_BANDWIDTH, 1000.0]
    cached = [0.02, PEAK / CACHE_BANDWIDTH, 1000.0]
    traces = [
        {"name": "roof, memory", "role": "roof", "x": ends, "bandwidth": MEMORY_BANDWIDTH},
        {"name": "roof, cache", "role": "roof", "x": cached, "bandwidth": CACHE_BANDWIDTH},
    ]
    for trace in traces:
        bandwidth = trace.pop("bandwidth")
        trace |= {"mode": "lines", "y": [min(PEAK, bandwidth * x) for x in trace["x"]]}
    measured = {
        "name": "measured",
        "role": "measured",
        "mode": "markers",
        "x": [point[1] for point in points],
        "y": [point[2] for point in points],
        "text": [point[0] for point in points],
        "hovertemplate": "%{text}<br>%{x:.3g} FLOP/byte, %{y:.3g} GFLOP/s<extra></extra>",
    }
    layout = {
        "xaxis": axis("arithmetic intensity (FLOP/byte)", "log"),
        "yaxis": axis("attained (GFLOP/s)", "log"),
    }
    note = "A point below its roof loses the distance. Points at the left are bound by launches."
    return figure("roofline", "Components under the roofs", [*traces, measured], layout, note)


def scaling_figure(component: str, milliseconds: float) -> Json:
    """Time against tokens at three sequence lengths; the last batch of each is held out."""
    generator = random.Random(component)
    traces: list[Json] = []
    for seq in (64, 128, 256):
        batches = [1, 2, 4, 8, 16]
        law = [0.05 + milliseconds * b * seq / 1024 * (0.8 + 0.2 * seq / 128) for b in batches]
        noisy = [value * generator.uniform(0.95, 1.05) for value in law]
        group = {"legendgroup": f"S{seq}"}
        traces += [
            {"name": f"S = {seq}", "role": "measured", "mode": "markers", **group}
            | {"x": batches[:4], "y": noisy[:4]},
            {"name": f"S = {seq}, fit", "role": "fit", "mode": "lines", **group}
            | {"x": batches, "y": law, "showlegend": False},
            {"name": f"S = {seq}, held out", "role": "held_out", "mode": "markers", **group}
            | {"x": batches[4:], "y": noisy[4:]},
        ]
    layout = {"xaxis": axis("batch B", "log"), "yaxis": axis("time (ms)", "log")}
    return figure(f"scaling-{component}", f"Time of {component}", traces, layout)


def memory_figure() -> Json:
    parts = (("weights", 11, 0), ("gradients", 11, 0), ("optimizer", 22, 0), ("saved", 2, 8.4))
    batches = [1, 2, 4, 8, 16, 32]
    traces = [
        {"type": "bar", "name": name, "x": [str(b) for b in batches]}
        | {"y": [base + growth * b for b in batches]}
        for name, base, growth in parts
    ]
    layout = {
        "barmode": "stack",
        "xaxis": axis("batch B", "category"),
        "yaxis": axis("memory (MiB)"),
    }
    return figure("memory-parts", "Memory of a step by part", traces, layout)


def lost_figure() -> Json:
    names = [case_name(component) for component, *_ in COMPONENTS]
    light = [ms * share for (_, ms, *_), share in zip(COMPONENTS, (0.1, 0.3) * 5, strict=False)]
    lost = [ms - best for (_, ms, *_), best in zip(COMPONENTS, light, strict=True)]
    common = {"type": "bar", "orientation": "h", "y": names}
    traces = [
        common | {"name": "speed of light", "role": "light", "x": light},
        common | {"name": "lost", "role": "measured", "x": lost},
    ]
    layout = {"barmode": "stack", "xaxis": axis("time (ms)"), "yaxis": {"autorange": "reversed"}}
    return figure("lost", "Time lost against the speed of light", traces, layout)


def waterfall_figure() -> Json:
    trace = {
        "type": "waterfall",
        "x": ["embedding", "4 blocks", "final norm", "loss", "optimizer", "not explained", "step"],
        "y": [0.19, 112.8, 0.53, 6.27, 3.35, -30.3, 92.84],
        "measure": ["relative"] * 6 + ["total"],
        "name": "time",
    }
    layout = {"xaxis": axis("part"), "yaxis": axis("time (ms)")}
    return figure("waterfall", "From the components to the step", [trace], layout)


def predictions_figure() -> Json:
    sizes = ["tiny", "small", "medium", "large", "very_large"]
    seconds = [0.093, 0.81, 6.2, 21.0, 95.0]
    traces = [
        {"name": "measured", "role": "measured", "mode": "markers", "x": sizes[:2]}
        | {"y": [0.0928, 0.83]},
        {"name": "predicted", "role": "predicted", "mode": "markers", "x": sizes, "y": seconds}
        | {"error_y": {"type": "data", "array": [0.2 * value for value in seconds]}},
    ]
    layout = {"xaxis": axis("size"), "yaxis": axis("time of a step (s)", "log")}
    return figure("predictions", "Steps of sizes that were not run", traces, layout)
