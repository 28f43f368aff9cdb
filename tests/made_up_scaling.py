"""Made-up results of tiny_llama_scaling, complete as results/schema.json wants them.

Times follow a ring over a link of known latency and bandwidth, with noise that every row of a round
shares (drift) and noise of its own.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import made_up_context
from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.ranks import read_results
from tinyllama_tools.models.collectives import (
    Link,
    buckets_of,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from tinyllama_tools.models.scaling_projection import Analysis, analyse

Json = dict[str, Any]
OPERATIONS = {
    "all_reduce": ring_all_reduce,
    "reduce_scatter": ring_reduce_scatter,
    "all_gather": ring_all_gather,
}
KIB = 1024
LINK = Link(20e-6, 2e9)
MODEL_FLOPS = 17_200_000_000


@dataclass(frozen=True)
class World:
    """`alone`: seconds of a step; ranks beside each other take `slower` times as long, and the
    slowest `imbalance` more. `hidden`: share of the communication that the overlap hides."""

    ranks: int = 2
    alone: float = 0.1
    slower: float = 1.04
    imbalance: float = 0.01
    link: Link = LINK
    hidden: float = 0.6
    rounds: int = 8
    noise: float = 0.002
    drift: float = 0.05
    size: str = "tiny"
    batch: int = 8
    global_batch: int | None = None
    seed: int = 1
    bucket_MiB: float = 25.0  # noqa: N815 - the unit's own spelling, as in the file

    @property
    def rank_batch(self) -> int:
        """Samples of a rank."""
        return self.global_batch // self.ranks if self.global_batch else self.batch

    @property
    def buckets(self) -> list[int]:
        """Bytes of each."""
        return buckets_of(problem_sizes()[self.size], "f32", self.bucket_MiB * 2**20)

    @property
    def communication(self) -> float:
        """Seconds of all buckets, without noise."""
        return sum(ring_all_reduce(self.ranks, size, self.link) for size in self.buckets)

    def seconds_alone(self, batch: int) -> float:
        """A fifth of the time does not depend on the batch."""
        return self.alone * (0.2 + 0.8 * batch / self.batch)


def _round_times(world: World, chance: random.Random) -> dict[str, float]:
    """Seconds of each mode in one round."""
    shared = math.exp(chance.gauss(0, world.drift))

    def noisy(seconds: float) -> float:
        return seconds * shared * math.exp(chance.gauss(0, world.noise))

    alone = world.seconds_alone(world.rank_batch)
    if world.ranks == 1:
        return {"alone": noisy(alone), "overlap": noisy(1.01 * alone)}
    mean = noisy(alone * world.slower)
    local = mean * (1 + world.imbalance)
    whole = noisy(world.communication)
    found = {"alone": noisy(alone), "local": local, "no_overlap": local + whole}
    found |= {"overlap": local + (1 - world.hidden) * whole, "communication": whole}
    if world.global_batch:
        found["alone_global"] = noisy(world.seconds_alone(world.global_batch))
    return found | {"mean_local": mean}


def _counters(world: World, times: Mapping[str, float], mode: str) -> dict[str, float]:
    batch = world.global_batch if mode == "alone_global" else world.rank_batch
    samples = batch * (1 if mode.startswith("alone") else world.ranks) / times[mode]
    found: dict[str, float] = {"ranks": world.ranks}
    if mode == "communication":
        return found
    found |= {"samples_per_second": samples, "tokens_per_second": 128 * samples}
    found |= {"TFLOPS": 1e-12 * MODEL_FLOPS / times[mode], "model_flops": MODEL_FLOPS}
    found |= {"max_rel_error": 2e-7, "peak_memory_MiB": 131.5}
    if mode not in {"overlap", "no_overlap"}:
        return found
    step, alone = times[mode], times["alone"]
    is_strong = "alone_global" in times
    ideal = times["alone_global"] / world.ranks if is_strong else alone
    found[f"{'strong' if is_strong else 'weak'}_efficiency_percent"] = 100 * ideal / step
    if is_strong:
        found["loss_small_batch_percent"] = 100 * (alone - ideal) / step
    if "local" not in times:
        return found
    slowest, mean = times["local"], times["mean_local"]
    found["communication_percent"] = 100 * (step - slowest) / step
    found["loss_slower_local_percent"] = 100 * (mean - alone) / step
    found["loss_imbalance_percent"] = 100 * (slowest - mean) / step
    found["loss_communication_percent"] = 100 * (step - slowest) / step
    if mode == "overlap":
        plain = times["no_overlap"]
        found["overlap_percent"] = 100 * (plain - step) / (plain - slowest)
    return found


BUSY = 0.8  # processor time of a row over its time
AGGREGATES = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "stddev": statistics.stdev,
    "cv": lambda values: statistics.stdev(values) / (statistics.fmean(values) or 1),
}


def row(
    name: str, unit: str, seconds: Sequence[float], counters: Sequence[Mapping[str, float]]
) -> list[Json]:
    """Its repetitions and their mean, median, stddev and cv."""
    scale = {"ms": 1e3, "us": 1e6}[unit]
    shared = {"family_index": 0, "per_family_instance_index": 0, "run_name": name, "threads": 1}
    shared |= {"repetitions": len(seconds), "time_unit": unit}
    entries: list[Json] = []
    for index, value in enumerate(seconds):
        times = {"real_time": scale * value, "cpu_time": BUSY * scale * value, "iterations": 5}
        kind = {"name": name, "run_type": "iteration", "repetition_index": index}
        entries.append({**shared, **kind, **times, **counters[index]})
    if len(seconds) < 2:
        return entries
    for aggregate, of in AGGREGATES.items():
        unit_of = "percentage" if aggregate == "cv" else "time"
        kind = {"name": f"{name}_{aggregate}", "run_type": "aggregate", "iterations": 1}
        kind |= {"aggregate_name": aggregate, "aggregate_unit": unit_of}
        shares = {"real_time": 1.0, "cpu_time": BUSY}
        times = {k: of([share * scale * v for v in seconds]) for k, share in shares.items()}
        names = counters[0].keys()
        summed = {key: of([one[key] for one in counters]) for key in names}
        entries.append({**shared, **kind, **times, **summed})
    return entries


def step_name(world: World, mode: str) -> str:
    """Of the row of a mode."""
    batch = world.global_batch if mode == "alone_global" else world.rank_batch
    shown = "alone" if mode == "alone_global" else mode
    return (
        f"full_step/train/baseline/{world.size}/f32/batch:{batch}/seq:128"
        f"/ranks:{world.ranks}/{shown}"
    )


def _collectives(world: World, chance: random.Random) -> list[Json]:
    sizes = [KIB * 4**i for i in range(20) if KIB * 4**i <= max(world.buckets)]
    entries = []
    for operation, model in OPERATIONS.items():
        for size in sorted({*sizes, *world.buckets}):
            exact = model(world.ranks, size, world.link)
            seconds = [exact * math.exp(chance.gauss(0, 0.02)) for _ in range(world.rounds)]
            factor = (2 if operation == "all_reduce" else 1) * (world.ranks - 1) / world.ranks
            counters = [
                {
                    "ranks": world.ranks,
                    "message_bytes": size,
                    "algorithm_GB_per_second": 1e-9 * size / value,
                    "bus_GB_per_second": 1e-9 * size / value * factor,
                }
                for value in seconds
            ]
            name = f"{operation}/f32/bytes:{size}/ranks:{world.ranks}"
            entries += row(name, "us", seconds, counters)
    return entries


def context(world: World) -> Json:
    """The head of the file."""
    total = sum(world.buckets)
    distributed = {
        "world_size": world.ranks,
        "backend": "gloo" if world.ranks > 1 else "none",
        "started_by": "torchrun",
        "bucket_MiB": world.bucket_MiB,
        "bucket_bytes": world.buckets,
        "parameter_bytes": total,
        "gradient_bytes": total,
        "scaling": "strong" if world.global_batch else "weak",
        "ranks": [
            {"rank": rank, "local_rank": rank, "node": 0, "cores": str(rank)}
            for rank in range(world.ranks)
        ],
    }
    device = {**made_up_context.DEVICE, "name": "Some CPU", "memory_bytes": 1 << 34}
    device |= {"multiprocessors": 2, "last_level_cache_bytes": 1 << 25}
    settings = {"cpu_affinity": "0", "torch_threads": "1"}
    settings |= {"deterministic_algorithms": "false", "float32_matmul_precision": "highest"}
    kept = {k: v for k, v in made_up_context.CONTEXT.items() if k != "cold_cache"}
    return {
        **kept,
        "date": "2026-03-04T05:06:07+00:00",
        "executable": "tiny_llama_scaling",
        "mhz_per_cpu": 2400,
        "cpu_scaling_enabled": False,
        "caches": [],
        "json_schema_version": 1,
        "git_commit": "c" * 40,
        "threads": 1,
        "device": device,
        "settings": settings,
        "distributed": distributed,
    }


def document(world: World) -> Json:
    """The whole file."""
    chance = random.Random(world.seed * 1000 + world.ranks)
    rounds = [_round_times(world, chance) for _ in range(world.rounds)]
    entries: list[Json] = []
    samples: dict[str, Any] = {}
    for mode in rounds[0]:
        if mode == "mean_local":
            continue
        name = step_name(world, mode)
        counters = [_counters(world, times, mode) for times in rounds]
        entries += row(name, "ms", [times[mode] for times in rounds], counters)
        # the others wait while rank 0 computes alone
        steps = 1 if mode.startswith("alone") else world.ranks
        idle: list[list[float]] = [[] for _ in range(world.ranks - steps)]
        samples[name] = [[*([times[mode]] for _ in range(steps)), *idle] for times in rounds]
    if world.ranks > 1:
        entries += _collectives(world, chance)
    return {"context": context(world), "benchmarks": entries, "rank_samples": samples}


def write_world(folder: Path, world: World) -> Path:
    """ranks_<N>.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"ranks_{world.ranks}.json"
    path.write_text(json.dumps(document(world)), encoding="utf-8")
    return path


def write_run(folder: Path, ranks: Sequence[int] = (1, 2, 4), **world: Any) -> Path:  # noqa: ANN401
    """A folder of scripts/scaling, without scaling.json."""
    for number in ranks:
        write_world(folder, World(ranks=number, **world))
    return folder


def analysis_of(path: Path) -> Analysis:
    """Of a folder with ranks_<N>.json, or of one such file."""
    return analyse(read_results(path).results)
