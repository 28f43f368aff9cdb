"""The trace and the memory timeline of tiny_llama_train, opened in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from built_programs import built_program
from chromium import OpenPage, PageOpener, served
from tinyllama_tools.commands.profile_report import draw_timelines
from tinyllama_tools.core.app import Json

# fmt: off
OPTIONS = [
    "--device=cpu", "--threads=1", "--hidden-dim=32", "--n-layers=1", "--n-heads=2",
    "--n-kv-heads=1", "--intermediate-dim=48", "--vocab-size=64", "--batch-size=2", "--seq-len=8",
    "--num-steps=8", "--enable-pytorch-profiler", "--profile-steps=3", "--profile-memory",
]
# fmt: on
TRACE = "trace_step_5_8.json"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run's files and the page that draws its trace."""
    program = built_program("benchmarks/tiny_llama_train")
    folder = tmp_path_factory.mktemp("site")
    command = [str(program), *OPTIONS, f"--profile-dir={folder}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    shutil.copy(Path(__file__).with_name("trace_viewer.html"), folder)
    return folder


def show_trace(open_page: PageOpener, folder: Path, name: str) -> tuple[OpenPage, Json]:
    """Opened, and what it counted; empty where it could not."""
    with served(folder) as address:
        opened = open_page(f"{address}/trace_viewer.html?trace={name}")
        opened.page.wait_for_load_state("networkidle")
    return opened, json.loads("".join(opened.texts("#counts")) or "{}")


def test_the_trace_opens_without_an_error(site: Path, open_page: PageOpener) -> None:
    page, counts = show_trace(open_page, site, TRACE)
    assert page.said == []
    events = json.loads((site / TRACE).read_text(encoding="utf-8"))["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert counts["events"] == len(events)
    assert counts["complete"] == counts["drawn"] == len(complete) > 0
    assert counts["negative"] == 0
    assert counts["rows"] == len({(event["pid"], event["tid"]) for event in complete})
    # operators lie in the ranges of components, and those in steps; none ends outside its range
    assert counts["overlapping"] == 0
    assert counts["nested"] > 0.9 * len(complete)
    assert page.document.count("<rect ") == len(complete)


def test_a_damaged_trace_and_an_event_that_ends_before_it_begins_are_told(
    site: Path, open_page: PageOpener
) -> None:
    text = (site / TRACE).read_text(encoding="utf-8")
    (site / "half.json").write_text(text[: len(text) // 2], encoding="utf-8")
    assert show_trace(open_page, site, "half.json")[0].said
    trace = json.loads(text)
    next(event for event in trace["traceEvents"] if event["ph"] == "X")["dur"] = -1
    (site / "negative.json").write_text(json.dumps(trace), encoding="utf-8")
    assert show_trace(open_page, site, "negative.json")[1]["negative"] == 1


def test_the_memory_timeline_is_drawn_with_its_phases_and_peak(
    site: Path, open_page: PageOpener
) -> None:
    assert draw_timelines(site) == [site / "memory_timeline.html"]
    summary = json.loads((site / "performance_summary.json").read_text(encoding="utf-8"))
    memory = summary["memory"]
    page = open_page(site / "memory_timeline.html")
    page.page.wait_for_selector(".trace.scatter", state="attached")
    assert page.said == []
    peak = f"peak {memory['peak_bytes'] / 2**20:.2f} MiB: {memory['peak_component']}"
    for text in (peak, "steps 2 to 4", ">step 3<", ">forward<", ">optimizer<", "time (ms)"):
        assert text in page.document, text
    assert page.document.count('class="trace scatter') >= 2
