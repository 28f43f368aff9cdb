"""--validate-setup: one line a check, exit status 1 where one failed, and no training."""

from __future__ import annotations

import re
from pathlib import Path

from train_program import Completed, Program

CHECKS = ["device", "libtorch", "memory", "GPU runtime", "threads", "output", "variant"]
LINE = re.compile(r"(?P<status>ok|warning|failed) +(?P<what>[A-Za-z ]+): (?P<detail>.+)")


def checks(completed: Completed) -> dict[str, tuple[str, str]]:
    """Status and detail of each line; fails on one that has another form."""
    found = [LINE.fullmatch(line) for line in completed.stdout.splitlines()]
    assert all(found), completed.stdout
    lines = {m["what"]: (m["status"], m["detail"]) for m in found if m}
    return {
        re.sub("^(HIP|CUDA) runtime", "GPU runtime", name): line for name, line in lines.items()
    }


def test_a_good_setup(program: Program, tmp_path: Path) -> None:
    completed = program.run("--validate-setup", "--device=cpu", f"--output-dir={tmp_path / 'new'}")
    assert completed.returncode == 0
    assert completed.stderr == ""
    found = checks(completed)
    assert list(found) == CHECKS
    assert {status for status, _ in found.values()} <= {"ok", "warning"}
    assert re.match(r"2\.\d+\.\d+ for \w+; computes on cpu", found["libtorch"][1])
    assert re.match(r"[\d.]+ GiB free of [\d.]+ GiB; batch 8 x seq 128", found["memory"][1])
    assert found["output"] == ("ok", f"{tmp_path}/new: can be written to")
    # what it made to try, it removed
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there(program: Program) -> None:
    completed = program.run("--validate-setup", "--device=cuda:99")
    assert completed.returncode == 1
    status, detail = checks(completed)["device"]
    assert status == "failed"
    assert 'device "cuda:99": no such device (allowed: auto, cpu' in detail
    assert checks(completed)["libtorch"][0] == "ok"


def test_a_folder_that_cannot_be_written_to(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    completed = program.run("--validate-setup", "--device=cpu", f"--output-dir={file / 'below'}")
    assert completed.returncode == 1
    status, detail = checks(completed)["output"]
    assert status == "failed"
    assert str(file / "below") in detail
    assert "name another folder with --output-dir or --profile-dir" in detail
    assert file.read_text() == "mine"


def test_a_model_that_does_not_fit(program: Program) -> None:
    completed = program.run("--validate-setup", "--device=cpu", "--hidden-dim=65536")
    assert completed.returncode == 1
    status, detail = checks(completed)["memory"]
    assert status == "failed"
    assert "needs about 791." in detail


def test_bad_options_stay_bad(program: Program) -> None:
    assert program.run("--validate-setup", "--num-steps=none").returncode == 2


def test_a_variant_that_cannot_run_here_fails_the_setup(program: Program) -> None:
    completed = program.run("--validate-setup", "--device=cpu", "--variant=graph")
    assert completed.returncode == 1
    assert "failed   variant: " in completed.stdout
