"""Exercise 2, memory analysis: its runs, figures and rules; its page is a template."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tinyllama_tools.commands.exercise_rules import (
    CHECKPOINTING,
    FLASH,
    FUSION,
    MIXED,
    OPTIMIZATIONS,
    Effect,
    Growth,
    baseline_verdict,
    component_growth,
    deallocation,
    drop_verdict,
    increment_ratio,
    known_effects,
    mixed,
    peak_place,
    place_verdicts,
    small_operations,
    spike_text,
    target_shares,
    target_verdicts,
    throughput_answer,
    usage_pattern,
)
from tinyllama_tools.commands.profile_tables import PAGE
from tinyllama_tools.commands.worksheet import (
    NOT_MEASURED,
    FigureRow,
    Held,
    MeasuredRun,
    PlannedRun,
    Rule,
    Sheet,
    Verdict,
    above,
    all_hold,
    all_of,
    decided,
    failure_lines,
    has_summary,
    head,
    measure_all,
    median_step_seconds,
    megabytes,
    missing_of,
    number,
    percent,
    range_rows,
    ratio,
    render,
    samples_per_second,
    say,
    times_text,
    transfers_verdict,
    was_interrupted,
)
from tinyllama_tools.core.app import RESULTS, Json
from tinyllama_tools.data.programs import SuiteError, TrainingProgram
from tinyllama_tools.models.size_predictions import (
    CONFIRMED_SHARE,
    MemoryLaw,
    ModelQuestion,
    Predictor,
    Target,
    find_target,
    predict,
)
from tinyllama_tools.stats.laws import GridPoint, LawRefusedError

HOTSPOTS, BANDWIDTH, LONGEST_RUN = "memory_hotspots", "bandwidth", "longest_sequence"


OPERATORS = ("--enable-pytorch-profiler",)


MEMORY_PROFILER = ("--profile-memory",)


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
            (*base_options(options, size, seq, 15), *OPERATORS, *MEMORY_PROFILER),
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
        PlannedRun(
            f"memory_seq{length}", (*base_options(options, size, length, steps), *MEMORY_PROFILER)
        )
        for size, length, steps in shapes
    ]
    hotspots = (
        *base_options(options, batch, seq, 10),
        *OPERATORS,
        *MEMORY_PROFILER,
        "--profile-operators",
    )
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

    def value(self, key: str) -> Held:
        """Of the run that measures this part."""
        measuring = {
            "operators": self.hotspots,
            "flops": self.bandwidth,
            "device_sampling": self.bandwidth,
        }
        return measuring.get(key.partition(".")[0], self.base).value(key)

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


TOP_HOTSPOTS = 5


def not_measured(run: MeasuredRun) -> str:
    """With the reason, for a table's cell."""
    return f"{NOT_MEASURED}: {run.reason or 'no memory profile'}"


def batch_rows(runs: MemoryRuns) -> list[tuple[str, ...]]:
    """The worksheet's table, with the growth beside."""
    rows = []
    before: MeasuredRun | None = None
    for batch, run in runs.by_batch.items():
        peak = run.value("memory.peak_bytes")
        speed = samples_per_second(run)
        growth = ratio(peak, before.value("memory.peak_bytes")) if before else 1.0
        rows.append(
            (
                str(batch),
                not_measured(run) if peak is None else megabytes(peak),
                megabytes(run.value("memory.average_bytes")),
                number(speed),
                times_text(growth) if before else "1.00x (baseline)",
                megabytes(peak / batch if peak else None),
            )
        )
        before = run
    return rows


def last_factor(values: list[float | None]) -> float | None:
    """The last over the one before it."""
    return ratio(values[-1], values[-2])


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
                times_text(ratio(peak, first_peak)),
                megabytes(a_sample),
                times_text(ratio(a_sample, first_sample)),
                megabytes(run.value("model.predicted_peak_memory_bytes")),
            )
        )
    return rows


def growths(runs: MemoryRuns) -> list[Growth]:
    """Of the components' activations over all measured sequences."""
    profiles = {
        seq: (batch, run.value("memory.component_activation_bytes"))
        for (seq, batch), run in runs.by_seq.items()
        if run.value("memory.component_activation_bytes") is not None
    }
    return component_growth(profiles)


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
    seconds = median_step_seconds(run)
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


