"""Exercise 2, memory analysis: its runs, and the numbers that its template answers with."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.commands.exercise import DIMENSIONS
from tinyllama_tools.commands.profile_report import operator_shares
from tinyllama_tools.commands.worksheet import (
    INTERRUPTED_REASON,
    MeasuredRun,
    Plan,
    Runs,
    Sheet,
    growth_exponent,
    make_sheet,
    measure_all,
    missing_of,
    ratio,
    say,
    share_of,
    was_interrupted,
)
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.programs import SuiteError, TrainingProgram, ask_json
from tinyllama_tools.models.ablations import Evidence, find_evidence
from tinyllama_tools.models.bottlenecks import known_effects, small_calls_percent
from tinyllama_tools.stats.laws import BASE, LINEAR, QUADRATIC, Fit, GridPoint, LawRefusedError

HOTSPOTS, BANDWIDTH = "memory_hotspots", "bandwidth"
# An allocator's rounding, a BLAS's scratch memory and the program itself need room of their own.
TRIED_SHARE = 0.9
# of --confirm: two at the longest, two with a token more
STEPS_OF_A_TRY = 4
SMALLEST_SHARE_PERCENT = 1.0


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


@dataclass
class Longest:
    """The longest sequence at the worksheet's batch, as rows of the suite's --find-limit.

    `fitting`: predicted, of the memory that is free; `tried`: what --confirm found in TRIED_SHARE
    of that; None for the `reason`.
    """

    fitting: Json | None = None
    tried: Json | None = None
    reason: str = ""


def find_longest(runs: Runs, options: Namespace, arguments: Sequence[str], found: Longest) -> None:
    """Fills `found`. `arguments`: options of every run. SuiteError where the suite cannot answer.

    The longest is tried where --max-minutes allow it, by the time of the longest that was measured:
    a step's time grows as its tokens or, since long ones are spent in the scores, as its memory.
    """
    measured = [run for run in runs.values() if run.summary]
    run = max(measured, key=lambda run: run("configuration.seq_len"))
    of = run("configuration")
    asked = [
        *("--find-limit=seq", *arguments, f"--components={STEP}", "--sizes=custom"),
        *(f"--{name}={of[name.replace('-', '_')]}" for name in DIMENSIONS),
        *(f"--dtypes={of['dtype']}", f"--variants={of['variant']}"),
        *(f"--batch={options.batch_size}", "--benchmark_format=json"),
    ]
    answer = ask_json(options.suite_program, asked)
    (row,) = answer["limits"]
    if not row["largest"]:
        found.reason = row["skip_reason"] or "not even two tokens fit"
        return
    found.fitting = row
    tokens = options.batch_size * row["largest"] / (of["batch_size"] * of["seq_len"])
    memory = row["predicted_memory_bytes"] / run("model.predicted_peak_memory_bytes")
    minutes = STEPS_OF_A_TRY * max(tokens, memory) * (run.step_seconds or 0) / 60
    if minutes > options.max_minutes:
        found.reason = f"it may take {minutes:.1f} minutes (--max-minutes {options.max_minutes:g})"
        return
    limit = int(TRIED_SHARE * answer["memory_limit_bytes"])
    # status 1: it does not fit, or a token more does
    asked += ["--confirm", f"--memory-limit={limit}"]
    (found.tried,) = ask_json(options.suite_program, asked, ok=(0, 1))["limits"]


def increment_ratio(peaks: Sequence[float | None]) -> float | None:
    """(third - second) / (second - first) of peaks at sizes 1, 2 and 4: what is fixed drops out.

    2 for what grows with the size, 4 for what grows with its square, 8 with its cube.
    """
    known = [peak for peak in peaks if peak is not None]
    return ratio(known[2] - known[1], known[1] - known[0]) if len(known) == 3 else None


def component_growth(
    profiles: Mapping[int, tuple[int, Mapping[str, float]]],
) -> list[tuple[str, float, float]]:
    """Name, exponent of bytes a sample over the sequence, and share of all at the longest one.

    Steepest first. `profiles`: sequence -> (batch, bytes by component). Components below
    SMALLEST_SHARE_PERCENT are left out; none where there are fewer than two lengths.
    """
    if len(profiles) < 2:
        return []
    first, last = min(profiles), max(profiles)
    (first_batch, before), (last_batch, after) = profiles[first], profiles[last]
    found = []
    for name, size in after.items():
        share = share_of(size, sum(after.values())) or 0.0
        if share >= SMALLEST_SHARE_PERCENT and before.get(name, 0) > 0:
            samples = [before[name] / first_batch, size / last_batch]
            found.append((name, growth_exponent([first, last], samples) or 0.0, share))
    return sorted(found, key=lambda g: (-round(g[1], 3), -g[2]))


def fitted_law(peaks: Mapping[tuple[int, int], float], batch: int, seq: int) -> Json:
    """memory(B, S) = base + B (linear S + quadratic S^2) over all measured (batch, sequence), the
    parts' shares at one of them, and its points; or why there is none.

    The exercise fills in exactly these three, whether or not its few sizes support each.
    Coefficients may be below 0. The law describes the sizes that were measured; what other sizes
    need is predicted by the program.
    """
    points = [GridPoint(*shape, (peak,)) for shape, peak in peaks.items()]
    try:
        fit = Fit(points, (BASE, LINEAR, QUADRATIC), is_bounded=False)
    except LawRefusedError as error:
        return {"law": None, "law_refused": str(error)}
    base, linear, quadratic = fit.coefficients
    parts = (base, batch * seq * linear, batch * seq**2 * quadratic)
    residuals = 100 * fit.residuals
    return {
        "law": {"base": base, "linear": linear, "quadratic": quadratic},
        "law_shares": [share_of(part, sum(parts)) for part in parts],
        "law_points": [
            (f"{p.batch} x {p.seq}", p.value, fit.at(p), residual)
            for p, residual in zip(points, residuals, strict=True)
        ],
        "largest_residual": max(abs(residuals)),
    }


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


def worksheet_values(runs: Runs, options: Namespace, evidence: Evidence | None) -> Json:
    """What the template needs beside the runs."""
    base = runs[f"memory_analysis_bs{options.batch_size}"]
    found = [(b, s, name, runs[name]) for name, (b, s, _) in shapes(options).items()]
    by_batch = scaling_rows([(b, s, run) for b, s, name, run in found if "analysis" in name])
    sequences = [(b, s, run) for b, s, name, run in found if "memory_seq" in name]
    same_batch = [(s, run) for b, s, run in sequences if b == options.batch_size]
    lengths = [s for s, _ in same_batch]
    parts = {name: [run(key) for _, run in same_batch] for name, key in PEAK_PARTS.items()}
    peaks: dict[tuple[int, int], float] = {}
    for batch, seq, _, run in found:
        if peak := run("memory.peak_bytes"):
            peaks.setdefault((batch, seq), peak)
    key, operators = "memory.component_activation_bytes", runs[HOTSPOTS]("operators")
    kept = sorted(operator_shares(operators), key=lambda row: -row.kept_bytes)[:5]
    return {
        "base": base,
        "batch": options.batch_size,
        "seq": options.seq_len,
        "by_batch": by_batch,
        "by_seq": scaling_rows(sequences),
        "lengths": lengths,
        "peak_parts": [
            (name, *sizes, growth_exponent(lengths[::2], sizes[::2]))
            for name, sizes in parts.items()
        ],
        "batch_growth": increment_ratio([row["peak"] for row in by_batch]),
        "seq_growth": increment_ratio(parts["Total"]),
        "growths": component_growth({s: (b, run(key)) for b, s, run in sequences if run(key)}),
        **fitted_law(peaks, options.batch_size, options.seq_len),
        "hotspots": kept,
        "small_calls": small_calls_percent(operators["table"]),
        "targets": target_shares(base("memory")),
        "effects": known_effects(base.summary or {}, evidence),
    }


def missing_parts(runs: Runs, options: Namespace) -> list[str]:
    """Why the page cannot be made; sizes that could not be run are rows of it, and no reason."""
    profiles = ("memory", "operators")
    base = f"memory_analysis_bs{options.batch_size}"
    return missing_of(runs, {base: profiles, HOTSPOTS: profiles, BANDWIDTH: ("flops",)})


def sheet_of(
    runs: Runs, options: Namespace, longest: Longest, evidence: Evidence | None = None
) -> Sheet:
    """The page of whatever was measured."""
    missing = missing_parts(runs, options)
    values = {} if missing else worksheet_values(runs, options, evidence)
    return make_sheet(
        "exercise_2.md.j2",
        runs,
        missing,
        interrupted=longest.reason == INTERRUPTED_REASON,
        longest=longest,
        **values,
    )


def run_exercise(options: Namespace, program: TrainingProgram) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet."""
    runs, longest = measure_all(planned_runs(options), program, options), Longest()
    if was_interrupted(runs) or missing_parts(runs, options):
        return sheet_of(runs, options, longest)
    say("longest sequence: asking tiny_llama_bench --find-limit=seq")
    try:
        find_longest(runs, options, program.arguments, longest)
    except SuiteError as error:
        longest.reason = str(error)
    except KeyboardInterrupt:
        longest.reason = INTERRUPTED_REASON
    base = runs[f"memory_analysis_bs{options.batch_size}"]
    return sheet_of(runs, options, longest, find_evidence(base.summary))
