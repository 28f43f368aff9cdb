"""What a grid consists of, and the options of scripts/study that say so."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.core.options import list_of, minutes, positive, positive_list, variants
from tinyllama_tools.data.names import OPTIMIZED, STEP, TRAIN

if TYPE_CHECKING:
    from tinyllama_tools.data.programs import CaseCost

COMPONENTS = (
    *("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"),
    *("optimizer", STEP),
)
# each component has one or two of them; forward_loss is the model's
PASSES = ("forward_backward", "update", TRAIN, "forward_loss")
BATCH, SEQ = (1, 2, 4, 8), (64, 128, 256, 512)
# peaks are measured at the start of every round; as rows they would be measured twice
NO_PEAKS = "--benchmark_filter=-^peak/"
PRODUCTS_ONLY = "--benchmark_filter=^peak/gemm/[^/]+/[0-9]"
MEASURING = ("--benchmark_repetitions=1", "--benchmark_min_time=0.1s", "--max-seconds-per-case=30")
# of a bigger size, by which predictions are checked
CHECK_SIZE, NO_CHECK = "medium", "off"
CHECK_STEPS = 3
# of all those steps together, and one more, which only warms up
CHECK_SECONDS = 60.0


@dataclass(frozen=True)
class GridPlan:
    """A grid: the axes, how often it is measured, and for how long (`minutes`, a budget).

    `seed`: of the order in which the rounds go through the axes. `check_size`: of which a few steps
    are timed at the end, or NO_CHECK.
    """

    sizes: tuple[str, ...]
    batch: tuple[int, ...] = BATCH
    seq: tuple[int, ...] = SEQ
    components: tuple[str, ...] = COMPONENTS
    variants: tuple[str, ...] = ("baseline",)
    dtype: str = "f32"
    device: str = "auto"
    rounds: int = 3
    minutes: float = 20.0
    seed: int = 1
    check_size: str = CHECK_SIZE

    @property
    def is_checked(self) -> bool:
        """A size of the grid checks nothing: rates are calibrated on it."""
        return self.check_size != NO_CHECK and self.check_size not in self.sizes

    @property
    def check_shapes(self) -> list[tuple[int, int]]:
        """Batch and sequence: the size's own, then with a half of the batch each."""
        of = problem_sizes()[self.check_size]
        return [(of["batch"] >> i, of["seq"]) for i in range(of["batch"].bit_length())]

    @property
    def checked_variant(self) -> str:
        """The one that a report looks into."""
        return OPTIMIZED if OPTIMIZED in self.variants else self.variants[0]

    def options(self, *more: str, **axes: Sequence[object]) -> list[str]:
        """Of tiny_llama_bench: cases of the plan's device and dtype; an empty axis is left out."""
        lists = {"dtypes": [self.dtype]} | axes
        given = [f"--{name}={','.join(map(str, v))}" for name, v in lists.items() if v]
        return [f"--device={self.device}", *given, *more]

    def cases(self, **axes: Sequence[object]) -> list[str]:
        """The passes and variants of the grid over these axes."""
        return self.options(NO_PEAKS, variants=self.variants, passes=PASSES, **axes)

    def grid(self) -> list[str]:
        """The cases of the grid. Components are left out where it is all: those that a variant
        does not change then make no case."""
        named = self.components if self.components != COMPONENTS else ()
        return self.cases(sizes=self.sizes, batch=self.batch, seq=self.seq, components=named)

    def priced(self) -> list[list[str]]:
        """What costs are asked of: the grid, every component of every problem size at its own batch
        and sequence, and the size that is checked at each shape at which it might be."""
        found = [self.grid(), self.cases(sizes=tuple(problem_sizes()))]
        if self.is_checked:
            batches, seqs = zip(*self.check_shapes, strict=True)
            found.append(self.cases(sizes=[self.check_size], batch=batches, seq=seqs[:1]))
        return found

    def round(self, number: int) -> list[str]:
        """Round `number` (from 1): sizes, batches and sequences in an order of its own; components
        keep the program's. The first round proves."""
        order = random.Random(f"{self.seed}/{number}")
        axes = {"sizes": self.sizes, "batch": self.batch, "seq": self.seq}
        shuffled = replace(self, **{n: tuple(order.sample(v, len(v))) for n, v in axes.items()})
        return [*shuffled.grid(), *MEASURING, f"--verify={'before' if number == 1 else 'off'}"]

    def products(self) -> dict[str, list[str]]:
        """Rows peak/gemm/<type>/<shape>: of each size at its own batch and sequence, and at the
        grid's largest."""
        how = ("--verify=off", "--benchmark_repetitions=3", PRODUCTS_ONLY)
        axes = {"components": ["peak"], "sizes": self.sizes}
        largest = {"batch": [max(self.batch)], "seq": [max(self.seq)]}
        return {"own": self.options(*how, **axes), "largest": self.options(*how, **axes, **largest)}

    def check(self, step: CaseCost) -> list[str]:
        """A few training steps of that shape, without the proof. It is chosen by what it takes, so
        that the program's own limit of time is no second one."""
        name = step.name
        how = (
            f"--benchmark_repetitions={CHECK_STEPS}",
            "--benchmark_min_time=1x",
            f"--max-seconds-per-case={CHECK_SECONDS:g}",
            "--verify=off",
            NO_PEAKS,
        )
        axes = {"components": STEP, "sizes": name.size, "batch": name.batch, "seq": name.seq}
        axes |= {"variants": name.variant, "passes": TRAIN}
        return self.options(*how, **{axis: [value] for axis, value in axes.items()})

    def in_words(self, cases: int) -> str:
        """What it would measure."""
        axes = {"": self.sizes, "batch ": self.batch, "seq ": self.seq}
        shape = " x ".join(f"{name}{', '.join(map(str, of))}" for name, of in axes.items())
        return (
            f"Grid: {cases} cases of {len(self.components)} components, {shape} "
            f"({self.dtype}, {', '.join(self.variants)}), in {self.rounds} rounds,\nthe later ones "
            f"as far as {self.minutes:g} minutes go, beside some minutes for GEMMs and a check."
        )


