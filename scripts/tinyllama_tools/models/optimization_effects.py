"""What an optimization acts upon, and how much memory the workshop's four are known to save: shares
of a profile, and measured or bounded effects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.models.ablations import BASELINE, Cell, Point, Study, read_study
from tinyllama_tools.models.bottlenecks import working_rows

# A kernel or operator that runs shorter than this costs about as much to start as to run.
SMALL_CALL_SECONDS = 20e-6
PRODUCTS = re.compile(
    r"(^|::)(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|mv|addmv|_linear_pointwise)$"
    r"|gemm|Cijk|linear_pointwise",
    re.IGNORECASE,
)
COPIES = re.compile(r"::(copy_|clone|contiguous|_to_copy|cat|_reshape_copy)$|memcpy", re.IGNORECASE)


def component_percent(components: Sequence[Json], *paths: str) -> float:
    """Share of these component paths and all below them; 0 where the profile has none."""
    names = tuple(f"{path}/" for path in paths)
    return sum(c["percent"] for c in components if f"{c['name']}/".startswith(names))


def group_shares(components: Sequence[Json]) -> dict[str, float]:
    """Attention, FFN and everything else, in percent of the recorded work."""
    found = {name: component_percent(components, name) for name in ("attention", "ffn")}
    return {**found, "other": sum(c["percent"] for c in components) - sum(found.values())}


def small_calls_percent(table: Sequence[Json]) -> float | None:
    """Share of the calls that work on values and take less than SMALL_CALL_SECONDS each."""

    def seconds(row: Json) -> float:
        # on the clock that the shares are of: the device's where there is one
        device = row.get("device_self_seconds")
        return row["cpu_self_seconds"] if device is None else device

    rows = working_rows(table)
    calls = sum(row["calls"] for row in rows)
    small = sum(row["calls"] for row in rows if seconds(row) < row["calls"] * SMALL_CALL_SECONDS)
    return 100 * small / calls if calls else None


def addressable_shares(operators: Json) -> dict[str, float]:
    """The part of the recorded work, in percent, that each optimization acts upon."""
    components, products = operators["components"], operators["matrix_product_percent"]
    copies = [r["share_percent"] for r in operators["table"] if COPIES.search(r["name"])]
    return {
        "Kernel fusion (reduce number of operations)": 100 - products,
        "Fused QKV projection in attention": component_percent(components, "attention/qkv_proj"),
        "Flash Attention implementation (reduce memory)": component_percent(
            components, "attention/core"
        ),
        "Memory layout optimization": sum(copies),
        "Mixed precision training (FP16)": products,
        "Batch size scaling": operators["launch_overhead_percent"] or 0.0,
    }


# How much memory each of the workshop's four optimizations saves.
FLASH, CHECKPOINTING = "Flash Attention", "Gradient Checkpointing"
MIXED, FUSION = "Mixed Precision (FP16/BF16)", "Kernel Fusion"
OPTIMIZATIONS = (FLASH, CHECKPOINTING, MIXED, FUSION)
# Rows of the ablation that are the optimization; where there are several, the one that saves most.
ABLATION_ROWS = {
    FLASH: ("fused_attention", "sdpa"),
    CHECKPOINTING: ("checkpoint",),
    FUSION: ("fused_swiglu", "fused_norm", "fused_rotary", "fused_loss", "qkv", "gate_up"),
}
# Autocast is what the workshop means; a type of its own serves where it was not measured.
MIXED_DTYPES = ("amp_bf16", "amp_f16", "bf16", "f16")
# Components whose intermediate tensors a fused kernel keeps to itself.
FUSED_COMPONENTS = ("rms_norm", "attention/rotary", "ffn/swiglu")


@dataclass(frozen=True)
class Effect:
    """What an optimization saves of the peak, in bytes, and its step time over that without.

    `time_ratio`: None where unknown. `basis`: how this is known.
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
    autocast halves what the forward pass keeps; fused kernels keep no normed, rotated or gated
    copies.
    """
    peak, components = memory["breakdown_at_peak"], memory["component_activation_bytes"]
    scores, kept = peak["attention_scores"], peak["activations"] + peak["attention_scores"]
    fused = sum(components.get(name, 0) for name in FUSED_COMPONENTS)
    but_one = f"activations and scores of all but one of {layers} layers"
    return [
        Effect(FLASH, scores, None, "bound: all attention scores"),
        Effect(CHECKPOINTING, kept * (1 - 1 / layers), None, f"bound: {but_one}"),
        Effect(MIXED, kept / 2, None, "bound: half of activations and scores"),
        Effect(FUSION, fused, None, f"bound: activations of {', '.join(FUSED_COMPONENTS)}"),
    ]


def effects_by_ablation(study: Study, point: Point) -> list[Effect]:
    """Of those optimizations that the study measured at this point."""

    def peak(cell: Cell | None) -> float | None:
        return cell.counter("peak_memory_MiB") if cell and cell.can_run else None

    baseline = study.main.get(BASELINE, point)
    before = peak(baseline)
    if baseline is None or before is None:
        return []
    effects = []
    for name in OPTIMIZATIONS:
        if name == MIXED:
            types = [replace(point, dtype=dtype) for dtype in MIXED_DTYPES]
            cells = [table.get(BASELINE, at) for at in types for table in (study.main, study.types)]
        else:
            cells = [study.main.get(row, point) for row in ABLATION_ROWS[name]]
        known = []
        for cell in cells:
            after = peak(cell)
            if cell is None or after is None:
                continue
            is_timed = cell.seconds and baseline.seconds
            time_ratio = cell.seconds / baseline.seconds if is_timed else None
            what = cell.point.dtype if name == MIXED else cell.row
            basis = f"measured: `{what}` at {cell.point.title}"
            known.append(Effect(name, (before - after) * 2**20, time_ratio, basis))
        effects += ranked(known[:1] if name == MIXED else known)[:1]
    return effects


def same_device(study: Study, context: Json) -> bool:
    """Whether the study was measured on a device of this name and kind, with as many threads."""
    theirs, ours = study.context.get("device") or {}, context.get("device") or {}
    same = all(theirs.get(key) == ours.get(key) for key in ("name", "architecture", "backend"))
    on_gpu = ours.get("backend") != "cpu"
    return same and (on_gpu or study.context.get("threads") == context.get("threads"))


def known_effects(
    name: str, value: Callable[[str], Any], references: Path
) -> tuple[list[Effect], str]:
    """Ranked, and their source: an ablation of this device and size, else the peak's shares.

    `value` finds what a run with the memory profiler, called `name`, wrote under a key.
    """
    keys = ("size", "dtype", "batch_size", "seq_len")
    point = Point(*(value(f"configuration.{key}") for key in keys))
    for path in sorted(references.glob("ablation_*.json")):
        try:
            study = read_study(path)
        except (BadInputError, OSError):
            continue  # nobody asked for this file
        effects = effects_by_ablation(study, point) if same_device(study, value("context")) else []
        if len(effects) == len(OPTIMIZATIONS):
            return ranked(effects), f"reference/{path.name}: main, types"
    shares = effects_by_shares(value("memory"), value("configuration.n_layers") or 1)
    return ranked(shares), f"{name}/performance_summary.json: memory.breakdown_at_peak"
