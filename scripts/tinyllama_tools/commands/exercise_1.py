"""Exercise 1, baseline performance: its runs, figures and rules; its page is a template."""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tinyllama_tools.commands.exercise_rules import (
    BATCH_SCALING,
    CHECKPOINTING,
    FLASH,
    FLASH_ATTENTION,
    FUSION,
    HIGH_PERCENT,
    KERNEL_FUSION,
    MEMORY_LAYOUT,
    MIXED,
    MIXED_PRECISION,
    QKV_FUSION,
    addressable_shares,
    bottleneck_verdicts,
    fusion_verdicts,
    gradients_verdict,
    group_shares,
    known_effects,
    largest_other_operator,
    level,
    level_verdict,
    lost_shares,
    peak_place,
    small_operations,
    spike_text,
    spike_verdict,
)
from tinyllama_tools.commands.profile_tables import PAGE
from tinyllama_tools.commands.worksheet import (
    NO_TRANSFERS,
    NOT_MEASURED,
    UTILIZATION,
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
    expected,
    failure_lines,
    has_summary,
    head,
    is_largest,
    measure_all,
    median_step_seconds,
    megabytes,
    milliseconds,
    missing_of,
    number,
    percent,
    plain_steps,
    range_rows,
    render,
    samples_per_second,
    say,
    share_of,
    times_text,
    transfers_verdict,
    was_interrupted,
)
from tinyllama_tools.core.app import RESULTS, Json
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.models.ablation_evidence import find_evidence
from tinyllama_tools.models.bottlenecks import (
    WORTHWHILE_SPEEDUP,
    Bottleneck,
    rank_bottlenecks,
    recommended,
)

TOP_OPERATORS, STEPS = 10, 20
PLAIN, PROFILED, MEMORY = "plain", "profiled", "memory_and_flops"
BUSY = "device_sampling.readings.utilization_percent.mean"
PEAK = "summary.peak_memory_bytes"
PRODUCTS = "operators.matrix_product_percent"
LAUNCHING = "operators.launch_overhead_percent"


@dataclass(frozen=True)
class BaselineRuns:
    """The exercise's runs: without a profiler, with the operator profiler, with the two others."""

    plain: MeasuredRun
    profiled: MeasuredRun
    memory: MeasuredRun

    def value(self, key: str) -> Held:
        """Of the run that measures this part."""
        profilers = {"operators": self.profiled, "memory": self.memory, "flops": self.memory}
        return profilers.get(key.partition(".")[0], self.plain).value(key)

    @property
    def shares(self) -> dict[str, float]:
        """Attention, FFN and the rest, in percent of the recorded work."""
        return group_shares(self.value("operators.components"))

    @property
    def has_kernels(self) -> bool:
        """Whether a GPU's kernels were counted; else operators are."""
        return self.value("operators.distinct_kernels") is not None

    @property
    def kinds(self) -> float | None:
        """Different kernels, of a CPU operators."""
        of = "kernels" if self.has_kernels else "operators"
        return self.value(f"operators.distinct_{of}")

    @property
    def suspects(self) -> dict[str, float | None]:
        """What each suspect of the first question costs, in percent."""
        waiting = self.value("summary.breakdown.data_loading.percent")
        return lost_shares(self.value("operators"), self.value("flops.roofline_data"), waiting)


def planned_runs(options: Namespace) -> list[PlannedRun]:
    """The worksheet's two commands, and one for the memory timeline and the FLOPS."""
    base = (
        f"--batch-size={options.batch_size}",
        f"--seq-len={options.seq_len}",
        f"--num-steps={STEPS}",
        *options.model,
    )
    operators = ("--enable-pytorch-profiler", "--profile-steps=5")
    return [
        PlannedRun(PLAIN, base),
        PlannedRun(PROFILED, (*base, *operators)),
        PlannedRun(MEMORY, (*base, "--profile-memory", "--enable-deepspeed-flops")),
    ]


def speed(runs: BaselineRuns) -> float | None:
    """Samples a second, of the median plain step."""
    return samples_per_second(runs.plain)


def speed_text(runs: BaselineRuns) -> str:
    """With the number of steps that it is the median of."""
    return f"{number(speed(runs), 'samples/sec')} ({len(plain_steps(runs.plain))} plain ones)"


def device_text(runs: BaselineRuns) -> str:
    """Name and memory of the device."""
    name, size = (runs.value(f"context.device.{key}") for key in ("name", "memory_bytes"))
    return f"{name or 'unknown device'}{f', {size / 2**30:.1f} GiB' if size else ''}"


