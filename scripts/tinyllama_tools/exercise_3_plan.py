"""Exercise 3, steps 5 and 6: bottlenecks ranked, matrix, roadmap of version 2."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.bottlenecks import WORTHWHILE_SPEEDUP, Bottleneck
from tinyllama_tools.core.text import cell
from tinyllama_tools.exercise_3_numbers import (
    ATTENTION,
    DISJOINT,
    QKV,
    SWIGLU,
    by_category,
    compile_speedup,
    evidence_speedup,
    run_speedup,
    speedup_together,
)
from tinyllama_tools.exercise_3_runs import VERSION_2, Findings
from tinyllama_tools.worksheet import (
    NOT_MEASURED,
    Figure,
    Verdict,
    megabytes,
    number,
    percent,
    question,
    table,
    tick,
)
from tinyllama_tools.worksheet_rules import ratio

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
