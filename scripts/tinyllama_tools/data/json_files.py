"""Reads one JSON file, says in words what is wrong with it, and checks it with a schema."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.core.text import MEASURE_AGAIN, is_number


def bad_file(path: Path, what: str, remedy: str) -> BadInputError:
    """The error that names the file, what is wrong with it and what to do."""
    return BadInputError(f"{path}: {what}; {remedy}")


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


# of a value in a message
LONGEST_MESSAGE = 160


def _validator(schema: Mapping[str, Any]) -> jsonschema.protocols.Validator:
    """One to which a number that is not finite is none, which JSON Schema lets pass."""
    number = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "number", lambda _, n: is_number(n)
    )
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=number)(
        schema
    )


@functools.cache
def _file_validator(schema: Path) -> jsonschema.protocols.Validator:
    return _validator(json.loads(schema.read_text(encoding="utf-8")))


def schema_problem(document: object, schema: Path | Mapping[str, Any]) -> str:
    """The likeliest thing in which a document breaks the schema, as `key: what`; empty where it
    keeps it."""
    validator = _file_validator(schema) if isinstance(schema, Path) else _validator(schema)
    error = jsonschema.exceptions.best_match(validator.iter_errors(document))
    if error is None:
        return ""
    key = error.json_path.removeprefix("$").removeprefix(".") or "the file"
    # the message begins with the value, which may be a whole table
    message = error.message
    if len(message) > LONGEST_MESSAGE:
        message = f"...{message[-LONGEST_MESSAGE:]}"
    return f"{key}: {message}"
