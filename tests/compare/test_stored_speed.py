"""Two files of 5,000 cases are compared in under 5 s."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from stored_samples import document, write

from tools import compare as main

CASES = 5000
LIMIT_S = 5.0
# the test shares its processors with others
SLACK = 3.0


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def test_two_files_of_many_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counters = {f"counter_{i}": 1.5 * i for i in range(12)}
    paths = []
    for side, factor in (("base", 1.0), ("new", 1.02)):
        times = {
            f"ffn/forward_backward/baseline/custom/f32/batch:{1 + i}/seq:128": factor * 1e-3
            for i in range(CASES)
        }
        found = document(times, counters=dict.fromkeys(times, counters))
        paths.append(str(write(tmp_path / f"{side}.json", found)))
    before = cpu_seconds()
    assert main([*paths, "--output", str(tmp_path / "out")]) == 0
    taken = cpu_seconds() - before
    assert f"{CASES} no verdict; exit status 0" in capsys.readouterr().out
    assert taken < SLACK * LIMIT_S
