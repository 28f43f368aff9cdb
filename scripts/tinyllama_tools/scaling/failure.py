"""What could not be measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A number of ranks that was not measured to its end. `status`: of the run, `words`: of the
    rank that ended first."""

    ranks: int
    status: int
    words: str
