"""scripts/compare itself: what it sets up for which command. Nothing is installed or built."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import ScriptCheckout

# Each part of the set-up and each Python program says its name; the check of options refuses
# --bogus.
STAND_INS = """
set_up() { echo "set up $1"; torch_cmake_folder=/of/this/torch; }
virtual_python=say_python
"""
PYTHON = """
if [[ "$3" == --check-options ]]; then
  echo "check $5"
  if [[ "$*" == *--bogus* ]]; then exit 2; fi
else
  shift 2
  echo "$* with ${Torch_DIR:-no torch}"
fi
"""


def run(checkout: ScriptCheckout, *arguments: str) -> subprocess.CompletedProcess[str]:
    checkout.stub("say_python", PYTHON)
    with (checkout.root / "scripts/lib/set_up.sh").open("a") as stream:
        stream.write(STAND_INS)
    command = " ".join(f"'{argument}'" for argument in arguments)
    return checkout.run(f"bash scripts/compare {command}")


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (("a.json", "b.json"), ["set up tools", "compare a.json b.json with no torch"]),
        (("history", "show"), ["set up tools", "compare history show with no torch"]),
        (
            ("run", "--base", "build"),
            [
                "set up tools",
                "check run",
                "set up bench",
                "compare run --base build with /of/this/torch",
            ],
        ),
        (
            ("calibrate", "--record=1m"),
            [
                "set up tools",
                "check calibrate",
                "set up bench",
                "compare calibrate --record=1m with /of/this/torch",
            ],
        ),
        (("calibrate",), ["set up tools", "compare calibrate with no torch"]),
        (("run", "--help"), ["set up tools", "check run"]),
    ],
)
def test_only_what_measures_needs_the_build(
    checkout: ScriptCheckout, arguments: tuple[str, ...], lines: list[str]
) -> None:
    result = run(checkout, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == lines


def test_a_bad_option_is_told_before_the_build(checkout: ScriptCheckout) -> None:
    result = run(checkout, "run", "--bogus")
    assert result.returncode == 2
    assert result.stdout.splitlines() == ["set up tools", "check run"]


def test_help_sets_nothing_up(checkout: ScriptCheckout) -> None:
    for arguments, status in ((("--help",), 0), ((), 2)):
        result = run(checkout, *arguments)
        assert result.returncode == status
        assert "set up tools" not in result.stdout
        assert "Exit status: 0 no regression" in result.stdout + result.stderr
