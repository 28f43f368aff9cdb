"""Finds the libtorch of the Python that runs this file, without importing it (which takes seconds).

Prints one line, `<version> <folder of TorchConfig.cmake>`.
Exit status 1: there is no torch; 3: the one in the line is incomplete or too old.
Only the standard library.
"""

import importlib.util
import re
import sys
from pathlib import Path

# of a version that was never tried CMake warns
MINIMUM = (2, 9)


def main() -> int:
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        return 1
    package = Path(found.origin).parent
    try:
        text = (package / "version.py").read_text(encoding="utf-8")
    except OSError:  # a half-installed package
        text = ""
    stated = re.search(r"^__version__\s*=\s*['\"]((\d+)\.(\d+)[^'\"]*)['\"]", text, re.MULTILINE)
    cmake_folder = package / "share" / "cmake" / "Torch"
    print(stated[1] if stated else "unknown", cmake_folder)
    complete = (cmake_folder / "TorchConfig.cmake").is_file()
    is_new = stated is not None and (int(stated[2]), int(stated[3])) >= MINIMUM
    return 0 if complete and is_new else 3


if __name__ == "__main__":
    sys.exit(main())
