"""tiny_llama_bench has nothing of the slowdown that TINY_LLAMA_WITH_SLOWDOWN adds beside it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

VARIABLE = "TINY_LLAMA_SLOWDOWN"
ONE_CASE = ["--device", "cpu", "--components", "ffn", "--passes", "forward"]


def run_with(program: Path, value: str, option: str) -> str:
    """What the program prints when the variable has this value and its input is empty."""
    done = subprocess.run(
        [program, *ONE_CASE, option],
        env={**os.environ, VARIABLE: value},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_option_is_off_by_default(project_root: Path) -> None:
    lines = (project_root / "CMakeLists.txt").read_text(encoding="utf-8").splitlines()
    [option] = [line for line in lines if line.startswith("option(TINY_LLAMA_WITH_SLOWDOWN ")]
    assert option.endswith(" OFF)")


def test_the_variable_is_not_in_the_program(bench_program: Path) -> None:
    content = bench_program.read_bytes()
    assert VARIABLE.encode() not in content
    # Symbols of the namespace, were the program not stripped.
    assert b"8slowdown" not in content
    # The search itself works: this the program does contain.
    assert b"rms_norm" in content


def test_the_variable_is_not_read(bench_program: Path) -> None:
    # A build that reads it refuses this value.
    cases = run_with(bench_program, "no such part", "--list").splitlines()
    assert cases[0].startswith("ffn/forward/baseline/")


def test_the_variable_is_no_setting(bench_program: Path) -> None:
    # A build that reads it says so in the context.
    first_line = run_with(bench_program, "ffn:10", "--turns").splitlines()[0]
    settings = json.loads(first_line)["context"]["settings"]
    assert "torch_threads" in settings
    assert f"env.{VARIABLE}" not in settings
