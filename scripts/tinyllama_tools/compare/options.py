"""Options of every comparison, and those of scripts/compare run."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from tinyllama_tools.compare.blocks import MOST_OVERRUN
from tinyllama_tools.compare.comparison import Gate
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.core.options import positive
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.verdicts import ALPHA, LOOKS, MARGIN

FORMATS = ("text", "md", "json")


def fraction(text: str) -> float:
    """A number between 0 and 1, both excluded."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(
            f"'{text}': must be a number between 0 and 1, such as 0.03"
        )
    return value


def regular_expression(text: str) -> re.Pattern[str]:
    """One that compiles."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}': is no regular expression: {error}") from error


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """--alpha, --margin, --strict, --fail-on-growth, --allow-missing, --format, --output."""
    parser.add_argument(
        "--alpha",
        type=fraction,
        default=ALPHA,
        help="chance of a `slower` or `faster` anywhere in the family where there is no difference "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--margin",
        type=fraction,
        default=MARGIN,
        help="changes up to this fraction are `same` (default: %(default)s)",
    )
    parser.add_argument("--strict", action="store_true", help="exit 3 where a case has no answer")
    parser.add_argument(
        "--fail-on-growth",
        action="store_true",
        help="exit 1 where a deterministic counter (memory, allocations, operators) got worse",
    )
    parser.add_argument(
        "--allow-missing",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="cases that may be missing or fail in the new, by name or pattern (loss/*)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="what to print (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="also write comparison.json, comparison.md and comparison.html there",
    )


def gate_of(options: argparse.Namespace) -> Gate:
    """From the options that add_common_options added."""
    return Gate(strict=options.strict, fail_on_growth=options.fail_on_growth)


UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
BUDGET_SECONDS = 600.0
PAIRS = 8
SLICE_SECONDS = 0.015
LIMIT_SECONDS = 60.0
VERIFY = ("before", "off")
# The parts of a step, the step, and the model's forward: each once, so that one change is not
# tested many times over.
DEFAULT_FAMILY = (
    ("embedding", "forward_backward"),
    ("rms_norm", "forward_backward"),
    ("rotary", "forward_backward"),
    ("attention", "forward_backward"),
    ("ffn", "forward_backward"),
    ("block", "forward_backward"),
    ("loss", "forward_backward"),
    ("model", "forward_loss"),
    ("optimizer", "update"),
    ("full_step", "train"),
)
AXES = ("components", "passes", "variants", "sizes", "dtypes", "batch", "seq")
DEFAULT_AXES = {"variants": "baseline", "sizes": "tiny", "dtypes": "f32"}
SIDE_HELP = "build folder, tiny_llama_bench, or a git commit, which is built in a worktree"


def duration_of(text: str) -> float:
    """Seconds of `15ms`, `30s`, `10m`, `1h`, or of a plain number of seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h)?", text)
    seconds = 0.0
    if found:
        seconds = float(found[1]) * {**UNITS, "ms": 1e-3}[found[2] or "s"]
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"'{text}': must be a time such as 15ms, 30s, 10m or 1h")
    return seconds


def variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise argparse.ArgumentTypeError(f"'{text}': must be NAME=VALUE")
    return name, value


def pattern(text: str) -> str:
    """A regular expression, which the program itself reads."""
    if not text:
        raise argparse.ArgumentTypeError("'': must be a regular expression such as ffn|loss")
    return text


