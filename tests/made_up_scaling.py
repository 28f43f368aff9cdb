"""Made-up results of tiny_llama_scaling, complete as results/schema.json wants them.

Times follow a ring over a link of known latency and bandwidth, with noise that every row of a round
shares (drift) and noise of its own.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import RESULTS, problem_sizes, read_json
from tinyllama_tools.data.ranks import read_results
from tinyllama_tools.models.collectives import Link, buckets_of
from tinyllama_tools.models.data_parallel import Analysis, analyse

Json = dict[str, Any]
LINK = Link(20e-6, 2e9)
# ways round the ring: a reduce-scatter, an all-gather, or both
OPERATIONS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
BUSY = 0.8  # processor time of a row over its time


def ring_seconds(operation: str, ranks: int, size: float, link: Link = LINK) -> float:
    """N - 1 messages of an Nth, once or twice."""
    one = (ranks - 1) * (link.latency + size / ranks / link.bandwidth)
    return OPERATIONS[operation] * one


@dataclass(frozen=True)
class World:
    """`alone`: seconds of a step; ranks beside each other take `slower` times as long, and the
    slowest `imbalance` more. `hidden`: share of the communication that the overlap hides."""

    ranks: int = 2
    alone: float = 0.1
    slower: float = 1.04
    imbalance: float = 0.01
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
    def buckets(self) -> list[float]:
        """Bytes of each."""
        return buckets_of(problem_sizes()[self.size], "f32", self.bucket_MiB * 2**20)

    @property
    def communication(self) -> float:
        """Seconds of all buckets, without noise."""
        return sum(ring_seconds("all_reduce", self.ranks, size) for size in self.buckets)

    @property
    def local(self) -> float:
        """Seconds of the slowest rank without communication, without noise."""
        return self.seconds_alone(self.rank_batch) * self.slower * (1 + self.imbalance)

    def seconds_alone(self, batch: int) -> float:
        """A fifth of the time does not depend on the batch."""
        return self.alone * (0.2 + 0.8 * batch / self.batch)


def _round_times(world: World, chance: random.Random) -> dict[str, float]:
    """Seconds of each mode in one round; `mean_local` is no mode."""
    shared = math.exp(chance.gauss(0, world.drift))

    def noisy(seconds: float) -> float:
        return seconds * shared * math.exp(chance.gauss(0, world.noise))

    alone = world.seconds_alone(world.rank_batch)
    if world.ranks == 1:
        return {"alone": noisy(alone), "overlap": noisy(1.01 * alone)}
    mean, sums = noisy(alone * world.slower), noisy(world.communication)
    local = mean * (1 + world.imbalance)
    found = {"alone": noisy(alone), "local": local, "mean_local": mean, "no_overlap": local + sums}
    found |= {"overlap": local + (1 - world.hidden) * sums, "communication": sums}
    if world.global_batch:
        found["alone_global"] = noisy(world.seconds_alone(world.global_batch))
    return found


def _counters(world: World, times: Mapping[str, float], mode: str) -> dict[str, float]:
    found: dict[str, float] = {"ranks": world.ranks}
    if mode not in ("overlap", "no_overlap"):
        return found
    step, alone, is_strong = times[mode], times["alone"], "alone_global" in times
    ideal = times["alone_global"] / world.ranks if is_strong else alone
    mean, slowest = times.get("mean_local", alone), times.get("local", alone)
    losses = {"slower_local": mean - alone, "imbalance": slowest - mean}
    losses |= {"communication": step - slowest}
    if is_strong:
        losses["small_batch"] = alone - ideal
    found |= {f"loss_{name}_percent": 100 * lost / step for name, lost in losses.items()}
    return found | {f"{'strong' if is_strong else 'weak'}_efficiency_percent": 100 * ideal / step}


def row(
    name: str, unit: str, seconds: Sequence[float], counters: Sequence[Mapping[str, float]]
) -> list[Json]:
    """Its repetitions."""
    shared = {"name": name, "run_name": name, "run_type": "iteration", "time_unit": unit}
    shared |= dict.fromkeys(("family_index", "per_family_instance_index"), 0)
    shared |= {"threads": 1, "iterations": 5, "repetitions": len(seconds)}
    scale = {"ms": 1e3, "us": 1e6}[unit]
    return [
        {**shared, **counter, "repetition_index": index}
        | {"real_time": scale * value, "cpu_time": BUSY * scale * value}
        for index, (value, counter) in enumerate(zip(seconds, counters, strict=True))
    ]


def step_name(world: World, mode: str) -> str:
    """Of the row of a mode."""
    batch = world.global_batch if mode == "alone_global" else world.rank_batch
    step = f"full_step/train/baseline/{world.size}/f32/batch:{batch}/seq:128/ranks:{world.ranks}"
    return f"{step}/{mode.removesuffix('_global')}"


def _collectives(world: World, chance: random.Random) -> list[Json]:
    sizes = [1024 * 4**i for i in range(20) if 1024 * 4**i <= max(world.buckets)]
    entries = []
    for operation in OPERATIONS:
        for size in sorted({*sizes, *world.buckets}):
            exact = ring_seconds(operation, world.ranks, size)
            seconds = [exact * math.exp(chance.gauss(0, 0.02)) for _ in range(world.rounds)]
            counters = {"ranks": world.ranks, "message_bytes": size}
            counters |= {"algorithm_GB_per_second": 1.0, "bus_GB_per_second": 1.0}
            name = f"{operation}/f32/bytes:{size}/ranks:{world.ranks}"
            entries += row(name, "us", seconds, [counters] * world.rounds)
    return entries


def context(world: World) -> Json:
    """The head of the reference's file, of other ranks."""
    measured = read_json(RESULTS / "reference/ranks_2core_xeon_avx512/ranks_2.json")[0]["context"]
    own = {
        "world_size": world.ranks,
        "backend": "gloo" if world.ranks > 1 else "none",
        "bucket_MiB": world.bucket_MiB,
        "bucket_bytes": world.buckets,
        **dict.fromkeys(("parameter_bytes", "gradient_bytes"), sum(world.buckets)),
        "scaling": "strong" if world.global_batch else "weak",
        "ranks": [
            {"rank": rank, "local_rank": rank, "node": 0, "cores": str(rank)}
            for rank in range(world.ranks)
        ],
    }
    program = {"host_name": "host", "executable": "tiny_llama_scaling"}
    return measured | program | {"distributed": measured["distributed"] | own}


