"""Lists of numbers as the suite itself reads them."""

from __future__ import annotations

import argparse

import pytest

from tinyllama_tools.study.grid_plan import number_list


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8", (8,)),
        ("4,8,16", (4, 8, 16)),
        ("16,4,16", (16, 4)),
        ("64:512:*2", (64, 128, 256, 512)),
        ("64:500:*2", (64, 128, 256)),
        ("128:1024:+128", tuple(range(128, 1025, 128))),
        ("1,2:8:*2,3", (1, 2, 4, 8, 3)),
        ("7:7:+1", (7,)),
        ("9223372036854775807", (2**63 - 1,)),
        ("1:1000:+1", tuple(range(1, 1001))),
    ],
)
def test_the_grammar(text: str, numbers: tuple[int, ...]) -> None:
    assert number_list(text) == numbers


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "write numbers as"),
        ("4,", "write numbers as"),
        ("4,,8", "write numbers as"),
        ("-4", "write numbers as"),
        ("4.0", "write numbers as"),
        ("²", "write numbers as"),
        ("9223372036854775808", "write numbers as"),
        ("1" * 5000, "write numbers as"),
        ("0", "not at least 1"),
        ("1:8", "write numbers as"),
        ("1:8:2", "write numbers as"),
        ("1:8:*", "write numbers as"),
        ("1:8:*2:3", "write numbers as"),
        ("8:4:*2", "the last value is below the first"),
        ("1:8:*1", "a factor must be at least 2"),
        ("1:8:+0", "not at least 1"),
        ("1:1001:+1", "more than 1000 values"),
        ("1:9223372036854775807:+1", "more than 1000 values"),
    ],
)
def test_what_is_no_list_is_named_with_the_rule(text: str, rule: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=rule) as refused:
        number_list(text)
    assert text in str(refused.value)
