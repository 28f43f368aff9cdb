"""Takes the reader's own folders out of a document that may be mailed: the home folder becomes `~`,
the checkout and the folder in which the report is made nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from tinyllama_tools.suite_run import PROJECT

# of anybody: settings and reasons may name folders of whoever measured
START, END = r"(?<![\w.~-])", r"(?=[/\s:;,'\"]|$)"
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


def without_places(value: Value) -> Value:
    """The same with every text in it changed: of lists, mappings and data classes, deeply."""
    changed: Any = value
    if isinstance(value, str):
        changed = _text(value)
    elif isinstance(value, Mapping):
        changed = {key: without_places(item) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        changed = type(value)(without_places(item) for item in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {f.name: without_places(getattr(value, f.name)) for f in dataclasses.fields(value)}
        changed = dataclasses.replace(value, **found)
    return changed
