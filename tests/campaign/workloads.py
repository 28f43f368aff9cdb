"""Short runs of the programs, and what must hold of their files however such a run ended."""

import functools
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from built_programs import ON_CPU, SMALL_OPTIONS, environment, read_journal, read_json, tool
from built_programs import PROJECT_ROOT as PROJECT
from published import MEASURED
from tinyllama_tools.compare.history import read_store
from tinyllama_tools.core.app import BadInputError, write_whole
from tinyllama_tools.data.machine import SHARES

BUILD = PROJECT / "build/benchmarks"
FAILED, REFUSED, INTERRUPTED = 1, 2, 130

Made = TypeVar("Made")


def once(make: Callable[..., Made]) -> Callable[..., Made]:
    """A cached function; other threads wait for the first call."""
    lock, cached = threading.RLock(), functools.cache(make)

    @functools.wraps(make)
    def made(*arguments: object) -> Made:
        with lock:
            return cached(*arguments)

    return made


# what follows from the peaks, or from other rows, in the end
LATE = frozenset({*SHARES, "above_peak", "speedup", "speedup_low", "speedup_high"})
Rows = dict[str, list[dict[str, Any]]]


def file_problems(folder: Path) -> list[str]:
    """Which JSON files and pages of the folder are not whole, and why."""
    problems = []
    for path in sorted(path for path in folder.rglob("*.*") if path.is_file()):
        try:
            if path.suffix == ".json":
                read_json(path)
            elif path.suffix in {".html", ".md"}:
                text = path.read_text(encoding="utf-8")
                end = "</html>\n" if path.suffix == ".html" else "\n"
                if not text.endswith(end):
                    raise ValueError(f"it ends with {text[-20:]!r}")
        except ValueError as error:
            problems.append(f"{path.name} is not whole: {error}")
    return problems


def journal_rows(path: Path) -> Rows:
    """The journal's entries by case; a last line that was cut short is none. ValueError for a case
    that is there twice."""
    rows: Rows = {}
    for line in read_journal(path)[1:]:
        if line["case"] in rows:
            raise ValueError(f"{line['case']} is in the journal twice")
        rows[line["case"]] = line["entries"]
    return rows


@dataclass(frozen=True, eq=False)
class Workload:
    """A run of some seconds in a folder of its own, which a user repeats after it broke off.

    `wanted`: the file that it leaves where it ends well. `check`: what else does not hold of its
    files, once all JSON is whole; it gets the arguments of problems().
    """

    name: str
    wanted: str
    command: Callable[[Path], list[str]]
    check: Callable[[Path, bool, Rows], list[str]] = lambda *_: []

    def problems(self, folder: Path, is_finished: bool, before: Rows | None = None) -> list[str]:
        """What does not hold of the folder's files after a run. `is_finished`: it ended well.
        `before`: journal_rows() before it."""
        is_lacking = is_finished and not any(folder.rglob(self.wanted))
        found = file_problems(folder) + [f"{self.wanted} is missing"] * is_lacking
        return found or self.check(folder, is_finished, before or {})


# The suite: rows are journaled as they are measured.

AXES = ("--variants=baseline", "--batch=2,3", "--seq=8")
CASES = (*AXES, "--components=ffn,loss,rms_norm")
CASES_OF_SUITE = 18
TIMED = ("--benchmark_min_time=0.01s", "--benchmark_repetitions=2")


def bench_command(folder: Path) -> list[str]:
    journal = folder / "journal.jsonl"
    files = [f"--journal={journal}", *["--resume"] * journal.exists()]
    files.append(f"--benchmark_out={folder}/out.json")
    return [str(BUILD / "tiny_llama_bench"), *SMALL_OPTIONS, *CASES, *ON_CPU, *TIMED, *files]


def differences(wanted: Rows, found: Rows, where: str) -> list[str]:
    """Cases that are not as they were wanted, apart from what is added at the end of a run."""

    def measured(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in entry.items() if k not in LATE} for entry in entries]

    return [
        f"{name} is {'another' if name in found else 'not'} in the {where}"
        for name, entries in wanted.items()
        if name not in found or measured(found[name]) != measured(entries)
    ]


