"""Runs the suite and the training program in their own processes, and reads their results."""

import json
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from tinyllama_tools.core.app import (
    REFUSED_OPTIONS,
    BadInputError,
    Json,
    ToolError,
    parse_json,
    read_json,
    schema_problem,
)
from tinyllama_tools.core.installation import BUILD, IS_CHECKOUT, ROOT, program_path
from tinyllama_tools.core.process import ProgramError, program_in, run_program
from tinyllama_tools.data.names import ITERATION, STEP, TIMED_BY, CaseName, parse_case_name
from tinyllama_tools.data.profiles import SUMMARY, MeasuredRun, read_profile
from tinyllama_tools.data.studies import SCHEMAS

PROGRAM = program_path(BUILD, "tiny_llama_bench")
# for one answer of a served process
SERVED_LIMIT_S = 600.0


class SuiteError(ProgramError):
    """An error of tiny_llama_bench."""

    def __init__(self, message: str, exit_status: int = REFUSED_OPTIONS) -> None:
        super().__init__(message, exit_status)


class TrainingError(ProgramError):
    """An error of tiny_llama_train."""


def filter_of(names: Iterable[str]) -> str:
    """The option for exactly these cases, by an extended regular expression."""
    escaped = "|".join(re.sub(r"([.+*?()\[\]{}^$|\\])", r"\\\1", name) for name in names)
    return f"--benchmark_filter=^({escaped})$"


def axis_options(cases: Sequence[CaseName]) -> list[str]:
    """Options for exactly these cases: axes whose grid contains them, and a filter."""
    axes = ("components", "passes", "variants", "sizes", "dtypes", "batch", "seq")
    values = zip(*(case.axes.values() for case in cases), strict=True)
    # each value once, in the order of the cases
    options = [
        f"--{name}={','.join(map(str, dict.fromkeys(own)))}"
        for name, own in zip(axes, values, strict=True)
    ]
    return [*options, filter_of(map(str, cases))]


def rows_of(document: Json, case: CaseName) -> list[Json]:
    """The rows of a case's repetitions."""
    return [
        row
        for row in document["benchmarks"]
        if row["run_name"].removesuffix(TIMED_BY) == str(case) and row["run_type"] == ITERATION
    ]


@dataclass
class SuiteProgram:
    """tiny_llama_bench with the options that all its processes share, e.g. `--threads=2`."""

    arguments: tuple[str, ...] = ()
    program: Path = PROGRAM
    _peaks: dict[tuple[str, ...], Json] = field(default_factory=dict)

    def measure(
        self,
        cases: Sequence[CaseName],
        repetitions: int,
        *,
        verify: bool = False,
        more: Sequence[str] = (),
    ) -> Json:
        """The result of timing one iteration of each case `repetitions` times, after warm-up.

        `verify`: whether cases are first compared with the float64 baseline. `more`: options of
        this process only. A case that takes longer than --max-seconds-per-case is skipped in the
        result, one that fails has its reason there. SuiteError where the program refuses the
        options, does not end by itself, or writes nothing about a case."""
        proof = "before" if verify else "off"
        options = [
            *axis_options(cases),
            f"--verify={proof}",
            "--benchmark_min_time=1x",
            f"--benchmark_repetitions={repetitions}",
            *self.arguments,
            *more,
        ]
        key = tuple(sorted({f"{c.size}/{c.dtype.removeprefix('amp_')}" for c in cases}))
        with tempfile.TemporaryDirectory(prefix="tiny_llama_run_") as folder:
            document = self._measure(options, Path(folder), self._peaks.get(key), proof)
        self._peaks[key] = document["context"]
        for case in cases:
            if not rows_of(document, case):
                raise SuiteError(f"{self.program.name} wrote nothing about {case}")
        return document

    def list_cases(self, options: Sequence[str] = ()) -> list[str]:
        """The cases that --list names; SuiteError where there are none, or the options are
        refused."""
        done = run_program([str(self.program), *options, *self.arguments, "--list"], SuiteError)
        if not done.output.strip():
            raise SuiteError(f"{self.program.name} --list: {done.words}")
        return done.output.split()

    def _measure(self, options: list[str], folder: Path, known: Json | None, proof: str) -> Json:
        """`known`: the context of an earlier process. Its peaks go into the header of a journal, so
        that they are not measured again."""
        out = folder / "result.json"
        if known:
            journal = folder / "journal.jsonl"
            header = {
                "journal": "tiny_llama_bench journal",
                "schema_version": known["schema_version"],
                "header": known | {"verify": proof},
            }
            journal.write_text(json.dumps(header) + "\n", encoding="utf-8")
            try:
                return self.result([*options, f"--journal={journal}", "--resume"], out)
            except SuiteError as error:
                # the journal is refused after a commit or a build: peaks are measured again
                if f"journal {journal}" not in str(error):
                    raise
        return self.result(options, out)

    def result(self, options: Sequence[str], out: Path) -> Json:
        """The result of a run with these options, which the program writes to `out`. SuiteError as
        of measure()."""
        command = [str(self.program), *options, f"--benchmark_out={out}"]
        # status 1: some case failed
        done = run_program(command, SuiteError, ok=(0, 1))
        if done.is_interrupted:
            raise KeyboardInterrupt
        if not out.is_file():
            raise SuiteError(f"{self.program.name} ended with {done.status}: {done.words}")
        return json.loads(out.read_text(encoding="utf-8"))


