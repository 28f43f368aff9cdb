"""A made-up machine for the frontier: a memory law, and a program that plays tiny_llama_bench."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from tinyllama_tools.case_costs import CaseCost, DryRun
from tinyllama_tools.frontier.command import main
from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.suite_run import SuiteError

MIB, GIB = 2**20, 2**30
ONE_LINE = ("tiny", "--variants=baseline", "--dtypes=f32", "--seq=256", "--memory-limit=512MiB")
WEIGHTS = {
    "tiny": 48 * MIB,
    "small": 400 * MIB,
    "medium": 2 * GIB,
    "large": 30 * GIB,
    "very_large": 200 * GIB,
}
# What plan.cpp says of a step whose costs are beyond 64 bits.
UNCOUNTED = "a step would need more than 4e18 FLOPs, which the cost formulas do not count"


def step_bytes(size: str, variant: str, dtype: str, batch: int, seq: int) -> int:
    """A weight's share, and activations with scores, which the baseline keeps: with a kink, where
    the update is the higher peak, as the real one has."""
    element = 4 if dtype == "f32" else 2
    scores = 40 * seq**2 if variant == "baseline" else 0
    activations = batch * (element * 3000 * seq + element * scores)
    weights = WEIGHTS[size] * element // 4
    return max(weights * 5 // 4, weights + activations)


def largest_by_trial(limit: float, size: str, variant: str, dtype: str, **given: int) -> int:
    """The answer, found one by one; `given` is seq=... or batch=..."""
    searched = "batch" if "seq" in given else "seq"
    value = 0
    while step_bytes(size, variant, dtype, **given, **{searched: value + 1}) <= limit:
        value += 1
    return value


@dataclass
class PlayedAsker:
    """Answers from the law and remembers what it was asked. `refused`: reasons by variant;
    `most_tokens`: of a step whose costs can be counted; `device`, `git_commit`: as it says them."""

    free: int = 4 * GIB
    most_tokens: int = 2**30
    device: str = ""
    git_commit: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    questions: list[dict[str, list[str]]] = field(default_factory=list)

    def __call__(self, options: Sequence[str]) -> DryRun:
        given = dict(option.removeprefix("--").split("=") for option in options)
        axes = {name: value.split(",") for name, value in given.items()}
        self.questions.append(axes)
        shapes = [(int(b), int(s)) for b, s in product(axes["batch"], axes["seq"])]
        if any(s < 2 for _, s in shapes):
            raise AssertionError("the next-token loss needs at least 2 tokens a sample")
        if any(b * s > self.most_tokens for b, s in shapes):
            raise SuiteError(UNCOUNTED)
        cases = [
            self.cost(CaseName("full_step", "train", variant, size, dtype, batch, seq))
            for size, variant, dtype, (batch, seq) in product(
                axes["sizes"],
                axes.get("variants", ["baseline"]),
                axes.get("dtypes", ["f32"]),
                shapes,
            )
        ]
        device = {"name": self.device} if self.device else {}
        free = (self.free, "free on the device")
        return DryRun(*free, tuple(cases), device, self.git_commit)

    def cost(self, name: CaseName) -> CaseCost:
        needed = step_bytes(name.size, name.variant, name.dtype, name.batch, name.seq)
        reason = f"predicted peak memory {needed} exceeds" if needed > self.free else ""
        reason = self.refused.get(name.variant, reason)
        return CaseCost(name, 1, 1, 1, 1, 1, 1, needed, not reason, reason)


# Memory of a step: weights + batch (linear S + quadratic S²), as predicted; what a step really
# takes is `truth` times that. Beyond the limit it ends as `ending` says.
PROGRAM = """#!{python} -IS
import json, os, signal, sys, time
LAW = {law}
options = dict(a[2:].split("=", 1) if "=" in a else (a[2:], "") for a in sys.argv[1:])
LOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls")
with open(LOG, "a") as log:
    log.write(json.dumps(options) + "\\n")

def split(name, default):
    return options.get(name, default).split(",")

def named(variant, size, dtype, batch, seq):
    return f"full_step/train/{{variant}}/{{size}}/{{dtype}}/batch:{{batch}}/seq:{{seq}}"

shapes = [
    (variant, size, dtype, int(batch), int(seq))
    for size in split("sizes", "tiny") for batch in split("batch", "8")
    for seq in split("seq", "128") for dtype in split("dtypes", "f32")
    for variant in split("variants", "baseline")
]

