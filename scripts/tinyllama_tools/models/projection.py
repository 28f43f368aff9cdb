"""What more devices would give: step time and efficiency from a local step and a model of links.

A projection, not a measurement, of weak scaling: every device has a batch of its own. Imbalance,
slower local work, other traffic, start of operations and input are in no figure of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tinyllama_tools.core.app import SUITE_FILE, Json, problem_sizes
from tinyllama_tools.data.names import ALONE, WEAK, CaseName
from tinyllama_tools.data.programs import CaseCost, read_costs
from tinyllama_tools.data.results import ResultSet, read_result_set
from tinyllama_tools.data.studies import COSTS, rounds_of
from tinyllama_tools.models.collectives import MIB, Interconnect, all_reduce, buckets_of
from tinyllama_tools.models.data_parallel import MEASURED, PREDICTED, Analysis, step_bounds
from tinyllama_tools.models.prediction import RatesRefusedError, calibrate_rates, predict_steps

if TYPE_CHECKING:
    from tinyllama_tools.data.ranks import ScalingResult


@dataclass(frozen=True)
class LocalStep:
    """`seconds` at the batch of `name`, between `low` and `high` where it is PREDICTED, which
    `range_words` names. `source`: the file and row, or what the prediction rests on."""

    name: CaseName
    seconds: float
    low: float
    high: float
    kind: str
    source: str
    range_words: str = ""


class StepSource(NamedTuple):
    """A result of the suite that local steps are taken from. `costs`: of the study's own file;
    empty where there is none."""

    path: Path
    results: ResultSet
    costs: Sequence[CaseCost] = ()


def read_step_source(path: Path) -> StepSource:
    """A result of the suite, or a folder of one. BadInputError for one that cannot be used, which
    is to be said before hours of measuring."""
    files, costs = [path], []
    if path.is_dir():
        files = rounds_of(path) or [path / SUITE_FILE]
        costs = read_costs(path / COSTS) if (path / COSTS).exists() else []
    return StepSource(path, read_result_set(files), costs)


def _is_own(name: CaseName) -> bool:
    """Whether the step is at its size's own batch and sequence."""
    of = problem_sizes().get(name.size, {})
    return (name.batch, name.seq) == (of.get("batch"), of.get("seq"))


def predicted_steps(
    source: StepSource, dtype: str, variant: str
) -> tuple[dict[str, LocalStep], str]:
    """By size, at its own batch and sequence, from the rates of what was measured; and why there is
    none of others."""
    try:
        rates = calibrate_rates(source.results, dtype, variant)
        found, _ = predict_steps(rates, source.costs)
    except RatesRefusedError as error:
        return {}, str(error)
    how = (PREDICTED, rates.basis(), rates.spread.words)
    steps = {
        one.cost.name.size: LocalStep(one.cost.name, one.seconds, one.low, one.high, *how)
        for one in found
        if _is_own(one.cost.name)
    }
    return steps, "it has no costs of other sizes; a grid study has"


REMEDY = (
    "measure it: scripts/bench --components full_step --sizes SIZE, then --local-step its "
    "results.json; or give a grid study of smaller sizes to predict it from"
)


def local_steps(
    results: Sequence[ScalingResult], source: StepSource | None, dtype: str, variant: str
) -> tuple[dict[str, LocalStep], dict[str, str]]:
    """Of every size: measured in the source (at the size's own batch and sequence, else at the
    largest batch of its longest sequence), else by the rank that computed alone, else predicted
    from the source; and why the other problem sizes have none."""
    found, reason, measured = {}, REMEDY, []
    # the world with the fewest ranks counts, whose rank alone had no neighbours that wait
    for one in results[::-1]:
        if (row := one.steps.get(ALONE)) is not None:
            # the same step as a case of one process
            name = replace(row.name, ranks=None, mode="")
            measured.append((name, row.median_seconds, f"{row.name}, {one.path.name}"))
    if source is not None:
        found, why = predicted_steps(source, dtype, variant)
        reason = f"{source.path}: {why}"
        files = ", ".join(path.name for path in source.results.paths)
        cases = sorted(
            source.results.cases.values(),
            key=lambda c: (_is_own(c.name), c.name.seq, c.name.batch),
        )
        measured += [
            (case.name, case.median_seconds, f"{case.name}, {files}")
            for case in cases
            if case.name.is_training_step
            and (case.name.dtype, case.name.variant) == (dtype, variant)
        ]
    # the last of a size counts
    for name, seconds, where in measured:
        found[name.size] = LocalStep(name, *[seconds] * 3, MEASURED, where)
    ordered = {size: found[size] for size in (*problem_sizes(), *found) if size in found}
    return ordered, {size: reason for size in problem_sizes() if size not in found}


# for which steps are projected
RANKS = tuple(2**power for power in range(3, 13))


def project(step: LocalStep, buckets: Sequence[float], over: Interconnect, ranks: int) -> Json:
    """A row of scaling.json: seconds from as much hidden as can be to nothing; efficiencies in
    percent, low with high seconds. `buckets`: bytes of each."""
    each, algorithms = zip(*(all_reduce(ranks, size, over) for size in buckets), strict=True)
    low, high = step_bounds(step.seconds, each)
    return {
        "size": step.name.size,
        "interconnect": over.name,
        "scaling": WEAK,
        "ranks": ranks,
        "batch": step.name.batch,
        "local_seconds": step.seconds,
        "communication_seconds": sum(each),
        "algorithm": " and ".join(dict.fromkeys(algorithms)),
        "seconds_low": low,
        "seconds_high": high,
        "efficiency_low": 100 * step.seconds / high,
        "efficiency_high": 100 * step.seconds / low,
        "local_kind": step.kind,
        "kind": "projection",
    }


NO_STEP = "no data-parallel step was measured, so dtype and variant of a projection are open"


def projection_of(
    analysis: Analysis, source: StepSource | None, interconnects: Sequence[Interconnect]
) -> Json:
    """`projection` of scaling.json: over the link measured here, where there is one, and over
    `interconnects`. `source`: as of local_steps()."""
    name, sizes = analysis.name, problem_sizes()
    links = [*filter(None, [analysis.interconnect]), *interconnects]
    local: dict[str, LocalStep] = {}
    missing = dict.fromkeys(sizes, NO_STEP)
    if name is not None:
        local, missing = local_steps(analysis.results, source, name.dtype, name.variant)
    run, known, rows = analysis.results[-1].distributed, [], []
    for size, step in local.items():
        # buckets of a model of the user's own are known of what was run alone
        if size == name.size:
            buckets = run["bucket_bytes"]
        elif size in sizes:
            buckets = buckets_of(sizes[size], name.dtype, MIB * run["bucket_MiB"])
        else:
            continue
        known.append(asdict(step) | {"name": str(step.name)})
        rows += [project(step, buckets, link, ranks) for link in links for ranks in RANKS]
    return {
        "local_steps": known,
        "interconnects": [asdict(one) for one in links],
        "missing": missing,
        "steps": rows,
    }