def environment(runs: BaselineRuns) -> str:
    """Device, runtime and library, as far as known."""
    device = runs.profiled.value("context.device") or {}
    known = [device.get(key) for key in ("name", "runtime_version", "driver_version")]
    torch = f"libtorch {runs.profiled.value('context.torch_version')}"
    return ", ".join([*(str(text) for text in known if text), torch])


def copies_text(runs: BaselineRuns) -> str:
    """Copies a step; a CPU has none to make."""
    copies = runs.value("operators.transfers_per_step")
    on_cpu = runs.profiled.value("context.device.backend") == "cpu"
    return NO_TRANSFERS if on_cpu and copies is None else number(copies)


def step_parts(runs: BaselineRuns) -> str:
    """The overview page's breakdown of a step."""
    parts = runs.profiled.value("summary.breakdown") or {}
    return "; ".join(f"{n} {percent(p['percent'])}" for n, p in parts.items()) or NOT_MEASURED


STEP_1 = (
    FigureRow("Training speed", speed_text),
    FigureRow("Peak memory usage", PEAK, "MB"),
    FigureRow("Final loss", "summary.final_loss"),
    FigureRow("Time per step, median", lambda runs: median_step_seconds(runs.plain), "ms"),
    FigureRow("Average time per step (batch time)", "summary.average_step_seconds", "ms"),
    FigureRow("Time per forward", "summary.average_forward_seconds", "ms"),
    FigureRow("Time per backward", "summary.average_backward_seconds", "ms"),
    FigureRow("Time per optimizer", "summary.average_optimizer_seconds", "ms"),
    FigureRow("GPU name and memory", device_text),
)
TRACE = (
    FigureRow("device busy (gaps are the rest)", lambda runs: runs.profiled.value(BUSY), "%"),
    FigureRow("launch overhead (CPU as bottleneck)", LAUNCHING, "%"),
    FigureRow("copies between host and device a step", copies_text),
    FigureRow("step breakdown (overview page)", step_parts),
    FigureRow("run environment", environment),
)
TAKEAWAYS = (
    FigureRow("training speed", speed, "samples/sec"),
    FigureRow("GPU utilization", BUSY, "%"),
    FigureRow(
        "memory usage, of the device's",
        lambda runs: share_of(runs.value(PEAK), runs.value("context.device.memory_bytes")),
        "%",
    ),
)


def ranges(runs: BaselineRuns) -> list[tuple[str, ...]]:
    """Every expected range against what was measured."""
    peak = runs.value(PEAK)
    what = "Kernel count" if runs.has_kernels else "Kernel count (operators: no GPU)"
    kinds = lambda _: runs.kinds  # noqa: E731
    rows = (
        (FigureRow("Training speed (sheet)", speed, "samples/sec"), 50, 100),
        (FigureRow("Training speed (walkthrough)", speed, "samples/sec"), 50, 200),
        (FigureRow("GPU utilization", BUSY, "%"), 60, 75),
        (FigureRow("Memory usage", lambda _: peak and peak / 2**30, "GiB"), 2, 4),
        (FigureRow(f"{what}, sheet", kinds, "kinds"), 40, 50),
        (FigureRow(f"{what}, walkthrough", kinds, "kinds"), 60, 80),
        (FigureRow("MFU", UTILIZATION, "%"), 20, 35),
        (FigureRow("Attention's share", lambda _: runs.shares["attention"], "%"), 35, 45),
        (FigureRow("FFN's share", lambda _: runs.shares["ffn"], "%"), 30, 40),
        (FigureRow("Matrix multiplications dominant", PRODUCTS, "%"), 50, 100),
    )
    return range_rows(rows, runs)


def primary_kernels(runs: BaselineRuns) -> Verdict:
    """Whether matrix products together outweigh every other operator."""
    share = runs.value(PRODUCTS)
    name, other = largest_other_operator(runs.value("operators.table"))
    return Verdict(
        share > other,
        f"{percent(share)} against {percent(other)} of {name}; rule: more than any other operator",
    )


def growth_verdict(runs: BaselineRuns) -> Verdict:
    """Whether the forward pass ends well above what was alive before it."""
    before, peak = runs.value("memory.baseline_bytes"), runs.value("memory.forward_peak_bytes")
    grown = None if peak is None or before is None else peak - before
    found = above(share_of(grown, before), 5)
    return Verdict(
        found.holds, f"{megabytes(before)} to {megabytes(peak)}, a growth of {found.reason}"
    )


