"""Everything that follows from the results of a scaling run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.names import ALL_REDUCE
from tinyllama_tools.scaling.alpha_beta import AlphaBeta, fit_collectives
from tinyllama_tools.scaling.collective_models import link_of_ring
from tinyllama_tools.scaling.efficiency import ScalingPoint, points_of
from tinyllama_tools.scaling.interconnects import Interconnect, SourcedLink
from tinyllama_tools.scaling.projection_check import ProjectionCheck, check_projection
from tinyllama_tools.scaling.scaling_result import (
    OVERLAP,
    CollectiveRow,
    ScalingResult,
)
from tinyllama_tools.scaling.waterfall import LossWaterfall, waterfall_of

MEASURED_LINK = "measured"
# what must not differ between the worlds of one run
SAME = ("device", "git_commit", "git_dirty", "torch_version", "threads", "seed")
SAME_RANKS = ("backend", "bucket_MiB", "scaling", "gradient_bytes")
# of a world of one, which talks to nobody
NO_BACKEND = "none"


@dataclass(frozen=True)
class Analysis:
    """`results` in the order of ranks. `refused`: fits that the data does not support, with the
    reason. `failed`: rows without a figure. `warnings`: what to know before any number."""

    results: tuple[ScalingResult, ...]
    points: tuple[ScalingPoint, ...]
    waterfalls: tuple[LossWaterfall, ...]
    fits: tuple[AlphaBeta, ...]
    checks: tuple[ProjectionCheck, ...]
    refused: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def context(self) -> Mapping[str, Any]:
        """Of the smallest world."""
        return self.results[0].context

    @property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """Of all worlds."""
        return tuple(row for result in self.results for row in result.collectives)

    @property
    def overlap_share(self) -> float | None:
        """What a projection may hide of all all-reduces, 0 to 1: of the largest world that says how
        much of them, timed by themselves, does not make its step longer."""
        known = [p.hidden for p in self.points if p.mode == OVERLAP and p.hidden is not None]
        return min(1.0, max(0.0, known[-1].median / 100)) if known else None

    def measured_interconnect(self) -> Interconnect | None:
        """What explains the all-reduce of the largest world as a ring; None without a fit."""
        found = [fit for fit in self.fits if fit.operation == ALL_REDUCE]
        if not found:
            return None
        fit = max(found, key=lambda one: one.ranks)
        link = link_of_ring(fit.alpha, fit.bandwidth, fit.ranks)
        backend = self.results[-1].distributed["backend"]
        source = (
            f"measured here: all_reduce of {fit.ranks} ranks over {backend}, taken as a ring "
            f"({fit.sizes} sizes)"
        )
        title = f"the link measured here between {fit.ranks} ranks ({backend})"
        network = SourcedLink(backend, link, source, source, is_assumed=False)
        return Interconnect(MEASURED_LINK, title, 1, network)


def _differences(results: Sequence[ScalingResult]) -> list[str]:
    first = results[0]
    found = []
    for other in results[1:]:
        pairs = [(k, first.context.get(k), other.context.get(k)) for k in SAME]
        pairs += [(k, first.distributed.get(k), other.distributed.get(k)) for k in SAME_RANKS]
        for key, here, there in pairs:
            if here != there and not (key == "backend" and NO_BACKEND in {here, there}):
                found.append(f"{other.path.name}: {key} is {there}, in {first.path.name} {here}")
    return found


def _other_steps(results: Sequence[ScalingResult]) -> list[str]:
    """Steps of another size, type, variant or sequence have no place on one curve."""
    names = [(r, r.name) for r in results if r.name is not None]
    axes = {(n.size, n.dtype, n.variant, n.seq) for _, n in names}
    if len(axes) < 2:
        return []
    listed = "; ".join(f"{result.path.name}: {name}" for result, name in names)
    raise BadInputError(
        f"results of different steps ({listed}): a scaling run is of one size, dtype, variant and "
        "sequence; name them one at a time"
    )


def _same_ranks(ordered: Sequence[ScalingResult]) -> None:
    """A number of ranks has one place on a curve."""
    for one, other in itertools.pairwise(ordered):
        if one.ranks == other.ranks:
            raise BadInputError(
                f"{one.path} and {other.path} are both of {one.ranks} ranks: a scaling run has "
                "each number of ranks once; put them into folders of their own"
            )


def analyse(results: Sequence[ScalingResult]) -> Analysis:
    """BadInputError where there are none, where they are of different steps, or where two are of as
    many ranks."""
    if not results:
        raise BadInputError("no result of tiny_llama_scaling; measure: scripts/scaling")
    ordered = tuple(sorted(results, key=lambda one: one.ranks))
    _other_steps(ordered)
    _same_ranks(ordered)
    fits, refused = fit_collectives([row for one in ordered for row in one.collectives])
    return Analysis(
        ordered,
        tuple(point for one in ordered for point in points_of(one)),
        tuple(waterfall_of(one) for one in ordered if one.ranks > 1 and one.step is not None),
        tuple(fits),
        tuple(check_projection(ordered, fits)),
        tuple(refused),
        {f"{name} ({one.path.name})": why for one in ordered for name, why in one.failed.items()},
        tuple(_differences(ordered)),
    )
