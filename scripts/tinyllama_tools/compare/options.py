"""Options of every comparison, and those of scripts/compare run."""

import argparse
import re
from pathlib import Path
from typing import Any

from tinyllama_tools.core.options import (
    add_build_folder,
    add_out,
    fraction,
    positive,
    script_parser,
)
from tinyllama_tools.data.names import PLUGIN, parse_case_name, with_plugin
from tinyllama_tools.stats.verdicts import ALPHA, LOOKS, MARGIN


def regular_expression(text: str) -> re.Pattern[str]:
    """One that compiles."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}': is no regular expression: {error}") from error


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """--alpha, --margin, --strict, --fail-on-growth, --allow-missing, --format, --out."""
    add = parser.add_argument
    alpha = (
        "accepted chance of a false alarm: that any of the compared cases is called slower or "
        "faster although its true change is within --margin (default: %(default)s)"
    )
    add("--alpha", type=fraction, default=ALPHA, help=alpha)
    margin = "largest change that does not matter, as a fraction (default: %(default)s)"
    add("--margin", type=fraction, default=MARGIN, help=margin)
    add("--strict", action="store_true", help="exit with 3 where a case has no answer")
    growth = "exit with 1 where a deterministic counter (memory, allocations, ...) got worse"
    add("--fail-on-growth", action="store_true", help=growth)
    allow = "cases that may be missing or fail in the new: names or patterns (loss/*)"
    add("--allow-missing", nargs="+", action="extend", default=[], metavar="NAME", help=allow)
    forms = ("text", "md", "csv", "json")
    add("--format", choices=forms, default="text", help="what to print (default: %(default)s)")
    output = "also write comparison.json, .md, .html and .csv there"
    add_out(parser, output)


UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# The parts of a step, the step, and the model's forward: each once, so that one change of the code
# does not count as many tests.
DEFAULT_FAMILY = (
    *((name, "forward_backward") for name in ("embedding", "rms_norm", "rotary", "attention")),
    *((name, "forward_backward") for name in ("ffn", "block", "loss")),
    *(("model", "forward_loss"), ("optimizer", "update"), ("full_step", "train")),
)
AXES = ("components", "passes", "variants", "sizes", "dtypes", "batch", "seq")
DEFAULT_AXES = {"variants": "baseline", "sizes": "tiny", "dtypes": "f32"}
# How far the budget may be exceeded to reach a look, where blocks became slower on the way to it.
MOST_OVERRUN = 1.15


def duration_of(text: str) -> float:
    """Seconds of `15ms`, `30s`, `10m`, `1h`, or of a plain number of seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h)?", text)
    seconds = float(found[1]) * UNITS[found[2] or "s"] if found else 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"'{text}': must be a time such as 15ms, 30s, 10m or 1h")
    return seconds


def variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise argparse.ArgumentTypeError(f"'{text}': must be NAME=VALUE")
    return name, value


