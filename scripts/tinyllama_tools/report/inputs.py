"""Everything a report is made from, read and checked, and what follows from it, computed once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    SUITE_FILE,
    BadInputError,
    Json,
    bad_file,
    read_json,
)
from tinyllama_tools.data.names import STEP, TRAIN, CaseName
from tinyllama_tools.data.profiles import BadProfileError, check_summary
from tinyllama_tools.data.programs import CaseCost, read_case_costs
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
    SCHEMA_VERSION,
    rounds_of,
    why_no_round,
)
from tinyllama_tools.models.ablations import Study as AblationStudy
from tinyllama_tools.models.ablations import read_study as read_ablation
from tinyllama_tools.models.speed_of_light import SpeedOfLight, Waterfall
from tinyllama_tools.report.analysis import (
    Predictions,
    SeriesFit,
    all_lights,
    all_sums_of_parts,
    is_same_device,
    main_light,
    main_step,
    main_sum_of_parts,
    memory_fits,
    missing_parts,
    predictions_of,
    time_fits,
)
from tinyllama_tools.report.document import Omission, case_text, not_foreseen
from tinyllama_tools.report.scaling_runs import ScalingRun, read_scaling_run
from tinyllama_tools.report.sources import (
    STUDY_FILE,
    FrontierFile,
    Kind,
    Source,
    is_grid_study,
    read_frontier,
)

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
        of = self.summary["configuration"]
        axes = (of["variant"], of["size"], of["dtype"], of["batch_size"], of["seq_len"])
        return CaseName(STEP, TRAIN, *axes)

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
    omissions: tuple[Omission, ...] = field(default=())

    @property
    def main(self) -> ResultSet | None:
        """What is analysed; the others are compared with it."""
        return self.sets[0] if self.sets else None

    @property
    def costs(self) -> Sequence[CaseCost]:
        """Of the first study of the same machine that has some: what fits is the machine's."""
        return next((s.costs for s in self.studies if s.costs and self._is_of_main(s.results)), ())

    def _is_of_main(self, results: ResultSet | None) -> bool:
        if self.main is None:
            return True
        return results is not None and is_same_device(results.context, self.main.context)

    @property
    def check_cases(self) -> tuple[MeasuredCase, ...]:
        """Steps of the same machine that were measured to check predictions by."""
        return tuple(
            case
            for study in self.studies
            if study.check is not None and self._is_of_main(study.check)
            for case in study.check.cases.values()
        )

    @cached_property
    def time_fits(self) -> list[SeriesFit]:
        """Laws of time of the first result."""
        return time_fits(self.main) if self.main is not None else []

    @cached_property
    def memory_fits(self) -> list[SeriesFit]:
        """Laws of peak memory of the first result."""
        return memory_fits(self.main) if self.main is not None else []

    @cached_property
    def light(self) -> tuple[SpeedOfLight | None, str]:
        """Of the main step; or None and why."""
        return main_light(self.main)

    @cached_property
    def lights(self) -> tuple[list[SpeedOfLight], list[Omission]]:
        """Of one step a size, dtype and variant of the first result; and of which it is refused."""
        return all_lights(self.main) if self.main is not None else ([], [])

    @cached_property
    def sums_of_parts(self) -> list[Waterfall]:
        """Of one step a size, dtype and variant of the first result."""
        return all_sums_of_parts(self.main) if self.main is not None else []

    @cached_property
    def sum_of_parts(self) -> tuple[Waterfall | None, str]:
        """Of the main step; or None and why."""
        return main_sum_of_parts(self.main)

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
        for results in reversed(self.sets):
            if is_same_device(results.context, self.main.context):
                found |= {n: c for n, c in results.cases.items() if c.name.component == STEP}
        return found | {str(case.name): case for case in self.check_cases}

    @cached_property
    def predictions(self) -> Predictions:
        """Of steps that were not run."""
        return predictions_of(self.main, self.costs, self.known_steps)

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be used."""
        kinds = (self.sets, self.trainings, self.ablations, self.frontiers, self.scalings)
        return not any(kinds)


# counters of a case that its costs must agree with: neither depends on how it was run
COUNTED = ("parameters", "model_flops", "bytes")
# of files whose folder says more than their name
COMMON_NAMES = (SUITE_FILE, "round_1.json", "peers.json")


class _Reading:
    """Collects what could not be read beside what could."""

    def __init__(self) -> None:
        self.omissions: list[Omission] = []

    def attempt(self, path: Path, read: Callable[[], Found]) -> Found | None:
        """What `read` returns, None where it refuses, which is then an error of the report."""
        try:
            return read()
        except (BadInputError, BadProfileError, ValueError, OSError) as error:
            self.error(path, str(error))
        except Exception as error:
            # a fault of ours in reading one file must not cost the reader the others
            self.error(path, not_foreseen(error))
        return None

    def error(self, path: Path, reason: str) -> None:
        """The reason without the path, which stands beside it."""
        self.omissions.append(
            Omission("file", str(path), reason.removeprefix(f"{path}: "), is_error=True)
        )


def read_rounds(paths: Sequence[Path], reading: _Reading) -> ResultSet | None:
    """All rounds as one set. Where one cannot be used, or is of another device, torch or commit
    than the first that can, it is left out by name and the others stay."""
    try:
        return read_result_set(paths)
    except BadInputError:
        pass
    kept: list[Path] = []
    for path in paths:
        # beside the first alone: each file is read twice, not as often as there are files
        beside = [*kept[:1], path]
        if reading.attempt(path, lambda beside=beside: read_result_set(beside)) is not None:
            kept.append(path)
    return read_result_set(kept) if kept else None


def _with_products(results: ResultSet, path: Path) -> ResultSet:
    return add_products(results, read_result_set([path]))


def _read_check(path: Path, results: ResultSet) -> ResultSet:
    check = read_result_set([path])
    refuse_other_run(results.context, results.paths[0], check.context, path)
    return check


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


def read_grid_study(folder: Path, reading: _Reading) -> GridStudy | None:
    """What the folder holds; files that are not there are missing parts, not errors."""
    description_path = folder / STUDY_FILE
    description = reading.attempt(description_path, lambda: _read_description(description_path))
    if description is None:
        return None
    rounds = rounds_of(folder)
    results = read_rounds(rounds, reading) if rounds else None
    if not rounds:
        reading.error(folder, why_no_round(folder))

    def beside(name: str, read: Callable[[Path], Found]) -> Found | None:
        path = folder / name
        return reading.attempt(path, lambda: read(path)) if path.exists() else None

    check = None
    if results is not None:
        measured = results
        results = beside(PRODUCTS, lambda path: _with_products(measured, path)) or measured
        check = beside(CHECK, lambda path: _read_check(path, measured))
    costs = beside(COSTS, lambda path: _read_costs(path, results))
    frontier = beside(FRONTIER, read_frontier)
    return GridStudy(folder, description, results, costs or (), frontier, check)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"holds {text}, which is no number of JSON; {MEASURE_AGAIN}")


def _read_training(path: Path) -> TrainingRun:
    _, data = read_json(path)
    return TrainingRun(path, check_summary(json.loads(data, parse_constant=_no_number), path))


def _read_ablation(path: Path) -> Ablation:
    return Ablation(path, read_ablation(path))


def analysed_first(sets: Sequence[ResultSet]) -> list[ResultSet]:
    """The first that has a training step with its parts comes first, else the first that has a
    step; the others keep their order."""

    def lacks(results: ResultSet) -> int:
        step = main_step(results)
        if step is None:
            return 2
        return 1 if missing_parts(results, step.name) else 0

    best = min(sets, key=lacks, default=None)
    return [*([best] if best is not None else []), *(one for one in sets if one is not best)]


def with_own_titles(sets: Sequence[ResultSet]) -> list[ResultSet]:
    """Results of one device, commit and day are told apart by their file, too."""
    titles = Counter(results.title for results in sets)
    found: list[ResultSet] = []
    for results in sets:
        if titles[results.title] > 1:
            path = results.paths[0]
            place = path.name if path.name not in COMMON_NAMES else path.parent.name
            results = replace(results, title=f"{results.title} · {place}")
        found.append(results)
    return found


def read_inputs(
    sources: Sequence[Source], absent: Sequence[Kind] = (), unknown: Sequence[Omission] = ()
) -> ReportInputs:
    """Reads every source. `unknown`: what was named but is no result."""
    reading = _Reading()
    sets: list[ResultSet] = []
    studies, trainings, ablations, frontiers, scalings = [], [], [], [], []
    for source in dict.fromkeys(sources):
        path = source.path
        if source.kind == Kind.STUDY:
            study = read_grid_study(path, reading)
            if study is not None:
                studies.append(study)
                sets += [study.results] if study.results is not None else []
        elif source.kind == Kind.SUITE:
            result = reading.attempt(path, lambda path=path: read_result_set([path]))
            sets += [result] if result is not None else []
        elif source.kind == Kind.TRAINING:
            training = reading.attempt(path, lambda path=path: _read_training(path))
            trainings += [training] if training is not None else []
        elif source.kind == Kind.FRONTIER:
            frontier = reading.attempt(path, lambda path=path: read_frontier(path))
            frontiers += [frontier] if frontier is not None else []
        elif source.kind == Kind.SCALING:
            scaling = reading.attempt(path, lambda path=path: read_scaling_run(path))
            scalings += [scaling] if scaling is not None else []
        else:
            ablation = reading.attempt(path, lambda path=path: _read_ablation(path))
            ablations += [ablation] if ablation is not None else []
    return ReportInputs(
        tuple(sources),
        tuple(with_own_titles(analysed_first(sets))),
        tuple(studies),
        tuple(trainings),
        tuple(ablations),
        (*frontiers, *(study.frontier for study in studies if study.frontier)),
        tuple(scalings),
        tuple(absent),
        (*unknown, *reading.omissions),
    )
