"""Options of scripts/frontier."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.frontier.axis import AXES
from tinyllama_tools.frontier.bracket import LARGEST
from tinyllama_tools.grid_study.number_lists import number_list
from tinyllama_tools.option_values import DTYPES, list_of, script_parser, seconds, variants
from tinyllama_tools.result_files import RESULTS
from tinyllama_tools.suite_run import PROJECT, problem_sizes

DEFAULT_VARIANTS, DEFAULT_DTYPES = ("baseline", "optimized"), ("f32", "bf16")
DEFAULT_SEQS, DEFAULT_BATCHES = (128, 256, 512, 1024, 2048), (1, 2, 4, 8, 16)
DEFAULT_SECONDS = 120.0
# As the suite itself reads them (benchmarks/console/option_grammar.cpp).
UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}iB": 1024**i for i, letter in enumerate("KMGT", start=1)},
    **{f"{letter}B": 1000**i for i, letter in enumerate("KMGT", start=1)},
    "kB": 1000,
}
SIZE_RULE = "write an amount as 8GiB, 512MiB, 1.5GB or 1048576 (bytes)"
MOST_BYTES = 9e18
EPILOG = """\
Predicted from the suite's own formulas for a training step (full_step) and what the steps in
--measured took beyond them, for a limit that this machine need not have. Without --memory-limit it
is 90 % of what is free: the program and its libraries need the rest.
--confirm tries: a process for each step, one step each. One that runs out of memory, or is killed
by SIGKILL as the kernel does for want of memory, is the answer that it does not fit. Tries never
get more than 90 % of what is free; a higher limit is lowered to that, for the prediction as well.
Writes frontier.json and frontier.md to results/<UTC time>_frontier/ before the first try, and again
after each line.

Exit status: 0 done; 1 a try ended without an answer (too long, or failed for another reason than
memory); 2 bad option or file, or a program that cannot be asked; 130 interrupted: what was
confirmed so far is written."""


def memory_size(text: str) -> int:
    """`8GiB` in bytes."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2] not in UNITS:
        raise argparse.ArgumentTypeError(f"'{text}': {SIZE_RULE}")
    size = float(found[1]) * UNITS[found[2]]
    if not (math.isfinite(size) and 1 <= size <= MOST_BYTES):
        raise argparse.ArgumentTypeError(
            f"'{text}': must be at least 1 byte and below 8 EiB; {SIZE_RULE}"
        )
    return int(size)


def axis_values(text: str) -> tuple[int, ...]:
    """Batches or sequence lengths, sorted."""
    numbers = number_list(text)
    if max(numbers) > LARGEST:
        raise argparse.ArgumentTypeError(f"'{text}': must be at most {LARGEST}")
    return tuple(sorted(numbers))


def make_parser() -> argparse.ArgumentParser:
    """All options."""
    names = tuple(problem_sizes())
    parser = script_parser(
        "frontier",
        "The largest batch that fits for each sequence length, and the reverse.",
        EPILOG,
    )
    add = parser.add_argument
    add(
        "sizes",
        nargs="*",
        type=list_of(names, "size"),
        metavar="SIZE",
        help=f"{', '.join(names)} (default: all)",
    )
    by_help = "seq: the largest batch for each --seq; batch: the longest sequence for each --batch"
    add("--by", choices=tuple(AXES), default="seq", help=f"{by_help} (default: seq)")
    add("--seq", type=axis_values, help="default: 128,256,512,1024,2048")
    add("--batch", type=axis_values, help="default: 1,2,4,8,16")
    add("--variants", type=variants, default=DEFAULT_VARIANTS, help="default: baseline,optimized")
    dtypes = list_of(DTYPES, "dtype")
    add("--dtypes", type=dtypes, default=DEFAULT_DTYPES, help="default: f32,bf16")
    limit_help = "e.g. 8GiB (default: 90 % of what is free)"
    add("--memory-limit", type=memory_size, metavar="SIZE", help=limit_help)
    add(
        "--measured",
        type=Path,
        action="append",
        default=[],
        metavar="FILE_OR_FOLDER",
        help="results whose training steps say how much more is needed than predicted; repeatable",
    )
    add("--confirm", action="store_true", help="try steps around each prediction")
    add("--max-seconds", type=seconds, help="of a try, with --confirm (default: 120)")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--results", type=Path, default=RESULTS, help="folder of the folders (default: results)")
    add("--build-folder", type=Path, default=PROJECT / "build", help="default: build")
    return parser


def _refuse_contradictions(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    axis = AXES[options.by]
    found = getattr(options, axis.searched)
    if found is not None:
        parser.error(
            f"argument --{axis.searched}: '{','.join(map(str, found))}': with --by {axis.given} "
            f"it is what is searched for; leave it out, or say --by {axis.searched}"
        )
    if options.max_seconds is not None and not options.confirm:
        parser.error(
            f"argument --max-seconds: '{options.max_seconds:g}': is of a try, and nothing is tried "
            "without --confirm; add that, or leave it out"
        )


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """`axis` is what is searched, `given` the values of the other one; `sizes` has each once.

    A bad value ends the program with status 2.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    _refuse_contradictions(options, parser)
    options.axis = AXES[options.by]
    default = DEFAULT_SEQS if options.axis.given == "seq" else DEFAULT_BATCHES
    options.given = getattr(options, options.axis.given) or default
    flat = dict.fromkeys(name for names in options.sizes for name in names)
    options.sizes = tuple(flat) or tuple(problem_sizes())
    options.max_seconds = options.max_seconds or DEFAULT_SECONDS
    return options


if __name__ == "__main__":
    parse_options()
