"""How long a collective takes by the number of ranks: formulas of latency and bandwidth.

N ranks, n bytes, a link with latency a (s a message) and bandwidth B (bytes/s, both directions at
once). The time to add numbers up is not counted.

- P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
  Journal of Parallel and Distributed Computing 69 (2009): the ring.
- R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in
  MPICH, International Journal of High Performance Computing Applications 19 (2005): the model, and
  that an all-reduce is a reduce-scatter and an all-gather.
- P. Sanders, J. Speck, J. L. Träff, Two-tree algorithms for full bandwidth broadcast, reduction and
  scan, Parallel Computing 35 (2009): the double binary tree.

In this model there is no contention: every link is there for its pair alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RING, TREE, NONE = "ring", "tree", "none"


@dataclass(frozen=True)
class Link:
    """`latency` in s, `bandwidth` in bytes/s that a device sends while it receives as many."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Hierarchy:
    """Nodes of `devices_per_node` devices. `device`: between those of a node; None where a node has
    one. `network`: a device's share of the way out of its node."""

    devices_per_node: int
    network: Link
    device: Link | None = None


@dataclass(frozen=True)
class Timed:
    """`algorithm`: which one is the fastest, RING or TREE between nodes (or in the only node);
    NONE where there is nobody to talk to."""

    seconds: float
    algorithm: str


def ring_reduce_scatter(ranks: int, size: float, link: Link) -> float:
    """(N - 1) a + (N - 1)/N n/B: N - 1 steps, an Nth of the vector in each."""
    return (ranks - 1) * link.latency + (ranks - 1) / ranks * size / link.bandwidth


def ring_all_gather(ranks: int, size: float, link: Link) -> float:
    """As the reduce-scatter, the other way round. `size`: of what a rank ends with."""
    return ring_reduce_scatter(ranks, size, link)


def ring_all_reduce(ranks: int, size: float, link: Link) -> float:
    """2 (N - 1) a + 2 (N - 1)/N n/B."""
    return ring_reduce_scatter(ranks, size, link) + ring_all_gather(ranks, size, link)


def tree_all_reduce(ranks: int, size: float, link: Link) -> float:
    """2 (sqrt(2 h a) + sqrt(n/B))², h = ceil(log2 N).

    A reduction and a broadcast over two trees, each of which carries half of the vector. In k
    packets, the last of them arrives after 2 h + k steps of a + n / (k B); the best k is
    sqrt(2 h n / (a B)), which gives (sqrt(2 h a) + sqrt(n/B))². With fewer than one packet for the
    best k the vector travels whole, and k is 1.
    """
    if ranks < 2:
        return 0.0
    steps = 2 * math.ceil(math.log2(ranks))
    whole = size / link.bandwidth
    packets = max(1.0, math.sqrt(steps * whole / link.latency)) if link.latency > 0 else math.inf
    if math.isinf(packets):
        return 2 * whole
    return 2 * (steps + packets) * (link.latency + whole / packets)


def flat_all_reduce(ranks: int, size: float, link: Link) -> Timed:
    """The better of ring and tree."""
    if ranks < 2:
        return Timed(0.0, NONE)
    ring, tree = ring_all_reduce(ranks, size, link), tree_all_reduce(ranks, size, link)
    return Timed(ring, RING) if ring <= tree else Timed(tree, TREE)


def all_reduce(ranks: int, size: float, hierarchy: Hierarchy) -> Timed:
    """Within a node reduce-scatter, between nodes all-reduce of each device's share by its own
    network link, within the node all-gather; the better of ring and tree between nodes.

    ValueError where the ranks do not fill whole nodes.
    """
    per_node = hierarchy.devices_per_node
    if hierarchy.device is None or per_node == 1:
        return flat_all_reduce(ranks, size, hierarchy.network)
    if ranks <= per_node:
        return flat_all_reduce(ranks, size, hierarchy.device)
    if ranks % per_node:
        raise ValueError(f"{ranks} ranks: must be a multiple of the {per_node} devices of a node")
    within = ring_reduce_scatter(per_node, size, hierarchy.device)
    within += ring_all_gather(per_node, size, hierarchy.device)
    between = flat_all_reduce(ranks // per_node, size / per_node, hierarchy.network)
    return Timed(within + between.seconds, between.algorithm)


def link_of_ring(alpha: float, bandwidth: float, ranks: int) -> Link:
    """The link that explains a measured all-reduce t = alpha + n / bandwidth of `ranks` ranks as a
    ring: the formula above, turned round. ValueError for fewer than two ranks."""
    if ranks < 2:
        raise ValueError(f"{ranks} ranks: at least 2, since one sends nothing")
    return Link(alpha / (2 * (ranks - 1)), bandwidth * 2 * (ranks - 1) / ranks)
