"""Everything a report is made from: found, told apart, read and checked, and what follows from it,
computed once."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tinyllama_tools.core.app import (
    SUITE_FILE,
    BadInputError,
    Json,
    bad_file,
    problem_sizes,
    read_json,
    schema_problem,
    shown_path,
)
from tinyllama_tools.core.text import listed, value_at
from tinyllama_tools.data.machine import ONE_DEVICE, device_of, device_text, first_difference
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import CaseCost, read_costs
from tinyllama_tools.data.results import (
    Failure,
    MeasuredCase,
    ResultSet,
    read_result_set,
    read_scaling_run,
    refuse_other_run,
)
from tinyllama_tools.data.studies import (
    CHECK,
    COSTS,
    FRONTIER,
    KIND,
    PRODUCTS,
    RANK_FILES,
    SCALING_FILE,
    SCALING_KIND,
    SCHEMAS,
    STUDY,
    is_result,
    is_scaling_result,
    rounds_of,
    why_no_round,
)
from tinyllama_tools.models.data_parallel import Analysis, analyse
from tinyllama_tools.models.prediction import (
    Rates,
    StepPrediction,
    calibrate_rates,
    is_own_shape,
    predict_steps,
)
from tinyllama_tools.models.roofline import StepTimes, step_times
from tinyllama_tools.report.document import Kind, Missing, Omission
from tinyllama_tools.report.order import headline_steps, lacks_parts, main_step, name_rank
from tinyllama_tools.stats.laws import (
    GridPoint,
    HeldOutCell,
    Law,
    LawRefusedError,
    check_held_out,
    fit_time_law,
)

Found = TypeVar("Found")


class Source(NamedTuple):
    """A result to read. `path`: the folder of a grid study or of a data-parallel run, the file of a
    run of the suite, and of a data-parallel result that somebody named alone."""

    kind: Kind
    path: Path


# of a folder the first that is there says what it is
FILES = {STUDY: Kind.STUDY, SUITE_FILE: Kind.SUITE, SCALING_FILE: Kind.SCALING}
NAME_A_RESULT = "name a result of scripts/bench, scripts/study --grid or scripts/scaling"


def _only_result(folder: Path) -> Path:
    """The one that was put there under a name of its own, as --benchmark_out does."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(BadInputError):
            found += [path] if is_result(read_json(path)[0]) else []
    if len(found) == 1:
        return found[0]
    known = f"{', '.join(FILES)}, {RANK_FILES}, or one result of tiny_llama_bench"
    several = f"holds {len(found)} results ({listed([of.name for of in found], 3)}); name one"
    none = f"holds none of {known}; {NAME_A_RESULT}"
    raise BadInputError(f"{folder}: {several if found else none}")


def source_of(path: Path) -> Source:
    """What a path that somebody named is; BadInputError where it is no result, or unreadable."""
    if path.is_dir():
        inside = next((name for name in FILES if (path / name).exists()), "")
        if not inside and not any(path.glob(RANK_FILES)):
            return source_of(_only_result(path))
        # a damaged file is named as such when it is read
        kind = FILES.get(inside, Kind.SCALING)
        return Source(kind, path / inside if kind is Kind.SUITE else path)
    document, _ = read_json(path)
    if document.get("kind") in (KIND, SCALING_KIND):
        kind = Kind.STUDY if document["kind"] == KIND else Kind.SCALING
        return Source(kind, path.parent)
    if is_result(document):
        return Source(Kind.SCALING if is_scaling_result(document) else Kind.SUITE, path)
    known = ", ".join(list(document)[:5]) or "none"
    what = f"is no result that this report knows: its keys are {known}"
    raise bad_file(path, what, NAME_A_RESULT)


# 20260131T080000Z_amd_instinct_mi300x: the name survives copying
TIME = re.compile(r"\d{8}T\d{6}Z")


Context = Mapping[str, Any]


