"""One peer's process, which holds torch: a line of JSON in and a line of JSON out.

Training steps of LlamaForCausalLM in one of its forms, timed one by one.

The same work as our full_step: loss over the S - 1 next tokens, backward, AdamW; gradients are set
to none before each step outside the timed region, tokens come from the same vocabulary.

One peer's process: does what it is told, a line of JSON in and a line of JSON out.

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

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO

import torch
import transformers
from torch.nn import functional

from tinyllama_tools.commands.peer_forms import FOR_LOOP, HIGHEST, PeerForm
from tinyllama_tools.core.app import Json
from tinyllama_tools.proofs.oracle import Size, build_model

PARAMETERS = {"f32": torch.float32, "bf16": torch.bfloat16, "amp_bf16": torch.float32}
AUTOCAST = {"amp_bf16": torch.bfloat16}
# A product of true float32 is off by less; bfloat16 inside gives 3e-3, TF32 4e-4.
LARGEST_FLOAT32_ERROR = 1e-5
FEWEST_WARM_UP_STEPS = 3
MOST_WARM_UP_STEPS = 30
LONGEST_WARM_UP_SECONDS = 8.0
# Settled: the last two steps were no faster than this share of the best before them.
SETTLED = 0.97


def float32_product_error(inner: int = 1024) -> float:
    """Largest difference of float32 GEMMs from float64, over the largest element.

    Of a plain product and of a linear layer with its weight transposed, which may go different
    ways.
    """
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(512, inner, generator=generator)
    b = torch.randn(256, inner, generator=generator)
    exact = a.double() @ b.double().T
    products = (a @ b.T.contiguous(), functional.linear(a, b))
    errors = [(p.double() - exact).abs().max() / exact.abs().max() for p in products]
    return max(error.item() for error in errors)


def choose_precision(wanted: str) -> tuple[str, float]:
    """Sets the wanted float32 matmul precision, or `highest` where that is not true float32.

    Returns the one that is set, and the error that the wanted one had.
    """
    torch.set_float32_matmul_precision(wanted)
    error = float32_product_error()
    if error <= LARGEST_FLOAT32_ERROR:
        return wanted, error
    torch.set_float32_matmul_precision(HIGHEST)
    return HIGHEST, error


@contextlib.contextmanager
def all_processors(processors: set[int]) -> Iterator[None]:
    """Lets the compilers that this thread starts run anywhere; OpenMP has pinned the thread."""
    pinned = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, pinned)


class PeerStep:
    """One model with its optimizer at one shape."""

    def __init__(self, form: PeerForm, size: Size, dtype: str, batch: int, seq: int) -> None:
        # Nothing of another shape may be left: dynamo would make its code work for both.
        torch._dynamo.reset()
        gc.collect()
        self.autocast = AUTOCAST.get(dtype)
        model = build_model(size, PARAMETERS[dtype])
        model.set_attn_implementation(form.attention)
        model.train()
        self.forward: Callable[..., object] = model
        if form.is_compiled:
            self.forward = torch.compile(
                model, dynamic=False, options=dict(form.inductor) if form.inductor else None
            )
        for_loop = {"foreach": False, "fused": False}
        adamw = for_loop if form.adamw == FOR_LOOP else {"fused": True}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **adamw)
        self.tokens = torch.randint(0, size["vocab_size"], (batch, seq))
        self.loss = 0.0
        # of the last step: by the clock, and of the thread that runs it
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def _mode(self) -> AbstractContextManager[object]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast("cpu", self.autocast)

    def step(self) -> float:
        """Seconds of one step."""
        self.optimizer.zero_grad(set_to_none=True)
        cpu_start = time.thread_time()
        start = time.perf_counter()
        with self._mode():
            loss = self.forward(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        self.optimizer.step()
        self.seconds = time.perf_counter() - start
        self.cpu_seconds = time.thread_time() - cpu_start
        self.loss = loss.item()
        return self.seconds

    def compile(self, processors: set[int]) -> float:
        """Seconds of the first step, which compiles where the form says so."""
        with all_processors(processors):
            return self.step()

    def warm_up(self, limit: float) -> list[float]:
        """Seconds of steps until they settle; of one step where that takes more than `limit` / 3.

        What was slow to warm up is slow enough to be timed as it is.
        """
        seconds: list[float] = []
        while len(seconds) < MOST_WARM_UP_STEPS and sum(seconds) < LONGEST_WARM_UP_SECONDS:
            seconds.append(self.step())
            if seconds[0] > limit / 3 or is_settled(seconds):
                break
        return seconds


def is_settled(seconds: list[float]) -> bool:
    """Whether the steps have stopped becoming faster."""
    if len(seconds) < FEWEST_WARM_UP_STEPS:
        return False
    return min(seconds[-2:]) >= SETTLED * min(seconds[:-2])


# before torch is loaded, which pins this thread to one processor
PROCESSORS = os.sched_getaffinity(0)


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
