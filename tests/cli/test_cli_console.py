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
from pathlib import Path
from typing import Any

import pytest
from cli_program import (
    DIMENSIONS,
    MIB,
    PROJECT_ROOT,
    QUICK,
    SMALL,
    SMALL_MODEL,
    TIMEOUT_S,
    FinishedRun,
    Program,
    WithPeaks,
    read_result,
)

PARTS = [*SMALL, "--components=ffn,loss"]
FFN = [*SMALL, "--components=ffn"]
ERASE = "\r\x1b[K"


def start_on_terminal(
    program: Program, arguments: list[str], columns: int
) -> tuple[subprocess.Popen[Any], int]:
    """A run whose stderr is a terminal, and our end of that."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = program.start(*arguments, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    return process, ours


def run_on_terminal(program: Program, arguments: list[str], columns: int) -> list[str]:
    """What a run writes to stderr where that is a terminal, between erased lines."""
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
    return written.decode().split(ERASE)


def test_terminal_has_a_status_line_with_the_time_left(
    program: Program, with_peaks: WithPeaks
) -> None:
    texts = run_on_terminal(program, [*PARTS, *with_peaks(), *QUICK], columns=200)
    names = program.names(*PARTS)
    states = [text for text in texts if text.endswith(" ...")]
    for number, (state, name) in enumerate(zip(states, names, strict=True), start=1):
        left = r"(, \d+:\d\d left)?" if number == 1 else r", \d+:\d\d left"
        pattern = rf"\[{number}/{len(names)}{left}\] {re.escape(name)} \.\.\."
        assert re.fullmatch(pattern, state), state
    lines = [text for text in texts if text.startswith("[") and text.endswith("\r\n")]
    assert [line.split()[1] for line in lines] == names
    assert texts[-1] == "", "the status line is left behind"
    # a line that wraps cannot be erased
    narrow = run_on_terminal(program, [*PARTS, *with_peaks(), *QUICK], columns=50)
    assert [text for text in narrow if text.endswith(" ...") and len(text) >= 50] == []


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


def table_of(component: str, stdout: str) -> list[str]:
    parts = (part.strip() for part in stdout.split("\n\n"))
    return next(part for part in parts if part.startswith(f"{component}  (")).splitlines()


def test_tables_show_what_varies_and_the_columns_that_are_asked_for(
    program: Program, with_peaks: WithPeaks, tmp_path: Path
) -> None:
    choice = [*SMALL_MODEL, "--components=ffn,rotary", "--passes=forward", "--seq=8", "--batch=2,4"]
    asked = [*choice, "--columns=bytes,TFLOPS", *with_peaks()]
    completed, _ = program.measure(tmp_path / "out.json", *asked)
    titles = {}
    for component in ("ffn", "rotary"):
        heading, header, _, *rows = table_of(component, completed.stdout)
        shared = "(size custom, seq 8, dtype f32, variant baseline, pass forward)"
        assert heading == f"{component}  {shared}"
        titles[component] = re.split(r" {2,}", header.strip())
        assert titles[component][:2] == ["batch", "time"]
        assert [row.split()[0] for row in rows[:2]] == ["2", "4"]
    assert {"samples/s", "TFLOP/s", "traffic B"} <= set(titles["ffn"])
    assert "TFLOP/s" not in titles["rotary"]


def test_default_grid_ends_in_a_digest(
    program: Program, with_peaks: WithPeaks, tmp_path: Path
) -> None:
    """Of which only the reasons are left where nothing fits."""
    limit = ["--memory-limit=1KiB", *with_peaks()]
    completed, result = program.measure(tmp_path / "out.json", *limit)
    lines = completed.stdout.splitlines()
    assert lines[lines.index("skipped") + 11] == f"  and {len(program.cases()) - 10} more"
    assert "all 0 measured cases" in lines
    reasons = [e["skip_message"] for e in result["benchmarks"] if not e["name"].startswith("peak/")]
    assert [text for text in reasons if not re.search(r"\d [KMG]iB exceeds 1\.00 KiB", text)] == []


def test_speedup_is_over_the_baseline_of_the_same_point(
    program: Program, with_peaks: WithPeaks, tmp_path: Path
) -> None:
    choice = [*DIMENSIONS, "--components=ffn", "--passes=forward", "--batch=2,4", "--seq=8"]
    variants = ["--variants=gate_up,baseline", *with_peaks()]
    completed, result = program.measure(tmp_path / "out.json", *choice, *variants)
    rows = {entry["name"]: entry for entry in result["benchmarks"]}
    for batch in (2, 4):
        name = f"ffn/forward/{{}}/custom/f32/batch:{batch}/seq:8/manual_time_median"
        baseline, variant = (rows[name.format(of)] for of in ("baseline", "gate_up"))
        assert baseline["speedup"] == pytest.approx(1)
        assert variant["speedup"] == pytest.approx(baseline["real_time"] / variant["real_time"])
    assert "speedup" in table_of("ffn", completed.stdout)[1]


def test_each_case_leaves_a_trace(program: Program, with_peaks: WithPeaks, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    program.measure(tmp_path / "out.json", *FFN, *with_peaks(), f"--trace={folder}")
    names = [
        f"ffn.{name}.baseline.custom.f32.batch-2.seq-8.json"
        for name in ("backward", "forward", "forward_backward")
    ]
    assert sorted(path.name for path in folder.iterdir()) == names
    for name in names:
        events = read_result(folder / name)["traceEvents"]
        assert any(event.get("name") == "aten::mm" for event in events), name


def test_the_sum_is_missing_where_a_part_is(
    program: Program, with_peaks: WithPeaks, tmp_path: Path
) -> None:
    choice = [*SMALL, "--components=full_step,block,embedding", *with_peaks()]
    completed, _ = program.measure(tmp_path / "out.json", *choice)
    assert (
        "sum of parts  not computed: full_step was measured at no point together with "
        "rms_norm, loss, optimizer"
    ) in completed.stdout.splitlines()


def compare(base: Path, new: Path) -> str:
    """What Google Benchmark's own tool says of two files."""
    tool = PROJECT_ROOT / ".deps" / "sources" / "benchmark" / "tools" / "compare.py"
    if not tool.is_file():
        pytest.skip("Google Benchmark came without its sources, so compare.py is not here")
    completed = subprocess.run(
        [sys.executable, str(tool), "-a", "benchmarks", str(base), str(new)],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return re.sub(r"\x1b\[[\d;]*m", "", completed.stdout)


def test_google_benchmarks_compare_opens_results(
    smoke_run: FinishedRun, program: Program, tmp_path: Path, with_peaks: WithPeaks
) -> None:
    new, skipped, failed = (tmp_path / f"{name}.json" for name in ("new", "skipped", "failed"))
    program.measure(new, *PARTS, *with_peaks())
    shown = compare(smoke_run.result_file, new)
    for name in program.names(*PARTS):
        assert f"{name}/manual_time_median" in shown
    choice = [*SMALL_MODEL, "--components=ffn", "--passes=forward", "--batch=2,20000", "--seq=32"]
    program.measure(skipped, *choice, "--memory-limit=400MiB", *with_peaks("skipped.jsonl"))
    short = {"status": 1, "address_space": 900 * MIB}
    program.measure(failed, *choice, *with_peaks("failed.jsonl"), **short)
    for base, new in ((skipped, failed), (failed, skipped), (skipped,) * 2, (failed,) * 2):
        shown = compare(base, new)
        assert "ffn/forward/baseline/custom/f32/batch:2/seq:32/manual_time_median" in shown
