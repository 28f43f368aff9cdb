"""Spelling of variants: the program's names, what it refuses, what `optimized` stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tinyllama_tools.ablation_reference import SWITCHES
from tinyllama_tools.ablation_study import (
    BASELINE,
    OPTIMIZED,
    SETS,
    Kind,
    RowName,
    Table,
    removed_row,
)
from tinyllama_tools.data.programs import SuiteProgram

RESOLVED = re.compile(rf"\b{OPTIMIZED} = ([a-z0-9_+]+)")


@dataclass(frozen=True)
class Spelling:
    """`name`: as the program lists it; empty where it refused, for `refusal`."""

    name: str
    refusal: str = ""


def ask_program(program: SuiteProgram, variant: str) -> Spelling:
    """What --list makes of a variant. SuiteError where the program cannot even do that."""
    names, refusal = program.list_cases(["--components=full_step", f"--variants={variant}"])
    return Spelling("", refusal) if refusal else Spelling(names[0].split("/")[2])


@dataclass
class SpellingBook:
    """Asks once for each variant."""

    ask: Callable[[str], Spelling]
    known: dict[str, Spelling] = field(default_factory=dict)

    def spelling(self, variant: str) -> Spelling:
        """The program's name of a variant, or why it refuses it."""
        if variant not in self.known:
            self.known[variant] = self.ask(variant)
        return self.known[variant]


def resolved_switches(label: str) -> list[str] | None:
    """The switches that the label of an `optimized` case names; None where it names none."""
    found = RESOLVED.search(label)
    if not found:
        return None
    names = found.group(1).split("+")
    return [] if names == [BASELINE] else names


def without(switches: Iterable[str], switch: str) -> str:
    """The spelling of a set without one of its switches."""
    return "+".join(name for name in switches if name != switch) or BASELINE


def planned_rows(switches: Sequence[str], combinations: Sequence[str]) -> list[RowName]:
    """The rows that are known before anything ran: all but the removed ones."""
    return [
        RowName(BASELINE, Kind.baseline),
        *(RowName(name, Kind.single) for name in switches),
        *(RowName(name, Kind.combination) for name in combinations),
        *(RowName(name, Kind.named_set) for name in SETS),
    ]


def removed_rows(table: Table, switches: Sequence[str]) -> list[RowName]:
    """A row for each of the switches that `optimized` holds at some point of the table."""
    held: set[str] = set()
    for point in table.points():
        cell = table.get(OPTIMIZED, point)
        held.update(resolved_switches(cell.label) or [] if cell else [])
    # switches that this script does not know yet come last
    names = [*(name for name in SWITCHES if name in held), *sorted(held - set(SWITCHES))]
    wanted = set(switches)
    return [removed_row(name) for name in names if name in wanted or name not in SWITCHES]
