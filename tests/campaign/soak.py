"""Training, a served program, a comparison and four ranks for long: resident memory is flat within
1 % after the first tenth, and the time of a step or slice does not drift beyond its noise."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from campaign.runs import TIME_LIMIT_S, left_of, scratch
from campaign.tally import Scope, Tally
from campaign.workloads import (
    AXES,
    BUILD,
    INTERRUPTED,
    MODEL,
    ON_CPU,
    PROJECT,
    environment,
    files_problems,
    tool,
)
from tinyllama_tools.commands.ranks import free_port

STEPS = 20000
RANKS = 4
# ended by a signal long before
ENDLESS = 100_000_000
MOST_GROWTH = 0.01
TENTHS = 10
STEP = re.compile(r"^Step (\d+)/")


def resident_bytes(process: int) -> int:
    """0 of one that ends just now."""
    text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


@dataclass
class Watch:
    """What was seen of a program in equal distances: resident memory of each of its processes in
    bytes, and seconds of a step or slice."""

    resident: list[list[int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def growth(resident: Sequence[int]) -> float:
    """Of the last tenth over the second one, as a fraction; medians of each."""
    tenth = len(resident) // TENTHS
    if tenth == 0:
        raise ValueError(f"{len(resident)} measurements of memory are too few")
    second, last = resident[tenth : 2 * tenth], resident[-tenth:]
    return statistics.median(last) / statistics.median(second) - 1


def drift(seconds: Sequence[float]) -> tuple[float, float]:
    """Of the last third over the first after the first tenth, as a fraction, and its noise: how far
    tenths of one third are apart. Medians each."""
    kept = seconds[len(seconds) // TENTHS :]
    size = len(kept) // (3 * TENTHS)
    if size == 0:
        raise ValueError(f"{len(seconds)} times are too few")
    tenths = [
        statistics.median(kept[at * size : (at + 1) * size]) for at in range(len(kept) // size)
    ]
    first, last = tenths[:TENTHS], tenths[-TENTHS:]
    noise = max((max(part) - min(part)) / statistics.median(part) for part in (first, last))
    return statistics.median(last) / statistics.median(first) - 1, noise


def judged(name: str, watch: Watch, problems: list[str]) -> Tally:
    """What did not hold, and what was seen, as a note."""
    grown = max(growth(each) for each in zip(*watch.resident, strict=True))
    slower, noise = drift(watch.seconds)
    if grown > MOST_GROWTH:
        problems.append(f"resident memory grew by {100 * grown:.2f} %")
    if slower > noise:
        problems.append(f"steps became {100 * slower:.1f} % slower, noise {100 * noise:.1f} %")
    tally = Tally()
    tally.add(name, problems)
    most = max(map(max, watch.resident)) / 2**20
    tally.notes.append(
        f"{name}: resident memory {100 * grown:+.2f} % (largest {most:.0f} MiB), step time "
        f"{100 * slower:+.1f} % with a noise of {100 * noise:.1f} %"
    )
    return tally


@contextlib.contextmanager
def running(commands: Sequence[list[str]], folder: Path, ranks: bool = False) -> Iterator[list]:
    """Processes in `folder`, whose first one's output can be read; none is left after it."""
    port = free_port() if ranks else 0
    started = []
    try:
        for rank, command in enumerate(commands):
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(commands)}
            world = {name: str(number) for name, number in numbers.items()}
            world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(**(world if ranks else {})),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                stderr=subprocess.STDOUT if not rank else subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            started.append(process)
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            left_of(process.pid)


def watch_steps(processes: list, interval: int, seconds: float) -> tuple[Watch, str]:
    """At each step that the first process tells; after so many `seconds` all are asked to end.
    Their first times hold the start and are left out by who judges."""
    watch, said, before, deadline = Watch(), "", time.monotonic(), time.monotonic() + seconds
    for line in processes[0].stdout:
        said = (said + line)[-3000:]
        if not STEP.match(line):
            continue
        now = time.monotonic()
        watch.resident.append([resident_bytes(process.pid) for process in processes])
        watch.seconds.append((now - before) / interval)
        before = now
        if now > deadline:
            for process in processes:
                process.send_signal(signal.SIGINT)
            deadline = float("inf")
    return watch, said


