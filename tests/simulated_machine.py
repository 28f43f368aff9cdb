"""A made-up machine, whose costs are known: times of the parts of a training step. What the parts
do is what the program says of them in a published study."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from published import STUDY
from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.machine import ProductRate
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import CaseCost, read_costs
from tinyllama_tools.data.results import ResultSet, read_result_set
from tinyllama_tools.models.roofline import step_gemms

SIZES = problem_sizes()
PARTS = ("embedding", "rms_norm", "attention", "ffn", "loss", "optimizer")
STEP = "full_step"
ROUND = read_result_set([STUDY / "round_1.json"])
# a few of its cells are enough, and steps are of these parts
CELLS = {n: c for n, c in ROUND.cases.items() if c.name.component in (*PARTS, STEP)}
CELLS = {n: c for n, c in CELLS.items() if c.name.batch != 2 and c.name.seq != 256}
COSTS = {str(cost.name): cost for cost in read_costs(STUDY / "costs.json")}
PEAK = 375e9
PEAKS = {"f32": {"flops_per_second": PEAK}, "memory_bandwidth": {"bytes_per_second": 39e9}}


def named(component: str, size: str) -> str:
    """Of a size at its own shape."""
    pass_name = {"optimizer": "update", STEP: "train"}.get(component, "forward_backward")
    of = SIZES[size]
    return f"{component}/{pass_name}/baseline/{size}/f32/batch:{of['batch']}/seq:{of['seq']}"


def costs(*sizes: str) -> list[CaseCost]:
    """Of a step of each size, and of its parts."""
    return [COSTS[named(component, size)] for size in sizes for component in (*PARTS, STEP)]


def operators(name: CaseName) -> int:
    """As the baseline dispatches them; the optimizer's by the weights that the size has."""
    known = {"embedding": 21, "rms_norm": 74, "attention": 408, "ffn": 134, "loss": 67, STEP: 0}
    return known.get(name.component, 28 * (9 * SIZES[name.size]["n_layers"] + 3))


@dataclass(frozen=True)
class SimulatedMachine:
    """Seconds of a part: its operators' launches, its GEMMs, its elementwise work and its traffic,
    one after the other. `traffic_factor`: how often the least traffic is moved; the first time it
    goes to the memory, then it is in the cache, as each tensor by itself fits into it. `narrow`: a
    GEMM with that many rows, columns or terms, whichever are fewest, reaches half of
    `flops_per_second`.

    `off`: factors on the time of a part at a size, which no formula knows. `noise`: standard
    deviation of the logarithm of a time. `step_launch`, `residual`: seconds that a step takes more
    than its parts, for each operator and each number in the residual stream.
    """

    launch: float = 3e-6
    flops_per_second: float = 300e9
    narrow: float = 0.0
    elementwise_per_second: float = 8e9
    traffic_factor: float = 1.0
    noise: float = 0.02
    step_launch: float = 1e-6
    residual: float = 2e-9
    cache_bytes: int = 2**25
    off: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def traffic_seconds(self, total: float) -> float:
        """What stays in its cache saves a read and a write."""
        cached = min(total, 2 * self.cache_bytes)
        return (total - cached) / 39e9 + cached / 218e9

    def rate(self, *shape: int) -> float:
        """FLOP/s of GEMMs of this batch, m, n and k."""
        return self.flops_per_second / (1 + self.narrow / min(shape[1:]))

    def gemm_seconds(self, name: CaseName) -> float:
        size = SIZES[name.size]
        gemms = step_gemms(size, name.batch, name.seq)
        often = 1 if name.component == "loss" else size["n_layers"]
        own = (gemm for gemm in gemms if gemm.component == name.component)
        return sum(g.flops / self.rate(g.batch, g.m, g.n, g.k) / often for g in own)

    def seconds(self, name: CaseName) -> float:
        """Of a part or the step, without noise."""
        of, layers = COSTS[str(name)], SIZES[name.size]["n_layers"]
        if name.component == STEP:
            often = {"attention": layers, "ffn": layers, "rms_norm": 2 * layers + 1}
            parts = [replace(name, component=p, pass_name="forward_backward") for p in PARTS[:-1]]
            parts.append(replace(name, component="optimizer", pass_name="update"))
            every = [(often.get(part.component, 1), part) for part in parts]
            launches = sum(count * operators(part) for count, part in every)
            stream = name.batch * name.seq * SIZES[name.size]["hidden_dim"] * layers
            whole = sum(count * self.seconds(part) for count, part in every)
            return whole + self.step_launch * launches + self.residual * stream
        return self.off.get((name.component, name.size), 1.0) * (
            self.launch * operators(name)
            + self.gemm_seconds(name)
            + of.elementwise_flops / self.elementwise_per_second
            + self.traffic_seconds(of.bytes)
            + (self.traffic_factor - 1) * of.bytes / 218e9
        )

    def measure(self, seed: int = 1) -> ResultSet:
        """Its cells with noise."""
        random, cases = np.random.default_rng(seed), {}
        for text, case in CELLS.items():
            seconds = self.seconds(case.name) * math.exp(random.normal(0, self.noise))
            counters = {**case.counters, "operators": operators(case.name)}
            cases[text] = replace(case, seconds=(seconds,), counters=counters)
        sizes = (2**power for power in range(17, 35))
        rates = [{"bytes": of, "bytes_per_second": of / self.traffic_seconds(of)} for of in sizes]
        peaks = {"measured": {**PEAKS, "bandwidth_curve": rates}}
        # as --components peak measures them, at each size's own shape
        own = [step_gemms(SIZES[n], SIZES[n]["batch"], SIZES[n]["seq"]) for n in ("tiny", "small")]
        shapes = {(g.batch, g.m, g.n, g.k) for gemms in own for g in gemms}
        products = tuple(ProductRate("f32", *of, self.rate(*of), "") for of in sorted(shapes))
        return replace(ROUND, cases=cases, context={"peaks": peaks}, products=products)
