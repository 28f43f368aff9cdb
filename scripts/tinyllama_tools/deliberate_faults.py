"""Faults put into the model on purpose: each has to make the right test fail.

A copy of one source file is changed, compiled with the build's own command and linked in front of
the library that holds the right one. Neither the sources nor the build folder change.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 600


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
            timeout=TIMEOUT_S,
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
