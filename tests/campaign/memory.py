"""Memory ends: the n-th large request fails, the address space is limited, or the device's memory
is: the case fails or is skipped with its reason, the run goes on, nothing aborts."""

from __future__ import annotations

import json
import random
import subprocess

from campaign.kills import TIME_LIMIT_S
from campaign.tally import Scope, Tally, each, scratch
from campaign.workloads import SUITE, TRAINING, Workload, json_problem
from campaign.writes import run

# of a tensor in these small models; smaller requests are also those of oneDNN for itself, which it
# does not check (a crash in its matmul_pd_t where 4 KiB are refused)
LARGE_BYTES = 12288
MOST_REQUESTS = 4000
ENOUGH_BYTES = 3 << 30
FAILED, REFUSED = 1, 2


def outcome(workload: Workload, folder: object, status: int, said: str) -> list[str]:
    """What does not hold after memory ended somewhere."""
    problems = [] if status in {0, FAILED, REFUSED} else [f"status {status}: {said[-200:]!r}"]
    if status == FAILED and "memory" not in said.lower():
        problems.append(f"no word of memory: {said[-200:]!r}")
    if "terminate called" in said:
        problems.append("an exception nobody caught")
    return problems


def one_request(draw: random.Random) -> list[str]:
    """Of the suite: one case fails, the others are measured."""
    call = int(MOST_REQUESTS ** draw.random())
    with scratch() as folder:
        work = folder / "work"
        work.mkdir()
        more = {"FAIL_MEMORY": str(LARGE_BYTES)}
        status, said = run(SUITE, SUITE.command(work), work, call, 0, **more)
        problems = outcome(SUITE, work, status, said)
        out = work / "out.json"
        if out.exists() and not json_problem(out):
            entries = json.loads(out.read_text(encoding="utf-8"))["benchmarks"]
            failed = {e["run_name"] for e in entries if "error_message" in e}
            problems += [f"{len(failed)} cases failed of one request"] * (len(failed) > 1)
        elif status != REFUSED:
            problems.append("no result")
        return [f"request {call}: {problem}" for problem in problems]


def address_space(draw: random.Random) -> list[str]:
    """A limit between nothing and enough; what the loader says before main is not ours."""
    workload = draw.choice((SUITE, TRAINING))
    limit = draw.randrange(ENOUGH_BYTES // 100, ENOUGH_BYTES)
    with scratch() as folder:
        done = subprocess.run(
            ["prlimit", f"--as={limit}", *workload.command(folder)],
            cwd=folder,
            env=workload.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        said = done.stdout.decode(errors="replace")
        if "error while loading shared libraries" in said:
            return []
        found = outcome(workload, folder, done.returncode, said)
        return [f"{workload.name} in {limit >> 20} MiB: {problem}" for problem in found]


def device_limit(draw: random.Random) -> list[str]:
    """--memory-limit: what does not fit is skipped, and that is no failure."""
    limit = draw.randrange(1, 4 << 20)
    with scratch() as folder:
        more = [f"--memory-limit={limit}"]
        done = subprocess.run(
            [*SUITE.command(folder), *more],
            cwd=folder,
            env=SUITE.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        problems = [f"status {done.returncode}"] * bool(done.returncode)
        entries = json.loads((folder / "out.json").read_text(encoding="utf-8"))["benchmarks"]
        silent = [e["name"] for e in entries if e.get("skipped") and not e.get("skip_message")]
        problems += [f"{name} was skipped without a reason" for name in silent]
        return [f"limit of {limit} bytes: {problem}" for problem in problems]


def run_part(scope: Scope) -> Tally:
    """A hundred points, and some more."""
    tally = Tally()
    for kind, count, one in (
        ("request that fails", 60, one_request),
        ("limited address space", 60, address_space),
        ("limited device memory", 20, device_limit),
    ):
        tally += each(scope, kind, scope.draws(kind, count), one)
    return tally
