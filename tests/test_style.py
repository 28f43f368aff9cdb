"""The style that a tool can check: clang-format, ruff, shell syntax, white space."""

import subprocess
import sys
from pathlib import Path

import clang_format
import pytest

PROJECT_ROOT = Path(__file__).resolve().parents[1]
TEXT_SUFFIXES = {".cpp", ".hpp", ".py", ".sh", ".cmake", ".md", ".txt", ".toml", ".json", ".jsonl"}


def project_files() -> list[Path]:
    """Every file that git tracks or would track, as far as it still exists."""
    # safe.directory: whoever runs the tests need not own the checkout
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    result = subprocess.run(
        [*git, "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        pytest.skip(f"git cannot list the project's files: {result.stderr.strip()}")
    paths = (PROJECT_ROOT / name for name in result.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def is_shell_script(path: Path) -> bool:
    if path.suffix == ".sh":
        return True
    with path.open("rb") as stream:
        first = stream.readline()
    return first.startswith(b"#!") and b"bash" in first


def files_of(*suffixes: str) -> list[str]:
    paths = [path for path in project_files() if path.suffix in suffixes]
    assert paths
    return [str(path.relative_to(PROJECT_ROOT)) for path in paths]


def run(command: list[str]) -> None:
    """Runs a checker; its findings are the failure's text."""
    result = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.fail(f"{result.stdout}{result.stderr}", pytrace=False)


def test_cpp_is_formatted() -> None:
    # the pinned version, not whichever the system has: they format differently
    program = Path(clang_format.__file__).parent / "data" / "bin" / "clang-format"
    run([str(program), "--dry-run", "-Werror", *files_of(".cpp", ".hpp")])


@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_python_passes_ruff(arguments: list[str]) -> None:
    run([sys.executable, "-m", "ruff", *arguments, "--force-exclude", *files_of(".py")])


def test_shell_scripts_parse_and_commands_are_executable() -> None:
    scripts = [path for path in project_files() if is_shell_script(path)]
    assert PROJECT_ROOT / "scripts" / "bench" in scripts
    for script in scripts:
        run(["bash", "-n", str(script)])
        is_command = script.parent.name == "scripts" and not script.suffix
        assert not is_command or script.stat().st_mode & 0o100, script


def test_no_tabs_and_no_trailing_spaces() -> None:
    findings = []
    for path in project_files():
        if path.suffix not in TEXT_SUFFIXES and not is_shell_script(path):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if "\t" in line or line != line.rstrip():
                findings.append(f"{path.relative_to(PROJECT_ROOT)}:{number}")
    assert findings == []
