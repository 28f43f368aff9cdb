"""What of commands is published: nothing that only the recording machine knows."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from tinyllama_tools.compare.run_options import add_options as add_run_options


def _path_options(parser: argparse.ArgumentParser) -> dict[str, bool]:
    """Options that take paths; whether they take several."""
    return {
        name: action.nargs is not None
        for action in parser._actions
        if action.type is Path
        for name in action.option_strings
    }


def without_paths(words: Iterable[str], parser: argparse.ArgumentParser) -> list[str]:
    """The words without the parser's options that take paths, and without their values."""
    options = _path_options(parser)
    kept: list[str] = []
    dropping = 0
    for word in words:
        if dropping and not word.startswith("-"):
            dropping -= 1
            continue
        name, separator, _ = word.partition("=")
        dropping = 0
        if name not in options:
            kept.append(word)
        elif not separator:
            # several end with the next option
            dropping = 2**31 if options[name] else 1
    return kept


def without_run_paths(words: Sequence[str]) -> list[str]:
    """Of options of `compare run`."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_run_options(parser)
    return without_paths(words, parser)


def published_arguments(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Of `compare calibrate`, whose options end with those of `compare run` after --."""
    own = list(words)
    if "--" not in own:
        return without_paths(own, parser)
    at = own.index("--")
    return [*without_paths(own[:at], parser), "--", *without_run_paths(own[at + 1 :])]
