"""Lists of numbers in the suite's grammar: 8, 4,8,16, 64:512:*2 and 128:1024:+128."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

RULE = (
    "write numbers as 8 or 4,8,16 or 64:512:*2 (first:last:factor) or 128:1024:+128 "
    "(first:last:increment)"
)
LARGEST = 2**63 - 1
LONGEST_LIST = 1000


def _refusal(text: str, rule: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"'{text}': {rule}")


def _number(digits: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", digits) or int(digits) > LARGEST:
        raise _refusal(text, RULE)
    if int(digits) < 1:
        raise _refusal(text, f"{digits} is not at least 1")
    return int(digits)


def _range(text: str) -> Iterator[int]:
    found = re.fullmatch(r"([0-9]+):([0-9]+):([*+])([0-9]+)", text)
    if found is None:
        raise _refusal(text, RULE)
    first, last, step = (_number(found[i], text) for i in (1, 2, 4))
    if last < first:
        raise _refusal(text, "the last value is below the first")
    if found[3] == "*" and step < 2:
        raise _refusal(text, "a factor must be at least 2")
    value, count = first, 0
    while value <= last:
        count += 1
        if count > LONGEST_LIST:
            raise _refusal(text, f"more than {LONGEST_LIST} values")
        yield value
        value = value * step if found[3] == "*" else value + step


def number_list(text: str) -> tuple[int, ...]:
    """The numbers in the order given, each once, as the suite itself reads them.

    argparse.ArgumentTypeError names a value that is none and the rule.
    """
    numbers: list[int] = []
    for part in text.split(","):
        numbers += _range(part) if ":" in part else [_number(part, text)]
    return tuple(dict.fromkeys(numbers))
