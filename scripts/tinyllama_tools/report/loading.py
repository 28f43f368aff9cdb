"""Reads the results that a report is made from; what cannot be used is named, the rest is kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

from tinyllama_tools.ablation_files import read_study as read_ablation
from tinyllama_tools.core.app import SUITE_FILE, BadInputError, Json
from tinyllama_tools.data.json_files import MEASURE_AGAIN, bad_file, read_json
from tinyllama_tools.data.profiles import BadProfileError, check_summary
from tinyllama_tools.data.programs import CaseCost, read_case_costs
from tinyllama_tools.data.results import ResultSet, add_products, read_result_set, refuse_other_run
from tinyllama_tools.data.studies import (
    CHECK,
    COSTS,
    FRONTIER,
    PRODUCTS,
    SCHEMA_VERSION,
    rounds_of,
    why_no_round,
)
from tinyllama_tools.report.document import Omission, not_foreseen
from tinyllama_tools.report.frontier_file import read_frontier
from tinyllama_tools.report.inputs import Ablation, GridStudy, ReportInputs, TrainingRun
from tinyllama_tools.report.kinds import STUDY_FILE, Kind, Source, is_grid_study
from tinyllama_tools.report.scaling_file import read_scaling_run
from tinyllama_tools.report.selection import main_step, missing_parts

# counters of a case that its costs must agree with: neither depends on how it was run
COUNTED = ("parameters", "model_flops", "bytes")
# of files whose folder says more than their name
COMMON_NAMES = (SUITE_FILE, "round_1.json", "peers.json")
Found = TypeVar("Found")


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
            counted, foretold = case.counters.get(name), getattr(cost, name)
            if counted is not None and counted != float(foretold):
                raise bad_file(
                    path,
                    f"{cost.name}: {name} is {foretold:,}, the rounds have {counted:,.0f}",
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
