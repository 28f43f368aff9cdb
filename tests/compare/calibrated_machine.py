"""A machine whose times are known: parts of a step, noise of a percent, one part slowed at will."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tinyllama_tools.compare.blocks import CaseBlock
from tinyllama_tools.compare.recording import RecordingHeader, RecordingWriter
from tinyllama_tools.stats.rank_tests import Block

CONTEXT = {
    "git_commit": "0123456789abcdef0123456789abcdef01234567",
    "git_dirty": False,
    "device": {"name": "Example CPU", "architecture": "x86-64 AVX2"},
    "num_cpus": 2,
    "threads": 2,
}
# seconds, and how often a step of tiny (four layers) has it
PARTS = {
    "embedding": (0.0002, 1),
    "attention": (0.004, 4),
    "ffn": (0.003, 4),
    "rms_norm": (0.0003, 9),
    "loss": (0.004, 1),
    "optimizer": (0.003, 1),
}
PASSES = {"optimizer": "update", "full_step": "train"}
SCATTER, WITHIN = 0.01, 0.01


def case_name(component: str) -> str:
    """As the suite spells it."""
    return (
        f"{component}/{PASSES.get(component, 'forward_backward')}/baseline/tiny/f32/batch:8/seq:128"
    )


def seconds(slowed: Mapping[str, float]) -> dict[str, float]:
    """Of every part and the step; `slowed`: fraction by part."""
    parts = {name: s * (1 + slowed.get(name, 0)) for name, (s, _) in PARTS.items()}
    step = sum(count * parts[name] for name, (_, count) in PARTS.items())
    return {**parts, "full_step": step}


def write_recording(
    path: Path, blocks: int, slowed: Mapping[str, float] | None = None, seed: int = 1
) -> None:
    """A recording in which the new side has those parts slowed; a block takes 4.5 s."""
    rng = np.random.default_rng(seed)
    header = RecordingHeader(
        "build", "build", "interleaved", 8, 0.015, seed, "2026-01-01T00:00:00", CONTEXT, CONTEXT
    )
    at = 0.0
    path.parent.mkdir(parents=True, exist_ok=True)
    with RecordingWriter(path, header) as writer:
        for index in range(1, blocks + 1):
            at += 1.0
            for name, base in seconds({}).items():
                at += 0.5
                new = seconds(slowed or {})[name]
                # a machine that wanders, alike for both; and two processes, each its own
                state = np.exp(0.2 * np.sin(index / 7))
                sides = [
                    level * state * np.exp(rng.normal(0, SCATTER) + rng.normal(0, WITHIN, 8))
                    for level in (base, new)
                ]
                block = Block(tuple(sides[0].tolist()), tuple(sides[1].tolist()))
                writer.add(CaseBlock(index, case_name(name), block, (0, 1) * 4, at))
