"""Result files made from one that was really measured."""

from __future__ import annotations

import json
from pathlib import Path

from tinyllama_tools.core.app import PROJECT, Json
from tinyllama_tools.data.results import checked_result

MEASURED = PROJECT / "results/reference/tiny_f32_2core_xeon_avx512.json"


def document() -> Json:
    """The measured file in the present version, to be changed."""
    return checked_result(json.loads(MEASURED.read_text(encoding="utf-8")), MEASURED)


def write(folder: Path, name: str, content: Json) -> Path:
    """As a file of that name."""
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def gemm_row(name: str, tflops: float, label: str = "oneDNN", repetition: int = 0) -> Json:
    """A row peak/gemm/..., one of its repetitions."""
    full_name = f"{name}/iterations:1/manual_time"
    return {
        "name": full_name,
        "run_name": full_name,
        "run_type": "iteration",
        "repetition_index": repetition,
        "iterations": 1,
        "real_time": 1.0 / tflops,
        "time_unit": "ms",
        "TFLOPS": tflops,
        "label": label,
    }
