"""Exercise 2, memory analysis: its runs, and the numbers that its template answers with."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tinyllama_tools.commands.worksheet import (
    MeasuredRun,
    Plan,
    Sheet,
    make_sheet,
    measure_all,
    missing_of,
    ratio,
    say,
    was_interrupted,
)
from tinyllama_tools.core.app import RESULTS, Json
from tinyllama_tools.data.programs import SuiteError, TrainingProgram
from tinyllama_tools.models.ablation_evidence import find_evidence
from tinyllama_tools.models.bottlenecks import known_effects, small_calls_percent
from tinyllama_tools.models.size_predictions import (
    MemoryLaw,
    Predictor,
    Question,
    Target,
    find_target,
    predict,
)
from tinyllama_tools.stats.laws import GridPoint, LawRefusedError

TITLE = "Exercise 2: memory analysis"
HOTSPOTS, BANDWIDTH, LONGEST_RUN = "memory_hotspots", "bandwidth", "longest_sequence"
SMALLEST_SHARE_PERCENT = 1.0
DIMENSIONS = ("vocab_size", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "intermediate_dim")
Runs = Mapping[str, MeasuredRun]


def shapes(options: Namespace) -> dict[str, tuple[int, int, int]]:
    """Batch, sequence and steps by run: half, once and twice the batch; half to four times the
    sequence, the last with half of the batch, as the worksheet has it."""
    batch, seq = options.batch_size, options.seq_len
    by_batch = {f"memory_analysis_bs{b}": (b, seq, 15) for b in (batch // 2, batch, 2 * batch)}
    by_seq = {f"memory_seq{s}": (batch, s, 10) for s in (seq // 2, seq, 2 * seq)}
    return {**by_batch, **by_seq, f"memory_seq{4 * seq}": (batch // 2, 4 * seq, 5)}


def given_shape(options: Namespace, batch: int, seq: int, steps: int) -> tuple[str, ...]:
    """Options of any of the runs."""
    return (f"--batch-size={batch}", f"--seq-len={seq}", f"--num-steps={steps}", *options.model)


def planned_runs(options: Namespace) -> Plan:
    """The worksheet's nine commands, and one for the bandwidth."""
    operators, memory = "--enable-pytorch-profiler", "--profile-memory"
    base = given_shape(options, options.batch_size, options.seq_len, 10)
    planned: dict[str, Sequence[str]] = {
        name: (*given_shape(options, *shape), *([operators] if "analysis" in name else []), memory)
        for name, shape in shapes(options).items()
    }
    planned[HOTSPOTS] = (*base, operators, memory, "--profile-operators")
    return {**planned, BANDWIDTH: (*base, "--enable-deepspeed-flops")}


@dataclass(frozen=True)
class Limit:
    """What was predicted (None and why not) and the run that confirms it (None where none did)."""

    target: Target | None = None
    reason: str = ""
    run: MeasuredRun | None = None


def predict_limit(runs: Runs, options: Namespace, predictor: Predictor) -> Limit:
    """The longest sequence at the worksheet's batch, from the longest one that was measured."""
    measured = [
        (runs[name], batch, seq)
        for name, (batch, seq, _) in shapes(options).items()
        if name.startswith("memory_seq") and runs[name].summary
    ]
    if not measured:
        return Limit(reason="no sequence length was measured")
    run, batch, seq = measured[-1]
    model = [f"--{name.replace('_', '-')}={run(f'configuration.{name}')}" for name in DIMENSIONS]
    question = Question(
        sizes=("custom",),
        dtype=str(run("configuration.dtype")),
        variants=(str(run("configuration.variant")),),
        batch=(batch,),
        seq=(seq,),
        device=options.device,
        model=tuple(model),
    )
    try:
        known = predictor(question)[0], run.step_seconds or 0.0
        asked = replace(question, batch=(options.batch_size,))
        return Limit(find_target(predictor, asked, known, 60 * options.max_minutes))
    except SuiteError as error:
        return Limit(reason=str(error))


def increment_ratio(peaks: Sequence[float | None]) -> float | None:
    """(third - second) / (second - first) of peaks at sizes 1, 2 and 4: what is fixed drops out.

    2 for what grows with the size, 4 for what grows with its square, 8 with its cube.
    """
    known = [peak for peak in peaks if peak is not None]
    return ratio(known[2] - known[1], known[1] - known[0]) if len(known) == 3 else None


