"""scripts/study --grid: its options and how it is measured: rounds over batch x sequence x size,
then GEMMs, the check of predictions and the frontier.

Every measured case is in a journal at once, so that --resume continues whatever ended the study.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import (
    INTERRUPTED,
    BadInputError,
    Json,
    bad_file,
    now_text,
    parse_json,
    problem_sizes,
    read_json,
    say_line,
    schema_problem,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.options import list_of, positive, positive_list, variants
from tinyllama_tools.core.process import ProgramError, Progress, run_program
from tinyllama_tools.core.text import compact_json, duration, say
from tinyllama_tools.data import studies
from tinyllama_tools.data.names import STEP, TRAIN
from tinyllama_tools.data.programs import (
    NUMBERS,
    PROGRAM,
    SuiteProgram,
    ask_dry_run,
    ask_json,
)
from tinyllama_tools.data.results import read_result_set

# ---- what a grid consists of

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
# The size whose steps predictions are checked by; the program skips steps that would take longer.
CHECK_SIZE, NO_CHECK = "medium", "off"
CHECKING = ("--benchmark_repetitions=3", "--benchmark_min_time=1x", "--max-seconds-per-case=60")


@dataclass(frozen=True)
class GridPlan:
    """The axes of a grid, and how often it is measured. `check_size`: a few of its steps are timed
    at the end; or NO_CHECK."""

    sizes: tuple[str, ...]
    batch: tuple[int, ...] = BATCH
    seq: tuple[int, ...] = SEQ
    components: tuple[str, ...] = COMPONENTS
    variants: tuple[str, ...] = ("baseline",)
    dtypes: tuple[str, ...] = ("f32",)
    device: str = "auto"
    rounds: int = 3
    check_size: str = CHECK_SIZE

    @property
    def check_axes(self) -> dict[str, Sequence[object]]:
        """Axes of the steps that check predictions: the size's own shape, and smaller batches.
        Empty where nothing is checked, as where the size is in the grid that rates are calibrated
        on."""
        if self.check_size in (NO_CHECK, *self.sizes) or STEP not in self.components:
            return {}
        own = problem_sizes()[self.check_size]
        batches = [own["batch"] >> i for i in reversed(range(own["batch"].bit_length()))]
        return {"sizes": [self.check_size], "batch": batches, "seq": [own["seq"]]}

    def options(self, *more: str, **axes: Sequence[object]) -> list[str]:
        """tiny_llama_bench's options for cases on the plan's device and dtypes; an empty axis is
        left out."""
        lists = {"dtypes": self.dtypes} | axes
        given = [f"--{name}={','.join(map(str, v))}" for name, v in lists.items() if v]
        return [f"--device={self.device}", *given, *more]

    def cases(self, **axes: Sequence[object]) -> list[str]:
        """Options for the grid's passes and variants over these axes."""
        return self.options(NO_PEAKS, variants=self.variants, passes=PASSES, **axes)

    def grid(self) -> list[str]:
        """Options for the cases of the grid. Without --components, a component that a variant does
        not change makes no case of it."""
        named = self.components if self.components != COMPONENTS else ()
        return self.cases(sizes=self.sizes, batch=self.batch, seq=self.seq, components=named)

    def priced(self) -> list[list[str]]:
        """Options of each call that asks for costs: of the grid, of every component of every
        problem size at its own batch and sequence, and of the steps that check predictions."""
        found = [self.grid(), self.cases(sizes=tuple(problem_sizes()))]
        return found + ([self.cases(**self.check_axes)] if self.check_axes else [])

    def round(self, number: int) -> list[str]:
        """Options for round `number`, from 1: sizes, batches and sequences in an order of its own,
        components in the program's. The first round proves each case."""
        order = random.Random(number)
        axes = {"sizes": self.sizes, "batch": self.batch, "seq": self.seq}
        shuffled = replace(self, **{n: tuple(order.sample(v, len(v))) for n, v in axes.items()})
        return [*shuffled.grid(), *MEASURING, f"--verify={'before' if number == 1 else 'off'}"]

    def products(self) -> list[str]:
        """Options for rows peak/gemm/<type>/<shape> of each size at its own batch and sequence."""
        how = ("--verify=off", "--benchmark_repetitions=3", PRODUCTS_ONLY)
        return self.options(*how, components=["peak"], sizes=self.sizes)

    def check(self) -> list[str]:
        """Options for the steps that check predictions, without the proof."""
        axes = {"components": [STEP], "variants": self.variants, **self.check_axes}
        return self.options(*CHECKING, "--verify=off", NO_PEAKS, **axes)

    def in_words(self, cases: int) -> str:
        """The plan as a user reads it."""
        axes = {"": self.sizes, "batch ": self.batch, "seq ": self.seq}
        shape = " x ".join(f"{name}{', '.join(map(str, v))}" for name, v in axes.items())
        return (
            f"Grid: {cases} cases of {len(self.components)} components, {shape} "
            f"({', '.join((*self.dtypes, *self.variants))}),\nin {self.rounds} rounds, and some "
            "minutes for GEMMs and a check."
        )


