"""What a step loses time and memory to, and what the workshop's optimizations can bring.

The expected speedup is Amdahl's: where a share p of the step becomes f times as fast, the step
becomes 1 / (1 - p + p / f) times as fast, and at most 1 / (1 - p). p is measured; f is assumed, and
the reason stands beside it. The categories overlap (softmax is a part of attention, launches are a
part of everything), so neither shares nor speedups may be added up or multiplied.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import value_at
from tinyllama_tools.data.profiles import component_percent
from tinyllama_tools.models.roofline import roofline_point
from tinyllama_tools.models.step_ratios import Evidence, StepRatio

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
# The smallest speedup that the worksheet's table expects of any category.
HIGH_IMPACT = 1.1
# The smallest speedup of a step that is worth the work.
WORTHWHILE_SPEEDUP = 1.02
LOW_EFFORT = ("Low", "Low-Medium")
QUADRANTS = {
    1: "High Impact, Low Effort (Priority 1)",
    2: "High Impact, High Effort (Priority 2)",
    3: "Low Impact, Low Effort (Priority 3)",
    4: "Low Impact, High Effort (Priority 4 - Skip)",
}
# what bottlenecks.md.j2 explains the ranking with
PRIORITIES = {"quadrants": QUADRANTS, "high_impact": HIGH_IMPACT}


def amdahl(share: float, factor: float) -> float:
    """Speedup of the whole where `share` (0 to 1) of it becomes `factor` (> 0) times as fast."""
    return 1 / (1 - share + share / factor)


# ---- shares of the step, as a profile recorded them


def small_calls_percent(table: Sequence[Json]) -> float | None:
    """Share of calls that take less than SMALL_CALL_SECONDS: on a GPU among those that ran kernels,
    on a CPU among those that do more than dispatch others. None where there is no such call."""
    on_device = [row for row in table if row.get("device_self_seconds")]
    clock = "device_self_seconds" if on_device else "cpu_self_seconds"
    rows = on_device or [row for row in table if not DISPATCH.search(row["name"])]
    small = [row["calls"] for row in rows if row[clock] < row["calls"] * SMALL_CALL_SECONDS]
    calls = sum(row["calls"] for row in rows)
    return 100 * sum(small) / calls if calls else None


def launch_part(summary: Json) -> float | None:
    """Launch overhead as a part of the step (0 to 1); None where it was not measured."""
    percent = value_at(summary, "operators.launch_overhead_percent")
    return None if percent is None else min(percent, 100.0) / 100


def recorded_part(summary: Json) -> float | None:
    """The part of the step (0 to 1) that the components' shares are of; None where it is not known.

    On a GPU that is the kernels' time: the step without launch overhead.
    """
    if value_at(summary, "operators.device_time") != "gpu":
        return 1.0
    launches = launch_part(summary)
    return None if launches is None else 1 - launches


def memory_bound(components: Sequence[Json], points: Sequence[Json]) -> list[Json]:
    """Components that memory's bandwidth limits; of them the optimizer always, which has no GEMM,
    even where it has no point."""

    def is_limited(name: str) -> bool:
        point = roofline_point(points, name)
        return name == "optimizer" or (point is not None and point["bound"] == "memory")

    return [component for component in components if is_limited(component["name"])]


def fragmentation_share(summary: Json) -> float | None:
    """Percent of the host's time that goes into allocations: all that fragmentation can cost."""
    table = value_at(summary, "operators.table") or []
    total = sum(row["cpu_self_seconds"] for row in table)
    spent = sum(row["cpu_self_seconds"] for row in table if ALLOCATION.fullmatch(row["name"]))
    return 100 * spent / total if total > 0 else None


