"""The commands, and where each is: one table for starting, for help and for completion."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

from tinyllama_tools.core.app import ToolError
from tinyllama_tools.core.installation import INSTALL_AGAIN, IS_CHECKOUT, VERSION, typed

# of the group `tools` of pyproject.toml: what commands compute, check and draw with
TOOL_PACKAGES = ("jinja2", "jsonschema", "numpy", "plotly", "scipy")


class Command(NamedTuple):
    """`module`: with parse_options(arguments) and main(arguments) -> exit status, imported when
    needed. `about`: its line in the help. `packages`: without which it cannot run."""

    module: str
    about: str
    packages: tuple[str, ...] = TOOL_PACKAGES


# Those of two words are chosen by the first argument.
COMMANDS = {
    "bench": Command(
        "commands.bench", "measure components and the full step, each proven right first", ()
    ),
    "train": Command("commands.train", "train a model; the training program and its profilers", ()),
    "compare": Command("compare.stored", "compare results, and say what got slower"),
    "compare run": Command("compare.run", "two builds interleaved, with a known error rate"),
    "compare calibrate": Command("calibrate.command", "error rates of comparisons here"),
    "compare history": Command("compare.history", "results over commits"),
    "report": Command("report.command", "one document of what was measured"),
    "study": Command("commands.study", "train each problem size; --grid: batch x sequence x size"),
    "scaling": Command("commands.scaling", "data-parallel scaling"),
    "profile": Command("commands.profile", "run the profilers, and report"),
    "traces": Command(
        "commands.traces", "execution traces: what they hold, and whether it is the cases'", ()
    ),
    "exercise": Command("commands.exercise", "the workshop's exercises, worksheets filled in"),
    "ablation": Command("commands.ablation", "every optimisation added and removed"),
    "peers": Command("commands.peers", "our step beside LlamaForCausalLM in Python"),
    "gpu_check": Command("commands.gpu_check", "check a GPU, its libraries and this build"),
    "completion": Command("commands.completion", "print what a shell completes by", ()),
    "dev/golden": Command("proofs.golden", "write the golden files", ()),
    "dev/prove": Command("proofs.prove", "run every proof", ()),
}


def listed() -> dict[str, Command]:
    """Those that a user types first: of one word, and those for developers in a checkout alone."""
    return {
        name: found
        for name, found in COMMANDS.items()
        if " " not in name and (IS_CHECKOUT or not name.startswith("dev/"))
    }


def help_text() -> str:
    """Of `tiny-llama --help`."""
    names = listed()
    width = max(map(len, names))
    lines = [f"  {name:{width}}  {found.about}" for name, found in names.items()]
    return "\n".join(
        [
            f"usage: {typed('COMMAND')} [OPTION...]",
            "",
            f"Component and scaling studies of LLaMA training on libtorch, version {VERSION}.",
            "",
            *lines,
            "",
            "COMMAND --help: its options. --version: of tools and programs. Results go to results/",
            "of the working folder; --out DIR says where else.",
            "",
            "Exit status: 0 done; 1 what was measured is a failure or a regression; 2 bad options",
            "or files, or something is missing; 130 interrupted.",
        ]
    )


def require(packages: Sequence[str]) -> None:
    """ToolError where this Python lacks some of them: before an hour of work."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise lacking(missing)


def lacking(packages: list[str]) -> ToolError:
    """The error that names packages that are not there, and how to get them."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    one = "a Python that has them: TINY_LLAMA_PYTHON=/path/of/python3"
    remedy = "run the script of scripts/, which installs them" if IS_CHECKOUT else INSTALL_AGAIN
    return ToolError(
        f"needs {', '.join(packages)}, which {sys.executable} (Python {version}) does not have; "
        f"{remedy}, `{sys.executable} -m pip install {' '.join(packages)}`, or name {one}"
    )
