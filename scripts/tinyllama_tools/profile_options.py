"""The command line of scripts/profile."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.core.options import DTYPES, positive
from tinyllama_tools.data.programs import problem_sizes

# What the program is given as it stands.
PASSED_ON = ("size", "batch_size", "seq_len", "num_steps", "dtype", "variant", "device", "threads")
DEFAULT_STEPS, DEFAULT_TOP = 30, 10


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/profile", allow_abbrev=False)
    parser.add_argument("--size", choices=sorted(problem_sizes()))
    parser.add_argument("--batch-size", type=positive)
    parser.add_argument("--seq-len", type=positive)
    parser.add_argument("--num-steps", type=positive)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--variant")
    parser.add_argument("--device")
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--profile-dir", type=Path)
    parser.add_argument("--build-folder", type=Path, default=PROJECT / "build")
    parser.add_argument("--top", type=positive, default=DEFAULT_TOP)
    parser.add_argument("--ablation", type=Path)
    parser.add_argument("--analyze-existing", type=Path, metavar="DIR")
    parser.add_argument("--generate-report", action="store_true")
    parser.add_argument("--output-dir", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("DIR_A", "DIR_B"))
    return parser


def _refuse_with(
    parser: argparse.ArgumentParser, options: argparse.Namespace, mode: str, names: Sequence[str]
) -> None:
    for name in names:
        if getattr(options, name) not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            parser.error(f"{flag}: has no meaning with {mode}; leave one of them out")


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Checked as far as text can be; argparse ends the program with 2 where it is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    measuring = (*PASSED_ON, "profile_dir")
    if options.compare:
        mode = "--compare"
        _refuse_with(parser, options, mode, (*measuring, "analyze_existing", "generate_report"))
    elif options.analyze_existing:
        _refuse_with(parser, options, "--analyze-existing", measuring)
        if options.output_dir and not options.generate_report:
            parser.error("--output-dir: nothing is written without --generate-report; add it")
    else:
        names = ("generate_report", "output_dir")
        _refuse_with(parser, options, "a run, whose report lies in --profile-dir", names)
    return options


def program_options(options: argparse.Namespace) -> tuple[str, ...]:
    """What tiny_llama_train is given; batch and sequence left out are the size's own."""
    given = {name: getattr(options, name) for name in PASSED_ON}
    given["num_steps"] = given["num_steps"] or DEFAULT_STEPS
    return tuple(
        f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None
    )


if __name__ == "__main__":
    # scripts/profile asks before it builds anything
    parse_options(sys.argv[1:])
