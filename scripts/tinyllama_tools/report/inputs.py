"""What a report is made from: results that are found, told apart, read and checked; and what is
computed from them, once.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from tinyllama_tools.core.installation import typed
from tinyllama_tools.core.text import value_at
from tinyllama_tools.data.gpu_checks import GPU_CHECK, GPU_FILE, GpuCheck, read_gpu_check
from tinyllama_tools.data.kernel_profiles import KernelProfile, read_kernel_profile
from tinyllama_tools.data.machine import (
    ONE_DEVICE,
    SAME_RUN,
    device_of,
    device_text,
    first_difference,
)
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import CaseCost, read_costs
from tinyllama_tools.data.rank_results import Failure, read_scaling_run
from tinyllama_tools.data.results import (
    NAME_A_RESULT,
    MeasuredCase,
    ResultSet,
    read_result_set,
    refuse_other_run,
    result_in,
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
    runs_of,
    why_no_run,
)
from tinyllama_tools.models.data_parallel import Analysis, analyse
from tinyllama_tools.models.prediction import (
    StepModel,
    StepPrediction,
    fit_step_model,
    is_own_shape,
    predict_steps,
)
from tinyllama_tools.models.roofline import StepTimes, step_times
from tinyllama_tools.report.document import Kind, Missing, Omission
from tinyllama_tools.report.order import headline_steps, in_order, lacks_parts, main_step, name_rank
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
    """A result to read. `path`: the folder of a grid study or of a data-parallel run; the file of a
    run of the suite, of a check of a GPU, of a profiler, or of a data-parallel result that was
    named alone."""

    kind: Kind
    path: Path


# the first of these files that a folder has says what the folder is
FILES = {STUDY: Kind.STUDY, SUITE_FILE: Kind.SUITE, SCALING_FILE: Kind.SCALING, GPU_FILE: Kind.GPU}


def source_of(path: Path) -> Source:
    """What a named path is; BadInputError where it is no result, or cannot be read."""
    if path.is_dir():
        inside = next((name for name in FILES if (path / name).exists()), "")
        if not inside and not any(path.glob(RANK_FILES)):
            return source_of(result_in(path, (*FILES, RANK_FILES)))
        # whether the file is damaged is found when it is read
        kind = FILES.get(inside, Kind.SCALING)
        return Source(kind, path / inside if kind in (Kind.SUITE, Kind.GPU) else path)
    if path.suffix == ".csv":
        return Source(Kind.KERNELS, path)
    document, _ = read_json(path)
    if document.get("kind") == GPU_CHECK:
        return Source(Kind.GPU, path)
    if document.get("kind") in (KIND, SCALING_KIND):
        kind = Kind.STUDY if document["kind"] == KIND else Kind.SCALING
        return Source(kind, path.parent)
    if is_result(document):
        return Source(Kind.SCALING if is_scaling_result(document) else Kind.SUITE, path)
    known = ", ".join(list(document)[:5]) or "none"
    what = f"is no result that this report knows: its keys are {known}"
    raise bad_file(path, what, NAME_A_RESULT)


# in the name of a folder, as 20260131T080000Z_amd_instinct_mi300x: it survives copying
TIME = re.compile(r"\d{8}T\d{6}Z")


Context = Mapping[str, Any]


def _context_of(source: Source) -> Context:
    """Of its first file; empty where that cannot be read: an error when the whole source is."""
    files = {Kind.STUDY: runs_of, Kind.SCALING: lambda path: sorted(path.glob(RANK_FILES))}
    made = files.get(source.kind, lambda path: [path])(source.path)
    try:
        return read_json(made[0])[0].get("context") or {}
    except (BadInputError, IndexError):
        return {}


def _is_of_another_device(first: Context, other: Context) -> bool:
    """False where either is not known."""
    return bool(first and other and first_difference(first, other, ONE_DEVICE))


def newest_sources(results: Path) -> tuple[list[Source], list[Omission]]:
    """What a report takes where nothing was named: the newest result of each kind; of grid studies
    the newest that was measured. All are of the device of the first kind that is there; newer
    ones of other devices are told."""
    dated = [path for path in results.glob("*") if path.is_dir() and TIME.search(path.name)]
    folders = sorted(dated, key=lambda path: TIME.search(path.name)[0], reverse=True)
    found: list[Source] = []
    others: list[Omission] = []
    first: Context = {}
    for name, kind in FILES.items():
        of_kind = (folder for folder in folders if (folder / name).is_file())
        usable = (folder for folder in of_kind if kind is not Kind.STUDY or runs_of(folder))
        for source in map(source_of, usable):
            context = _context_of(source)
            if not _is_of_another_device(first, context):
                found.append(source)
                first = first or context
                break
            here, there = (device_text(device_of(one)) for one in (first, context))
            why = f"is of {there}, and this report of {here}; name both for a page of both"
            others.append(Omission("result", shown_path(source.path), why))
    return found, others


# ---- what is computed from a result: laws of time with their held-out checks, predictions


@dataclass(frozen=True)
class SeriesFit:
    """Cases that differ in nothing but batch and sequence. `name`: that of the first. `cases`: by
    batch and sequence, those of the `points`. `law`: None where it is refused; `held_out`: in the
    order of the grid, empty where the check is refused. `refused`: what is lacking, and why."""

    name: CaseName
    points: tuple[GridPoint, ...]
    cases: Mapping[tuple[int, int], MeasuredCase]
    law: Law | None = None
    held_out: tuple[HeldOutCell, ...] = ()
    refused: tuple[Omission, ...] = ()

    @property
    def series(self) -> str:
        name = self.name
        return "/".join((name.component, name.pass_name, name.variant, name.size, name.dtype))


def fitted(cases: Sequence[MeasuredCase]) -> SeriesFit:
    """Fits those of a series that were measured in the same rounds as most of them."""
    usual, _ = Counter(case.rounds for case in cases).most_common(1)[0]
    alike = [case for case in cases if case.rounds == usual]
    points = tuple(GridPoint(c.name.batch, c.name.seq, c.seconds) for c in alike)
    others = f"the {len(points[0].rounds)} rounds of the other cells"
    why = f"not measured in {others}, so the law is fitted without it"
    short = [case.name for case in cases if case.rounds != usual]
    refused = [Omission("time law", str(name), why) for name in short]
    by_shape = {(case.name.batch, case.name.seq): case for case in alike}
    fit = SeriesFit(cases[0].name, points, by_shape)
    try:
        fit = replace(fit, law=fit_time_law(points))
        fit = replace(fit, held_out=check_held_out(points))
    except LawRefusedError as error:
        what = "held-out check of a time law" if fit.law else "time law"
        refused.insert(0, Omission(what, fit.series, str(error)))
    return replace(fit, refused=tuple(refused))


NOT_RUN, CHECKED, CALIBRATED = "prediction", "prediction, checked", "calibrated on this size"


class PredictedStep(NamedTuple):
    """`kind`: NOT_RUN; CHECKED where the step was run, but its size did not go into the model; else
    CALIBRATED. `measured`: None where it was not run."""

    prediction: StepPrediction
    kind: str
    measured: MeasuredCase | None

    @property
    def name(self) -> CaseName:
        return self.prediction.cost.name


class Predictions(NamedTuple):
    """`steps`: one for each problem size at its own shape, smallest first, and those that were run
    at other shapes of sizes that did not go into the model. `refusal`: why there are none, where
    there may be a `model` all the same; `omissions`: single steps that cannot be predicted."""

    steps: Sequence[PredictedStep] = ()
    refusal: str = ""
    omissions: Sequence[Omission] = ()
    model: StepModel | None = None


# ---- what was read

# in place of a result that is not there
NOTHING = ResultSet((), {}, {})


class GridStudy(NamedTuple):
    """A folder of scripts/study --grid. `description`: its study.json. `check`: steps of a bigger
    size, kept apart from `results` so that nothing is calibrated on them."""

    description: Mapping[str, Any]
    results: ResultSet = NOTHING
    costs: Sequence[CaseCost] = ()
    frontier: Json | None = None
    check: ResultSet = NOTHING


@dataclass(frozen=True)
class ScalingRun:
    """`analysis`: computed from the results, not read from scaling.json. `failures`: numbers of
    ranks without a usable result."""

    path: Path
    analysis: Analysis
    failures: Sequence[Failure] = ()

    @property
    def context(self) -> Context:
        """That of the fewest ranks; all are of one device."""
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
    """What is known of one device. `main`: the result of the suite, or of a grid study, that is
    analysed; NOTHING where there is none. `study`: the one that `main` is of. `compared`: another
    result, whose variants are shown where `main` has only one. `checks`: of the GPU. `others`:
    those of further devices; `device`: the name in their headings, empty where there is one
    device. `profiles`: which do not name their device; the first device has all."""

    sources: tuple[Source, ...] = ()
    main: ResultSet = NOTHING
    study: GridStudy | None = None
    scalings: tuple[ScalingRun, ...] = ()
    omissions: tuple[Omission, ...] = ()
    compared: ResultSet = NOTHING
    checks: tuple[GpuCheck, ...] = ()
    profiles: tuple[KernelProfile, ...] = ()
    others: tuple["ReportInputs", ...] = ()
    device: str = ""

    @property
    def devices(self) -> tuple["ReportInputs", ...]:
        """This one and the others."""
        return (self, *self.others)

    @property
    def context(self) -> Context:
        """Of the analysed result, else of a data-parallel run or a check; empty without any."""
        known = (self.main, *self.scalings, *self.checks)
        return next((run.context for run in known if run.context), {})

    @property
    def has_results(self) -> bool:
        """Whether anything was measured beside checks of the GPU and profiles."""
        return bool(self.main.paths or self.study or self.scalings)

    @property
    def with_variants(self) -> ResultSet:
        """The result whose variants are shown."""
        return self.main if self.compared is NOTHING else self.compared

    def main_result(self) -> ResultSet:
        """`main`; Missing where there is none."""
        if self.main is NOTHING:
            raise Missing(f"no result of the suite was given; make one: {Kind.SUITE.command}")
        return self.main

    @cached_property
    def time_fits(self) -> list[SeriesFit]:
        """Every series, in the order of tables."""
        every: dict[CaseName, list[MeasuredCase]] = {}
        for case in in_order(self.main):
            every.setdefault(replace(case.name, batch=0, seq=0), []).append(case)
        return [fitted(cases) for cases in every.values()]

    @cached_property
    def held_out(self) -> dict[str, list[HeldOutCell]]:
        """By size, those of all series."""
        found: dict[str, list[HeldOutCell]] = {}
        for fit in self.time_fits:
            if fit.held_out:
                found.setdefault(fit.name.size, []).extend(fit.held_out)
        return found

    @cached_property
    def steps(self) -> list[StepTimes]:
        """One for each size, dtype and variant; the main step first."""
        main = main_step(self.main)
        known = (s for s in headline_steps(self.main) if s.name.size in problem_sizes())
        ordered = sorted(known, key=lambda step: step is not main)
        return [step_times(self.main, step.name) for step in ordered]

    @property
    def check_cases(self) -> tuple[MeasuredCase, ...]:
        """Steps that were measured to check predictions; they did not go into the model."""
        return tuple(self.study.check.cases.values()) if self.study else ()

    @cached_property
    def predictions(self) -> Predictions:
        """Of the main step's dtype and variant, which the model is of."""
        results, costs = self.main, self.study.costs if self.study else ()
        step = main_step(results)
        if step is None:
            why = "no training step (full_step/train) was measured to calibrate on"
            return Predictions(refusal=why)
        try:
            model = fit_step_model(results, step.name.dtype, step.name.variant)
            every, lacking = predict_steps(model, costs)
        except BadInputError as error:
            return Predictions(refusal=str(error))
        if not costs:
            why = "no costs of sizes that were not run were given: a grid study writes costs.json"
            return Predictions(refusal=why, model=model)
        known = {case.name: case for case in (*results.cases.values(), *self.check_cases)}

        def is_asked(name: CaseName) -> bool:
            return is_own_shape(name) or (name in known and name.size not in model.sizes)

        found = []
        for one in (one for one in every if is_asked(one.cost.name)):
            name, measured = one.cost.name, known.get(one.cost.name)
            kind = CHECKED if measured else NOT_RUN
            kind = CALIBRATED if name.size in model.sizes else kind
            found.append(PredictedStep(one, kind, measured))
        # each size begins with its own shape
        found.sort(key=lambda s: (name_rank(s.name)[1], not is_own_shape(s.name)))
        asked = [(cost, why) for cost, why in lacking if is_asked(cost.name)]
        omissions = [Omission("prediction", str(cost.name), why) for cost, why in asked]
        return Predictions(found, "" if found else "no step could be predicted", omissions, model)


