"""scripts/prove: runs every proof and writes the table of what was compared with what.

Faults put into the model on purpose: each has to make the right test fail.

A copy of one source file is changed, compiled with the build's own command and linked in front of
the library that holds the right one. Neither the sources nor the build folder change.

Exit status: 0 all held and every fault was found; 1 not; 2 the build folder is not complete.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from tinyllama_tools.core.app import PROJECT as PROJECT_ROOT
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.proofs.check import other_transformers
from tinyllama_tools.proofs.oracle_checks import ALL_CHECKS, check_round_trip
from tinyllama_tools.proofs.rows import ProofRow, row_of_check, run_proofs
from tinyllama_tools.proofs.run_tests import gtest_programs

INTRODUCTION = """\
Everything that the suite's numbers rest on, compared with programs that are not ours. Each row can
be checked: the golden files and their writer are in
[fixtures/golden/](../fixtures/golden/README.md), the tests are named after what they prove.
`scripts/prove` runs all of it again and writes this page.
"""
NOTES = """\
## How to read it

- Errors are relative: of tensors to the largest magnitude of the expected tensor, of counts to the
  expected count; losses are in nats a token. Tolerance 0 means equal, to the unit or to the byte.
- `model_flops` counts scores in full (S²), as torch's counters do; `causal_flops` beside it counts
  the S (S + 1) / 2 that the mask leaves; `hardware_flops` adds what a variant computes again; the
  look-up of the embedding counts 0 in all of them and is given as `lookup_flops`, because the
  estimate of 6 FLOPs a parameter and token counts it. LlamaForCausalLM makes its rotary angles by a
  small product in every forward; the suite makes them once, so that product, counted apart, is
  taken off.
- float64 means float64 throughout: the oracle's own requests for float32 (norms, softmax, loss) are
  answered in float64. Rotary tables are float32 on both sides, as the world's models have them.
- Bytes are those of live tensors on a CPU; scratch memory inside libraries is in neither count
  (peaks are read with oneDNN off).
