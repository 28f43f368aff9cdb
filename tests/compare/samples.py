"""Made-up result files, blocks on a clock of their own, and `scripts/compare` as a user would run
it, in this process."""

import copy
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from built_programs import read_json, write_json
from fake_bench import FFN, LOSS, NORM, STEP
from fake_training import made_up_summary
from published import MEASURED
from tinyllama_tools.compare.blocks import NEW, SIDES
from tinyllama_tools.compare.sides import ServedProcess
from tools import compare

Json = dict[str, Any]
ATTENTION, EMBEDDING = (FFN.replace("ffn", name) for name in ("attention", "embedding"))
OPTIMIZER = STEP.replace("full_step/train", "optimizer/update")
# seconds of a step that adds up, with four layers
TIMES = {EMBEDDING: 0.0002, NORM: 0.0005, ATTENTION: 0.009, FFN: 0.008, LOSS: 0.006}
TIMES |= {OPTIMIZER: 0.0033, STEP: 0.0820}
COUNTERS = {"samples_per_second": 1000.0, "TFLOPS": 0.2, "MFU_percent": 40.0}
COUNTERS |= {"peak_memory_MiB": 12.5, "allocations": 29.0, "operators": 74.0}
COUNTERS |= {"model_flops": 1e9, "parameters": 256.0}
MEASURED_CONTEXT = read_json(MEASURED)["context"]
CONTEXT: Mapping[str, Any] = MEASURED_CONTEXT | {
    "date": "2026-01-02T03:04:05+00:00",
    "git_commit": "a" * 40,
    "device": MEASURED_CONTEXT["device"] | {"name": "Some CPU", "architecture": "x86-64 AVX2"},
    "settings": {"torch_threads": "2"},
    "peaks": {
        "measured": {
            "f32": {"flops_per_second": 3e11, "source": "product"},
            "bandwidth_curve": [{"bytes": 1 << 20, "bytes_per_second": 2e11, "source": "triad"}],
        }
    },
}


def entry(name: str, seconds: float, index: int = 0, **more: object) -> Json:
    """One repetition as Google Benchmark writes it."""
    named = {"name": f"{name}/manual_time", "run_name": f"{name}/manual_time"}
    kind = {"run_type": "iteration", "repetition_index": index, "repetitions": 3}
    times = {"real_time": 1e3 * seconds, "cpu_time": 1e3 * seconds, "time_unit": "ms"}
    return {**named, **kind, **times, "threads": 1, "iterations": 10, **more}


def stopped(name: str, *, skipped: str = "", failed: str = "") -> Json:
    """The one entry of a case without times."""
    if skipped:
        return entry(name, 0.0, skipped=True, skip_message=skipped)
    return entry(name, 0.0, error_occurred=True, error_message=failed)


def document(
    times: Mapping[str, float],
    *,
    context: Mapping[str, Any] | None = None,
    counters: Mapping[str, Mapping[str, float]] | None = None,
    more: Sequence[Json] = (),
) -> Json:
    """A result file, its repetitions a percent apart. `counters`: of a case, other than COUNTERS.
    `more`: entries."""
    entries = [
        entry(
            name, seconds * (0.99 + 0.01 * i), i, **{**COUNTERS, **(counters or {}).get(name, {})}
        )
        for name, seconds in times.items()
        for i in range(3)
    ]
    whole = copy.deepcopy(dict(CONTEXT)) | dict(context or {})
    return {"context": whole, "benchmarks": [*entries, *more]}


def write_runs(
    folder: Path, side: str, files: int, times: Mapping[str, float], *, scatter: float = 0.005
) -> list[Path]:
    """Files of one side, whose times scatter between them; seeded by the side's name."""
    rng = np.random.default_rng(sum(map(ord, side)))
    drawn = [
        {n: s * math.exp(rng.normal(0, scatter)) for n, s in times.items()} for _ in range(files)
    ]
    return [write_json(folder / f"{side}_{i}.json", document(t)) for i, t in enumerate(drawn)]


def summary(factor: float = 1.0, **changes: object) -> Json:
    """Of a training run without profilers whose times are `factor` times the made-up ones."""
    found = made_up_summary(profilers=())
    for step in found["steps"]:
        step |= {k: factor * v for k, v in step.items() if k.endswith("_seconds")}
    found["configuration"] |= changes
    return found


