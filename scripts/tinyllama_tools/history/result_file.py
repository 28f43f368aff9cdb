"""Reads a result file of the suite into what the history keeps of it."""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tinyllama_tools.compare.stored_files import read_stored
from tinyllama_tools.core.app import PROJECT, BadInputError
from tinyllama_tools.data.json_files import MEASURE_AGAIN, bad_file
from tinyllama_tools.data.names import StoredCase
from tinyllama_tools.history.entries import CaseEntry, Machine, ResultEntry

COMMIT = re.compile(r"[0-9a-f]{7,64}")


def read_entry(path: Path, project: Path = PROJECT) -> ResultEntry:
    """One file with its machine, commit and cases. `project`: whose git knows the commits' times.

    BadInputError where the file is no result of this suite or of a debug build, or its machine or
    date is not told.
    """
    run = read_stored(path)
    if run.configuration:
        raise bad_file(path, "is of tiny_llama_train", "name a result file of tiny_llama_bench")
    context = run.context
    if context.get("library_build_type") == "debug":
        raise bad_file(path, "is of a debug build, whose times mean nothing", MEASURE_AGAIN)
    commit = str(context.get("git_commit") or "")
    return ResultEntry(
        file=str(path),
        digest=run.digest,
        machine=_machine(path, context),
        commit=commit,
        dirty=bool(context.get("git_dirty")),
        commit_time=commit_time(commit, project),
        date=_date(path, context),
        context={key: value for key, value in context.items() if key != "peaks"},
        cases=tuple(_case(name, case) for name, case in run.cases.items()),
    )


def commit_time(commit: str, project: Path) -> str:
    """When it was committed, in UTC; empty where it is no commit, or none of this repository."""
    # what a file says is text: a branch's name or an option must not reach git
    if not COMMIT.fullmatch(commit):
        return ""
    # whoever keeps the history need not own the checkout
    git = ["git", "-c", "safe.directory=*", "show", "--no-patch", "--format=%ct"]
    git += ["--end-of-options", f"{commit}^0"]
    try:
        found = subprocess.run(git, cwd=project, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    if found.returncode != 0 or not found.stdout.strip().isdigit():
        return ""
    return _in_utc(datetime.datetime.fromtimestamp(int(found.stdout), datetime.timezone.utc))


def _in_utc(at: datetime.datetime) -> str:
    if at.tzinfo is None:
        at = at.replace(tzinfo=datetime.timezone.utc)
    return at.astimezone(datetime.timezone.utc).isoformat(timespec="seconds")


def _machine(path: Path, context: Mapping[str, object]) -> Machine:
    device = context.get("device")
    threads = context.get("threads")
    if not isinstance(device, dict) or not device.get("name") or type(threads) is not int:
        raise BadInputError(
            f"{path}: its context names no device or no threads, so that nobody knows which "
            f"machine's series it belongs to; {MEASURE_AGAIN}"
        )
    return Machine(str(device["name"]), str(device.get("architecture") or ""), threads)


def _date(path: Path, context: Mapping[str, object]) -> str:
    text = str(context.get("date", ""))
    try:
        # Python 3.10 does not read the Z
        at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise bad_file(path, f"date '{text}' is no ISO 8601 time", MEASURE_AGAIN) from error
    return _in_utc(at)


def _case(name: str, case: StoredCase) -> CaseEntry:
    return CaseEntry(
        name, case.seconds, case.repetitions, case.counters, case.failed or case.skipped
    )