def confirmation_text(limit: Limit, target: Target) -> str:
    """What the run showed."""
    found, run = target.confirmable, limit.run
    if found is None or run is None:
        return f"Not confirmed by a run: {target.held_back_by}."
    if run.reason:
        return f"Not confirmed: the step at {found.seq} tokens failed: {run.reason}."
    peak = run.value("summary.peak_memory_bytes")
    predicted = run.value("model.predicted_peak_memory_bytes")
    off = 100 * (peak / predicted - 1) if peak and predicted else None
    why = (
        f"the rule is at most {CONFIRMED_SHARE:.0%} of the free memory"
        if target.held_back_by == "memory"
        else "a longer one would take more than --max-minutes"
    )
    return (
        f"Confirmed by one step at {found.seq} tokens ({why}): peak {megabytes(peak)}, "
        f"predicted {megabytes(predicted)}, {percent(off)} apart; it took "
        f"{number(run.value('summary.first_step_seconds'), 's')}, estimated "
        f"{number(target.confirmable_seconds, 's')}."
    )


def limit_answer(limit: Limit) -> str:
    """To step 3's last question."""
    target = limit.target
    if target is None:
        return f"not predicted: {limit.reason}."
    if target.fitting is None:
        return f"At batch {limit.batch} {target.held_back_by}."
    return (
        f"At batch {limit.batch} the longest that fits is {target.fitting.seq} tokens, predicted "
        f"peak {megabytes(target.fitting.peak_memory_bytes)} (`tiny_llama_bench --dry-run` over "
        f"the sequence). {confirmation_text(limit, target)}"
    )


INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
USED = "flops.computational_intensity.memory_bandwidth_utilization_percent"
BUSY = "device_sampling.readings.utilization_percent.mean"
PRODUCTS = "operators.matrix_product_percent"
PER_BYTE = "FLOPS/byte"


def increments(peaks: str) -> Callable[[MemoryRuns], float | None]:
    """How the increase of these peaks grows."""
    return lambda runs: increment_ratio(getattr(runs, peaks))


def doubled(runs: MemoryRuns) -> float | None:
    """Memory at twice the batch over that at the batch."""
    return last_factor(runs.batch_peaks)


def place_rule(label: str, name: str) -> Rule:
    """Whether the peak is in this phase, or in attention."""
    return Rule(label, lambda runs: place_verdicts(runs.memory)[name])


def target_rule(label: str, name: str) -> Rule:
    """Whether this holds most memory."""
    return Rule(label, lambda runs: target_verdicts(target_shares(runs.memory))[name])


def small_operations_sign(runs: MemoryRuns) -> Verdict:
    """Of the run that has the operator profile of the hotspots."""
    return small_operations(runs.value("operators"))


def largest_tensor(runs: MemoryRuns) -> str:
    """Its size, name and component."""
    found = (runs.value("memory.largest_tensors") or [{}])[0]
    return f"{megabytes(found.get('bytes'))} ({found.get('name')}, {found.get('component')})"


def on_memory(answer: Callable[[Json], Held]) -> Callable[[MemoryRuns], Held]:
    """Of the memory profile at the worksheet's size."""
    return lambda runs: answer(runs.memory)


def largest_spike(memory: Json) -> str:
    """Where memory rises most within one operator."""
    return spike_text(memory["largest_spike"])


