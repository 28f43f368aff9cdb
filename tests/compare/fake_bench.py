"""A fake tiny_llama_bench that is served: answers at once with the times it is told.

Run as a program it reads its behaviour from the file beside it, see DEFAULTS; imported, it makes
build folders with such programs.
"""

import json
import os
import random
import shlex
import signal
import sys
import time
from pathlib import Path

FFN = "ffn/forward_backward/baseline/tiny/f32/batch:8/seq:128"
LOSS = "loss/forward_backward/baseline/tiny/f32/batch:8/seq:128"
NORM = "rms_norm/forward_backward/baseline/tiny/f32/batch:8/seq:128"
STEP = "full_step/train/baseline/tiny/f32/batch:8/seq:128"
PROGRAM = "benchmarks/tiny_llama_bench"

# What a behaviour may say. `trouble` is {case or "start": {"at", "how", "processes"}}: at open,
# time, close or start; how: crash, signal, hang, late, nonsense, zero, endless, skipped, failed,
# error; processes: numbers of those that have it, counted from 1, all where it is not said.
# `between` and `within`: scatter of log seconds between and within processes.
DEFAULTS = {
    "cases": {FFN: 0.010, LOSS: 0.005, NORM: 0.002},
    "factor": {},
    "between": 0.004,
    "within": 0.010,
    "counters": {"operators": 20.0, "allocations": 5.0, "peak_memory_MiB": 3.0},
    "trouble": {},
    "context": {"schema_version": 1, "device": {"name": "fake"}, "threads": 1},
}


def make_build(folder: Path, **behaviour: object) -> Path:
    """A build folder whose program behaves so; its name decides what it draws."""
    program = folder / PROGRAM
    program.parent.mkdir(parents=True, exist_ok=True)
    told = {**DEFAULTS, "name": folder.name, **behaviour}
    (program.parent / "behaviour.json").write_text(json.dumps(told))
    python = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(Path(__file__).resolve()))}"
    # that differs from one build to the next, as programs do
    program.write_text(f'#!/bin/sh\n# {folder}\nexec {python} "$0" "$@"\n')
    program.chmod(0o755)
    return folder


def starts_of(build: Path, file: str = "starts") -> list[dict[str, object]]:
    """Arguments and environment of each of its processes."""
    path = (build / PROGRAM).with_name(file)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def requests_of(build: Path) -> list[dict[str, object]]:
    """All that it was asked, with the number of the process."""
    return starts_of(build, "requests")


class FakeBench:
    def __init__(self, program: Path, arguments: list[str]) -> None:
        self.folder = program.parent
        self.told = json.loads((self.folder / "behaviour.json").read_text())
        kept = ("TINY", "OMP", "GOMP", "KMP", "SIDE")
        environment = {k: v for k, v in os.environ.items() if k.startswith(kept)}
        self.note("starts", {"arguments": arguments, "environment": environment})
        self.process = len((self.folder / "starts").read_text().splitlines())
        self.order = random.Random(f"{self.told['name']} {self.process}")
        self.level = {
            case: seconds * self.told["factor"].get(case, 1.0) * self.scatter("between")
            for case, seconds in self.told["cases"].items()
        }

    def note(self, file: str, line: object) -> None:
        with (self.folder / file).open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def scatter(self, of: str) -> float:
        return self.order.lognormvariate(0, self.told[of])

    def one(self, case: str) -> float:
        """Seconds of an iteration."""
        return self.level[case] * self.scatter("within")

    def answer(self, line: object) -> None:
        print(json.dumps(line), flush=True)

    def is_in_trouble(self, case: str, at: str) -> bool:
        """Does what the trouble says; whether that was all that is to be done."""
        trouble = self.told["trouble"].get(case)
        if not trouble or trouble["at"] != at:
            return False
        if self.process not in trouble.get("processes", [self.process]):
            return False
        how = trouble["how"]
        if how in {"skipped", "failed", "error"}:
            self.answer({how: f"told to be {how}"})
        elif how == "nonsense":
            self.answer(["what?"])
        elif how == "zero":
            self.answer({"seconds": [0.0]})
        elif how == "endless":
            while True:
                sys.stdout.write("x" * 65536)
        elif how == "late":
            # than anybody waits
            time.sleep(5)
            return False
        elif how == "hang":
            # with a child, which has to end as well
            os.fork()
            time.sleep(600)
        elif how == "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        else:
            print("out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        return True

    def serve(self) -> None:
        """Until the end of the input."""
        if self.is_in_trouble("start", "start"):
            return
        context = {**self.told["context"], "process": self.process}
        self.answer({"turns": 1, "cases": list(self.told["cases"]), "context": context})
        for line in sys.stdin:
            request = json.loads(line)
            self.note("requests", {**request, "process": self.process, "at": time.time()})
            case, do = request["case"], request["do"]
            if self.is_in_trouble(case, do):
                continue
            if do == "open":
                counters = {"counters": self.told["counters"]} if request.get("meter") else {}
                self.answer({"opened": case, "seconds": self.one(case), **counters})
            elif do == "time":
                # something else on the machine lengthens one iteration of each slice
                self.answer({"seconds": [self.one(case), 9 * self.one(case), self.one(case)]})
            else:
                self.answer({"closed": case})


if __name__ == "__main__":
    FakeBench(Path(sys.argv[1]), sys.argv[2:]).serve()
