"""Takes the reader's own folders out of a document that may be mailed: the home folder becomes `~`,
the checkout and the folder in which the report is made nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tinyllama_tools.suite_run import PROJECT

# of anybody: settings and reasons may name folders of whoever measured
START, END = r"(?<![\w.~-])", r"(?=[/\s:;,'\"]|$)"
# any other path of two names or more: below a device or a name it is none, nor after a scheme
PATHS = re.compile(r"(?<![\w.~-])(?<!:/)~?/(?:[\w.@+-]+/)+(?P<name>[\w.@+-]*)")
HOMES = re.compile(rf"{START}(?:/(?:home|Users)/[^/\s:;,'\"]+|/root){END}")
Value = TypeVar("Value")


def _text(text: str) -> str:
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
