"""kernel_benchmark: what it measures, and its answer to bad options. Speed is not looked at."""

import json
import os
import subprocess
from pathlib import Path

import pytest

TWO_WAYS = ("rms_norm", "add_rms_norm", "rotate", "attention", "swiglu", "swiglu_merged")
KERNELS = {(kernel, step) for kernel in TWO_WAYS for step in ("forward", "backward")}
KERNELS |= {("cross_entropy", "forward_backward"), ("adamw", "update")}


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_every_kernel_stands_beside_the_library(kernel_benchmark: Path, tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    completed = run(kernel_benchmark, "--quick", "--json", str(file))
    assert completed.returncode == 0, completed.stderr
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    for dtype in ("f32", "bf16"):
        assert {(row["kernel"], row["pass"]) for row in rows if row["dtype"] == dtype} == KERNELS
    for row in rows:
        own, *rivals = row["contenders"]
        assert own["name"] == "own"
        assert rivals, row
        assert all(one["seconds"] > 0 for one in row["contenders"])
        assert row["bytes"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--unknown"],
        ["--quick", "--json", "/nowhere/kernels.json"],
        ["--quick", "--filter", "lu_decomposition"],
    ],
    ids=["option", "file", "filter"],
)
def test_what_cannot_be_done_exits_with_2(kernel_benchmark: Path, arguments: list[str]) -> None:
    completed = run(kernel_benchmark, *arguments)
    assert completed.returncode == 2
    assert arguments[-1] in completed.stderr
