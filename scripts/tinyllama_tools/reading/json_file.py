"""Reads one JSON file, and says in words what is wrong with one that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tinyllama_tools.reading.errors import BadInputError

Json = dict[str, Any]


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
