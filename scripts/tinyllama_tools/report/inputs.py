"""Everything a report is made from: found, told apart, read and checked, and what follows from it,
computed once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tinyllama_tools.core.app import (
    SUITE_FILE,
    BadInputError,
    Json,
    bad_file,
    read_json,
    schema_problem,
    shown_path,
)
from tinyllama_tools.data.names import STEP, TRAIN, CaseName
from tinyllama_tools.data.profiles import SUMMARY as TRAINING_FILE
from tinyllama_tools.data.profiles import BadProfileError, check_summary, is_training_summary
from tinyllama_tools.data.programs import CaseCost, read_costs
from tinyllama_tools.data.ranks import Failure, read_results
from tinyllama_tools.data.results import (
    MeasuredCase,
    ResultSet,
    add_products,
    read_result_set,
    refuse_other_run,
)
from tinyllama_tools.data.studies import (
    AXES,
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
from tinyllama_tools.models.ablations import RESULT as ABLATION_FILE
from tinyllama_tools.models.ablations import Study as AblationStudy
from tinyllama_tools.models.ablations import read_study as read_ablation
from tinyllama_tools.models.data_parallel import Analysis, analyse
from tinyllama_tools.models.speed_of_light import StepTimes, step_times
from tinyllama_tools.report.analysis import (
    Predictions,
    SeriesFit,
    headline_steps,
    is_same_device,
    lacks_parts,
    main_step,
    predictions_of,
    time_fits,
)
from tinyllama_tools.report.document import (
    NO_RESULT,
    Kind,
    Missing,
    Omission,
    not_foreseen,
    step_text,
)

Found = TypeVar("Found")


class Source(NamedTuple):
    """A result to read. `path`: the folder of a grid study or of a data-parallel run, the file of
    any other kind, and of a data-parallel result that somebody named alone."""

    kind: Kind
    path: Path


# of a folder the first that is there says what it is
FILES = (STUDY, SUITE_FILE, ABLATION_FILE, TRAINING_FILE, FRONTIER, SCALING_FILE)
NAME_A_RESULT = "name a result of scripts/bench, scripts/study, scripts/scaling or scripts/ablation"


def _is_study(document: Json) -> bool:
    return document.get("kind") == KIND and "schema_version" in document


def _is_frontier(document: Json) -> bool:
    return "limit_bytes" in document and any(axis.key in document for axis in AXES.values())


# the first that holds; of those in folders the path is the folder
KINDS: tuple[tuple[Callable[[Json], bool], Kind, bool], ...] = (
    (_is_study, Kind.STUDY, True),
    (is_training_summary, Kind.TRAINING, False),
    (lambda found: {"format_version", "meta", "main"} <= set(found), Kind.ABLATION, False),
    (_is_frontier, Kind.FRONTIER, False),
    (
        lambda found: found.get("kind") == SCALING_KIND and "schema_version" in found,
        *(Kind.SCALING, True),
    ),
    (is_scaling_result, Kind.SCALING, False),
    (is_result, Kind.SUITE, False),
)


def source_of(path: Path) -> Source:
    """What a path that somebody named is; BadInputError where it is no result, or unreadable."""
    if path.is_dir():
        inside = next((path / name for name in FILES if (path / name).exists()), None)
        if inside == path / STUDY or (inside is None and any(path.glob(RANK_FILES))):
            # a damaged study.json is named as such when it is read
            return Source(Kind.STUDY if inside else Kind.SCALING, path)
        if inside is None:
            known = f"{', '.join(FILES)} or {RANK_FILES}"
            raise BadInputError(f"{path}: holds none of {known}; {NAME_A_RESULT}")
        path = inside
    document, _ = read_json(path)
    for holds, kind, is_folder in KINDS:
        if holds(document):
            return Source(kind, path.parent if is_folder else path)
    known = ", ".join(list(document)[:5]) or "none"
    raise bad_file(
        path, f"is no result that this report knows: its keys are {known}", NAME_A_RESULT
    )


# 20260131T080000Z_amd_instinct_mi300x, performance_results_tiny_20260131_080000
TIME = re.compile(r"(\d{8})[T_](\d{6})")
TRAINING_SIZE = re.compile(r"performance_results_(.+)_\d{8}_\d{6}")


def _time_of(folder: Path) -> tuple[str, ...]:
    """By its name, which survives copying; empty of a folder without a time in it."""
    found = TIME.search(folder.name)
    return found.groups() if found else ()


def _document(path: Path) -> Json | None:
    """None of a damaged file, which is named as such when it is read."""
    try:
        return read_json(path)[0]
    except BadInputError:
        return None


class Newest(NamedTuple):
    """`sources`: the newest of each kind, grid study first; `absent`: the kinds of which there is
    none; `passed_over`: newer studies that have measured nothing to report on."""

    sources: list[Source]
    absent: list[Kind]
    passed_over: list[Omission]


def newest_sources(results: Path) -> Newest:
    """What a report takes where nothing was named. OSError where `results` cannot be listed."""
    listed = results.iterdir() if results.is_dir() else ()
    dated = [path for path in listed if path.is_dir() and _time_of(path)]
    folders = sorted(dated, key=lambda path: (_time_of(path), path.name), reverse=True)
    found: dict[Kind, list[Path]] = {kind: [] for kind in Kind}
    passed_over: list[Omission] = []
    for folder in (folder for folder in folders if (folder / STUDY).exists()):
        # a damaged one is taken, and named when it is read
        document = _document(folder / STUDY)
        if document is not None and not _is_study(document):
            continue
        if rounds_of(folder):
            found[Kind.STUDY] = [folder]
            break
        passed_over.append(Omission("grid study", str(folder), why_no_round(folder)))

    def newest(name: str) -> list[Path]:
        """The files of this name, the newest first."""
        return [folder / name for folder in folders if (folder / name).is_file()]

    # scripts/study makes a folder a size
    trainings: dict[str, Path] = {}
    for path in newest(TRAINING_FILE):
        if of := TRAINING_SIZE.fullmatch(path.parent.name):
            trainings.setdefault(of[1], path)
    found[Kind.TRAINING] = list(trainings.values())
    found[Kind.SUITE], found[Kind.ABLATION] = newest(SUITE_FILE)[:1], newest(ABLATION_FILE)[:1]
    found[Kind.SCALING] = [path.parent for path in newest(SCALING_FILE)[:1]]
    # a study has its own
    del found[Kind.FRONTIER]
    sources = [Source(kind, path) for kind, paths in found.items() for path in paths]
    return Newest(sources, [kind for kind, paths in found.items() if not paths], passed_over)


class GridStudy(NamedTuple):
    """A folder of scripts/study. `description`: its study.json; `frontier`: None where there is
    none; `results`: None where no round could be used; `check`: steps of a bigger size, which are
    no part of `results` so that nothing is calibrated on them."""

    description: Mapping[str, Any]
    results: ResultSet | None
    costs: Sequence[CaseCost] = ()
    frontier: Json | None = None
    check: ResultSet | None = None


class TrainingRun(NamedTuple):
    """A performance_summary.json of tiny_llama_train. `name`: no other run of the report has it."""

    path: Path
    summary: Json
    name: str = ""

    @property
    def step_name(self) -> CaseName:
        """Of the case of the suite that does the same where `is_case`."""
        keys = ("variant", "size", "dtype", "batch_size", "seq_len")
        return CaseName(STEP, TRAIN, *(self.summary["configuration"][key] for key in keys))

    @property
    def is_case(self) -> bool:
        """Of one rank, with an update after each batch."""
        accumulated = self.summary["configuration"]["gradient_accumulation_steps"]
        return accumulated == 1 and not self.summary.get("distributed")


class Ablation(NamedTuple):
    """An ablation.json."""

    path: Path
    study: AblationStudy


@dataclass(frozen=True)
class ScalingRun:
    """`analysis`: made anew of the results. `failures`: numbers of ranks without a usable result.
    `projection`: of scaling.json; None where there is no such file, or where it is damaged, which
    `refusal` says."""

    path: Path
    analysis: Analysis
    failures: tuple[Failure, ...] = ()
    projection: Json | None = None
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
    analyses. `frontiers`: those of studies come last. `absent`: kinds of which there was none."""

    sources: tuple[Source, ...] = ()
    sets: tuple[ResultSet, ...] = ()
    studies: tuple[GridStudy, ...] = ()
    trainings: tuple[TrainingRun, ...] = ()
    ablations: tuple[Ablation, ...] = ()
    frontiers: tuple[Json, ...] = ()
    scalings: tuple[ScalingRun, ...] = ()
    absent: tuple[Kind, ...] = ()
    omissions: tuple[Omission, ...] = ()

    @property
    def main(self) -> ResultSet | None:
        """What is analysed; the others are compared with it."""
        return self.sets[0] if self.sets else None

    def main_result(self) -> ResultSet:
        """The same for sections that show it; raises Missing where there is none."""
        if self.main is None:
            raise Missing(NO_RESULT)
        return self.main

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

    @cached_property
    def time_fits(self) -> list[SeriesFit]:
        return time_fits(self.main) if self.main is not None else []

    @cached_property
    def _steps(self) -> tuple[list[StepTimes], list[Omission]]:
        found, refused = [], []
        for step in headline_steps(self.main) if self.main is not None else ():
            try:
                found.append(step_times(self.main, step.name))
            except BadInputError as error:
                reason = str(error).removeprefix(f"{step.name}: ")
                refused.append(Omission("step", str(step.name), reason))
        main = main_step(self.main) if self.main is not None else None
        return sorted(found, key=lambda of: main is None or of.step != main.name), refused

    @property
    def steps(self) -> list[StepTimes]:
        """One a size, dtype and variant, the one that is looked into first."""
        return self._steps[0]

    @property
    def refused_steps(self) -> list[Omission]:
        return self._steps[1]

    @property
    def no_step(self) -> str:
        """Why there is none."""
        main = self.main_result()
        reasons = [one.reason for one in self.refused_steps]
        return next(iter(reasons), f"{main.title} has no training step (full_step/train)")

    @cached_property
    def predictions(self) -> Predictions:
        return predictions_of(self.main, self.costs, self.check_cases)


