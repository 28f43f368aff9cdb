"""Options that every comparison takes."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tinyllama_tools.compare.gate import Gate
from tinyllama_tools.stats.verdicts import ALPHA, MARGIN

FORMATS = ("text", "md", "json")


def fraction(text: str) -> float:
    """A number between 0 and 1, both excluded."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(
            f"'{text}': must be a number between 0 and 1, such as 0.03"
        )
    return value


def regular_expression(text: str) -> re.Pattern[str]:
    """One that compiles."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}': is no regular expression: {error}") from error


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """--alpha, --margin, --strict, --fail-on-growth, --allow-missing, --format, --output."""
    parser.add_argument(
        "--alpha",
        type=fraction,
        default=ALPHA,
        help="chance of a `slower` or `faster` anywhere in the family where there is no difference "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--margin",
        type=fraction,
        default=MARGIN,
        help="changes up to this fraction are `same` (default: %(default)s)",
    )
    parser.add_argument("--strict", action="store_true", help="exit 3 where a case has no answer")
    parser.add_argument(
        "--fail-on-growth",
        action="store_true",
        help="exit 1 where a deterministic counter (memory, allocations, operators) got worse",
    )
    parser.add_argument(
        "--allow-missing",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="cases that may be missing or fail in the new, by name or pattern (loss/*)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="what to print (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="also write comparison.json, comparison.md and comparison.html there",
    )


def gate_of(options: argparse.Namespace) -> Gate:
    """From the options that add_common_options added."""
    return Gate(strict=options.strict, fail_on_growth=options.fail_on_growth)
