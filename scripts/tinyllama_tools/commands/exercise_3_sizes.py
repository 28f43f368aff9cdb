"""Chapter 6 of the walkthrough: how the problem sizes compare, its questions and criteria.

Tables of chapter 6: what the workshop expects from size to size, their profiles,
and the criteria.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tinyllama_tools.commands.exercise_3_figures import (
    BATCH_GAIN,
    SATURATED_GAIN,
    SIGNIFICANT_PERCENT,
    SizeStudy,
    attained,
    attention_memory_percent,
    batch_gain,
    core_percent,
    distance_to_ridge,
    exponent_over_parameters,
    intensity,
    largest_fitting,
    name_of,
    overhead_ratio,
    saturation,
    scores_percent,
    sequence_exponents,
    shares,
)
from tinyllama_tools.commands.worksheet import (
    MEGABYTE,
    NOT_MEASURED,
    UTILIZATION,
    MeasuredRun,
    Verdict,
    all_hold,
    expected,
    median_step_seconds,
    number,
    percent,
    question,
    samples_per_second,
    table,
    tick,
)
from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.models.bottlenecks import amdahl
from tinyllama_tools.models.size_predictions import Prediction

# What the text expects from one size to the next: parameters, memory, fall of throughput.
TRANSITIONS = {
    ("tiny", "small"): ((6.5, 7.5), (5, 8), (3, 5)),
    ("small", "medium"): ((7.5, 8.5), (6, 10), (5, 10)),
}


def transition_rows(runs: Sequence[MeasuredRun]) -> list[tuple[str, ...]]:
    """Expected and measured from size to size (6.5)."""
    by_name = {name_of(run): run for run in runs}
    rows = []
    for (small, large), ranges in TRANSITIONS.items():
        if small not in by_name or large not in by_name:
            missing = large if small in by_name else small
            rows.append((f"{small} -> {large}", "all", "see 6.5", f"{missing} was not run", "-"))
            continue
        a, b = by_name[small], by_name[large]
        speeds = [samples_per_second(run)[0] or 0 for run in (a, b)]
        found = (
            ("parameters", b, a, "model.total_parameters"),
            ("memory", b, a, "summary.peak_memory_bytes"),
        )
        ratios = [(what, (x.value(k) or 0) / (y.value(k) or 1)) for what, x, y, k in found]
        ratios.append(("throughput falls", speeds[0] / speeds[1] if speeds[1] else 0))
        for (what, value), (low, high) in zip(ratios, ranges, strict=True):
            verdict = expected(value, low, high, "x")
            text = f"{low:g}-{high:g}x"
            rows.append((f"{small} -> {large}", what, text, f"{value:.3g}x", verdict))
    return rows


def transitions_section(runs: Sequence[MeasuredRun]) -> list[str]:
    """Expected results (6.5), held against the measured ones."""
    header = ("transition", "what", "the workshop expects", "measured", "verdict")
    return [
        "### Expected results",
        "",
        *table(header, transition_rows(runs), *all_sources(runs, "model, summary")),
    ]


def profiles_section(runs: Sequence[MeasuredRun]) -> list[str]:
    """6.6: the profiles of the sizes side by side."""
    rows = []
    for run in runs:
        found = shares(run)
        top = ((run.value("operators") or {}).get("table") or [{}])[0]
        bandwidth = "flops.computational_intensity.memory_bandwidth_utilization_percent"
        kernels = run.value("operators.kernels_per_step")
        calls = run.value("operators.operator_calls_per_step") if kernels is None else kernels
        rate = attained(run)
        rows.append(
            (
                name_of(run),
                number(calls),
                f"{top.get('name', 'not measured')} {percent(top.get('share_percent'))}",
                percent(run.value("operators.matrix_product_percent")),
                percent(run.value("operators.softmax_percent")),
                percent(found.get("attention")),
                percent(found.get("ffn")),
                percent(run.value(bandwidth)),
                number(rate / GIGA if rate else None),
            )
        )
    header = (
        "size",
        "kernels or operators a step",
        "largest operator",
        "matrix products",
        "softmax",
        "attention",
        "FFN",
        "bandwidth used",
        "GFLOP/s",
    )
    return [
        "### Profiles across sizes",
        "",
        "How does the kernel distribution change, which operations dominate, how does bandwidth "
        "utilization scale: a row a size.",
        "",
        *table(header, rows, *all_sources(runs, "operators, flops.computational_intensity")),
    ]


def exact_notes() -> list[str]:
    """6.4's claims that the sizes' own dimensions contradict."""
    sizes = problem_sizes()
    wide = ", ".join(
        f"{name} {dims['intermediate_dim'] / dims['hidden_dim']:.2f}"
        for name, dims in sizes.items()
    )
    groups = ", ".join(
        f"{name} {dims['n_heads']}:{dims['n_kv_heads']}" for name, dims in sizes.items()
    )
    return [
        "### Notes on the text's figures",
        "",
        f"- D_ff is not 4 x D here: D_ff / D is {wide} (fixtures/problem_sizes.json).",
        f"- Queries share keys and values (heads : KV heads {groups}): K and V projections have "
        "half the width of Q, so QKV has 2 D^2 weights a layer, not 3 D^2.",
        "- S^2 stands in the attention scores alone. All else, activations included, is linear in "
        "S; the peak is quadratic only where the scores outweigh the rest.",
        "",
    ]


def size_criteria(study: SizeStudy) -> list[str]:
    """`Exercise Complete When` of chapter 6."""
    runs = study.runs
    found = criteria_of(runs)
    held = all_hold([verdict for _, verdict in found], "hold")
    lines = [tick(label, verdict, RATES) for label, verdict in found]
    lines.append(tick("Ready to compare with optimized versions", held))
    return ["### Exercise complete when", "", *lines, ""]


def criteria_of(runs: Sequence[MeasuredRun]) -> list[tuple[str, Verdict]]:
    """Label and verdict of each but the last, which rests on them."""
    names = [name_of(run) for run in runs]
    enough = Verdict(
        len(names) >= 2 and "tiny" in names,
        f"{len(names)} measured ({', '.join(names) or 'none'}); rule: tiny and one other",
    )
    exponent = throughput_exponent(runs)
    patterns = Verdict(
        exponent is not None,
        f"throughput goes with parameters ^ {number(exponent)}; rule: an exponent is known",
    )
    keys = ("summary.peak_memory_bytes", "summary.samples_per_second")
    recorded = sum(run.figure(key).is_measured for run in runs for key in keys)
    metrics = Verdict(
        recorded == 2 * len(runs) > 0, f"{recorded} of {2 * len(runs)} figures; rule: all"
    )
    size, rates = saturation(runs)
    understood = Verdict(
        len(rates) >= 2, f"saturated at {size or 'none'} of {len(rates)} rates; rule: two or more"
    )
    profiled = sum(core_percent(run) is not None for run in runs)
    priorities = Verdict(profiled > 0, f"{profiled} sizes have component shares; rule: at least 1")
    return [
        ("At least 2 problem sizes tested (tiny + one other)", enough),
        ("Scaling patterns documented", patterns),
        ("Memory and throughput metrics recorded", metrics),
        ("Performance characteristics understood", understood),
        ("Optimization priorities identified", priorities),
    ]


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
