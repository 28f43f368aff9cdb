"""The grid of scripts/study: rounds over batch x sequence x size, products, check and frontier.

Whatever ends it early keeps what was measured, in journals; --resume goes on from there.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
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

from tinyllama_tools.commands.grid_plan import (
    CHECK_SECONDS,
    CHECK_STEPS,
    GridPlan,
    Record,
    read_record,
    write_record,
)
from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    REFUSED_OPTIONS,
    RESULTS,
    BadInputError,
    Json,
    ToolError,
    problem_sizes,
    read_json,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.text import LAST_WORDS, duration
from tinyllama_tools.data.nameless import make_nameless, names_alone
from tinyllama_tools.data.names import STEP, UNITS, parse_case_name
from tinyllama_tools.data.programs import (
    CaseCost,
    SuiteError,
    SuiteProgram,
    ask_dry_run,
    ask_json,
    read_case_costs,
)
from tinyllama_tools.data.studies import (
    AXES,
    CHECK,
    COSTS,
    FRONTIER,
    FRONTIER_KIND,
    FRONTIER_SCHEMA_VERSION,
    KIND,
    PRODUCTS,
    STUDY,
    Axis,
    journal_of,
    journaled_names,
    round_file,
)

FAILED = 1
# What a later round takes beside the first, which proves every case before it times it. Small
# cases, which spend their time on preparation, measured 0.8; large ones gain more.
LATER_SHARE = 0.8


@dataclass
class GridStudy:
    """A grid's folder, its program, and how far it is; `record` is on disk whenever it changes."""

    folder: Path
    program: Path
    record: Record
    clock: Callable[[], float] = field(default=time.monotonic)

    @property
    def plan(self) -> GridPlan:
        """What it consists of."""
        return self.record.plan

    def keep(self, **changes: Any) -> None:  # noqa: ANN401
        """In the record. OSError where it cannot be written."""
        record = replace(self.record, **changes)
        write_record(self.folder, record)
        self.record = record

    def spend(self, number: int, seconds: float) -> None:
        """Adds to a round's time."""
        spent = list(self.record.round_seconds)
        spent += [0.0] * (number - len(spent))
        spent[number - 1] += seconds
        self.keep(round_seconds=tuple(spent))

    @property
    def seconds_left(self) -> float:
        """Of the budget."""
        return max(0.0, 60 * self.plan.minutes - sum(self.record.round_seconds))


# ---- how far it is

# what the program says of a case on standard error: "[3/96] attention/...  1.27 ms"
CASE_LINE = re.compile(r"\[\d+/\d+\] (?P<name>\S+)  (?P<outcome>.*)")
# of a case: seconds beside its products, and for each of their FLOPs; only proportions matter
FIXED_SECONDS, SECONDS_PER_FLOP = 0.5, 1e-10
# elsewhere than on a terminal a line comes each time so much of a round is done
LINES_A_ROUND = 10


@dataclass(frozen=True)
class Place:
    """Which of how many rounds is in hand, and the seconds that this and all later ones have."""

    number: int = 1
    rounds: int = 1
    seconds: float = 0.0


