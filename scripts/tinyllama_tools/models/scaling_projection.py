"""What more devices would give: step time and efficiency from a local step and a model of links.

A projection, not a measurement. With L the local step and C the all-reduces of all buckets, a step
takes from L + C (nothing hidden) to L + max(C_last, C - b L): b is the share of the local step that
is backward, in which buckets may travel, and C_last the last bucket, which is ready only when the
backward ends. Where overlap was measured, T between the two has that share of C hidden which was
hidden of the sums timed by themselves, though never more than can be.
    weak:   every device has a batch of its own,  efficiency = L / T
    strong: the devices share G samples,          efficiency = L(G) / (N T)
Imbalance, slower local work, other traffic, start of operations and input are in no figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tinyllama_tools.core.app import SUITE_FILE, Json, problem_sizes, read_json
from tinyllama_tools.data.names import ALONE, BASELINE, STRONG, WEAK, CaseName
from tinyllama_tools.data.programs import CaseCost, SuiteError, ask_costs, read_costs
from tinyllama_tools.data.ranks import (
    ALONE_GLOBAL,
    ScalingResult,
    read_scaling_result,
    result_files,
)
from tinyllama_tools.data.results import ResultSet, read_result_set
from tinyllama_tools.data.studies import COSTS, RANK_FILES, is_scaling_result, rounds_of
from tinyllama_tools.models.collectives import MIB, Interconnect, buckets_of
from tinyllama_tools.models.data_parallel import (
    BACKWARD_SHARE,
    RANKS,
    Analysis,
    communication_of,
)
from tinyllama_tools.models.prediction import RatesRefusedError, calibrate_rates, predict_steps

PROJECTION = "projection"
# kinds of local steps
MEASURED, PREDICTED = "measured", "predicted"


@dataclass(frozen=True)
class LocalStep:
    """`seconds` at the batch of `name`, between `low` and `high` where it is PREDICTED, which
    `range_words` names. `source`: the file and row, or what the prediction rests on.
    `seconds_by_batch`: other batches of the same step that were measured or predicted."""

    name: CaseName
    seconds: float
    low: float
    high: float
    kind: str
    source: str
    range_words: str = ""
    seconds_by_batch: Mapping[int, float] = field(default_factory=dict)

    @cached_property
    def _line(self) -> tuple[float, float] | None:
        """Constant and seconds a sample, by least squares of relative errors over the batches up to
        this one; None where there is one batch only, or the line would go below 0."""
        known = sorted({**self.seconds_by_batch, self.name.batch: self.seconds}.items())
        points = [(b, s) for b, s in known if b <= self.name.batch]
        if len(points) < 2:
            points = known
        if len(points) < 2:
            return None
        batches, seconds = np.array(points, dtype=np.float64).T
        slope, constant = np.polyfit(batches, seconds, 1, w=1 / seconds)
        return (float(constant), float(slope)) if constant >= 0 and slope > 0 else None

    @property
    def knows_small_batches(self) -> bool:
        """Whether the cost of a small batch is known; otherwise time is taken as proportional to
        the samples, which loses nothing with small batches."""
        return self._line is not None

    def seconds_at(self, batch: float) -> float:
        """Of a step over so many samples of one device. More than the step's own batch are done one
        batch after the other (gradient accumulation)."""
        if batch >= self.name.batch or self._line is None:
            return self.seconds * batch / self.name.batch
        constant, slope = self._line
        scale = self.seconds / (constant + slope * self.name.batch)
        return scale * (constant + slope * batch)

    def as_json(self) -> Json:
        """A row of scaling.json."""
        batches = {str(batch): seconds for batch, seconds in self.seconds_by_batch.items()}
        known = {"name": str(self.name), "knows_small_batches": self.knows_small_batches}
        return asdict(self) | known | {"seconds_by_batch": batches}


def _by_size(rows: Iterable[tuple[CaseName, float, str]]) -> dict[str, LocalStep]:
    """Of measured steps with their seconds and source, the preferred one of a size first; others at
    its sequence are further batches."""
    found: dict[str, LocalStep] = {}
    for name, seconds, source in rows:
        step = LocalStep(name, *[seconds] * 3, MEASURED, source, seconds_by_batch={})
        first = found.setdefault(name.size, step)
        if name.seq == first.name.seq and name.batch != first.name.batch:
            further = {name.batch: seconds, **first.seconds_by_batch}
            found[name.size] = replace(first, seconds_by_batch=further)
    return found


def steps_alone(results: Iterable[ScalingResult], dtype: str, variant: str) -> dict[str, LocalStep]:
    """Of the ranks that computed alone, by size. The world with the fewest ranks first, whose rank
    alone had no neighbours that wait."""
    rows = [
        # the same step as a case of one process
        (replace(row.name, ranks=None, mode=""), row.median_seconds, f"{row.name}, {one.path.name}")
        for one in sorted(results, key=lambda one: one.ranks)
        for row in (one.steps.get(ALONE), one.steps.get(ALONE_GLOBAL))
        if row is not None and (row.name.dtype, row.name.variant) == (dtype, variant)
    ]
    return _by_size(rows)


def _is_own(name: CaseName) -> bool:
    """Whether the step is at its size's own batch and sequence."""
    of = problem_sizes().get(name.size, {})
    return (name.batch, name.seq) == (of.get("batch"), of.get("seq"))


