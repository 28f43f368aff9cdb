"""Compares stored results: files of tiny_llama_bench, or performance summaries of training runs.

One file a side shows differences without a verdict; several a side (a file is a block) give one. It
holds if base and new were measured by turns, and not one after the other.
Exit status: 0 no regression; 1 regression; 2 bad input or nothing to compare; 3 with --strict where
a case has no answer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.compare.common_options import (
    add_common_options,
    gate_of,
    regular_expression,
)
from tinyllama_tools.compare.outputs import print_comparison, write_comparison
from tinyllama_tools.compare.profile_of_noise import (
    DEFAULT_PATH,
    NoiseProfile,
    read_noise_profile,
)
from tinyllama_tools.compare.stored_comparison import Rules, compare_stored
from tinyllama_tools.compare.stored_files import read_sides
from tinyllama_tools.compare.stored_judging import FEWEST_FILES
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.results import StoredRun


def add_options(parser: argparse.ArgumentParser) -> None:
    """The files, --filter, --noise-profile, and what every comparison takes."""
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="BASE.json NEW.json")
    for side in ("base", "new"):
        parser.add_argument(
            f"--{side}", nargs="+", type=Path, metavar="FILE", help=f"files of the {side}"
        )
    parser.add_argument(
        "--filter",
        type=regular_expression,
        metavar="REGEX",
        help="compare only cases whose name has a match",
    )
    parser.add_argument(
        "--noise-profile",
        type=Path,
        metavar="FILE",
        help="what `scripts/compare calibrate` recorded of this machine, for one file a side "
        f"(default: results/{DEFAULT_PATH.name}, if it is there and of the same machine)",
    )
    add_common_options(parser)


def files_of_sides(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """BadInputError unless both sides are named, in one way."""
    by_name = options.base is not None or options.new is not None
    if by_name and options.files:
        raise BadInputError(
            f"{options.files[0]}: either BASE.json NEW.json, or --base FILE... --new FILE..., "
            "not both"
        )
    if by_name:
        if not (options.base and options.new):
            missing = "--new" if options.base else "--base"
            raise BadInputError(f"{missing} is missing: both sides need at least one file")
        return options.base, options.new
    if len(options.files) != 2:
        raise BadInputError(
            f"{len(options.files)} files: must be 2, BASE.json NEW.json; for more a side: "
            "--base FILE... --new FILE..."
        )
    return [options.files[0]], [options.files[1]]


def usable_profile(
    named: Path | None,
    base: Sequence[StoredRun],
    new: Sequence[StoredRun],
    default: Path = DEFAULT_PATH,
) -> tuple[NoiseProfile | None, list[str]]:
    """The profile to judge one file of a side by, or why there is none.

    BadInputError for a file that is no profile, and for one of another machine that was named.
    """
    runs = [*base, *new]
    if min(len(base), len(new)) >= FEWEST_FILES:
        return None, ["--noise-profile is not used: several files a side show it"] if named else []
    if any(run.configuration for run in runs):
        return None, ["--noise-profile is not used: it is not of training runs"] if named else []
    if not named and not default.is_file():
        return None, []
    profile = read_noise_profile(named or default)
    mismatch = profile.mismatch([run.context for run in runs])
    if not mismatch:
        return profile, []
    if named:
        raise BadInputError(f"{mismatch}; record one there: scripts/compare calibrate")
    return None, [mismatch]


def _compare(options: argparse.Namespace) -> int:
    base, new = read_sides(*files_of_sides(options))
    profile, why_not = usable_profile(options.noise_profile, base, new)
    rules = Rules(
        options.alpha, options.margin, tuple(options.allow_missing), options.filter, profile
    )
    comparison = compare_stored(base, new, rules)
    comparison = replace(comparison, warnings=(*comparison.warnings, *why_not))
    gate = gate_of(options)
    print_comparison(comparison, options.format, gate)
    if options.output:
        paths = write_comparison(comparison, options.output, gate)
        # standard output may be read by a program
        print(f"wrote {', '.join(map(str, paths))}", file=sys.stderr)
    return gate.status(comparison)


def main(arguments: Sequence[str]) -> int:
    """The exit status; BadInputError for bad input and where there is nothing to compare."""
    parser = argparse.ArgumentParser(
        prog="scripts/compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    return _compare(options)
