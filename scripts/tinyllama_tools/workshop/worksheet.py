"""Parts of a filled-in worksheet: figures with their source, tick boxes with their rule.

Parts of a filled-in worksheet: figures with their source, tick boxes with the rule that decided.

A page made of these parts has no place left to fill in; unanswered() says so, and names what is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tinyllama_tools.core.text import markdown_table

NOT_MEASURED = "not measured"
MEGABYTE = 2**20


@dataclass(frozen=True)
class Figure:
    """A value of a file: `value` None where the file has none; `source` names file and key."""

    value: Any
    source: str

    @property
    def is_measured(self) -> bool:
        """Whether there is a value at all."""
        return self.value is not None


@dataclass(frozen=True)
class Verdict:
    """Whether a statement holds; `reason` has the number and the rule that it was held against."""

    holds: bool
    reason: str


def megabytes(size: float | None) -> str:
    """`131.8 MB`: 2^20 bytes each, PyTorch's habitual meaning."""
    if size is None:
        return NOT_MEASURED
    amount = size / MEGABYTE
    return f"{amount:,.1f} MB" if abs(amount) >= 0.1 or not amount else f"{size:,.0f} bytes"


def milliseconds(seconds: float | None) -> str:
    """`92.8 ms`."""
    if seconds is None:
        return NOT_MEASURED
    amount = 1000 * seconds
    return f"{amount:,.0f} ms" if amount >= 1000 else f"{amount:.3g} ms"


def percent(value: float | None) -> str:
    """`43.1 %`."""
    return NOT_MEASURED if value is None else f"{value:.1f} %"


def number(value: float | None, unit: str = "") -> str:
    """Four digits where it is not whole; thousands apart."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return f"{value} {unit}".strip()
    plain = f"{value:,.0f}" if value == int(value) or abs(value) >= 10_000 else f"{value:.4g}"
    return f"{plain} {unit}".strip()


def sources(*figures: Figure | str) -> str:
    """`(a.json: x, y; b.json: z)` of figures or of `file: key` texts, each once."""
    texts = [f.source if isinstance(f, Figure) else f for f in figures]
    by_file: dict[str, list[str]] = {}
    for text in dict.fromkeys(text for text in texts if text):
        file, _, key = text.partition(": ")
        by_file.setdefault(file, []).append(key)
    parts = [f"{file}: {', '.join(keys)}" for file, keys in by_file.items()]
    return f"({'; '.join(parts)})" if parts else ""


def tick(label: str, verdict: Verdict, *figures: Figure | str) -> str:
    """A tick box that says what decided it and where that is written."""
    box, word = ("x", "yes") if verdict.holds else (" ", "no")
    return f"- [{box}] {label} — {word}: {verdict.reason} {sources(*figures)}".rstrip()


def question(text: str, answer: str, *figures: Figure | str) -> list[str]:
    """A question and its answer in words, which may not be empty."""
    if not answer.strip():
        raise ValueError(f"no answer to: {text}")
    return [f"**{text}**", "", f"Answer: {answer} {sources(*figures)}".rstrip(), ""]


def boxes(text: str, ticks: Iterable[str]) -> list[str]:
    """A question whose answers are tick boxes."""
    return [f"**{text}**", "", *ticks, ""]


def record(rows: Iterable[tuple[str, str, Figure | str]]) -> list[str]:
    """The `record the following` lists: what, value, and from where."""
    table = [
        (name, value, found.source if isinstance(found, Figure) else found)
        for name, value, found in rows
    ]
    return [*markdown_table(("figure", "measured", "from (file: key)"), table), ""]


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *figures: Figure | str
) -> list[str]:
    """A table and, below it, where it is from."""
    lines = [*markdown_table(header, rows), ""]
    found = sources(*figures)
    return [*lines, f"From {found[1:-1]}.", ""] if found else lines


def code(lines: Iterable[str]) -> list[str]:
    """A block of commands or of drawn text."""
    return ["```", *lines, "```", ""]


def _is_empty_row(line: str) -> bool:
    cells = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return any(not text.strip() for text in cells)


def _unanswered_question(lines: Sequence[str], index: int) -> bool:
    if not re.search(r"\?\W*$", lines[index]):
        return False
    following = next((line for line in lines[index + 1 :] if line.strip()), "")
    return not re.match(r"Answer: \S|- \[[x ]\] |\|", following)


def unanswered(page: str) -> list[str]:
    """Places that a reader would have to fill in, as `line 12: text`; none in a finished page.

    Blanks, empty cells, boxes that no rule decided (`[x] ... yes: why`, `[ ] ... no: why` are
    decided) and questions without an answer below. Code blocks are left out.
    """
    found, in_code = [], False
    lines = page.split("\n")
    for index, line in enumerate(lines):
        if line.startswith("```"):
            in_code = not in_code
            continue
        if in_code:
            continue
        box = re.match(r"\s*- \[([ xX]?)\]", line)
        word = "no" if box and box[1] == " " else "yes"
        undecided = box and not re.search(rf" — {word}: \S", line)
        stray = not box and re.search(r"\[ \]", line)
        blank = re.search(r"_{3,}", line)
        empty = line.startswith("|") and _is_empty_row(line)
        if undecided or stray or blank or empty or _unanswered_question(lines, index):
            found.append(f"line {index + 1}: {line}")
    return found
