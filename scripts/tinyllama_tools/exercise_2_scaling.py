"""Exercise 2, steps 1 and 3: how memory grows with the batch and with the sequence."""

from __future__ import annotations

import math

from tinyllama_tools.exercise_2_rules import (
    Growth,
    component_growth,
    doubling_verdicts,
    increment_ratio,
    sequence_pattern,
    throughput_answer,
)
from tinyllama_tools.exercise_2_runs import MemoryRuns
from tinyllama_tools.exercise_runs import MeasuredRun, samples_per_second
from tinyllama_tools.stats.laws import LawRefusedError
from tinyllama_tools.study.size_predictions import MemoryLaw
from tinyllama_tools.worksheet import (
    NOT_MEASURED,
    Verdict,
    boxes,
    megabytes,
    number,
    percent,
    question,
    table,
    tick,
)
from tinyllama_tools.worksheet_rules import above, expected, ratio


def not_measured(run: MeasuredRun) -> str:
    """With the reason, for a table's cell."""
    return f"{NOT_MEASURED}: {run.reason or 'no memory profile'}"


def factor_text(factor: float | None) -> str:
    """`1.85x`."""
    return NOT_MEASURED if factor is None else f"{factor:.2f}x"


def batch_rows(runs: MemoryRuns) -> list[tuple[str, ...]]:
    """The worksheet's table, with the growth beside."""
    rows = []
    before: MeasuredRun | None = None
    for batch, run in runs.by_batch.items():
        peak = run.value("memory.peak_bytes")
        speed, _ = samples_per_second(run)
        growth = ratio(peak, before.value("memory.peak_bytes")) if before else 1.0
        rows.append(
            (
                str(batch),
                not_measured(run) if peak is None else megabytes(peak),
                megabytes(run.value("memory.average_bytes")),
                number(speed),
                factor_text(growth) if before else "1.00x (baseline)",
                megabytes(peak / batch if peak else None),
            )
        )
        before = run
    return rows


def last_factor(values: list[float | None]) -> float | None:
    """The last over the one before it."""
    return ratio(values[-1], values[-2])


def batch_section(runs: MemoryRuns) -> list[str]:
    """Step 1 and its three questions."""
    header = ("Batch Size", "Peak Memory", "Avg Memory", "samples/sec", "growth", "peak a sample")
    peaks = [run.figure("memory.peak_bytes") for run in runs.by_batch.values()]
    speeds = [samples_per_second(run) for run in runs.by_batch.values()]
    spread = runs.base.figure("memory.peak_to_average")
    high = above(spread.value, 1.2, "x")
    return [
        "## Step 1: memory against the batch size",
        "",
        *(f"- `{run.command}`" for run in runs.by_batch.values()),
        "",
        *table(header, batch_rows(runs), *peaks, *(source for _, source in speeds)),
        *boxes(
            "1. Memory Scaling: does memory double when batch size doubles?",
            [
                tick(label, verdict, *peaks[1:])
                for label, verdict in doubling_verdicts(last_factor(runs.batch_peaks)).items()
            ],
        ),
        *question(
            "2. Throughput Scaling: does throughput double when batch size doubles?",
            throughput_answer(last_factor([speed for speed, _ in speeds])),
            *(source for _, source in speeds[1:]),
        ),
        *question(
            "3. Memory Efficiency: what's the peak-to-average memory ratio?",
            f"{number(spread.value)}: {'high, with spikes' if high.holds else 'low, consistent'} "
            f"({high.reason}); of the text's 1.2-1.5: "
            f"{expected(spread.value, 1.2, 1.5, 'x')}.",
            spread,
        ),
    ]


def sequence_rows(runs: MemoryRuns) -> list[tuple[str, ...]]:
    """The worksheet's table; memory a sample makes the row of the smaller batch comparable."""
    first, first_peak, first_batch = None, None, 1
    rows = []
    for (seq, batch), run in runs.by_seq.items():
        peak = run.value("memory.peak_bytes")
        if first is None:
            first, first_peak, first_batch = run, peak, batch
        increase = None if peak is None or first_peak is None else peak - first_peak
        a_sample = None if peak is None else peak / batch
        first_sample = None if first_peak is None else first_peak / first_batch
        rows.append(
            (
                str(seq),
                str(batch),
                not_measured(run) if peak is None else megabytes(peak),
                "baseline" if run is first else megabytes(increase),
                factor_text(ratio(peak, first_peak)),
                megabytes(a_sample),
                factor_text(ratio(a_sample, first_sample)),
                megabytes(run.value("model.predicted_peak_memory_bytes")),
            )
        )
    return rows


def growths(runs: MemoryRuns) -> list[Growth]:
    """Of the components' activations over all measured sequences."""
    profiles = {
        seq: (batch, run.value("memory.component_activation_bytes"))
        for (seq, batch), run in runs.by_seq.items()
        if run.figure("memory.component_activation_bytes").is_measured
    }
    return component_growth(profiles)


