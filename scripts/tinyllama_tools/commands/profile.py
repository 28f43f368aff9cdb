"""scripts/profile: runs the training program with one profiler after the other and reports; also
reports on saved profiles and compares two. scripts/exercise makes its runs here as well."""

import argparse
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tinyllama_tools.commands.worksheet import page_of, ratio, shown
from tinyllama_tools.core.app import (
    INTERRUPTED,
    REFUSED_OPTIONS,
    Json,
    command_text,
    made_by,
    problem_sizes,
    read_json,
    run_folder,
    shown_path,
    write_whole,
)
from tinyllama_tools.core.installation import RESULTS, typed
from tinyllama_tools.core.options import (
    DTYPES,
    add_build_folder,
    add_plugin,
    plugin_options,
    positive,
    script_parser,
)
from tinyllama_tools.core.process import program_in
from tinyllama_tools.core.text import say
from tinyllama_tools.data.machine import PLUGINS, SAME_DEVICE, plugin_texts, plugins_text
from tinyllama_tools.data.profiles import (
    INTERRUPTED_REASON,
    SAME_WORK,
    SUMMARY,
    MeasuredRun,
    merged,
    operator_shares,
    read_profile,
    was_interrupted,
    work_of,
)
from tinyllama_tools.data.programs import TrainingError, TrainingProgram, command_line
from tinyllama_tools.models.bottlenecks import PRIORITIES, rank_bottlenecks
from tinyllama_tools.models.step_ratios import Evidence, find_ablation

# Options that tiny_llama_train is given as they are; without batch or sequence it takes the size's.
PASSED_ON = ("size", "batch_size", "seq_len", "num_steps", "dtype", "variant", "device", "threads")
DEFAULT_STEPS = 30
REPORT = "performance_summary_report.md"
ABOUT = """\
Runs tiny_llama_train four times: without profilers (DIR/baseline_training), with the operator
profiler (DIR/pytorch_profiling), the memory profiler (DIR/memory_analysis) and the FLOPS profiler
(DIR/flops_analysis), and writes DIR/performance_summary_report.md. Progress goes to standard error,
the report's path to standard output."""
EPILOG = """\
Speedups of the newest scripts/ablation in results/ of this device and shape stand beside the
expected ones.

Exit status: 0 done; 1 a run failed, or its loss was not finite; 2 bad option, missing or damaged
profile, unwritable folder; 130 interrupted: the report has what was measured so far."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; a bad one ends the command with status 2."""
    parser = script_parser("profile", ABOUT, EPILOG)
    add, same = parser.add_argument, "as in tiny_llama_train"
    add("--size", choices=sorted(problem_sizes()), help="default: tiny, in its own shape")
    for name in ("--batch-size", "--seq-len", "--threads"):
        add(name, type=positive, metavar="N", help=same)
    add("--num-steps", type=positive, metavar="N", help=f"default: {DEFAULT_STEPS}")
    add("--dtype", choices=DTYPES, help=same)
    for name in ("--variant", "--device"):
        add(name, help=same)
    add_plugin(parser)
    add_build_folder(parser)
    add("--top", type=positive, default=10, help="operators in the report's table; default: 10")
    add("--generate-report", action="store_true", help="write that report instead of printing it")
    add("--output-dir", type=Path, help="where; default: the folder of the profiles")
    one_of = parser.add_mutually_exclusive_group().add_argument
    one_of("--profile-dir", type=Path, metavar="DIR", help="default: results/<UTC time>_profile")
    existing = "report on saved profiles: a folder of this script, or one of tiny_llama_train"
    one_of("--analyze-existing", type=Path, metavar="DIR", help=existing)
    side = "two saved profiles side by side"
    one_of("--compare", type=Path, nargs=2, metavar=("A", "B"), help=side)
    options = parser.parse_args(arguments)
    refused = (*PASSED_ON, "plugin") if options.compare or options.analyze_existing else ()
    refused += () if options.generate_report else ("output_dir",)
    refused += () if options.analyze_existing else ("generate_report", "output_dir")
    for name in refused:
        if getattr(options, name) not in (None, False, []):
            flag = f"--{name.replace('_', '-')}"
            parser.error(f"{flag}: has no meaning with the other options; leave it out")
    return options


