"""Folders that cannot be written to, and disks that are full: exit status 2, nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from train_program import (
    SUMMARY,
    Program,
    assert_whole,
    files_below,
    message_of,
    read_summary,
    small,
)

PROFILERS = {
    "--output-dir": [],
    "--profile-dir": ["--profile-memory"],
    "--save-weights": [],
}
# profiler -> a disk that holds the start of what it writes, but not all
TOO_SMALL = {"--enable-pytorch-profiler": "600k", "--profile-memory": "64k"}
EARLIER = {"trace_step_5_10.json": '{"traceEvents": []}\n', "notes.txt": "of an earlier run\n"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system in memory; only root may."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk_{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Takes the last byte of a disk."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


@pytest.mark.parametrize("option", PROFILERS)
def test_a_folder_below_a_file_is_refused(program: Program, tmp_path: Path, option: str) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    folder = file / "below"
    completed = program.run(*small(num_steps=2), *PROFILERS[option], f"{option}={folder}")
    message = message_of(completed)
    assert message.startswith(f"{option} '{folder}': must be a folder that can be written to")
    assert "Not a directory" in message
    # said before hours of training
    assert "Step 1/" not in completed.stdout
    assert file.read_text() == "mine"


@pytest.mark.parametrize("option", PROFILERS)
def test_a_folder_that_cannot_be_written_to_is_refused(
    program: Program, disk: Callable[[str], Path], option: str
) -> None:
    folder = disk("ro,size=64k")
    completed = program.run(*small(num_steps=2), *PROFILERS[option], f"{option}={folder}")
    message = message_of(completed)
    assert message.startswith(f"{option} '{folder}': must be a folder that can be written to")
    assert "Read-only file system" in message
    assert completed.stdout == ""


@pytest.mark.parametrize("option", PROFILERS)
def test_a_full_disk_is_refused_and_stays_as_it_was(
    program: Program, disk: Callable[[str], Path], option: str
) -> None:
    folder = disk("size=64k")
    program.trained(folder, *small(num_steps=2))
    fill(folder)
    before = contents(folder)
    completed = program.run(*small(num_steps=2), *PROFILERS[option], f"{option}={folder}")
    message = message_of(completed)
    assert message.startswith(f"{option} '{folder}': must be a folder that can be written to")
    assert "No space left on device" in message
    assert contents(folder) == before


@pytest.mark.parametrize("profiler", TOO_SMALL)
def test_a_disk_that_runs_full_leaves_whole_files(
    program: Program, disk: Callable[[str], Path], profiler: str
) -> None:
    folder = disk(f"size={TOO_SMALL[profiler]}")
    for name, text in EARLIER.items():
        (folder / name).write_text(text, encoding="utf-8")
    options = small(num_steps=12)
    completed = program.run(*options, profiler, "--profile-steps=6", f"--profile-dir={folder}")
    message = message_of(completed)
    assert str(folder) in message
    assert "No space left on device" in message or "is the disk full?" in message
    assert "Performance Summary:" in completed.stdout
    for name, text in EARLIER.items():
        assert (folder / name).read_text(encoding="utf-8") == text
    summary = read_summary(folder)
    assert_whole(folder, summary)
    # what could not be written is neither there nor listed
    assert files_below(folder) == set(summary["files"]) | set(EARLIER)
    assert not Path(message.split(": ")[0]).exists()


def test_one_full_disk_does_not_keep_the_other_folder_empty(
    program: Program, disk: Callable[[str], Path], tmp_path: Path
) -> None:
    output, profile = tmp_path / "output", disk(f"size={TOO_SMALL['--profile-memory']}")
    folders = [f"--profile-dir={profile}", f"--output-dir={output}"]
    completed = program.run(*small(num_steps=6), "--profile-memory", *folders)
    assert str(profile) in message_of(completed)
    summary = read_summary(output)
    assert summary["summary"]["steps_completed"] == 6
    assert summary["files"] == [SUMMARY]


def test_weights_that_do_not_fit_leave_the_summary(
    program: Program, disk: Callable[[str], Path], tmp_path: Path
) -> None:
    weights, output = disk("size=64k"), tmp_path / "output"
    folders = [f"--save-weights={weights}", f"--output-dir={output}"]
    completed = program.run(*small(num_steps=2), *folders)
    message = message_of(completed)
    assert message.startswith(f"{weights}/model.safetensors: cannot be written: No space left")
    assert files_below(weights) == set()
    assert read_summary(output)["summary"]["steps_completed"] == 2
