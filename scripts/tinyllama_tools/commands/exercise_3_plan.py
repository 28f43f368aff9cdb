"""Exercise 3, steps 5 to 7: the plan of version 2, its validation, questions and criteria."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tinyllama_tools.commands.exercise_3_figures import (
    ATTENTION,
    DISJOINT,
    MEMORY_OPTIMIZATION,
    QKV,
    SWIGLU,
    VERSION_2,
    Findings,
    bottleneck_shares,
    bounds,
    by_category,
    compile_speedup,
    evidence_speedup,
    memory_gain,
    optimization_gains,
    run_speedup,
    speedup_together,
)
from tinyllama_tools.commands.exercise_rules import group_shares
from tinyllama_tools.commands.worksheet import (
    NOT_MEASURED,
    UTILIZATION,
    Figure,
    MeasuredRun,
    Verdict,
    all_hold,
    boxes,
    expected,
    is_largest,
    largest,
    megabytes,
    number,
    percent,
    question,
    ratio,
    record,
    table,
    tick,
)
from tinyllama_tools.core.text import cell
from tinyllama_tools.models.bottlenecks import WORTHWHILE_SPEEDUP, Bottleneck, fragmentation_share
from tinyllama_tools.profile.tables import operator_shares

# What an optimization has to bring to be in the plan where it brings no WORTHWHILE_SPEEDUP.
WORTHWHILE_MEMORY, NOT_SLOWER = 0.95, 0.98
WORKSHEET_QUADRANTS = {
    1: "High Impact, Low Effort (Priority 1)",
    2: "High Impact, High Effort (Priority 2)",
    3: "Low Impact, Low Effort (Priority 3)",
    4: "Low Impact, High Effort (Priority 4 - Skip)",
}


def times(value: float | None) -> str:
    """`1.08x`."""
    return NOT_MEASURED if value is None else f"{value:.2f}x"


def evidence_source(findings: Findings, part: str = "main") -> str:
    """The ablation's file and table; empty where there is none of this device and shape."""
    if findings.evidence is None:
        return ""
    return f"{findings.evidence.file.name}: {part}, at {findings.evidence.point.title}"


def ranking_rows(ranking: Sequence[Bottleneck]) -> list[tuple[str, ...]]:
    """A row a category, the most urgent first."""
    rows = []
    for b in ranking:
        limit = "" if b.upper_bound is None else f", at most {times(b.upper_bound)}"
        expected = f"{times(b.expected_speedup)}{limit} (worksheet: {b.worksheet_speedup})"
        measured = b.measured.text() if b.measured else "not measured on this device"
        row = (
            b.category,
            percent(b.share_percent),
            b.difficulty,
            expected,
            measured,
            str(b.priority),
        )
        rows.append(row)
    return rows


def step_5(findings: Findings) -> list[str]:
    """The assessment and the matrix."""
    ranking = findings.ranking
    keys = [findings.analysis.source(key) for b in ranking for key in b.keys]
    header = (
        "Bottleneck Category",
        "% of Total Time",
        "Optimization Difficulty",
        "Expected Speedup (Amdahl)",
        "Measured Speedup",
        "Priority Rank",
    )
    lines = [
        "## Step 5: systematic bottleneck ranking",
        "",
        *table(header, ranking_rows(ranking), *keys, evidence_source(findings)),
        "The categories overlap (softmax is part of attention): shares do not add up. Reasons for "
        "the speedups:",
        "",
        *(f"- {b.category}: {cell(b.share_definition)}; {cell(b.factor_reason)}" for b in ranking),
        "",
        "Impact vs effort matrix (high impact: 1.1x or more, measured or else expected):",
        "",
    ]
    for quadrant, title in WORKSHEET_QUADRANTS.items():
        names = [
            f"- {b.category} ({times(b.best_known_speedup)}, {b.difficulty})"
            for b in ranking
            if b.quadrant == quadrant
        ]
        lines += [f"{title}:", "", *(names or ["- none"]), ""]
    unknown = [f"- {b.category}: {cell(b.factor_reason)}" for b in ranking if b.quadrant is None]
    if unknown:
        lines += ["Not placed, since its impact is not known:", "", *unknown, ""]
    return lines


def worthwhile(
    speedup: float | None,
    memory: float | None = None,
    what: str = "measured or expected",
    *,
    is_shown: bool = True,
) -> Verdict:
    """Time or memory; `memory` is a peak over that of the baseline.

    `is_shown`: not so where the speedup was measured and may be chance.
    """
    rule = f"rule: from {WORTHWHILE_SPEEDUP}x"
    # memory bought with time is another trade than the worksheet's plan is about
    not_slower = speedup is None or speedup >= NOT_SLOWER
    saves = memory is not None and memory <= WORTHWHILE_MEMORY and not_slower
    text = f"{times(speedup)} {what}"
    if memory is not None:
        text += f", peak memory {memory:.2f}x"
        rule += f", or a peak of {WORTHWHILE_MEMORY:g}x or less at {NOT_SLOWER}x or more"
    faster = is_shown and (speedup or 0) >= WORTHWHILE_SPEEDUP
    if not is_shown:
        rule += "; `~`: no difference was shown"
    return Verdict(faster or saves, f"{text}; {rule}")


