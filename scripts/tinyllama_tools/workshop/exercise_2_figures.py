"""Exercise 2: its runs, what follows from several memory profiles, and how memory grows."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.core.app import Json
from tinyllama_tools.data.programs import SuiteError
from tinyllama_tools.models.size_predictions import (
    CONFIRMED_SHARE,
    MemoryLaw,
    ModelQuestion,
    Predictor,
    Target,
    find_target,
)
from tinyllama_tools.stats.laws import GridPoint, LawRefusedError
from tinyllama_tools.workshop.rules import above, expected, is_largest, ratio, within
from tinyllama_tools.workshop.runs import (
    MeasuredRun,
    PlannedRun,
    median_step_seconds,
    missing_of,
    samples_per_second,
)
from tinyllama_tools.workshop.worksheet import (
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

SMALLEST_SHARE_PERCENT = 1.0
LINEAR, SUPERLINEAR, SUBLINEAR = "Linear", "Superlinear", "Sublinear"
QUADRATIC, CUBIC = "Quadratic", "Cubic"
LEAST_SPIKE, MOST_STEADY = 1.5, 1.2


def doubling_verdicts(factor: float | None) -> dict[str, Verdict]:
    """Does memory double when the batch does? One holds."""
    return {
        "It doubles: linear scaling (good)": within(factor, 1.9, 2.1, "x"),
        "More than double: superlinear (fragmentation or inefficiency)": within(
            factor, 2.1, math.inf, "x"
        ),
        "Less than double: parameters and optimizer states do not grow": within(
            factor, 0, 1.9, "x"
        ),
    }


def increment_ratio(peaks: Sequence[float | None]) -> float | None:
    """(third - second) / (second - first) of peaks at sizes 1, 2 and 4: what is fixed drops out.

    2 for what grows with the size, 4 for what grows with its square, 8 with its cube.
    """
    if len(peaks) != 3 or any(peak is None for peak in peaks):
        return None
    first, second, third = (float(peak or 0) for peak in peaks)
    return ratio(third - second, second - first)


def batch_verdicts(increments: float | None) -> dict[str, Verdict]:
    """Linear, superlinear or sublinear in the batch, by the growth of the increments."""
    return {
        LINEAR: within(increments, 1.9, 2.1, "x"),
        SUPERLINEAR: within(increments, 2.1, math.inf, "x"),
        SUBLINEAR: within(increments, -math.inf, 1.9, "x"),
    }


def sequence_pattern(increments: float | None) -> dict[str, Verdict]:
    """Step 3's question, by the growth of the increments when the sequence doubles."""
    return {
        "Linear (~2x when sequence doubles)": within(increments, -math.inf, 2.5, "x"),
        "Quadratic (~4x when sequence doubles)": within(increments, 3.5, math.inf, "x"),
        "Between linear and quadratic (~3x)": within(increments, 2.5, 3.5, "x"),
    }


def sequence_verdicts(increments: float | None) -> dict[str, Verdict]:
    """5.8's question, which knows no between: the nearest."""
    return {
        LINEAR: within(increments, -math.inf, 3, "x"),
        QUADRATIC: within(increments, 3, 6, "x"),
        CUBIC: within(increments, 6, math.inf, "x"),
    }


def throughput_answer(factor: float | None) -> str:
    """Does throughput double when the batch does?"""
    if factor is None:
        return f"{NOT_MEASURED}."
    if factor >= 1.9:
        return f"Yes, {factor:.2f} times: perfect scaling (rule: from 1.9)."
    if factor > 1.05:
        return f"No, {factor:.2f} times: diminishing returns (rule: from 1.05 to below 1.9)."
    if factor >= 0.95:
        return f"No, {factor:.2f} times: the device is already full (rule: from 0.95 to 1.05)."
    return (
        f"No, {factor:.2f} times: throughput falls, which a full device does not explain (rule: "
        "below 0.95); memory that no longer fits a cache, or a machine that was not quiet, may."
    )


def usage_pattern(peak_to_average: float | None) -> str:
    """Steady, Fluctuating or Spiking."""
    if peak_to_average is None:
        return NOT_MEASURED
    rule = f"rule: steady below {MOST_STEADY}, spiking from {LEAST_SPIKE}"
    word = "Spiking" if peak_to_average >= LEAST_SPIKE else "Fluctuating"
    if peak_to_average < MOST_STEADY:
        word = "Steady"
    return f"{word}: peak-to-average {peak_to_average:.2f}; {rule}"


