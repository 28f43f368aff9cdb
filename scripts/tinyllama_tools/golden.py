"""Writes the golden files, what LlamaForCausalLM answers for small models, or checks them.

They lie in fixtures/golden/, whose README says what each holds. Exit status: 0 written, or all the
same; 1 some file differs by more than rounding; 2 bad option.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from tinyllama_tools.golden_cases import GOLDEN_CASES
from tinyllama_tools.golden_check import compare_folder
from tinyllama_tools.golden_values import write_case

PROJECT = Path(__file__).resolve().parents[2]
GOLDEN_FOLDER = PROJECT / "fixtures/golden"


def write(names: list[str], folder: Path) -> None:
    """Makes or replaces the named cases."""
    for name in names:
        write_case(GOLDEN_CASES[name], folder / name)


def check(names: list[str], folder: Path) -> int:
    """Makes the named cases anew elsewhere and compares. Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="tiny_llama_golden_") as made:
        write(names, Path(made))
        verdicts = [v for name in names for v in compare_folder(folder / name, Path(made) / name)]
    for verdict in verdicts:
        print(verdict)
    failed = [verdict for verdict in verdicts if not verdict.held]
    print(f"{len(verdicts) - len(failed)} files hold, {len(failed)} do not")
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these only; default: all")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--folder", type=Path, default=GOLDEN_FOLDER, help="default: %(default)s")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in GOLDEN_CASES:
            parser.error(f"'{name}': must be one of {', '.join(GOLDEN_CASES)}")
    names = options.names or list(GOLDEN_CASES)
    # sums in one order, whatever the machine's number of processors
    torch.set_num_threads(1)
    if options.check:
        return check(names, options.folder)
    write(names, options.folder)
    print(f"{', '.join(names)}: written to {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
