"""Every proof of the oracle itself; each is a function that returns a `Check`.

They show that the files of fixtures/golden are what they say. None needs our own program.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial

from tinyllama_tools.check import Check, Errors
from tinyllama_tools.flop_oracle import count_flops
from tinyllama_tools.golden_checks import (
    check_adamw,
    check_checkpoints,
    check_finite_differences,
    check_regeneration,
)
from tinyllama_tools.golden_compare import CURVE_TOLERANCES
from tinyllama_tools.golden_values import F32_FILE, F64_FILE, GOLDEN_FOLDER
from tinyllama_tools.precision_checks import check_narrowing, check_no_float32, check_rotary
from tinyllama_tools.training_oracle import CURVES, losses, tiny_start, weights_checksum

DIMENSIONS = (
    "vocab_size",
    "hidden_dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "intermediate_dim",
    "batch",
    "seq",
)


def check_flops(every: int = 1, device: str = "cpu") -> Check:
    """Each `every`-th small configuration of flops.json, counted anew: equal to the unit.

    An operator that goes uncounted now and did not when the file was written is an error of 1: it
    might be a product that the counter does not see.
    """
    errors = Errors()
    document = json.loads((GOLDEN_FOLDER / "flops.json").read_text())
    known = set(document["uncounted_operators"])
    small = [entry for entry in document["configurations"] if entry["name"].startswith("grid_")]
    for entry in small[::every]:
        found, uncounted = count_flops({name: entry[name] for name in DIMENSIONS}, device)
        for component, passes in entry["flops"].items():
            for name, count in passes.items():
                error = abs(found[component][name] - count)
                errors.add(error, f"{entry['name']}: {component}/{name}")
        for operator in sorted(uncounted - known):
            errors.add(1, f"{entry['name']}: {operator} is not counted")
    return errors.check(
        "FLOPs by component and pass, a count", f"counted anew, device {device}", tolerance=0
    )


def check_training(curve: str, steps: int) -> Check:
    """The first steps of one loss curve, trained anew from the same weights."""
    document = json.loads((GOLDEN_FOLDER / "training_tiny.json").read_text())
    model, _ = tiny_start()
    errors = Errors()
    if weights_checksum(model) != document["weights_checksum"]:
        errors.add(math.inf, "weights_checksum: other initial weights", cases=0)
    stored = document["losses"][curve][:steps]
    for step, (old, new) in enumerate(zip(stored, losses(CURVES[curve], steps), strict=True)):
        errors.add(abs(old - new) / new, f"step {step}")
    return errors.check(
        f"first {steps} losses of tiny, {curve}", "trained anew", CURVE_TOLERANCES[curve]
    )


# Autocast and bfloat16 are slow on a processor: half a second a step.
CHECKED_STEPS = {name: 50 if name in {"f64", "f32"} else 10 for name in CURVES}

ALL_CHECKS: tuple[Callable[[], Check], ...] = (
    check_no_float32,
    check_narrowing,
    check_rotary,
    check_finite_differences,
    check_adamw,
    check_checkpoints,
    partial(check_regeneration, F64_FILE),
    partial(check_regeneration, F32_FILE),
    check_flops,
    *(partial(check_training, curve, steps) for curve, steps in CHECKED_STEPS.items()),
)
