"""scripts/ablation: every switch added to the baseline and removed from optimized, interleaved."""

from __future__ import annotations

import argparse
import copy
import datetime
import itertools
import random
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import (
    INTERRUPTED,
    RESULTS,
    BadInputError,
    Json,
    made_by,
    problem_sizes,
    run_folder,
    without_folders,
    write_whole,
)
from tinyllama_tools.core.options import DTYPES, list_of, positive, script_parser, seconds
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import NOT_MEASURED, duration, number, template
from tinyllama_tools.data.names import BASELINE
from tinyllama_tools.data.programs import SuiteError, SuiteProgram, suite_program
from tinyllama_tools.data.results import read_rows
from tinyllama_tools.models.ablations import (
    EXPECTED,
    FUSED,
    OPTIMIZED,
    RESULT,
    SWITCHES,
    WITHOUT,
    Cell,
    Point,
    Study,
    ratio_of,
    ratio_text,
    read_study,
    result_text,
    shows_difference,
)

PAGE = Path(__file__).parent / "templates/ablation.md.j2"
EPILOG = """\
Times are ratios of processes that took turns; what cannot run stays in the tables with its reason.
Ctrl-C keeps what was measured and writes the tables from it.

Exit status: 0 all measured, or skipped with a reason; 1 some result was wrong; 2 bad option, the
set-up failed, or files that cannot be read or written; 130 interrupted."""


def shapes(text: str) -> tuple[tuple[int, int], ...]:
    """`8x128,16x256`: batch and sequence."""
    found = []
    for entry in text.split(","):
        batch, _, seq = entry.partition("x")
        if not (batch.isdecimal() and seq.isdecimal() and int(batch) and int(seq)):
            raise argparse.ArgumentTypeError(f"'{entry}': must be BATCHxSEQ such as 8x128")
        found.append((int(batch), int(seq)))
    return tuple(dict.fromkeys(found))


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """A bad one ends the program with status 2."""
    parser = script_parser(
        "ablation",
        "Measures every optimisation added to the baseline and removed from "
        "`optimized`, interleaved,\nand writes one table a point: speedup, memory, proof.",
        EPILOG,
    )
    switches = list_of(SWITCHES, "switch")
    add = parser.add_argument
    add("--switches", type=switches, default=SWITCHES, help="only these (default: all)")
    add("--dtypes", type=list_of(DTYPES, "dtype"), default=("f32", "bf16", "amp_bf16"))
    add("--points", type=shapes, default=((8, 128), (16, 256)), help="default: 8x128,16x256")
    add("--size", choices=problem_sizes(), default="tiny", help="default: tiny")
    add("--turns", type=positive, default=7, help="how often each variant runs (default: 7)")
    add("--steps", type=positive, default=5, help="timed steps of a process (default: 5)")
    add("--threads", type=positive, help="CPU threads (default: libtorch's own choice)")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N]")
    add("--max-seconds-per-case", type=seconds, default=30.0, help="skip what needs longer")
    add("--output", type=Path, help="folder (default: results/<UTC time>_ablation)")
    add("--from", type=Path, dest="source", help="write the tables of an ablation.json anew")
    return parser.parse_args(arguments)


@dataclass
class Measurement:
    """Fills the study, and writes it and its page into the folder as it goes."""

    program: SuiteProgram
    options: argparse.Namespace
    study: Study
    folder: Path
    progress: Progress = field(default_factory=Progress)
    started: float = field(default_factory=time.monotonic)

    def save(self) -> None:
        self.study.meta["took"] = duration(time.monotonic() - self.started)
        write_study(self.study, self.folder)

    def run(self) -> None:
        """Everything that was asked for."""
        options = self.options
        variants = (BASELINE, *options.switches, FUSED, OPTIMIZED)
        for dtype, (batch, seq) in itertools.product(options.dtypes, options.points):
            point = Point(options.size, dtype, batch, seq)
            self.verify([Cell(variant, point, variant) for variant in variants])
            # what is removed follows from what `optimized` turned out to hold
            held = self.study.switches_of_optimized(point)
            left = {name: [other for other in held if other != name] for name in held}
            self.verify(
                [
                    Cell(WITHOUT + name, point, "+".join(rest) or BASELINE)
                    for name, rest in left.items()
                    if name in options.switches or name not in SWITCHES
                ]
            )
        self.save()
        self.take_turns()

    def verify(self, cells: Sequence[Cell]) -> None:
        """One iteration of each, compared with the float64 baseline."""
        for cell in cells:
            self.study.add(cell)
        if cells:
            self.progress.line(f"verifying {cells[0].point.title}: {len(cells)} rows")
            self._run(cells, 1, verify=True)

    def take_turns(self) -> None:
        """Times every cell once a turn, each in a process, in an order drawn anew each turn.

        Points follow one another and rows are shuffled within a point, so that what is divided by
        each other ran within minutes.
        """
        order, turns = random.Random(42), self.options.turns
        blocks = [self.study.cells_at(point) for point in self.study.points()]
        blocks = [[cell for cell in cells if cell.can_run] for cells in blocks]
        self.progress.begin(turns * sum(map(len, blocks)))
        for turn in range(turns):
            order.shuffle(blocks)
            for block in blocks:
                order.shuffle(block)
                for cell in block:
                    self.progress.step(f"turn {turn + 1}: {cell.point.title}: {cell.row}")
                    if cell.can_run:
                        self._run([cell], self.options.steps, turn=turn)
            self.progress.line(f"turn {turn + 1} of {turns} done")
            self.study.meta["turns_done"] = turn + 1
            self.save()

    def _run(
        self,
        cells: Sequence[Cell],
        repetitions: int,
        *,
        verify: bool = False,
        turn: int | None = None,
    ) -> None:
        """Keeps what a process found, and its time where it is that of a turn. The cells share it,
        and so its float64 reference; where it does not come to its end, each gets its own. A case
        that was measured at all counts as measured."""
        cases = [cell.point.case(cell.variant) for cell in cells]
        limit = [f"--max-seconds-per-case={self.options.max_seconds_per_case:g}"]
        try:
            document = self.program.measure(cases, repetitions, verify=verify, more=limit)
            result = read_rows(document, self.program.program)
        except (SuiteError, BadInputError) as error:
            if len(cells) > 1:
                for cell in cells:
                    self._run([cell], repetitions, verify=verify, turn=turn)
                return
            # without what a program that died of a signal had said before
            died = re.match(r".* was ended by signal \w+", str(error))
            cells[0].failure = died.group() if died else " ".join(str(error).split())
            cells[0].turns.clear()
            return
        # of the first process, with the peaks of all types; the program remembers its own
        context = self.study.context
        if not context:
            context.update(copy.deepcopy(result.context))
        measured = context["peaks"]["measured"]
        context["peaks"]["measured"] = result.context["peaks"]["measured"] | measured
        for cell, case in zip(cells, cases, strict=True):
            run = result.cases[str(case)]
            cell.failure = run.failed
            cell.reason = "" if run.seconds else run.skipped
            cell.label = run.label or cell.label
            cell.above_peak = run.above_peak or cell.above_peak
            if run.seconds:
                cell.counters = cell.counters or dict(run.counters)
            if run.seconds and turn is not None:
                cell.turns[turn] = run.seconds


