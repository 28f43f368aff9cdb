"""Options of scripts/ablation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.ablation_growth import FIT_FROM
from tinyllama_tools.ablation_measure import Effort
from tinyllama_tools.ablation_reference import MEMORY_EXERCISE, SWITCHES
from tinyllama_tools.ablation_study import FUSED, OPTIMIZED, Point
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.core.options import DTYPES, list_of, machine, positive, script_parser, seconds
from tinyllama_tools.data.programs import problem_sizes

PARTS = ("main", "batches", "types", "memory", "gates")
EPILOG = """\
Times are ratios of processes that took turns; what cannot run stays in the tables with its reason.
Ctrl-C keeps what was measured and writes the tables from it.

Exit status: 0 all measured, or skipped with a reason; 1 some result was wrong; 2 bad option, the
set-up failed, or files that cannot be read or written; 130 interrupted."""
PUBLISH_HELP = "also write results/ABLATION.md and results/reference/ablation_MACHINE.json"
# A model that steps in a millisecond, to see that everything works.
QUICK_MODEL = (
    "--hidden-dim=32 --n-layers=1 --n-heads=2 --n-kv-heads=1 --intermediate-dim=64 --vocab-size=50"
)
QUICK_SWITCHES = ("qkv", "fused_swiglu", "graph")


@dataclass(frozen=True)
class Plan:
    """What is measured, whichever switches there are."""

    points: tuple[Point, ...]
    batch_points: tuple[Point, ...]
    type_points: tuple[Point, ...]
    memory_points: tuple[Point, ...]
    attention_points: tuple[Point, ...]


def shapes(text: str) -> tuple[tuple[int, int], ...]:
    """`8x128,16x256`: batch and sequence."""
    found = []
    for entry in text.split(","):
        batch, _, seq = entry.partition("x")
        if not (batch.isdecimal() and seq.isdecimal() and int(batch) and int(seq)):
            raise argparse.ArgumentTypeError(f"'{entry}': must be BATCHxSEQ such as 8x128")
        found.append((int(batch), int(seq)))
    return tuple(dict.fromkeys(found))


def combinations(text: str) -> tuple[str, ...]:
    """`a+b,c+d`; the program itself knows which go together."""
    names = tuple(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        for switch in name.split("+"):
            if switch not in (*SWITCHES, FUSED):
                message = f"switch '{switch}' of '{name}': must be one of {', '.join(SWITCHES)}"
                raise argparse.ArgumentTypeError(message)
    return names


def make_parser() -> argparse.ArgumentParser:
    """All options."""
    parser = script_parser(
        "ablation",
        "Measures every optimisation added to the baseline and removed from "
        "`optimized`, in turn, and writes the workshop's tables filled in.",
        EPILOG,
    )
    switches = list_of(SWITCHES, "switch")
    sizes = list_of(tuple(problem_sizes()), "size")
    add = parser.add_argument
    add("--switches", type=switches, default=SWITCHES, help="only these (default: all)")
    add("--combinations", type=combinations, default=(), help="further rows, e.g. qkv+gate_up")
    add("--dtypes", type=list_of(DTYPES, "dtype"), default=("f32", "bf16", "amp_bf16"))
    add("--points", type=shapes, default=((8, 128), (16, 256)), help="default: 8x128,16x256")
    add("--size", type=sizes, default=("tiny",), help="problem size (default: tiny)")
    add("--turns", type=positive, default=7, help="how often each variant runs (default: 7)")
    add("--steps", type=positive, default=5, help="timed steps of a process (default: 5)")
    add("--seed", type=int, default=42, help="of the order of the turns")
    add("--threads", type=positive, help="CPU threads (default: libtorch's own choice)")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N]")
    add("--max-seconds-per-case", type=seconds, default=30.0, help="skip what needs longer")
    add(
        "--slow-seconds",
        type=seconds,
        default=2.0,
        help="slower steps get 5 turns of 1 (default: 2)",
    )
    parts = list_of(PARTS, "part")
    add("--only", type=parts, default=PARTS, help=f"only these parts of {', '.join(PARTS)}")
    add("--without", type=parts, default=(), help="leave these parts out")
    add("--grid", action="store_true", help="also baseline and optimized over the default grid")
    add("--grid-switches", action="store_true", help="--grid with every switch as well (hours)")
    add("--peers", type=Path, help="result of scripts/peers (default: the newest)")
    add("--build-folder", type=Path, default=PROJECT / "build")
    add("--output", type=Path, help="folder (default: results/<UTC time>_ablation)")
    add("--from", type=Path, dest="source", help="write the tables of an ablation.json anew")
    add("--publish", type=machine, metavar="MACHINE", help=PUBLISH_HELP)
    add("--quick", action="store_true", help="smoke test: a minute model, few switches, 2 turns")
    return parser


def make_quick(options: argparse.Namespace) -> None:
    """Turns the options into those of a smoke test."""
    if options.switches == SWITCHES:
        options.switches = QUICK_SWITCHES
    options.size, options.points = ("custom",), ((2, 16), (4, 32))
    options.dtypes = ("f32",)
    options.turns, options.steps = min(options.turns, 2), min(options.steps, 2)
    options.without = (*options.without, "gates")


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options with `parts`. A bad one ends the program with status 2."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if len(options.size) != 1:
        parser.error(f"--size '{','.join(options.size)}': must be one size")
    if options.publish and options.quick:
        parser.error("--publish: a smoke test is not published")
    if options.quick:
        make_quick(options)
    options.grid = options.grid or options.grid_switches
    options.parts = tuple(p for p in PARTS if p in options.only and p not in options.without)
    return options


def make_plan(options: argparse.Namespace) -> Plan:
    """The points of every table."""
    size, first, quick = options.size[0], options.dtypes[0], options.quick
    lengths = (16, 32, 64) if quick else tuple(128 * 2**i for i in range(7))
    long_lengths = lengths if quick else tuple(n for n in lengths if n >= FIT_FROM)
    exercise = ((16, 4), (32, 2)) if quick else MEMORY_EXERCISE
    batches = (1, 2) if quick else (1, 2, 4, 8, 16, 32)
    others = () if quick else tuple(dtype for dtype in DTYPES if dtype not in options.dtypes)
    seq = options.points[0][1]
    attention = ("attention", "forward_backward")
    return Plan(
        points=tuple(Point(size, d, b, s) for d in options.dtypes for b, s in options.points),
        batch_points=tuple(Point(size, first, batch, seq) for batch in batches),
        type_points=tuple(Point(size, d, b, s) for d in others for b, s in options.points),
        memory_points=(
            *(Point(size, first, batch, length) for length, batch in exercise),
            *(Point(size, first, 1, length) for length in lengths),
        ),
        attention_points=tuple(Point(size, first, 1, n, *attention) for n in long_lengths),
    )


def effort_of(options: argparse.Namespace) -> Effort:
    """How much is measured."""
    return Effort(options.turns, options.steps, options.seed, options.slow_seconds)


def program_arguments(options: argparse.Namespace, most_seconds: float) -> tuple[str, ...]:
    """What all processes of tiny_llama_bench are given."""
    arguments = [f"--max-seconds-per-case={most_seconds:g}", f"--device={options.device}"]
    if options.threads:
        arguments.append(f"--threads={options.threads}")
    return (*arguments, *(QUICK_MODEL.split() if options.quick else ()))


def rows_in_memory(switches: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The baseline and those of the wanted rows that are sets or chosen switches."""
    return [name for name in wanted if name not in SWITCHES or name in switches]


MEMORY_ROWS = ("baseline", FUSED, OPTIMIZED, "checkpoint", "fused_loss", "sdpa", "fused_attention")
ATTENTION_ROWS = ("baseline", "sdpa", "fused_attention", OPTIMIZED)


if __name__ == "__main__":
    # scripts/ablation asks before it sets anything up
    parse_options(None)
