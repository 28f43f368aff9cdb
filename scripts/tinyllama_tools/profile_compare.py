"""Two profiles side by side: steps, components and operators, as version 1 against version 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import (
    markdown_table,
    mebibytes,
    milliseconds,
    number,
    percent,
    section,
    speedup,
)
from tinyllama_tools.core.text import shown_path as shown
from tinyllama_tools.profile_set import ProfileSet
from tinyllama_tools.profile_tables import operator_shares

# Different here, two profiles are not two versions of the same work.
SAME_WORK = (
    "size",
    "batch_size",
    "seq_len",
    "dtype",
    "gradient_accumulation_steps",
    "vocab_size",
    "hidden_dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "intermediate_dim",
)


@dataclass(frozen=True)
class Side:
    """One row's figures in one profile, of a step; `calls` of a component is None."""

    seconds: float
    percent: float
    calls: float | None = None


@dataclass(frozen=True)
class Pair:
    """A row of both; a side is None where that profile has no such row."""

    name: str
    a: Side | None
    b: Side | None

    @property
    def saved_seconds(self) -> float:
        """Of a step, by B; negative where B takes longer."""
        return (self.a.seconds if self.a else 0.0) - (self.b.seconds if self.b else 0.0)

    @property
    def speedup(self) -> float | None:
        """A's time over B's; None where one has none."""
        if self.a is None or self.b is None or self.b.seconds == 0:
            return None
        return self.a.seconds / self.b.seconds


def pair_up(a: Mapping[str, Side], b: Mapping[str, Side]) -> list[Pair]:
    """Every row of either, the largest change of time first."""
    pairs = [Pair(name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]
    return sorted(pairs, key=lambda pair: -abs(pair.saved_seconds))


def operator_sides(operators: Json) -> dict[str, Side]:
    """By operator, own time on the device that shares are of."""
    return {
        row.name: Side(row.seconds, row.share_percent, row.calls)
        for row in operator_shares(operators)
    }


def component_sides(operators: Json) -> dict[str, Side]:
    """By component, forward and backward together."""
    return {
        row["name"]: Side(
            (row.get("forward_seconds") or 0.0) + (row.get("backward_seconds") or 0.0),
            row["percent"],
        )
        for row in operators["components"]
    }


def differences(a: ProfileSet, b: ProfileSet) -> list[str]:
    """Why the two are not versions of the same work on the same device; empty where they are."""
    first, second = a.plain.summary, b.plain.summary
    found = [
        f"{key}: {first['configuration'].get(key)} against {second['configuration'].get(key)}"
        for key in SAME_WORK
        if first["configuration"].get(key) != second["configuration"].get(key)
    ]
    for key in ("name", "backend"):
        ours, theirs = first["context"]["device"][key], second["context"]["device"][key]
        if ours != theirs:
            found.append(f"device {key}: {ours} against {theirs}")
    ours, theirs = first["context"]["threads"], second["context"]["threads"]
    if ours != theirs:
        found.append(f"threads: {ours} against {theirs}")
    return found


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def summary_lines(a: ProfileSet, b: ProfileSet) -> list[str]:
    """Speed and memory of a step."""
    first, second = a.plain.summary["summary"], b.plain.summary["summary"]
    step = [
        s.get("plain_average_step_seconds") or s["average_step_seconds"] for s in (first, second)
    ]
    rows = [("step ms", *map(milliseconds, step), speedup(_ratio(*step)))]
    for part in ("forward", "backward", "optimizer"):
        times = [s.get(f"average_{part}_seconds") for s in (first, second)]
        rows.append((f"{part} ms", *map(milliseconds, times), speedup(_ratio(*times))))
    peaks = [s["peak_memory_bytes"] for s in (first, second)]
    rows.append(("peak memory", *map(mebibytes, peaks), speedup(_ratio(*peaks))))
    sections = [profiles.merged()["operators"] for profiles in (a, b)]
    for key, title in (
        ("operator_calls_per_step", "operators a step"),
        ("kernels_per_step", "kernels a step"),
    ):
        counts = [found.get(key) if found else None for found in sections]
        if any(count is not None for count in counts):
            rows.append((title, *(number(c, 0) for c in counts), speedup(_ratio(*counts))))
    return markdown_table(("", "A", "B", "A / B"), rows)


def _cells(side: Side | None) -> tuple[str, str]:
    if side is None:
        return "absent", "absent"
    return milliseconds(side.seconds), percent(side.percent)


def pair_lines(pairs: list[Pair], what: str, with_calls: bool) -> list[str]:
    """A row each: time and share in A and B, what B saves."""
    header = [what, "A ms", "A share", "B ms", "B share", "saved ms", "A / B"]
    rows = []
    for pair in pairs:
        row = [pair.name, *_cells(pair.a), *_cells(pair.b), milliseconds(pair.saved_seconds)]
        row.append(speedup(pair.speedup))
        if with_calls:
            row += [number(side.calls if side else None, 1) for side in (pair.a, pair.b)]
        rows.append(row)
    return markdown_table([*header, *(("A calls", "B calls") if with_calls else ())], rows)


def comparison_text(a: ProfileSet, b: ProfileSet) -> str:
    """The page of two profiles."""
    different = differences(a, b)
    variants = [p.plain.summary["configuration"]["variant"] for p in (a, b)]
    head = [
        f"A: `{shown(a.folder)}`, {variants[0]}.",
        f"B: `{shown(b.folder)}`, {variants[1]}.",
        "",
        "Above 1x, B is faster or smaller. Times and calls are of one step.",
    ]
    if different:
        head += ["", "Not the same work on the same device:", "", *(f"- {d}" for d in different)]
    lines = ["# Comparison of two profiles", "", *head, "", *section("Step", summary_lines(a, b))]
    first, second = a.merged()["operators"], b.merged()["operators"]
    if first and second:
        components = pair_up(component_sides(first), component_sides(second))
        operators = pair_up(operator_sides(first), operator_sides(second))
        lines += section("Components", pair_lines(components, "component", False))
        lines += section("Operators", pair_lines(operators, "operator", True))
    else:
        missing = [name for name, found in (("A", first), ("B", second)) if not found]
        lines += section("Operators", [f"Not measured in {' and '.join(missing)}."])
    return "\n".join(lines).rstrip() + "\n"