def _attempt(omissions: list[Omission], path: Path, read: Callable[[Path], Found]) -> Found | None:
    """What `read` returns, None where it refuses, which is then an error of the report."""
    try:
        return read(path)
    except (BadInputError, BadProfileError, ValueError, OSError) as error:
        reason = str(error).removeprefix(f"{path}: ")
    except Exception as error:
        # a fault of ours in reading one file must not cost the reader the others
        reason = not_foreseen(error)
    omissions.append(Omission("file", shown_path(path), reason, is_error=True))
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


def _checked(path: Path, kind: str, remedy: str) -> Json:
    """BadInputError names the key that does not keep the schema."""
    found, _ = read_json(path)
    problem = schema_problem(found, SCHEMAS[kind])
    if problem:
        raise bad_file(path, problem, f"make it again: {remedy}")
    return found


def read_frontier(path: Path) -> Json:
    return _checked(path, "frontier", Kind.FRONTIER.command)


AGAIN = "scripts/scaling --from FOLDER"


def read_scaling_run(path: Path) -> ScalingRun:
    """BadInputError where no result can be used."""
    read = read_results(path)
    run = ScalingRun(path, analyse(read.results), read.failures)
    document = path / SCALING_FILE
    if not path.is_dir() or not document.exists():
        return run
    try:
        return replace(run, projection=_checked(document, "scaling", AGAIN)["projection"])
    except BadInputError as error:
        return replace(run, refusal=str(error).removeprefix(f"{document}: "))


