"""Every command of the README, CONTRIBUTING and docs/ is known to its program, options and all; and
no line of a command's help is wider than 100 columns.

tests/test_workshop.py runs those of docs/workshop.md.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from built_programs import PROJECT_ROOT
from tinyllama_tools.__main__ import COMMANDS
from tinyllama_tools.__main__ import main as run_tool

PAGES = [PROJECT_ROOT / "README.md", PROJECT_ROOT / "CONTRIBUTING.md"]
PAGES += [path for path in (PROJECT_ROOT / "docs").glob("*.md") if path.name != "workshop.md"]
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


# named, not to be typed as they are
NAMES = ("scripts/compare run", "scripts/study --grid")


def commands_of(script: str) -> list[str]:
    """But those of the set-up, which is the shell's, and a mere name."""
    found = [text for text in documented() if text.startswith(f"scripts/{script} ")]
    return [t for t in found if "--setup-only" not in t and t not in NAMES]


@pytest.mark.parametrize("command", [command for tool in COMMANDS for command in commands_of(tool)])
def test_commands_of_the_tools_have_options_that_exist(command: str) -> None:
    name, *arguments = shlex.split(command.removeprefix("scripts/"))
    assert run_tool(["--check-options", name, *arguments]) == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_tool_checks_its_options_before_a_build(name: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run_tool(["--check-options", name, "--help"])
    assert ended.value.code == 0


@pytest.mark.parametrize("command", [*commands_of("bench"), "scripts/bench --quick"])
def test_commands_of_the_suite_have_cases(
    command: str, project_root: Path, bench_script: Path
) -> None:
    arguments = shlex.split(command)[1:]
    weights = project_root / "fixtures/golden/gqa_groups_2"
    arguments = [str(weights) if text.startswith("~") else text for text in arguments]
    if "--find-limit" in arguments:
        # what is run there takes minutes; its size is that of the test
        arguments = [text.replace("8GiB", "200MiB") for text in arguments if text != "--confirm"]
    elif "--dry-run" not in arguments:
        arguments.append("--list")
    done = subprocess.run(
        ["bash", str(bench_script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("command", commands_of("test"))
def test_commands_of_the_tests_have_options_that_exist(command: str, project_root: Path) -> None:
    text = (project_root / "scripts/test").read_text(encoding="utf-8")
    options = re.findall(r"(?<=\s)--?[a-z][a-z-]*", command)
    assert [option for option in options if f"    {option})" not in text] == []


@pytest.mark.parametrize("command", [text for text in documented() if PROGRAM.search(text)])
def test_programs_and_their_options_exist(command: str, bench_program: Path) -> None:
    found = PROGRAM.search(command)
    assert found
    (path,) = bench_program.parent.rglob(found[1])
    done = subprocess.run([str(path), "--help"], capture_output=True, text=True, timeout=60)
    for option in re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", found[2]):
        assert option.startswith("--benchmark") or option in done.stdout, option


def test_there_are_commands() -> None:
    assert len(documented()) > 60
    assert [tool for tool in COMMANDS if not commands_of(tool)] == ["ablation", "peers"]


def assert_is_help(text: str) -> None:
    assert [line for line in text.splitlines() if len(line) > 100] == []
    assert "xit status" in text


@pytest.mark.parametrize("script", ["bench", "test", "compare", "prove", "golden"])
def test_help_of_a_script_needs_no_set_up(script: str, project_root: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    real = project_root / "scripts/lib"
    (tmp_path / "lib/set_up.sh").write_text(
        f"source '{real}/set_up.sh'\nset_up() {{ echo 'was set up' >&2; exit 9; }}\n"
    )
    (tmp_path / "lib/results.sh").symlink_to(real / "results.sh")
    (tmp_path / script).symlink_to(project_root / "scripts" / script)
    command = ["bash", str(tmp_path / script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"scripts/{script} ")
    assert_is_help(done.stdout)


@pytest.mark.parametrize("name", [*COMMANDS, "compare run", "compare calibrate", "compare history"])
def test_help_of_a_tool(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        run_tool([*name.split(), "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    if "compare" in name or name in {"peers", "profile"}:
        text += "exit status"
    assert_is_help(text)


@pytest.mark.parametrize("name", ["tiny_llama_bench", "tiny_llama_train", "tiny_llama_scaling"])
def test_help_of_a_program(name: str, bench_program: Path) -> None:
    command = [str(bench_program.with_name(name)), "--help"]
    environment = os.environ | {"COLUMNS": "100"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if len(line) > 100] == []
