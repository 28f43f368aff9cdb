"""Which axis is searched and which is given, and one line of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinyllama_tools.reading.case_name import STEP, TRAIN, CaseName


@dataclass(frozen=True)
class Axis:
    """`searched` and `given`: "batch" or "seq". `probes`: values of the searched axis that are
    asked about first; at least three, which show how memory grows. `smallest`: value of it.
    `key`: of frontier.json's list of points."""

    searched: str
    given: str
    probes: tuple[int, ...]
    adjective: str
    smallest: int
    key: str

    @property
    def title(self) -> str:
        """`largest batch`, `longest sequence`."""
        return f"{self.adjective} {'batch' if self.searched == 'batch' else 'sequence'}"

    @property
    def largest_key(self) -> str:
        """`largest_batch`, `longest_seq`: of a point's answer."""
        return f"{self.adjective}_{self.searched}"

    @property
    def confirmed_key(self) -> str:
        """`confirmed_batch`, `confirmed_seq`: of what was found by trying."""
        return f"confirmed_{self.searched}"

    def value_of(self, name: CaseName) -> int:
        """The searched value of a case."""
        return name.batch if self.searched == "batch" else name.seq

    def given_of(self, name: CaseName) -> int:
        """The given value of a case."""
        return name.seq if self.searched == "batch" else name.batch

    def counted(self, value: int) -> str:
        """`batch 12`, `sequence 512`."""
        return f"{'batch' if self.searched == 'batch' else 'sequence'} {value}"


# memory is linear in the batch and quadratic in the sequence
BY_SEQ = Axis("batch", "seq", (1, 2, 4, 16, 64), "largest", 1, "points")
# the next token's loss needs two
BY_BATCH = Axis("seq", "batch", (2, 64, 256, 1024, 4096), "longest", 2, "sequences")
AXES: Mapping[str, Axis] = {axis.given: axis for axis in (BY_SEQ, BY_BATCH)}


@dataclass(frozen=True)
class Line:
    """Steps that differ in the searched axis only; `given`: their value of the other one."""

    size: str
    variant: str
    dtype: str
    given: int

    def case(self, axis: Axis, value: int) -> CaseName:
        """The training step at a value of the searched axis."""
        batch, seq = (value, self.given) if axis.searched == "batch" else (self.given, value)
        return CaseName(STEP, TRAIN, self.variant, self.size, self.dtype, batch, seq)


def line_of(axis: Axis, name: CaseName) -> Line:
    """The line that a case belongs to."""
    return Line(name.size, name.variant, name.dtype, axis.given_of(name))
