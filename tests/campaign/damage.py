"""Random damage to documents and files: the same generator does the same."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

Json = Any
# stands for arrays within each other, more than a parser that calls itself can bear
DEEP = "@deep@"
LEVELS = 100_000
TEXTS = ("", " ", "a" * 5000, "nan", "1", "\0", "\ud800", "../../x", "%s{}", "ü\u202e", "-", DEEP)
NUMBERS = (
    *(0, 1, -1, 2, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e-320, 1e308, -1e308),
    *(float("nan"), float("inf"), -float("inf"), True, False),
)
OTHERS = (None, [], {}, [None], [[1]], {"": 0}, [{}])
BYTES = (
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b"{",
    b"}",
    b"[",
    b'"',
    b",",
    b"\n",
    b"1e999",
    b"NaN",
    b"\\u",
)


def places(document: Json) -> Iterator[tuple[Any, Any]]:
    """Every container with every key of it, outer ones first."""
    keys: Any = ()
    if isinstance(document, dict):
        keys = list(document)
    elif isinstance(document, list):
        keys = range(len(document))
    for key in keys:
        yield document, key
        yield from places(document[key])


def other_value(value: Json, draw: random.Random, document: Json) -> Json:
    """Of another type, or of the same and unlikely; sometimes another part of the document."""
    kind = draw.randrange(6)
    if kind == 0:
        return draw.choice(NUMBERS)
    if kind == 1:
        return draw.choice(TEXTS)
    if kind == 2:
        return copy.deepcopy(draw.choice(OTHERS))
    if kind == 3:
        container, key = draw.choice(list(places(document)))
        return copy.deepcopy(container[key])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return draw.choice(
                (-value, value + 1, value * 1e300, value / 1e300, str(value), [value])
            )
        except OverflowError:
            return -1
    if isinstance(value, str):
        return draw.choice((value[1:], value * 2, value.upper(), value + "\n", [value], None))
    return draw.choice((str(value), [value], {"x": value}, None))


def damage_once(document: Json, draw: random.Random) -> None:
    found = list(places(document))
    if not found:
        return
    # keys of the outer objects as likely as one of the thousands of inner ones
    container, key = draw.choice(found if draw.random() < 0.7 else found[: 1 + len(found) // 50])
    action = draw.randrange(5)
    if action == 0:
        del container[key]
    elif action == 1 and isinstance(container, list):
        container.insert(draw.randrange(len(container) + 1), copy.deepcopy(container[key]))
    elif action == 1:
        container[draw.choice(("x", "", "name", "context"))] = container.pop(key)
    else:
        container[key] = other_value(container[key], draw, document)


def text_of(document: Json, draw: random.Random) -> bytes:
    """JSON, of which nothing is refused: NaN and half of a surrogate pair are what others write."""
    text = json.dumps(document, ensure_ascii=draw.random() < 0.5)
    levels = draw.choice((3, 500, LEVELS))
    text = text.replace(f'"{DEEP}"', "[" * levels + "]" * levels)
    return text.encode("utf-8", errors=draw.choice(("surrogatepass", "replace")))


def damaged_json(original: bytes, draw: random.Random) -> bytes:
    """Parts of the document removed, moved, or replaced."""
    document = json.loads(original)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        damage_once(document, draw)
    return text_of(document, draw)


def damaged_bytes(original: bytes, draw: random.Random) -> bytes:
    """Cut, flipped, doubled, of another encoding, or empty."""
    data = bytearray(original)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at, kind = draw.randrange(len(data) + 1), draw.randrange(8)
        end = at + draw.choice((1, 4, 100))
        if kind == 0:
            del data[at:]
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end]
        elif kind <= 4 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 5:
            data[at:at] = draw.choice(BYTES)
        elif kind == 6:
            data[at:end] = draw.randbytes(draw.randrange(5))
        elif draw.random() < 0.1:
            text = data.decode("latin-1")
            data = bytearray(draw.choice((text.encode("utf-16"), b"\xef\xbb\xbf" + data, b"")))
    return bytes(data)


def damaged(name: str, original: bytes, draw: random.Random) -> bytes:
    """By what the name says the file is: .json, .jsonl, or bytes."""
    if name.endswith(".json") and draw.random() < 0.8:
        return damaged_json(original, draw)
    if name.endswith(".jsonl") and draw.random() < 0.8:
        lines = original.splitlines(keepends=True)
        number = draw.choice((0, draw.randrange(len(lines))))
        lines[number] = damaged_json(lines[number], draw) + b"\n"
        if draw.random() < 0.2:
            lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
        return b"".join(lines)
    return damaged_bytes(original, draw)