def peak_in_attention(runs: BaselineRuns) -> Verdict:
    """Whether the one peak is in a component of attention."""
    where = runs.value("memory.peak_component") or "unknown"
    return Verdict(
        where.startswith("attention"), f"1 peak, in {where}; rule: in a component of attention"
    )


def frequent_allocations(runs: BaselineRuns) -> Verdict:
    """Whether most allocations are small."""
    small, every = (runs.value(f"memory.{k}allocations_per_step") for k in ("small_", ""))
    few = above(share_of(small, every), 50)
    text = f"{number(small)} of {number(every)} a step are below 64 KiB, {few.reason}"
    return Verdict(few.holds, text)


COMPUTE_PATTERNS = (
    Rule(
        "Attention operations dominate compute time",
        lambda runs: is_largest(runs.shares, "attention", "of attention, ffn and other"),
    ),
    Rule("Matrix multiplications (mm, addmm, bmm) dominate compute time", PRODUCTS, 50),
    Rule("Matrix multiplications are the primary kernels", primary_kernels),
    Rule(
        "Attention operations consume ~35-45% of total time",
        lambda runs: runs.shares["attention"],
        35,
        45,
    ),
    Rule("FFN operations consume ~30-40% of total time", lambda runs: runs.shares["ffn"], 30, 40),
    Rule(
        "Many small operations with low individual utilization",
        lambda runs: small_operations(runs.value("operators")),
    ),
    Rule("Kernel launch overhead visible in timeline", LAUNCHING, 10),
    Rule(
        "Memory transfers visible between operations",
        lambda runs: transfers_verdict(runs.profiled, 0),
    ),
)
MEMORY_PATTERNS = (
    Rule("Memory usage grows during forward pass", growth_verdict),
    Rule("Peak memory during attention computation", peak_in_attention),
    Rule(
        "Gradient tensors allocated during backward pass",
        lambda runs: gradients_verdict(runs.value("memory")),
    ),
    Rule("Frequent small allocations for intermediate tensors", frequent_allocations),
    Rule("Memory fragmentation visible", "memory.fragmentation.percent", 10),
)
MFU_CLASSES = (
    Rule("< 20% (memory bound)", UTILIZATION, 0, 20),
    Rule("20-40% (mixed workload)", UTILIZATION, 20, 40),
    Rule("40-60% (compute bound)", UTILIZATION, 40, 60),
    Rule("> 60% (highly optimized)", UTILIZATION, 60, math.inf),
)
# Of each optimization: what it acts on, and its level in the walkthrough's list, in its order.
OPTIMIZATIONS = {
    KERNEL_FUSION: ("work outside matrix products", "High"),
    QKV_FUSION: ("attention/qkv_proj", "High"),
    FLASH_ATTENTION: ("attention/core", "High"),
    MEMORY_LAYOUT: ("operators that copy", "Medium"),
    MIXED_PRECISION: ("matrix products", "Medium"),
    BATCH_SCALING: ("launch overhead", "Low"),
}
MEMORY_CHOICES = {
    CHECKPOINTING: "Gradient checkpointing (reduce activation memory)",
    FLASH: "Flash Attention (reduce attention memory from O(S^2) to O(S))",
    MIXED: "Mixed precision (reduce memory footprint by 2x)",
    FUSION: "Tensor fusion (reduce intermediate tensor allocations)",
}


def file_rule(pattern: str, of: str) -> Rule:
    """A box for files of this name in the folder of one of the runs."""

    def written(runs: BaselineRuns) -> Verdict:
        run = getattr(runs, of)
        names = {*(run.value("files") or []), "performance_summary.json"}
        count = sum(fnmatch(name, pattern) for name in names)
        return Verdict(count > 0, f"{count} in {run.name}/; rule: at least 1")

    return Rule(f"`{pattern}`", written)


FILES = (
    file_rule("events.out.tfevents.*", "profiled"),
    file_rule("trace_step_*.json", "profiled"),
    file_rule("performance_summary.json", "profiled"),
    file_rule("memory_timeline.json", "memory"),
)
# What step 1 asks to write down.
RECORDED = (
    "summary.samples_per_second",
    PEAK,
    "summary.final_loss",
    "summary.average_step_seconds",
    "context.device.name",
)


