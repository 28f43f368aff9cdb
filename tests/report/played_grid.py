"""What scripts/study and scripts/bench would have written of a made-up machine with known laws.

Costs are the formulas of a LLaMA, with bytes and memory made up. Time is launch + FLOPs / rate +
bytes / bandwidth, which is launch + a B S + b B S²; rounds scatter by a percent. Nothing is
measured, and every number follows from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from made_up_context import CONTEXT
from made_up_context import DEVICE as CPU
from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.studies import SCHEMA_VERSION
from tinyllama_tools.models.speed_of_light import step_products

Json = dict[str, Any]
MIB = 2**20
PEAK, MEMORY, CACHE, CACHE_BYTES = 300e9, 40e9, 200e9, 32 * MIB
# what the made-up cases reach: below the peaks
RATE, BANDWIDTH, LAUNCH = 0.6 * PEAK, 0.5 * MEMORY, 2e-6
PRODUCT_RATE = 0.9 * PEAK
OPTIMIZED = 0.7
LIMIT = 24 * 2**30
DEVICE = "Played CPU"
DATE = "2026-03-04T05:06:07+00:00"
ELEMENT = 4
PASSES = {
    **dict.fromkeys(("embedding", "rms_norm", "rotary", "attention"), ("forward_backward",)),
    **dict.fromkeys(("ffn", "block", "loss"), ("forward_backward",)),
    "model": ("forward_loss", "forward_backward"),
    "optimizer": ("update",),
    "full_step": ("train",),
}


class Costs(NamedTuple):
    """Of one iteration; `memory`: bytes of the peak."""

    parameters: int
    model_flops: int
    elementwise_flops: int
    bytes: int
    memory: int
    operators: int


def costs_of(component: str, size: str, batch: int, seq: int, pass_name: str = "") -> Costs:
    """Of a case; of what has products, forward and backward unless `pass_name` is forward_loss."""
    of = problem_sizes()[size]
    tokens, hidden, layers, heads = batch * seq, of["hidden_dim"], of["n_layers"], of["n_heads"]
    inner, vocab, here = of["intermediate_dim"], of["vocab_size"], tokens * of["hidden_dim"]
    weights = 2 * hidden * (hidden + hidden // heads * of["n_kv_heads"])
    scores = batch * heads * seq * seq
    # parameters, FLOPs of the forward products, elementwise FLOPs, elements moved
    parts = {
        "embedding": (vocab * hidden, 0, here, 3 * here),
        "rms_norm": (hidden, 0, 8 * here, 6 * here),
        "rotary": (0, 0, 12 * here, 4 * here),
        "attention": (
            *(weights, 2 * tokens * weights + 4 * scores * (hidden // heads)),
            *(16 * scores + here, 12 * here + 6 * scores),
        ),
        "ffn": (3 * hidden * inner, 6 * here * inner, 20 * tokens * inner, 8 * tokens * inner),
        "loss": (hidden * vocab, 2 * here * vocab, 10 * tokens * vocab, 4 * tokens * vocab),
    }

    def sum_of(*counts: tuple[str, int]) -> Costs:
        found = [(count, costs_of(part, size, batch, seq)) for part, count in counts]
        return Costs(*(sum(n * one[i] for n, one in found) for i in range(len(Costs._fields))))

    if component in parts:
        parameters, flops, elementwise, moved = parts[component]
        moved = ELEMENT * (moved + 3 * parameters)
        memory = ELEMENT * 4 * parameters + moved // 2 + 2048 * batch
        return Costs(parameters, 3 * flops, elementwise, moved, memory, 20)
    if component == "block":
        return sum_of(("attention", 1), ("ffn", 1), ("rms_norm", 2))
    if component == "model":
        norms = ("rms_norm", 2 * layers + 1)
        of_parts = (("embedding", 1), ("attention", layers), ("ffn", layers), norms, ("loss", 1))
        whole = sum_of(*of_parts)
        flops = whole.model_flops // (3 if pass_name == "forward_loss" else 1)
        return whole._replace(model_flops=flops, operators=whole.operators + 2 * layers)
    if component == "optimizer":
        count = costs_of("model", size, batch, seq).parameters
        return Costs(count, 0, 12 * count, 28 * count, 16 * count, 40)
    assert component == "full_step", component
    parameters = costs_of("model", size, batch, seq).parameters
    return sum_of(("model", 1), ("optimizer", 1))._replace(parameters=parameters)


def step_costs(size: str, batch: int, seq: int) -> Costs:
    """Of a training step."""
    return costs_of("full_step", size, batch, seq)


def true_seconds(component: str, costs: Costs, variant: str = "baseline") -> float:
    """Without scatter; a step shares some of what its parts do alone."""
    share = 0.97 if component == "full_step" else 1.0
    factor = OPTIMIZED if variant == "optimized" else 1.0
    whole = costs.operators * LAUNCH + costs.model_flops / RATE + costs.bytes / BANDWIDTH
    return share * factor * whole


@dataclass(frozen=True)
class Grid:
    """What was measured. `scatter`: of rounds, relative; `speed`: of the whole machine."""

    sizes: Sequence[str] = ("tiny", "small")
    batches: Sequence[int] = (2, 4, 8)
    seqs: Sequence[int] = (64, 128, 256, 512)
    variants: Sequence[str] = ("baseline",)
    components: Sequence[str] = tuple(PASSES)
    rounds: int = 3
    scatter: float = 0.005
    speed: float = 1.0
    device: str = DEVICE
    commit: str = "c" * 40


# of tiny alone at its own shape; a step of a size that the grids do not have
SMALL = Grid(sizes=("tiny",), batches=(8,), seqs=(128,), rounds=2)
MEDIUM = Grid(sizes=("medium",), batches=(16,), seqs=(512,), components=("full_step",))


def context(grid: Grid) -> Json:
    """As at the head of a result file."""
    return {
        **CONTEXT,
        "date": DATE,
        "git_commit": grid.commit,
        "device": {
            **CPU,
            "name": grid.device,
            "memory_bytes": 32 * 2**30,
            "multiprocessors": 2,
            "last_level_cache_bytes": CACHE_BYTES,
        },
        "settings": {"torch_threads": "2", "cpu_affinity": "0-1"},
        "peaks": {
            "measured": {
                "f32": {"flops_per_second": PEAK, "source": "product, 1024x1024x1024"},
                "memory_bandwidth": {"bytes_per_second": MEMORY, "source": "triad"},
                "cache_bandwidth": {"bytes_per_second": CACHE, "source": "triad, 4 MiB"},
            },
            "datasheet": None,
            "mfu_is_against": "the measured peak: no datasheet figure is known",
        },
    }


def cells_of(grid: Grid, size: str, batch: int, seq: int) -> Iterator[tuple[str, str, Costs, str]]:
    """Name, component, costs and variant of every case of one size at one shape."""
    for component in grid.components:
        for pass_name in PASSES[component]:
            costs = costs_of(component, size, batch, seq, pass_name)
            for variant in grid.variants:
                axes = f"{component}/{pass_name}/{variant}/{size}/f32"
                yield f"{axes}/batch:{batch}/seq:{seq}", component, costs, variant


def cells(grid: Grid) -> Iterator[tuple[str, str, Costs, str]]:
    """The same, of all."""
    for size in grid.sizes:
        for batch in grid.batches:
            for seq in grid.seqs:
                yield from cells_of(grid, size, batch, seq)


def _work(costs: Costs) -> Json:
    """What a result and a dry run say of the same case."""
    products = dict.fromkeys(("model_flops", "causal_flops", "hardware_flops"), costs.model_flops)
    counted = {"elementwise_flops": costs.elementwise_flops, "bytes": costs.bytes}
    return {"parameters": costs.parameters, **products, **counted}


def counters(name: str, costs: Costs, seconds: float) -> Json:
    """Of a case; rates only where there are products."""
    batch, seq = (int(part.partition(":")[2]) for part in name.split("/")[-2:])
    shares = ("MFU_percent", "MFU_causal_percent", "peak_percent")
    rate = costs.model_flops / seconds
    ideal = max(costs.model_flops / PEAK, costs.bytes / MEMORY)
    return {
        **_work(costs),
        "samples_per_second": batch / seconds,
        "tokens_per_second": batch * seq / seconds,
        "GB_per_second": costs.bytes / seconds / 1e9,
        "operators": costs.operators,
        "allocations": 10.0,
        "peak_memory_MiB": costs.memory / MIB,
        "predicted_memory_MiB": costs.memory / MIB,
        "max_rel_error": 1e-6,
        "roof_percent": 100 * ideal / seconds,
        **({"TFLOPS": rate / 1e12, **dict.fromkeys(shares, 100 * rate / PEAK)} if rate else {}),
    }


def row(name: str, seconds: float, **more: object) -> Json:
    """One repetition as Google Benchmark writes it."""
    return {
        **dict.fromkeys(("name", "run_name"), f"{name}/manual_time"),
        **{"run_type": "iteration", "repetitions": 1, "repetition_index": 0, "threads": 1},
        **{"iterations": 10, "time_unit": "ms"},
        **dict.fromkeys(("real_time", "cpu_time"), 1e3 * seconds),
        **more,
    }


def round_document(grid: Grid, number: int = 1) -> Json:
    """One round_<i>.json."""
    generator = np.random.default_rng([number, len(grid.device)])
    rows = []
    for name, component, costs, variant in cells(grid):
        noise = math.exp(generator.normal(0, grid.scatter))
        seconds = true_seconds(component, costs, variant) * noise / grid.speed
        rows.append(row(name, seconds, **counters(name, costs, seconds)))
    return {"context": context(grid), "benchmarks": rows}


def products_document(grid: Grid) -> Json:
    """products.json: every product of each size's step at its own shape."""
    names: dict[str, int] = {}
    for of in (problem_sizes()[size] for size in grid.sizes):
        for product in step_products(of, of["batch"], of["seq"]):
            names[f"peak/gemm/f32/{product.shape}"] = product.flops // product.count
    rows = [
        row(name, flops / PRODUCT_RATE, TFLOPS=PRODUCT_RATE / 1e12, label="A x B")
        for name, flops in names.items()
    ]
    return {"context": context(grid), "benchmarks": rows}


