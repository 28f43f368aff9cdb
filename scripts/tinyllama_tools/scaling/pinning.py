"""Which cores each local rank gets: disjoint sets, whole cores before their second threads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tinyllama_tools.core.app import BadInputError

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def allowed_cores() -> tuple[int, ...]:
    """Logical processors that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def siblings_of(cores: Sequence[int]) -> dict[int, int]:
    """The first logical processor of the core that each belongs to; itself where that is not
    known."""
    found = {}
    for core in cores:
        try:
            text = Path(SIBLINGS.format(core)).read_text(encoding="ascii")
            found[core] = int(text.replace("-", ",").split(",")[0])
        except (OSError, ValueError):
            found[core] = core
    return found


def core_order(cores: Sequence[int], first_sibling: Mapping[int, int]) -> list[int]:
    """One logical processor of every core, then the second of every core, and so on."""
    seen: dict[int, int] = {}
    ranked = []
    for core in sorted(cores):
        owner = first_sibling.get(core, core)
        ranked.append((seen.get(owner, 0), core))
        seen[owner] = seen.get(owner, 0) + 1
    return [core for _, core in sorted(ranked)]


def core_sets(
    processes: int, threads: int, ordered: Sequence[int], *, oversubscribe: bool = False
) -> list[tuple[int, ...]]:
    """One set of `threads` logical processors a process, disjoint unless `oversubscribe`, which
    then begins again with the first.

    BadInputError where there are too few.
    """
    needed = processes * threads
    if needed > len(ordered) and not oversubscribe:
        raise BadInputError(
            f"--processes {processes} with --threads-per-process {threads}: {needed} logical "
            f"processors are needed, {len(ordered)} are allowed ({_listed(ordered)}); take fewer, "
            "or --oversubscribe, with which times mean little"
        )
    taken = [ordered[i % len(ordered)] for i in range(needed)]
    return [tuple(sorted(set(taken[i * threads : (i + 1) * threads]))) for i in range(processes)]


def _listed(cores: Sequence[int]) -> str:
    return ",".join(map(str, sorted(cores)))
