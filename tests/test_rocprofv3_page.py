"""docs/rocprofv3.md: the ranges it names, and the programs that read a profiler's files."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from built_programs import ON_CPU, PROJECT_ROOT, SMALL_OPTIONS, Program, built_program

PAGE = (PROJECT_ROOT / "docs/rocprofv3.md").read_text(encoding="utf-8")
OPTIONS = (
    "--batch-size=2 --seq-len=8 --num-steps=8 --eval-interval=6 --eval-iters=1 "
    "--enable-pytorch-profiler --profile-steps=3 --emit-ranges"
)


def test_the_ranges_are_those_of_the_program(tmp_path: Path) -> None:
    program = Program(built_program("benchmarks/tiny_llama_train"))
    options = [*ON_CPU, *SMALL_OPTIONS, *OPTIONS.split(), f"--profile-dir={tmp_path}"]
    done = program.run(*options)
    if "without roctx, NVTX and ITT" in done.stderr:
        pytest.skip("this libtorch has no ranges to emit")
    assert done.returncode == 0, done.stderr
    trace = json.loads((tmp_path / "trace_step_5_8.json").read_text(encoding="utf-8"))
    ranges = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    names = {e["name"] for e in ranges if not e["name"].startswith("ProfilerStep#")}
    table = PAGE.split("| ranges | around |")[1].split("\n\n")[0]
    assert names == set(re.findall(r"`([^`]+)`", table))


# As rocprofv3 writes them: four steps of 100 ns, two kernels of 30 ns in each.
STARTS = (0, 100, 200, 300)
KERNELS = [(f"gemm_{n}", s + 40 * n, s + 40 * n + 30) for s in STARTS for n in range(2)]
MARKS = [(name, s, s + 5) for s in STARTS for name in ("data_loading", "forward")]
FILES: dict[str, Sequence[Sequence[object]]] = {
    "tiny_kernel_stats.csv": [
        ("Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage"),
        *(("gemm_0", 4, 120, 30.0, 40.0), ("gemm_1", 4, 180, 45.0, 60.0)),
    ],
    "tiny_kernel_trace.csv": [("Kernel_Name", "Start_Timestamp", "End_Timestamp"), *KERNELS],
    "tiny_marker_api_trace.csv": [("Function", "Start_Timestamp", "End_Timestamp"), *MARKS],
}


def test_the_programs_read_the_files(tmp_path: Path) -> None:
    (tmp_path / "rocprof").mkdir()
    for name, rows in FILES.items():
        with (tmp_path / "rocprof" / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_NONNUMERIC).writerows(rows)
    said = []
    for text in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        command = [sys.executable, "-c", text]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        said += done.stdout.splitlines()
    assert [line.split() for line in said[:2]] == [
        ["60.0", "%", "4", "calls", "gemm_1"],
        ["40.0", "%", "4", "calls", "gemm_0"],
    ]
    assert said[2:] == ["2 kernels a step, GPU busy 60 % of the time"]