def long_memory_ratio(findings: Findings) -> float | None:
    """Version 2's peak over the baseline's at the long sequence."""
    runs = findings.runs
    key = "summary.peak_memory_bytes"
    return ratio(runs["version_2_long"].value(key), runs["baseline_long"].value(key))


def category_text(b: Bottleneck) -> str:
    """What the speedup of a category rests on."""
    if b.measured:
        return f"best known ({b.measured.text()}, share {percent(b.share_percent)})"
    return f"expected of its {percent(b.share_percent)} share"


def fusion_items(findings: Findings) -> list[str]:
    """Phases 1 and 2."""
    found = by_category(findings.ranking)
    layers = findings.analysis.value("configuration.n_layers") or 0
    memory = long_memory_ratio(findings)
    peaks = [
        findings.runs[name].figure("summary.peak_memory_bytes")
        for name in ("baseline_long", "version_2_long")
    ]
    seq = findings.runs["baseline_long"].value("configuration.seq_len")
    scores = findings.analysis.figure("memory.breakdown_at_peak.attention_scores")

    def item(name: str, label: str, *figures: Figure | str, memory: float | None = None) -> str:
        b = found[name]
        keys = [findings.analysis.source(key) for key in b.keys]
        what = category_text(b)
        verdict = worthwhile(b.best_known_speedup, memory, what, is_shown=b.is_shown)
        return tick(label, verdict, *keys, *figures, evidence_source(findings))

    phase_1, phase_2 = (
        speedup_together(findings.ranking, names) for names in ((QKV, SWIGLU), (ATTENTION,))
    )
    return [
        f"**Phase 1: kernel fusion: {times(phase_1)} expected (worksheet: 1.4-1.8x)**",
        "",
        item(QKV, "**QKV Fusion**: combine Q, K, V linear projections"),
        f"  - Impact: 3 products become 1 in each of {number(layers)} layers and each pass",
        "  - Memory: the three outputs are views of one tensor",
        "  - Implementation: variant `qkv`",
        item(SWIGLU, "**SwiGLU Fusion**: combine gate and up projections"),
        f"  - Impact: 2 products become 1 in each of {number(layers)} layers and each pass",
        "  - Memory: silu(gate) is not kept",
        "  - Implementation: variants `gate_up`, `fused_swiglu`",
        "",
        f"**Phase 2: attention optimization: {times(phase_2)} expected (worksheet: 1.3-2.0x)**",
        "",
        item(ATTENTION, "**Flash Attention**: no score matrix", scores, *peaks, memory=memory),
        f"  - Impact: scores take {megabytes(scores.value)} at the peak; without them attention's "
        "memory is O(S), not O(S^2)",
        f"  - Memory: at S = {number(seq)}, {megabytes(peaks[0].value)} become "
        f"{megabytes(peaks[1].value)} with `{VERSION_2}`, {times(memory)}",
        "  - Implementation: variants `sdpa`, `fused_attention`",
        "",
    ]


def further_items(findings: Findings) -> list[str]:
    """Phase 3."""
    evidence = findings.evidence
    source = evidence_source(findings)
    missing = "on this device: scripts/ablation and scripts/peers measure it"
    compiled, layout = compile_speedup(evidence), evidence_speedup(evidence, "layout")
    base, mixed = findings.runs["baseline"], findings.runs["mixed_precision"]
    precision = run_speedup(base, mixed)
    memory = ratio(*(r.value("summary.peak_memory_bytes") for r in (mixed, base)))
    return [
        "**Phase 3: additional optimizations (worksheet: 1.1-1.3x)**",
        "",
        tick(
            "**Torch Compile**: automatic kernel fusion",
            worthwhile(compiled, None, "measured" if compiled else missing),
            evidence_source(findings, "peers"),
        ),
        tick(
            "**Memory Layout**: tensor layouts (variant `layout`)",
            worthwhile(layout, None, "measured" if layout else missing),
            source,
        ),
        tick(
            "**Mixed Precision**: bf16 under autocast (`--dtype amp_bf16`)",
            worthwhile(precision, memory, "measured"),
            base.source("steps"),
            mixed.source("steps"),
            mixed.figure("summary.peak_memory_bytes"),
        ),
        "",
    ]


