"""Results and texts without names of hosts, users and folders, so that they can be published.

Google Benchmark writes the host's name, and settings and reasons may name folders of whoever
measured."""

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

# where a path begins and where the name of a folder ends
START, END = r"(?<![\w.~-])", r"(?=[/\s:;,'\"]|$)"
# any other path of two names or more: below a device or a name it is none, nor after a scheme
PATHS = re.compile(r"(?<![\w.~-])(?<!:/)~?/(?:[\w.@+-]+/)+(?P<name>[\w.@+-]*)")
HOMES = re.compile(rf"{START}(?:/(?:home|Users)/[^/\s:;,'\"]+|/root){END}")
HOST = "host_name"
Value = TypeVar("Value")


def _short(text: str) -> str:
    """The home folder as `~`, the checkout and the folder we are in as nothing."""
    for folder in {str(Path.cwd()), str(PROJECT)} - {"/"}:
        text = re.sub(rf"{START}{re.escape(folder)}/", "", text)
        text = re.sub(rf"{START}{re.escape(folder)}{END}", ".", text)
    home = str(Path.home())
    if home != "/":
        text = re.sub(rf"{START}{re.escape(home)}{END}", "~", text)
    return HOMES.sub("~", text)


def _changed(value: Value, change: Callable[[str], str]) -> Value:
    """The same with every text in it changed: of lists, mappings and data classes, deeply."""
    changed: Any = value
    if isinstance(value, str):
        changed = change(value) if "/" in value else value
    elif isinstance(value, Mapping):
        changed = {key: _changed(item, change) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        changed = type(value)(_changed(item, change) for item in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        found = {name: _changed(getattr(value, name), change) for name in names}
        changed = dataclasses.replace(value, **found)
    return changed


def without_places(value: Value) -> Value:
    """The same without the reader's own folders in any text."""
    return _changed(value, _short)


def names_alone(value: Value) -> Value:
    """As without_places, and of every other path that is not told from the checkout its last name:
    for what everybody may read."""
    return _changed(value, lambda text: PATHS.sub(lambda path: path["name"], _short(text)))


def nameless_context(context: Mapping[str, Any]) -> dict[str, Any]:
    """A result file's context for a file that others may read: the program by its name alone, and
    the host by a word that tells hosts apart and does not name them, which such a word keeps."""
    found = dict(context)
    host = str(found.get(HOST, ""))
    if HOST in found and not re.fullmatch("host_[0-9a-f]{8}", host):
        found[HOST] = f"host_{hashlib.sha256(host.encode()).hexdigest()[:8]}"
    if "executable" in found:
        found["executable"] = Path(str(found["executable"])).name
    return found


def make_nameless(path: Path) -> None:
    """Writes a result anew, a row a line, with nameless_context() and the last name alone of every
    path in it, so that it may be published as it is. One that cannot be read stays as it is."""
    with contextlib.suppress(BadInputError, AttributeError, TypeError):
        document = read_json(path)[0]
        context = nameless_context(document.get("context") or {})
        text = compact_json(names_alone({**document, "context": context}), ("benchmarks",))
        write_whole(path, text)