def ran(runs: BaselineRuns) -> Verdict:
    """Whether the plain run did all it should."""
    done, wanted = runs.value("summary.steps_completed"), runs.value("configuration.num_steps")
    loss, status = runs.value("summary.final_loss"), runs.plain.exit_status
    return Verdict(
        runs.plain.is_complete and loss is not None and math.isfinite(loss),
        f"{done} of {wanted} steps, last loss {loss}, exit status {status}; rule: all "
        "steps, a finite loss, status 0",
    )


def top_operators(runs: BaselineRuns) -> Verdict:
    """Whether there are three to name."""
    count = len(runs.value("operators.table"))
    return Verdict(count >= 3, f"{count} operators; rule: at least 3")


def known_suspects(runs: BaselineRuns) -> Verdict:
    """Whether each suspect of the first question was measured."""
    known = [share for share in runs.suspects.values() if share is not None]
    return all_of(len(known), len(runs.suspects), "suspects measured")


def files_written(runs: BaselineRuns) -> Verdict:
    """Whether the profilers wrote every kind of file."""
    return all_of(sum(r.verdict(runs).holds for r in FILES), len(FILES), "kinds of files")


def recorded(runs: BaselineRuns) -> Verdict:
    """Whether all that step 1 asks for is known."""
    known = sum(runs.value(key) is not None for key in RECORDED)
    return all_of(known, len(RECORDED), "figures", "all of step 1's")


CRITERIA_EACH = (
    Rule("Baseline training runs successfully", ran),
    Rule("Profiling data generated and analyzed", files_written),
    Rule("Performance metrics documented", recorded),
    Rule("Top operations identified", top_operators),
    Rule("Bottlenecks identified", known_suspects),
)
CRITERIA = (
    *CRITERIA_EACH,
    Rule(
        "Ready to proceed to memory analysis",
        lambda runs: all_hold([r.verdict(runs) for r in CRITERIA_EACH], "criteria above hold"),
    ),
)


def overhead_answer(runs: BaselineRuns) -> str:
    """Of the same run, and against the plain run."""
    within = runs.profiled.value("summary.operator_profiling_overhead_percent")
    plain = median_step_seconds(runs.plain)
    steps = (runs.profiled.summary or {}).get("steps") or []
    times = [s["time_seconds"] for s in steps if s["profiled"] and s["step"] > 1]
    profiled = statistics.median(times) if times else None
    against = 100 * (profiled / plain - 1) if profiled and plain else None
    standing = expected(against if within is None else within, 6, 15, "%")
    return (
        f"{percent(within)} against the unprofiled steps of the same run; against the run without "
        f"profiler {percent(against)} ({milliseconds(profiled)} for {milliseconds(plain)}). The "
        f"workshop expects 6 to 15 %: {standing}."
    )


def files_answer(runs: BaselineRuns) -> str:
    """Names and sizes of what each profiled run wrote."""
    texts = []
    for run in (runs.profiled, runs.memory):
        paths = [run.folder / name for name in run.value("files") or []]
        sizes = [f" ({path.stat().st_size:,} bytes)" if path.is_file() else "" for path in paths]
        sized = [
            f"`{name}`{size}" for name, size in zip(run.value("files") or [], sizes, strict=True)
        ]
        texts.append(f"{run.name}/: {', '.join(sized) or 'none'}")
    return "; ".join(texts) + "."


def operator_row(row: Json) -> tuple[str, ...]:
    """As the operator view shows it, times summed over the recorded steps."""
    device = row.get("device_self_seconds")
    return (
        f"`{row['name']}`",
        number(row["calls"]),
        milliseconds(device) if device is not None else "no GPU",
        milliseconds(row["cpu_self_seconds"]),
        milliseconds(row["cpu_total_seconds"]),
        percent(row["share_percent"]),
    )


def bottleneck_row(found: Bottleneck) -> tuple[str, ...]:
    """Of the table."""
    return (
        str(found.priority),
        found.category,
        percent(found.share_percent),
        found.difficulty,
        times_text(found.expected_speedup),
        times_text(found.upper_bound),
        found.measured.text() if found.measured else NOT_MEASURED,
    )


def recommendation(ranked: Sequence[Bottleneck]) -> str:
    """The category with the best known speedup, and what is known of it."""
    best = recommended(ranked)
    if best is None:
        return (
            f"None is worth it: of none is {WORTHWHILE_SPEEDUP}x or more of the step measured as a "
            "difference, or else expected."
        )
    text = f"{times_text(best.expected_speedup)} expected"
    known = f"{best.measured.text()}, measured" if best.measured else text
    return (
        f"{best.category} first, the largest speedup known: {known}; {percent(best.share_percent)} "
        f"of the work ({best.share_definition}), difficulty {best.difficulty}."
    )


