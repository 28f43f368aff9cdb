"""A served side or a rank hangs, crashes, answers rubbish or too late: it is named, the run is
bounded in time, and the rest is kept."""

from __future__ import annotations

import functools
import random
import signal
import subprocess
import time

from campaign.kills import left_processes, processes_of, start
from campaign.tally import TIME_LIMIT_S, Scope, Tally, each, scratch
from campaign.workloads import SCALING, environment, json_problem, tool, uncaught
from compare.fake_bench import FFN, LOSS, NORM, make_build

HOWS = ("crash", "signal", "hang", "nonsense", "zero", "endless", "error")
FULL = 20


def served(how: str, draw: random.Random) -> list[str]:
    """One of two fakes of a served program is in trouble with one of its three cases."""
    case, at = draw.choice((FFN, LOSS, NORM)), draw.choice(("open", "time"))
    trouble = {case: {"at": at, "how": how}}
    with scratch() as folder:
        sides = ["base", "new"]
        draw.shuffle(sides)
        bad, good = sides
        make_build(folder / bad, trouble=trouble)
        make_build(folder / good)
        few = ("--alpha", "0.2", "--looks", "1", "--pairs", "4", "--limit", "3s")
        output = folder / "out"
        command = tool("compare", "run", "--base", folder / "base", "--new", folder / "new")
        done = subprocess.run(
            [*command, *few, "--output", str(output)],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        said = done.stdout.decode(errors="replace")
        # a case that only the base lacks is no regression
        allowed = {1, 2} if bad == "new" else {0, 1, 2}
        problems = [] if done.returncode in allowed else [f"status {done.returncode}"]
        problems += uncaught(said)
        problems += ["the case is not named"] * (case not in said)
        files = [path for path in output.glob("*.json") if json_problem(path)]
        problems += [json_problem(path) for path in files]
        return [f"{how} at {at} of {bad}: {problem}" for problem in problems]


def stopped_rank(draw: random.Random) -> list[str]:
    """A rank answers nothing any more: the others end within the time limit that was given."""
    with scratch() as folder:
        process = start(SCALING, SCALING.command(folder), folder)
        ranks: list[int] = []
        while len(ranks) < 2 and process.poll() is None:
            ranks = [p for p in processes_of(process.pid) if p != process.pid]
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 1.5))
        for rank in ranks[-1:]:
            subprocess.run(["kill", f"-{signal.SIGSTOP.value}", str(rank)], check=False)
        status = process.wait(TIME_LIMIT_S)
        problems = [] if status in {0, 1} else [f"status {status}"]
        left = left_processes(process.pid)
        problems += [f"{len(left)} processes are left"] * bool(left)
        return problems + SCALING.problems(folder, False, {})


def run_part(scope: Scope) -> Tally:
    """Twenty of each."""
    tally = Tally()
    for how in [how for how in HOWS if not scope.names or how in scope.names]:
        kind = f"served side: {how}"
        tally += each(scope, kind, scope.draws(kind, FULL), functools.partial(served, how))
    for _ in scope.some([SCALING]):
        tally += each(scope, "stopped rank", scope.draws("stopped", FULL), stopped_rank)
    return tally
