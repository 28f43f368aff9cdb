"""Runs tiny_llama_bench in a process of its own and reads what it measured.

For programs that let it take turns with something else: each call is one short process. The peaks
that it measures at its start are remembered, so that only the first process of a size and type
spends seconds on them.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
PROGRAM = PROJECT / "build/benchmarks/tiny_llama_bench"
PROBLEM_SIZES = PROJECT / "fixtures/problem_sizes.json"
# Google Benchmark's own keys of a repetition; every other number is a counter.
OWN_KEYS = frozenset(
    {
        "family_index",
        "per_family_instance_index",
        "repetitions",
        "repetition_index",
        "threads",
        "iterations",
        "real_time",
        "cpu_time",
        "median_ns",
    }
)
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
LAST_WORDS = 5
REFUSED_OPTIONS = 2

Json = dict[str, Any]


class SuiteError(Exception):
    """The program did not do what was asked; the message names it and has its last words."""


@dataclass(frozen=True)
class SuiteCase:
    """One case by its axes; `dtype` as the program spells it, `variant` with `+`."""

    size: str
    dtype: str
    batch: int
    seq: int
    variant: str = "baseline"
    component: str = "full_step"
    pass_name: str = "train"

    @property
    def name(self) -> str:
        """What --list prints."""
        axes = (self.component, self.pass_name, self.variant, self.size, self.dtype)
        return f"{'/'.join(axes)}/batch:{self.batch}/seq:{self.seq}"


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


def problem_sizes() -> dict[str, dict[str, int]]:
    """fixtures/problem_sizes.json."""
    return json.loads(PROBLEM_SIZES.read_text(encoding="utf-8"))


def last_words(text: str) -> str:
    """The end of what a program said, on one line where it is one."""
    return "\n".join(line for line in text.splitlines()[-LAST_WORDS:] if line.strip())


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
    return SuiteResult(document["context"], runs)


def axis_options(cases: Sequence[SuiteCase]) -> list[str]:
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
    names = "|".join(re.sub(r"([.+*?()\[\]{}^$|\\])", r"\\\1", case.name) for case in cases)
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
        cases: Sequence[SuiteCase],
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
        return read_result(document, [case.name for case in cases])

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
