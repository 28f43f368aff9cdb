"""A fake tiny_llama_bench, which answers at once with the times and rows that it is told: it lists
cases and what they cost, measures them with a journal, prints figures of merit, and serves them.

Run as a program it reads its behaviour from the file beside it, see DEFAULTS; imported, it makes
build folders with such programs.
"""

import fcntl
import itertools
import json
import math
import os
import random
import re
import shlex
import signal
import sys
import time
from pathlib import Path

Json = dict
FFN = "ffn/forward_backward/baseline/tiny/f32/batch:8/seq:128"
LOSS = "loss/forward_backward/baseline/tiny/f32/batch:8/seq:128"
NORM = "rms_norm/forward_backward/baseline/tiny/f32/batch:8/seq:128"
STEP = "full_step/train/baseline/tiny/f32/batch:8/seq:128"
PROGRAM = "benchmarks/tiny_llama_bench"

# What a behaviour may say; a case is named by any part of its name.
# `cases`: names and seconds; without any, the cases of the options, each of `seconds`.
# `factor`: {case: how often as long}.
# `between`, `within`: scatter of log seconds between and within processes.
# `counters`: of every row and opening; `rates`: of a case of one second; `rows`: {case: what its
# rows have beside or in place of these}.
# `refuse`: says so and ends with 2. `alone`: ends with an error where it measures twice at once.
# `other`: it is no program of this suite, but has Google Benchmark's flags.
# `interrupt_at`: Ctrl-C comes in place of this entry of the noted work.
# `trouble`: {case or "start": {"at", "how", "processes"}}: at start, open, time or close; how:
# crash, signal, hang, late, nonsense, zero, endless, skipped, failed, error; processes: numbers of
# those that have it, counted from 1, all where it is not said. Or {case: how}, of a run: crash,
# signal, hold (until it is asked to end), full (its disk), and of its end: interrupted, miscounts.
DEFAULTS = {
    "cases": {FFN: 0.010, LOSS: 0.005, NORM: 0.002},
    "seconds": 0.001,
    "factor": {},
    "between": 0.004,
    "within": 0.010,
    "counters": {"operators": 20.0, "allocations": 5.0, "peak_memory_MiB": 3.0},
    "rates": {},
    "rows": {},
    "refuse": "",
    "alone": False,
    "other": False,
    "interrupt_at": -1,
    "trouble": {},
    "context": {"schema_version": 4, "device": {"name": "fake"}, "threads": 1, "settings": {}},
}
FAILED = {"error_occurred": True, "error_message": "wrong"}
SKIPPED = {"skipped": True, "skip_message": "too large"}
# the axes that the options do not say; a size has a batch and sequence of its own
AXES = {"components": "ffn,rms_norm,full_step", "variants": "baseline,optimized"}
AXES |= {"sizes": "tiny", "dtypes": "f32", "batch": "", "seq": ""}
PASSES = {"full_step": ["train"], "optimizer": ["update"]}
SHAPES = {"tiny": (8, 128), "small": (8, 256), "medium": (16, 512), "large": (8, 1024)}
FIGURES = {"time": "s", "samples_per_second": "samples/s", "tokens_per_second": "tokens/s"}
FIGURES |= {"TFLOPS": "TFLOP/s", "MFU_percent": "%", "peak_percent": "%", "roof_percent": "%"}
FIGURES |= {"peak_memory": "MiB"}
COSTS = (
    *("parameters", "model_flops", "causal_flops", "hardware_flops", "elementwise_flops"),
    *("bytes", "predicted_memory_bytes"),
)
LIMIT = {"size": "tiny", "variant": "baseline", "dtype": "f32", "batch": 2, "seq": 128}
LIMIT |= {"largest": 6, "predicted_memory_bytes": 1000, "skip_reason": ""}
# to --dry-run and --find-limit
ANSWER: Json = {"device": {"name": "card"}, "git_commit": "0123abcd", "limits": [LIMIT]}
for of in ("budget", "limit"):
    ANSWER |= {f"memory_{of}_bytes": 2**30, f"memory_{of}_source": "free on the device"}


