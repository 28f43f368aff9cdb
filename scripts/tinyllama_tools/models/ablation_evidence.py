"""What scripts/ablation measured of a switch, on the device and at the shape of a profile."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.core.app import RESULTS, BadInputError, Json
from tinyllama_tools.models.ablations import (
    BASELINE,
    Kind,
    Point,
    Study,
    ratio_text,
    read_study,
    rows_at,
)
from tinyllama_tools.stats.rank_tests import Ratio


@dataclass(frozen=True)
class MeasuredSpeedup:
    """Time of the baseline over the time with `switch`, of the whole step; `file` has the turns."""

    switch: str
    ratio: Ratio
    file: Path

    def text(self) -> str:
        """`1.08 (1.05 to 1.11) with sdpa`; `~` before it where no difference was shown."""
        return f"{ratio_text(self.ratio)} with {self.switch}"


@dataclass(frozen=True)
class Evidence:
    """An ablation's speedups at one point, by switch or named set."""

    file: Path
    point: Point
    speedups: Mapping[str, Ratio]

    def best(self, switches: Iterable[str]) -> MeasuredSpeedup | None:
        """Of the switch that helped most; None where none of them was measured."""
        found = [MeasuredSpeedup(s, self.speedups[s], self.file) for s in switches if s in self]
        return max(found, key=lambda measured: measured.ratio.median, default=None)

    def __contains__(self, switch: str) -> bool:
        return switch in self.speedups


def profile_point(summary: Json) -> Point:
    """The case of the suite that does what the profiled program did."""
    found = summary["configuration"]
    return Point(found["size"], found["dtype"], found["batch_size"], found["seq_len"])


def _machine(context: Json) -> tuple[object, ...]:
    device = context.get("device", {})
    # a CPU's speed is that of the threads it was given
    threads = context.get("threads") if device.get("backend") == "cpu" else None
    return device.get("name"), device.get("architecture"), device.get("backend"), threads


def why_not(study_context: Json, summary: Json) -> str:
    """Why an ablation says nothing about a profile; empty where it does."""
    ours, theirs = _machine(summary["context"]), _machine(study_context)
    if ours != theirs:
        return f"it is of another device: {theirs}, the profile of {ours}"
    variant = summary["configuration"]["variant"]
    if variant != BASELINE:
        return f"its speedups are against {BASELINE}, the profile is of {variant}"
    if summary["configuration"].get("gradient_accumulation_steps", 1) != 1:
        return "its steps have one micro-batch, those of the profile several"
    return ""


def _evidence(study: Study, file: Path, point: Point) -> Evidence | None:
    rows = study.rows_of(Kind.single, Kind.named_set, Kind.combination)
    ratios: dict[str, Ratio] = {}
    # a data type other than the main table's has a table of its own
    for table in (study.types, study.main):
        for row in rows_at(table, rows, point):
            if row.ratio is not None and row.cell.can_run:
                ratios[row.row.name] = row.ratio
    return Evidence(file, point, ratios) if ratios else None


def read_evidence(file: Path, summary: Json) -> Evidence:
    """The speedups in an ablation's result; BadInputError where it has none for this profile."""
    study = read_study(file)
    reason = why_not(study.context, summary)
    if reason:
        raise BadInputError(f"{file}: {reason}; leave --ablation out, or run scripts/ablation here")
    point = profile_point(summary)
    found = _evidence(study, file, point)
    if found is None:
        reason = f"has no turn at {point.title}; profile a shape that it measured"
        raise BadInputError(f"{file}: {reason}")
    return found


def find_evidence(summary: Json, results: Path = RESULTS) -> Evidence | None:
    """The newest published or unpublished ablation that fits; None where there is none."""
    files = [*results.glob("reference/ablation_*.json"), *results.glob("*/ablation.json")]
    found: list[tuple[str, Evidence]] = []
    for file in files:
        try:
            evidence = read_evidence(file, summary)
            date = json.loads(file.read_text(encoding="utf-8"))["meta"].get("date", "")
        except BadInputError:
            continue  # another device's, or not ours: nobody asked for this file
        found.append((date, evidence))
    return max(found, key=lambda pair: pair[0])[1] if found else None
