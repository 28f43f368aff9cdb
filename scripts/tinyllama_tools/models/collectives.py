"""How long collectives take: formulas by ranks and bytes, fits to what was measured, known links,
and the buckets that gradients travel in. docs/distributed.md has the formulas in a table.

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

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from tinyllama_tools.core.app import (
    PROJECT,
    BadInputError,
    Json,
    bad_file,
    read_json,
    schema_problem,
)
from tinyllama_tools.core.text import MIB
from tinyllama_tools.data.names import OPERATIONS
from tinyllama_tools.data.studies import SCHEMAS
from tinyllama_tools.stats.rank_tests import WANTED_CONFIDENCE

if TYPE_CHECKING:
    from tinyllama_tools.data.results import Row


class Link(NamedTuple):
    """`latency` in s a message, `bandwidth` in bytes/s that a device sends while it receives as
    many. There is no contention: every link is there for its pair alone."""

    latency: float
    bandwidth: float


def ring_all_reduce(ranks: int, size: float, link: Link) -> float:
    """2 (N - 1) a + 2 (N - 1)/N n/B: a reduce-scatter and an all-gather, each of N - 1 steps with
    an Nth of the vector. The time to add numbers up is not counted."""
    return 2 * (ranks - 1) * (link.latency + size / ranks / link.bandwidth)


def tree_all_reduce(ranks: int, size: float, link: Link) -> float:
    """2 (sqrt(2 h a) + sqrt(n/B))², h = ceil(log2 N).

    A reduction and a broadcast over two trees, each of which carries half of the vector. In k
    packets, the last of them arrives after 2 h + k steps of a + n / (k B); the best k is
    sqrt(2 h n / (a B)). With fewer than one packet for the best k the vector travels whole.
    """
    steps = 2 * math.ceil(math.log2(ranks))
    whole = size / link.bandwidth
    packets = max(1.0, math.sqrt(steps * whole / link.latency))
    return 2 * (steps + packets) * (link.latency + whole / packets)


def flat_all_reduce(ranks: int, size: float, link: Link) -> tuple[float, str]:
    """Seconds of the better of ring and tree, and which that is."""
    of = (ranks, size, link)
    if ranks < 2:
        return 0.0, "none"
    return min((ring_all_reduce(*of), "ring"), (tree_all_reduce(*of), "tree"))


def all_reduce(ranks: int, size: float, over: Json) -> tuple[float, str]:
    """Within a node reduce-scatter, between nodes all-reduce of each device's share by its own
    network link, within the node all-gather. Seconds, and what is the best between nodes.

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
    between, algorithm = flat_all_reduce(ranks // per_node, size / per_node, network)
    return ring_all_reduce(per_node, size, device) + between, algorithm


def link_of_ring(alpha: float, bandwidth: float, ranks: int) -> Link:
    """The link that explains a measured all-reduce t = alpha + n / bandwidth of two ranks or more
    as a ring: the formula above, turned round."""
    return Link(alpha / (2 * (ranks - 1)), bandwidth * 2 * (ranks - 1) / ranks)


FIXTURE = PROJECT / "fixtures/interconnects.json"
# the name of the link that was measured here, and a kind of local steps
MEASURED = "measured"


def read_interconnects(path: Path = FIXTURE) -> list[Json]:
    """As scaling.json has them; BadInputError naming the value that is wrong."""
    document, _ = read_json(path)
    schema = {"properties": {"interconnects": SCHEMAS["interconnects"]}}
    if problem := schema_problem(document, schema | {"required": ["interconnects"]}):
        raise bad_file(path, problem, "correct it, as the others are")
    return document["interconnects"]


# what a match may say beside the words of the name
OF_DEVICE = ("backend", "threads", "architecture", "whole_node")


def stands_for(over: Json, device: Mapping[str, Any]) -> bool:
    """Whether the figures of an interconnect are of this device's links. `device`: of a local step.
    Names are matched as those of fixtures/device_peaks.json are, by words."""
    name = str(device["name"]).lower()
    return any(
        all(of.get(key) in (None, device[key]) for key in OF_DEVICE)
        and all(word in name for word in of["words"])
        and not any(word in name for word in of.get("without", ()))
        for of in over["match"]
    )


def figures_from(over: Json) -> str:
    """Where latency and bandwidth of an interconnect's links come from."""
    if over["name"] == MEASURED:
        return "measured"
    links = [link for link in (over["device"], over["network"]) if link]
    return "datasheet, latency assumed" if any(of["is_assumed"] for of in links) else "datasheet"


FIRST_BUCKET_BYTES = MIB
# of a gradient, which has its parameter's type (docs of --dtypes)
BYTES = {"f32": 4, "amp_bf16": 4, "amp_f16": 4, "bf16": 2, "f16": 2}


def plan_buckets(sizes: Sequence[float], bucket_bytes: float) -> list[float]:
    """Bytes of each bucket in the order in which a backward fills them; the last one is only ready
    when the backward ends. `sizes`: bytes of each gradient in the order of the model.

    The same rule as benchmarks/distributed/gradient_reducer.cpp: parameters in the reverse of their
    order in the model, cut where the next one would make a bucket larger than asked for; the first
    bucket holds 1 MiB at most, and a larger parameter has a bucket of its own.
    """
    buckets: list[float] = []
    for size in reversed(sizes):
        limit = min(FIRST_BUCKET_BYTES, bucket_bytes) if len(buckets) <= 1 else bucket_bytes
        if buckets and buckets[-1] + size <= limit:
            buckets[-1] += size
        else:
            buckets.append(size)
    return buckets


def buckets_of(of: Mapping[str, int], dtype: str, bucket_bytes: float) -> list[float]:
    """Of a problem size in a dtype. Parameters are in the order of the model: embedding, layers
    (norm, Q, K, V, O, norm, gate, up, down, as model/block.cpp names them), final norm, LM head."""
    hidden, square = of["hidden_dim"], of["hidden_dim"] ** 2
    table, inner = hidden * of["vocab_size"], hidden * of["intermediate_dim"]
    key = square // of["n_heads"] * of["n_kv_heads"]
    layer = [hidden, square, key, key, square, hidden, inner, inner, inner]
    counts = [table, *layer * of["n_layers"], hidden, table]
    return plan_buckets([BYTES[dtype] * count for count in counts], bucket_bytes)


FEWEST_SIZES = 3


@dataclass(frozen=True)
class AlphaBeta:
    """t = alpha + bytes / bandwidth at `ranks` ranks, of `sizes` sizes. `alpha` in s: what no byte
    can save. `bandwidth` in bytes/s of the collective as a whole (nccl-tests' algorithm bandwidth).
    Ranges: 95 % intervals, `low` and `high`, None where there is no end. In percent: `scatter`, the
    largest misfit of a size, and what predictions of each size from the others are off by; None
    where there are too few sizes to leave one out."""

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
        """Of one call on so many bytes."""
        return self.alpha + size / self.bandwidth


def fit_alpha_beta(operation: str, ranks: int, seconds_of: Mapping[int, float]) -> AlphaBeta:
    """`seconds_of`: seconds of a call by its bytes. By least squares of relative errors, so that
    1 KiB counts as much as the largest bucket; intervals are Student's, over sizes.

    BadInputError where there are fewer than three sizes, and where a term would not be positive.
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
    """One fit for each operation and number of ranks above 1; and the refusals."""
    fits, refused = [], []
    for operation in OPERATIONS:
        own = [row for row in rows if row.name.operation == operation]
        for ranks in sorted({row.name.ranks for row in own} - {1}):
            of = {row.name.bytes: row.median_seconds for row in own if row.name.ranks == ranks}
            try:
                fits.append(fit_alpha_beta(operation, ranks, of))
            except BadInputError as error:
                refused.append(str(error))
    return fits, refused
