"""How much memory each of the workshop's four optimizations saves: measured, or by shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.ablation.study import BASELINE, Cell, Point, Study, read_study
from tinyllama_tools.core.app import RESULTS, BadInputError, Json
from tinyllama_tools.workshop.runs import MeasuredRun

FLASH = "Flash Attention"
CHECKPOINTING = "Gradient Checkpointing"
MIXED = "Mixed Precision (FP16/BF16)"
FUSION = "Kernel Fusion"
OPTIMIZATIONS = (FLASH, CHECKPOINTING, MIXED, FUSION)
# Rows of the ablation that are the optimization; where there are several, the one that saves most.
ABLATION_ROWS = {
    FLASH: ("fused_attention", "sdpa"),
    CHECKPOINTING: ("checkpoint",),
    FUSION: ("fused_swiglu", "fused_norm", "fused_rotary", "fused_loss", "qkv", "gate_up"),
}
MIXED_DTYPES = ("amp_bf16", "amp_f16", "bf16", "f16")
# Components whose intermediate tensors a fused kernel keeps to itself.
FUSED_COMPONENTS = ("rms_norm", "attention/rotary", "ffn/swiglu")
MIB = 2**20


@dataclass(frozen=True)
class Effect:
    """What an optimization saves of the peak, in bytes, and how long a step then takes.

    `time_ratio`: time with it over time without, None where unknown. `basis`: how this is known.
    """

    name: str
    saved_bytes: float
    time_ratio: float | None
    basis: str


def ranked(effects: Iterable[Effect]) -> list[Effect]:
    """Most memory saved first; of equals the faster one."""
    return sorted(effects, key=lambda e: (-e.saved_bytes, e.time_ratio or 1.0))


def effects_by_shares(memory: Json, layers: int) -> list[Effect]:
    """Upper bounds from the memory at the peak, all in bytes.

    Flash attention keeps no scores; checkpointing keeps one layer's activations of all `layers`;
    autocast halves what the forward pass keeps; fused kernels keep no
    normed, rotated or gated copies.
    """
    peak = memory["breakdown_at_peak"]
    scores, kept = peak["attention_scores"], peak["activations"] + peak["attention_scores"]
    components = memory["component_activation_bytes"]
    fused = sum(components.get(name, 0) for name in FUSED_COMPONENTS)
    by_shares = "bound: "
    return [
        Effect(FLASH, scores, None, by_shares + "all attention scores"),
        Effect(
            CHECKPOINTING,
            kept * (1 - 1 / layers),
            None,
            f"{by_shares}activations and scores of all but one of {layers} layers",
        ),
        Effect(MIXED, kept / 2, None, by_shares + "half of activations and scores"),
        Effect(FUSION, fused, None, f"{by_shares}activations of {', '.join(FUSED_COMPONENTS)}"),
    ]


def _effect(name: str, cell: Cell, baseline: Cell) -> Effect:
    saved = baseline.counters["peak_memory_MiB"] - cell.counters["peak_memory_MiB"]
    times = (cell.seconds, baseline.seconds)
    time_ratio = times[0] / times[1] if times[0] and times[1] else None
    what = cell.point.dtype if name == MIXED else cell.row
    basis = f"measured: `{what}` at {cell.point.title}"
    return Effect(name, saved * MIB, time_ratio, basis)


def _candidates(study: Study, name: str, point: Point) -> list[Cell]:
    if name == MIXED:
        others = [Point(point.size, dtype, point.batch, point.seq) for dtype in MIXED_DTYPES]
        tables = (study.main, study.types)
        cells = [table.get(BASELINE, other) for other in others for table in tables]
    else:
        cells = [study.main.get(row, point) for row in ABLATION_ROWS[name]]
    return [c for c in cells if c and c.can_run and c.counter("peak_memory_MiB") is not None]


def effects_by_ablation(study: Study, point: Point) -> list[Effect]:
    """Of those optimizations that the study measured at this point."""
    baseline = study.main.get(BASELINE, point)
    if baseline is None or baseline.counter("peak_memory_MiB") is None:
        return []
    effects = []
    for name in OPTIMIZATIONS:
        cells = _candidates(study, name, point)
        if name == MIXED:
            # autocast is what the workshop means; types of their own stand in for it
            cells = cells[:1]
        if cells:
            effects.append(ranked(_effect(name, cell, baseline) for cell in cells)[0])
    return effects


def same_device(study: Study, context: Json) -> bool:
    """Whether the study was measured on a device of this name and kind, with as many threads."""
    theirs, ours = study.context.get("device") or {}, context.get("device") or {}
    keys = ("name", "architecture", "backend")
    if any(theirs.get(key) != ours.get(key) for key in keys):
        return False
    return ours.get("backend") != "cpu" or study.context.get("threads") == context.get("threads")


def find_reference(
    folder: Path, context: Json, point: Point
) -> tuple[Path, list[Effect]] | tuple[None, list[Effect]]:
    """The first ablation reference of this device that measured all four at this point."""
    for path in sorted(folder.glob("ablation_*.json")):
        try:
            study = read_study(path)
        except (BadInputError, OSError):
            continue
        if same_device(study, context):
            effects = effects_by_ablation(study, point)
            if len(effects) == len(OPTIMIZATIONS):
                return path, effects
    return None, []


def known_effects(
    run: MeasuredRun, references: Path = RESULTS / "reference"
) -> tuple[list[Effect], str]:
    """Ranked, and their source: an ablation of this device and size, else the peak's shares.

    `run`: with the memory profiler.
    """
    keys = ("size", "dtype", "batch_size", "seq_len")
    point = Point(*(run.value(f"configuration.{key}") for key in keys))
    path, effects = find_reference(references, run.value("context"), point)
    if path is not None:
        return ranked(effects), f"reference/{path.name}: main, types"
    layers = run.value("configuration.n_layers") or 1
    shares = effects_by_shares(run.value("memory"), layers)
    return ranked(shares), run.source("memory.breakdown_at_peak")


def target_shares(memory: Json) -> dict[str, float]:
    """Bytes behind each of the worksheet's memory targets: parts of the peak, and for
    fragmentation what the allocator holds beyond what is in use."""
    peak = memory["breakdown_at_peak"]
    held = memory["fragmentation"] or {"held_bytes": 0, "allocated_bytes": 0}
    return {
        "attention": peak["attention_scores"],
        "activations": peak["activations"],
        "parameters": peak["parameters"] + peak["gradients"] + peak["optimizer_states"],
        "fragmentation": max(0, held["held_bytes"] - held["allocated_bytes"]),
    }


def effect_of(effects: Sequence[Effect], name: str) -> Effect | None:
    """The effect of that name."""
    return next((effect for effect in effects if effect.name == name), None)
