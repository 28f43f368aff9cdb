"""Exercise 2, memory analysis: its runs, and the numbers that its template answers with."""

from argparse import Namespace
from collections.abc import Mapping, Sequence

from tinyllama_tools.commands.profile import Plan, measure_all
from tinyllama_tools.commands.worksheet import (
    growth_exponent,
    make_sheet,
    missing_of,
    ratio,
    share_of,
)
from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import say
from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.profiles import (
    INTERRUPTED_REASON,
    MeasuredRun,
    Runs,
    operator_shares,
)
from tinyllama_tools.data.programs import SuiteError, TrainingProgram, ask_json
from tinyllama_tools.models.bottlenecks import memory_effects

HOTSPOTS, BANDWIDTH = "memory_hotspots", "bandwidth"
SMALLEST_SHARE_PERCENT = 1.0


def shapes(options: Namespace) -> dict[str, tuple[int, int, int]]:
    """Batch, sequence and steps by run: half, once and twice the batch; half to four times the
    sequence, the last with half of the batch, as the worksheet has it."""
    batch, seq = options.batch_size, options.seq_len
    by_batch = {f"memory_analysis_bs{b}": (b, seq, 15) for b in (batch // 2, batch, 2 * batch)}
    by_seq = {f"memory_seq{s}": (batch, s, 10) for s in (seq // 2, seq, 2 * seq)}
    return {**by_batch, **by_seq, f"memory_seq{4 * seq}": (batch // 2, 4 * seq, 5)}


def planned_runs(options: Namespace) -> Plan:
    """The worksheet's eight commands, and one for the bandwidth."""

    def given(batch: int, seq: int, steps: int, *profilers: str) -> Sequence[str]:
        shape = (f"--batch-size={batch}", f"--seq-len={seq}", f"--num-steps={steps}")
        return (*shape, f"--size={options.size}", *profilers)

    operators, memory = "--enable-pytorch-profiler", "--profile-memory"
    base = (options.batch_size, options.seq_len, 10)
    planned = {
        name: given(*shape, *([operators] if "analysis" in name else []), memory)
        for name, shape in shapes(options).items()
    }
    planned[HOTSPOTS] = given(*base, operators, memory, "--profile-operators")
    return {**planned, BANDWIDTH: given(*base, "--enable-deepspeed-flops")}


def longest_sequence(options: Namespace) -> Json:
    """The row of the suite's --find-limit: the longest at the worksheet's batch that is predicted
    to fit into the memory that is free. SuiteError where it cannot answer."""
    case = (f"--components={STEP}", f"--sizes={options.size}", "--dtypes=f32")
    asked = ["--find-limit=seq", *options.shared, *case, "--variants=baseline"]
    asked += [f"--batch={options.batch_size}", "--benchmark_format=json"]
    (row,) = ask_json(options.build_folder / "benchmarks/tiny_llama_bench", asked)["limits"]
    if not row["largest"]:
        raise SuiteError(row["skip_reason"] or "not even two tokens fit")
    return row


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
    """Of (batch, sequence, run): peaks beside the first one's."""
    rows: list[Json] = []
    for batch, seq, run in found:
        row = {"batch": batch, "seq": seq, "run": run, "peak": run("memory.peak_bytes")}
        first = rows[0] if rows else row
        factor = ratio(row["peak"], first["peak"])
        row["increase"] = factor and row["peak"] - first["peak"]
        row["factor"], row["sample_factor"] = factor, factor and factor * first["batch"] / batch
        rows.append(row)
    return rows


def worksheet_values(runs: Runs, options: Namespace) -> Json:
    """What the template needs beside the runs."""
    base = runs[f"memory_analysis_bs{options.batch_size}"]
    found = [(b, s, name, runs[name]) for name, (b, s, _) in shapes(options).items()]
    by_batch = scaling_rows([(b, s, run) for b, s, name, run in found if "analysis" in name])
    sequences = [(b, s, run) for b, s, name, run in found if "memory_seq" in name]
    by_seq = scaling_rows(sequences)
    key = "memory.component_activation_bytes"
    operators = operator_shares(runs[HOTSPOTS]("operators"))
    return {
        "base": base,
        "batch": options.batch_size,
        "by_batch": by_batch,
        "by_seq": by_seq,
        "batch_growth": increment_ratio([row["peak"] for row in by_batch]),
        # the fourth is of half the batch
        "seq_growth": increment_ratio([row["peak"] for row in by_seq[:3]]),
        "growths": component_growth({s: (b, run(key)) for b, s, run in sequences if run(key)}),
        "hotspots": sorted(operators, key=lambda row: -row["self_memory_bytes"])[:5],
        "targets": target_shares(base("memory")),
        "effects": memory_effects(base.summary or {}),
    }


def run_exercise(options: Namespace, program: TrainingProgram) -> tuple[str, int]:
    """Carries the runs out, their files below `options.profile_dir`. The page, and the status.

    Sizes that could not be run are rows of the page, and no gap."""
    runs = measure_all(planned_runs(options), program, options.profile_dir, options.output.parent)
    profiles, base = ("memory", "operators"), f"memory_analysis_bs{options.batch_size}"
    missing = missing_of(runs, {base: profiles, HOTSPOTS: profiles, BANDWIDTH: ("flops",)})
    if missing:
        return make_sheet("exercise_2.md.j2", runs, missing)
    longest, reason = None, ""
    say("longest sequence: asking tiny_llama_bench --find-limit=seq")
    try:
        longest = longest_sequence(options)
    except SuiteError as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = INTERRUPTED_REASON
    values = worksheet_values(runs, options) | {"longest": longest, "reason": reason}
    is_interrupted = reason == INTERRUPTED_REASON
    return make_sheet("exercise_2.md.j2", runs, missing, interrupted=is_interrupted, **values)