def write_study(study: Study, folder: Path) -> None:
    """Both files of a run."""
    write_whole(folder / RESULT, result_text(study))
    write_whole(folder / "ABLATION.md", ablation_page(study))


COLUMNS = ("variant", "ratio", "workshop", "ms", "samples/s", "MFU %", "peak MiB", "memory x")
COLUMNS += ("allocations", "operators", "rel error", "note")


def figures(study: Study, cell: Cell) -> list[str]:
    """A row of a table."""
    seconds, peak = cell.seconds, cell.counters.get("peak_memory_MiB")
    error = cell.counters.get("max_rel_error")
    return [
        cell.row,
        # the baseline's own has no interval
        "1" if cell.row == BASELINE else ratio_text(study.ratio(cell)),
        EXPECTED.get(cell.row) or NOT_MEASURED,
        number(seconds and seconds * 1e3, 2 if seconds and seconds < 0.1 else 1),
        number(seconds and cell.point.batch / seconds),
        number(cell.mfu_percent),
        number(peak, 2 if peak is not None and peak < 10 else 1),
        number(study.memory_ratio(cell), 2),
        number(cell.counters.get("allocations"), 0),
        # on a GPU, of kernels
        number(cell.counters.get("kernels") or cell.counters.get("operators"), 0),
        NOT_MEASURED if error is None else f"{error:.1e}",
        cell.note,
    ]


def ablation_page(study: Study) -> str:
    """ABLATION.md."""
    # the time of `optimized` over that of the baseline and each single switch, at every point
    compared = [
        (point.title, cell.row, ratio)
        for point in study.points()
        for cell in study.cells_at(point)
        if cell.row in {BASELINE, *SWITCHES}
        if (ratio := ratio_of(study.get(OPTIMIZED, point), cell))
    ]
    closest = max(compared, key=lambda found: found[2].median, default=None)
    slower = [found for found in compared if found[2].median > 1 and shows_difference(found[2])]
    is_gpu = study.context.get("device", {}).get("backend", "cpu") != "cpu"
    return template(PAGE).render(
        notes=study.notes,
        context=study.context,
        meta=study.meta,
        compared=len(compared),
        closest=closest,
        slower=[(*found, ratio.text()) for *found, ratio in slower],
        columns=[{"operators": "kernels"}.get(n, n) if is_gpu else n for n in COLUMNS],
        points=[
            (
                point.title,
                "+".join(study.switches_of_optimized(point)) or BASELINE,
                [figures(study, cell) for cell in study.cells_at(point)],
            )
            for point in study.points()
        ],
    )


def measure(options: argparse.Namespace, folder: Path, meta: Json) -> tuple[Study, int]:
    """The study, and 130 after Ctrl-C. SuiteError, and no folder, where the program cannot be used
    or refuses what all its processes are given."""
    program = suite_program(options.device, options.threads, [BASELINE])
    folder.mkdir(parents=True, exist_ok=True)
    study, status = Study(meta), 0
    measurement = Measurement(program, options, study, folder)
    try:
        measurement.run()
    except KeyboardInterrupt:
        study.notes.append("interrupted: what is missing was not measured")
        status = INTERRUPTED
    measurement.progress.end()
    measurement.save()
    return study, status


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
        now = datetime.datetime.now(datetime.timezone.utc)
        meta = {
            "date": now.strftime("%Y-%m-%d %H:%M UTC"),
            "command": without_folders(shlex.join(["scripts/ablation", *arguments])),
            "turns": options.turns,
            "turns_done": 0,
            "steps": options.steps,
        }
        study, status = measure(options, folder, meta)
    print(ablation_page(study))
    print(folder)
    return status or int(bool(study.failures))
