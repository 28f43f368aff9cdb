"""Runs the suite and the training program in their own processes, and reads their results."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    REFUSED_OPTIONS,
    BadInputError,
    Json,
    ToolError,
    schema_problem,
)
from tinyllama_tools.core.text import last_words
from tinyllama_tools.data.nameless import nameless_context
from tinyllama_tools.data.names import OWN_KEYS, UNITS, CaseName, parse_case_name
from tinyllama_tools.data.profiles import SUMMARY, BadProfileError, read_profile

PROGRAM = PROJECT / "build/benchmarks/tiny_llama_bench"


class SuiteError(ToolError):
    """The program did not do what was asked; the message names it and has its last words."""


@dataclass(frozen=True)
class CaseRun:
    """What one process measured of a case.

    `seconds`: of an iteration, one for each repetition; empty where the case was skipped or failed,
    which `skipped` and `failed` give the reason for. `above_peak`: why it has no shares of peaks.
    `counters`: of the last repetition. `entries`: all of the case's entries as in the file.
    """

    name: str
    seconds: tuple[float, ...]
    counters: Mapping[str, float]
    label: str = ""
    skipped: str = ""
    failed: str = ""
    above_peak: str = ""
    entries: tuple[Json, ...] = ()


@dataclass(frozen=True)
class SuiteResult:
    """The cases in the order in which they were asked for, and the context of the file."""

    context: Json
    cases: tuple[CaseRun, ...]


def read_case(name: str, entries: Sequence[Json]) -> CaseRun:
    """Makes one case of its entries in the file's order."""
    repetitions = [e for e in entries if e["run_type"] == "iteration"]
    if not repetitions:
        raise SuiteError(f"{PROGRAM.name}: {name} has no repetition in the result")
    last = repetitions[-1]
    measured = [e for e in repetitions if "skipped" not in e and "error_occurred" not in e]
    numbers = {k: v for k, v in last.items() if isinstance(v, (int, float)) and k not in OWN_KEYS}
    return CaseRun(
        name=name,
        seconds=tuple(e["real_time"] * UNITS[e["time_unit"]] for e in measured),
        counters={k: v for k, v in numbers.items() if not isinstance(v, bool)},
        label=last.get("label", ""),
        skipped=last.get("skip_message", ""),
        failed=last.get("error_message", ""),
        above_peak=last.get("above_peak", ""),
        entries=tuple(entries),
    )


def read_result(document: Json, names: Sequence[str]) -> SuiteResult:
    """The cases of these names; SuiteError where one is not in the file."""
    entries: dict[str, list[Json]] = {name: [] for name in names}
    for entry in document["benchmarks"]:
        name = entry["run_name"].removesuffix("/manual_time")
        if name in entries:
            entries[name].append(entry)
    missing = [name for name, found in entries.items() if not found]
    if missing:
        raise SuiteError(f"{PROGRAM.name} wrote nothing about {', '.join(missing)}")
    runs = tuple(read_case(name, found) for name, found in entries.items())
    return SuiteResult(nameless_context(document["context"]), runs)


def axis_options(cases: Sequence[CaseName]) -> list[str]:
    """Options whose grid contains the cases, and the filter that leaves exactly them."""
    axes: dict[str, list[str]] = {
        "components": [c.component for c in cases],
        "passes": [c.pass_name for c in cases],
        "variants": [c.variant for c in cases],
        "sizes": [c.size for c in cases],
        "dtypes": [c.dtype for c in cases],
        "batch": [str(c.batch) for c in cases],
        "seq": [str(c.seq) for c in cases],
    }
    # one of each, in the order of the cases
    options = [f"--{axis}={','.join(dict.fromkeys(values))}" for axis, values in axes.items()]
    names = "|".join(re.sub(r"([.+*?()\[\]{}^$|\\])", r"\\\1", str(case)) for case in cases)
    return [*options, f"--benchmark_filter=^({names})$"]


