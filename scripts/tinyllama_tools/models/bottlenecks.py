"""Exercise 3's six bottlenecks: what share each has, and what removing it can bring.

The expected speedup is Amdahl's: with a share p of the step that becomes f times as fast, the step
becomes 1 / (1 - p + p / f) times as fast, and at most 1 / (1 - p). p is measured; f is assumed,
with the reason beside it. The categories overlap (softmax is a part of attention, launches are a
part of everything), so neither shares nor speedups may be added up or multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.text import NOT_MEASURED, markdown_table, number, percent, speedup
from tinyllama_tools.models.ablation_evidence import Evidence, MeasuredSpeedup
from tinyllama_tools.models.ablations import shows_difference

# Views, allocations, operators that only call others, and nodes of the autograd graph.
DISPATCH = re.compile(
    r"^(aten::)?(_unsafe_view|view|t|transpose|permute|as_strided|expand|reshape|_reshape_alias"
    r"|slice|select|narrow|squeeze|unsqueeze|detach|alias|empty|empty_like|empty_strided|zeros"
    r"|zeros_like|ones_like|zero_|to|_to_copy|clone|contiguous|resolve_conj|resolve_neg"
    r"|result_type|linear|matmul|softmax|log_softmax|embedding|embedding_backward"
    r"|cross_entropy_loss|nll_loss|nll_loss_nd|slice_backward)$"
    r"|^autograd::|^torch::autograd::|^\w+Backward\d*$"
)


def working_rows(table: Sequence[Json]) -> list[Json]:
    """On a GPU the rows with time of their own there; on a CPU those that do not only dispatch."""
    if any(row.get("device_self_seconds") is not None for row in table):
        return [row for row in table if (row.get("device_self_seconds") or 0) > 0]
    return [row for row in table if not DISPATCH.search(row["name"])]


# Operators and runtime calls that get or return memory, and do nothing else.
ALLOCATION = re.compile(
    r"aten::(empty|empty_like|empty_strided|new_empty|new_empty_strided|resize_)"
    r"|(cuda|hip)(Malloc|Free)\w*|(cuda|hip)MemPool\w*"
)
MEASURED_BY_OPERATORS = "needs --enable-pytorch-profiler"
MEASURED_BY_MEMORY = "needs --profile-memory"
PROJECTIONS_OF_A_LAYER, FUSED_PROJECTIONS_OF_A_LAYER = 7, 4
# silu reads gate and writes; the product reads both and writes. In one pass: two reads, one write.
SWIGLU_PASSES, FUSED_SWIGLU_PASSES = 5, 3


@dataclass(frozen=True)
class Share:
    """Percent of the step, None where it is not known; the definition says of what."""

    percent: float | None
    definition: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Assumption:
    """How many times as fast the share becomes; None where there is no ground to assume any."""

    factor: float | None
    reason: str
    keys: tuple[str, ...] = ()


def component_percent(summary: Json, *names: str) -> float | None:
    """Sum over components, all below a name that ends in `/`; None without operator profile."""
    operators = summary.get("operators")
    if not operators:
        return None
    prefixes = tuple(name for name in names if name.endswith("/"))
    return sum(
        found["percent"]
        for found in operators["components"]
        if found["name"] in names or (prefixes and found["name"].startswith(prefixes))
    )


def _components(summary: Json, definition: str, *names: str) -> Share:
    percent = component_percent(summary, *names)
    if percent is None:
        return Share(None, MEASURED_BY_OPERATORS)
    keys = tuple(f"operators.components[{n}].percent" for n in names)
    return _of_the_step(summary, Share(percent, definition, keys))


def _launch_part(summary: Json) -> float | None:
    """Launch overhead as a part of one; None where it was not measured."""
    percent = (summary.get("operators") or {}).get("launch_overhead_percent")
    return None if percent is None else min(percent, 100.0) / 100


def _fewer_launches(summary: Json, before: int, after: int, what: str) -> Assumption:
    """FLOPs stay, so only the launch part of the time shrinks."""
    part = _launch_part(summary)
    if part is None:
        return Assumption(None, f"{what}: the launch overhead was not measured")
    factor = 1 / (1 - part + part * after / before)
    reason = (
        f"{what}: {before} launches become {after}, with the same FLOPs, so of its time only the "
        f"launch part ({100 * part:.1f} % as in the whole step) shrinks"
    )
    return Assumption(factor, reason, ("operators.launch_overhead_percent",))


def recorded_part(summary: Json) -> float | None:
    """What components are shares of, as a part of the step; None where it was not measured.

    On a GPU they are shares of the kernels' time, which is the step's without launch overhead.
    """
    if (summary.get("operators") or {}).get("device_time") != "gpu":
        return 1.0
    launches = _launch_part(summary)
    return None if launches is None else 1 - launches


def _of_the_step(summary: Json, share: Share) -> Share:
    part = recorded_part(summary)
    if part == 1 or share.percent is None:
        return share
    keys = (*share.keys, "operators.launch_overhead_percent")
    if part is None:
        return Share(None, "needs the launch overhead, to be a share of the step", keys)
    definition = f"{share.definition}: share of the kernels' time x (1 - launch overhead)"
    return Share(share.percent * part, definition, keys)


def qkv_share(summary: Json) -> Share:
    """Three products of one input."""
    return _components(summary, "products of Q, K and V", "attention/qkv_proj")


def qkv_factor(summary: Json) -> Assumption:
    """One product instead of three."""
    return _fewer_launches(summary, 3, 1, "Q, K and V in one product")


def _causal_factor(summary: Json, what: str) -> Assumption:
    seq = summary["configuration"]["seq_len"]
    reason = (
        f"{what}: a causal kernel in tiles computes S(S+1)/2 of the S x S scores (S = {seq}) and "
        f"writes none to memory; the traffic saved is not counted"
    )
    return Assumption(2 * seq / (seq + 1), reason, ("configuration.seq_len",))


def attention_share(summary: Json) -> Share:
    """Scores, softmax, values."""
    return _components(summary, "scores, softmax and values", "attention/core")


def attention_factor(summary: Json) -> Assumption:
    """Only what the causal mask leaves."""
    return _causal_factor(summary, "attention without a score matrix")


def softmax_share(summary: Json) -> Share:
    """Of the softmax operators alone."""
    operators = summary.get("operators")
    if not operators:
        return Share(None, MEASURED_BY_OPERATORS)
    definition, key = "softmax operators, forward and backward", "softmax_percent"
    return _of_the_step(summary, Share(operators.get(key), definition, (f"operators.{key}",)))


def softmax_factor(summary: Json) -> Assumption:
    """Softmax within the tile."""
    return _causal_factor(summary, "softmax within the tile")


def swiglu_share(summary: Json) -> Share:
    """Gate, up, and the activation that joins them."""
    names = ("ffn/gate_up_proj", "ffn/swiglu")
    return _components(summary, "products of gate and up, and silu(gate) * up", *names)


def swiglu_factor(summary: Json) -> Assumption:
    """One product instead of two; one pass over memory instead of two."""
    products = _fewer_launches(summary, 2, 1, "gate and up in one product")
    first = component_percent(summary, "ffn/gate_up_proj")
    second = component_percent(summary, "ffn/swiglu")
    if products.factor is None or first is None or second is None:
        return products
    if first + second == 0:
        return Assumption(1.0, "neither takes any time in this profile", products.keys)
    passes = SWIGLU_PASSES / FUSED_SWIGLU_PASSES
    factor = (first + second) / (first / products.factor + second / passes)
    reason = (
        f"{products.reason}; silu(gate) * up in one pass moves {FUSED_SWIGLU_PASSES} tensors "
        f"instead of {SWIGLU_PASSES}"
    )
    return Assumption(factor, reason, products.keys)


def launch_share(summary: Json) -> Share:
    """As the profile defines it for its device."""
    operators = summary.get("operators")
    if not operators:
        return Share(None, MEASURED_BY_OPERATORS)
    definition = operators.get("launch_overhead_definition") or (
        "time of launches against computation"
    )
    key = "launch_overhead_percent"
    return Share(operators.get(key), definition, (f"operators.{key}",))


def launch_factor(summary: Json) -> Assumption:
    """On a GPU a captured step is one launch; elsewhere fusion makes fewer operators."""
    operators = summary.get("operators") or {}
    kernels = operators.get("kernels_per_step")
    if operators.get("device_time") == "gpu" and kernels:
        reason = f"a captured graph replays the step's {kernels:.0f} kernels by one launch"
        return Assumption(float(kernels), reason, ("operators.kernels_per_step",))
    layers = summary["configuration"]["n_layers"]
    before = PROJECTIONS_OF_A_LAYER * layers + 1
    after = FUSED_PROJECTIONS_OF_A_LAYER * layers + 1
    reason = (
        f"operators become fewer as the projections do: {before} products of a forward become "
        f"{after} where Q, K, V and gate, up are fused"
    )
    return Assumption(before / after, reason, ("configuration.n_layers",))


def fragmentation_share(summary: Json) -> Share:
    """Host time that goes into getting memory: all that fragmentation can cost in time."""
    operators = summary.get("operators")
    if not operators:
        return Share(None, MEASURED_BY_OPERATORS)
    table = operators["table"]
    total = sum(row["cpu_self_seconds"] for row in table)
    if total <= 0:
        return Share(None, "the profile has no host time")
    spent = sum(row["cpu_self_seconds"] for row in table if ALLOCATION.fullmatch(row["name"]))
    held = ((summary.get("memory") or {}).get("fragmentation") or {}).get("percent")
    unused = "" if held is None else f"; {held:.1f} % of the memory held was fragmented"
    definition = f"operators that get or return memory, of all operators' host time{unused}"
    keys = ("operators.table[].cpu_self_seconds",)
    return Share(
        100 * spent / total,
        definition,
        keys if held is None else (*keys, "memory.fragmentation.percent"),
    )


def fragmentation_factor(summary: Json) -> Assumption:
    """A pool makes the small allocations free of cost."""
    memory = summary.get("memory")
    if not memory or memory.get("small_allocations_per_step") is None:
        return Assumption(None, MEASURED_BY_MEMORY)
    every, small = memory["allocations_per_step"], memory["small_allocations_per_step"]
    # one allocation is left where all were small
    factor = every / max(every - small, 1) if every else 1.0
    reason = (
        f"a pool serves the {small:.0f} of {every:.0f} allocations a step that are below 64 KiB"
    )
    keys = ("memory.allocations_per_step", "memory.small_allocations_per_step")
    return Assumption(max(factor, 1.0), reason, keys)


# The smallest speedup that the worksheet's table expects of any category.
HIGH_IMPACT = 1.1
# What anything has to bring to be worth doing: below it, a step is as fast as before.
WORTHWHILE_SPEEDUP = 1.02
LOW_EFFORT = ("Low", "Low-Medium")
QUADRANTS = {
    1: "High impact, low effort (priority 1)",
    2: "High impact, high effort (priority 2)",
    3: "Low impact, low effort (priority 3)",
    4: "Low impact, high effort (priority 4: skip)",
}


@dataclass(frozen=True)
class Category:
    """A row of the worksheet: its difficulty and range are the worksheet's own.

    `switches`: any one of them is the optimisation.
    """

    name: str
    difficulty: str
    worksheet_speedup: str
    switches: tuple[str, ...]
    share: Callable[[Json], Share]
    factor: Callable[[Json], Assumption]


CATEGORIES = (
    Category("QKV projections", "Low-Medium", "1.2-1.5x", ("qkv",), qkv_share, qkv_factor),
    Category(
        "Attention computation",
        "Medium",
        "1.3-2.0x",
        ("sdpa", "fused_attention"),
        attention_share,
        attention_factor,
    ),
    Category(
        "SwiGLU gate/up",
        "Low",
        "1.1-1.3x",
        ("gate_up", "fused_swiglu"),
        swiglu_share,
        swiglu_factor,
    ),
    Category(
        "Kernel launch overhead",
        "Medium-High",
        "1.5-3.0x",
        ("graph",),
        launch_share,
        launch_factor,
    ),
    Category(
        "Memory fragmentation", "Medium", "1.1-1.4x", (), fragmentation_share, fragmentation_factor
    ),
    Category(
        "Softmax operations",
        "Medium-High",
        "1.2-1.8x",
        ("sdpa", "fused_attention"),
        softmax_share,
        softmax_factor,
    ),
)


@dataclass(frozen=True)
class Bottleneck:
    """One category, judged.

    `share_percent`: of the recorded work, None where the profile does not say. `factor`: how much
    faster that share is assumed to become, with `factor_reason`. `expected_speedup` and
    `upper_bound`: of the whole step, by Amdahl's law. `measured`: of the whole step, where an
    ablation measured one of the switches. `priority`: 1 is to be done first. `quadrant`: of the
    impact/effort matrix (QUADRANTS), None where nothing is known of its impact. `keys`: of
    performance_summary.json, that the numbers came from.
    """

    category: str
    share_percent: float | None
    share_definition: str
    difficulty: str
    worksheet_speedup: str
    factor: float | None
    factor_reason: str
    expected_speedup: float | None
    upper_bound: float | None
    measured: MeasuredSpeedup | None
    keys: tuple[str, ...]
    priority: int = 0
    quadrant: int | None = None

    @property
    def measured_speedup(self) -> float | None:
        """Median over the ablation's turns."""
        return self.measured.ratio.median if self.measured else None

    @property
    def best_known_speedup(self) -> float | None:
        """Measured where it was, else expected; never above the bound.

        A switch can do more than one category: what is beyond the bound is not this one's doing.
        """
        if self.measured_speedup is None:
            return self.expected_speedup
        if self.upper_bound is None:
            return self.measured_speedup
        return min(self.measured_speedup, self.upper_bound)

    @property
    def is_shown(self) -> bool:
        """False where an ablation measured its switches and showed no difference."""
        return self.measured is None or shows_difference(self.measured.ratio)

    @property
    def is_worthwhile(self) -> bool:
        """It brings WORTHWHILE_SPEEDUP or more, by all that is known."""
        return self.is_shown and (self.best_known_speedup or 0) >= WORTHWHILE_SPEEDUP


