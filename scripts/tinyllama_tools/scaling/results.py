"""The folder of a data-parallel run: what was measured, what follows, and what could not be had.

scripts/scaling --publish: a run's results, to be tracked by git.

The tables are made from the files that are published, so that anybody can make them again.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import (
    PROJECT,
    SUITE_FILE,
    BadInputError,
    Json,
    head_commit,
    problem_sizes,
)
from tinyllama_tools.core.text import compact_json
from tinyllama_tools.data.json_files import read_json
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import CaseCost, SuiteError, ask_costs, read_case_costs
from tinyllama_tools.data.publish import REFERENCE, published, replace_folder
from tinyllama_tools.data.results import ResultSet, read_result_set
from tinyllama_tools.data.studies import COSTS, rounds_of
from tinyllama_tools.models.collectives import (
    ALONE,
    MIB,
    AlphaBeta,
    Interconnect,
    ScalingResult,
    buckets_of,
    is_scaling_result,
    read_scaling_result,
)
from tinyllama_tools.models.prediction import (
    RatesRefusedError,
    StepPrediction,
    calibrate_rates,
    predict_steps,
)
from tinyllama_tools.models.projection import (
    GLOBAL_BATCH,
    MEASURED,
    PREDICTED,
    Analysis,
    LocalStep,
    ProjectedStep,
    Setting,
    project,
)

SCALING_KIND, SCALING_SCHEMA_VERSION = "scaling", 1
DOCUMENT, PAGE = "scaling.json", "scaling.md"
RESULTS = "ranks_*.json"


def result_file(folder: Path, ranks: int) -> Path:
    """What tiny_llama_scaling writes at rank 0."""
    return folder / f"ranks_{ranks}.json"


def log_file(folder: Path, ranks: int) -> Path:
    """What the ranks said, a line each with its rank before it."""
    return folder / f"ranks_{ranks}.log"


def ranks_of(path: Path) -> int:
    """Of a file that is named as result_file() names it; 0 for others."""
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else 0


def result_files(path: Path) -> list[Path]:
    """Of a folder every ranks_<N>.json in the order of N, of a file that file.

    BadInputError where a folder has none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(RESULTS), key=lambda file: (ranks_of(file), file.name))
    if not found:
        raise BadInputError(
            f"{path}: holds no {RESULTS}; measure first: scripts/scaling --processes 1,2"
        )
    return found


@dataclass(frozen=True)
class Failure:
    """A number of ranks that was not measured to its end. `status`: of the run, `words`: of the
    rank that ended first."""

    ranks: int
    status: int
    words: str


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


def _plain(name: CaseName) -> CaseName:
    """The same step as a case of one process."""
    return replace(name, ranks=None, mode="")


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
        found[row.name.size] = LocalStep(
            _plain(row.name), seconds, seconds, seconds, MEASURED, source, seconds_by_batch=batches
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


def _predicted(name: CaseName, one: StepPrediction) -> LocalStep:
    return LocalStep(name, one.seconds, one.low, one.high, PREDICTED, one.basis, one.range_words)


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
        one.name.size: _predicted(one.name, one)
        for one in found
        if (of := sizes.get(one.name.size))
        and (one.name.batch, one.name.seq) == (of["batch"], of["seq"])
    }
    return own, "" if own else "the costs have no step at a size's own batch and sequence"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if any(path.glob(RESULTS)):
        return result_files(path)
    return rounds_of(path) or [path / SUITE_FILE]


def _read(path: Path) -> list[ScalingResult] | ResultSet:
    """What the place holds: a run of several ranks, or a result of the suite."""
    files = _files(path)
    document, _ = read_json(files[0])
    if is_scaling_result(document):
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


def _costs(path: Path, program: Path, dtype: str, variant: str) -> tuple[Sequence[CaseCost], str]:
    """Of the study's own file, else of the program."""
    stored = _stored_costs(path)
    if stored is not None:
        return stored, ""
    variants = ",".join(dict.fromkeys((BASELINE, variant)))
    options = [
        f"--sizes={','.join(problem_sizes())}",
        f"--dtypes={dtype}",
        f"--variants={variants}",
    ]
    try:
        return ask_costs(program, options), ""
    except SuiteError as error:
        return (), f"the costs of steps that were not run cannot be asked for: {error}"


def _of_path(
    path: Path, program: Path, dtype: str, variant: str
) -> tuple[dict[str, LocalStep], dict[str, LocalStep], str]:
    """Measured, predicted, and why nothing is predicted."""
    results = _read(path)
    if isinstance(results, list):
        return steps_alone(results), {}, ""
    measured = steps_of_suite(results, dtype, variant)
    costs, reason = _costs(path, program, dtype, variant)
    predicted, refusal = steps_predicted(results, costs, dtype, variant) if costs else ({}, reason)
    return measured, predicted, refusal


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
        here, foretold, reason = _of_path(path, program, dtype, variant)
        if not here and not foretold:
            reasons.append(f"{path}: no {variant} step in {dtype}; {reason}".rstrip("; "))
        elif reason:
            reasons.append(f"{path}: {reason}")
        measured = {**here, **measured}
        predicted = {**foretold, **predicted}
    alone = {
        size: step
        for size, step in steps_alone(results).items()
        if (step.name.dtype, step.name.variant) == (dtype, variant)
    }
    found = {**predicted, **alone, **measured}
    why = "; ".join(reasons) or REMEDY
    ordered = {size: found[size] for size in (*problem_sizes(), *found) if size in found}
    return LocalSteps(ordered, {s: why for s in problem_sizes() if s not in found})


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