def steps_of_suite(results: ResultSet, dtype: str, variant: str) -> dict[str, LocalStep]:
    """Of one dtype and variant, by size: at the size's own batch and sequence, else at the largest
    batch of its longest sequence."""
    files = ", ".join(path.name for path in results.paths)
    rows = [
        (case.name, case.median_seconds, f"{case.name}, {files}")
        for case in results.cases.values()
        if case.name.is_training_step and (case.name.dtype, case.name.variant) == (dtype, variant)
    ]
    return _by_size(sorted(rows, key=lambda r: (_is_own(r[0]), r[0].seq, r[0].batch))[::-1])


class StepSource(NamedTuple):
    """A result that local steps are taken from: of several ranks, or of the suite. `costs`: of the
    study's own file; None where there is none."""

    path: Path
    results: Sequence[ScalingResult] | ResultSet
    costs: Sequence[CaseCost] | None = None


def read_step_source(path: Path) -> StepSource:
    """A result of the suite or of tiny_llama_scaling, or a folder of those. BadInputError for one
    that cannot be used, which is to be said before hours of measuring."""
    files, costs = [path], None
    if path.is_dir():
        is_of_ranks = any(path.glob(RANK_FILES))
        files = result_files(path) if is_of_ranks else rounds_of(path) or [path / SUITE_FILE]
        if (path / COSTS).exists():
            costs = read_costs(path / COSTS)
    if is_scaling_result(read_json(files[0])[0]):
        return StepSource(path, [read_scaling_result(file) for file in files])
    return StepSource(path, read_result_set(files), costs)


def _predicted(
    source: StepSource, program: Path, dtype: str, variant: str
) -> tuple[dict[str, LocalStep], str]:
    """Steps of every size at its own batch and sequence, from the rates of what was measured, and
    why there are none. `program`: asked for costs that the source has not."""
    try:
        costs = source.costs
        if costs is None:
            variants = ",".join(dict.fromkeys((BASELINE, variant)))
            sizes = ",".join(problem_sizes())
            asked = [f"--sizes={sizes}", f"--dtypes={dtype}", f"--variants={variants}"]
            costs = ask_costs(program, asked)
        found, _ = predict_steps(calibrate_rates(source.results, dtype, variant), costs)
    except SuiteError as error:
        return {}, f"the costs of steps that were not run cannot be asked for: {error}"
    except RatesRefusedError as error:
        return {}, str(error)
    steps = {
        one.name.size: LocalStep(
            *(one.name, one.seconds, one.low, one.high, PREDICTED, one.basis, one.range_words)
        )
        for one in found
        if _is_own(one.name)
    }
    return steps, "" if steps else "the costs have no step at a size's own batch and sequence"


REMEDY = (
    "measure it: scripts/bench --components full_step --sizes SIZE, then --local-step its "
    "results.json; or give a result with every component of smaller sizes to predict it from"
)


