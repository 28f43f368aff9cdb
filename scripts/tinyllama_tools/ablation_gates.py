"""Version 2's quality gates: tests that are run, and what follows from the measured rows."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.ablation_reference import THROUGHPUT_GATE
from tinyllama_tools.ablation_rows import Row, is_decisive
from tinyllama_tools.ablation_study import GateRun, Study
from tinyllama_tools.peer_process import placed_threads
from tinyllama_tools.proof_rows import read_report

PARITY = "training parity"
DETERMINISM = "determinism"
NARROW_PARITY = "training parity of narrow types"
# Name, and the tests of golden_test that decide it.
TESTS = (
    (PARITY, "TrainingParityTest.Float32*"),
    (NARROW_PARITY, "TrainingParityTest.NarrowTypes*"),
    (DETERMINISM, "Determinism*"),
)
PROGRAM = "model/golden_test"
TIMEOUT_S = 7200
HELD, NOT_HELD, UNKNOWN = "held", "**not held**", "not shown"


@dataclass(frozen=True)
class Gate:
    """One line: what has to hold, how it stands, and the figure behind that."""

    name: str
    verdict: str
    evidence: str


def run_tests(build_folder: Path, name: str, pattern: str) -> GateRun:
    """Runs the tests of a gate; every way of not running them is a reason, not a success."""
    program = build_folder / PROGRAM
    gate = GateRun(name, f"{PROGRAM} --gtest_filter={pattern}")
    if not program.is_file():
        gate.reason = f"{PROGRAM} is not built"
        return gate
    with tempfile.TemporaryDirectory(prefix="tiny_llama_gate_") as folder:
        report = Path(folder) / "report.json"
        command = [str(program), f"--gtest_filter={pattern}", f"--gtest_output=json:{report}"]
        try:
            status = subprocess.run(
                command,
                env=placed_threads(os.environ) | {"GTEST_COLOR": "no"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            gate.reason = f"did not end within {TIMEOUT_S} s"
            return gate
        if not report.exists():
            gate.reason = f"ended with status {status} before it wrote its report"
            return gate
        return read_gate(gate, report, status)


def read_gate(gate: GateRun, report: Path, status: int) -> GateRun:
    """Fills in what the report says."""
    proof = read_report(report, PROGRAM)
    tests = int(json.loads(report.read_text(encoding="utf-8"))["tests"])
    gate.ran = tests - len(proof.skipped)
    gate.failed = proof.failed
    if status != 0 and not gate.failed:
        gate.reason = f"ended with status {status} although no test failed"
    elif gate.ran == 0:
        gate.reason = "no such test ran"
    return gate


def gate_of_tests(study: Study, name: str, title: str) -> Gate:
    """A gate that tests decide. Not having been run is not holding."""
    gate = next((found for found in study.gates if found.name == name), None)
    if gate is None:
        return Gate(title, "not measured", "left out of this run")
    if gate.failed:
        return Gate(title, NOT_HELD, f"`{gate.command}`: failed: {', '.join(gate.failed)}")
    if gate.reason:
        return Gate(title, "not measured", f"`{gate.command}`: {gate.reason}")
    return Gate(title, HELD, f"`{gate.command}`: {gate.ran} tests passed")


def accuracy_gate(study: Study, rows: Sequence[Row]) -> Gate:
    """The training parity test, and every case's comparison with the float64 baseline."""
    is_float32 = all(row.cell.point.dtype == "f32" for row in rows)
    name = PARITY if is_float32 else NARROW_PARITY
    gate = gate_of_tests(study, name, "No degradation in model accuracy")
    errors = [e for row in rows if (e := row.cell.counter("max_rel_error")) is not None]
    worst = f"; largest error against float64 {max(errors):.1e}" if errors else ""
    failed = [row.cell.note for row in rows if row.cell.failure]
    if failed:
        return Gate(gate.name, NOT_HELD, failed[0])
    return Gate(gate.name, gate.verdict, f"{gate.evidence}{worst}")


def memory_gate(row: Row) -> Gate:
    """Peak memory not above the baseline's. It is counted to the byte."""
    name = "Memory usage reduced or stable"
    ratio = row.memory_ratio
    if ratio is None:
        return Gate(name, "not measured", row.cell.note)
    return Gate(name, HELD if ratio <= 1 else NOT_HELD, f"{ratio:.3f} of the baseline's peak")


def throughput_gate(row: Row) -> Gate:
    """More than 30 % above the baseline; the interval has to say so."""
    name = "Throughput improved by >30%"
    ratio = row.ratio
    if ratio is None:
        return Gate(name, "not measured", row.cell.note)
    text = f"{ratio.text()} times the baseline's"
    if ratio.interval is None or not is_decisive(ratio):
        return Gate(name, UNKNOWN, f"{text}; fewer than five turns decide nothing")
    if ratio.interval.low > THROUGHPUT_GATE:
        return Gate(name, HELD, text)
    return Gate(name, NOT_HELD if ratio.interval.high <= THROUGHPUT_GATE else UNKNOWN, text)


def gates_of(study: Study, row: Row) -> list[Gate]:
    """All four gates of a set at one point."""
    return [
        accuracy_gate(study, [row]),
        gate_of_tests(study, DETERMINISM, "Deterministic execution maintained"),
        memory_gate(row),
        throughput_gate(row),
    ]