def _finite(value: Any) -> Any:  # noqa: ANN401
    """JSON knows no infinity: an interval without an end has null there."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _fit(fit: AlphaBeta) -> Json:
    rows = asdict(fit)
    rows["held_out"] = [{"bytes": size, "percent_off": off} for size, off in fit.held_out]
    return rows


def _local(step: LocalStep) -> Json:
    found = asdict(step) | {"name": str(step.name), "knows_small_batches": step.knows_small_batches}
    found["seconds_by_batch"] = {str(b): s for b, s in step.seconds_by_batch.items()}
    return found


def _projection(projections: Projections) -> Json:
    return {
        "global_batch": projections.global_batch,
        "overlap_share": projections.overlap,
        "local_steps": [_local(step) for step in projections.local.values()],
        "interconnects": [asdict(one) for one in projections.interconnects],
        "missing": dict(projections.missing),
        "steps": [step.as_json() for step in projections.steps],
    }


def failures_before(folder: Path) -> list[Failure]:
    """What an earlier scaling.json of the folder says was not measured: reading again does not undo
    it. None where there is no such file or a damaged one, which is about to be made anew."""
    try:
        found = read_json(folder / DOCUMENT)[0]["failures"]
        return [Failure(int(f["ranks"]), int(f["status"]), str(f["words"])) for f in found]
    except (BadInputError, KeyError, TypeError, ValueError):
        return []


def scaling_document(
    analysis: Analysis,
    projections: Projections,
    command: str,
    failures: Sequence[Failure] = (),
) -> Json:
    """Times in s, bandwidths in bytes/s, shares in percent."""
    now = datetime.datetime.now(datetime.timezone.utc)
    context = analysis.context
    return _finite(
        {
            "kind": SCALING_KIND,
            "schema_version": SCALING_SCHEMA_VERSION,
            "command": command,
            "date": now.isoformat(timespec="seconds"),
            "git_commit": head_commit(PROJECT),
            "device": (context.get("device") or {}).get("name", ""),
            "processes": [one.ranks for one in analysis.results],
            "files": [one.path.name for one in analysis.results],
            "scaling": analysis.results[0].scaling,
            "warnings": list(analysis.warnings),
            "failures": [asdict(failure) for failure in failures],
            "not_measured": dict(analysis.failed),
            "points": [asdict(point) for point in analysis.points],
            "waterfalls": [asdict(one) for one in analysis.waterfalls],
            "fits": [_fit(fit) for fit in analysis.fits],
            "fits_refused": list(analysis.refused),
            "projection_checks": [check.as_json() for check in analysis.checks],
            "projection": _projection(projections),
        }
    )


@dataclass(frozen=True)
class ReadRun:
    """`failures`: numbers of ranks without a usable result, those known before first. `unread`: of
    the others, how many."""

    results: tuple[ScalingResult, ...]
    failures: tuple[Failure, ...]
    unread: int


def read_results(path: Path, known: Sequence[Failure] = ()) -> ReadRun:
    """Of a folder every ranks_<N>.json that can be used, of a file that file.

    A file that cannot be used becomes a failure of its number of ranks, unless that has one
    already. BadInputError where none can be used.
    """
    found: list[ScalingResult] = []
    unread: list[Failure] = []
    failed = {failure.ranks for failure in known}
    refusal: BadInputError | None = None
    for file in result_files(path):
        try:
            found.append(read_scaling_result(file))
        except BadInputError as error:
            refusal = refusal or error
            if ranks_of(file) not in failed:
                unread.append(Failure(ranks_of(file), 1, str(error)))
    if not found and refusal is not None:
        raise refusal
    return ReadRun(tuple(found), (*known, *unread), len(unread))


def read_again(path: Path) -> ReadRun:
    """With what the folder's own scaling.json says was not measured."""
    return read_results(path, failures_before(path) if path.is_dir() else ())


# of a result: a row a line
EXPANDED = ("benchmarks", "rank_samples")
MOST_BYTES = 1_000_000


def place_of(results: Path, name: str) -> Path:
    """The folder of a published run."""
    return results / REFERENCE / f"ranks_{name}"


def _refuse(what: str, remedy: str) -> BadInputError:
    return BadInputError(f"--publish: {what}; {remedy}")


def check_publishable(source: Path, results: Sequence[ScalingResult], changed: str) -> None:
    """BadInputError where files of the checkout are `changed`, where a result was measured so or
    has a failed row, where some number of ranks of the run failed, and for a file alone."""
    if changed:
        raise _refuse(f"these files are changed:\n{changed}", "commit first")
    if not source.is_dir():
        raise _refuse(f"{source.name} is a file", "name the folder of a run")
    failures = failures_before(source)
    if failures:
        raise _refuse(f"{failures[0].ranks} ranks failed in this run", "measure again")
    for one in results:
        if one.context.get("git_dirty") is not False:
            raise _refuse(
                f"{one.path.name} was measured with changed files", "commit, build, measure again"
            )
        if one.failed:
            raise _refuse(f"{one.path.name}: {next(iter(one.failed))} failed", "measure again")


def publish_results(source: Path, place: Path) -> None:
    """Copies what was measured to `place`, instead of what is there. BadInputError where it would
    be more than MOST_BYTES."""
    texts = {}
    for path in result_files(source):
        document = published(read_json(path)[0])
        texts[path.name] = compact_json(document, EXPANDED)
    size = sum(map(len, texts.values()))
    if size > MOST_BYTES:
        raise _refuse(f"{size:,} bytes: must be {MOST_BYTES:,} at most", "measure fewer rounds")
    replace_folder(place, texts)
