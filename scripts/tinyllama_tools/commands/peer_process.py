"""The process of one peer of scripts/peers, served as docs/serve.md says of tiny_llama_bench.

It times training steps of LlamaForCausalLM one by one, the same work as our full_step: loss over
the S - 1 next tokens, backward, AdamW. Setting the gradients to None is not timed; tokens are drawn
from the same vocabulary. The process lives for a whole run and is idle between its turns.

Its arguments: {"device", "form", "limit": most seconds of a step, "sizes"} in JSON, --threads=N.
The context of its first line has versions, the float32 precision and its error. It has one case
open, the last one, which fails where its first two losses are not those of an eager model. To
`time` it also says cpu_seconds and minor_faults, of each step.
"""

import gc
import importlib
import importlib.metadata
import json
import math
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import torch
import transformers
from torch.nn import functional
from transformers import PreTrainedModel

from tinyllama_tools.core.app import Json
from tinyllama_tools.data.names import CaseName, parse_case_name
from tinyllama_tools.proofs.oracle import build_model

PARAMETERS = {"f32": torch.float32, "bf16": torch.bfloat16, "amp_bf16": torch.float32}
FEWEST_WARM_UP_STEPS = 3
MOST_WARM_UP_STEPS = 30
LONGEST_WARM_UP_SECONDS = 8.0
# Warm-up ends once the last two steps took at least this share of the best time before them.
SETTLED = 0.97
# True float32 GEMMs have a smaller error; bfloat16 inside gives 3e-3, TF32 4e-4.
LARGEST_FLOAT32_ERROR = 1e-5
# Largest relative difference of the loss, before and after the first update, from that of an eager
# model with the same weights and tokens. Up to medium 1e-6 and 3e-4 were seen.
LARGEST_LOSS_ERROR = {"f32": 1e-4, "bf16": 5e-3, "amp_bf16": 5e-3}
# Those of the tool that started us: torch has pinned this thread to one when it was imported.
PROCESSORS = os.sched_getaffinity(os.getppid())
# variables of the environment that malloc and threads depend on begin so
SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "OMP_", "GOMP_", "KMP_", "MKL_", "PJRT_")
# of float32 [M, K] and [N, K]
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def float32_product_error(device: torch.device, products: Sequence[Product]) -> float:
    """The largest error of these float32 GEMMs, relative to the largest element."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(512, 1024, generator=generator).to(device)
    b = torch.randn(256, 1024, generator=generator).to(device)
    exact = a.double() @ b.double().T
    found = (product(a, b).double() for product in products)
    return max(((p - exact).abs().max() / exact.abs().max()).item() for p in found)


def onednn_gemm() -> str:
    """oneDNN's version and which of its implementations computes a GEMM of bfloat16 here, by its
    own log, such as "v3.12.0, brg_matmul:avx512_core_bf16"."""
    if not torch.backends.mkldnn.is_available():
        return "none"
    kept, ones = os.dup(1), torch.ones(64, 64, dtype=torch.bfloat16)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        os.dup2(log.fileno(), 1)
        try:
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                functional.linear(ones, ones)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        log.seek(0)
        said = log.read()
    found = (re.search(r"oneDNN (v\S+)", said), re.search(r",exec,cpu,matmul,([^,]+)", said))
    return ", ".join(match[1] for match in found if match)


def minor_faults() -> int:
    """Page faults of all threads so far that needed no disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


# of a step: seconds by the clock, processor seconds of the thread that runs it, minor page faults
Step = tuple[float, float, int]

# the plainest of peers, whose losses are those of all
EAGER: Json = {"attention": "sdpa", "is_compiled": False, "adamw": "for-loop"}


class TorchStep:
    """Trains the model on `tokens` [B, S]; a call is the timed region of one step. JaxStep is
    another."""

    def __init__(
        self, model: PreTrainedModel, tokens: torch.Tensor, form: Json, is_autocast: bool
    ) -> None:
        model.set_attn_implementation(form["attention"])
        model.train()
        self._forward, self._tokens, self._is_autocast = model, tokens, is_autocast
        if form["is_compiled"]:
            how = {"mode": form.get("mode"), "backend": form.get("library", "inductor")}
            self._forward = torch.compile(model, dynamic=False, **how)
        adamw = {"lr": 1e-3, "foreach": False, "fused": form["adamw"] == "fused"}
        self._optimizer = torch.optim.AdamW(model.parameters(), **adamw)

    def clear(self) -> None:
        """Gradients are none at the begin of a step."""
        self._optimizer.zero_grad(set_to_none=True)

    def loss(self) -> torch.Tensor:
        """Of the weights as they are."""
        with torch.autocast(self._tokens.device.type, torch.bfloat16, enabled=self._is_autocast):
            return self._forward(input_ids=self._tokens, labels=self._tokens).loss

    def __call__(self) -> torch.Tensor:
        """The loss before the update."""
        loss = self.loss()
        loss.backward()
        self._optimizer.step()
        return loss


