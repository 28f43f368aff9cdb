"""Every command of the README, CONTRIBUTING and docs/ is known to its program, options and all.

tests/test_workshop_commands.py runs those of docs/workshop.md, and
tests/compare/test_compare_docs.py reads those of scripts/compare.
"""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from built_programs import PROJECT_ROOT
from tinyllama_tools.__main__ import main as run_tool

PAGES = [PROJECT_ROOT / "README.md", PROJECT_ROOT / "CONTRIBUTING.md"]
PAGES += [path for path in (PROJECT_ROOT / "docs").glob("*.md") if path.name != "workshop.md"]
TOOLS = ["report", "study", "scaling", "profile", "exercise", "ablation", "peers"]
# what a launcher or a profiler starts
PROGRAM = re.compile(r"\bbuild/benchmarks/(?:\w+/)?(\w+)(.*)$")


def documented() -> list[str]:
    """Lines of code blocks, and commands in the cells of tables and in sentences, once each."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            lines = block.replace("\\\n", "").splitlines()
            found += [line.partition(" #")[0].strip() for line in lines]
        found += [code for code in re.findall(r"`([^`\n]+)`", text) if " " in code]
    parts = [part.strip() for command in found for part in command.split("&&")]
    return list(dict.fromkeys(part for part in parts if "..." not in part))


def commands_of(script: str) -> list[str]:
    """But those of the set-up, which is the shell's."""
    found = [text for text in documented() if text.startswith(f"scripts/{script} ")]
    return [text for text in found if script == "bench" or "--setup-only" not in text]


@pytest.mark.parametrize("command", [command for tool in TOOLS for command in commands_of(tool)])
def test_commands_of_the_tools_have_options_that_exist(command: str) -> None:
    name, *arguments = shlex.split(command.removeprefix("scripts/"))
    assert run_tool(["--check-options", name, *arguments]) == 0


@pytest.mark.parametrize("command", [*commands_of("bench"), "scripts/bench --quick"])
def test_commands_of_the_suite_have_cases(command: str, project_root: Path) -> None:
    arguments = shlex.split(command)[1:]
    weights = project_root / "fixtures/golden/gqa_groups_2"
    arguments = [str(weights) if text.startswith("~") else text for text in arguments]
    if "--find-limit" in arguments:
        # what is run there takes minutes; its size is that of the test
        arguments = [text.replace("8GiB", "200MiB") for text in arguments if text != "--confirm"]
    elif not {"--setup-only", "--dry-run"} & set(arguments):
        arguments.append("--list")
    done = subprocess.run(
        ["bash", str(project_root / "scripts/bench"), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or "--setup-only" in arguments


@pytest.mark.parametrize("command", commands_of("test"))
def test_commands_of_the_tests_have_options_that_exist(command: str, project_root: Path) -> None:
    text = (project_root / "scripts/test").read_text(encoding="utf-8")
    options = re.findall(r"(?<=\s)--?[a-z][a-z-]*", command)
    assert [option for option in options if f"    {option})" not in text] == []


@pytest.mark.parametrize("command", [text for text in documented() if PROGRAM.search(text)])
def test_programs_and_their_options_exist(command: str, project_root: Path) -> None:
    found = PROGRAM.search(command)
    assert found
    (path,) = (project_root / "build/benchmarks").rglob(found[1])
    done = subprocess.run([str(path), "--help"], capture_output=True, text=True, timeout=60)
    for option in re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", found[2]):
        assert option.startswith("--benchmark") or option in done.stdout, option


def test_there_are_commands() -> None:
    assert len(documented()) > 60
    assert [tool for tool in TOOLS if not commands_of(tool)] == ["ablation", "peers"]
