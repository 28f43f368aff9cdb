"""One peer's process: does what it is told, a line of JSON in and a line of JSON out.

It stays for a whole run, so that torch is loaded once and compiled code stays while the sides take
turns; between its turns it waits for its standard input and computes nothing. Started by
peer_process.py:

  {"do": "hello", "form": {...}, "threads": 2}         -> versions, precision and its error
  {"do": "build", "size": {...}, "dtype", "batch", "seq"} -> {"seconds"} of the first step
  {"do": "warm_up", "limit": 10.0}                     -> {"seconds": [...]}
  {"do": "time", "steps": 5}                           -> {"seconds", "cpu_seconds"}, lists

An answer of {"error": "..."} means that this was not done; the process goes on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

# before torch is loaded, which pins this thread to one processor
PROCESSORS = os.sched_getaffinity(0)

import torch  # noqa: E402
import transformers  # noqa: E402

from tinyllama_tools.peer_forms import PeerForm  # noqa: E402
from tinyllama_tools.peer_step import PeerStep, choose_precision  # noqa: E402

Json = dict[str, Any]


def preloaded() -> list[str]:
    """Names of the libraries of LD_PRELOAD that are really loaded."""
    wanted = os.environ.get("LD_PRELOAD", "").split()
    maps = Path("/proc/self/maps")
    loaded = maps.read_text(encoding="utf-8") if maps.is_file() else ""
    return [name for name in wanted if Path(name).name in loaded]


class PeerServer:
    """The form that this process has, and the step that it has built."""

    def __init__(self) -> None:
        self.form: PeerForm | None = None
        self.current: PeerStep | None = None

    def hello(self, request: Json) -> Json:
        self.form = PeerForm(**request["form"])
        torch.set_num_threads(request["threads"])
        precision, error = choose_precision(self.form.precision)
        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": sys.version.split()[0],
            "threads": torch.get_num_threads(),
            "float32_matmul_precision": precision,
            "float32_product_error": error,
            "preloaded": preloaded(),
        }

    def build(self, request: Json) -> Json:
        if self.form is None:
            raise ValueError("build: must come after hello")
        self.current = None
        shape = (request["dtype"], request["batch"], request["seq"])
        step = PeerStep(self.form, request["size"], *shape)
        seconds = step.compile(PROCESSORS)
        self.current = step
        return {"seconds": seconds}

    def _step(self) -> PeerStep:
        if self.current is None:
            raise ValueError("nothing is built")
        return self.current

    def warm_up(self, request: Json) -> Json:
        return {"seconds": self._step().warm_up(request["limit"])}

    def time(self, request: Json) -> Json:
        step = self._step()
        # memory and caches were the others' meanwhile; a process of ours warms up as well
        step.step()
        times = [(step.step(), step.cpu_seconds) for _ in range(request["steps"])]
        wall, cpu = zip(*times, strict=True)
        return {"seconds": wall, "cpu_seconds": cpu, "loss": step.loss}

    def answer(self, request: Json) -> Json:
        """Does what is asked; what goes wrong is the answer's `error`."""
        known: dict[str, Callable[[Json], Json]] = {
            "hello": self.hello,
            "build": self.build,
            "warm_up": self.warm_up,
            "time": self.time,
        }
        try:
            return known[request["do"]](request)
        except Exception as error:
            text = str(error).strip().splitlines() or [""]
            return {"error": f"{type(error).__name__}: {text[0]}"}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Until the requests end."""
    server = PeerServer()
    for line in requests:
        answers.write(json.dumps(server.answer(json.loads(line))) + "\n")
        answers.flush()


def main() -> None:
    """Keeps standard output for answers: what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
