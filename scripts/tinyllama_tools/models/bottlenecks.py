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
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tinyllama_tools.core.app import Json, shown_path
from tinyllama_tools.core.text import NOT_MEASURED, markdown_table, number, percent, speedup
from tinyllama_tools.data.profiles import component_percent
from tinyllama_tools.models.ablations import shows_difference

if TYPE_CHECKING:
    from tinyllama_tools.models.ablation_evidence import Evidence, MeasuredSpeedup

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
LAUNCHES = "launch_overhead_percent"
# Products of a layer's forward: Q, K, V, output, gate, up, down; fused: QKV, output, gate-up, down.
PROJECTIONS, FUSED_PROJECTIONS = 7, 4
# silu reads gate and writes; the product reads both and writes. In one pass: two reads, one write.
SWIGLU_PASSES, FUSED_SWIGLU_PASSES = 5, 3
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


class Share(NamedTuple):
    """Percent of the step, None where it is not known; the definition says of what, `keys` of
    performance_summary.json from which figures."""

    percent: float | None
    definition: str
    keys: tuple[str, ...] = ()


class Assumption(NamedTuple):
    """How many times as fast the share becomes; None where there is no ground to assume any."""

    factor: float | None
    reason: str
    keys: tuple[str, ...] = ()


NO_OPERATORS = Share(None, "needs --enable-pytorch-profiler")


def working_rows(table: Sequence[Json]) -> list[Json]:
    """On a GPU the rows with time of their own there; on a CPU those that do not only dispatch."""
    if any(row.get("device_self_seconds") is not None for row in table):
        return [row for row in table if (row.get("device_self_seconds") or 0) > 0]
    return [row for row in table if not DISPATCH.search(row["name"])]


def _launch_part(summary: Json) -> float | None:
    """Launch overhead as a part of one; None where it was not measured."""
    percent = (summary.get("operators") or {}).get(LAUNCHES)
    return None if percent is None else min(percent, 100.0) / 100


def recorded_part(summary: Json) -> float | None:
    """What components are shares of, as a part of the step; None where it was not measured.

    On a GPU they are shares of the kernels' time, which is the step's without launch overhead.
    """
    if (summary.get("operators") or {}).get("device_time") != "gpu":
        return 1.0
    launches = _launch_part(summary)
    return None if launches is None else 1 - launches


def _of_the_step(summary: Json, percent: float | None, definition: str, *keys: str) -> Share:
    """A share of what was recorded, as one of the step."""
    if percent is None:
        return NO_OPERATORS
    part = recorded_part(summary)
    if part == 1:
        return Share(percent, definition, keys)
    keys = (*keys, f"operators.{LAUNCHES}")
    if part is None:
        return Share(None, "needs the launch overhead, to be a share of the step", keys)
    definition += ": share of the kernels' time x (1 - launch overhead)"
    return Share(percent * part, definition, keys)


def _components(definition: str, *names: str) -> Callable[[Json], Share]:
    keys = [f"operators.components[{name}].percent" for name in names]
    return lambda summary: _of_the_step(
        summary, component_percent(summary, *names), definition, *keys
    )


def _softmax_share(summary: Json) -> Share:
    found = (summary.get("operators") or {}).get("softmax_percent")
    definition = "softmax operators, forward and backward"
    return _of_the_step(summary, found, definition, "operators.softmax_percent")


def _launch_share(summary: Json) -> Share:
    operators = summary.get("operators")
    if not operators:
        return NO_OPERATORS
    definition = operators.get("launch_overhead_definition")
    definition = definition or "time of launches against computation"
    return Share(operators.get(LAUNCHES), definition, (f"operators.{LAUNCHES}",))


def fragmentation_share(summary: Json) -> Share:
    """Host time that goes into getting memory: all that fragmentation can cost in time."""
    table = (summary.get("operators") or {}).get("table")
    if table is None:
        return NO_OPERATORS
    total = sum(row["cpu_self_seconds"] for row in table)
    if total <= 0:
        return Share(None, "the profile has no host time")
    spent = sum(row["cpu_self_seconds"] for row in table if ALLOCATION.fullmatch(row["name"]))
    definition = "operators that get or return memory, of all operators' host time"
    keys: tuple[str, ...] = ("operators.table[].cpu_self_seconds",)
    held = ((summary.get("memory") or {}).get("fragmentation") or {}).get("percent")
    if held is not None:
        definition += f"; {held:.1f} % of the memory held was fragmented"
        keys += ("memory.fragmentation.percent",)
    return Share(100 * spent / total, definition, keys)


def _fewer_launches(before: int, what: str, summary: Json) -> Assumption:
    """GEMMs become one: FLOPs stay, so only the launch part of the time shrinks."""
    part = _launch_part(summary)
    if part is None:
        return Assumption(None, f"{what}: the launch overhead was not measured")
    reason = (
        f"{what}: {before} launches become 1, with the same FLOPs, so of its time only the "
        f"launch part ({100 * part:.1f} % as in the whole step) shrinks"
    )
    return Assumption(1 / (1 - part + part / before), reason, (f"operators.{LAUNCHES}",))


