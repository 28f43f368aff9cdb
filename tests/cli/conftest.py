"""Runs that several tests of the command line look at: measuring peaks takes seconds."""

from pathlib import Path

import pytest
from cli_program import JOURNAL, OUT, QUICK, SMOKE, Program, read_journal, write_journal
from jsonschema import Draft202012Validator as Validator

from built_programs import PROJECT_ROOT, FinishedRun, read_json


@pytest.fixture(scope="session")
def program(bench_program: Path) -> Program:
    return Program(bench_program)


@pytest.fixture(scope="session")
def validator() -> Validator:
    return Validator(read_json(PROJECT_ROOT / "results/schema.json"))


@pytest.fixture(scope="session")
def smoke_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Every component, pass and dtype of a small model, and every peak."""
    folder = tmp_path_factory.mktemp("smoke")
    files = [f"--benchmark_out={folder / OUT}", f"--journal={folder / JOURNAL}"]
    completed = program.run(*SMOKE, *QUICK, *files)
    # whether it went well is for a test to say, and not for all that look at its files
    assert completed.returncode in {0, 1}, completed.stderr
    return FinishedRun(completed, folder, read_json(folder / OUT))


@pytest.fixture
def with_peaks(smoke_run: FinishedRun, tmp_path: Path) -> list[str]:
    """Options of a run that takes its peaks from a journal with nothing else in it, such as a run
    leaves that was killed right after measuring them."""
    journal = write_journal(tmp_path / JOURNAL, read_journal(smoke_run.folder / JOURNAL)[0])
    return [f"--journal={journal}", "--resume"]
