"""A made-up machine that times every part of a training step by known rates; what the parts do is
what the program says of them, in the costs of a committed study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from reference_study import STUDIES
from tinyllama_tools.core.app import problem_sizes, read_json
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import CaseCost, read_case_costs
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.data.studies import COSTS

SIZES = problem_sizes()
MIB = 2**20
PARTS = ("embedding", "rms_norm", "attention", "ffn", "loss", "optimizer")
STEP = "full_step"
BLOCK = {"attention": 1, "ffn": 1, "rms_norm": 2}
PASSES = {"optimizer": "update", STEP: "train"}
# as the baseline dispatches them
OPERATORS = {"embedding": 21, "rms_norm": 74, "attention": 340, "ffn": 170, "loss": 67}
OPERATORS_A_WEIGHT = 28
# size, batch, sequence
Cell = tuple[str, int, int]
KNOWN = {str(cost.name): cost for cost in read_case_costs(read_json(STUDIES[0] / COSTS)[0])}


def named(component: str, size: str, batch: int, seq: int) -> CaseName:
    """A case of the baseline in float32."""
    pass_name = PASSES.get(component, "forward_backward")
    return CaseName(component, pass_name, "baseline", size, "f32", batch, seq)


def cost(component: str, *cell: str | int) -> CaseCost:
    return KNOWN[str(named(component, *cell))]


def costs(cells: Iterable[Cell], components: Sequence[str] = (*PARTS, STEP)) -> list[CaseCost]:
    return [cost(component, *cell) for cell in cells for component in components]


def own_cell(size: str) -> Cell:
    """The size at its own batch and sequence."""
    return size, SIZES[size]["batch"], SIZES[size]["seq"]


def counts(component: str, size: str) -> Mapping[str, int]:
    """How often a block or a step contains each part."""
    layers = SIZES[size]["n_layers"]
    in_layers = {"attention": layers, "ffn": layers, "rms_norm": 2 * layers + 1}
    return BLOCK if component == "block" else dict.fromkeys(PARTS, 1) | in_layers


def operators(component: str, size: str) -> float:
    """Of a part; the optimizer's by the weights that the size has."""
    if component == "optimizer":
        return OPERATORS_A_WEIGHT * (9 * SIZES[size]["n_layers"] + 3)
    if component == "block":
        return sum(count * OPERATORS[part] for part, count in BLOCK.items())
    return OPERATORS[component]


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
        of, width = cost(component, size, batch, seq), SIZES[size]["hidden_dim"]
        rate = self.flops_per_second * width / (width + self.width_half)
        return self.off.get((component, size), 1.0) * (
            self.launch * operators(component, size)
            + of.hardware_flops / rate
            + of.elementwise_flops / self.elementwise_per_second
            + self.traffic_seconds(of.bytes)
            + (self.traffic_factor - 1) * of.bytes / self.cache_bandwidth
        )

    def case(self, component: str, *cell: str | int, error: float = 0.0) -> MeasuredCase:
        """One row, whose peak memory is as predicted; `error`: of the logarithm of its time."""
        figures = asdict(cost(component, *cell))
        counters = {k: float(v) for k, v in figures.items() if type(v) is int}
        memory = counters["predicted_memory_bytes"] / MIB
        counters |= {"predicted_memory_MiB": memory, "peak_memory_MiB": memory}
        if component != STEP:
            counters["operators"] = operators(component, cell[0])
        seconds = self.seconds(component, *cell) * math.exp(error)
        return MeasuredCase(named(component, *cell), (seconds,), counters)

    def measure(
        self, cells: Iterable[Cell], seed: int = 1, components: Iterable[str] = (*PARTS, STEP)
    ) -> ResultSet:
        """A result set of the components at each cell, with noise."""
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