def bench_problems(folder: Path, is_finished: bool, before: Rows) -> list[str]:
    """No row is lost or measured twice, and the result has what the journal had."""
    try:
        rows = journal_rows(folder / "journal.jsonl")
    except ValueError as error:
        return [f"journal: {error}"]
    problems = differences(before, rows, "journal")
    if (out := folder / "out.json").exists():
        found: Rows = {}
        for entry in read_json(out)["benchmarks"]:
            name = entry["run_name"].removesuffix("/manual_time")
            if not name.startswith("peak/"):
                found.setdefault(name, []).append(entry)
        problems += differences(rows, found, "result")
        is_lacking = is_finished and len(found) != CASES_OF_SUITE
        problems += [f"{len(found)} cases of {CASES_OF_SUITE}"] * is_lacking
    return problems


# Training with profilers.


def train_command(folder: Path) -> list[str]:
    options = (*SMALL_OPTIONS, "--batch-size=2", "--seq-len=8", "--num-steps=8", *ON_CPU)
    traced = ("--enable-pytorch-profiler", "--profile-steps=1", "--profile-operators")
    profilers = (*traced, "--profile-memory", "--enable-flops-profiler", "--flops-profile-step=3")
    program = str(BUILD / "tiny_llama_train")
    return [program, *options, *profilers, f"--profile-dir={folder}/train"]


def train_problems(folder: Path, _: bool, __: Rows) -> list[str]:
    return [
        f"{name} is in the summary and not there"
        for summary in folder.glob("train/performance_summary.json")
        for name in read_json(summary)["files"]
        if not (summary.parent / name).is_file()
    ]


# The tools.


def study_command(folder: Path) -> list[str]:
    options = ("--num-steps", "3", "--device", "cpu")
    return tool("study", "tiny", *options, "--out", folder / "study")


def compare_command(folder: Path) -> list[str]:
    # a recording that is there is not written over
    output = folder / f"comparison_{len(list(folder.glob('comparison_*')))}"
    cases = ("--components", "rms_norm", "--passes", "forward", "--variants", "baseline")
    few = ("--alpha", "0.2", "--looks", "1", "--pairs", "4", "--seed", "5", "--device", "cpu")
    # beyond what noise makes of a build against itself
    few += ("--margin", "0.5")
    at = ("--batch", "1", "--seq", "16", "--out", output)
    sides = ("--base", PROJECT / "build", "--new", PROJECT / "build", "--same")
    return tool("compare", "run", *sides, *cases, *few, *at)


def scaling_command(folder: Path, processes: str = "2") -> list[str]:
    step = ("--batch=2", "--seq=8", "--components=full_step", "--rounds=3", "--min-time=0.01")
    # a folder that is there is refused
    place = folder / f"scaling_{time.time_ns()}"
    options = ("--processes", processes, "--timeout", "6", "--out", place)
    return tool("scaling", *options, "--", *SMALL_OPTIONS, *step, "--device=cpu")


def report_command(folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    write_whole(result, MEASURED.read_text(encoding="utf-8"))
    return tool("report", result, "-o", folder / "page.html")


@once
def earlier_history() -> bytes:
    """A history of another result, which is the same but for a line end."""
    with tempfile.TemporaryDirectory() as name:
        result, store = Path(name, "earlier.json"), Path(name, "history.jsonl")
        result.write_bytes(MEASURED.read_bytes() + b"\n")
        command = tool("compare", "history", "add", "--store", store, result)
        subprocess.run(command, check=True, capture_output=True, env=environment())
        return store.read_bytes()


def history_command(folder: Path) -> list[str]:
    store = folder / "history.jsonl"
    if not store.exists():
        store.write_bytes(earlier_history())
    # after a kill the file may be in the history already, or not
    return tool("compare", "history", "add", "--skip-known", "--store", store, MEASURED)


def history_problems(folder: Path, is_finished: bool, _: Rows) -> list[str]:
    store = folder / "history.jsonl"
    if not store.read_bytes().startswith(earlier_history()):
        return ["history.jsonl lost what it had"]
    try:
        # a line that was cut short is not read, and the next writer takes its place
        results = len(read_store(store)[0])
    except BadInputError as error:
        return [str(error)]
    return [f"history.jsonl has {results} of 2 results"] * (is_finished and results != 2)


SUITE = Workload("benchmark", "out.json", bench_command, bench_problems)
TRAINING = Workload("training", "performance_summary.json", train_command, train_problems)
STUDY = Workload("study", "performance_study_*.md", study_command)
COMPARE = Workload("compare run", "comparison.json", compare_command)
SCALING = Workload("scaling", "scaling.json", scaling_command)
REPORT = Workload("report", "page.html", report_command)
HISTORY = Workload("history add", "history.jsonl", history_command, history_problems)
WORKLOADS = (SUITE, TRAINING, HISTORY, REPORT, STUDY, COMPARE, SCALING)