def order(lengths: Sequence[int], sizes: Sequence[float | None]) -> float | None:
    """Exponent of the growth between the shortest and the longest."""
    growth = ratio(sizes[-1], sizes[0])
    return math.log(growth) / math.log(lengths[-1] / lengths[0]) if growth and growth > 0 else None


def component_growth(
    profiles: Mapping[int, tuple[int, Mapping[str, float]]],
) -> list[tuple[str, float, float]]:
    """Name, exponent of bytes a sample over the sequence, and share of all at the longest one.

    Steepest first. `profiles`: sequence -> (batch, bytes by component). Components below
    SMALLEST_SHARE_PERCENT are left out; none where there are fewer than two lengths.
    """
    lengths = sorted(profiles)
    if len(lengths) < 2:
        return []
    (short_batch, short), (long_batch, long) = profiles[lengths[0]], profiles[lengths[-1]]
    whole, found = sum(long.values()), []
    for name, size in long.items():
        share = 100 * size / whole if whole else 0.0
        if share >= SMALLEST_SHARE_PERCENT and short.get(name, 0) > 0:
            before, after = short[name] / short_batch, size / long_batch
            exponent = order([lengths[0], lengths[-1]], [before, after])
            found.append((name, exponent or 0.0, share))
    return sorted(found, key=lambda g: (-round(g[1], 3), -g[2]))


def fitted_law(peaks: Mapping[tuple[int, int], float]) -> Json:
    """The law over all measured (batch, sequence) and its points, or why there is none."""
    points = [GridPoint(*shape, (peak,)) for shape, peak in peaks.items()]
    try:
        law = MemoryLaw.fitted_to(points)
    except LawRefusedError as error:
        return {"law": None, "law_refused": str(error)}
    rows = [
        (f"{p.batch} x {p.seq}", p.value, law.at(p.batch, p.seq), residual)
        for p, residual in zip(points, law.residuals_percent, strict=True)
    ]
    return {"law": law, "law_points": rows}


def target_shares(memory: Json) -> dict[str, float]:
    """Bytes behind each of the worksheet's memory targets: parts of the peak, and for
    fragmentation what the allocator holds beyond what is in use."""
    peak = memory["breakdown_at_peak"]
    held = memory["fragmentation"] or {"held_bytes": 0, "allocated_bytes": 0}
    kept = peak["parameters"] + peak["gradients"] + peak["optimizer_states"]
    beyond = max(0, held["held_bytes"] - held["allocated_bytes"])
    return {
        "Reduce attention memory (Flash Attention)": peak["attention_scores"],
        "Reduce activation memory (checkpointing)": peak["activations"],
        "Reduce parameter memory (mixed precision)": kept,
        "Reduce fragmentation (kernel fusion)": beyond,
    }


def hotspots(run: MeasuredRun) -> list[tuple[str, float]]:
    """The five operators after which most bytes stay allocated, a step."""
    by_name: dict[str, float] = {}
    for row in run("operators.table"):
        by_name[row["name"]] = by_name.get(row["name"], 0) + (row["self_memory_bytes"] or 0)
    steps = run("operators.steps")
    found = sorted(by_name.items(), key=lambda entry: -entry[1])[:5]
    return [(name, size / steps) for name, size in found]


def scaling_rows(found: Sequence[tuple[int, int, MeasuredRun]]) -> list[Json]:
    """Of (batch, sequence, run): peaks beside the first one's and the previous one's."""
    rows: list[Json] = []
    for batch, seq, run in found:
        peak = run("memory.peak_bytes")
        first = rows[0] if rows else {"peak": peak, "batch": batch}
        sample, first_sample = ratio(peak, batch), ratio(first["peak"], first["batch"])
        has_both = None not in (peak, first["peak"])
        rows.append(
            {
                "batch": batch,
                "seq": seq,
                "peak": peak,
                "average": run("memory.average_bytes"),
                "speed": run.speed,
                "growth": ratio(peak, rows[-1]["peak"] if rows else peak),
                "increase": peak - first["peak"] if has_both else None,
                "factor": ratio(peak, first["peak"]),
                "sample": sample,
                "sample_factor": ratio(sample, first_sample),
                "predicted": run("model.predicted_peak_memory_bytes"),
                "reason": run.reason,
            }
        )
    return rows


