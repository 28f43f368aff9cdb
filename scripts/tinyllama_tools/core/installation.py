"""Where the data, the programs and the results are: of a checkout, or of a prefix into which
`cmake --install` put the tools. Needs no package."""

import os
from pathlib import Path

# what has fixtures/, the schemas of results/ and scripts/: the checkout, or
# <prefix>/share/tiny_llama. Links, such as those of an environment of Spack, are followed.
ROOT = Path(__file__).resolve().parents[3]
IS_CHECKOUT = (ROOT / "CMakeLists.txt").is_file()
TOOLS = ROOT / "scripts"
# read by the programs too
DATA_VARIABLE = "TINY_LLAMA_DATA_DIR"
DATA = Path(os.environ.get(DATA_VARIABLE) or ROOT).absolute()
# where the programs are: a build folder, or a prefix
BUILD = ROOT / "build" if IS_CHECKOUT else ROOT.parents[1]
# of the working folder
RESULTS = Path("results")

INSTALL_AGAIN = f"install it again into {BUILD}"
GET_PROGRAMS = "build it: scripts/bench --setup-only" if IS_CHECKOUT else INSTALL_AGAIN


def typed(name: str) -> str:
    """A command of the tools as a user types it here: `scripts/report`, `tiny-llama report`."""
    if not IS_CHECKOUT:
        return f"tiny-llama {name}"
    # a script of its own sets up first what it needs
    has_script = (TOOLS / name.partition(" ")[0]).exists()
    return f"scripts/{name}" if has_script else f"scripts/tiny-llama {name}"


def python_path() -> str:
    """PYTHONPATH of another process of the tools: with the packages that this one was given."""
    return os.pathsep.join(filter(None, [str(TOOLS), os.environ.get("PYTHONPATH")]))


def as_typed_here(text: str) -> str:
    """A text that names commands as those of a checkout, with them as they are typed here."""
    return text.replace("scripts/", typed(""))


def version_in(folder: Path) -> str:
    """That of a data folder; empty where it has none."""
    try:
        return (folder / "VERSION").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


VERSION = version_in(ROOT)


def data_problem() -> str:
    """What is wrong with the data folder, and what to do; empty where nothing is."""
    chosen = DATA_VARIABLE if os.environ.get(DATA_VARIABLE) else ""
    what = f"{chosen}={DATA}" if chosen else str(DATA)
    remedy = "restore it from git" if IS_CHECKOUT else INSTALL_AGAIN
    if chosen:
        remedy = f"name <prefix>/share/tiny_llama of version {VERSION}, or unset {chosen}"
    if not VERSION:
        return f"{ROOT / 'VERSION'}: is missing, so that the tools' version is not known; {remedy}"
    if not DATA.is_dir():
        return f"{what}: is no folder; {remedy}"
    for name in ("VERSION", "fixtures/problem_sizes.json", "results/schema.json"):
        if not (DATA / name).is_file():
            return f"{what}: is no data folder of tiny_llama, it has no {name}; {remedy}"
    if (found := version_in(DATA)) != VERSION:
        return f"{what}: is of version {found or 'unknown'}, these tools are of {VERSION}; {remedy}"
    return ""


def is_prefix(folder: Path) -> bool:
    """Whether programs are in bin/ there, and not in benchmarks/ as in a build folder."""
    return (folder / "bin").is_dir() and not (folder / "benchmarks").is_dir()


def program_path(folder: Path, name: str) -> Path:
    """A program of a build folder or a prefix, there or not."""
    return folder / ("bin" if is_prefix(folder) else "benchmarks") / name


def checkout() -> Path | None:
    """The checkout whose git and build serve: that of the tools, or else the one around the working
    folder; None where there is none."""
    if IS_CHECKOUT:
        return ROOT
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "CMakeLists.txt").is_file() and (folder / "scripts/tinyllama_tools").is_dir():
            return folder
    return None