def deallocation(memory: Json) -> str:
    """Promptly, Delayed or Not at all, by what is alive after each recorded step."""
    after, before = memory["live_bytes_after_steps"], memory["baseline_bytes"]
    if not after:
        return NOT_MEASURED
    growth = 100 * (after[-1] - after[0]) / after[0] if after[0] else 0.0
    over = 100 * (after[-1] - before) / before if before else 0.0
    numbers = (
        f"{megabytes(before)} before, {megabytes(after[-1])} after the last recorded step "
        f"({percent(growth)} more than after the first)"
    )
    if growth > 1:
        return f"Not at all: {numbers}; rule: a growth above 1 % from step to step"
    if over > 1:
        return f"Delayed: {numbers}; rule: more than 1 % above what was there before"
    return f"Promptly: {numbers}; rule: within 1 % of what was there before"


def drop_verdict(memory: Json) -> Verdict:
    """Whether memory falls clearly between a step's peak and its end."""
    after, peak = memory["live_bytes_after_steps"], memory["peak_bytes"]
    fall = 100 * (1 - after[-1] / peak) if after and peak else None
    return above(fall, 10)


def baseline_verdict(memory: Json) -> Verdict:
    """Whether memory returns to where it was before the recorded steps."""
    after, before = memory["live_bytes_after_steps"], memory["baseline_bytes"]
    over = 100 * (after[-1] / before - 1) if after and before else None
    return within(over, -math.inf, 1)


def place_verdicts(memory: Json) -> dict[str, Verdict]:
    """Where the peak is: its phase, and attention where it is in one of attention's components."""
    phase, component = memory["peak_phase"], memory["peak_component"] or "unknown"
    share = percent(100 * memory["breakdown_at_peak"]["attention_scores"] / memory["peak_bytes"])
    where = f"the 1 peak is in {phase}, {component}"
    return {
        **{
            name: Verdict(phase == name, f"{where}; rule: the phase of the peak")
            for name in ("forward", "backward", "optimizer")
        },
        "attention": Verdict(
            component.startswith("attention"),
            f"{where}, scores are {share}; rule: the component of the peak",
        ),
    }


@dataclass(frozen=True)
class Growth:
    """How a component's activations grow: bytes a sample ~ S^exponent, and its share at the end."""

    name: str
    exponent: float
    share_percent: float


def component_growth(profiles: Mapping[int, tuple[int, Mapping[str, float]]]) -> list[Growth]:
    """Steepest first. `profiles`: sequence length -> (batch, bytes by component).

    Components below SMALLEST_SHARE_PERCENT at the longest sequence are left out; none where there
    are fewer than two lengths.
    """
    lengths = sorted(profiles)
    if len(lengths) < 2:
        return []
    (short_batch, short), (long_batch, long) = profiles[lengths[0]], profiles[lengths[-1]]
    whole = sum(long.values())
    stretch = math.log(lengths[-1] / lengths[0])
    found = []
    for name, size in long.items():
        share = 100 * size / whole if whole else 0.0
        if share >= SMALLEST_SHARE_PERCENT and short.get(name, 0) > 0:
            growth = (size / long_batch) / (short[name] / short_batch)
            found.append(Growth(name, math.log(growth) / stretch, share))
    return sorted(found, key=lambda g: (-round(g.exponent, 3), -g.share_percent))


def intensity_class(intensity: float | None) -> dict[str, Verdict]:
    """Memory-bound, compute-bound or mixed in FLOPs a byte; one holds."""
    unit = "FLOPS/byte"
    return {
        "Memory-bound (low arithmetic intensity, <10 FLOPS/byte)": within(intensity, 0, 10, unit),
        "Compute-bound (high arithmetic intensity, >100 FLOPS/byte)": above(intensity, 100, unit),
        "Mixed (moderate arithmetic intensity, 10-100 FLOPS/byte)": mixed(intensity, unit),
    }


def mixed(intensity: float | None, unit: str) -> Verdict:
    """From 10 to 100, both included."""
    rule = f"rule: from 10 to 100 {unit}"
    if intensity is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(10 <= intensity <= 100, f"{number(intensity, unit)}; {rule}")


def target_verdicts(targets: Mapping[str, float]) -> dict[str, Verdict]:
    """Which of the four targets holds most memory; one holds."""
    amounts = {name: size / 2**20 for name, size in targets.items()}
    text = "part of the peak, or what is held beyond it,"
    return {name: is_largest(amounts, name, text, "MB") for name in amounts}