def training(scope: Scope) -> Tally:
    """With every profiler."""
    steps = max(400, round(scope.share * STEPS))
    interval = max(1, steps // 400)
    with scratch() as folder:
        profilers = ("--enable-pytorch-profiler", "--profile-memory", "--profile-operators")
        more = ("--enable-flops-profiler", f"--profile-dir={folder}/train")
        size = ("--batch-size=2", "--seq-len=8", f"--num-steps={steps}")
        options = (*size, *profilers, *more, f"--log-interval={interval}")
        command = [str(BUILD / "tiny_llama_train"), *MODEL, *ON_CPU, *options]
        with running([command], folder) as processes:
            watch, said = watch_steps(processes, interval, float("inf"))
            status = processes[0].wait(TIME_LIMIT_S)
        problems = [f"status {status}: {said[-300:]}"] if status else []
        problems += files_problems(folder, True, {})
        return judged(f"training, {steps} steps", watch, problems)


def ranks(scope: Scope) -> Tally:
    """Of one training, until all are interrupted."""
    interval = 10 if scope.minutes < 5 else 100
    with scratch() as folder:
        size = ("--batch-size=2", "--seq-len=8", f"--num-steps={ENDLESS}")
        more = (f"--log-interval={interval}", f"--output-dir={folder}/train")
        command = [str(BUILD / "tiny_llama_train"), *MODEL, *ON_CPU, *size, *more]
        with running([command] * RANKS, folder, ranks=True) as processes:
            watch, said = watch_steps(processes, interval, 60 * scope.minutes)
            ended = [process.wait(TIME_LIMIT_S) for process in processes]
        problems = [] if set(ended) == {INTERRUPTED} else [f"statuses {ended}: {said[-300:]}"]
        summary = folder / "train/performance_summary.json"
        problems += files_problems(folder, True, {}) if summary.exists() else ["no summary"]
        return judged(f"{RANKS} ranks", watch, problems)


def served(scope: Scope) -> Tally:
    """One resident program that opens, times and closes the same cases again and again."""
    watch = Watch()
    command = [
        str(BUILD / "tiny_llama_bench"),
        "--serve",
        *MODEL,
        *AXES,
        "--components=ffn",
        *ON_CPU,
    ]
    with scratch() as folder, running([command], folder) as (process,):

        def ask(**request: object) -> dict:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            if "error" in answer:
                raise RuntimeError(f"{request}: {answer['error']}")
            return answer

        cases = json.loads(process.stdout.readline())["cases"]
        deadline = time.monotonic() + 60 * scope.minutes
        while time.monotonic() < deadline or len(watch.seconds) < 4 * TENTHS:
            times = []
            for case in cases:
                ask(do="open", case=case)
                times.append(statistics.median(ask(do="time", case=case, seconds=0.01)["seconds"]))
                ask(do="close", case=case)
            watch.resident.append([resident_bytes(process.pid)])
            watch.seconds.append(sum(times))
        process.stdin.close()
        status = process.wait(TIME_LIMIT_S)
    return judged("served program", watch, [f"status {status}"] * bool(status))


def comparison(scope: Scope) -> Tally:
    """Of a build with itself, whose margin leaves every case unclear, until its time is over."""
    build, watch = PROJECT / "build", Watch()
    with scratch() as folder:
        cases = ("--components", "rms_norm,ffn", "--passes", "forward", "--device", "cpu")
        few = ("--batch", "1", "--seq", "16", "--threads", "1", "--margin", "0.0001")
        # so many pairs that the last of 59 blocks is near the end
        effort = ("--pairs", f"{max(4, round(15 * scope.minutes))}", "--seed", str(scope.seed))
        until = ("--budget", f"{max(60, round(60 * scope.minutes))}s", "--output", folder / "out")
        sides = ("--base", build, "--new", build)
        command = tool("compare", "run", *sides, *cases, *few, *effort, *until)
        slices = folder / "out/blocks.jsonl"
        with running([command], folder) as (process,):
            while not slices.exists() and process.poll() is None:
                time.sleep(0.1)
            pause = max(0.1, 0.06 * scope.minutes)
            while process.poll() is None:
                watch.resident.append([resident_bytes(process.pid)])
                time.sleep(pause)
            said = process.stdout.read()[-300:]
        # at the end it writes its pages, for which it loads more
        del watch.resident[-2:]
        watch.seconds = slice_seconds(slices)
        problems = [] if process.returncode in {0, 1} else [f"{process.returncode}: {said}"]
        return judged("comparison", watch, problems)


def slice_seconds(path: Path) -> list[float]:
    """Of the slices of one case, of both sides."""
    blocks = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    blocks = [block for block in blocks if block.get("case", "").startswith("ffn")]
    return [seconds for block in blocks for seconds in (*block["base"], *block["new"])]


def run_part(scope: Scope) -> Tally:
    """Once each."""
    tally = Tally()
    for one in (training, served, comparison, ranks):
        if scope.names and one.__name__ not in scope.names:
            continue
        tally += one(scope)
        print(tally.notes[-1], flush=True)
    return tally
