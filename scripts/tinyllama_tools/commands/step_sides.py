"""The sides that scripts/ablation and scripts/peers time: what a side is, our variants, and the
rows of a block. How they are interleaved: interleaved.py; peers: peers.py."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from tinyllama_tools.compare.comparison import KINDS, RATE, UNKNOWN
from tinyllama_tools.compare.sides import CaseFailedError, CaseSkippedError, KeptProcess
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.machine import merged_peaks
from tinyllama_tools.data.names import DISTURBED, UNITS, CaseName
from tinyllama_tools.data.programs import SuiteError, SuiteProgram, rows_of
from tinyllama_tools.data.results import SPEEDUP


def reason_entry(error: CaseFailedError) -> Json:
    """The one row of a side that failed at a case, or skipped it."""
    reason = str(error)
    skipped = {"skipped": True, "skip_message": reason}
    failed = {"error_occurred": True, "error_message": reason}
    return {
        **{"iterations": 0, "real_time": 0.0, "cpu_time": 0.0, "time_unit": "ms"},
        **(skipped if isinstance(error, CaseSkippedError) else failed),
    }


class Side:
    """An implementation of the training step. `variant`: its name in that of the case. Both methods
    raise CaseFailedError, or CaseSkippedError where it does not run the case."""

    variant: str

    def get_ready(self, case: CaseName) -> float:
        """Prepares the case to be timed; seconds of a step."""
        raise NotImplementedError

    def time(self, case: CaseName, seconds: float) -> Json:
        """Times steps for so long, one at least; a block's entry in the suite's format."""
        raise NotImplementedError

    def close(self) -> None:
        """Frees what it holds, once it is not needed any more."""


MOST_SAMPLES = 200


def block_entry(case: CaseName, seconds: Sequence[float]) -> Json:
    """Of the steps of a block, by their median."""
    median = statistics.median(seconds)
    return {
        "iterations": len(seconds),
        "real_time": 1e3 * median,
        # a served process does not tell it
        "cpu_time": 0.0,
        "time_unit": "ms",
        "samples_per_second": case.batch / median,
        "tokens_per_second": case.batch * case.seq / median,
        "mean_ns": 1e9 * statistics.fmean(seconds),
        "samples_ns": [
            round(1e9 * step) for step in seconds[:: math.ceil(len(seconds) / MOST_SAMPLES)]
        ],
    }


def seconds_of(entry: Json) -> float:
    """The time of a step."""
    return entry["real_time"] * UNITS[entry["time_unit"]]


def keep_best_peaks(peaks: Json, context: Json) -> None:
    """Raises `peaks` to those of the context where these are higher: the best of all processes
    counts for all rows (data/machine.py)."""
    best, _ = merged_peaks([{"peaks": {"measured": peaks}}, context])
    peaks.update(best["peaks"]["measured"])


# Our program refuses a case that it cannot warm up, meter and time within its limit.
FEWEST_ITERATIONS = 3
OF_ONE_RUN = ("device_ms", "power_W", "joules_per_token")


def is_of_one_run(name: str) -> bool:
    """Whether a value of a row is of that row's steps, and neither a rate nor the same in all."""
    is_named = name in OF_ONE_RUN or name.startswith(SPEEDUP) or name.endswith("_ns")
    return is_named or KINDS.get(name) == UNKNOWN


class OurSide(Side):
    """One variant of tiny_llama_bench. Getting ready proves a case, so it is timed without the
    proof. `suite`: what proves it; `served`: the process that times all variants, one of them open
    at a time. `proof`: the proved row of the current case. `peaks`: the best of all processes,
    which it updates."""

    def __init__(
        self,
        variant: str,
        suite: SuiteProgram,
        served: KeptProcess,
        max_seconds: float,
        peaks: Json,
    ) -> None:
        self.variant = variant
        self.proof: Json = {}
        self._peaks = peaks
        self._verified: Json | None = None
        self._suite, self._served = suite, served
        self._limit = f"--max-seconds-per-case={FEWEST_ITERATIONS * max_seconds:g}"

    @staticmethod
    def prove(case: CaseName, sides: Sequence[OurSide]) -> None:
        """Proves a step of each in one process, which computes the float64 reference once. Where
        that process fails, each side proves its own when it gets ready."""
        try:
            verified = sides[0]._prove(case, sides)
        except CaseFailedError:
            verified = None
        for side in sides:
            side._verified = verified

    def get_ready(self, case: CaseName) -> float:
        self.proof = {}
        verified = self._verified or self._prove(case, [self])
        keep_best_peaks(self._peaks, verified["context"])
        (self.proof,) = rows_of(verified, replace(case, variant=self.variant))
        for key, error in (("skip_message", CaseSkippedError), ("error_message", CaseFailedError)):
            if key in self.proof:
                raise error(self.variant, self.proof[key])
        return seconds_of(self.proof)

    def time(self, case: CaseName, seconds: float) -> Json:
        """With the counters of the proof, its rates as they are at this time; and page faults."""
        name = str(replace(case, variant=self.variant))
        try:
            process = self._served.ready()
            process.ask_to_open(name)
            process.opened(name)
            before = process.minor_faults
            steps = process.time(name, seconds)
            faults = (process.minor_faults - before) / len(steps)
            process.close_case(name)
        except CaseFailedError as error:
            # the process is that of all variants
            error.side = self.variant
            raise
        except OSError as error:
            raise CaseFailedError(self.variant, str(error)) from error
        entry = block_entry(case, steps)
        faster = seconds_of(self.proof) / seconds_of(entry)
        kept = {k: v for k, v in self.proof.items() if not is_of_one_run(k)}
        # what disturbed the proof did not disturb this block
        if label := DISTURBED.sub("", kept.pop("label", "")).removeprefix("; "):
            kept["label"] = label
        rates = {k: v * faster for k, v in kept.items() if KINDS.get(k) == RATE}
        return kept | rates | entry | {"minor_faults": faults}

    def _prove(self, case: CaseName, sides: Sequence[OurSide]) -> Json:
        cases = [replace(case, variant=side.variant) for side in sides]
        try:
            return self._suite.measure(cases, 1, verify=True, more=[self._limit])
        except SuiteError as error:
            raise CaseFailedError(self.variant, str(error)) from error
