"""Full training steps of our baseline and of LlamaForCausalLM, process by process in turn.

Machines drift by tens of percent within minutes, so the two take turns, and what counts is the
median over turns of the ratio of neighbours. The peer is LlamaForCausalLM of the transformers
package: eager attention, AdamW in a plain loop, no torch.compile.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PROGRAM = PROJECT / "build/benchmarks/tiny_llama_bench"


@dataclass
class Case:
    """One row: a problem size at its own batch and sequence."""

    size: str
    dtype: str


@dataclass
class Row:
    """Medians over turns of one case, in seconds a step; ratio = ours / peer of neighbours."""

    size: str
    dtype: str
    batch: int
    seq: int
    ours_seconds: float
    peer_seconds: float
    ratio: float
    ratios: list[float]


class PeerError(Exception):
    """One of the two programs failed; the message says which and shows its last words."""


def run(command: list[str]) -> str:
    """Standard output of a command that must succeed."""
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        tail = "\n".join(finished.stderr.splitlines()[-5:])
        raise PeerError(f"{Path(command[0]).name} ended with {finished.returncode}:\n{tail}")
    return finished.stdout


def ours(case: Case, steps: int) -> tuple[float, dict[str, object]]:
    """Median seconds of our full_step, and the context of the result."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ours.json"
        run(
            [
                str(PROGRAM),
                "--components=full_step",
                f"--sizes={case.size}",
                f"--dtypes={case.dtype}",
                "--verify=off",
                "--max-seconds-per-case=600",
                "--benchmark_min_time=1x",
                f"--benchmark_repetitions={steps}",
                f"--benchmark_out={out}",
            ]
        )
        result = json.loads(out.read_text())
    times = [
        entry["real_time"] / 1000
        for entry in result["benchmarks"]
        if entry.get("run_type") == "iteration" and "samples_per_second" in entry
    ]
    if not times:
        raise PeerError(
            f"full_step {case.size} {case.dtype} was not measured: {result['benchmarks']}"
        )
    return statistics.median(times), result["context"]


def peer(case: Case, size: dict[str, int], steps: int) -> float:
    """Median seconds of a step of LlamaForCausalLM, in a process of its own."""
    text = run(
        [
            sys.executable,
            "-m",
            "tinyllama_tools.peer_step",
            json.dumps(size),
            case.dtype,
            str(size["batch"]),
            str(size["seq"]),
            str(steps),
        ]
    )
    return statistics.median(json.loads(text.splitlines()[-1]))


def measure(
    case: Case, size: dict[str, int], turns: int, steps: int
) -> tuple[Row, dict[str, object]]:
    """Both sides in turn, `turns` times; which goes first alternates."""
    mine: list[float] = []
    theirs: list[float] = []
    context: dict[str, object] = {}
    for turn in range(turns):
        if turn % 2:
            theirs.append(peer(case, size, steps))
        seconds, context = ours(case, steps)
        mine.append(seconds)
        if not turn % 2:
            theirs.append(peer(case, size, steps))
        print(
            f"  turn {turn + 1}/{turns}: {case.size} {case.dtype}: ours {mine[-1]:.3f} s, "
            f"peer {theirs[-1]:.3f} s",
            file=sys.stderr,
        )
    ratios = [m / t for m, t in zip(mine, theirs, strict=True)]
    row = Row(
        size=case.size,
        dtype=case.dtype,
        batch=size["batch"],
        seq=size["seq"],
        ours_seconds=statistics.median(mine),
        peer_seconds=statistics.median(theirs),
        ratio=statistics.median(ratios),
        ratios=ratios,
    )
    return row, context


def print_table(rows: list[Row]) -> None:
    """One line a case; a ratio below 1 means that ours is faster."""
    header = ("size", "dtype", "batch", "seq", "ours s", "peer s", "ratio")
    print("{:<10} {:<6} {:>5} {:>5} {:>9} {:>9} {:>7}".format(*header))
    for row in rows:
        print(
            f"{row.size:<10} {row.dtype:<6} {row.batch:>5} {row.seq:>5} {row.ours_seconds:>9.3f} "
            f"{row.peer_seconds:>9.3f} {row.ratio:>7.3f}"
        )


def main() -> int:
    """Measures the cases and writes table and JSON."""
    parser = argparse.ArgumentParser(prog="scripts/peers", description=__doc__)
    parser.add_argument("--sizes", default="tiny,small", help="names of problem sizes")
    parser.add_argument("--dtypes", default="f32,bf16", help="f32, bf16")
    parser.add_argument("--turns", type=int, default=5, help="how often each side runs")
    parser.add_argument("--steps", type=int, default=5, help="timed steps a run")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    sizes = json.loads((PROJECT / "fixtures/problem_sizes.json").read_text())
    rows: list[Row] = []
    context: dict[str, object] = {}
    try:
        for name in arguments.sizes.split(","):
            if name not in sizes:
                parser.error(f"--sizes '{name}': must be one of {', '.join(sizes)}")
            for dtype in arguments.dtypes.split(","):
                row, context = measure(
                    Case(name, dtype), sizes[name], arguments.turns, arguments.steps
                )
                rows.append(row)
    except PeerError as error:
        print(f"scripts/peers: {error}", file=sys.stderr)
        return 1
    print_table(rows)
    if arguments.out:
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        document = {"date": date, "context": context, "rows": [asdict(row) for row in rows]}
        arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
