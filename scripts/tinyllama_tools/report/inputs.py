"""Everything a report is made from, read and checked, and what follows from it, computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tinyllama_tools.ablation_study import Study as AblationStudy
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.machine import SAME_DEVICE, first_difference
from tinyllama_tools.data.names import STEP, TRAIN, CaseName
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.models.speed_of_light import SpeedOfLight, Waterfall
from tinyllama_tools.report.document import Omission
from tinyllama_tools.report.frontier_file import FrontierFile
from tinyllama_tools.report.kinds import Kind, Source
from tinyllama_tools.report.predicted import Predictions, predictions_of
from tinyllama_tools.report.scaling_file import ScalingRun
from tinyllama_tools.report.scaling_fits import SeriesFit, memory_fits, time_fits
from tinyllama_tools.report.step_analysis import all_closures, all_lights, main_closure, main_light
from tinyllama_tools.report.wording import case_text


def is_same_device(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two contexts are of one device with as many threads."""
    return first_difference(one, other, SAME_DEVICE) is None


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
    def closures(self) -> list[Waterfall]:
        """Of one step a size, dtype and variant of the first result."""
        return all_closures(self.main) if self.main is not None else []

    @cached_property
    def closure(self) -> tuple[Waterfall | None, str]:
        """Of the main step; or None and why."""
        return main_closure(self.main)

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
