"""scripts/exercise: runs an exercise of the workshop and writes its worksheet, filled in. Exercises
1 and 2 are here; the third, a study and the plan that follows, is in exercise_3.py, those of
versions 2 to 4 in exercise_course.py."""

import argparse
from collections.abc import Mapping, Sequence

from tinyllama_tools.commands.profile import Shape, measure_all, shaped
from tinyllama_tools.commands.worksheet import growth_exponent, make_sheet, ratio, share_of
from tinyllama_tools.core.app import Json, problem_sizes, write_whole
from tinyllama_tools.core.installation import RESULTS
from tinyllama_tools.core.options import add_build_folder, add_out, positive, script_parser, seconds
from tinyllama_tools.core.process import program_in
from tinyllama_tools.core.text import say
from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.profiles import (
    INTERRUPTED_REASON,
    MeasuredRun,
    Runs,
    component_percent,
    group_shares,
    operator_shares,
)
from tinyllama_tools.data.programs import SuiteError, TrainingProgram, ask_json
from tinyllama_tools.models.bottlenecks import (
    CHECKPOINTING,
    COPIES,
    FLASH,
    FUSION,
    MIXED,
    PRODUCTS,
    memory_bound,
    memory_effects,
    small_calls_percent,
)
from tinyllama_tools.models.roofline import roofline_point