PHASES = (
    FigureRow("Peak Memory Usage", "memory.peak_bytes", "MB"),
    FigureRow("Average Memory Usage", "memory.average_bytes", "MB"),
    FigureRow("Memory at Forward Pass", "memory.forward_peak_bytes", "MB"),
    FigureRow("Memory at Backward Pass", "memory.backward_peak_bytes", "MB"),
    FigureRow("Memory at Optimizer Step", "memory.optimizer_peak_bytes", "MB"),
    FigureRow("Number of Allocations a step", "memory.allocations_per_step"),
    FigureRow("Largest Tensor", largest_tensor),
)
TIMELINE = (
    FigureRow("Peak memory occurs at", on_memory(peak_place)),
    FigureRow("Largest memory spike caused by", on_memory(largest_spike)),
    FigureRow("Memory is deallocated", on_memory(deallocation)),
    FigureRow("Memory usage pattern", on_memory(lambda m: usage_pattern(m["peak_to_average"]))),
)
DOUBLING = (
    Rule("It doubles: linear scaling (good)", doubled, 1.9, 2.1, "x"),
    Rule(
        "More than double: superlinear (fragmentation or inefficiency)", doubled, 2.1, math.inf, "x"
    ),
    Rule("Less than double: parameters and optimizer states do not grow", doubled, 0, 1.9, "x"),
)
OCCURS = (
    place_rule("During forward pass (activations)", "forward"),
    place_rule("During attention computation (attention matrices)", "attention"),
    place_rule("During backward pass (gradients)", "backward"),
    place_rule("During optimizer step (momentum buffers)", "optimizer"),
)
CONSUMED = (
    place_rule("Forward pass (activations)", "forward"),
    place_rule("Backward pass (gradients)", "backward"),
    place_rule("Optimizer step (parameter updates)", "optimizer"),
    place_rule("Attention computation (attention matrices)", "attention"),
)
DEALLOCATED = (
    Rule("clear drops in memory usage", on_memory(drop_verdict)),
    Rule("memory returns to baseline after each step", on_memory(baseline_verdict)),
)
# How the increase grows when the size doubles: 2 linear, 4 quadratic, 8 cubic.
BY_BATCH, BY_SEQ = increments("batch_peaks"), increments("seq_peaks")
SEQUENCE_PATTERN = (
    Rule("Linear (~2x when sequence doubles)", BY_SEQ, -math.inf, 2.5, "x"),
    Rule("Quadratic (~4x when sequence doubles)", BY_SEQ, 3.5, math.inf, "x"),
    Rule("Between linear and quadratic (~3x)", BY_SEQ, 2.5, 3.5, "x"),
)
BEHAVIOR = (
    Rule("Batch size scaling: Linear", BY_BATCH, 1.9, 2.1, "x"),
    Rule("Batch size scaling: Superlinear", BY_BATCH, 2.1, math.inf, "x"),
    Rule("Batch size scaling: Sublinear", BY_BATCH, -math.inf, 1.9, "x"),
    Rule("Sequence length scaling: Linear", BY_SEQ, -math.inf, 3, "x"),
    Rule("Sequence length scaling: Quadratic", BY_SEQ, 3, 6, "x"),
    Rule("Sequence length scaling: Cubic", BY_SEQ, 6, math.inf, "x"),
)
INTENSITY_CLASSES = (
    Rule("Memory-bound (low arithmetic intensity, <10 FLOPS/byte)", INTENSITY, 0, 10, PER_BYTE),
    Rule(
        "Compute-bound (high arithmetic intensity, >100 FLOPS/byte)", INTENSITY, 100, unit=PER_BYTE
    ),
    Rule(
        "Mixed (moderate arithmetic intensity, 10-100 FLOPS/byte)",
        lambda runs: mixed(runs.value(INTENSITY), PER_BYTE),
    ),
)
MEMORY_SIGNS = (
    Rule("Low GPU compute utilization (<70%)", BUSY, high=70),
    Rule("High memory bandwidth utilization (>60%)", USED, 60),
    Rule("Many small operations", small_operations_sign),
    Rule("Frequent memory transfers", lambda runs: transfers_verdict(runs.hotspots, 10)),
)
COMPUTE_SIGNS = (
    Rule("High GPU compute utilization (>80%)", BUSY, 80),
    Rule("Low memory bandwidth utilization (<50%)", USED, high=50),
    Rule("Large matrix multiplications dominate", PRODUCTS, 50),
    Rule("Good arithmetic intensity", INTENSITY, 100, unit=PER_BYTE),
)
TARGETS = (
    target_rule("Reduce attention memory (Flash Attention)", "attention"),
    target_rule("Reduce activation memory (checkpointing)", "activations"),
    target_rule("Reduce parameter memory (mixed precision)", "parameters"),
    target_rule("Reduce fragmentation (kernel fusion)", "fragmentation"),
)
IMPACTS = {
    FLASH: "attention memory from O(S^2) to O(S)",
    CHECKPOINTING: "recomputes activations instead of keeping them",
    MIXED: "halves what is kept of the forward pass",
    FUSION: "fewer intermediate tensors",
}


def bandwidth_figures(runs: MemoryRuns) -> tuple[FigureRow, ...]:
    """Every line of the bandwidth analysis."""
    prefix = "flops.computational_intensity"
    traffic = runs.value(f"{prefix}.memory_traffic_bytes_per_step")
    named = runs.value(f"{prefix}.memory_bound_vs_compute_bound") or NOT_MEASURED
    origin = runs.value(f"{prefix}.device_memory_bandwidth_source") or "unknown"
    peak = f"Theoretical Peak Bandwidth ({origin})"
    gigabytes = None if traffic is None else traffic / 1e9
    return (
        FigureRow("Memory Traffic per Step", lambda _: gigabytes, "GB"),
        FigureRow("Memory Bandwidth Used", f"{prefix}.memory_bandwidth_used_gb_per_sec", "GB/s"),
        FigureRow(peak, f"{prefix}.device_memory_bandwidth_gb_per_sec", "GB/s"),
        FigureRow("Bandwidth Utilization", USED, "%"),
        FigureRow("Arithmetic Intensity", INTENSITY, PER_BYTE),
        FigureRow("Workload Classification", lambda _: named),
    )


