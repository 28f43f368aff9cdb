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
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.commands.ablation_page import ablation_page, terminal_text
from tinyllama_tools.commands.peers import read_peers
from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    problem_sizes,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.options import DTYPES, list_of, positive, script_parser, seconds, variants
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import duration
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import CaseRun, SuiteError, SuiteProgram
from tinyllama_tools.models.ablations import (
    BASELINE,
    FIT_FROM,
    FUSED,
    OPTIMIZED,
    RESULT,
    SWITCHES,
    VERSIONS,
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
from tinyllama_tools.stats.rank_tests import ratio_of_turns

PARTS = ("main", "batches", "types", "memory")
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
        "`optimized`, interleaved,\nand writes the workshop's tables filled in.",
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
    parts = list_of(PARTS, "part")
    add("--only", type=parts, default=PARTS, help=f"only these parts of {', '.join(PARTS)}")
    add("--without", type=parts, default=(), help="leave these parts out")
    add("--peers", type=Path, help="result of scripts/peers (default: the newest)")
    add("--build-folder", type=Path, default=PROJECT / "build")
    add("--output", type=Path, help="folder (default: results/<UTC time>_ablation)")
    add("--from", type=Path, dest="source", help="write the tables of an ablation.json anew")
    add("--quick", action="store_true", help="smoke test: a minute model, few switches, 2 turns")
    return parser


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options with `parts`. A bad one ends the program with status 2."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if len(options.size) != 1:
        parser.error(f"--size '{','.join(options.size)}': must be one size")
    if options.quick:
        if options.switches == SWITCHES:
            options.switches = QUICK_SWITCHES
        options.size, options.points, options.dtypes = ("custom",), ((2, 16), (4, 32)), ("f32",)
        options.turns, options.steps = min(options.turns, 2), min(options.steps, 2)
    options.parts = tuple(p for p in PARTS if p in options.only and p not in options.without)
    return options


def plan_points(options: argparse.Namespace) -> dict[str, list[Point]]:
    """What the options ask for, by table; a smoke test has short lengths and few batches."""
    size, first, quick = options.size[0], options.dtypes[0], options.quick
    lengths = [16, 32, 64] if quick else [128 * 2**i for i in range(7)]
    others = [] if quick else [dtype for dtype in DTYPES if dtype not in options.dtypes]
    shapes, seq = options.points, options.points[0][1]
    shortest = 0 if quick else FIT_FROM
    return {
        "main": [Point(size, d, b, s) for d in options.dtypes for b, s in shapes],
        "batches": [
            Point(size, first, b, seq) for b in ([1, 2] if quick else [1, 2, 4, 8, 16, 32])
        ],
        "types": [Point(size, d, b, s) for d in others for b, s in shapes],
        "memory": [Point(size, first, 1, length) for length in lengths],
        "attention": [
            Point(size, first, 1, length, "attention", "forward_backward")
            for length in lengths
            if length >= shortest
        ],
    }


# Of a slow cell: fewer decide nothing.
FEWEST_TURNS = 5
# Long sequences are worth waiting for: memory needs one iteration only.
MOST_MEMORY_SECONDS = 120.0


@dataclass
class Measurement:
    """The loops. `context`: of the first process, with the peaks of all types; `limit`: seconds
    that a case may need."""

    program: SuiteProgram
    options: argparse.Namespace
    progress: Progress
    context: Json = field(default_factory=dict)
    limit: float = 30.0
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

    def take_turns(self, tables: Iterable[Table], after_turn: Callable[[], None]) -> None:
        """Times every cell once a turn, each in a process, in an order drawn anew each turn.

        Points follow one another and rows are shuffled within a point, so that what is divided by
        each other ran within minutes.
        """
        order = random.Random(self.options.seed)
        blocks = [table.cells_at(point) for table in tables for point in table.points()]

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
                        cell.turns[turn] = statistics.median(found)
            self.progress.line(f"turn {turn + 1} of {len(turns)} done")
            after_turn()

    def once(self, table: Table) -> None:
        """One iteration of each cell in a process of its own, for what one iteration shows."""
        cells = [cell for cell in table.cells.values() if cell.can_run and not cell.counters]
        self.progress.begin(len(cells))
        for cell in cells:
            self.progress.step(f"memory: {cell.point.title}: {cell.row}")
            self._run_alone(cell, 1, verify=False)
        self.progress.end()

    def _run_alone(self, cell: Cell, repetitions: int, *, verify: bool) -> tuple[float, ...]:
        try:
            return self._run([cell], repetitions, verify=verify)[0].seconds
        except SuiteError as error:
            # without what a program that died of a signal had said before
            died = re.match(r".* ended with -\d+", str(error))
            cell.failure = died.group() if died else " ".join(str(error).split())
            cell.turns.clear()
            return ()

    def _run(self, cells: Sequence[Cell], repetitions: int, *, verify: bool) -> list[CaseRun]:
        """Keeps what a process found, but its time. A case that was measured at all counts as
        measured."""
        cases: list[CaseName] = [cell.point.case(cell.variant) for cell in cells]
        limit = [f"--max-seconds-per-case={self.limit:g}"]
        unique = list(dict.fromkeys(cases))
        result = self.program.run(unique, repetitions, verify=verify, more=limit)
        if not self.context:
            # a copy: the program remembers its own
            self.context.update(copy.deepcopy(result.context))
        known = self.context.get("peaks", {}).get("measured", {})
        for name, peak in result.context.get("peaks", {}).get("measured", {}).items():
            known.setdefault(name, peak)
        by_name = {run.name: run for run in result.cases}
        runs = [by_name[str(case)] for case in cases]
        for cell, run in zip(cells, runs, strict=True):
            cell.failure = run.failed
            cell.reason = "" if run.seconds else run.skipped
            cell.label = run.label or cell.label
            cell.above_peak = run.above_peak or cell.above_peak
            if run.seconds and not cell.counters:
                cell.counters = dict(run.counters)
            if run.seconds and verify:
                cell.counters["verified_seconds"] = statistics.median(run.seconds)
        return runs


# Of memory over the sequence, where they are sets or chosen switches.
MEMORY_ROWS = (BASELINE, FUSED, OPTIMIZED, "checkpoint", "fused_loss", "sdpa", "fused_attention")
ATTENTION_ROWS = (BASELINE, "sdpa", "fused_attention", OPTIMIZED)


def run_study(
    study: Study,
    measurement: Measurement,
    options: argparse.Namespace,
    save: Callable[[], None],
) -> None:
    """Everything that was asked for, the costly last."""
    points = plan_points(options)
    if "main" in options.parts:
        measurement.plan(study.main, study.rows, points["main"])
        measurement.verify(study.main)
        # what is removed follows from what `optimized` turned out to hold
        removed = removed_rows(study.main, options.switches)
        study.rows += removed
        measurement.plan(study.main, removed, points["main"])
        measurement.verify(study.main)
        save()
    for part, table in (("batches", study.batches), ("types", study.types)):
        if part in options.parts:
            measurement.plan(table, VERSIONS, points[part])
            measurement.verify(table)
    save()

    def after_turn() -> None:
        study.meta["turns_done"] = study.meta.get("turns_done", 0) + 1
        save()

    timed = [table for table in (study.main, study.batches, study.types) if table.cells]
    if timed:
        measurement.take_turns(timed, after_turn)
    if "memory" in options.parts:
        for names, at in ((MEMORY_ROWS, "memory"), (ATTENTION_ROWS, "attention")):
            chosen = [n for n in names if n not in SWITCHES or n in options.switches]
            rows = [RowName(name, Kind.single) for name in chosen]
            measurement.plan(study.memory, rows, points[at])
        measurement.limit = MOST_MEMORY_SECONDS
        measurement.once(study.memory)
        save()


def newest_peers(context: Json, results: Path) -> Path | None:
    """The newest run's file of the processor and number of threads that `context` is of, else a
    reference result of it; None where there is none."""
    # names of runs begin with the time
    runs = sorted(results.glob("*_peers/peers.json"), reverse=True)
    wanted = context.get("device", {}).get("name"), context.get("threads")
    for path in (*runs, *sorted(results.glob("reference/peers_*.json"))):
        try:
            theirs = read_peers(path)["context"]
        except BadInputError:
            continue
        if (theirs["device"]["name"], theirs["threads"]) == wanted:
            return path
    return None


COMPILED = "peer:compile"


def compile_rows(path: Path, main: Table) -> list[Json]:
    """A row for each compiled peer at each point of the table where it was interleaved with our
    baseline: speedup over that, and its time over that of `optimized`."""
    context = read_peers(path)["context"]
    ratios = {
        (ratio["case"], ratio["peer"]): ratio["of_each_turn"]
        for ratio in context["peers"]["ratios"]
    }
    rows = []
    for point in main.points():
        case = str(point.case(BASELINE))
        for peer in [p for c, p in ratios if c == case and p.startswith(COMPILED)]:
            over_baseline = ratios[case, peer]
            over_optimized = ratios.get((str(point.case(OPTIMIZED)), peer))
            speedup = ratio_of_turns([1.0] * len(over_baseline), over_baseline)
            slower = over_optimized and ratio_of_turns(over_optimized, [1.0] * len(over_optimized))
            rows.append(
                {
                    "row": f"torch.compile ({peer.removeprefix('peer:')})",
                    "point": point.title,
                    "speedup": speedup.as_json(),
                    "over_optimized": slower.as_json() if slower else None,
                    "source": f"{path.parent.name}/{path.name}, {context.get('date', '')}",
                }
            )
    return rows


def add_compiled(study: Study, path: Path | None) -> None:
    """torch.compile's rows from a result of scripts/peers; one that will not do is noted."""
    path = path or newest_peers(study.context, RESULTS)
    try:
        study.peers = compile_rows(path, study.main) if path else []
    except BadInputError as error:
        study.notes.append(f"torch.compile: {error}")


def write_study(study: Study, folder: Path) -> None:
    """Both files of a run."""
    write_whole(folder / RESULT, result_text(study))
    write_whole(folder / "ABLATION.md", ablation_page(study))


def measure(study: Study, options: argparse.Namespace, folder: Path) -> int:
    """Fills the study; 130 after Ctrl-C, 2 where the program cannot be used at all."""
    started = time.monotonic()
    threads = (f"--threads={options.threads}",) if options.threads else ()
    model = QUICK_MODEL.split() if options.quick else ()
    program = SuiteProgram(
        (f"--device={options.device}", *threads, *model),
        options.build_folder / "benchmarks/tiny_llama_bench",
    )
    measurement = Measurement(program, options, Progress(), limit=options.max_seconds_per_case)

    def save() -> None:
        study.context = measurement.context
        study.meta["took"] = duration(time.monotonic() - started)
        write_study(study, folder)

    status = 0
    try:
        run_study(study, measurement, options, save)
    except KeyboardInterrupt:
        study.notes.append("interrupted: what is missing was not measured")
        status = INTERRUPTED
    except SuiteError as error:
        study.notes.append(f"ended early: {error}")
        print(f"scripts/ablation: {error}", file=sys.stderr)
        status = error.exit_status
    measurement.progress.end()
    add_compiled(study, options.peers)
    save()
    return status


def main(arguments: Sequence[str]) -> int:
    """Measures, writes and prints; --from: the tables of an earlier result."""
    options = parse_options(arguments)
    if options.peers:
        # before hours are spent
        read_peers(options.peers)
    # a result in results/reference has its page elsewhere
    is_run = options.source and options.source.name == RESULT
    study = read_study(options.source) if options.source else None
    own = options.source.parent if is_run else run_folder("ablation", RESULTS)
    folder = options.output or own
    folder.mkdir(parents=True, exist_ok=True)
    if study:
        status = 0
        if options.peers:
            add_compiled(study, options.peers)
        write_study(study, folder)
    else:
        study = Study(planned_rows(options.switches, options.combinations))
        now = datetime.datetime.now(datetime.timezone.utc)
        study.meta = {
            "date": now.strftime("%Y-%m-%d %H:%M UTC"),
            "command": shlex.join(["scripts/ablation", *arguments]),
            "turns": options.turns,
            "turns_done": 0,
            "steps": options.steps,
            "seed": options.seed,
        }
        if options.quick:
            study.notes.append("a smoke test with a minute model: its numbers mean nothing")
        status = measure(study, options, folder)
    print(terminal_text(study))
    print(folder)
    return status or int(bool(study.failures))
