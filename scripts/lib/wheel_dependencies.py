"""What the wheel needs, for scikit-build-core: the tools' packages, and torch of the release that
the programs are linked with, which Torch_DIR names or the Python that builds has."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
# older ones than the pinned of pyproject.toml do as well: what the tools call has been there since
TOOLS = ["jinja2>=3.1", "jsonschema>=4.18", "numpy>=1.26", "plotly>=6", "scipy>=1.11"]


def torch_version() -> str:
    """2.13.0; RuntimeError where there is no torch of a supported version."""
    folder = os.environ.get("Torch_DIR")  # noqa: SIM112 (CMake's own name)
    if not folder:
        done = subprocess.run(
            [sys.executable, HERE / "find_torch.py"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(
                "no torch of 2.9 or newer here: set Torch_DIR, or build with"
                " --no-build-isolation in the environment that has it"
            )
        folder = done.stdout.strip().partition(" ")[2]
    text = (Path(folder) / "TorchConfigVersion.cmake").read_text(encoding="utf-8")
    found = re.search(r'PACKAGE_VERSION "([0-9.]+)', text)
    if not found:
        raise RuntimeError(f"{folder}/TorchConfigVersion.cmake: states no version")
    return found[1]


def dynamic_metadata(field: str, settings: Mapping[str, object]) -> list[str]:
    """The wheel's dependencies."""
    if field != "dependencies" or settings:
        raise ValueError(f"{field}: only dependencies, without settings, come from here")
    return [f"torch=={torch_version()}", *TOOLS]
