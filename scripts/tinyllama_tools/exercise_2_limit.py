"""Exercise 2: the longest sequence, predicted from the suite's formulas and confirmed by a step."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from tinyllama_tools.data.programs import SuiteError
from tinyllama_tools.exercise_2_runs import LONGEST_RUN, MemoryRuns, base_options
from tinyllama_tools.exercise_runs import MeasuredRun, PlannedRun, median_step_seconds
from tinyllama_tools.study.size_predictions import (
    CONFIRMED_SHARE,
    ModelQuestion,
    Predictor,
    Target,
    find_target,
)
from tinyllama_tools.worksheet import megabytes, number, percent, question

DIMENSIONS = ("vocab_size", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "intermediate_dim")


@dataclass(frozen=True)
class Limit:
    """What was predicted (None and why not) and the run that confirms it (None where none did)."""

    batch: int
    target: Target | None
    reason: str = ""
    run: MeasuredRun | None = None


def model_question(run: MeasuredRun, batch: int, seq: int, device: str) -> ModelQuestion:
    """About the very model that a run has trained."""
    model = tuple(
        f"--{name.replace('_', '-')}={run.value(f'configuration.{name}')}" for name in DIMENSIONS
    )
    return ModelQuestion(
        sizes=("custom",),
        dtype=str(run.value("configuration.dtype")),
        variants=(str(run.value("configuration.variant")),),
        batch=(batch,),
        seq=(seq,),
        device=device,
        model=model,
    )


def predict_limit(runs: MemoryRuns, options: Namespace, predictor: Predictor) -> Limit:
    """The longest sequence at the worksheet's batch, from the longest one that was measured."""
    measured = [(shape, run) for shape, run in runs.by_seq.items() if run.summary]
    if not measured:
        return Limit(runs.batch, None, "no sequence length was measured")
    (seq, batch), run = measured[-1]
    seconds, _ = median_step_seconds(run)
    try:
        known = predictor(model_question(run, batch, seq, options.device))[0]
        asked = model_question(run, runs.batch, seq, options.device)
        most = 60 * options.max_minutes
        return Limit(runs.batch, find_target(predictor, asked, (known, seconds or 0.0), most))
    except SuiteError as error:
        return Limit(runs.batch, None, str(error))


def confirming_run(limit: Limit, options: Namespace) -> PlannedRun | None:
    """One step at the longest sequence that is safe to run; None where there is none."""
    if limit.target is None or limit.target.confirmable is None:
        return None
    seq = limit.target.confirmable.seq
    return PlannedRun(LONGEST_RUN, base_options(options, limit.batch, seq, 1))


def confirmation_text(limit: Limit, target: Target) -> tuple[str, list[str]]:
    """What the run showed, and its sources."""
    found, run = target.confirmable, limit.run
    if found is None or run is None:
        return f"Not confirmed by a run: {target.held_back_by}.", []
    if run.reason:
        return f"Not confirmed: the step at {found.seq} tokens failed: {run.reason}.", []
    peak = run.figure("summary.peak_memory_bytes")
    predicted = run.figure("model.predicted_peak_memory_bytes")
    off = 100 * (peak.value / predicted.value - 1) if peak.value and predicted.value else None
    why = (
        f"the rule is at most {CONFIRMED_SHARE:.0%} of the free memory"
        if target.held_back_by == "memory"
        else "a longer one would take more than --max-minutes"
    )
    text = (
        f"Confirmed by one step at {found.seq} tokens ({why}): peak {megabytes(peak.value)}, "
        f"predicted {megabytes(predicted.value)}, {percent(off)} apart; it took "
        f"{number(run.value('summary.first_step_seconds'), 's')}, estimated "
        f"{number(target.confirmable_seconds, 's')}."
    )
    return text, [peak.source, predicted.source, run.source("summary.first_step_seconds")]


def limit_section(limit: Limit) -> list[str]:
    """The answer to step 3's last question."""
    asked = "3. At what sequence length do you hit memory limits?"
    target = limit.target
    if target is None:
        return question(asked, f"not predicted: {limit.reason}.")
    if target.fitting is None:
        return question(asked, f"At batch {limit.batch} {target.held_back_by}.")
    confirmed, origin = confirmation_text(limit, target)
    return question(
        asked,
        f"At batch {limit.batch} the longest that fits is {target.fitting.seq} tokens, predicted "
        f"peak {megabytes(target.fitting.peak_memory_bytes)} (`tiny_llama_bench --dry-run` over "
        f"the sequence). {confirmed}",
        *origin,
    )
