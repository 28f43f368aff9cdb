"""Two variants of one file, and figures of a whole comparison."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tools import compare

CONTEXT = {"schema_version": 3, "threads": 1, "device": {"name": "CPU", "backend": "cpu"}}
# milliseconds of baseline and of optimized
TIMES = {"ffn": (4.0, 2.0), "loss": (3.0, 1.5), "block": (8.0, 2.0), "embedding": (1.0, None)}


@pytest.fixture
def result(tmp_path: Path) -> Path:
    def entry(component: str, variant: str, time: float) -> dict[str, object]:
        name = f"{component}/forward/{variant}/tiny/f32/batch:2/seq:8/manual_time"
        times = {"real_time": time, "cpu_time": time, "time_unit": "ms", "iterations": 5}
        kind = {"run_type": "iteration", "repetition_index": 0}
        return {"name": name, "run_name": name, **kind, **times, "allocations": 3}

    rows = [
        entry(component, variant, time)
        for component, pair in TIMES.items()
        for variant, time in zip(("baseline", "optimized"), pair, strict=True)
        if time is not None
    ]
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"context": CONTEXT, "benchmarks": rows}), encoding="utf-8")
    return path


def test_variants_of_one_file_are_compared(
    result: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--variants", "baseline,optimized", str(result), "--output", str(tmp_path / "out")]
    assert compare(options) == 0
    text = capsys.readouterr().out
    # what only one of them has is not missing
    assert "embedding" not in text
    mean = math.prod(TIMES[name][1] / TIMES[name][0] for name in ("ffn", "loss", "block")) ** (
        1 / 3
    )
    assert f"geometric mean of new / base over 3 cases: {mean:.4f} (-60.3 %)" in text
    assert "No verdict on times: 3 no verdict (--strict makes that exit status 3)." in text
    found = json.loads((tmp_path / "out/comparison.json").read_text(encoding="utf-8"))
    ratios = {case["name"].split("/")[0]: case["ratio"] for case in found["cases"]}
    assert ratios == {"ffn": 0.5, "loss": 0.5, "block": 0.25}
    assert found["geometric_mean_ratio"] == pytest.approx(mean)
    assert "geometric mean" in (tmp_path / "out/comparison.md").read_text(encoding="utf-8")
    assert compare([*options, "--strict"]) == 3


@pytest.mark.parametrize("ending", ["seq:8$", "seq:8/manual_time$"])
def test_names_end_with_and_without_what_google_benchmark_appends(
    result: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    other = result.with_name("other.json")
    other.write_text(result.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert compare([str(result), str(other), "--filter", f"^ffn/.*{ending}"]) == 0
    assert "2 no verdict" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--variants", "baseline"], "'baseline': must be two variants"),
        (["--variants", "a,b,c"], "must be two variants"),
        (["--variants", "baseline,fused"], "has no case of 'fused', but of: baseline, optimized"),
        (["--variants", "baseline,optimized", "--base", "x.json"], "takes files that hold both"),
    ],
)
def test_bad_variants_are_refused(
    result: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    try:
        status = compare([str(result), *options])
    except SystemExit as error:
        status = int(error.code or 0)
    assert status == 2
    assert said in capsys.readouterr().err
