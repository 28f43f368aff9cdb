"""scripts/ablation: every switch added to the baseline and removed from optimized, interleaved."""

from __future__ import annotations

import argparse
import copy
import datetime
import random
import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.commands.ablation_page import ablation_page, terminal_text
from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    Json,
    made_by,
    problem_sizes,
    run_folder,
    without_folders,
    write_whole,
)
from tinyllama_tools.core.options import DTYPES, list_of, positive, script_parser, seconds, variants
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import duration
from tinyllama_tools.data.names import CaseName, StoredCase
from tinyllama_tools.data.programs import SuiteError, SuiteProgram
from tinyllama_tools.models.ablations import (
    BASELINE,
    RESULT,
    SWITCHES,
    WITHOUT,
    Cell,
    Kind,
    Point,
    RowName,
    Study,
    Table,
    planned_rows,
    read_study,
    removed_rows,
    result_text,
    switches_of_optimized,
)

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


def shapes(text: str) -> tuple[tuple[int, int], ...]:
    """`8x128,16x256`: batch and sequence."""
    found = []
    for entry in text.split(","):
        batch, _, seq = entry.partition("x")
        if not (batch.isdecimal() and seq.isdecimal() and int(batch) and int(seq)):
            raise argparse.ArgumentTypeError(f"'{entry}': must be BATCHxSEQ such as 8x128")
        found.append((int(batch), int(seq)))
    return tuple(dict.fromkeys(found))