def run_parser(description: str = "") -> argparse.ArgumentParser:
    """Of scripts/compare run."""
    parser = script_parser("compare run", description, "")
    sides = parser.add_argument_group("sides")
    add = sides.add_argument
    for side in ("base", "new"):
        built = (
            "build folder, tiny_llama_bench or any other Google Benchmark program, or a git "
            "commit, which is built in a worktree"
        )
        own = "" if side == "base" else "; default: this checkout, brought up to date"
        add(f"--{side}", required=side == "base", metavar="BUILD|REF", help=built + own)
        name, own = f"--environment-{side}", f"environment variable of the {side} alone"
        add(name, type=variable, action="append", default=[], metavar="NAME=VALUE", help=own)
    plugin = (
        "the new side runs with the operators of this library in every variant (docs/plugins.md); "
        "where --variants names operators, both sides run with those"
    )
    add("--plugin", type=Path, action="append", default=[], metavar="FILE", help=plugin)
    same = "allow both sides to be the same program: nothing should be found (a test)"
    add("--same", action="store_true", help=same)
    folder = "the new side, where none is named, and whose CMake settings a commit is built with"
    add_build_folder(sides, folder)

    add = parser.add_argument_group(
        "cases",
        "Without --components and --passes: each part of a step once (forward_backward,\n  or "
        "update), the model's forward_loss and the full step; baseline, tiny, f32.",
    ).add_argument
    for axis in AXES:
        add(f"--{axis}", metavar="LIST", help="as tiny_llama_bench takes it")
    chosen = "of these, only cases whose name has a match"
    add("--filter", "--benchmark_filter", metavar="REGEX", help=chosen)
    add("--device", help="auto, cpu, cuda[:N] or hip[:N]")
    add("--threads", type=positive, help="CPU threads of each side")
    add("--problem-sizes", type=Path, metavar="FILE", help="sizes by their names")

    add = parser.add_argument_group("effort").add_argument
    budget = (
        "time to measure, such as 30s, 10m or 1h (default: 10m); builds are not part of it. Where "
        "the machine becomes slower on the way to a look, up to "
        f"{100 * (MOST_OVERRUN - 1):.0f} %% and a block more"
    )
    add("--budget", type=duration_of, default=600.0, metavar="TIME", help=budget)
    pairs = "pairs of slices for each case in each block; for slow cases down to 4 (default: 8)"
    add("--pairs", type=positive, default=8, help=pairs)
    slices = "least time of a slice, which ends with a whole iteration (default: 15ms)"
    add("--slice", type=duration_of, default=0.015, metavar="TIME", help=slices)
    looks = f"how often cases are judged; alpha is divided among the looks (default: {LOOKS})"
    add("--looks", type=positive, default=LOOKS, help=looks)
    limit = "a process that takes longer for one answer is killed (default: 60s)"
    add("--limit", type=duration_of, default=60.0, metavar="TIME", help=limit)
    add("--seed", type=int, help="of the random orders (default: drawn, and recorded)")
    verify = "before: each side proves its results before any timing; off (default: before)"
    add("--verify", choices=("before", "off"), default="before", help=verify)

    add_common_options(parser)
    return parser


def _is_default_family(options: argparse.Namespace) -> bool:
    return options.components is None and options.passes is None


def names_operators(options: argparse.Namespace) -> bool:
    """Whether --variants says where the operators of --plugin go."""
    words = re.split(r"[+,]", options.variants or "")
    return any("::" in word or word == PLUGIN for word in words)


def program_arguments(options: argparse.Namespace, side: str) -> tuple[str, ...]:
    """What a side is given: axes, filter, device; the new one alone plug-ins, but for those that
    --variants speaks of."""
    given = {axis: getattr(options, axis) for axis in AXES}
    if _is_default_family(options):
        components, passes = zip(*DEFAULT_FAMILY, strict=True)
        given["components"] = ",".join(dict.fromkeys(components))
        given["passes"] = ",".join(dict.fromkeys(passes))
    values = {axis: DEFAULT_AXES.get(axis) if v is None else v for axis, v in given.items()} | {
        "benchmark_filter": options.filter,
        "device": options.device,
        "threads": options.threads,
        "problem-sizes": options.problem_sizes,
    }
    further = []
    if names_operators(options) or side == "new":
        further += [f"--plugin={file}" for file in options.plugin]
    if side == "new" and options.plugin and not names_operators(options):
        values["variants"] = ",".join(map(with_plugin, values["variants"].split(",")))
    return (*(f"--{name}={v}" for name, v in values.items() if v is not None), *further)


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What a run was asked for, as plain values for its recording and its result."""
    return {
        "arguments": list(program_arguments(options, "base")),
        "new_plugins": [file.name for file in options.plugin],
        "base_environment": dict(options.environment_base),
        "new_environment": dict(options.environment_new),
        "budget_seconds": options.budget,
        "slice_seconds": options.slice,
        "limit_seconds": options.limit,
        "verify": options.verify,
    }


# options of `compare run` that only tiny_llama_bench understands
SUITE_OPTIONS = (*AXES, "device", "threads", "problem-sizes", "plugin")


def is_chosen_by_name(name: str, options: argparse.Namespace) -> bool:
    """Whether a case of another program is compared, whose names have no axes."""
    return options.filter is None or re.search(options.filter, name) is not None


def is_chosen(name: str, options: argparse.Namespace) -> bool:
    """Whether a case that the program lists is compared. Peaks are not; and of the default family
    only its pairs of component and pass, while the program's options give all combinations."""
    axes = parse_case_name(name)
    if axes is None:
        return False
    return not _is_default_family(options) or (axes.component, axes.pass_name) in DEFAULT_FAMILY