def _attempt(omissions: list[Omission], path: Path, read: Callable[[Path], Found]) -> Found | None:
    """What `read` returns; None where it raises: then the report has an error."""
    try:
        return read(path)
    except (BadInputError, ValueError, OSError) as error:
        reason = str(error).removeprefix(f"{path}: ")
    omissions.append(Omission("file", shown_path(path), reason, is_error=True))
    return None


def _read_files(paths: Sequence[Path], omissions: list[Omission]) -> ResultSet:
    """All files as one set, without those that cannot be used or are of another run than the first
    that can: these are left out by name."""
    try:
        return read_result_set(paths) if paths else NOTHING
    except BadInputError:
        pass
    kept: list[Path] = []
    for path in paths:
        # beside the first only: so each file is read twice, not as often as there are files
        beside = [*kept[:1], path]
        if _attempt(omissions, path, lambda _, beside=beside: read_result_set(beside)) is not None:
            kept.append(path)
    return read_result_set(kept) if kept else NOTHING


def _read_check(path: Path, results: ResultSet) -> ResultSet:
    check = read_result_set([path])
    refuse_other_run(results.context, results.paths[0], check.context, path)
    return check


def _checked(path: Path, kind: str, remedy: str) -> Json:
    """The file; BadInputError names the key that does not match the schema."""
    found, _ = read_json(path)
    problem = schema_problem(found, SCHEMAS[kind])
    if problem:
        raise bad_file(path, problem, f"make it again: {remedy}")
    return found


