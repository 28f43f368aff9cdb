"""What a step loses time and memory to, and what the workshop's optimizations can bring.

The expected speedup is Amdahl's: with a share p of the step that becomes f times as fast, the step
becomes 1 / (1 - p + p / f) times as fast, and at most 1 / (1 - p). p is measured; f is assumed,
with the reason beside it. The categories overlap (softmax is a part of attention, launches are a
part of everything), so neither shares nor speedups may be added up or multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tinyllama_tools.core.app import Json
from tinyllama_tools.data.profiles import component_percent, value_at
from tinyllama_tools.models.ablations import (
    BASELINE,
    Cell,
    Evidence,
    Point,
    Study,
    ratio_text,
    shows_difference,
)
from tinyllama_tools.stats.rank_tests import Ratio

# Views, allocations, operators that only call others, and nodes of the autograd graph.
DISPATCH = re.compile(
    r"^(aten::)?(_unsafe_view|view|t|transpose|permute|as_strided|expand|reshape|_reshape_alias"
    r"|slice|select|narrow|squeeze|unsqueeze|detach|alias|empty|empty_like|empty_strided|zeros"
    r"|zeros_like|ones_like|zero_|to|_to_copy|clone|contiguous|resolve_conj|resolve_neg"
    r"|result_type|linear|matmul|softmax|log_softmax|embedding|embedding_backward"
    r"|cross_entropy_loss|nll_loss|nll_loss_nd|slice_backward)$"
    r"|^autograd::|^torch::autograd::|^\w+Backward\d*$"
)
# Operators and runtime calls that get or return memory, and do nothing else.
ALLOCATION = re.compile(
    r"aten::(empty|empty_like|empty_strided|new_empty|new_empty_strided|resize_)"
    r"|(cuda|hip)(Malloc|Free)\w*|(cuda|hip)MemPool\w*"
)
PRODUCTS = re.compile(
    r"(^|::)(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|mv|addmv|_linear_pointwise)$"
    r"|gemm|Cijk|linear_pointwise",
    re.IGNORECASE,
)
COPIES = re.compile(r"::(copy_|clone|contiguous|_to_copy|cat|_reshape_copy)$|memcpy", re.IGNORECASE)
# A kernel or operator that runs shorter than this costs about as much to start as to run.
SMALL_CALL_SECONDS = 20e-6
LAUNCHES = "operators.launch_overhead_percent"
# The smallest speedup that the worksheet's table expects of any category.
HIGH_IMPACT = 1.1
# What anything has to bring to be worth doing: below it, a step is as fast as before.
WORTHWHILE_SPEEDUP = 1.02
LOW_EFFORT = ("Low", "Low-Medium")
QUADRANTS = {
    1: "High Impact, Low Effort (Priority 1)",
    2: "High Impact, High Effort (Priority 2)",
    3: "Low Impact, Low Effort (Priority 3)",
    4: "Low Impact, High Effort (Priority 4 - Skip)",
}


def amdahl(share: float, factor: float) -> float:
    """Speedup of the whole where `share` (0 to 1) of it becomes `factor` (> 0) times as fast."""
    return 1 / (1 - share + share / factor)


# Shares of what was recorded.


def working_rows(table: Sequence[Json]) -> list[Json]:
    """On a GPU the rows with time of their own there; on a CPU those that do not only dispatch."""
    if any(row.get("device_self_seconds") is not None for row in table):
        return [row for row in table if (row.get("device_self_seconds") or 0) > 0]
    return [row for row in table if not DISPATCH.search(row["name"])]


def small_calls_percent(table: Sequence[Json]) -> float | None:
    """Share of the calls that work on values and take less than SMALL_CALL_SECONDS each, on the
    clock that the shares are of: the device's where there is one."""

    def is_small(row: Json) -> bool:
        device = row.get("device_self_seconds")
        seconds = row["cpu_self_seconds"] if device is None else device
        return seconds < row["calls"] * SMALL_CALL_SECONDS

    rows = working_rows(table)
    calls = sum(row["calls"] for row in rows)
    return 100 * sum(row["calls"] for row in rows if is_small(row)) / calls if calls else None


