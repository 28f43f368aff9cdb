"""A folder of profiles: read and checked, and as a report, as a comparison and as a timeline."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import plotly.graph_objects as go

from tinyllama_tools.core.app import (
    BadInputError,
    Json,
    read_json,
    schema_problem,
    shown_path,
    write_whole,
)
from tinyllama_tools.core.text import cell, markdown_table, template
from tinyllama_tools.data.profiles import (
    SAME_WORK,
    BadProfileError,
    group_shares,
    median,
    read_profile,
    step_times,
    value_at,
    work_of,
)
from tinyllama_tools.models.bottlenecks import HIGH_IMPACT, QUADRANTS, rank_bottlenecks
from tinyllama_tools.models.roofline import POSITIONS, roofline_position

if TYPE_CHECKING:
    from tinyllama_tools.models.ablations import Evidence

TEMPLATES = Path(__file__).parent / "templates"
REPORT = "performance_summary_report.md"
RUNS_FILE, RUNS_VERSION = "profile_runs.json", 1
BASELINE, OPERATORS, MEMORY, FLOPS = "baseline", "operators", "memory", "flops"
SECTIONS = (OPERATORS, MEMORY, FLOPS)


class Profiling(NamedTuple):
    """A run of scripts/profile: what it is called, its folder in the whole, and the program's
    options for it."""

    title: str
    folder: str
    flags: tuple[str, ...] = ()

    @property
    def log_folder(self) -> str:
        """The FLOPS profiler makes flops_analysis/ itself, so that its files lie where people
        look."""
        return "flops_analysis" if self.folder == "." else self.folder


PROFILINGS = {
    BASELINE: Profiling("plain run", "baseline_training"),
    OPERATORS: Profiling(
        *("operator profiler", "pytorch_profiling"),
        ("--enable-pytorch-profiler", "--profile-operators"),
    ),
    MEMORY: Profiling("memory profiler", "memory_analysis", ("--profile-memory",)),
    FLOPS: Profiling("FLOPS profiler", ".", ("--enable-deepspeed-flops",)),
}
_RUN = {"name": {"enum": list(PROFILINGS)}, "notes": {"type": "array"}}
_ITEM = {"type": "object", "required": [*_RUN, "exit_status", "seconds"], "properties": _RUN}
_RUNS = {"required": ["runs"], "properties": {"runs": {"type": "array", "items": _ITEM}}}


def say(line: str) -> None:
    """Progress, a line a step."""
    print(line, file=sys.stderr, flush=True)


# Figures as reports and worksheets show them.


def digits(value: float) -> str:
    """Four of them where it is not whole; thousands apart."""
    if not math.isfinite(value):
        return str(value)
    whole = value == int(value) or abs(value) >= 10_000
    return f"{value:,.0f}" if whole else f"{value:.4g}"


def shown(value: float | str | None, unit: str = "") -> str:
    """In `unit`: ms of seconds, MB and MiB (2^20) of bytes, %, x, FLOP/s, or any other's name."""
    if value is None:
        return "not measured"
    if isinstance(value, str):
        return cell(value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit in ("MB", "MiB"):
        amount = value / 2**20
        is_small = 0 < abs(amount) < 0.1
        return f"{value:,.0f} bytes" if is_small else f"{amount:,.1f} {unit}"
    if unit == "ms":
        return f"{digits(1000 * value)} ms"
    formats = {"%": ".1f", "x": ".2f", "FLOP/s": ".3e"}
    if unit in formats:
        return f"{value:,{formats[unit]}}{'' if unit == 'x' else ' '}{unit}"
    return f"{digits(value)} {unit}".rstrip()


Figure = tuple[str, Any, str]
Column = tuple[str, str | int, str]


def _held(row: Any, key: str | int, rank: int) -> Any:  # noqa: ANN401
    if key == "#":
        return rank
    found = row
    for part in str(key).split("."):
        if isinstance(found, dict):
            found = found.get(part)
        elif part.isdecimal():
            found = found[int(part)] if found and int(part) < len(found) else None
        else:
            found = getattr(found, part, None)
    return found


def figures(document: Json, rows: Iterable[Figure]) -> str:
    """A table of label, key (or the value itself where it is no text) and unit."""
    cells = [
        (label, shown(_held(document, at, 0) if isinstance(at, str) else at, unit))
        for label, at, unit in rows
    ]
    return "\n".join(markdown_table(("figure", "measured"), cells))


def listing(rows: Iterable[Any], columns: Sequence[Column]) -> str:
    """A table with a line a row; columns of heading, key, name or index ("#": the rank), unit."""
    cells = [
        [shown(_held(row, key, rank), unit) for _, key, unit in columns]
        for rank, row in enumerate(rows, start=1)
    ]
    return "\n".join(markdown_table([heading for heading, _, _ in columns], cells))


HELPERS: dict[str, Callable[..., Any]] = {"shown": shown, "figures": figures, "listing": listing}


# A folder of profiles.


@dataclass(frozen=True)
class ProfileSet:
    """Summaries of one configuration by what was on; a single run's can serve several.

    `runs`: profile_runs.json, None for the folder of a single run.
    """

    folder: Path
    profiles: Mapping[str, Json]
    runs: Json | None = None

    @property
    def plain(self) -> Json:
        """The summary of the run without profilers where there is one."""
        return next(iter(self.profiles.values()))

    def merged(self) -> Json:
        """One performance_summary.json: the plain run's, with each profiler's section in it."""
        own = {name: self.profiles.get(name, {}).get(name) for name in SECTIONS}
        return self.plain | own


def read_profile_set(folder: Path) -> ProfileSet:
    """All profiles below a folder; BadProfileError where one is missing or damaged.

    A run that failed before its profiler's steps is in `runs` only.
    """
    path = folder / RUNS_FILE
    if not path.exists() and not (folder / PROFILINGS[BASELINE].folder).exists():
        summary = read_profile(folder)
        on = [name for name in SECTIONS if summary.get(name)]
        return ProfileSet(folder, dict.fromkeys(on or [BASELINE], summary))
    try:
        runs, _ = read_json(path)
    except BadInputError as error:
        raise BadProfileError(str(error)) from error
    problem = schema_problem(runs, _RUNS)
    if problem:
        raise BadProfileError(f"{path}: no list of runs of scripts/profile: {problem}")
    profiles = {}
    for run in runs["runs"]:
        name = run["name"]
        place = folder / PROFILINGS[name].folder
        summary = read_profile(place)
        if name == BASELINE or summary.get(name):
            profiles[name] = summary
        elif not run["exit_status"]:
            what = f"its summary has no '{name}' section; profile again"
            raise BadProfileError(f"{place}: {what}")
    if not profiles:
        raise BadProfileError(f"{path}: no run came to its end; profile again")
    return ProfileSet(folder, profiles, runs)


class OperatorShare(NamedTuple):
    """An operator in one step: `share_percent` of the recorded work, `cpu_percent` of the host's.

    `seconds`: of its own on the device that shares are of (the CPU where there is no other).
    `kept_bytes`: stay allocated after it.
    """

    name: str
    share_percent: float
    cpu_percent: float
    cpu_seconds: float
    cpu_total_seconds: float
    device_seconds: float | None
    calls: float
    kept_bytes: float

    @property
    def seconds(self) -> float:
        return self.cpu_seconds if self.device_seconds is None else self.device_seconds


OPERATOR_SUMS = (
    *("cpu_self_seconds", "cpu_total_seconds", "device_self_seconds"),
    *("calls", "self_memory_bytes"),
)


def operator_shares(operators: Json) -> list[OperatorShare]:
    """All operators, largest share first, per recorded step.

    The file's rows of one name, which shapes or stacks tell apart, become one.
    """
    steps, named = operators["steps"], {}
    for row in operators["table"]:
        named.setdefault(row["name"], []).append(row)
    host = sum(row["cpu_self_seconds"] for row in operators["table"]) / steps
    found = []
    for name, rows in named.items():
        share = sum(row["share_percent"] for row in rows)
        own, total, device, calls, kept = (
            sum(row[key] or 0 for row in rows) / steps for key in OPERATOR_SUMS
        )
        on_device = device if rows[0]["device_self_seconds"] is not None else None
        of_host = 100 * own / host if host else 0.0
        found.append(OperatorShare(name, share, of_host, own, total, on_device, calls, kept))
    return sorted(found, key=lambda row: -row.share_percent)


# What profilers cost.


def _above(value: float | None, plain: float | None) -> float | None:
    return 100 * (value / plain - 1) if value is not None and plain else None


def profiler_overheads(profiles: ProfileSet) -> list[tuple[Any, ...]]:
    """Of each profiler that was on: title, medians of a plain and of a profiled step, percent of
    the second above the first, percent of the plain steps above the run without profilers (the
    rest of a run can be slower too), and seconds of the whole run. None is what its run cannot say.
    """
    baseline = profiles.profiles.get(BASELINE)
    unprofiled = median(step_times(baseline, profiled=False))
    seconds = {run["name"]: run["seconds"] for run in (profiles.runs or {}).get("runs", [])}
    rows = []
    for name in SECTIONS:
        summary = profiles.profiles.get(name)
        if summary is None:
            continue
        means = summary["summary"]
        plain, touched = (median(step_times(summary, profiled=on)) for on in (False, True))
        # what the program itself says can tell the steps of several profilers in one run apart
        kind = {OPERATORS: "operator"}.get(name, name)
        if sum(other is summary for other in profiles.profiles.values()) > 1:
            touched = means.get(f"{kind}_profiled_average_step_seconds")
        own = means.get(f"{kind}_profiling_overhead_percent", _above(touched, plain))
        above = _above(plain, unprofiled)
        rows.append((PROFILINGS[name].title, plain, touched, own, above, seconds.get(name)))
    return rows


def report_text(profiles: ProfileSet, top: int, ablation: Evidence | None, remark: str = "") -> str:
    """What REPORT holds. `remark`: of the report itself."""
    merged, runs = profiles.merged(), profiles.runs
    operators = merged["operators"]
    listed = (runs or {}).get("runs", [])
    ran = {run["name"] for run in listed}
    notes = [remark] if remark else []
    notes += [f"{PROFILINGS[run['name']].title}: {note}" for run in listed for note in run["notes"]]
    notes += [
        f"{PROFILINGS[name].title}: {'ended before its steps' if name in ran else 'did not run'}"
        for name in PROFILINGS
        if runs and name not in profiles.profiles
    ]
    folder, own = profiles.folder, profiles.profiles.items()
    files = {folder / PROFILINGS[name].folder if runs else folder: of["files"] for name, of in own}
    readings = value_at(merged, "device_sampling.readings") or {}
    page = template(TEMPLATES / "profile_report.md.j2").render(
        HELPERS,
        plain=profiles.plain,
        merged=merged,
        top=top,
        is_profiled=BASELINE not in profiles.profiles,
        place=shown_path(profiles.folder),
        runs=runs,
        notes=notes,
        readings={name: found for name, found in readings.items() if found},
        overheads=profiler_overheads(profiles),
        shares=operator_shares(operators) if operators else [],
        shapes=sorted(
            (row for row in (operators or {}).get("table", []) if row.get("input_shapes")),
            key=lambda row: -row["share_percent"],
        ),
        breakdown=[
            {"name": name.replace("_", " "), **part}
            for name, part in (value_at(merged, "summary.breakdown") or {}).items()
            if part
        ],
        parts=group_shares(operators["components"]) if operators else {},
        ranking=rank_bottlenecks(merged, ablation),
        ablation=ablation,
        ablation_file=shown_path(ablation.file) if ablation else "",
        high_impact=HIGH_IMPACT,
        quadrants=QUADRANTS,
        position=roofline_position(merged["flops"]),
        positions=POSITIONS,
        files=[(shown_path(place), ", ".join(names)) for place, names in files.items()],
    )
    return page.rstrip() + "\n"


# Two profiles side by side.

Side = Mapping[str, Sequence[Any]]


def paired(a: Side, b: Side) -> list[list[Any]]:
    """Rows of name -> (seconds, percent, ...) of either, the largest change of time first: name,
    seconds and percent of both, seconds saved by B, A / B, and the rest of both."""
    rows = []
    for name in dict.fromkeys([*a, *b]):
        absent = ["absent"] * len(a.get(name) or b[name])
        left, right = list(a.get(name, absent)), list(b.get(name, absent))
        before, after = (side[name][0] if name in side else 0.0 for side in (a, b))
        ratio = before / after if before and after else None
        both = [*left[:2], *right[:2]]
        rows.append([name, *both, before - after, ratio, *left[2:], *right[2:]])
    return sorted(rows, key=lambda row: -abs(row[5]))


def operator_sides(operators: Json) -> Side:
    """Own seconds, percent and calls by operator."""
    return {
        row.name: (row.seconds, row.share_percent, row.calls) for row in operator_shares(operators)
    }


def component_sides(operators: Json) -> Side:
    """Seconds, forward and backward together, and percent by component."""
    return {
        row["name"]: (
            (row.get("forward_seconds") or 0.0) + (row.get("backward_seconds") or 0.0),
            row["percent"],
        )
        for row in operators["components"]
    }


# Label, keys of which the first that holds a value counts, unit.
COMPARED = (
    ("step", ("summary.plain_average_step_seconds", "summary.average_step_seconds"), "ms"),
    ("forward", ("summary.average_forward_seconds",), "ms"),
    ("backward", ("summary.average_backward_seconds",), "ms"),
    ("optimizer", ("summary.average_optimizer_seconds",), "ms"),
    ("peak memory", ("summary.peak_memory_bytes",), "MiB"),
    ("operators a step", ("operators.operator_calls_per_step",), ""),
    ("kernels a step", ("operators.kernels_per_step",), ""),
)
SAME_DEVICE = ("device.name", "device.backend", "threads")


def comparison_text(a: ProfileSet, b: ProfileSet) -> str:
    """The page of two profiles."""
    sides = [a.merged(), b.merged()]
    conditions = [
        work_of(side) | {key: value_at(side["context"], key) for key in SAME_DEVICE}
        for side in sides
    ]
    rows = []
    for label, names, unit in COMPARED:
        found = [next((v for n in names if (v := value_at(s, n))), None) for s in sides]
        ratio = found[0] / found[1] if all(found) else None
        rows.append((label, *(shown(value, unit) for value in found), shown(ratio, "x")))
    first, second = (side["operators"] for side in sides)
    has_both = first and second
    page = template(TEMPLATES / "profile_comparison.md.j2").render(
        HELPERS,
        places=[shown_path(profiles.folder) for profiles in (a, b)],
        sides=sides,
        different=[
            (key, *found)
            for key in (*SAME_WORK, *SAME_DEVICE)
            if (found := [side[key] for side in conditions])[0] != found[1]
        ],
        rows=rows,
        components=paired(*map(component_sides, (first, second))) if has_both else None,
        operators=paired(*map(operator_sides, (first, second))) if has_both else None,
        missing=[name for name, found in (("A", first), ("B", second)) if not found],
    )
    return page.rstrip() + "\n"


# The memory timeline as a page.

TIMELINE, PAGE = "memory_timeline.json", "memory_timeline.html"
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
    live = [live_bytes / 2**20 for _, live_bytes, *_ in events]
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
        label = {"annotation_text": f"step {step}", "annotation_position": "top right"}
        figure.add_vline(x=(begin - start) * 1e3, line={"dash": "dot", "width": 1}, **label)
    curve = {"shape": "hv", "color": "#12395c"}
    figure.add_scatter(
        x=times, y=live, text=places, line=curve, fill="tozeroy", name="live tensors"
    )
    peak = max(range(len(live)), key=live.__getitem__)
    text = f"peak {live[peak]:.2f} MiB: {places[peak]}"
    dot = {"size": 10, "color": "#a01818"}
    figure.add_scatter(x=[times[peak]], y=[live[peak]], mode="markers", marker=dot, name=text)
    figure.update_layout(
        title=f"Memory of live tensors, steps {timeline['first_step']} to {timeline['last_step']}",
        xaxis_title="time (ms)",
        yaxis_title="live tensors (MiB)",
        plot_bgcolor="white",
    )
    return figure


def draw_timelines(folder: Path) -> list[Path]:
    """A page beside each timeline in the folder and its own; none where nothing was allocated.

    BadProfileError for a file that is none."""
    pages = []
    for path in (*folder.glob(TIMELINE), *sorted(folder.glob(f"*/{TIMELINE}"))):
        try:
            timeline, _ = read_json(path)
            page = timeline_figure(timeline).to_html() if timeline["events"] else ""
        except BadInputError as error:
            raise BadProfileError(str(error)) from error
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            what = f"is no memory timeline of tiny_llama_train: {error!r}"
            raise BadProfileError(f"{path}: {what}; profile again") from error
        if page:
            write_whole(path.with_name(PAGE), page)
            pages.append(path.with_name(PAGE))
    return pages