def suite_program(
    device: str, threads: int | None, variants: Sequence[str], more: Sequence[str], build: Path
) -> SuiteProgram:
    """The program of a build folder or a prefix on this device, with `more` options. ProgramError
    where it is not there, or refuses the variants, all of which it alone knows."""
    options = (f"--threads={threads}",) if threads else ()
    given = (f"--device={device}", *options, *more)
    program = SuiteProgram(given, program_in(build, "tiny_llama_bench"))
    program.list_cases([f"--components={STEP}", f"--variants={','.join(variants)}"])
    return program


TRAINING_PROGRAM = program_path(BUILD, "tiny_llama_train")
# with one of these the program writes to --profile-dir, without to --output-dir
PROFILER_FLAGS = {
    *("--enable-pytorch-profiler", "--profile-memory"),
    *("--enable-deepspeed-flops", "--enable-flops-profiler"),
}
LOSS_NOT_FINITE = 1


def command_line(options: Sequence[str]) -> str:
    """The command as a user would type it."""
    program = TRAINING_PROGRAM.relative_to(ROOT) if IS_CHECKOUT else "tiny-llama train"
    return f"{program} {shlex.join(options)}"


def _identity(path: Path) -> tuple[int, int] | None:
    """Differs between a file and one that replaced it; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


@dataclass
class TrainingProgram:
    """tiny_llama_train with the options that all its runs share, e.g. `--device=cpu`. `hear` gets
    each line of its output."""

    program: Path = TRAINING_PROGRAM
    arguments: tuple[str, ...] = ()
    hear: Callable[[str], object] = lambda _: None

    def run(self, options: Sequence[str], folder: Path, log: Path | None = None) -> MeasuredRun:
        """Trains with these options, which name no folder: files go to `folder`, the output line by
        line to `log`. A loss that is not finite is exit status 1. The run has no name or command.

        TrainingError where the program cannot be started, refuses its options or does not end by
        itself; KeyboardInterrupt after Ctrl-C, once the program has written its files.
        """
        arguments = [*self.arguments, *options]
        flag = "--profile-dir" if PROFILER_FLAGS & set(arguments) else "--output-dir"
        command = (str(self.program), *arguments, f"{flag}={folder}")
        before = _identity(folder / SUMMARY)
        ok = (0, LOSS_NOT_FINITE)
        how = {"ok": ok, "hear": self.hear, "log": log, "as_one": True}
        done = run_program(command, TrainingError, **how)
        if done.is_interrupted:
            raise KeyboardInterrupt
        run = MeasuredRun(exit_status=done.status, seconds=done.seconds, output=done.output)
        # a file that was there before is an earlier run's
        if _identity(folder / SUMMARY) in {None, before}:
            return run
        try:
            return replace(run, summary=read_profile(folder))
        except BadInputError as error:
            raise TrainingError(f"{self.program.name} wrote a bad summary: {error}") from error


@dataclass(frozen=True)
class CaseCost:
    """The costs of one iteration of a case, by the suite's formulas (model/cost.hpp).

    `predicted_memory_bytes`: the peak. `fits`: whether that was free when the costs were computed;
    `reason`: why it does not fit.
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


NUMBERS = tuple(field.name for field in fields(CaseCost) if field.type is int)
DRY_RUN = ("--dry-run", "--benchmark_format=json")


def read_case_costs(
    document: Json, source: str = "costs", error: type[ToolError] = BadInputError
) -> list[CaseCost]:
    """The costs in the JSON of --dry-run; where that breaks its schema, an `error` that names
    `source`, key and value."""
    if problem := schema_problem(document, SCHEMAS["costs"]):
        raise error(f"{source}: {problem}; ask anew: tiny_llama_bench {' '.join(DRY_RUN)}")
    return [
        CaseCost(
            parse_case_name(entry["name"]),
            *(int(entry[key]) for key in NUMBERS),
            entry["fits"],
            entry.get("reason", ""),
        )
        for entry in document["cases"]
    ]


def read_costs(path: Path) -> list[CaseCost]:
    """The costs in a file; BadInputError names it."""
    return read_case_costs(read_json(path)[0], str(path))


def ask_json(program: Path, options: Sequence[str]) -> Json:
    """The JSON that the program prints. SuiteError where it cannot be started, refuses the options,
    fails, or prints no JSON."""
    done = run_program([str(program), *options], SuiteError)
    try:
        return parse_json(done.output)
    except ValueError as error:
        raise SuiteError(f"{program.name} {options[0]}: {error}") from error


def ask_dry_run(program: Path, options: Sequence[str]) -> tuple[Json, list[CaseCost]]:
    """The answer of --dry-run for the cases of these options, and its costs. SuiteError as of
    ask_json()."""
    document = ask_json(program, [*DRY_RUN, *options])
    return document, read_case_costs(document, f"{program.name} --dry-run", SuiteError)


# from options that name cases to their costs: ask_costs() of a program, or a fake in tests
Predictor = Callable[[Sequence[str]], list[CaseCost]]


def case_options(device: str, *more: str, **axes: str | None) -> list[str]:
    """The suite's options for cases on this device. `axes`: components, sizes, dtypes, variants,
    batch, seq, as text; one without values is left out, and the suite takes its own."""
    given = [f"--{name}={values}" for name, values in axes.items() if values]
    return [f"--device={device}", *given, *more]


def ask_costs(program: Path, options: Sequence[str]) -> list[CaseCost]:
    """The costs of the cases that these options name. SuiteError as of ask_json()."""
    return ask_dry_run(program, options)[1]