# few blocks, so that a run takes a second
QUICK = ("--alpha=0.02", "--margin=0.05", "--looks=1", "--pairs=4", "--seed=5")


class Found:
    """What `scripts/compare` wrote into a folder with these arguments."""

    def __init__(self, output: Path, *arguments: object) -> None:
        self.status = compare([*map(str, arguments), f"--out={output}"])
        file = output / "comparison.json"
        self.document: Json = read_json(file) if file.exists() else {}
        self.warnings: list[str] = self.document.get("warnings", [])
        self.cases: dict[str, Json] = {c["name"]: c for c in self.document.get("cases", [])}
        self.outcomes = {name: case["outcome"] for name, case in self.cases.items()}


def ran(base: Path, new: Path, output: Path, *more: str) -> Found:
    """`compare run` between two builds."""
    return Found(output, "run", f"--base={base}", f"--new={new}", *QUICK, *more)


def cut_wait_short(monkeypatch: pytest.MonkeyPatch, side: str, what: str) -> None:
    """Where this side's answer to `what` never comes; the limit of all others can then be long,
    since on a busy machine the start of a healthy program alone may take seconds."""
    line = ServedProcess._line

    def short(process: ServedProcess, asked: str) -> bytes:
        if (process.name, asked) == (side, what):
            process._limit = 0.3
        return line(process, asked)

    monkeypatch.setattr(ServedProcess, "_line", short)


def failed(block: int, case: str, side: str = NEW) -> Json:
    return {"block": block, "case": case, "failed": {"side": side, "reason": f"crash {block}"}}


def skipped(case: str) -> Json:
    return {"skipped": case, "side": NEW, "reason": "too large"}


@dataclass
class Played:
    """In place of Interleaved and of its clock: draws blocks, and lets time pass. `seconds`: of the
    base, by case; `factors`: new / base, if not 1; `scatter`: of log-ratios between blocks, if not
    that of `between`. `events`: what comes in place of a case of a block, of block 0 of its opening
    in the new. A block takes a second for its start and for each case what `cost` says of its
    number and the case."""

    seconds: Mapping[str, float]
    factors: Mapping[str, float] = field(default_factory=dict)
    scatter: Mapping[str, float] = field(default_factory=dict)
    events: Mapping[tuple[int, str], Json | type[BaseException]] = field(default_factory=dict)
    between: float = 0.001
    pairs: int = 4
    cost: Callable[[int, str], float] = lambda *_: 1.0
    opening: float = 0.0
    seed: int = 0
    now: float = 0.0
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def open_once(self, cases: Collection[str], *, verify: bool) -> Iterator[Json]:
        assert verify
        self.now += self.opening
        for case in cases:
            for side in SIDES:
                opened = {"opened": case, "side": side, "seconds": 0.01, "counters": {}}
                event = self.events.get((0, case)) if side == NEW else None
                yield {**(event or opened), "at": self.now}

    def measure(self, index: int, cases: Collection[str]) -> Iterator[Json]:
        self.asked.append(list(cases))
        self.now += 1.0
        # in another order each time, as they come in truth
        for case in random.Random(index).sample(list(cases), len(cases)):
            event = self.events.get((index, case))
            if event is KeyboardInterrupt:
                raise KeyboardInterrupt
            self.now += self.cost(index, case)
            yield {**(event or self.block(case, index)), "block": index, "at": self.now}

    def block(self, case: str, index: int) -> Json:
        order = random.Random(f"{self.seed} {case} {index}")
        # a machine that wanders, alike for both
        level = self.seconds[case] * math.exp(0.2 * math.sin(index / 7))
        ratio = self.factors.get(case, 1.0)
        ratio *= order.lognormvariate(0, self.scatter.get(case, self.between))
        slices = [
            [side * level * order.lognormvariate(0, self.between) for _ in range(self.pairs)]
            for side in (1.0, ratio)
        ]
        sides = dict(zip(SIDES, slices, strict=True))
        return {"block": index, "case": case, **sides, "first": [0] * self.pairs}