QKV, ATTENTION, SWIGLU = "QKV projections", "Attention computation", "SwiGLU gate/up"
LAUNCHES, MEMORY, SOFTMAX = "Kernel launch overhead", "Memory fragmentation", "Softmax operations"
OF_ATTENTION = ("sdpa", "fused_attention")
# Rows of exercise 3's worksheet: name, difficulty and speedup, as printed there; the switches that
# each do its optimization; what its share of the step counts; the assumption behind its factor.
CATEGORIES: tuple[tuple[str, str, str, tuple[str, ...], str, str], ...] = (
    (
        *(QKV, "Low-Medium", "1.2-1.5x", ("qkv",), "GEMMs of Q, K and V"),
        "3 launches become 1 with the same FLOPs: only the launch part of the time shrinks",
    ),
    (
        *(ATTENTION, "Medium", "1.3-2.0x", OF_ATTENTION, "scores, softmax and values"),
        "a causal kernel in tiles computes S(S+1)/2 of the S x S scores; saved traffic not counted",
    ),
    (
        *(SWIGLU, "Low", "1.1-1.3x", ("gate_up", "fused_swiglu")),
        "GEMMs of gate and up, and silu(gate) * up",
        "2 launches become 1 with the same FLOPs; silu(gate) * up moves 3 tensors instead of 5",
    ),
    (
        *(LAUNCHES, "Medium-High", "1.5-3.0x", ("graph",), "time of launches against computation"),
        "GPU: a captured graph is one launch; CPU: 7 GEMMs of a layer become 4 by fusion",
    ),
    (
        *(MEMORY, "Medium", "1.1-1.4x", ()),
        "operators that get or return memory, of the host's time",
        "a pool serves the allocations below 64 KiB",
    ),
    (
        *(SOFTMAX, "Medium-High", "1.2-1.8x", OF_ATTENTION),
        "softmax operators, forward and backward",
        "softmax within the tile: S(S+1)/2 of S x S values, none written to memory",
    ),
)


def category_shares(summary: Json) -> dict[str, float | None]:
    """Percent of the step by category; None where it was not measured."""
    operators, part = summary["operators"] or {}, recorded_part(summary)

    def of_step(percent: float | None) -> float | None:
        return None if percent is None or part is None else percent * part

    def of_components(*names: str) -> float | None:
        components = operators.get("components")
        return of_step(component_percent(components, *names) if components else None)

    return {
        QKV: of_components("attention/qkv_proj"),
        ATTENTION: of_components("attention/core"),
        SWIGLU: of_components("ffn/gate_up_proj", "ffn/swiglu"),
        LAUNCHES: operators.get("launch_overhead_percent"),
        MEMORY: fragmentation_share(summary),
        SOFTMAX: of_step(operators.get("softmax_percent")),
    }


def category_factors(summary: Json) -> dict[str, float | None]:
    """How many times as fast a category's share is assumed to become; None where nothing measured
    supports a factor.

    Launches: a GPU's captured step is one launch. Elsewhere the 7 GEMMs of a layer's forward (Q, K,
    V, output, gate, up, down) become 4 where QKV and gate-up are fused, and the LM head stays.
    SwiGLU: silu reads gate and writes, the multiplication reads two tensors and writes one: five
    passes over memory, of which one fused kernel keeps three.
    """
    config, launches = summary["configuration"], launch_part(summary)
    operators, memory = summary["operators"] or {}, summary["memory"] or {}

    def fewer_launches(before: int) -> float | None:
        # `before` GEMMs become one: FLOPs stay, so only the launch part of the time shrinks
        return None if launches is None else 1 / (1 - launches + launches / before)

    swiglu, causal = fewer_launches(2), 2 * config["seq_len"] / (config["seq_len"] + 1)
    if swiglu is not None:
        names = ("ffn/gate_up_proj", "ffn/swiglu")
        first, second = (component_percent(operators["components"], name) for name in names)
        after = first / swiglu + second * 3 / 5
        swiglu = (first + second) / after if after else 1.0
    every, small = (memory.get(f"{k}allocations_per_step") for k in ("", "small_"))
    return {
        QKV: fewer_launches(3),
        ATTENTION: causal,
        SWIGLU: swiglu,
        LAUNCHES: operators.get("kernels_per_step")
        or (7 * config["n_layers"] + 1) / (4 * config["n_layers"] + 1),
        # where all allocations are small, one is left
        MEMORY: None if small is None else max(every / max(every - small, 1), 1.0),
        SOFTMAX: causal,
    }


