"""Writes the golden files, what LlamaForCausalLM answers, or checks them.

They lie in fixtures/golden/, whose README says what each holds. Exit status: 0 written, or all the
same; 1 some file differs by more than rounding; 2 bad option, or another version of transformers
than the pinned one, whose answers are not written (with --check only a warning).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tinyllama_tools.flop_oracle import write_flops
from tinyllama_tools.golden_cases import GOLDEN_CASES
from tinyllama_tools.golden_compare import Verdict, compare_file, compare_folder
from tinyllama_tools.golden_values import GOLDEN_FOLDER, write_case
from tinyllama_tools.pinned_version import other_transformers
from tinyllama_tools.training_oracle import write_training


def _case_writer(name: str) -> Callable[[Path], None]:
    return lambda folder: write_case(GOLDEN_CASES[name], folder / name)


# What there is to write, into the golden folder.
PARTS: dict[str, Callable[[Path], None]] = {
    **{name: _case_writer(name) for name in GOLDEN_CASES},
    "flops": lambda folder: write_flops(folder / "flops.json"),
    "training_tiny": lambda folder: write_training(folder / "training_tiny.json"),
}


def say(text: str) -> None:
    """Progress and complaints; standard output is for the outcome."""
    print(text, file=sys.stderr, flush=True)


def write(names: list[str], folder: Path) -> None:
    """Makes or replaces the named parts."""
    for i, name in enumerate(names, start=1):
        say(f"-- {name} ({i} of {len(names)})")
        started = time.monotonic()
        PARTS[name](folder)
        say(f"   {time.monotonic() - started:.0f} s")


def compare(name: str, stored: Path, made: Path) -> list[Verdict]:
    """The files of one part, in two golden folders."""
    if name in GOLDEN_CASES:
        return compare_folder(stored / name, made / name)
    return [compare_file(stored / f"{name}.json", made / f"{name}.json")]


def check(names: list[str], folder: Path) -> int:
    """Makes the named parts anew elsewhere and compares. Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="tiny_llama_golden_") as made:
        write(names, Path(made))
        verdicts = [v for name in names for v in compare(name, folder, Path(made))]
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
        if name not in PARTS:
            parser.error(f"'{name}': must be one of {', '.join(PARTS)}")
    names = options.names or list(PARTS)
    other_version = other_transformers()
    if other_version:
        say(f"{'warning' if options.check else 'error'}: {other_version}")
        if not options.check:
            return 2
    # sums in one order, whatever the machine's number of processors
    torch.set_num_threads(1)
    if options.check:
        return check(names, options.folder)
    write(names, options.folder)
    print(f"{', '.join(names)}: written to {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
