"""The parts of a collective's name: operation/dtype/bytes:N/ranks:N."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tinyllama_tools.reading.case_name import TIMED_BY

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all_reduce", "reduce_scatter", "all_gather"
OPERATIONS = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)
PATTERN = re.compile(
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
    found = PATTERN.fullmatch(text.removesuffix(TIMED_BY))
    if found is None:
        return None
    axes = found.groupdict()
    return CollectiveName(axes["operation"], axes["dtype"], int(axes["bytes"]), int(axes["ranks"]))
