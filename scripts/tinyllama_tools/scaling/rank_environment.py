"""The environment of local ranks, as torchrun sets it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

ADDRESS = "127.0.0.1"
# of an outer job, which would say something else
OTHER_STARTERS = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
)


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now. OSError without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((ADDRESS, 0))
        return probe.getsockname()[1]


def rank_environment(
    rank: int, ranks: int, port: int, outer: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Of one of `ranks` local processes that meet at `port`."""
    kept = {name: value for name, value in outer.items() if name not in OTHER_STARTERS}
    return kept | {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
    }
