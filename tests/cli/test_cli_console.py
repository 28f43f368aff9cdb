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
from cli_program import (
    PROJECT_ROOT,
    QUICK,
    RUN,
    SMALL,
    SMALL_MODEL,
    TIMEOUT_S,
    FinishedRun,
    Program,
    message_of,
    read_result,
)

Running = subprocess.Popen[Any]
WithPeaks = Callable[..., list[str]]
PARTS = [*SMALL, "--components=ffn,loss"]
PASSES = ["forward", "backward", "forward_backward"]
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
    ffn, rotary = (table_of(component, completed.stdout) for component in ("ffn", "rotary"))
    assert "MFU" in ffn
    assert "MFU" not in rotary


def table_of(component: str, stdout: str) -> str:
    return next(part for part in stdout.split("\n\n") if part.strip().startswith(f"{component}  ("))


def test_columns_are_counters_that_are_added(program: Program, with_peaks: WithPeaks) -> None:
    choice = [*SMALL, "--components=ffn", *with_peaks(), *QUICK, "--columns=bytes,TFLOPS"]
    completed = program.run(*choice)
    assert completed.returncode == 0, completed.stderr
    header = table_of("ffn", completed.stdout).strip().splitlines()[1]
    titles = re.split(r" {2,}", header)
    assert "samples/s" in titles
    assert {"TFLOP/s", "traffic B"} <= set(titles)
    unknown = message_of(program.run(*SMALL, "--columns=speed"))
    assert "--columns 'speed': must be one of all, speedup, " in unknown


def test_default_grid_ends_in_a_digest(program: Program, with_peaks: WithPeaks) -> None:
    """Of which only the reasons are left where nothing fits."""
    limit = ["--memory-limit=1KiB", *with_peaks(), *QUICK]
    completed = program.run(*limit)
    assert completed.returncode == 0, completed.stderr[-2000:]
    lines = completed.stdout.splitlines()
    start = lines.index("skipped")
    total = len([name for name in program.names() if not name.startswith("peak/")])
    assert lines[start + 11] == f"  and {total - 10} more"
    assert "all 0 measured cases" in lines


def test_speedup_is_over_the_baseline_of_the_same_point(
    program: Program, with_peaks: WithPeaks, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    choice = [*SMALL_MODEL[:-1], "--components=ffn", "--passes=forward", "--batch=2,4", "--seq=8"]
    variants = ["--variants=gate_up,baseline", f"--benchmark_out={out}"]
    completed = program.run(*choice, *variants, *with_peaks(), *QUICK)
    assert completed.returncode == 0, completed.stderr
    rows = {entry["name"]: entry for entry in read_result(out)["benchmarks"]}
    for batch in (2, 4):
        name = f"ffn/forward/{{}}/custom/f32/batch:{batch}/seq:8/manual_time_median"
        baseline, variant = (rows[name.format(of)] for of in ("baseline", "gate_up"))
        assert baseline["speedup"] == pytest.approx(1)
        assert variant["speedup"] == pytest.approx(baseline["real_time"] / variant["real_time"])
    assert "speedup" in table_of("ffn", completed.stdout)


def test_each_case_leaves_a_trace(program: Program, with_peaks: WithPeaks, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    completed = program.run(*SMALL, "--components=ffn", *with_peaks(), *QUICK, f"--trace={folder}")
    assert completed.returncode == 0, completed.stderr
    names = [f"ffn.{name}.baseline.custom.f32.batch-2.seq-8.json" for name in PASSES]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    for name in names:
        events = read_result(folder / name)["traceEvents"]
        assert any(event.get("name") == "aten::mm" for event in events), name


def test_a_trace_folder_that_cannot_be_written_is_refused_at_once(
    program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    completed = program.run(*SMALL, *RUN, "--components=ffn", f"--trace={file}")
    assert f"--trace '{file}': " in message_of(completed)
    assert "measured peak" not in completed.stderr


def test_the_sum_is_missing_where_a_part_is(program: Program, with_peaks: WithPeaks) -> None:
    choice = [*SMALL, "--components=full_step,block,embedding"]
    completed = program.run(*choice, *with_peaks(), *QUICK)
    assert completed.returncode == 0, completed.stderr
    assert (
        "sum of parts  not computed: full_step was measured at no point together with "
        "rms_norm, loss, optimizer"
    ) in completed.stdout.splitlines()


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
