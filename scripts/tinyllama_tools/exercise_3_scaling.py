"""Chapter 6 of the walkthrough: how the problem sizes compare."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tinyllama_tools.exercise_3_sizes import (
    SATURATED_GAIN,
    SIGNIFICANT_PERCENT,
    SizeStudy,
    attention_memory_percent,
    batch_gain,
    distance_to_ridge,
    exponent_over_parameters,
    intensity,
    name_of,
    overhead_ratio,
    saturation,
    scores_percent,
)
from tinyllama_tools.exercise_runs import (
    UTILIZATION,
    MeasuredRun,
    median_step_seconds,
    samples_per_second,
)
from tinyllama_tools.worksheet import MEGABYTE, NOT_MEASURED, number, percent, question, table

LINEAR = 0.15
GIGA = 1e9
FOLDERS = "performance_results_*"
RATES = f"{FOLDERS}/performance_summary.json: steps, model.flops_per_step"


def each(runs: Sequence[MeasuredRun], value: Callable[[MeasuredRun], str]) -> str:
    """`tiny 3.1, small 2.9`."""
    return ", ".join(f"{name_of(run)} {value(run)}" for run in runs)


def all_sources(runs: Sequence[MeasuredRun], key: str) -> list[str]:
    """That key of every run; of the sizes' folders, which differ in size and time only, once."""
    found = (run.source(key) for run in runs)
    return list(dict.fromkeys(re.sub(r"^performance_results_[^/]*", FOLDERS, s) for s in found))


def scaling_table(study: SizeStudy) -> list[str]:
    """The performance scaling table, all five sizes: those that were not run with their reason."""
    rows = []
    by_name = {name_of(run): run for run in study.runs}
    reasons = dict(study.left_out)
    for prediction in study.forecasts.own:
        size, run = prediction.size, by_name.get(prediction.size)
        if run is None:
            reason = reasons.get(size, "not asked for")
            peak = f"{prediction.peak_memory_bytes / MEGABYTE:,.0f} (predicted)"
            rows.append((size, f"{prediction.parameters:,}", f"not run: {reason}", peak, "not run"))
            continue
        seconds, _ = median_step_seconds(run)
        speed, _ = samples_per_second(run)
        peak_bytes = run.value("summary.peak_memory_bytes") or 0
        parameters = f"{run.value('model.total_parameters'):,}"
        peak = f"{peak_bytes / MEGABYTE:,.1f}"
        rows.append((size, parameters, number(speed), peak, f"{seconds:.4g}" if seconds else "-"))
    header = (
        "Problem Size",
        "Parameters",
        "Throughput (samples/s)",
        "Memory (MB)",
        "Time/Iter (s)",
    )
    where = all_sources(study.runs, "model.total_parameters, steps, summary.peak_memory_bytes")
    names = ", ".join(f"`{run.name}`" for run in study.runs)
    folders = f"Folders, below that of the profiles: {names or 'none'}."
    return ["### Performance scaling", "", *table(header, rows, *where), folders, ""]


def power_text(exponent: float | None) -> str:
    """`it goes with parameters ^ -1.30`."""
    if exponent is None:
        return "not known: two measured sizes are needed"
    return f"it goes with parameters ^ {exponent:.2f}"


def linear_word(exponent: float | None) -> str:
    """Whether a figure follows the parameter count in proportion."""
    if exponent is None:
        return "not known: two measured sizes are needed"
    is_linear = abs(abs(exponent) - 1) <= LINEAR
    rule = f"rule: linear within {LINEAR:g} of 1"
    return f"{'Yes' if is_linear else 'No'}: {power_text(exponent)} ({rule})"


def throughput_text(runs: Sequence[MeasuredRun]) -> str:
    """Samples a second of every size."""
    return each(runs, lambda run: f"{number(samples_per_second(run)[0])} samples/s")


def throughput_exponent(runs: Sequence[MeasuredRun]) -> float | None:
    """Of samples a second over the parameter count."""
    return exponent_over_parameters(runs, "summary.samples_per_second")


def saturation_answer(runs: Sequence[MeasuredRun]) -> str:
    """At which size the device is saturated."""
    size, rates = saturation(runs)
    text = ", ".join(f"{name} {number(rate / GIGA)} GFLOP/s" for name, rate in rates)
    rule = f"rule: the next size attains less than {100 * (SATURATED_GAIN - 1):.0f} % more"
    if size:
        return f"At {size}: {text} ({rule})."
    return f"Not within the measured sizes: {text} ({rule})."