def amdahl(share: float, factor: float) -> float:
    """Speedup of the whole where `share` (0 to 1) of it becomes `factor` times as fast.

    ValueError where the share is outside 0 to 1 or the factor is not positive.
    """
    if not 0 <= share <= 1 or not factor > 0:
        raise ValueError(f"share {share}, factor {factor}: must be 0 to 1, and positive")
    return 1 / (1 - share + share / factor)


def _upper_bound(share: float) -> float | None:
    return 1 / (1 - share) if share < 1 else None


def _switches_on(summary: Json) -> set[str]:
    found = summary["configuration"].get("switches") or summary["configuration"]["variant"]
    return set(found.split("+") if isinstance(found, str) else found)


def _judge(category: Category, summary: Json, ablation: Evidence | None) -> Bottleneck:
    share = category.share(summary)
    assumption = category.factor(summary)
    done = sorted(_switches_on(summary) & set(category.switches))
    if done:
        assumption = Assumption(1.0, f"{' and '.join(done)} is on in this profile already")
    part = None if share.percent is None else min(share.percent, 100.0) / 100
    known = part is not None and assumption.factor is not None
    return Bottleneck(
        category=category.name,
        share_percent=share.percent,
        share_definition=share.definition,
        difficulty=category.difficulty,
        worksheet_speedup=category.worksheet_speedup,
        factor=assumption.factor,
        factor_reason=assumption.reason,
        expected_speedup=amdahl(part, assumption.factor) if known else None,
        upper_bound=None if part is None else _upper_bound(part),
        measured=ablation.best(category.switches) if ablation else None,
        keys=(*share.keys, *assumption.keys),
    )


