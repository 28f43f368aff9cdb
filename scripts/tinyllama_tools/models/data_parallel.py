"""What a data-parallel run shows: efficiencies, and where the rest of an ideal step went.
docs/distributed.md defines every figure.

Every figure is a median over rounds, with the exact interval of a median. Losses are percent of a
step; in each round they add up to 100 with the efficiency, and so their medians nearly do.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.data.machine import PLUGINS, SAME_DEVICE, first_difference
from tinyllama_tools.data.names import (
    COMMUNICATION,
    GLOO,
    NO_OVERLAP,
    OVERLAP,
    STEPS,
    STRONG,
    TENSOR,
    WEAK,
    ZERO3,
    CaseName,
)
from tinyllama_tools.data.rank_results import CPU_SECONDS, SECONDS, Row, ScalingResult
from tinyllama_tools.models.collectives import AlphaBeta, fit_collectives
from tinyllama_tools.stats.rank_tests import Estimate, median_interval


@dataclass(frozen=True)
class ScalingPoint:
    """One number of ranks. Efficiencies and shares in percent; None where a row that they need was
    not measured. `communication`: by how much the step is longer than what the slowest rank
    computes without any, of the step. `busy`: how much of the all-reduce, timed by itself, rank 0's
    processors work for it; where a rank has no processor to spare, only the rest of it can be
    hidden. None on a GPU, and for steps with other collectives."""

    ranks: int
    mode: str
    batch: int
    seconds: Estimate
    samples_per_second: float
    efficiency: Estimate | None
    speedup: Estimate | None
    communication: Estimate | None
    overlap: Estimate | None
    busy: Estimate | None


def over_rounds(values: Iterable[float]) -> Estimate | None:
    """Their median; None without a value."""
    found = list(values)
    return Estimate(statistics.median(found), median_interval(found), len(found)) if found else None


def points_of(result: ScalingResult) -> Iterator[ScalingPoint]:
    """One for each way of a step of all ranks that was measured, the main one first. Shares are
    computed by the program, in each round."""
    # with one rank, strong scaling is weak scaling
    kind, busy = result.scaling if result.ranks > 1 else WEAK, None
    if COMMUNICATION in result.steps and result.distributed["backend"] == GLOO:
        sums = result.steps[COMMUNICATION]
        seconds, cpu = sums.figures(SECONDS), sums.figures(CPU_SECONDS)
        busy = over_rounds(100 * cpu[n] / time for n, time in seconds.items() if n in cpu)
    for mode in (mode for mode in STEPS if mode in result.steps):
        row = result.steps[mode]
        batch, seconds = row.name.batch, over_rounds(row.figures(SECONDS).values())
        # one batch for all ranks
        is_joint = mode == TENSOR
        efficiency = row.figures(f"{STRONG if is_joint else kind}_efficiency_percent").values()
        yield ScalingPoint(
            result.ranks,
            mode,
            batch,
            seconds,
            (1 if is_joint else result.ranks) * batch / seconds.median,
            over_rounds(efficiency),
            over_rounds(result.ranks * percent / 100 for percent in efficiency),
            over_rounds(row.figures("loss_communication_percent").values()),
            over_rounds(row.figures("overlap_percent").values())
            if mode in (OVERLAP, ZERO3)
            else None,
            busy if mode in (OVERLAP, NO_OVERLAP) else None,
        )


# counters of a step, with their names in tables
SMALL_BATCH = "loss_small_batch_percent"
EFFICIENCY = "efficiency"
LOSSES = {
    SMALL_BATCH: "small batch",
    "loss_slower_local_percent": "slower local work",
    "loss_imbalance_percent": "imbalance between ranks",
    "loss_communication_percent": "communication",
}


def losses_of(result: ScalingResult) -> Iterator[Json]:
    """Efficiency and losses of the data-parallel step, where several ranks measured all of them:
    `percent` of the step, median over rounds; `low`, `high`: None after one round."""
    if result.ranks == 1 or result.step is None:
        return
    names = {f"{result.scaling}_efficiency_percent": EFFICIENCY, **LOSSES}
    if result.scaling != STRONG:
        del names[SMALL_BATCH]
    counters = {name: result.step.figures(key) for key, name in names.items()}
    for name, rounds in counters.items() if all(counters.values()) else ():
        found = over_rounds(rounds.values())
        part = {"ranks": result.ranks, "name": name, "percent": found.median}
        yield part | {end: getattr(found.interval, end, None) for end in ("low", "high")}


@dataclass(frozen=True)
class Analysis:
    """`results` in the order of ranks. `refused`: fits that the data does not support, with the
    reason. `failed`: why rows have no figure. `warnings`: what differs between numbers of ranks."""

    results: tuple[ScalingResult, ...]
    points: tuple[ScalingPoint, ...]
    losses: tuple[Json, ...]
    fits: tuple[AlphaBeta, ...]
    refused: tuple[str, ...]
    failed: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def name(self) -> CaseName | None:
        """That of a step; None where only collectives were measured."""
        return next((one.name for one in self.results if one.name is not None), None)

    @property
    def device(self) -> str:
        """Its name; empty where it is not known."""
        return (self.results[0].context.get("device") or {}).get("name", "")

    @property
    def collectives(self) -> list[Row]:
        """At all numbers of ranks."""
        return [row for result in self.results for row in result.collectives]


# what should be alike at all numbers of ranks of a run
SAME = (
    *("device", "git_commit", "git_dirty", "torch_version", "threads", "seed", PLUGINS),
    *("distributed.bucket_MiB", "distributed.scaling", "distributed.gradient_bytes"),
    "distributed.compress",
)


def _differences(ordered: Sequence[ScalingResult]) -> Iterator[str]:
    first = ordered[0]
    for other in ordered[1:]:
        if found := first_difference(first.context, other.context, SAME):
            name, here, there = found
            yield f"{other.path.name}: {name} is {there}, in {first.path.name} {here}"


def _refuse_no_run(ordered: Sequence[ScalingResult]) -> None:
    """BadInputError for results of different devices or steps, or twice of one number of ranks:
    they make no curve."""
    first = ordered[0]
    for other in ordered[1:]:
        if found := first_difference(first.context, other.context, SAME_DEVICE):
            name, here, there = found
            raise BadInputError(
                f"{other.path}: {name} is {there!r}, in {first.path.name} it is {here!r}: a "
                "scaling run is of one device; put the others into folders of their own"
            )
    names = [one.name for one in ordered if one.name is not None]
    has_one_step = len({(name.size, name.dtype, name.variant, name.seq) for name in names}) <= 1
    if not has_one_step or len({one.ranks for one in ordered}) < len(ordered):
        listed = "; ".join(f"{one.path}: {one.ranks} ranks, {one.name}" for one in ordered)
        raise BadInputError(
            f"results of different steps, or twice of as many ranks ({listed}): a scaling run is "
            "of one size, dtype, variant and sequence, and has each number of ranks once; put the "
            "others into folders of their own"
        )


def analyse(results: Sequence[ScalingResult]) -> Analysis:
    """BadInputError where the results, one or more, are not of one run."""
    ordered = sorted(results, key=lambda one: one.ranks)
    _refuse_no_run(ordered)
    fits, refused = fit_collectives([row for one in ordered for row in one.collectives])
    warnings = tuple(_differences(ordered))
    return Analysis(
        tuple(ordered),
        tuple(point for one in ordered for point in points_of(one)),
        tuple(part for one in ordered for part in losses_of(one)),
        tuple(fits),
        tuple(refused),
        {f"{name} ({one.path.name})": why for one in ordered for name, why in one.failed.items()},
        warnings,
    )
