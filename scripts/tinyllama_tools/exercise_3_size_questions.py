"""The analysis questions and criteria of the walkthrough's chapter 6, answered by the sizes."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.bottlenecks import amdahl
from tinyllama_tools.exercise_3_scaling import (
    all_sources,
    attention_memory_answer,
    each,
    power_text,
    throughput_exponent,
    throughput_text,
)
from tinyllama_tools.exercise_3_sizes import (
    BATCH_GAIN,
    SizeStudy,
    batch_gain,
    core_percent,
    distance_to_ridge,
    largest_fitting,
    name_of,
    overhead_ratio,
    sequence_exponents,
    shares,
)
from tinyllama_tools.exercise_runs import UTILIZATION, MeasuredRun, median_step_seconds
from tinyllama_tools.study.size_predictions import Prediction
from tinyllama_tools.worksheet import (
    MEGABYTE,
    NOT_MEASURED,
    number,
    percent,
    question,
)

PREDICTED = "tiny_llama_bench --dry-run: peak memory"
# Growth of memory between these is neither linear nor quadratic.
LINEAR_UP_TO, QUADRATIC_FROM = 1.25, 1.75
# A size that takes longer is none for a class to wait for.
WORKSHOP_SECONDS, WORKSHOP_STEPS = 300.0, 50
COMPONENTS = "operators.components"


def dominating_answer(runs: Sequence[MeasuredRun]) -> str:
    """Attention or FFN, a size after the other."""

    def text(run: MeasuredRun) -> str:
        found = shares(run)
        if not found:
            return NOT_MEASURED
        attention, ffn = found["attention"], found["ffn"]
        winner = "attention" if attention > ffn else "FFN"
        return f"{winner} ({percent(attention)} against {percent(ffn)})"

    return f"Attention against FFN: {each(runs, text)}."


def sequence_answer(study: SizeStudy) -> str:
    """How memory grows with S."""
    lengths = [p.seq for p in study.forecasts.sequences]
    short, long = sequence_exponents(study.forecasts)
    if short is None or long is None:
        return "Not known: fewer than two sequence lengths were predicted."

    def word(exponent: float) -> str:
        if exponent < LINEAR_UP_TO:
            return "linear or less"
        return "quadratic" if exponent > QUADRATIC_FROM else "between linear and quadratic"

    size = study.forecasts.sequences[0].size
    return (
        f"{word(long)[0].upper()}{word(long)[1:]} at the long end: S ^ {long:.2f} up to "
        f"S = {lengths[-1]}; {word(short)} at the short end: S ^ {short:.2f} from S = {lengths[0]} "
        f"({size}; rule: linear below {LINEAR_UP_TO}, quadratic above {QUADRATIC_FROM})."
    )


def flash_answer(runs: Sequence[MeasuredRun]) -> str:
    """The size with the largest share in scores, softmax and values."""
    found = [(run, share) for run in runs if (share := core_percent(run)) is not None]
    if not found:
        return f"Attention's core was {NOT_MEASURED}."
    best, share = max(found, key=lambda pair: pair[1])
    limit = amdahl(min(share, 99.9) / 100, 2.0)
    text = ", ".join(f"{name_of(run)} {percent(s)}" for run, s in found)
    return (
        f"{name_of(best)}: scores, softmax and values take {percent(share)} there (all: {text}); "
        f"at half their time the step is {limit:.2f}x as fast (rule: the largest share)."
    )


def bound_extremes(runs: Sequence[MeasuredRun]) -> str:
    """Which size is the most memory-bound, which the most compute-bound."""
    found = [(run, value) for run in runs if (value := distance_to_ridge(run)) is not None]
    if len(found) < 2:
        return "Not known: fewer than two sizes have a roofline."
    low, high = min(found, key=lambda p: p[1]), max(found, key=lambda p: p[1])
    return (
        f"Most memory-bound: {name_of(low[0])} at {number(low[1])}x the ridge's intensity; most "
        f"compute-bound: {name_of(high[0])} at {number(high[1])}x (below 1x memory is the roof)."
    )


def batch_recommendation(study: SizeStudy) -> str:
    """The batch for medium, by what fits and what a larger batch gains."""
    fitting = [p.batch for p in study.forecasts.medium if p.fits]
    if not fitting:
        return "None: medium does not fit even at batch 1."
    gain = batch_gain(study.batches)
    most, own = max(fitting), next(p.batch for p in study.forecasts.own if p.size == "medium")
    memory = next(p for p in study.forecasts.medium if p.batch == most).peak_memory_bytes
    room = f"batch {most} is the largest that fits ({memory / MEGABYTE:,.0f} MB predicted)"
    if gain is None:
        return f"{min(own, most)}: {room}; the gain of a larger batch was {NOT_MEASURED}."
    run = study.batches[-1]
    shape = f"{name_of(run)} at {run.value('configuration.seq_len')} tokens"
    rule = f"rule: {100 * (BATCH_GAIN - 1):.0f} % more samples/s a doubling; measured with {shape}"
    if gain >= BATCH_GAIN:
        return f"{most}: {room}, and a doubling still gains {gain:.2f}x ({rule})."
    return f"{min(own, most)}: {room}, but a doubling gains only {gain:.2f}x ({rule})."


def fit_text(prediction: Prediction | None) -> str:
    """Name and predicted memory."""
    if prediction is None:
        return "none"
    memory = f"{prediction.peak_memory_bytes / MEGABYTE:,.0f} MB"
    return f"{prediction.size} ({prediction.parameters:,} parameters, {memory} predicted)"


def largest_answer(study: SizeStudy) -> str:
    """Of the five, as configured and at batch 1."""
    f = study.forecasts
    checks = [
        f"{name_of(run)} predicted / measured {predicted / measured:.3f}"
        for run in study.runs
        if (measured := run.value("summary.peak_memory_bytes"))
        and (predicted := run.value("model.predicted_peak_memory_bytes"))
    ]
    own, single, lean = (fit_text(largest_fitting(found)) for found in (f.own, f.single, f.lean))
    return (
        f"{own} as configured; at batch 1 {single}; with checkpointing as well {lean}. Trust in "
        f"the prediction: {', '.join(checks) or NOT_MEASURED}."
    )


def improvement_answer(runs: Sequence[MeasuredRun]) -> str:
    """Of medium, or the largest size that ran: its largest component."""
    run = next((r for r in runs if name_of(r) == "medium"), runs[-1] if runs else None)
    components = (run.value("operators") or {}).get("components") if run else None
    if not run or not components:
        return f"The components of no size were {NOT_MEASURED}."
    top = max(components, key=lambda c: c["percent"])
    other = "" if name_of(run) == "medium" else " (medium was not run)"
    limit = amdahl(min(top["percent"], 99.9) / 100, 2.0)
    return (
        f"Attack {top['name']} first: {percent(top['percent'])} of {name_of(run)}{other}; twice as "
        f"fast there makes the step {limit:.2f}x as fast."
    )


def workshop_answer(runs: Sequence[MeasuredRun]) -> str:
    """The largest size that a class can wait for."""
    times = [(run, seconds) for run in runs if (seconds := median_step_seconds(run)[0])]
    within = [(r, s) for r, s in times if WORKSHOP_STEPS * s <= WORKSHOP_SECONDS]
    rule = f"rule: the largest whose {WORKSHOP_STEPS} steps take up to {WORKSHOP_SECONDS:g} s"
    text = ", ".join(f"{name_of(r)} {WORKSHOP_STEPS * s:.3g} s" for r, s in times)
    best = name_of(within[-1][0]) if within else "none"
    return f"{best[0].upper()}{best[1:]}: {text} ({rule})."


def utilization_peak(runs: Sequence[MeasuredRun]) -> str:
    """The size with the highest MFU."""
    found = [(name_of(run), v) for run in runs if (v := run.figure(UTILIZATION).value) is not None]
    if not found:
        return f"Utilization was {NOT_MEASURED}."
    best, value = max(found, key=lambda pair: pair[1])
    return (
        f"{best}: {percent(value)} MFU (all: {', '.join(f'{n} {percent(v)}' for n, v in found)})."
    )


Answer = tuple[str, str, list[str]]


def scaling_answers(runs: Sequence[MeasuredRun]) -> list[Answer]:
    """Group 1: question, answer, keys."""
    power = power_text(throughput_exponent(runs))
    return [
        (
            "1. How does throughput scale with model size?",
            f"{power[0].upper()}{power[1:]}: {throughput_text(runs)}.",
            all_sources(runs, "summary.samples_per_second"),
        ),
        (
            "1. At what model size does GPU utilization peak?",
            utilization_peak(runs),
            all_sources(runs, UTILIZATION),
        ),
        (
            "1. Which component (attention vs FFN) dominates compute time?",
            dominating_answer(runs),
            all_sources(runs, COMPONENTS),
        ),
    ]


def memory_answers(study: SizeStudy) -> list[Answer]:
    """Group 2."""
    runs = study.runs
    return [
        (
            "2. How does memory scale with sequence length? (linear, quadratic, other?)",
            sequence_answer(study),
            [PREDICTED],
        ),
        (
            "2. What is the memory overhead ratio (peak / parameters)?",
            f"Peak over parameters: {each(runs, lambda r: f'{number(overhead_ratio(r))}x')}.",
            all_sources(runs, "summary.peak_memory_bytes, model.model_size_bytes"),
        ),
        (
            "2. At what point does attention memory become significant?",
            attention_memory_answer(study),
            [PREDICTED, *all_sources(runs, "memory.breakdown_at_peak")],
        ),
    ]


def optimization_answers(study: SizeStudy) -> list[Answer]:
    """Group 3."""
    return [
        (
            "3. Which model size would benefit most from Flash Attention?",
            flash_answer(study.runs),
            all_sources(study.runs, COMPONENTS),
        ),
        (
            "3. Which size is most memory-bound vs compute-bound?",
            bound_extremes(study.runs),
            all_sources(study.runs, "flops.roofline_data"),
        ),
        (
            "3. What batch size would you recommend for medium model?",
            batch_recommendation(study),
            [PREDICTED, *all_sources(study.batches, "steps")],
        ),
    ]


def practical_answers(study: SizeStudy) -> list[Answer]:
    """Group 4."""
    return [
        (
            "4. What's the largest model you can train on your GPU?",
            largest_answer(study),
            [PREDICTED],
        ),
        (
            "4. How would you improve throughput for the medium model?",
            improvement_answer(study.runs),
            all_sources(study.runs, COMPONENTS),
        ),
        (
            "4. What's the optimal problem size for this workshop?",
            workshop_answer(study.runs),
            all_sources(study.runs, "steps"),
        ),
    ]


def size_questions(study: SizeStudy) -> list[str]:
    """The twelve questions of 6.8."""
    answers = [
        *scaling_answers(study.runs),
        *memory_answers(study),
        *optimization_answers(study),
        *practical_answers(study),
    ]
    lines = ["### Analysis questions on the sizes", ""]
    for text, answer, keys in answers:
        lines += question(text, answer, *keys)
    return lines