def addressable_shares(operators: Json) -> dict[str, float]:
    """The part of the recorded work, in percent, that each of exercise 1's optimizations acts
    upon."""
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


def launch_part(summary: Json) -> float | None:
    """Launch overhead as a part of the step; None where it was not measured."""
    percent = value_at(summary, LAUNCHES)
    return None if percent is None else min(percent, 100.0) / 100


def recorded_part(summary: Json) -> float | None:
    """What components are shares of, as a part of the step; None where it was not measured.

    On a GPU they are shares of the kernels' time, which is the step's without launch overhead.
    """
    if value_at(summary, "operators.device_time") != "gpu":
        return 1.0
    launches = launch_part(summary)
    return None if launches is None else 1 - launches


def _of_the_step(summary: Json, percent: float | None) -> float | None:
    part = recorded_part(summary)
    return None if percent is None or part is None else percent * part


def _share_of(*names: str) -> Callable[[Json], float | None]:
    def share(summary: Json) -> float | None:
        components = value_at(summary, "operators.components")
        return _of_the_step(summary, components and component_percent(components, *names))

    return share


def fragmentation_share(summary: Json) -> float | None:
    """Host time that goes into getting memory: all that fragmentation can cost in time."""
    table = value_at(summary, "operators.table") or []
    total = sum(row["cpu_self_seconds"] for row in table)
    spent = sum(row["cpu_self_seconds"] for row in table if ALLOCATION.fullmatch(row["name"]))
    return 100 * spent / total if total > 0 else None


# How many times as fast a share is assumed to become; None where there is no ground for any.


def _fewer_launches(summary: Json, before: int) -> float | None:
    """So many GEMMs become one: FLOPs stay, so only the launch part of the time shrinks."""
    part = launch_part(summary)
    return None if part is None else 1 / (1 - part + part / before)


def _swiglu_factor(summary: Json) -> float | None:
    """One GEMM instead of two. silu reads gate and writes, the product reads both and writes: five
    passes, of which one kernel leaves two reads and a write."""
    products = _fewer_launches(summary, 2)
    if products is None:
        return None
    names = ("ffn/gate_up_proj", "ffn/swiglu")
    first, second = (component_percent(summary["operators"]["components"], n) for n in names)
    after = first / products + second * 3 / 5
    return (first + second) / after if after else 1.0


def _causal_factor(summary: Json) -> float:
    seq = summary["configuration"]["seq_len"]
    return 2 * seq / (seq + 1)


def _launch_factor(summary: Json) -> float:
    """On a GPU a captured step is one launch. Elsewhere the 7 products of a layer's forward (Q, K,
    V, output, gate, up, down) become 4 where QKV and gate-up are fused; the LM head stays."""
    kernels = value_at(summary, "operators.kernels_per_step")
    if kernels:
        return float(kernels)
    layers = summary["configuration"]["n_layers"]
    return (7 * layers + 1) / (4 * layers + 1)


def _fragmentation_factor(summary: Json) -> float | None:
    memory = summary.get("memory") or {}
    if memory.get("small_allocations_per_step") is None:
        return None
    every, small = memory["allocations_per_step"], memory["small_allocations_per_step"]
    # one allocation is left where all were small
    return max(every / max(every - small, 1), 1.0)


class Category(NamedTuple):
    """A row of exercise 3's worksheet. Any of `switches` is its optimization; `share` in percent of
    the step, which is `share_of` it; `factor`: by the assumption `why`."""

    name: str
    difficulty: str
    worksheet_speedup: str
    switches: tuple[str, ...]
    share_of: str
    share: Callable[[Json], float | None]
    why: str
    factor: Callable[[Json], float | None]


