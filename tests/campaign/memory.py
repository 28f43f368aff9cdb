"""Memory ends: the n-th request for aligned memory fails, the address space is limited, or the
device's memory is: the case fails or is skipped with its reason, the run goes on, nothing
aborts."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator

from campaign.runs import finish, uncaught
from campaign.tally import OfLibrary, Scope, Tally, each, scratch
from campaign.workloads import SUITE, TRAINING, json_problem
from campaign.writes import run

MOST_REQUESTS = 6000
ENOUGH_BYTES = 3 << 30
FAILED, REFUSED = 1, 2
# what asks for the memory of tensors; other libraries ask for their own
OF_TENSORS = "libc10.so"


def outcome(status: int, said: str) -> list[str]:
    """What does not hold after memory ended somewhere."""
    problems = [] if status in {0, FAILED, REFUSED} else [f"status {status}: {said[-200:]!r}"]
    if status == FAILED and "memory" not in said.lower():
        problems.append(f"no word of memory: {said[-200:]!r}")
    return problems + uncaught(said)


def one_request(draw: random.Random) -> list[str]:
    """Of the suite: one case fails, the others are measured."""
    number = int(MOST_REQUESTS ** draw.random())
    with scratch() as folder:
        work = folder / "work"
        work.mkdir()
        status, said, calls = run(SUITE, SUITE.command(work), work, number, 0, FAIL_MEMORY="1")
        asked = calls[number - 1].split()[-1] if number <= len(calls) else OF_TENSORS
        if status < 0 and asked != OF_TENSORS:
            # oneDNN, inside of libtorch_cpu.so, does not look whether its matmul_pd_t got memory
            return [OfLibrary(f"{asked} crashes where a request of its own fails")]
        problems = outcome(status, said) if asked == OF_TENSORS else uncaught(said)
        out = work / "out.json"
        if out.exists() and not json_problem(out):
            entries = json.loads(out.read_text(encoding="utf-8"))["benchmarks"]
            failed = {e["run_name"] for e in entries if "error_message" in e}
            problems += [f"{len(failed)} cases failed of one request"] * (len(failed) > 1)
        elif status != REFUSED:
            problems.append("no result")
        return [f"request {number}, of {asked}: {problem}" for problem in problems]


def address_space(draw: random.Random) -> list[str]:
    """A limit between nothing and enough; what happens before main is not ours."""
    workload = draw.choice((SUITE, TRAINING))
    limit = draw.randrange(ENOUGH_BYTES // 100, ENOUGH_BYTES)
    with scratch() as folder:
        limited = ["prlimit", f"--as={limit}", *workload.command(folder)]
        status, said = finish(limited, folder, workload.environment)
        if "error while loading shared libraries" in said:
            return []
        problems = outcome(status, said)
        if problems and status == -signal.SIGABRT:
            # an uncaught std::bad_alloc of libtorch, which registers its operators at the start
            status, said = finish([*limited[:3], "--help"], folder, workload.environment)
            if status == -signal.SIGABRT:
                return [OfLibrary("libtorch aborts where its start finds no memory")]
        return [f"{workload.name} in {limit >> 20} MiB: {problem}" for problem in problems]


def device_limit(draw: random.Random) -> list[str]:
    """--memory-limit: what does not fit is skipped, and that is no failure."""
    limit = draw.randrange(1, 4 << 20)
    with scratch() as folder:
        command = [*SUITE.command(folder), f"--memory-limit={limit}"]
        status, said = finish(command, folder, SUITE.environment)
        problems = [f"status {status}"] * bool(status) + uncaught(said)
        entries = json.loads((folder / "out.json").read_text(encoding="utf-8"))["benchmarks"]
        silent = [e["name"] for e in entries if e.get("skipped") and not e.get("skip_message")]
        problems += [f"{name} was skipped without a reason" for name in silent]
        return [f"limit of {limit} bytes: {problem}" for problem in problems]


def run_part(scope: Scope) -> Iterator[Tally]:
    """A hundred points, and some more."""
    for kind, count, one in (
        ("request that fails", 60, one_request),
        ("limited address space", 60, address_space),
        ("limited device memory", 20, device_limit),
    ):
        yield each(scope, kind, scope.draws(kind, count), one)
