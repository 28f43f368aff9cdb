"""Ctrl-C reaches scripts/study and the program it runs, and loses nothing that was measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
case  parameters  model FLOPs  elementwise  bytes  peak memory  fits
full_step/train/baseline/tiny/f32/batch:8/seq:128  2873600  17.68 G  1.00 M  271.00 MiB  131.81 MiB  yes
full_step/train/baseline/small/f32/batch:8/seq:256  20890112  276.07 G  1.26 G  2.02 GiB  967.29 MiB  yes
END
"""  # noqa: E501


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def wait_for(log: Path, text: str) -> None:
    for _ in range(300):
        if log.exists() and text in log.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"{text} never came: {log.read_text() if log.exists() else 'no log'}")


def test_ctrl_c_ends_the_study_with_what_is_measured(tmp_path: Path) -> None:
    scripts = str(TESTS.parent / "scripts")
    programs = tmp_path / "build"
    programs.mkdir()
    train = TRAIN.format(python=sys.executable, tests=str(TESTS), scripts=scripts)
    write_program(programs / "benchmarks/tiny_llama_train", train)
    write_program(programs / "benchmarks/tiny_llama_bench", BENCH)
    results, said = tmp_path / "results", tmp_path / "said"
    command = [sys.executable, "-m", "tinyllama_tools.study", "tiny", "small", "--num-steps=7"]
    with said.open("w") as stream:
        process = subprocess.Popen(
            [*command, f"--results={results}", f"--build-folder={programs}"],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": scripts},
            start_new_session=True,
        )
        wait_for(said, "Problem Size: SMALL")
        log = next_log(results)
        wait_for(log, "Step 1/7")
        os.killpg(process.pid, signal.SIGINT)
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