def _context_of(source: Source) -> Context:
    """Of one of its files; empty where that cannot be read, which is said when all of it is."""
    files = {Kind.STUDY: rounds_of, Kind.SCALING: lambda path: sorted(path.glob(RANK_FILES))}
    made = files.get(source.kind, lambda path: [path])(source.path)
    try:
        return read_json(made[0])[0].get("context") or {}
    except (BadInputError, IndexError):
        return {}


def _why_not_beside(first: Context, other: Context) -> str:
    """Why a result is in no report of the first one's device; empty where it is."""
    if not (first and other and first_difference(first, other, ONE_DEVICE)):
        return ""
    here, there = (device_text(device_of(context)) for context in (first, other))
    return f"is of {there}, and this report of {here}; name it alone"


def newest_sources(results: Path) -> tuple[list[Source], list[Omission]]:
    """The newest of each kind, of grid studies the newest that has measured a round: what a report
    takes where nothing was named. All are of the device of the first kind that is there; newer ones
    of other devices are told."""
    dated = [path for path in results.glob("*") if path.is_dir() and TIME.search(path.name)]
    folders = sorted(dated, key=lambda path: TIME.search(path.name)[0], reverse=True)
    found: list[Source] = []
    others: list[Omission] = []
    first: Context = {}
    for name, kind in FILES.items():
        of_kind = (folder for folder in folders if (folder / name).is_file())
        usable = (folder for folder in of_kind if kind is not Kind.STUDY or rounds_of(folder))
        for source in map(source_of, usable):
            context = _context_of(source)
            if not (why := _why_not_beside(first, context)):
                found.append(source)
                first = first or context
                break
            others.append(Omission("result", shown_path(source.path), why))
    return found, others


# ---- what follows from a result: laws of time with their held-out checks, predictions


@dataclass(frozen=True)
class SeriesFit:
    """Of cases that differ in nothing but batch and sequence. `name`: of the first of them. `law`:
    None where it is refused; `held_out`: in the order of the grid, empty where that is refused.
    `refused`: what cannot be said, and why."""

    name: CaseName
    points: tuple[GridPoint, ...]
    law: Law | None = None
    held_out: tuple[HeldOutCell, ...] = ()
    refused: tuple[Omission, ...] = ()

    @property
    def series(self) -> str:
        of = self.name
        return "/".join((of.component, of.pass_name, of.variant, of.size, of.dtype))


def fitted(cases: Sequence[MeasuredCase]) -> SeriesFit:
    """Of what was measured in the rounds that most of the cases have."""
    usual, _ = Counter(case.rounds for case in cases).most_common(1)[0]
    of_usual = [case for case in cases if case.rounds == usual]
    points = tuple(GridPoint(c.name.batch, c.name.seq, c.seconds) for c in of_usual)
    others = f"the {len(points[0].rounds)} rounds of the other sizes"
    why = f"not measured in {others}, so the law is of those without it"
    short = [case.name for case in cases if case.rounds != usual]
    refused = [Omission("time law", str(name), why) for name in short]
    fit = SeriesFit(cases[0].name, points)
    try:
        fit = replace(fit, law=fit_time_law(points))
        fit = replace(fit, held_out=check_held_out(points))
    except LawRefusedError as error:
        what = "held-out check of a time law" if fit.law else "time law"
        refused.insert(0, Omission(what, fit.series, str(error)))
    return replace(fit, refused=tuple(refused))


NOT_RUN, CHECKED, CALIBRATED = "prediction", "prediction, checked", "calibrated on this size"


class PredictedStep(NamedTuple):
    """`kind`: NOT_RUN; CHECKED where the step was run, but did not serve the rates; CALIBRATED.
    `measured`: None where it was not run."""

    prediction: StepPrediction
    kind: str
    measured: MeasuredCase | None

    @property
    def name(self) -> CaseName:
        """Of the step."""
        return self.prediction.cost.name


