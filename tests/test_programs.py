"""Programs in processes of their own, and what they measured."""

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from built_programs import Json, finish, start, wait_until, write_program
from fake_training import made_up_summary
from tinyllama_tools.__main__ import main as run_tool
from tinyllama_tools.core.app import write_whole
from tinyllama_tools.core.process import ProgramError, Progress
from tinyllama_tools.data.names import CaseName, full_step
from tinyllama_tools.data.programs import (
    NUMBERS,
    SuiteError,
    SuiteProgram,
    TrainingError,
    TrainingProgram,
    ask_costs,
)

TINY = full_step("tiny", "f32", 8, 128)
OTHER = full_step("tiny", "bf16", 4, 64, variant="qkv+gate_up")


def scripted(folder: Path, name: str, script: str) -> Path:
    """A program that notes its arguments; the script knows the value of the last one as $last."""
    head = f'#!/bin/bash\nlast="${{@: -1}}"; last="${{last#*=}}"; cd {folder}; echo "$*" >>calls\n'
    return write_program(folder / name, f"{head}{script}\n")


# ---- the suite

WRITE = 'cp document "$last"; '


def suite(folder: Path, script: str, *entries: Json) -> SuiteProgram:
    """Of a program that may write these entries."""
    context = {"schema_version": 4, "verify": "off", "threads": 2, "peaks": {"measured": {}}}
    (folder / "document").write_text(json.dumps({"context": context, "benchmarks": entries}))
    return SuiteProgram(("--threads=2",), scripted(folder, "tiny_llama_bench", script))


def entry(case: CaseName) -> Json:
    return {"run_name": f"{case!s}/manual_time", "run_type": "iteration", "real_time": 50.0}


def test_peaks_of_the_first_process_serve_the_next_unless_refused(tmp_path: Path) -> None:
    refuse = 'for a in "$@"; do if [[ -f strict && $a = --journal=* ]]; then'
    refuse += ' echo "journal ${a#*=}: other circumstances" >&2; exit 2; fi; done; '
    # 1: some case failed
    program = suite(tmp_path, refuse + WRITE + "exit 1", entry(TINY))
    program.measure([TINY], 1)
    program.measure([TINY], 1, verify=True, more=["--cold-cache"])
    (tmp_path / "strict").touch()
    assert program.measure([TINY], 1)["benchmarks"][0]["real_time"] == 50
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert ["--resume" in call for call in calls] == [False, True, True, False]
    assert {"--threads=2", "--verify=off"} <= set(calls[0])
    assert {"--verify=before", "--cold-cache"} <= set(calls[1])


# ---- the training program

MAKE = "mkdir -p $last; "


def training(folder: Path, script: str) -> TrainingProgram:
    (folder / "summary").write_text(json.dumps(made_up_summary()))
    return TrainingProgram(scripted(folder, "tiny_llama_train", script), ("--device=cpu",))


