"""How the tests run tiny_llama_bench, and how they read what it leaves."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import built_programs
from built_programs import ON_CPU, SMALL_OPTIONS, Completed, Json, read_json, strict_json

WithPeaks = Callable[..., list[str]]

BASELINE = "--variants=baseline"
SMALL_MODEL = [*SMALL_OPTIONS, BASELINE]
POINT = ["--batch=2", "--seq=8"]
SMALL = [*SMALL_MODEL, *POINT]
# the contract's, in the order in which they are listed
COMPONENTS = [
    *("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"),
    *("optimizer", "full_step"),
]
RUN = [*ON_CPU]
QUICK = ["--benchmark_min_time=1x", "--benchmark_repetitions=2"]
AGGREGATES = ["mean", "median", "stddev", "cv"]
MIB = 1 << 20


class Program(built_programs.Program):
    """The built tiny_llama_bench."""

    def measure(
        self,
        out: Path,
        *arguments: str | Path,
        status: int = 0,
        **keywords: Any,  # noqa: ANN401
    ) -> tuple[Completed, Json]:
        """A quick run that ends with this status, and its result file."""
        completed = self.run(*QUICK, f"--benchmark_out={out}", *arguments, **keywords)
        assert completed.returncode == status, completed.stderr[-2000:]
        return completed, read_json(out)

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


def read_journal(file: Path) -> list[Json]:
    """A journal's header, with the peaks that were written last, then one line a case."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [strict_json(line) for line in text.split("\n")[:-1]]
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


def mappings(value: Json) -> Iterator[dict[str, Json]]:
    """Every object inside a JSON value, itself included."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            yield from mappings(inner)
