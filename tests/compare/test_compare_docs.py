"""docs/compare.md: its commands parse, its figures are computed, its links lead somewhere."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from tinyllama_tools.calibrate import command as calibrate_command
from tinyllama_tools.commands import history as history_command
from tinyllama_tools.commands.history_changes import FEWEST_FILES
from tinyllama_tools.compare import run as run_command
from tinyllama_tools.compare import stored as stored_command
from tinyllama_tools.compare.blocks import MOST_OVERRUN
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.stats.verdicts import (
    ALPHA,
    LOOKS,
    MARGIN,
    SPENT,
    Outcome,
    fewest_files,
    plan_design,
)

PAGE = PROJECT / "docs/compare.md"
TEXT = PAGE.read_text(encoding="utf-8")
MODULES = {"run": run_command, "calibrate": calibrate_command, "history": history_command}


def commands() -> list[str]:
    blocks = re.findall(r"^```\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`(scripts/compare [^`]* [^`]*)`", TEXT.replace("\n", " "))
    return list(dict.fromkeys([*lines, *inline]))


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command: str) -> None:
    # without the variables before it
    program, *given = shlex.split(re.sub(r"^([A-Z_]+=\S+ )+", "", command))
    if program == "scripts/ci_compare.sh":
        # test_ci_workflow.py runs it
        assert given == []
        return
    assert program == "scripts/compare"
    module = MODULES.get(given[0], stored_command)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    module.add_options(parser)
    options = given[1:] if given[0] in MODULES else given
    if "--help" not in options:
        parser.parse_args(options)


def test_options_that_the_text_names_exist() -> None:
    parsers = []
    for module in (*MODULES.values(), stored_command):
        parser = argparse.ArgumentParser()
        module.add_options(parser)
        parsers.append(parser)
    known = "".join(parser.format_help() for parser in parsers)
    actions = [a for p in parsers for a in p._actions if isinstance(a, argparse._SubParsersAction)]
    known += "".join(one.format_help() for action in actions for one in action.choices.values())
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    assert {name for name in named if name not in known} == set()


def test_every_outcome_is_explained() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]
    explained = {word for row in rows for word in re.findall(r"`([a-z ]+)`", row.split("|")[1])}
    assert explained == {outcome.value for outcome in Outcome}


@pytest.mark.parametrize("cases", [1, 10, 40])
def test_planned_numbers_are_those_of_the_design(cases: int) -> None:
    looks = ", ".join(map(str, plan_design(cases).looks))
    assert f"| {cases} | {looks} |" in TEXT
    assert f"| {cases} | {fewest_files(cases, ALPHA)} |" in TEXT


def test_the_confidence_of_a_look_is_that_of_the_design() -> None:
    assert f"each has {100 * plan_design(1).look_confidence:.1f} %" in TEXT
    # the reserve makes what is held against alpha so many times as large
    assert 1 / SPENT == 4
    assert "four times as large" in TEXT


def test_defaults_are_those_of_the_code() -> None:
    assert f"(alpha {ALPHA:g}, {LOOKS} looks)" in TEXT
    assert f"**`--alpha`** ({ALPHA:g})" in TEXT
    assert f"**`--margin`** ({MARGIN:g})" in TEXT
    assert f"from {FEWEST_FILES} files on" in TEXT
    parser = argparse.ArgumentParser()
    run_command.add_options(parser)
    overrun = f"up to {100 * (MOST_OVERRUN - 1):.0f} % and"
    assert overrun in " ".join(parser.format_help().split())


def test_links_and_paths_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", TEXT):
        path = (PAGE.parent / link).resolve().relative_to(PROJECT)
        assert (PROJECT / path).exists(), link
    for path in re.findall(r"`((?:scripts|\.github)/[\w./]+\.\w+)`", TEXT):
        assert (PROJECT / path).is_file(), path
