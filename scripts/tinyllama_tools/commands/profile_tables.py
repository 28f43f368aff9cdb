"""A folder of profiles: its operators and components as tables, and what each profiler costs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import plotly.graph_objects as go

from tinyllama_tools.core.app import Json, write_whole
from tinyllama_tools.core.text import markdown_table, milliseconds, number, percent
from tinyllama_tools.data.profiles import BadProfileError, Profile, component_percent, read_profile

RUNS_FILE = "profile_runs.json"
RUNS_VERSION = 1
BASELINE_FOLDER = "baseline_training"
BASELINE, OPERATORS, MEMORY, FLOPS = "baseline", "operators", "memory", "flops"
SECTIONS = (OPERATORS, MEMORY, FLOPS)
TITLES = {
    BASELINE: "plain run",
    OPERATORS: "operator profiler",
    MEMORY: "memory profiler",
    FLOPS: "FLOPS profiler",
}


@dataclass(frozen=True)
class ProfileSet:
    """Profiles of one configuration by what was on; a single run can serve several.

    `runs`: profile_runs.json, None for the folder of a single run.
    """

    folder: Path
    profiles: Mapping[str, Profile]
    runs: Json | None = field(default=None)

    @property
    def plain(self) -> Profile:
        """The run without profilers where there is one."""
        return next(iter(self.profiles.values()))

    def of(self, name: str) -> Profile | None:
        """The run that a profiler was on in."""
        return self.profiles.get(name)

    def merged(self) -> Json:
        """One performance_summary.json: the plain run's, with each profiler's section in it."""
        sections = {
            name: self.profiles[name].summary.get(name) if name in self.profiles else None
            for name in SECTIONS
        }
        return self.plain.summary | sections


def read_runs(path: Path) -> Json:
    """profile_runs.json, checked; BadProfileError names it and what is wrong."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema_version"] != RUNS_VERSION:
            raise ValueError(f"schema_version is {found['schema_version']!r}, not {RUNS_VERSION}")
        for run in found["runs"]:
            if run["name"] not in (BASELINE, *SECTIONS):
                raise ValueError(f"run '{run['name']}' is none of {(BASELINE, *SECTIONS)}")
            if Path(run["folder"]).is_absolute() or ".." in Path(run["folder"]).parts:
                raise ValueError(f"folder '{run['folder']}' is outside")
            float(run["seconds"]), str(run["command"]), int(run["exit_status"]), list(run["notes"])
        float(found["total_seconds"]), str(found["command"]), str(found["started"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadProfileError(
            f"{path}: no list of runs of scripts/profile: {error!r}; profile again"
        ) from error
    return found


def read_profile_set(folder: Path) -> ProfileSet:
    """All profiles below a folder; BadProfileError where one is missing or damaged.

    A run that failed before its profiler's steps is in `runs` only.
    """
    runs_file = folder / RUNS_FILE
    if not runs_file.exists() and not (folder / BASELINE_FOLDER).exists():
        profile = read_profile(folder)
        on = [name for name in SECTIONS if profile.summary.get(name)]
        return ProfileSet(folder, dict.fromkeys(on or [BASELINE], profile))
    runs = read_runs(runs_file)
    found = {run["name"]: _profile_of(run, folder) for run in runs["runs"]}
    profiles = {name: profile for name, profile in found.items() if profile is not None}
    if not profiles:
        raise BadProfileError(f"{runs_file}: no run came to its end; profile again")
    return ProfileSet(folder, profiles, runs)


def _profile_of(run: Json, folder: Path) -> Profile | None:
    """None where the run failed before its profiler's steps."""
    name, profile = run["name"], read_profile(folder / run["folder"])
    if name == BASELINE or profile.summary.get(name):
        return profile
    if int(run["exit_status"]):
        return None
    raise BadProfileError(f"{profile.folder}: its summary has no '{name}' section; profile again")


# What belongs to attention and to the feed-forward network; all else is other.
PARTS: Mapping[str, tuple[str, ...]] = {"attention": ("attention/",), "FFN": ("ffn/",)}


@dataclass(frozen=True)
class OperatorShare:
    """An operator in one step: `share_percent` of the recorded work, `cpu_percent` of the host's.

    `seconds`: of its own on the device that shares are of (the CPU where there is no other).
    """

    name: str
    share_percent: float
    cpu_percent: float
    cpu_seconds: float
    cpu_total_seconds: float
    device_seconds: float | None
    calls: float

    @property
    def seconds(self) -> float:
        """On the GPU where it was there, else on the CPU."""
        return self.cpu_seconds if self.device_seconds is None else self.device_seconds


def _operator_share(name: str, rows: Sequence[Json], steps: int, host: float) -> OperatorShare:
    def total(key: str) -> float:
        return sum(row[key] for row in rows)

    on_device = rows[0].get("device_self_seconds") is not None
    return OperatorShare(
        name,
        total("share_percent"),
        100 * total("cpu_self_seconds") / host,
        total("cpu_self_seconds") / steps,
        total("cpu_total_seconds") / steps,
        total("device_self_seconds") / steps if on_device else None,
        total("calls") / steps,
    )


def operator_shares(operators: Json) -> list[OperatorShare]:
    """All operators, largest share first, per recorded step.

    The file's rows of one name, which shapes or stacks tell apart, become one.
    """
    host = sum(row["cpu_self_seconds"] for row in operators["table"]) or 1.0
    named: dict[str, list[Json]] = {}
    for row in operators["table"]:
        named.setdefault(row["name"], []).append(row)
    steps = operators["steps"]
    found = [_operator_share(name, rows, steps, host) for name, rows in named.items()]
    return sorted(found, key=lambda row: -row.share_percent)


def shape_table(operators: Json, count: int) -> list[str]:
    """The `count` largest operators by name and input shapes; empty where no shapes were kept."""
    rows = [row for row in operators["table"] if row.get("input_shapes")]
    rows.sort(key=lambda row: -row["share_percent"])
    steps = operators["steps"]
    cells = [
        (
            row["name"],
            row["input_shapes"],
            percent(row["share_percent"]),
            number(row["calls"] / steps, 1),
        )
        for row in rows[:count]
    ]
    return markdown_table(("operator", "input shapes", "share", "calls"), cells) if cells else []


def operator_table(operators: Json, count: int) -> list[str]:
    """The `count` largest by share."""
    header = (
        "rank",
        "operator",
        "share",
        "CPU share",
        "CPU ms",
        "CPU total ms",
        "GPU ms",
        "calls",
    )
    rows = [
        (
            str(rank),
            row.name,
            percent(row.share_percent),
            percent(row.cpu_percent),
            milliseconds(row.cpu_seconds),
            milliseconds(row.cpu_total_seconds),
            milliseconds(row.device_seconds),
            number(row.calls, 1),
        )
        for rank, row in enumerate(operator_shares(operators)[:count], start=1)
    ]
    return markdown_table(header, rows)


def total_time_table(operators: Json, count: int) -> list[str]:
    """The `count` operators and ranges with the longest time, what they call included."""
    rows = sorted(operator_shares(operators), key=lambda row: -row.cpu_total_seconds)[:count]
    return markdown_table(
        ("operator or range", "CPU total ms", "CPU self ms", "calls"),
        [
            (
                row.name,
                milliseconds(row.cpu_total_seconds),
                milliseconds(row.cpu_seconds),
                number(row.calls, 1),
            )
            for row in rows
        ],
    )


def component_rows(operators: Json) -> list[Json]:
    """Largest share first."""
    return sorted(operators["components"], key=lambda row: -row["percent"])


def component_table(operators: Json, count: int) -> list[str]:
    """Time of each component in a step."""
    header = ("component", "share", "forward ms", "backward ms")
    rows = [
        (
            row["name"],
            percent(row["percent"]),
            milliseconds(row.get("forward_seconds")),
            milliseconds(row.get("backward_seconds")),
        )
        for row in component_rows(operators)[:count]
    ]
    return markdown_table(header, rows)


def part_percents(summary: Json) -> dict[str, float]:
    """Attention, FFN and other, in percent of the recorded work; empty without operator profile."""
    total = component_percent(summary, *component_names(summary))
    if total is None:
        return {}
    parts = {name: component_percent(summary, *names) or 0.0 for name, names in PARTS.items()}
    return parts | {"other": total - sum(parts.values())}


def component_names(summary: Json) -> Sequence[str]:
    """Every component that the operator profile lists."""
    return [row["name"] for row in (summary.get("operators") or {}).get("components", [])]


OVERHEAD_KEYS = {
    OPERATORS: "operator_profiling_overhead_percent",
    MEMORY: "memory_profiling_overhead_percent",
}


@dataclass(frozen=True)
class Overhead:
    """Seconds are medians, percents above the plain steps of the same run (`percent`) and above the
    run without profilers (`run_percent`: the rest of the run can be slower too)."""

    profiler: str
    plain_seconds: float | None
    profiled_seconds: float | None
    percent: float | None
    run_percent: float | None
    process_seconds: float | None


def _median_of(steps: list[Json], profiled: bool) -> float | None:
    # the first step is left out of every average
    found = [s["time_seconds"] for s in steps[1:] if bool(s.get("profiled")) == profiled]
    return statistics.median(found) if found else None


def _above(value: float | None, plain: float | None) -> float | None:
    return 100 * (value / plain - 1) if value is not None and plain else None


def profiler_overheads(profiles: ProfileSet) -> list[Overhead]:
    """Of each profiler that was on; what its run cannot say is None."""
    baseline = profiles.of(BASELINE)
    unprofiled = _median_of(baseline.summary["steps"], False) if baseline else None
    seconds = {run["name"]: run["seconds"] for run in (profiles.runs or {}).get("runs", [])}
    found = []
    for name in SECTIONS:
        profile = profiles.of(name)
        if profile is None:
            continue
        steps, means = profile.summary["steps"], profile.summary["summary"]
        plain, touched = _median_of(steps, False), _median_of(steps, True)
        shared = sum(other is profile for other in profiles.profiles.values()) > 1
        if shared:
            # several profilers in one run: only the program itself can tell their steps apart
            key = f"{'operator' if name == OPERATORS else name}_profiled_average_step_seconds"
            touched = means.get(key)
        own = means.get(OVERHEAD_KEYS[name]) if name in OVERHEAD_KEYS else _above(touched, plain)
        found.append(
            Overhead(name, plain, touched, own, _above(plain, unprofiled), seconds.get(name))
        )
    return found


def overhead_lines(profiles: ProfileSet) -> list[str]:
    """The table, and what a whole run took."""
    overheads = profiler_overheads(profiles)
    if not overheads:
        return ["No profiler was on."]
    header = (
        "profiler",
        "plain step ms",
        "profiled step ms",
        "overhead of a profiled step",
        "plain steps against the plain run",
        "whole run seconds",
    )
    rows = [
        (
            TITLES[found.profiler],
            milliseconds(found.plain_seconds),
            milliseconds(found.profiled_seconds),
            percent(found.percent),
            percent(found.run_percent),
            number(found.process_seconds, 1),
        )
        for found in overheads
    ]
    seconds = {run["name"]: run["seconds"] for run in (profiles.runs or {}).get("runs", [])}
    plain = seconds.get(BASELINE)
    last = [] if plain is None else ["", f"The plain run took {number(plain, 1)} seconds in all."]
    return [*markdown_table(header, rows), *last]


TIMELINE = "memory_timeline.json"
PAGE = "memory_timeline.html"
MIB = 1 << 20
# differ in lightness, so that they differ in print as well
PHASE_COLOURS = {
    "data_loading": "#d9d2c0",
    "forward": "#eef4fb",
    "backward": "#cfdcec",
    "optimizer": "#f6e3c5",
    "evaluation": "#dcecd9",
    "other": "#ffffff",
}


def timeline_figure(timeline: Json) -> go.Figure:
    """Phases as bands, the curve of the live bytes, and its peak with bytes and component."""
    events, phases = timeline["events"], timeline["phases"]
    start = min([events[0][0], *(phase["begin_seconds"] for phase in phases)])
    times = [(seconds - start) * 1e3 for seconds, *_ in events]
    live = [live_bytes / MIB for _, live_bytes, *_ in events]
    places = [f"{component}, {phase.replace('_', ' ')}" for *_, phase, component in events]
    figure = go.Figure()
    for name, colour in PHASE_COLOURS.items():
        bands = [phase for phase in phases if phase["phase"] == name]
        for band in bands:
            begin, end = ((band[f"{k}_seconds"] - start) * 1e3 for k in ("begin", "end"))
            figure.add_vrect(x0=begin, x1=end, fillcolor=colour, line_width=0, layer="below")
        if bands:
            square = {"symbol": "square", "size": 12, "color": colour, "line": {"width": 1}}
            label = name.replace("_", " ")
            figure.add_scatter(x=[None], y=[None], mode="markers", marker=square, name=label)
    for step in dict.fromkeys(phase["step"] for phase in phases):
        begin = min(phase["begin_seconds"] for phase in phases if phase["step"] == step)
        x = (begin - start) * 1e3
        label = {"annotation_text": f"step {step}", "annotation_position": "top right"}
        figure.add_vline(x=x, line={"dash": "dot", "width": 1}, **label)
    curve = {"shape": "hv", "color": "#12395c"}
    figure.add_scatter(
        x=times, y=live, text=places, line=curve, fill="tozeroy", name="live tensors"
    )
    peak = max(range(len(live)), key=live.__getitem__)
    text = f"peak {live[peak]:.2f} MiB: {places[peak]}"
    dot = {"size": 10, "color": "#a01818"}
    figure.add_scatter(x=[times[peak]], y=[live[peak]], mode="markers", marker=dot, name=text)
    first, last = timeline["first_step"], timeline["last_step"]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    figure.update_layout(
        title=f"Memory of live tensors, {steps}",
        xaxis_title="time (ms)",
        yaxis_title="live tensors (MiB)",
        plot_bgcolor="white",
    )
    return figure


def draw_timelines(folder: Path) -> list[Path]:
    """A page beside each timeline in the folder and its own; none where nothing was allocated."""
    pages = []
    for path in (*folder.glob(TIMELINE), *sorted(folder.glob(f"*/{TIMELINE}"))):
        timeline = json.loads(path.read_text(encoding="utf-8"))
        if timeline["events"]:
            write_whole(path.with_name(PAGE), timeline_figure(timeline).to_html())
            pages.append(path.with_name(PAGE))
    return pages