# option: the field of GridPlan that it sets
GRID_OPTIONS = {f"grid_{name}": name for name in ("batch", "seq", "components", "variants")}
GRID_OPTIONS |= {name: name for name in ("rounds", "check_size")}
TRAINING_OPTIONS = ("enable_profilers", "num_steps", "max_minutes")
RESUMED_WITH = ("resume", "results", "build_folder")


def add_grid_options(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of scripts/study."""
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
    check = f"whose steps are timed at the end, to check predictions by (default: {CHECK_SIZE})"
    add("--check-size", choices=(*problem_sizes(), NO_CHECK), help=check)
    add("--resume", action="store_true", help="continue the newest grid that did not end")


def finish_grid_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Sets `grid_plan`, None where the sizes are to be trained or a grid is resumed. Options that
    exclude each other end the command with status 2. `sizes` must be names already."""
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
        given = {field: getattr(options, name) for name, field in GRID_OPTIONS.items()}
        own = {"variants": (options.variant,), "dtypes": (options.dtype,), "device": options.device}
        chosen = own | {field: value for field, value in given.items() if value is not None}
        options.grid_plan = GridPlan(options.sizes, **chosen)


# ---- the state of a study

RECORDED = ("command", "rounds_done", "round_seconds", "finished")


@dataclass
class GridStudy:
    """A grid's folder and how far it is, which study.json says after every change.

    `command`: as typed. `round_seconds`: of each round that was begun, over all its processes.
    `finished`: the UTC time, or empty.
    """

    folder: Path
    program: Path
    plan: GridPlan
    command: str = "scripts/study"
    rounds_done: int = 0
    round_seconds: list[float] = field(default_factory=list)
    finished: str = ""

    def keep(self, **changes: Any) -> None:  # noqa: ANN401
        """Sets these fields and writes study.json."""
        vars(self).update(changes)
        own = {name: getattr(self, name) for name in RECORDED}
        own["round_seconds"] = [round(seconds, 3) for seconds in self.round_seconds]
        document = {"kind": studies.KIND, "schema_version": 1, "passes": PASSES}
        text = compact_json(document | asdict(self.plan) | own, ())
        write_whole(self.folder / studies.STUDY, text)

    @classmethod
    def read(cls, folder: Path, program: Path = PROGRAM) -> GridStudy:
        """The study of this folder; BadInputError where its study.json is not that of a grid."""
        path = folder / studies.STUDY
        document, _ = read_json(path)
        try:
            if problem := schema_problem(document, studies.SCHEMAS["study"]):
                raise ValueError(problem)
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
            plan = GridPlan(**{f.name: values[f.name] for f in fields(GridPlan)})
            own = {name: document[name] for name in RECORDED}
        except (KeyError, TypeError, ValueError) as error:
            remedy = "remove the folder, or name another with --results"
            raise bad_file(path, f"is no study of a grid: {error!r}", remedy) from error
        return cls(folder, program, plan, **own)


def unfinished_study(results: Path, program: Path) -> GridStudy:
    """The newest grid that did not end; BadInputError where there is none, or its study.json cannot
    be read."""
    for path in sorted(results.glob(f"*_{studies.KIND}/{studies.STUDY}"), reverse=True):
        study = GridStudy.read(path.parent, program)
        if not study.finished:
            return study
    raise BadInputError(
        f"--resume: {results} holds no grid that did not end; begin one: "
        "scripts/study --grid tiny small"
    )


# ---- one run of the program

# its line for a case on standard error: "[3/96] attention/...  1.27 ms"
CASE_LINE = re.compile(r"\[\d+/\d+\] (\S+)  (.*)")
# what Google Benchmark appends to the name that --list prints
OWN_SUFFIXES = re.compile(r"(/iterations:\d+)?(/repeats:\d+)?(/manual_time)?$")


def journal_options(result: Path, like: Path | None, verify: str) -> list[str]:
    """--journal, and --resume where there is something to continue.

    A new journal begins with a copy of the header of the journal `like`, so that the program
    refuses to continue with another commit, device, libtorch, number of threads or seed. The
    header's peaks are left out: they are measured again."""
    journal = studies.journal_of(result)
    options = [f"--journal={journal}"]
    if not journal.is_file() or b"\n" not in journal.read_bytes():
        # without a whole header, the program was killed before its first case
        journal.unlink(missing_ok=True)
        if like is None or not like.is_file():
            return options
        first = parse_json(like.read_text(encoding="utf-8").partition("\n")[0])
        first["header"].pop("peaks", None)
        # GEMMs and the check have their own minimum times
        first["header"].pop("goals", None)
        first["header"]["verify"] = verify
        journal.write_text(json.dumps(first) + "\n", encoding="utf-8")
    return [*options, "--resume"]


def outcomes(result: Path) -> tuple[int, int, int]:
    """The numbers of cases of a file that were measured, were skipped, and failed."""
    found = read_result_set([result])
    failed = sum(bool(case.failed) for case in found.left_out.values())
    return len(found.cases), len(found.left_out) - failed, failed


def run_journaled(study: GridStudy, options: Sequence[str], result: Path, title: str) -> None:
    """Runs the program to its end, or continues its journal.

    Raises KeyboardInterrupt after Ctrl-C, with every finished case in the journal; ProgramError
    where the result lacks a case.
    """
    names, progress = SuiteProgram(program=study.program).list_cases(options), Progress()
    kept = len(set(names) & set(studies.journaled_names(studies.journal_of(result))))
    progress.begin(len(names), kept, title)
    progress.line(f"{title}: {len(names) - kept} cases")

    def hear(line: str) -> None:
        """Counts a finished case; a failed one gets a line that stays."""
        if found := CASE_LINE.fullmatch(line):
            name, outcome = found.groups()
            if outcome.startswith("FAILED: "):
                progress.line(f"{name}: {outcome}")
            progress.step(f"{name}  {outcome}")

    (verify,) = (text.partition("=")[2] for text in options if text.startswith("--verify="))
    first = studies.journal_of(studies.round_file(study.folder, 1))
    # The first round's header names the sizes of the grid; the check has another size.
    journal = journal_options(result, first if result.name != studies.CHECK else None, verify)
    command = [str(study.program), *options, *journal, f"--benchmark_out={result}"]
    try:
        # status 1: some cases failed, which the result says
        done = run_program(command, ProgramError, ok=(0, 1), hear=hear)
    except ProgramError as error:
        raise ProgramError(f"{title}: {error}", error.exit_status) from error
    finally:
        progress.end()
    rows = read_json(result)[0]["benchmarks"] if result.is_file() else []
    missing = set(names) - {OWN_SUFFIXES.sub("", row["run_name"]) for row in rows}
    if missing:
        # as where it could not write its journal
        what = f"{result.name} lacks {len(missing)} of {len(names)} cases"
        raise ProgramError(f"{what}; last words of {study.program.name}: {done.words}")
    if done.is_interrupted:
        raise KeyboardInterrupt


# ---- the files of a grid, in the order in which they are written


def write_costs(study: GridStudy) -> None:
    """Writes costs.json, unless it is there: the answers to GridPlan.priced()."""
    path = study.folder / studies.COSTS
    if path.is_file():
        return
    answers = [ask_dry_run(study.program, options)[0] for options in study.plan.priced()]
    keys = ("name", *NUMBERS, "fits", "reason")
    cases = [{key: case.get(key, "") for key in keys} for a in answers for case in a["cases"]]
    head = ("device", "git_commit", "memory_budget_bytes", "memory_budget_source")
    document = {key: answers[0].get(key, "") for key in head}
    document["cases"] = list({case["name"]: case for case in cases}.values())
    write_whole(path, json.dumps(document, indent=1) + "\n")


def run_rounds(study: GridStudy) -> None:
    """Measures all rounds that are not done yet."""
    plan = study.plan
    for number in range(study.rounds_done + 1, plan.rounds + 1):
        spent = [*study.round_seconds, *[0.0] * (number - len(study.round_seconds))]
        result, title = studies.round_file(study.folder, number), f"round {number}/{plan.rounds}"
        started = time.monotonic()
        try:
            run_journaled(study, plan.round(number), result, title)
        finally:
            spent[number - 1] += time.monotonic() - started
            study.keep(round_seconds=spent)
        study.keep(rounds_done=number)
        measured, left_out, failed = outcomes(result)
        what = f"{measured} measured, {left_out} left out, {failed} failed"
        Progress().line(f"{title}: {what}, in {duration(spent[number - 1])}")


def write_once(study: GridStudy, name: str, options: Sequence[str], title: str) -> None:
    """Writes a file that one process measures, unless it is whole already, and removes its
    journal."""
    path = study.folder / name
    if path.is_file() and not studies.journal_of(path).is_file():
        return
    run_journaled(study, options, path, title)
    studies.journal_of(path).unlink()


FRONTIER_CASES = {"variants": ("baseline", "optimized"), "dtypes": ("f32", "bf16")}
FRONTIER_GIVEN = {"seq": (128, 256, 512, 1024, 2048), "batch": (1, 2, 4, 8, 16)}


def write_frontier(study: GridStudy) -> None:
    """Writes frontier.json: the largest batch of each sequence, and the longest sequence of each
    batch, that the program's --find-limit predicts to fit into the memory that is free now."""
    lists: dict[str, Json] = {}
    for axis in studies.AXES.values():
        cases = {"components": (STEP,), "sizes": tuple(problem_sizes()), **FRONTIER_CASES}
        cases[axis.given] = FRONTIER_GIVEN[axis.given]
        asked = [f"--{name}={','.join(map(str, values))}" for name, values in cases.items()]
        how = (f"--find-limit={axis.searched}", f"--device={study.plan.device}")
        answer = ask_json(study.program, [*how, "--benchmark_format=json", *asked])
        lists[axis.key] = [
            {
                **{key: row[key] for key in ("size", "variant", "dtype", axis.given)},
                axis.largest_key: row["largest"],
                "predicted_bytes": row["predicted_memory_bytes"],
                "limit_bytes": answer["memory_limit_bytes"],
            }
            for row in answer["limits"]
            if not row["skip_reason"]
        ]
    document = {
        "kind": "frontier",
        "schema_version": 1,
        "device": str(answer["device"].get("name") or ""),
        "git_commit": answer["git_commit"],
        "date": now_text(),
        "command": "scripts/study",
        "limit_bytes": answer["memory_limit_bytes"],
        "limit_source": answer["memory_limit_source"],
        "overhead": {"source": "none is added: the prediction is of what tensors take"},
        **lists,
    }
    write_whole(study.folder / studies.FRONTIER, json.dumps(document, indent=1) + "\n")


# ---- the whole study

RESUME = "scripts/study --resume, with the same --results and --build-folder,"


def _make(study: GridStudy) -> int:
    names = SuiteProgram(program=study.program).list_cases(study.plan.grid())
    write_costs(study)
    say_line(f"{study.plan.in_words(len(names))}\nOutput Directory: {shown(study.folder)}")
    run_rounds(study)
    write_once(study, studies.PRODUCTS, study.plan.products(), "GEMMs")
    if study.plan.check_axes:
        write_once(study, studies.CHECK, study.plan.check(), f"check at {study.plan.check_size}")
    if not (study.folder / studies.FRONTIER).is_file():
        Progress().line("predicting the largest batch of every sequence")
        write_frontier(study)
    study.keep(finished=now_text())
    files = [study.folder / name for name in (studies.PRODUCTS, studies.CHECK)]
    files = [*studies.rounds_of(study.folder), *filter(Path.is_file, files)]
    return int(any(outcomes(path)[2] for path in files))


def run_study(study: GridStudy) -> int:
    """Measures what the study lacks; its folder must exist. The exit status of scripts/study. An
    early end keeps what was measured and tells how to continue."""
    study.keep()
    rounds, where = f"{study.plan.rounds} rounds", shown(study.folder)
    try:
        status = _make(study)
    except KeyboardInterrupt:
        done = f"{study.rounds_done} of {rounds} are done"
        say(f"scripts/study: interrupted: {done}, and nothing is lost; {RESUME} continues")
        return INTERRUPTED
    except ProgramError as error:
        say(f"scripts/study: {error}")
        condition = "with the build, commit and machine that it was begun with"
        say(f"scripts/study: what was measured is in {where}; {RESUME} continues, {condition}")
        return error.exit_status
    files = [f"  {shown(path)}" for path in sorted(study.folder.glob("*.json"))]
    took = duration(sum(study.round_seconds))
    lines = [f"Grid: {study.rounds_done} of {rounds} in {took}; their files are in {where}:"]
    say_line("\n".join([*lines, *files, "scripts/report makes a page of it."]))
    return status
