"""The Ramble application, tried with the program and a fake of Ramble, which is not on PyPI."""

from __future__ import annotations

import enum
import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from fake_cluster import QUICK_STEP

from built_programs import PROJECT_ROOT

REPOSITORY = PROJECT_ROOT / "integrations" / "ramble"
FOLDER = REPOSITORY / "applications" / "tiny-llama-bench"
WORKSPACES = sorted((REPOSITORY / "workspaces").glob("*.yaml"))
FomType = enum.Enum("FomType", ["TIME", "THROUGHPUT", "MEASURE", "CATEGORY", "INFO", "UNDEFINED"])
# Ramble's directives with their parameters, as far as the application needs them.
# https://ramble.readthedocs.io/en/latest/dev_guides/application_dev_guide.html
DIRECTIVES: dict[str, Callable[..., dict[str, Any]]] = {
    "executable": lambda name, template, *, use_mpi=False: locals(),
    "workload": lambda name, executables: locals(),
    "workload_variable": lambda name, default, description, values=None, workloads=(): locals(),
    "figure_of_merit_context": lambda name, regex, output_format: locals(),
    "figure_of_merit": lambda name, *, fom_regex, group_name, units, contexts, fom_type: locals(),
    "success_criteria": lambda name, *, mode, match, file: locals(),
}


def expand(text: str, variables: Mapping[str, object]) -> str:
    """A variable may name others; one that is not defined is an error."""
    while "{" in text:
        text = re.sub(r"\{(\w+)\}", lambda found: str(variables[found[1]]), text)
    return text


class Application:
    """What the directives of an application.py said: calls[directive], in their order."""

    def __init__(self, path: Path) -> None:
        """Imports it with these directives in place of Ramble's."""
        self.calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
        appkit = ModuleType("ramble.appkit")
        vars(appkit).update({name: self._recording(name) for name in DIRECTIVES})
        base = type("ExecutableApplication", (), {})
        vars(appkit).update(ExecutableApplication=base, FomType=FomType, tags=lambda *_: None)
        spec = importlib.util.spec_from_file_location("ramble_application", path)
        assert spec is not None and spec.loader is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "ramble", ModuleType("ramble"))
            patch.setitem(sys.modules, "ramble.appkit", appkit)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        (found,) = base.__subclasses__()
        self.class_name, self.name = found.__name__, found.name

    def _recording(self, directive: str) -> Callable[..., None]:
        parameters_of = DIRECTIVES[directive]
        return lambda *given, **named: self.calls[directive].append(parameters_of(*given, **named))

    def command(self, workload: str, settings: Mapping[str, object]) -> list[str]:
        """The words of the workload's command, every variable replaced."""
        (wanted,) = (c["executables"] for c in self.calls["workload"] if c["name"] == workload)
        (call,) = (call for call in self.calls["executable"] if [call["name"]] == wanted)
        variables = self.calls["workload_variable"]
        defaults = {c["name"]: c["default"] for c in variables if workload in c["workloads"]}
        template = ("{mpi_command} " if call["use_mpi"] else "") + call["template"]
        return shlex.split(expand(template, {**defaults, **settings}))

    def analyse(self, log: str) -> tuple[bool, list[tuple[str, ...]]]:
        """Whether Ramble would call it a success; context, figure, value, unit of all it finds.

        Ramble's default strategy: line by line, success criteria, then contexts, then figures, each
        with re.match from the start of the line.
        """
        met, active = set(), "null"
        found: list[tuple[str, ...]] = []
        (context,) = self.calls["figure_of_merit_context"]
        criteria = {each["name"]: each["match"] for each in self.calls["success_criteria"]}
        for line in log.splitlines(keepends=True):
            met |= {name for name, match in criteria.items() if re.match(match, line)}
            if entered := re.match(context["regex"], line):
                active = context["output_format"].format(**entered.groupdict())
            for figure in self.calls["figure_of_merit"]:
                assert figure["contexts"] == [context["name"]]
                if matched := re.match(figure["fom_regex"], line):
                    value = matched[figure["group_name"]]
                    found.append((active, figure["name"], value, figure["units"]))
        return bool(found) and met == set(criteria), found


@pytest.fixture(scope="module")
def application() -> Application:
    return Application(FOLDER / "application.py")


def figures_in(log: str) -> list[tuple[str, ...]]:
    """Case, figure, value and unit of every line that the program prints for Ramble."""
    return re.findall(r"^FOM (\S+)/(\S+) = (\S+) (\S+)$", log, re.MULTILINE)


def test_every_figure_is_found_and_success_is_the_success_line(
    application: Application, tmp_path: Path, bench_program: Path
) -> None:
    """Of the program, of a step and of a component without products. A case is a context, in which
    its figures stand."""
    assert application.name == FOLDER.name
    assert application.class_name == "".join(w.capitalize() for w in FOLDER.name.split("-"))
    settings = {"mpi_command": "env", "experiment_run_dir": tmp_path, "program": bench_program}
    settings |= {"device": "cpu", "components": "optimizer,full_step"}
    command = [*application.command("step", settings), *QUICK_STEP]
    log = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    figures = re.findall(r"^FOM (\S+)/(\S+) = (\S+) (\S+)$", log, re.MULTILINE)
    assert len({case for case, *_ in figures}) == 2 and len(figures) >= 10
    assert application.analyse(log) == (True, figures)
    success = log.splitlines()[-1]
    for words, is_success in (
        ("SUCCESS: 2 cases measured, 1 skipped", True),
        ("FAILED: 1 of 3 cases failed", False),
        ("NOTHING MEASURED: 2 cases skipped", False),
        ("", False),
    ):
        assert application.analyse(log.replace(success, words)) == (is_success, figures)
    # a value that is no number is none
    text = log.replace(f" = {figures[0][2]} ", " = nan ", 1)
    assert application.analyse(text) == (True, figures[1:])


def experiments(workspace: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Workload, name and variables of every experiment that a workspace describes."""
    (application,) = workspace["applications"].values()
    for workload, content in application["workloads"].items():
        for name, experiment in content["experiments"].items():
            variables = workspace["variables"] | experiment["variables"]
            axes = experiment.get("matrix", [])
            for values in itertools.product(*(variables[axis] for axis in axes)):
                chosen = variables | dict(zip(axes, values, strict=True))
                yield workload, expand(name, chosen), chosen


@pytest.mark.parametrize("path", WORKSPACES, ids=lambda path: path.stem)
def test_a_workspace_gives_commands_that_the_program_understands(
    application: Application, bench_program: Path, path: Path
) -> None:
    workspace = yaml.safe_load(path.read_text(encoding="utf-8"))["ramble"]
    is_cluster = path.stem == "slurm_amd"
    assert list(workspace["applications"]) == [application.name]
    names = []
    for workload, name, variables in experiments(workspace):
        names.append(f"{workload}/{name}")
        # what its Slurm workflow manager adds
        ramble = {"experiment_run_dir": "/run", "mpi_command": "srun {srun_args}"}
        command = application.command(workload, ramble | variables)
        program = command.index(str(variables["program"]))
        start, options = " ".join(command[:program]), " ".join(command[program + 1 :])
        assert not is_cluster or ("--device hip" in options and "--threads 8" in options)
        assert not is_cluster or "--cpus-per-task=8" in start
    # of the last one, on this machine
    words = [bench_program, *options.replace("hip", "cpu").split(), "--list"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout != "") == (0, True), done.stderr
    assert len(names) == len(set(names)) > 1, "an experiment's name says what it is"
    assert not is_cluster or workspace["variants"] == {"workflow_manager": "slurm"}
