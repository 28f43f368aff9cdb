"""Results and texts without names of hosts, users and folders, so that they can be published."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tinyllama_tools.core.app import PROJECT, BadInputError, read_json, write_whole
from tinyllama_tools.core.text import compact_json

# of anybody: settings and reasons may name folders of whoever measured
START, END = r"(?<![\w.~-])", r"(?=[/\s:;,'\"]|$)"
# any other path of two names or more: below a device or a name it is none, nor after a scheme
PATHS = re.compile(r"(?<![\w.~-])(?<!:/)~?/(?:[\w.@+-]+/)+(?P<name>[\w.@+-]*)")
HOMES = re.compile(rf"{START}(?:/(?:home|Users)/[^/\s:;,'\"]+|/root){END}")
Value = TypeVar("Value")


def _text(text: str) -> str:
    """The home folder as `~`, the checkout and the folder we are in as nothing."""
    if "/" not in text:
        return text
    short = text
    # where the report is made, and the checkout: what lies below is told from there
    for folder in {str(Path.cwd()), str(PROJECT)} - {"/"}:
        short = re.sub(rf"{START}{re.escape(folder)}/", "", short)
        short = re.sub(rf"{START}{re.escape(folder)}{END}", ".", short)
    home = str(Path.home())
    if home != "/":
        short = re.sub(rf"{START}{re.escape(home)}{END}", "~", short)
    return HOMES.sub("~", short)


def _changed(value: Value, change: Callable[[str], str]) -> Value:
    """The same with every text in it changed: of lists, mappings and data classes, deeply."""
    changed: Any = value
    if isinstance(value, str):
        changed = change(value)
    elif isinstance(value, Mapping):
        changed = {key: _changed(item, change) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        changed = type(value)(_changed(item, change) for item in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f.name for f in dataclasses.fields(value))
        found = {name: _changed(getattr(value, name), change) for name in fields}
        changed = dataclasses.replace(value, **found)
    return changed


def without_places(value: Value) -> Value:
    """The same without the reader's own folders in any text."""
    return _changed(value, _text)


def _names_alone(text: str) -> str:
    return PATHS.sub(lambda found: found["name"], _text(text))


def names_alone(value: Value) -> Value:
    """As without_places, and of every other path that is not told from the checkout its last name:
    for what everybody may read."""
    return _changed(value, _names_alone)


HOST_DIGEST = re.compile("host_[0-9a-f]{8}")


def host_digest(name: str) -> str:
    """A word that tells hosts apart and does not name them; of such a word itself."""
    if HOST_DIGEST.fullmatch(name):
        return name
    return f"host_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def nameless_context(context: Mapping[str, Any]) -> dict[str, Any]:
    """A result file's context for a file that others may read: the host by its digest, the program
    by its name alone."""
    found = dict(context)
    if "host_name" in found:
        found["host_name"] = host_digest(str(found["host_name"]))
    if "executable" in found:
        found["executable"] = str(found["executable"]).rpartition("/")[2]
    return found


# lists that get a line an item
EXPANDED = ("benchmarks", "cases", "points", "sequences", "tries")


def make_nameless(path: Path) -> None:
    """Writes a result anew, a row a line, with nameless_context() and the last name alone of every
    path in it, so that it may be published as it is. One that cannot be read stays as it is."""
    with contextlib.suppress(BadInputError, AttributeError, TypeError):
        document = read_json(path)[0]
        context = nameless_context(document.get("context") or {})
        write_whole(path, compact_json(names_alone({**document, "context": context}), EXPANDED))
