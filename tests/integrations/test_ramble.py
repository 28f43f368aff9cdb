"""The Ramble application, tried with a fake of Ramble's language, and with the program and a fake
of it."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_suite
import pytest
import yaml
from fake_ramble import REQUIRED, RESERVED, Application, expand

from built_programs import PROJECT_ROOT

REPOSITORY = PROJECT_ROOT / "integrations" / "ramble"
FOLDER = REPOSITORY / "applications" / "tiny-llama-bench"
WORKSPACES = sorted((REPOSITORY / "workspaces").glob("*.yaml"))


@pytest.fixture(scope="module")
def application() -> Application:
    return Application(FOLDER / "application.py")


def figures_in(log: str) -> list[tuple[str, ...]]:
    """Case, figure, value and unit of every line that the program prints for Ramble."""
    return re.findall(r"^FOM (\S+)/(\S+) = (\S+) (\S+)$", log, re.MULTILINE)


def test_application_is_as_ramble_wants_it(application: Application) -> None:
    assert application.name == FOLDER.name
    assert application.class_name == "".join(w.capitalize() for w in FOLDER.name.split("-"))
    text = (REPOSITORY / "repo.yaml").read_text(encoding="utf-8")
    assert re.fullmatch(r"[a-z_]+", yaml.safe_load(text)["repo"]["namespace"])
    (call,) = application.calls["executable"]
    used = set(re.findall(r"\{(\w+)\}", call["template"]))
    for workload in application.workloads:
        defined = set(application.variables(workload))
        assert used - RESERVED == defined
        assert not defined & (RESERVED | REQUIRED), "Ramble's own"
    for call in application.calls["workload_variable"]:
        assert "values" not in call or call["default"] in call["values"]


@pytest.mark.parametrize(
    ("workload", "behaviour", "succeeded"),
    [
        ("step", "", True),
        ("components", "", True),
        ("step", "part", True),
        ("step", "not_a_number", True),
        ("step", "fails", False),
        ("step", "skips", False),
        ("step", "crashes", False),
    ],
)
def test_every_figure_is_found_and_success_is_the_success_line(
    application: Application,
    tmp_path: Path,
    fake_bench_program: Path,
    workload: str,
    behaviour: str,
    succeeded: bool,
) -> None:
    """A case is a context, in which its figures stand; a value that is no number is none."""
    settings = {"mpi_command": "env", "experiment_run_dir": str(tmp_path)}
    settings |= {"program": str(fake_bench_program), "model_variant": "baseline,optimized"}
    command = application.command(workload, settings)
    environment = os.environ | {"FAKE": behaviour}
    log = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    printed = figures_in(log)
    success, found = application.analyse(log)
    assert success is succeeded
    assert found == [figure for figure in printed if figure[2] != "nan"]
    assert len(printed) >= 8 or not succeeded
    assert len(found) == len(printed) - (2 if behaviour == "not_a_number" else 0)


def test_the_program_prints_what_the_fake_does_and_ramble_finds_every_figure(
    application: Application, bench_program: Path
) -> None:
    """Names, units and order, of a step and of a component without products."""
    choice = ["--components=optimizer,full_step", "--variants=optimized", "--figures-of-merit"]
    command = [str(bench_program), "--device=cpu", *choice, *fake_suite.QUICK_STEP]
    log = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert log.splitlines()[-1] == "SUCCESS: 2 cases measured"
    assert application.analyse(log) == (True, figures_in(log))
    cases = fake_suite.cases_of(fake_suite.parse([*choice, "--batch=2", "--seq=16"]))
    lines = [line for case in cases for line in fake_suite.figure_lines(case, "")]
    made_up, measured = (
        [(case, figure, unit) for case, figure, _, unit in figures_in(text)]
        for text in ("\n".join(lines), log)
    )
    assert made_up == measured


@pytest.mark.parametrize("line", ["SUCCESS: 12 figures", "SUCCESS: 3 cases measured, 1 skipped"])
def test_the_end_of_a_report_is_success_too(application: Application, line: str) -> None:
    """To Ramble and to ReFrame: there is one grammar."""
    (criterion,) = application.calls["success_criteria"]
    assert re.match(criterion["match"], line)
    assert not re.match(criterion["match"], "FAILED: 1 error, 12 figures")
    text = (REPOSITORY.parent / "reframe" / "tiny_llama.py").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'^SUCCESS = re.compile\(\s*r"(.*)"', text, re.MULTILINE)
    assert re.match(pattern, line) and not re.match(pattern, "SUCCESS: 0 figures")


def experiments(workspace: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Workload, name and variables of every experiment that a workspace describes."""
    (application,) = workspace["applications"].values()
    for workload, content in application["workloads"].items():
        for name, experiment in content["experiments"].items():
            variables = workspace["variables"] | experiment["variables"]
            axes = experiment.get("matrix", [])
            assert all(isinstance(variables[axis], list) for axis in axes), name
            for values in itertools.product(*(variables[axis] for axis in axes)):
                chosen = variables | dict(zip(axes, values, strict=True))
                yield workload, expand(name, chosen), chosen


@pytest.mark.parametrize("path", WORKSPACES, ids=lambda path: path.stem)
def test_a_workspace_gives_commands_that_the_program_understands(
    application: Application, path: Path
) -> None:
    workspace = yaml.safe_load(path.read_text(encoding="utf-8"))["ramble"]
    is_cluster = path.stem == "slurm_amd"
    assert list(workspace["applications"]) == [application.name]
    variables = application.calls["workload_variable"]
    suggested = {call["name"]: call["values"] for call in variables if "values" in call}
    names = []
    for workload, name, variables in experiments(workspace):
        for variable in ("model_size", "model_dtype"):
            assert variables.get(variable, suggested[variable][0]) in suggested[variable]
        names.append(f"{workload}/{name}")
        assert not [name for name, value in variables.items() if isinstance(value, list)]
        # what its Slurm workflow manager adds
        ramble = {"experiment_run_dir": "/run", "mpi_command": "srun {srun_args}"}
        command = application.command(workload, ramble | variables)
        program = command.index(str(variables["program"]))
        options = fake_suite.parse(command[program + 1 :])
        assert fake_suite.cases_of(options)
        assert not is_cluster or (options.device, options.threads) == ("hip", 8)
        assert not is_cluster or "--cpus-per-task=8" in command[:program]
    assert len(names) == len(set(names)) > 1, "an experiment's name says what it is"
    if is_cluster:
        assert workspace["variants"] == {"workflow_manager": "slurm"}
        assert workspace["variables"]["gpus_per_node"] == 1
