"""The options of scripts/study that concern the grid, and the grid that they mean."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.core.options import list_of, minutes, positive, variants
from tinyllama_tools.data.programs import problem_sizes
from tinyllama_tools.grid_study.number_lists import number_list
from tinyllama_tools.grid_study.plan import (
    BATCH,
    CHECK_SIZE,
    COMPONENTS,
    DEFAULT_SIZES,
    NO_CHECK,
    SEQ,
    GridPlan,
)
from tinyllama_tools.grid_study.record import newest_unfinished

ON, ONLY, OFF = "on", "only", "off"
# A grid of more would take days.
MOST_CELLS = 2000
GRID_OPTIONS = (
    *("grid_sizes", "grid_batch", "grid_seq", "grid_components", "grid_variants"),
    *("rounds", "grid_minutes", "check_size"),
)
# What trains the sizes, and says nothing to a grid.
TRAINING_OPTIONS = ("enable_profilers", "num_steps", "max_minutes")
RESUMED_WITH = ("resume", "results", "build_folder")


def add_grid_options(parser: argparse.ArgumentParser) -> None:
    """To the parser of scripts/study."""
    sizes = tuple(problem_sizes())
    group = parser.add_argument_group(
        "grid", "every component and the full step over batch x sequence x size"
    )
    add = group.add_argument
    is_default = f"default: on where {' or '.join(DEFAULT_SIZES)} is among the SIZEs"
    add("--grid", choices=(ON, ONLY, OFF), help=f"only: without training; {is_default}")
    add(
        "--grid-sizes",
        type=list_of(sizes, "size"),
        metavar="LIST",
        help=f"default: {' and '.join(DEFAULT_SIZES)}, where they are among the SIZEs",
    )
    numbers = {"type": number_list, "metavar": "LIST"}
    add("--grid-batch", **numbers, help=f"default: {','.join(map(str, BATCH))}")
    add("--grid-seq", **numbers, help=f"default: {','.join(map(str, SEQ))}")
    components = list_of(COMPONENTS, "component")
    add("--grid-components", type=components, metavar="LIST", help="default: all")
    add("--grid-variants", type=variants, metavar="LIST", help="default: that of --variant")
    add("--rounds", type=positive, metavar="N", help="of the whole grid (default: 3)")
    add("--grid-minutes", type=minutes, metavar="M", help="budget of all rounds (default: 20)")
    add(
        "--check-size",
        choices=(*sizes, NO_CHECK),
        help="its steps are timed at the end, as far as a minute goes, to check predictions by; "
        f"default: {CHECK_SIZE}",
    )
    add("--resume", action="store_true", help="continue the newest grid that did not end")


def _spelled(name: str) -> str:
    return "SIZE" if name == "sizes" else "--" + name.replace("_", "-")


def _given(
    parser: argparse.ArgumentParser, options: argparse.Namespace, names: Sequence[str]
) -> list[str]:
    """Those that are not as they are without being named."""
    return [
        _spelled(name)
        for name in names
        if getattr(options, name) != (() if name == "sizes" else parser.get_default(name))
    ]


def _refuse(
    parser: argparse.ArgumentParser, options: argparse.Namespace, names: Sequence[str], why: str
) -> None:
    given = _given(parser, options, names)
    if given:
        parser.error(f"{given[0]}: {why}")


def _resumed_folder(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Path:
    others = [name for name in vars(options) if name not in RESUMED_WITH]
    why = "not with --resume, which continues a grid with the options it was begun with"
    _refuse(parser, options, others, why)
    try:
        return newest_unfinished(options.results)
    except BadInputError as error:
        return parser.error(str(error))


def _grid_sizes(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[str, ...]:
    """Empty where no grid is wanted."""
    if options.grid == OFF:
        _refuse(parser, options, GRID_OPTIONS, "has no effect with --grid off; leave one out")
        return ()
    if options.grid == ONLY:
        _refuse(
            parser,
            options,
            TRAINING_OPTIONS,
            "has no effect with --grid only, which trains nothing",
        )
    sizes = options.grid_sizes or tuple(s for s in options.sizes if s in DEFAULT_SIZES)
    if sizes:
        return sizes
    named = f"{', '.join(options.sizes)} has no grid of its own" if options.sizes else "no SIZE"
    have = " and ".join(DEFAULT_SIZES)
    why = f"{named}; name {have}, which have one, or others with --grid-sizes"
    if options.grid is not None:
        parser.error(f"--grid {options.grid}: {why}")
    _refuse(parser, options, GRID_OPTIONS, why)
    return ()


def _plan(options: argparse.Namespace, sizes: tuple[str, ...]) -> GridPlan:
    given = {
        "batch": options.grid_batch,
        "seq": options.grid_seq,
        "components": options.grid_components,
        "variants": options.grid_variants or (options.variant,),
        "rounds": options.rounds,
        "minutes": options.grid_minutes,
        "check_size": options.check_size,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return GridPlan(sizes, dtype=options.dtype, device=options.device, **chosen)


def finish_grid_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Sets `grid_plan` (None: no grid), `trains`, and `unfinished` (a folder to continue, or None).

    `sizes` must be names already. What contradicts itself ends the program with status 2.
    """
    if options.resume:
        unfinished = _resumed_folder(parser, options)
        options.grid_plan, options.trains, options.unfinished = None, False, unfinished
        return
    sizes = _grid_sizes(parser, options)
    trains = options.grid != ONLY
    if trains and not options.sizes:
        parser.error("the following arguments are required: SIZE")
    plan = _plan(options, sizes) if sizes else None
    if plan and plan.cells > MOST_CELLS:
        parser.error(
            f"--grid: {plan.cells} cells of size, variant, batch and sequence are more than "
            f"{MOST_CELLS}; name fewer"
        )
    options.grid_plan, options.trains, options.unfinished = plan, trains, None
