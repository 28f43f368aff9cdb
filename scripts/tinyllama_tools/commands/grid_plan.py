"""What a grid consists of, the options of scripts/study that say so, and study.json."""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinyllama_tools.core.app import (
    BadInputError,
    Json,
    bad_file,
    problem_sizes,
    read_json,
    schema_problem,
    write_whole,
)
from tinyllama_tools.core.options import list_of, minutes, positive, variants
from tinyllama_tools.core.text import compact_json
from tinyllama_tools.data.names import OPTIMIZED, STEP
from tinyllama_tools.data.studies import (
    KIND,
    SCHEMA_VERSION,
    STUDY,
)

if TYPE_CHECKING:
    from tinyllama_tools.data.programs import CaseCost

COMPONENTS = (
    *("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"),
    *("optimizer", "full_step"),
)
# each component has one or two of them; forward_loss is the model's
PASSES = ("forward_backward", "update", "train", "forward_loss")
BATCH, SEQ = (1, 2, 4, 8), (64, 128, 256, 512)
# the sizes that a grid is measured at without being asked for
DEFAULT_SIZES = ("tiny", "small")
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

    @property
    def cells(self) -> int:
        """Of batch, sequence, size and variant."""
        return len(self.batch) * len(self.seq) * len(self.sizes) * len(self.variants)

    def options(self, *more: str, **axes: Sequence[object]) -> list[str]:
        """Of tiny_llama_bench: cases of the plan's device and dtype; an empty axis is left out."""
        lists = {"dtypes": [self.dtype]} | axes
        given = [f"--{name}={','.join(map(str, v))}" for name, v in lists.items() if v]
        return [f"--device={self.device}", *given, *more]

    def cases(self, **axes: Sequence[object]) -> list[str]:
        """Of tiny_llama_bench: the passes and variants of the grid over these axes."""
        return self.options(NO_PEAKS, variants=self.variants, passes=PASSES, **axes)

    def grid(self) -> list[str]:
        """The cases of the grid. Components are left out where it is all: those that a variant
        does not change then make no case."""
        named = self.components if self.components != COMPONENTS else ()
        return self.cases(sizes=self.sizes, batch=self.batch, seq=self.seq, components=named)

    def priced(self) -> list[list[str]]:
        """Beside the grid: every component of every problem size at its own batch and sequence, and
        of the size that is checked at each shape at which it might be."""
        found = [self.cases(sizes=tuple(problem_sizes()))]
        if self.is_checked:
            batches, seqs = zip(*self.check_shapes, strict=True)
            found.append(self.cases(sizes=[self.check_size], batch=batches, seq=seqs[:1]))
        return found

    def round(self, number: int) -> list[str]:
        """Round `number` (from 1): sizes, batches and sequences in an order of its own; components
        keep the program's. The first round proves."""
        order = random.Random(f"{self.seed}/{number}")
        axes = {n: tuple(order.sample(v, len(v))) for n, v in (
            ("sizes", self.sizes), ("batch", self.batch), ("seq", self.seq))}  # fmt: skip
        verify = "before" if number == 1 else "off"
        return [*replace(self, **axes).grid(), *MEASURING, f"--verify={verify}"]

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
        return self.options(
            f"--benchmark_repetitions={CHECK_STEPS}",
            "--benchmark_min_time=1x",
            f"--max-seconds-per-case={CHECK_SECONDS:g}",
            "--verify=off",
            NO_PEAKS,
            components=[STEP],
            sizes=[name.size],
            batch=[name.batch],
            seq=[name.seq],
            variants=[name.variant],
            passes=["train"],
        )

    def in_words(self, cases: int) -> str:
        """What it would measure."""
        axes = (
            f"{n} {', '.join(map(str, v))}" for n, v in (("batch", self.batch), ("seq", self.seq))
        )
        check = f" and steps of {self.check_size}" if self.is_checked else ""
        return (
            f"Grid: {cases} cases of {len(self.components)} components, "
            f"{' x '.join([', '.join(self.sizes), *axes])} "
            f"({self.dtype}, {', '.join(self.variants)}),\n"
            f"in {self.rounds} rounds, the later ones as far as {self.minutes:g} minutes go, "
            f"beside some minutes for GEMMs{check}."
        )


