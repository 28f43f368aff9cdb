"""Made-up result files, and a small comparison with one case of every outcome."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import made_up_context
from fake_training import made_up_summary
from tinyllama_tools.compare.comparison import (
    ComparedCase,
    Comparison,
    CounterChange,
)
from tinyllama_tools.stats.looks import Attribution, PartChange
from tinyllama_tools.stats.rank_tests import Interval
from tinyllama_tools.stats.verdicts import Outcome

Json = dict[str, Any]
AXES = "baseline/tiny/f32/batch:8/seq:128"
FFN, LOSS = f"ffn/forward_backward/{AXES}", f"loss/forward_backward/{AXES}"
ATTENTION, NORM = f"attention/forward_backward/{AXES}", f"rms_norm/forward_backward/{AXES}"
EMBEDDING, STEP = f"embedding/forward_backward/{AXES}", f"full_step/train/{AXES}"
OPTIMIZER, BLOCK = f"optimizer/update/{AXES}", f"block/forward_backward/{AXES}"
# seconds of a step that adds up, with four layers
TIMES = {
    EMBEDDING: 0.0002,
    NORM: 0.0005,
    ATTENTION: 0.009,
    FFN: 0.008,
    LOSS: 0.006,
    OPTIMIZER: 0.0033,
    STEP: 0.0820,
}
COUNTERS: Mapping[str, float] = {
    "samples_per_second": 1000.0,
    "TFLOPS": 0.2,
    "MFU_percent": 40.0,
    "peak_memory_MiB": 12.5,
    "allocations": 29.0,
    "operators": 74.0,
    "model_flops": 1e9,
    "parameters": 256.0,
}
CONTEXT: Mapping[str, Any] = {
    **made_up_context.CONTEXT,
    "date": "2026-01-02T03:04:05+00:00",
    "cpu_scaling_enabled": False,
    "git_commit": "a" * 40,
    "device": {**made_up_context.DEVICE, "name": "Some CPU", "memory_bytes": 1 << 34},
    "settings": {"torch_threads": "2"},
    "peaks": {
        "measured": {
            "f32": {"flops_per_second": 3e11, "source": "product"},
            "memory_bandwidth": {"bytes_per_second": 4e10, "source": "triad"},
        }
    },
}


def entry(name: str, seconds: float, index: int = 0, **more: object) -> Json:
    """One repetition as Google Benchmark writes it."""
    return {
        "name": f"{name}/manual_time",
        "run_name": f"{name}/manual_time",
        "run_type": "iteration",
        "repetition_index": index,
        "repetitions": 3,
        "threads": 1,
        "iterations": 10,
        "real_time": 1e3 * seconds,
        "cpu_time": 1e3 * seconds,
        "time_unit": "ms",
        **more,
    }


def stopped(name: str, *, skipped: str = "", failed: str = "") -> Json:
    """The one entry of a case without times."""
    if skipped:
        return entry(name, 0.0, skipped=True, skip_message=skipped)
    return entry(name, 0.0, error_occurred=True, error_message=failed)


def case_entries(name: str, seconds: float, repetitions: int = 3, **counters: float) -> list[Json]:
    """Repetitions a percent apart, the median of which takes `seconds`."""
    middle = (repetitions - 1) / 2
    return [
        entry(name, seconds * (1 + 0.01 * (i - middle)), i, **{**COUNTERS, **counters})
        for i in range(repetitions)
    ]


def document(
    times: Mapping[str, float],
    *,
    context: Mapping[str, Any] | None = None,
    counters: Mapping[str, Mapping[str, float]] | None = None,
    repetitions: int = 3,
    more: Sequence[Json] = (),
) -> Json:
    """A result file. `counters`: of a case, other than COUNTERS. `more`: entries."""
    entries = [
        e
        for name, seconds in times.items()
        for e in case_entries(name, seconds, repetitions, **(counters or {}).get(name, {}))
    ]
    whole = copy.deepcopy(dict(CONTEXT)) | dict(context or {})
    return {"context": whole, "benchmarks": [*entries, *more]}


def write(path: Path, content: object) -> Path:
    """As JSON."""
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_runs(
    folder: Path,
    side: str,
    files: int,
    times: Mapping[str, float],
    *,
    scatter: float = 0.005,
    **options: Any,  # noqa: ANN401
) -> list[Path]:
    """Files of one side, whose times scatter between them; seeded by the side's name."""
    generator = np.random.default_rng(sum(map(ord, side)))
    return [
        write(
            folder / f"{side}_{i}.json",
            document(
                {n: s * math.exp(generator.normal(0, scatter)) for n, s in times.items()}, **options
            ),
        )
        for i in range(files)
    ]