class Predictions(NamedTuple):
    """One a problem size at its own shape, smallest first, and steps of sizes without rates that
    were run at another shape. `refusal`: why there are none; `omissions`: single steps that cannot
    be predicted."""

    steps: Sequence[PredictedStep] = ()
    refusal: str = ""
    omissions: Sequence[Omission] = ()
    rates: Rates | None = None


# ---- what was read

# where no result could be used
NOTHING = ResultSet("", (), {}, {})


class GridStudy(NamedTuple):
    """A folder of scripts/study --grid. `description`: its study.json; `frontier`: None where there
    is none; `check`: steps of a bigger size, which are no part of `results` so that nothing is
    calibrated on them."""

    description: Mapping[str, Any]
    results: ResultSet = NOTHING
    costs: Sequence[CaseCost] = ()
    frontier: Json | None = None
    check: ResultSet = NOTHING


@dataclass(frozen=True)
class ScalingRun:
    """`analysis`: made anew of the results. `failures`: numbers of ranks without a usable result.
    `projection`: of scaling.json; None where there is no such file, or where it is damaged."""

    path: Path
    analysis: Analysis
    failures: Sequence[Failure] = ()
    projection: Json | None = None

    @property
    def context(self) -> Context:
        """Of its smallest world, whose device is that of all."""
        return self.analysis.results[0].context

    @property
    def title(self) -> str:
        """`tiny, baseline, f32: 1, 2, 4 ranks (weak)`."""
        name = self.analysis.name
        ranks = ", ".join(str(one.ranks) for one in self.analysis.results)
        what = f"{name.size}, {name.variant}, {name.dtype}" if name else "collectives"
        return f"{what}: {ranks} ranks ({self.analysis.results[0].scaling})"


@dataclass(frozen=True)
class ReportInputs:
    """`main`: the result of the suite, or of a grid study, that is analysed; NOTHING where there
    is none. `study`: the one that it is of. `compared`: where that has no two variants of a case,
    another result of its device that has. `scalings`: of its device, or of that of the first."""

    sources: tuple[Source, ...] = ()
    main: ResultSet = NOTHING
    study: GridStudy | None = None
    scalings: tuple[ScalingRun, ...] = ()
    omissions: tuple[Omission, ...] = ()
    compared: ResultSet = NOTHING

    def main_result(self) -> ResultSet:
        """The same for sections that show it; raises Missing where there is none."""
        if self.main is NOTHING:
            raise Missing(f"no result of the suite was given; make one: {Kind.SUITE.command}")
        return self.main

    @cached_property
    def time_fits(self) -> list[SeriesFit]:
        """Laws of every series, in the order of tables."""
        every: dict[CaseName, list[MeasuredCase]] = {}
        for case in sorted(self.main.cases.values(), key=lambda case: name_rank(case.name)):
            every.setdefault(replace(case.name, batch=0, seq=0), []).append(case)
        return [fitted(cases) for cases in every.values()]

    @cached_property
    def held_out(self) -> dict[str, list[HeldOutCell]]:
        """By size, over all series."""
        found: dict[str, list[HeldOutCell]] = {}
        for fit in self.time_fits:
            if fit.held_out:
                found.setdefault(fit.name.size, []).extend(fit.held_out)
        return found

    @cached_property
    def steps(self) -> list[StepTimes]:
        """One a size, dtype and variant of a known size, the one that is looked into first."""
        main = main_step(self.main)
        known = (of for of in headline_steps(self.main) if of.name.size in problem_sizes())
        ordered = sorted(known, key=lambda step: step is not main)
        return [step_times(self.main, step.name) for step in ordered]

    @property
    def check_cases(self) -> tuple[MeasuredCase, ...]:
        """Steps that were measured to check predictions by, whose rates do not know of them."""
        return tuple(self.study.check.cases.values()) if self.study else ()

    @cached_property
    def predictions(self) -> Predictions:
        """In the dtype and variant of the main step, which the rates come from: of steps at their
        problem size's own shape, and of the check."""
        results, costs = self.main, self.study.costs if self.study else ()
        step = main_step(results)
        if step is None:
            why = "no training step (full_step/train) was measured to calibrate on"
            return Predictions(refusal=why)
        if not costs:
            why = "no costs of sizes that were not run were given: a grid study writes costs.json"
            return Predictions(refusal=why)
        try:
            rates = calibrate_rates(results, step.name.dtype, step.name.variant)
            every, lacking = predict_steps(rates, costs)
        except BadInputError as error:
            return Predictions(refusal=str(error))
        known = {case.name: case for case in (*results.cases.values(), *self.check_cases)}

        def is_asked(name: CaseName) -> bool:
            return is_own_shape(name) or (name in known and name.size not in rates.sizes)

        found = []
        for one in (one for one in every if is_asked(one.cost.name)):
            name, measured = one.cost.name, known.get(one.cost.name)
            kind = CALIBRATED if name.size in rates.sizes else CHECKED if measured else NOT_RUN
            found.append(PredictedStep(one, kind, measured))
        # of a size its own shape first
        found.sort(key=lambda s: (name_rank(s.name)[1], not is_own_shape(s.name)))
        asked = [(cost, why) for cost, why in lacking if is_asked(cost.name)]
        omissions = [Omission("prediction", str(cost.name), why) for cost, why in asked]
        return Predictions(found, "" if found else "no step could be predicted", omissions, rates)


