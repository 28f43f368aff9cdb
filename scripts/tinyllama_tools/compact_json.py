"""JSON that people read and git compares: a line a key, and a line an item where there are many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def compact_json(document: Mapping[str, Any], expanded: tuple[str, ...]) -> str:
    """The document with one line for each key; the lists and objects `expanded` a line an item."""
    entries = [
        f"  {json.dumps(key)}: {_lines(value) if key in expanded else json.dumps(value)}"
        for key, value in document.items()
    ]
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _lines(value: list[Any] | dict[str, Any]) -> str:
    if isinstance(value, dict):
        items = [f"    {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n  }"
    return "[\n" + ",\n".join(f"    {json.dumps(item)}" for item in value) + "\n  ]"
