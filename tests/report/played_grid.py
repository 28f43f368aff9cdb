"""What scripts/study and scripts/bench would have written of a made-up machine with known laws.

Time is launch + FLOPs / rate + bytes / bandwidth, which is launch + a B S + b B S²; rounds scatter
by a percent. Nothing is measured, and every number follows from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from played_costs import PASSES, Costs, PlayedSize

from made_up_context import CONTEXT
from made_up_context import DEVICE as CPU
from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.studies import SCHEMA_VERSION
from tinyllama_tools.models.roofline import step_products

Json = dict[str, Any]
MIB = 2**20
PEAK, MEMORY, CACHE, CACHE_BYTES = 300e9, 40e9, 200e9, 32 * MIB
# what the made-up cases reach: below the peaks
RATE, BANDWIDTH, LAUNCH = 0.6 * PEAK, 0.5 * MEMORY, 2e-6
PRODUCT_RATE = 0.9 * PEAK
OPTIMIZED = 0.7
LIMIT = 24 * 2**30
DEVICE = "Played CPU"


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


def true_seconds(component: str, costs: Costs, variant: str = "baseline") -> float:
    """Without scatter."""
    # a step shares some of what its parts do alone
    share = 0.97 if component == "full_step" else 1.0
    factor = OPTIMIZED if variant == "optimized" else 1.0
    whole = costs.operators * LAUNCH + costs.model_flops / RATE + costs.bytes / BANDWIDTH
    return share * factor * whole


def context(grid: Grid) -> Json:
    """As at the head of a result file."""
    return {
        **CONTEXT,
        "date": "2026-03-04T05:06:07+00:00",
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


def cells(grid: Grid) -> Iterator[tuple[str, str, Costs, str]]:
    """Name, component, costs and variant of every case."""
    for size in grid.sizes:
        for batch in grid.batches:
            for seq in grid.seqs:
                yield from cells_of(grid, size, batch, seq)


def cells_of(grid: Grid, size: str, batch: int, seq: int) -> Iterator[tuple[str, str, Costs, str]]:
    """The same, of one size at one shape."""
    played = PlayedSize(size, batch, seq)
    for component in grid.components:
        for pass_name in PASSES[component]:
            costs = played.case(component, pass_name)
            for variant in grid.variants:
                axes = f"{component}/{pass_name}/{variant}/{size}/f32"
                yield f"{axes}/batch:{batch}/seq:{seq}", component, costs, variant


def counters(name: str, costs: Costs, seconds: float) -> Json:
    """Of a case; rates only where there are products."""
    batch, seq = (int(part.partition(":")[2]) for part in name.split("/")[-2:])
    found: Json = {
        "samples_per_second": batch / seconds,
        "tokens_per_second": batch * seq / seconds,
        "parameters": costs.parameters,
        "model_flops": costs.model_flops,
        "causal_flops": costs.model_flops,
        "hardware_flops": costs.model_flops,
        "elementwise_flops": costs.elementwise_flops,
        "bytes": costs.bytes,
        "GB_per_second": costs.bytes / seconds / 1e9,
        "operators": costs.operators,
        "allocations": 10.0,
        "peak_memory_MiB": costs.memory / MIB,
        "predicted_memory_MiB": costs.memory / MIB,
        "max_rel_error": 1e-6,
    }
    if costs.model_flops:
        rate = costs.model_flops / seconds
        found["TFLOPS"] = rate / 1e12
        shares = ("MFU_percent", "MFU_causal_percent", "peak_percent")
        found |= dict.fromkeys(shares, 100 * rate / PEAK)
    return found


def row(name: str, seconds: float, **more: object) -> Json:
    """One repetition as Google Benchmark writes it."""
    return {
        "name": f"{name}/manual_time",
        "run_name": f"{name}/manual_time",
        "run_type": "iteration",
        "repetitions": 1,
        "repetition_index": 0,
        "threads": 1,
        "iterations": 10,
        "real_time": 1e3 * seconds,
        "cpu_time": 1e3 * seconds,
        "time_unit": "ms",
        **more,
    }


def round_document(grid: Grid, number: int) -> Json:
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
    for size in grid.sizes:
        of = problem_sizes()[size]
        for product in step_products(of, of["batch"], of["seq"]):
            names[f"peak/gemm/f32/{product.shape}"] = product.flops // product.count
    rows = [
        row(name, flops / PRODUCT_RATE, TFLOPS=PRODUCT_RATE / 1e12, label="A x B")
        for name, flops in names.items()
    ]
    return {"context": context(grid), "benchmarks": rows}


def cost_entry(name: str, costs: Costs) -> Json:
    """A case of --dry-run."""
    fits = costs.memory <= LIMIT
    return {
        "name": name,
        "parameters": costs.parameters,
        "model_flops": costs.model_flops,
        "causal_flops": costs.model_flops,
        "hardware_flops": costs.model_flops,
        "elementwise_flops": costs.elementwise_flops,
        "bytes": costs.bytes,
        "predicted_memory_bytes": costs.memory,
        "fits": fits,
        "reason": "" if fits else "needs more than the memory that is free",
    }


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
    one, two = (PlayedSize(size, b, seq).case("full_step", "train").memory for b in (1, 2))
    return max(0, 1 + (LIMIT - one) // (two - one)) if one <= LIMIT else 0


def frontier_document(grid: Grid) -> Json:
    """frontier.json of all five sizes."""
    points = []
    for size in problem_sizes():
        for variant in grid.variants:
            for seq in grid.seqs:
                batch = largest_batch(size, seq)
                costs = PlayedSize(size, max(1, batch), seq).case("full_step", "train")
                points.append(
                    {
                        "size": size,
                        "variant": variant,
                        "dtype": "f32",
                        "seq": seq,
                        "largest_batch": batch,
                        "predicted_bytes": costs.memory,
                        "limit_bytes": LIMIT,
                        "confirmed": "",
                    }
                )
    return frontier_head(LIMIT, "MemAvailable", grid.device) | {"points": points}


def frontier_head(limit: int, source: str, device: str) -> Json:
    """What a frontier.json says of its points."""
    return {
        "kind": "frontier",
        "schema_version": SCHEMA_VERSION,
        "device": device,
        "git_commit": "c" * 40,
        "date": "2026-03-04T05:30:00+00:00",
        "limit_bytes": limit,
        "limit_source": source,
        "overhead": {"source": "none: made up"},
    }


def study_document(grid: Grid) -> Json:
    """study.json."""
    return {
        "kind": "grid",
        "schema_version": 1,
        "command": "scripts/study tiny small",
        "sizes": list(grid.sizes),
        "batch": list(grid.batches),
        "seq": list(grid.seqs),
        "components": list(grid.components),
        "passes": ["forward_backward", "update", "train", "forward_loss"],
        "variants": list(grid.variants),
        "dtypes": ["f32"],
        "rounds": grid.rounds,
        "rounds_done": grid.rounds,
        "left_out": "",
    }
