"""Numbers of a roofline as people read them."""

from __future__ import annotations

TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def time_text(seconds: float) -> str:
    """`12.3 ms`; a dash where there is no time at all."""
    if seconds <= 0:
        return "-"
    size, unit = next((u for u in TIME_UNITS if seconds >= u[0]), TIME_UNITS[-1])
    return f"{seconds / size:.3g} {unit}"
