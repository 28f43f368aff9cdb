"""The parts of a case's name: component/pass/variant/size/dtype/batch:B/seq:S.

A data-parallel step has /ranks:N/mode after that. Collectives (collective_name.py) are no cases.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PATTERN = re.compile(
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


def parse_case_name(text: str) -> CaseName | None:
    """None for names that are not of this form (peak/bandwidth)."""
    found = PATTERN.fullmatch(text.removesuffix(TIMED_BY))
    if found is None:
        return None
    axes = found.groupdict()
    numbers = {name: int(axes[name]) for name in ("batch", "seq")}
    ranks = int(axes["ranks"]) if axes["ranks"] is not None else None
    return CaseName(**{**axes, **numbers, "ranks": ranks, "mode": axes["mode"] or ""})
