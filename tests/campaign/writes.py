"""Each call that writes, syncs, renames or makes a file fails once: the exit status is a documented
one, a message names the file, and what was measured before is kept."""

from __future__ import annotations

import errno
import functools
import subprocess
from pathlib import Path

from campaign.kills import TIME_LIMIT_S
from campaign.tally import Scope, Tally, each, scratch
from campaign.workloads import (
    COMPARE,
    HISTORY,
    REPORT,
    SCALING,
    STUDY,
    SUITE,
    TRAINING,
    Workload,
    journal_rows,
)

SOURCE = Path(__file__).with_name("failing_calls.c")
SHORT = 0
FAULTS = {"no space": errno.ENOSPC, "I/O error": errno.EIO, "read-only": errno.EROFS, "short": SHORT}
DOCUMENTED = {0, 1, 2}


@functools.cache
def library() -> Path:
    """Compiled beside the programs, once."""
    built = Path(__file__).resolve().parents[2] / "build/failing_calls.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", built, SOURCE, "-ldl"]
    if not built.exists() or built.stat().st_mtime < SOURCE.stat().st_mtime:
        subprocess.run(command, check=True)
    return built


def run(
    workload: Workload, command: list[str], folder: Path, call: int, error: int, **more: str
) -> tuple[int, str]:
    """Exit status and what was said. The library counts its calls in `folder`.calls."""
    fault = {
        "LD_PRELOAD": str(library()),
        "FAIL_BELOW": str(folder),
        "FAIL_CALL": str(call),
        "FAIL_WITH": str(error),
        "FAIL_COUNT": f"{folder}.calls",
        **more,
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=workload.environment | fault,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


@functools.cache
def usual_calls(workload: Workload) -> int:
    """Of an undisturbed run."""
    with scratch() as folder:
        work = folder / "work"
        work.mkdir()
        status, said = run(workload, workload.command(work), work, 0, errno.EIO)
        if status:
            raise RuntimeError(f"undisturbed, {workload.name}: {status}: {said[-2000:]}")
        return len((folder / "work.calls").read_bytes())


def failed(workload: Workload, fault: tuple[int, str]) -> list[str]:
    """One call of a run fails, and then the run that a user starts again has none."""
    call, kind = fault
    with scratch() as scratch_folder:
        folder = scratch_folder / "work"
        folder.mkdir()
        status, said = run(workload, workload.command(folder), folder, call, FAULTS[kind])
        problems = []
        if len((scratch_folder / "work.calls").read_bytes()) < call:
            return []  # fewer calls than usual: a buffer was larger, a journal shorter
        if status not in DOCUMENTED:
            problems.append(f"status {status}")
        if "Traceback" in said or "terminate called" in said:
            problems.append("an exception nobody caught")
        reason = said.lower()
        if status != 0 and not any(
            text in reason
            for text in ("no space left", "input/output error", "read-only", "i/o error")
        ):
            problems.append(f"no reason said: ...{said.strip()[-200:]!r}")
        if status != 0 and str(folder) not in said and folder.name + "/" not in said:
            problems.append(f"no file named: ...{said.strip()[-200:]!r}")
        if kind == "short" and status:
            problems.append(f"a short write is no error, and the status {status}")
        problems += workload.problems(folder, status == 0, {})
        rows = journal_rows(folder / "journal.jsonl")
        again, said = run(workload, workload.again(folder), folder, 0, 0)
        if again:
            problems.append(f"the next run ended with {again}: ...{said.strip()[-200:]!r}")
        problems += workload.problems(folder, again == 0, rows)
        return [f"call {call}: {problem}" for problem in problems]


def closed(draw: object) -> list[str]:
    """Whoever reads standard output goes away after some bytes."""
    with scratch() as folder:
        with subprocess.Popen(
            SUITE.command(folder),
            cwd=folder,
            env=SUITE.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            process.stdout.read(draw.choice((0, 1, 100, 1000)))
            process.stdout.close()
            status = process.wait(TIME_LIMIT_S)
        problems = [] if status in {0, 130} else [f"status {status}"]
        rows = journal_rows(folder / "journal.jsonl")
        again, said = run(SUITE, SUITE.again(folder), folder, 0, 0)
        problems += [f"the next run ended with {again}: {said[-200:]}"] * bool(again)
        return problems + SUITE.problems(folder, again == 0, rows)


def run_part(scope: Scope) -> Tally:
    """Every call of every workload, each with every fault; of a smaller share every n-th."""
    tally = Tally()
    for workload in (SUITE, TRAINING, HISTORY, REPORT, STUDY, COMPARE, SCALING):
        number = usual_calls(workload)
        every = [(call, kind) for kind in FAULTS for call in range(1, number + 1)]
        chosen = every[:: max(1, round(1 / scope.share))]
        tally += each(
            scope, f"failing write of {workload.name}", chosen, functools.partial(failed, workload)
        )
        tally.notes.append(f"a run of {workload.name} makes {number} such calls")
    return tally + each(scope, "closed pipe", scope.draws("pipe", 20), closed)
