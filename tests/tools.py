"""The commands of tinyllama_tools as their scripts start them, with their exit statuses; and the
packages that tests of the oracle need."""

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from built_programs import give_up
from tinyllama_tools.__main__ import main as run_tool
from tinyllama_tools.core.app import run_command
from tinyllama_tools.core.subcommands import COMMANDS


def compare(arguments: Sequence[str]) -> int:
    """scripts/compare; its exit status."""
    return run_tool(["compare", *arguments])


def _run(name: str, arguments: Sequence[object], **replaced: Any) -> int:  # noqa: ANN401
    module = importlib.import_module(f"tinyllama_tools.{COMMANDS[name].module}")
    return run_command(name, lambda: module.main(list(map(str, arguments)), **replaced))


ablation, exercise, golden, gpu_check, peers, profile, prove, report, scaling, study, traces = (
    functools.partial(_run, name)
    for name in (
        *("ablation", "exercise", "dev/golden", "gpu_check", "peers", "profile", "dev/prove"),
        *("report", "scaling", "study", "traces"),
    )
)


def require_oracle_packages() -> None:
    """Skips the calling module where one is absent, with a reason that says how to get it."""
    for package in ("torch", "transformers", "safetensors"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            give_up(
                f"{package} is not in this Python ({error}): run scripts/test, or beside your own "
                "torch, with pip 26.3, pip install --group oracle -c requirements.lock",
                whole_module=True,
            )