def _read_scaling_run(path: Path, omissions: list[Omission]) -> ScalingRun:
    """BadInputError where no result can be used."""
    (results, failures), file = read_scaling_run(path), path / SCALING_FILE
    if path.is_dir() and file.exists():
        # it says what failed
        again = f"{typed('scaling')} --from FOLDER"
        _attempt(omissions, file, lambda path: _checked(path, "scaling", again))
    return ScalingRun(path, analyse(results), failures)


def _read_grid_study(folder: Path, omissions: list[Omission]) -> GridStudy:
    """What the folder holds; a file that is not there is no error. BadInputError for a bad
    study.json."""
    description = _checked(folder / STUDY, "study", Kind.STUDY.command)
    runs, products = runs_of(folder), folder / PRODUCTS
    files = [*runs, products] if runs and products.exists() else runs
    results = _read_files(files, omissions)
    if not runs:
        omissions.append(Omission("file", str(folder), why_no_run(folder), is_error=True))

    def beside(name: str, read: Callable[[Path], Found]) -> Found | None:
        """None without such a file, and for one of another device."""
        path = folder / name

        def read_own(path: Path) -> Found:
            said = read_json(path)[0].get("device")
            made_on = said.get("name") if isinstance(said, dict) else said
            here = value_at(results.context, "device.name")
            if name != CHECK and made_on and here and made_on != here:
                raise bad_file(path, f"is of {made_on}, the run of {here}", "make it there again")
            return read(path)

        return _attempt(omissions, path, read_own) if path.exists() else None

    check = None
    if results is not NOTHING:
        check = beside(CHECK, lambda path: _read_check(path, results))
    costs = beside(COSTS, read_costs)
    frontier = beside(FRONTIER, lambda path: _checked(path, "frontier", Kind.STUDY.command))
    return GridStudy(description, results, costs or (), frontier, check or NOTHING)


