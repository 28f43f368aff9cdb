"""What a performance study prints and the comparison that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.text import duration, markdown_table
from tinyllama_tools.study.training import MIB, PROFILES, Settings, SizePlan, SizeResult

LINE = "=" * 80


def short_count(parameters: int) -> str:
    """`~2.9M`, `~167M`, `~1.3B`, as the workshop writes them."""
    unit, letter = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    value = parameters / unit
    return f"~{value:.0f}{letter}" if value >= 100 else f"~{value:.1f}{letter}"


def expected_text(plan: SizePlan) -> str:
    """`0.0930 s/iter, 5 s for 50 steps (190.1 GFLOP/s attained in ...)`."""
    if plan.rate is None or plan.step_seconds is None or plan.total_seconds is None:
        return "not known: nothing was measured with these settings"
    return (
        f"{plan.step_seconds:.3g} s/iter, {duration(plan.total_seconds)} for {plan.num_steps} "
        f"steps ({plan.rate.source})"
    )


def title(settings: Settings) -> str:
    """The workshop's version 1 is the baseline."""
    version = "VERSION 1 BASELINE" if settings.variant == "baseline" else settings.variant.upper()
    return f"TINY LLAMA WORKSHOP - {version} PERFORMANCE STUDY"


def banner(settings: Settings, plan: SizePlan, dimensions: dict[str, int], folder: Path) -> str:
    """What stands above a size's run."""
    p = plan.prediction
    rows = (
        ("Hidden Dimension", str(dimensions["hidden_dim"])),
        ("Number of Layers", str(dimensions["n_layers"])),
        ("Sequence Length", str(p.seq)),
        ("Batch Size", str(p.batch)),
        ("Training Steps", str(plan.num_steps)),
        ("Est. Parameters", f"{p.parameters:,} ({short_count(p.parameters)})"),
        ("Expected Time", expected_text(plan)),
        ("Expected Memory", f"{p.peak_memory_bytes / MIB:,.0f} MB"),
        ("Profilers Enabled", str(settings.has_profilers).lower()),
    )
    name = "V1 Baseline" if settings.variant == "baseline" else settings.variant
    lines = [
        LINE,
        title(settings),
        LINE,
        "",
        f"Problem Size: {plan.size.upper()}",
        "Configuration:",
        *(f"  {label + ':':<20} {value}" for label, value in rows),
        "",
        f"Output Directory: {shown(folder)}",
        LINE,
        "",
        f"Starting {name} training...",
    ]
    return "\n".join(lines)


def deviation(measured: float, expected: float | None) -> str:
    """`0.0912 s/iter measured, 0.0930 expected (-2 %)`."""
    if not expected:
        return f"{measured:.3g} s/iter measured, nothing to expect it from"
    percent = 100 * (measured / expected - 1)
    return f"{measured:.3g} s/iter measured, {expected:.3g} expected ({percent:+.0f} %)"


def ending(plan: SizePlan, result: SizeResult) -> str:
    """What stands below a size's run."""
    if not result.is_measured or result.summary is None:
        return f"PERFORMANCE STUDY OF {plan.size.upper()} NOT COMPLETE: {result.failure}"
    found = result.summary["summary"]
    lines = [
        LINE,
        "PERFORMANCE STUDY COMPLETE",
        LINE,
        f"Total Runtime: {result.seconds:.0f}s",
        f"Throughput: {found['samples_per_second']:.1f} samples/sec",
        f"Peak Memory: {found['peak_memory_bytes'] / MIB:.0f} MB "
        f"(predicted {plan.prediction.peak_memory_bytes / MIB:.0f} MB)",
        f"Time: {deviation(found['average_step_seconds'], plan.step_seconds)}",
    ]
    return "\n".join(lines)


def row_of(result: SizeResult) -> tuple[str, ...]:
    """A measured size in the comparison."""
    assert result.summary is not None
    found, model = result.summary["summary"], result.summary["model"]
    seconds, expected = found["average_step_seconds"], result.config.get("expected") or {}
    parameter_bytes = model["model_size_bytes"]
    first = expected.get("step_seconds")
    return (
        result.size,
        f"{model['total_parameters']:,}",
        f"{found['samples_per_second']:.4g}",
        f"{found['tokens_per_second']:,.0f}",
        f"{found['peak_memory_bytes'] / MIB:,.1f}",
        f"{found['peak_memory_bytes'] / parameter_bytes:.1f}",
        f"{seconds:.4g}",
        f"{first:.4g}" if first else "not predicted",
        f"{model['flops_per_step'] / seconds / 1e9:,.1f}",
    )


