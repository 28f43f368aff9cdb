"""Times a few training steps of a size bigger than the grid's, by which predictions are checked:
rates are calibrated on the rounds alone, which do not contain it."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.core.text import duration
from tinyllama_tools.data.names import STEP, parse_case_name
from tinyllama_tools.data.parts import OPTIMIZED
from tinyllama_tools.data.programs import UNITS, CaseCost
from tinyllama_tools.data.studies import CHECK, journal_of, journaled_names, round_file
from tinyllama_tools.grid_study.bench_process import case_of, read_document
from tinyllama_tools.grid_study.plan import CHECK_SECONDS, CHECK_STEPS, GridPlan, check_options
from tinyllama_tools.grid_study.progress import GridProgress
from tinyllama_tools.grid_study.rounds import GridStudy, run_journaled


def checked_variant(plan: GridPlan) -> str:
    """The one that a report looks into."""
    return OPTIMIZED if OPTIMIZED in plan.variants else plan.variants[0]


def attained_rate(study: GridStudy, costs: Sequence[CaseCost]) -> float | None:
    """FLOP/s of the largest training step of the first round; None where it has none."""
    flops = {str(cost.name): cost.model_flops for cost in costs}
    found: list[tuple[int, float]] = []
    for row in read_document(round_file(study.folder, 1))["benchmarks"]:
        case = case_of(row)
        name = parse_case_name(case)
        is_step = name is not None and name.component == STEP and case in flops
        if is_step and name.variant == checked_variant(study.record.plan):
            seconds = row.get("real_time", 0.0) * UNITS[row["time_unit"]]
            if seconds > 0 and not row.keys() & {"error_occurred", "skipped"}:
                found.append((flops[case], flops[case] / seconds))
    return max(found)[1] if found else None


def choose_step(
    plan: GridPlan, costs: Sequence[CaseCost], rate: float
) -> tuple[CaseCost | None, str]:
    """The largest shape of the size that fits and is expected to take CHECK_SECONDS at most; or
    None and why."""
    steps = {
        (cost.name.batch, cost.name.seq): cost
        for cost in costs
        if (cost.name.component, cost.name.size) == (STEP, plan.check_size)
        and cost.name.variant == checked_variant(plan)
    }
    why = f"its costs at {plan.check_size} are not known"
    for shape in plan.check_shapes:
        step = steps.get(shape)
        if step is None:
            continue
        seconds = (CHECK_STEPS + 1) * step.model_flops / rate
        if step.fits and seconds <= CHECK_SECONDS:
            return step, ""
        why = step.reason or f"{CHECK_STEPS + 1} steps would take {duration(seconds)}"
        why += f" at batch {step.name.batch} and sequence {step.name.seq}"
    return None, why


def write_check(study: GridStudy, costs: Sequence[CaseCost], progress: GridProgress) -> None:
    """check.json; where no step can be afforded, that is said. Raises what run_journaled does."""
    plan, path = study.record.plan, study.folder / CHECK
    if path.is_file() and not journal_of(path).is_file():
        return
    if not plan.is_checked:
        return
    rate = attained_rate(study, costs)
    if rate is None:
        progress.say(f"{CHECK} is left out: no training step was measured to estimate it by")
        return
    step, why = choose_step(plan, costs, rate)
    if step is None:
        progress.say(f"{CHECK} is left out: {why}")
        return
    names = [str(step.name)]
    progress.begin(f"check at {plan.check_size}", names, journaled_names(journal_of(path)))
    options = check_options(plan, step.name.variant, step.name.batch, step.name.seq)
    _, is_interrupted = run_journaled(study, options, path, names, "off", progress)
    journal_of(path).unlink()
    if is_interrupted:
        raise KeyboardInterrupt
    for row in read_document(path)["benchmarks"]:
        why_not = row.get("skip_message") or row.get("error_message")
        if why_not:
            progress.say(f"{CHECK} has no step: {why_not}")
