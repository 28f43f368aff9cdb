"""Reads one JSON file, says in words what is wrong with it, and checks it with a schema."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import BadInputError, Json

# of a number in a message
MOST_DIGITS = 40


def is_finite(value: float) -> bool:
    """Of a number; whole ones of JSON have no largest, those beyond a float's count as infinite."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_number(value: object) -> bool:
    """Whether it is a finite number, which true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and is_finite(value)


def shown_value(value: object) -> str:
    """In a message, which a number of hundreds of digits does not fill."""
    text = repr(value)
    is_long = isinstance(value, int) and len(text) > MOST_DIGITS
    return f"of {len(text)} digits" if is_long else text


def bad_file(path: Path, what: str, remedy: str) -> BadInputError:
    """The error that names the file, what is wrong with it and what to do."""
    return BadInputError(f"{path}: {what}; {remedy}")


MEASURE_AGAIN = "measure again, or name another file"


def _read(path: Path) -> tuple[str, bytes]:
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except IsADirectoryError as error:
        raise bad_file(path, "is a folder", "name a file in it, such as results.json") from error
    except OSError as error:
        raise bad_file(path, f"cannot be read: {error.strerror}", "name a file that can") from error
    except UnicodeDecodeError as error:
        raise bad_file(path, f"is no text: {error.reason}", "name a JSON file") from error
    if not text.strip():
        raise bad_file(path, "is empty", MEASURE_AGAIN)
    return text, data


def _is_cut_short(text: str, error: json.JSONDecodeError) -> bool:
    """Whether the text ends where more had to come."""
    return error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")


def read_json(path: Path) -> tuple[Json, bytes]:
    """The object in the file, and its bytes; NaN and infinity are left for who knows their meaning.

    BadInputError for a file that is missing, empty, cut short, malformed or no object.
    """
    text, data = _read(path)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        if _is_cut_short(text, error):
            raise bad_file(path, f"is cut short: it ends at {where}", MEASURE_AGAIN) from error
        raise bad_file(path, f"is no JSON: {error.msg}, {where}", MEASURE_AGAIN) from error
    except ValueError as error:
        # a number of more digits than Python converts
        raise bad_file(path, f"is no JSON to read: {error}", MEASURE_AGAIN) from error
    except RecursionError as error:
        raise bad_file(path, "is no JSON to read: nested too deep", MEASURE_AGAIN) from error
    if not isinstance(document, dict):
        raise bad_file(path, "holds no object", "name a result file of tiny_llama_bench")
    return document, data


ANNOTATIONS = frozenset({"$schema", "$defs", "title", "description"})
TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
LONGEST_VALUE = 40


@dataclass(frozen=True)
class Problem:
    """`key`: dotted path from the document's root, empty for the root itself."""

    key: str
    message: str


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _is(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    # as in JSON Schema, 3.0 is an integer
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[name])


@dataclass(frozen=True)
class SchemaCheck:
    """Checks values against a schema; ValueError where the schema uses a keyword unknown here."""

    schema: Mapping[str, Any]

    def problem(self, value: object) -> Problem | None:
        """The first thing that is wrong, None where nothing is."""
        return self._check(value, self.schema, "")

    def _check(self, value: object, schema: Mapping[str, Any], key: str) -> Problem | None:
        for keyword, rule in schema.items():
            if keyword in ANNOTATIONS:
                continue
            check = getattr(self, f"_{keyword.removeprefix('$')}", None)
            if check is None:
                raise ValueError(f"keyword '{keyword}' of the schema is unknown here")
            found = check(value, rule, key, schema)
            if found is not None:
                return found
        return None

    def _ref(self, value: object, rule: str, key: str, _: object) -> Problem | None:
        return self._check(value, self.schema["$defs"][rule.removeprefix("#/$defs/")], key)

    def _type(self, value: object, rule: str | list[str], key: str, _: object) -> Problem | None:
        names = [rule] if isinstance(rule, str) else rule
        if any(_is(value, name) for name in names):
            return None
        return Problem(key, f"{_shown(value)} must be {' or '.join(names)}")

    def _const(self, value: object, rule: object, key: str, _: object) -> Problem | None:
        return None if value == rule else Problem(key, f"{_shown(value)} must be {_shown(rule)}")

    def _enum(self, value: object, rule: list[object], key: str, _: object) -> Problem | None:
        if value in rule:
            return None
        return Problem(key, f"{_shown(value)} must be one of {', '.join(map(_shown, rule))}")

    def _minimum(self, value: object, rule: float, key: str, _: object) -> Problem | None:
        if not _is(value, "number") or value >= rule:  # type: ignore[operator]
            return None
        return Problem(key, f"{_shown(value)} must be {rule} or more")

    def _minItems(self, value: object, rule: int, key: str, _: object) -> Problem | None:  # noqa: N802
        if not isinstance(value, list) or len(value) >= rule:
            return None
        return Problem(key, f"must have {rule} or more entries")

    def _required(self, value: object, rule: list[str], key: str, _: object) -> Problem | None:
        missing = [name for name in rule if isinstance(value, dict) and name not in value]
        return Problem(key, f"'{missing[0]}' is missing") if missing else None

    def _anyOf(self, value: object, rule: list[Any], key: str, _: object) -> Problem | None:  # noqa: N802
        found = None
        for alternative in rule:
            found = self._check(value, alternative, key)
            if found is None:
                return None
        return found

    def _items(self, value: object, rule: Mapping[str, Any], key: str, _: object) -> Problem | None:
        for index, entry in enumerate(value if isinstance(value, list) else ()):
            found = self._check(entry, rule, f"{key}[{index}]")
            if found is not None:
                return found
        return None

    def _properties(
        self, value: object, rule: Mapping[str, Any], key: str, _: object
    ) -> Problem | None:
        known = {name: e for name, e in _entries(value) if name in rule}
        return self._first(known, lambda name: rule[name], key)

    def _additionalProperties(  # noqa: N802
        self, value: object, rule: Mapping[str, Any] | bool, key: str, schema: Mapping[str, Any]
    ) -> Problem | None:
        named = schema.get("properties", {})
        others = {name: e for name, e in _entries(value) if name not in named}
        if isinstance(rule, bool):
            allowed = rule or not others
            return None if allowed else Problem(key, f"{_shown(min(others))} is no key of it")
        return self._first(others, lambda _: rule, key)

    def _first(self, entries: Mapping[str, object], rule: Any, key: str) -> Problem | None:  # noqa: ANN401
        for name, entry in entries.items():
            found = self._check(entry, rule(name), f"{key}.{name}" if key else name)
            if found is not None:
                return found
        return None


def _entries(value: object) -> list[tuple[str, object]]:
    return list(value.items()) if isinstance(value, dict) else []