def quadrant_of(bottleneck: Bottleneck) -> int | None:
    """Of the impact/effort matrix: high impact from HIGH_IMPACT on, low effort as LOW_EFFORT."""
    speedup = bottleneck.best_known_speedup
    if speedup is None:
        return None
    low_effort = bottleneck.difficulty in LOW_EFFORT
    if speedup >= HIGH_IMPACT:
        return 1 if low_effort else 2
    return 3 if low_effort else 4


def _urgency(bottleneck: Bottleneck) -> tuple[bool, int, float, float]:
    quadrant = bottleneck.quadrant or len(QUADRANTS) + 1
    speedup = bottleneck.best_known_speedup or 0.0
    share = bottleneck.share_percent or 0.0
    return not bottleneck.is_worthwhile, quadrant, -speedup, -share


def rank_bottlenecks(summary: Json, ablation: Evidence | None = None) -> list[Bottleneck]:
    """The six categories, most urgent first: by quadrant, then by speedup, then by share.

    What is not worthwhile comes after all that is, however little effort it takes.
    `summary`: a checked performance_summary.json; what its profilers did not record is None in the
    result. `ablation`: ablation_evidence.find_evidence(summary), or nothing.
    """
    judged = [_judge(category, summary, ablation) for category in CATEGORIES]
    placed = [replace(found, quadrant=quadrant_of(found)) for found in judged]
    ordered = sorted(placed, key=_urgency)
    return [replace(found, priority=rank) for rank, found in enumerate(ordered, start=1)]


