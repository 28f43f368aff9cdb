"""Every projection of a run: problem sizes over interconnects, and what has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.data.programs import problem_sizes
from tinyllama_tools.scaling.analysis import Analysis
from tinyllama_tools.scaling.gradient_buckets import MIB, buckets_of
from tinyllama_tools.scaling.interconnects import Interconnect
from tinyllama_tools.scaling.local_step import LocalStep
from tinyllama_tools.scaling.local_step_sources import LocalSteps, local_steps
from tinyllama_tools.scaling.projection import GLOBAL_BATCH, ProjectedStep, Setting, project


@dataclass(frozen=True)
class Projections:
    """`steps`: a row for each number of devices. `local`: the local steps they start from.
    `missing`: sizes without a local step, and why. `overlap`: the share hidden of
    the link measured here, None without."""

    steps: Sequence[ProjectedStep] = ()
    local: Mapping[str, LocalStep] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    interconnects: Sequence[Interconnect] = ()
    overlap: float | None = None
    global_batch: int = GLOBAL_BATCH


def _buckets(analysis: Analysis, step: LocalStep) -> list[float]:
    """The program's own of the size that was run; by its rule of the others."""
    name = step.name
    for result in reversed(analysis.results):
        run = result.name
        if run is not None and (run.size, run.dtype) == (name.size, name.dtype):
            return list(result.distributed["bucket_bytes"])
    limit = MIB * analysis.results[-1].distributed["bucket_MiB"]
    return [float(size) for size in buckets_of(problem_sizes()[name.size], name.dtype, limit)]


def projections_of(
    analysis: Analysis,
    given: Sequence[Path],
    interconnects: Sequence[Interconnect],
    program: Path,
    global_batch: int = GLOBAL_BATCH,
) -> Projections:
    """Over the link measured here, where there is one, and over `interconnects`.

    `given`: --local-step. BadInputError for a file of those that cannot be used.
    """
    name = next((one.name for one in analysis.results if one.name is not None), None)
    if name is None:
        why = "no data-parallel step was measured, so dtype and variant of a projection are open"
        return Projections(missing=dict.fromkeys(problem_sizes(), why))
    found: LocalSteps = local_steps(analysis.results, given, program, name.dtype, name.variant)
    own = analysis.measured_interconnect()
    links = [*([own] if own is not None else []), *interconnects]
    known = {s: step for s, step in found.steps.items() if s in problem_sizes() or s == name.size}
    # what was hidden of one link says nothing of others
    hidden = analysis.overlap_share
    steps = [
        projected
        for step in known.values()
        for link in links
        for projected in project(
            Setting(step, _buckets(analysis, step), link, hidden if link is own else None),
            global_batch=global_batch,
        )
    ]
    return Projections(steps, known, found.missing, links, analysis.overlap_share, global_batch)
