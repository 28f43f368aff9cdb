"""A run that is killed or interrupted, and what --resume makes of its journal."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_program import (
    RUN,
    SMALL_MODEL,
    FinishedRun,
    Program,
    WithPeaks,
    assert_complete,
    entries_by_case,
    not_measured,
    read_journal,
    write_journal,
)
from jsonschema import Draft202012Validator

from built_programs import TIMEOUT_S, Completed, Json, read_json, wait_until
from tinyllama_tools.data.machine import SHARES

PARTS = [*SMALL_MODEL, "--batch=2,3", "--seq=8", "--components=ffn,loss,rms_norm"]
# 18 cases of more than half a second: long enough to be interrupted in the midst of them, even
# where a busy machine brings the signal some seconds late
SLOW = ["--benchmark_min_time=0.25s", "--benchmark_repetitions=2"]


def start(program: Program, journal: Path, *options: str, lines: int) -> subprocess.Popen[str]:
    """A slow run of whose journal so many lines are written."""
    process = program.start(*PARTS, *SLOW, *options, f"--journal={journal}")
    wait_until(lambda: len(read_journal(journal)) >= lines or process.poll() is not None)
    return process


def resume(
    program: Program, journal: Path, status: int = 0, choice: list[str] | None = None
) -> tuple[Completed, Json]:
    """The same run once more from its journal."""
    options = [*(choice or [*PARTS, *RUN]), f"--journal={journal}", "--resume"]
    return program.measure(journal.parent / "resumed.json", *options, status=status)


def assert_kept(result: Json, journaled: list[Json]) -> None:
    """All but what follows from the peaks, or from other rows, in the end."""
    cases = entries_by_case(result)
    late = {*SHARES, "above_peak", "speedup"}
    for line in journaled:
        found = [{k: v for k, v in e.items() if k not in late} for e in cases[line["case"]]]
        assert found == line["entries"]


def measured_now(completed: Completed) -> list[str]:
    return re.findall(r"^\[\d+/\d+\] (\S+)", completed.stderr, re.MULTILINE)


class KilledRun(NamedTuple):
    text: str
    lines: list[Json]


@pytest.fixture(scope="module")
def killed_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> KilledRun:
    """A run that got kill -9 when a few cases were in its journal."""
    folder = tmp_path_factory.mktemp("killed")
    journal, out = folder / "journal.jsonl", folder / "out.json"
    process = start(program, journal, *RUN, f"--benchmark_out={out}", lines=4)
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGKILL, "ended before it was killed"
    assert not out.exists()
    lines = read_journal(journal)
    assert 4 <= len(lines) <= len(program.names(*PARTS))
    return KilledRun(journal.read_text(encoding="utf-8"), lines)


@pytest.mark.parametrize("left", [None, 40], ids=["whole", "cut short"])
def test_killed_run_is_continued(
    killed_run: KilledRun,
    program: Program,
    tmp_path: Path,
    validator: Draft202012Validator,
    left: int | None,
) -> None:
    """A last line that was cut short is measured again."""
    *whole, last = killed_run.text.splitlines(keepends=True)
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(whole) + last[:left], encoding="utf-8")
    header, *journaled = killed_run.lines[: None if left is None else -1]
    completed, result = resume(program, journal)
    assert validator.is_valid(result)
    names = program.names(*PARTS)
    assert_complete(result, names)
    assert_kept(result, journaled)
    done = {line["case"] for line in journaled}
    assert measured_now(completed) == [name for name in names if name not in done]
    assert "measured peak" not in completed.stderr
    before = header["header"]["peaks"]["measured"]
    for name, peak in result["context"]["peaks"]["measured"].items():
        unit = "bytes_per_second" if "bandwidth" in name else "flops_per_second"
        assert peak[unit] >= before[name][unit] > 0, name
    assert sorted(line["case"] for line in read_journal(journal)[1:]) == sorted(names)


def test_complete_run_measures_nothing_again(
    smoke_run: FinishedRun, copy_of_journal: Path, program: Program
) -> None:
    """And a peak that the first run raised on its way stays raised."""
    before = copy_of_journal.read_bytes()
    completed, result = resume(program, copy_of_journal, choice=smoke_run.arguments)
    assert measured_now(completed) == []
    assert result["benchmarks"] == smoke_run.result["benchmarks"]
    first = smoke_run.result["context"]["peaks"]["measured"]
    assert result["context"]["peaks"]["measured"] == first
    assert copy_of_journal.read_bytes() == before
    # the tables are the same, as they come from the same entries; sums of parts are measured again
    shown = [run.stdout.partition("sum of parts")[0] for run in (completed, smoke_run.completed)]
    assert shown[0] == shown[1]


def test_cases_that_are_not_asked_for_again_stay_in_the_journal_alone(
    smoke_run: FinishedRun,
    copy_of_journal: Path,
    program: Program,
    validator: Draft202012Validator,
) -> None:
    before = copy_of_journal.read_bytes()
    fewer = [option for option in smoke_run.arguments if not option.startswith("--components")]
    _, result = resume(program, copy_of_journal, choice=[*fewer, "--components=ffn"])
    assert validator.is_valid(result)
    assert {name.partition("/")[0] for name in entries_by_case(result)} == {"ffn"}
    assert copy_of_journal.read_bytes() == before


def test_failure_in_the_journal_still_counts(
    killed_run: KilledRun, program: Program, tmp_path: Path
) -> None:
    header, failed = json.loads(json.dumps(killed_run.lines[:2]))
    reason = {"error_occurred": True, "error_message": "wrong result"}
    failed["entries"] = [not_measured(failed["entries"][0], **reason)]
    journal = write_journal(tmp_path / "journal.jsonl", header, failed)
    completed, result = resume(program, journal, status=1)
    assert_kept(result, [failed])
    assert f"FAILED\n  {failed['case']}: wrong result\n" in completed.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE])
def test_interrupted_run_writes_what_it_has(
    program: Program,
    tmp_path: Path,
    with_peaks: WithPeaks,
    validator: Draft202012Validator,
    number: signal.Signals,
) -> None:
    out, journal = tmp_path / "out.json", tmp_path / "journal.jsonl"
    *options, _, resuming = with_peaks(journal.name)
    process = start(program, journal, *options, resuming, f"--benchmark_out={out}", lines=3)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, stderr
    result = read_json(out)
    assert validator.is_valid(result)
    names = program.names(*PARTS)
    done = list(entries_by_case(result))
    assert 2 <= len(done) < len(names)
    assert done == names[: len(done)]
    assert f"{len(done)} of {len(names)} cases done" in stderr.splitlines()[-1]
    assert f"--resume --journal {journal}" in stderr.splitlines()[-1]
    assert "samples/s" in stdout
    _, whole = resume(program, journal)
    assert_complete(whole, names)
    assert whole["benchmarks"][: len(result["benchmarks"])] == result["benchmarks"]
