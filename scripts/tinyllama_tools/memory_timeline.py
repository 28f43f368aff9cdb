"""Draws memory_timeline.json of tiny_llama_train as a page: live memory over the recorded steps."""

from __future__ import annotations

import json
from pathlib import Path

import plotly.graph_objects as go

from tinyllama_tools.core.app import Json, write_whole

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
