"""What argparse makes of an option's text; a value that will not do is named with what will."""

import argparse
import functools
import math
import re
from collections.abc import Callable, Sequence

DTYPES = ("f32", "bf16", "f16", "amp_bf16", "amp_f16")


def script_parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Of `scripts/<name>`: the epilog keeps its lines, and no option can be shortened."""
    return argparse.ArgumentParser(
        prog=f"scripts/{name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def list_of(allowed: Sequence[str], what: str) -> Callable[[str], tuple[str, ...]]:
    """A parser of comma-separated names that says what is allowed."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name for name in text.split(",") if name))
        for name in names or ("",):
            if name not in allowed:
                message = f"{what} '{name}': must be one of {', '.join(allowed)}"
                raise argparse.ArgumentTypeError(message)
        return names

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


def variants(text: str) -> tuple[str, ...]:
    """Names of our variants, which the program itself knows."""
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in chosen:
        if not re.fullmatch(r"[a-z0-9_]+(\+[a-z0-9_]+)*", name):
            message = f"'{name}': must be a name such as baseline or qkv+sdpa"
            raise argparse.ArgumentTypeError(message)
    return chosen