LIST_RULE = (
    "write numbers as 8 or 4,8,16 or 64:512:*2 (first:last:factor) or 128:1024:+128 "
    "(first:last:increment)"
)
LARGEST_NUMBER = 2**63 - 1
LONGEST_LIST = 1000


def number_list(text: str) -> tuple[int, ...]:
    """The numbers in the order given, each once, in the suite's own grammar: 8, 4,8,16, 64:512:*2
    and 128:1024:+128.

    argparse.ArgumentTypeError names a value that is none and the rule.
    """

    def refuse(rule: str = LIST_RULE) -> argparse.ArgumentTypeError:
        return argparse.ArgumentTypeError(f"'{text}': {rule}")

    def number(digits: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", digits) or int(digits) > LARGEST_NUMBER:
            raise refuse()
        if int(digits) < 1:
            raise refuse(f"{digits} is not at least 1")
        return int(digits)

    def numbers(part: str) -> Iterator[int]:
        found = re.fullmatch(r"([0-9]+):([0-9]+):([*+])([0-9]+)", part)
        if found is None:
            yield number(part)
            return
        value, last, step = (number(found[i]) for i in (1, 2, 4))
        if last < value:
            raise refuse("the last value is below the first")
        if found[3] == "*" and step < 2:
            raise refuse("a factor must be at least 2")
        for _ in range(LONGEST_LIST):
            yield value
            value = value * step if found[3] == "*" else value + step
            if value > last:
                return
        raise refuse(f"more than {LONGEST_LIST} values")

    return tuple(dict.fromkeys(n for part in text.split(",") for n in numbers(part)))


ON, ONLY, OFF = "on", "only", "off"
# a grid of more would take days
MOST_CELLS = 2000
GRID_OPTIONS = (
    *("grid_sizes", "grid_batch", "grid_seq", "grid_components", "grid_variants"),
    *("rounds", "grid_minutes", "check_size"),
)
# what trains the sizes, and says nothing to a grid
TRAINING_OPTIONS = ("enable_profilers", "num_steps", "max_minutes")
RESUMED_WITH = ("resume", "results", "build_folder")


def add_grid_options(parser: argparse.ArgumentParser) -> None:
    """To the parser of scripts/study."""
    sizes = tuple(problem_sizes())
    add = parser.add_argument_group(
        "grid", "every component and the full step over batch x sequence x size"
    ).add_argument
    is_default = f"default: on where {' or '.join(DEFAULT_SIZES)} is among the SIZEs"
    add("--grid", choices=(ON, ONLY, OFF), help=f"only: without training; {is_default}")
    which = f"default: {' and '.join(DEFAULT_SIZES)}, where they are among the SIZEs"
    add("--grid-sizes", type=list_of(sizes, "size"), metavar="LIST", help=which)
    for name, default in (("batch", BATCH), ("seq", SEQ)):
        usual = f"default: {','.join(map(str, default))}"
        add(f"--grid-{name}", type=number_list, metavar="LIST", help=usual)
    components = list_of(COMPONENTS, "component")
    add("--grid-components", type=components, metavar="LIST", help="default: all")
    add("--grid-variants", type=variants, metavar="LIST", help="default: that of --variant")
    add("--rounds", type=positive, metavar="N", help="of the whole grid (default: 3)")
    add("--grid-minutes", type=minutes, metavar="M", help="budget of all rounds (default: 20)")
    check = (
        "its steps are timed at the end, as far as a minute goes, to check predictions by; "
        f"default: {CHECK_SIZE}"
    )
    add("--check-size", choices=(*sizes, NO_CHECK), help=check)
    add("--resume", action="store_true", help="continue the newest grid that did not end")


def finish_grid_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Sets `grid_plan` (None: no grid), `trains`, and `unfinished` (a folder to continue, or None).

    `sizes` must be names already. What contradicts itself ends the program with status 2.
    """

    def refuse(names: Iterable[str], why: str) -> None:
        """The first of these options that is given."""
        for name in names:
            default = () if name == "sizes" else parser.get_default(name)
            if getattr(options, name) != default:
                spelled = "SIZE" if name == "sizes" else "--" + name.replace("_", "-")
                parser.error(f"{spelled}: {why}")

    given = list(vars(options))
    options.grid_plan, options.trains, options.unfinished = None, False, None
    if options.resume:
        why = "not with --resume, which continues a grid with the options it was begun with"
        refuse([name for name in given if name not in RESUMED_WITH], why)
        try:
            options.unfinished = newest_unfinished(options.results)
        except BadInputError as error:
            parser.error(str(error))
        return
    options.trains = options.grid != ONLY
    if options.grid == OFF:
        refuse(GRID_OPTIONS, "has no effect with --grid off; leave one out")
    elif options.grid == ONLY:
        refuse(TRAINING_OPTIONS, "has no effect with --grid only, which trains nothing")
    sizes = options.grid_sizes or tuple(s for s in options.sizes if s in DEFAULT_SIZES)
    if not sizes and options.grid != OFF:
        named = f"{', '.join(options.sizes)} has no grid of its own" if options.sizes else "no SIZE"
        have = " and ".join(DEFAULT_SIZES)
        why = f"{named}; name {have}, which have one, or others with --grid-sizes"
        if options.grid is not None:
            parser.error(f"--grid {options.grid}: {why}")
        refuse(GRID_OPTIONS, why)
    if options.trains and not options.sizes:
        parser.error("the following arguments are required: SIZE")
    if not sizes or options.grid == OFF:
        return
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
    plan = GridPlan(sizes, dtype=options.dtype, device=options.device, **chosen)
    if plan.cells > MOST_CELLS:
        parser.error(
            f"--grid: {plan.cells} cells of size, variant, batch and sequence are more than "
            f"{MOST_CELLS}; name fewer"
        )
    options.grid_plan = plan


# ---- study.json: what was asked for, and how far it is

START_ANOTHER = "remove the folder, or name another with --results"
TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
RECORD_TYPES: Mapping[str, Json] = {
    "kind": {"const": KIND},
    "schema_version": {"const": SCHEMA_VERSION},
    **{n: {"type": "array", "items": TEXT, "minItems": 1}
       for n in ("sizes", "components", "variants", "dtypes")},
    **{n: {"type": "array", "items": WHOLE, "minItems": 1} for n in ("batch", "seq")},
    **dict.fromkeys(("command", "device", "check_size", "build_folder"), TEXT),
    **dict.fromkeys(("left_out", "finished"), TEXT),
    **dict.fromkeys(("rounds", "rounds_done", "seed"), WHOLE),
    "minutes": NUMBER,
    "round_seconds": {"type": "array", "items": NUMBER},
}  # fmt: skip
RECORD_SCHEMA = {"properties": RECORD_TYPES, "required": list(RECORD_TYPES)}


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

    def as_json(self) -> Json:
        """The whole file."""
        own, plan = asdict(self), asdict(self.plan)
        own.pop("plan")
        plan["dtypes"] = [plan.pop("dtype")]
        seconds = [round(one, 3) for one in self.round_seconds]
        head = {"kind": KIND, "schema_version": SCHEMA_VERSION, "passes": PASSES}
        return head | plan | own | {"round_seconds": seconds}


def write_record(folder: Path, record: Record) -> None:
    """OSError where it cannot be written."""
    write_whole(folder / STUDY, compact_json(record.as_json(), ()))


def read_record(folder: Path) -> Record:
    """BadInputError naming the file and the value where study.json is not one of a grid."""
    path = folder / STUDY
    # studies of before there was a check had none
    document = {"check_size": NO_CHECK} | read_json(path)[0]
    wrong = schema_problem(document, RECORD_SCHEMA)
    if wrong:
        raise bad_file(path, f"{wrong}, which no study writes", START_ANOTHER)
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
    values["dtype"] = values["dtypes"][0]
    plan = GridPlan(**{f.name: values[f.name] for f in fields(GridPlan)})
    return Record(plan, **{f.name: values[f.name] for f in fields(Record) if f.name != "plan"})


def newest_unfinished(results: Path) -> Path:
    """The folder of the newest grid that did not end; BadInputError where there is none, or where
    its study.json cannot be read."""
    for folder in sorted(results.glob(f"*_{KIND}"), reverse=True):
        if (folder / STUDY).is_file() and not read_record(folder).finished:
            return folder
    raise BadInputError(
        f"--resume: {results} holds no grid that did not end; begin one: scripts/study tiny small"
    )
