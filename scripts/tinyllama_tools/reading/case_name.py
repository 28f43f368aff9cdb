"""The parts of a case's name: component/pass/variant/size/dtype/batch:B/seq:S."""

from __future__ import annotations

import re
from dataclasses import dataclass

PATTERN = re.compile(
    r"(?P<component>[^/]+)/(?P<pass_name>[^/]+)/(?P<variant>[^/]+)/(?P<size>[^/]+)/"
    r"(?P<dtype>[^/]+)/batch:(?P<batch>\d+)/seq:(?P<seq>\d+)"
)
# what Google Benchmark appends
TIMED_BY = "/manual_time"
# of a whole training step
STEP, TRAIN = "full_step", "train"


@dataclass(frozen=True)
class CaseName:
    """A case by its axes."""

    component: str
    pass_name: str
    variant: str
    size: str
    dtype: str
    batch: int
    seq: int

    def __str__(self) -> str:
        axes = (self.component, self.pass_name, self.variant, self.size, self.dtype)
        return f"{'/'.join(axes)}/batch:{self.batch}/seq:{self.seq}"

    @property
    def is_training_step(self) -> bool:
        """Whether it is a whole training step."""
        return (self.component, self.pass_name) == (STEP, TRAIN)

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
    return CaseName(**{**axes, "batch": int(axes["batch"]), "seq": int(axes["seq"])})