def batch_answer(batches: Sequence[MeasuredRun]) -> str:
    """How the batch size affects throughput."""
    gain = batch_gain(batches)
    if gain is None:
        return "Not known: fewer than two batch sizes were measured."
    speeds = ", ".join(
        f"batch {number(run.value('configuration.batch_size'))} "
        f"{number(samples_per_second(run)[0])} samples/s"
        for run in batches
    )
    word = "raises it" if gain > 1.05 else "lowers it" if gain < 0.95 else "leaves it as it is"
    return f"A larger batch {word}: {gain:.2f}x at the last doubling ({speeds}; rule: 5 %)."


def attention_memory_answer(study: SizeStudy) -> str:
    """From which size and sequence on the scores matter."""
    rule = f"rule: {SIGNIFICANT_PERCENT:.0f} % of the peak"
    found = [(name_of(run), share) for run in study.runs if (share := scores_percent(run))]
    text = ", ".join(f"{name} {percent(share)}" for name, share in found)
    size = next((name for name, share in found if share >= SIGNIFICANT_PERCENT), None)
    curve = attention_memory_percent(study.forecasts)
    seq = next((f"S = {s} ({percent(p)})" for s, p in curve if p >= SIGNIFICANT_PERCENT), None)
    name = study.forecasts.sequences[0].size if study.forecasts.sequences else "none"
    measured = f"At {size}" if size else "At no measured size"
    predicted = f"at {seq}" if seq else f"at no S up to {curve[-1][0] if curve else 0}"
    measured_text = text or "not measured"
    return (
        f"{measured}: scores are {measured_text} of the peak; {name} alone, {predicted} ({rule})."
    )


def bound_answer(runs: Sequence[MeasuredRun]) -> str:
    """What bounds each size."""
    key = "flops.computational_intensity.memory_bound_vs_compute_bound"
    return each(runs, lambda run: f"{run.figure(key).value or 'not measured'}") + "."


def throughput_group(study: SizeStudy) -> list[str]:
    """Throughput over size, saturation, batch."""
    runs = study.runs
    return [
        *question(
            "1. Does throughput decrease linearly with model size?",
            f"{linear_word(throughput_exponent(runs))}: {throughput_text(runs)}.",
            *all_sources(runs, "summary.samples_per_second"),
        ),
        *question("1. At what size does GPU become saturated?", saturation_answer(runs), RATES),
        *question(
            "1. How does batch size affect throughput?",
            batch_answer(study.batches),
            *all_sources(study.batches, "steps"),
        ),
    ]


def memory_group(study: SizeStudy) -> list[str]:
    """Memory over size, attention's part, overhead."""
    runs = study.runs
    memory = all_sources(runs, "summary.peak_memory_bytes")
    peaks = exponent_over_parameters(runs, "summary.peak_memory_bytes")
    return [
        *question(
            "2. Is memory scaling proportional to parameter count?",
            f"{linear_word(peaks)}.",
            *memory,
        ),
        *question(
            "2. Where does attention memory become significant?",
            attention_memory_answer(study),
            *all_sources(runs, "memory.breakdown_at_peak.attention_scores"),
            "tiny_llama_bench --dry-run: peak memory",
        ),
        *question(
            "2. What's the memory overhead ratio?",
            f"Peak over parameters: {each(runs, lambda run: f'{number(overhead_ratio(run))}x')}.",
            *memory,
            *all_sources(runs, "model.model_size_bytes"),
        ),
    ]


def compute_group(runs: Sequence[MeasuredRun]) -> list[str]:
    """Utilization, intensity, and what binds."""
    known = [(run, value) for run in runs if (value := run.figure(UTILIZATION).value) is not None]
    best = max(known, key=lambda pair: pair[1], default=None)
    best_text = NOT_MEASURED if best is None else f"{name_of(best[0])}: {percent(best[1])} MFU"
    intensities = each(runs, lambda run: number(intensity(run), "FLOP/byte"))
    ridge = each(runs, lambda run: f"{number(distance_to_ridge(run))}x the ridge")
    where = all_sources(runs, "flops.computational_intensity")
    return [
        *question(
            "3. Which size achieves best GPU utilization?",
            f"{best_text} (of {each(runs, lambda run: percent(run.figure(UTILIZATION).value))}).",
            *all_sources(runs, UTILIZATION),
        ),
        *question("3. How does arithmetic intensity change?", f"{intensities}.", *where),
        *question(
            "3. Is the workload memory-bound or compute-bound?",
            f"{bound_answer(runs)} Against the device's own ridge: {ridge}.",
            *where,
            *all_sources(runs, "flops.roofline_data"),
        ),
    ]


def scaling_analysis(study: SizeStudy) -> list[str]:
    """The three groups of 6.3, step 5."""
    groups = [*throughput_group(study), *memory_group(study), *compute_group(study.runs)]
    return ["### Scaling analysis", "", *groups]