def saving_verdicts(runs: BaselineRuns, references: Path) -> tuple[dict[str, Verdict], str]:
    """One holds: what saves most of the peak. And where the savings are from."""
    effects, origin = known_effects(runs.memory, references)
    bases = {effect.name: effect.basis for effect in effects}
    peak = runs.value("memory.peak_bytes")
    saved = {effect.name: 100 * effect.saved_bytes / peak for effect in effects}
    found = {}
    for name, label in MEMORY_CHOICES.items():
        verdict = is_largest(saved, name, "saving of the peak")
        found[label] = Verdict(verdict.holds, f"{verdict.reason}; {bases[name]}")
    return found, origin


def worksheet(runs: BaselineRuns, results: Path) -> list[str]:
    """The filled-in page of three complete runs."""
    operators, memory = runs.value("operators"), runs.value("memory")
    joined = {**(runs.profiled.summary or {}), "memory": memory, "flops": runs.value("flops")}
    ranked = rank_bottlenecks(joined, find_evidence(joined, results))
    shares = addressable_shares(operators)
    largest_first = sorted(shares.items(), key=lambda entry: -entry[1])
    savings, savings_from = saving_verdicts(runs, results / "reference")
    median, average = (runs.value(f"summary.{k}_step_seconds") for k in ("median", "average"))
    first, spread = (runs.value(f"summary.{k}_step_seconds") or 0 for k in ("first", "stddev"))
    tables = ("STEP_1", "TRACE", "TAKEAWAYS", "COMPUTE_PATTERNS", "MEMORY_PATTERNS")
    more = ("MFU_CLASSES", "FILES", "CRITERIA")
    return render(
        "exercise_1.md.j2",
        runs,
        **{name: globals()[name] for name in (*tables, *more)},
        timeline_page=PAGE,
        slower=first / median if median else 0,
        varies=100 * spread / average if average else 0,
        overhead=overhead_answer(runs),
        files=files_answer(runs),
        operator_rows=[operator_row(row) for row in operators["table"][:TOP_OPERATORS]],
        peak_place=peak_place(memory),
        spike_text=spike_text(memory["largest_spike"]),
        spike=spike_verdict(memory["largest_spike"], memory["peak_bytes"]),
        opportunities=[
            (str(rank), name, OPTIMIZATIONS[name][0], percent(s), level(s), OPTIMIZATIONS[name][1])
            for rank, (name, s) in enumerate(largest_first, start=1)
        ],
        biggest=decided({name: above(share, HIGH_PERCENT) for name, share in largest_first}),
        levels=decided(
            {
                f"**{text}:** {name}": level_verdict(shares[name], text)
                for name, (_, text) in OPTIMIZATIONS.items()
            }
        ),
        bottlenecks=[bottleneck_row(found) for found in ranked],
        recommendation=recommendation(ranked),
        ranges=ranges(runs),
        suspects=decided(bottleneck_verdicts(runs.suspects)),
        fusion=decided(fusion_verdicts(operators["components"])),
        savings=decided(savings),
        savings_from=savings_from,
    )


def make_sheet(measured: dict[str, MeasuredRun], results: Path = RESULTS) -> Sheet:
    """The page of whatever was measured, and the command's exit status.

    `results`: where an ablation of this device is looked for.
    """
    runs = BaselineRuns(measured[PLAIN], measured[PROFILED], measured[MEMORY])
    title = head("Exercise 1: baseline performance analysis", list(measured.values()))
    missing = missing_of(
        ((runs.plain, ()), (runs.profiled, ("operators",)), (runs.memory, ("memory", "flops")))
    )
    if missing:
        step_1 = render("exercise_1_step_1.md.j2", runs, STEP_1=STEP_1)
        page = [*title, *failure_lines(missing), *(step_1 if runs.plain.summary else [])]
        status = 130 if was_interrupted(measured) else 1
        return Sheet("\n".join(page), status, has_summary(measured))
    page = "\n".join([*title, *worksheet(runs, results)])
    return Sheet(page, 0 if all(run.is_complete for run in measured.values()) else 1)


def run_exercise_1(options: Namespace, program: TrainingProgram) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet."""
    folder, page_folder = options.profile_dir, options.output.parent
    return make_sheet(measure_all(planned_runs(options), program, folder, page_folder, say))
