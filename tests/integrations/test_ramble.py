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


def run(application: Application, folder: Path, workload: str, **settings: str) -> str:
    """The log of an experiment, run with the fake program."""
    given = {"mpi_command": "env", "experiment_run_dir": str(folder), **settings}
    environment = {"FAKE": settings.get("behaviour", "")}
    command = application.command(workload, given)
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    ).stdout


def test_folder_class_and_name_agree_as_ramble_wants(application: Application) -> None:
    assert application.name == FOLDER.name
    assert application.class_name == "".join(w.capitalize() for w in FOLDER.name.split("-"))


def test_the_repository_has_a_namespace() -> None:
    text = (REPOSITORY / "repo.yaml").read_text(encoding="utf-8")
    assert re.fullmatch(r"[a-z_]+", yaml.safe_load(text)["repo"]["namespace"])


def test_every_variable_of_a_command_is_defined_and_used(application: Application) -> None:
    (call,) = application.calls["executable"]
    used = set(re.findall(r"\{(\w+)\}", call["template"]))
    for workload in application.workloads:
        defined = set(application.variables(workload))
        assert used - RESERVED == defined
        assert not defined & (RESERVED | REQUIRED), "Ramble's own"


def test_a_default_is_among_the_values_suggested(application: Application) -> None:
    for call in application.calls["workload_variable"]:
        assert not call["values"] or call["default"] in call["values"]


@pytest.mark.parametrize("workload", ["step", "components"])
def test_every_figure_that_is_printed_is_found(
    application: Application, tmp_path: Path, fake_bench_program: Path, workload: str
) -> None:
    log = run(application, tmp_path, workload, program=str(fake_bench_program))
    printed = re.findall(r"^FOM (\S+)/(\S+) = (\S+) (\S+)$", log, re.MULTILINE)
    assert printed
    analysis = analyse(application, log)
    assert analysis.succeeded
    found = [
        (case, figure, value, unit)
        for case, figures in analysis.figures.items()
        for figure, (value, unit) in figures.items()
    ]
    assert found == printed


def test_a_case_is_a_context(
    application: Application, tmp_path: Path, fake_bench_program: Path
) -> None:
    log = run(
        application,
        tmp_path,
        "step",
        program=str(fake_bench_program),
        model_variant="baseline,optimized",
    )
    cases = analyse(application, log).figures
    assert list(cases) == [
        "full_step/train/baseline/tiny/f32/batch:8/seq:128",
        "full_step/train/optimized/tiny/f32/batch:8/seq:128",
    ]
    assert cases["full_step/train/optimized/tiny/f32/batch:8/seq:128"]["TFLOPS"] == (
        "0.241826",
        "TFLOP/s",
    )


@pytest.mark.parametrize(
    ("behaviour", "succeeded"),
    [("", True), ("part", True), ("fails", False), ("skips", False), ("crashes", False)],
)
def test_success_is_the_success_line(
    application: Application,
    tmp_path: Path,
    fake_bench_program: Path,
    behaviour: str,
    succeeded: bool,
) -> None:
    log = run(
        application,
        tmp_path,
        "step",
        program=str(fake_bench_program),
        behaviour=behaviour,
        model_variant="baseline,optimized",
    )
    assert analyse(application, log).succeeded is succeeded


@pytest.mark.parametrize("line", ["SUCCESS: 12 figures", "SUCCESS: 3 cases measured, 1 skipped"])
def test_the_end_of_a_report_is_success_too(application: Application, line: str) -> None:
    """To Ramble and to ReFrame: there is one grammar."""
    (criterion,) = application.calls["success_criteria"]
    assert re.match(criterion["match"], line)
    assert not re.match(criterion["match"], "FAILED: 1 error, 12 figures")
    text = (REPOSITORY.parent / "reframe" / "tiny_llama.py").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'^SUCCESS = re.compile\(\s*r"(.*)"', text, re.MULTILINE)
    assert re.match(pattern, line) and not re.match(pattern, "SUCCESS: 0 figures")


def test_a_value_that_is_no_number_is_no_figure(
    application: Application, tmp_path: Path, fake_bench_program: Path
) -> None:
    log = run(
        application, tmp_path, "step", program=str(fake_bench_program), behaviour="not_a_number"
    )
    (figures,) = analyse(application, log).figures.values()
    assert "TFLOPS" not in figures
    assert "time" in figures


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
    assert len(names) == len(set(names)), "an experiment's name says what it is"
    assert len(names) > 1


def test_the_slurm_workspace_asks_for_the_gpu_in_use(application: Application) -> None:
    text = (REPOSITORY / "workspaces" / "slurm_amd.yaml").read_text(encoding="utf-8")
    workspace = yaml.safe_load(text)["ramble"]
    assert workspace["variants"] == {"workflow_manager": "slurm"}
    variables = workspace["variables"]
    assert (variables["device"], variables["gpus_per_node"]) == ("hip", 1)
    assert "--cpus-per-task=8" in expand(variables["srun_args"], variables)
    _, _, first = next(experiments(workspace))
    command = application.command("step", {"experiment_run_dir": "/run", "mpi_command": ""} | first)
    assert command[command.index("--threads") + 1] == "8"
