"""Measures a grid: rounds in processes that are listened to, costs, GEMMs, check, frontier.

frontier.json: the largest batch of each sequence length that fits into memory, and the reverse,
as `tiny_llama_bench --find-limit` answers.

Times a few training steps of a size bigger than the grid's, by which predictions are checked:
rates are calibrated on the rounds alone, which do not contain it.

What a grid needs beside its rounds: the costs of its cases, the rates of the model's products at
their own shapes, and the out-of-memory frontier. check.py has the check of predictions.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    ended_as_by_ctrl_c,
    problem_sizes,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.text import LAST_WORDS, duration
from tinyllama_tools.data.json_files import read_json
from tinyllama_tools.data.names import STEP, TRAIN, UNITS, CaseName, parse_case_name
from tinyllama_tools.data.parts import OPTIMIZED
from tinyllama_tools.data.programs import (
    REFUSED_OPTIONS,
    CaseCost,
    SuiteError,
    SuiteProgram,
    ask_dry_run,
    ask_json,
    read_case_costs,
)
from tinyllama_tools.data.studies import (
    CHECK,
    COSTS,
    FRONTIER,
    KIND,
    PRODUCTS,
    STUDY,
    journal_of,
    journaled_names,
    round_file,
)
from tinyllama_tools.study.grid_plan import (
    CHECK_SECONDS,
    CHECK_STEPS,
    GridPlan,
    Record,
    axis_options,
    check_cost_options,
    check_options,
    own_shape_options,
    product_options,
    read_record,
    round_options,
    write_record,
)

FRONTIER_KIND, SCHEMA_VERSION = "frontier", 1
VARIANTS, DTYPES = ("baseline", "optimized"), ("f32", "bf16")
SEQS, BATCHES = (128, 256, 512, 1024, 2048), (1, 2, 4, 8, 16)
# What the program searches at most.
LARGEST = 2**20
NO_OVERHEAD = "none is added: the memory of tensors is predicted to the byte"


@dataclass(frozen=True)
class Axis:
    """`searched` and `given`: "batch" or "seq". `smallest`: value of the searched one. `key`: of
    frontier.json's list of points."""

    searched: str
    given: str
    adjective: str
    smallest: int
    key: str

    @property
    def title(self) -> str:
        """`largest batch`, `longest sequence`."""
        return f"{self.adjective} {'batch' if self.searched == 'batch' else 'sequence'}"

    @property
    def largest_key(self) -> str:
        """`largest_batch`, `longest_seq`: of a point's answer."""
        return f"{self.adjective}_{self.searched}"

    @property
    def confirmed_key(self) -> str:
        """`confirmed_batch`, `confirmed_seq`: of what was found by trying."""
        return f"confirmed_{self.searched}"

    def value_of(self, name: CaseName) -> int:
        """The searched value of a case."""
        return name.batch if self.searched == "batch" else name.seq

    def given_of(self, name: CaseName) -> int:
        """The given value of a case."""
        return name.seq if self.searched == "batch" else name.batch

    def counted(self, value: int) -> str:
        """`batch 12`, `sequence 512`."""
        return f"{'batch' if self.searched == 'batch' else 'sequence'} {value}"


BY_SEQ = Axis("batch", "seq", "largest", 1, "points")
# the next token's loss needs two
BY_BATCH = Axis("seq", "batch", "longest", 2, "sequences")
AXES: Mapping[str, Axis] = {axis.given: axis for axis in (BY_SEQ, BY_BATCH)}


@dataclass(frozen=True)
class Line:
    """Steps that differ in the searched axis only; `given`: their value of the other one."""

    size: str
    variant: str
    dtype: str
    given: int

    def case(self, axis: Axis, value: int) -> CaseName:
        """The training step at a value of the searched axis."""
        batch, seq = (value, self.given) if axis.searched == "batch" else (self.given, value)
        return CaseName(STEP, TRAIN, self.variant, self.size, self.dtype, batch, seq)


