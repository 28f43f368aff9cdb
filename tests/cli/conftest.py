"""Runs that several tests of the command line look at: measuring peaks takes seconds."""

import shutil
from pathlib import Path

import pytest
from cli_program import (
    QUICK,
    RUN,
    SMALL,
    FinishedRun,
    Program,
    WithPeaks,
    read_journal,
    write_journal,
)
from jsonschema import Draft202012Validator

from built_programs import PROJECT_ROOT, Json, read_json

SMOKE = [*SMALL, *RUN, "--dtypes=f32,bf16,amp_bf16,f16,amp_f16"]


@pytest.fixture(scope="session")
def program(bench_program: Path) -> Program:
    return Program(bench_program)


@pytest.fixture(scope="session")
def schema() -> Json:
    return read_json(PROJECT_ROOT / "results" / "schema.json")


@pytest.fixture(scope="session")
def validator(schema: Json) -> Draft202012Validator:
    return Draft202012Validator(schema)


@pytest.fixture(scope="session")
def smoke_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Every component, pass and dtype of a small model, and every peak."""
    folder = tmp_path_factory.mktemp("smoke")
    out, journal = folder / "out.json", folder / "journal.jsonl"
    completed = program.run(*SMOKE, *QUICK, f"--benchmark_out={out}", f"--journal={journal}")
    # whether it went well is for a test to say, and not for all that look at its files
    assert completed.returncode in {0, 1}, completed.stderr
    return FinishedRun(SMOKE, completed, out, journal, read_json(out))


@pytest.fixture
def with_peaks(smoke_run: FinishedRun, tmp_path: Path) -> WithPeaks:
    """Options of a run that takes its peaks from a journal with nothing else in it.

    Such a journal is what a run leaves that was killed right after measuring them.
    """

    def options(name: str = "journal.jsonl") -> list[str]:
        journal = write_journal(tmp_path / name, read_journal(smoke_run.journal)[0])
        return [*RUN, f"--journal={journal}", "--resume"]

    return options


@pytest.fixture
def copy_of_journal(smoke_run: FinishedRun, tmp_path: Path) -> Path:
    return Path(shutil.copy(smoke_run.journal, tmp_path / "copy.jsonl"))
