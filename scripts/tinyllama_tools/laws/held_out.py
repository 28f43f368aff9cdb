"""How well a law foretells what it has not seen: the largest cells of a grid are held out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyllama_tools.laws.law import Law
from tinyllama_tools.laws.points import GridPoint, LawRefusedError

# of the largest B S of the grid; cells from there on are held out
HELD_SHARE = 0.5


@dataclass(frozen=True)
class HeldOut:
    """`law` is of the kept points.

    `errors_percent`: predicted minus measured, of the measured, in the order of `held`;
    `median_percent` of their absolutes. `covered`: how many of `held` lie in the law's 95 %
    interval, whose median width is `median_width_percent` of the prediction.
    """

    law: Law
    held: tuple[GridPoint, ...]
    errors_percent: tuple[float, ...]
    median_percent: float
    covered: int
    median_width_percent: float


def check_held_out(
    points: Sequence[GridPoint], fit: Callable[[Sequence[GridPoint]], Law]
) -> HeldOut:
    """Fits to the cells below half of the largest B S and predicts the others.

    LawRefusedError where the kept cells support no law.
    """
    if not points:
        raise LawRefusedError("0 sizes: none to hold out")
    limit = HELD_SHARE * max(point.tokens for point in points)
    held = tuple(point for point in points if point.tokens >= limit)
    kept = [point for point in points if point.tokens < limit]
    try:
        law = fit(kept)
    except LawRefusedError as error:
        raise LawRefusedError(f"of the {len(kept)} sizes that are not held out, {error}") from error
    errors, widths, covered = [], [], 0
    for point in held:
        predicted = law.at(point.batch, point.seq)
        low, high = law.interval(point.batch, point.seq)
        errors.append(100 * (predicted - point.value) / point.value)
        widths.append(100 * (high - low) / predicted)
        covered += low <= point.value <= high
    return HeldOut(
        law,
        held,
        tuple(errors),
        statistics.median(abs(error) for error in errors),
        covered,
        statistics.median(widths),
    )