def program_options(options: argparse.Namespace) -> tuple[str, ...]:
    """The options that tiny_llama_train is given."""
    given = {name: getattr(options, name) for name in PASSED_ON}
    given["num_steps"] = given["num_steps"] or DEFAULT_STEPS
    named = (
        f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None
    )
    return (*named, *plugin_options(options))


# ---- runs of the program

LOG = "training_output.log"
# `warning: ...`, `error: ...`, and libtorch's own `[W1122 10:20:30 file.cpp:1] ...`
WARNING = re.compile(r"(?i:\b(warning|error):)|^\[[WE]\d+ ")
MOST_NOTES = 10
# The folder of each run, and the program's options for it. The FLOPS profiler makes
# flops_analysis/ itself: in ".", its files lie where the workshop's reader looks.
PROFILINGS = {
    "baseline_training": (),
    "pytorch_profiling": ("--enable-pytorch-profiler", "--profile-operators"),
    "memory_analysis": ("--profile-memory",),
    ".": ("--enable-deepspeed-flops",),
}
# name of a run -> options of the program
Plan = Mapping[str, Sequence[str]]
# batch, sequence, steps, and further options
Shape = tuple[int | str, ...]


def shaped(size: str, shapes: Mapping[str, Shape]) -> Plan:
    """The plan of runs of a model of this size."""
    return {
        name: (f"--batch-size={b}", f"--seq-len={s}", f"--num-steps={n}", f"--size={size}", *more)
        for name, (b, s, n, *more) in shapes.items()
    }


def warnings_in(output: str) -> list[str]:
    """Different lines that warn or report an error, at most MOST_NOTES."""
    lines = [line.strip() for line in output.splitlines() if WARNING.search(line.strip())]
    return list(dict.fromkeys(lines))[:MOST_NOTES]


def measure_all(
    planned: Plan, program: TrainingProgram, folder: Path, page_folder: Path
) -> dict[str, MeasuredRun]:
    """Makes every run, its files in `folder`/name; links are relative to `page_folder`. A run that
    fails has its reason; Ctrl-C leaves out the runs that follow. Summaries that an earlier call
    left in these folders are removed as soon as a run was measured.

    TrainingError where the program refuses its options before anything was measured.
    """
    runs = {
        name: MeasuredRun(
            name, command_line([*program.arguments, *given]), reason=INTERRUPTED_REASON
        )
        for name, given in planned.items()
    }
    is_measured = False
    for number, (name, planned_run) in enumerate(list(runs.items()), start=1):
        say(f"run {number} of {len(runs)}: {planned_run.command}")
        target = folder / name
        try:
            done = program.run(planned[name], target)
            target.mkdir(parents=True, exist_ok=True)
            write_whole(target / LOG, done.output)
            draw_timelines(target)
        except KeyboardInterrupt:
            break
        except TrainingError as error:
            if error.exit_status == REFUSED_OPTIONS and not is_measured:
                raise
            # the program's last words may be several lines
            runs[name] = replace(planned_run, reason=" ".join(str(error).split()), exit_status=1)
        else:
            notes = warnings_in(done.output)
            if done.exit_status:
                notes.append(f"exit status {done.exit_status}: the loss was not finite")
            runs[name] = replace(
                done,
                name=name,
                command=planned_run.command,
                reason="" if done.summary else f"no {SUMMARY} was written",
                link=Path(os.path.relpath(target, page_folder)).as_posix(),
                notes=notes,
            )
        if runs[name].summary and not is_measured:
            is_measured = True
            # an earlier call's would be taken for this one's
            for other in planned.keys() - {name}:
                (folder / other / SUMMARY).unlink(missing_ok=True)
        if runs[name].reason:
            say(f"   not measured: {runs[name].reason}")
    return runs


