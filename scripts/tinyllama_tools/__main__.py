"""python -m tinyllama_tools COMMAND OPTION...: what `tiny-llama` and the scripts of scripts/ start.

--check-options COMMAND OPTION... only says what is wrong with the options, or shows the help, so
that nobody waits for a set-up first: it needs no package.
"""

import importlib
import itertools
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

# what commands import; modules do so at their beginning, and options are parsed without it
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


def main(arguments: Sequence[str]) -> int:
    """The exit status of the command."""
    checks_only = arguments[:1] == ["--check-options"]
    if checks_only and AbsentPackages not in sys.meta_path:
        # after all that finds what is installed
        sys.meta_path.append(AbsentPackages)
    from tinyllama_tools.core.app import REFUSED_OPTIONS, ToolError, run_command
    from tinyllama_tools.core.installation import data_problem
    from tinyllama_tools.core.options import did_you_mean
    from tinyllama_tools.core.process import version_text
    from tinyllama_tools.core.subcommands import COMMANDS, help_text, lacking, listed, require

    name, *options = [*arguments[checks_only:], ""]
    options = options[:-1]
    if (both := " ".join([name, *options[:1]])) in COMMANDS:
        name, options = both, options[1:]

    def command() -> int:
        if name in ("--help", "-h", ""):
            print(help_text(), file=sys.stdout if name else sys.stderr)
            return 0 if name else REFUSED_OPTIONS
        if problem := data_problem():
            raise ToolError(problem)
        if "--version" in [name, *itertools.takewhile(lambda word: word != "--", options)]:
            print(version_text())
            return 0
        if name.partition(" ")[0] not in listed():
            near = did_you_mean(name, listed())
            raise ToolError(f"must be one of {', '.join(listed())}{near}")
        if not checks_only:
            require(COMMANDS[name].packages)
        try:
            # takes a second, in which Ctrl-C is heeded too
            module = importlib.import_module(f"tinyllama_tools.{COMMANDS[name].module}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in PACKAGES:
                raise
            raise lacking([error.name]) from error
        if checks_only:
            module.parse_options(options)
            return 0
        return module.main(options)

    return run_command(name, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
