"""Options of `scripts/compare calibrate`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tinyllama_tools.calibrate.known_slowdown import parse_slowdown
from tinyllama_tools.compare.common_options import fraction
from tinyllama_tools.compare.profile_of_noise import DEFAULT_PATH
from tinyllama_tools.compare.run_options import duration_of
from tinyllama_tools.core.app import PROJECT, RESULTS
from tinyllama_tools.core.options import machine, positive
from tinyllama_tools.stats.verdicts import ALPHA, LOOKS, MARGIN

FAMILIES, FAMILY_CASES, TRIES, SEED = 10_000, 40, 300, 1


def slowdown(text: str) -> dict[str, float]:
    """`ffn:0.05,loss:0.1`."""
    try:
        return parse_slowdown(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measuring (nothing is analysed then)")
    add = group.add_argument
    record = "record A/A blocks for that long, such as 30m"
    add("--record", type=duration_of, metavar="TIME", help=record)
    family = "record A/A blocks of 40 cases, a family of their own for false alarms"
    add("--record-family", type=duration_of, metavar="TIME", help=family)
    slowed = "record that long with cases slowed: all by 2, 5 and 10 %%, then the FFN and the step"
    add("--record-slowed", type=duration_of, metavar="TIME", help=slowed)
    runs = "do that many whole runs of `compare run`, A/A unless --slow is given"
    add("--runs", type=positive, metavar="N", help=runs)
    slow = "what the new side of --runs is slowed by, such as ^ffn/=0.05"
    add("--slow", type=slowdown, default={}, metavar="REGEX=FRACTION", help=slow)
    build = "the build that is calibrated (default: build)"
    add("--build", type=Path, default=PROJECT / "build", metavar="FOLDER", help=build)
    add(
        "run_options",
        nargs="*",
        metavar="-- OPTIONS",
        help="options of `compare run` after --: cases, --pairs, --slice, --threads, --budget",
    )


def _add_analysis(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("analysis")
    add = group.add_argument
    add("--simulate", action="store_true", help="simulated data only: nothing is measured or read")
    recordings = "A/A recordings to analyse, instead of all that the folder has"
    add("--recordings", type=Path, nargs="+", default=[], metavar="FILE", help=recordings)
    add("--families", type=positive, default=FAMILIES, help="default: %(default)s")
    add("--cases", type=positive, default=FAMILY_CASES, help="of a family (default: %(default)s)")
    tries = "of detection, a case and slowdown (default: %(default)s)"
    add("--tries", type=positive, default=TRIES, help=tries)
    jobs = "processes that compute (default: %(default)s)"
    add("--jobs", type=positive, default=os.cpu_count() or 1, help=jobs)
    add("--seed", type=positive, default=SEED, help="of all draws (default: %(default)s)")
    alpha = "chance of a false verdict in a family that is held against (default: %(default)s)"
    add("--alpha", type=fraction, default=ALPHA, help=alpha)
    add("--margin", type=fraction, default=MARGIN, help="as in compare run (default: %(default)s)")
    add("--looks", type=positive, default=LOOKS, help="as in compare run (default: %(default)s)")
    strict = "exit 3 where there are too few families, blocks or runs to show that alpha holds"
    add("--strict", action="store_true", help=strict)


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    _add_measuring(parser)
    _add_analysis(parser)
    group = parser.add_argument_group("files")
    group.add_argument(
        "--folder",
        type=Path,
        default=RESULTS / "calibration",
        help="recordings, runs, and what is made of them (default: results/calibration)",
    )
    group.add_argument(
        "--noise-profile",
        type=Path,
        default=DEFAULT_PATH,
        metavar="FILE",
        help="where the noise profile goes, for `compare` (default: results/noise_profile.json)",
    )
    group.add_argument(
        "--publish",
        type=machine,
        metavar="MACHINE",
        help="also write results/CALIBRATION.md, and to results/reference/ "
        "calibration_MACHINE.json and paired_blocks_MACHINE.jsonl",
    )


def measures(options: argparse.Namespace) -> bool:
    """Whether something is measured; then nothing is analysed."""
    asked = (options.record, options.record_family, options.record_slowed, options.runs)
    return any(asked)


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program with status 2 where options contradict each other."""
    if options.simulate and (measures(options) or options.recordings or options.publish):
        parser.error("--simulate: reads and measures nothing, so no --record, --recordings, ...")
    if options.publish and measures(options):
        parser.error("--publish: of an analysis, so without --record, --record-... and --runs")
    if options.slow and not options.runs:
        parser.error("--slow: slows the runs of --runs N, which is missing")
    if options.run_options and not measures(options):
        parser.error(f"-- {' '.join(options.run_options)}: only with --record, ... or --runs")
