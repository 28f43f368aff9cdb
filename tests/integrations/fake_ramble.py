"""A fake of Ramble, which is not on PyPI: its application language, and how it reads a log.

Written from Ramble's documentation. Directives are stricter than Ramble's own, which take any
keyword: an unknown one is an error here. Reading follows Ramble's default strategy: line by line,
success criteria, then contexts, then figures, each with re.match from the start of the line.
"""

from __future__ import annotations

import enum
import importlib.util
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

# what Ramble defines by itself, of which the application and the workspaces use some
RESERVED = {"experiment_run_dir", "experiment_name", "log_file", "execute_experiment"}
REQUIRED = {"n_ranks", "n_nodes", "processes_per_node", "mpi_command", "batch_submit", "n_threads"}

FomType = enum.Enum("FomType", ["TIME", "THROUGHPUT", "MEASURE", "CATEGORY", "INFO", "UNDEFINED"])

# The parameters of Ramble's directives, as far as the application needs them; those that follow
# the | may be left out.
# https://ramble.readthedocs.io/en/latest/dev_guides/application_dev_guide.html
DIRECTIVES = {
    "executable": "name template | use_mpi",
    "workload": "name executables |",
    "workload_variable": "name default description | values workloads",
    "figure_of_merit_context": "name regex output_format |",
    "figure_of_merit": "name fom_regex group_name | units contexts log_file fom_type",
    "success_criteria": "name mode match | file",
}


class Application:
    """What the directives of an application.py said: calls[directive], in their order."""

    def __init__(self, path: Path) -> None:
        """Imports it with this module's language in place of Ramble's."""
        self.calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
        appkit = ModuleType("ramble.appkit")
        vars(appkit).update({name: self._recording(name) for name in DIRECTIVES})
        base = type("ExecutableApplication", (), {})
        vars(appkit).update(ExecutableApplication=base, FomType=FomType, tags=lambda *_: None)
        spec = importlib.util.spec_from_file_location("ramble_application", path)
        assert spec is not None and spec.loader is not None
        fakes = {"ramble": ModuleType("ramble"), "ramble.appkit": appkit}
        sys.modules.update(fakes)
        try:
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        finally:
            for name in fakes:
                del sys.modules[name]
        (found,) = base.__subclasses__()
        self.class_name, self.name = found.__name__, found.name
        self.workloads = {call["name"]: call["executables"] for call in self.calls["workload"]}

    def _recording(self, directive: str) -> Callable[..., None]:
        needed, optional = (part.split() for part in DIRECTIVES[directive].split("|"))

        def record(*positional: object, **keywords: object) -> None:
            call = dict(zip(needed, positional, strict=False)) | keywords
            assert set(needed) <= set(call) <= {*needed, *optional}, (directive, call)
            self.calls[directive].append(call)

        return record

    def variables(self, workload: str) -> dict[str, str]:
        """Their defaults."""
        calls = self.calls["workload_variable"]
        return {call["name"]: call["default"] for call in calls if workload in call["workloads"]}

    def command(self, workload: str, settings: Mapping[str, object]) -> list[str]:
        """The words of the workload's command, every variable replaced."""
        (wanted,) = self.workloads[workload]
        (call,) = (call for call in self.calls["executable"] if call["name"] == wanted)
        template = ("{mpi_command} " if call.get("use_mpi") else "") + call["template"]
        return shlex.split(expand(template, {**self.variables(workload), **settings}))

    def analyse(self, log: str) -> tuple[bool, list[tuple[str, ...]]]:
        """Whether Ramble would call it a success; context, figure, value, unit of all it finds."""
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


def expand(text: str, variables: Mapping[str, object]) -> str:
    """A variable may name others; one that is not defined is an error."""
    while "{" in text:
        text = re.sub(r"\{(\w+)\}", lambda found: str(variables[found[1]]), text)
    return text
