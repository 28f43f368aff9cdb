"""The options of what measures, read before anything is built: as the commands themselves do."""

from __future__ import annotations

import pytest

from tinyllama_tools.compare.early_options import read_early


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--base", "build", "--new", "build", "--budget", "10m"],
        ["calibrate", "--runs", "2", "--", "--budget", "10m"],
    ],
)
def test_good_options_pass_silently(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    read_early(arguments)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--base", "build", "--new", "build", "--budget", "never"], "'never'"),
        (["run", "--base", "build"], "--new"),
        (["calibrate", "--record", "0"], "'0'"),
        (["calibrate", "--simulate", "--record", "1m"], "--simulate"),
        (["run", "--bas", "build", "--new", "build"], "--base"),
    ],
)
def test_bad_options_end_with_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_early(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert f"scripts/compare {arguments[0]}" in said


def test_help_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_early(["run", "--help"])
    assert ended.value.code == 0
    assert "--budget" in capsys.readouterr().out
