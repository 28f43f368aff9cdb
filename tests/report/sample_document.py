"""Documents of a report with every kind of figure and table, for the tests of its page."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from sample_figures import (
    COMPONENTS,
    Json,
    case_name,
    lost_figure,
    memory_figure,
    predictions_figure,
    roofline,
    scaling_figure,
    waterfall_figure,
)

HOSTILE = "</script><script>alert(1)</script>"
DEVICE = "Intel(R) Xeon(R) Processor"
SETS = (
    (f"{DEVICE} · 334b5cad · 2026-11-21", "334b5cad", 1.0),
    (f"{DEVICE} · 0c30094e · 2026-11-22", "0c30094e", 0.93),
    ("AMD EPYC 9754 128-Core Processor · 334b5cad · 2026-11-20", "334b5cad", 0.71),
)


def table(
    identifier: str, title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]
) -> Json:
    """A column whose first cell is a text is one of texts."""
    views = [
        {"title": name, "unit": unit, "numeric": not isinstance(cell, str), "digits": 4}
        for (name, unit), cell in zip(columns, rows[0], strict=True)
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
        operators = generator.randrange(1, 3000)
        rows.append([name, milliseconds, share, memory, operators, bound])
    columns = (
        ("case", ""),
        ("time", "ms"),
        ("of the roof", "%"),
        ("peak memory", "MiB"),
        ("operators", ""),
        ("bound by", ""),
    )
    return table("cases", "Every measured case", columns, rows)


def comparison_of(names: Sequence[str]) -> Json:
    generator = random.Random(3)
    times = [math.exp(generator.uniform(-9, -2)) for _ in names]
    sets = [
        {
            "title": title,
            "seconds": [
                None if generator.random() < 0.04 else time * factor * generator.gauss(1, 0.04)
                for time in times
            ],
        }
        for title, _, factor in SETS
    ]
    return {"cases": list(names), "sets": sets}


def _left_out(name: str) -> Json:
    rows = [[name, "out of memory: 9 GiB asked for, 4 GiB allowed"]]
    return table("left", "Not in the report", (("what", ""), ("why", "")), rows)


def _machine_sections(
    names: Sequence[str], points: Sequence[tuple[str, float, float]]
) -> list[Json]:
    facts = [["processor", DEVICE], ["memory", "23.5 GiB"], ["torch", "2.13.0"], ["threads", "2"]]
    machine = table("facts", "Machine", (("what", ""), ("value", "")), facts)
    columns = (("shape", ""), ("rate", "GFLOP/s"), ("of the peak", "%"))
    products = [[f"{m} x {m // 2} x 256", 40 + m / 8, 20 + m / 16] for m in range(128, 1024, 128)]
    tables = [cases_table(names), table("shapes", "Products", columns, products)]
    text = "Each component at its arithmetic intensity, under the roofs measured in the same run."
    light, time = "The step reaches 50.8 % of it.", "The components cover 96 % of the step."
    return [
        section("environment", "Environment", tables=[machine]),
        section("roofline", "Roofline", text, figures=[roofline(points)], tables=tables),
        section("speed_of_light", "Speed of light", light, figures=[lost_figure()]),
        section("time", "Where the time goes", time, figures=[waterfall_figure()]),
    ]


def sample_document(cases: int = 64) -> Json:
    """Every section; ablation and training are missing. A case's name is hostile."""
    names = [case_name(COMPONENTS[i % 9][0], f"variant_{i}") for i in range(cases)]
    names[3] = f"{HOSTILE}/train/baseline/tiny/f32/batch:8/seq:128"
    generator = random.Random(1)
    many = [(n, 10 ** generator.uniform(-1, 2.6), 10 ** generator.uniform(0, 2.5)) for n in names]
    points = [(case_name(name), x, y) for name, _, x, y in COMPONENTS] if cases < 500 else many
    sections = [
        *_machine_sections(names, points),
        section(
            "scaling",
            "Scaling",
            figures=[scaling_figure(name, ms) for name, ms, *_ in COMPONENTS[1:9]],
        ),
        section("memory", "Memory", figures=[memory_figure()]),
        section("frontier", "Largest batch", missing="no frontier.json; scripts/study writes one"),
        section("predictions", "Predictions", "Not run.", figures=[predictions_figure()]),
        section("ablation", "Ablation", missing="no ablation; scripts/ablation makes one"),
        section("training", "Training", missing="no training study; scripts/study makes one"),
        section("comparison", "Comparison", "Three results, two of one machine."),
        section("left_out", "Left out", tables=[_left_out(names[3])]),
    ]
    keys = ("title", "commit")
    sets = [
        dict(zip(keys, one, strict=False))
        | {"device": one[0].split(" · ")[0], "date": one[0][-10:], "torch": "2.13.0", "threads": 2}
        for one in SETS
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
