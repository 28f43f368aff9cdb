"""Which parts explain a whole's change: the tree of parts, judged over the blocks of both."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tinyllama_tools.compare.comparison import Attribution
from tinyllama_tools.data.parts import Parts, wholes_among
from tinyllama_tools.data.programs import PROBLEM_SIZES
from tinyllama_tools.stats.attribution import attribute
from tinyllama_tools.stats.looks import BlockSummary

Summaries = Sequence[BlockSummary]
# fewer blocks have no scatter to take an interval from
FEWEST_BLOCKS = 2


def layers_by_size(path: Path = PROBLEM_SIZES) -> dict[str, int]:
    """Number of layers of each named problem size; OSError or ValueError of a bad file."""
    sizes = json.loads(path.read_text(encoding="utf-8"))
    return {name: size["n_layers"] for name, size in sizes.items()}


def _attribution(whole: Summaries, parts: Parts, cases: Mapping[str, Summaries]) -> Attribution:
    found = attribute(whole, {part.case: (part.count, cases[part.case]) for part in parts.measured})
    return Attribution(found.parts, found.unexplained, found.culprit, parts.missing)


def attributions(
    cases: Mapping[str, Summaries], layers: Mapping[str, int]
) -> dict[str, Attribution]:
    """Of every case that changed at all and has parts among the others, by its name.

    `cases`: blocks by case name. `layers`: of each size. A whole or part with fewer than two blocks
    counts as not measured.
    """
    known = {name: blocks for name, blocks in cases.items() if len(blocks) >= FEWEST_BLOCKS}
    found = {}
    for whole, parts in wholes_among(known, layers):
        # a whole whose blocks say exactly 0 has no change to divide
        with contextlib.suppress(ValueError):
            found[whole] = _attribution(known[whole], parts, known)
    return found
