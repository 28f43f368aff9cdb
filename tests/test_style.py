"""The style that a tool can check: clang-format, ruff, shell syntax, white space, and the layers of
the harness."""

import re
import subprocess
import sys
from pathlib import Path

import clang_format
import pytest

from built_programs import PROJECT_ROOT

TEXT_SUFFIXES = {".cpp", ".hpp", ".py", ".sh", ".cmake", ".md", ".txt", ".toml", ".json", ".jsonl"}


def run(*command: str) -> str:
    """What a checker prints; its findings are the failure's text."""
    result = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.fail(f"{result.stdout}{result.stderr}", pytrace=False)
    return result.stdout


def project_files(*suffixes: str) -> list[Path]:
    """Every file that git tracks or would track, as far as it still exists."""
    # safe.directory: whoever runs the tests need not own the checkout
    git = ("git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others")
    paths = [PROJECT_ROOT / name for name in run(*git, "--exclude-standard").split("\0") if name]
    found = [path for path in paths if path.is_file() and (path.suffix in suffixes or not suffixes)]
    assert found
    return sorted(found)


def is_shell_script(path: Path) -> bool:
    with path.open("rb") as stream:
        first = stream.readline()
    return path.suffix == ".sh" or (first.startswith(b"#!") and b"bash" in first)


def test_cpp_is_formatted() -> None:
    # the pinned version, not whichever the system has: they format differently
    program = Path(clang_format.__file__).parent / "data/bin/clang-format"
    run(str(program), "--dry-run", "-Werror", *map(str, project_files(".cpp", ".hpp")))


@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_python_passes_ruff(arguments: list[str]) -> None:
    files = map(str, project_files(".py"))
    run(sys.executable, "-m", "ruff", *arguments, "--force-exclude", *files)


def test_shell_scripts_parse_and_commands_are_executable() -> None:
    scripts = [path for path in project_files() if is_shell_script(path)]
    assert PROJECT_ROOT / "scripts/bench" in scripts
    for script in scripts:
        run("bash", "-n", str(script))
        is_command = script.parent.name in ("scripts", "dev") and not script.suffix
        assert not is_command or script.stat().st_mode & 0o100, script


# Layers of the harness, from the bottom; a file includes only what stands before it.
LAYERS = (
    "counters changed_inputs case rank_on_meta recorded_operators replay_work rows",
    "options benchmark_flags plan",
    "failure timing metering memory_check",
    "rounding parity_gate gate_run",
    "case_guard prepared_case",
    "case_counters run_context journal",
    "trace runner interleaved sum_of_parts tables",
    "formats find_limit dry_trace replay suite serve",
    "bench_program",
)


def test_harness_includes_only_what_is_below() -> None:
    folder = PROJECT_ROOT / "benchmarks/harness"
    files = [name for layer in LAYERS for name in layer.split()]
    below = {name: set(files[: i + 1]) for i, name in enumerate(files)}
    sources = [p for p in folder.iterdir() if p.suffix in (".cpp", ".hpp")]
    product = [p for p in sources if not re.search("_test$|^testing$", p.stem)]
    assert {path.stem for path in product} == set(files)
    upwards = [
        f"{path.name} includes {name}.hpp"
        for path in product
        for name in re.findall(r'"benchmarks/harness/(\w+)\.hpp"', path.read_text("utf-8"))
        if name not in below[path.stem]
    ]
    assert upwards == []


def test_no_tabs_and_no_trailing_spaces() -> None:
    texts = [p for p in project_files() if p.suffix in TEXT_SUFFIXES or is_shell_script(p)]
    command = ["grep", "--with-filename", "--line-number", "--perl-regexp", r"\t|\s$", *texts]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    # as it ends where it finds nothing
    assert (result.returncode, result.stdout + result.stderr) == (1, "")
