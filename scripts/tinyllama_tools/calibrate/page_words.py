"""Numbers of a calibration as its page spells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyllama_tools.data.names import parse_case_name

Json = Mapping[str, Any]


def small_percent(value: float) -> str:
    """`0.092 %`: two digits, however small."""
    return f"{100 * value:.2g} %"


def about(share: Json) -> str:
    """`3 of 10,000`."""
    return f"{share['count']:,} of {share['trials']:,}"


def share_words(share: Json) -> str:
    """`97.0 % (95.1 to 98.3)`; two-sided, 95 %."""
    low, high = share["interval_95"]
    return f"{100 * share['share']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def seconds_words(seconds: float | None) -> str:
    """`140 s`; `never` where it was not reached."""
    return "never" if seconds is None else f"{seconds:.0f} s"


def case_words(name: str) -> str:
    """`ffn forward_backward`; the name itself where it is of no known form."""
    axes = parse_case_name(name)
    return f"{axes.component} {axes.pass_name}" if axes else name
