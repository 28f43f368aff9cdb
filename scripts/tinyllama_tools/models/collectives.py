"""How long collectives take: formulas by ranks and bytes, fits to measured ones, known links, and
the buckets that gradients are reduced in.

- R. Hockney, The communication challenge for MPP, Parallel Computing 20 (1994): latency and
  bandwidth, t = alpha + bytes / bandwidth.
- P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
  Journal of Parallel and Distributed Computing 69 (2009): the ring.
- R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in
  MPICH, International Journal of High Performance Computing Applications 19 (2005): an all-reduce
  is a reduce-scatter and an all-gather.
- P. Sanders, J. Speck, J. L. Träff, Two-tree algorithms for full bandwidth broadcast, reduction and
  scan, Parallel Computing 35 (2009): the double binary tree.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from tinyllama_tools.core.app import BadInputError, Json, bad_file, read_json, schema_problem
from tinyllama_tools.core.installation import DATA
from tinyllama_tools.core.text import MIB
from tinyllama_tools.data.names import OPERATIONS
from tinyllama_tools.data.rank_results import Row
from tinyllama_tools.data.studies import SCHEMAS
from tinyllama_tools.stats.rank_tests import WANTED_CONFIDENCE


class Link(NamedTuple):
    """`latency`: seconds a message; `bandwidth`: bytes/s in each direction at once. There is no
    contention: every pair of devices has a link of its own."""

    latency: float
    bandwidth: float


def ring_all_reduce(ranks: int, size: float, link: Link) -> float:
    """2 (N - 1) a + 2 (N - 1)/N n/B, with latency a and bandwidth B: a reduce-scatter and an
    all-gather of N - 1 steps each, a step with an Nth of the n bytes. Additions are not counted."""
    return 2 * (ranks - 1) * (link.latency + size / ranks / link.bandwidth)


def tree_all_reduce(ranks: int, size: float, link: Link) -> float:
    """2 (sqrt(2 h a) + sqrt(n/B))², h = ceil(log2 N).

    A reduction and a broadcast over two trees, each of which carries half of the n bytes. Sent in
    k packets, the last one arrives after 2 h + k steps of a + n / (k B); the best k is
    sqrt(2 h n / (a B)), and at least 1.
    """
    steps = 2 * math.ceil(math.log2(ranks))
    whole = size / link.bandwidth
    packets = max(1.0, math.sqrt(steps * whole / link.latency))
    return 2 * (steps + packets) * (link.latency + whole / packets)


def flat_all_reduce(ranks: int, size: float, link: Link) -> float:
    """Seconds of the faster of ring and tree."""
    if ranks < 2:
        return 0.0
    return min(ring_all_reduce(ranks, size, link), tree_all_reduce(ranks, size, link))


def all_reduce(ranks: int, size: float, over: Json) -> float:
    """Seconds. Over several nodes: a reduce-scatter within each node, an all-reduce between nodes,
    in which every device sends its share over a network link of its own, and an all-gather within
    each node.

    ValueError where the ranks do not fill whole nodes.
    """
    per_node, network = over["devices_per_node"], Link(**over["network"]["link"])
    if over["device"] is None or per_node == 1:
        return flat_all_reduce(ranks, size, network)
    device = Link(**over["device"]["link"])
    if ranks <= per_node:
        return flat_all_reduce(ranks, size, device)
    if ranks % per_node:
        raise ValueError(f"{ranks} ranks: must be a multiple of the {per_node} devices of a node")
    between = flat_all_reduce(ranks // per_node, size / per_node, network)
    return ring_all_reduce(per_node, size, device) + between


def link_of_ring(alpha: float, bandwidth: float, ranks: int) -> Link:
    """The link over which ring_all_reduce() would take the measured t = alpha + n / bandwidth, with
    two ranks or more."""
    return Link(alpha / (2 * (ranks - 1)), bandwidth * 2 * (ranks - 1) / ranks)


FIXTURE = DATA / "fixtures/interconnects.json"


def read_interconnects(path: Path = FIXTURE) -> list[Json]:
    """BadInputError names the value that is wrong."""
    document, _ = read_json(path)
    schema = {"properties": {"interconnects": SCHEMAS["interconnects"]}}
    if problem := schema_problem(document, schema | {"required": ["interconnects"]}):
        raise bad_file(path, problem, "correct it after the other entries")
    return document["interconnects"]


# what a match may name beside words of the device's name
DEVICE_KEYS = ("backend", "threads", "architecture", "whole_node")


def stands_for(over: Json, device: Mapping[str, Any]) -> bool:
    """Whether the figures of an interconnect are those of this device's links. `device`: that of a
    local step. Names match by words, as in fixtures/device_peaks.json."""
    name = str(device["name"]).lower()
    return any(
        all(match.get(key) in (None, device[key]) for key in DEVICE_KEYS)
        and all(word in name for word in match["words"])
        and not any(word in name for word in match.get("without", ()))
        for match in over["match"]
    )


def figures_from(over: Json) -> str:
    """Where the latency and bandwidth of an interconnect's links come from."""
    links = [link for link in (over["device"], over["network"]) if link]
    is_assumed = any(link["is_assumed"] for link in links)
    return "datasheet, latency assumed" if is_assumed else "datasheet"


FIRST_BUCKET_BYTES = MIB
# of an element of a gradient, which has its parameter's type
BYTES = {"f32": 4, "amp_bf16": 4, "amp_f16": 4, "bf16": 2, "f16": 2}