def summary(factor: float = 1.0, **changes: object) -> Json:
    """Of a training run without profilers whose times are `factor` times the made-up ones."""
    found = made_up_summary(profilers=())
    for step in found["steps"]:
        step |= {k: factor * v for k, v in step.items() if k.endswith("_seconds")}
    found["configuration"] |= changes
    return found


def every_outcome() -> Comparison:
    """A comparison as `compare run` could have made it."""

    def case(name: str, outcome: Outcome, base: float | None, **more: Any) -> ComparedCase:  # noqa: ANN401
        return ComparedCase(name, outcome, base_seconds=base, **more)

    parts = (
        PartChange(FFN, 4, 0.0045, 0.93, 0.85, 1.01),
        PartChange(ATTENTION, 4, 0.0001, 0.02, -0.03, 0.06),
    )
    step = {
        "ratio": 1.05,
        "interval": Interval(1.04, 1.06, 0.99),
        "p_value": 0.0002,
        "blocks": 23,
        "new_seconds": 0.0945,
        "counters": (
            CounterChange("samples_per_second", 88.9, 84.7, exact=False, worse=True),
            CounterChange("peak_memory_MiB", 100.5, 100.5, exact=True, worse=False),
            CounterChange("allocations", 29, 31, exact=True, worse=True),
        ),
        "attribution": Attribution(parts, 0.05, FFN, missing=(LOSS,)),
    }
    norm = {"ratio": 1.001, "interval": Interval(0.99, 1.01, 0.99), "p_value": 1.0, "blocks": 17}
    faster = {"ratio": 0.8, "interval": Interval(0.78, 0.82, 0.99), "p_value": 0.0002, "blocks": 17}
    wide = {"ratio": 1.03, "interval": Interval(0.95, 1.12, 0.99), "p_value": 0.4, "blocks": 17}
    wide |= {"smallest_difference": 0.081, "seconds_needed": 240.0}
    failed = {"note": "crashed | <b>", "allowed": True}
    cases = (
        case(NORM, Outcome.SAME, 0.0005, new_seconds=0.0005, **norm),
        case(STEP, Outcome.SLOWER, 0.09, **step),
        case(OPTIMIZER, Outcome.FASTER, 0.0033, new_seconds=0.00264, **faster),
        case(LOSS, Outcome.UNCLEAR, 0.006, new_seconds=0.00618, **wide),
        case(BLOCK, Outcome.MISSING, 0.02, note="not in the new"),
        case(EMBEDDING, Outcome.FAILED, 0.0002, **failed),
        case(FFN, Outcome.NO_VERDICT, 0.008, ratio=1.02, new_seconds=0.00816),
        case(ATTENTION, Outcome.ADDED, None, new_seconds=0.009, note="not in the base"),
        case("peer/x", Outcome.SKIPPED, None, note="skipped in the base: too large"),
    )
    return Comparison(
        "interleaved",
        "build_a",
        "build_b",
        cases,
        alpha=0.001,
        margin=0.03,
        warnings=("threads: 2 in the base, 4 in the new",),
        base_context={"git_commit": "a" * 40, "device": {"name": "Some <CPU>"}},
        new_context={"git_commit": "b" * 40, "device": {"name": "Some <CPU>"}},
        seconds=123.0,
    )
