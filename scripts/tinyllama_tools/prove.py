"""Runs every proof and writes the table of what was compared with what, and how well it held.

Exit status: 0 all held and every fault was found; 1 not; 2 the build folder is not complete.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

from tinyllama_tools.deliberate_faults import CONTROLS, FAULTS, FaultOutcome, FaultyBuild
from tinyllama_tools.oracle_checks import ALL_CHECKS
from tinyllama_tools.pinned_version import other_transformers
from tinyllama_tools.proof_page import proof_page
from tinyllama_tools.proof_rows import ProofRow, row_of_check, run_proofs
from tinyllama_tools.test_programs import gtest_programs
from tinyllama_tools.weights_checks import check_round_trip

WEIGHTS_SECTION = "Weights in and out"
ORACLE_SECTION = "The oracle itself"
SECTIONS = ("Values, gradients and updates", "Training", "FLOPs", "Memory", WEIGHTS_SECTION)
PROJECT_ROOT = Path(__file__).resolve().parents[2]


def say(text: str) -> None:
    """Progress, a line a step."""
    print(text, file=sys.stderr, flush=True)


def prove_programs(build_folder: Path, scratch: Path) -> tuple[list[ProofRow], list[str]]:
    """Rows of all test programs, and the tests of those with rows that failed."""
    rows: list[ProofRow] = []
    failed: list[str] = []
    for program in gtest_programs(build_folder, None):
        proof = run_proofs(program, scratch)
        counts = f"{len(proof.rows)} proofs, {len(proof.failed)} tests failed"
        say(f"{program.name}: {counts}, {len(proof.skipped)} skipped")
        rows += proof.rows
        failed += [f"{program.name}: {name}" for name in proof.failed]
    for section in SECTIONS:
        if not any(row.section == section for row in rows):
            failed.append(f"no test proved anything about: {section}")
    if not any("sanitizers" in row.against for row in rows):
        failed.append("weights_sanitized_test was not built: this compiler has no sanitizers")
    rows.sort(key=lambda row: SECTIONS.index(row.section) if row.section in SECTIONS else 99)
    return rows, failed


def prove_round_trip(build_folder: Path) -> ProofRow:
    """Weights through transformers, C++ and transformers again."""
    check = check_round_trip(build_folder / "tests" / "fuzzing" / "copy_weights")
    return row_of_check(check, WEIGHTS_SECTION)


def prove_oracle() -> list[ProofRow]:
    """Rows of the oracle's own checks."""
    rows = []
    for check in ALL_CHECKS:
        row = row_of_check(check(), ORACLE_SECTION)
        say(f"oracle: {row.check}: largest error {row.largest_error:.2g}")
        rows.append(row)
    return rows


def find_faults(build_folder: Path, scratch: Path) -> list[FaultOutcome]:
    """What the tests say to each deliberate fault."""
    build = FaultyBuild(PROJECT_ROOT, build_folder, scratch)
    for control in CONTROLS:
        failed = build.outcome(control).failed
        if failed:
            raise RuntimeError(f"without a fault {control.program} fails: {', '.join(failed)}")
    outcomes = []
    for fault in FAULTS:
        outcome = build.outcome(fault)
        say(f"fault: {fault.name}: {'found' if outcome.found else 'NOT FOUND'}")
        outcomes.append(outcome)
    return outcomes


def run_text(command: list[str]) -> str:
    """Standard output, or nothing where the program cannot say."""
    result = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""


def processor_name() -> str:
    """As the system calls it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def libtorch_version(build_folder: Path) -> str:
    """Of the libtorch that the programs are linked to, which need not be this Python's torch."""
    cache = (build_folder / "CMakeCache.txt").read_text()
    folder = re.search(r"^Torch_DIR:[A-Z]+=(.*)$", cache, re.MULTILINE)
    version_file = Path(folder.group(1) if folder else "") / "TorchConfigVersion.cmake"
    found = re.search(r'PACKAGE_VERSION "([^"]+)"', version_file.read_text())
    return found.group(1) if found else "unknown"


def environment(build_folder: Path) -> dict[str, str]:
    """What the proofs ran on."""
    git = ["git", "-c", "safe.directory=*"]
    commit = run_text([*git, "rev-parse", "--short=12", "HEAD"]) or "unknown"
    # this page itself does not count
    status = [*git, "status", "--porcelain", "--untracked-files=no", "--", ":!results/PROOF.md"]
    changed = " with changes" if run_text(status) else ""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": f"{commit}{changed}",
        "processor": processor_name(),
        "libtorch": libtorch_version(build_folder),
        "oracle": f"torch {torch.__version__}, transformers {transformers.__version__}",
    }


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/prove", description=__doc__)
    parser.add_argument("--build-folder", type=Path, default=PROJECT_ROOT / "build")
    parser.add_argument("-o", "--output", type=Path, default=PROJECT_ROOT / "results/PROOF.md")
    parser.add_argument(
        "--without-faults",
        action="store_true",
        help="leave the deliberate faults out, whose tests take some minutes to compile",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Writes the page and says in one line how it went."""
    options = parse_options(arguments)
    other_version = other_transformers()
    if other_version:
        say(f"error: {other_version}")
        return 2
    # sums in one order, as the golden files were made
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="tiny_llama_prove_") as folder:
        try:
            rows, failed = prove_programs(options.build_folder, Path(folder))
            rows.append(prove_round_trip(options.build_folder))
            rows += prove_oracle()
            faults = (
                [] if options.without_faults else find_faults(options.build_folder, Path(folder))
            )
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            say(f"error: {error}")
            return 2
    options.output.write_text(proof_page(environment(options.build_folder), rows, faults, failed))
    not_held = [row for row in rows if not row.held]
    not_found = [outcome for outcome in faults if not outcome.found]
    print(
        f"{len(rows) - len(not_held)} of {len(rows)} proofs held, "
        f"{len(faults) - len(not_found)} of {len(faults)} faults found, "
        f"{len(failed)} tests failed: {options.output}"
    )
    return 1 if not_held or not_found or failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