def peak_gib(runs: MemoryRuns) -> float | None:
    """At the worksheet's size."""
    peak = runs.value("memory.peak_bytes")
    return None if peak is None else peak / 2**30


RANGES = (
    (FigureRow("Peak memory", peak_gib, "GiB"), 2, 4),
    (FigureRow("Peak-to-average ratio", "memory.peak_to_average", "x"), 1.2, 1.5),
    (FigureRow("Bandwidth utilization", USED, "%"), 30, 60),
    (FigureRow("Arithmetic intensity (5.4)", INTENSITY, PER_BYTE), 20, 50),
)


def criteria(runs: MemoryRuns, ranked: int) -> list[Rule]:
    """5.9's criteria; `ranked`: how many optimizations were."""
    batches = sum(run.value("memory") is not None for run in runs.by_batch.values())
    lengths = sum(run.value("memory") is not None for run in runs.by_seq.values())
    rows, share = len(runs.value("operators.table")), runs.value(USED)
    peaks = (*runs.batch_peaks, *runs.seq_peaks)
    found = {
        "Memory profiling completed for multiple batch sizes": all_of(
            batches, len(runs.by_batch), "batch sizes"
        ),
        "Sequence length scaling analyzed": Verdict(
            lengths == len(runs.by_seq) and None not in peaks,
            f"{lengths} of {len(runs.by_seq)} lengths; rule: all of them",
        ),
        "Memory hotspots identified": Verdict(rows >= 5, f"{rows} operators; rule: at least 5"),
        "Bandwidth utilization calculated": Verdict(
            share is not None, f"{percent(share)}; rule: 1 figure is there"
        ),
        "Optimization priorities ranked": Verdict(
            ranked == len(OPTIMIZATIONS), f"{ranked} of {len(OPTIMIZATIONS)}; rule: all of them"
        ),
    }
    ready = all_hold(list(found.values()), "criteria above hold")
    return decided({**found, "Ready to proceed to bottleneck identification": ready})


def hotspot_rows(run: MeasuredRun) -> list[tuple[str, ...]]:
    """Operators whose bytes stay allocated, most first."""
    operators = (run.summary or {})["operators"]
    by_name: dict[str, float] = {}
    for row in operators["table"]:
        by_name[row["name"]] = by_name.get(row["name"], 0) + (row["self_memory_bytes"] or 0)
    top = sorted(by_name.items(), key=lambda entry: -entry[1])[:TOP_HOTSPOTS]
    return [
        (str(rank), f"`{name}`", megabytes(size / operators["steps"]))
        for rank, (name, size) in enumerate(top, start=1)
    ]


def tensor_rows(run: MeasuredRun) -> list[tuple[str, ...]]:
    """The largest tensors."""
    return [
        (
            str(tensor["name"]),
            megabytes(tensor["bytes"]),
            str(tensor["count"]),
            str(tensor["component"]),
            f"`{tensor['operator']}` in {tensor['phase']}",
        )
        for tensor in (run.summary or {})["memory"]["largest_tensors"]
    ]


def ranked_rows(runs: MemoryRuns, effects: list[Effect]) -> list[tuple[str, ...]]:
    """5.5: the rank of each of the four."""
    peak = runs.memory["peak_bytes"]
    return [
        (
            str(rank),
            effect.name,
            IMPACTS[effect.name],
            f"{megabytes(effect.saved_bytes)} ({percent(100 * effect.saved_bytes / peak)})",
            times_text(effect.time_ratio),
            effect.basis,
        )
        for rank, effect in enumerate(effects, start=1)
    ]


def law_values(runs: MemoryRuns) -> Json:
    """The fitted law, what it says at the base size and how far it is off; or why none is."""
    try:
        law = MemoryLaw.fitted_to(runs.points)
    except LawRefusedError as error:
        return {"law": None, "law_refused": str(error)}
    rows = [
        (
            f"{p.batch} x {p.seq}",
            megabytes(p.value),
            megabytes(law.at(p.batch, p.seq)),
            f"{r:+.1f} %",
        )
        for p, r in zip(runs.points, law.residuals_percent, strict=True)
    ]
    return {"law": law, "law_rows": rows, "law_shares": law.shares_percent(runs.batch, runs.seq)}


