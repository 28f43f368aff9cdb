"""What a run looks like on a terminal, and its results in Google Benchmark's compare.py."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_program import PROJECT_ROOT, QUICK, SMALL, SMALL_MODEL, TIMEOUT_S, FinishedRun, Program

Running = subprocess.Popen[Any]
WithPeaks = Callable[..., list[str]]
PARTS = [*SMALL, "--components=ffn,loss"]
ERASE = "\r\x1b[K"


def start_on_terminal(program: Program, arguments: list[str], columns: int) -> tuple[Running, int]:
    """A run whose stderr is a terminal, and our end of that."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = program.start(*arguments, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    return process, ours


def run_on_terminal(program: Program, arguments: list[str], columns: int) -> str:
    """What a run writes to stderr where that is a terminal."""
    process, ours = start_on_terminal(program, arguments, columns)
    written = b""
    try:
        while block := os.read(ours, 4096):
            written += block
    except OSError:  # how Linux says that the other end was closed
        pass
    finally:
        os.close(ours)
    assert process.wait(timeout=TIMEOUT_S) == 0
    return written.decode()


def test_terminal_has_a_status_line_with_the_time_left(
    program: Program, with_peaks: WithPeaks
) -> None:
    text = run_on_terminal(program, [*PARTS, *with_peaks(), *QUICK], columns=200)
    names = program.names(*PARTS)
    states = [part for part in text.split(ERASE) if part.endswith(" ...")]
    assert len(states) == len(names)
    for number, (state, name) in enumerate(zip(states, names, strict=True), start=1):
        left = r"(, \d+:\d\d left)?" if number == 1 else r", \d+:\d\d left"
        assert re.fullmatch(rf"\[{number}/{len(names)}{left}\] {re.escape(name)} \.\.\.", state), (
            state
        )
    lines = [part for part in text.split(ERASE) if part.endswith("\r\n")]
    assert [line.split()[1] for line in lines if line.startswith("[")] == names
    assert text.endswith(ERASE), "the status line is left behind"


def test_status_line_fits_the_terminal(program: Program, with_peaks: WithPeaks) -> None:
    """A line that wraps cannot be erased."""
    text = run_on_terminal(program, [*PARTS, *with_peaks(), *QUICK], columns=50)
    states = [part for part in text.split(ERASE) if part.endswith(" ...")]
    assert [state for state in states if len(state) >= 50] == []


def test_second_interrupt_ends_at_once(program: Program, with_peaks: WithPeaks) -> None:
    """The first lets the case that is running finish, which here takes minutes."""
    endless = ["--benchmark_min_time=20000000x", "--max-seconds-per-case=10000"]
    process, ours = start_on_terminal(program, [*PARTS, *with_peaks(), *endless], columns=200)
    try:
        written = b""
        while b"[1/6]" not in written:
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


def test_only_what_varies_has_a_column(program: Program, with_peaks: WithPeaks) -> None:
    choice = [*SMALL_MODEL, "--components=ffn,rotary", "--passes=forward", "--seq=8"]
    completed = program.run(*choice, "--batch=2,4", *with_peaks(), *QUICK)
    assert completed.returncode == 0, completed.stderr
    for component in ("ffn", "rotary"):
        heading = f"{component}  (size custom, seq 8, dtype f32, variant baseline, pass forward)"
        after = completed.stdout.split(heading + "\n")[1].splitlines()
        assert after[0].split()[:2] == ["batch", "time"]
        assert [row.split()[0] for row in after[2:4]] == ["2", "4"]
    rotary, ffn = completed.stdout.strip().split("\n\n")
    assert "TFLOPS" in ffn
    assert "TFLOPS" not in rotary


def test_the_sum_is_missing_where_a_part_is(program: Program, with_peaks: WithPeaks) -> None:
    choice = [*SMALL, "--components=full_step,block,embedding"]
    completed = program.run(*choice, *with_peaks(), *QUICK)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[-1] == (
        "sum of parts  not computed: full_step was measured at no point together with "
        "rms_norm, loss, optimizer"
    )


def compare(compare_program: Path, base: Path, new: Path) -> str:
    completed = subprocess.run(
        [sys.executable, str(compare_program), "-a", "benchmarks", str(base), str(new)],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return re.sub(r"\x1b\[[\d;]*m", "", completed.stdout)


def test_google_benchmarks_compare_opens_two_results(
    compare_program: Path,
    smoke_run: FinishedRun,
    program: Program,
    tmp_path: Path,
    with_peaks: WithPeaks,
) -> None:
    new = tmp_path / "new.json"
    completed = program.run(*PARTS, *with_peaks(), *QUICK, f"--benchmark_out={new}")
    assert completed.returncode == 0, completed.stderr
    shown = compare(compare_program, smoke_run.result_file, new)
    for name in program.names(*PARTS):
        assert f"{name}/manual_time_median" in shown


def test_google_benchmarks_compare_opens_skipped_and_failed_cases(
    compare_program: Path, program: Program, tmp_path: Path, with_peaks: WithPeaks
) -> None:
    files = []
    for name, limit in (("skipped", "--memory-limit=400MiB"), ("failed", "--seed=42")):
        out = tmp_path / f"{name}.json"
        files.append(out)
        choice = [*SMALL_MODEL, "--components=ffn", "--passes=forward", "--batch=2,20000"]
        options = ["--seq=32", limit, *with_peaks(f"{name}.jsonl"), *QUICK]
        space = 900 << 20 if name == "failed" else None
        completed = program.run(*choice, *options, f"--benchmark_out={out}", address_space=space)
        assert completed.returncode == (1 if name == "failed" else 0), completed.stderr
    for base, new in (files, files[::-1], files[:1] * 2, files[1:] * 2):
        shown = compare(compare_program, base, new)
        assert "ffn/forward/baseline/custom/f32/batch:2/seq:32/manual_time_median" in shown
