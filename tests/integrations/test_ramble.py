"""The Ramble application, tried with fakes of Ramble's language and of the program."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_bench
import pytest
import yaml
from fake_ramble import REQUIRED, RESERVED, Application, analyse, expand, load_application

from built_programs import PROJECT_ROOT

REPOSITORY = PROJECT_ROOT / "integrations" / "ramble"
FOLDER = REPOSITORY / "applications" / "tiny-llama-bench"
WORKSPACES = sorted((REPOSITORY / "workspaces").glob("*.yaml"))


@pytest.fixture(scope="module")
def application() -> Application:
    return load_application(FOLDER / "application.py")


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
        assert not call["values"] or call["default"] in call["values"]


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
    log = subprocess.run(
        application.command(workload, settings),
        env=os.environ | {"FAKE": behaviour},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    printed = re.findall(r"^FOM (\S+)/(\S+) = (\S+) (\S+)$", log, re.MULTILINE)
    analysis = analyse(application, log)
    assert analysis.succeeded is succeeded
    found = [
        (case, figure, value, unit)
        for case, figures in analysis.figures.items()
        for figure, (value, unit) in figures.items()
    ]
    assert found == [figure for figure in printed if figure[2] != "nan"]
    assert len(printed) >= 8 or not succeeded
    if behaviour == "not_a_number":
        assert len(found) == len(printed) - 2


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
    (application,) = workspace["applications"]
    for workload, content in workspace["applications"][application]["workloads"].items():
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
    assert list(workspace["applications"]) == [application.name]
    suggested = {call["name"]: call["values"] for call in application.calls["workload_variable"]}
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
        options = fake_bench.parse(command[program + 1 :])
        assert fake_bench.cases_of(options)
        if path.stem == "slurm_amd":
            assert (options.device, options.threads) == ("hip", 8)
            assert "--cpus-per-task=8" in command[:program]
    assert len(names) == len(set(names)) > 1, "an experiment's name says what it is"
    if path.stem == "slurm_amd":
        assert workspace["variants"] == {"workflow_manager": "slurm"}
        assert workspace["variables"]["gpus_per_node"] == 1