def _read_grid_study(folder: Path, omissions: list[Omission]) -> GridStudy | None:
    """What the folder holds; files that are not there are missing parts, not errors."""
    description = _attempt(
        omissions,
        folder / STUDY,
        lambda path: _checked(path, "study", Kind.STUDY.command),
    )
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
    costs = beside(COSTS, lambda path: tuple(read_costs(path)))
    return GridStudy(description, results, costs or (), beside(FRONTIER, read_frontier), check)


def _analysed_first(sets: Sequence[ResultSet]) -> list[ResultSet]:
    """The first that has a training step with its parts comes first, else the first that has a
    step; the others keep their order."""

    def lacks(results: ResultSet) -> int:
        step = main_step(results)
        return 2 if step is None else lacks_parts(results, step.name)

    best = min(sets, key=lacks, default=None)
    return [one for one in sets if one is best] + [one for one in sets if one is not best]


# of files whose folder says more than their name
COMMON_NAMES = (SUITE_FILE, TRAINING_FILE, "round_1.json", "peers.json")


def _own_names(names: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """Those that several share get the name of their file or folder behind them, or where that is
    shared too, their path."""
    own = list(names)
    short = [path.parent.name if path.name in COMMON_NAMES else path.name for path in paths]
    for places in (short, [shown_path(path) for path in paths]):
        shared = {name for name, times in Counter(own).items() if times > 1}
        every = zip(names, own, places, strict=True)
        own = [f"{name} · {place}" if now in shared else now for name, now, place in every]
    return own


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
        results = one if source.kind is Kind.SUITE else getattr(one, "results", None)
        sets += [results] if results is not None else []
    of_studies = [study.frontier for study in found[Kind.STUDY] if study.frontier]
    sets, runs = _analysed_first(sets), found[Kind.TRAINING]
    titles = _own_names([of.title for of in sets], [of.paths[0] for of in sets])
    names = _own_names([step_text(of.step_name) for of in runs], [of.path for of in runs])
    return ReportInputs(
        tuple(sources),
        tuple(replace(of, title=title) for of, title in zip(sets, titles, strict=True)),
        tuple(found[Kind.STUDY]),
        tuple(run._replace(name=name) for run, name in zip(runs, names, strict=True)),
        tuple(found[Kind.ABLATION]),
        (*found[Kind.FRONTIER], *of_studies),
        tuple(found[Kind.SCALING]),
        tuple(absent),
        tuple(omissions),
    )
