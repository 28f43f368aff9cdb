"""The process of one peer of scripts/peers, served as docs/serve.md says of tiny_llama_bench.

It times training steps of LlamaForCausalLM one by one, the same work as our full_step: loss over
the S - 1 next tokens, backward, AdamW. Setting the gradients to None is not timed; tokens are drawn
from the same vocabulary. The process lives for a whole run and is idle between its turns.

Its arguments: {"device", "form", "limit": most seconds of a step, "sizes"} in JSON, --threads=N.
The context of its first line has versions, the float32 precision and its error. It has one case
open, the last one. To `time` it also says cpu_seconds and minor_faults, of each step.
"""

import gc
import json
import math
import os
import resource
import sys
import time

import torch
import transformers
from torch.nn import functional

from tinyllama_tools.core.app import Json
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.proofs.oracle import build_model

PARAMETERS = {"f32": torch.float32, "bf16": torch.bfloat16, "amp_bf16": torch.float32}
FEWEST_WARM_UP_STEPS = 3
MOST_WARM_UP_STEPS = 30
LONGEST_WARM_UP_SECONDS = 8.0
# Warm-up ends once the last two steps took at least this share of the best time before them.
SETTLED = 0.97
# True float32 GEMMs have a smaller error; bfloat16 inside gives 3e-3, TF32 4e-4.
LARGEST_FLOAT32_ERROR = 1e-5
# before torch pins this thread to one processor
PROCESSORS = os.sched_getaffinity(0)
# variables of the environment that malloc and threads depend on begin so
SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "OMP_", "GOMP_", "KMP_", "MKL_")


def float32_product_error(device: torch.device) -> float:
    """The largest error of float32 GEMMs, relative to the largest element: of a plain GEMM and of a
    linear layer with its weight transposed, which libraries may compute by different kernels."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(512, 1024, generator=generator).to(device)
    b = torch.randn(256, 1024, generator=generator).to(device)
    exact = a.double() @ b.double().T
    products = (a @ b.T.contiguous(), functional.linear(a, b))
    return max(((p.double() - exact).abs().max() / exact.abs().max()).item() for p in products)


def minor_faults() -> int:
    """Page faults of all threads so far that needed no disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


# of a step: seconds by the clock, processor seconds of the thread that runs it, minor page faults
Step = tuple[float, float, int]