"""


def number(value: float) -> str:
    """Two digits; 0 as it is."""
    return "0" if value == 0 else f"{value:.2g}"


def section_lines(section: str, rows: Iterable[ProofRow]) -> list[str]:
    """One heading and its table."""
    header = ("what", "against", "comparisons", "tolerance", "largest error", "held")
    cells = (
        (
            row.check,
            row.against,
            str(row.comparisons),
            number(row.tolerance),
            number(row.largest_error),
            "yes" if row.held else f"**no**: {row.worst}",
        )
        for row in rows
    )
    return [f"## {section}", "", *markdown_table(header, cells), ""]


def fault_lines(outcomes: Iterable[FaultOutcome]) -> list[str]:
    """The faults put in on purpose, and what found them."""
    header = ("fault", "in", "tests that have to find it", "found")
    cells = (
        (
            outcome.fault.name,
            f"`{outcome.fault.source}`",
            f"`{outcome.fault.program}`: `{outcome.fault.found_by}`",
            f"yes, {len(outcome.failed)} failed" if outcome.found else "**no**",
        )
        for outcome in outcomes
    )
    text = "Each was put into a copy of the source and linked into the tests, which have to fail."
    return ["## Broken on purpose", "", text, "", *markdown_table(header, cells), ""]


def proof_page(
    environment: dict[str, str],
    rows: Sequence[ProofRow],
    faults: Sequence[FaultOutcome],
    failed: Sequence[str],
) -> str:
    """The whole page. `environment`: what the proofs ran on; `failed`: tests beside the rows."""
    held = sum(row.held for row in rows)
    found = sum(outcome.found for outcome in faults)
    comparisons = sum(row.comparisons for row in rows)
    summary = f"**{held} of {len(rows)} proofs held, over {comparisons:,} comparisons"
    summary += f"; {found} of {len(faults)} deliberate faults were found.**" if faults else ".**"
    lines = ["# Proof", "", INTRODUCTION, summary, ""]
    lines += [*markdown_table(("", ""), environment.items()), ""]
    if failed:
        lines += ["Tests that failed:", "", *(f"- `{name}`" for name in failed), ""]
    for section in dict.fromkeys(row.section for row in rows):
        lines += section_lines(section, (row for row in rows if row.section == section))
    if faults:
        lines += fault_lines(faults)
    return "\n".join(lines) + "\n" + NOTES


FAULT_TIMEOUT_S = 600


@dataclass(frozen=True)
class Fault:
    """One mistake that people make, and the tests that have to find it."""

    name: str
    source: str
    replacements: tuple[tuple[str, str], ...]
    program: str
    found_by: str
    """Part of the name of the tests that have to fail; only these are run."""


@dataclass(frozen=True)
class FaultOutcome:
    """What the tests said to a fault."""

    fault: Fault
    failed: tuple[str, ...]

    @property
    def found(self) -> bool:
        """Whether a test that is meant to find this fault failed."""
        return bool(self.failed)


GOLDEN = "golden_test"
COMPONENTS = "components_test"
FAULTS = (
    Fault(
        "rotary convention swapped: neighbours are paired instead of halves",
        "model/rotary.cpp",
        (
            (
                "return at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);",
                "const at::Tensor pairs = x.unflatten(-1, {half, 2});\n"
                "  return at::cat({pairs.narrow(-1, 1, 1).neg(), pairs.narrow(-1, 0, 1)}, -1)"
                ".flatten(-2);",
            ),
            ("at::cat({angles, angles}, -1)", "angles.repeat_interleave(2, -1)"),
        ),
        GOLDEN,
        "GoldenTest.LogitsLossAndEveryGradient",
    ),
    Fault(
        "rotary embedding turns backwards",
        "model/rotary.cpp",
        (
            (
                "{x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}",
                "{x.narrow(-1, half, half), x.narrow(-1, 0, half).neg()}",
            ),
        ),
        GOLDEN,
        "GoldenTest.LogitsLossAndEveryGradient",
    ),
    Fault(
        "scale of attention: 1 / head_dim instead of its root",
        "model/attention.cpp",
        (("std::sqrt(static_cast<double>(q.size(-1)))", "static_cast<double>(q.size(-1))"),),
        GOLDEN,
        "GoldenTest.LogitsLossAndEveryGradient",
    ),
    Fault(
        "labels shifted twice",
        "model/loss.cpp",
        (("tokens.narrow(1, 1, seq - 1), {0, 1}", "tokens.narrow(1, 2, seq - 2), {0, 2}"),),
        GOLDEN,
        "GoldenTest.LogitsLossAndEveryGradient",
    ),
    Fault(
        "K and V heads interleaved instead of repeated",
        "model/attention.cpp",
        (
            (
                "q.mul_(score_scale(q))\n          .transpose(1, 2)",
                "q.mul_(score_scale(q)).unflatten(2, {-1, kv_heads}).permute({0, 3, 2, 1, 4})",
            ),
            (
                ".view({batch, heads, seq, head_dim})\n      .transpose(1, 2)",
                ".view({batch, kv_heads, -1, seq, head_dim}).permute({0, 3, 2, 1, 4})",
            ),
        ),
        GOLDEN,
        "GoldenTest.LogitsLossAndEveryGradient/gqa_groups_4",
    ),
    Fault(
        "positions see their future: no mask",
        "model/attention.cpp",
        ((".add_(mask)", ""),),
        GOLDEN,
        "GoldenTest.LogitsLossAndEveryGradient",
    ),
    Fault(
        "sdpa: positions see their future",
        "model/attention.cpp",
        (("/*is_causal=*/true", "/*is_causal=*/false"),),
        GOLDEN,
        "_sdpa_",
    ),
    Fault(
        "fused_loss: gradient of the sum of the losses instead of their mean",
        "model/loss.cpp",
        (("gradients[0] / saved[2]", "gradients[0]"),),
        GOLDEN,
        "_fused_loss_",
    ),
    Fault(
        "RMSNorm without eps",
        "model/rms_norm.cpp",
        (("mean_square + eps", "mean_square + 0 * eps"),),
        GOLDEN,
        "GoldenTest.LogitsLossAndEveryGradient",
    ),
    Fault(
        "weight decay added to the gradient",
        "model/adamw.cpp",
        (
            (
                "const at::Tensor& gradient = lists.gradients[i];",
                "const at::Tensor gradient = "
                "lists.gradients[i] + options_.weight_decay * parameter;",
            ),
            ("parameter.mul_(1.0 - options_.learning_rate * options_.weight_decay);", ""),
        ),
        GOLDEN,
        "GoldenTrainingTest.WeightsAfterFiveSteps",
    ),
    Fault(
        "AdamW without bias correction of the second moment",
        "model/adamw.cpp",
        ((".div_(root_correction2)", ""),),
        GOLDEN,
        "GoldenTrainingTest.WeightsAfterFiveSteps",
    ),
    Fault(
        "optimiser does nothing",
        "model/adamw.cpp",
        (("parameter.addcdiv_(m, denominator, -step_size);", ""),),
        GOLDEN,
        "TrainingParityTest.Float32FollowsTheOraclesCurve",
    ),
    Fault(
        "no loss scaling in amp_f16",
        "model/train_step.cpp",
        (
            (
                "if (model.dtype() == Dtype::amp_f16) scaler_",
                "if (model.dtype() == Dtype::f64) scaler_",
            ),
        ),
        GOLDEN,
        "TrainingParityTest.ScaledLoss",
    ),
    Fault(
        "cost: K and V projections at the full width",
        "model/attention.cpp",
        (("const int64_t Kd = config.kv_dim();", "const int64_t Kd = config.hidden_dim();"),),
        COMPONENTS,
        "FlopProof.ModelFlopsAreTheOraclesCount",
    ),
    Fault(
        "memory: gradients are never added in place",
        "model/meta_device.cpp",
        (("if (is_sum_of_gradients(a))", "if (false)"),),
        COMPONENTS,
        "MemoryPredictionTest.PeakAndLiveBytesAreTheMeters",
    ),
    Fault(
        "safetensors: tensors may overlap",
        "model/safetensors.cpp",
        (("if (tensor.begin < covered) {", "if (false) {"),),
        "weights_test",
        "SafetensorsHeader.RefusesOverlaps",
    ),
    Fault(
        "safetensors: tensors may overlap and leave holes",
        "model/safetensors.cpp",
        (
            ("if (tensor.begin < covered) {", "if (false) {"),
            ("if (tensor.begin > covered) {", "if (false) {"),
        ),
        "weights_test",
        "SafetensorsFuzz.DamagedHeaders",
    ),
)
# The same with nothing changed, in every program that has to find a fault: has to find none.
CONTROLS = tuple(
    Fault(f"none ({program})", source, (), program, "")
    for program, source in {fault.program: fault.source for fault in FAULTS}.items()
)


class FaultyBuild:
    """Builds and runs test programs with a fault, from a build folder that is complete."""

    def __init__(self, project_root: Path, build_folder: Path, scratch: Path) -> None:
        self.project_root = project_root
        self.build_folder = build_folder
        self.scratch = scratch
        commands = json.loads((build_folder / "compile_commands.json").read_text())
        # programs under sanitizers compile some sources again; what is replaced is the library's
        self.compile_commands = {
            entry["file"]: entry["command"]
            for entry in commands
            if "/CMakeFiles/tiny_llama_" in entry["command"]
        }

    def outcome(self, fault: Fault) -> FaultOutcome:
        """Runs the fault's program; RuntimeError where the fault cannot be put in or linked."""
        program = self.link(fault.program, self.compile(fault))
        report = self.scratch / "report.json"
        report.unlink(missing_ok=True)
        # without the slow tests, where no fault names the tests that have to find it
        tests = f"*{fault.found_by}*" if fault.found_by else "-*Training*:*Fuzz*:*Counted*"
        subprocess.run(
            [
                str(program),
                f"--gtest_filter={tests}",
                f"--gtest_output=json:{report}",
            ],
            capture_output=True,
            check=False,
            timeout=FAULT_TIMEOUT_S,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        return FaultOutcome(fault, failed_tests(report))

    def compile(self, fault: Fault) -> Path:
        """The object of the changed copy."""
        original = self.project_root / fault.source
        text = original.read_text()
        for old, new in fault.replacements:
            if old not in text:
                raise RuntimeError(f"{fault.source} no longer has '{old}': '{fault.name}' is stale")
            text = text.replace(old, new)
        source = self.scratch / original.name
        source.write_text(text)
        target = source.with_suffix(".o")
        command = self.compile_commands[str(original)]
        before, _, _ = command.rpartition(" -o ")
        self.run_shell(f"{before} -w -o '{target}' -c '{source}'", fault.name)
        return target

    def link(self, program: str, faulty_object: Path) -> Path:
        """The test program with that object before all libraries, so that it is the one taken."""
        listed = self.run_shell(f"ninja -t commands {program}", program)
        command = listed.rstrip().rpartition("\n")[2]
        before, _, after = command.partition(" -o ")
        _, _, libraries = after.partition(" ")
        target = self.scratch / program
        self.run_shell(f"{before} '{faulty_object}' -o '{target}' {libraries}", program)
        return target

    def run_shell(self, command: str, what: str) -> str:
        """Standard output of a command in the build folder."""
        result = subprocess.run(
            command,
            shell=True,
            cwd=self.build_folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise RuntimeError(f"{what}: {command}\n{result.stdout}{result.stderr}")
        return result.stdout


def failed_tests(report: Path) -> tuple[str, ...]:
    """Names of the tests that failed. RuntimeError without a report: that finds nothing."""
    if not report.exists():
        raise RuntimeError("the test program ended before it wrote its report")
    suites = json.loads(report.read_text())["testsuites"]
    return tuple(
        f"{suite['name']}.{test['name']}"
        for suite in suites
        for test in suite["testsuite"]
        if "failures" in test
    )


WEIGHTS_SECTION = "Weights in and out"
ORACLE_SECTION = "The oracle itself"
SECTIONS = ("Values, gradients and updates", "Training", "FLOPs", "Memory", WEIGHTS_SECTION)


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