@dataclass
class SuiteProgram:
    """tiny_llama_bench with the options that all its processes share, e.g. `--threads=2`.

    `time_limit`: seconds after which a process is killed, which is a SuiteError.
    """

    arguments: tuple[str, ...] = ()
    program: Path = PROGRAM
    environment: Mapping[str, str] | None = None
    time_limit: float | None = None
    _peaks: dict[tuple[str, ...], Json] = field(default_factory=dict)

    def run(
        self,
        cases: Sequence[CaseName],
        repetitions: int,
        *,
        verify: bool = False,
        more: Sequence[str] = (),
    ) -> SuiteResult:
        """Times each case `repetitions` times, an iteration each, after the program's own warm-up.

        `verify`: compare with the float64 baseline first. `more`: options of this process only. A
        case above --max-seconds-per-case comes back skipped, one that fails with its reason. Raises
        SuiteError where the program refuses the options or does not come to its end.
        """
        options = [
            *axis_options(cases),
            f"--verify={'before' if verify else 'off'}",
            "--benchmark_min_time=1x",
            f"--benchmark_repetitions={repetitions}",
            *self.arguments,
            *more,
        ]
        key = tuple(sorted({f"{c.size}/{c.dtype.removeprefix('amp_')}" for c in cases}))
        with tempfile.TemporaryDirectory(prefix="tiny_llama_run_") as folder:
            document = self._result(options, Path(folder), key, verify)
        self._peaks[key] = document["context"]
        return read_result(document, [str(case) for case in cases])

    def list_cases(self, options: Sequence[str] = ()) -> tuple[list[str], str]:
        """What --list names, and no refusal; or nothing, and why the program refuses the options.

        Raises SuiteError where it does neither.
        """
        finished = self._start([*options, "--list"])
        words = last_words(finished.stderr)
        if finished.returncode == REFUSED_OPTIONS:
            return [], words.splitlines()[-1] if words else "refused without a word"
        if finished.returncode != 0 or not finished.stdout.strip():
            raise SuiteError(f"{self.program.name} --list: {words}")
        return finished.stdout.split(), ""

    def _start(self, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [str(self.program), *options],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                env=None if self.environment is None else dict(self.environment),
                timeout=self.time_limit,
            )
        except subprocess.TimeoutExpired as error:
            message = f"{self.program.name} was killed: it took more than {self.time_limit:g} s"
            raise SuiteError(message) from error
        except OSError as error:
            raise SuiteError(f"{self.program.name} cannot be started: {error}") from error

    def _result(self, options: list[str], folder: Path, key: tuple[str, ...], verify: bool) -> Json:
        known = self._peaks.get(key)
        if known:
            journal = folder / "journal.jsonl"
            header = {
                "journal": "tiny_llama_bench journal",
                "schema_version": known["schema_version"],
                "header": known | {"verify": "before" if verify else "off"},
            }
            journal.write_text(json.dumps(header) + "\n", encoding="utf-8")
            try:
                return self._execute(
                    [*options, f"--journal={journal}", "--resume"], folder / "resumed.json"
                )
            except SuiteError as error:
                # Somebody committed, or changed the program: its peaks are measured anew.
                if f"journal {journal}" not in str(error):
                    raise
        return self._execute(options, folder / "new.json")

    def _execute(self, options: list[str], out: Path) -> Json:
        finished = self._start([*options, f"--benchmark_out={out}"])
        if finished.returncode in {0, 1} and out.is_file():
            return json.loads(out.read_text(encoding="utf-8"))
        words = last_words(finished.stderr) or "it said nothing"
        if finished.returncode == REFUSED_OPTIONS:
            # the program's own line begins with its name
            raise SuiteError(words.splitlines()[-1])
        raise SuiteError(f"{self.program.name} ended with {finished.returncode}: {words}")


TRAINING_PROGRAM = PROJECT / "build/benchmarks/tiny_llama_train"
# With one of these, files go to --profile-dir; without, to --output-dir.
PROFILER_FLAGS = frozenset(
    {
        "--enable-pytorch-profiler",
        "--profile-memory",
        "--enable-deepspeed-flops",
        "--enable-flops-profiler",
    }
)
LOSS_NOT_FINITE = 1


class TrainingError(ToolError):
    """The program did not do what was asked; the message names it and has its last words.

    `exit_status`: what a script that cannot go on ends with: 2 where the program refused what it
    was given or is not there, else 1.
    """

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


