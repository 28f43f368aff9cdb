#!/usr/bin/env python3
"""Plays one rank of tiny_llama_scaling: writes what a rank saw, and ends as it is told to.

FAKE_FOLDER: where `ranks_<N>.json`, rank 0's result, is taken from and `seen_<rank>.json`, the
rank's surroundings, is left. FAKE_FAULT: what rank 1 does, in worlds that have one; the others find
--timeout later that it is lost, as the program does.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(os.environ["FAKE_FOLDER"])
OPTIONS = dict(text.lstrip("-").partition("=")[::2] for text in sys.argv[1:])
FAULT = os.environ.get("FAKE_FAULT", "")
# the faulty rank leaves it: a loaded machine may start the ranks long after each other
MARK = FOLDER / f"fault_{RANKS}"
SAID = {
    "fails": (1, "full_step: gradients differ by 0.5"),
    "refuses": (2, "--size 'huge': must be one of tiny, small"),
}


def say(text: str) -> None:
    print(f"tiny_llama_scaling: rank {RANK} of {RANKS}: {text}", file=sys.stderr, flush=True)


def have_fault() -> int:
    MARK.touch()
    if FAULT == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "ignores_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if FAULT not in SAID:
        time.sleep(600)
    status, words = SAID[FAULT]
    say(words)
    return status


def main() -> int:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    seen = {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0)), "arguments": sys.argv[1:]}
    part = FOLDER / f"part_{RANK}"
    part.write_text(json.dumps(seen | {"environment": dict(os.environ)}), encoding="utf-8")
    part.replace(FOLDER / f"seen_{RANK}.json")
    print(f"rank {RANK} of {RANKS} is there", flush=True)
    if not FAULT or RANKS == 1:
        if RANK == 0:
            shutil.copy(FOLDER / f"ranks_{RANKS}.json", OPTIONS["benchmark_out"])
        return 0
    if RANK == 1:
        return have_fault()
    while not MARK.exists():
        time.sleep(0.01)
    time.sleep(float(OPTIONS["timeout"]))
    say("rank 1 does not answer")
    return 1


if __name__ == "__main__":
    sys.exit(main())
