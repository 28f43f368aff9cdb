"""No line of a command's help is wider than 100 columns."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = [
    "bench",
    "test",
    "compare",
    "report",
    "study",
    "scaling",
    "profile",
    "exercise",
    "ablation",
    "peers",
    "prove",
    "golden",
]
PROGRAMS = ["tiny_llama_bench", "tiny_llama_train", "tiny_llama_scaling"]


def help_of(*command: str) -> str:
    done = subprocess.run(
        [*command, "--help"],
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def too_wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 100]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_of_a_script(script: str, project_root: Path) -> None:
    text = help_of("bash", str(project_root / "scripts" / script))
    # what the programs say stands below that of scripts/bench
    assert too_wide(text) == []
    assert "Exit status" in text or script == "peers"


@pytest.mark.parametrize("command", ["run", "calibrate", "history"])
def test_help_of_comparisons(command: str, project_root: Path) -> None:
    assert too_wide(help_of("bash", str(project_root / "scripts/compare"), command)) == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_of_a_program(program: str, bench_program: Path) -> None:
    assert too_wide(help_of(str(bench_program.with_name(program)))) == []
