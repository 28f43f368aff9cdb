"""A side of `compare run` that is another Google Benchmark program. No process of it stays between
answers: each answer is a run of one case, for a slice with its length as --benchmark_min_time."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.compare.sides import (
    PROGRAM_IN_BUILD,
    CaseFailedError,
    CaseSkippedError,
    ProcessLostError,
    ServedProgram,
)
from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.core.text import last_words
from tinyllama_tools.data.programs import filter_of
from tinyllama_tools.data.results import read_stored

HELP_SECONDS = 60.0
# for a run of one iteration: Google Benchmark refuses 0
SHORTEST_SECONDS = 1e-9


def is_other_program(program: Path) -> bool:
    """Whether it has Google Benchmark's options but cannot be served as ours can."""
    if program.name == PROGRAM_IN_BUILD.name:
        return False
    try:
        how = {"capture_output": True, "timeout": HELP_SECONDS, "errors": "replace"}
        done = subprocess.run([program, "--help"], check=False, stdin=subprocess.DEVNULL, **how)
    except (OSError, subprocess.TimeoutExpired):
        return False
    said = done.stdout + done.stderr
    return "--benchmark_list_tests" in said and "--serve" not in said


class OtherProcess:
    """Answers as a ServedProcess. The program's arguments come before Google Benchmark's own in
    every run. ProcessLostError where a run fails, hangs or writes no result."""

    is_running = True

    def __init__(self, program: ServedProgram, *, limit: float, padding: int) -> None:
        self.name = program.name
        self._command = (str(program.program), *program.arguments)
        self._environment = program.environment_with(padding)
        self._limit = limit

    def greet(self) -> Json:
        """The cases that it lists, and an empty context: that is known only after a run."""
        names = self._run(["--benchmark_list_tests=true"]).splitlines()
        return {"cases": [name for name in names if name], "context": {}}

    def ask_to_open(self, case: str, *, verify: bool = False, meter: bool = False) -> None:
        """Does nothing: there is no proof, and opened() runs the case."""

    def opened(self, case: str) -> Json:
        """`seconds` of one iteration, and `counters`."""
        seconds, counters = self._measure(case, SHORTEST_SECONDS)
        return {"seconds": seconds, "counters": counters}

    def time(self, case: str, seconds: float) -> list[float]:
        """Seconds of an iteration: the mean over a run of at least so many seconds."""
        return [self._measure(case, seconds)[0]]

    def close_case(self, case: str) -> None:
        """Does nothing, since no process has it open."""

    def close(self) -> None:
        """Does nothing, since no process runs."""

    def _measure(self, case: str, seconds: float) -> tuple[float, dict[str, float]]:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            self._run(
                [
                    filter_of([case]),
                    f"--benchmark_min_time={seconds:g}",
                    f"--benchmark_out={out}",
                    "--benchmark_out_format=json",
                ]
            )
            try:
                (found,) = read_stored(out).cases.values()
            except (BadInputError, ValueError) as error:
                raise ProcessLostError(self.name, f"{case}: no result of it: {error}") from error
        if found.failed:
            raise CaseFailedError(self.name, found.failed)
        if found.seconds is None:
            raise CaseSkippedError(self.name, found.reason)
        return found.seconds, dict(found.counters)

    def _run(self, flags: Sequence[str]) -> str:
        """What it wrote to standard output."""
        how = {"capture_output": True, "timeout": self._limit, "errors": "replace"}
        try:
            done = subprocess.run(
                [*self._command, *flags],
                check=False,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                **how,
            )
        except subprocess.TimeoutExpired as error:
            raise ProcessLostError(self.name, f"did not end within {self._limit:g} s") from error
        except OSError as error:
            raise BadInputError(f"{self._command[0]} cannot be started: {error}") from error
        if done.returncode != 0:
            words = last_words(done.stderr) or "it said nothing"
            raise ProcessLostError(self.name, f"ended with {done.returncode}: {words}")
        return done.stdout
