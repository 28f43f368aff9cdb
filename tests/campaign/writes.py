"""Each call that writes, syncs, renames or makes a file fails once: the exit status is a documented
one, a message names the file, and what was measured before is kept."""

from __future__ import annotations

import errno
import functools
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from campaign.runs import TIME_LIMIT_S, finish, next_run, uncaught
from campaign.tally import Scope, Tally, each, scratch
from campaign.workloads import INTERRUPTED, QUICK, Workload, journal_rows

SOURCE = Path(__file__).with_name("failing_calls.c")
SHORT = "short"
FAULTS = {"no space": errno.ENOSPC, "I/O error": errno.EIO, "read-only": errno.EROFS, SHORT: 0}
TOLD = (
    *("no space", "input/output error", "read-only"),
    # in the words of SQLite
    *("i/o error", "readonly", "is full", "unable to open"),
    # of what a library wrote and did not look at
    "is the disk full",
)
DOCUMENTED = {0, 1, 2}


@functools.cache
def library() -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    """Compiled once; the folder goes when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="tiny_llama_campaign_")
    built = Path(folder.name, "failing_calls.so")
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", built, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    return built, folder


def run(
    workload: Workload, command: list[str], folder: Path, call: int = 0, error: int = 0, **more: str
) -> tuple[int, str, list[str]]:
    """Exit status, what was said, and the calls that the library lists in `folder`.calls."""
    calls = folder.with_name(f"{folder.name}.calls")
    calls.unlink(missing_ok=True)
    fault = {
        "LD_PRELOAD": str(library()[0]),
        "FAIL_BELOW": str(folder),
        "FAIL_CALL": str(call),
        "FAIL_WITH": str(error),
        "FAIL_LIST": str(calls),
        **more,
    }
    status, said = finish(command, folder, workload.environment | fault)
    listed = calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []
    return status, said, [line.strip() for line in listed]


@functools.cache
def usual_calls(workload: Workload) -> list[str]:
    """Of an undisturbed run."""
    with scratch() as folder:
        work = folder / "work"
        work.mkdir()
        status, said, calls = run(workload, workload.command(work), work)
        if status:
            raise RuntimeError(f"undisturbed, {workload.name}: {status}: {said[-2000:]}")
        return calls


def chosen_faults(calls: list[str]) -> list[tuple[int, str]]:
    """Numbers of calls, counted from 1, and how they fail: every call with one kind, and the first,
    second and last of those that are the same but for numbers in the file's name with every kind
    that applies."""
    alike: dict[str, list[int]] = {}
    for number, call in enumerate(calls, start=1):
        alike.setdefault(re.sub(r"\d+", "#", call), []).append(number)
    faults = []
    for call, numbers in alike.items():
        kinds = [kind for kind in FAULTS if kind != SHORT or "write" in call.split()[0]]
        for place, number in enumerate(numbers):
            is_typical = place < 2 or number == numbers[-1]
            mine = kinds if is_typical else [kinds[place % len(kinds)]]
            faults += [(number, kind) for kind in mine]
    return sorted(faults)


def failed(workload: Workload, fault: tuple[int, str]) -> list[str]:
    """One call of a run fails, and then the run that a user starts again has none."""
    number, kind = fault
    with scratch() as scratch_folder:
        folder = scratch_folder / "work"
        folder.mkdir()
        command = workload.command(folder)
        status, said, calls = run(workload, command, folder, number, FAULTS[kind])
        if len(calls) < number:
            return []  # fewer calls than usual: a buffer was larger, a journal shorter
        call, name = calls[number - 1].split(maxsplit=1)
        problems = [] if status in DOCUMENTED else [f"status {status}"]
        problems += uncaught(said)
        left = [path.name for end in ("tmp", "part") for path in folder.rglob(f"*.{end}")]
        problems += [f"{left} are left"] * bool(left)
        if status:
            # of a file that is written beside it first
            names = (re.split(r"(\.\d+)*\.(part|tmp)\b", name)[0].lstrip("."), str(folder))
            reasons = [line for line in said.splitlines() if any(r in line.lower() for r in TOLD)]
            if not reasons:
                problems.append(f"no reason said: ...{said.strip()[-200:]!r}")
            elif not any(part in line for part in names for line in reasons):
                problems.append(f"no file named: {reasons}")
            if kind == SHORT:
                problems.append(f"a short write is no error, and the status {status}")
        problems += workload.problems(folder, status == 0, {})
        rows = journal_rows(folder / "journal.jsonl")
        if status:
            problems += next_run(workload, folder, rows)
        return [f"call {number}, {call} of {name}, {kind}: {problem}" for problem in problems]


def closed(workload: Workload, draw: random.Random) -> list[str]:
    """Whoever reads standard output goes away after some bytes."""
    with scratch() as folder:
        with subprocess.Popen(
            workload.command(folder),
            cwd=folder,
            env=workload.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            process.stdout.read(draw.choice((0, 1, 20, 100, 1000)))
            process.stdout.close()
            said = process.stderr.read().decode(errors="replace")
            status = process.wait(TIME_LIMIT_S)
        problems = [] if status in {0, 2, INTERRUPTED} else [f"status {status}: {said[-200:]!r}"]
        problems += uncaught(said) + workload.problems(folder, False, {})
        return problems + next_run(workload, folder, journal_rows(folder / "journal.jsonl"))


def run_part(scope: Scope) -> Iterator[Tally]:
    """Every call of every workload; of a smaller share every n-th."""
    step = max(1, round(1 / scope.share))
    for workload in scope.some(QUICK):
        calls = usual_calls(workload)
        chosen = chosen_faults(calls)[scope.seed % step :: step]
        kind = f"failing write of {workload.name}"
        yield each(scope, kind, chosen, functools.partial(failed, workload))
        yield Tally(notes=[f"a run of {workload.name} makes {len(calls)} such calls"])
        draws = scope.draws(f"pipe {workload.name}", 10)
        kind = f"closed pipe of {workload.name}"
        yield each(scope, kind, draws, functools.partial(closed, workload))
