"""scripts/report as a shell script, and what docs/report.md says of it."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.report import analysis as scaling_fits
from tinyllama_tools.report import build
from tinyllama_tools.report import command as options
from tinyllama_tools.report import command as writing
from tinyllama_tools.report.sections import roofline

if TYPE_CHECKING:
    from conftest import ScriptCheckout

PAGE = PROJECT / "docs/report.md"


def script(checkout: ScriptCheckout, *arguments: str) -> subprocess.CompletedProcess[str]:
    checkout.stub("say_python", 'shift 3\necho "main $*"')
    with (checkout.root / "scripts/lib/set_up.sh").open("a") as stream:
        stream.write('set_up() { echo "set up $1"; }\nvirtual_python=say_python\n')
        stream.write("set_up_pictures() { echo pictures; }\n")
    return checkout.run(f"bash scripts/report {shlex.join(arguments)}")


def test_the_script_needs_no_build(checkout: ScriptCheckout) -> None:
    result = script(checkout, "a b.json", "-o", "x.html")
    assert result.returncode == 0, result.stderr
    arguments = "a b.json -o x.html"
    assert result.stdout.splitlines() == ["set up tools", f"main {arguments}"]


@pytest.mark.parametrize(
    ("option", "draws"),
    [("--format=png", True), ("--format=md", False)],
)
def test_what_draws_is_set_up_where_something_is_drawn(
    checkout: ScriptCheckout, option: str, *, draws: bool
) -> None:
    for spelling in ([option], option.split("=")):
        result = script(checkout, "a", *spelling)
        assert ("pictures" in result.stdout.splitlines()) == draws


def test_the_script_can_set_up_alone(checkout: ScriptCheckout) -> None:
    result = script(checkout, "--setup-only")
    assert (result.returncode, result.stdout) == (0, "set up tools\n")


def test_help_sets_nothing_up_and_names_every_option(checkout: ScriptCheckout) -> None:
    result = script(checkout, "--help")
    assert result.returncode == 0
    assert "set up" not in result.stdout
    parser = argparse.ArgumentParser(add_help=False)
    options.add_options(parser)
    for action in parser._actions:
        for name in action.option_strings:
            assert name in result.stdout, name
            assert f"`{name}" in PAGE.read_text(encoding="utf-8"), name


def documented_commands() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("scripts/report")]


def test_documented_commands_parse() -> None:
    assert len(documented_commands()) >= 4
    for command in documented_commands():
        options.parse_options(shlex.split(command)[1:])


def test_every_section_is_documented(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for _, title, _ in build.BUILDERS:
        assert f"| {title} |" in text, title
    for number in (scaling_fits.MOST_LAWS, roofline.ALL_ROWS, roofline.MOST_ROWS):
        assert f" {number} " in text, number
    assert writing.default_path(".html", tmp_path).parent == tmp_path