def law_lines(runs: MemoryRuns) -> list[str]:
    """The fitted law, what it says at the base size, and how far it is off."""
    try:
        law = MemoryLaw.fitted_to(runs.points)
    except LawRefusedError as error:
        return [f"No law was fitted: {error}.", ""]
    shares = law.shares_percent(runs.batch, runs.seq)
    rows = [
        (
            f"{p.batch} x {p.seq}",
            megabytes(p.value),
            megabytes(law.at(p.batch, p.seq)),
            f"{r:+.1f} %",
        )
        for p, r in zip(runs.points, law.residuals_percent, strict=True)
    ]
    return [
        "### The fitted law",
        "",
        law_text(law),
        "",
        *table(("batch x seq", "measured", "fitted", "residual"), rows),
        f"At batch {runs.batch} and sequence {runs.seq}: base {percent(shares['base'])}, linear "
        f"part {percent(shares['linear'])}, quadratic part {percent(shares['quadratic'])}. The "
        f"largest residual is {percent(law.largest_residual_percent)}. The law describes these "
        "sizes; other sizes follow from the suite's formulas, not from it.",
        "",
    ]


def law_text(law: MemoryLaw) -> str:
    """With its units."""
    return (
        f"memory(B, S) = {megabytes(law.base)} + B (S x {law.linear:,.0f} bytes + S^2 x "
        f"{law.quadratic:,.1f} bytes)"
    )


def typical_rows(runs: MemoryRuns) -> list[tuple[str, ...]]:
    """5.4's table of typical results, filled in from the peaks' breakdown."""
    same = {seq: run for (seq, batch), run in runs.by_seq.items() if batch == runs.batch}
    parts = {
        "Parameters": "parameters",
        "Activations": "activations",
        "Attention": "attention_scores",
    }
    rows = []
    for name, key in parts.items():
        sizes = [run.value(f"memory.breakdown_at_peak.{key}") for run in same.values()]
        rows.append((name, *map(megabytes, sizes), order_text(list(same), sizes)))
    totals = [run.value("memory.peak_bytes") for run in same.values()]
    return [*rows, ("Total", *map(megabytes, totals), order_text(list(same), totals))]


def order_text(lengths: list[int], sizes: list[float | None]) -> str:
    """`O(S^1.0)`: the measured order between the shortest and the longest."""
    growth = ratio(sizes[-1], sizes[0])
    if not growth or growth <= 0:
        return NOT_MEASURED
    return f"O(S^{math.log(growth) / math.log(lengths[-1] / lengths[0]):.1f})"


def sequence_section(runs: MemoryRuns, limit: list[str]) -> list[str]:
    """Step 3; `limit` answers its last question."""
    header = ("Seq Length", "Batch Size", "Peak Memory", "Memory Increase", "Scaling Factor")
    more = ("a sample", "factor a sample", "predicted")
    peaks = [run.figure("memory.peak_bytes") for run in runs.by_seq.values()]
    increments = increment_ratio(runs.seq_peaks)
    found = growths(runs)
    return [
        "## Step 3: memory against the sequence length",
        "",
        *(f"- `{run.command}`" for run in runs.by_seq.values()),
        "",
        *table((*header, *more), sequence_rows(runs), *peaks),
        *typical_table(runs),
        *law_lines(runs),
        *boxes(
            "1. What is the memory scaling pattern? (growth of the increase: fixed parts drop out)",
            [tick(label, v, *peaks[:3]) for label, v in sequence_pattern(increments).items()],
        ),
        *steepest_answer(runs, found),
        *limit,
    ]


def typical_table(runs: MemoryRuns) -> list[str]:
    """With its heading."""
    same = [seq for seq, batch in runs.by_seq if batch == runs.batch]
    header = ("Component", *(f"S={seq}" for seq in same), "Scaling")
    origin = [run.source("memory.breakdown_at_peak") for run in runs.by_seq.values()]
    return table(header, typical_rows(runs), *origin)


def steepest_answer(runs: MemoryRuns, found: list[Growth]) -> list[str]:
    """Which component grows most steeply, and the others."""
    origin = [run.source("memory.component_activation_bytes") for run in runs.by_seq.values()]
    asked = "2. Which component shows steepest memory scaling?"
    if not found:
        return question(asked, f"{NOT_MEASURED}: fewer than two sequence lengths.", *origin)
    rows = [(g.name, f"S^{g.exponent:.2f}", percent(g.share_percent)) for g in found]
    first = found[0]
    return [
        *question(
            asked,
            f"{first.name}: its activations grow with S^{first.exponent:.2f} and are "
            f"{percent(first.share_percent)} of all at the longest sequence (rule: the largest "
            "exponent among components of at least 1 %).",
            *origin,
        ),
        *table(("component", "bytes a sample grow with", "share at the longest"), rows),
    ]


def increments_verdict(runs: MemoryRuns) -> Verdict:
    """Whether all that is needed to judge scaling was measured."""
    count = sum(peak is not None for peak in (*runs.batch_peaks, *runs.seq_peaks))
    return Verdict(count == 6, f"{count} of 6 peaks; rule: all of them")
