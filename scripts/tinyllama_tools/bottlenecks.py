"""Exercise 3's six bottlenecks: what share each has, and what removing it can bring.

The expected speedup is Amdahl's: with a share p of the step that becomes f times as fast, the step
becomes 1 / (1 - p + p / f) times as fast, and at most 1 / (1 - p). p is measured; f is assumed,
with the reason beside it. The categories overlap (softmax is a part of attention, launches are a
part of everything), so neither shares nor speedups may be added up or multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.ablation_evidence import Evidence, MeasuredSpeedup
from tinyllama_tools.ablation_rows import shows_difference
from tinyllama_tools.bottleneck_shares import (
    Assumption,
    Share,
    attention_factor,
    attention_share,
    fragmentation_factor,
    fragmentation_share,
    launch_factor,
    launch_share,
    qkv_factor,
    qkv_share,
    softmax_factor,
    softmax_share,
    swiglu_factor,
    swiglu_share,
)
from tinyllama_tools.core.app import Json

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
