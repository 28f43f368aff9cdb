"""docs/workshop.md as data: its tables, commands and snippets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from built_programs import PROJECT_ROOT
from tinyllama_tools.core.app import Json

PROGRAM = "build/benchmarks/tiny_llama_train"
COMMAND_TABLE = ("in the text", "here")
FILE_TABLE = ("file in the text", "here", "written with", "keys")
FOLDER_TABLE = ("folder in the text", "here", "written with")
FIGURE_TABLE = ("what", "in the text", "exact", "where")
SIZE_TABLE = ("size", "in the text", "parameters")
TYPED = PROJECT_ROOT / "tests/workshop_typed.txt"
# lines of the output, and the options that they take
LINES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        (
            "Configuration:",
            "Batch Size:",
            "Sequence Length:",
            "Number of Steps:",
            "Hidden Dim:",
            "Num Layers:",
            "Num Heads:",
            "Intermediate Dim:",
        ),
        (),
    ),
    (("Total Parameters:",), ()),
    (("Model Size:", "Using device:", "Starting training..."), ()),
    (("Step 1/20: Loss =", "Time =", "Memory ="), ()),
    (
        (
            "Performance Summary:",
            "Average time per step:",
            "Training speed:",
            "Throughput:",
            "Peak memory usage:",
        ),
        (),
    ),
    (("Avg time per forward:", "Avg time per backward:", "Avg time per optimizer:"), ()),
    (
        (
            "Profiling enabled: Steps 5-10",
            "[PROFILING]",
            "Profiling complete!",
            "Profile files generated:",
        ),
        ("--enable-pytorch-profiler",),
    ),
    (("Top Operations by own time",), ("--enable-pytorch-profiler",)),
    (
        (
            "Memory Analysis Summary:",
            "Peak Memory Usage:",
            "Average Memory Usage:",
            "Memory at Forward Pass:",
            "Memory at Backward Pass:",
            "Memory at Optimizer Step:",
            "Number of Allocations:",
            "Largest Tensor:",
        ),
        ("--profile-memory",),
    ),
    (
        (
            "Model FLOPS Utilization:",
            "Achieved FLOPS/sec:",
            "Arithmetic Intensity:",
            "Memory Bandwidth Used:",
        ),
        ("--enable-deepspeed-flops",),
    ),
)


@dataclass(frozen=True)
class Table:
    """One table under its heading; cells as they are written, without the escape of `|`."""

    section: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def page_text() -> str:
    """The whole page."""
    return (PROJECT_ROOT / "docs/workshop.md").read_text(encoding="utf-8")


def code(cell: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def _cells(line: str) -> tuple[str, ...]:
    parts = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return tuple(part.strip().replace("\\|", "|") for part in parts)


@cache
def tables() -> tuple[Table, ...]:
    """In the page's order. A row of another width than its header is an error."""
    found: list[Table] = []
    section, block = "", []
    for line in [*re.sub(r"```.*?```", "", page_text(), flags=re.DOTALL).split("\n"), ""]:
        if line.startswith("## "):
            section = line[3:]
        if line.startswith("|"):
            block.append(_cells(line))
        elif block:
            header, _, *rows = block
            wrong = [row for row in rows if len(row) != len(header)]
            assert not wrong, f"cells missing or too many: {wrong}"
            found.append(Table(section, header, tuple(rows)))
            block = []
    return tuple(found)


def rows(header: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Of all tables with this header."""
    return [row for table in tables() if table.header == header for row in table.rows]


def commands() -> list[str]:
    """Everything that a reader of the workshop types, as it is typed here, once each."""
    return TYPED.read_text(encoding="utf-8").splitlines()


def snippets() -> list[str]:
    """The workshop's shell texts that work as they are."""
    text = (PROJECT_ROOT / "tests/workshop_snippets.md").read_text(encoding="utf-8")
    return re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)


def value_at(data: Json, path: str) -> Json:
    """`a.b[name].c`: a key may be followed by the name of a list's entry. KeyError where absent."""
    for key, name in re.findall(r"([\w]+)(?:\[((?:[^\[\]]|\[[^\]]*\])+)\])?\.?", path):
        data = data[key]
        if name:
            data = next(entry for entry in data if entry["name"] == name)
    return data
