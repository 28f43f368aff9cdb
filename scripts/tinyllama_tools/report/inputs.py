"""Everything a report is made from, read and checked, and what follows from it, computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from tinyllama_tools.core.app import (
    SUITE_FILE,
    BadInputError,
    Json,
    bad_file,
    read_json,
    schema_problem,
)
from tinyllama_tools.data.names import STEP, TRAIN, CaseName
from tinyllama_tools.data.profiles import BadProfileError, check_summary
from tinyllama_tools.data.programs import CaseCost, read_case_costs
from tinyllama_tools.data.ranks import Failure, read_again
from tinyllama_tools.data.results import (
    MeasuredCase,
    ResultSet,
    add_products,
    read_result_set,
    refuse_other_run,
)
from tinyllama_tools.data.studies import (
    CHECK,
    COSTS,
    FRONTIER,
    PRODUCTS,
    SCALING_FILE,
    SCALING_SCHEMA_VERSION,
    SCHEMA_VERSION,
    STUDY,
    rounds_of,
    why_no_round,
)
from tinyllama_tools.models.ablations import Study as AblationStudy
from tinyllama_tools.models.ablations import read_study as read_ablation
from tinyllama_tools.models.data_parallel import Analysis, analyse
from tinyllama_tools.models.prediction import (
    RatesRefusedError,
    calibrate_rates,
    check_against,
    predict_steps,
)
from tinyllama_tools.models.scaling_projection import ProjectedStep
from tinyllama_tools.models.speed_of_light import SpeedOfLight, Waterfall, speed_of_light, waterfall
from tinyllama_tools.report.analysis import (
    CALIBRATED,
    CHECKED,
    NOT_RUN,
    PredictedStep,
    Predictions,
    SeriesFit,
    headline_steps,
    is_own_shape,
    is_same_device,
    main_step,
    memory_fits,
    missing_parts,
    rank,
    sizes_by_name,
    time_fits,
)
from tinyllama_tools.report.document import Omission, case_text, not_foreseen
from tinyllama_tools.report.sources import FrontierFile, Kind, Source, is_grid_study, read_frontier

Found = TypeVar("Found")


@dataclass(frozen=True)
class GridStudy:
    """A folder of scripts/study --grid. `description`: its study.json; `frontier`: None
    where there is none; `results`: None where no round could be used; `check`: steps of a bigger
    size, which are no part of `results` so that nothing is calibrated on them."""

    folder: Path
    description: Mapping[str, Any]
    results: ResultSet | None
    costs: Sequence[CaseCost] = ()
    frontier: FrontierFile | None = None
    check: ResultSet | None = None


@dataclass(frozen=True)
class TrainingRun:
    """A performance_summary.json of tiny_llama_train."""

    path: Path
    summary: Json

    @property
    def step_name(self) -> CaseName:
        """The case of the suite that does the same."""
        keys = ("variant", "size", "dtype", "batch_size", "seq_len")
        return CaseName(STEP, TRAIN, *(self.summary["configuration"][key] for key in keys))

    @property
    def name(self) -> str:
        """`tiny, baseline, f32, batch 8 x sequence 128`."""
        return case_text(self.step_name)


@dataclass(frozen=True)
class Ablation:
    """An ablation.json."""

    path: Path
    study: AblationStudy


@dataclass(frozen=True)
class StatedLocalStep:
    """One device's step that projections start from. `low`, `high`: seconds, of a predicted one,
    which `range_words` names; of a measured one there are none."""

    name: str
    kind: str
    seconds: float
    low: float
    high: float
    range_words: str
    source: str


@dataclass(frozen=True)
class ScalingRun:
    """`analysis`: made anew of the results. `failures`: numbers of ranks without a usable result.
    `projections`, `local_steps`, `projection`: the rows and the rest of what scaling.json says of
    them; empty where there is no such file, or where it is damaged, which `refusal` says."""

    path: Path
    analysis: Analysis
    failures: tuple[Failure, ...] = ()
    projections: tuple[ProjectedStep, ...] = ()
    local_steps: tuple[StatedLocalStep, ...] = ()
    projection: Mapping[str, Any] | None = None
    refusal: str = ""

    @property
    def title(self) -> str:
        """`tiny, baseline, f32: 1, 2, 4 ranks (weak)`."""
        name = next((one.name for one in self.analysis.results if one.name is not None), None)
        ranks = ", ".join(str(one.ranks) for one in self.analysis.results)
        what = f"{name.size}, {name.variant}, {name.dtype}" if name else "collectives"
        return f"{what}: {ranks} ranks ({self.analysis.results[0].scaling})"


@dataclass(frozen=True)
class ReportInputs:
    """`sets`: every result of the suite, grid studies' included; the first one is what the report
    analyses. `frontiers`: those of studies come last.
    `absent`: kinds of which there was none."""

    sources: tuple[Source, ...] = ()
    sets: tuple[ResultSet, ...] = ()
    studies: tuple[GridStudy, ...] = ()
    trainings: tuple[TrainingRun, ...] = ()
    ablations: tuple[Ablation, ...] = ()
    frontiers: tuple[FrontierFile, ...] = ()
    scalings: tuple[ScalingRun, ...] = ()
    absent: tuple[Kind, ...] = ()
    omissions: tuple[Omission, ...] = ()

    @property
    def main(self) -> ResultSet | None:
        """What is analysed; the others are compared with it."""
        return self.sets[0] if self.sets else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be used."""
        kinds = (self.sets, self.trainings, self.ablations, self.frontiers, self.scalings)
        return not any(kinds)

    def _is_of_main(self, results: ResultSet | None) -> bool:
        if self.main is None:
            return True
        return results is not None and is_same_device(results.context, self.main.context)

    @property
    def costs(self) -> Sequence[CaseCost]:
        """Of the first study of the same machine that has some: what fits is the machine's."""
        return next((s.costs for s in self.studies if s.costs and self._is_of_main(s.results)), ())

    @property
    def check_cases(self) -> tuple[MeasuredCase, ...]:
        """Steps of the same machine that were measured to check predictions by."""
        checks = (study.check for study in self.studies if study.check is not None)
        return tuple(c for one in checks if self._is_of_main(one) for c in one.cases.values())

    @property
    def known_steps(self) -> dict[str, MeasuredCase]:
        """Training steps on the first result's device, by name: of training runs, which know no
        more than the time, of every result, and of checks; the later instead of the earlier."""
        if self.main is None:
            return {}
        found = {}
        for run in reversed(self.trainings):
            seconds = run.summary["summary"]["median_step_seconds"]
            if seconds and is_same_device(run.summary["context"], self.main.context):
                found[str(run.step_name)] = MeasuredCase(run.step_name, (seconds,), {})
        for results in filter(self._is_of_main, reversed(self.sets)):
            found |= {n: c for n, c in results.cases.items() if c.name.component == STEP}
        return found | {str(case.name): case for case in self.check_cases}

    @cached_property
    def time_fits(self) -> list[SeriesFit]:
        """Laws of time of the first result."""
        return time_fits(self.main) if self.main is not None else []

    @cached_property
    def memory_fits(self) -> list[SeriesFit]:
        """Laws of peak memory of the first result."""
        return memory_fits(self.main) if self.main is not None else []

    def _of_main_step(
        self, analyse: Callable[[ResultSet, CaseName], Found]
    ) -> tuple[Found | None, str]:
        if self.main is None:
            return None, "no result of the suite was given"
        step = main_step(self.main)
        if step is None:
            return None, f"{self.main.title} has no training step (full_step/train)"
        try:
            return analyse(self.main, step.name), ""
        except BadInputError as error:
            return None, str(error)

    @cached_property
    def light(self) -> tuple[SpeedOfLight | None, str]:
        """Of the main step; or None and why."""
        return self._of_main_step(speed_of_light)

    @cached_property
    def sum_of_parts(self) -> tuple[Waterfall | None, str]:
        """Of the main step; or None and why."""
        return self._of_main_step(waterfall)

    def _of_headline_steps(
        self, analyse: Callable[[ResultSet, CaseName], Found]
    ) -> tuple[list[Found], list[Omission]]:
        found, refused = [], []
        for step in headline_steps(self.main) if self.main is not None else ():
            try:
                found.append(analyse(self.main, step.name))
            except BadInputError as error:
                reason = str(error).removeprefix(f"{step.name}: ")
                refused.append(Omission("speed of light", str(step.name), reason))
        return found, refused

    @cached_property
    def lights(self) -> tuple[list[SpeedOfLight], list[Omission]]:
        """Of one step a size, dtype and variant of the first result; and of which it is refused."""
        return self._of_headline_steps(speed_of_light)

    @cached_property
    def sums_of_parts(self) -> list[Waterfall]:
        """Of one step a size, dtype and variant of the first result. The main step's refusal is
        told where its parts are shown."""
        return self._of_headline_steps(waterfall)[0]

    @cached_property
    def predictions(self) -> Predictions:
        """Of steps that were not run."""
        return predictions_of(self.main, self.costs, self.known_steps)


