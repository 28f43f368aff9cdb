"""Training, a served program, a comparison and four ranks for long: after the first tenth resident
memory stays within 1 %, and the time of a step or slice does not drift beyond its noise.

Resident memory is what a process alone has: pages of programs and libraries come in where code is
first used. What it has to keep is taken off: a training's figures of each step, for its summary,
and a comparison's of each block.
"""

import contextlib
import json
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from built_programs import ON_CPU, SMALL_OPTIONS, tool
from campaign.runs import MARK, TIME_LIMIT_S, Note, Scope, Tried, end_of, said_in, scratch, start
from campaign.workloads import AXES, BUILD, INTERRUPTED, PROJECT, file_problems
from tinyllama_tools.commands.ranks import free_port, rank_environment
from tinyllama_tools.compare.sides import ServedProcess, ServedProgram
from tinyllama_tools.stats.verdicts import SPENT

STEPS, FEWEST_STEPS, MARKS, FEWEST_MARKS = 20000, 400, 400, 40
RANKS, SEQ = 4, 16
# of a StepRecord (benchmarks/training/trainer.hpp) with what deque and allocator add, as measured:
# a training that keeps none does not grow; and of a block's summary, four numbers, with what array
# and allocator add, as measured: a comparison without processes grows by no more
STEP_BYTES, SUMMARY_BYTES = 139, 64
MOST_GROWTH = 0.01
# of a comparison with 50 pairs of slices: each case in a block, and the start of its processes
CASE_SECONDS, BLOCK_SECONDS = 2.5, 2.0
# a shorter soak shows only that the programs run and end as they should
FEWEST_MINUTES = 1.0
TENTHS = 10
TRAINING = (str(BUILD / "tiny_llama_train"), *SMALL_OPTIONS, *ON_CPU)
TRAINING += ("--batch-size=2", "--seq-len=8")
PROFILERS = ("--enable-pytorch-profiler", "--profile-memory", "--profile-operators")
PROFILERS += ("--enable-flops-profiler", "--profile-dir=profiles")


