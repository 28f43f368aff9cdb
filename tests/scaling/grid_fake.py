"""A fake tiny_llama_bench as scripts/study --grid drives it: names, costs, rounds with a
journal, products. What is unusual about it is told in told.json beside it."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]
TESTS = Path(__file__).resolve().parent
# without site-packages, so that it starts at once; what it needs is here
PROGRAM = """\
#!{python} -SE
import sys
sys.path.insert(0, {tests!r})
from grid_fake import main
sys.exit(main(__file__, sys.argv[1:]))
"""
HELD = 3
PASSES = {"optimizer": ("update",), "full_step": ("train",)}
OWN_SHAPES = {"tiny": (8, 128), "small": (8, 256), "medium": (16, 512), "large": (8, 1024)}
COMPONENTS = (
    *("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"),
    *("optimizer", "full_step"),
)


def make_program(folder: Path, **told: object) -> Path:
    """The build folder with the program in it. `told`:

    `hold_in`: a part of a result's name, whose run waits in its fourth case until it is asked to
    end, or if it `is_stubborn` for ever; `fail`, `skip`: names or parts of names; `crash_at`: dies
    there; `stale_at`: ends with 1 there, without a result; `refuse`: says so and ends with 2;
    `commit`: of the build.
    """
    program = folder / "build/benchmarks/tiny_llama_bench"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(PROGRAM.format(python=sys.executable, tests=str(TESTS)))
    program.chmod(0o755)
    tell(folder, **told)
    return folder / "build"


def tell(folder: Path, **told: object) -> None:
    """Anew, with nothing else told."""
    (folder / "build/benchmarks/told.json").write_text(json.dumps(told))


def calls(folder: Path) -> list[list[str]]:
    """The options of every process so far."""
    path = folder / "build/benchmarks/calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measuring_calls(folder: Path) -> list[list[str]]:
    """Of those that measured."""
    return [call for call in calls(folder) if any("--benchmark_out=" in word for word in call)]


def value(options: list[str], name: str) -> str:
    """Of --name=value; empty where it is not there."""
    found = [word.partition("=")[2] for word in options if word.startswith(f"--{name}=")]
    return found[-1] if found else ""


def _listed(options: list[str], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    text = value(options, name)
    return tuple(text.split(",")) if text else default


def _names(options: list[str]) -> Iterator[str]:
    components = _listed(options, "components", COMPONENTS)
    passes = _listed(options, "passes", ())
    axes = [_listed(options, name, ("",)) for name in ("sizes", "batch", "seq", "dtypes")]
    for component in COMPONENTS:
        if component not in components:
            continue
        own = PASSES.get(component, ("forward", "forward_backward"))
        own = (*own, "forward_loss") if component == "model" else own
        for size, batch, seq, dtype in itertools.product(*axes):
            shape = OWN_SHAPES.get(size, (8, 2048))
            for variant in _listed(options, "variants", ("baseline",)):
                for name in own:
                    if name in passes:
                        middle = f"{component}/{name}/{variant}/{size}/{dtype}"
                        yield f"{middle}/batch:{batch or shape[0]}/seq:{seq or shape[1]}"


def _products(options: list[str]) -> Iterator[str]:
    for size in _listed(options, "sizes", ("tiny",)):
        shape = OWN_SHAPES[size]
        tokens = int(value(options, "batch") or shape[0]) * int(value(options, "seq") or shape[1])
        yield f"peak/gemm/f32/{tokens}x256x256"


def _cost(name: str) -> Json:
    numbers = ("parameters", "model_flops", "causal_flops", "hardware_flops", "elementwise_flops")
    cost = dict.fromkeys((*numbers, "bytes", "predicted_memory_bytes"), 1000)
    return {"name": name, **cost, "fits": True, "reason": ""}


def _entry(name: str, told: Mapping[str, Any]) -> tuple[Json, str]:
    """The row of a case, and what the program says of it."""
    suffix = "/iterations:1/manual_time" if name.startswith("peak/") else "/manual_time"
    row: Json = {
        "name": name + suffix,
        "run_name": name + suffix,
        "run_type": "iteration",
        "real_time": 1.5,
        "time_unit": "ms",
        "TFLOPS": 0.1,
    }
    if any(part in name for part in told.get("fail", ())):
        return row | {"error_occurred": True, "error_message": "wrong"}, "FAILED: wrong"
    if any(part in name for part in told.get("skip", ())):
        return row | {"skipped": True, "skip_message": "too large"}, "skipped: too large"
    return row, "1.5 ms"


class Run:
    """A measuring process, from its journal to its result."""

    def __init__(self, options: list[str], told: Mapping[str, Any]) -> None:
        self.told = told
        self.out = Path(value(options, "benchmark_out"))
        self.journal = Path(value(options, "journal"))
        self.verify = value(options, "verify")
        self.resumes = "--resume" in options
        products = value(options, "components") == "peak"
        self.names = list(_products(options) if products else _names(options))
        self.rows: dict[str, Json] = {}
        self.is_asked_to_end = False
        signal.signal(signal.SIGINT, self._end)

    def _end(self, *_: object) -> None:
        self.is_asked_to_end = True
        ignores = self.told.get("is_stubborn")
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignores else signal.SIG_DFL)

    @property
    def context(self) -> Json:
        """Of the journal and the result."""
        commit = self.told.get("commit", "abc")
        settings = {"env.OMP_X": "/opt/somebody/omp.so"}
        own = {"host_name": "somebodys-desk", "executable": "/home/somebody/bench"}
        own |= {"settings": settings}
        return own | {"schema_version": 3, "git_commit": commit, "verify": self.verify}

    def refusal(self) -> str:
        """Why the journal cannot be continued; takes it over where it can."""
        is_there = self.journal.exists() and self.journal.stat().st_size > 0
        if is_there != self.resumes:
            return f"journal {self.journal}: {'exists' if is_there else 'cannot be read'}"
        if not is_there:
            header = {"journal": "tiny_llama_bench journal", "schema_version": 3}
            self._append(header | {"header": self.context})
            self._append({"peaks": {}})
            return ""
        # what follows the last newline was cut short
        whole = self.journal.read_text().rpartition("\n")[0]
        self.journal.write_text(whole + "\n")
        first, *lines = [json.loads(line) for line in whole.splitlines()]
        for key, now in self.context.items():
            if first["header"].get(key) != now:
                then = json.dumps(first["header"].get(key))
                return (
                    f"--resume: journal {self.journal} was written with {key} = {then}, this run "
                    f'has "{now}"; results of both must not be mixed'
                )
        self.rows = {line["case"]: line["entries"][0] for line in lines if "case" in line}
        return ""

    def _hold(self) -> None:
        parent = os.getppid()
        while self.told.get("is_stubborn") or not self.is_asked_to_end:
            time.sleep(0.005)
            if os.getppid() != parent:
                # the real one dies where it next says something that nobody hears
                os._exit(1)

    def _append(self, line: Json) -> None:
        with self.journal.open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def measure(self) -> int:
        """The exit status."""
        todo = [name for name in self.names if name not in self.rows]
        for index, name in enumerate(todo):
            if self.is_asked_to_end:
                break
            if self.told.get("crash_at", "-") in name:
                signal.raise_signal(signal.SIGKILL)
            if self.told.get("stale_at", "-") in name:
                print("journal: cannot be written: No space left", file=sys.stderr)
                return 1
            if index == HELD and self.told.get("hold_in", "-") in self.out.name:
                self._hold()
            self.rows[name], said = _entry(name, self.told)
            self._append({"case": name, "entries": [self.rows[name]]})
            print(f"[{index + 1}/{len(todo)}] {name}  {said}", file=sys.stderr, flush=True)
        rows = [self.rows[name] for name in self.names if name in self.rows]
        self.out.write_text(json.dumps({"context": self.context, "benchmarks": rows}))
        if len(rows) < len(self.names):
            return 130
        return int(any("error_occurred" in row for row in rows))


def main(program: str, options: list[str]) -> int:
    """Plays one process."""
    here = Path(program).parent
    with (here / "calls").open("a") as stream:
        stream.write(json.dumps(options) + "\n")
    told = json.loads((here / "told.json").read_text())
    if told.get("refuse"):
        print(told["refuse"], file=sys.stderr)
        return 2
    if "--list" in options:
        is_peak = value(options, "components") == "peak"
        print("\n".join(_products(options) if is_peak else _names(options)))
        return 0
    if "--dry-run" in options:
        cases = [_cost(name) for name in _names(options)]
        budget = {"memory_budget_bytes": 2**30, "memory_budget_source": "free on the device"}
        program = {"device": {"name": "card"}, "git_commit": "0123abcd"}
        print(json.dumps(program | budget | {"cases": cases}))
        return 0
    run = Run(options, told)
    refusal = run.refusal()
    if refusal:
        print(f"tiny_llama_bench: {re.sub('^tiny_llama_bench: ', '', refusal)}", file=sys.stderr)
        return 2
    return run.measure()
