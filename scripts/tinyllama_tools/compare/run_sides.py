"""The two sides of a run as its result names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tinyllama_tools.compare.comparison import Json


@dataclass(frozen=True)
class RunSides:
    """What was compared, and how. `only_base`, `only_new`: cases that one side alone lists.

    `layers`: of each problem size, for the attribution. `warnings`: known before anything ran.
    `settings`: what the run was asked for, for the record.
    """

    base: str
    new: str
    base_context: Json
    new_context: Json
    method: str
    layers: Mapping[str, int]
    only_base: Sequence[str] = ()
    only_new: Sequence[str] = ()
    warnings: Sequence[str] = field(default_factory=tuple)
    settings: Json = field(default_factory=dict)
