"""Runs that several tests of the training program look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator as Validator
from train_program import Program, small, whole_summary

from built_programs import PROJECT_ROOT, FinishedRun, read_json


@pytest.fixture(scope="session")
def program(train_program: Path) -> Program:
    return Program(train_program)


@pytest.fixture(scope="session")
def validator() -> Validator:
    """Of performance_summary.json."""
    return Validator(read_json(PROJECT_ROOT / "results/training_schema.json"))


def finished(program: Program, folder: Path, *options: str) -> FinishedRun:
    completed = program.run(*small(num_steps=12), *options, f"--profile-dir={folder}")
    assert completed.returncode == 0, completed.stderr
    return FinishedRun(completed, folder, whole_summary(folder))


@pytest.fixture(scope="session")
def profiled_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """With the operator profiler and the memory profiler."""
    options = ["--enable-pytorch-profiler", "--profile-memory", "--profile-operators"]
    return finished(program, tmp_path_factory.mktemp("profiled"), *options, "--profile-stacks")


@pytest.fixture(scope="session")
def flops_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """With the FLOPS profiler; measuring the peaks takes seconds."""
    return finished(program, tmp_path_factory.mktemp("flops"), "--enable-deepspeed-flops")