def needed(batch, seq):
    return LAW["weights"] + batch * (LAW["linear"] * seq + LAW["quadratic"] * seq * seq)

if "dry-run" in options:
    cases = []
    for *names, batch, seq in shapes:
        numbers = ("parameters", "model_flops", "causal_flops", "hardware_flops",
                   "elementwise_flops", "bytes")
        cases.append({{"name": named(*names, batch, seq), **dict.fromkeys(numbers, 1),
                      "predicted_memory_bytes": needed(batch, seq), "fits": True, "reason": ""}})
    print(json.dumps({{"memory_budget_bytes": LAW["free"],
                      "memory_budget_source": "free on the device", "cases": cases}}))
    sys.exit(0)

((variant, size, dtype, batch, seq),) = shapes
limit = int(options["memory-limit"])
peak = LAW["truth"] * needed(batch, seq)
row = {{"run_name": named(variant, size, dtype, batch, seq) + "/manual_time",
       "run_type": "iteration", "repetition_index": 0, "real_time": 1.0, "time_unit": "ms",
       "peak_memory_MiB": peak / 2**20, "predicted_memory_MiB": needed(batch, seq) / 2**20}}
assert options["admit"] == "all" and options["verify"] == "off", options
status = 0
if peak > limit:
    if LAW["ending"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if LAW["ending"] == "hangs":
        time.sleep(60)
    if LAW["ending"] == "fails":
        words = "out of memory: CPU memory: no room for 7 bytes"
    else:
        words = LAW["ending"]
    row.update(error_occurred=True, error_message=words)
    status = 1
with open(options["benchmark_out"], "w") as out:
    json.dump({{"context": {{"schema_version": 3}}, "benchmarks": [row]}}, out)
sys.exit(status)
"""
LINEAR, QUADRATIC, PLAYED_WEIGHTS = 20_000, 40, 50 * MIB


def played_bytes(batch: int, seq: int) -> int:
    """What the program predicts of a step, of whatever size."""
    return PLAYED_WEIGHTS + batch * (LINEAR * seq + QUADRATIC * seq**2)


def played_largest(limit: float, seq: int, truth: float = 1.0) -> int:
    """The largest batch of the program's law."""
    return math.floor((limit / truth - PLAYED_WEIGHTS) / (played_bytes(1, seq) - PLAYED_WEIGHTS))


def played_program(
    build: Path, truth: float = 1.0, ending: str = "fails", free: int = 2 * GIB
) -> Path:
    """Writes the program where a build folder has it. `ending`: fails, killed, hangs, or the words
    of another failure."""
    path = build / "benchmarks" / "tiny_llama_bench"
    path.parent.mkdir(parents=True)
    law = {"weights": PLAYED_WEIGHTS, "linear": LINEAR, "quadratic": QUADRATIC}
    law |= {"truth": truth, "ending": ending, "free": free}
    path.write_text(PROGRAM.format(python=sys.executable, law=law), encoding="utf-8")
    path.chmod(0o755)
    return path


def tried_batches(build: Path) -> list[int]:
    """Batches that the program was made to run, in order."""
    calls = (build / "benchmarks" / "calls").read_text().splitlines()
    found = [json.loads(line) for line in calls]
    return [int(options["batch"]) for options in found if "dry-run" not in options]


def result_file(path: Path, *ratios: float) -> Path:
    """Measured training steps that took so much more than was predicted."""
    rows = [
        {
            "run_name": f"full_step/train/baseline/tiny/f32/batch:{batch}/seq:128/manual_time",
            "run_type": "iteration",
            "repetition_index": 0,
            "real_time": 1.0,
            "time_unit": "ms",
            "peak_memory_MiB": 100 * ratio,
            "predicted_memory_MiB": 100.0,
        }
        for batch, ratio in enumerate(ratios, start=1)
    ]
    context = {"schema_version": 3, "device": {"name": "card"}, "git_commit": "0123456789"}
    path.write_text(json.dumps({"context": context, "benchmarks": rows}), encoding="utf-8")
    return path


def run_frontier(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, frontier.json and frontier.md."""
    places = (f"--results={tmp_path / 'r'}", f"--build-folder={tmp_path / 'build'}")
    status = main([*options, *places])
    (folder,) = (tmp_path / "r").glob("*_frontier")
    document = json.loads((folder / "frontier.json").read_text())
    return status, document, (folder / "frontier.md").read_text()