def local_steps(
    results: Sequence[ScalingResult],
    sources: Iterable[StepSource],
    program: Path,
    dtype: str,
    variant: str,
) -> tuple[dict[str, LocalStep], dict[str, str]]:
    """Of every size: a measured one of the sources, then a rank's alone of these results, then a
    prediction; and why the other problem sizes have none.

    `program`: tiny_llama_bench, which is asked for costs that a source has not.
    """
    measured: dict[str, LocalStep] = {}
    predicted: dict[str, LocalStep] = {}
    reasons: list[str] = []
    for source in sources:
        if isinstance(source.results, ResultSet):
            own = steps_of_suite(source.results, dtype, variant)
            more, reason = _predicted(source, program, dtype, variant)
            predicted = {**more, **predicted}
        else:
            own = steps_alone(source.results, dtype, variant)
            reason = "" if own else f"no {variant} step in {dtype} of a rank alone"
        measured = {**own, **measured}
        reasons += [f"{source.path}: {reason}"] if reason else []
    found = {**predicted, **steps_alone(results, dtype, variant), **measured}
    why = "; ".join(reasons) or REMEDY
    ordered = {size: found[size] for size in (*problem_sizes(), *found) if size in found}
    return ordered, {size: why for size in problem_sizes() if size not in found}


@dataclass(frozen=True)
class Setting:
    """What one projection is of: a size's step and buckets, over an interconnect. `overlap`: share
    of the communication that is hidden, 0 to 1, where that is measured."""

    step: LocalStep
    buckets: Sequence[float]
    interconnect: Interconnect
    overlap: float | None = None

    def at(self, ranks: int, batch: float, scaling: str) -> Json:
        """A row of scaling.json: seconds from as much hidden as can be to nothing, and between them
        with the measured share; efficiencies in percent, low with high seconds. `batch`: of each
        device."""
        local = self.step.seconds_at(batch)
        of = communication_of(ranks, self.buckets, self.interconnect)
        # of several batches one after the other, only the last one's backward has all gradients
        backward = BACKWARD_SHARE * self.step.seconds_at(min(batch, self.step.name.batch))
        least, between = of.exposed(backward), None
        if self.overlap is not None:
            between = local + max(least, (1 - self.overlap) * of.seconds)
        ideal = local if scaling == WEAK else self.step.seconds_at(batch * ranks) / ranks
        return {
            "size": self.step.name.size,
            "interconnect": self.interconnect.name,
            "scaling": scaling,
            "ranks": ranks,
            "batch": batch,
            "local_seconds": local,
            "communication_seconds": of.seconds,
            "algorithm": of.algorithm,
            "seconds_low": local + least,
            "seconds_high": local + of.seconds,
            "seconds_between": between,
            "efficiency_low": 100 * ideal / (local + of.seconds),
            "efficiency_high": 100 * ideal / (local + least),
            "efficiency_between": 100 * ideal / between if between is not None else None,
            "local_kind": self.step.kind,
            "kind": PROJECTION,
        }

    def project(self, global_batch: int) -> list[Json]:
        """Weak at the step's own batch; strong as far as every device has at least one sample."""
        weak = [self.at(ranks, self.step.name.batch, WEAK) for ranks in RANKS]
        shared = (ranks for ranks in RANKS if ranks <= global_batch)
        return weak + [self.at(ranks, global_batch / ranks, STRONG) for ranks in shared]


NO_STEP = "no data-parallel step was measured, so dtype and variant of a projection are open"


def projection_of(
    analysis: Analysis,
    sources: Iterable[StepSource],
    program: Path,
    interconnects: Sequence[Interconnect],
    global_batch: int,
) -> Json:
    """`projection` of scaling.json: over the link measured here, where there is one, and over
    `interconnects`. `sources`, `program`: as of local_steps()."""
    name, own, sizes = analysis.name, analysis.interconnect, problem_sizes()
    links = [*([own] if own is not None else []), *interconnects]
    local: dict[str, LocalStep] = {}
    missing = dict.fromkeys(sizes, NO_STEP)
    if name is not None:
        local, missing = local_steps(analysis.results, sources, program, name.dtype, name.variant)
    run, known, rows = analysis.results[-1].distributed, [], []
    for size, step in local.items():
        # buckets of a model of the user's own are known of what was run alone
        if size == name.size:
            buckets = run["bucket_bytes"]
        elif size in sizes:
            buckets = buckets_of(sizes[size], name.dtype, MIB * run["bucket_MiB"])
        else:
            continue
        known.append(step.as_json())
        for link in links:
            # what was hidden of one link says nothing of others
            overlap = analysis.overlap_share if link is own else None
            rows += Setting(step, buckets, link, overlap).project(global_batch)
    return {
        "global_batch": global_batch,
        "overlap_share": analysis.overlap_share,
        "local_steps": known,
        "interconnects": [asdict(one) for one in links],
        "missing": missing,
        "steps": rows,
    }