def _swiglu_factor(summary: Json) -> Assumption:
    """One GEMM instead of two; one pass over memory instead of two."""
    products = _fewer_launches(2, "gate and up in one product", summary)
    first = component_percent(summary, "ffn/gate_up_proj")
    second = component_percent(summary, "ffn/swiglu")
    if products.factor is None or first is None or second is None:
        return products
    if first + second == 0:
        return Assumption(1.0, "neither takes any time in this profile", products.keys)
    after = first / products.factor + second * FUSED_SWIGLU_PASSES / SWIGLU_PASSES
    reason = (
        f"{products.reason}; silu(gate) * up in one pass moves {FUSED_SWIGLU_PASSES} tensors "
        f"instead of {SWIGLU_PASSES}"
    )
    return Assumption((first + second) / after, reason, products.keys)


def _causal_factor(what: str, summary: Json) -> Assumption:
    """Only what the causal mask leaves."""
    seq = summary["configuration"]["seq_len"]
    reason = (
        f"{what}: a causal kernel in tiles computes S(S+1)/2 of the S x S scores (S = {seq}) and "
        f"writes none to memory; the traffic saved is not counted"
    )
    return Assumption(2 * seq / (seq + 1), reason, ("configuration.seq_len",))


def _launch_factor(summary: Json) -> Assumption:
    """On a GPU a captured step is one launch; elsewhere fusion makes fewer operators."""
    operators = summary.get("operators") or {}
    kernels = operators.get("kernels_per_step")
    if operators.get("device_time") == "gpu" and kernels:
        reason = f"a captured graph replays the step's {kernels:.0f} kernels by one launch"
        return Assumption(float(kernels), reason, ("operators.kernels_per_step",))
    layers = summary["configuration"]["n_layers"]
    # and the LM head
    before, after = PROJECTIONS * layers + 1, FUSED_PROJECTIONS * layers + 1
    reason = (
        f"operators become fewer as the projections do: {before} products of a forward become "
        f"{after} where Q, K, V and gate, up are fused"
    )
    return Assumption(before / after, reason, ("configuration.n_layers",))


def _fragmentation_factor(summary: Json) -> Assumption:
    """A pool makes the small allocations free of cost."""
    memory = summary.get("memory") or {}
    if memory.get("small_allocations_per_step") is None:
        return Assumption(None, "needs --profile-memory")
    every, small = memory["allocations_per_step"], memory["small_allocations_per_step"]
    reason = (
        f"a pool serves the {small:.0f} of {every:.0f} allocations a step that are below 64 KiB"
    )
    keys = ("memory.allocations_per_step", "memory.small_allocations_per_step")
    # one allocation is left where all were small
    return Assumption(max(every / max(every - small, 1), 1.0), reason, keys)


class Category(NamedTuple):
    """A row of the worksheet, with its difficulty and range; any of `switches` is its
    optimisation."""

    name: str
    difficulty: str
    worksheet_speedup: str
    switches: tuple[str, ...]
    share: Callable[[Json], Share]
    factor: Callable[[Json], Assumption]


ATTENTION = ("sdpa", "fused_attention")
QKV_SHARE = _components("products of Q, K and V", "attention/qkv_proj")
CORE_SHARE = _components("scores, softmax and values", "attention/core")
SWIGLU_SHARE = _components(
    "products of gate and up, and silu(gate) * up", "ffn/gate_up_proj", "ffn/swiglu"
)
QKV_FACTOR = partial(_fewer_launches, 3, "Q, K and V in one product")
NO_SCORES = partial(_causal_factor, "attention without a score matrix")
IN_TILES = partial(_causal_factor, "softmax within the tile")
# fmt: off
CATEGORIES = tuple(Category(*row) for row in (
    ("QKV projections", "Low-Medium", "1.2-1.5x", ("qkv",), QKV_SHARE, QKV_FACTOR),
    ("Attention computation", "Medium", "1.3-2.0x", ATTENTION, CORE_SHARE, NO_SCORES),
    ("SwiGLU gate/up", "Low", "1.1-1.3x", ("gate_up", "fused_swiglu"), SWIGLU_SHARE,
     _swiglu_factor),
    ("Kernel launch overhead", "Medium-High", "1.5-3.0x", ("graph",), _launch_share,
     _launch_factor),
    ("Memory fragmentation", "Medium", "1.1-1.4x", (), fragmentation_share, _fragmentation_factor),
    ("Softmax operations", "Medium-High", "1.2-1.8x", ATTENTION, _softmax_share, IN_TILES),
))
# fmt: on


