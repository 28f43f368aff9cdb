"""Which values to ask about next, from the memory that is known at others.

Memory is nearly linear in the batch and quadratic in the sequence, so that three known values point
at the answer; values around it show whether that holds, and others narrow the bracket where not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tinyllama_tools.frontier.bracket import LARGEST, Bracket, between

# of an even division, which ends the search where the guess is of no use
DIVISIONS = 8


def _on_parabola(points: Sequence[tuple[int, float]], limit: float) -> float | None:
    """Where the parabola through three points reaches `limit`, in Newton's form around the last;
    None where it does not."""
    (x0, y0), (x1, y1), (x2, y2) = points
    first, second = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    curvature = (second - first) / (x2 - x0)
    slope = second + curvature * (x2 - x1)
    discriminant = slope**2 + 4 * curvature * (limit - y2)
    if discriminant < 0:
        return None
    divisor = slope + math.sqrt(discriminant)
    found = x2 + 2 * (limit - y2) / divisor if divisor > 0 else math.inf
    return found if math.isfinite(found) else None


def guess(known: Mapping[int, float], limit: float) -> int | None:
    """The largest value that may need at most `limit` bytes, 1 to LARGEST, by the three known
    values that are nearest to it; None where they do not point at one.

    `known`: bytes by value. Rather larger values than smaller: where memory is small, something
    else than activations may be its peak.
    """
    values = sorted(known)
    below = sum(1 for value in values if known[value] <= limit)
    first = max(0, min(below - 1, len(values) - 3))
    nearest = [(value, known[value]) for value in values[first : first + 3]]
    found = _on_parabola(nearest, limit) if len(nearest) == 3 else None
    if found is None:
        return None
    lowest = values[below - 1] if below else 1
    highest = values[below] - 1 if below < len(values) else LARGEST
    return max(lowest, min(int(found), highest))


def proposals(bracket: Bracket, known: Mapping[int, float], limit: float) -> list[int]:
    """Values inside the bracket, sorted; empty where it is closed."""
    if bracket.is_closed:
        return []
    values: set[int] = set()
    middle = guess(known, limit)
    if middle is not None:
        values |= {middle + offset for offset in (-1, 0, 1, 2)}
        values |= {middle // 2, middle * 3 // 4, middle * 5 // 4 + 1, middle * 2}
    if bracket.refused <= LARGEST:
        values |= set(between(bracket.accepted, bracket.refused, DIVISIONS))
    elif not any(bracket.contains(value) for value in values):
        # Upwards by steps: far too large a value is one that the formulas do not count.
        values |= {min(bracket.accepted * factor + 1, LARGEST) for factor in (2, 4, 8)}
    return sorted(value for value in values if bracket.contains(value))
