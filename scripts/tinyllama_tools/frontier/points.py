"""The frontier as a whole, and as the points that are written of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinyllama_tools.frontier.axis import AXES, BY_SEQ, Axis
from tinyllama_tools.frontier.confirmation import Confirmation
from tinyllama_tools.frontier.overhead import Overhead
from tinyllama_tools.frontier.prediction import Found, Room

KIND, SCHEMA_VERSION = "frontier", 1


@dataclass(frozen=True)
class FrontierPoint:
    """The largest batch at a sequence length.

    `largest_batch` 0: not even batch 1 fits. `predicted_bytes`: what that batch needs (batch 1
    where none fits), the measured overhead included. `remark`: why the line ends where memory does
    not end it. `confirmed`: in words, empty where nothing was tried; `confirmed_batch`: the largest
    that ran while the next one did not, None where that was not settled; `apart_percent`: how far
    the prediction is above that.
    """

    size: str
    variant: str
    dtype: str
    seq: int
    largest_batch: int
    predicted_bytes: int
    limit_bytes: int
    confirmed: str = ""
    confirmed_batch: int | None = None
    apart_percent: float | None = None
    remark: str = ""


@dataclass(frozen=True)
class SequencePoint:
    """The longest sequence at a batch; the fields are those of FrontierPoint."""

    size: str
    variant: str
    dtype: str
    batch: int
    longest_seq: int
    predicted_bytes: int
    limit_bytes: int
    confirmed: str = ""
    confirmed_seq: int | None = None
    apart_percent: float | None = None
    remark: str = ""


@dataclass(frozen=True)
class Origin:
    """Of which device, commit and day (UTC time) a frontier is, and the command that made it;
    `device` empty where nothing that was measured on it was given."""

    device: str = ""
    git_commit: str = ""
    date: str = ""
    command: str = ""


@dataclass(frozen=True)
class Frontier:
    """What is predicted of one axis, and what was tried of it: `confirmed` has None where nothing
    was."""

    axis: Axis
    room: Room
    overhead: Overhead
    found: tuple[Found, ...]
    confirmed: tuple[Confirmation | None, ...]
    origin: Origin

    @property
    def has_tries(self) -> bool:
        """Whether anything was tried."""
        return any(self.confirmed)

    def points(self) -> list[dict[str, Any]]:
        """As they are written, one a line."""
        return [
            asdict(point_of(self.axis, self.room.limit_bytes, found, confirmed))
            for found, confirmed in zip(self.found, self.confirmed, strict=True)
        ]

    def tries(self) -> list[dict[str, Any]]:
        """All of them, in their order."""
        return [
            {
                "case": str(found.line.case(self.axis, one.value)),
                "fits": one.fits,
                "why": one.why,
                "peak_bytes": one.peak_bytes,
            }
            for found, confirmed in zip(self.found, self.confirmed, strict=True)
            for one in (confirmed.tries if confirmed else ())
        ]


def document_of(*frontiers: Frontier) -> dict[str, Any]:
    """frontier.json, of one axis or of both in the same room. `points` are by sequence length,
    `sequences` by batch; one may be empty."""
    first = frontiers[0]
    by_key = {frontier.axis.key: frontier.points() for frontier in frontiers}
    overhead = first.overhead
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        **asdict(first.origin),
        "by": ",".join(frontier.axis.given for frontier in frontiers),
        "limit_bytes": first.room.limit_bytes,
        "limit_source": first.room.source,
        "overhead": {**asdict(overhead.model), "source": overhead.source},
        **{axis.key: by_key.get(axis.key, []) for axis in AXES.values()},
        "tries": [one for frontier in frontiers for one in frontier.tries()],
    }


def apart_percent(predicted: int, confirmed: int | None) -> float | None:
    """100 (predicted / confirmed - 1); None where there is nothing to compare with."""
    if confirmed is None or (confirmed == 0 and predicted != 0):
        return None
    return 100 * (predicted / confirmed - 1) if confirmed else 0.0


def point_of(
    axis: Axis, limit_bytes: int, found: Found, confirmation: Confirmation | None = None
) -> FrontierPoint | SequencePoint:
    """The form in which a line's answer is written."""
    settled = confirmation.largest if confirmation else None
    kind = FrontierPoint if axis is BY_SEQ else SequencePoint
    return kind(
        found.line.size,
        found.line.variant,
        found.line.dtype,
        found.line.given,
        found.largest,
        found.predicted_bytes,
        limit_bytes,
        confirmation.text(axis) if confirmation else "",
        settled,
        apart_percent(found.largest, settled),
        found.remark,
    )
