"""A run that is killed or interrupted, and what --resume makes of its journal; and --serve, which
opens, times and closes cases as it is asked."""

import copy
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cli_program import (
    JOURNAL,
    OUT,
    SMALL,
    SMALL_MODEL,
    SMOKE,
    Program,
    assert_complete,
    entries_by_case,
    not_measured,
    read_journal,
    write_journal,
)
from jsonschema import Draft202012Validator as Validator

from built_programs import (
    TIMEOUT_S,
    Completed,
    FinishedRun,
    Json,
    finish,
    read_json,
    strict_json,
    wait_until,
)
from tinyllama_tools.data.machine import SHARES

PARTS = [*SMALL_MODEL, "--batch=2,3", "--seq=8", "--components=ffn,loss,rms_norm"]
# 18 cases of more than half a second: long enough to be interrupted in the midst of them, even
# where a busy machine brings the signal some seconds late
SLOW = ["--benchmark_min_time=0.25s", "--benchmark_repetitions=2"]


def resume(
    program: Program, folder: Path, choice: list[str], status: int = 0
) -> tuple[Completed, Json]:
    """The same run once more from its journal."""
    journal = [f"--journal={folder / JOURNAL}", "--resume"]
    return program.measure(folder / "resumed.json", *choice, *journal, status=status)


def measured_now(completed: Completed) -> list[str]:
    return re.findall(r"^\[\d+/\d+\] (\S+)", completed.stderr, re.MULTILINE)


def test_what_a_journal_holds_is_kept_and_the_rest_measured(
    smoke_run: FinishedRun, program: Program, tmp_path: Path, validator: Validator
) -> None:
    """A failure counts still; of a last line that was cut short the case is measured again.
    tests/campaign kills such runs at any moment."""
    choice = [*SMALL, "--components=ffn,loss"]
    names, (header, *lines) = program.names(*choice), read_journal(smoke_run.folder / JOURNAL)
    journaled = [copy.deepcopy(line) for line in lines if line["case"] in names[:4]]
    failed = journaled[1]
    reason = {"error_occurred": True, "error_message": "wrong result"}
    failed["entries"] = [not_measured(failed["entries"][0], **reason)]
    journal = write_journal(tmp_path / JOURNAL, header, *journaled)
    *whole, last = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    journal.write_text("".join(whole) + last[:40], encoding="utf-8")
    completed, result = resume(program, tmp_path, choice, status=1)
    assert validator.is_valid(result)
    assert f"FAILED\n  {failed['case']}: wrong result\n" in completed.stdout
    assert measured_now(completed) == names[3:]
    assert "measured peak" not in completed.stderr
    cases = entries_by_case(result)
    assert list(cases) == [line["case"] for line in read_journal(journal)[1:]] == names
    # but what follows from the peaks, or from other rows, in the end
    late = {*SHARES, "above_peak", "speedup"}
    for line in journaled[:3]:
        found = [{k: v for k, v in e.items() if k not in late} for e in cases[line["case"]]]
        assert found == line["entries"]
    before = header["header"]["peaks"]["measured"]
    for name, peak in result["context"]["peaks"]["measured"].items():
        unit = "bytes_per_second" if "bandwidth" in name else "flops_per_second"
        assert peak[unit] >= before[name][unit] > 0, name


def test_a_complete_run_measures_nothing_again(
    smoke_run: FinishedRun, program: Program, tmp_path: Path
) -> None:
    """And its tables are the same, but for sums of parts, which are measured. Cases that are not
    asked for again stay in the journal alone."""
    journal = Path(shutil.copy(smoke_run.folder / JOURNAL, tmp_path))
    completed, result = resume(program, tmp_path, SMOKE)
    assert measured_now(completed) == []
    assert result["benchmarks"] == smoke_run.result["benchmarks"]
    tables = [run.stdout.partition("sum of parts")[0] for run in (completed, smoke_run.completed)]
    assert tables[0] == tables[1]
    _, result = resume(program, tmp_path, [*SMOKE, "--components=ffn"])
    assert {name.partition("/")[0] for name in entries_by_case(result)} == {"ffn"}
    assert journal.read_bytes() == (smoke_run.folder / JOURNAL).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE])
