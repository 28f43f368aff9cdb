"""The commands of tinyllama_tools as their scripts start them, with their exit statuses; and the
packages that tests of the oracle need."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from built_programs import give_up
from tinyllama_tools.__main__ import main as run_tool
from tinyllama_tools.commands import ablation as ablation_command
from tinyllama_tools.commands import exercise as exercise_command
from tinyllama_tools.commands import peers as peers_command
from tinyllama_tools.commands import profile as profile_command
from tinyllama_tools.commands import scaling as scaling_command
from tinyllama_tools.commands import study as study_command
from tinyllama_tools.core.app import run_command
from tinyllama_tools.report import command as report_command


def compare(arguments: Sequence[str]) -> int:
    """scripts/compare; its exit status."""
    return run_tool(["compare", *arguments])


def _tool(name: str, main: Callable[..., int]) -> Callable[..., int]:
    def run(arguments: Sequence[str], **replaced: Any) -> int:  # noqa: ANN401
        return run_command(name, lambda: main(list(map(str, arguments)), **replaced))

    return run


ablation = _tool("ablation", ablation_command.main)
exercise = _tool("exercise", exercise_command.main)
peers = _tool("peers", peers_command.main)
profile = _tool("profile", profile_command.main)
report = _tool("report", report_command.main)
scaling = _tool("scaling", scaling_command.main)
study = _tool("study", study_command.main)


def require_oracle_packages() -> None:
    """Skips the calling module where one is absent, with a reason that says how to get it."""
    for package in ("torch", "transformers", "safetensors"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            give_up(
                f"{package} is not in this Python ({error}): run scripts/test, or beside your own "
                "torch python3 -m pip install -r requirements-oracle.txt",
                whole_module=True,
            )
