"""Processes are killed, signalled or stopped, served sides fail, two of everything run at once."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from built_programs import read_json, tool
from campaign.runs import (
    TIME_LIMIT_S,
    Scope,
    Tried,
    end_of,
    ended,
    finish,
    left_of,
    next_run,
    processes_of,
    said_in,
    scratch,
    start,
    told_of,
    uncaught,
    undisturbed,
)
from campaign.workloads import (
    CASES_OF_SUITE,
    FAILED,
    INTERRUPTED,
    PROJECT,
    REFUSED,
    SCALING,
    SUITE,
    TRAINING,
    WORKLOADS,
    Workload,
    file_problems,
    journal_rows,
    scaling_command,
)
from fake_bench import FFN, LOSS, NORM, make_build
from tinyllama_tools.commands.ranks import PROGRAM as RANK_PROGRAM

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
# of SCALING
RANKS = 2
# a lost rank is noticed within a timeout, asked after for another or 11 s, the others have two
# timeouts and 15 s to end, and 5 s more; with the timeout of SCALING, and its start
MOST_LOST_S = 4 * 6 + 31 + 10
# of a run: within which a handler is there, and the end in which nothing is left to be broken off
START_SHARE, END_SHARE = 0.5, 0.25
HOWS = ("crash", "signal", "hang", "late", "nonsense", "zero", "endless", "error")
FULL = 20


def killed(workload: Workload, draw: random.Random) -> list[str] | None:
    """Kills a run once or twice at random moments, then lets the next one end."""
    longest, _ = undisturbed(workload)
    with scratch() as folder:
        problems: list[str] = []
        rows = {}
        for number in range(draw.choice((1, 1, 2))):
            process = start(workload.command(folder), folder)
            # the end, where files are written, is as likely as all that comes before it
            late = draw.random() < 0.3
            time.sleep(longest * (draw.uniform(0.85, 1.05) if late else draw.uniform(0, 1)))
            process.kill()
            if (status := process.wait()) == 0 and number == 0:
                return None
            problems += left_of(folder) + workload.problems(folder, status == 0, rows)
            rows = journal_rows(folder / "journal.jsonl")
            # what is journaled is not measured again
            longest *= 1 - 0.8 * len(rows) / CASES_OF_SUITE
        return problems + next_run(workload, folder)


def too_late(process: subprocess.Popen, folder: Path) -> list[str] | None:
    """Of a run that met no fault: nothing, but that it ended badly by itself."""
    status = process.wait(TIME_LIMIT_S)
    return [f"ended by itself with {status}: ...{end_of(said_in(folder))!r}"] if status else None


def ranks_of(launcher: subprocess.Popen, folder: Path) -> list[int]:
    """The ranks that the launcher starts, once all are there; fewer where it ends before."""
    ranks: list[int] = []
    while len(ranks) < RANKS and launcher.poll() is None:
        # not before its program runs in it: a stop before that would stop its launcher too
        programs = {one: Path(told_of(one, "cmdline")[0]).name for one in processes_of(folder)}
        ranks = [one for one, name in programs.items() if name == RANK_PROGRAM]
        time.sleep(0.005)
    return ranks


def stop(number: int) -> bool:
    """Stops a process; False where it had ended."""
    state = ""
    with contextlib.suppress(OSError):
        os.kill(number, signal.SIGSTOP)
        # Z, X: it has ended; another one than T: the signal is on its way
        while state not in {"Z", "X", "T"}:
            # after its name, which may hold anything
            state = Path(f"/proc/{number}/stat").read_bytes().rpartition(b") ")[2][:1].decode()
    return state == "T"


def lost_rank(how: signal.Signals, draw: random.Random) -> list[str] | None:
    """Kills or stops one of the ranks of scripts/scaling: it is named, the others end within the
    time that the command says, and the result of one rank before them is kept."""
    with scratch() as folder:
        process = start(scaling_command(folder, "1,2"), folder)
        ranks = ranks_of(process, folder)
        time.sleep(draw.uniform(0, 1.5))
        # one that is stopped first has not ended when it is killed
        if len(ranks) < RANKS or not stop(lost := draw.choice(ranks)):
            return too_late(process, folder)
        (number,) = (t[5:] for t in told_of(lost, "environ") if t.startswith("RANK="))
        os.kill(lost, how)
        status, said = process.wait(MOST_LOST_S), said_in(folder)
        is_named = re.search(rf"rank {number} of {RANKS} (was ended|did not end)", said)
        problems = [] if is_named else [f"rank {number} is not named in ...{said[-300:]!r}"]
        problems += ["ranks_1.json is lost"] * (not list(folder.rglob("ranks_1.json")))
        # a lost rank is no success
        return problems + ended(SCALING, folder, status, {FAILED})


def kills(scope: Scope) -> Iterator[Tried]:
    """kill -9 at a random moment: no journaled row lost or measured twice; every file whole or
    absent; the next run needs no clean-up."""
    for workload in WORKLOADS:
        if workload is SCALING:
            yield from scope.tried("kill of a rank", 50, partial(lost_rank, signal.SIGKILL))
        else:
            full = 200 if workload in (SUITE, TRAINING) else 50
            yield from scope.tried(f"kill of {workload.name}", full, partial(killed, workload))


def signalled(workload: Workload, draw: random.Random) -> list[str] | None:
    """Sends a signal at a random moment; a second one, soon after, may have its default effect."""
    usual, _ = undisturbed(workload)
    sent, is_twice, at = draw.choice(SIGNALS), draw.random() < 0.4, draw.uniform(0, 1)
    with scratch() as folder:
        process = start(workload.command(folder), folder)
        time.sleep(at * usual)
        if process.poll() is not None:
            return too_late(process, folder)
        process.send_signal(sent)
        begun = time.monotonic()
        if is_twice:
            time.sleep(draw.uniform(0, 0.3))
            process.send_signal(sent)
        status = process.wait(TIME_LIMIT_S)
        said, took = said_in(folder), time.monotonic() - begun
        is_start = at < START_SHARE
        is_end = took < END_SHARE * usual and any(folder.rglob(workload.wanted))
        is_python = "KeyboardInterrupt" in said and "tinyllama_tools" not in said
        allowed = {
            INTERRUPTED: True,
            # before a handler is there, from the second on, and once all is written
            -sent: is_start or is_twice or is_end,
            # Python itself, before it runs what is ours
            FAILED: is_start and is_python,
            # a tool heeds no SIGPIPE
            0: is_end or sent == signal.SIGPIPE,
        }
        problems = [] if allowed.get(status) else [f"status {status}: ...{said[-300:]!r}"]
        problems += uncaught(said) if not is_twice and status in {0, INTERRUPTED} else []
        problems += left_of(folder) + workload.problems(folder, status == 0)
        # what was measured is written, but for a second signal
        has_results = bool(journal_rows(folder / "journal.jsonl")) or "\nStep " in said
        is_lost = has_results and not list(folder.rglob(workload.wanted))
        is_lost = is_lost and workload in (SUITE, TRAINING) and not is_twice
        problems += [f"{workload.wanted} is not written"] * is_lost
        problems += next_run(workload, folder)
        return [f"{sent.name}{' twice' * is_twice}: {problem}" for problem in problems]


def signals(scope: Scope) -> Iterator[Tried]:
    """INT, TERM, HUP and PIPE, once and twice: documented exit status, results of finished cases
    written."""
    for workload in WORKLOADS:
        yield from scope.tried(f"signal to {workload.name}", 25, partial(signalled, workload))


def served(how: str, draw: random.Random) -> list[str]:
    """One of two fakes of a served program is in trouble with one of its three cases: that is
    named, and the others have their verdicts."""
    cases = (FFN, LOSS, NORM)
    case, at = draw.choice(cases), draw.choice(("open", "time"))
    with scratch() as folder:
        bad, good = draw.sample(["base", "new"], 2)
        make_build(folder / bad, trouble={case: {"at": at, "how": how}})
        make_build(folder / good)
        few = ("--alpha", "0.2", "--looks", "1", "--pairs", "4", "--limit", "3s")
        both_sides = ("--base", folder / "base", "--new", folder / "new")
        command = tool("compare", "run", *both_sides, *few, "--out", folder / "out")
        status, said = finish(command, folder)
        # a case that only the base lacks is no regression
        problems = [] if status == (FAILED if bad == "new" else 0) else [f"status {status}"]
        is_named = re.search(rf"{re.escape(case)}: (left out|given up): {bad}: ", said)
        problems += [] if is_named else [f"the case is not named in ...{said[-300:]!r}"]
        problems += uncaught(said) + left_of(folder) + file_problems(folder / "out")
        written = folder / "out/comparison.json"
        judged = read_json(written)["cases"] if written.is_file() and not problems else []
        kept = {one["name"] for one in judged if one["outcome"] in ("same", "unclear")}
        problems += [f"verdicts of {sorted(kept)} alone"] * (kept != set(cases) - {case})
        return [f"{how} at {at} of {bad}: {problem}" for problem in problems]


def sides(scope: Scope) -> Iterator[Tried]:
    """a served side hangs, crashes, answers rubbish or too late; a rank is stopped: named, bounded
    in time, the rest kept."""
    for how in HOWS:
        yield from scope.tried(f"served side: {how}", FULL, partial(served, how))
    yield from scope.tried("stopped rank", FULL, partial(lost_rank, signal.SIGSTOP))


def both_ended(processes: list[subprocess.Popen], folder: Path) -> list[str]:
    """Of two processes both end in time, one of them well, the other too or with a message."""
    statuses = [process.wait(TIME_LIMIT_S) for process in processes]
    said = said_in(folder)
    is_clear = 0 in statuses and set(statuses) <= {0, REFUSED}
    if REFUSED in statuses:
        # a command of two words has a space in its name
        is_clear &= bool(re.search(r"^(scripts/|tiny_llama_)\w+( \w+)?: ", said, re.MULTILINE))
    problems = [] if is_clear else [f"statuses {statuses}: ...{said[-300:]!r}"]
    return problems + uncaught(said) + left_of(folder)


def both(workload: Workload, draw: random.Random) -> list[str]:
    """Two runs of a workload with the same files, at the same moment or some time apart."""
    usual, _ = undisturbed(workload)
    apart = draw.choice((0, 0.1, draw.uniform(0, 0.9 * usual)))
    with scratch() as folder:
        command = workload.command(folder)
        first = start(command, folder)
        time.sleep(apart)
        problems = both_ended([first, start(command, folder)], folder)
        problems += workload.problems(folder, True)
        return [f"{apart:.2f} s apart: {problem}" for problem in problems]


def start_shell(code: str, folder: Path) -> subprocess.Popen:
    """Starts shell code in as much of a checkout as the set-up's functions need."""
    if not (folder / "scripts").exists():
        ignore = shutil.ignore_patterns("__pycache__", "tinyllama_tools")
        shutil.copytree(PROJECT / "scripts", folder / "scripts", ignore=ignore)
    sources = "source scripts/lib/common.sh"
    return start(["bash", "-c", f"set -euo pipefail; {sources}; {code}"], folder)


