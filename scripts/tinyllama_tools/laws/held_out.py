"""How well a law predicts what it has not seen: the largest cells of a grid are held out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyllama_tools.laws.law import Law
from tinyllama_tools.laws.points import GridPoint, LawRefusedError, split_largest


@dataclass(frozen=True)
class HeldOut:
    """`law` is of the kept points.

    `errors_percent`: predicted minus measured, of the measured, in the order of `held`;
    `median_percent` of their absolutes. `covered`: how many of `held` lie in the law's range
    (`law.range_kind` says of what), whose median width is `median_width_percent` of the prediction.
    Held-out cells are of the same rounds, so a range for new rounds holds more of them than of new
    ones.
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
    kept, held = split_largest(points)
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
