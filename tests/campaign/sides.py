"""A served side or a rank hangs, crashes, answers rubbish or too late: it is named, the run is
bounded in time, and the rest is kept."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import time
from collections.abc import Iterator

from campaign.runs import TIME_LIMIT_S, finish, left_of, ranks_of, start, uncaught
from campaign.tally import Scope, Tally, each, scratch
from campaign.workloads import SCALING, environment, files_problems, tool
from compare.fake_bench import FFN, LOSS, NORM, make_build

HOWS = ("crash", "signal", "hang", "nonsense", "zero", "endless", "error")
FULL = 20


def served(how: str, draw: random.Random) -> list[str]:
    """One of two fakes of a served program is in trouble with one of its three cases."""
    case, at = draw.choice((FFN, LOSS, NORM)), draw.choice(("open", "time"))
    with scratch() as folder:
        bad, good = draw.sample(["base", "new"], 2)
        make_build(folder / bad, trouble={case: {"at": at, "how": how}})
        make_build(folder / good)
        few = ("--alpha", "0.2", "--looks", "1", "--pairs", "4", "--limit", "3s")
        sides = ("--base", folder / "base", "--new", folder / "new")
        command = tool("compare", "run", *sides, *few, "--output", folder / "out")
        status, said = finish(command, folder, environment())
        # a case that only the base lacks is no regression
        allowed = {1, 2} if bad == "new" else {0, 1, 2}
        problems = [] if status in allowed else [f"status {status}"]
        problems += ["the case is not named"] * (case not in said)
        problems += uncaught(said) + files_problems(folder / "out", False, {})
        return [f"{how} at {at} of {bad}: {problem}" for problem in problems]


def stopped_rank(draw: random.Random) -> list[str]:
    """A rank answers nothing any more: the others end within the time limit that was given."""
    with scratch() as folder:
        process = start(SCALING.command(folder), folder, SCALING.environment)
        ranks = ranks_of(process, 2)
        time.sleep(draw.uniform(0, 1.5))
        with contextlib.suppress(ProcessLookupError, IndexError):  # it had ended
            os.kill(ranks[-1], signal.SIGSTOP)
        status = process.wait(TIME_LIMIT_S)
        problems = [] if status in {0, 1} else [f"status {status}"]
        return problems + left_of(process.pid) + SCALING.problems(folder, False, {})


def run_part(scope: Scope) -> Iterator[Tally]:
    """Twenty of each."""
    for how in filter(scope.has, HOWS):
        kind = f"served side: {how}"
        yield each(scope, kind, scope.draws(kind, FULL), functools.partial(served, how))
    if scope.has(SCALING.name):
        yield each(scope, "stopped rank", scope.draws("stopped", FULL), stopped_rank)