GRID_OPTIONS = (
    *("grid_batch", "grid_seq", "grid_components", "grid_variants", "rounds", "grid_minutes"),
    "check_size",
)
TRAINING_OPTIONS = ("enable_profilers", "num_steps", "max_minutes")
RESUMED_WITH = ("resume", "results", "build_folder")


def add_grid_options(parser: argparse.ArgumentParser) -> None:
    """To the parser of scripts/study."""
    what = "every component and the full step over batch x sequence x size"
    add = parser.add_argument_group("grid", what).add_argument
    add("--grid", action="store_true", help="measure it at the SIZEs, and train nothing")
    for name, default in (("batch", BATCH), ("seq", SEQ)):
        text = f"default: {','.join(map(str, default))}"
        add(f"--grid-{name}", type=positive_list, metavar="LIST", help=text)
    components = list_of(COMPONENTS, "component")
    add("--grid-components", type=components, metavar="LIST", help="default: all")
    add("--grid-variants", type=variants, metavar="LIST", help="default: that of --variant")
    add("--rounds", type=positive, metavar="N", help="of the whole grid (default: 3)")
    budget = "budget of the rounds, which the first may exceed (default: 20)"
    add("--grid-minutes", type=minutes, metavar="M", help=budget)
    check = (
        "whose steps are timed at the end, at the largest batch that a minute is enough for, to "
        f"check predictions by (default: {CHECK_SIZE})"
    )
    add("--check-size", choices=(*problem_sizes(), NO_CHECK), help=check)
    add("--resume", action="store_true", help="continue the newest grid that did not end")


def finish_grid_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Sets `grid_plan`, None where nothing but training is wanted or a grid is resumed. What
    contradicts itself ends the program with status 2. `sizes` must be names already."""
    others = [name for name in vars(options) if name not in RESUMED_WITH]
    resumed = "not with --resume, which continues a grid with the options it was begun with"
    rules = (
        (options.resume, others, resumed),
        (not options.grid, GRID_OPTIONS, "is of the grid; add --grid"),
        (options.grid, TRAINING_OPTIONS, "not with --grid, which trains nothing"),
    )
    for applies, names, why in rules:
        for name in names if applies else ():
            if getattr(options, name) != (() if name == "sizes" else parser.get_default(name)):
                spelled = "SIZE" if name == "sizes" else "--" + name.replace("_", "-")
                parser.error(f"{spelled}: {why}")
    options.grid_plan = None
    if options.resume:
        return
    if not options.sizes:
        parser.error("the following arguments are required: SIZE")
    if options.grid:
        axes = {
            "batch": options.grid_batch,
            "seq": options.grid_seq,
            "components": options.grid_components,
            "variants": options.grid_variants or (options.variant,),
            "rounds": options.rounds,
            "minutes": options.grid_minutes,
            "check_size": options.check_size,
        }
        chosen = {name: value for name, value in axes.items() if value is not None}
        of = {"dtype": options.dtype, "device": options.device}
        options.grid_plan = GridPlan(options.sizes, **of, **chosen)
