"""Numbers that follow from the profiles of an exercise, and what they decide."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.commands.worksheet import (
    NOT_MEASURED,
    MeasuredRun,
    Verdict,
    above,
    is_largest,
    megabytes,
    number,
    percent,
    ratio,
    within,
)
from tinyllama_tools.core.app import RESULTS, BadInputError, Json
from tinyllama_tools.data.profiles import SUMMARY
from tinyllama_tools.models.ablations import BASELINE, Cell, Point, Study, read_study
from tinyllama_tools.models.bottlenecks import working_rows
from tinyllama_tools.models.roofline import roofline_point

# A kernel or operator that runs shorter than this costs about as much to start as to run.
SMALL_CALL_SECONDS = 20e-6
HIGH_PERCENT = 20.0
MEDIUM_PERCENT = 5.0
GROUPS = ("attention", "ffn", "other")
PRODUCTS = re.compile(
    r"(^|::)(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|mv|addmv|_linear_pointwise)$"
    r"|gemm|Cijk|linear_pointwise",
    re.IGNORECASE,
)
COPIES = re.compile(r"::(copy_|clone|contiguous|_to_copy|cat|_reshape_copy)$|memcpy", re.IGNORECASE)
MEMORY_BANDWIDTH = "Memory bandwidth (many small operations)"
COMPUTE = "Compute utilization (device not fully utilized)"
LAUNCHES = "Kernel launch overhead (too many launches)"
DATA_LOADING = "Data loading (CPU bottleneck)"
KERNEL_FUSION = "Kernel fusion (reduce number of operations)"
QKV_FUSION = "Fused QKV projection in attention"
FLASH_ATTENTION = "Flash Attention implementation (reduce memory)"
MEMORY_LAYOUT = "Memory layout optimization"
MIXED_PRECISION = "Mixed precision training (FP16)"
BATCH_SCALING = "Batch size scaling"


def component_percent(components: Sequence[Json], name: str) -> float:
    """Share of a component path and all below it; 0 where the profile has none of that name."""
    below = f"{name}/"
    return sum(c["percent"] for c in components if c["name"] == name or c["name"].startswith(below))


def group_shares(components: Sequence[Json]) -> dict[str, float]:
    """Attention, FFN and everything else, in percent of the recorded work."""
    whole = sum(c["percent"] for c in components)
    attention, ffn = (component_percent(components, name) for name in GROUPS[:2])
    return {"attention": attention, "ffn": ffn, "other": whole - attention - ffn}


def self_seconds(row: Json) -> float:
    """On the clock that the shares are of: the device's where there is one."""
    device = row.get("device_self_seconds")
    return row["cpu_self_seconds"] if device is None else device


def small_calls_percent(table: Sequence[Json]) -> float | None:
    """Share of the calls that work on values and take less than SMALL_CALL_SECONDS each."""
    rows = working_rows(table)
    calls = sum(row["calls"] for row in rows)
    small = sum(
        row["calls"] for row in rows if self_seconds(row) < row["calls"] * SMALL_CALL_SECONDS
    )
    return 100 * small / calls if calls else None


def largest_other_operator(table: Sequence[Json]) -> tuple[str, float]:
    """Name and share of the largest operator that is no matrix product; `none`, 0 without one."""
    others = [row for row in table if not PRODUCTS.search(row["name"])]
    best = max(others, key=lambda row: row["share_percent"], default=None)
    return (best["name"], best["share_percent"]) if best else ("none", 0.0)


def copies_percent(table: Sequence[Json]) -> float:
    """Share of operators that only move or rearrange values."""
    return sum(row["share_percent"] for row in table if COPIES.search(row["name"]))


def addressable_shares(operators: Json) -> dict[str, float]:
    """The part of the recorded work, in percent, that each optimization acts upon."""
    components, products = operators["components"], operators["matrix_product_percent"]
    return {
        KERNEL_FUSION: 100 - products,
        QKV_FUSION: component_percent(components, "attention/qkv_proj"),
        FLASH_ATTENTION: component_percent(components, "attention/core"),
        MEMORY_LAYOUT: copies_percent(operators["table"]),
        MIXED_PRECISION: products,
        BATCH_SCALING: operators["launch_overhead_percent"] or 0.0,
    }


def level(share: float) -> str:
    """High, Medium or Low by the share that an optimization acts upon."""
    if share >= HIGH_PERCENT:
        return "High"
    return "Medium" if share >= MEDIUM_PERCENT else "Low"


def level_verdict(share: float, wanted: str) -> Verdict:
    """Whether the measured level is the one that the workshop's text gives."""
    found = level(share)
    rule = f"High from {HIGH_PERCENT:.0f} %, Medium from {MEDIUM_PERCENT:.0f} %, else Low"
    return Verdict(found == wanted, f"acts on {percent(share)}, which is {found}; rule: {rule}")


