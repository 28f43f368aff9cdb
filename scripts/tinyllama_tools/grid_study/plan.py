"""What a grid consists of, and the options of tiny_llama_bench that measure a round of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.data.programs import problem_sizes

COMPONENTS = (
    *("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"),
    *("optimizer", "full_step"),
)
# Each component has one or two of them; forward_loss is the model's.
PASSES = ("forward_backward", "update", "train", "forward_loss")
BATCH, SEQ = (1, 2, 4, 8), (64, 128, 256, 512)
# The sizes that a grid is measured at without being asked for.
DEFAULT_SIZES = ("tiny", "small")
SEED = 1
# Peaks are measured at the start of every round; as rows they would be measured twice.
NO_PEAKS = "--benchmark_filter=-^peak/"
# Of a bigger size, by which predictions are checked.
CHECK_SIZE, NO_CHECK = "medium", "off"
CHECK_STEPS = 3
# Of all those steps together, and one more, which only warms up.
CHECK_SECONDS = 60.0
PRODUCTS_ONLY = "--benchmark_filter=^peak/gemm/[^/]+/[0-9]"
MEASURING = ("--benchmark_repetitions=1", "--benchmark_min_time=0.1s", "--max-seconds-per-case=30")


def _list(name: str, values: Sequence[object]) -> str:
    return f"--{name}={','.join(map(str, values))}"


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
    seed: int = SEED
    check_size: str = CHECK_SIZE

    @property
    def is_checked(self) -> bool:
        """A size of the grid checks nothing: rates are calibrated on it."""
        return self.check_size != NO_CHECK and self.check_size not in self.sizes

    @property
    def check_shapes(self) -> list[tuple[int, int]]:
        """Batch and sequence: the size's own, then with a half of the batch each."""
        of = problem_sizes()[self.check_size]
        batches, batch = [], of["batch"]
        while batch:
            batches.append(batch)
            batch //= 2
        return [(batch, of["seq"]) for batch in batches]

    @property
    def cells(self) -> int:
        """Of batch, sequence, size and variant."""
        return len(self.batch) * len(self.seq) * len(self.sizes) * len(self.variants)

    def in_words(self) -> str:
        """`tiny, small x batch 1, 2 x seq 64, 128`."""
        axes = [", ".join(self.sizes)]
        axes += [f"{n} {', '.join(map(str, v))}" for n, v in self._numbers()]
        return " x ".join(axes)

    def _numbers(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return (("batch", self.batch), ("seq", self.seq))


def _common(plan: GridPlan) -> list[str]:
    return [f"--device={plan.device}", _list("dtypes", [plan.dtype])]


def axis_options(plan: GridPlan) -> list[str]:
    """The cases of the grid, of tiny_llama_bench."""
    options = [
        *_common(plan),
        _list("sizes", plan.sizes),
        _list("batch", plan.batch),
        _list("seq", plan.seq),
        _list("variants", plan.variants),
        _list("passes", PASSES),
        NO_PEAKS,
    ]
    # Left out where it is all: components that a variant does not change then make no case.
    if plan.components != COMPONENTS:
        options.append(_list("components", plan.components))
    return options


def own_shape_options(plan: GridPlan) -> list[str]:
    """Every component of every problem size at its own batch and sequence, of the plan's variants
    and dtype."""
    return [
        *_common(plan),
        _list("sizes", tuple(problem_sizes())),
        _list("variants", plan.variants),
        _list("passes", PASSES),
        NO_PEAKS,
    ]


def check_cost_options(plan: GridPlan) -> list[str]:
    """Every component of the size that is checked, at each shape at which it might be."""
    shapes = plan.check_shapes
    return [
        *_common(plan),
        _list("sizes", [plan.check_size]),
        _list("batch", [batch for batch, _ in shapes]),
        _list("seq", [shapes[0][1]]),
        _list("variants", plan.variants),
        _list("passes", PASSES),
        NO_PEAKS,
    ]


def check_options(plan: GridPlan, variant: str, batch: int, seq: int) -> list[str]:
    """A few training steps of that size at that shape, without the proof."""
    return [
        *_common(plan),
        "--components=full_step",
        _list("sizes", [plan.check_size]),
        _list("batch", [batch]),
        _list("seq", [seq]),
        _list("variants", [variant]),
        "--passes=train",
        f"--benchmark_repetitions={CHECK_STEPS}",
        "--benchmark_min_time=1x",
        # the shape is chosen by what it takes, so that the program's own limit is no second one
        f"--max-seconds-per-case={CHECK_SECONDS:g}",
        "--verify=off",
        NO_PEAKS,
    ]


def round_options(plan: GridPlan, number: int) -> list[str]:
    """The cases of round `number` (from 1), sizes, batches and sequences in an order of their own,
    and how they are measured: the first round with the proof. Components keep the program's order.
    """
    order = random.Random(f"{plan.seed}/{number}")

    def shuffled(values: Sequence[object]) -> tuple:
        return tuple(order.sample(values, len(values)))

    mixed = replace(
        plan,
        sizes=shuffled(plan.sizes),
        batch=shuffled(plan.batch),
        seq=shuffled(plan.seq),
    )
    verify = "before" if number == 1 else "off"
    return [*axis_options(mixed), *MEASURING, f"--verify={verify}"]


def product_options(plan: GridPlan) -> dict[str, list[str]]:
    """Rows peak/gemm/<type>/<shape>: of each size at its own batch and sequence, and at the grid's
    largest."""
    common = [
        *_common(plan),
        "--components=peak",
        _list("sizes", plan.sizes),
        "--verify=off",
        "--benchmark_repetitions=3",
        PRODUCTS_ONLY,
    ]
    largest = [f"--batch={max(plan.batch)}", f"--seq={max(plan.seq)}"]
    return {"own": common, "largest": [*common, *largest]}