# Of the peak, over sequences at the same batch.
PEAK_PARTS = {
    "Parameters": "memory.breakdown_at_peak.parameters",
    "Activations": "memory.breakdown_at_peak.activations",
    "Attention": "memory.breakdown_at_peak.attention_scores",
    "Total": "memory.peak_bytes",
}


def worksheet_values(runs: Runs, options: Namespace, results: Path) -> Json:
    """What the template needs beside the runs."""
    base = runs[f"memory_analysis_bs{options.batch_size}"]
    found = [(b, s, name, runs[name]) for name, (b, s, _) in shapes(options).items()]
    by_batch = scaling_rows([(b, s, run) for b, s, name, run in found if "analysis" in name])
    sequences = [(b, s, run) for b, s, name, run in found if "memory_seq" in name]
    by_seq = scaling_rows(sequences)
    lengths = [s for b, s, _ in sequences if b == options.batch_size]
    parts = {
        name: [run(key) for b, _, run in sequences if b == options.batch_size]
        for name, key in PEAK_PARTS.items()
    }
    peaks: dict[tuple[int, int], float] = {}
    for batch, seq, _, run in found:
        if peak := run("memory.peak_bytes"):
            peaks.setdefault((batch, seq), peak)
    summary, peak_bytes = base.summary or {}, base("memory.peak_bytes")
    key = "memory.component_activation_bytes"
    return {
        "base": base,
        "batch": options.batch_size,
        "seq": options.seq_len,
        "by_batch": by_batch,
        "by_seq": by_seq,
        "lengths": lengths,
        "peak_parts": [(n, *sizes, order(lengths, sizes)) for n, sizes in parts.items()],
        "batch_growth": increment_ratio([row["peak"] for row in by_batch]),
        "seq_growth": increment_ratio(parts["Total"]),
        "growths": component_growth({s: (b, run(key)) for b, s, run in sequences if run(key)}),
        **fitted_law(peaks),
        "hotspots": hotspots(runs[HOTSPOTS]),
        "small_calls": small_calls_percent(runs[HOTSPOTS]("operators.table")),
        "targets": target_shares(base("memory")),
        "effects": [
            (e.name, e.saved_bytes, 100 * e.saved_bytes / peak_bytes, e.time_ratio, e.basis)
            for e in known_effects(summary, find_evidence(summary, results))
        ],
    }


def missing_parts(runs: Runs, options: Namespace) -> list[str]:
    """Why the page cannot be made; sizes that could not be run are rows of it, and no reason."""
    profiles = ("memory", "operators")
    base = f"memory_analysis_bs{options.batch_size}"
    return missing_of(runs, {base: profiles, HOTSPOTS: profiles, BANDWIDTH: ("flops",)})


def sheet_of(runs: Runs, options: Namespace, limit: Limit, results: Path = RESULTS) -> Sheet:
    """The page of whatever was measured; `results`: where an ablation of this device is found."""
    missing = missing_parts(runs, options)
    values = {} if missing else worksheet_values(runs, options, results)
    every = {**runs, LONGEST_RUN: limit.run} if limit.run else runs
    return make_sheet("exercise_2.md.j2", every, missing, title=TITLE, limit=limit, **values)


def run_exercise(options: Namespace, program: TrainingProgram) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet."""
    folder, page_folder = options.profile_dir, options.output.parent
    runs = measure_all(planned_runs(options), program, folder, page_folder)
    limit = Limit(reason="interrupted before")
    if not was_interrupted(runs) and not missing_parts(runs, options):
        say("longest sequence: asking tiny_llama_bench --dry-run")
        limit = predict_limit(runs, options, partial(predict, program=options.suite_program))
    if limit.target and limit.target.confirmable:
        # one step at the longest sequence that is safe to run
        shape = given_shape(options, options.batch_size, limit.target.confirmable.seq, 1)
        plan = {LONGEST_RUN: shape}
        done = measure_all(plan, program, folder, page_folder, has_measured=True)
        limit = replace(limit, run=done[LONGEST_RUN])
    return sheet_of(runs, options, limit)