def expected_overall(findings: Findings) -> float | None:
    """Amdahl over QKV, attention and SwiGLU, which share no work."""
    return speedup_together(findings.ranking, DISJOINT)


def step_6(findings: Findings) -> list[str]:
    """The roadmap, and what it brings in all."""
    overall = expected_overall(findings)
    base, after = findings.runs["baseline"], findings.runs["version_2"]
    measured = run_speedup(base, after)
    shares = findings.analysis.source("operators.components")
    answer = (
        f"{times(overall)} by Amdahl's law over {', '.join(DISJOINT)}; {times(measured)} measured "
        f"with `{VERSION_2}`, which is all of phases 1 and 2."
    )
    return [
        "## Step 6: version 2 optimization roadmap",
        "",
        *fusion_items(findings),
        *further_items(findings),
        *question(
            "What is the expected overall speedup for Version 2?",
            answer,
            shares,
            base.source("steps"),
            after.source("steps"),
        ),
    ]


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


MIXED_BELOW = 50.0


def hierarchy(findings: Findings) -> list[str]:
    """`Typical bottleneck hierarchy`, held against this profile."""
    summary = findings.analysis.summary or {}
    shares = group_shares(summary["operators"]["components"])
    rows = (
        ("Attention operations", shares["attention"], 35, 45),
        ("Feed-forward network", shares["ffn"], 25, 35),
        ("Kernel launch overhead", summary["operators"]["launch_overhead_percent"], 10, 20),
        ("Memory operations (allocations)", fragmentation_share(summary).percent, 5, 15),
    )
    cells = [
        (name, f"{low}-{high} %", percent(share), expected(share, low, high, "%"))
        for name, share, low, high in rows
    ]
    return [
        "## Expected results",
        "",
        *table(
            ("part of the time", "the workshop expects", "measured", "verdict"),
            cells,
            findings.analysis.source("operators.components"),
            findings.analysis.source("operators.launch_overhead_percent"),
            findings.analysis.source("operators.table[].cpu_self_seconds"),
        ),
    ]


def kind_verdicts(findings: Findings) -> dict[str, Verdict]:
    """Question 3: one side has half of the time, or it is mixed."""
    shares = dict(bounds(findings.analysis.summary or {}).shares())
    best = largest(shares)
    most = shares[best] if best else None
    text = ", ".join(f"{name.split(' ')[0]} {percent(value)}" for name, value in shares.items())
    rule = f"rule: the one with {MIXED_BELOW:.0f} % or more of the time, else mixed"
    decided = most is not None and most >= MIXED_BELOW
    found = {
        name: Verdict(decided and name == best, f"{percent(value)}; {rule}")
        for name, value in shares.items()
    }
    known = all(value is not None for value in shares.values())
    found["Mixed workload (balanced optimization)"] = Verdict(
        known and not decided, f"{text}; {rule}"
    )
    return found


def first_candidates(findings: Findings) -> dict[str, float | None]:
    """Question 4: what each candidate brings, measured where it was, else expected."""
    found = by_category(findings.ranking)
    return {
        "QKV fusion (immediate benefit)": found[QKV].best_known_speedup,
        "Flash Attention (biggest impact)": found[ATTENTION].best_known_speedup,
        "SwiGLU fusion (easy implementation)": found[SWIGLU].best_known_speedup,
        "Torch compile (automatic optimization)": compile_speedup(findings.evidence),
    }


def realistic_target(findings: Findings) -> tuple[float | None, str]:
    """Measured where version 2 ran, else expected by Amdahl's law."""
    measured = run_speedup(findings.runs["baseline"], findings.runs["version_2"])
    if measured is not None:
        return measured, f"measured with `{VERSION_2}`"
    return expected_overall(findings), "expected by Amdahl's law"


def target_verdicts(findings: Findings) -> dict[str, Verdict]:
    """Question 5; the gap between the worksheet's ranges goes half to each."""
    value, what = realistic_target(findings)
    ranges = (
        ("1.2-1.4x (conservative)", 1.2, 1.45),
        ("1.5-2.0x (achievable)", 1.45, 2.0),
        ("2.0-3.0x (optimistic)", 2.0, 3.0),
        (">3.0x (unlikely without major changes)", 3.0, float("inf")),
    )
    found = {}
    for label, low, high in ranges:
        rule = f"rule: from {low}x" + ("" if high == float("inf") else f" to below {high}x")
        holds = value is not None and low <= value < high
        found[label] = Verdict(holds, f"{times(value)} {what}; {rule}")
    below = value is not None and value < ranges[0][1]
    found["below all of these (not on the worksheet)"] = Verdict(
        below, f"{times(value)} {what}; rule: below {ranges[0][1]}x"
    )
    return found


