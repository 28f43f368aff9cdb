"""Exercise 3: bottlenecks, the plan of version 2, and the study of problem sizes."""

from __future__ import annotations

import re
from argparse import Namespace

from tinyllama_tools.commands.exercise_3_figures import (
    DETAILED,
    TOP,
    AnalysedRun,
    Findings,
    SizeStudy,
    measure_findings,
)
from tinyllama_tools.commands.exercise_3_plan import (
    criteria,
    hierarchy,
    questions,
    step_5,
    step_6,
    step_7,
    takeaway,
)
from tinyllama_tools.commands.exercise_3_sizes import (
    exact_notes,
    profiles_section,
    scaling_analysis,
    scaling_table,
    size_criteria,
    size_questions,
    transitions_section,
)
from tinyllama_tools.commands.exercise_rules import COPIES, PRODUCTS
from tinyllama_tools.commands.worksheet import INTERRUPTED as STOPPED
from tinyllama_tools.commands.worksheet import (
    NOT_MEASURED,
    UTILIZATION,
    Sheet,
    Verdict,
    above,
    below,
    failure_lines,
    head,
    megabytes,
    number,
    percent,
    record,
    table,
    tick,
    was_interrupted,
    within,
)
from tinyllama_tools.core.app import Json
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.text import cell, duration
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.models.roofline import ON_THE_ROOF_PERCENT, POSITIONS, roofline_position
from tinyllama_tools.models.size_predictions import Predictor, predict
from tinyllama_tools.profile.page import REPORT
from tinyllama_tools.profile.tables import operator_shares

# First that matches names the target; the operators are named as PyTorch and its kernels are.
TARGETS = (
    (PRODUCTS, "fewer, larger products: qkv, gate_up; narrower types"),
    (re.compile("softmax", re.IGNORECASE), "attention in tiles: sdpa, fused_attention"),
    (re.compile(r"addcdiv|addcmul|lerp|adam|::sqrt", re.IGNORECASE), "optimizer: fused_adamw"),
    (re.compile("silu", re.IGNORECASE), "SwiGLU in one pass: fused_swiglu"),
    (re.compile(r"rsqrt|::pow|::mean|norm", re.IGNORECASE), "RMSNorm in one pass: fused_norm"),
    (COPIES, "copies: layout, fused_rotary"),
    (re.compile(r"nll|loss|embedding", re.IGNORECASE), "embedding and loss: fused_loss"),
)
OTHER_TARGET = "element-wise work: fusion, torch.compile"


def target_of(name: str) -> str:
    """What makes an operator cheaper or rarer."""
    return next((text for pattern, text in TARGETS if pattern.search(name)), OTHER_TARGET)


def step_1(findings: Findings) -> list[str]:
    """Runtime, place and warnings."""
    notes = [f"{run['name']}: {note}" for run in findings.log["runs"] for note in run["notes"]]
    log = f"{findings.analysis.name}/profile_runs.json"
    warnings = cell("; ".join(notes)) if notes else "none"
    return [
        "## Step 1: comprehensive profiling run",
        "",
        f"`{findings.analysis.command}`",
        "",
        *record(
            [
                (
                    "Overall runtime",
                    f"{findings.log['total_seconds']:.1f} seconds "
                    f"({duration(findings.log['total_seconds'])})",
                    f"{log}: total_seconds",
                ),
                ("Profile data location", f"`{shown(findings.analysis.folder)}`", log),
                (
                    "Reports",
                    f"`{findings.analysis.name}/{REPORT}`, of the operators alone "
                    f"`{DETAILED}/{REPORT}`",
                    log,
                ),
                ("Any errors or warnings", warnings, f"{log}: runs[].notes"),
            ]
        ),
    ]


def operator_rows(operators: Json) -> list[tuple[str, ...]]:
    """Top ten by name, whatever their shapes; the GPU's column says so where there is none."""
    rows = []
    for rank, row in enumerate(operator_shares(operators)[:TOP], start=1):
        device = "no GPU" if row.device_seconds is None else percent(row.share_percent)
        cpu, count = percent(row.cpu_percent), number(row.calls)
        rows.append((str(rank), row.name, device, cpu, count, target_of(row.name)))
    return rows