NO_STEP = "no training step (full_step/train) was measured to calibrate on"
NO_COSTS = "no costs of sizes that were not run were given: a grid study writes costs.json"


def predictions_of(
    results: ResultSet | None, costs: Sequence[CaseCost], known: Mapping[str, MeasuredCase]
) -> Predictions:
    """In the dtype and variant of the main step of `results`, which the rates come from: of steps
    at their problem size's own shape, and of those that were run.

    `known`: steps of the same machine by name, from wherever they were run.
    """
    step = main_step(results) if results is not None else None
    if results is None or step is None:
        return Predictions(refusal=NO_STEP)
    if not costs:
        return Predictions(refusal=NO_COSTS)
    of = step.name
    asked = {
        str(cost.name): cost
        for cost in costs
        if (cost.name.component, cost.name.dtype, cost.name.variant) == (STEP, of.dtype, of.variant)
        and (is_own_shape(cost.name) or str(cost.name) in known)
    }
    if not asked:
        what = f"{of.variant} step in {of.dtype} at a size's own batch and sequence"
        return Predictions(refusal=f"costs.json has no {what}")
    try:
        rates = calibrate_rates(results, of.dtype, of.variant)
        every, refused = predict_steps(rates, costs)
    except RatesRefusedError as error:
        return Predictions(refusal=str(error))
    found = []
    for one in every:
        name, is_calibrated = str(one.name), one.name.size in rates.sizes
        if name not in asked or (is_calibrated and not is_own_shape(one.name)):
            continue
        case = known.get(name)
        kind = CALIBRATED if is_calibrated else NOT_RUN if case is None else CHECKED
        measured = (case.median_seconds, check_against(one, case)) if case is not None else ()
        found.append(PredictedStep(asked[name], one, kind, *measured))
    order = tuple(sizes_by_name())
    found.sort(
        key=lambda one: (
            *(rank(one.cost.name.size, order), not is_own_shape(one.cost.name)),
            *(one.cost.name.batch, one.cost.name.seq),
        )
    )
    omissions = [Omission("prediction", r.name, r.reason) for r in refused if r.name in asked]
    return Predictions(found, "" if found else "no step could be predicted", omissions)


