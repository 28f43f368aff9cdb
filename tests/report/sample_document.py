"""Documents of a report with every kind of figure and table, for the tests of its page."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]
HOSTILE = "</script><script>alert(1)</script>"
DEVICE = "Intel(R) Xeon(R) Processor"
SETS = (
    (f"{DEVICE} · 334b5cad · 2026-11-21", "334b5cad", 1.0),
    (f"{DEVICE} · 0c30094e · 2026-11-22", "0c30094e", 0.93),
    ("AMD EPYC 9754 128-Core Processor · 334b5cad · 2026-11-20", "334b5cad", 0.71),
)
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


def case_name(component: str, variant: str = "baseline") -> str:
    work = {"optimizer": "update", "full_step": "train"}.get(component, "forward_backward")
    return f"{component}/{work}/{variant}/tiny/f32/batch:8/seq:128"


def figure(
    identifier: str,
    title: str,
    traces: Sequence[Json],
    x: Json,
    y: Json,
    *,
    note: str = "",
    **more: object,
) -> Json:
    """`more`: of the layout."""
    texts = {"id": identifier, "title": title, "note": note}
    layout = {**more, "xaxis": x, "yaxis": y}
    points = sum(len(trace["y"]) for trace in traces)
    return {**texts, "traces": list(traces), "layout": layout, "points": points}


def axis(title: str, kind: str = "") -> Json:
    """`kind`: "log", or what the values ask for."""
    return {"title": {"text": title}} | ({"type": kind} if kind else {})


def trace(name: str, role: str, mode: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> Json:  # noqa: ANN401
    return {"name": name, "role": role, "mode": mode, **more, "x": list(x), "y": list(y)}


def roofline(points: Sequence[tuple[str, float, float]]) -> Json:
    """`points`: name, FLOP/byte, GFLOP/s."""
    traces = []
    for name, bandwidth in (("memory", MEMORY_BANDWIDTH), ("cache", CACHE_BANDWIDTH)):
        ends = [0.02, PEAK / bandwidth, 1000.0]
        roof = [min(PEAK, bandwidth * x) for x in ends]
        traces.append(trace(f"roof, {name}", "roof", "lines", ends, roof))
    names, intensities, rates = zip(*points, strict=True)
    hover = "%{text}<br>%{x:.3g} FLOP/byte, %{y:.3g} GFLOP/s<extra></extra>"
    measured = trace("measured", "measured", "markers", intensities, rates)
    return figure(
        *("roofline", "Components under the roofs"),
        [*traces, measured | {"text": list(names), "hovertemplate": hover}],
        axis("arithmetic intensity (FLOP/byte)", "log"),
        axis("attained (GFLOP/s)", "log"),
        note="A point below its roof loses the distance. Points at the left are bound by launches.",
    )


def scaling_figure(component: str, milliseconds: float) -> Json:
    """Time against tokens at three sequence lengths; the last batch of each is held out."""
    generator = random.Random(component)
    traces: list[Json] = []
    batches = [1, 2, 4, 8, 16]
    for seq in (64, 128, 256):
        law = [0.05 + milliseconds * b * seq / 1024 * (0.8 + 0.2 * seq / 128) for b in batches]
        noisy = [value * generator.uniform(0.95, 1.05) for value in law]
        name, group = f"S = {seq}", {"legendgroup": f"S{seq}"}
        fit = trace(f"{name}, fit", "fit", "lines", batches, law, **group)
        traces += [
            trace(name, "measured", "markers", batches[:4], noisy[:4], **group),
            fit | {"showlegend": False},
            trace(f"{name}, held out", "held_out", "markers", batches[4:], noisy[4:], **group),
        ]
    axes = axis("batch B", "log"), axis("time (ms)", "log")
    return figure(f"scaling-{component}", f"Time of {component}", traces, *axes)


def memory_figure() -> Json:
    parts = (("weights", 11, 0), ("gradients", 11, 0), ("optimizer", 22, 0), ("saved", 2, 8.4))
    batches = [1, 2, 4, 8, 16, 32]
    traces = [
        {"type": "bar", "name": name, "x": [str(b) for b in batches]}
        | {"y": [base + growth * b for b in batches]}
        for name, base, growth in parts
    ]
    axes = axis("batch B", "category"), axis("memory (MiB)")
    return figure("memory-parts", "Memory of a step by part", traces, *axes, barmode="stack")


def lost_figure() -> Json:
    light = [ms * share for (_, ms, *_), share in zip(COMPONENTS, (0.1, 0.3) * 5, strict=False)]
    lost = [ms - best for (_, ms, *_), best in zip(COMPONENTS, light, strict=True)]
    common = {"type": "bar", "orientation": "h", "y": [case_name(name) for name, *_ in COMPONENTS]}
    traces = [
        common | {"name": "speed of light", "role": "light", "x": light},
        common | {"name": "lost", "role": "measured", "x": lost},
    ]
    axes = axis("time (ms)"), {"autorange": "reversed"}
    title = "Time lost against the speed of light"
    return figure("lost", title, traces, *axes, barmode="stack")


def waterfall_figure() -> Json:
    parts = {
        **{"embedding": 0.19, "4 blocks": 112.8, "final norm": 0.53, "loss": 6.27},
        **{"optimizer": 3.35, "not explained": -30.3, "step": 92.84},
    }
    of = {"type": "waterfall", "x": list(parts), "y": list(parts.values())}
    of |= {"measure": ["relative"] * 6 + ["total"], "name": "time"}
    axes = axis("part"), axis("time (ms)")
    return figure("waterfall", "From the components to the step", [of], *axes)


def predictions_figure() -> Json:
    sizes = ["tiny", "small", "medium", "large", "very_large"]
    seconds = [0.093, 0.81, 6.2, 21.0, 95.0]
    predicted = trace("predicted", "predicted", "markers", sizes, seconds)
    bars = {"error_y": {"type": "data", "array": [0.2 * value for value in seconds]}}
    traces = [
        trace("measured", "measured", "markers", sizes[:2], [0.0928, 0.83]),
        predicted | bars,
    ]
    axes = axis("size"), axis("time of a step (s)", "log")
    return figure("predictions", "Steps of sizes that were not run", traces, *axes)


def table(
    identifier: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> Json:
    """`columns`: `title` or `title [unit]`; one whose first cell is a text is one of texts."""
    views = [
        {"title": name, "unit": unit[:-1], "numeric": not isinstance(first, str), "digits": 4}
        for (name, _, unit), first in zip(
            (column.partition(" [") for column in columns), rows[0], strict=True
        )
    ]
    return {"id": identifier, "title": title, "note": "", "columns": views, "rows": list(rows)}


def section(identifier: str, title: str, text: str = "", missing: str = "", **parts: Any) -> Json:  # noqa: ANN401
    texts = {"id": identifier, "title": title, "text": [text] if text else [], "missing": missing}
    return {**texts, "figures": [], "tables": [], **parts}


def cases_table(names: Sequence[str]) -> Json:
    generator = random.Random(7)
    rows = []
    for name in names:
        milliseconds = math.exp(generator.uniform(-3, 5))
        share = generator.uniform(1, 99)
        memory = None if generator.random() < 0.05 else generator.uniform(1, 4000)
        bound = generator.choice(["compute", "bandwidth", "latency"])
        rows.append([name, milliseconds, share, memory, generator.randrange(1, 3000), bound])
    columns = ("case", "time [ms]", "of the roof [%]", "peak memory [MiB]", "operators", "bound by")
    return table("cases", "Every measured case", columns, rows)


def comparison_of(names: Sequence[str]) -> Json:
    generator = random.Random(3)
    times = [math.exp(generator.uniform(-9, -2)) for _ in names]

    def seconds(factor: float) -> list[float | None]:
        return [
            None if generator.random() < 0.04 else time * factor * generator.gauss(1, 0.04)
            for time in times
        ]

    sets = [{"title": title, "seconds": seconds(factor)} for title, _, factor in SETS]
    return {"cases": list(names), "sets": sets}


def sample_document(cases: int = 64) -> Json:
    """Every section; ablation and training are missing. A case's name is hostile."""
    names = [case_name(COMPONENTS[i % 9][0], f"variant_{i}") for i in range(cases)]
    names[3] = f"{HOSTILE}/train/baseline/tiny/f32/batch:8/seq:128"
    generator = random.Random(1)
    many = [(n, 10 ** generator.uniform(-1, 2.6), 10 ** generator.uniform(0, 2.5)) for n in names]
    points = [(case_name(name), x, y) for name, _, x, y in COMPONENTS] if cases < 500 else many
    facts = [["processor", DEVICE], ["memory", "23.5 GiB"], ["torch", "2.13.0"], ["threads", "2"]]
    shapes = [[f"{m} x {m // 2} x 256", 40 + m / 8, 20 + m / 16] for m in range(128, 1024, 128)]
    left = [[names[3], "out of memory: 9 GiB asked for, 4 GiB allowed"]]
    machine = table("facts", "Machine", ("what", "value"), facts)
    products = table("shapes", "Products", ("shape", "rate [GFLOP/s]", "of the peak [%]"), shapes)
    under = "Each component at its arithmetic intensity, under the roofs measured in the same run."
    light, time = "The step reaches 50.8 % of it.", "The components cover 96 % of the step."
    of_parts = [scaling_figure(name, ms) for name, ms, *_ in COMPONENTS[1:9]]
    lost, tables = [lost_figure()], [cases_table(names), products]
    sections = [
        section("environment", "Environment", tables=[machine]),
        section("roofline", "Roofline", under, figures=[roofline(points)], tables=tables),
        section("speed_of_light", "Speed of light", light, figures=lost),
        section("time", "Where the time goes", time, figures=[waterfall_figure()]),
        section("scaling", "Scaling", figures=of_parts),
        section("memory", "Memory", figures=[memory_figure()]),
        section("frontier", "Largest batch", missing="no frontier.json; scripts/study writes one"),
        section("predictions", "Predictions", "Not run.", figures=[predictions_figure()]),
        section("ablation", "Ablation", missing="no ablation; scripts/ablation makes one"),
        section("training", "Training", missing="no training study; scripts/study makes one"),
        section("comparison", "Comparison", "Three results, two of one machine."),
        section(
            *("left_out", "Left out"),
            tables=[table("left", "Not in the report", ("what", "why"), left)],
        ),
    ]
    sets = [
        {"title": title, "commit": commit, "device": title.split(" · ")[0], "date": title[-10:]}
        | {"torch": "2.13.0", "threads": 2}
        for title, commit, _ in SETS
    ]
    return {
        "title": f"{DEVICE} · 0c30094e · 2026-11-22",
        "generated": "2026-11-22T09:12:00Z",
        "summary": [
            "A training step of tiny takes 92.84 ms in float32, and 70.61 ms with all "
            "optimisations: 50.8 % of what this machine could do at best.",
            "Attention loses most: 21.4 ms a step against the speed of light.",
            "Time grows with B S to the power 0.98, and memory by 8.4 MiB a sequence.",
            "The largest batch at sequence 128 is predicted to be 1,472 within 23.5 GiB.",
            "A step of very_large is predicted to take 95 s, between 76 s and 114 s.",
        ],
        "sets": sets,
        "sections": sections,
        "comparison": comparison_of(names),
    }


def figures_of(document: Json) -> list[Json]:
    return [one for part in document["sections"] for one in part["figures"]]


def tables_of(document: Json) -> list[Json]:
    return [one for part in document["sections"] for one in part["tables"]]
