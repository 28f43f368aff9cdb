"""How a side's resident process is started, and what it says of itself and of a case."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyllama_tools.peer_process import placed_threads

Json = dict[str, Any]
MOST_PADDING_BYTES = 4096
# How long OpenMP's workers spin before they sleep: about a millisecond, since a processor's pause
# takes 40 to 140 cycles. Spinning for longer, as is the default, they would disturb the other side.
# Not spinning at all (a passive wait policy) changes what is measured: between the operators of an
# optimizer update they would sleep and be woken 700 times, and the update take three times as long.
SHORT_SPIN = {"GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}
# What says how workers wait, for whoever wants them to wait otherwise.
WAITING = ("OMP_WAIT_POLICY", *SHORT_SPIN)


@dataclass(frozen=True)
class TurnProgram:
    """How a side's process is started. `environment`: added to that of this process."""

    name: str
    program: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> tuple[str, ...]:
        """What is executed."""
        return (str(self.program), *self.arguments, "--serve")

    def environment_with(self, padding: int) -> dict[str, str]:
        """Everything the process sees. Where `padding` bytes begin, the stack begins: an effect of
        its place is thus drawn anew with each process instead of being taken for a difference.
        Threads are placed as the program itself would place them, which saves its second start."""
        around = placed_threads({**os.environ, **self.environment})
        wait = {} if any(name in around for name in WAITING) else SHORT_SPIN
        return {**around, **wait, "TINY_LLAMA_PADDING": "x" * padding}


@dataclass(frozen=True)
class Greeting:
    """The first line: what can be opened, and the context of a result file."""

    cases: tuple[str, ...]
    context: Json


@dataclass(frozen=True)
class OpenedCase:
    """`seconds`: of one warm iteration."""

    seconds: float
    counters: dict[str, float]
