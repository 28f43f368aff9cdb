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
from tinyllama_tools.models.optimization_effects import known_effects, small_calls_percent
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


def planned_runs(options: Namespace) -> Plan:
    """The worksheet's nine commands, and one for the bandwidth."""
    operators, memory = "--enable-pytorch-profiler", "--profile-memory"
    base = (options.batch_size, options.seq_len, 10)
    every = {**shapes(options), HOTSPOTS: base, BANDWIDTH: base}
    profilers = {
        HOTSPOTS: (operators, memory, "--profile-operators"),
        BANDWIDTH: ("--enable-deepspeed-flops",),
    }
    return {
        name: (
            *given_shape(options, *shape),
            *profilers.get(name, (operators, memory) if "analysis" in name else (memory,)),
        )
        for name, shape in every.items()
    }


def given_shape(options: Namespace, batch: int, seq: int, steps: int) -> tuple[str, ...]:
    """Options of any of the runs."""
    return (
        f"--batch-size={batch}",
        f"--seq-len={seq}",
        f"--num-steps={steps}",
        *options.model,
    )


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
    question = ModelQuestion(
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
            growth = (size / long_batch) / (short[name] / short_batch)
            exponent = math.log(growth) / math.log(lengths[-1] / lengths[0])
            found.append((name, exponent, share))
    return sorted(found, key=lambda g: (-round(g[1], 3), -g[2]))


def fitted_law(peaks: Mapping[tuple[int, int], float]) -> Json:
    """The law over all measured (batch, sequence) and its points, or why there is none."""
    points = [GridPoint(*shape, (peak,)) for shape, peak in peaks.items()]
    try:
        law = MemoryLaw.fitted_to(points)
    except LawRefusedError as error:
        return {"law": None, "law_refused": str(error)}
    return {"law": law, "law_points": list(zip(points, law.residuals_percent, strict=True))}


def target_shares(memory: Json) -> dict[str, float]:
    """Bytes behind each of the worksheet's memory targets: parts of the peak, and for
    fragmentation what the allocator holds beyond what is in use."""
    peak = memory["breakdown_at_peak"]
    held = memory["fragmentation"] or {"held_bytes": 0, "allocated_bytes": 0}
    return {
        "Reduce attention memory (Flash Attention)": peak["attention_scores"],
        "Reduce activation memory (checkpointing)": peak["activations"],
        "Reduce parameter memory (mixed precision)": peak["parameters"]
        + peak["gradients"]
        + peak["optimizer_states"],
        "Reduce fragmentation (kernel fusion)": max(
            0, held["held_bytes"] - held["allocated_bytes"]
        ),
    }


def worksheet_values(runs: Runs, options: Namespace, limit: Limit, references: Path) -> Json:
    """What the template needs beside the runs."""
    base, hotspots = runs[f"memory_analysis_bs{options.batch_size}"], runs[HOTSPOTS]
    by_name: dict[str, float] = {}
    for row in hotspots("operators.table"):
        by_name[row["name"]] = by_name.get(row["name"], 0) + (row["self_memory_bytes"] or 0)
    found = [(b, s, name, runs[name]) for name, (b, s, _) in shapes(options).items()]
    by_batch = [(b, run) for b, _, name, run in found if "analysis" in name]
    by_seq = [(s, b, run) for b, s, name, run in found if "memory_seq" in name]
    same = [(s, run) for s, b, run in by_seq if b == options.batch_size]
    peaks: dict[tuple[int, int], float] = {}
    for batch, seq, _, run in found:
        if peak := run("memory.peak_bytes"):
            peaks.setdefault((batch, seq), peak)
    key = "memory.component_activation_bytes"
    effects, effects_from = known_effects(base.name, base, references)
    return {
        "base": base,
        "batch": options.batch_size,
        "seq": options.seq_len,
        "by_batch": by_batch,
        "by_seq": by_seq,
        "same_batch": same,
        "batch_peaks": [run("memory.peak_bytes") for _, run in by_batch],
        "seq_peaks": [run("memory.peak_bytes") for _, run in same],
        "lengths_measured": sum(run("memory") is not None for _, _, run in by_seq),
        "increment_ratio": increment_ratio,
        "order": order,
        "growths": component_growth({s: (b, run(key)) for s, b, run in by_seq if run(key)}),
        **fitted_law(peaks),
        "limit": limit,
        "confirmed_share": CONFIRMED_SHARE,
        "hotspots": sorted(by_name.items(), key=lambda entry: -entry[1])[:5],
        "small_calls": small_calls_percent(hotspots("operators.table")),
        "targets": {name: size / 2**20 for name, size in target_shares(base("memory")).items()},
        "effects": effects,
        "effects_from": effects_from,
    }


def missing_parts(runs: Runs, options: Namespace) -> list[str]:
    """Why the page cannot be made; sizes that could not be run are rows of it, and no reason."""
    profiles = ("memory", "operators")
    base = f"memory_analysis_bs{options.batch_size}"
    return missing_of(runs, {base: profiles, HOTSPOTS: profiles, BANDWIDTH: ("flops",)})


def sheet_of(
    runs: Runs, options: Namespace, limit: Limit, references: Path = RESULTS / "reference"
) -> Sheet:
    """The page of whatever was measured."""
    missing = missing_parts(runs, options)
    values = {} if missing else worksheet_values(runs, options, limit, references)
    every = {**runs, LONGEST_RUN: limit.run} if limit.run else runs
    return make_sheet("exercise_2.md.j2", every, missing, title=TITLE, **values)


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
