"""A fake of Ramble, which is not on PyPI: its application language, and how it reads a log.

Written from Ramble's documentation. Directives are stricter than Ramble's own, which take any
keyword: an unknown one is an error here. Reading follows Ramble's default strategy: line by line,
success criteria, then contexts, then figures, each with re.match from the start of the line.
"""

from __future__ import annotations

import enum
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

# what Ramble defines by itself, of which the application and the workspaces use some
RESERVED = {"experiment_run_dir", "experiment_name", "log_file", "execute_experiment"}
REQUIRED = {"n_ranks", "n_nodes", "processes_per_node", "mpi_command", "batch_submit", "n_threads"}

FomType = enum.Enum("FomType", ["TIME", "THROUGHPUT", "MEASURE", "CATEGORY", "INFO", "UNDEFINED"])


# The parameters of Ramble's directives, as far as the application needs them, with defaults.
# https://ramble.readthedocs.io/en/latest/dev_guides/application_dev_guide.html
NEEDED = inspect.Parameter.empty
DIRECTIVES: dict[str, dict[str, object]] = {
    "executable": {"name": NEEDED, "template": NEEDED, "use_mpi": False},
    "workload": {"name": NEEDED, "executables": NEEDED},
    "workload_variable": {
        **{"name": NEEDED, "default": NEEDED, "description": NEEDED},
        **{"values": None, "workloads": None},
    },
    "figure_of_merit_context": {"name": NEEDED, "regex": NEEDED, "output_format": NEEDED},
    "figure_of_merit": {
        **{"name": NEEDED, "fom_regex": NEEDED, "group_name": NEEDED, "units": ""},
        **{"contexts": None, "log_file": "{log_file}", "fom_type": FomType.UNDEFINED},
    },
    "success_criteria": {"name": NEEDED, "mode": NEEDED, "match": NEEDED, "file": "{log_file}"},
}
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Application:
    """What the directives of an application.py said, by directive, in their order."""

    class_name: str
    name: str
    calls: Mapping[str, list[Arguments]]

    @property
    def workloads(self) -> dict[str, list[str]]:
        return {call["name"]: call["executables"] for call in self.calls["workload"]}

    def variables(self, workload: str) -> dict[str, str]:
        """Their defaults."""
        calls = self.calls["workload_variable"]
        return {call["name"]: call["default"] for call in calls if workload in call["workloads"]}

    def command(self, workload: str, settings: Mapping[str, object]) -> list[str]:
        """The words of the workload's command, every variable replaced."""
        (wanted,) = self.workloads[workload]
        (call,) = (call for call in self.calls["executable"] if call["name"] == wanted)
        template = ("{mpi_command} " if call["use_mpi"] else "") + call["template"]
        return shlex.split(expand(template, {**self.variables(workload), **settings}))


def expand(text: str, variables: Mapping[str, object]) -> str:
    """A variable may name others; one that is not defined is an error."""
    while "{" in text:
        text = re.sub(r"\{(\w+)\}", lambda found: str(variables[found[1]]), text)
    return text


def load_application(path: Path) -> Application:
    """Imports an application.py with this module's language in place of Ramble's."""
    calls: dict[str, list[Arguments]] = {name: [] for name in DIRECTIVES}

    def recording(name: str) -> Callable[..., None]:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = DIRECTIVES[name].items()
        signature = inspect.Signature(
            [inspect.Parameter(p, kind, default=default) for p, default in parameters]
        )

        def record(*positional: object, **keywords: object) -> None:
            bound = signature.bind(*positional, **keywords)
            bound.apply_defaults()
            calls[name].append(dict(bound.arguments))

        return record

    class ExecutableApplication:
        pass

    appkit = ModuleType("ramble.appkit")
    vars(appkit).update({name: recording(name) for name in DIRECTIVES})
    vars(appkit).update(ExecutableApplication=ExecutableApplication, FomType=FomType)
    vars(appkit).update(tags=lambda *_values: None)
    spec = importlib.util.spec_from_file_location("ramble_application", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    fakes = {"ramble": ModuleType("ramble"), "ramble.appkit": appkit}
    sys.modules.update(fakes)
    try:
        spec.loader.exec_module(module)
    finally:
        for name in fakes:
            del sys.modules[name]
    (found,) = (
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, ExecutableApplication)
        and value is not ExecutableApplication
    )
    return Application(found.__name__, found.name, calls)


@dataclass
class Analysis:
    """figures[context][figure] is value (text) and unit; succeeded: as Ramble would call it."""

    figures: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    succeeded: bool = False


def analyse(application: Application, log: str) -> Analysis:
    """What Ramble finds in a log file."""
    found = Analysis()
    met: set[str] = set()
    active = "null"
    (context,) = application.calls["figure_of_merit_context"]
    for line in log.splitlines(keepends=True):
        for criterion in application.calls["success_criteria"]:
            if re.match(criterion["match"], line):
                met.add(criterion["name"])
        if entered := re.match(context["regex"], line):
            active = context["output_format"].format(**entered.groupdict())
        for figure in application.calls["figure_of_merit"]:
            assert figure["contexts"] == [context["name"]]
            if matched := re.match(figure["fom_regex"], line):
                value = (matched[figure["group_name"]], figure["units"])
                found.figures.setdefault(active, {})[figure["name"]] = value
    criteria = {criterion["name"] for criterion in application.calls["success_criteria"]}
    found.succeeded = bool(found.figures) and met == criteria
    return found