def cost_entry(name: str, costs: Costs) -> Json:
    """A case of --dry-run."""
    reason = "" if costs.memory <= LIMIT else "needs more than the memory that is free"
    answer = {"predicted_memory_bytes": costs.memory, "fits": not reason, "reason": reason}
    return {"name": name, **_work(costs), **answer}


def costs_document(grid: Grid) -> Json:
    """costs.json: the grid's cases, and every problem size at its own batch and sequence."""
    found = {name: cost_entry(name, costs) for name, _, costs, _ in cells(grid)}
    for size, of in problem_sizes().items():
        for name, _, costs, _ in cells_of(grid, size, of["batch"], of["seq"]):
            found[name] = cost_entry(name, costs)
    budget = {"memory_budget_bytes": LIMIT, "memory_budget_source": "MemAvailable"}
    return {**budget, "cases": list(found.values())}


def largest_batch(size: str, seq: int) -> int:
    """The memory of a step is linear in the batch."""
    one, two = (step_costs(size, batch, seq).memory for batch in (1, 2))
    return max(0, 1 + (LIMIT - one) // (two - one)) if one <= LIMIT else 0


def frontier_head(limit: int = LIMIT, source: str = "MemAvailable", device: str = DEVICE) -> Json:
    """What a frontier.json says of its points."""
    return {
        **{"kind": "frontier", "schema_version": SCHEMA_VERSION, "device": device},
        **{"git_commit": "c" * 40, "date": "2026-03-04T05:30:00+00:00"},
        **{"limit_bytes": limit, "limit_source": source, "overhead": {"source": "none: made up"}},
    }


def frontier_point(**values: object) -> Json:
    """Of tiny, but for what is given."""
    names = {"size": "tiny", "variant": "baseline", "dtype": "f32"}
    return {**names, "predicted_bytes": 1 << 30, "limit_bytes": LIMIT, "confirmed": "", **values}


def frontier_document(grid: Grid) -> Json:
    """frontier.json of all five sizes."""
    points = []
    for size in problem_sizes():
        for seq in grid.seqs:
            batch = largest_batch(size, seq)
            found = {"size": size, "seq": seq, "largest_batch": batch}
            memory = step_costs(size, max(1, batch), seq).memory
            points += [
                frontier_point(**found, variant=variant, predicted_bytes=memory)
                for variant in grid.variants
            ]
    return frontier_head(device=grid.device) | {"points": points}


def study_document(grid: Grid) -> Json:
    """study.json."""
    return {
        **{"kind": "grid", "schema_version": 1, "command": "scripts/study tiny small"},
        **{"sizes": list(grid.sizes), "batch": list(grid.batches), "seq": list(grid.seqs)},
        **{"components": list(grid.components), "variants": list(grid.variants)},
        "passes": ["forward_backward", "update", "train", "forward_loss"],
        **{"dtypes": ["f32"], "rounds": grid.rounds, "rounds_done": grid.rounds, "left_out": ""},
    }