def worksheet(runs: MemoryRuns, limit: Limit, references: Path) -> list[str]:
    """The filled-in page."""
    effects, ranked_from = known_effects(runs.base, references)
    ranked, found = ranked_rows(runs, effects), growths(runs)
    tables = ("PHASES", "TIMELINE", "DOUBLING", "OCCURS", "DEALLOCATED", "SEQUENCE_PATTERN")
    rules = ("INTENSITY_CLASSES", "MEMORY_SIGNS", "COMPUTE_SIGNS", "BEHAVIOR", "CONSUMED")
    lengths = [f"S={seq}" for seq, batch in runs.by_seq if batch == runs.batch]
    speeds = [samples_per_second(run) for run in runs.by_batch.values()]
    return render(
        "exercise_2.md.j2",
        runs,
        **{name: globals()[name] for name in (*tables, *rules, "TARGETS")},
        **law_values(runs),
        timeline_page=PAGE,
        BANDWIDTH_FIGURES=bandwidth_figures(runs),
        batch_rows=batch_rows(runs),
        throughput=throughput_answer(last_factor(speeds)),
        high=above(runs.value("memory.peak_to_average"), 1.2, "x"),
        sequence_rows=sequence_rows(runs),
        typical_header=("Component", *lengths, "Scaling"),
        typical_rows=typical_rows(runs),
        growths=found,
        growth_rows=[(g.name, f"S^{g.exponent:.2f}", percent(g.share_percent)) for g in found],
        limit=limit_answer(limit),
        hotspot_rows=hotspot_rows(runs.hotspots),
        tensor_rows=tensor_rows(runs.hotspots),
        ranked=ranked,
        ranked_from=ranked_from,
        ranges=range_rows(RANGES, runs),
        benefits=[
            (row[0], row[1], megabytes(effect.saved_bytes))
            for row, effect in zip(ranked, effects, strict=True)
        ],
        criteria=criteria(runs, len(effects)),
    )


def exit_status(measured: dict[str, MeasuredRun]) -> int:
    """1 where a run failed, be it that its size did not fit; the page answers with the rest."""
    if was_interrupted(measured):
        return 130
    return 0 if all(run.is_complete for run in measured.values()) else 1


def make_sheet(
    measured: dict[str, MeasuredRun],
    options: Namespace,
    limit: Limit,
    references: Path = RESULTS / "reference",
) -> Sheet:
    """The page of whatever was measured, and the command's exit status."""
    runs = collect(measured, options)
    title = head("Exercise 2: memory analysis", list(measured.values()))
    missing = missing_parts(runs)
    if missing:
        status = exit_status(measured) or 1
        page = "\n".join([*title, *failure_lines(missing)])
        return Sheet(page, status, has_summary(measured))
    page = "\n".join([*title, *worksheet(runs, limit, references)])
    return Sheet(page, exit_status(measured))


def measure_limit(
    runs: MemoryRuns, options: Namespace, program: TrainingProgram, predictor: Predictor
) -> Limit:
    """Predicts the longest sequence and confirms it by a step."""
    say("longest sequence: asking tiny_llama_bench --dry-run")
    limit = predict_limit(runs, options, predictor)
    planned = confirming_run(limit, options)
    if planned is None:
        return limit
    folder, page_folder = options.profile_dir, options.output.parent
    measured = measure_all([planned], program, folder, page_folder, say, has_measured=True)
    return replace(limit, run=measured[planned.name])


def run_exercise_2(
    options: Namespace, program: TrainingProgram, predictor: Predictor | None = None
) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet.

    `predictor`: in the place of tiny_llama_bench --dry-run, for tests.
    """
    folder, page_folder = options.profile_dir, options.output.parent
    measured = measure_all(planned_runs(options), program, folder, page_folder, say)
    runs = collect(measured, options)
    limit = Limit(runs.batch, None, "interrupted before")
    if not was_interrupted(measured) and not missing_parts(runs):
        asked = predictor or partial(predict, program=options.suite_program)
        limit = measure_limit(runs, options, program, asked)
        if limit.run is not None:
            measured[limit.run.name] = limit.run
    return make_sheet(measured, options, limit)
