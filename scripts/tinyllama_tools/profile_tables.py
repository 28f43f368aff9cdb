"""Operators and components of a profile: the rows that reports and comparisons show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.bottleneck_shares import component_percent
from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import markdown_table, milliseconds, number, percent

# What belongs to attention and to the feed-forward network; all else is other.
PARTS: Mapping[str, tuple[str, ...]] = {"attention": ("attention/",), "FFN": ("ffn/",)}


@dataclass(frozen=True)
class OperatorShare:
    """An operator in one step: `share_percent` of the recorded work, `cpu_percent` of the host's.

    `seconds`: of its own on the device that shares are of (the CPU where there is no other).
    """

    name: str
    share_percent: float
    cpu_percent: float
    cpu_seconds: float
    cpu_total_seconds: float
    device_seconds: float | None
    calls: float

    @property
    def seconds(self) -> float:
        """On the GPU where it was there, else on the CPU."""
        return self.cpu_seconds if self.device_seconds is None else self.device_seconds


def _operator_share(name: str, rows: Sequence[Json], steps: int, host: float) -> OperatorShare:
    def total(key: str) -> float:
        return sum(row[key] for row in rows)

    on_device = rows[0].get("device_self_seconds") is not None
    return OperatorShare(
        name,
        total("share_percent"),
        100 * total("cpu_self_seconds") / host,
        total("cpu_self_seconds") / steps,
        total("cpu_total_seconds") / steps,
        total("device_self_seconds") / steps if on_device else None,
        total("calls") / steps,
    )


def operator_shares(operators: Json) -> list[OperatorShare]:
    """All operators, largest share first, per recorded step.

    The file's rows of one name, which shapes or stacks tell apart, become one.
    """
    host = sum(row["cpu_self_seconds"] for row in operators["table"]) or 1.0
    named: dict[str, list[Json]] = {}
    for row in operators["table"]:
        named.setdefault(row["name"], []).append(row)
    steps = operators["steps"]
    found = [_operator_share(name, rows, steps, host) for name, rows in named.items()]
    return sorted(found, key=lambda row: -row.share_percent)


def shape_table(operators: Json, count: int) -> list[str]:
    """The `count` largest operators by name and input shapes; empty where no shapes were kept."""
    rows = [row for row in operators["table"] if row.get("input_shapes")]
    rows.sort(key=lambda row: -row["share_percent"])
    steps = operators["steps"]
    cells = [
        (
            row["name"],
            row["input_shapes"],
            percent(row["share_percent"]),
            number(row["calls"] / steps, 1),
        )
        for row in rows[:count]
    ]
    return markdown_table(("operator", "input shapes", "share", "calls"), cells) if cells else []


def operator_table(operators: Json, count: int) -> list[str]:
    """The `count` largest by share."""
    header = (
        "rank",
        "operator",
        "share",
        "CPU share",
        "CPU ms",
        "CPU total ms",
        "GPU ms",
        "calls",
    )
    rows = [
        (
            str(rank),
            row.name,
            percent(row.share_percent),
            percent(row.cpu_percent),
            milliseconds(row.cpu_seconds),
            milliseconds(row.cpu_total_seconds),
            milliseconds(row.device_seconds),
            number(row.calls, 1),
        )
        for rank, row in enumerate(operator_shares(operators)[:count], start=1)
    ]
    return markdown_table(header, rows)


def total_time_table(operators: Json, count: int) -> list[str]:
    """The `count` operators and ranges with the longest time, what they call included."""
    rows = sorted(operator_shares(operators), key=lambda row: -row.cpu_total_seconds)[:count]
    return markdown_table(
        ("operator or range", "CPU total ms", "CPU self ms", "calls"),
        [
            (
                row.name,
                milliseconds(row.cpu_total_seconds),
                milliseconds(row.cpu_seconds),
                number(row.calls, 1),
            )
            for row in rows
        ],
    )


def component_rows(operators: Json) -> list[Json]:
    """Largest share first."""
    return sorted(operators["components"], key=lambda row: -row["percent"])


def component_table(operators: Json, count: int) -> list[str]:
    """Time of each component in a step."""
    header = ("component", "share", "forward ms", "backward ms")
    rows = [
        (
            row["name"],
            percent(row["percent"]),
            milliseconds(row.get("forward_seconds")),
            milliseconds(row.get("backward_seconds")),
        )
        for row in component_rows(operators)[:count]
    ]
    return markdown_table(header, rows)


def part_percents(summary: Json) -> dict[str, float]:
    """Attention, FFN and other, in percent of the recorded work; empty without operator profile."""
    total = component_percent(summary, *component_names(summary))
    if total is None:
        return {}
    parts = {name: component_percent(summary, *names) or 0.0 for name, names in PARTS.items()}
    return parts | {"other": total - sum(parts.values())}


def component_names(summary: Json) -> Sequence[str]:
    """Every component that the operator profile lists."""
    return [row["name"] for row in (summary.get("operators") or {}).get("components", [])]
