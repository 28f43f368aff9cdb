"""scripts/ablation: every switch added to the baseline and removed from optimized, interleaved."""

from __future__ import annotations

import argparse
import copy
import datetime
import random
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tinyllama_tools.commands.ablation_page import (
    TESTS,
    VERSIONS,
    PeersError,
    ablation_page,
    compile_rows,
    newest_peers,
    read_times,
    run_tests,
    terminal_text,
)
from tinyllama_tools.core.app import (
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    problem_sizes,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.options import DTYPES, list_of, positive, script_parser, seconds
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import duration
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import CaseRun, SuiteError, SuiteProgram, SuiteResult
from tinyllama_tools.models.ablations import (
    FIT_FROM,
    FUSED,
    MEMORY_EXERCISE,
    OPTIMIZED,
    PAGE,
    RESULT,
    SWITCHES,
    Cell,
    Kind,
    Point,
    RowName,
    Study,
    Table,
    planned_rows,
    read_study,
    removed_rows,
    resolved_switches,
    result_text,
    without,
)


def write_study(study: Study, folder: Path) -> None:
    """Both files of a run."""
    write_whole(folder / RESULT, result_text(study))
    write_whole(folder / PAGE, ablation_page(study))


PARTS = ("main", "batches", "types", "memory", "gates")
EPILOG = """\
Times are ratios of processes that took turns; what cannot run stays in the tables with its reason.
Ctrl-C keeps what was measured and writes the tables from it.

Exit status: 0 all measured, or skipped with a reason; 1 some result was wrong; 2 bad option, the
set-up failed, or files that cannot be read or written; 130 interrupted."""
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
        "`optimized`, interleaved,\nand writes the workshop's tables filled in.",
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
# fewer decide nothing
FEWEST_TURNS = 5


@dataclass(frozen=True)
class Spelling:
    """`name`: as the program lists it; empty where it refused, for `refusal`."""

    name: str
    refusal: str = ""


def ask_program(program: SuiteProgram, variant: str) -> Spelling:
    """What --list makes of a variant. SuiteError where the program cannot even do that."""
    names, refusal = program.list_cases(["--components=full_step", f"--variants={variant}"])
    return Spelling("", refusal) if refusal else Spelling(names[0].split("/")[2])


@dataclass
class SpellingBook:
    """Asks once for each variant."""

    ask: Callable[[str], Spelling]
    known: dict[str, Spelling] = field(default_factory=dict)

    def spelling(self, variant: str) -> Spelling:
        """The program's name of a variant, or why it refuses it."""
        if variant not in self.known:
            self.known[variant] = self.ask(variant)
        return self.known[variant]


Block = tuple[Table, Point]


class Program(Protocol):
    """What runs cases in a process: SuiteProgram, or a fake of the tests."""

    def run(
        self,
        cases: Sequence[CaseName],
        repetitions: int,
        *,
        verify: bool = False,
        more: Sequence[str] = (),
    ) -> SuiteResult:
        """As SuiteProgram.run()."""
        ...


@dataclass(frozen=True)
class Effort:
    """How much is measured. Cells slower than `slow_seconds` a step get fewer."""

    turns: int = 7
    steps: int = 5
    seed: int = 42
    slow_seconds: float = 2.0

    def is_slow(self, cell: Cell) -> bool:
        """Going by its verified step."""
        return cell.counters.get("verified_seconds", 0.0) > self.slow_seconds

    def turns_of(self, cell: Cell) -> int:
        """A slow cell is measured in the first turns only."""
        return min(self.turns, FEWEST_TURNS) if self.is_slow(cell) else self.turns

    def steps_of(self, cell: Cell) -> int:
        """One step of a slow cell averages over more than enough."""
        return 1 if self.is_slow(cell) else self.steps


def in_a_line(error: SuiteError) -> str:
    """Without what a program that died of a signal had said before."""
    died = re.match(r".* ended with -\d+", str(error))
    return died.group() if died else " ".join(str(error).split())


def take_over(cell: Cell, run: CaseRun) -> None:
    """What a process found, but its time. A case that was measured at all counts as measured."""
    cell.failure = run.failed
    cell.reason = "" if run.seconds else run.skipped
    cell.label = run.label or cell.label
    cell.above_peak = run.above_peak or cell.above_peak
    if run.seconds and not cell.counters:
        cell.counters = dict(run.counters)


@dataclass
class Measurement:
    """The loops. `context`: of the first process, with the peaks of all types."""

    program: Program
    book: SpellingBook
    effort: Effort
    progress: Progress
    context: Json = field(default_factory=dict)

    def plan(self, table: Table, rows: Iterable[RowName], points: Iterable[Point]) -> None:
        """Adds the cells of rows at points; a removed row only where `optimized` has its switch."""
        for point in points:
            for row in rows:
                variant = row.name
                if row.kind == Kind.removed:
                    optimized = table.get(OPTIMIZED, point)
                    held = resolved_switches(optimized.label if optimized else "") or []
                    if row.removed_switch not in held:
                        continue
                    variant = without(held, row.removed_switch)
                spelling = self.book.spelling(variant)
                table.add(Cell(row.name, point, spelling.name, reason=spelling.refusal))

    def verify(self, table: Table) -> None:
        """One iteration of each cell that has no counters yet, compared with the float64 baseline.

        All rows of a point share a process, and so its reference; where it does not come to its
        end, each gets its own.
        """
        for point in table.points():
            cells = [c for (_, at), c in table.cells.items() if at == point]
            cells = [c for c in cells if c.can_run and not c.counters]
            if not cells:
                continue
            self.progress.line(f"verifying {point.title}: {len(cells)} rows")
            try:
                self._run(cells, 1, verify=True)
            except SuiteError:
                for cell in cells:
                    self._run_alone(cell, 1, verify=True)

    def take_turns(self, tables: Iterable[Table], after_turn: Callable[[], None]) -> None:
        """Times every cell once a turn, each in a process, in an order drawn anew each turn.

        Points follow one another and rows are shuffled within a point, so that what is divided by
        each other ran within minutes.
        """
        order = random.Random(self.effort.seed)
        blocks: list[Block] = [(table, point) for table in tables for point in table.points()]
        total = sum(len(self._due(b, turn)) for turn in range(self.effort.turns) for b in blocks)
        self.progress.begin(total)
        for turn in range(self.effort.turns):
            order.shuffle(blocks)
            for block in blocks:
                cells = self._due(block, turn)
                order.shuffle(cells)
                for cell in cells:
                    self.progress.step(f"turn {turn + 1}: {block[1].title}: {cell.row}")
                    self._time(cell, turn)
            self.progress.line(f"turn {turn + 1} of {self.effort.turns} done")
            after_turn()

    def once(self, table: Table) -> None:
        """One iteration of each cell in a process of its own, for what one iteration shows."""
        cells = [cell for cell in table.cells.values() if cell.can_run and not cell.counters]
        self.progress.begin(len(cells))
        for cell in cells:
            self.progress.step(f"memory: {cell.point.title}: {cell.row}")
            self._run_alone(cell, 1, verify=False)
        self.progress.end()

    def _due(self, block: Block, turn: int) -> list[Cell]:
        table, point = block
        cells = [cell for (_, at), cell in table.cells.items() if at == point]
        return [c for c in cells if c.can_run and turn < self.effort.turns_of(c)]

    def _time(self, cell: Cell, turn: int) -> None:
        seconds = self._run_alone(cell, self.effort.steps_of(cell), verify=False)
        if seconds:
            cell.turns[turn] = statistics.median(seconds)

    def _run_alone(self, cell: Cell, repetitions: int, *, verify: bool) -> tuple[float, ...]:
        try:
            return self._run([cell], repetitions, verify=verify)[0].seconds
        except SuiteError as error:
            cell.failure = in_a_line(error)
            cell.turns.clear()
            return ()

    def _run(self, cells: Sequence[Cell], repetitions: int, *, verify: bool) -> list[CaseRun]:
        cases = list(dict.fromkeys(cell.point.case(cell.variant) for cell in cells))
        result = self.program.run(cases, repetitions, verify=verify)
        self._keep_context(result.context)
        by_name = {run.name: run for run in result.cases}
        runs = [by_name[str(cell.point.case(cell.variant))] for cell in cells]
        for cell, run in zip(cells, runs, strict=True):
            take_over(cell, run)
            if verify and run.seconds:
                cell.counters["verified_seconds"] = statistics.median(run.seconds)
        return runs

    def _keep_context(self, context: Json) -> None:
        if not self.context:
            # a copy: the program remembers its own
            self.context.update(copy.deepcopy(context))
            return
        known = self.context.get("peaks", {}).get("measured", {})
        for name, peak in context.get("peaks", {}).get("measured", {}).items():
            known.setdefault(name, peak)


Save = Callable[[], None]


def plan_main(study: Study, measurement: Measurement, options: argparse.Namespace) -> None:
    """Adds and verifies the rows of the test points; the removed ones follow from `optimized`."""
    points = make_plan(options).points
    measurement.plan(study.main, study.rows, points)
    measurement.verify(study.main)
    removed = removed_rows(study.main, options.switches)
    study.rows += removed
    measurement.plan(study.main, removed, points)
    measurement.verify(study.main)


def grid_points(program: SuiteProgram) -> list[Point]:
    """The default grid of the program, as --list names it without any axis."""
    names, refusal = program.list_cases()
    if refusal:
        raise SuiteError(refusal)
    points: list[Point] = []
    for name in names:
        parts = name.split("/")
        if len(parts) == 7 and parts[0] != "peak":
            batch, seq = (int(part.partition(":")[2]) for part in parts[5:])
            points.append(Point(parts[3], parts[4], batch, seq, parts[0], parts[1]))
    return list(dict.fromkeys(points))


def plan_grid(study: Study, measurement: Measurement, options: argparse.Namespace) -> None:
    """Adds and verifies baseline and `optimized`, and every switch where asked for."""
    rows = [VERSIONS[0], VERSIONS[2]]
    if options.grid_switches:
        rows += study.rows_of(Kind.single)
    assert isinstance(measurement.program, SuiteProgram)
    measurement.plan(study.grid, rows, grid_points(measurement.program))
    measurement.verify(study.grid)


def plan_memory(
    study: Study, measurement: Measurement, plan: Plan, options: argparse.Namespace
) -> None:
    """Adds the cells of memory over the sequence."""
    for names, points in (
        (MEMORY_ROWS, plan.memory_points),
        (ATTENTION_ROWS, plan.attention_points),
    ):
        chosen = rows_in_memory(options.switches, names)
        measurement.plan(study.memory, [RowName(name, Kind.single) for name in chosen], points)


def run_study(
    study: Study,
    measurement: Measurement,
    options: argparse.Namespace,
    save: Save,
    most_memory_seconds: float,
) -> None:
    """Everything that was asked for, the costly last."""
    plan = make_plan(options)
    timed = []
    if "main" in options.parts:
        plan_main(study, measurement, options)
        timed.append(study.main)
        save()
    for part, table, points in (
        ("batches", study.batches, plan.batch_points),
        ("types", study.types, plan.type_points),
    ):
        if part in options.parts:
            measurement.plan(table, VERSIONS, points)
            measurement.verify(table)
            timed.append(table)
    if options.grid:
        plan_grid(study, measurement, options)
        timed.append(study.grid)
    save()

    def after_turn() -> None:
        study.meta["turns_done"] = study.meta.get("turns_done", 0) + 1
        save()

    if timed:
        measurement.take_turns(timed, after_turn)
    if "memory" in options.parts:
        run_memory(study, measurement, plan, options, most_memory_seconds)
        save()
    if "gates" in options.parts:
        for name, pattern in TESTS:
            measurement.progress.line(f"gate: {name}: {pattern} (takes minutes)")
            study.gates.append(run_tests(options.build_folder, name, pattern))
            save()


def run_memory(
    study: Study,
    measurement: Measurement,
    plan: Plan,
    options: argparse.Namespace,
    most_seconds: float,
) -> None:
    """Memory over the sequence, with more time for the long ones."""
    plan_memory(study, measurement, plan, options)
    patient = measurement.program
    if isinstance(patient, SuiteProgram):
        others = [a for a in patient.arguments if not a.startswith("--max-seconds-per-case")]
        limit = f"--max-seconds-per-case={most_seconds:g}"
        patient = replace(patient, arguments=(limit, *others))
    replace(measurement, program=patient).once(study.memory)


# Long sequences are worth waiting for: memory needs one iteration only.
MOST_MEMORY_SECONDS = 120.0
FAILED, BAD, INTERRUPTED = 1, 2, 130


def complain(text: object) -> int:
    """Says what is wrong and returns the exit status for it."""
    print(f"scripts/ablation: {text}", file=sys.stderr)
    return BAD


def add_compiled(study: Study, options: argparse.Namespace) -> None:
    """torch.compile's rows from a result of scripts/peers; one that will not do is noted."""
    path = options.peers or newest_peers(study.context)
    if path is None:
        return
    try:
        study.peers = compile_rows(path, study.main)
    except PeersError as error:
        study.notes.append(f"torch.compile: {error}")


def start_study(options: argparse.Namespace, command: Sequence[str]) -> Study:
    """What is known before anything ran."""
    study = Study(planned_rows(options.switches, options.combinations))
    now = datetime.datetime.now(datetime.timezone.utc)
    study.meta = {
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["scripts/ablation", *command]),
        "turns": options.turns,
        "turns_done": 0,
        "steps": options.steps,
        "seed": options.seed,
    }
    if options.quick:
        study.notes.append("a smoke test with a minute model: its numbers mean nothing")
    return study