def largest_boxes(
    text: str,
    values: dict[str, float | None],
    what: str,
    unit: str,
    *keys: str,
    grounds: Mapping[str, str] | None = None,
) -> list[str]:
    """Tick boxes of which the one with the largest value holds.

    `grounds`: what a value rests on; the winner's stands beside every value that it is compared to.
    """
    ticks, winner = [], largest(values)
    for name in values:
        verdict, reason = is_largest(values, name, what, unit), ""
        for compared in dict.fromkeys((name, winner)):
            if compared and (ground := (grounds or {}).get(compared)):
                reason += f"; {ground}" if compared == name else f"; {compared}: {ground}"
        ticks.append(tick(name, replace(verdict, reason=verdict.reason + reason), *keys))
    return boxes(text, ticks)


def questions(findings: Findings) -> list[str]:
    """The five critical analysis questions."""
    analysis, summary = findings.analysis, findings.analysis.summary or {}
    shares = bottleneck_shares(summary)
    base, mixed = findings.runs["baseline"], findings.runs["mixed_precision"]
    bandwidth = memory_gain(summary, findings.evidence)
    precision = run_speedup(base, mixed)
    gains = optimization_gains(findings.ranking, bandwidth.speedup, precision)
    components, bound = analysis.source("operators.components"), "flops.roofline_data.points"
    launches = analysis.source("operators.launch_overhead_percent")
    speed = (base.source("steps"), mixed.source("steps"))
    version_2 = (base.source("steps"), findings.runs["version_2"].source("steps"))
    candidates = first_candidates(findings)
    where = (components, launches, analysis.source(bound))

    return [
        "## Analysis questions",
        "",
        *largest_boxes(
            "1. What is the single largest performance bottleneck?",
            shares,
            "share of the recorded work",
            "%",
            *where,
        ),
        *largest_boxes(
            "2. What type of optimization would provide the biggest benefit?",
            gains,
            "speedup of the step",
            "x",
            *where,
            *speed,
            evidence_source(findings),
            grounds={MEMORY_OPTIMIZATION: bandwidth.reason},
        ),
        *boxes(
            "3. Is the workload primarily:",
            [tick(label, v, *where) for label, v in kind_verdicts(findings).items()],
        ),
        *largest_boxes(
            "4. What should be the first optimization implemented?",
            candidates,
            "speedup of the step",
            "x",
            components,
            launches,
            evidence_source(findings),
        ),
        *boxes(
            "5. What is the realistic speedup target for Version 2?",
            [tick(label, v, *version_2) for label, v in target_verdicts(findings).items()],
        ),
    ]


def criteria(findings: Findings) -> list[str]:
    """Deliverables and success criteria."""
    known = sum(b.share_percent is not None for b in findings.ranking)
    top = operator_shares((findings.analysis.summary or {})["operators"])
    analysed = Verdict(len(top) >= 10, f"{len(top)} operators in the table; rule: ten or more")
    total = len(findings.ranking)
    ranked = Verdict(
        known == total, f"{known} of {total} bottlenecks have a share; rule: all of them"
    )
    placed = sum(b.quadrant is not None for b in findings.ranking)
    roadmap = Verdict(placed == total, f"{placed} of {total} are in the matrix; rule: all of them")
    rows = target_rows(findings)
    set_targets = sum(NOT_MEASURED not in row[2] for row in rows)
    metrics = Verdict(
        set_targets == len(rows), f"{set_targets} of {len(rows)} targets; rule: all of them"
    )
    tests = validation(findings)
    passed = sum(verdict.holds for _, verdict, _ in tests)
    plan = Verdict(
        passed == len(tests), f"{passed} of {len(tests)} validation tests pass; rule: all of them"
    )
    found = [
        ("Comprehensive bottleneck analysis completed", analysed),
        ("Performance bottlenecks quantified and ranked", ranked),
        ("Optimization roadmap created with priorities", roadmap),
        ("Success metrics defined for Version 2", metrics),
        ("Implementation plan validated", plan),
    ]
    ready = all_hold([verdict for _, verdict in found], "criteria above hold")
    ticks = [tick(label, verdict) for label, verdict in found]
    return [
        "## Success criteria",
        "",
        *ticks,
        tick("Ready to begin Version 2 optimizations", ready),
        "",
    ]


def takeaway(findings: Findings) -> list[str]:
    """The text's promise, and what holds here."""
    value, what = realistic_target(findings)
    best = largest(bottleneck_shares(findings.analysis.summary or {}))
    verdict = expected(value, 1.5, 2.0, "x")
    return [
        f"**Key takeaway:** the text promises 1.5-2.0x for version 2; here it is {times(value)} "
        f"{what}: {verdict}. The largest bottleneck is: {best or NOT_MEASURED}.",
        "",
    ]
