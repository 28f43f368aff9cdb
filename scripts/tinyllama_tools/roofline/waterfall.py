"""Where the time of a training step goes: bars of its parts that add up to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.reading.result_set import ResultSet
from tinyllama_tools.reading.whole_and_parts import BASELINE
from tinyllama_tools.roofline.step_parts import REST, MeasuredStep, StepPart, read_step
from tinyllama_tools.roofline.variant_switches import switches_of
from tinyllama_tools.suite_run import problem_sizes

# Switches of the update alone: the model runs as the baseline's.
UPDATE_SWITCHES = frozenset({"foreach_adamw", "fused_adamw"})
OPTIMIZER, MODEL = "optimizer", "model"
FINAL_NORM = "final norm"
OTHER = "other"


@dataclass(frozen=True)
class Bar:
    """All `count` of a part together. `case`: the case that it comes from; empty for a remainder,
    whose `seconds` are below 0 where parts measured alone do work that the step shares."""

    name: str
    seconds: float
    count: int = 1
    case: str = ""


@dataclass(frozen=True)
class Waterfall:
    """`bars`: of the closure, and `phases`: forward, backward, optimizer, other; both in order, the
    remainder last, and both add up to `step_seconds`. The missing: names of the cases without which
    a remainder holds more than it should."""

    step: CaseName
    step_seconds: float
    bars: tuple[Bar, ...]
    missing: tuple[str, ...]
    phases: tuple[Bar, ...]
    phases_missing: tuple[str, ...]


def _label(part: StepPart) -> str:
    if part.component == "rms_norm" and part.count == 1:
        return FINAL_NORM
    return part.component if part.count == 1 else f"{part.count} x {part.component}"


def _bars(step: MeasuredStep) -> tuple[Bar, ...]:
    bars = [
        Bar(_label(part), part.seconds, part.count, str(part.name))
        for part in step.parts
        if part.seconds is not None
    ]
    absent = [_label(part) for part in step.parts if part.case is None]
    bars.append(Bar(", ".join([*absent, REST]), step.rest_seconds))
    return tuple(bars)


def _model_case(step: MeasuredStep, pass_name: str, measured: Mapping[str, object]) -> str:
    """The name of the model's case of the same kind as the step's model."""
    name = replace(step.case.name, component=MODEL, pass_name=pass_name)
    baseline = replace(name, variant=BASELINE)
    if str(name) not in measured and switches_of(step.case) <= UPDATE_SWITCHES:
        return str(baseline)
    return str(name)


def _model_bars(forward: Bar | None, backward: Bar | None, both: Bar | None) -> list[Bar]:
    """Of the model's passes as far as those that were measured tell them apart; a difference that
    is not above 0 tells nothing."""
    if forward and both and both.seconds > forward.seconds:
        backward = Bar("backward", both.seconds - forward.seconds, case=both.case)
    elif backward and both and not forward and both.seconds > backward.seconds:
        forward = Bar("forward", both.seconds - backward.seconds, case=both.case)
    if forward and backward:
        return [forward, backward]
    if both:
        return [replace(both, name="forward and backward")]
    return [bar for bar in (forward, backward) if bar]


def _phases(step: MeasuredStep, result_set: ResultSet) -> tuple[tuple[Bar, ...], tuple[str, ...]]:
    cases = result_set.cases

    def measured(name: str, case: str) -> Bar | None:
        return Bar(name, cases[case].median_seconds, case=case) if case in cases else None

    names = {
        "forward": _model_case(step, "forward_loss", cases),
        "both": _model_case(step, "forward_backward", cases),
        "backward": _model_case(step, "backward", cases),
    }
    found = {phase: measured(phase, case) for phase, case in names.items()}
    bars = _model_bars(found["forward"], found["backward"], found["both"])
    update = next(part for part in step.parts if part.component == OPTIMIZER)
    missing = _missing_phases(bars, names, found)
    if update.seconds is None:
        missing.append(str(update.name))
    else:
        bars.append(Bar(OPTIMIZER, update.seconds, case=str(update.name)))
    rest = step.case.median_seconds - sum(bar.seconds for bar in bars)
    bars.append(Bar(", ".join([*_absent(bars), OTHER]), rest))
    return tuple(bars), tuple(missing)


def _absent(bars: Sequence[Bar]) -> list[str]:
    """The phases that only the remainder has."""
    shown = " ".join(bar.name for bar in bars)
    return [phase for phase in ("forward", "backward", OPTIMIZER) if phase not in shown]


def _missing_phases(
    bars: Sequence[Bar], names: Mapping[str, str], found: Mapping[str, Bar | None]
) -> list[str]:
    """Of the model's cases, those that would tell the phases apart; nothing where they do."""
    if {"forward", "backward"} <= {bar.name for bar in bars}:
        return []
    return [names[phase] for phase in ("forward", "both") if found[phase] is None]


def waterfall(
    result_set: ResultSet, step: CaseName, sizes: Mapping[str, Mapping[str, int]] | None = None
) -> Waterfall:
    """Of a measured case full_step/train. `sizes`: fixtures/problem_sizes.json unless given.

    With fused_loss, the LM head's gradients are computed in the forward, which is then the longer.
    BadInputError as speed_of_light, less what concerns peaks.
    """
    measured = read_step(result_set, step, problem_sizes() if sizes is None else sizes)
    phases, phases_missing = _phases(measured, result_set)
    return Waterfall(
        step,
        measured.case.median_seconds,
        _bars(measured),
        measured.missing,
        phases,
        phases_missing,
    )
