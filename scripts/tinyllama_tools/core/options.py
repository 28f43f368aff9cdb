"""Parsers of option values; an error names the value and what is allowed."""

import argparse
import difflib
import functools
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tinyllama_tools.core.installation import BUILD, IS_CHECKOUT, as_typed_here, typed

DTYPES = ("f32", "bf16", "f16", "amp_bf16", "amp_f16")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean --budget?`, empty where no known word is close."""
    found = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""


class _Parser(argparse.ArgumentParser):
    """Names the option, choice or sub-command that a mistyped one is close to."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """Refuses an unknown option before argparse misses the required one that was mistyped."""
        words = sys.argv[1:] if args is None else list(args)
        known = self._option_string_actions
        # the options of a sub-command are looked at by its own parser
        own = [] if self._subparsers else itertools.takewhile(lambda word: word != "--", words)
        for word in own:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                self.error(f"'{word}': is no option{did_you_mean(name, known)}")
        return super().parse_known_args(words, namespace)

    def format_help(self) -> str:
        return as_typed_here(super().format_help())

    def error(self, message: str) -> NoReturn:
        """Ends with status 2."""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += did_you_mean(found[1], re.findall(r"[\w-]+", found[2]))
        super().error(message)


def script_parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser for the command of this name, which takes no shortened option and keeps the epilog's
    lines."""
    return _Parser(
        prog=typed(name),
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def list_of(allowed: Sequence[str], what: str) -> Callable[[str], tuple[str, ...]]:
    """A parser of comma-separated names, each of those allowed."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name for name in text.split(",") if name))
        for name in names or ("",):
            if name not in allowed:
                message = f"{what} '{name}': must be one of {', '.join(allowed)}"
                raise argparse.ArgumentTypeError(message)
        return names

    # for what completes a word
    parse.allowed = tuple(allowed)
    return parse


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': must be a whole number of 1 or more")
    return int(text)


LONGEST_LIST = 1000
LIST = (
    f"must be a whole number of 1 or more, below 2^63, or at most {LONGEST_LIST} of them: 4,8,16, "
    "64:512:*2 (first:last:factor) or 128:1024:+128 (first:last:increment)"
)


def positive_list(text: str) -> tuple[int, ...]:
    """The numbers in the order given, each once, in the suite's own grammar: 8, 4,8,16, 64:512:*2
    and 128:1024:+128."""
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,19})(?::([0-9]{1,19}):([*+])([0-9]{1,19}))?\s*", part)
        value, last, step = (int(found[i] or found[1]) for i in (1, 2, 4)) if found else (0, 0, 0)
        is_growing = found and (not found[3] or step > (found[3] == "*"))
        if not is_growing or not 1 <= value <= last < 2**63:
            raise argparse.ArgumentTypeError(f"'{text}': {LIST}")
        while value <= last and len(numbers) <= LONGEST_LIST:
            numbers.append(value)
            value = value * step if found[3] == "*" else value + step
    if len(numbers) > LONGEST_LIST:
        raise argparse.ArgumentTypeError(f"'{text}': {LIST}")
    return tuple(dict.fromkeys(numbers))


def _number(text: str, what: str, below: float = math.inf) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < below:
        raise argparse.ArgumentTypeError(f"'{text}': must be a {what}")
    return value


seconds = functools.partial(_number, what="positive number of seconds")
minutes = functools.partial(_number, what="positive number of minutes")
fraction = functools.partial(_number, what="number between 0 and 1, such as 0.03", below=1)


# a parser, or one of its groups
Parser = argparse.ArgumentParser | argparse._ArgumentGroup


def add_out(parser: Parser, text: str, metavar: str = "DIR", **more: Any) -> None:  # noqa: ANN401
    """Adds --out, where results go: a folder, or the file of a command that writes one alone."""
    parser.add_argument("-o", "--out", type=Path, metavar=metavar, help=text, **more)


def add_build_folder(parser: Parser, text: str = "where the programs are") -> None:
    """Adds --build-folder, of whose programs is_prefix() tells the place."""
    own = "build" if IS_CHECKOUT else "this prefix"
    text += f": a build folder or a prefix (default: {own})"
    parser.add_argument("--build-folder", type=Path, default=BUILD, metavar="DIR", help=text)


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """Adds --plugin, which the programs read."""
    text = "library of operators for variants such as optimized+my::rms_norm; may be repeated"
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help=text)


def plugin_options(options: argparse.Namespace) -> tuple[str, ...]:
    """The same for the programs."""
    return tuple(f"--plugin={file}" for file in options.plugin)


# a switch or the name of a set, or an operator of a plug-in
_NAME = r"([a-z0-9_]+|[A-Za-z0-9_]+::[A-Za-z0-9_.]+)"


def variants(text: str) -> tuple[str, ...]:
    """Names of variants by their form alone: which there are only the program knows."""
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in chosen:
        if not re.fullmatch(rf"{_NAME}(\+{_NAME})*", name):
            message = f"'{name}': must be a name such as baseline, qkv+sdpa or my::rms_norm"
            raise argparse.ArgumentTypeError(message)
    return chosen