def _lacks(results: ResultSet) -> int:
    """The least is analysed: 0 with a training step and its parts, 1 with a step alone, else 2."""
    step = main_step(results)
    return 2 if step is None else lacks_parts(results, step.name)


def _has_variants(results: ResultSet) -> bool:
    """Whether any case was measured in two variants."""
    points = Counter(replace(case.name, variant="") for case in results.cases.values())
    return any(count > 1 for count in points.values())


def _is_again(first: ResultSet, other: ResultSet) -> bool:
    """Whether it has the cases of the first, measured again with the same build and settings."""
    if first_difference(first.context, other.context, SAME_RUN):
        return False
    return {*first.cases, *first.left_out} == {*other.cases, *other.left_out}


def _together(runs: Sequence[ResultSet]) -> ResultSet:
    """The medians over runs of the same cases."""
    files = [path for one in runs for path in one.paths]
    beside = [path.with_name(PRODUCTS) for path in files]
    return read_result_set([*files, *dict.fromkeys(filter(Path.is_file, beside))])


Read = GridStudy | ResultSet | ScalingRun | GpuCheck


def _results_in(read: Read) -> ResultSet:
    """NOTHING in a data-parallel run, a check, and in a study without a round."""
    return read if isinstance(read, ResultSet) else getattr(read, "results", NOTHING)