def make_parser() -> argparse.ArgumentParser:
    """All options."""
    parser = script_parser(
        "ablation",
        "Measures every optimisation added to the baseline and removed from "
        "`optimized`, interleaved,\nand writes one table a point: speedup, memory, proof.",
        EPILOG,
    )
    switches = list_of(SWITCHES, "switch")
    sizes = list_of(tuple(problem_sizes()), "size")
    add = parser.add_argument
    add("--switches", type=switches, default=SWITCHES, help="only these (default: all)")
    add("--combinations", type=variants, default=(), help="further rows, e.g. qkv+gate_up")
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
    add("--build-folder", type=Path, default=PROJECT / "build")
    add("--output", type=Path, help="folder (default: results/<UTC time>_ablation)")
    add("--from", type=Path, dest="source", help="write the tables of an ablation.json anew")
    add("--quick", action="store_true", help="smoke test: a minute model, few switches, 2 turns")
    return parser


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """A bad one ends the program with status 2."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if len(options.size) != 1:
        parser.error(f"--size '{','.join(options.size)}': must be one size")
    if options.quick:
        if options.switches == SWITCHES:
            options.switches = QUICK_SWITCHES
        options.size, options.points, options.dtypes = ("custom",), ((2, 16), (4, 32)), ("f32",)
        options.turns, options.steps = min(options.turns, 2), min(options.steps, 2)
    return options


# Of a slow cell: fewer decide nothing.
FEWEST_TURNS = 5


@dataclass
class Measurement:
    """The loops. `context`: of the first process, with the peaks of all types."""

    program: SuiteProgram
    options: argparse.Namespace
    progress: Progress
    context: Json = field(default_factory=dict)
    _spellings: dict[str, tuple[str, str]] = field(default_factory=dict)

    def spelling(self, variant: str) -> tuple[str, str]:
        """A variant as the program lists it, or nothing and why it refuses it. SuiteError where it
        cannot even do that."""
        if variant not in self._spellings:
            wanted = ["--components=full_step", f"--variants={variant}"]
            names, refusal = self.program.list_cases(wanted)
            self._spellings[variant] = ("" if refusal else names[0].split("/")[2], refusal)
        return self._spellings[variant]

    def effort(self, cell: Cell) -> tuple[int, int]:
        """Turns and steps of a cell, going by its verified step: few of one step where that is
        slow."""
        turns, seconds = self.options.turns, cell.counters.get("verified_seconds", 0.0)
        is_slow = seconds > self.options.slow_seconds
        return (min(turns, FEWEST_TURNS), 1) if is_slow else (turns, self.options.steps)

    def plan(self, table: Table, rows: Iterable[RowName], points: Iterable[Point]) -> None:
        """Adds the cells of rows at points; a removed row only where `optimized` has its switch."""
        rows = list(rows)
        for point in points:
            for row in rows:
                variant = row.name
                if row.kind == Kind.removed:
                    held = switches_of_optimized(table, point) or []
                    switch = row.name.removeprefix(WITHOUT)
                    if switch not in held:
                        continue
                    variant = "+".join(name for name in held if name != switch) or BASELINE
                name, refusal = self.spelling(variant)
                table.add(Cell(row.name, point, name, reason=refusal))

    def verify(self, table: Table) -> None:
        """One iteration of each cell that has no counters yet, compared with the float64 baseline.

        All rows of a point share a process, and so its reference; where it does not come to its
        end, each gets its own.
        """
        for point in table.points():
            cells = [c for c in table.cells_at(point) if c.can_run and not c.counters]
            if not cells:
                continue
            self.progress.line(f"verifying {point.title}: {len(cells)} rows")
            try:
                self._run(cells, 1, verify=True)
            except SuiteError:
                for cell in cells:
                    self._run_alone(cell, 1, verify=True)

    def take_turns(self, table: Table, after_turn: Callable[[], None]) -> None:
        """Times every cell once a turn, each in a process, in an order drawn anew each turn.

        Points follow one another and rows are shuffled within a point, so that what is divided by
        each other ran within minutes.
        """
        order = random.Random(self.options.seed)
        blocks = [table.cells_at(point) for point in table.points()]

        def due(cells: Iterable[Cell], turn: int) -> list[Cell]:
            return [c for c in cells if c.can_run and turn < self.effort(c)[0]]

        turns = range(self.options.turns)
        self.progress.begin(sum(len(due(cells, turn)) for turn in turns for cells in blocks))
        for turn in turns:
            order.shuffle(blocks)
            for block in blocks:
                cells = due(block, turn)
                order.shuffle(cells)
                for cell in cells:
                    self.progress.step(f"turn {turn + 1}: {cell.point.title}: {cell.row}")
                    if found := self._run_alone(cell, self.effort(cell)[1], verify=False):
                        cell.turns[turn] = found
            self.progress.line(f"turn {turn + 1} of {len(turns)} done")
            after_turn()

    def _run_alone(self, cell: Cell, repetitions: int, *, verify: bool) -> float | None:
        try:
            return self._run([cell], repetitions, verify=verify)[0].seconds
        except SuiteError as error:
            # without what a program that died of a signal had said before
            died = re.match(r".* was ended by signal \w+", str(error))
            cell.failure = died.group() if died else " ".join(str(error).split())
            cell.turns.clear()
            return None

    def _run(self, cells: Sequence[Cell], repetitions: int, *, verify: bool) -> list[StoredCase]:
        """Keeps what a process found, but its time. A case that was measured at all counts as
        measured."""
        cases: list[CaseName] = [cell.point.case(cell.variant) for cell in cells]
        limit = [f"--max-seconds-per-case={self.options.max_seconds_per_case:g}"]
        unique = list(dict.fromkeys(cases))
        result = self.program.run(unique, repetitions, verify=verify, more=limit)
        if not self.context:
            # a copy: the program remembers its own
            self.context.update(copy.deepcopy(result.context))
        known = self.context.get("peaks", {}).get("measured", {})
        for name, peak in result.context.get("peaks", {}).get("measured", {}).items():
            known.setdefault(name, peak)
        runs = [result.cases[str(case)] for case in cases]
        for cell, run in zip(cells, runs, strict=True):
            cell.failure = run.failed
            cell.reason = "" if run.seconds else run.skipped
            cell.label = run.label or cell.label
            cell.above_peak = run.above_peak or cell.above_peak
            if run.seconds and not cell.counters:
                cell.counters = dict(run.counters)
            if run.seconds and verify:
                cell.counters["verified_seconds"] = run.seconds
        return runs


def run_study(study: Study, measurement: Measurement, save: Callable[[], None]) -> None:
    """Everything that was asked for."""
    table, options = study.main, measurement.options
    points = [
        Point(options.size[0], dtype, batch, seq)
        for dtype in options.dtypes
        for batch, seq in options.points
    ]
    measurement.plan(table, study.rows, points)
    measurement.verify(table)
    # what is removed follows from what `optimized` turned out to hold
    removed = removed_rows(table, options.switches)
    study.rows += removed
    measurement.plan(table, removed, points)
    measurement.verify(table)
    save()

    def after_turn() -> None:
        study.meta["turns_done"] += 1
        save()

    measurement.take_turns(table, after_turn)


def write_study(study: Study, folder: Path) -> None:
    """Both files of a run."""
    write_whole(folder / RESULT, result_text(study))
    write_whole(folder / "ABLATION.md", ablation_page(study))


def begin(options: argparse.Namespace) -> Measurement:
    """SuiteError where the program cannot be used, or refuses what all its processes are given."""
    threads = (f"--threads={options.threads}",) if options.threads else ()
    model = QUICK_MODEL.split() if options.quick else ()
    program = SuiteProgram(
        (f"--device={options.device}", *threads, *model),
        options.build_folder / "benchmarks/tiny_llama_bench",
    )
    measurement = Measurement(program, options, Progress())
    if refusal := measurement.spelling(BASELINE)[1]:
        raise SuiteError(refusal)
    return measurement


def measure(study: Study, measurement: Measurement, folder: Path) -> int:
    """Fills the study; 130 after Ctrl-C."""
    started, status = time.monotonic(), 0

    def save() -> None:
        study.context = measurement.context
        study.meta["took"] = duration(time.monotonic() - started)
        write_study(study, folder)

    try:
        run_study(study, measurement, save)
    except KeyboardInterrupt:
        study.notes.append("interrupted: what is missing was not measured")
        status = INTERRUPTED
    measurement.progress.end()
    save()
    return status


def main(arguments: Sequence[str]) -> int:
    """Measures, writes and prints; --from: the tables of an earlier result."""
    options = parse_options(arguments)
    # a result in results/reference has its page elsewhere
    is_run = options.source and options.source.name == RESULT
    own = options.source.parent if is_run else run_folder("ablation", RESULTS)
    folder, status = options.output or own, 0
    if options.source:
        study = read_study(options.source)
        folder.mkdir(parents=True, exist_ok=True)
        with made_by("scripts/ablation", options.source):
            write_study(study, folder)
    else:
        # before there is a folder
        measurement = begin(options)
        folder.mkdir(parents=True, exist_ok=True)
        study = Study(planned_rows(options.switches, options.combinations))
        now = datetime.datetime.now(datetime.timezone.utc)
        study.meta = {
            "date": now.strftime("%Y-%m-%d %H:%M UTC"),
            "command": without_folders(shlex.join(["scripts/ablation", *arguments])),
            "turns": options.turns,
            "turns_done": 0,
            "steps": options.steps,
            "seed": options.seed,
        }
        if options.quick:
            study.notes.append("a smoke test with a minute model: its numbers mean nothing")
        status = measure(study, measurement, folder)
    print(terminal_text(study))
    print(folder)
    return status or int(bool(study.failures))
