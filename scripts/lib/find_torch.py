"""Finds the libtorch of the Python that runs this file, without importing it (which takes seconds).

Prints one line, `<version> <kind> <folder of TorchConfig.cmake>`, kind being cpu, cuda or rocm.
Exit status 1: there is no torch; 3: the one in the line is incomplete or too old.
Only the standard library.
"""

import importlib.util
import re
import sys
from pathlib import Path

MINIMUM = (2, 9)


def library_kind(library_folder: Path) -> str:
    """Which device a libtorch was built for, by the libraries beside it."""
    if (library_folder / "libtorch_hip.so").exists():
        return "rocm"
    if (library_folder / "libtorch_cuda.so").exists():
        return "cuda"
    return "cpu"


def package_version(package_folder: Path) -> str:
    """The version that `torch/version.py` states, or an empty text (a half-installed package)."""
    try:
        text = (package_folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match[1] if match else ""


def is_supported(version: str) -> bool:
    """Whether a version such as 2.13.0+cpu will do; of one that was never tried CMake warns."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= MINIMUM


def describe(package_folder: Path) -> tuple[str, int]:
    """The line to print and the exit status for a torch package in this folder."""
    version = package_version(package_folder)
    cmake_folder = package_folder / "share" / "cmake" / "Torch"
    line = f"{version or 'unknown'} {library_kind(package_folder / 'lib')} {cmake_folder}"
    complete = (cmake_folder / "TorchConfig.cmake").is_file()
    return line, 0 if complete and is_supported(version) else 3


def main() -> int:
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        return 1
    line, status = describe(Path(found.origin).parent)
    print(line)
    return status


if __name__ == "__main__":
    sys.exit(main())
