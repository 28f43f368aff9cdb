"""python -m tinyllama_tools COMMAND OPTION...: what each script of scripts/ starts, in .venv.

--check-options COMMAND OPTION... only says what is wrong with the options, or shows the help, so
that nobody waits for a set-up first: it needs no package.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

# what .venv has; modules import it at their beginning, and options are parsed without it
PACKAGES = {"jinja2", "jsonschema", "markupsafe", "numpy", "playwright", "plotly", "scipy"}
PACKAGES |= {"safetensors", "torch", "transformers"}


class AbsentPackages:
    """Finds what is not installed: modules in which everything is there and does nothing."""

    @classmethod
    def find_spec(cls, name: str, *_: object) -> ModuleSpec | None:
        is_one = name.partition(".")[0] in PACKAGES
        return ModuleSpec(name, cls, is_package=True) if is_one else None

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        # takes a tenth of a second to import
        from unittest.mock import MagicMock

        return MagicMock(name=spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


# Modules with parse_options(arguments) and main(arguments) -> exit status; imported when needed.
# Those of two words are chosen by the first argument.
COMMANDS = {
    "ablation": "tinyllama_tools.commands.ablation",
    "compare": "tinyllama_tools.compare.stored",
    "compare calibrate": "tinyllama_tools.calibrate.command",
    "compare history": "tinyllama_tools.compare.history",
    "compare run": "tinyllama_tools.compare.run",
    "dev/golden": "tinyllama_tools.proofs.golden",
    "dev/prove": "tinyllama_tools.proofs.prove",
    "exercise": "tinyllama_tools.commands.exercise",
    "gpu_check": "tinyllama_tools.commands.gpu_check",
    "peers": "tinyllama_tools.commands.peers",
    "profile": "tinyllama_tools.commands.profile",
    "report": "tinyllama_tools.report.command",
    "scaling": "tinyllama_tools.commands.scaling",
    "study": "tinyllama_tools.commands.study",
}


def main(arguments: Sequence[str]) -> int:
    """The exit status of the command."""
    checks_only = arguments[0] == "--check-options"
    if checks_only and AbsentPackages not in sys.meta_path:
        # after all that finds what is installed
        sys.meta_path.append(AbsentPackages)
    # imports such packages itself
    from tinyllama_tools.core.app import run_command

    name, *options = arguments[1:] if checks_only else arguments
    if (both := " ".join([name, *options[:1]])) in COMMANDS:
        name, options = both, options[1:]

    def command() -> int:
        # takes a second, in which Ctrl-C is heeded too
        module = importlib.import_module(COMMANDS[name])
        if checks_only:
            module.parse_options(options)
            return 0
        return module.main(options)

    return run_command(name, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