class Peer:
    """Answers each request by the method of its name; holds one model with its optimizer."""

    def __init__(self, device: str, form: Json, limit: float, sizes: Json) -> None:
        # torch calls AMD's GPUs cuda as well
        self.device = torch.device(device.replace("hip", "cuda"))
        self.form, self.limit, self.sizes = form, limit, sizes
        # as our programs do: parts of narrow GEMMs are added up in float32
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def context(self) -> Json:
        """Sets the form's float32 precision, or `highest` where that is not true float32."""
        torch.set_float32_matmul_precision(self.form["precision"])
        error = float32_product_error(self.device)
        if error > LARGEST_FLOAT32_ERROR:
            torch.set_float32_matmul_precision("highest")
        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": sys.version.split()[0],
            "threads": torch.get_num_threads(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "float32_product_error": error,
            "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(SETTINGS)},
        }

    def open(self, case: str) -> Json:
        """Builds the model, compiles it where the form says so, and warms up until step times
        settle. Where a step takes more than a third of the limit, one is enough."""
        name = parse_case_name(case)
        size, dtype = self.sizes[name.size], name.dtype
        # Nothing of another shape may be left: dynamo would compile code for any shape.
        self.forward = self.optimizer = self.loss = None
        torch._dynamo.reset()
        gc.collect()
        model = build_model(size, PARAMETERS[dtype]).to(self.device)
        model.set_attn_implementation(self.form["attention"])
        model.train()
        self.forward = model
        if self.form["is_compiled"]:
            self.forward = torch.compile(model, dynamic=False, mode=self.form.get("mode"))
        is_fused = self.form["adamw"] == "fused"
        adamw = {"lr": 1e-3, "foreach": False, "fused": is_fused}
        self.optimizer = torch.optim.AdamW(model.parameters(), **adamw)
        self.autocast = dtype == "amp_bf16"
        self.tokens = torch.randint(0, size["vocab_size"], (name.batch, name.seq)).to(self.device)
        # compilers that this thread starts may use all processors, though OpenMP has pinned it
        pinned = os.sched_getaffinity(0)
        os.sched_setaffinity(0, PROCESSORS)
        try:
            self.step()
        finally:
            os.sched_setaffinity(0, pinned)
        seconds: list[float] = []
        while len(seconds) < MOST_WARM_UP_STEPS and sum(seconds) < LONGEST_WARM_UP_SECONDS:
            seconds.append(self.step()[0])
            is_long_enough = len(seconds) >= FEWEST_WARM_UP_STEPS
            is_settled = is_long_enough and min(seconds[-2:]) >= SETTLED * min(seconds[:-2])
            if seconds[0] > self.limit / 3 or is_settled:
                break
        self.step_seconds = min(seconds)
        if self.step_seconds > self.limit:
            took = f"a step took {self.step_seconds:.1f} s"
            return {"skipped": f"{took}, more than --max-seconds-per-case {self.limit:g}"}
        return {"opened": case, "seconds": self.step_seconds}

    def step(self) -> Step:
        """Runs one step and waits for its end. Page faults include those of freeing gradients,
        whose memory a malloc may give back to the system."""
        faults = minor_faults()
        self.optimizer.zero_grad(set_to_none=True)
        cpu_start, start = time.thread_time(), time.perf_counter()
        self.work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        wall, cpu = time.perf_counter() - start, time.thread_time() - cpu_start
        return wall, cpu, minor_faults() - faults

    def work(self) -> None:
        """The timed region."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            self.loss = self.forward(input_ids=self.tokens, labels=self.tokens).loss
        self.loss.backward()
        self.optimizer.step()

    def steps_on_gpu(self, steps: int) -> list[Step]:
        """Times steps as our programs do on a GPU: between pairs of events, with one wait at the
        end."""
        timed = []
        for _ in range(steps):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            faults = minor_faults()
            self.optimizer.zero_grad(set_to_none=True)
            cpu_start = time.thread_time()
            begin.record()
            self.work()
            end.record()
            cpu = time.thread_time() - cpu_start
            timed.append((begin, end, cpu, minor_faults() - faults))
        torch.cuda.synchronize(self.device)
        return [(begin.elapsed_time(end) / 1e3, *rest) for begin, end, *rest in timed]

    def time(self, case: str, seconds: float) -> Json:
        """Times as many steps as take so long by the warm-up, after one more for warm-up: the other
        sides have used memory and caches since, and our processes warm up too."""
        del case
        steps = math.ceil(seconds / self.step_seconds)
        self.step()
        on_gpu = self.device.type == "cuda"
        times = self.steps_on_gpu(steps) if on_gpu else [self.step() for _ in range(steps)]
        wall, cpu, faults = zip(*times, strict=True)
        loss = self.loss.item()
        return {"seconds": wall, "cpu_seconds": cpu, "minor_faults": faults, "loss": loss}


def said_by(error: Exception) -> str:
    """Its first line: those of libtorch have many."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def main() -> None:
    """Answers requests on standard output; what libraries print there goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: Json) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    asked, threads = sys.argv[1:3]
    torch.set_num_threads(int(threads.removeprefix("--threads=")))
    try:
        peer = Peer(**json.loads(asked))
        context = peer.context()
    except Exception as error:
        sys.exit(said_by(error))
    say({"turns": 1, "cases": [], "context": context})
    for line in sys.stdin:
        request = json.loads(line)
        given = {key: request[key] for key in ("case", "seconds") if key in request}
        try:
            answer = getattr(peer, request["do"])(**given)
        except Exception as error:
            answer = {"failed": said_by(error)}
        say(answer)


if __name__ == "__main__":
    main()
