"""Runs of the training program in turn, as scripts/profile and scripts/exercise make them: what
each left behind, and its memory timeline as a page."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tinyllama_tools.core.app import REFUSED_OPTIONS, BadInputError, Json, read_json, write_whole
from tinyllama_tools.data.profiles import (
    SUMMARY,
    TIMELINE,
    TIMELINE_PAGE,
    BadProfileError,
    median,
    merged,
    read_profile,
    step_times,
    value_at,
)
from tinyllama_tools.data.programs import TrainingError, TrainingProgram, command_line

INTERRUPTED_REASON = "interrupted"
LOG = "training_output.log"
# `warning: ...`, `error: ...`, and libtorch's own `[W1122 10:20:30 file.cpp:1] ...`
WARNING = re.compile(r"(?i:\b(warning|error):)|^\[[WE]\d+ ")
MOST_NOTES = 10
# Of scripts/profile: the folder of each run in the whole, and the program's options for it. The
# FLOPS profiler makes flops_analysis/ itself, so that its files lie where people look.
PROFILINGS = {
    "baseline_training": (),
    "pytorch_profiling": ("--enable-pytorch-profiler", "--profile-operators"),
    "memory_analysis": ("--profile-memory",),
    ".": ("--enable-deepspeed-flops",),
}
# name of a run -> options of the program
Plan = Mapping[str, Sequence[str]]


def say(line: str) -> None:
    """Progress, a line a step."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class MeasuredRun:
    """What a run left behind; called with a dotted key it gives the summary's value, or None.

    `summary`: None where nothing was measured, for this `reason`. `seconds`: of the process.
    `notes`: warnings that it printed. `link`: its folder as the page refers to it.
    """

    name: str
    command: str
    summary: Json | None = None
    exit_status: int = 0
    reason: str = ""
    link: str = ""
    seconds: float | None = None
    notes: Sequence[str] = ()

    def __call__(self, key: str) -> Any:  # noqa: ANN401
        return value_at(self.summary, key)

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended it, or came before it."""
        return self.reason == INTERRUPTED_REASON

    @property
    def is_complete(self) -> bool:
        """Whether every planned step was made and the loss stayed finite."""
        wanted, done = self("configuration.num_steps"), self("summary.steps_completed")
        return self.exit_status == 0 and done is not None and done == wanted

    @property
    def step_seconds(self) -> float | None:
        """Median of the steps that no profiler touched, without the first; of all where there is
        none."""
        plain = step_times(self.summary, profiled=False)
        return median(plain) or self("summary.median_step_seconds")

    @property
    def speed(self) -> float | None:
        """Samples a second, of the median step."""
        micro = self("configuration.gradient_accumulation_steps") or 1
        samples = (self("configuration.batch_size") or 0) * micro
        return samples / self.step_seconds if samples and self.step_seconds else None


Runs = Mapping[str, MeasuredRun]


def warnings_in(output: str) -> list[str]:
    """Lines that warn of something or report an error; at most MOST_NOTES, once each."""
    lines = [line.strip() for line in output.splitlines() if WARNING.search(line.strip())]
    return list(dict.fromkeys(lines))[:MOST_NOTES]


def measure_all(
    planned: Plan, program: TrainingProgram, folder: Path, page_folder: Path
) -> dict[str, MeasuredRun]:
    """Every run in turn, its files in `folder`/name; links are as seen from `page_folder`. What
    fails keeps its reason; Ctrl-C leaves the rest. Summaries of an earlier call in these folders
    stay until something is measured, and none longer.

    Raises TrainingError where the program refuses what it was given before anything was measured;
    earlier files are as they were then.
    """
    runs: dict[str, MeasuredRun] = {}
    is_measured = False
    for number, (name, given) in enumerate(planned.items(), start=1):
        command, target = command_line([*program.arguments, *given]), folder / name
        if was_interrupted(runs):
            runs[name] = MeasuredRun(name, command, reason=INTERRUPTED_REASON)
            continue
        say(f"run {number} of {len(planned)}: {command}")
        new_folders = [place for place in (target, *target.parents) if not place.exists()]
        target.mkdir(parents=True, exist_ok=True)
        # an earlier log stays where the run is refused or interrupted before anything is measured
        log = target / f"{LOG}.part"
        try:
            run = program.run(given, target, log=log)
            draw_timelines(target)
            notes = warnings_in(run.output)
            if run.exit_status:
                notes.append(f"exit status {run.exit_status}: the loss was not finite")
            reason = "" if run.summary else f"no {SUMMARY} was written"
            link = Path(os.path.relpath(target, page_folder)).as_posix()
            about = (run.summary, run.exit_status, reason, link, run.seconds, notes)
            found = MeasuredRun(name, command, *about)
        except KeyboardInterrupt:
            found = MeasuredRun(name, command, reason=INTERRUPTED_REASON)
        except TrainingError as error:
            if error.exit_status == REFUSED_OPTIONS and not is_measured:
                log.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # one that is not empty
                    for place in new_folders:
                        place.rmdir()
                raise
            # what the program said last may have many lines
            reason = " ".join(str(error).split())
            found = MeasuredRun(name, command, reason=reason, exit_status=1)
            if is_measured:
                (target / SUMMARY).unlink(missing_ok=True)
        is_new = is_measured or found.reason != INTERRUPTED_REASON or not (target / LOG).exists()
        if log.exists() and is_new:
            log.replace(target / LOG)
        runs[name] = found
        if found.summary and not is_measured:
            is_measured = True
            # those of an earlier call are not of this one
            for other in planned.keys() - {name}:
                (folder / other / SUMMARY).unlink(missing_ok=True)
        if found.reason:
            say(f"   not measured: {found.reason}")
    return runs


def was_interrupted(runs: Runs) -> bool:
    """Whether Ctrl-C ended the measuring."""
    return any(run.is_interrupted for run in runs.values())


def read_profiles(folder: Path) -> Json:
    """One summary of a folder of scripts/profile or of a single run; BadProfileError where there is
    none, or one is damaged."""
    places = [folder / name for name in PROFILINGS]
    found = [read_profile(place) for place in places if (place / SUMMARY).exists()]
    return merged(found or [read_profile(folder)])


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
    steps: set[int] = set()
    for phase in phases:
        begin, end = ((phase[f"{k}_seconds"] - start) * 1e3 for k in ("begin", "end"))
        colour = PHASE_COLOURS[phase["phase"]]
        figure.add_vrect(x0=begin, x1=end, fillcolor=colour, line_width=0, layer="below")
        if phase["step"] not in steps:
            line = {"line": {"dash": "dot", "width": 1}, "annotation_position": "top right"}
            figure.add_vline(x=begin, annotation_text=f"step {phase['step']}", **line)
            steps.add(phase["step"])
    # the legend of the bands
    for name in dict.fromkeys(phase["phase"] for phase in phases):
        square = {"symbol": "square", "size": 12, "color": PHASE_COLOURS[name], "line_width": 1}
        label = name.replace("_", " ")
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=square, name=label)
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
            write_whole(path.with_name(TIMELINE_PAGE), page)
            pages.append(path.with_name(TIMELINE_PAGE))
    return pages
