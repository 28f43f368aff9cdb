"""A made-up machine that times every part of a training step by known rates.

The cost formulas are those of the layers of model/ for the baseline in float32; a test holds
them to the counters of a real result file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.data.results import MeasuredCase, ResultSet

SIZES = problem_sizes()
MIB = 2**20
VALUE = 4  # bytes of a float32
PARTS = ("embedding", "rms_norm", "attention", "ffn", "loss", "optimizer")
BLOCK = {"attention": 1, "ffn": 1, "rms_norm": 2}
PASSES = {"optimizer": "update", "full_step": "train"}
# as the baseline dispatches them
OPERATORS = {"embedding": 21, "rms_norm": 74, "attention": 340, "ffn": 170, "loss": 67}
OPERATORS_A_WEIGHT = 28
Figures = dict[str, int]


def named(component: str, size: str, batch: int, seq: int) -> CaseName:
    """A case of the baseline in float32."""
    pass_name = PASSES.get(component, "forward_backward")
    return CaseName(component, pass_name, "baseline", size, "f32", batch, seq)


def _figures(parameters: int, products: int, elementwise: int, traffic: int) -> Figures:
    return {
        "parameters": parameters,
        "model_flops": products,
        "hardware_flops": products,
        "elementwise_flops": elementwise,
        "bytes": traffic,
    }


def part_figures(component: str, size: str, batch: int, seq: int) -> Figures:
    """Forward and backward of one part, or the update, by the layers of model/."""
    s = SIZES[size]
    hidden, vocab, inner, heads = (
        s[key] for key in ("hidden_dim", "vocab_size", "intermediate_dim", "n_heads")
    )
    kv = hidden // heads * s["n_kv_heads"]
    tokens = batch * seq
    stream = tokens * hidden * VALUE
    attention = hidden * (2 * hidden + 2 * kv)
    ffn = 3 * hidden * inner
    scores = batch * heads * seq * seq
    if component == "embedding":
        rows = min(vocab, tokens) * hidden * VALUE
        traffic = 2 * (8 * tokens + stream) + rows + vocab * hidden * VALUE
        return _figures(vocab * hidden, 0, tokens * hidden, traffic)
    if component == "rms_norm":
        traffic = 5 * stream + 3 * hidden * VALUE + 8 * tokens
        return _figures(hidden, 0, tokens * (12 * hidden + 5), traffic)
    if component == "attention":
        saved = 2 * stream + 2 * tokens * kv * VALUE + 4 * batch * heads * seq
        return _figures(
            attention,
            6 * tokens * attention + 12 * batch * seq * seq * hidden,
            6 * tokens * (hidden + kv) + 2 * tokens * hidden + 10 * scores,
            5 * stream + 3 * attention * VALUE + 2 * saved,
        )
    if component == "ffn":
        traffic = 5 * stream + 3 * ffn * VALUE + 4 * tokens * inner * VALUE
        return _figures(ffn, 6 * tokens * ffn, 15 * tokens * inner, traffic)
    if component == "loss":
        traffic = 3 * (stream + vocab * hidden * VALUE) + 24 * tokens + 4
        elementwise = 8 * batch * (seq - 1) * vocab
        return _figures(vocab * hidden, 6 * tokens * hidden * vocab, elementwise, traffic)
    layer = attention + ffn + 2 * hidden
    parameters = 2 * vocab * hidden + hidden + s["n_layers"] * layer
    return _figures(parameters, 0, 14 * parameters, 7 * parameters * VALUE)


def counts(size: str) -> dict[str, int]:
    """How often a step contains each part."""
    layers = SIZES[size]["n_layers"]
    return dict.fromkeys(PARTS, 1) | {
        "attention": layers,
        "ffn": layers,
        "rms_norm": 2 * layers + 1,
    }


def step_figures(size: str, batch: int, seq: int) -> Figures:
    """Of the whole step: the sum over its parts, on the optimizer's parameters."""
    total = _figures(0, 0, 0, 0)
    for component, count in counts(size).items():
        for key, value in part_figures(component, size, batch, seq).items():
            total[key] += count * value
    parameters = part_figures("optimizer", size, batch, seq)["parameters"]
    return total | {"parameters": parameters}


def figures(component: str, size: str, batch: int, seq: int) -> Figures:
    """Of a part, of a block (without its residual additions) or of the step."""
    if component == "full_step":
        return step_figures(size, batch, seq)
    if component == "block":
        found = {part: part_figures(part, size, batch, seq) for part in BLOCK}
        return {key: sum(n * found[part][key] for part, n in BLOCK.items()) for key in found["ffn"]}
    return part_figures(component, size, batch, seq)


def operators(component: str, size: str) -> float:
    """Of a part; the optimizer's by the weights that the size has."""
    if component == "optimizer":
        return OPERATORS_A_WEIGHT * (9 * SIZES[size]["n_layers"] + 3)
    if component == "block":
        return sum(count * OPERATORS[part] for part, count in BLOCK.items())
    return OPERATORS[component]


