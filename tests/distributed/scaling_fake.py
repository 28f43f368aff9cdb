#!/usr/bin/env python3
"""Plays one rank of tiny_llama_scaling: writes what a rank saw, and ends as it is told to.

FAKE_FOLDER: where `ranks_<N>.json`, rank 0's result, is taken from and `seen_<rank>.json`, the
rank's surroundings, is left. FAKE_FAULT: what which rank does, `1:dies`, in worlds that have that
rank; the others find --timeout later that it is lost, as the program does. Only the standard
library, and little of it: it is started dozens of times.
"""

import json
import os
import shutil
import signal
import sys
import time

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = os.environ["FAKE_FOLDER"]
OPTIONS = dict(text.lstrip("-").partition("=")[::2] for text in sys.argv[1:])
KEPT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
FOREVER = 600
NAME = f"rank {RANK} of {RANKS}"


def say(text: str) -> None:
    print(f"tiny_llama_scaling: {NAME}: {text}", file=sys.stderr, flush=True)


def leave_what_was_seen(children: list[int]) -> None:
    seen = {
        "pid": os.getpid(),
        "children": children,
        "cores": sorted(os.sched_getaffinity(0)),
        "environment": {name: os.environ.get(name) for name in KEPT},
        "others": [name for name in os.environ if name.startswith(("SLURM_", "OMPI_"))],
        "arguments": sys.argv[1:],
    }
    part = f"{FOLDER}/part_{RANK}"
    with open(part, "w", encoding="utf-8") as stream:  # noqa: PTH123 - pathlib is slow to import
        json.dump(seen, stream)
    os.replace(part, f"{FOLDER}/seen_{RANK}.json")  # noqa: PTH105


def have_child() -> int:
    """A process of the rank's own group that would outlive it."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(FOREVER)
        os._exit(0)
    return child


def write_result() -> int:
    if RANK == 0:
        shutil.copy(f"{FOLDER}/ranks_{RANKS}.json", OPTIONS["benchmark_out"])
    return 0


def wait_for_loss(rank: int, is_ending: bool) -> None:
    """A loaded machine may start the ranks long after each other: the effect is never before its
    cause. Of this world: an earlier one had another port."""
    while True:
        time.sleep(0.01)
        try:
            with open(f"{FOLDER}/seen_{rank}.json", encoding="utf-8") as stream:  # noqa: PTH123
                seen = json.load(stream)
        except FileNotFoundError:
            continue
        if seen["environment"]["MASTER_PORT"] != os.environ["MASTER_PORT"]:
            continue
        try:
            with open(f"/proc/{seen['pid']}/stat", encoding="ascii") as stream:  # noqa: PTH123
                has_ended = stream.read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            has_ended = True
        if has_ended or not is_ending:
            break
    time.sleep(float(OPTIONS["timeout"]))


def do(fault: str) -> int:
    """The exit status of the rank that has the fault."""
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "fails":
        say("full_step: gradients differ by 0.5")
        return 1
    if fault == "refuses":
        say("--size 'huge': must be one of tiny, small")
        return 2
    if fault == "ignores_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(FOREVER)
    return 0


def main() -> int:
    who, _, fault = os.environ.get("FAKE_FAULT", "").partition(":")
    fault = fault if fault and int(who) < RANKS else ""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    leave_what_was_seen([have_child()] if fault else [])
    print(f"{NAME} is there", flush=True)
    if fault and int(who) == RANK:
        return do(fault)
    if fault:
        wait_for_loss(int(who), fault in ("dies", "fails", "refuses"))
        say(f"rank {who} did not answer in step 3")
        return 1
    return write_result()


if __name__ == "__main__":
    sys.exit(main())