def _attempt(omissions: list[Omission], path: Path, read: Callable[[Path], Found]) -> Found | None:
    """What `read` returns, None where it refuses, which is then an error of the report."""
    try:
        return read(path)
    except (BadInputError, BadProfileError, ValueError, OSError) as error:
        reason = str(error).removeprefix(f"{path}: ")
    except Exception as error:
        # a fault of ours in reading one file must not cost the reader the others
        reason = not_foreseen(error)
    omissions.append(Omission("file", str(path), reason, is_error=True))
    return None


def _read_rounds(paths: Sequence[Path], omissions: list[Omission]) -> ResultSet | None:
    """All rounds as one set. Where one cannot be used, or is of another device, torch or commit
    than the first that can, it is left out by name and the others stay."""
    try:
        return read_result_set(paths) if paths else None
    except BadInputError:
        pass
    kept: list[Path] = []
    for path in paths:
        # beside the first alone: each file is read twice, not as often as there are files
        beside = [*kept[:1], path]
        if _attempt(omissions, path, lambda _, beside=beside: read_result_set(beside)) is not None:
            kept.append(path)
    return read_result_set(kept) if kept else None


def _read_check(path: Path, results: ResultSet) -> ResultSet:
    check = read_result_set([path])
    refuse_other_run(results.context, results.paths[0], check.context, path)
    return check