class GridProgress:
    """Shows one round, or another run of many cases, at a time. `weights`: how long each case takes
    beside the others."""

    def __init__(
        self,
        weights: Mapping[str, float],
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weights, self._stream, self._clock = dict(weights), stream, clock
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
        self._whole, self._total = sum(weights.values()), len(weights)
        self._begun, self._weight_done = self._clock(), None
        self._show("preparing", is_first=True)

    def hear(self, line: str) -> None:
        """A line that the program said: a finished case counts, a failed one is told at once."""
        found = CASE_LINE.fullmatch(line)
        if found is None:
            return
        weight = self._left.pop(found["name"], None)
        if found["outcome"].startswith("FAILED: "):
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


# ---- one run of the program

OWN_SUFFIXES = re.compile(r"(/iterations:\d+)?(/repeats:\d+)?(/manual_time)?$")
ENDING = "interrupted: ending after the case in hand; Ctrl-C once more ends at once"


class StoppedError(ToolError):
    """The program cannot go on; the message has its reason. `exit_status`: of scripts/study."""

    def __init__(self, message: str, exit_status: int = FAILED) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def _listen(command: Sequence[str], what: str, progress: GridProgress) -> tuple[str, bool]:
    """Runs the program to its end and hands on what it says on standard error: its last words, and
    whether we were interrupted meanwhile. Cases that failed (status 1) are results.

    A KeyboardInterrupt asks it to end after the case in hand, a second one kills it.
    KeyboardInterrupt where it had to end before it was done; StoppedError where it did not come to
    its end.
    """
    name = Path(command[0]).name
    try:
        # A session of its own: Ctrl-C reaches us only, and the program once, from us. It would
        # die of the second one.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        message = f"{name} cannot be started: {error}; build it: scripts/bench --setup-only"
        raise StoppedError(message, REFUSED_OPTIONS) from error
    last: deque[str] = deque(maxlen=LAST_WORDS)
    is_interrupted = False
    try:
        while process.returncode is None:
            try:
                for line in process.stderr or ():
                    last.append(line.rstrip("\n"))
                    progress.hear(last[-1])
                process.wait()
            except KeyboardInterrupt:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL if is_interrupted else signal.SIGINT)
                if not is_interrupted:
                    progress.say(ENDING)
                is_interrupted = True
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stderr:
            process.stderr.close()
    progress.clear()
    status, words = process.returncode, "\n".join(line for line in last if line.strip())
    if status in {0, 1}:
        return words, is_interrupted
    if is_interrupted or status == INTERRUPTED:
        raise KeyboardInterrupt
    words = words or "it said nothing"
    if status == REFUSED_OPTIONS:
        # the program's own line names the option, its value and what is allowed
        raise StoppedError(words.splitlines()[-1], REFUSED_OPTIONS)
    how = f"ended with {status}"
    if status < 0:
        how = f"was ended by signal {signal.Signals(-status).name}"
    raise StoppedError(f"{name} {how} in {what}; its last words: {words}")


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


def case_of(entry: Json) -> str:
    """The name that --list prints for the case of a row; Google Benchmark appends to it."""
    return OWN_SUFFIXES.sub("", entry["run_name"])


def read_document(path: Path) -> Json:
    """A result that the program has just written; StoppedError where it is none."""
    error: Exception | str = "it has no rows"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document["context"], dict) and all(map(case_of, document["benchmarks"])):
            return document
    except (OSError, ValueError, KeyError, TypeError) as found:
        error = found
    raise StoppedError(f"tiny_llama_bench wrote no result to {path}: {error}")


def outcomes(document: Json) -> tuple[int, int, int]:
    """How many cases of a result were measured, left out with a reason, and failed."""
    kinds = {"error_occurred": 2, "skipped": 1}
    of: dict[str, int] = {}
    for entry in document["benchmarks"]:
        kind = max((kinds[key] for key in kinds.keys() & entry.keys()), default=0)
        of[case_of(entry)] = max(kind, of.get(case_of(entry), 0))
    found = list(of.values())
    return found.count(0), found.count(1), found.count(2)


def run_journaled(
    study: GridStudy,
    options: Sequence[str],
    result: Path,
    names: Sequence[str],
    title: str,
    progress: GridProgress,
    verify: str = "off",
    place: Place | None = None,
) -> tuple[Json, bool]:
    """Runs the program to its end, from where its journal is: the result that it wrote, and whether
    we were interrupted while it did. `names`: of all cases that have to be in it.

    Raises KeyboardInterrupt where it had to end before, and has kept what it had; StoppedError
    where there is no whole result.
    """
    progress.begin(title, names, journaled_names(journal_of(result)), place)
    journal = journal_options(result, journal_of(round_file(study.folder, 1)), verify)
    command = [str(study.program), *options, *journal, f"--benchmark_out={result}"]
    words, is_interrupted = _listen(command, result.name, progress)
    make_nameless(result)
    document = read_document(result)
    missing = set(names) - {case_of(entry) for entry in document["benchmarks"]}
    if missing:
        # it could not write its journal, say
        what = f"{result.name} lacks {len(missing)} of {len(names)} cases"
        raise StoppedError(f"{what}; last words of {study.program.name}: {words}")
    return document, is_interrupted


def planned_names(program: Path, options: Sequence[str]) -> list[str]:
    """What --list names; SuiteError with the program's own words where it refuses the options."""
    names, refusal = SuiteProgram(program=program).list_cases(options)
    if refusal:
        raise SuiteError(refusal)
    return names