def test_an_interrupted_run_writes_what_it_has(
    program: Program,
    tmp_path: Path,
    with_peaks: list[str],
    validator: Validator,
    number: signal.Signals,
) -> None:
    journal, out = tmp_path / JOURNAL, tmp_path / OUT
    process = program.start(*PARTS, *SLOW, *with_peaks, f"--benchmark_out={out}")
    wait_until(lambda: len(read_journal(journal)) > 2 or process.poll() is not None)
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
    _, whole = resume(program, tmp_path, PARTS)
    assert_complete(whole, names)
    assert whole["benchmarks"][: len(result["benchmarks"])] == result["benchmarks"]


def test_a_second_interrupt_ends_at_once(program: Program, with_peaks: list[str]) -> None:
    """On a terminal. The first lets the case that is running finish, which here takes minutes."""
    endless = ["--benchmark_min_time=20000000x", "--max-seconds-per-case=10000"]
    ours, theirs = pty.openpty()
    options = [*SMALL, "--components=ffn", *with_peaks, *endless]
    process = program.start(*options, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    try:
        written = b""
        while b"[1/3]" not in written:
            written += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=TIMEOUT_S) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()
        os.close(ours)


# ---- --serve: requests and answers, a line each

SERVED = "ffn/forward/baseline/custom/f32/batch:2/seq:8"
FIXED_COUNTERS = ["peak_memory_MiB", "allocations", "operators", "model_flops", "hardware_flops"]
Process = subprocess.Popen[str]


def send(process: Process, action: str, case: str, **more: object) -> None:
    assert process.stdin
    print(json.dumps({"do": action, "case": case, **more}), file=process.stdin, flush=True)


def answer(process: Process) -> Json:
    assert process.stdout
    return strict_json(process.stdout.readline())


def resident(program: Program, *arguments: str) -> tuple[Process, Json]:
    """And what it says first. It ends with its input."""
    process = program.start("--serve", *SMALL, *arguments, stdin=subprocess.PIPE)
    return process, answer(process)


def test_cases_are_served_with_the_counters_of_an_ordinary_run(
    program: Program, smoke_run: FinishedRun
) -> None:
    """Those that do not depend on time, to the byte."""
    usual, (process, greeting) = entries_by_case(smoke_run.result), resident(program)
    context = greeting["context"]
    assert {"schema_version", "git_commit", "device", "torch_version", "settings"} <= set(context)
    assert [context[key] for key in ("threads", "seed", "verify")] == [1, 42, "on request"]
    assert len(greeting["cases"]) == 27
    for name in greeting["cases"]:
        send(process, "open", name, verify=True, meter=True)
        opened, (entry, *_) = answer(process), usual[name]
        assert opened["max_rel_error"] == pytest.approx(entry["max_rel_error"])
        counters = {key: entry[key] for key in FIXED_COUNTERS}
        assert {key: opened["counters"][key] for key in FIXED_COUNTERS} == counters, name
        send(process, "time", name, seconds=0.001)
        assert all(0 < seconds < 1 for seconds in answer(process)["seconds"] or [0])
        send(process, "close", name)
        assert answer(process) == {"closed": name}
    assert finish(process).returncode == 0


def test_a_signal_waits_for_the_answer_and_a_client_that_goes_away_ends_it(
    program: Program,
) -> None:
    process, _ = resident(program, "--components=ffn")
    send(process, "open", SERVED)
    answer(process)

    def bytes_read() -> int:
        return int(Path(f"/proc/{process.pid}/io").read_text().split()[1])

    before, began = bytes_read(), time.monotonic()
    send(process, "time", SERVED, seconds=0.5)
    wait_until(lambda: bytes_read() > before + 50)
    process.send_signal(signal.SIGINT)
    assert answer(process)["seconds"]
    # all of it, and not what was left when the signal came
    assert time.monotonic() - began >= 0.5
    assert process.wait(TIMEOUT_S) == 130
    waiting, _ = resident(program, "--components=ffn")
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(TIMEOUT_S) == 130
    left, _ = resident(program, "--components=ffn")
    left.stdout.close()
    send(left, "close", SERVED)
    assert left.wait(TIMEOUT_S) == 0
