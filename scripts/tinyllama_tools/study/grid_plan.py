"""What a grid consists of, its options, and what its folder was asked for.

study.json: what a grid's folder was asked for, how far it has come, and how to find the newest
that did not end.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import BadInputError, Json, problem_sizes, write_whole
from tinyllama_tools.core.options import list_of, minutes, positive, variants
from tinyllama_tools.core.text import compact_json
from tinyllama_tools.data.json_files import bad_file, read_json
from tinyllama_tools.data.studies import KIND, SCHEMA_VERSION, STUDY

RULE = (
    "write numbers as 8 or 4,8,16 or 64:512:*2 (first:last:factor) or 128:1024:+128 "
    "(first:last:increment)"
)
LARGEST = 2**63 - 1
LONGEST_LIST = 1000


def _refusal(text: str, rule: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"'{text}': {rule}")


def _number(digits: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", digits) or int(digits) > LARGEST:
        raise _refusal(text, RULE)
    if int(digits) < 1:
        raise _refusal(text, f"{digits} is not at least 1")
    return int(digits)


def _range(text: str) -> Iterator[int]:
    found = re.fullmatch(r"([0-9]+):([0-9]+):([*+])([0-9]+)", text)
    if found is None:
        raise _refusal(text, RULE)
    first, last, step = (_number(found[i], text) for i in (1, 2, 4))
    if last < first:
        raise _refusal(text, "the last value is below the first")
    if found[3] == "*" and step < 2:
        raise _refusal(text, "a factor must be at least 2")
    value, count = first, 0
    while value <= last:
        count += 1
        if count > LONGEST_LIST:
            raise _refusal(text, f"more than {LONGEST_LIST} values")
        yield value
        value = value * step if found[3] == "*" else value + step


def number_list(text: str) -> tuple[int, ...]:
    """The numbers in the order given, each once, as the suite itself reads them.

    argparse.ArgumentTypeError names a value that is none and the rule.
    """
    numbers: list[int] = []
    for part in text.split(","):
        numbers += _range(part) if ":" in part else [_number(part, text)]
    return tuple(dict.fromkeys(numbers))


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


START_ANOTHER = "remove the folder, or name another with --results"


@dataclass(frozen=True)
class Record:
    """`command`: as typed. `round_seconds`: of each round that was begun, all its processes
    together. `left_out`: why there are fewer rounds than planned. `finished`: UTC time, or empty.
    """

    plan: GridPlan
    command: str = "scripts/study"
    build_folder: str = "build"
    rounds_done: int = 0
    round_seconds: tuple[float, ...] = ()
    left_out: str = ""
    finished: str = ""

    @property
    def seconds_spent(self) -> float:
        """On rounds so far."""
        return sum(self.round_seconds)

    def as_json(self) -> Json:
        """The whole file."""
        plan = self.plan
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "command": self.command,
            "sizes": list(plan.sizes),
            "batch": list(plan.batch),
            "seq": list(plan.seq),
            "components": list(plan.components),
            "passes": list(PASSES),
            "variants": list(plan.variants),
            "dtypes": [plan.dtype],
            "device": plan.device,
            "rounds": plan.rounds,
            "rounds_done": self.rounds_done,
            "minutes": plan.minutes,
            "seed": plan.seed,
            "check_size": plan.check_size,
            "build_folder": self.build_folder,
            "round_seconds": [round(seconds, 3) for seconds in self.round_seconds],
            "left_out": self.left_out,
            "finished": self.finished,
        }


def write_record(folder: Path, record: Record) -> None:
    """OSError where it cannot be written."""
    write_whole(folder / STUDY, compact_json(record.as_json(), ()))


# Which type the values of the file have; lists have one value or more.
TYPES: Mapping[str, tuple[type, ...] | list[type]] = {
    "command": (str,),
    "sizes": [str],
    "batch": [int],
    "seq": [int],
    "components": [str],
    "variants": [str],
    "dtypes": [str],
    "device": (str,),
    "rounds": (int,),
    "rounds_done": (int,),
    "minutes": (int, float),
    "seed": (int,),
    "check_size": (str,),
    "build_folder": (str,),
    "left_out": (str,),
    "finished": (str,),
}


def _checked(document: Json, path: Path) -> Json:
    if document.get("kind") != KIND:
        raise bad_file(path, f"kind is {document.get('kind')!r}, must be '{KIND}'", START_ANOTHER)
    if document.get("schema_version") != SCHEMA_VERSION:
        version = document.get("schema_version")
        what = f"schema_version is {version!r}, must be {SCHEMA_VERSION}"
        raise bad_file(path, what, START_ANOTHER)
    for key, kind in TYPES.items():
        value = document.get(key)
        if isinstance(kind, list):
            is_good = isinstance(value, list) and value and all(type(v) in kind for v in value)
        else:
            is_good = type(value) in kind
        if not is_good:
            raise bad_file(path, f"{key} is {value!r}, which no study writes", START_ANOTHER)
    return document


def _round_seconds(document: Json, path: Path) -> tuple[float, ...]:
    found: Any = document.get("round_seconds")
    if not isinstance(found, list) or not all(type(v) in {int, float} for v in found):
        raise bad_file(path, f"round_seconds is {found!r}, which no study writes", START_ANOTHER)
    return tuple(float(value) for value in found)


def read_record(folder: Path) -> Record:
    """BadInputError naming the file and the value where study.json is not one of a grid."""
    path = folder / STUDY
    # studies of before there was a check had none
    document = _checked({"check_size": NO_CHECK} | read_json(path)[0], path)
    values = {f.name: document[f.name] for f in fields(GridPlan) if f.name != "dtype"}
    plan = GridPlan(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()},
        dtype=document["dtypes"][0],
    )
    return Record(
        plan,
        document["command"],
        document["build_folder"],
        document["rounds_done"],
        _round_seconds(document, path),
        document["left_out"],
        document["finished"],
    )


def newest_unfinished(results: Path) -> Path:
    """The folder of the newest grid that did not end; BadInputError where there is none, or where
    its study.json cannot be read."""
    for folder in sorted(results.glob(f"*_{KIND}"), reverse=True):
        if (folder / STUDY).is_file() and not read_record(folder).finished:
            return folder
    raise BadInputError(
        f"--resume: {results} holds no grid that did not end; begin one: scripts/study tiny small"
    )


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
