"""Exercise 3, step 7: targets of version 2, and the tests and gates carried out on it."""

from __future__ import annotations

from tinyllama_tools.exercise_3_numbers import run_speedup
from tinyllama_tools.exercise_3_plan import expected_overall, times
from tinyllama_tools.exercise_3_runs import VERSION_2, Findings
from tinyllama_tools.exercise_runs import UTILIZATION, MeasuredRun
from tinyllama_tools.worksheet import (
    NOT_MEASURED,
    Verdict,
    megabytes,
    number,
    percent,
    record,
    table,
    tick,
)
from tinyllama_tools.worksheet_rules import ratio

ACCURACY = 1e-3
THROUGHPUT_GATE = 1.3
MEMORY_STABLE = 1.01
PEAK = "summary.peak_memory_bytes"


def launches_key(findings: Findings) -> str:
    """Kernels on a GPU, operator calls on a CPU."""
    if findings.analysis.figure("operators.kernels_per_step").is_measured:
        return "operators.kernels_per_step"
    return "operators.operator_calls_per_step"


def target_rows(findings: Findings) -> list[tuple[str, str, str, str]]:
    """Metric, now, target, reached by version 2."""
    runs, analysis = findings.runs, findings.analysis
    base, after, profiled = runs["baseline"], runs["version_2"], runs["version_2_profiled"]
    speedup = expected_overall(findings)
    speed = [r.value("summary.samples_per_second") for r in (base, after)]
    gain = run_speedup(base, after)
    mfu = analysis.value(UTILIZATION)
    peak = [r.value("summary.peak_memory_bytes") for r in (base, after)]
    scores = analysis.value("memory.breakdown_at_peak.attention_scores")
    key = launches_key(findings)
    calls, fewer = analysis.value(key), 3 * 3 * (analysis.value("configuration.n_layers") or 0)

    def scaled(value: float | None, factor: float | None) -> float | None:
        return None if value is None or factor is None else value * factor

    peak_target = None if peak[0] is None or scores is None else peak[0] - scores
    calls_target = None if calls is None else calls - fewer
    return [
        (
            "Training throughput",
            number(speed[0], "samples/sec"),
            number(scaled(speed[0], speedup), "samples/sec"),
            number(speed[1], "samples/sec"),
        ),
        (
            "Model FLOPS Utilization",
            percent(mfu),
            percent(scaled(mfu, speedup)),
            percent(scaled(mfu, gain)),
        ),
        (
            "Peak memory usage",
            megabytes(peak[0]),
            megabytes(peak_target),
            megabytes(peak[1]),
        ),
        (
            "Kernel count per step" if "kernels" in key else "Operator count per step (CPU)",
            number(calls),
            number(calls_target),
            number(profiled.value(key)),
        ),
    ]


def targets(findings: Findings) -> list[str]:
    """The table of success metrics and what each target follows from."""
    layers = findings.analysis.value("configuration.n_layers") or 0
    runs = findings.runs
    header = ("metric", "now", "target", f"reached by `{VERSION_2}`")
    return [
        *table(
            header,
            target_rows(findings),
            runs["baseline"].source("summary"),
            runs["version_2"].source("summary"),
            findings.analysis.source(UTILIZATION),
            findings.analysis.source("memory.breakdown_at_peak.attention_scores"),
            findings.analysis.source(launches_key(findings)),
            runs["version_2_profiled"].source(launches_key(findings)),
        ),
        *record(
            [
                (
                    "throughput and MFU targets",
                    f"now x {times(expected_overall(findings))}",
                    "step 6",
                ),
                ("memory target", "now less the attention scores at the peak", "step 6, phase 2"),
                (
                    "count target",
                    f"3 products a layer fewer ({number(layers)} layers), each in forward and "
                    "twice in backward",
                    "step 6, phase 1",
                ),
            ]
        ),
    ]


def faster(before: MeasuredRun, after: MeasuredRun, least: float, rule: str) -> Verdict:
    """Whether version 2's step is shorter by that factor."""
    found = run_speedup(before, after)
    return Verdict(found is not None and found > least, f"{times(found)}; rule: {rule}")


def same_loss(before: MeasuredRun, after: MeasuredRun) -> Verdict:
    """Whether both end with one loss, from one seed."""
    a, b = before.value("summary.final_loss"), after.value("summary.final_loss")
    rule = f"rule: within {ACCURACY:g} of the baseline's"
    if a is None or b is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    off = abs(b - a) / abs(a)
    return Verdict(off <= ACCURACY, f"{b:.6f} against {a:.6f}, off by {off:.1e}; {rule}")