def step_2(run: AnalysedRun) -> list[str]:
    """The operators that take most of the time."""
    products = run.figure("operators.matrix_product_percent")
    projections = run.figure("operators.linear_projections_per_step")
    launches = run.figure("operators.launch_overhead_percent")
    definition = run.value("operators.launch_overhead_definition")
    header = (
        "Rank",
        "Operation Name",
        "GPU Time (%)",
        "CPU Time (%)",
        "Count (a step)",
        "Optimization Target",
    )
    return [
        "## Step 2: operator-level bottleneck analysis",
        "",
        *table(
            header, operator_rows((run.summary or {})["operators"]), run.figure("operators.table")
        ),
        "Pattern analysis:",
        "",
        *record(
            [
                ("Time in matrix multiplications", percent(products.value), products),
                ("Separate linear projections a step", number(projections.value), projections),
                (
                    "Overhead of kernel launches vs. computation",
                    f"{percent(launches.value)} ({cell(str(definition))})",
                    launches,
                ),
            ]
        ),
    ]


def step_3(run: AnalysedRun) -> list[str]:
    """Efficiency and its class."""
    base = "flops.flops_profile"
    mfu = run.figure(UTILIZATION)
    achieved = run.figure(f"{base}.performance_metrics.flops_per_sec")
    peak = run.figure(f"{base}.efficiency_metrics.device_peak_flops")
    per_parameter = run.figure(f"{base}.flops_analysis.flops_per_parameter")
    speed = run.figure(f"{base}.performance_metrics.throughput_samples_per_sec")
    classes = (
        ("< 20% MFU: Severely underutilized (kernel overhead dominant)", below(mfu.value, 20)),
        ("20-40% MFU: Memory-bound workload", within(mfu.value, 20, 40)),
        (
            "40-60% MFU: Mixed workload with optimization opportunities",
            within(mfu.value, 40, 60),
        ),
        ("> 60% MFU: Well-optimized compute-bound workload", at_least(mfu.value, 60)),
    )
    rate = f"{achieved.value:.3e} FLOP/s" if achieved.is_measured else NOT_MEASURED
    top = f"{peak.value:.3e} FLOP/s" if peak.is_measured else NOT_MEASURED
    return [
        "## Step 3: FLOPS efficiency analysis",
        "",
        *record(
            [
                ("Model FLOPS Utilization (MFU)", percent(mfu.value), mfu),
                ("Achieved FLOPS per second", rate, achieved),
                ("Peak device FLOPS", top, peak),
                ("FLOPS per parameter", number(per_parameter.value, "a step"), per_parameter),
                ("Overall throughput", number(speed.value, "samples/sec"), speed),
            ]
        ),
        "Efficiency classification:",
        "",
        *(tick(label, verdict, mfu) for label, verdict in classes),
        "",
        "These classes go by MFU alone; what binds the step is decided by the roofline in step 4.",
        "",
    ]


def at_least(value: float | None, limit: float) -> Verdict:
    """Holds at the limit too, so that neighbouring ranges leave no gap."""
    if value == limit:
        return Verdict(True, f"{percent(value)}; rule: from {percent(limit)}")
    return above(value, limit)


def bound_ticks(run: AnalysedRun) -> list[str]:
    """Memory-bound, compute-bound or mixed, by the arithmetic intensity."""
    figure = run.figure("flops.computational_intensity.arithmetic_intensity_flops_per_byte")
    rows = (
        ("Memory-bound", below(figure.value, 10, "FLOP/byte")),
        ("Compute-bound", above(figure.value, 100, "FLOP/byte")),
        ("Mixed", mixed(figure.value)),
    )
    return [tick(label, verdict, figure) for label, verdict in rows]


def mixed(intensity: float | None) -> Verdict:
    """From 10 to 100, both included."""
    if intensity is None:
        return Verdict(False, f"{NOT_MEASURED}; rule: from 10 to 100 FLOP/byte")
    text = f"{number(intensity, 'FLOP/byte')}; rule: from 10 to 100 FLOP/byte"
    return Verdict(10 <= intensity <= 100, text)


