"""Rows of the table of proofs, from the oracle's checks and from the reports of test programs.

Without torch: other commands read reports of test programs too."""

from __future__ import annotations

import json
import math
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.proofs.run_tests import TestProgram


@dataclass(frozen=True)
class Check:
    """A row of the table of proofs.

    `cases`: how many comparisons it is made of. `tolerance`, `largest_error`: relative, unless
    `name` says in what unit they are. `where`: the place of the largest error.
    """

    name: str
    compared_with: str
    cases: int
    tolerance: float
    largest_error: float
    where: str = ""

    @property
    def held(self) -> bool:
        """Some cases, and all of them within the tolerance."""
        return self.cases > 0 and self.largest_error <= self.tolerance


@dataclass
class Errors:
    """Collects the comparisons of one proof."""

    cases: int = 0
    largest: float = 0.0
    where: str = ""

    def add(self, error: float, where: str, cases: int = 1) -> None:
        """The largest error among so many cases; a NaN is as wrong as can be."""
        self.cases += cases
        error = math.inf if math.isnan(error) else error
        if error > self.largest:
            self.largest, self.where = error, where

    def check(self, name: str, compared_with: str, tolerance: float) -> Check:
        """The proof that these comparisons make."""
        return Check(name, compared_with, self.cases, tolerance, self.largest, self.where)


TIMEOUT_S = 1200
PROPERTY_PREFIX = "proof_"


@dataclass(frozen=True)
class ProofRow:
    """One claim and how it held. `worst`: where the largest error was seen."""

    section: str
    check: str
    against: str
    comparisons: int
    tolerance: float
    largest_error: float
    worst: str

    @property
    def held(self) -> bool:
        """Something was compared, and nothing was farther off than allowed."""
        return self.comparisons > 0 and self.largest_error <= self.tolerance


@dataclass(frozen=True)
class ProgramProof:
    """What one test program proved, and which of its tests failed or were skipped."""

    program: str
    rows: tuple[ProofRow, ...]
    failed: tuple[str, ...]
    skipped: tuple[str, ...] = ()


def row_of_check(check: Check, section: str) -> ProofRow:
    """A check that Python made."""
    return ProofRow(
        section,
        check.name,
        check.compared_with,
        check.cases,
        check.tolerance,
        check.largest_error,
        check.where,
    )


def row_of_property(text: str) -> ProofRow:
    """What ProofRecord (model/proof_record.hpp) handed to the report."""
    found = json.loads(text)
    return ProofRow(
        found["section"],
        found["check"],
        found["against"],
        int(found["comparisons"]),
        float(found["tolerance"]),
        float(found["largest_error"]),
        found["worst"],
    )


def read_report(report: Path, program: str) -> ProgramProof:
    """Rows and failures of a GoogleTest report in JSON."""
    rows: list[ProofRow] = []
    failed: list[str] = []
    skipped: list[str] = []
    for suite in json.loads(report.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            keys = [key for key in test if key.startswith(PROPERTY_PREFIX)]
            rows += [row_of_property(test[key]) for key in keys]
            if "failures" in test:
                failed.append(f"{suite['name']}.{test['name']}")
            if test.get("result") == "SKIPPED":
                skipped.append(f"{suite['name']}.{test['name']}")
    return ProgramProof(program, tuple(rows), tuple(failed), tuple(skipped))


def run_proofs(program: TestProgram, scratch: Path) -> ProgramProof:
    """Runs a GoogleTest program; one that ends without a report has failed as a whole."""
    report = scratch / f"{program.name.replace('/', '_')}.json"
    result = subprocess.run(
        [*program.command, f"--gtest_output=json:{report}"],
        cwd=program.folder,
        env=os.environ | program.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if not report.exists():
        reason = f"ended with status {result.returncode} before it wrote its report"
        return ProgramProof(program.name, (), (reason,))
    proof = read_report(report, program.name)
    if result.returncode != 0 and not proof.failed:
        reason = f"ended with status {result.returncode} although no test failed"
        return ProgramProof(program.name, proof.rows, (reason,), proof.skipped)
    return proof