def _context_in(read: Read) -> Context:
    has_own = isinstance(read, (ScalingRun, GpuCheck))
    return read.context if has_own else _results_in(read).context


def _inputs_of(read: Sequence[tuple[Source, Read]]) -> ReportInputs:
    """`read`: everything of one device."""
    sources, found = zip(*read, strict=True)
    sets = [results for one in found if (results := _results_in(one)) is not NOTHING]
    main = first = min(sets, key=_lacks, default=NOTHING)
    alike = [one for one in sets if one is first or _is_again(first, one)]
    if len(alike) > 1:
        main = _together(alike)
        sets = [main, *(one for one in sets if not any(one is other for other in alike))]
    compared = NOTHING
    if main is not NOTHING and not _has_variants(main):
        compared = next(filter(_has_variants, sets), NOTHING)
    omissions = [
        Omission("result", shown_path(one.paths[0]), f"{main.title} is analysed; name it alone")
        for one in sets
        if one is not main and one is not compared
    ]
    omissions += [
        Omission("case", name, case.reason, bool(case.failed))
        for name, case in main.left_out.items()
    ]
    studies = [one for one in found if isinstance(one, GridStudy)]
    study = next((one for one in studies if one.results is first), None)
    scalings = tuple(one for one in found if isinstance(one, ScalingRun))
    checks = tuple(one for one in found if isinstance(one, GpuCheck))
    return ReportInputs(sources, main, study, scalings, tuple(omissions), compared, checks)


def _named(devices: Sequence[ReportInputs]) -> list[ReportInputs]:
    """Each with its device's name, and where names are alike what else tells devices apart."""
    names = [str(value_at(one.context, ONE_DEVICE[0]) or "unknown device") for one in devices]
    for key in ONE_DEVICE[1:]:
        if len({*names}) < len(names):
            more = [value_at(one.context, key) for one in devices]
            names = [f"{name}, {what}" for name, what in zip(names, more, strict=True)]
    return [
        replace(one, device=name, omissions=tuple(replace(o, device=name) for o in one.omissions))
        for one, name in zip(devices, names, strict=True)
    ]


def read_inputs(sources: Sequence[Source], unknown: Sequence[Omission] = ()) -> ReportInputs:
    """Reads every source; of several devices, those after the first are its `others`. `unknown`:
    what was named but is no result."""
    omissions = list(unknown)
    readers: dict[Kind, Callable[[Path], Read]] = {
        Kind.STUDY: lambda path: _read_grid_study(path, omissions),
        Kind.SUITE: lambda path: read_result_set([path]),
        Kind.SCALING: lambda path: _read_scaling_run(path, omissions),
        Kind.GPU: read_gpu_check,
    }
    groups: list[list[tuple[Source, Read]]] = []
    profiles: list[KernelProfile] = []
    for source in dict.fromkeys(sources):
        if source.kind is Kind.KERNELS:
            profile = _attempt(omissions, source.path, read_kernel_profile)
            profiles += [profile] if profile else []
            continue
        one = _attempt(omissions, source.path, readers[source.kind])
        if one is None or not (context := _context_in(one)):
            continue
        for group in groups:
            if not _is_of_another_device(_context_in(group[0][1]), context):
                group.append((source, one))
                break
        else:
            groups.append([(source, one)])
    devices = [_inputs_of(group) for group in groups] or [ReportInputs()]
    first, *others = _named(devices) if len(devices) > 1 else devices
    every = (*omissions, *first.omissions)
    return replace(first, omissions=every, others=tuple(others), profiles=tuple(profiles))