def cost(component: str, size: str, batch: int, seq: int, **changes: Any) -> CaseCost:  # noqa: ANN401
    """As --dry-run says it."""
    f = figures(component, size, batch, seq)
    known = {
        "causal_flops": f["model_flops"],
        "predicted_memory_bytes": 16 * f["parameters"] + f["bytes"],
    }
    return CaseCost(named(component, size, batch, seq), **(f | known | changes))


def costs(cells: Iterable[tuple[str, int, int]]) -> list[CaseCost]:
    """Of every part and the step at each (size, batch, seq)."""
    return [cost(part, *cell) for cell in cells for part in (*PARTS, "full_step")]


def own_cell(size: str) -> tuple[str, int, int]:
    """The size at its own batch and sequence."""
    return size, SIZES[size]["batch"], SIZES[size]["seq"]


@dataclass(frozen=True)
class SimulatedMachine:
    """Seconds of a part: its operators' launches, its products, its elementwise work and its
    traffic, one after the other. `traffic_factor`: how often the least traffic is moved; the first
    time it goes to the memory, then it is in the cache, as each tensor by itself fits into it.

    `width_half`: of a product of this width (hidden_dim) half of `flops_per_second` is attained; 0:
    all of it, whatever the width. `off`: factors on the time of a part at a size, which no formula
    knows. `noise`: standard deviation of the logarithm of a time.
    `step_over_parts`: what the step takes, over its parts.
    """

    launch: float = 3e-6
    flops_per_second: float = 300e9
    elementwise_per_second: float = 8e9
    traffic_factor: float = 1.0
    width_half: float = 0.0
    noise: float = 0.02
    step_over_parts: float = 1.06
    peak: float = 375e9
    memory_bandwidth: float = 39e9
    cache_bandwidth: float = 218e9
    cache_bytes: int = 32 * MIB
    off: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def traffic_seconds(self, total: float) -> float:
        """What the roofline allows for so many bytes."""
        cached = min(total, 2 * self.cache_bytes)
        return (total - cached) / self.memory_bandwidth + cached / self.cache_bandwidth

    def part_seconds(self, component: str, size: str, batch: int, seq: int) -> float:
        """Without noise."""
        f = part_figures(component, size, batch, seq)
        width = SIZES[size]["hidden_dim"]
        rate = self.flops_per_second * width / (width + self.width_half)
        return self.off.get((component, size), 1.0) * (
            self.launch * operators(component, size)
            + f["model_flops"] / rate
            + f["elementwise_flops"] / self.elementwise_per_second
            + self.traffic_seconds(f["bytes"])
            + (self.traffic_factor - 1) * f["bytes"] / self.cache_bandwidth
        )

    def seconds(self, component: str, size: str, batch: int, seq: int) -> float:
        """Of a part or of the step, without noise."""
        if component == "block":
            return sum(n * self.part_seconds(part, size, batch, seq) for part, n in BLOCK.items())
        if component != "full_step":
            return self.part_seconds(component, size, batch, seq)
        parts = counts(size).items()
        return self.step_over_parts * sum(
            count * self.part_seconds(part, size, batch, seq) for part, count in parts
        )

    @property
    def context(self) -> Mapping[str, Any]:
        """Of a result file, as far as predictions read it."""
        measured = {
            "f32": {"flops_per_second": self.peak},
            "memory_bandwidth": {"bytes_per_second": self.memory_bandwidth},
            "cache_bandwidth": {"bytes_per_second": self.cache_bandwidth},
        }
        return {
            "device": {
                "name": "Simulated",
                "architecture": "made up",
                "backend": "cpu",
                "last_level_cache_bytes": self.cache_bytes,
            },
            "torch_version": "2.13.0",
            "threads": 2,
            "git_commit": "0" * 40,
            "peaks": {"measured": measured},
        }

    def measure(
        self,
        cells: Iterable[tuple[str, int, int]],
        random: np.random.Generator,
        components: Iterable[str] = (*PARTS, "full_step"),
    ) -> ResultSet:
        """A result set of the components at each (size, batch, seq), with noise."""
        cases = {}
        wanted = tuple(components)
        for cell in cells:
            for component in wanted:
                case = self.case(component, *cell, error=float(random.normal(0, self.noise)))
                cases[str(case.name)] = case
        return ResultSet("simulated", (Path("made_up.json"),), self.context, cases)

    def case(
        self, component: str, size: str, batch: int, seq: int, error: float = 0.0
    ) -> MeasuredCase:
        """One row; `error`: of the logarithm of its time."""
        f = figures(component, size, batch, seq)
        predicted = cost(component, size, batch, seq).predicted_memory_bytes / MIB
        counters: dict[str, float] = {key: float(value) for key, value in f.items()}
        counters |= {"predicted_memory_MiB": predicted, "peak_memory_MiB": predicted}
        if component != "full_step":
            counters["operators"] = operators(component, size)
        seconds = self.seconds(component, size, batch, seq) * math.exp(error)
        return MeasuredCase(named(component, size, batch, seq), (seconds,), counters)