def read_profiles(folder: Path) -> Json:
    """The merged summary of a folder of scripts/profile, or that of a single run's; BadInputError
    where there is none, or one is damaged."""
    places = [folder / name for name in PROFILINGS]
    found = [read_profile(place) for place in places if (place / SUMMARY).exists()]
    return merged(found or [read_profile(folder)])


TIMELINE, PAGE = "memory_timeline.json", "memory_timeline.html"
# of different lightness, so that they differ in black and white too
PHASE_COLOURS = {
    "data_loading": "#d9d2c0",
    "forward": "#eef4fb",
    "backward": "#cfdcec",
    "optimizer": "#f6e3c5",
    "evaluation": "#dcecd9",
    "other": "#ffffff",
}


def timeline_figure(timeline: Json) -> go.Figure:
    """The curve of live bytes over bands of the phases, with its peak marked."""
    events, phases = timeline["events"], timeline["phases"]
    start = min([events[0][0], *(phase["begin_seconds"] for phase in phases)])
    times = [(seconds - start) * 1e3 for seconds, *_ in events]
    live = [live_bytes / 2**20 for _, live_bytes, *_ in events]
    places = [f"{component}, {phase.replace('_', ' ')}" for *_, phase, component in events]
    figure = go.Figure()
    known: set[str | int] = set()
    for phase in phases:
        begin, end = ((phase[f"{k}_seconds"] - start) * 1e3 for k in ("begin", "end"))
        name, step = phase["phase"], phase["step"]
        how = {"fillcolor": PHASE_COLOURS[name], "line_width": 0, "layer": "below"}
        legend = {"name": name.replace("_", " "), "showlegend": name not in known}
        figure.add_vrect(x0=begin, x1=end, **how, **legend)
        if step not in known:
            line = {"line": {"dash": "dot", "width": 1}, "annotation_position": "top right"}
            figure.add_vline(x=begin, annotation_text=f"step {step}", **line)
        known |= {name, step}
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
    """Writes a page beside each timeline in the folder and its subfolders, unless it recorded no
    allocation. BadInputError for a file that is no timeline."""
    pages = []
    for path in (*folder.glob(TIMELINE), *sorted(folder.glob(f"*/{TIMELINE}"))):
        with made_by("tiny_llama_train --profile-memory", path):
            timeline, _ = read_json(path)
            page = timeline_figure(timeline).to_html() if timeline["events"] else ""
        if page:
            write_whole(path.with_name(PAGE), page)
            pages.append(path.with_name(PAGE))
    return pages


# ---- pages


def report_text(
    summary: Json,
    folder: Path,
    top: int,
    ablation: Evidence | None,
    runs: Iterable[MeasuredRun] = (),
    command: str = "",
) -> str:
    """The text of REPORT for the summary of a folder of profiles. `runs`: those that `command` made
    for it; none where the summary was read from files."""
    return page_of(
        "profile_report.md.j2",
        summary=summary,
        run=MeasuredRun(summary=summary),
        plugins=plugin_texts(summary["context"]),
        top=top,
        place=shown_path(folder),
        runs=list(runs),
        command=command,
        ranking=rank_bottlenecks(summary, ablation),
        ablation=ablation,
        **PRIORITIES,
    )


Seconds = Mapping[str, float]


def paired(a: Seconds, b: Seconds) -> list[list[Any]]:
    """Rows of name, seconds in A, in B, seconds that B saves, and A / B; the largest change
    first."""
    rows = [
        [
            name,
            *(side.get(name, "absent") for side in (a, b)),
            a.get(name, 0.0) - b.get(name, 0.0),
            ratio(a.get(name) or None, b.get(name)),
        ]
        for name in {**a, **b}
    ]
    return sorted(rows, key=lambda row: -abs(row[3]))


def operator_seconds(operators: Json) -> Seconds:
    """Each operator's own time, on the device that the percentages refer to."""
    clock = "device" if operators["device_time"] == "gpu" else "cpu"
    return {row["name"]: row[f"{clock}_self_seconds"] or 0.0 for row in operator_shares(operators)}


