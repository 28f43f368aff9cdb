"""How sure a counted share is: exact binomial intervals (Clopper and Pearson, Biometrika 1934)."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import beta

CONFIDENCE = 0.95


def _checked(count: int, trials: int, confidence: float) -> None:
    if not 0 <= count <= trials or trials < 1:
        raise ValueError(f"{count} of {trials}: must be 0 to all of at least 1 trial")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: must be between 0 and 1")


def upper_bound(count: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided: the true share lies at or below it, with at least this confidence.

    Raises ValueError where `count` is not within the trials or `confidence` not within (0, 1).
    """
    _checked(count, trials, confidence)
    return 1.0 if count == trials else float(beta.ppf(confidence, count + 1, trials - count))


def lower_bound(count: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided: the true share lies at or above it, with at least this confidence.

    Raises ValueError as upper_bound() does.
    """
    _checked(count, trials, confidence)
    return 0.0 if count == 0 else float(beta.ppf(1 - confidence, count, trials - count + 1))


@dataclass(frozen=True)
class Share:
    """`count` of `trials`."""

    count: int
    trials: int

    def __post_init__(self) -> None:
        _checked(self.count, self.trials, CONFIDENCE)

    @property
    def value(self) -> float:
        """From 0 to 1."""
        return self.count / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided at 95 %: 2.5 % beyond either end."""
        outer = (1 + CONFIDENCE) / 2
        return (
            lower_bound(self.count, self.trials, outer),
            upper_bound(self.count, self.trials, outer),
        )

    @property
    def bound(self) -> float:
        """One-sided upper bound at 95 %, which a rate has to stay below."""
        return upper_bound(self.count, self.trials)

    def as_json(self) -> dict[str, float | int | list[float]]:
        """Plain values for a result file."""
        return {
            "count": self.count,
            "trials": self.trials,
            "share": self.value,
            "interval_95": list(self.interval),
            "upper_bound_95": self.bound,
        }