def whole_number(text: str) -> int:
    """0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}': must be a whole number of 0 or more")
    return int(text)


def _add_cases(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "cases",
        "Without --components and --passes: each part of a step once (forward_backward, or "
        "update), the model's forward_loss and the full step; baseline, tiny, f32.",
    )
    for axis in AXES:
        group.add_argument(f"--{axis}", metavar="LIST", help="as tiny_llama_bench takes it")
    group.add_argument("--filter", type=pattern, metavar="REGEX", help="of these, by their names")
    group.add_argument("--device", help="auto, cpu, cuda[:N] or hip[:N]")
    group.add_argument("--threads", type=positive, help="CPU threads of each side")
    group.add_argument("--problem-sizes", type=Path, metavar="FILE", help="sizes by their names")


def _add_effort(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("effort")
    add = group.add_argument
    budget = (
        "time to spend, such as 30s, 10m or 1h (default: 10m); builds come before it, and where "
        f"blocks become slower on the way to a look, up to {100 * (MOST_OVERRUN - 1):.0f} %% and "
        "the block in hand come on top"
    )
    add("--budget", type=duration_of, default=BUDGET_SECONDS, metavar="TIME", help=budget)
    pairs = "of slices, a case and block; 4 of a case that takes long (default: 8)"
    add(
        "--pairs",
        type=positive,
        default=PAIRS,
        help=pairs,
    )
    slice_help = "least time of a slice, in whole iterations (default: 15ms)"
    add("--slice", type=duration_of, default=SLICE_SECONDS, metavar="TIME", help=slice_help)
    looks = f"planned looks, which alpha is divided among (default: {LOOKS})"
    add("--looks", type=positive, default=LOOKS, help=looks)
    limit = "a side that takes longer for one answer is killed (default: 60s)"
    add("--limit", type=duration_of, default=LIMIT_SECONDS, metavar="TIME", help=limit)
    add("--seed", type=whole_number, help="of all orders (default: drawn, and recorded)")
    verify = "before: each side proves each case before any timing; off (default: before)"
    add("--verify", choices=VERIFY, default="before", help=verify)


def _add_sides(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sides")
    for side in ("base", "new"):
        group.add_argument(f"--{side}", required=True, metavar="BUILD|REF", help=SIDE_HELP)
        group.add_argument(
            f"--environment-{side}",
            type=variable,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"environment variable of the {side} alone",
        )
    slow = "slow these cases of the new side by that fraction: whether that is found (a test)"
    group.add_argument(
        "--slow-new", action="append", default=[], metavar="REGEX=FRACTION", help=slow
    )
    group.add_argument(
        "--build-folder",
        type=Path,
        default=PROJECT / "build",
        metavar="FOLDER",
        help="whose CMake settings a git commit is built with (default: build)",
    )
    group.add_argument("--rebuild", action="store_true", help="make the worktrees anew")


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    _add_sides(parser)
    _add_cases(parser)
    _add_effort(parser)
    add_common_options(parser)
    record = "every slice, as JSON lines (default: blocks.jsonl in --output)"
    parser.add_argument("--record", type=Path, metavar="FILE", help=record)


def _is_default_family(options: argparse.Namespace) -> bool:
    return options.components is None and options.passes is None


def program_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """What both sides are given: axes, filter, device."""
    axes: dict[str, str] = dict(DEFAULT_AXES)
    if _is_default_family(options):
        axes["components"] = ",".join(dict.fromkeys(c for c, _ in DEFAULT_FAMILY))
        axes["passes"] = ",".join(dict.fromkeys(p for _, p in DEFAULT_FAMILY))
    for axis in AXES:
        given = getattr(options, axis)
        if given is not None:
            axes[axis] = given
    arguments = [f"--{axis}={axes[axis]}" for axis in AXES if axis in axes]
    others = {
        "benchmark_filter": options.filter,
        "device": options.device,
        "threads": options.threads,
        "problem-sizes": options.problem_sizes,
    }
    arguments += [f"--{name}={value}" for name, value in others.items() if value is not None]
    return tuple(arguments)


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What a run was asked for, as plain values for its recording and its result."""
    return {
        "arguments": list(program_arguments(options)),
        "base_environment": dict(options.environment_base),
        "new_environment": dict(options.environment_new),
        "new_slow": options.slow_new,
        "budget_seconds": options.budget,
        "slice_seconds": options.slice,
        "limit_seconds": options.limit,
        "verify": options.verify,
    }


def is_chosen(name: str, options: argparse.Namespace) -> bool:
    """Whether a listed case is compared: the default family has only some pairs of component and
    pass, which lists cannot say; peaks are no cases."""
    axes = parse_case_name(name)
    if axes is None:
        return False
    return not _is_default_family(options) or (axes.component, axes.pass_name) in DEFAULT_FAMILY