def component_seconds(operators: Json) -> Seconds:
    """Each component's time, forward and backward together."""
    return {
        row["name"]: (row.get("forward_seconds") or 0.0) + (row.get("backward_seconds") or 0.0)
        for row in operators["components"]
    }


# rows of the comparison below that of the step
COMPARED = (
    ("forward", "summary.average_forward_seconds", "ms"),
    ("backward", "summary.average_backward_seconds", "ms"),
    ("optimizer", "summary.average_optimizer_seconds", "ms"),
    ("peak memory", "summary.peak_memory_bytes", "MiB"),
    ("operators a step", "operators.operator_calls_per_step", ""),
    ("kernels a step", "operators.kernels_per_step", ""),
)
SAME_MACHINE = (*SAME_DEVICE, "torch_version")


def comparison_text(a: Path, b: Path) -> str:
    """The page that compares two folders of profiles."""
    sides = [MeasuredRun(summary=read_profiles(folder)) for folder in (a, b)]
    conditions = [
        work_of(side.summary)
        | {key: side(f"context.{key}") for key in SAME_MACHINE}
        | {PLUGINS: plugins_text(side.summary["context"])}
        for side in sides
    ]
    values = [("step", [side.step_seconds for side in sides], "ms")]
    values += [(label, [side(key) for side in sides], unit) for label, key, unit in COMPARED]
    rows = [
        (label, *(shown(value, unit) for value in found), shown(ratio(*found), "x"))
        for label, found, unit in values
    ]
    both = [side("operators") for side in sides]
    return page_of(
        "profile_comparison.md.j2",
        places=[shown_path(folder) for folder in (a, b)],
        sides=sides,
        different=[
            (key, *found)
            for key in (*SAME_WORK, *SAME_MACHINE, PLUGINS)
            if (found := [side.get(key) for side in conditions])[0] != found[1]
        ],
        rows=rows,
        components=paired(*map(component_seconds, both)) if all(both) else None,
        operators=paired(*map(operator_seconds, both)) if all(both) else None,
        missing=[name for name, found in zip("AB", both, strict=True) if not found],
    )


def analyze(options: argparse.Namespace, results: Path) -> int:
    """Reports on saved profiles, on standard output or with --generate-report in a file."""
    folder = options.analyze_existing
    summary = read_profiles(folder)
    text = report_text(summary, folder, options.top, find_ablation(summary, results))
    if not options.generate_report:
        print(text, end="")
        return 0
    draw_timelines(folder)
    place = options.output_dir or folder
    place.mkdir(parents=True, exist_ok=True)
    write_whole(place / REPORT, text)
    print(place / REPORT)
    return 0


def measure(
    options: argparse.Namespace, command: str, program: TrainingProgram, results: Path
) -> int:
    """Makes the four runs and writes their report, after an error or Ctrl-C of the runs so far."""
    folder = options.profile_dir or run_folder("profile", results)
    given = program_options(options)
    planned = {name: (*given, *flags) for name, flags in PROFILINGS.items()}
    runs = measure_all(planned, program, folder, folder)
    if found := [run.summary for run in runs.values() if run.summary]:
        summary = merged(found)
        evidence = find_ablation(summary, results)
        text = report_text(summary, folder, options.top, evidence, runs.values(), command)
        write_whole(folder / REPORT, text)
        print(folder / REPORT)
    if was_interrupted(runs):
        return INTERRUPTED
    return int(not all(run.is_complete for run in runs.values()))


def main(
    arguments: Sequence[str], program: TrainingProgram | None = None, results: Path = RESULTS
) -> int:
    """The exit status. Tests replace `program` and `results`."""
    options = parse_options(arguments)
    if options.compare:
        print(comparison_text(*options.compare), end="")
        return 0
    if options.analyze_existing:
        return analyze(options, results)
    used = program or TrainingProgram(program_in(options.build_folder, "tiny_llama_train"))
    return measure(options, command_text([*typed("profile").split(), *arguments]), used, results)
