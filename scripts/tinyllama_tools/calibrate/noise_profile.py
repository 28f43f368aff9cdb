"""How far two processes of one program lie apart on this machine: results/noise_profile.json.

For comparisons of one stored file a side, where nothing else says how much runs differ. Of each
case, the scatter is the standard deviation, over blocks, of the log of a process's median seconds;
the variances of the base's and the new's processes are averaged. Blocks follow each other over the
whole recording, so the machine's drift between blocks that are minutes apart is in it; drift over
days is not. Both processes of a block saw the same state of the machine, so the degrees of freedom
are those of the blocks, one less than their number, and not of the processes. The profile is of the
machine of this host name, and of no other of the same make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.compare.profile_of_noise import KIND, SCHEMA_VERSION
from tinyllama_tools.stats.looks import BlockSummary

Json = dict[str, Any]


def scatter(summaries: Sequence[BlockSummary]) -> tuple[float, int]:
    """Standard deviation of log seconds between processes, and its degrees of freedom.

    Raises ValueError on fewer than two blocks.
    """
    if len(summaries) < 2:
        raise ValueError(f"{len(summaries)} block: a scatter needs at least 2")
    logs = np.log([[s.base_seconds, s.new_seconds] for s in summaries])
    return float(np.sqrt(logs.var(axis=0, ddof=1).mean())), len(summaries) - 1


def noise_profile(blocks: PairedBlocks, context: Mapping[str, Any], date: str) -> Json:
    """The document; `default`, for cases that were not recorded, is the worst of those that were.

    `context`: a result file's, of the machine that recorded.
    """
    found = {name: scatter(summaries) for name, summaries in blocks.summaries.items()}
    device = context.get("device", {})
    worst = max(value for value, _ in found.values())
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "host_name": context.get("host_name"),
        "device": device.get("name", "unknown"),
        "architecture": device.get("architecture", "unknown"),
        "threads": context.get("threads"),
        "date": date,
        "method": "standard deviation over blocks of the log of a process's median seconds",
        "cases": {
            n: {"scatter": value, "degrees": degrees} for n, (value, degrees) in found.items()
        },
        "default": {"scatter": worst, "degrees": min(degrees for _, degrees in found.values())},
    }
