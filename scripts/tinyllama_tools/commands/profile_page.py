"""What scripts/profile found, and two profiles side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinyllama_tools.commands.profile_tables import (
    BASELINE,
    TITLES,
    ProfileSet,
    component_table,
    operator_shares,
    operator_table,
    overhead_lines,
    part_percents,
    shape_table,
    total_time_table,
)
from tinyllama_tools.core.app import Json
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.text import (
    facts,
    markdown_table,
    mebibytes,
    milliseconds,
    number,
    percent,
    rate,
    section,
    speedup,
)
from tinyllama_tools.data.profiles import SAME_WORK
from tinyllama_tools.models.bottlenecks import bottleneck_lines, matrix_lines, rank_bottlenecks
from tinyllama_tools.models.roofline import POSITIONS, roofline_position

if TYPE_CHECKING:
    from tinyllama_tools.models.ablation_evidence import Evidence

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
        ("GEMMs", percent(operators["matrix_product_percent"])),
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


@dataclass(frozen=True)
class Side:
    """One row's figures in one profile, of a step; `calls` of a component is None."""

    seconds: float
    percent: float
    calls: float | None = None


@dataclass(frozen=True)
class Pair:
    """A row of both; a side is None where that profile has no such row."""

    name: str
    a: Side | None
    b: Side | None

    @property
    def saved_seconds(self) -> float:
        """Of a step, by B; negative where B takes longer."""
        return (self.a.seconds if self.a else 0.0) - (self.b.seconds if self.b else 0.0)

    @property
    def speedup(self) -> float | None:
        """A's time over B's; None where one has none."""
        if self.a is None or self.b is None or self.b.seconds == 0:
            return None
        return self.a.seconds / self.b.seconds


def pair_up(a: Mapping[str, Side], b: Mapping[str, Side]) -> list[Pair]:
    """Every row of either, the largest change of time first."""
    pairs = [Pair(name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]
    return sorted(pairs, key=lambda pair: -abs(pair.saved_seconds))


def operator_sides(operators: Json) -> dict[str, Side]:
    """By operator, own time on the device that shares are of."""
    return {
        row.name: Side(row.seconds, row.share_percent, row.calls)
        for row in operator_shares(operators)
    }


def component_sides(operators: Json) -> dict[str, Side]:
    """By component, forward and backward together."""
    return {
        row["name"]: Side(
            (row.get("forward_seconds") or 0.0) + (row.get("backward_seconds") or 0.0),
            row["percent"],
        )
        for row in operators["components"]
    }


def differences(a: ProfileSet, b: ProfileSet) -> list[str]:
    """Why the two are not versions of the same work on the same device; empty where they are."""
    first, second = a.plain.summary, b.plain.summary
    found = [
        f"{key}: {first['configuration'].get(key)} against {second['configuration'].get(key)}"
        for key in SAME_WORK
        if first["configuration"].get(key) != second["configuration"].get(key)
    ]
    for key in ("name", "backend"):
        ours, theirs = first["context"]["device"][key], second["context"]["device"][key]
        if ours != theirs:
            found.append(f"device {key}: {ours} against {theirs}")
    ours, theirs = first["context"]["threads"], second["context"]["threads"]
    if ours != theirs:
        found.append(f"threads: {ours} against {theirs}")
    return found


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def summary_lines(a: ProfileSet, b: ProfileSet) -> list[str]:
    """Speed and memory of a step."""
    first, second = a.plain.summary["summary"], b.plain.summary["summary"]
    step = [
        s.get("plain_average_step_seconds") or s["average_step_seconds"] for s in (first, second)
    ]
    rows = [("step ms", *map(milliseconds, step), speedup(_ratio(*step)))]
    for part in ("forward", "backward", "optimizer"):
        times = [s.get(f"average_{part}_seconds") for s in (first, second)]
        rows.append((f"{part} ms", *map(milliseconds, times), speedup(_ratio(*times))))
    peaks = [s["peak_memory_bytes"] for s in (first, second)]
    rows.append(("peak memory", *map(mebibytes, peaks), speedup(_ratio(*peaks))))
    sections = [profiles.merged()["operators"] for profiles in (a, b)]
    for key, title in (
        ("operator_calls_per_step", "operators a step"),
        ("kernels_per_step", "kernels a step"),
    ):
        counts = [found.get(key) if found else None for found in sections]
        if any(count is not None for count in counts):
            rows.append((title, *(number(c, 0) for c in counts), speedup(_ratio(*counts))))
    return markdown_table(("", "A", "B", "A / B"), rows)


def _cells(side: Side | None) -> tuple[str, str]:
    if side is None:
        return "absent", "absent"
    return milliseconds(side.seconds), percent(side.percent)


def pair_lines(pairs: list[Pair], what: str, with_calls: bool) -> list[str]:
    """A row each: time and share in A and B, what B saves."""
    header = [what, "A ms", "A share", "B ms", "B share", "saved ms", "A / B"]
    rows = []
    for pair in pairs:
        row = [pair.name, *_cells(pair.a), *_cells(pair.b), milliseconds(pair.saved_seconds)]
        row.append(speedup(pair.speedup))
        if with_calls:
            row += [number(side.calls if side else None, 1) for side in (pair.a, pair.b)]
        rows.append(row)
    return markdown_table([*header, *(("A calls", "B calls") if with_calls else ())], rows)


def comparison_text(a: ProfileSet, b: ProfileSet) -> str:
    """The page of two profiles."""
    different = differences(a, b)
    variants = [p.plain.summary["configuration"]["variant"] for p in (a, b)]
    head = [
        f"A: `{shown(a.folder)}`, {variants[0]}.",
        f"B: `{shown(b.folder)}`, {variants[1]}.",
        "",
        "Above 1x, B is faster or smaller. Times and calls are of one step.",
    ]
    if different:
        head += ["", "Not the same work on the same device:", "", *(f"- {d}" for d in different)]
    lines = ["# Comparison of two profiles", "", *head, "", *section("Step", summary_lines(a, b))]
    first, second = a.merged()["operators"], b.merged()["operators"]
    if first and second:
        components = pair_up(component_sides(first), component_sides(second))
        operators = pair_up(operator_sides(first), operator_sides(second))
        lines += section("Components", pair_lines(components, "component", False))
        lines += section("Operators", pair_lines(operators, "operator", True))
    else:
        missing = [name for name, found in (("A", first), ("B", second)) if not found]
        lines += section("Operators", [f"Not measured in {' and '.join(missing)}."])
    return "\n".join(lines).rstrip() + "\n"