@dataclass(frozen=True)
class Bottleneck:
    """One category, judged.

    `share_percent`: of the recorded work, None where the profile does not say. `factor`: how much
    faster that share is assumed to become. `expected_speedup` and `upper_bound`: of the whole step,
    by Amdahl's law. `measured`: of the whole step, where an ablation measured one of the switches.
    `priority`: 1 is to be done first. `keys`: of performance_summary.json, that the numbers came
    from.
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

    @property
    def best_known_speedup(self) -> float | None:
        """Measured where it was, else expected; never above the bound.

        A switch can do more than one category: what is beyond the bound is not this one's doing.
        """
        if self.measured is None:
            return self.expected_speedup
        median = self.measured.ratio.median
        return median if self.upper_bound is None else min(median, self.upper_bound)

    @property
    def quadrant(self) -> int | None:
        """Of the impact/effort matrix (QUADRANTS), None where nothing is known of its impact."""
        if self.best_known_speedup is None:
            return None
        impact = 1 if self.best_known_speedup >= HIGH_IMPACT else 3
        return impact if self.difficulty in LOW_EFFORT else impact + 1

    @property
    def is_shown(self) -> bool:
        """False where an ablation measured its switches and showed no difference."""
        return self.measured is None or shows_difference(self.measured.ratio)

    @property
    def is_worthwhile(self) -> bool:
        """It brings WORTHWHILE_SPEEDUP or more, by all that is known."""
        return self.is_shown and (self.best_known_speedup or 0) >= WORTHWHILE_SPEEDUP


def amdahl(share: float, factor: float) -> float:
    """Speedup of the whole where `share` (0 to 1) of it becomes `factor` (> 0) times as fast."""
    if not 0 <= share <= 1 or not factor > 0:
        raise ValueError(f"share {share}, factor {factor}: must be 0 to 1, and positive")
    return 1 / (1 - share + share / factor)


def _judge(category: Category, summary: Json, ablation: Evidence | None) -> Bottleneck:
    share, assumption = category.share(summary), category.factor(summary)
    configuration = summary["configuration"]
    on = configuration.get("switches") or configuration["variant"]
    done = sorted(set(on.split("+") if isinstance(on, str) else on) & set(category.switches))
    if done:
        assumption = Assumption(1.0, f"{' and '.join(done)} is on in this profile already")
    part = None if share.percent is None else min(share.percent, 100.0) / 100
    known = part is not None and assumption.factor is not None
    return Bottleneck(
        category.name,
        share.percent,
        share.definition,
        category.difficulty,
        category.worksheet_speedup,
        assumption.factor,
        assumption.reason,
        amdahl(part, assumption.factor) if known else None,
        None if part is None or part == 1 else 1 / (1 - part),
        ablation.best(category.switches) if ablation else None,
        (*share.keys, *assumption.keys),
    )


def rank_bottlenecks(summary: Json, ablation: Evidence | None = None) -> list[Bottleneck]:
    """The six categories, most urgent first: by quadrant, then by speedup, then by share.

    What is not worthwhile comes after all that is, however little effort it takes.
    `summary`: a checked performance_summary.json; what its profilers did not record is None in the
    result. `ablation`: ablation_evidence.find_evidence(summary), or nothing.
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


def bottleneck_lines(bottlenecks: Sequence[Bottleneck], ablation: Evidence | None) -> list[str]:
    """A row a category, most urgent first, and the ground of each number."""
    header = ("priority", "category", "share", "difficulty", "assumed factor", "expected")
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
    source = "Measured speedups: scripts/ablation has not run on this device at this shape."
    if ablation:
        source = (
            f"Measured speedups are of the whole step, from `{shown_path(ablation.file)}` at "
            f"{ablation.point.title}; `~`: no difference was shown."
        )
    return [
        *markdown_table((*header, "upper bound", "measured", "worksheet"), rows),
        "",
        "Expected: Amdahl's law, 1 / (1 - p + p / f) with the share p and the assumed factor f; "
        "upper bound: 1 / (1 - p). Categories overlap (softmax is a part of attention, launches of "
        "everything): neither add shares nor multiply speedups. A measured speedup above the upper "
        "bound comes from what else its switch changes.",
        "",
        source,
        "",
        *(
            f"- {found.category}: share of {found.share_definition}; factor: {found.factor_reason}"
            + (f" (`{'`, `'.join(found.keys)}`)." if found.keys else ".")
            for found in bottlenecks
        ),
    ]


def matrix_lines(bottlenecks: Sequence[Bottleneck]) -> list[str]:
    """The four quadrants, each with its categories."""

    def names(quadrant: int) -> str:
        inside = [found for found in bottlenecks if found.quadrant == quadrant]
        return ", ".join(f"{b.category} ({speedup(b.best_known_speedup)})" for b in inside)

    unknown = [found.category for found in bottlenecks if found.quadrant is None]
    return [
        f"High impact: {HIGH_IMPACT:.1f}x or more, measured where it was, else expected, and never "
        "above the upper bound. Low effort: difficulty Low or Low-Medium.",
        "",
        *(f"- {title}: {names(number) or 'none'}" for number, title in QUADRANTS.items()),
        *([f"- Not measured: {', '.join(unknown)}"] if unknown else []),
    ]
