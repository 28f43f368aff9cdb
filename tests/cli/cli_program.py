"""How the tests run tiny_llama_bench, and how they read what it leaves."""

import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = Any
Completed = subprocess.CompletedProcess[str]
WithPeaks = Callable[..., list[str]]

PROJECT_ROOT = Path(__file__).resolve().parents[2]
# a model so small that a case takes well under a millisecond
DIMENSIONS = [
    *("--hidden-dim=32", "--n-layers=2", "--n-heads=4", "--n-kv-heads=2"),
    *("--intermediate-dim=48", "--vocab-size=50"),
]
BASELINE = "--variants=baseline"
SMALL_MODEL = [*DIMENSIONS, BASELINE]
POINT = ["--batch=2", "--seq=8"]
SMALL = [*SMALL_MODEL, *POINT]
# the contract's, in the order in which they are listed
COMPONENTS = [
    *("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"),
    *("optimizer", "full_step"),
]
RUN = ["--device=cpu", "--threads=1"]
QUICK = ["--benchmark_min_time=1x", "--benchmark_repetitions=2"]
AGGREGATES = ["mean", "median", "stddev", "cv"]
TIMEOUT_S = 120.0
MIB = 1 << 20


class Program:
    """The built tiny_llama_bench, run as a user would, with one thread in every library.

    Without a commit, unless asked for: one that is made meanwhile would refuse every --resume.
    """

    def __init__(self, path: Path, with_commit: bool = False) -> None:
        self.path = path
        self.environment = {"OMP_NUM_THREADS": "1"}
        if not with_commit:
            self.environment["GIT_DIR"] = os.devnull

    def start(self, *arguments: str | Path, **keywords: Any) -> subprocess.Popen[Any]:  # noqa: ANN401
        command = [str(self.path), *map(str, arguments)]
        environment = os.environ | self.environment | keywords.pop("environment", {})
        return subprocess.Popen(
            command, env=environment, **{"stdin": subprocess.DEVNULL, **keywords}
        )

    def run(
        self,
        *arguments: str | Path,
        address_space: int | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Completed:
        """Runs it to its end; with address_space the system refuses memory beyond these bytes."""

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space or 0, address_space or 0))

        pipes: Json = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = self.start(*arguments, **pipes, preexec_fn=limit if address_space else None)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def measure(
        self, out: Path, *arguments: str | Path, status: int = 0, address_space: int | None = None
    ) -> tuple[Completed, Json]:
        """A quick run that ends with this status, and its result file."""
        completed = self.run(
            *QUICK, f"--benchmark_out={out}", *arguments, address_space=address_space
        )
        assert completed.returncode == status, completed.stderr[-2000:]
        return completed, read_result(out)

    def names(self, *arguments: str | Path) -> list[str]:
        """The cases that --list prints."""
        listed = self.run(*arguments, "--list")
        assert listed.returncode == 0, listed.stderr
        return listed.stdout.split()

    def cases(self, *arguments: str | Path) -> list[str]:
        """As names(), without the peaks."""
        return [name for name in self.names(*arguments) if not name.startswith("peak/")]


@dataclass(frozen=True)
class FinishedRun:
    arguments: list[str]
    completed: Completed
    result_file: Path
    journal: Path
    result: Json


def read_json(text: str) -> Json:
    """Parses JSON as its standard has it: without NaN and infinity, which Python would take."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def read_result(file: Path) -> Json:
    return read_json(file.read_text(encoding="utf-8"))


def read_journal(file: Path) -> list[Json]:
    """A journal's header, with the peaks that were written last, then one line a case."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [read_json(line) for line in text.split("\n")[:-1]]
    for line in lines:
        if "peaks" in line:
            lines[0]["header"]["peaks"] = line["peaks"]
    return [line for line in lines if "peaks" not in line]


def write_journal(file: Path, *lines: Json) -> Path:
    """Of objects, or of texts as they are."""
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return file


def case_name(entry: Json) -> str:
    """The name that --list gives, without what Google Benchmark appends."""
    name = entry["run_name"].removesuffix("/manual_time")
    return name.removesuffix("/iterations:1") if name.startswith("peak/") else name


def was_measured(entry: Json) -> bool:
    return "skipped" not in entry and "error_occurred" not in entry


def not_measured(entry: Json, **reason: Json) -> Json:
    """The entry of a case that has only a reason."""
    kept = "name family_index per_family_instance_index run_name run_type repetitions threads"
    shape = {key: entry[key] for key in [*kept.split(), "repetition_index", "time_unit"]}
    return shape | {"iterations": 0, "real_time": 0.0, "cpu_time": 0.0} | reason


def entries_by_case(result: Json) -> dict[str, list[Json]]:
    """In the file's order. A case whose entries are not side by side is there twice."""
    cases: dict[str, list[Json]] = {}
    last = ""
    for entry in result["benchmarks"]:
        name = case_name(entry)
        assert name == last or name not in cases, f"{name} is in the file twice"
        cases.setdefault(name, []).append(entry)
        last = name
    return cases


def assert_complete(result: Json, names: list[str], repetitions: int = 2) -> None:
    """Every planned case exactly once, in the plan's order, with repetitions and aggregates."""
    cases = entries_by_case(result)
    assert list(cases) == names
    for name, entries in cases.items():
        found = [entry.get("repetition_index", entry.get("aggregate_name")) for entry in entries]
        assert found == [*range(repetitions), *AGGREGATES], name


def message_of(completed: Completed) -> str:
    """The one line that a refused command says; fails unless it is one, with exit status 2, before
    anything was measured."""
    said = f"exit status {completed.returncode}, stderr:\n{completed.stderr}"
    assert completed.returncode == 2, said
    lines = [line for line in completed.stderr.splitlines() if line.startswith("tiny_llama_bench:")]
    assert len(lines) == 1, said
    assert completed.stderr.splitlines()[-1] == lines[0], said
    for foreign in ("terminate called", "frame #", "Exception raised from", "measured peak", "[1/"):
        assert foreign not in completed.stderr, said
    return lines[0]


def wait_until(condition: Callable[[], bool], seconds: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def mappings(value: Json) -> Iterator[dict[str, Json]]:
    """Every object inside a JSON value, itself included."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            yield from mappings(inner)
