"""TrainingProgram with small programs of the shell in the place of tiny_llama_train."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from noted_waits import has_noted, noting_waits
from tinyllama_tools.data.programs import TrainingError, TrainingProgram, command_line
from training_stand_in import made_up_summary


def program(tmp_path: Path, script: str) -> TrainingProgram:
    """A program that knows the folder of its last option as $folder."""
    (tmp_path / "summary.json").write_text(json.dumps(made_up_summary()))
    path = tmp_path / "tiny_llama_train"
    head = '#!/bin/bash\nlast="${@: -1}"\nfolder="${last#*=}"\n'
    path.write_text(
        f"{head}write() {{ mkdir -p $folder; cp {tmp_path}/summary.json "
        f"$folder/performance_summary.json; }}\n{script}\n"
    )
    path.chmod(0o755)
    return TrainingProgram(path, ("--device=cpu",))


def test_reads_what_the_program_wrote_and_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    used = program(tmp_path, 'write; echo "options: $*"; echo trouble >&2')
    run = used.run(["--num-steps", "3"], tmp_path / "out", log)
    assert run.exit_status == 0
    assert run.summary == made_up_summary()
    assert run.output == log.read_text()
    assert (
        run.output == f"options: --device=cpu --num-steps 3 --output-dir={tmp_path}/out\ntrouble\n"
    )
    assert run.seconds > 0


@pytest.mark.parametrize(
    "flag", ["--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops"]
)
def test_a_profiler_writes_to_the_profile_folder(tmp_path: Path, flag: str) -> None:
    run = program(tmp_path, "write").run([flag], tmp_path / "out")
    assert run.command[-1] == f"--profile-dir={tmp_path}/out"


def test_a_summary_of_an_earlier_run_is_not_this_runs(tmp_path: Path) -> None:
    program(tmp_path, "write").run([], tmp_path / "out")
    assert program(tmp_path, "true").run([], tmp_path / "out").summary is None


def test_a_loss_that_is_not_finite_is_returned(tmp_path: Path) -> None:
    run = program(tmp_path, "write; exit 1").run([], tmp_path / "out")
    assert run.exit_status == 1
    assert run.summary is not None


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ("echo banner; echo '--size x: must be one of tiny' >&2; exit 2", 2, "must be one of tiny"),
        ("exit 7", 1, "ended with 7: it said nothing"),
        ("kill -SEGV $$", 1, "Segmentation fault"),
        ("mkdir -p $folder; echo '{' > $folder/performance_summary.json", 1, "bad summary"),
    ],
)
def test_what_raises(tmp_path: Path, script: str, status: int, words: str) -> None:
    with pytest.raises(TrainingError, match=words) as error:
        program(tmp_path, script).run([], tmp_path / "out")
    assert error.value.exit_status == status
    assert "banner" not in str(error.value)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"cannot be started.*scripts/bench --setup-only") as e:
        TrainingProgram(tmp_path / "absent").run([], tmp_path)
    assert e.value.exit_status == 2


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="absent/log") as error:
        program(tmp_path, "true").run([], tmp_path, tmp_path / "absent/log")
    assert error.value.exit_status == 2


def test_an_interrupted_program_ends_its_step_first(tmp_path: Path) -> None:
    used = program(
        tmp_path,
        "trap 'sleep 0.3; touch $folder/step; exit 130' INT\n"
        "mkdir -p $folder; touch $folder/ready; while :; do sleep 0.05; done",
    )
    note = tmp_path / "waits"
    code = noting_waits(note) + (
        "from pathlib import Path; from tinyllama_tools.data.programs import TrainingProgram\n"
        f"TrainingProgram(Path({str(used.program)!r})).run([], Path({str(tmp_path)!r}) / 'out')"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "scripts")}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not ((tmp_path / "out/ready").exists() and has_noted(note, str(used.program))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
    assert (tmp_path / "out/step").exists()


def test_a_command_as_a_user_types_it() -> None:
    options = ["--data", "my text"]
    assert command_line(options) == "build/benchmarks/tiny_llama_train --data 'my text'"