# ---- the files of a grid, in the order in which they are made


def costs_of(study: GridStudy) -> list[CaseCost]:
    """Of every case of the grid, of every problem size at its own batch and sequence, and of the
    shapes that might check predictions: what costs.json says, which is written where it is not
    there yet.

    SuiteError where the program does not tell them, BadInputError where the file is no longer good.
    """
    path = study.folder / COSTS
    if not path.is_file():
        asked = [study.plan.grid(), *study.plan.priced()]
        answers = [ask_dry_run(study.program, options) for options in asked]
        cases = {str(cost.name): asdict(cost) for answer in answers for cost in answer.cases}
        grid = answers[0]
        document = {
            "device": dict(grid.device),
            "git_commit": grid.git_commit,
            "memory_budget_bytes": grid.memory_budget_bytes,
            "memory_budget_source": grid.memory_budget_source,
            "cases": [cost | {"name": name} for name, cost in cases.items()],
        }
        write_whole(path, json.dumps(document, indent=1) + "\n")
    return read_case_costs(read_json(path)[0])


def _run_round(study: GridStudy, number: int, names: Sequence[str], progress: GridProgress) -> None:
    plan, result = study.plan, round_file(study.folder, number)
    title = f"round {number}/{plan.rounds}"
    place = Place(number, plan.rounds, study.seconds_left)
    verify = "before" if number == 1 else "off"
    started = study.clock()
    try:
        document, is_interrupted = run_journaled(
            study, plan.round(number), result, names, title, progress, verify, place
        )
    finally:
        study.spend(number, study.clock() - started)
    study.keep(rounds_done=number)
    took = duration(study.record.round_seconds[number - 1])
    measured, left_out, failed = outcomes(document)
    progress.say(f"{title}: {measured} measured, {left_out} left out, {failed} failed, in {took}")
    if is_interrupted:
        raise KeyboardInterrupt


def run_rounds(study: GridStudy, names: Sequence[str], progress: GridProgress) -> None:
    """All rounds that are not done yet.

    A round that was begun is always ended; later ones are left out where the budget is spent.
    Raises what run_journaled does.
    """
    plan = study.plan
    for number in range(study.record.rounds_done + 1, plan.rounds + 1):
        before = study.record.round_seconds
        if number > 1 and number > len(before):
            expected = before[-1] * (LATER_SHARE if number == 2 else 1.0)
            if expected > study.seconds_left:
                last = number == plan.rounds
                which = f"round {number}" if last else f"rounds {number} to {plan.rounds}"
                text = (
                    f"{which} left out: another {duration(expected)} would exceed --grid-minutes "
                    f"{plan.minutes:g}, of which {duration(study.seconds_left)} are left"
                )
                study.keep(left_out=text)
                progress.say(text)
                break
        _run_round(study, number, names, progress)


def write_products(study: GridStudy, progress: GridProgress) -> None:
    """products.json: what each GEMM of a step reaches; a row that is asked for twice is
    there once. Raises what run_journaled does."""
    path = study.folder / PRODUCTS
    if path.is_file():
        return
    whole: Json = {}
    seen: set[str] = set()
    parts = []
    for which, options in study.plan.products().items():
        part = study.folder / f"{path.stem}_{which}.json"
        names = planned_names(study.program, options)
        title = "GEMMs"
        document, is_interrupted = run_journaled(study, options, part, names, title, progress)
        if is_interrupted:
            # its journal has what was measured
            raise KeyboardInterrupt
        rows = [entry for entry in document["benchmarks"] if case_of(entry) not in seen]
        seen |= {case_of(entry) for entry in rows}
        whole = {**document, **whole, "benchmarks": [*whole.get("benchmarks", ()), *rows]}
        parts.append(part)
    write_whole(path, json.dumps(whole, indent=1) + "\n")
    for part in parts:
        part.unlink()
        journal_of(part).unlink()


