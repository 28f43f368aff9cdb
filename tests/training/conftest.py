"""Runs that several tests of the training program look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from train_program import FinishedRun, Program, read_summary, small

from built_programs import PROJECT_ROOT, Json, read_json

STEPS = 12


@pytest.fixture(scope="session")
def program(train_program: Path) -> Program:
    return Program(train_program)


@pytest.fixture(scope="session")
def schema() -> Json:
    return read_json(PROJECT_ROOT / "results" / "training_schema.json")


@pytest.fixture(scope="session")
def validator(schema: Json) -> Draft202012Validator:
    """Of performance_summary.json."""
    return Draft202012Validator(schema)


def finished(program: Program, folder: Path, *options: str) -> FinishedRun:
    completed = program.run(*small(num_steps=STEPS), *options, f"--profile-dir={folder}")
    assert completed.returncode == 0, completed.stderr
    return FinishedRun(completed, folder, read_summary(folder))


@pytest.fixture(scope="session")
def profiled_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """With the operator profiler and the memory profiler."""
    folder = tmp_path_factory.mktemp("profiled")
    options = ["--enable-pytorch-profiler", "--profile-memory", "--profile-operators"]
    return finished(program, folder, *options, "--profile-stacks")


@pytest.fixture(scope="session")
def flops_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """With the FLOPS profiler; measuring the peaks takes seconds."""
    return finished(program, tmp_path_factory.mktemp("flops"), "--enable-deepspeed-flops")