ATTENTION = ("sdpa", "fused_attention")
CATEGORIES = (
    Category(
        *("QKV projections", "Low-Medium", "1.2-1.5x", ("qkv",)),
        *("products of Q, K and V", _share_of("attention/qkv_proj")),
        "3 launches become 1 with the same FLOPs: only the launch part of the time shrinks",
        lambda summary: _fewer_launches(summary, 3),
    ),
    Category(
        *("Attention computation", "Medium", "1.3-2.0x", ATTENTION),
        *("scores, softmax and values", _share_of("attention/core")),
        "a causal kernel in tiles computes S(S+1)/2 of the S x S scores; saved traffic not counted",
        _causal_factor,
    ),
    Category(
        *("SwiGLU gate/up", "Low", "1.1-1.3x", ("gate_up", "fused_swiglu")),
        "products of gate and up, and silu(gate) * up",
        _share_of("ffn/gate_up_proj", "ffn/swiglu"),
        "2 launches become 1 with the same FLOPs; silu(gate) * up moves 3 tensors instead of 5",
        _swiglu_factor,
    ),
    Category(
        *("Kernel launch overhead", "Medium-High", "1.5-3.0x", ("graph",)),
        "time of launches against computation",
        lambda summary: value_at(summary, LAUNCHES),
        "GPU: a captured graph is one launch; CPU: 7 products of a layer become 4 by fusion",
        _launch_factor,
    ),
    Category(
        *("Memory fragmentation", "Medium", "1.1-1.4x", ()),
        *("operators that get or return memory, of the host's time", fragmentation_share),
        "a pool serves the allocations below 64 KiB",
        _fragmentation_factor,
    ),
    Category(
        *("Softmax operations", "Medium-High", "1.2-1.8x", ATTENTION),
        "softmax operators, forward and backward",
        lambda summary: _of_the_step(summary, value_at(summary, "operators.softmax_percent")),
        "softmax within the tile: S(S+1)/2 of S x S values, none written to memory",
        _causal_factor,
    ),
)


@dataclass(frozen=True)
class Bottleneck:
    """One category, judged. None is what the profile does not say.

    `expected_speedup` and `upper_bound`: of the whole step, by Amdahl's law. `measured`: of the
    whole step with a switch, where an ablation measured one. `priority`: 1 is to be done first.
    """

    category: Category
    share_percent: float | None
    factor: float | None
    expected_speedup: float | None
    upper_bound: float | None
    measured: tuple[str, Ratio] | None
    priority: int = 0

    @property
    def name(self) -> str:
        return self.category.name

    @property
    def measured_text(self) -> str | None:
        """`1.08 (1.05 to 1.11) with sdpa`."""
        return self.measured and f"{ratio_text(self.measured[1])} with {self.measured[0]}"

    @property
    def best_known_speedup(self) -> float | None:
        """Measured where it was, else expected; never above the bound.

        A switch can do more than one category: what is beyond the bound is not this one's doing.
        """
        if self.measured is None:
            return self.expected_speedup
        median = self.measured[1].median
        return median if self.upper_bound is None else min(median, self.upper_bound)

    @property
    def quadrant(self) -> int | None:
        """Of QUADRANTS, None where nothing is known of its impact."""
        if self.best_known_speedup is None:
            return None
        impact = 1 if self.best_known_speedup >= HIGH_IMPACT else 3
        return impact if self.category.difficulty in LOW_EFFORT else impact + 1

    @property
    def is_shown(self) -> bool:
        """False where an ablation measured its switches and showed no difference."""
        return self.measured is None or shows_difference(self.measured[1])

    @property
    def is_worthwhile(self) -> bool:
        """It brings WORTHWHILE_SPEEDUP or more, by all that is known."""
        return self.is_shown and (self.best_known_speedup or 0) >= WORTHWHILE_SPEEDUP


def _judge(category: Category, summary: Json, ablation: Evidence | None) -> Bottleneck:
    share, factor = category.share(summary), category.factor(summary)
    configuration = summary["configuration"]
    on = configuration.get("switches") or configuration["variant"]
    if set(on.split("+") if isinstance(on, str) else on) & set(category.switches):
        factor = 1.0  # this profile has it already
    part = None if share is None else min(share, 100.0) / 100
    return Bottleneck(
        category,
        share,
        factor,
        None if part is None or factor is None else amdahl(part, factor),
        None if part is None or part == 1 else 1 / (1 - part),
        ablation.best(category.switches) if ablation else None,
    )


