"""Tables of chapter 6: what the workshop expects from size to size, their profiles,
and the criteria."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.data.programs import problem_sizes
from tinyllama_tools.exercise_3_scaling import GIGA, RATES, all_sources, throughput_exponent
from tinyllama_tools.exercise_3_sizes import (
    SizeStudy,
    attained,
    core_percent,
    name_of,
    saturation,
    shares,
)
from tinyllama_tools.exercise_runs import MeasuredRun, samples_per_second
from tinyllama_tools.worksheet import Verdict, number, percent, table, tick
from tinyllama_tools.worksheet_rules import all_hold, expected

# What the text expects from one size to the next: parameters, memory, fall of throughput.
TRANSITIONS = {
    ("tiny", "small"): ((6.5, 7.5), (5, 8), (3, 5)),
    ("small", "medium"): ((7.5, 8.5), (6, 10), (5, 10)),
}


def transition_rows(runs: Sequence[MeasuredRun]) -> list[tuple[str, ...]]:
    """Expected and measured from size to size (6.5)."""
    by_name = {name_of(run): run for run in runs}
    rows = []
    for (small, large), ranges in TRANSITIONS.items():
        if small not in by_name or large not in by_name:
            missing = large if small in by_name else small
            rows.append((f"{small} -> {large}", "all", "see 6.5", f"{missing} was not run", "-"))
            continue
        a, b = by_name[small], by_name[large]
        speeds = [samples_per_second(run)[0] or 0 for run in (a, b)]
        found = (
            ("parameters", b, a, "model.total_parameters"),
            ("memory", b, a, "summary.peak_memory_bytes"),
        )
        ratios = [(what, (x.value(k) or 0) / (y.value(k) or 1)) for what, x, y, k in found]
        ratios.append(("throughput falls", speeds[0] / speeds[1] if speeds[1] else 0))
        for (what, value), (low, high) in zip(ratios, ranges, strict=True):
            verdict = expected(value, low, high, "x")
            text = f"{low:g}-{high:g}x"
            rows.append((f"{small} -> {large}", what, text, f"{value:.3g}x", verdict))
    return rows


def transitions_section(runs: Sequence[MeasuredRun]) -> list[str]:
    """Expected results (6.5), held against the measured ones."""
    header = ("transition", "what", "the workshop expects", "measured", "verdict")
    return [
        "### Expected results",
        "",
        *table(header, transition_rows(runs), *all_sources(runs, "model, summary")),
    ]


def profiles_section(runs: Sequence[MeasuredRun]) -> list[str]:
    """6.6: the profiles of the sizes side by side."""
    rows = []
    for run in runs:
        found = shares(run)
        top = ((run.value("operators") or {}).get("table") or [{}])[0]
        bandwidth = "flops.computational_intensity.memory_bandwidth_utilization_percent"
        kernels = run.value("operators.kernels_per_step")
        calls = run.value("operators.operator_calls_per_step") if kernels is None else kernels
        rate = attained(run)
        rows.append(
            (
                name_of(run),
                number(calls),
                f"{top.get('name', 'not measured')} {percent(top.get('share_percent'))}",
                percent(run.value("operators.matrix_product_percent")),
                percent(run.value("operators.softmax_percent")),
                percent(found.get("attention")),
                percent(found.get("ffn")),
                percent(run.value(bandwidth)),
                number(rate / GIGA if rate else None),
            )
        )
    header = (
        "size",
        "kernels or operators a step",
        "largest operator",
        "matrix products",
        "softmax",
        "attention",
        "FFN",
        "bandwidth used",
        "GFLOP/s",
    )
    return [
        "### Profiles across sizes",
        "",
        "How does the kernel distribution change, which operations dominate, how does bandwidth "
        "utilization scale: a row a size.",
        "",
        *table(header, rows, *all_sources(runs, "operators, flops.computational_intensity")),
    ]


def exact_notes() -> list[str]:
    """6.4's claims that the sizes' own dimensions contradict."""
    sizes = problem_sizes()
    wide = ", ".join(
        f"{name} {dims['intermediate_dim'] / dims['hidden_dim']:.2f}"
        for name, dims in sizes.items()
    )
    groups = ", ".join(
        f"{name} {dims['n_heads']}:{dims['n_kv_heads']}" for name, dims in sizes.items()
    )
    return [
        "### Notes on the text's figures",
        "",
        f"- D_ff is not 4 x D here: D_ff / D is {wide} (fixtures/problem_sizes.json).",
        f"- Queries share keys and values (heads : KV heads {groups}): K and V projections have "
        "half the width of Q, so QKV has 2 D^2 weights a layer, not 3 D^2.",
        "- S^2 stands in the attention scores alone. All else, activations included, is linear in "
        "S; the peak is quadratic only where the scores outweigh the rest.",
        "",
    ]


def size_criteria(study: SizeStudy) -> list[str]:
    """`Exercise Complete When` of chapter 6."""
    runs = study.runs
    found = criteria_of(runs)
    held = all_hold([verdict for _, verdict in found], "hold")
    lines = [tick(label, verdict, RATES) for label, verdict in found]
    lines.append(tick("Ready to compare with optimized versions", held))
    return ["### Exercise complete when", "", *lines, ""]


def criteria_of(runs: Sequence[MeasuredRun]) -> list[tuple[str, Verdict]]:
    """Label and verdict of each but the last, which rests on them."""
    names = [name_of(run) for run in runs]
    enough = Verdict(
        len(names) >= 2 and "tiny" in names,
        f"{len(names)} measured ({', '.join(names) or 'none'}); rule: tiny and one other",
    )
    exponent = throughput_exponent(runs)
    patterns = Verdict(
        exponent is not None,
        f"throughput goes with parameters ^ {number(exponent)}; rule: an exponent is known",
    )
    keys = ("summary.peak_memory_bytes", "summary.samples_per_second")
    recorded = sum(run.figure(key).is_measured for run in runs for key in keys)
    metrics = Verdict(
        recorded == 2 * len(runs) > 0, f"{recorded} of {2 * len(runs)} figures; rule: all"
    )
    size, rates = saturation(runs)
    understood = Verdict(
        len(rates) >= 2, f"saturated at {size or 'none'} of {len(rates)} rates; rule: two or more"
    )
    profiled = sum(core_percent(run) is not None for run in runs)
    priorities = Verdict(profiled > 0, f"{profiled} sizes have component shares; rule: at least 1")
    return [
        ("At least 2 problem sizes tested (tiny + one other)", enough),
        ("Scaling patterns documented", patterns),
        ("Memory and throughput metrics recorded", metrics),
        ("Performance characteristics understood", understood),
        ("Optimization priorities identified", priorities),
    ]