HOTSPOTS, BANDWIDTH, LONGEST_RUN = "memory_hotspots", "bandwidth", "longest_sequence"
OPERATORS = ("--enable-pytorch-profiler",)
MEMORY = ("--profile-memory",)


def base_options(options: Namespace, batch: int, seq: int, steps: int) -> tuple[str, ...]:
    """Of any of the runs."""
    shape = (f"--batch-size={batch}", f"--seq-len={seq}", f"--num-steps={steps}")
    return (*shape, *options.model)


def planned_runs(options: Namespace) -> list[PlannedRun]:
    """The worksheet's nine commands, and one for the bandwidth.

    Half, once and twice the batch; half, once, twice and four times the sequence, the last with
    half of the batch, as the worksheet has it.
    """
    batch, seq = options.batch_size, options.seq_len
    runs = [
        PlannedRun(
            f"memory_analysis_bs{size}",
            (*base_options(options, size, seq, 15), *OPERATORS, *MEMORY),
        )
        for size in (batch // 2, batch, 2 * batch)
    ]
    shapes = (
        (batch, seq // 2, 10),
        (batch, seq, 10),
        (batch, 2 * seq, 10),
        (batch // 2, 4 * seq, 5),
    )
    runs += [
        PlannedRun(f"memory_seq{length}", (*base_options(options, size, length, steps), *MEMORY))
        for size, length, steps in shapes
    ]
    hotspots = (*base_options(options, batch, seq, 10), *OPERATORS, *MEMORY, "--profile-operators")
    flops = (*base_options(options, batch, seq, 10), "--enable-deepspeed-flops")
    return [*runs, PlannedRun(HOTSPOTS, hotspots), PlannedRun(BANDWIDTH, flops)]


@dataclass(frozen=True)
class MemoryRuns:
    """`by_batch`: batch size -> run; `by_seq`: (sequence, batch) -> run; both in growing order."""

    by_batch: dict[int, MeasuredRun]
    by_seq: dict[tuple[int, int], MeasuredRun]
    hotspots: MeasuredRun
    bandwidth: MeasuredRun
    batch: int
    seq: int

    @property
    def base(self) -> MeasuredRun:
        """At the worksheet's own batch and sequence."""
        return self.by_batch[self.batch]

    @property
    def memory(self) -> Json:
        """The memory profile of `base`."""
        return (self.base.summary or {})["memory"]

    @property
    def points(self) -> list[GridPoint]:
        """Every measured peak, one a size."""
        found: dict[tuple[int, int], float] = {}
        for batch, run in self.by_batch.items():
            found[batch, self.seq] = run.value("memory.peak_bytes") or 0
        for (seq, batch), run in self.by_seq.items():
            found.setdefault((batch, seq), run.value("memory.peak_bytes") or 0)
        return [GridPoint(*size, (peak,)) for size, peak in found.items() if peak]

    @property
    def batch_peaks(self) -> list[float | None]:
        """At half, once and twice the batch."""
        return [run.value("memory.peak_bytes") for run in self.by_batch.values()]

    @property
    def seq_peaks(self) -> list[float | None]:
        """At half, once and twice the sequence, all of one batch."""
        runs = [run for (_, batch), run in self.by_seq.items() if batch == self.batch]
        return [run.value("memory.peak_bytes") for run in runs]

    @property
    def layers(self) -> int:
        """Of the model."""
        return self.base.value("configuration.n_layers") or 1


def collect(measured: dict[str, MeasuredRun], options: Namespace) -> MemoryRuns:
    """The runs by what they are for."""
    batch, seq = options.batch_size, options.seq_len
    sizes = (batch // 2, batch, 2 * batch)
    shapes = ((seq // 2, batch), (seq, batch), (2 * seq, batch), (4 * seq, batch // 2))
    return MemoryRuns(
        {size: measured[f"memory_analysis_bs{size}"] for size in sizes},
        {shape: measured[f"memory_seq{shape[0]}"] for shape in shapes},
        measured[HOTSPOTS],
        measured[BANDWIDTH],
        batch,
        seq,
    )


def missing_parts(runs: MemoryRuns) -> list[str]:
    """Why the page cannot be made; sizes that could not be run are rows of it, and no reason."""
    wanted = (
        (runs.base, ("memory", "operators")),
        (runs.hotspots, ("memory", "operators")),
        (runs.bandwidth, ("flops",)),
    )
    return missing_of(wanted)


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
