"""Numbers that exercise 3's plan and questions share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.ablation_evidence import Evidence
from tinyllama_tools.ablation_files import read_study
from tinyllama_tools.bottlenecks import Bottleneck
from tinyllama_tools.core.app import Json
from tinyllama_tools.exercise_1_rules import component_percent
from tinyllama_tools.exercise_runs import MeasuredRun, median_step_seconds
from tinyllama_tools.models.roofline import roofline_point
from tinyllama_tools.worksheet_rules import ratio

QKV, ATTENTION, SWIGLU = "QKV projections", "Attention computation", "SwiGLU gate/up"
LAUNCHES = "Kernel launch overhead"
# They share no work, so their savings add up.
DISJOINT = (QKV, ATTENTION, SWIGLU)
FLOP_GROUPS = ("attention/qkv_proj", "attention/core", "ffn")
MEMORY_OPTIMIZATION = "Memory optimization (bandwidth)"


def by_category(ranking: Sequence[Bottleneck]) -> dict[str, Bottleneck]:
    """The six by name."""
    return {found.category: found for found in ranking}


def speedup_together(ranking: Sequence[Bottleneck], names: Sequence[str]) -> float | None:
    """Amdahl over categories that share no work; None where none of them has share and factor."""
    found = [by_category(ranking)[name] for name in names]
    known = [
        ((b.share_percent or 0) / 100, b.factor)
        for b in found
        if b.share_percent is not None and b.factor
    ]
    if not known:
        return None
    left = 1 - sum(share - share / factor for share, factor in known)
    return 1 / left if left > 0 else None


def best_known_together(ranking: Sequence[Bottleneck], names: Sequence[str]) -> float | None:
    """The same from each category's best known speedup, measured where it was; what slows the step
    down is left out of a plan. None where nothing is known of any."""
    speeds = [by_category(ranking)[name].best_known_speedup for name in names]
    known = [speed for speed in speeds if speed]
    left = 1 - sum(max(0.0, 1 - 1 / speed) for speed in known)
    return 1 / left if known and left > 0 else None


def run_speedup(before: MeasuredRun, after: MeasuredRun) -> float | None:
    """Median time of a plain step over the other's."""
    return ratio(median_step_seconds(before)[0], median_step_seconds(after)[0])


def compile_speedup(evidence: Evidence | None) -> float | None:
    """The best of torch.compile's over the eager baseline, from the ablation's file."""
    if evidence is None:
        return None
    peers = read_study(evidence.file).peers
    found = [
        row["speedup"]["median"]
        for row in peers
        if row.get("point") == evidence.point.title and row.get("speedup")
    ]
    return max(found, default=None)


def evidence_speedup(evidence: Evidence | None, switch: str) -> float | None:
    """Median over the ablation's turns."""
    return evidence.speedups[switch].median if evidence and switch in evidence else None


def memory_bound_percent(summary: Json, left_out: Sequence[str] = ()) -> float | None:
    """Share of the components whose roofline is memory's; `left_out`: paths counted elsewhere."""
    operators, flops = summary.get("operators"), summary.get("flops")
    if not operators or not flops:
        return None
    points = flops["roofline_data"]["points"]

    def is_bound(name: str) -> bool:
        # the optimizer moves parameters and multiplies nothing, whether or not it has a point
        point = roofline_point(points, name)
        return name == "optimizer" or (point is not None and point["bound"] == "memory")

    def is_left_out(name: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for path in left_out)

    return sum(
        c["percent"]
        for c in operators["components"]
        if is_bound(c["name"]) and not is_left_out(c["name"])
    )


def bottleneck_shares(summary: Json) -> dict[str, float | None]:
    """The five suspects of question 1, in percent of the recorded work."""
    operators = summary.get("operators")
    if not operators:
        return dict.fromkeys(
            (
                "QKV projection operations",
                "Attention score computation",
                "Feed-forward network",
                "Kernel launch overhead",
                "Memory bandwidth",
            )
        )
    components = operators["components"]
    return {
        "QKV projection operations": component_percent(components, FLOP_GROUPS[0]),
        "Attention score computation": component_percent(components, FLOP_GROUPS[1]),
        "Feed-forward network": component_percent(components, FLOP_GROUPS[2]),
        "Kernel launch overhead": operators["launch_overhead_percent"],
        "Memory bandwidth": memory_bound_percent(summary, FLOP_GROUPS),
    }


@dataclass(frozen=True)
class Bounds:
    """What the step's time is bound by, in percent that add up to 100 where all is known."""

    memory: float | None
    compute: float | None
    overhead: float | None

    def shares(self) -> Mapping[str, float | None]:
        """By the labels of question 3."""
        return {
            "Memory-bound (optimize data movement)": self.memory,
            "Compute-bound (optimize kernels)": self.compute,
            "Overhead-bound (optimize launches)": self.overhead,
        }


def bounds(summary: Json) -> Bounds:
    """Launches first; what is left divides among components by their side of the ridge."""
    memory = memory_bound_percent(summary)
    overhead = (summary.get("operators") or {}).get("launch_overhead_percent")
    if memory is None or overhead is None:
        return Bounds(None, None, overhead)
    overhead = min(overhead, 100.0)
    left = (100 - overhead) / 100
    return Bounds(left * memory, left * max(0.0, 100 - memory), overhead)


def optimization_gains(
    ranking: Sequence[Bottleneck], bandwidth: float | None, precision: float | None
) -> dict[str, float | None]:
    """Speedup of the step by each kind of optimization of question 2."""
    found = by_category(ranking)
    return {
        "Kernel fusion (reduce launches)": best_known_together(ranking, (QKV, SWIGLU)),
        MEMORY_OPTIMIZATION: bandwidth,
        "Algorithmic optimization (attention)": found[ATTENTION].best_known_speedup,
        "Precision optimization (mixed precision)": precision,
    }