# counters of a case that its costs must agree with: neither depends on how it was run
COUNTED = ("parameters", "model_flops", "bytes")


def _read_costs(path: Path, results: ResultSet | None) -> tuple[CaseCost, ...]:
    """BadInputError, too, where they are not of the cases that were measured."""
    costs = tuple(read_case_costs(read_json(path)[0]))
    for cost in costs:
        case = results.cases.get(str(cost.name)) if results is not None else None
        for name in COUNTED if case is not None else ():
            counted, predicted = case.counters.get(name), getattr(cost, name)
            if counted is not None and counted != float(predicted):
                raise bad_file(
                    path,
                    f"{cost.name}: {name} is {predicted:,}, the rounds have {counted:,.0f}",
                    "these are costs of another program or size; make the study again",
                )
    return costs


def _read_description(path: Path) -> Json:
    document, _ = read_json(path)
    if not is_grid_study(document):
        raise bad_file(path, "is no study of a grid", "make one: scripts/study tiny small")
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        rule = f"must be {SCHEMA_VERSION}"
        raise bad_file(path, f"schema_version is {version!r}, {rule}", "make the study again")
    return document


def _read_grid_study(folder: Path, omissions: list[Omission]) -> GridStudy | None:
    """What the folder holds; files that are not there are missing parts, not errors."""
    description = _attempt(omissions, folder / STUDY, _read_description)
    if description is None:
        return None
    rounds = rounds_of(folder)
    results = _read_rounds(rounds, omissions)
    if not rounds:
        omissions.append(Omission("file", str(folder), why_no_round(folder), is_error=True))

    def beside(name: str, read: Callable[[Path], Found]) -> Found | None:
        path = folder / name
        return _attempt(omissions, path, read) if path.exists() else None

    check = None
    if results is not None:
        measured = results
        found = beside(PRODUCTS, lambda path: add_products(measured, read_result_set([path])))
        results = found or measured
        check = beside(CHECK, lambda path: _read_check(path, measured))
    costs = beside(COSTS, lambda path: _read_costs(path, results))
    frontier = beside(FRONTIER, read_frontier)
    return GridStudy(folder, description, results, costs or (), frontier, check)


# of fields that JSON gives
TYPES: Mapping[str, Json] = {
    "str": {"type": "string"},
    "int": {"type": "number"},
    "float": {"type": "number"},
    "float | None": {"type": ["number", "null"]},
}


def _rows_of(kind: type) -> Json:
    """The schema of a list of rows with the fields of a data class."""
    properties = {field.name: TYPES[str(field.type)] for field in fields(kind)}
    row = {"type": "object", "required": list(properties), "properties": properties}
    return {"type": "array", "items": row}


PROJECTION: Mapping[str, Json] = {
    "steps": _rows_of(ProjectedStep),
    "local_steps": _rows_of(StatedLocalStep),
    "interconnects": {"type": "array"},
    "missing": {"type": "object"},
}
SCALING_SCHEMA: Json = {
    "type": "object",
    "required": ["schema_version", "projection"],
    "properties": {
        "schema_version": {"const": SCALING_SCHEMA_VERSION},
        "projection": {"type": "object", "required": list(PROJECTION), "properties": PROJECTION},
    },
}