def position_ticks(run: AnalysedRun) -> list[str]:
    """One of three places under the roofline."""
    found = roofline_position((run.summary or {}).get("flops"))
    rule = (
        f"rule: on the roofline from {ON_THE_ROOF_PERCENT:.0f} % of what it allows, else the "
        "side of the ridge"
    )
    reason = f"{found.reason}; {rule}" if found else f"{NOT_MEASURED}; {rule}"
    holds = {position: found is not None and found.position == position for position in POSITIONS}
    where = run.figure("flops.roofline_data.points")
    return [tick(label, Verdict(holds[label], reason), where) for label in POSITIONS]


def step_4(run: AnalysedRun) -> list[str]:
    """Memory: intensity, bandwidth, peak, and the roofline."""
    base = "flops.computational_intensity"
    intensity = run.figure(f"{base}.arithmetic_intensity_flops_per_byte")
    used = run.figure(f"{base}.memory_bandwidth_used_gb_per_sec")
    part = run.figure(f"{base}.memory_bandwidth_utilization_percent")
    peak = run.figure("summary.peak_memory_bytes")
    return [
        "## Step 4: memory bottleneck assessment",
        "",
        *record(
            [
                ("Arithmetic Intensity", number(intensity.value, "FLOPS/byte"), intensity),
                ("Memory Bandwidth Used", number(used.value, "GB/s"), used),
                ("Memory Bandwidth Utilization", percent(part.value), part),
                ("Peak Memory Usage", megabytes(peak.value), peak),
            ]
        ),
        "Primary bottleneck:",
        "",
        *bound_ticks(run),
        "",
        "Roofline model position:",
        "",
        *position_ticks(run),
        "",
    ]


TITLE = "Exercise 3: bottleneck identification and optimization planning"
INTERRUPTED, FAILED = 130, 1


def sizes_part(study: SizeStudy) -> list[str]:
    """Chapter 6 of the walkthrough."""
    return [
        "## Performance study across problem sizes",
        "",
        *scaling_table(study),
        *scaling_analysis(study),
        *transitions_section(study.runs),
        *profiles_section(study.runs),
        *size_questions(study),
        *exact_notes(),
        *size_criteria(study),
    ]


def worksheet(findings: Findings) -> list[str]:
    """The filled-in page of complete findings."""
    run = findings.analysis
    return [
        *step_1(findings),
        *step_2(run),
        *step_3(run),
        *step_4(run),
        *step_5(findings),
        *step_6(findings),
        *step_7(findings),
        *hierarchy(findings),
        *questions(findings),
        *criteria(findings),
        *takeaway(findings),
        *sizes_part(findings.study),
    ]


def missing_parts(findings: Findings) -> list[str]:
    """Why the page cannot be complete; a size that was left out is a finding, no gap."""
    runs = [f"{run.name}: {run.reason}" for run in findings.runs.values() if run.reason]
    sizes = [
        f"size {result.size}: {result.failure}"
        for result in findings.study.results
        if result.failure
    ]
    none = [] if findings.study.runs else ["no problem size was measured"]
    if findings.gap:
        return [findings.gap, *runs, *sizes]
    return runs + sizes + none


def make_sheet(findings: Findings) -> Sheet:
    """The page of whatever was measured, and the command's exit status."""
    title = head(TITLE, [findings.analysis, *findings.runs.values(), *findings.study.runs])
    missing = missing_parts(findings)
    if missing:
        run = findings.analysis
        operators = step_2(run) if run.figure("operators").is_measured else []
        flops = step_3(run) if run.figure("flops").is_measured else []
        page = [*title, *failure_lines(missing), *step_1(findings), *operators, *flops]
        interrupted = (
            findings.gap.endswith(f": {STOPPED}")
            or was_interrupted(findings.runs)
            or any(result.is_interrupted for result in findings.study.results)
        )
        return Sheet("\n".join(page), INTERRUPTED if interrupted else FAILED)
    complete = all(run.is_complete for run in findings.runs.values())
    return Sheet("\n".join([*title, *worksheet(findings)]), 0 if complete else FAILED)


def run_exercise_3(
    options: Namespace, program: TrainingProgram, predictor: Predictor | None = None
) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet.

    Raises TrainingError, SuiteError and OSError where it cannot be carried out at all; from the
    first run on, what is missing is on the page.
    """
    ask = predictor or (lambda question: predict(question, options.suite_program))
    return make_sheet(measure_findings(options, program, ask))