EPILOG = """\
Runs the commands of that exercise of the workshop and writes its worksheet with every blank, table,
tick box and question answered from what was measured, each with the number and rule that decided
it. The runs' files go to a folder beside it, exercise_N/. Ctrl-C keeps those written so far, and a
page that says what is missing.

Exit status: 0 the worksheet is complete; 1 a run failed or its loss was not finite; 2 bad option,
the set-up failed, or files that cannot be written; 130 interrupted."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Options with `shared`, the options of every run of the training program. A bad option ends
    the command with status 2."""
    about = (
        "The workshop's exercises: 1 baseline, 2 memory, 3 problem sizes; of version 2: 4 three\n"
        "ways of a step, 5 memory over the sequence, 6 the vendors' tools; 7 what versions 3 and\n"
        "4 gain; 8 debugging."
    )
    parser = script_parser("exercise", about, EPILOG)
    add = parser.add_argument
    add("number", type=int, choices=range(1, 9), metavar="1-8", help="which exercise")
    add_out(parser, "the worksheet (default: results/exercise_N.md)", "FILE")
    add("--size", choices=tuple(problem_sizes()), default="tiny", help="default: tiny")
    add("--batch", type=positive, default=8, help="of the worksheets (default: 8)")
    add("--seq", type=positive, default=128, help="their sequence length (default: 128)")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--threads", type=positive, help="CPU threads (default: libtorch's own choice)")
    limit = "longest run of a size (default: 120)"
    add("--max-seconds-per-case", type=seconds, default=120.0, metavar="S", help=limit)
    add_build_folder(parser)
    options = parser.parse_args(arguments)
    threads = (f"--threads={options.threads}",) if options.threads else ()
    options.shared = (f"--device={options.device}", *threads)
    options.out = options.out or RESULTS / f"exercise_{options.number}.md"
    options.profile_dir = options.out.parent / f"exercise_{options.number}"
    if options.batch % 2 or options.seq % 2:
        parser.error(
            f"--batch {options.batch} --seq {options.seq}: must be even, since "
            "exercise 2 also runs half of each"
        )
    return options


# ---- exercise 1, baseline performance

PLAIN, PROFILED, MEMORY = "plain", "profiled", "memory_and_flops"
WANTED = {PLAIN: (), PROFILED: ("operators",), MEMORY: ("memory", "flops")}


def baseline_shapes(options: argparse.Namespace) -> dict[str, Shape]:
    """The runs: the worksheet's two commands, and one for the memory timeline and the FLOPs."""
    shape = (options.batch, options.seq, 20)
    return {
        PLAIN: shape,
        PROFILED: (*shape, "--enable-pytorch-profiler", "--profile-steps=5"),
        MEMORY: (*shape, "--profile-memory", "--enable-deepspeed-flops"),
    }


def lost_shares(runs: Runs) -> dict[str, float | None]:
    """The percentage of the time that each suspected cause takes; None where it was not measured.

    Memory bandwidth: the time of components that the roofline calls memory-bound. Compute: of the
    other components, the time beyond what they would take at their attainable rate. Shares may
    overlap.
    """
    operators, points = runs[PROFILED]("operators"), runs[MEMORY]("flops.roofline_data.points")
    bound = memory_bound(operators["components"], points)
    unattained = 0.0
    for component in operators["components"]:
        point = roofline_point(points, component["name"])
        if point and component not in bound:
            attained = (point["percent_of_attainable"] or 0) / 100
            unattained += component["percent"] * max(0.0, 1 - attained)
    return {
        "Memory bandwidth (many small operations)": sum(c["percent"] for c in bound),
        "Compute utilization (device not fully utilized)": unattained,
        "Kernel launch overhead (too many launches)": operators["launch_overhead_percent"],
        "Data loading (CPU bottleneck)": runs[PLAIN]("summary.breakdown.data_loading.percent"),
    }


def addressable_shares(operators: Json) -> dict[str, float | None]:
    """The percentage of the recorded time that each optimization acts upon; None where it was not
    measured."""
    components, products = operators["components"], operators["matrix_product_percent"]
    attention = component_percent(components, "attention/core")
    copies = [r["share_percent"] for r in operators["table"] if COPIES.search(r["name"])]
    return {
        "Kernel fusion (reduce number of operations)": 100 - products,
        "Fused QKV projection in attention": component_percent(components, "attention/qkv_proj"),
        "Flash Attention implementation (reduce memory)": attention,
        "Memory layout optimization": sum(copies),
        "Mixed precision training (FP16)": products,
        "Batch size scaling": operators["launch_overhead_percent"],
    }


# an effect of models/bottlenecks.py: the worksheet's name of it
CHOICES = {
    CHECKPOINTING: "Gradient checkpointing (reduce activation memory)",
    FLASH: "Flash Attention (reduce attention memory from O(S^2) to O(S))",
    MIXED: "Mixed precision (reduce memory footprint by 2x)",
    FUSION: "Tensor fusion (reduce intermediate tensor allocations)",
}


def baseline_values(runs: Runs) -> Json:
    """The template's values that are computed from the runs."""
    operators = runs[PROFILED]("operators")
    effects = {CHOICES[row["name"]]: row for row in memory_effects(runs[MEMORY].summary or {})}
    opportunities, components = addressable_shares(operators), operators["components"]
    rows = operators["table"]
    others = [row["share_percent"] for row in rows if not PRODUCTS.search(row["name"])]
    swiglu = component_percent(components, "ffn/gate_up_proj", "ffn/swiglu")
    return {
        "shares": group_shares(components),
        "small_calls": small_calls_percent(rows),
        "other_operator": max(others, default=0.0),
        "fusable": {
            "QKV projections in attention": opportunities["Fused QKV projection in attention"],
            "Gate/Up projections in SwiGLU": swiglu,
            "Layer normalization operations": component_percent(components, "rms_norm"),
        },
        "opportunities": opportunities,
        "ranked_opportunities": sorted(opportunities.items(), key=lambda entry: -(entry[1] or 0.0)),
        "suspects": lost_shares(runs),
        "saved": {label: row["saved_percent"] for label, row in effects.items()},
        "saved_basis": {label: row["basis"] for label, row in effects.items()},
    }


# ---- exercise 2, memory analysis

HOTSPOTS, BANDWIDTH = "memory_hotspots", "bandwidth"
SMALLEST_SHARE_PERCENT = 1.0


def memory_shapes(options: argparse.Namespace) -> dict[str, Shape]:
    """The runs: the worksheet's eight commands, and one for the bandwidth. Batches are half, once
    and twice its own; sequences half to four times, the longest with half the batch."""
    batch, seq = options.batch, options.seq
    operators, memory = "--enable-pytorch-profiler", "--profile-memory"
    sizes = (batch // 2, batch, 2 * batch)
    by_batch = {f"memory_analysis_bs{b}": (b, seq, 15, operators, memory) for b in sizes}
    lengths = (seq // 2, seq, 2 * seq)
    by_seq = {f"memory_seq{s}": (batch, s, 10, memory) for s in lengths}
    return {
        **by_batch,
        **by_seq,
        f"memory_seq{4 * seq}": (batch // 2, 4 * seq, 5, memory),
        HOTSPOTS: (batch, seq, 10, operators, memory, "--profile-operators"),
        BANDWIDTH: (batch, seq, 10, "--enable-deepspeed-flops"),
    }


def longest_sequence(options: argparse.Namespace) -> Json:
    """The longest sequence that is predicted to fit into free memory at the worksheet's batch, a
    row of the suite's --find-limit. SuiteError where there is no answer."""
    case = (f"--components={STEP}", f"--sizes={options.size}", "--dtypes=f32")
    asked = ["--find-limit=seq", *options.shared, *case, "--variants=baseline"]
    asked += [f"--batch={options.batch}", "--benchmark_format=json"]
    (row,) = ask_json(program_in(options.build_folder, "tiny_llama_bench"), asked)["limits"]
    if not row["largest"]:
        raise SuiteError(row["skip_reason"] or "not even two tokens fit")
    return row


def increment_ratio(peaks: Sequence[float | None]) -> float | None:
    """(third - second) / (second - first), of peaks at once, twice and four times a size: constant
    parts cancel. It is 2 for linear growth, 4 for quadratic, 8 for cubic."""
    known = [peak for peak in peaks if peak is not None]
    return ratio(known[2] - known[1], known[1] - known[0]) if len(known) == 3 else None


def component_growth(
    profiles: Mapping[int, tuple[int, Mapping[str, float]]],
) -> list[tuple[str, float, float]]:
    """Of each component its name, the exponent with which its bytes a sample grow with the
    sequence, and its share of all bytes at the longest sequence; steepest first.

    `profiles`: sequence -> (batch, bytes by component). Components below SMALLEST_SHARE_PERCENT are
    left out, all of them where there are fewer than two sequences.
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
    """Bytes that each of the worksheet's memory targets could save: a part of the peak; for
    fragmentation, what the allocator holds but does not use."""
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
    """A row for each (batch, sequence, run), its peak compared with that of the first."""
    rows: list[Json] = []
    for batch, seq, run in found:
        row = {"batch": batch, "seq": seq, "run": run, "peak": run("memory.peak_bytes")}
        first = rows[0] if rows else row
        factor = ratio(row["peak"], first["peak"])
        row["increase"] = factor and row["peak"] - first["peak"]
        row["factor"], row["sample_factor"] = factor, factor and factor * first["batch"] / batch
        rows.append(row)
    return rows


def memory_values(runs: Runs, options: argparse.Namespace) -> Json:
    """The template's values that are computed from the runs."""
    base = runs[f"memory_analysis_bs{options.batch}"]
    found = [(b, s, name, runs[name]) for name, (b, s, *_) in memory_shapes(options).items()]
    by_batch = scaling_rows([(b, s, run) for b, s, name, run in found if "analysis" in name])
    sequences = [(b, s, run) for b, s, name, run in found if "memory_seq" in name]
    by_seq = scaling_rows(sequences)
    key = "memory.component_activation_bytes"
    operators = operator_shares(runs[HOTSPOTS]("operators"))
    longest, reason = None, ""
    say("longest sequence: asking tiny_llama_bench --find-limit=seq")
    try:
        longest = longest_sequence(options)
    except SuiteError as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = INTERRUPTED_REASON
    return {
        "base": base,
        "batch": options.batch,
        "by_batch": by_batch,
        "by_seq": by_seq,
        "batch_growth": increment_ratio([row["peak"] for row in by_batch]),
        # the fourth run has half the batch
        "seq_growth": increment_ratio([row["peak"] for row in by_seq[:3]]),
        "growths": component_growth({s: (b, run(key)) for b, s, run in sequences if run(key)}),
        "hotspots": sorted(operators, key=lambda row: -row["self_memory_bytes"])[:5],
        "targets": target_shares(base("memory")),
        "effects": memory_effects(base.summary or {}),
        "longest": longest,
        "reason": reason,
    }


# ---- the command


def run_exercise(options: argparse.Namespace, program: TrainingProgram) -> tuple[str, int]:
    """Runs everything, with its files below `options.profile_dir`; the page and the exit status."""
    if options.number > 3:
        from tinyllama_tools.commands import exercise_course

        return exercise_course.run_exercise(options, program)
    if options.number == 3:
        # its modules are loaded for it alone
        from tinyllama_tools.commands import exercise_3

        return exercise_3.run_exercise(options, program)
    shapes = (baseline_shapes if options.number == 1 else memory_shapes)(options)
    planned = shaped(options.size, shapes)
    runs = measure_all(planned, program, options.profile_dir, options.out.parent)
    if options.number == 1:
        return make_sheet("exercise_1.md.j2", runs, WANTED, lambda: baseline_values(runs))
    profiles, base = ("memory", "operators"), f"memory_analysis_bs{options.batch}"
    # a size that could not be run has its reason in a row: nothing is missing
    wanted = {base: profiles, HOTSPOTS: profiles, BANDWIDTH: ("flops",)}
    return make_sheet("exercise_2.md.j2", runs, wanted, lambda: memory_values(runs, options))


def main(arguments: Sequence[str], program: TrainingProgram | None = None) -> int:
    """The exit status. `program` replaces tiny_llama_train in tests."""
    options = parse_options(arguments)
    built = program_in(options.build_folder, "tiny_llama_train")
    runner = program or TrainingProgram(built, options.shared)
    page, status = run_exercise(options, runner)
    if not page:
        say(f"nothing was measured: {options.out} is left as it was")
        return status
    write_whole(options.out, page)
    say(f"profiles: {options.profile_dir}")
    print(options.out)
    return status
