"""A run that is killed or interrupted, and what --resume makes of its journal."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_program import (
    QUICK,
    RUN,
    SMALL_MODEL,
    TIMEOUT_S,
    Completed,
    FinishedRun,
    Json,
    Program,
    assert_complete,
    entries_by_case,
    read_journal,
    read_result,
    wait_until,
)
from jsonschema import Draft202012Validator

from tinyllama_tools.data.machine import SHARES

WithPeaks = Callable[..., list[str]]
PARTS = [*SMALL_MODEL, "--batch=2,3", "--seq=8", "--components=ffn,loss,rms_norm"]
# 18 cases of more than half a second: long enough to be interrupted in the midst of them, even
# where a busy machine brings the signal some seconds late
SLOW = ["--benchmark_min_time=0.25s", "--benchmark_repetitions=2"]


def resume(program: Program, journal: Path, out: Path) -> Completed:
    files = [f"--journal={journal}", "--resume", f"--benchmark_out={out}"]
    completed = program.run(*PARTS, *RUN, *QUICK, *files)
    assert completed.returncode == 0, completed.stderr
    return completed


def assert_kept(result: Json, journaled: list[Json]) -> None:
    """All but what follows from the peaks, or from other rows, in the end."""
    cases = entries_by_case(result)
    late = {*SHARES, "above_peak", "speedup"}
    for line in journaled:
        entries = [
            {key: value for key, value in entry.items() if key not in late}
            for entry in cases[line["case"]]
        ]
        assert entries == line["entries"]


def measured_now(completed: Completed) -> list[str]:
    return re.findall(r"^\[\d+/\d+\] (\S+)", completed.stderr, re.MULTILINE)


@dataclass(frozen=True)
class KilledRun:
    journal: Path
    lines: list[Json]


@pytest.fixture(scope="module")
def killed_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> KilledRun:
    """A run that got kill -9 when a few cases were in its journal."""
    folder = tmp_path_factory.mktemp("killed")
    journal, out = folder / "journal.jsonl", folder / "out.json"
    files = [f"--journal={journal}", f"--benchmark_out={out}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = program.start(*PARTS, *RUN, *SLOW, *files, **quiet)
    wait_until(lambda: len(read_journal(journal)) >= 4 or process.poll() is not None)
    process.kill()
    assert process.wait(timeout=TIMEOUT_S) == -signal.SIGKILL, "ended before it was killed"
    assert not out.exists()
    lines = read_journal(journal)
    assert 4 <= len(lines) <= len(program.names(*PARTS))
    return KilledRun(journal, lines)


def copied(killed: KilledRun, folder: Path, text: str = "") -> Path:
    journal = folder / "journal.jsonl"
    journal.write_text(killed.journal.read_text(encoding="utf-8") + text, encoding="utf-8")
    return journal


def test_journal_starts_with_the_context_and_the_peaks(killed_run: KilledRun) -> None:
    header = killed_run.lines[0]["header"]
    assert header["seed"] == 42
    assert header["peaks"]["measured"]["f32"]["flops_per_second"] > 0
    for line in killed_run.lines[1:]:
        assert len(line["entries"]) == 2 + 4


def test_killed_run_is_continued(
    killed_run: KilledRun, program: Program, tmp_path: Path, validator: Draft202012Validator
) -> None:
    journal, out = copied(killed_run, tmp_path), tmp_path / "out.json"
    completed = resume(program, journal, out)
    result = read_result(out)
    assert validator.is_valid(result)
    names = program.names(*PARTS)
    assert_complete(result, names, repetitions=2)
    journaled = killed_run.lines[1:]
    assert_kept(result, journaled)
    assert f"{len(journaled)} cases are in {journal} already" in completed.stderr
    done = {line["case"] for line in journaled}
    assert measured_now(completed) == [name for name in names if name not in done]
    assert "measured peak" not in completed.stderr
    before = killed_run.lines[0]["header"]["peaks"]["measured"]
    for name, peak in result["context"]["peaks"]["measured"].items():
        unit = "bytes_per_second" if "bandwidth" in name else "flops_per_second"
        assert peak[unit] >= before[name][unit], name
    assert sorted(line["case"] for line in read_journal(journal)[1:]) == sorted(names)


@pytest.mark.parametrize("left", [1, 40], ids=["a byte", "some bytes"])
def test_last_line_that_was_cut_short_is_measured_again(
    killed_run: KilledRun, program: Program, tmp_path: Path, left: int
) -> None:
    last = json.dumps(killed_run.lines[-1])
    journal, out = copied(killed_run, tmp_path), tmp_path / "out.json"
    whole = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    journal.write_text("".join(whole[:-1]) + last[:left], encoding="utf-8")
    completed = resume(program, journal, out)
    result = read_result(out)
    assert_complete(result, program.names(*PARTS), repetitions=2)
    assert_kept(result, killed_run.lines[1:-1])
    assert killed_run.lines[-1]["case"] in measured_now(completed)
    assert len(read_journal(journal)) == 1 + len(program.names(*PARTS))


def test_complete_run_measures_nothing_again(
    smoke_run: FinishedRun, copy_of_journal: Path, program: Program, tmp_path: Path
) -> None:
    before = copy_of_journal.read_bytes()
    out = tmp_path / "out.json"
    files = [f"--journal={copy_of_journal}", "--resume", f"--benchmark_out={out}"]
    completed = program.run(*smoke_run.arguments, *QUICK, *files)
    assert completed.returncode == 0, completed.stderr
    assert measured_now(completed) == []
    assert read_result(out)["benchmarks"] == smoke_run.result["benchmarks"]
    assert copy_of_journal.read_bytes() == before
    # the tables are the same, as they come from the same entries; sums of parts are measured again
    tables, first_tables = (
        text.partition("sum of parts")[0] for text in (completed.stdout, smoke_run.completed.stdout)
    )
    assert tables == first_tables


def test_denominators_of_a_resumed_run_are_those_of_the_first(
    smoke_run: FinishedRun, copy_of_journal: Path, program: Program, tmp_path: Path
) -> None:
    """A peak that the first run raised on its way stays raised."""
    out = tmp_path / "out.json"
    files = [f"--journal={copy_of_journal}", "--resume", f"--benchmark_out={out}"]
    completed = program.run(*smoke_run.arguments, *QUICK, *files)
    assert completed.returncode == 0, completed.stderr
    first = smoke_run.result["context"]["peaks"]["measured"]
    assert read_result(out)["context"]["peaks"]["measured"] == first


def test_failure_in_the_journal_still_counts(
    killed_run: KilledRun, program: Program, tmp_path: Path
) -> None:
    journal, out = tmp_path / "journal.jsonl", tmp_path / "out.json"
    failed = json.loads(json.dumps(killed_run.lines[1]))
    kept = "name family_index per_family_instance_index run_name run_type repetitions threads"
    entry = {key: failed["entries"][0][key] for key in [*kept.split(), "repetition_index"]}
    times = {"iterations": 0, "real_time": 0.0, "cpu_time": 0.0, "time_unit": "ms"}
    failed["entries"] = [entry | times | {"error_occurred": True, "error_message": "wrong result"}]
    lines = [killed_run.lines[0], failed]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    files = [f"--journal={journal}", "--resume", f"--benchmark_out={out}"]
    completed = program.run(*PARTS, *RUN, *QUICK, *files)
    assert completed.returncode == 1, completed.stderr
    assert_kept(read_result(out), [failed])
    assert f"FAILED\n  {failed['case']}: wrong result\n" in completed.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_writes_what_it_has(
    program: Program,
    tmp_path: Path,
    with_peaks: WithPeaks,
    validator: Draft202012Validator,
    number: signal.Signals,
) -> None:
    out, journal = tmp_path / "out.json", tmp_path / "journal.jsonl"
    options = [*PARTS, *with_peaks(journal.name), *SLOW, f"--benchmark_out={out}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = program.start(*options, **pipes)
    wait_until(lambda: len(read_journal(journal)) >= 3 or process.poll() is not None)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, stderr
    result = read_result(out)
    assert validator.is_valid(result)
    names = program.names(*PARTS)
    done = list(entries_by_case(result))
    assert 2 <= len(done) < len(names)
    assert done == names[: len(done)]
    last = stderr.splitlines()[-1]
    assert last == (
        f"interrupted: {len(done)} of {len(names)} cases done; "
        f"continue with --resume --journal {journal}"
    )
    assert "samples/s" in stdout
    resume(program, journal, tmp_path / "whole.json")
    whole = read_result(tmp_path / "whole.json")
    assert_complete(whole, names, repetitions=2)
    assert whole["benchmarks"][: len(result["benchmarks"])] == result["benchmarks"]
