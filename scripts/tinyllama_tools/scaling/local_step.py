"""The time of a step on one device, which a projection starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tinyllama_tools.data.names import CaseName

MEASURED, PREDICTED = "measured", "predicted"


@dataclass(frozen=True)
class LocalStep:
    """`seconds` at the batch of `name`, between `low` and `high` where it is PREDICTED, which
    `range_words` names. `source`: the file and row, or what the prediction rests on.
    `seconds_by_batch`: other batches of the same step that were measured or predicted."""

    name: CaseName
    seconds: float
    low: float
    high: float
    kind: str
    source: str
    range_words: str = ""
    seconds_by_batch: Mapping[int, float] = field(default_factory=dict)

    @cached_property
    def _line(self) -> tuple[float, float] | None:
        """Constant and seconds a sample, by least squares of relative errors over the batches up to
        this one; None where there is one batch only, or the line would go below 0."""
        known = {**self.seconds_by_batch, self.name.batch: self.seconds}
        points = sorted((b, s) for b, s in known.items() if b <= self.name.batch)
        if len(points) < 2:
            points = sorted(known.items())
        if len(points) < 2:
            return None
        batches, seconds = np.array(points, dtype=np.float64).T
        slope, constant = np.polyfit(batches, seconds, 1, w=1 / seconds)
        return (float(constant), float(slope)) if constant >= 0 and slope > 0 else None

    @property
    def knows_small_batches(self) -> bool:
        """Whether the cost of a small batch is known; otherwise time is taken as proportional to
        the samples, which loses nothing with small batches."""
        return self._line is not None

    def seconds_at(self, batch: float) -> float:
        """Of a step over so many samples of one device. More than the step's own batch are done one
        batch after the other (gradient accumulation)."""
        if batch >= self.name.batch or self._line is None:
            return self.seconds * batch / self.name.batch
        constant, slope = self._line
        scale = self.seconds / (constant + slope * self.name.batch)
        return scale * (constant + slope * batch)
