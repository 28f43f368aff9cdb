"""Compares a stored golden folder with one that was made anew: bytes first, then values."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.golden_values import F32_FILE, F64_FILE
from tinyllama_tools.tensor_difference import worst_difference_of_files

# Relative to the largest magnitude of a tensor. Another processor adds up in another order: some
# hundred roundings of 1.1e-16, and of 6e-8 in float32. Weights and inputs are drawn, not computed.
TOLERANCES = {F64_FILE: 1e-12, F32_FILE: 1e-5}

# Relative to a loss. Seen between the instruction sets AVX2 and SSE: 4e-14, 8e-6 (at step 187),
# 8e-3, 1.5e-2, 2e-3, 2e-3; between an AMD processor with AVX2 and an Intel one with AVX-512, whose
# BLAS adds up in another order: 5e-14, 4e-5 (at step 13, where the loss falls fastest). Weights are
# drawn in float64, alike on every processor, so another weights_checksum is a failure and no reason
# for wider tolerances.
CURVE_TOLERANCES = {
    "f64": 1e-12,
    "f32": 1e-4,
    "bf16": 3e-2,
    "amp_bf16": 3e-2,
    "amp_f16": 1e-2,
    "amp_f16_of_4096": 1e-2,
}


@dataclass(frozen=True)
class Verdict:
    """What the comparison of one file came to; `file` is <case>/<name>."""

    file: str
    held: bool
    text: str
    relative: float = 0.0

    def __str__(self) -> str:
        return f"{'ok' if self.held else 'FAILED':7}{self.file}: {self.text}"


def compare_documents(stored: Path, made: Path, label: str) -> Verdict:
    """JSON: equal but for the versions that wrote it, and for the losses of training_tiny.json."""
    old, new = json.loads(stored.read_text()), json.loads(made.read_text())
    for version in ("transformers_version", "torch", "transformers"):
        old.pop(version, None)
        new.pop(version, None)
    curves = (old.pop("losses", {}), new.pop("losses", {}))
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    if keys:
        text = f"{', '.join(keys)}: another value than the one made anew"
        return Verdict(label, False, text, float("inf"))
    return compare_curves(*curves, label)


def compare_curves(
    stored: dict[str, list[float]], made: dict[str, list[float]], label: str
) -> Verdict:
    """Each loss relative to the one made anew; tells of the curve nearest to its tolerance."""
    if {n: len(v) for n, v in stored.items()} != {n: len(v) for n, v in made.items()}:
        return Verdict(label, False, "losses: other curves, or other lengths", float("inf"))
    worst, worst_share = Verdict(label, True, "values identical"), 0.0
    for name, losses in made.items():
        tolerance = CURVE_TOLERANCES[name]
        for step, (old, new) in enumerate(zip(stored[name], losses, strict=True)):
            relative = abs(old - new) / new
            relative = float("inf") if math.isnan(relative) else relative
            if relative / tolerance > worst_share:
                worst_share = relative / tolerance
                text = f"losses.{name}: relative difference {relative:.3g} at step {step}"
                text += f", allowed {tolerance:g}"
                worst = Verdict(label, worst_share <= 1.0, text, relative)
    return worst


def compare_tensors(stored: Path, made: Path, label: str) -> Verdict:
    """Within the file's tolerance."""
    tolerance = TOLERANCES.get(stored.name, 0.0)
    worst = worst_difference_of_files(made, stored)
    text = f"{worst}, allowed {tolerance:g}"
    return Verdict(label, worst.relative <= tolerance, text, worst.relative)


def compare_file(stored: Path, made: Path) -> Verdict:
    """One file; either may be absent, which fails."""
    label = f"{stored.parent.name}/{stored.name}"
    if not stored.is_file():
        return Verdict(label, False, "is absent", float("inf"))
    if not made.is_file():
        return Verdict(label, False, "is not one of the golden files", float("inf"))
    if stored.read_bytes() == made.read_bytes():
        return Verdict(label, True, "identical")
    compare = compare_documents if stored.suffix == ".json" else compare_tensors
    return compare(stored, made, label)


def compare_folder(stored: Path, made: Path) -> list[Verdict]:
    """Every file that either folder has."""
    names = {p.name for folder in (stored, made) if folder.is_dir() for p in folder.iterdir()}
    return [compare_file(stored / name, made / name) for name in sorted(names)]