def rank_bottlenecks(summary: Json, ablation: Evidence | None = None) -> list[Bottleneck]:
    """The six categories, most urgent first: by quadrant, then by speedup, then by share.

    What is not worthwhile comes after all that is, however little effort it takes.
    `summary`: a checked performance_summary.json. `ablation`: ablations.find_evidence().
    """

    def urgency(found: Bottleneck) -> tuple[bool, int, float, float]:
        quadrant = found.quadrant or len(QUADRANTS) + 1
        best, share = found.best_known_speedup or 0.0, found.share_percent or 0.0
        return not found.is_worthwhile, quadrant, -best, -share

    ordered = sorted((_judge(one, summary, ablation) for one in CATEGORIES), key=urgency)
    return [replace(found, priority=rank) for rank, found in enumerate(ordered, start=1)]


def recommended(bottlenecks: Sequence[Bottleneck]) -> Bottleneck | None:
    """The worthwhile one with the best known speedup; None where none is worth it."""
    worth = [found for found in bottlenecks if found.is_worthwhile]
    return max(worth, key=lambda found: found.best_known_speedup or 0.0, default=None)


# How much memory each of the workshop's four optimizations saves: measured, or at most.
FLASH, CHECKPOINTING = "Flash Attention", "Gradient Checkpointing"
MIXED, FUSION = "Mixed Precision (FP16/BF16)", "Kernel Fusion"
OPTIMIZATIONS = (FLASH, CHECKPOINTING, MIXED, FUSION)
# Rows of the ablation that are the optimization; where there are several, the one that saves most.
ABLATION_ROWS = {
    FLASH: ("fused_attention", "sdpa"),
    CHECKPOINTING: ("checkpoint",),
    FUSION: ("fused_swiglu", "fused_norm", "fused_rotary", "fused_loss", "qkv", "gate_up"),
}
# The baseline's in these types are mixed precision, of which the first that was measured counts:
# autocast is what the workshop means; a type of its own serves where that was not measured.
MIXED_DTYPES = ("amp_bf16", "amp_f16", "bf16", "f16")
# Components whose intermediate tensors a fused kernel keeps to itself.
FUSED_COMPONENTS = ("rms_norm", "attention/rotary", "ffn/swiglu")


@dataclass(frozen=True)
class Effect:
    """What an optimization saves of the peak, in bytes, and its step time over that without (None
    where unknown). `basis`: how this is known. `saved_percent`: of a profile's peak."""

    name: str
    saved_bytes: float
    time_ratio: float | None
    basis: str
    saved_percent: float = 0.0


def ranked(effects: Iterable[Effect]) -> list[Effect]:
    """Most memory saved first; of equals the faster one."""
    return sorted(effects, key=lambda e: (-e.saved_bytes, e.time_ratio or 1.0))


def effects_by_shares(memory: Json, layers: int) -> list[Effect]:
    """Upper bounds from the memory at the peak, all in bytes."""
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

    def effect(name: str, basis: str, cell: Cell | None) -> Effect | None:
        peak = cell.counter("peak_memory_MiB") if cell and cell.can_run else None
        if cell is None or peak is None or baseline is None or before is None:
            return None
        ratio = cell.seconds / baseline.seconds if cell.seconds and baseline.seconds else None
        basis = f"measured: `{basis}` at {cell.point.title}"
        return Effect(name, (before - peak) * 2**20, ratio, basis)

    baseline = study.get(BASELINE, point)
    before = baseline.counter("peak_memory_MiB") if baseline and baseline.can_run else None
    found = {
        name: ranked(filter(None, [effect(name, row, study.get(row, point)) for row in rows]))
        for name, rows in ABLATION_ROWS.items()
    }
    cells = [(dtype, study.get(BASELINE, replace(point, dtype=dtype))) for dtype in MIXED_DTYPES]
    found[MIXED] = list(filter(None, [effect(MIXED, *cell) for cell in cells]))
    return [found[name][0] for name in OPTIMIZATIONS if found[name]]


def known_effects(summary: Json, evidence: Evidence | None) -> list[Effect]:
    """Ranked; of an ablation of this device and shape that measured all four, else bounds."""
    memory = summary["memory"]
    found = effects_by_ablation(evidence.study, evidence.point) if evidence else []
    if len(found) < len(OPTIMIZATIONS):
        found = effects_by_shares(memory, summary["configuration"]["n_layers"])
    peak = memory["peak_bytes"]
    return ranked(replace(e, saved_percent=100 * e.saved_bytes / peak) for e in found)