def apart_percent(predicted: int, confirmed: int | None) -> float | None:
    """100 (predicted / confirmed - 1); None where there is nothing to compare with."""
    if confirmed is None or (confirmed == 0 and predicted != 0):
        return None
    return 100 * (predicted / confirmed - 1) if confirmed else 0.0


def _point(axis: Axis, limit_bytes: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """A line's answer as it is written; nothing of it was tried."""
    ends = row["predicted_memory_bytes_beyond"] > 0 or row["largest"] == 0
    return {
        "size": row["size"],
        "variant": row["variant"],
        "dtype": row["dtype"],
        axis.given: row[axis.given],
        axis.largest_key: row["largest"],
        "predicted_bytes": row["predicted_memory_bytes"],
        "limit_bytes": limit_bytes,
        "confirmed": "",
        axis.confirmed_key: None,
        "apart_percent": None,
        "remark": "" if ends else f"no larger one than {LARGEST} is searched for",
    }


def _ask(program: Path, device: str, axis: Axis, given: Sequence[int]) -> dict[str, Any]:
    arguments = [
        f"--find-limit={axis.searched}",
        f"--device={device}",
        f"--components={STEP}",
        f"--sizes={','.join(problem_sizes())}",
        f"--variants={','.join(VARIANTS)}",
        f"--dtypes={','.join(DTYPES)}",
        f"--{axis.given}={','.join(map(str, given))}",
        "--benchmark_format=json",
    ]
    return ask_json(program, arguments)


def write_frontier(folder: Path, program: Path, device: str = "auto") -> Path:
    """Writes what fits of all sizes into the memory that is free now, over sequences and over
    batches, to the folder's frontier.json.

    Raises SuiteError where the program cannot be asked, OSError where the file cannot be written.
    """
    by_key: dict[str, list[dict[str, Any]]] = {}
    answer: dict[str, Any] = {}
    for axis in AXES.values():
        answer = _ask(program, device, axis, SEQS if axis.given == "seq" else BATCHES)
        try:
            limit = answer["memory_limit_bytes"]
            rows = [row for row in answer["limits"] if not row["skip_reason"]]
            by_key[axis.key] = [_point(axis, limit, row) for row in rows]
        except (KeyError, TypeError) as error:
            raise SuiteError(f"{program}: --find-limit answered without {error}") from error
    now = datetime.datetime.now(datetime.timezone.utc)
    document = {
        "kind": FRONTIER_KIND,
        "schema_version": SCHEMA_VERSION,
        "device": str(answer["device"].get("name") or ""),
        "git_commit": answer["git_commit"],
        "date": now.isoformat(timespec="seconds"),
        "command": "scripts/study",
        "by": ",".join(AXES),
        "limit_bytes": answer["memory_limit_bytes"],
        "limit_source": answer["memory_limit_source"],
        "overhead": {"source": NO_OVERHEAD},
        **by_key,
        "tries": [],
    }
    path = folder / FRONTIER
    write_whole(path, json.dumps(document, indent=1) + "\n")
    return path


# What the program says of a case on standard error: "[3/96] attention/...  1.27 ms".
CASE_LINE = re.compile(r"\[\d+/\d+\] (?P<name>\S+)  (?P<outcome>.*)")
CASE_FAILED = "FAILED: "
# Of a case: seconds beside its products, and for each of their FLOPs. Only proportions matter.
FIXED_SECONDS, SECONDS_PER_FLOP = 0.5, 1e-10
# Elsewhere than on a terminal a line comes each time so much of a round is done.
LINES_A_ROUND = 10


def expected_weights(costs: Iterable[CaseCost]) -> dict[str, float]:
    """How long each case takes beside the others."""
    return {str(c.name): FIXED_SECONDS + SECONDS_PER_FLOP * c.hardware_flops for c in costs}


@dataclass(frozen=True)
class Place:
    """Which of how many rounds is in hand, and the seconds that this and all later ones have."""

    number: int = 1
    rounds: int = 1
    seconds: float = 0.0


class GridProgress:
    """Shows one round, or another run of many cases, at a time."""

    def __init__(
        self,
        weights: Mapping[str, float],
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weights = dict(weights)
        self._stream = stream
        self._clock = clock
        self._title = ""
        self._place = Place()
        self._left: dict[str, float] = {}
        self._whole = 0.0
        self._total = 0
        self._begun = self._first = 0.0
        self._weight_done: float | None = None

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        print(text, file=self._stream, flush=True)

    def begin(
        self, title: str, names: Sequence[str], done: Iterable[str] = (), place: Place | None = None
    ) -> None:
        """A run of these cases, of which `done` are there already. `place`: where it is a round."""
        weights = {name: self._weights.get(name, FIXED_SECONDS) for name in names}
        kept = set(done)
        self._title, self._place = title, place or Place()
        self._left = {name: w for name, w in weights.items() if name not in kept}
        self._whole = sum(weights.values())
        self._total = len(weights)
        self._begun, self._weight_done = self._clock(), None
        self._show("preparing", is_first=True)

    def hear(self, line: str) -> None:
        """A line that the program said: a finished case counts, a failed one is told at once."""
        found = CASE_LINE.fullmatch(line)
        if found is None:
            return
        weight = self._left.pop(found["name"], None)
        if found["outcome"].startswith(CASE_FAILED):
            self.say(f"{found['name']}: {found['outcome']}")
        if self._weight_done is None:
            # what came before it, such as measuring the peaks, is no measure of the others
            self._first, self._weight_done = self._clock(), 0.0
        elif weight is not None:
            self._weight_done += weight
        self._show(f"{found['name']}  {found['outcome']}")

    @property
    def seconds_left(self) -> float | None:
        """Of this round at the rate so far, and of later ones as far as the budget goes; None
        before a rate is known."""
        if not self._weight_done:
            return None
        now = self._clock()
        rate = (now - self._first) / self._weight_done
        here = rate * sum(self._left.values())
        later = (self._place.rounds - self._place.number) * rate * self._whole
        budget = self._place.seconds - (now - self._begun) - here
        return here + max(0.0, min(later, budget))

    def clear(self) -> None:
        """Takes the status line away."""
        if self._stream.isatty():
            print("\r\033[K", end="", file=self._stream, flush=True)

    def _show(self, text: str, *, is_first: bool = False) -> None:
        here, seconds = self._total - len(self._left), self.seconds_left
        done = (self._place.number - 1) * self._total + here
        left = "" if seconds is None else f", {duration(seconds)} left"
        cases = f"{done}/{self._place.rounds * self._total} cases"
        message = f"{self._title} [{cases}{left}] {text}"
        if self._stream.isatty():
            # a line that wraps could not be taken away
            columns = shutil.get_terminal_size().columns - 1
            print(f"\r{message[:columns]}\033[K", end="", file=self._stream, flush=True)
        elif is_first or not self._left or here % max(1, -(-self._total // LINES_A_ROUND)) == 0:
            print(message, file=self._stream, flush=True)


OWN_SUFFIXES = re.compile(r"(/iterations:\d+)?(/repeats:\d+)?(/manual_time)?$")
OnLine = Callable[[str], None]


@dataclass(frozen=True)
class Ending:
    """How a process ended: status, last words, and whether we were interrupted meanwhile."""

    status: int
    words: str
    is_interrupted: bool


class StoppedError(Exception):
    """The program cannot go on; the message has its reason. `exit_status`: of scripts/study."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    try:
        # A session of its own: Ctrl-C reaches us only, and the program once, from us. It would
        # die of the second one.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        name = Path(command[0]).name
        message = f"{name} cannot be started: {error}; build it: scripts/bench --setup-only"
        raise StoppedError(message, REFUSED_OPTIONS) from error


def listen(command: Sequence[str], on_line: OnLine, on_interrupt: Callable[[], None]) -> Ending:
    """Runs it to its end and hands on what it says on standard error.

    A KeyboardInterrupt asks it to end after the case in hand, a second one kills it.
    """
    process = _start(command)
    words: deque[str] = deque(maxlen=LAST_WORDS)
    is_interrupted = False
    try:
        while True:
            try:
                for line in process.stderr or ():
                    words.append(line.rstrip("\n"))
                    on_line(words[-1])
                status = process.wait()
                break
            except KeyboardInterrupt:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL if is_interrupted else signal.SIGINT)
                if not is_interrupted:
                    on_interrupt()
                is_interrupted = True
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stderr:
            process.stderr.close()
    return Ending(status, "\n".join(line for line in words if line.strip()), is_interrupted)


def check_ending(ending: Ending, name: str, what: str) -> None:
    """KeyboardInterrupt where we were interrupted before it had done its work, StoppedError where
    it did not come to its end. Cases that failed (status 1) are results."""
    if ending.status in {0, 1}:
        return
    if ending.is_interrupted or ending.status == INTERRUPTED:
        raise KeyboardInterrupt
    words = ending.words or "it said nothing"
    if ending.status == REFUSED_OPTIONS:
        # the program's own line names the option, its value and what is allowed
        raise StoppedError(words.splitlines()[-1], REFUSED_OPTIONS)
    how = f"ended with {ending.status}"
    if ending.status < 0:
        how = f"was ended by signal {signal.Signals(-ending.status).name}"
    raise StoppedError(f"{name} {how} in {what}; its last words: {words}", 1)


def _header(journal: Path) -> Json | None:
    """The first line, None where it is not there whole."""
    try:
        with journal.open(encoding="utf-8", errors="replace") as stream:
            line = stream.readline()
        document = json.loads(line) if line.endswith("\n") else None
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) and "header" in document else None


def journal_options(result: Path, like: Path, verify: str) -> list[str]:
    """--journal, and --resume where there is something to continue.

    A new journal begins with the header of the journal `like`, without its peaks: the program then
    refuses to go on where commit, device, libtorch, threads or seed are others than they were.
    """
    journal = journal_of(result)
    if _header(journal) is None:
        # a journal without a whole header is one that was killed before its first case
        journal.unlink(missing_ok=True)
        header = _header(like)
        if header is None:
            return [f"--journal={journal}"]
        circumstances = {k: v for k, v in header["header"].items() if k != "peaks"}
        first = header | {"header": circumstances | {"verify": verify}}
        journal.write_text(json.dumps(first) + "\n", encoding="utf-8")
    return [f"--journal={journal}", "--resume"]


def read_document(path: Path) -> Json:
    """A result that the program has just written; StoppedError where it is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document["context"], dict) and all(map(case_of, document["benchmarks"])):
            return document
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoppedError(f"tiny_llama_bench wrote no result to {path}: {error}", 1) from error
    raise StoppedError(f"tiny_llama_bench wrote no result to {path}", 1)


def case_of(entry: Json) -> str:
    """The name that --list prints for the case of a row; Google Benchmark appends to it."""
    return OWN_SUFFIXES.sub("", entry["run_name"])


# What a later round takes beside the first, which proves every case before it times it. Small
# cases, which spend their time on preparation, measured 0.8; large ones gain more.
LATER_SHARE = 0.8
ENDING = "interrupted: ending after the case in hand; Ctrl-C once more ends at once"


@dataclass
class GridStudy:
    """A grid's folder, its program, and how far it is; `record` is on disk whenever it changes."""

    folder: Path
    program: Path
    record: Record
    clock: Callable[[], float] = field(default=time.monotonic)

    def keep(self, record: Record) -> None:
        """OSError where it cannot be written."""
        write_record(self.folder, record)
        self.record = record

    def spend(self, number: int, seconds: float) -> None:
        """Adds to a round's time."""
        spent = list(self.record.round_seconds)
        spent += [0.0] * (number - len(spent))
        spent[number - 1] += seconds
        self.keep(replace(self.record, round_seconds=tuple(spent)))

    @property
    def begun(self) -> int:
        """Rounds that were begun."""
        return len(self.record.round_seconds)

    @property
    def seconds_left(self) -> float:
        """Of the budget."""
        return max(0.0, 60 * self.record.plan.minutes - self.record.seconds_spent)


@dataclass(frozen=True)
class Outcomes:
    """How many cases of a result were measured, left out with a reason, and failed."""

    measured: int
    left_out: int
    failed: int

    def __str__(self) -> str:
        return f"{self.measured} measured, {self.left_out} left out, {self.failed} failed"


def count_outcomes(document: Json) -> Outcomes:
    """Of a result of the suite."""
    rows: dict[str, list[Json]] = {}
    for entry in document["benchmarks"]:
        rows.setdefault(case_of(entry), []).append(entry)
    failed = sum(any("error_occurred" in e for e in entries) for entries in rows.values())
    left_out = sum(any("skipped" in e for e in entries) for entries in rows.values())
    return Outcomes(len(rows) - failed - left_out, left_out, failed)


def run_journaled(
    study: GridStudy,
    options: Sequence[str],
    result: Path,
    names: Sequence[str],
    verify: str,
    progress: GridProgress,
) -> tuple[Json, bool]:
    """Runs the program to its end, from where its journal is: the result that it wrote, and whether
    we were interrupted while it did. `names`: of all cases that have to be in it.

    Raises KeyboardInterrupt where it had to end before, and has kept what it had; StoppedError
    where there is no whole result.
    """
    journal = journal_options(result, journal_of(round_file(study.folder, 1)), verify)
    command = [str(study.program), *options, *journal, f"--benchmark_out={result}"]
    ending = listen(command, progress.hear, lambda: progress.say(ENDING))
    progress.clear()
    check_ending(ending, study.program.name, result.name)
    document = read_document(result)
    missing = set(names) - {case_of(entry) for entry in document["benchmarks"]}
    if missing:
        # it could not write its journal, say
        what = f"{result.name} lacks {len(missing)} of {len(names)} cases"
        raise StoppedError(f"{what}; last words of {study.program.name}: {ending.words}", 1)
    return document, ending.is_interrupted


def _run_round(study: GridStudy, number: int, names: Sequence[str], progress: GridProgress) -> None:
    plan = study.record.plan
    title = f"round {number}/{plan.rounds}"
    result = round_file(study.folder, number)
    place = Place(number, plan.rounds, study.seconds_left)
    progress.begin(title, names, journaled_names(journal_of(result)), place)
    verify = "before" if number == 1 else "off"
    started = study.clock()
    try:
        options = round_options(plan, number)
        document, is_interrupted = run_journaled(study, options, result, names, verify, progress)
    finally:
        study.spend(number, study.clock() - started)
    study.keep(replace(study.record, rounds_done=number))
    took = duration(study.record.round_seconds[number - 1])
    progress.say(f"{title}: {count_outcomes(document)}, in {took}")
    if is_interrupted:
        raise KeyboardInterrupt


def _expected_seconds(study: GridStudy, number: int) -> float:
    """Of a round that was not begun, from the one before it; 0 for the first."""
    before = study.record.round_seconds[: number - 1]
    if not before:
        return 0.0
    return before[-1] * (LATER_SHARE if len(before) == 1 else 1.0)


def _leave_out(study: GridStudy, number: int, expected: float, progress: GridProgress) -> None:
    plan = study.record.plan
    which = f"round {number}" if number == plan.rounds else f"rounds {number} to {plan.rounds}"
    text = (
        f"{which} left out: another {duration(expected)} would exceed --grid-minutes "
        f"{plan.minutes:g}, of which {duration(study.seconds_left)} are left"
    )
    study.keep(replace(study.record, left_out=text))
    progress.say(text)


def run_rounds(study: GridStudy, names: Sequence[str], progress: GridProgress) -> None:
    """All rounds that are not done yet.

    A round that was begun is always ended; later ones are left out where the budget is spent.
    Raises what run_journaled does.
    """
    for number in range(study.record.rounds_done + 1, study.record.plan.rounds + 1):
        expected = _expected_seconds(study, number)
        if number > study.begun and expected > study.seconds_left:
            _leave_out(study, number, expected, progress)
            break
        _run_round(study, number, names, progress)


def has_failures(study: GridStudy) -> bool:
    """Whether a case of a round that is done failed, of the products or of the check."""
    done = range(1, study.record.rounds_done + 1)
    files = [round_file(study.folder, number) for number in done]
    files += [path for name in (PRODUCTS, CHECK) if (path := study.folder / name).is_file()]
    return any(count_outcomes(read_document(path)).failed for path in files)


def checked_variant(plan: GridPlan) -> str:
    """The one that a report looks into."""
    return OPTIMIZED if OPTIMIZED in plan.variants else plan.variants[0]


def attained_rate(study: GridStudy, costs: Sequence[CaseCost]) -> float | None:
    """FLOP/s of the largest training step of the first round; None where it has none."""
    flops = {str(cost.name): cost.model_flops for cost in costs}
    found: list[tuple[int, float]] = []
    for row in read_document(round_file(study.folder, 1))["benchmarks"]:
        case = case_of(row)
        name = parse_case_name(case)
        is_step = name is not None and name.component == STEP and case in flops
        if is_step and name.variant == checked_variant(study.record.plan):
            seconds = row.get("real_time", 0.0) * UNITS[row["time_unit"]]
            if seconds > 0 and not row.keys() & {"error_occurred", "skipped"}:
                found.append((flops[case], flops[case] / seconds))
    return max(found)[1] if found else None


def choose_step(
    plan: GridPlan, costs: Sequence[CaseCost], rate: float
) -> tuple[CaseCost | None, str]:
    """The largest shape of the size that fits and is expected to take CHECK_SECONDS at most; or
    None and why."""
    steps = {
        (cost.name.batch, cost.name.seq): cost
        for cost in costs
        if (cost.name.component, cost.name.size) == (STEP, plan.check_size)
        and cost.name.variant == checked_variant(plan)
    }
    why = f"its costs at {plan.check_size} are not known"
    for shape in plan.check_shapes:
        step = steps.get(shape)
        if step is None:
            continue
        seconds = (CHECK_STEPS + 1) * step.model_flops / rate
        if step.fits and seconds <= CHECK_SECONDS:
            return step, ""
        why = step.reason or f"{CHECK_STEPS + 1} steps would take {duration(seconds)}"
        why += f" at batch {step.name.batch} and sequence {step.name.seq}"
    return None, why


def write_check(study: GridStudy, costs: Sequence[CaseCost], progress: GridProgress) -> None:
    """check.json; where no step can be afforded, that is said. Raises what run_journaled does."""
    plan, path = study.record.plan, study.folder / CHECK
    if path.is_file() and not journal_of(path).is_file():
        return
    if not plan.is_checked:
        return
    rate = attained_rate(study, costs)
    if rate is None:
        progress.say(f"{CHECK} is left out: no training step was measured to estimate it by")
        return
    step, why = choose_step(plan, costs, rate)
    if step is None:
        progress.say(f"{CHECK} is left out: {why}")
        return
    names = [str(step.name)]
    progress.begin(f"check at {plan.check_size}", names, journaled_names(journal_of(path)))
    options = check_options(plan, step.name.variant, step.name.batch, step.name.seq)
    _, is_interrupted = run_journaled(study, options, path, names, "off", progress)
    journal_of(path).unlink()
    if is_interrupted:
        raise KeyboardInterrupt
    for row in read_document(path)["benchmarks"]:
        why_not = row.get("skip_message") or row.get("error_message")
        if why_not:
            progress.say(f"{CHECK} has no step: {why_not}")


def planned_names(program: Path, options: Sequence[str]) -> list[str]:
    """What --list names; SuiteError with the program's own words where it refuses the options."""
    names, refusal = SuiteProgram(program=program).list_cases(options)
    if refusal:
        raise SuiteError(refusal)
    return names


def costs_of(study: GridStudy) -> list[CaseCost]:
    """Of every case of the grid, of every problem size at its own batch and sequence, and of the
    shapes that might check predictions: what costs.json says, which is written where it is not
    there yet.

    SuiteError where the program does not tell them, BadInputError where the file is no longer good.
    """
    path = study.folder / COSTS
    if not path.is_file():
        plan = study.record.plan
        grid = ask_dry_run(study.program, axis_options(plan))
        others = [own_shape_options(plan)]
        others += [check_cost_options(plan)] if plan.is_checked else []
        answers = [grid, *(ask_dry_run(study.program, options) for options in others)]
        cases = {str(cost.name): asdict(cost) for answer in answers for cost in answer.cases}
        document = {
            "device": dict(grid.device),
            "git_commit": grid.git_commit,
            "memory_budget_bytes": grid.memory_budget_bytes,
            "memory_budget_source": grid.memory_budget_source,
            "cases": [cost | {"name": name} for name, cost in cases.items()],
        }
        write_whole(path, json.dumps(document, indent=1) + "\n")
    return read_case_costs(read_json(path)[0])


def _merged(documents: Sequence[Json]) -> Json:
    """One result of several: a row that is in two of them is the first one's."""
    seen: set[str] = set()
    rows: list[Json] = []
    for document in documents:
        names = {case_of(entry) for entry in document["benchmarks"]} - seen
        rows += [entry for entry in document["benchmarks"] if case_of(entry) in names]
        seen |= names
    return documents[0] | {"benchmarks": rows}


def write_products(study: GridStudy, progress: GridProgress) -> None:
    """products.json: what each matrix product of a step reaches. Raises what run_journaled does."""
    path = study.folder / PRODUCTS
    if path.is_file():
        return
    parts = {
        study.folder / f"{path.stem}_{which}.json": options
        for which, options in product_options(study.record.plan).items()
    }
    documents = []
    for part, options in parts.items():
        names = planned_names(study.program, options)
        progress.begin("matrix products", names, journaled_names(journal_of(part)))
        document, is_interrupted = run_journaled(study, options, part, names, "off", progress)
        if is_interrupted:
            # its journal has what was measured
            raise KeyboardInterrupt
        documents.append(document)
    write_whole(path, json.dumps(_merged(documents), indent=1) + "\n")
    for part in parts:
        part.unlink()
        journal_of(part).unlink()


def write_grid_frontier(study: GridStudy, progress: GridProgress) -> None:
    """frontier.json: the largest batch of each sequence, and the reverse.

    Raises SuiteError and BadInputError where it cannot be predicted.
    """
    if (study.folder / FRONTIER).is_file():
        return
    progress.say("predicting the largest batch of every sequence")
    write_frontier(study.folder, study.program, study.record.plan.device)


FAILED, BAD = 1, 2
Say = Callable[[str], None]


def complain(text: str) -> None:
    """On standard error."""
    print(f"scripts/study: {text}", file=sys.stderr, flush=True)


def bench_of(build_folder: Path) -> Path:
    """The program in a build."""
    return build_folder / "benchmarks/tiny_llama_bench"


def check_plan(plan: GridPlan, build_folder: Path) -> int:
    """The number of cases; SuiteError where the program refuses the plan."""
    return len(planned_names(bench_of(build_folder), axis_options(plan)))


def plan_text(plan: GridPlan, cases: int) -> str:
    """What a grid would measure."""
    return (
        f"Grid: {cases} cases of {len(plan.components)} components, {plan.in_words()} "
        f"({plan.dtype}, {', '.join(plan.variants)}),\n"
        f"in {plan.rounds} rounds, the later ones as far as {plan.minutes:g} minutes go, beside "
        f"some minutes for matrix products{_check_text(plan)}."
    )


def _check_text(plan: GridPlan) -> str:
    return f" and steps of {plan.check_size}" if plan.is_checked else ""


def _kept_name(build_folder: Path) -> str:
    whole = build_folder.resolve()
    return str(whole.relative_to(PROJECT)) if whole.is_relative_to(PROJECT) else str(whole)


def begin_study(plan: GridPlan, build_folder: Path, results: Path, command: str) -> GridStudy:
    """Makes the folder. OSError where it cannot be made."""
    record = Record(plan, command, _kept_name(build_folder))
    folder = run_folder(KIND, results)
    folder.mkdir(parents=True)
    write_record(folder, record)
    return GridStudy(folder, bench_of(build_folder), record)


def drop_study(study: GridStudy) -> None:
    """Removes the folder of one that has measured nothing."""
    if [path.name for path in study.folder.iterdir()] == [STUDY]:
        (study.folder / STUDY).unlink()
        study.folder.rmdir()


def unfinished_study(folder: Path, build_folder: Path | None) -> GridStudy:
    """As it was begun, unless another build folder is given. BadInputError for a bad study.json."""
    record = read_record(folder)
    used = build_folder or PROJECT / record.build_folder
    return GridStudy(folder, bench_of(used), record)


def resuming(study: GridStudy) -> str:
    """The command that goes on with it, and that it does."""
    results = study.folder.parent
    place = "" if results.resolve() == RESULTS.resolve() else f" --results {results}"
    return f"scripts/study --resume{place} continues"


def _make(study: GridStudy, say: Say) -> int:
    names = planned_names(study.program, axis_options(study.record.plan))
    costs = costs_of(study)
    progress = GridProgress(expected_weights(costs), sys.stderr)
    say(f"{plan_text(study.record.plan, len(names))}\nOutput Directory: {shown(study.folder)}")
    run_rounds(study, names, progress)
    write_products(study, progress)
    write_check(study, costs, progress)
    try:
        write_grid_frontier(study, progress)
    except (SuiteError, BadInputError) as error:
        # not finished: --resume tries it again
        complain(f"frontier.json is left out: {error}; {resuming(study)}")
        return FAILED
    status = FAILED if has_failures(study) else 0
    now = datetime.datetime.now(datetime.timezone.utc)
    study.keep(replace(study.record, finished=now.isoformat(timespec="seconds")))
    return status


def _ending(study: GridStudy) -> str:
    record = study.record
    lines = [
        f"Grid: {record.rounds_done} of {record.plan.rounds} rounds in "
        f"{duration(record.seconds_spent)}; their files are in {shown(study.folder)}:"
    ]
    lines += [f"  {shown(path)}" for path in sorted(study.folder.glob("*.json"))]
    if record.left_out:
        lines.append(record.left_out)
    lines.append("scripts/report makes the page of it.")
    return "\n".join(lines)


def _stopped(study: GridStudy, error: Exception) -> None:
    complain(str(error))
    if "--resume: journal" in str(error):
        complain(
            "the grid was begun with another build, commit or machine: go back to it, or begin "
            "a new one with the command of study.json"
        )
    elif journal_of(round_file(study.folder, 1)).exists():
        complain(f"what was measured is in {shown(study.folder)}; {resuming(study)}")


def run_study(study: GridStudy, say: Say) -> int:
    """Measures what the study lacks; the exit status of scripts/study.

    Whatever ends it early keeps what was measured and says how to go on. OSError where a file
    cannot be written.
    """
    try:
        with ended_as_by_ctrl_c():
            status = _make(study, say)
    except KeyboardInterrupt:
        done = f"{study.record.rounds_done} of {study.record.plan.rounds} rounds are done"
        complain(f"interrupted: {done}, and nothing is lost; {resuming(study)}")
        return INTERRUPTED
    except StoppedError as error:
        _stopped(study, error)
        return error.exit_status
    except SuiteError as error:
        _stopped(study, error)
        return BAD
    say(_ending(study))
    return status
