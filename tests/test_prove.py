"""The table of proofs: rows from reports, and a page that does not hide what did not hold."""

import json
import re
from pathlib import Path

import pytest

from tinyllama_tools.proofs.prove import Fault, FaultOutcome, proof_page
from tinyllama_tools.proofs.rows import Check, ProofRow, read_report, row_of_check, run_proofs
from tinyllama_tools.proofs.run_tests import TestProgram

PROPERTY = {
    "section": "FLOPs",
    "check": "model_flops",
    "against": "a counter",
    "tolerance": 0,
    "largest_error": "0",
    "worst": "embedding at grid_00",
    "comparisons": 12,
}


def row(error: float = 0.0, tolerance: float = 1e-5, comparisons: int = 3) -> ProofRow:
    return ProofRow("Values", "logits", "oracle", comparisons, tolerance, error, "logits[7]")


def outcome(failed: tuple[str, ...]) -> FaultOutcome:
    return FaultOutcome(Fault("wrong | scale", "model/a.cpp", (), "golden_test", "Golden"), failed)


def page(rows: list[ProofRow], faults: tuple[FaultOutcome, ...] = ()) -> str:
    return proof_page({"commit": "abc"}, rows, faults, [])


def write_report(path: Path, tests: list[dict[str, object]]) -> Path:
    path.write_text(json.dumps({"testsuites": [{"name": "Suite", "testsuite": tests}]}))
    return path


def test_report_gives_rows_and_failures(tmp_path: Path) -> None:
    tests: list[dict[str, object]] = [
        {"name": "A", "proof_0": json.dumps(PROPERTY), "proof_1": json.dumps(PROPERTY)},
        {"name": "B", "failures": [{"failure": "no"}]},
    ]
    proof = read_report(write_report(tmp_path / "r.json", tests), "golden_test")
    assert len(proof.rows) == 2
    assert proof.rows[0] == ProofRow(
        "FLOPs", "model_flops", "a counter", 12, 0.0, 0.0, "embedding at grid_00"
    )
    assert proof.failed == ("Suite.B",)


@pytest.mark.parametrize(
    ("error", "comparisons", "held"),
    [
        (0.0, 3, True),
        (1e-5, 3, True),
        (1.1e-5, 3, False),
        (float("inf"), 3, False),
        (0.0, 0, False),
    ],
)
def test_row_holds_within_its_tolerance(error: float, comparisons: int, held: bool) -> None:
    assert row(error, comparisons=comparisons).held is held


def test_infinite_error_survives_the_report(tmp_path: Path) -> None:
    tests: list[dict[str, object]] = [
        {"name": "A", "proof_0": json.dumps(PROPERTY | {"largest_error": "inf"})}
    ]
    assert not read_report(write_report(tmp_path / "r.json", tests), "p").rows[0].held


def test_check_becomes_a_row() -> None:
    check = Check("rotary", "untouched", 5, 4.0, 1.9, "position 3")
    assert row_of_check(check, "The oracle") == ProofRow(
        "The oracle", "rotary", "untouched", 5, 4.0, 1.9, "position 3"
    )


def test_program_without_report_has_failed(tmp_path: Path) -> None:
    program = TestProgram("build/crash", ("false",), "--gtest_output=xml:", tmp_path)
    proof = run_proofs(program, tmp_path)
    assert proof.rows == ()
    assert proof.failed == ("ended with status 1 before it wrote its report",)


def test_page_shows_what_held() -> None:
    text = page([row(3e-7)], (outcome(("Golden.A",)),))
    assert (
        "**1 of 1 proofs held, over 3 comparisons; 1 of 1 deliberate faults were found.**" in text
    )
    assert "| logits | oracle | 3 | 1e-05 | 3e-07 | yes |" in re.sub(" +", " ", text)
    assert "wrong \\| scale" in text


def test_page_shows_what_did_not_hold() -> None:
    text = page([row(), row(1.0)], (outcome(()),))
    assert "**1 of 2 proofs held" in text
    assert "**no**: logits[7]" in text
    assert "0 of 1 deliberate faults" in text


def test_page_names_failed_tests() -> None:
    assert "- `golden_test: A.B`" in proof_page({}, [row()], [], ["golden_test: A.B"])