def bench_scripts(draw: random.Random) -> list[str]:
    """Two scripts/bench after their set-up, each with a folder of its own."""
    with scratch() as folder:
        run = tool("bench", *SUITE.command(folder)[1:-2])  # no files of its own
        first = start(run, folder)
        time.sleep(draw.choice((0, 0.5)))
        problems = both_ended([first, start(run, folder)], folder)
        kept = sorted((folder / "results").iterdir())
        problems += [f"{len(kept)} folders of results"] * (len(kept) != 2)
        for path in kept:
            (path / "results.json").rename(path / "out.json")
            problems += SUITE.problems(path, True)
        return problems


def set_ups(draw: random.Random) -> list[str]:
    """Of two set-ups the second one waits, and works once the first is done or killed."""
    pause, is_killed = draw.uniform(0, 0.3), draw.random() < 0.3
    code = f"lock_set_up; echo begin $$ >>order; sleep {pause}; echo end $$ >>order; unlock_set_up"
    with scratch() as folder:
        first, second = start_shell(code, folder), start_shell(code, folder)
        if is_killed:
            time.sleep(draw.uniform(0, 0.3))
            first.kill()
            first.wait()
            return both_ended([second], folder)
        problems = both_ended([first, second], folder)
        order = [line.split()[1] for line in (folder / "order").read_text().splitlines()]
        is_in_turn = len(order) == 4 and order[::2] == order[1::2]
        problems += [f"not one set-up after the other: {order}"] * (not is_in_turn)
        return problems


def together(scope: Scope) -> Iterator[Tried]:
    """two of everything at once in one checkout: clear refusal or correct results."""
    for workload in WORKLOADS:
        yield from scope.tried(f"two of {workload.name}", FULL, partial(both, workload))
    yield from scope.tried("two of scripts/bench", FULL, bench_scripts)
    yield from scope.tried("two set-ups", FULL, set_ups)