@dataclass(frozen=True)
class TrainingRun:
    """One process that came to its end.

    `output`: standard output and errors as they came. `seconds`: from start to end of the process,
    loading included. `summary`: performance_summary.json of `folder`, None where this run wrote
    none.
    """

    command: tuple[str, ...]
    exit_status: int
    output: str
    seconds: float
    folder: Path | None
    summary: Json | None


def command_line(options: Sequence[str]) -> str:
    """How a user of the checkout would type it."""
    return shlex.join([str(TRAINING_PROGRAM.relative_to(PROJECT)), *options])


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a file from the one that replaces it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit status. An interruption of ours, by whatever signal, asks the program to end after
    its current step."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.send_signal(signal.SIGINT)
            process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
        raise


@dataclass
class TrainingProgram:
    """tiny_llama_train with the options that all its runs share, e.g. `--device=cpu`."""

    program: Path = TRAINING_PROGRAM
    arguments: tuple[str, ...] = ()

    def run(self, options: Sequence[str], folder: Path, log: Path | None = None) -> TrainingRun:
        """Trains with these options, without a folder among them: its files go to `folder`.

        `log` gets all that the program says, while it says it. A loss that is not finite comes back
        as exit status 1. Raises TrainingError where the program cannot be started, refuses its
        options or what it was given, or does not come to its end; KeyboardInterrupt after Ctrl-C,
        once the program has written what it had.
        """
        arguments = [*self.arguments, *options]
        flag = "--profile-dir" if PROFILER_FLAGS & set(arguments) else "--output-dir"
        command = (str(self.program), *arguments, f"{flag}={folder}")
        before = _identity(folder / SUMMARY)
        started = time.monotonic()
        status, output = self._execute(command, log)
        seconds = time.monotonic() - started
        self._raise_unless_ended(status, output)
        written = _identity(folder / SUMMARY)
        # a summary of an earlier run is not this run's
        summary = self._summary(folder) if written not in {None, before} else None
        return TrainingRun(command, status, output, seconds, folder, summary)

    def _execute(self, command: Sequence[str], log: Path | None) -> tuple[int, str]:
        with tempfile.TemporaryDirectory(prefix="tiny_llama_train_") as temporary:
            path = log or Path(temporary) / "output"
            try:
                with path.open("wb") as file:
                    status = _wait(self._start(command, file))
                return status, path.read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                message = f"{path}: the program's output cannot be kept: {error.strerror}"
                raise TrainingError(message, REFUSED_OPTIONS) from error

    def _start(self, command: Sequence[str], file: BinaryIO) -> subprocess.Popen[bytes]:
        try:
            # a session of its own: a terminal's Ctrl-C reaches us only, and the program from us
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            reason = f"{self.program.name} cannot be started: {error}"
            message = f"{reason}; build it: scripts/bench --setup-only"
            raise TrainingError(message, REFUSED_OPTIONS) from error

    def _raise_unless_ended(self, status: int, output: str) -> None:
        words = last_words(output) or "it said nothing"
        name = self.program.name
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        if status == REFUSED_OPTIONS:
            # the program's own line names the option, its value and what is allowed
            line = words.splitlines()[-1]
            message = line if line.startswith(name) else f"{name}: {line}"
            raise TrainingError(message, REFUSED_OPTIONS)
        if status < 0:
            raise TrainingError(f"{name} was ended by {signal.strsignal(-status)}: {words}")
        if status not in {0, LOSS_NOT_FINITE}:
            raise TrainingError(f"{name} ended with {status}: {words}")

    def _summary(self, folder: Path) -> Json:
        try:
            return read_profile(folder).summary
        except BadProfileError as error:
            raise TrainingError(f"{self.program.name} wrote a bad summary: {error}") from error


FLAGS = ("--dry-run", "--benchmark_format=json")
NUMBERS = (
    "parameters",
    "model_flops",
    "causal_flops",
    "hardware_flops",
    "elementwise_flops",
    "bytes",
    "predicted_memory_bytes",
)
# of a program that was built outside a checkout
UNKNOWN = "unknown"
ASK_AGAIN = "ask again: tiny_llama_bench --dry-run --benchmark_format=json"