def recommended(bottlenecks: Sequence[Bottleneck]) -> Bottleneck | None:
    """The worthwhile one with the best known speedup; None where none is worth it."""
    worth = [found for found in bottlenecks if found.is_worthwhile]
    return max(worth, key=lambda found: found.best_known_speedup or 0.0, default=None)


def largest_share(bottlenecks: Sequence[Bottleneck]) -> Bottleneck | None:
    """The one with the largest measured share; None where no share is known."""
    known = [found for found in bottlenecks if found.share_percent is not None]
    return max(known, key=lambda found: found.share_percent or 0.0, default=None)


HEADER = (
    "priority",
    "category",
    "share",
    "difficulty",
    "assumed factor",
    "expected",
    "upper bound",
    "measured",
    "worksheet",
)


def bottleneck_table(bottlenecks: Sequence[Bottleneck]) -> list[str]:
    """A row a category, most urgent first."""
    rows = [
        (
            str(found.priority),
            found.category,
            percent(found.share_percent),
            found.difficulty,
            number(found.factor, 2),
            speedup(found.expected_speedup),
            speedup(found.upper_bound),
            found.measured.text() if found.measured else NOT_MEASURED,
            found.worksheet_speedup,
        )
        for found in bottlenecks
    ]
    return markdown_table(HEADER, rows)


