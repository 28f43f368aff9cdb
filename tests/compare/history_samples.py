"""Result files and histories for the tests: as the suite writes them, with times made up."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tinyllama_tools.commands.history_store import CaseEntry, Machine, ResultEntry
from tinyllama_tools.core.app import Json

CASE = "ffn/forward_backward/baseline/tiny/f32/batch:8/seq:128"
OTHER_CASE = "loss/forward_backward/baseline/tiny/f32/batch:8/seq:128"
MACHINE = Machine("Test CPU", "x86-64", 2)
FIRST_DAY = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone.utc)


def repetitions(case: str, seconds: Sequence[float], **more: object) -> list[Json]:
    """The entries of one case."""
    return [
        {
            "name": f"{case}/manual_time",
            "run_name": f"{case}/manual_time",
            "run_type": "iteration",
            "repetitions": len(seconds),
            "repetition_index": index,
            "threads": 1,
            "iterations": 10,
            "real_time": value * 1e3,
            "cpu_time": value * 1e3,
            "time_unit": "ms",
            "peak_memory_MiB": 3.5,
            "operators": 21.0,
            **more,
        }
        for index, value in enumerate(seconds)
    ]


def result_document(cases: Mapping[str, Sequence[float]], commit: str = "c" * 40) -> Json:
    """A result file with these cases' seconds."""
    context = {
        "date": FIRST_DAY.isoformat(),
        "schema_version": 3,
        "git_commit": commit,
        "git_dirty": False,
        "device": {"name": MACHINE.device, "architecture": MACHINE.architecture},
        "torch_version": "2.13.0",
        "threads": MACHINE.threads,
        "peaks": {"measured": {}},
    }
    entries = [entry for case, seconds in cases.items() for entry in repetitions(case, seconds)]
    return {"context": context, "benchmarks": entries}


def write_result(path: Path, document: Json) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def entry(
    index: int,
    seconds: Mapping[str, float],
    *,
    commit: str = "",
    machine: Machine = MACHINE,
    torch_version: str = "2.13.0",
    dirty: bool = False,
) -> ResultEntry:
    """The result of day `index`, one commit a day where none is named."""
    at = (FIRST_DAY + datetime.timedelta(days=index)).isoformat(timespec="seconds")
    name = commit or f"{index:04d}{'ab' * 18}"
    return ResultEntry(
        file=f"results/{index:04d}/results.json",
        digest=f"{machine}{index}{name}",
        machine=machine,
        commit=name,
        dirty=dirty,
        commit_time=at,
        date=at,
        context={"torch_version": torch_version},
        cases=tuple(CaseEntry(case, value, 1) for case, value in seconds.items()),
    )
