"""Numbers, tables and JSON as people read them, the same in every output."""

import functools
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyllama_tools.core.installation import typed

if TYPE_CHECKING:
    import jinja2


def value_at(found: Any, path: str) -> Any:  # noqa: ANN401
    """The value at a dotted path of keys, attributes and indices; None where there is none."""
    for part in path.split("."):
        if isinstance(found, Mapping):
            found = found.get(part)
        elif part.isdecimal():
            found = found[int(part)] if found and int(part) < len(found) else None
        else:
            found = getattr(found, part, None)
    return found


def cell(text: str) -> str:
    """Text with what would end a table's cell escaped."""
    return text.replace("|", "\\|").replace("\n", " ")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table, whose columns are as wide as their texts."""
    lines = [list(header), *([cell(text) for text in row] for row in rows)]
    for line in lines:
        if len(line) != len(header):
            raise ValueError(f"{len(line)} cells under {len(header)} headings: {line}")
    # a long reason must not widen its whole column
    short = [[text for text in column if len(text) <= 40] for column in zip(*lines, strict=True)]
    widths = [max([3, *(len(text) for text in column)]) for column in short]
    texts = [" | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)) for line in lines]
    rule = "|".join("-" * (width + 2) for width in widths)
    return [f"| {texts[0]} |", f"|{rule}|", *(f"| {text} |" for text in texts[1:])]


# of a terminal beside which something else has room
WIDEST_TABLE = 120


def narrow_tables(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """markdown_table(), in pieces where it is wider than WIDEST_TABLE: each begins with the columns
    that tell its rows apart."""
    found = list(rows)
    keys: list[int] = []
    for column in range(len(header)):
        if len({tuple(row[key] for key in keys) for row in found}) == len(found):
            break
        if len({row[column] for row in found}) > 1:
            keys.append(column)

    def piece(others: Sequence[int]) -> list[str]:
        columns = sorted([*keys, *others])
        cells = [[row[column] for column in columns] for row in found]
        return markdown_table([header[column] for column in columns], cells)

    lines: list[str] = []
    taken: list[int] = []
    for column in range(len(header)):
        if column in keys:
            continue
        if taken and max(map(len, piece([*taken, column]))) > WIDEST_TABLE:
            lines += [*piece(taken), ""]
            taken = []
        taken.append(column)
    return [*lines, *piece(taken)]


@functools.cache
def template(path: Path) -> "jinja2.Template":
    """A Jinja template; one that ends with .html.j2 escapes what is put in. `table(header, rows)`
    is markdown_table() as text; `typed(name)`: how a user types it."""
    # imported here: `bench` runs without any package
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        autoescape=path.name.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = cell
    environment.globals["typed"] = typed
    environment.globals["table"] = lambda header, rows: "\n".join(markdown_table(header, rows))
    return environment.get_template(path.name)


def slug(name: str) -> str:
    """A device's name as a part of a file name: `amd_instinct_mi300x`."""
    plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"\((r|tm|c)\)", "", name.lower()))
    return plain[:48].strip("_") or "unknown_device"


def compact_json(document: Mapping[str, Any], expanded: tuple[str, ...]) -> str:
    """JSON with one line a key, and for the keys in `expanded` one line an item. Dataclasses are
    objects."""
    entries = [
        f"  {json.dumps(key)}: {_lines(value) if key in expanded else _line(value)}"
        for key, value in document.items()
    ]
    return "{\n" + ",\n".join(entries) + "\n}\n"


_line = json.JSONEncoder(default=vars).encode


def _lines(value: list[Any] | dict[str, Any]) -> str:
    if isinstance(value, dict):
        items = [f"    {json.dumps(key)}: {_line(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n  }"
    return "[\n" + ",\n".join(f"    {_line(item)}" for item in value) + "\n  ]"


def say(text: str) -> None:
    """Prints progress or a complaint to standard error, at once."""
    print(text, file=sys.stderr, flush=True)


NOT_MEASURED = "-"
MIB = 2**20


def number(value: float | None, digits: int = 1) -> str:
    """`1,234.5`."""
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}"


SECONDS_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def seconds_text(seconds: float | None) -> str:
    """`12.35 ms`."""
    if seconds is None:
        return NOT_MEASURED
    size, unit = next((u for u in SECONDS_UNITS if seconds >= u[0]), SECONDS_UNITS[-1])
    return f"{seconds / size:.4g} {unit}"


def change_text(ratio: float | None) -> str:
    """`+5.1 %` of new / base."""
    if ratio is None:
        return NOT_MEASURED
    # a large ratio reads better than percents; no "-0.0 %"
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %" if ratio < 11 else f"{ratio:.3g}x"


def count_of(number: int, thing: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """`a, b, c and 12 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def section(title: str, lines: Sequence[str]) -> list[str]:
    """A heading of the second level and what is below it."""
    return [f"## {title}", "", *lines, ""]


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `2 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def last_words(text: str) -> str:
    """The last five lines of what a program said, empty ones not counted."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-5:])