@dataclass
class Watch:
    """What was seen of a program at regular intervals: bytes of resident memory of each of its
    processes, bytes that each has to keep, and seconds of a step or slice; and what did not hold of
    its end."""

    resident: list[list[int]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def look(self, processes: Sequence[int], kept: int = 0) -> None:
        """Notes the processes' memory, unless one of them ends just now."""
        texts = [Path(f"/proc/{number}/status").read_text(encoding="utf-8") for number in processes]
        found = [re.search(r"RssAnon:\s+(\d+) kB", text) for text in texts]
        if all(found):
            self.resident.append([1024 * int(size[1]) for size in found if size])
            self.kept.append(kept)


def growth(resident: Sequence[int]) -> float:
    """Of the last tenth over the second one, as a fraction of medians."""
    tenth = len(resident) // TENTHS
    second, last = resident[tenth : 2 * tenth], resident[-tenth:]
    return statistics.median(last) / statistics.median(second) - 1


def drift(seconds: Sequence[float]) -> tuple[float, float]:
    """How much slower the last third is than the first, without the first tenth, as a fraction of
    medians; and the noise: how far tenths within a third are apart."""
    kept = seconds[len(seconds) // TENTHS :]
    size = len(kept) // (3 * TENTHS)
    tenths = [statistics.median(kept[at : at + size]) for at in range(0, 3 * TENTHS * size, size)]
    first, last = tenths[:TENTHS], tenths[-TENTHS:]
    noise = max((max(part) - min(part)) / statistics.median(part) for part in (first, last))
    return statistics.median(last) / statistics.median(first) - 1, noise


def judged(name: str, watch: Watch, minutes: float) -> list[str]:
    """What did not hold, and a note of what was seen."""
    times = len(watch.seconds)
    if minutes < FEWEST_MINUTES:
        return watch.problems
    if min(len(watch.resident), times) < FEWEST_MARKS:
        return [*watch.problems, f"{times} steps are too few to judge"]
    each = list(zip(*watch.resident, strict=True))
    whole = max(map(growth, each))
    grown = max(growth([a - b for a, b in zip(one, watch.kept, strict=True)]) for one in each)
    slower, noise = drift(watch.seconds)
    largest = max(map(max, watch.resident)) / 2**20
    note = Note(
        f"{name}: resident memory {100 * grown:+.2f} % (with what it has to keep "
        f"{100 * whole:+.2f} %; largest {largest:.0f} MiB), step time "
        f"{100 * slower:+.1f} % with a noise of {100 * noise:.1f} %, {times} times"
    )
    leak = [f"resident memory grew by {100 * grown:.2f} %"] * (grown > MOST_GROWTH)
    slow = [f"steps became {100 * slower:.1f} % slower"] * (slower > noise)
    return [*watch.problems, *leak, *slow, note]


def watch_steps(folder: Path, ranks: int, options: Sequence[str], minutes: float | None) -> Watch:
    """Watches a training at each step that it says. After so many minutes all ranks are
    interrupted; None: it ends by itself."""
    watch, end = Watch(), time.monotonic() + 60 * (minutes or 0)
    command, port = [*TRAINING, *options], free_port()
    worlds = [rank_environment(n, ranks, port) for n in range(ranks)] if ranks > 1 else [{}]
    first = start(command, folder, worlds[0], stdout=subprocess.PIPE)
    processes = [first, *(start(command, folder, world) for world in worlds[1:])]
    before, is_asked = time.monotonic(), False
    for line in first.stdout or ():
        if not line.startswith("Step "):
            continue
        steps = int(line.removeprefix("Step ").split("/")[0])
        watch.look([process.pid for process in processes], STEP_BYTES * steps)
        now = time.monotonic()
        watch.seconds.append(now - before)
        before = now
        if minutes and now > end and len(watch.seconds) > FEWEST_MARKS and not is_asked:
            is_asked = True
            for process in processes:
                process.send_signal(signal.SIGINT)
    statuses = {process.wait(TIME_LIMIT_S) for process in processes}
    wanted = {INTERRUPTED} if minutes else {0}
    said = end_of(said_in(folder))
    watch.problems += [f"statuses {statuses}: ...{said}"] * (statuses != wanted)
    watch.problems += file_problems(folder)
    watch.problems += ["no summary"] * (not list(folder.rglob("performance_summary.json")))
    return watch


def training(scope: Scope, folder: Path) -> Watch:
    """One process with every profiler."""
    steps = max(FEWEST_STEPS, round(scope.share * STEPS))
    options = (f"--num-steps={steps}", f"--log-interval={steps // MARKS}", *PROFILERS)
    return watch_steps(folder, 1, options, None)


def ranks(scope: Scope, folder: Path) -> Watch:
    """The ranks of one training, interrupted after a quarter of the time."""
    minutes = scope.minutes / 4
    interval = 1 if minutes < 1 else 50
    endless = ("--num-steps=100000000", f"--log-interval={interval}", "--output-dir=summary")
    return watch_steps(folder, RANKS, endless, minutes)


def served(scope: Scope, folder: Path) -> Watch:
    """A resident program that opens, times and closes the same cases again and again, for a quarter
    of the time."""
    watch = Watch()
    options = (*SMALL_OPTIONS, *AXES, "--components=ffn", *ON_CPU)
    program = ServedProgram("served", BUILD / "tiny_llama_bench", options, {MARK: str(folder)})
    with contextlib.closing(ServedProcess(program, limit=TIME_LIMIT_S, padding=0)) as process:
        cases = process.greet()["cases"]
        deadline = time.monotonic() + 60 * scope.minutes / 4
        while time.monotonic() < deadline or len(watch.seconds) < FEWEST_MARKS:
            times = []
            for case in cases:
                process.ask_to_open(case)
                process.opened(case)
                times.append(statistics.median(process.time(case, 0.01)))
                process.close_case(case)
            watch.look([process.pid])
            watch.seconds.append(sum(times))
    return watch


def comparison(scope: Scope, folder: Path) -> Watch:
    """A build with itself, judged once, at the end: what verdicts are computed with grows with the
    blocks, and is no leak. Answers are short: allocators keep the room of the largest one."""
    watch, slices = Watch(), folder / "out/blocks.jsonl"
    cases = max(1, round(0.15 * scope.minutes))
    blocks = max(8, round(60 * scope.minutes / (CASE_SECONDS * cases + BLOCK_SECONDS)))
    # the largest of which so many blocks are the fewest that can show anything
    alpha = cases * 2.0 ** (1 - blocks) / SPENT
    grid = ("--components", "ffn", "--passes", "forward", "--device", "cpu", "--threads", "1")
    few = ("--batch", "1", "--seq", f"{SEQ}:{SEQ * cases}:+{SEQ}")
    effort = ("--pairs", "50", "--looks", "1", "--alpha", f"{alpha:g}", "--seed", str(scope.seed))
    # a busy machine may take longer
    until = ("--budget", f"{max(60, round(120 * scope.minutes))}s", "--out", folder / "out")
    sides = ("--base", PROJECT / "build", "--new", PROJECT / "build", "--same")
    command = tool("compare", "run", *sides, *grid, *few, *effort, *until)
    process = start(command, folder)
    while process.poll() is None:
        if slices.exists():
            watch.look([process.pid], SUMMARY_BYTES * len(slices.read_bytes().splitlines()))
        time.sleep(max(0.1, 0.06 * scope.minutes))
    # at the end it writes its pages, for which it loads more
    del watch.resident[-2:], watch.kept[-2:]
    lines = [json.loads(line) for line in slices.read_text(encoding="utf-8").splitlines()]
    for block in lines:
        if re.match(rf"ffn.*:{SEQ}$", block.get("case", "")) and "base" in block:
            watch.seconds += [*block["base"], *block["new"]]
    is_bad = process.returncode not in {0, 1}
    watch.problems += [f"{process.returncode}: {end_of(said_in(folder))}"] * is_bad
    done = max(block.get("block", 0) for block in lines)
    watch.problems += [f"ended after {done} of {blocks} blocks"] * (done < blocks)
    watch.problems += file_problems(folder)
    return watch


def soak(scope: Scope) -> Iterator[Tried]:
    """training, served comparisons and ranks for long: resident memory and step time flat."""

    def watched(one: Callable[[Scope, Path], Watch]) -> list[str]:
        with scratch() as folder:
            return judged(one.__name__, one(scope, folder), scope.minutes)

    def lane(parts: Sequence[Callable[[Scope, Path], Watch]]) -> list[Tried]:
        return [t for one in parts for t in scope.tried(one.__name__, [one], watched)]

    # the comparison beside the others, which end before it does; the heaviest of them first, so
    # that it does not look as if its steps became slower
    with ThreadPoolExecutor() as pool:
        for tried in pool.map(lane, ((ranks, served, training), (comparison,))):
            yield from tried
