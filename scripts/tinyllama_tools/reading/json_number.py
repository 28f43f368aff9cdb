"""Which values of a JSON file can be computed with."""

from __future__ import annotations

import math

# of a number in a message
MOST_DIGITS = 40


def is_finite(value: float) -> bool:
    """Of a number; whole ones of JSON have no largest, those beyond a float's count as infinite."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_number(value: object) -> bool:
    """Whether it is a finite number, which true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and is_finite(value)


def shown(value: object) -> str:
    """In a message, which a number of hundreds of digits does not fill."""
    text = repr(value)
    is_long = isinstance(value, int) and len(text) > MOST_DIGITS
    return f"of {len(text)} digits" if is_long else text
