"""Rules of the worksheets that are used more than once: a number and a limit make a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tinyllama_tools.exercise_runs import MeasuredRun
from tinyllama_tools.worksheet import NOT_MEASURED, Verdict, number

NO_TRANSFERS = "no GPU, so no transfers"


def _with(value: float, unit: str) -> str:
    return number(value, unit)


def above(value: float | None, limit: float, unit: str = "%") -> Verdict:
    """Holds above the limit, not at it."""
    rule = f"rule: above {_with(limit, unit)}"
    if value is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(value > limit, f"{_with(value, unit)}; {rule}")


def below(value: float | None, limit: float, unit: str = "%") -> Verdict:
    """Holds below the limit, not at it."""
    rule = f"rule: below {_with(limit, unit)}"
    if value is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(value < limit, f"{_with(value, unit)}; {rule}")


def within(value: float | None, low: float, high: float, unit: str = "%") -> Verdict:
    """Holds from `low` to below `high`, so that neighbouring ranges share no value.

    Either end may be infinite.
    """
    start = f"from {_with(low, '' if math.isfinite(high) else unit)}" if math.isfinite(low) else ""
    end = f"below {_with(high, unit)}" if math.isfinite(high) else ""
    rule = f"rule: {' to '.join(text for text in (start, end) if text)}"
    if value is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(low <= value < high, f"{_with(value, unit)}; {rule}")


def expected(value: float | None, low: float, high: float, unit: str) -> str:
    """`in the range`, or on which side of it."""
    if value is None:
        return NOT_MEASURED
    if low <= value <= high:
        return "in the range"
    side, times = "below", low / value if value > 0 else 0
    if value > high:
        side, times = "above", value / high if high > 0 else 0
    factor = f", by a factor of {times:.3g}" if times else ""
    return f"{side} the range{factor} ({_with(value, unit)})"


def largest(shares: Mapping[str, float | None]) -> str | None:
    """The name with the largest value, the first of equals; None where none was measured."""
    measured = {name: value for name, value in shares.items() if value is not None}
    return max(measured, key=lambda name: measured[name]) if measured else None


def is_largest(
    shares: Mapping[str, float | None], name: str, text: str, unit: str = "%"
) -> Verdict:
    """Holds for the one name of `shares` that is largest(); `text` says what the values are."""
    value, best = shares[name], largest(shares)
    rule = f"rule: the largest {text} wins"
    if value is None or best is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    if best == name:
        return Verdict(True, f"{_with(value, unit)}; {rule}")
    return Verdict(
        False, f"{_with(value, unit)} against {_with(shares[best] or 0, unit)} of {best}; {rule}"
    )


def transfers_verdict(run: MeasuredRun, limit: float) -> Verdict:
    """Whether a step copies more often than this between host and device; a CPU has no device."""
    copies = run.value("operators.transfers_per_step")
    found = above(copies, limit, "copies a step")
    if copies is None and run.value("context.device.backend") == "cpu":
        return Verdict(False, found.reason.replace(NOT_MEASURED, NO_TRANSFERS, 1))
    return found


def share_of(part: float | None, whole: float | None) -> float | None:
    """In percent; None where either is missing or there is no whole."""
    if part is None or not whole:
        return None
    return 100 * part / whole


def ratio(above_line: float | None, below_line: float | None) -> float | None:
    """None where either is missing or the divisor is 0."""
    if above_line is None or not below_line:
        return None
    return above_line / below_line


def all_hold(verdicts: Sequence[Verdict], what: str) -> Verdict:
    """Holds where all do; `what` names them in plural."""
    held = sum(verdict.holds for verdict in verdicts)
    return Verdict(held == len(verdicts), f"{held} of {len(verdicts)} {what}; rule: all of them")