@dataclass(frozen=True)
class Bottleneck:
    """A category with what it can bring. None: the profile does not say.

    Speedups are of the whole step: `expected_speedup` and `upper_bound` by Amdahl's law, `measured`
    with which switch, where an ablation measured one.
    """

    name: str
    difficulty: str
    worksheet_speedup: str
    switches: tuple[str, ...]
    share_of: str
    why: str
    share_percent: float | None
    factor: float | None
    expected_speedup: float | None
    upper_bound: float | None
    measured: tuple[str, StepRatio] | None

    @property
    def measured_text(self) -> str | None:
        """`1.08 (1.05 to 1.11) with sdpa`."""
        return self.measured and f"{self.measured[1].marked_text()} with {self.measured[0]}"

    @property
    def best_known_speedup(self) -> float | None:
        """The measured speedup, else the expected one; at most `upper_bound`: what a switch brings
        beyond that, it does to other categories."""
        if self.measured is None:
            return self.expected_speedup
        median = self.measured[1].median
        return median if self.upper_bound is None else min(median, self.upper_bound)

    @property
    def quadrant(self) -> int | None:
        """A key of QUADRANTS; None where no speedup is known."""
        if self.best_known_speedup is None:
            return None
        impact = 1 if self.best_known_speedup >= HIGH_IMPACT else 3
        return impact if self.difficulty in LOW_EFFORT else impact + 1

    @property
    def is_shown(self) -> bool:
        """False where an ablation measured a switch of it and showed no difference."""
        return self.measured is None or self.measured[1].shows_difference

    @property
    def is_worthwhile(self) -> bool:
        """Whether the best known speedup is WORTHWHILE_SPEEDUP or more."""
        return self.is_shown and (self.best_known_speedup or 0) >= WORTHWHILE_SPEEDUP


def rank_bottlenecks(summary: Json, ablation: Evidence | None = None) -> list[Bottleneck]:
    """The six categories, those that are worthwhile first; then by quadrant, speedup and share.

    `summary`: a checked performance_summary.json. `ablation`: step_ratios.find_ablation().
    """
    shares, factors = category_shares(summary), category_factors(summary)
    on = set(summary["configuration"]["switches"].split("+"))

    def judged(name: str, *about: Any) -> Bottleneck:  # noqa: ANN401
        share, factor, own = shares[name], factors[name], about[2]
        if on & {*own}:
            factor = 1.0  # this profile has it already
        part = None if share is None else min(share, 100.0) / 100
        expected = None if part is None or factor is None else amdahl(part, factor)
        bound = None if part is None or part == 1 else 1 / (1 - part)
        measured = ablation.best(own) if ablation else None
        return Bottleneck(name, *about, share, factor, expected, bound, measured)

    def urgency(found: Bottleneck) -> tuple[bool, int, float, float]:
        quadrant = found.quadrant or len(QUADRANTS) + 1
        best, share = found.best_known_speedup or 0.0, found.share_percent or 0.0
        return not found.is_worthwhile, quadrant, -best, -share

    return sorted((judged(*category) for category in CATEGORIES), key=urgency)


# the workshop's four optimizations of memory
FLASH, CHECKPOINTING = "Flash Attention", "Gradient Checkpointing"
MIXED, FUSION = "Mixed Precision (FP16/BF16)", "Kernel Fusion"
# Components whose intermediate tensors a fused kernel keeps to itself.
FUSED_COMPONENTS = ("rms_norm", "attention/rotary", "ffn/swiglu")


def memory_effects(summary: Json) -> list[Json]:
    """What each optimization of memory saves at most at the peak, the largest first: `name`,
    `saved_bytes`, `saved_percent` of the peak, and `basis`, what would be saved."""
    memory, layers = summary["memory"], summary["configuration"]["n_layers"]
    peak, components = memory["breakdown_at_peak"], memory["component_activation_bytes"]
    scores, kept = peak["attention_scores"], peak["activations"] + peak["attention_scores"]
    fused = sum(components.get(name, 0) for name in FUSED_COMPONENTS)
    but_one = f"activations and scores of all but one of {layers} layers"
    found = (
        (FLASH, scores, "all attention scores"),
        (CHECKPOINTING, kept * (1 - 1 / layers), but_one),
        (MIXED, kept / 2, "half of activations and scores"),
        (FUSION, fused, f"activations of {', '.join(FUSED_COMPONENTS)}"),
    )
    rows = [
        {
            **{"name": name, "saved_bytes": size, "basis": f"at most {basis}"},
            "saved_percent": 100 * size / memory["peak_bytes"],
        }
        for name, size, basis in found
    ]
    return sorted(rows, key=lambda row: -row["saved_bytes"])