def bottleneck_lines(bottlenecks: Sequence[Bottleneck], ablation: Evidence | None) -> list[str]:
    """The table and the ground of each number."""
    grounds = [
        f"- {found.category}: share of {found.share_definition}; factor: {found.factor_reason}"
        + (f" (`{'`, `'.join(found.keys)}`)." if found.keys else ".")
        for found in bottlenecks
    ]
    source = (
        f"Measured speedups are of the whole step, from `{shown(ablation.file)}` at "
        f"{ablation.point.title}; `~`: no difference was shown."
        if ablation
        else "Measured speedups: scripts/ablation has not run on this device at this shape."
    )
    return [
        *bottleneck_table(bottlenecks),
        "",
        "Expected: Amdahl's law, 1 / (1 - p + p / f) with the share p and the assumed factor f; "
        "upper bound: 1 / (1 - p). Categories overlap (softmax is a part of attention, launches of "
        "everything): neither add shares nor multiply speedups. A measured speedup above the upper "
        "bound comes from what else its switch changes.",
        "",
        source,
        "",
        *grounds,
    ]


def matrix_lines(bottlenecks: Sequence[Bottleneck]) -> list[str]:
    """The four quadrants, each with its categories."""
    lines = [
        f"High impact: {HIGH_IMPACT:.1f}x or more, measured where it was, else expected, and never "
        "above the upper bound. Low effort: difficulty Low or Low-Medium.",
        "",
    ]
    for quadrant, title in QUADRANTS.items():
        names = [
            f"{found.category} ({speedup(found.best_known_speedup)})"
            for found in bottlenecks
            if found.quadrant == quadrant
        ]
        lines.append(f"- {title}: {', '.join(names) or 'none'}")
    unknown = [found.category for found in bottlenecks if found.quadrant is None]
    if unknown:
        lines.append(f"- Not measured: {', '.join(unknown)}")
    return lines
