"""Breaking the model on purpose makes the right test fail; needs the build folder."""

import json
from pathlib import Path

import pytest

from tinyllama_tools.proofs.prove import CONTROLS, FAULTS, Fault, FaultyBuild, failed_tests

PROJECT_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def build(bench_program: Path, tmp_path: Path) -> FaultyBuild:
    return FaultyBuild(PROJECT_ROOT, bench_program.parents[1], tmp_path)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found(fault: Fault, build: FaultyBuild) -> None:
    assert build.outcome(fault).found


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.program)
def test_without_a_fault_nothing_fails(control: Fault, build: FaultyBuild) -> None:
    assert build.outcome(control).failed == ()


def test_stale_replacement_is_an_error(build: FaultyBuild) -> None:
    stale = Fault("stale", "model/rotary.cpp", (("no such text", ""),), "golden_test", "x")
    with pytest.raises(RuntimeError, match="no longer has 'no such text'"):
        build.outcome(stale)


def test_program_without_report_finds_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="before it wrote its report"):
        failed_tests(tmp_path / "missing.json")


def test_report_that_ran_no_test_finds_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"testsuites": []}))
    assert failed_tests(report) == ()
