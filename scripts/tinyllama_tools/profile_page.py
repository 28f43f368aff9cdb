"""performance_summary_report.md: what scripts/profile found, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.ablation_evidence import Evidence
from tinyllama_tools.bottleneck_page import bottleneck_lines, matrix_lines
from tinyllama_tools.bottlenecks import rank_bottlenecks
from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import (
    facts,
    markdown_table,
    mebibytes,
    milliseconds,
    number,
    percent,
    rate,
    section,
)
from tinyllama_tools.core.text import shown_path as shown
from tinyllama_tools.models.roofline import POSITIONS, roofline_position
from tinyllama_tools.profile_set import BASELINE, TITLES, ProfileSet
from tinyllama_tools.profile_tables import (
    component_table,
    operator_table,
    part_percents,
    shape_table,
    total_time_table,
)
from tinyllama_tools.profiler_overhead import overhead_lines

REPORT = "performance_summary_report.md"
SUMMARY_ROWS = 20
NOTHING_RECORDED = "left out: it ended before its profiler's steps"


def configuration_lines(profiles: ProfileSet) -> list[str]:
    """What was run, and on what."""
    summary = profiles.plain.summary
    found, context = summary["configuration"], summary["context"]
    device = context["device"]
    heads = f"{found['n_heads']} ({found['n_kv_heads']} key-value)"
    return facts(
        [
            ("size", found["size"]),
            ("batch x sequence", f"{found['batch_size']} x {found['seq_len']}"),
            ("steps", str(found["num_steps"])),
            ("data type", found["dtype"]),
            ("variant", found["variant"]),
            ("layers, hidden dim", f"{found['n_layers']}, {found['hidden_dim']}"),
            ("heads", heads),
            ("intermediate dim, vocabulary", f"{found['intermediate_dim']}, {found['vocab_size']}"),
            ("parameters", number(summary["model"]["total_parameters"], 0)),
            ("device", f"{device['name']} ({device['backend']})"),
            ("threads", str(context["threads"])),
            ("libtorch", context["torch_version"]),
            ("commit", (context.get("git_commit") or "unknown")[:12]),
        ]
    )


def run_lines(profiles: ProfileSet) -> list[str]:
    """Overall runtime, where the data is, errors and warnings."""
    runs = profiles.runs
    if runs is None:
        program = profiles.plain.summary["command"]
        text = program if isinstance(program, str) else " ".join(program)
        return facts(
            [
                ("profile data", shown(profiles.folder)),
                ("options", text),
                ("started", profiles.plain.summary["started"]),
            ]
        )
    notes = [f"- {TITLES[run['name']]}: {note}" for run in runs["runs"] for note in run["notes"]]
    started = {run["name"] for run in runs["runs"]}
    notes += [
        f"- {title}: {NOTHING_RECORDED if n in started else 'did not run'}"
        for n, title in TITLES.items()
        if n not in profiles.profiles
    ]
    table = markdown_table(
        ("run", "seconds", "folder", "log", "command"),
        [
            (TITLES[r["name"]], number(r["seconds"], 1), r["folder"], r["log"], r["command"])
            for r in runs["runs"]
        ],
    )
    overview = facts(
        [
            ("command", runs["command"]),
            ("started", runs["started"]),
            ("overall runtime", number(runs["total_seconds"], 1, "seconds")),
            ("profile data", shown(profiles.folder)),
        ]
    )
    return [*overview, "", *table, "", "Errors and warnings:", "", *(notes or ["- none"])]


def baseline_lines(profiles: ProfileSet) -> list[str]:
    """Speed, memory and loss of the run that stands first."""
    means = profiles.plain.summary["summary"]
    profiled = BASELINE not in profiles.profiles
    note = "These averages include steps that a profiler touched." if profiled else ""
    rows = [
        ("average step (first one left out)", milliseconds(means["average_step_seconds"]) + " ms"),
        ("standard deviation", milliseconds(means.get("stddev_step_seconds")) + " ms"),
        ("first step", milliseconds(means.get("first_step_seconds")) + " ms"),
        ("training speed", number(means["samples_per_second"], 1, "samples/s")),
        ("throughput", number(means["tokens_per_second"], 0, "tokens/s")),
        ("peak memory", mebibytes(means["peak_memory_bytes"])),
        ("final loss", number(means.get("final_loss"), 4)),
    ]
    readings = (profiles.plain.summary.get("device_sampling") or {}).get("readings") or {}
    for name, found in readings.items():
        if found:
            low, mean, high = (number(found[key], 1) for key in ("minimum", "mean", "maximum"))
            rows.append((name.replace("_", " "), f"{mean} (from {low} to {high})"))
    shares = [
        (name.replace("_", " "), milliseconds(part.get("seconds")), percent(part.get("percent")))
        for name, part in (means["breakdown"] or {}).items()
        if part
    ]
    breakdown = markdown_table(("part of a step", "ms", "share"), shares) if shares else []
    return [*facts(rows), "", *([note, ""] if note else []), *breakdown]


def operator_lines(merged: Json, top: int) -> list[str]:
    """Top operators and what they say together."""
    operators = merged["operators"]
    if not operators:
        return ["Not measured: needs --enable-pytorch-profiler."]
    clock = "the kernels' time" if operators["device_time"] == "gpu" else "the operators' self time"
    rows = [
        ("matrix products", percent(operators["matrix_product_percent"])),
        ("softmax", percent(operators["softmax_percent"])),
        ("linear projections a step", number(operators["linear_projections_per_step"], 0)),
        ("launch overhead", percent(operators["launch_overhead_percent"])),
        ("operators a step", number(operators["operator_calls_per_step"], 0)),
        ("different operators", number(operators.get("distinct_operators"), 0)),
        ("kernels a step", number(operators.get("kernels_per_step"), 0)),
        ("transfers a step", number(operators.get("transfers_per_step"), 1)),
    ]
    definition = operators.get("launch_overhead_definition")
    shapes = shape_table(operators, top)
    return [
        f"Steps {operators['first_step']} to {operators['last_step']}; times and calls are of one "
        f"step, shares of {clock}.",
        "",
        *operator_table(operators, top),
        "",
        *facts(rows),
        *(["", f"Launch overhead: {definition}."] if definition else []),
        *(["", "By input shapes:", "", *shapes] if shapes else []),
    ]


def component_lines(merged: Json) -> list[str]:
    """Components, the parts that they add up to, and the operators by total time."""
    operators = merged["operators"]
    if not operators:
        return ["Not measured: needs --enable-pytorch-profiler."]
    parts = [(name, percent(value)) for name, value in part_percents(merged).items()]
    return [
        *markdown_table(("part", "share"), parts),
        "",
        *component_table(operators, SUMMARY_ROWS),
        "",
        f"The {SUMMARY_ROWS} operators and ranges with the longest time, what they call included:",
        "",
        *total_time_table(operators, SUMMARY_ROWS),
    ]


def memory_lines(merged: Json) -> list[str]:
    """Peaks and what they are made of."""
    memory = merged["memory"]
    if not memory:
        return ["Not measured: needs --profile-memory."]
    where = " / ".join(
        str(memory[key]) for key in ("peak_phase", "peak_component") if memory.get(key)
    )
    rows = [
        ("peak", f"{mebibytes(memory['peak_bytes'])} ({where})"),
        ("average", mebibytes(memory["average_bytes"])),
        ("peak / average", number(memory["peak_to_average"], 2)),
        ("peak of the forward", mebibytes(memory.get("forward_peak_bytes"))),
        ("peak of the backward", mebibytes(memory.get("backward_peak_bytes"))),
        ("peak of the optimizer", mebibytes(memory.get("optimizer_peak_bytes"))),
        ("allocations a step", number(memory["allocations_per_step"], 0)),
        ("fragmentation", percent((memory["fragmentation"] or {}).get("percent"))),
    ]
    parts = sorted(memory["breakdown_at_peak"].items(), key=lambda part: -(part[1] or 0))
    tensors = [(t["name"], mebibytes(t["bytes"])) for t in memory["largest_tensors"]]
    return [
        *facts(rows),
        "",
        *markdown_table(
            ("at the peak", "size"), [(n.replace("_", " "), mebibytes(b)) for n, b in parts]
        ),
        "",
        *markdown_table(("largest tensors", "size"), tensors),
    ]


def flops_lines(merged: Json) -> list[str]:
    """Efficiency and the position under the roofline."""
    flops = merged["flops"]
    if not flops:
        return ["Not measured: needs --enable-deepspeed-flops."]
    profile, intensity = flops["flops_profile"], flops["computational_intensity"]
    efficiency = profile["efficiency_metrics"]
    bandwidth = intensity.get("memory_bandwidth_used_gb_per_sec")
    used = intensity.get("memory_bandwidth_utilization_percent")
    per_parameter = profile["flops_analysis"].get("flops_per_parameter")
    rows = [
        ("MFU", percent(efficiency.get("mfu_percent"))),
        ("of the measured peak (hardware FLOPs)", percent(efficiency.get("measured_peak_percent"))),
        ("achieved", rate(efficiency.get("achieved_flops_per_sec"), "FLOP/s")),
        ("device peak", rate(efficiency.get("device_peak_flops"), "FLOP/s")),
        ("device peak from", efficiency.get("device_peak_source") or "-"),
        ("FLOPs per parameter", number(per_parameter, 1)),
        ("classification", efficiency.get("classification") or "-"),
        (
            "arithmetic intensity",
            number(intensity["arithmetic_intensity_flops_per_byte"], 2, "FLOP/byte"),
        ),
        ("bandwidth used", f"{number(bandwidth, 1, 'GB/s')} ({percent(used)})"),
        ("workload", intensity["memory_bound_vs_compute_bound"]),
    ]
    position = roofline_position(flops)
    if position is None:
        where = ["Position under the roofline: the device's peak is not known."]
    else:
        marks = [f"- [{'x' if p == position.position else ' '}] {p}" for p in POSITIONS]
        where = [f"Position under the roofline: {position.reason}.", "", *marks]
    return [*facts(rows), "", *where]


def file_lines(profiles: ProfileSet) -> list[str]:
    """What each run wrote, by its folder."""
    lines = []
    for profile in {p.folder: p for p in profiles.profiles.values()}.values():
        names = ["performance_summary.json", *profile.summary.get("files", [])]
        lines.append(f"- `{shown(profile.folder)}`: {', '.join(dict.fromkeys(names))}")
    return lines


def report_lines(profiles: ProfileSet, top: int, ablation: Evidence | None) -> Sequence[str]:
    """The whole report."""
    merged = profiles.merged()
    bottlenecks = rank_bottlenecks(merged, ablation)
    sections = (
        ("Configuration", configuration_lines(profiles)),
        ("Runs", run_lines(profiles)),
        ("Baseline", baseline_lines(profiles)),
        ("Overhead of the profilers", overhead_lines(profiles)),
        (f"Top {top} operators", operator_lines(merged, top)),
        ("Components", component_lines(merged)),
        ("Memory", memory_lines(merged)),
        ("FLOPS efficiency and roofline", flops_lines(merged)),
        ("Bottlenecks", bottleneck_lines(bottlenecks, ablation)),
        ("Impact and effort", matrix_lines(bottlenecks)),
        ("Files", file_lines(profiles)),
    )
    lines = ["# Performance summary", ""]
    for title, content in sections:
        lines += section(title, content)
    return lines


def report_text(profiles: ProfileSet, top: int, ablation: Evidence | None) -> str:
    """The file's content."""
    return "\n".join(report_lines(profiles, top, ablation)).rstrip() + "\n"


def report_path(folder: Path) -> Path:
    """Where the report of a folder lies."""
    return folder / REPORT