def plan_buckets(sizes: Sequence[float], bucket_bytes: float) -> list[float]:
    """Bytes of each bucket in the order in which a backward fills them; the last one is full only
    when the backward ends. `sizes`: bytes of each gradient in the order of the model.

    The rule of c10d's compute_bucket_assignment_by_size: parameters in the reverse of their order
    in the model; a bucket ends with the one that makes it as large as was asked for, the first 1
    MiB.
    """
    buckets: list[float] = []
    limit = 0.0
    for size in reversed(sizes):
        if buckets and buckets[-1] < limit:
            buckets[-1] += size
        else:
            limit = bucket_bytes if buckets else min(FIRST_BUCKET_BYTES, bucket_bytes)
            buckets.append(size)
    return buckets


def parts_of(size: Mapping[str, int], dtype: str) -> list[list[float]]:
    """Bytes of each parameter of a size of fixtures/problem_sizes.json, or with a head_dim of its
    own, in the order of the model: embedding, blocks (norm, Q, K, V, O, norm, gate, up, down:
    model/block.cpp), final norm with LM head."""
    hidden = size["hidden_dim"]
    head = hidden * size.get("head_dim", hidden // size["n_heads"])
    query, key = head * size["n_heads"], head * size["n_kv_heads"]
    table, inner = hidden * size["vocab_size"], hidden * size["intermediate_dim"]
    block = [hidden, query, key, key, query, hidden, inner, inner, inner]
    counts = [[table], *[block] * size["n_layers"], [hidden, table]]
    return [[BYTES[dtype] * count for count in part] for part in counts]


def buckets_of(size: Mapping[str, int], dtype: str, bucket_bytes: float) -> list[float]:
    """plan_buckets() of parts_of()."""
    return plan_buckets([*itertools.chain(*parts_of(size, dtype))], bucket_bytes)


FEWEST_SIZES = 3


@dataclass(frozen=True)
class AlphaBeta:
    """t = alpha + bytes / bandwidth at `ranks` ranks, fitted to `sizes` sizes. `alpha`: seconds of
    a call on no bytes. `bandwidth`: bytes/s of the whole collective (nccl-tests' algorithm
    bandwidth). Ranges: 95 % intervals, `low` and `high`, None where there is no end. `scatter`: the
    largest misfit of a size in percent. Held out: errors in percent where each size is predicted
    from the others; None where there are too few sizes to leave one out."""

    operation: str
    ranks: int
    alpha: float
    bandwidth: float
    alpha_range: Json
    bandwidth_range: Json
    sizes: int
    scatter: float
    median_held_out: float | None
    worst_held_out: float | None

    def seconds(self, size: float) -> float:
        """Of a call on `size` bytes."""
        return self.alpha + size / self.bandwidth


def fit_alpha_beta(operation: str, ranks: int, seconds_of: Mapping[int, float]) -> AlphaBeta:
    """`seconds_of`: seconds of a call by its bytes. Least squares of relative errors, so that 1 KiB
    counts as much as the largest bucket; intervals are Student's, over sizes.

    BadInputError where there are fewer than three sizes, or where a fitted term is not positive.
    """
    what, count = f"{operation}, {ranks} ranks", len(seconds_of)
    if count < FEWEST_SIZES:
        raise BadInputError(
            f"{what}: {count} sizes, at least {FEWEST_SIZES} are needed; raise --max-bytes"
        )
    sizes = np.array(sorted(seconds_of), dtype=np.float64)
    seconds = np.array([seconds_of[int(size)] for size in sizes])
    (per_byte, alpha), covariance = np.polyfit(sizes, seconds, 1, w=1 / seconds, cov=True)
    for term, value in (("latency", alpha), ("time a byte", per_byte)):
        if value <= 0:
            raise BadInputError(
                f"{what}: the fit has a {term} of {value:.3g} s, must be above 0; measure more "
                "rounds, on a machine with nothing else to do"
            )
    off = []
    for i in range(count) if count > FEWEST_SIZES else ():
        others, times = np.delete(sizes, i), np.delete(seconds, i)
        line = np.polyfit(others, times, 1, w=1 / times)
        off.append(float(100 * abs(np.polyval(line, sizes[i]) / seconds[i] - 1)))
    quantile = stdtrit(count - 2, (1 + WANTED_CONFIDENCE) / 2)
    reach_per_byte, reach = (quantile * np.sqrt(np.diag(covariance))).tolist()
    least, most = float(per_byte - reach_per_byte), float(per_byte + reach_per_byte)
    misfit = np.abs((alpha + per_byte * sizes) / seconds - 1)
    return AlphaBeta(
        *(operation, ranks, float(alpha), float(1 / per_byte)),
        {"low": max(0.0, float(alpha) - reach), "high": float(alpha) + reach},
        {"low": 1 / most, "high": 1 / least if least > 0 else None},
        *(count, float(100 * misfit.max())),
        *((statistics.median(off), max(off)) if off else (None, None)),
    )


def fit_collectives(rows: Sequence[Row]) -> tuple[list[AlphaBeta], list[str]]:
    """One fit for each operation and number of ranks above 1; and why others have none."""
    fits, refused = [], []
    for operation in OPERATIONS:
        own = [row for row in rows if row.name.operation == operation]
        for ranks in sorted({row.name.ranks for row in own} - {1}):
            alike = [row for row in own if row.name.ranks == ranks]
            seconds = {row.name.bytes: row.median_seconds for row in alike}
            try:
                fits.append(fit_alpha_beta(operation, ranks, seconds))
            except BadInputError as error:
                refused.append(str(error))
    return fits, refused
