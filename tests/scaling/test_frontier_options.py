"""Options of scripts/frontier."""

from __future__ import annotations

import pytest
from frontier_stand_in import GIB, MIB

from tinyllama_tools.frontier.options import memory_size, parse_options
from tinyllama_tools.suite_run import problem_sizes


def test_without_options_it_is_every_size() -> None:
    options = parse_options([])
    assert options.sizes == tuple(problem_sizes())
    assert options.given == (128, 256, 512, 1024, 2048)
    assert (options.axis.searched, options.memory_limit) == ("batch", None)
    reverse = parse_options(["tiny,small", "tiny", "--by=batch", "--batch=8,2:4:*2"])
    assert reverse.sizes == ("tiny", "small")
    assert reverse.given == (2, 4, 8)
    assert reverse.axis.searched == "seq"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("huge",), ("'huge'", "must be one of tiny", "very_large")),
        (("--by=size",), ("--by", "'size'", "'seq', 'batch'")),
        (("--by=seq,batch",), ("'seq,batch'", "'seq', 'batch'")),
        (("--batch=8",), ("--batch: '8'", "leave it out, or say --by batch")),
        (("--by=batch", "--seq=64"), ("--seq: '64'", "leave it out, or say --by seq")),
        (("--seq=0",), ("--seq", "0 is not at least 1")),
        (("--seq=2097152",), ("'2097152'", "must be at most 1048576")),
        (("--memory-limit=8Gib",), ("'8Gib'", "write an amount as 8GiB")),
        (("--memory-limit=0",), ("'0'", "at least 1 byte")),
        (("--memory-limit=9EB",), ("'9EB'", "write an amount")),
        (("--max-seconds=5",), ("'5'", "without --confirm", "leave it out")),
        (("--confirm", "--max-seconds=-1"), ("'-1'", "positive number of seconds")),
        (("--dtypes=f64",), ("'f64'", "must be one of f32")),
        (("--variants=a b",), ("'a b'", "must be a name")),
    ],
)
def test_a_bad_option_is_named_with_the_rule(
    options: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(options)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * GIB),
        ("512MiB", 512 * MIB),
        ("1.5GB", 1_500_000_000),
        ("1048576", MIB),
        ("3 kB", 3000),
        ("2TiB", 2048 * GIB),
        ("7B", 7),
    ],
)
def test_sizes_are_read_as_the_suite_reads_them(text: str, size: int) -> None:
    assert memory_size(text) == size
