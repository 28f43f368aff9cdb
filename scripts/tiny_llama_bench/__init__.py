"""The wheel's package: a prefix, whose tools are started from here."""

import sys
from pathlib import Path

DATA = Path(__file__).resolve().parent / "share/tiny_llama"


def main() -> int:
    """The command `tiny-llama`."""
    sys.path.insert(0, str(DATA / "scripts"))
    from tinyllama_tools.__main__ import main as run

    return run(sys.argv[1:])