def document(world: World) -> Json:
    """The whole file."""
    chance = random.Random(world.seed * 1000 + world.ranks)
    rounds = [_round_times(world, chance) for _ in range(world.rounds)]
    entries: list[Json] = []
    samples: dict[str, Any] = {}
    for mode in (mode for mode in rounds[0] if mode != "mean_local"):
        name, seconds = step_name(world, mode), [times[mode] for times in rounds]
        entries += row(name, "ms", seconds, [_counters(world, times, mode) for times in rounds])
        # the others wait while rank 0 computes alone
        works = [rank == 0 or not mode.startswith("alone") for rank in range(world.ranks)]
        samples[name] = [
            [[value] if is_at_work else [] for is_at_work in works] for value in seconds
        ]
    if world.ranks > 1:
        entries += _collectives(world, chance)
    return {"context": context(world), "benchmarks": entries, "rank_samples": samples}


def write_world(folder: Path, world: World, changed: Json | None = None) -> Path:
    """ranks_<N>.json. `changed`: instead of its document."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"ranks_{world.ranks}.json"
    path.write_text(json.dumps(changed or document(world)), encoding="utf-8")
    return path


def write_run(folder: Path, ranks: Sequence[int] = (1, 2, 4), **world: Any) -> Path:  # noqa: ANN401
    """A folder of scripts/scaling, without scaling.json."""
    for number in ranks:
        write_world(folder, World(ranks=number, **world))
    return folder


def analysis_of(path: Path) -> Analysis:
    """Of a folder with ranks_<N>.json, or of one such file."""
    return analyse(read_results(path).results)