def test_what_a_training_wrote_and_said(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    script = 'cp summary $last/performance_summary.json; echo "$*"; echo trouble >&2; exit 1'
    run = training(tmp_path, MAKE + script).run(["--num-steps", "3"], out, log)
    # the loss was not finite
    assert (run.exit_status, run.summary) == (1, made_up_summary()) and run.seconds > 0
    said = f"--device=cpu --num-steps 3 --output-dir={out}\ntrouble\n"
    assert run.output == log.read_text() == said
    # a summary of an earlier run is not this run's
    run = training(tmp_path, 'echo "$*"').run(["--profile-memory"], out, log)
    assert log.read_text().endswith(f" --profile-dir={out}\n") and run.summary is None


def run_suite(folder: Path, script: str) -> None:
    suite(folder, script, entry(TINY)).measure([TINY, OTHER], 1)


def run_training(folder: Path, script: str) -> None:
    program = training(folder, script)
    if not script:
        program.program.unlink()
    program.run([], folder / "out", folder / "log")


REFUSAL = "--variants: variant 'x': must be y"
REFUSE = f'echo noise >&2; echo "{REFUSAL}" >&2; exit 2'


@pytest.mark.parametrize(
    ("run", "script", "status", "message"),
    [
        (run_suite, WRITE, 2, f"tiny_llama_bench wrote nothing about {OTHER}"),
        (run_suite, "true", 2, "tiny_llama_bench ended with 0: "),
        (run_training, REFUSE, 2, f"tiny_llama_train: {REFUSAL}"),
        (
            *(run_training, r"printf 'line %s\n' {0..8} >&2; echo >&2; exit 3", 1),
            "tiny_llama_train ended with 3: line 4\nline 5\nline 6\nline 7\nline 8",
        ),
        (run_training, "exit 7", 1, "tiny_llama_train ended with 7: it said nothing"),
        (run_training, "kill -SEGV $$", 1, "tiny_llama_train was ended by signal SIGSEGV"),
        (
            *(run_training, MAKE + "echo '{' > $last/performance_summary.json", 1),
            "tiny_llama_train wrote a bad summary: ",
        ),
        (run_training, "", 2, "tiny_llama_train cannot be started: "),
    ],
)
def test_a_program_that_fails_is_named_with_its_last_words(
    tmp_path: Path, run: Callable[[Path, str], None], script: str, status: int, message: str
) -> None:
    with pytest.raises(ProgramError) as caught:
        run(tmp_path, script)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_status == status


def test_a_program_whose_output_cannot_be_kept_may_keep_its_own(tmp_path: Path) -> None:
    script = "trap 'touch $last/kept; exit' INT; while echo a line; do sleep 0.05; done"
    with pytest.raises(OSError, match="No space left") as error:
        training(tmp_path, MAKE + script).run([], tmp_path / "out", Path("/dev/full"))
    assert error.value.filename == "/dev/full"
    assert (tmp_path / "out/kept").exists()
    with pytest.raises(TrainingError, match="absent/log: the program's output cannot be kept"):
        training(tmp_path, "").run([], tmp_path / "out", tmp_path / "absent/log")


def test_a_file_that_fills_the_disk_is_named(tmp_path: Path) -> None:
    part = tmp_path / f"study.json.{os.getpid()}.part"
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as error:
        write_whole(tmp_path / "study.json", "{}")
    assert error.value.filename == str(tmp_path / "study.json")
    assert not part.is_symlink()


@pytest.mark.parametrize("status", [0, 130])
def test_an_interrupted_program_ends_its_step_first(tmp_path: Path, status: int) -> None:
    """By Ctrl-C at a terminal, which every process of its group gets: a second one would kill."""
    trap = f"trap 'trap - INT; sleep 0.3; touch $last/step; exit {status}' INT; "
    ready = "echo ready $(cut -d' ' -f6 /proc/$$/stat); while :; do sleep 0.05; done"
    used = training(tmp_path, MAKE + trap + ready)
    log = tmp_path / "log"
    code = (
        "from pathlib import Path; from tinyllama_tools.data.programs import TrainingProgram\n"
        f"TrainingProgram(Path('{used.program}')).run([], Path('{tmp_path}/out'), Path('{log}'))"
    )
    process = start([sys.executable, "-c", code], start_new_session=True)
    wait_until(lambda: log.exists() and "ready" in log.read_text())
    os.killpg(process.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in finish(process).stderr
    assert (tmp_path / "out/step").exists()
    # in a session of its own, which a terminal's Ctrl-C does not reach
    assert log.read_text().split()[1] != str(process.pid)


def test_ctrl_c_while_a_command_is_loaded_is_one_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.import_module", Mock(side_effect=KeyboardInterrupt))
    assert run_tool(["report"]) == 130
    assert capsys.readouterr().err == "scripts/report: interrupted\n"


def test_progress_counts_and_tells_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tinyllama_tools.core.process.time.monotonic", lambda: now)
    for is_terminal in (False, True):
        stream = io.StringIO()
        stream.isatty = lambda of=is_terminal: of
        progress = Progress(stream)
        progress.begin(40, 10, "round 1/2")
        for number in range(11, 41):
            progress.step(f"case {number}")
            now += 2.0
        lines = stream.getvalue().replace("\r", "\n").replace("\033[K", "").split("\n")
        # 6 of 30 took 12 s, 24 are left
        assert "round 1/2 [17/40, 48 s left] case 17" in lines
        # a log has a line every now and then, a terminal every one
        assert (len(lines) > 30) == is_terminal


# ---- the JSON of tiny_llama_bench --dry-run

FIGURES: Json = dict(zip(NUMBERS, range(1, len(NUMBERS) + 1), strict=True))
CASE: Json = {"name": str(OTHER), **FIGURES, "fits": False, "reason": "too large"}


def answering(folder: Path, case: Json, status: int = 0) -> Path:
    answer = {"memory_budget_bytes": 64, "memory_budget_source": "free", "cases": [case]}
    (folder / "answer").write_text(json.dumps(answer) if case else "{")
    return scripted(folder, "bench", f"cat answer; echo last >&2; exit {status}")


@pytest.mark.parametrize(
    ("case", "status", "message"),
    [
        (CASE | {"bytes": 0.5}, 0, r"cases\[0\].bytes"),
        (CASE | {"name": "peak/bandwidth"}, 0, r"cases\[0\].name: 'peak/bandwidth' does not match"),
        (None, 0, "bench --dry-run: Expecting"),
        (CASE, 2, "last$"),
    ],
)
def test_a_bad_answer_is_named(tmp_path: Path, case: Json, status: int, message: str) -> None:
    (cost,) = ask_costs(answering(tmp_path, CASE), [])
    assert (cost.name, cost.fits, cost.reason) == (OTHER, False, "too large")
    assert [getattr(cost, key) for key in NUMBERS] == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(SuiteError, match=message):
        ask_costs(answering(tmp_path, case, status), [])
