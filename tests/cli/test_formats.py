"""--benchmark_format=csv, jsonl and md of a whole run: the first two equal what scripts/report
makes of the same run's result file, column by column."""

import csv
import io
import json
from pathlib import Path

import pytest
from cli_program import QUICK, SMALL_MODEL, Program

import tools
from built_programs import Json

# two cases that are measured, of which one has no GEMMs, two that are skipped, and two peaks
CASES = [
    *(*SMALL_MODEL, "--components=ffn,rms_norm,peak", "--passes=forward", "--dtypes=f32"),
    *("--batch=2,400", "--seq=32", "--memory-limit=1MiB"),
    r"--benchmark_filter=^(ffn|rms_norm|peak/gemm/f32$|peak/bandwidth)",
]


@pytest.fixture(scope="module")
def program(bench_program: Path) -> Program:
    return Program(bench_program)


@pytest.fixture(scope="module")
def measured(program: Program, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a run that shows what is in a journal."""
    journal = tmp_path_factory.mktemp("formats") / "journal.jsonl"
    options = [*QUICK, *CASES, f"--journal={journal}"]
    completed = program.run(*options)
    assert completed.returncode == 0, completed.stderr
    return [*options, "--resume"]


def same(here: object, there: object) -> bool:
    """Whether two values are equal; Python sums some figures in another order."""
    if isinstance(here, float) and isinstance(there, float):
        return here == pytest.approx(there, rel=1e-12)
    return here == there


def values(row: dict[str, str]) -> Json:
    """Numbers as such."""
    found = {}
    for name, text in row.items():
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = text
    return found


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_output_equals_what_report_makes_of_the_file(
    program: Program,
    measured: list[str],
    tmp_path: Path,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "results.json"
    completed, result = program.measure(out, *measured, f"--benchmark_format={kind}")
    assert tools.report([out, f"--format={kind}"]) == 0
    texts = (completed.stdout, capsys.readouterr().out)
    if kind == "csv":
        ours, theirs = ([*map(values, csv.DictReader(io.StringIO(text)))] for text in texts)
    else:
        ours, theirs = ([*map(json.loads, text.splitlines())] for text in texts)
    assert [row["case"] for row in ours] == list(
        dict.fromkeys(row["run_name"] for row in result["benchmarks"])
    )
    for here, there in zip(ours, theirs, strict=True):
        assert list(here) == list(there)
        differing = {k: (v, there[k]) for k, v in here.items() if not same(v, there[k])}
        assert differing == {}, here["case"]
    statuses = {row["status"] for row in ours}
    assert statuses == {"measured", "skipped"}
    (ffn,) = (row for row in ours if row["component"] == "ffn" and row["status"] == "measured")
    median = next(
        row
        for row in result["benchmarks"]
        if row["run_name"] == ffn["case"] and row.get("aggregate_name") == "median"
    )
    # every counter of the file
    for name, value in median.items():
        assert name not in ffn or ffn[name] == value, name
    assert ffn["TFLOPS"] == median["TFLOPS"] and ffn["time_ms"] == median["real_time"]


def test_markdown_has_what_varies_the_build_and_the_reason(
    program: Program, measured: list[str]
) -> None:
    completed = program.run(*measured, "--benchmark_format=md")
    assert completed.returncode == 0, completed.stderr
    header, _, *rows = completed.stdout.split("\n\n")[0].splitlines()
    assert header.startswith("| component | batch | time |")
    assert [row.split(" | ")[1] for row in rows] == ["2", "400"] * 2
    assert "\nAll rows: pass forward, size custom, seq 32, dtype f32, variant " in completed.stdout
    assert "| peak/gemm/f32 | " in completed.stdout and "| peak/bandwidth | " in completed.stdout
    assert "\nBuild: commit " in completed.stdout and ", 1 threads, " in completed.stdout
    assert "\nSkipped:\n\n- " in completed.stdout and "exceeds 1.00 MiB" in completed.stdout
