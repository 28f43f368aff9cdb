"""How the tests run tiny_llama_bench, and how they read what it leaves."""

import json
from pathlib import Path
from typing import Any

import built_programs
from built_programs import ON_CPU, SMALL_OPTIONS, Completed, Json, read_json

# the contract's, in the order in which they are listed
COMPONENTS = [
    *("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"),
    *("optimizer", "full_step"),
]
BASELINE = "--variants=baseline"
SMALL_MODEL = [*SMALL_OPTIONS, BASELINE, *ON_CPU]
SMALL = [*SMALL_MODEL, "--batch=2", "--seq=8"]
DTYPES = ["f32", "bf16", "amp_bf16", "f16", "amp_f16"]
SMOKE = [*SMALL, f"--dtypes={','.join(DTYPES)}"]
QUICK = ["--benchmark_min_time=1x", "--benchmark_repetitions=2"]
AGGREGATES = ["mean", "median", "stddev", "cv"]
# of smoke_run's folder
OUT, JOURNAL = "out.json", "journal.jsonl"


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


def write_journal(file: Path, *lines: Json) -> Path:
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return file


def not_measured(entry: Json, **reason: Json) -> Json:
    """The entry of a case that has only a reason."""
    kept = "name family_index per_family_instance_index run_name run_type repetitions threads"
    shape = {key: entry[key] for key in [*kept.split(), "repetition_index", "time_unit"]}
    return shape | {"iterations": 0, "real_time": 0.0, "cpu_time": 0.0} | reason


def entries_by_case(result: Json) -> dict[str, list[Json]]:
    """By the names that --list gives, in the file's order. Fails where the entries of a case are
    not side by side."""
    cases: dict[str, list[Json]] = {}
    last = ""
    for entry in result["benchmarks"]:
        name = entry["run_name"].removesuffix("/manual_time")
        name = name.removesuffix("/iterations:1") if name.startswith("peak/") else name
        assert name == last or name not in cases, f"{name} is in the file twice"
        cases.setdefault(name, []).append(entry)
        last = name
    return cases


def assert_complete(result: Json, names: list[str]) -> None:
    """Every planned case exactly once, in the plan's order, with repetitions and aggregates."""
    cases = entries_by_case(result)
    assert list(cases) == names
    for name, entries in cases.items():
        found = [entry.get("repetition_index", entry.get("aggregate_name")) for entry in entries]
        assert found == [0, 1, *AGGREGATES], name