def _attained_rate(study: GridStudy, costs: Sequence[CaseCost]) -> float | None:
    """FLOP/s of the largest training step of the first round; None where it has none."""
    flops = {str(cost.name): cost.model_flops for cost in costs}
    found: list[tuple[int, float]] = []
    for row in read_document(round_file(study.folder, 1))["benchmarks"]:
        case = case_of(row)
        name = parse_case_name(case)
        is_step = name is not None and name.component == STEP and case in flops
        if is_step and name.variant == study.plan.checked_variant:
            seconds = row.get("real_time", 0.0) * UNITS[row["time_unit"]]
            if seconds > 0 and not row.keys() & {"error_occurred", "skipped"}:
                found.append((flops[case], flops[case] / seconds))
    return max(found)[1] if found else None


def choose_step(
    plan: GridPlan, costs: Sequence[CaseCost], rate: float
) -> tuple[CaseCost | None, str]:
    """The largest shape of the size that is checked that fits and is expected to take CHECK_SECONDS
    at most; or None and why."""
    steps = {
        (cost.name.batch, cost.name.seq): cost
        for cost in costs
        if (cost.name.component, cost.name.size) == (STEP, plan.check_size)
        and cost.name.variant == plan.checked_variant
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
    """check.json: a few training steps of a size bigger than the grid's, by which predictions are
    checked, since no rate is calibrated on them. Where no step can be afforded, that is said.
    Raises what run_journaled does."""
    plan, path = study.plan, study.folder / CHECK
    if (path.is_file() and not journal_of(path).is_file()) or not plan.is_checked:
        return
    rate = _attained_rate(study, costs)
    step, why = None, "no training step was measured to estimate it by"
    if rate is not None:
        step, why = choose_step(plan, costs, rate)
    if step is None:
        progress.say(f"{CHECK} is left out: {why}")
        return
    title = f"check at {plan.check_size}"
    document, is_interrupted = run_journaled(
        study, plan.check(step), path, [str(step.name)], title, progress
    )
    journal_of(path).unlink()
    if is_interrupted:
        raise KeyboardInterrupt
    for row in document["benchmarks"]:
        why_not = row.get("skip_message") or row.get("error_message")
        if why_not:
            progress.say(f"{CHECK} has no step: {why_not}")


FRONTIER_CASES = {"variants": ("baseline", "optimized"), "dtypes": ("f32", "bf16")}
FRONTIER_GIVEN = {"seq": (128, 256, 512, 1024, 2048), "batch": (1, 2, 4, 8, 16)}
# what the program searches at most
LARGEST = 2**20
NO_OVERHEAD = "none is added: the memory of tensors is predicted to the byte"


def _frontier_point(axis: Axis, limit_bytes: int, row: Mapping[str, Any]) -> Json:
    """A line's answer as it is written; nothing of it was tried."""
    ends = row["predicted_memory_bytes_beyond"] > 0 or row["largest"] == 0
    return {
        **{key: row[key] for key in ("size", "variant", "dtype", axis.given)},
        axis.largest_key: row["largest"],
        "predicted_bytes": row["predicted_memory_bytes"],
        "limit_bytes": limit_bytes,
        "confirmed": "",
        axis.confirmed_key: None,
        "apart_percent": None,
        "remark": "" if ends else f"no larger one than {LARGEST} is searched for",
    }


def predict_frontier(folder: Path, program: Path, device: str = "auto") -> Path:
    """Writes what fits of all sizes into the memory that is free now, over sequences and over
    batches, to the folder's frontier.json, as the program's --find-limit answers.

    Raises SuiteError where the program cannot be asked, OSError where the file cannot be written.
    """
    by_key: dict[str, list[Json]] = {}
    answer: Json = {}
    for axis in AXES.values():
        lists = {"components": (STEP,), "sizes": tuple(problem_sizes()), **FRONTIER_CASES}
        lists[axis.given] = FRONTIER_GIVEN[axis.given]
        asked = [f"--{name}={','.join(map(str, values))}" for name, values in lists.items()]
        how = (f"--find-limit={axis.searched}", f"--device={device}", "--benchmark_format=json")
        answer = ask_json(program, [*how, *asked])
        try:
            limit = answer["memory_limit_bytes"]
            rows = [row for row in answer["limits"] if not row["skip_reason"]]
            by_key[axis.key] = [_frontier_point(axis, limit, row) for row in rows]
        except (KeyError, TypeError) as error:
            raise SuiteError(f"{program}: --find-limit answered without {error}") from error
    document = {
        "kind": FRONTIER_KIND,
        "schema_version": FRONTIER_SCHEMA_VERSION,
        "device": str(answer["device"].get("name") or ""),
        "git_commit": answer["git_commit"],
        "date": _now(),
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


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


# ---- the whole of it


def _complain(text: str) -> None:
    print(f"scripts/study: {text}", file=sys.stderr, flush=True)


def bench_of(build_folder: Path) -> Path:
    """The program in a build."""
    return build_folder / "benchmarks/tiny_llama_bench"


def begin_study(plan: GridPlan, build_folder: Path, results: Path, command: str) -> GridStudy:
    """Makes the folder. OSError where it cannot be made."""
    used = os.path.relpath(build_folder.resolve(), PROJECT)
    record = Record(plan, names_alone(command), used)
    folder = run_folder(KIND, results)
    folder.mkdir(parents=True)
    write_record(folder, record)
    return GridStudy(folder, bench_of(build_folder), record)


def drop_study(study: GridStudy) -> None:
    """Removes the folder of one that has measured nothing."""
    if [path.name for path in study.folder.iterdir()] == [STUDY]:
        (study.folder / STUDY).unlink()
        study.folder.rmdir()


def unfinished_study(folder: Path, build_folder: Path) -> GridStudy:
    """As it was begun, unless another build folder than the checkout's is given. BadInputError for
    a bad study.json."""
    record = read_record(folder)
    is_own = build_folder == PROJECT / "build"
    used = PROJECT / record.build_folder if is_own else build_folder
    return GridStudy(folder, bench_of(used), record)


def resuming(study: GridStudy) -> str:
    """The command that goes on with it, and that it does."""
    results = study.folder.parent
    place = "" if results.resolve() == RESULTS.resolve() else f" --results {results}"
    return f"scripts/study --resume{place} continues"


def _make(study: GridStudy, say: Callable[[str], None]) -> int:
    names = planned_names(study.program, study.plan.grid())
    costs = costs_of(study)
    weights = {str(c.name): FIXED_SECONDS + SECONDS_PER_FLOP * c.hardware_flops for c in costs}
    progress = GridProgress(weights, sys.stderr)
    say(f"{study.plan.in_words(len(names))}\nOutput Directory: {shown(study.folder)}")
    run_rounds(study, names, progress)
    write_products(study, progress)
    write_check(study, costs, progress)
    if not (study.folder / FRONTIER).is_file():
        progress.say("predicting the largest batch of every sequence")
        try:
            predict_frontier(study.folder, study.program, study.plan.device)
        except (SuiteError, BadInputError) as error:
            # not finished: --resume tries it again
            _complain(f"{FRONTIER} is left out: {error}; {resuming(study)}")
            return FAILED
    files = [round_file(study.folder, n + 1) for n in range(study.record.rounds_done)]
    files += [path for name in (PRODUCTS, CHECK) if (path := study.folder / name).is_file()]
    has_failures = any(outcomes(read_document(path))[2] for path in files)
    study.keep(finished=_now())
    return FAILED if has_failures else 0


def run_study(study: GridStudy, say: Callable[[str], None]) -> int:
    """Measures what the study lacks; the exit status of scripts/study.

    Whatever ends it early keeps what was measured and says how to go on. OSError where a file
    cannot be written.
    """
    try:
        status = _make(study, say)
    except KeyboardInterrupt:
        done = f"{study.record.rounds_done} of {study.plan.rounds} rounds are done"
        _complain(f"interrupted: {done}, and nothing is lost; {resuming(study)}")
        return INTERRUPTED
    except (StoppedError, SuiteError) as error:
        _complain(str(error))
        if "--resume: journal" in str(error):
            _complain(
                "the grid was begun with another build, commit or machine: go back to it, or begin "
                "a new one with the command of study.json"
            )
        elif journal_of(round_file(study.folder, 1)).exists():
            _complain(f"what was measured is in {shown(study.folder)}; {resuming(study)}")
        return error.exit_status
    record = study.record
    took = duration(sum(record.round_seconds))
    say(
        f"Grid: {record.rounds_done} of {study.plan.rounds} rounds in {took}; their files are in "
        f"{shown(study.folder)}:"
    )
    lines = [f"  {shown(path)}" for path in sorted(study.folder.glob("*.json"))]
    lines += [record.left_out] if record.left_out else []
    say("\n".join([*lines, "scripts/report makes the page of it."]))
    return status
