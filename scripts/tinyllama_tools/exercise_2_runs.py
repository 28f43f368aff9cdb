"""The runs of exercise 2 and how its pages find them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from tinyllama_tools.core.app import Json
from tinyllama_tools.exercise_runs import MeasuredRun, PlannedRun, missing_of
from tinyllama_tools.stats.laws import GridPoint

HOTSPOTS, BANDWIDTH, LONGEST_RUN = "memory_hotspots", "bandwidth", "longest_sequence"
OPERATORS = ("--enable-pytorch-profiler",)
MEMORY = ("--profile-memory",)


def base_options(options: Namespace, batch: int, seq: int, steps: int) -> tuple[str, ...]:
    """Of any of the runs."""
    shape = (f"--batch-size={batch}", f"--seq-len={seq}", f"--num-steps={steps}")
    return (*shape, *options.model)


def planned_runs(options: Namespace) -> list[PlannedRun]:
    """The worksheet's nine commands, and one for the bandwidth.

    Half, once and twice the batch; half, once, twice and four times the sequence, the last with
    half of the batch, as the worksheet has it.
    """
    batch, seq = options.batch_size, options.seq_len
    runs = [
        PlannedRun(
            f"memory_analysis_bs{size}",
            (*base_options(options, size, seq, 15), *OPERATORS, *MEMORY),
        )
        for size in (batch // 2, batch, 2 * batch)
    ]
    shapes = (
        (batch, seq // 2, 10),
        (batch, seq, 10),
        (batch, 2 * seq, 10),
        (batch // 2, 4 * seq, 5),
    )
    runs += [
        PlannedRun(f"memory_seq{length}", (*base_options(options, size, length, steps), *MEMORY))
        for size, length, steps in shapes
    ]
    hotspots = (*base_options(options, batch, seq, 10), *OPERATORS, *MEMORY, "--profile-operators")
    flops = (*base_options(options, batch, seq, 10), "--enable-deepspeed-flops")
    return [*runs, PlannedRun(HOTSPOTS, hotspots), PlannedRun(BANDWIDTH, flops)]


@dataclass(frozen=True)
class MemoryRuns:
    """`by_batch`: batch size -> run; `by_seq`: (sequence, batch) -> run; both in growing order."""

    by_batch: dict[int, MeasuredRun]
    by_seq: dict[tuple[int, int], MeasuredRun]
    hotspots: MeasuredRun
    bandwidth: MeasuredRun
    batch: int
    seq: int

    @property
    def base(self) -> MeasuredRun:
        """At the worksheet's own batch and sequence."""
        return self.by_batch[self.batch]

    @property
    def memory(self) -> Json:
        """The memory profile of `base`."""
        return (self.base.summary or {})["memory"]

    @property
    def points(self) -> list[GridPoint]:
        """Every measured peak, one a size."""
        found: dict[tuple[int, int], float] = {}
        for batch, run in self.by_batch.items():
            found[batch, self.seq] = run.value("memory.peak_bytes") or 0
        for (seq, batch), run in self.by_seq.items():
            found.setdefault((batch, seq), run.value("memory.peak_bytes") or 0)
        return [GridPoint(*size, (peak,)) for size, peak in found.items() if peak]

    @property
    def batch_peaks(self) -> list[float | None]:
        """At half, once and twice the batch."""
        return [run.value("memory.peak_bytes") for run in self.by_batch.values()]

    @property
    def seq_peaks(self) -> list[float | None]:
        """At half, once and twice the sequence, all of one batch."""
        runs = [run for (_, batch), run in self.by_seq.items() if batch == self.batch]
        return [run.value("memory.peak_bytes") for run in runs]

    @property
    def layers(self) -> int:
        """Of the model."""
        return self.base.value("configuration.n_layers") or 1


def collect(measured: dict[str, MeasuredRun], options: Namespace) -> MemoryRuns:
    """The runs by what they are for."""
    batch, seq = options.batch_size, options.seq_len
    sizes = (batch // 2, batch, 2 * batch)
    shapes = ((seq // 2, batch), (seq, batch), (2 * seq, batch), (4 * seq, batch // 2))
    return MemoryRuns(
        {size: measured[f"memory_analysis_bs{size}"] for size in sizes},
        {shape: measured[f"memory_seq{shape[0]}"] for shape in shapes},
        measured[HOTSPOTS],
        measured[BANDWIDTH],
        batch,
        seq,
    )


def missing_parts(runs: MemoryRuns) -> list[str]:
    """Why the page cannot be made; sizes that could not be run are rows of it, and no reason."""
    wanted = (
        (runs.base, ("memory", "operators")),
        (runs.hotspots, ("memory", "operators")),
        (runs.bandwidth, ("flops",)),
    )
    return missing_of(wanted)
