"""The frontier as a whole, and as the points that are written of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinyllama_tools.frontier.axis import AXES, Axis
from tinyllama_tools.frontier.confirmation import Confirmation
from tinyllama_tools.frontier.overhead import Overhead
from tinyllama_tools.frontier.prediction import Found, Room

KIND, SCHEMA_VERSION = "frontier", 1


@dataclass(frozen=True)
class Origin:
    """Of which device, commit and day (UTC time) a frontier is, and the command that made it;
    `device` empty where neither the program nor anything that was measured says it."""

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
            point_of(self.axis, self.room.limit_bytes, found, confirmed)
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
) -> dict[str, Any]:
    """A line's answer as it is written.

    `largest_batch` or `longest_seq` 0: not even the smallest fits. `predicted_bytes`: what it needs
    (the smallest where none fits), the measured overhead included. `confirmed`: in words, empty
    where nothing was tried; `confirmed_batch` or `confirmed_seq`: the largest that ran while the
    next one did not, None where that was not settled; `apart_percent`: how far the prediction is
    above that. `remark`: why the line ends where memory does not end it.
    """
    settled = confirmation.largest if confirmation else None
    return {
        "size": found.line.size,
        "variant": found.line.variant,
        "dtype": found.line.dtype,
        axis.given: found.line.given,
        axis.largest_key: found.largest,
        "predicted_bytes": found.predicted_bytes,
        "limit_bytes": limit_bytes,
        "confirmed": confirmation.text(axis) if confirmation else "",
        axis.confirmed_key: settled,
        "apart_percent": apart_percent(found.largest, settled),
        "remark": found.remark,
    }