def measure(study: Study, options: argparse.Namespace, folder: Path) -> int:
    """Fills the study; 130 after Ctrl-C, 2 where the program cannot be used at all."""
    started = time.monotonic()
    arguments = program_arguments(options, options.max_seconds_per_case)
    program = SuiteProgram(arguments, options.build_folder / "benchmarks/tiny_llama_bench")
    book = SpellingBook(lambda variant: ask_program(program, variant))
    measurement = Measurement(program, book, effort_of(options), Progress())

    def save() -> None:
        study.context = measurement.context
        study.meta["took"] = duration(time.monotonic() - started)
        write_study(study, folder)

    status = 0
    try:
        run_study(study, measurement, options, save, MOST_MEMORY_SECONDS)
    except KeyboardInterrupt:
        study.notes.append("interrupted: what is missing was not measured")
        status = INTERRUPTED
    except SuiteError as error:
        study.notes.append(f"ended early: {error}")
        status = complain(error)
    measurement.progress.end()
    add_compiled(study, options)
    save()
    return status


def show(study: Study, files: Sequence[Path]) -> None:
    """The tables on the terminal, and where everything is."""
    print(terminal_text(study))
    for path in files:
        print(path)


def rewrite(options: argparse.Namespace) -> int:
    """--from: tables of an earlier result."""
    study = read_study(options.source)
    if options.peers:
        add_compiled(study, options)
    # one in results/reference has its page elsewhere
    is_run = options.source.name == RESULT
    folder = options.output or (options.source.parent if is_run else run_folder("ablation"))
    folder.mkdir(parents=True, exist_ok=True)
    write_study(study, folder)
    show(study, (folder,))
    return FAILED if study.has_failed else 0


def refusal(options: argparse.Namespace) -> str:
    """Why these options cannot be followed, before hours are spent on them."""
    if options.peers:
        try:
            read_times(options.peers)
        except PeersError as error:
            return f"--peers {error}"
    return ""


def main(arguments: Sequence[str]) -> int:
    """Measures, writes and prints."""
    options = parse_options(arguments)
    refused = refusal(options)
    if refused:
        raise BadInputError(refused)
    if options.source:
        return rewrite(options)
    folder = options.output or run_folder("ablation", RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    study = start_study(options, list(arguments))
    status = measure(study, options, folder)
    show(study, (folder,))
    return status or (FAILED if study.has_failed else 0)
