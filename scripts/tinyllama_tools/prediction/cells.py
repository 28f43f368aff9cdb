"""The measured cases that a step's parts are calibrated on, and the measured steps themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.case_costs import CaseCost
from tinyllama_tools.prediction.figures import Figures, checked, figures_of_case, seconds_of
from tinyllama_tools.prediction.layers import layer_counts
from tinyllama_tools.prediction.operator_rule import OPTIMIZER
from tinyllama_tools.prediction.refusal import RatesRefusedError
from tinyllama_tools.reading.case_name import STEP, TRAIN, CaseName, parse_case_name
from tinyllama_tools.reading.result_set import MeasuredCase
from tinyllama_tools.reading.whole_and_parts import parts_of

BLOCK, FINE = "block", ("attention", "ffn")


@dataclass(frozen=True)
class Cell:
    """A measured case of a part: seconds and operators of an iteration."""

    name: CaseName
    seconds: float
    figures: Figures
    operators: float
    layers: int

    @property
    def tokens(self) -> int:
        """B S."""
        return self.name.batch * self.name.seq


@dataclass(frozen=True)
class StepCell:
    """A step all of whose parts were measured; `seconds`: of the step itself, None where only its
    parts were."""

    name: CaseName
    seconds: float | None
    parts: tuple[tuple[Cell, int], ...]

    @property
    def flops(self) -> float:
        """model_flops of the step, which are those of its parts."""
        return sum(count * cell.figures.model_flops for cell, count in self.parts)

    @property
    def tokens(self) -> int:
        """B S."""
        return self.name.batch * self.name.seq

    @property
    def parts_seconds(self) -> float:
        """Measured, of all parts together."""
        return sum(count * cell.seconds for cell, count in self.parts)


@dataclass(frozen=True)
class Cells:
    """`parts`: by component, those that the steps are made of; `steps` in the order of FLOPs."""

    parts: Mapping[str, tuple[Cell, ...]]
    steps: tuple[StepCell, ...]

    @property
    def sizes(self) -> tuple[str, ...]:
        """Of the complete steps, in the order of FLOPs."""
        return tuple(dict.fromkeys(step.name.size for step in self.steps))

    def of_sizes(self, sizes: Collection[str]) -> Cells:
        """As if only these had been measured."""
        kept = {
            component: tuple(cell for cell in cells if cell.name.size in sizes)
            for component, cells in self.parts.items()
        }
        steps = tuple(step for step in self.steps if step.name.size in sizes)
        return Cells({name: cells for name, cells in kept.items() if cells}, steps)


def large_steps(steps: Iterable[StepCell]) -> dict[str, list[StepCell]]:
    """By size: those of at least half its largest B S."""
    by_size: dict[str, list[StepCell]] = {}
    for step in steps:
        by_size.setdefault(step.name.size, []).append(step)
    most = {size: max(step.tokens for step in found) for size, found in by_size.items()}
    return {
        size: [step for step in found if 2 * step.tokens >= most[size]]
        for size, found in by_size.items()
    }


def step_name(variant: str, size: str, dtype: str, batch: int, seq: int) -> CaseName:
    """Of a training step."""
    return CaseName(STEP, TRAIN, variant, size, dtype, batch, seq)


def part_names(
    step: CaseName, layers: int, known: Collection[str]
) -> tuple[dict[str, tuple[str, int]], tuple[str, ...]]:
    """By component: the case's name among the known ones and how often the step contains it; and
    the names that are not known.

    An optimizer does the same at every batch and sequence, so any of its size's will do.
    """
    parts = parts_of(step, layers, known)
    found = {part.case.split("/", 1)[0]: (part.case, part.count) for part in parts.measured}
    missing = []
    for text in parts.missing:
        other = _other_optimizer(text, known)
        if other is None:
            missing.append(text)
        else:
            found[OPTIMIZER] = (other, 1)
    return found, tuple(missing)


def _other_optimizer(text: str, known: Collection[str]) -> str | None:
    """A known case of the same optimizer elsewhere."""
    wanted = parse_case_name(text)
    if wanted is None or wanted.component != OPTIMIZER:
        return None
    alike = (parse_case_name(name) for name in sorted(known) if name.startswith(OPTIMIZER))
    for name in alike:
        if name and replace(name, batch=wanted.batch, seq=wanted.seq) == wanted:
            return str(name)
    return None


def _without(names: Iterable[str], components: Collection[str]) -> set[str]:
    return {name for name in names if name.split("/", 1)[0] not in components}


class _Collector:
    """Makes cells of cases once each."""

    def __init__(
        self,
        cases: Mapping[str, MeasuredCase],
        costs: Mapping[str, CaseCost],
        layers: Mapping[str, int],
    ) -> None:
        self._cases, self._costs, self._layers = cases, costs, layers
        self._cells: dict[str, Cell] = {}

    def cell(self, name: str) -> Cell:
        if name not in self._cells:
            case = self._cases[name]
            seconds = seconds_of(case)
            if "operators" not in case.counters:
                raise RatesRefusedError(
                    f"{name}: the row has no counter operators; measure again with this version"
                )
            self._cells[name] = Cell(
                case.name,
                seconds,
                figures_of_case(case, self._costs.get(name)),
                checked(case.counters["operators"], name, "operators"),
                self._layers[case.name.size],
            )
        return self._cells[name]

    def collect(self, steps: Sequence[CaseName], names: Collection[str]) -> Cells:
        parts: dict[str, dict[str, Cell]] = {}
        complete = []
        for step in steps:
            found, missing = part_names(step, self._layers[step.size], names)
            for component, (name, _) in found.items():
                parts.setdefault(component, {})[name] = self.cell(name)
            if missing:
                continue
            case = self._cases.get(str(step))
            pairs = tuple((self.cell(name), count) for name, count in found.values())
            complete.append(StepCell(step, seconds_of(case) if case else None, pairs))
        kept = {component: tuple(cells.values()) for component, cells in parts.items()}
        return Cells(kept, tuple(sorted(complete, key=lambda step: step.flops)))


def _parameters(
    cases: Mapping[str, MeasuredCase], costs: Mapping[str, CaseCost]
) -> dict[tuple[str, str], float]:
    found = {(c.name.size, c.name.component): float(c.parameters) for c in costs.values()}
    for case in cases.values():
        if (value := case.counters.get("parameters")) is not None:
            found[case.name.size, case.name.component] = value
    return found


def collect_cells(
    cases: Mapping[str, MeasuredCase],
    costs: Mapping[str, CaseCost],
    dtype: str,
    variant: str,
) -> Cells:
    """Of one dtype and variant. `cases`, `costs`: by name.

    Layers are described by attention, ffn and norms, or by block where that was measured at more
    sizes. RatesRefusedError naming a part that no step can do without and nobody measured, and a
    figure that is not finite.
    """
    layers = layer_counts(_parameters(cases, costs))
    of_dtype = {text: case for text, case in cases.items() if case.name.dtype == dtype}
    # where a size's layers cannot be told, some part was neither measured nor asked for
    circumstances = sorted(
        {
            (name.size, name.batch, name.seq)
            for name in (case.name for case in of_dtype.values())
            if name.size in layers
        }
    )
    steps = [step_name(variant, size, dtype, batch, seq) for size, batch, seq in circumstances]
    collector = _Collector(of_dtype, costs, layers)
    schemes = [collector.collect(steps, _without(of_dtype, hidden)) for hidden in ((BLOCK,), FINE)]
    best = max(schemes, key=lambda cells: len(cells.sizes))
    if not best.steps:
        raise RatesRefusedError(_what_is_missing(steps, of_dtype, layers, dtype, variant))
    return best


def _what_is_missing(
    steps: Sequence[CaseName],
    names: Collection[str],
    layers: Mapping[str, int],
    dtype: str,
    variant: str,
) -> str:
    """The fewest parts that would have to be measured too."""
    remedy = (
        "measure embedding, attention, ffn, rms_norm, loss, optimizer and full_step of one size"
    )
    lacking = [part_names(step, layers[step.size], names)[1] for step in steps]
    if not lacking:
        return f"no part of a {variant} step was measured in {dtype}; {remedy}"
    return f"not measured: {', '.join(min(lacking, key=len))}; {remedy}"