def make_build(folder: Path, **behaviour: object) -> Path:
    """A build folder whose program behaves so from now on; its name decides what it draws."""
    program = folder / PROGRAM
    program.parent.mkdir(parents=True, exist_ok=True)
    told = {**DEFAULTS, "name": folder.name, **behaviour}
    (program.parent / "behaviour.json").write_text(json.dumps(told))
    python = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(Path(__file__).resolve()))}"
    # that differs from one build to the next, as programs do
    program.write_text(f'#!/bin/sh\n# {folder}\nexec {python} "$0" "$@"\n')
    program.chmod(0o755)
    return folder


def noted(build: Path, what: str) -> list[Json]:
    """What its processes noted. `starts`: arguments and environment of each; `requests`: all that
    it was asked, with the number of the process; `work`: `cases`, `steps` and `verify` of each run
    and of each slice that was served."""
    path = (build / PROGRAM).with_name(what)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def runs_of(build: Path) -> list[dict[str, str]]:
    """The options of every process that measured into a file."""
    runs = [options_of(start["arguments"]) for start in noted(build, "starts")]
    return [options for options in runs if "benchmark_out" in options]


def options_of(words: list[str]) -> dict[str, str]:
    """By name, given as --name=value or --name value."""
    found = {}
    for word, following in itertools.zip_longest(words, words[1:], fillvalue="--"):
        name, is_given, value = word.partition("=")
        if name.startswith("--"):
            found[name[2:]] = value if is_given or following.startswith("--") else following
    return found