def _rows(kind: type[Found], rows: Sequence[Json]) -> tuple[Found, ...]:
    return tuple(kind(**{field.name: row[field.name] for field in fields(kind)}) for row in rows)


def read_scaling_run(path: Path) -> ScalingRun:
    """BadInputError where no result can be used."""
    read = read_again(path)
    run = ScalingRun(path, analyse(read.results), read.failures)
    document = path / SCALING_FILE
    if not path.is_dir() or not document.exists():
        return run
    try:
        found, _ = read_json(document)
        problem = schema_problem(found, SCALING_SCHEMA)
        if problem:
            raise bad_file(document, problem, "make it again: scripts/scaling --from FOLDER")
    except BadInputError as error:
        return replace(run, refusal=str(error).removeprefix(f"{document}: "))
    projection = found["projection"]
    return replace(
        run,
        projections=_rows(ProjectedStep, projection["steps"]),
        local_steps=_rows(StatedLocalStep, projection["local_steps"]),
        projection=projection,
    )


def _analysed_first(sets: Sequence[ResultSet]) -> list[ResultSet]:
    """The first that has a training step with its parts comes first, else the first that has a
    step; the others keep their order."""

    def lacks(results: ResultSet) -> int:
        step = main_step(results)
        return 2 if step is None else bool(missing_parts(results, step.name))

    best = min(sets, key=lacks, default=None)
    return [one for one in sets if one is best] + [one for one in sets if one is not best]


# of files whose folder says more than their name
COMMON_NAMES = (SUITE_FILE, "round_1.json", "peers.json")


def _with_own_titles(sets: Sequence[ResultSet]) -> Iterator[ResultSet]:
    """Those that share one get the name of their file or folder behind it."""
    titles = Counter(results.title for results in sets)
    for results in sets:
        path = results.paths[0]
        place = path.name if path.name not in COMMON_NAMES else path.parent.name
        is_shared = titles[results.title] > 1
        yield replace(results, title=f"{results.title} · {place}") if is_shared else results


def read_inputs(
    sources: Sequence[Source], absent: Sequence[Kind] = (), unknown: Sequence[Omission] = ()
) -> ReportInputs:
    """Reads every source. `unknown`: what was named but is no result."""
    omissions = list(unknown)
    readers: dict[Kind, Callable[[Path], Any]] = {
        Kind.STUDY: partial(_read_grid_study, omissions=omissions),
        Kind.SUITE: lambda path: read_result_set([path]),
        Kind.TRAINING: lambda path: TrainingRun(path, check_summary(read_json(path)[0], path)),
        Kind.FRONTIER: read_frontier,
        Kind.ABLATION: lambda path: Ablation(path, read_ablation(path)),
        Kind.SCALING: read_scaling_run,
    }
    found: dict[Kind, list[Any]] = {kind: [] for kind in Kind}
    sets: list[ResultSet] = []
    for source in dict.fromkeys(sources):
        one = _attempt(omissions, source.path, readers[source.kind])
        if one is None:
            continue
        found[source.kind].append(one)
        if source.kind is Kind.SUITE:
            sets.append(one)
        elif source.kind is Kind.STUDY and one.results is not None:
            sets.append(one.results)
    of_studies = [study.frontier for study in found[Kind.STUDY] if study.frontier]
    return ReportInputs(
        tuple(sources),
        tuple(_with_own_titles(_analysed_first(sets))),
        *(tuple(found[kind]) for kind in (Kind.STUDY, Kind.TRAINING, Kind.ABLATION)),
        (*found[Kind.FRONTIER], *of_studies),
        tuple(found[Kind.SCALING]),
        tuple(absent),
        tuple(omissions),
    )