class Peer:
    """Answers each request by the method of its name; holds one model with its optimizer."""

    def __init__(self, device: str, form: Json, limit: float, sizes: Json) -> None:
        # torch calls AMD's GPUs cuda as well
        self.device = torch.device(device.replace("hip", "cuda"))
        self.form, self.limit, self.sizes = form, limit, sizes
        # imported only where a form asks for it
        self.library, self.used = form.get("library"), {}
        if self.library and self.device.type != "cpu":
            raise ValueError(f"{self.library} runs on the CPU alone")
        if self.library == "jax":
            # Its threads begin here, on all processors, though torch has pinned this one.
            os.environ["PJRT_NPROC"] = str(torch.get_num_threads())
            os.sched_setaffinity(0, PROCESSORS)
            self.jax_step = importlib.import_module("tinyllama_tools.commands.jax_step")
            self.jax_step.start_threads()
        elif self.library:
            importlib.import_module(self.library)
        if self.library:
            self.used["library"] = f"{self.library} {importlib.metadata.version(self.library)}"
        # as our programs do: parts of narrow GEMMs are added up in float32
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def context(self) -> Json:
        """Sets the form's float32 precision, or `highest` where that is not true float32."""
        torch.set_float32_matmul_precision(self.form["precision"])
        # libraries may compute a linear layer, with its weight transposed, by another kernel
        products = [lambda a, b: a @ b.T.contiguous(), functional.linear]
        if self.library == "jax":
            products = [self.jax_step.product]
        error = float32_product_error(self.device, products)
        if error > LARGEST_FLOAT32_ERROR:
            torch.set_float32_matmul_precision("highest")
        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "onednn": onednn_gemm(),
            **self.used,
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
        # Nothing of another shape may be left: dynamo would compile code for any shape.
        self.training = self.loss = None
        torch._dynamo.reset()
        gc.collect()
        expected = self.eager_losses(name)
        # compilers that this thread starts may use all processors, though OpenMP has pinned it
        pinned = os.sched_getaffinity(0)
        os.sched_setaffinity(0, PROCESSORS)
        try:
            self.training = self.prepared(name, self.form)
            self.step()
        finally:
            os.sched_setaffinity(0, pinned)
        losses = [self.loss.item()]
        seconds: list[float] = []
        while len(seconds) < MOST_WARM_UP_STEPS and sum(seconds) < LONGEST_WARM_UP_SECONDS:
            seconds.append(self.step()[0])
            losses.append(self.loss.item())
            is_long_enough = len(seconds) >= FEWEST_WARM_UP_STEPS
            is_settled = is_long_enough and min(seconds[-2:]) >= SETTLED * min(seconds[:-2])
            if seconds[0] > self.limit / 3 or is_settled:
                break
        self.step_seconds = min(seconds)
        if self.step_seconds > self.limit:
            took = f"a step took {self.step_seconds:.1f} s"
            return {"skipped": f"{took}, more than --max-seconds-per-case {self.limit:g}"}
        errors = [abs(ours / right - 1) for ours, right in zip(losses, expected, strict=False)]
        allowed = LARGEST_LOSS_ERROR[name.dtype]
        # NaN is not allowed either
        if not all(error <= allowed for error in errors):
            found = f"the first losses, {losses[:2]}, are not those of an eager model, {expected}"
            return {"failed": f"wrong result: {found}: largest relative error {allowed:g}"}
        return {
            "opened": case,
            "seconds": self.step_seconds,
            "counters": {"loss_error": max(errors)},
        }

    def prepared(self, name: CaseName, form: Json) -> Callable[[], torch.Tensor]:
        """What trains from the weights and on the tokens that all peers have."""
        size = self.sizes[name.size]
        model = build_model(size, PARAMETERS[name.dtype]).to(self.device)
        tokens = torch.randint(0, size["vocab_size"], (name.batch, name.seq)).to(self.device)
        is_autocast = name.dtype == "amp_bf16"
        if form.get("library") == "jax":
            return self.jax_step.JaxStep(model, tokens, is_autocast)
        return TorchStep(model, tokens, form, is_autocast)

    def eager_losses(self, name: CaseName) -> list[float]:
        """Before and after the first update: the second one shows gradients and optimizer too."""
        training = self.prepared(name, EAGER)
        losses = [training().item()]
        with torch.no_grad():
            return [*losses, training.loss().item()]

    def step(self) -> Step:
        """Runs one step and waits for its end. Page faults include those of freeing gradients,
        whose memory a malloc may give back to the system."""
        faults = minor_faults()
        self.training.clear()
        cpu_start, start = time.thread_time(), time.perf_counter()
        self.loss = self.training()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        wall, cpu = time.perf_counter() - start, time.thread_time() - cpu_start
        return wall, cpu, minor_faults() - faults

    def steps_on_gpu(self, steps: int) -> list[Step]:
        """Times steps as our programs do on a GPU: between pairs of events, with one wait at the
        end."""
        timed = []
        for _ in range(steps):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            faults = minor_faults()
            self.training.clear()
            cpu_start = time.thread_time()
            begin.record()
            self.loss = self.training()
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