class FakeBench:
    def __init__(self, program: Path, arguments: list[str]) -> None:
        self.folder, self.options = program.parent, options_of(arguments)
        self.told = json.loads((self.folder / "behaviour.json").read_text())
        kept = ("TINY", "OMP", "GOMP", "KMP", "SIDE")
        environment = {k: v for k, v in os.environ.items() if k.startswith(kept)}
        self.note("starts", {"arguments": arguments, "environment": environment})
        self.process = len((self.folder / "starts").read_text().splitlines())
        self.order = random.Random(f"{self.told['name']} {self.process}")
        wanted = self.options.get("benchmark_filter", "")
        is_kept, matching = not wanted.startswith("-"), re.compile(wanted.removeprefix("-")).search
        cases = self.told["cases"] or dict.fromkeys(self.names(), self.told["seconds"])
        self.level = {
            case: seconds * math.prod(self.told_of("factor", case)) * self.scatter("between")
            for case, seconds in cases.items()
            if bool(matching(case)) == is_kept
        }
        self.signals: list[int] = []

    def told_of(self, what: str, case: str) -> list:
        return [value for part, value in self.told[what].items() if part in case]

    def names(self) -> list[str]:
        """Of the options, in their order."""
        axes = [self.options.get(name, usual).split(",") for name, usual in AXES.items()]
        passes, found = self.options.get("passes", "").split(","), []
        for component, variant, size, dtype, batch, seq in itertools.product(*axes):
            own = SHAPES.get(size, (8, 2048))
            if component == "peak":
                found.append(f"peak/gemm/f32/{own[0]}x256x256")
                continue
            of = PASSES.get(component, ["forward_backward", "forward"])
            for name in [name for name in of if name in passes] or of[:1]:
                shape = f"batch:{batch or own[0]}/seq:{seq or own[1]}"
                found.append(f"{component}/{name}/{variant}/{size}/{dtype}/{shape}")
        return list(dict.fromkeys(found))

    def note(self, file: str, line: object) -> None:
        with (self.folder / file).open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def work(self, cases: list[str], steps: int, *, verify: bool = False) -> None:
        """Notes it, unless it is interrupted."""
        done = self.folder / "work"
        if len(done.read_text().splitlines() if done.exists() else ()) == self.told["interrupt_at"]:
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(600)
        self.note("work", {"cases": cases, "steps": steps, "verify": verify})

    def scatter(self, of: str) -> float:
        return self.order.lognormvariate(0, self.told[of])

    def one(self, case: str) -> float:
        """Seconds of an iteration."""
        return self.level[case] * self.scatter("within")

    def answer(self, line: object) -> None:
        print(json.dumps(line), flush=True)

    def is_in_trouble(self, case: str, at: str) -> bool:
        """Does what the trouble says; whether that was all that is to be done."""
        for trouble in self.told_of("trouble", case):
            if isinstance(trouble, str):
                return at == "measure" and self.has_trouble(trouble)
            if trouble["at"] == at and self.process in trouble.get("processes", [self.process]):
                return self.has_trouble(trouble["how"])
        return False

    def has_trouble(self, how: str) -> bool:
        if how in {"skipped", "failed", "error"}:
            self.answer({how: f"told to be {how}"})
        elif how == "nonsense":
            self.answer(["what?"])
        elif how == "zero":
            self.answer({"seconds": [0.0]})
        elif how == "endless":
            while True:
                sys.stdout.write("x" * 65536)
        elif how == "late":
            # than anybody waits
            time.sleep(5)
            return False
        elif how == "hang":
            # with a child, which has to end as well
            os.fork()
            time.sleep(600)
        elif how == "hold":
            parent = os.getppid()
            while not self.signals:
                time.sleep(0.005)
                if os.getppid() != parent:
                    # the real one dies where it next says something that nobody hears
                    os._exit(1)
            return False
        elif how in {"interrupted", "miscounts"}:
            return False
        elif how == "full":
            sys.exit("journal: cannot be written: No space left")
        else:
            print("out of luck", file=sys.stderr, flush=True)
            if how == "signal":
                os.kill(os.getpid(), signal.SIGSEGV)
            os._exit(3)
        return True

    def serve(self) -> None:
        """Until the end of the input."""
        if self.is_in_trouble("start", "start"):
            return
        context = {**self.told["context"], "process": self.process}
        self.answer({"turns": 1, "cases": list(self.level), "context": context})
        for line in sys.stdin:
            request = json.loads(line)
            self.note("requests", {**request, "process": self.process, "at": time.time()})
            case, do = request["case"], request["do"]
            steps = max(1, math.ceil(request.get("seconds", 0) / self.level.get(case, 1)))
            if do == "time":
                self.work([case], steps)
            if self.is_in_trouble(case, do):
                continue
            if do == "open":
                counters = {"counters": self.told["counters"]} if request.get("meter") else {}
                self.answer({"opened": case, "seconds": self.one(case), **counters})
            elif do == "time":
                times = [self.one(case) for _ in range(steps)]
                if steps > 2:
                    # something else on the machine lengthens one iteration of each slice
                    times[1] *= 9
                self.answer({"seconds": times})
            else:
                self.answer({"closed": case})

    def row(self, case: str, repetition: int, *, is_verified: bool) -> Json:
        suffix = "/iterations:1/manual_time" if case.startswith("peak/") else "/manual_time"
        name = case if self.told["other"] else f"{case}{suffix}"
        seconds = self.one(case)
        row = {**self.told["counters"], "name": name, "run_name": name, "run_type": "iteration"}
        row |= {"repetition_index": repetition, "real_time": 1e3 * seconds, "time_unit": "ms"}
        row |= {rate: of / seconds for rate, of in self.told["rates"].items()}
        for more in self.told_of("rows", case):
            row |= more
        if not is_verified:
            row.pop("max_rel_error", None)
        return row

    def journaled(self, header: Json) -> dict[str, list[Json]]:
        """The rows in the journal, which is begun anew without --resume and where it has no whole
        header; ends with 2 where that is another one."""
        if "journal" not in self.options:
            return {}
        journal = Path(self.options["journal"])
        text = journal.read_text() if journal.exists() else ""
        if "\n" not in text or "resume" not in self.options:
            journal.write_text(json.dumps({"header": header}) + "\n")
            return {}
        # what follows the last newline was cut short
        journal.write_text(text.rpartition("\n")[0] + "\n")
        first, *lines = map(json.loads, journal.read_text().splitlines())
        if first["header"] != header:
            print(f"tiny_llama_bench: journal {journal}: of another run", file=sys.stderr)
            sys.exit(2)
        return {line["case"]: line["entries"] for line in lines}

    def measure(self) -> int:
        """From the journal to the result and the figures of merit; the exit status."""
        names, verify = list(self.level), self.options.get("verify", "before")
        repetitions = int(self.options.get("benchmark_repetitions", "1"))
        lock = (self.folder / "lock").open("w")
        if self.told["alone"]:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.work(names, repetitions, verify=verify != "off")
        signal.signal(signal.SIGINT, lambda number, _: self.signals.append(number))
        context = self.told["context"] | {"verify": verify}
        rows = self.journaled(context)
        todo = [name for name in names if name not in rows]
        for index, name in enumerate(todo):
            if self.signals:
                break
            self.is_in_trouble(name, "measure")
            rows[name] = [
                self.row(name, i, is_verified=verify != "off") for i in range(repetitions)
            ]
            if "journal" in self.options:
                with Path(self.options["journal"]).open("a") as stream:
                    stream.write(json.dumps({"case": name, "entries": rows[name]}) + "\n")
            said = rows[name][0].get("error_message", rows[name][0].get("skip_message", ""))
            how = "FAILED: " * ("error_message" in rows[name][0]) or "skipped: " * bool(said)
            line = f"[{index + 1}/{len(todo)}] {name}  {how}{said or '1 ms'}"
            print(line, file=sys.stderr, flush=True)
        found = {name: rows[name] for name in names if name in rows}
        if "benchmark_out" in self.options:
            every = list(itertools.chain(*found.values()))
            document = {"context": context, "benchmarks": every}
            Path(self.options["benchmark_out"]).write_text(json.dumps(document))
        ends = {of for name in names for of in self.told_of("trouble", name) if isinstance(of, str)}
        if "figures-of-merit" in self.options:
            self.print_figures({name: row for name, (row, *_) in found.items()}, ends)
        if len(found) < len(names) or "interrupted" in ends:
            # a success line does not excuse a status
            return 130
        is_wrong = any("error_occurred" in row for row, *_ in found.values())
        return int(is_wrong and not self.told["other"])

    def print_figures(self, rows: dict[str, Json], ends: set[str]) -> None:
        """With numbers of six digits, and the last line."""
        left_out = {name: row["skip_message"] for name, row in rows.items() if "skipped" in row}
        failed = sum("error_occurred" in row for row in rows.values())
        for name, row in rows.items():
            values = row | {"time": 1e-3 * row["real_time"]}
            figures = [figure for figure in FIGURES if values.get(figure) is not None]
            if not {"skipped", "error_occurred"} & row.keys():
                for figure in figures:
                    print(f"FOM {name}/{figure} = {values[figure]:.6g} {FIGURES[figure]}")
        if left_out:
            print("skipped\n" + "\n".join(f"  {name}: {why}" for name, why in left_out.items()))
        if failed:
            print(f"FAILED: {failed} of {len(rows)} cases failed")
        elif len(left_out) == len(rows):
            print(f"\nNOTHING MEASURED: {len(rows)} cases skipped")
        else:
            print(f"SUCCESS: {len(rows) - len(left_out) + ('miscounts' in ends)} cases measured")

    def main(self) -> int:
        """Plays one process; the exit status."""
        if self.told["refuse"]:
            print(self.told["refuse"], file=sys.stderr)
            return 2
        if "serve" in self.options:
            self.serve()
        elif "help" in self.options:
            print("benchmark [--benchmark_list_tests={true|false}]")
        elif self.options.keys() & {"list", "benchmark_list_tests"}:
            print("\n".join(self.level))
        elif "dry-run" in self.options:
            cost = dict.fromkeys(COSTS, 1000) | {"fits": True, "reason": ""}
            self.answer(ANSWER | {"cases": [{"name": name} | cost for name in self.level]})
        elif "find-limit" in self.options:
            self.answer(ANSWER)
        else:
            return self.measure()
        return 0


if __name__ == "__main__":
    sys.exit(FakeBench(Path(sys.argv[1]), sys.argv[2:]).main())
