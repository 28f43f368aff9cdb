"""Names of cases (component/pass/variant/size/dtype/batch:B/seq:S) and of collectives, and what
is stored of them.

A data-parallel step has /ranks:N/mode after that. Collectives are no cases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CASE_PATTERN = re.compile(
    r"(?P<component>[^/]+)/(?P<pass_name>[^/]+)/(?P<variant>[^/]+)/(?P<size>[^/]+)/"
    r"(?P<dtype>[^/]+)/batch:(?P<batch>\d+)/seq:(?P<seq>\d+)"
    r"(?:/ranks:(?P<ranks>\d+)/(?P<mode>[a-z_]+))?"
)
# what Google Benchmark appends
TIMED_BY = "/manual_time"
# of a whole training step
STEP, TRAIN = "full_step", "train"


@dataclass(frozen=True)
class CaseName:
    """A case by its axes. `ranks`, `mode`: of a data-parallel step (docs/distributed.md), whose
    `batch` is that of each rank; None and empty of every other case."""

    component: str
    pass_name: str
    variant: str
    size: str
    dtype: str
    batch: int
    seq: int
    ranks: int | None = None
    mode: str = ""

    def __str__(self) -> str:
        axes = (self.component, self.pass_name, self.variant, self.size, self.dtype)
        alone = f"{'/'.join(axes)}/batch:{self.batch}/seq:{self.seq}"
        return f"{alone}/ranks:{self.ranks}/{self.mode}" if self.is_data_parallel else alone

    @property
    def is_data_parallel(self) -> bool:
        """Whether tiny_llama_scaling timed it, as one of several ways to do a step."""
        return self.ranks is not None

    @property
    def is_training_step(self) -> bool:
        """Whether it is a whole training step of one process."""
        return (self.component, self.pass_name) == (STEP, TRAIN) and not self.is_data_parallel

    @property
    def circumstances(self) -> tuple[str, str, str, int, int]:
        """What the parts of one step have in common: variant, size, dtype, batch, seq."""
        return (self.variant, self.size, self.dtype, self.batch, self.seq)


def full_step(size: str, dtype: str, batch: int, seq: int, variant: str = "baseline") -> CaseName:
    """The training step of one process."""
    return CaseName(STEP, TRAIN, variant, size, dtype, batch, seq)


def parse_case_name(text: str) -> CaseName | None:
    """None for names that are not of this form (peak/bandwidth)."""
    found = CASE_PATTERN.fullmatch(text.removesuffix(TIMED_BY))
    if found is None:
        return None
    axes = found.groupdict()
    numbers = {name: int(axes[name]) for name in ("batch", "seq")}
    ranks = int(axes["ranks"]) if axes["ranks"] is not None else None
    return CaseName(**{**axes, **numbers, "ranks": ranks, "mode": axes["mode"] or ""})


ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all_reduce", "reduce_scatter", "all_gather"
OPERATIONS = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)
COLLECTIVE_PATTERN = re.compile(
    rf"(?P<operation>{'|'.join(OPERATIONS)})/(?P<dtype>[^/]+)/bytes:(?P<bytes>\d+)/ranks:(?P<ranks>\d+)"
)


@dataclass(frozen=True)
class CollectiveName:
    """`bytes` as nccl-tests counts them: the whole vector (all_reduce: of every rank;
    reduce_scatter: the input of a rank; all_gather: the output of a rank)."""

    operation: str
    dtype: str
    bytes: int
    ranks: int

    def __str__(self) -> str:
        return f"{self.operation}/{self.dtype}/bytes:{self.bytes}/ranks:{self.ranks}"


def parse_collective_name(text: str) -> CollectiveName | None:
    """None for names that are not of this form."""
    found = COLLECTIVE_PATTERN.fullmatch(text.removesuffix(TIMED_BY))
    if found is None:
        return None
    axes = found.groupdict()
    return CollectiveName(axes["operation"], axes["dtype"], int(axes["bytes"]), int(axes["ranks"]))


@dataclass(frozen=True)
class StoredCase:
    """A case of one file.

    `seconds`: of an iteration, the median over `repetitions`; None where it was skipped or failed,
    which `skipped` and `failed` give the reason for. `counters`: medians too. `varying`: counters
    that were not the same in every repetition. `label`: what the program says of the row.
    `above_peak`: why it has no shares of peaks; empty where it has. `extremes`: the shortest and
    the longest of the repetitions, in seconds.
    """

    seconds: float | None = None
    repetitions: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    varying: frozenset[str] = frozenset()
    skipped: str = ""
    failed: str = ""
    label: str = ""
    above_peak: str = ""
    extremes: tuple[float, float] | None = None


# Google Benchmark's own keys of a repetition; every other number is a counter.
OWN_KEYS = frozenset(
    {
        "family_index",
        "per_family_instance_index",
        "repetitions",
        "repetition_index",
        "threads",
        "iterations",
        "real_time",
        "cpu_time",
        "median_ns",
    }
)
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class StoredRun:
    """`cases` by name; `peaks`: rows that measure the machine, likewise. `context`: what the
    figures belong to. `digest`: the same of the same file. `configuration`: of a training run, what
    it was asked to do; names of cases say so elsewhere."""

    path: Path
    context: Mapping[str, Any]
    cases: Mapping[str, StoredCase]
    peaks: Mapping[str, StoredCase] = field(default_factory=dict)
    digest: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