def _attempt(omissions: list[Omission], path: Path, read: Callable[[Path], Found]) -> Found | None:
    """What `read` returns, None where it refuses, which is then an error of the report."""
    try:
        return read(path)
    except (BadInputError, ValueError, OSError) as error:
        reason = str(error).removeprefix(f"{path}: ")
    omissions.append(Omission("file", shown_path(path), reason, is_error=True))
    return None


def _read_files(paths: Sequence[Path], omissions: list[Omission]) -> ResultSet:
    """All files as one set. Where one cannot be used, or is of another device, torch or commit
    than the first that can, it is left out by name and the others stay."""
    try:
        return read_result_set(paths) if paths else NOTHING
    except BadInputError:
        pass
    kept: list[Path] = []
    for path in paths:
        # beside the first alone: each file is read twice, not as often as there are files
        beside = [*kept[:1], path]
        if _attempt(omissions, path, lambda _, beside=beside: read_result_set(beside)) is not None:
            kept.append(path)
    return read_result_set(kept) if kept else NOTHING


def _read_check(path: Path, results: ResultSet) -> ResultSet:
    check = read_result_set([path])
    refuse_other_run(results.context, results.paths[0], check.context, path)
    return check


def _checked(path: Path, kind: str, remedy: str) -> Json:
    """BadInputError names the key that does not keep the schema."""
    found, _ = read_json(path)
    problem = schema_problem(found, SCHEMAS[kind])
    if problem:
        raise bad_file(path, problem, f"make it again: {remedy}")
    return found


def _read_scaling_run(path: Path, omissions: list[Omission]) -> ScalingRun:
    """BadInputError where no result can be used."""
    (results, failures), file = read_scaling_run(path), path / SCALING_FILE
    document, again = None, "scripts/scaling --from FOLDER"
    if path.is_dir() and file.exists():
        document = _attempt(omissions, file, lambda of: _checked(of, "scaling", again))
    analysis = analyse(results)
    made_of = (analysis.device, [one.ranks for one in analysis.results])
    if document and (document.get("device"), document.get("processes")) != made_of:
        what = f"is of {document.get('device')}, ranks {document.get('processes')}"
        why = f"{what}, and the results of {made_of[0]}, {made_of[1]}; make it again: {again}"
        omissions.append(Omission("file", shown_path(file), why, is_error=True))
        document = None
    projection = document["projection"] if document else None
    return ScalingRun(path, analysis, failures, projection)


