"""Steps of one rank of every problem size, from which data-parallel steps are projected: measured,
of a rank alone, or predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from tinyllama_tools.core.app import SUITE_FILE, problem_sizes, read_json
from tinyllama_tools.data.names import ALONE, CaseName
from tinyllama_tools.data.programs import CaseCost, SuiteError, ask_costs, read_case_costs
from tinyllama_tools.data.ranks import ScalingResult, read_scaling_result, result_files
from tinyllama_tools.data.results import ResultSet, read_result_set
from tinyllama_tools.data.studies import COSTS, RANK_FILES, is_scaling_result, rounds_of
from tinyllama_tools.models.prediction import (
    RatesRefusedError,
    calibrate_rates,
    predict_steps,
)
from tinyllama_tools.models.scaling_projection import MEASURED, PREDICTED


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
        known = {**self.seconds_by_batch, self.name.batch: self.seconds}
        points = sorted((b, s) for b, s in known.items() if b <= self.name.batch)
        if len(points) < 2:
            points = sorted(known.items())
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


BASELINE = "baseline"
REMEDY = (
    "measure it: scripts/bench --components full_step --sizes SIZE, then --local-step its "
    "results.json; or give a result with every component of smaller sizes to predict it from"
)


@dataclass(frozen=True)
class LocalSteps:
    """`steps` by size; `missing`: the reason for each size that has none."""

    steps: Mapping[str, LocalStep]
    missing: Mapping[str, str]


def steps_alone(results: Sequence[ScalingResult]) -> dict[str, LocalStep]:
    """Of the ranks that computed alone, by size; the world with the fewest ranks first, whose rank
    alone had no neighbours that wait."""
    found: dict[str, LocalStep] = {}
    for result in sorted(results, key=lambda one: one.ranks):
        row = result.steps.get(ALONE)
        if row is None:
            continue
        rows = [one for one in (row, result.alone_global) if one is not None]
        batches = {one.name.batch: one.median_seconds for one in rows}
        if row.name.size in found:
            first = found[row.name.size]
            others = {b: s for b, s in batches.items() if b != first.name.batch}
            others |= first.seconds_by_batch
            found[row.name.size] = replace(first, seconds_by_batch=others)
            continue
        seconds = batches.pop(row.name.batch)
        source = f"{row.name}, {result.path.name}"
        # the same step as a case of one process
        name = replace(row.name, ranks=None, mode="")
        found[row.name.size] = LocalStep(
            name, seconds, seconds, seconds, MEASURED, source, seconds_by_batch=batches
        )
    return found


def steps_of_suite(results: ResultSet, dtype: str, variant: str) -> dict[str, LocalStep]:
    """Of one dtype and variant, by size: at the size's own batch and sequence, else at the largest
    batch of its longest sequence."""
    sizes = problem_sizes()
    by_size: dict[str, list[tuple[CaseName, float]]] = {}
    for case in results.cases.values():
        name = case.name
        if name.is_training_step and (name.dtype, name.variant) == (dtype, variant):
            by_size.setdefault(name.size, []).append((name, case.median_seconds))
    found = {}
    for size, cases in by_size.items():
        own = (sizes[size]["batch"], sizes[size]["seq"]) if size in sizes else None
        name, seconds = max(
            cases,
            key=lambda case: ((case[0].batch, case[0].seq) == own, case[0].seq, case[0].batch),
        )
        others = {n.batch: s for n, s in cases if n.seq == name.seq and n.batch != name.batch}
        source = f"{name}, {', '.join(path.name for path in results.paths)}"
        found[size] = LocalStep(
            name, seconds, seconds, seconds, MEASURED, source, seconds_by_batch=others
        )
    return found


def steps_predicted(
    results: ResultSet, costs: Sequence[CaseCost], dtype: str, variant: str
) -> tuple[dict[str, LocalStep], str]:
    """Of every size at its own batch and sequence, from the rates of what was measured; and why
    there are none."""
    sizes = problem_sizes()
    try:
        rates = calibrate_rates(results, dtype, variant, costs)
    except RatesRefusedError as error:
        return {}, str(error)
    found, _ = predict_steps(rates, costs)
    own = {
        one.name.size: LocalStep(
            one.name, one.seconds, one.low, one.high, PREDICTED, one.basis, one.range_words
        )
        for one in found
        if (of := sizes.get(one.name.size))
        and (one.name.batch, one.name.seq) == (of["batch"], of["seq"])
    }
    return own, "" if own else "the costs have no step at a size's own batch and sequence"


def _read(path: Path) -> list[ScalingResult] | ResultSet:
    """What the place holds: a run of several ranks, or a result of the suite."""
    files = [path]
    if path.is_dir():
        is_of_ranks = any(path.glob(RANK_FILES))
        files = result_files(path) if is_of_ranks else rounds_of(path) or [path / SUITE_FILE]
    if is_scaling_result(read_json(files[0])[0]):
        return [read_scaling_result(file) for file in files]
    return read_result_set(files)


def _stored_costs(path: Path) -> Sequence[CaseCost] | None:
    """Of the study's own file; None where there is none."""
    stored = path / COSTS
    if not (path.is_dir() and stored.exists()):
        return None
    return read_case_costs(read_json(stored)[0])


def check_local_steps(given: Iterable[Path]) -> None:
    """BadInputError for one that cannot be used, which is to be said before hours of measuring."""
    for path in given:
        _read(path)
        _stored_costs(path)


def _of_path(
    path: Path, program: Path, dtype: str, variant: str
) -> tuple[dict[str, LocalStep], dict[str, LocalStep], str]:
    """Measured, predicted, and why nothing is predicted. Costs are those of the study's own file,
    else of the program."""
    results = _read(path)
    if isinstance(results, list):
        return steps_alone(results), {}, ""
    measured = steps_of_suite(results, dtype, variant)
    costs = _stored_costs(path)
    if costs is None:
        variants = ",".join(dict.fromkeys((BASELINE, variant)))
        sizes = ",".join(problem_sizes())
        asked = [f"--sizes={sizes}", f"--dtypes={dtype}", f"--variants={variants}"]
        try:
            costs = ask_costs(program, asked)
        except SuiteError as error:
            why = f"the costs of steps that were not run cannot be asked for: {error}"
            return measured, {}, why
    return measured, *steps_predicted(results, costs, dtype, variant)


def local_steps(
    results: Sequence[ScalingResult],
    given: Iterable[Path],
    program: Path,
    dtype: str,
    variant: str,
) -> LocalSteps:
    """Of every problem size: a measured one from `given`, then a rank's alone, then a prediction.

    `given`: results of the suite or of tiny_llama_scaling, or folders of those. `program`:
    tiny_llama_bench, which is asked for costs. BadInputError for a file that cannot be used.
    """
    measured: dict[str, LocalStep] = {}
    predicted: dict[str, LocalStep] = {}
    reasons: list[str] = []
    for path in given:
        here, predicted_here, reason = _of_path(path, program, dtype, variant)
        if not here and not predicted_here:
            reasons.append(f"{path}: no {variant} step in {dtype}; {reason}".rstrip("; "))
        elif reason:
            reasons.append(f"{path}: {reason}")
        measured = {**here, **measured}
        predicted = {**predicted_here, **predicted}
    alone = {
        size: step
        for size, step in steps_alone(results).items()
        if (step.name.dtype, step.name.variant) == (dtype, variant)
    }
    found = {**predicted, **alone, **measured}
    why = "; ".join(reasons) or REMEDY
    ordered = {size: found[size] for size in (*problem_sizes(), *found) if size in found}
    return LocalSteps(ordered, {s: why for s in problem_sizes() if s not in found})