def lost_shares(operators: Json, roofline: Json | None, data_percent: float | None) -> Json:
    """What each of the four suspects costs, in percent; None where it was not measured.

    Memory bandwidth: work in components that the roofline calls bound by memory. Compute: what
    components bound by compute miss of their attainable rate. The shares may overlap.
    """
    memory = compute = None
    if roofline is not None:
        drawn = [
            (c["percent"], point)
            for c in operators["components"]
            if (point := roofline_point(roofline["points"], c["name"]))
        ]
        memory = sum(share for share, point in drawn if point["bound"] == "memory")
        compute = sum(
            share * max(0.0, 1 - (point["percent_of_attainable"] or 0) / 100)
            for share, point in drawn
            if point["bound"] == "compute"
        )
    return {
        MEMORY_BANDWIDTH: memory,
        COMPUTE: compute,
        LAUNCHES: operators["launch_overhead_percent"],
        DATA_LOADING: data_percent,
    }


def bottleneck_verdicts(shares: Mapping[str, float | None]) -> dict[str, Verdict]:
    """One holds: the largest."""
    return {name: is_largest(shares, name, "share of the recorded work") for name in shares}


def fusion_verdicts(components: Sequence[Json]) -> dict[str, Verdict]:
    """Which of the three groups are worth fusing: those of at least half the largest share."""
    shares = {
        "QKV projections in attention": component_percent(components, "attention/qkv_proj"),
        "Gate/Up projections in SwiGLU": component_percent(components, "ffn/gate_up_proj")
        + component_percent(components, "ffn/swiglu"),
        "Layer normalization operations": component_percent(components, "rms_norm"),
    }
    most = max(shares.values())
    rule = f"rule: at least half of the largest of the three, {percent(most)}"
    found = {
        name: Verdict(share > 0 and share >= most / 2, f"{percent(share)}; {rule}")
        for name, share in shares.items()
    }
    count = sum(verdict.holds for verdict in found.values())
    all_three = Verdict(count == len(shares), f"{count} of {len(shares)} hold; rule: all three")
    return {**found, "All of the above": all_three}


def spike_text(spike: Json | None) -> str:
    """`2.0 MB in loss/lm_head, `aten::mm` in forward`, the largest rise within one operator."""
    if not spike:
        return "none recorded"
    where = f"{spike['component']}, `{spike['operator']}` in {spike['phase']}"
    return f"{megabytes(spike['bytes'])} in {where}"


def peak_place(memory: Json) -> str:
    """`backward, in attention/core (`aten::bmm`)`."""
    phase, component, operator = (
        memory[f"peak_{key}"] or "unknown" for key in ("phase", "component", "operator")
    )
    return f"{phase}, in {component} (`{operator}`)"


def spike_verdict(spike: Json | None, peak: float | None) -> Verdict:
    """Whether the largest rise within one operator is a spike."""
    rule = "rule: a rise within one operator above 10 % of the peak"
    if not spike or not peak:
        return Verdict(False, f"not measured; {rule}")
    share = 100 * spike["bytes"] / peak
    return Verdict(share > 10, f"the largest rise is {percent(share)} of the peak; {rule}")


def gradients_verdict(memory: Json) -> Verdict:
    """Whether gradients are allocated in the backward pass: alive at the peak, or raising it."""
    gradients = memory["breakdown_at_peak"]["gradients"]
    backward, forward = memory["backward_peak_bytes"], memory["forward_peak_bytes"]
    holds = gradients > 0 or (backward or 0) > (forward or 0)
    return Verdict(
        holds,
        f"{number(gradients)} bytes of gradients at the peak, backward peak {number(backward)} "
        f"against {number(forward)} bytes in forward; rule: gradients at the peak, or a higher "
        "peak in backward",
    )


SMALLEST_SHARE_PERCENT = 1.0
LEAST_SPIKE, MOST_STEADY = 1.5, 1.2


def increment_ratio(peaks: Sequence[float | None]) -> float | None:
    """(third - second) / (second - first) of peaks at sizes 1, 2 and 4: what is fixed drops out.

    2 for what grows with the size, 4 for what grows with its square, 8 with its cube.
    """
    if len(peaks) != 3 or any(peak is None for peak in peaks):
        return None
    first, second, third = (float(peak or 0) for peak in peaks)
    return ratio(third - second, second - first)


def throughput_answer(factor: float | None) -> str:
    """Does throughput double when the batch does?"""
    if factor is None:
        return f"{NOT_MEASURED}."
    if factor >= 1.9:
        return f"Yes, {factor:.2f} times: perfect scaling (rule: from 1.9)."
    if factor > 1.05:
        return f"No, {factor:.2f} times: diminishing returns (rule: from 1.05 to below 1.9)."
    if factor >= 0.95:
        return f"No, {factor:.2f} times: the device is already full (rule: from 0.95 to 1.05)."
    return (
        f"No, {factor:.2f} times: throughput falls, which a full device does not explain (rule: "
        "below 0.95); memory that no longer fits a cache, or a machine that was not quiet, may."
    )