def _read_grid_study(folder: Path, omissions: list[Omission]) -> GridStudy:
    """What the folder holds; files that are not there are missing parts, not errors. BadInputError
    for a bad study.json."""
    description = _checked(folder / STUDY, "study", Kind.STUDY.command)
    rounds, products = rounds_of(folder), folder / PRODUCTS
    files = [*rounds, products] if rounds and products.exists() else rounds
    results = _read_files(files, omissions)
    if not rounds:
        omissions.append(Omission("file", str(folder), why_no_round(folder), is_error=True))

    def beside(name: str, read: Callable[[Path], Found]) -> Found | None:
        """What it reads; what fits into which memory is of a device as times are."""
        path = folder / name

        def read_own(path: Path) -> Found:
            said = read_json(path)[0].get("device")
            made_on = said.get("name") if isinstance(said, dict) else said
            here = value_at(results.context, "device.name")
            if name != CHECK and made_on and here and made_on != here:
                raise bad_file(
                    path, f"is of {made_on}, the rounds of {here}", "make it there again"
                )
            return read(path)

        return _attempt(omissions, path, read_own) if path.exists() else None

    check = None
    if results is not NOTHING:
        check = beside(CHECK, lambda path: _read_check(path, results))
    costs = beside(COSTS, read_costs)
    frontier = beside(FRONTIER, lambda path: _checked(path, "frontier", Kind.STUDY.command))
    return GridStudy(description, results, costs or (), frontier, check or NOTHING)


def _lacks(results: ResultSet) -> int:
    """The less, the rather it is analysed: one that has a training step with its parts, else one
    that has a step."""
    step = main_step(results)
    return 2 if step is None else lacks_parts(results, step.name)


def _has_variants(results: ResultSet) -> bool:
    """Of one case at least."""
    points = Counter(replace(case.name, variant="") for case in results.cases.values())
    return any(count > 1 for count in points.values())


def _compared(sets: Iterable[ResultSet], main: ResultSet) -> ResultSet:
    beside = (of for of in sets if not _why_not_beside(main.context, of.context))
    return next(filter(_has_variants, beside), NOTHING)


def read_inputs(sources: Sequence[Source], unknown: Sequence[Omission] = ()) -> ReportInputs:
    """Reads every source. `unknown`: what was named but is no result."""
    omissions = list(unknown)
    readers: dict[Kind, Callable[[Path], Any]] = {
        Kind.STUDY: lambda path: _read_grid_study(path, omissions),
        Kind.SUITE: lambda path: read_result_set([path]),
        Kind.SCALING: lambda path: _read_scaling_run(path, omissions),
    }
    found: dict[Kind, list[Any]] = {kind: [] for kind in Kind}
    sets: list[ResultSet] = []
    for source in dict.fromkeys(sources):
        one = _attempt(omissions, source.path, readers[source.kind])
        if one is not None:
            found[source.kind].append(one)
            results = one if source.kind is Kind.SUITE else getattr(one, "results", NOTHING)
            sets += [results] if results is not NOTHING else []
    main = min(sets, key=_lacks, default=NOTHING)
    compared = NOTHING if main is NOTHING or _has_variants(main) else _compared(sets, main)
    omissions += [
        Omission("result", shown_path(of.paths[0]), f"{main.title} is analysed; name it alone")
        for of in sets
        if of is not main and of is not compared
    ]
    for name, case in main.left_out.items():
        omissions.append(Omission("case", name, case.reason, bool(case.failed)))

    study = next((of for of in found[Kind.STUDY] if of.results is main), None)
    first, runs, others = main.context, [], set()
    for run in found[Kind.SCALING]:
        first = first or run.context
        if why := _why_not_beside(first, run.context):
            omissions.append(Omission("result", shown_path(run.path), why))
            others.add(run.path)
        else:
            runs.append(run)
    taken = tuple(source for source in sources if source.path not in others)
    return ReportInputs(taken, main, study, tuple(runs), tuple(omissions), compared)