@dataclass(frozen=True)
class CaseCost:
    """A case by the suite's formulas (model/cost.hpp); FLOPs and bytes are those of an iteration.

    `predicted_memory_bytes`: the most that is alive at once. `fits`: in the memory that was free
    when it was asked; `reason`: why not, empty where it does.
    """

    name: CaseName
    parameters: int
    model_flops: int
    causal_flops: int
    hardware_flops: int
    elementwise_flops: int
    bytes: int
    predicted_memory_bytes: int
    fits: bool = True
    reason: str = ""


@dataclass(frozen=True)
class DryRun:
    """The whole answer: what was free, who said so, and the cases in the program's order; `device`:
    as --describe-device describes it, `git_commit`: of the program, both empty where it does not
    say."""

    memory_budget_bytes: int
    memory_budget_source: str
    cases: tuple[CaseCost, ...]
    device: Mapping[str, Any] = field(default_factory=dict)
    git_commit: str = ""


# a number is one that a float can hold (core/app.py)
_WHOLE = {"type": "number", "multipleOf": 1, "minimum": 0}
_ANSWER = {
    "type": "object",
    "required": ["cases", "memory_budget_bytes"],
    "properties": {
        "memory_budget_bytes": _WHOLE,
        "device": {"type": "object"},
        "git_commit": {"type": "string"},
        "cases": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "fits", *NUMBERS],
                "properties": {
                    "name": {"type": "string"},
                    "fits": {"type": "boolean"},
                    "reason": {"type": "string"},
                    **dict.fromkeys(NUMBERS, _WHOLE),
                },
            },
        },
    },
}


def read_dry_run(document: object) -> DryRun:
    """Of the program's JSON. BadInputError naming the case, the key and the value that is wrong."""
    problem = schema_problem(document, _ANSWER)
    if problem or not isinstance(document, dict):
        raise BadInputError(f"no answer of --dry-run: {problem}; {ASK_AGAIN}")
    cases = []
    for entry in document["cases"]:
        name = parse_case_name(entry["name"])
        if name is None:
            rule = "must be component/pass/variant/size/dtype/batch:B/seq:S"
            raise BadInputError(f"--dry-run: name is {entry['name']!r}, {rule}; {ASK_AGAIN}")
        figures = (int(entry[key]) for key in NUMBERS)
        cases.append(CaseCost(name, *figures, entry["fits"], entry.get("reason", "")))
    commit = document.get("git_commit", UNKNOWN)
    return DryRun(
        int(document["memory_budget_bytes"]),
        str(document.get("memory_budget_source", "")),
        tuple(cases),
        document.get("device", {}),
        "" if commit == UNKNOWN else commit,
    )


def read_case_costs(document: object) -> list[CaseCost]:
    """The cases alone. BadInputError as read_dry_run."""
    return list(read_dry_run(document).cases)


def ask_json(program: Path, options: Sequence[str]) -> Json:
    """What the program answers as JSON; it only computes, and allocates nothing.

    SuiteError where it refuses the options, cannot be started, or says nonsense.
    """
    try:
        done = subprocess.run(
            [str(program), *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise SuiteError(f"{program.name} cannot be started: {error}") from error
    if done.returncode != 0:
        words = last_words(done.stderr) or "it said nothing"
        raise SuiteError(words.splitlines()[-1])
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise SuiteError(f"{program.name} {options[0]}: {error}") from error


def ask_dry_run(program: Path, options: Sequence[str]) -> DryRun:
    """Of the cases that the axes in `options` name. SuiteError as ask_json, and where there is no
    case."""
    given = [option for option in options if option not in FLAGS]
    document = ask_json(program, [*FLAGS, *given])
    try:
        answer = read_dry_run(document)
    except BadInputError as error:
        raise SuiteError(f"{program.name} --dry-run: {error}") from error
    if not answer.cases:
        raise SuiteError(f"{program.name} --dry-run: no case in its answer")
    return answer


def ask_costs(program: Path, options: Sequence[str]) -> list[CaseCost]:
    """The cases alone. SuiteError as ask_dry_run."""
    return list(ask_dry_run(program, options).cases)