def usage_pattern(peak_to_average: float | None) -> str:
    """Steady, Fluctuating or Spiking."""
    if peak_to_average is None:
        return NOT_MEASURED
    rule = f"rule: steady below {MOST_STEADY}, spiking from {LEAST_SPIKE}"
    word = "Spiking" if peak_to_average >= LEAST_SPIKE else "Fluctuating"
    if peak_to_average < MOST_STEADY:
        word = "Steady"
    return f"{word}: peak-to-average {peak_to_average:.2f}; {rule}"


def deallocation(memory: Json) -> str:
    """Promptly, Delayed or Not at all, by what is alive after each recorded step."""
    after, before = memory["live_bytes_after_steps"], memory["baseline_bytes"]
    if not after:
        return NOT_MEASURED
    growth = 100 * (after[-1] - after[0]) / after[0] if after[0] else 0.0
    over = 100 * (after[-1] - before) / before if before else 0.0
    numbers = (
        f"{megabytes(before)} before, {megabytes(after[-1])} after the last recorded step "
        f"({percent(growth)} more than after the first)"
    )
    if growth > 1:
        return f"Not at all: {numbers}; rule: a growth above 1 % from step to step"
    if over > 1:
        return f"Delayed: {numbers}; rule: more than 1 % above what was there before"
    return f"Promptly: {numbers}; rule: within 1 % of what was there before"


def drop_verdict(memory: Json) -> Verdict:
    """Whether memory falls clearly between a step's peak and its end."""
    after, peak = memory["live_bytes_after_steps"], memory["peak_bytes"]
    fall = 100 * (1 - after[-1] / peak) if after and peak else None
    return above(fall, 10)


def baseline_verdict(memory: Json) -> Verdict:
    """Whether memory returns to where it was before the recorded steps."""
    after, before = memory["live_bytes_after_steps"], memory["baseline_bytes"]
    over = 100 * (after[-1] / before - 1) if after and before else None
    return within(over, -math.inf, 1)


def place_verdicts(memory: Json) -> dict[str, Verdict]:
    """Where the peak is: its phase, and attention where it is in one of attention's components."""
    phase, component = memory["peak_phase"], memory["peak_component"] or "unknown"
    share = percent(100 * memory["breakdown_at_peak"]["attention_scores"] / memory["peak_bytes"])
    where = f"the 1 peak is in {phase}, {component}"
    return {
        **{
            name: Verdict(phase == name, f"{where}; rule: the phase of the peak")
            for name in ("forward", "backward", "optimizer")
        },
        "attention": Verdict(
            component.startswith("attention"),
            f"{where}, scores are {share}; rule: the component of the peak",
        ),
    }


@dataclass(frozen=True)
class Growth:
    """How a component's activations grow: bytes a sample ~ S^exponent, and its share at the end."""

    name: str
    exponent: float
    share_percent: float


def component_growth(profiles: Mapping[int, tuple[int, Mapping[str, float]]]) -> list[Growth]:
    """Steepest first. `profiles`: sequence length -> (batch, bytes by component).

    Components below SMALLEST_SHARE_PERCENT at the longest sequence are left out; none where there
    are fewer than two lengths.
    """
    lengths = sorted(profiles)
    if len(lengths) < 2:
        return []
    (short_batch, short), (long_batch, long) = profiles[lengths[0]], profiles[lengths[-1]]
    whole = sum(long.values())
    stretch = math.log(lengths[-1] / lengths[0])
    found = []
    for name, size in long.items():
        share = 100 * size / whole if whole else 0.0
        if share >= SMALLEST_SHARE_PERCENT and short.get(name, 0) > 0:
            growth = (size / long_batch) / (short[name] / short_batch)
            found.append(Growth(name, math.log(growth) / stretch, share))
    return sorted(found, key=lambda g: (-round(g.exponent, 3), -g.share_percent))


def mixed(intensity: float | None, unit: str) -> Verdict:
    """From 10 to 100, both included."""
    rule = f"rule: from 10 to 100 {unit}"
    if intensity is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(10 <= intensity <= 100, f"{number(intensity, unit)}; {rule}")


def target_verdicts(targets: Mapping[str, float]) -> dict[str, Verdict]:
    """Which of the four targets holds most memory; one holds."""
    amounts = {name: size / 2**20 for name, size in targets.items()}
    text = "part of the peak, or what is held beyond it,"
    return {name: is_largest(amounts, name, text, "MB") for name in amounts}


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
    return ranked(shares), f"{run.name}/{SUMMARY}: memory.breakdown_at_peak"


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


def small_operations(operators: Json) -> Verdict:
    """Whether more than half of all calls are too short to use the device well."""
    found = above(small_calls_percent(operators["table"]), 50)
    return Verdict(
        found.holds,
        f"{found.reason} of the calls that compute (no views, allocations or "
        "autograd nodes) shorter than 20 microseconds each",
    )
