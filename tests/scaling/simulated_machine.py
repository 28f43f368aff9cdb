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
STEP = "full_step"
BLOCK = {"attention": 1, "ffn": 1, "rms_norm": 2}
PASSES = {"optimizer": "update", STEP: "train"}
# as the baseline dispatches them
OPERATORS = {"embedding": 21, "rms_norm": 74, "attention": 340, "ffn": 170, "loss": 67}
OPERATORS_A_WEIGHT = 28
Cell = tuple[str, int, int]


def named(component: str, size: str, batch: int, seq: int) -> CaseName:
    """A case of the baseline in float32."""
    pass_name = PASSES.get(component, "forward_backward")
    return CaseName(component, pass_name, "baseline", size, "f32", batch, seq)


def counts(component: str, size: str) -> dict[str, int]:
    """How often a block or a step contains each part."""
    layers = SIZES[size]["n_layers"]
    if component == "block":
        return BLOCK
    return dict.fromkeys(PARTS, 1) | {
        **{"attention": layers, "ffn": layers, "rms_norm": 2 * layers + 1}
    }


def figures(component: str, size: str, batch: int, seq: int) -> dict[str, int]:
    """Forward and backward of one part, the update, a block (without its residual additions) or the
    step, by the layers of model/."""
    if component in ("block", STEP):
        parts = counts(component, size).items()
        every = [(figures(part, size, batch, seq), count) for part, count in parts]
        found = {key: sum(of[key] * count for of, count in every) for key in every[0][0]}
        whole = figures("optimizer", size, batch, seq)["parameters"]
        return found | ({"parameters": whole} if component == STEP else {})
    s, tokens = SIZES[size], batch * seq
    hidden, vocab, inner = s["hidden_dim"], s["vocab_size"], s["intermediate_dim"]
    kv = hidden // s["n_heads"] * s["n_kv_heads"]
    stream, scores = tokens * hidden * VALUE, batch * s["n_heads"] * seq * seq
    attention, ffn = hidden * (2 * hidden + 2 * kv), 3 * hidden * inner
    table = vocab * hidden
    model = 2 * table + hidden + s["n_layers"] * (attention + ffn + 2 * hidden)
    saved = 2 * stream + 2 * tokens * kv * VALUE + 4 * batch * s["n_heads"] * seq
    rows = min(vocab, tokens) * hidden * VALUE
    # parameters, products, elementwise FLOPs, bytes
    known = {
        "embedding": (
            *(table, 0, tokens * hidden),
            2 * (8 * tokens + stream) + rows + table * VALUE,
        ),
        "rms_norm": (
            *(hidden, 0, tokens * (12 * hidden + 5)),
            5 * stream + 3 * hidden * VALUE + 8 * tokens,
        ),
        "attention": (
            *(attention, 6 * tokens * attention + 12 * tokens * seq * hidden),
            6 * tokens * (hidden + kv) + 2 * tokens * hidden + 10 * scores,
            5 * stream + 3 * attention * VALUE + 2 * saved,
        ),
        "ffn": (
            *(ffn, 6 * tokens * ffn, 15 * tokens * inner),
            5 * stream + 3 * ffn * VALUE + 4 * tokens * inner * VALUE,
        ),
        "loss": (
            *(table, 6 * tokens * table, 8 * batch * (seq - 1) * vocab),
            3 * (stream + table * VALUE) + 24 * tokens + 4,
        ),
        "optimizer": (model, 0, 14 * model, 7 * model * VALUE),
    }
    parameters, products, elementwise, traffic = known[component]
    return {
        "parameters": parameters,
        "model_flops": products,
        "hardware_flops": products,
        "elementwise_flops": elementwise,
        "bytes": traffic,
    }


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
    memory = 16 * f["parameters"] + f["bytes"]
    known = {"causal_flops": f["model_flops"], "predicted_memory_bytes": memory}
    return CaseCost(named(component, size, batch, seq), **(f | known | changes))


def costs(cells: Iterable[Cell]) -> list[CaseCost]:
    """Of every part and the step at each (size, batch, seq)."""
    return [cost(part, *cell) for cell in cells for part in (*PARTS, STEP)]


def own_cell(size: str) -> Cell:
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

    def seconds(self, component: str, size: str, batch: int, seq: int) -> float:
        """Of a part, a block or the step, without noise."""
        if component in ("block", STEP):
            parts = counts(component, size).items()
            whole = sum(count * self.seconds(part, size, batch, seq) for part, count in parts)
            return whole * (self.step_over_parts if component == STEP else 1.0)
        f, width = figures(component, size, batch, seq), SIZES[size]["hidden_dim"]
        rate = self.flops_per_second * width / (width + self.width_half)
        return self.off.get((component, size), 1.0) * (
            self.launch * operators(component, size)
            + f["model_flops"] / rate
            + f["elementwise_flops"] / self.elementwise_per_second
            + self.traffic_seconds(f["bytes"])
            + (self.traffic_factor - 1) * f["bytes"] / self.cache_bandwidth
        )

    def measure(
        self, cells: Iterable[Cell], seed: int = 1, components: Iterable[str] = (*PARTS, STEP)
    ) -> ResultSet:
        """A result set of the components at each (size, batch, seq), with noise."""
        random = np.random.default_rng(seed)
        wanted = tuple(components)
        cases = [
            self.case(component, *cell, error=float(random.normal(0, self.noise)))
            for cell in cells
            for component in wanted
        ]
        bandwidths = {"memory": self.memory_bandwidth, "cache": self.cache_bandwidth}
        peaks = {f"{name}_bandwidth": {"bytes_per_second": of} for name, of in bandwidths.items()}
        context = {
            "device": {"name": "Simulated", "last_level_cache_bytes": self.cache_bytes},
            "peaks": {"measured": {"f32": {"flops_per_second": self.peak}, **peaks}},
        }
        by_name = {str(case.name): case for case in cases}
        return ResultSet("simulated", (Path("made_up.json"),), context, by_name)

    def case(
        self, component: str, size: str, batch: int, seq: int, error: float = 0.0
    ) -> MeasuredCase:
        """One row; `error`: of the logarithm of its time."""
        predicted = cost(component, size, batch, seq).predicted_memory_bytes / MIB
        counters = {k: float(v) for k, v in figures(component, size, batch, seq).items()}
        counters |= {"predicted_memory_MiB": predicted, "peak_memory_MiB": predicted}
        if component != STEP:
            counters["operators"] = operators(component, size)
        seconds = self.seconds(component, size, batch, seq) * math.exp(error)
        return MeasuredCase(named(component, size, batch, seq), (seconds,), counters)