def losses(run: MeasuredRun) -> list[float]:
    """Of every step."""
    return [step["loss"] for step in (run.summary or {}).get("steps", [])]


def deterministic(first: MeasuredRun, second: MeasuredRun) -> Verdict:
    """Whether two runs from one seed agree to the bit."""
    a, b = losses(first), losses(second)
    equal = sum(x == y for x, y in zip(a, b, strict=False))
    holds = bool(a) and len(a) == len(b) == equal
    return Verdict(
        holds, f"{equal} of {max(len(a), len(b))} losses equal; rule: all, to the last bit"
    )


def memory_growth(findings: Findings) -> Verdict:
    """Whether version 2's memory grows less over S than the baseline's."""
    runs = findings.runs
    growth = {
        name: ratio(runs[f"{name}_long"].value(PEAK), runs[name].value(PEAK))
        for name in ("baseline", "version_2")
    }
    base, after = growth["baseline"], growth["version_2"]
    factor = ratio(
        runs["baseline_long"].value("configuration.seq_len"),
        runs["baseline"].value("configuration.seq_len"),
    )
    rule = f"rule: grows less than the baseline's, from S to {number(factor)} S"
    if base is None or after is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(after < base, f"{times(after)} against {times(base)}; {rule}")


def shape(run: MeasuredRun) -> str:
    """Batch and sequence of a run."""
    batch, seq = run.value("configuration.batch_size"), run.value("configuration.seq_len")
    return f"Batch size {number(batch)}, sequence length {number(seq)}"


def validation(findings: Findings) -> list[tuple[str, Verdict, list[str]]]:
    """The validation tests, carried out on version 2."""
    runs = findings.runs
    base, after = runs["baseline"], runs["version_2"]
    big, after_big = runs["baseline_scaling"], runs["version_2_scaling"]
    rule = f"`{VERSION_2}` is faster than the baseline"
    steps = [run.source("steps") for run in (base, after)]
    big_steps = [run.source("steps") for run in (big, after_big)]
    peaks = [
        runs[name].source(PEAK)
        for name in ("baseline", "baseline_long", "version_2", "version_2_long")
    ]
    loss = [run.source("summary.final_loss") for run in (base, after)]
    return [
        (f"{shape(base)} (baseline comparison)", faster(base, after, 1.0, rule), steps),
        (f"{shape(big)} (scaling test)", faster(big, after_big, 1.0, rule), big_steps),
        ("Memory scaling with sequence length", memory_growth(findings), peaks),
        ("Numerical accuracy validation (loss convergence)", same_loss(base, after), loss),
    ]


def gates(findings: Findings) -> list[tuple[str, Verdict, list[str]]]:
    """The quality gates of version 2."""
    runs = findings.runs
    base, after = runs["baseline"], runs["version_2"]
    memory = ratio(after.value(PEAK), base.value(PEAK))
    first, second = runs["deterministic_1"], runs["deterministic_2"]
    stable = Verdict(
        memory is not None and memory <= MEMORY_STABLE,
        f"{megabytes(after.value(PEAK))} against {megabytes(base.value(PEAK))}, {times(memory)}; "
        f"rule: up to {MEMORY_STABLE}x",
    )
    loss = [run.source("summary.final_loss") for run in (base, after)]
    steps = [run.source("steps") for run in (base, after)]
    return [
        ("No degradation in model accuracy", same_loss(base, after), loss),
        (
            "Deterministic execution maintained",
            deterministic(first, second),
            [first.source("steps[].loss"), second.source("steps[].loss")],
        ),
        ("Memory usage reduced or stable", stable, [r.source(PEAK) for r in (base, after)]),
        (
            "Throughput improved by >30%",
            faster(base, after, THROUGHPUT_GATE, f"above {THROUGHPUT_GATE}x"),
            steps,
        ),
    ]


def step_7(findings: Findings) -> list[str]:
    """Targets, tests and gates."""
    return [
        "## Step 7: success metrics for version 2",
        "",
        *targets(findings),
        f"Validation tests, carried out with version 2 as the suite has it (`{VERSION_2}`):",
        "",
        *(tick(label, verdict, *where) for label, verdict, where in validation(findings)),
        "",
        "Quality gates:",
        "",
        *(tick(label, verdict, *where) for label, verdict, where in gates(findings)),
        "",
    ]