COMPARISON = (
    "Problem Size",
    "Parameters",
    "Throughput (samples/s)",
    "tokens/s",
    "Memory (MB)",
    "memory / parameters",
    "Time/Iter (s)",
    "expected (s)",
    "GFLOP/s",
)


def comparison(results: Sequence[SizeResult]) -> list[str]:
    """The workshop's table over all measured sizes, and why the others are missing."""
    rows = [row_of(result) for result in results if result.is_measured]
    lines = markdown_table(COMPARISON, rows) if rows else ["No size was measured."]
    left_out = [r for r in results if not r.is_measured]
    if left_out:
        lines += ["", "Not in the table:", ""]
        for r in left_out:
            reason = r.failure or f"not attempted: {r.refusal}"
            lines.append(f"- {r.size}: {reason}")
    earlier = [r for r in results if r.is_earlier and r.folder]
    if earlier:
        names = ", ".join(f"{r.size} ({r.folder.name})" for r in earlier if r.folder)
        lines += ["", f"From earlier studies with the same settings: {names}."]
    return lines


def growth(results: Sequence[SizeResult]) -> list[str]:
    """From each measured size to the next: how often its parameters, memory, ... are those of
    the one before."""
    found = [r.summary for r in results if r.is_measured and r.summary]
    names = [r.size for r in results if r.is_measured]
    if len(found) < 2:
        return []
    rows = []
    for i in range(1, len(found)):
        before, after = found[i - 1], found[i]
        ratios = (
            after["model"]["total_parameters"] / before["model"]["total_parameters"],
            after["model"]["flops_per_step"] / before["model"]["flops_per_step"],
            after["summary"]["peak_memory_bytes"] / before["summary"]["peak_memory_bytes"],
            before["summary"]["samples_per_second"] / after["summary"]["samples_per_second"],
            after["summary"]["average_step_seconds"] / before["summary"]["average_step_seconds"],
        )
        rows.append((f"{names[i - 1]} -> {names[i]}", *(f"{ratio:.3g}x" for ratio in ratios)))
    header = ("from -> to", "parameters", "FLOPs", "memory", "throughput falls", "time/iter")
    return ["", "## Growth from size to size", "", *markdown_table(header, rows)]


def study_page(settings: Settings, results: Sequence[SizeResult], command: str) -> str:
    """results/performance_study_<time>.md."""
    device = next((r.summary["context"]["device"]["name"] for r in results if r.summary), "none")
    folders = [f"- {r.size}: `{shown(r.folder)}`" for r in results if r.folder]
    lines = [
        "# Performance study",
        "",
        f"`{command}`: {settings.dtype}, {settings.variant}, {settings.num_steps} steps a size, "
        f"on {device}. The first step is in no average; MB are 2^20 bytes.",
        "",
        "## Performance scaling",
        "",
        *comparison(results),
        *growth(results),
        "",
        "## Files",
        "",
        *(folders or ["None was written."]),
    ]
    if settings.has_profilers:
        lines += ["", "Profiled steps count: `summary.plain_average_step_seconds` leaves them out."]
    return "\n".join(lines) + "\n"


def next_steps(settings: Settings, results: Sequence[SizeResult], page: Path) -> str:
    """What to do with the files, as commands."""
    done = [r for r in results if r.is_measured and not r.is_earlier and r.folder]
    lines = ["Next steps:"]
    for r in done:
        lines.append(f"  cat {shown(r.folder)}/config.json")
    if done and settings.has_profilers:
        profiles = f"{shown(done[-1].folder)}/{PROFILES}"
        lines.append(f"  scripts/profile --analyze-existing {profiles} --generate-report")
    if done and not settings.has_profilers:
        lines.append(f"  scripts/study {done[-1].size} --enable-profilers")
    lines += [f"  less {shown(page)}", "  scripts/exercise 3"]
    return "\n".join(lines)
