"""Exercise 3, step 7 and what follows: validation, analysis questions, success criteria."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinyllama_tools.bottleneck_shares import fragmentation_share
from tinyllama_tools.exercise_1_rules import group_shares
from tinyllama_tools.exercise_3_memory_gain import memory_gain
from tinyllama_tools.exercise_3_numbers import (
    ATTENTION,
    MEMORY_OPTIMIZATION,
    QKV,
    SWIGLU,
    bottleneck_shares,
    bounds,
    by_category,
    compile_speedup,
    optimization_gains,
    run_speedup,
)
from tinyllama_tools.exercise_3_plan import (
    evidence_source,
    expected_overall,
    times,
)
from tinyllama_tools.exercise_3_runs import VERSION_2, Findings
from tinyllama_tools.exercise_3_validation import target_rows, validation
from tinyllama_tools.profile_tables import operator_shares
from tinyllama_tools.worksheet import (
    NOT_MEASURED,
    Verdict,
    boxes,
    percent,
    table,
    tick,
)
from tinyllama_tools.worksheet_rules import all_hold, expected, is_largest, largest

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
