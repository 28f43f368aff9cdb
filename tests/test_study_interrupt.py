"""Ctrl-C reaches scripts/study and the program it runs, and loses nothing that was measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from noted_waits import noting_waits

TESTS = Path(__file__).resolve().parent
# Plays one run at once; a run of small with all its steps waits for Ctrl-C, then ends as the
# training program does: with its summary written and status 130.
TRAIN = """\
#!{python}
import json, signal, sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}, {scripts!r}]
from training_stand_in import PlayedProgram
options = sys.argv[1:]
folder = Path(next(o for o in options if o.startswith("--output-dir=")).partition("=")[2])
def play(steps=()):
    print(PlayedProgram().run([*options, *steps], folder).output, end="")
if "--size=small" in options and "--num-steps=7" in options:
    def end(*_):
        play(["--num-steps=4"])
        sys.exit(130)
    signal.signal(signal.SIGINT, end)
    print("Step 1/7: Loss = 6.9", flush=True)
    time.sleep(60)
play()
"""
BENCH = """\
#!/bin/sh
cat <<'END'
{answer}
END
"""


def dry_run_answer() -> str:
    """What the suite says of a step of tiny and of small: its costs, as far as they matter."""
    steps = {
        "tiny/f32/batch:8/seq:128": (2873600, 17_678_991_360),
        "small/f32/batch:8/seq:256": (20890112, 276_070_000_000),
    }
    others = ("causal_flops", "hardware_flops", "elementwise_flops", "bytes")
    cases = [
        {
            "name": f"full_step/train/baseline/{shape}",
            "parameters": parameters,
            "model_flops": flops,
            **dict.fromkeys(others, 1),
            "predicted_memory_bytes": 2**27,
            "fits": True,
            "reason": "",
        }
        for shape, (parameters, flops) in steps.items()
    ]
    budget = {"memory_budget_bytes": 2**34, "memory_budget_source": "free on the device"}
    return json.dumps(budget | {"cases": cases})


def heed_signals() -> None:
    """The tests themselves may run where these are ignored, and so a program of theirs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def wait_for(log: Path, text: str) -> None:
    for _ in range(1200):
        if log.exists() and text in log.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"{text} never came: {log.read_text() if log.exists() else 'no log'}")


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_being_asked_to_end_keeps_what_is_measured(tmp_path: Path, by: signal.Signals) -> None:
    """By a signal to the study alone, as a batch system sends it."""
    scripts = str(TESTS.parent / "scripts")
    programs = tmp_path / "build"
    programs.mkdir()
    train = TRAIN.format(python=sys.executable, tests=str(TESTS), scripts=scripts)
    write_program(programs / "benchmarks/tiny_llama_train", train)
    write_program(programs / "benchmarks/tiny_llama_bench", BENCH.format(answer=dry_run_answer()))
    results, said, waits = tmp_path / "results", tmp_path / "said", tmp_path / "waits"
    code = "from tinyllama_tools.study.command import main\nraise SystemExit(main())"
    command = [sys.executable, "-c", noting_waits(waits) + code, "tiny", "small", "--grid=off"]
    with said.open("w") as stream:
        process = subprocess.Popen(
            [*command, "--num-steps=7", f"--results={results}", f"--build-folder={programs}"],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": scripts},
            start_new_session=True,
            preexec_fn=heed_signals,
        )
        wait_for(said, "Problem Size: SMALL")
        log = next_log(results)
        wait_for(log, "Step 1/7")
        wait_for(waits, f"--output-dir={log.parent}")
        process.send_signal(by)
        status = process.wait(30)
    text = said.read_text()
    assert status == 130, text
    (page,) = results.glob("performance_study_*.md")
    assert "| tiny " in page.read_text()
    assert "- small: interrupted after 4 of 7 steps" in page.read_text()
    assert (log.parent / "performance_summary.json").is_file()
    assert "Next steps:" in text


def next_log(results: Path) -> Path:
    (folder,) = results.glob("performance_results_small_*")
    return folder / "training_output.log"
