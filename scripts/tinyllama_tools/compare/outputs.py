"""Writes a comparison: to a folder as JSON, Markdown and a page, and to the terminal."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from tinyllama_tools.compare.comparison import Comparison
from tinyllama_tools.compare.gate import MEANINGS, REGRESSIONS_ONLY, Gate
from tinyllama_tools.compare.output_markdown import markdown_of
from tinyllama_tools.compare.output_page import page_of
from tinyllama_tools.compare.output_text import text_of
from tinyllama_tools.core.app import BadInputError, write_whole

JSON, MARKDOWN, PAGE = "comparison.json", "comparison.md", "comparison.html"


def _plain(value: Any) -> Any:  # noqa: ANN401
    """A dataclass as an object; JSON knows no infinity, so an end that is not there is null."""
    return {
        key: None if isinstance(inner, float) and not math.isfinite(inner) else inner
        for key, inner in vars(value).items()
    }


def json_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY) -> str:
    """comparison.json, with the exit status and its meaning; a line for each case."""
    status = gate.status(comparison)
    # thousands of cases go to the encoder as they are, which is quicker than copying them first
    head = {**replace(comparison, cases=()).as_json(), "exit_status": status}
    del head["cases"]
    text = json.dumps({**head, "meaning": MEANINGS[status]}, indent=1, allow_nan=False)
    cases = [json.dumps(case, default=_plain, allow_nan=False) for case in comparison.cases]
    lines = ",\n  ".join(cases)
    return f'{text[:-2]},\n "cases": [\n  {lines}\n ]\n}}\n'


def write_comparison(
    comparison: Comparison, folder: Path, gate: Gate = REGRESSIONS_ONLY
) -> tuple[Path, ...]:
    """Writes comparison.json, .md and .html, each whole or not at all; the folder is made.

    BadInputError where it cannot be written.
    """
    texts = {
        JSON: json_of(comparison, gate),
        MARKDOWN: markdown_of(comparison, gate),
        PAGE: page_of(comparison, gate),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise BadInputError(
            f"--output {folder}: cannot be written: {error.strerror}; name a folder that can"
        ) from error
    return tuple(folder / name for name in texts)


def _has_colour(stream: TextIO) -> bool:
    # https://no-color.org
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_comparison(
    comparison: Comparison,
    form: str = "text",
    gate: Gate = REGRESSIONS_ONLY,
    stream: TextIO | None = None,
) -> None:
    """`form`: text, md or json. Colour on a terminal only."""
    out = sys.stdout if stream is None else stream
    if form == "json":
        out.write(json_of(comparison, gate))
    elif form == "md":
        out.write(markdown_of(comparison, gate))
    else:
        out.write(text_of(comparison, gate, colour=_has_colour(out)))
