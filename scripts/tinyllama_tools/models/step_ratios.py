"""Ratios of step times that scripts/ablation and scripts/peers measured with their sides
interleaved, and what they say of a profile of the same step on the same device. Both write results
of the suite whose context has the ratios under the command's name."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tinyllama_tools.core.app import BadInputError, Json, made_by, read_json
from tinyllama_tools.core.installation import RESULTS, typed
from tinyllama_tools.data.machine import SAME_DEVICE, first_difference
from tinyllama_tools.data.names import BASELINE, CaseName, full_step, parse_case_name
from tinyllama_tools.data.studies import is_result
from tinyllama_tools.stats.rank_tests import Interval, Quotient
from tinyllama_tools.stats.verdicts import CONFIDENCE, Outcome

REVERSED = {Outcome.SLOWER: Outcome.FASTER, Outcome.FASTER: Outcome.SLOWER}


@dataclass(frozen=True)
class StepRatio(Quotient):
    """The time of one side over that of another. `verdict`: of the one that is above."""

    verdict: Outcome = Outcome.NO_VERDICT

    @classmethod
    def from_json(cls, found: Json) -> "StepRatio":
        """Of a row of `ratios`."""
        interval = Interval(**found["interval"]) if found["interval"] else None
        return cls(found["ratio"], interval, Outcome(found["verdict"]))

    @property
    def shows_difference(self) -> bool:
        """By the verdict; without one, by the interval."""
        if self.verdict is Outcome.NO_VERDICT:
            return super().shows_difference
        return self.verdict in REVERSED

    @property
    def at_least(self) -> float | None:
        """The lower bound of 95 %, one-sided, that an interval of 90 % or more has."""
        is_enough = self.interval and self.interval.confidence >= CONFIDENCE
        return self.interval.low if self.interval and is_enough else None

    @cached_property
    def inverse(self) -> "StepRatio":
        """Of the other over the one."""
        ends = self.interval and (1 / self.interval.high, 1 / self.interval.low)
        interval = Interval(*ends, self.interval.confidence) if self.interval and ends else None
        return StepRatio(1 / self.median, interval, REVERSED.get(self.verdict, self.verdict))

    def judged_text(self) -> str:
        """As text(), with the verdict behind it where there is one."""
        word = "" if self.verdict is Outcome.NO_VERDICT else f", {self.verdict.value}"
        return self.text() + word


# by side and case of the suite: the side's time over the case's
Ratios = Mapping[tuple[str, CaseName], StepRatio]


def read_step_ratios(path: Path, name: str) -> Json:
    """A file of scripts/`name`, its rows unchecked; BadInputError for another file."""
    document, _ = read_json(path)
    if not is_result(document) or name not in document["context"]:
        raise BadInputError(f"{path}: must be a result of {typed(name)}; name its {name}.json")
    return document


def ratios_in(document: Json, name: str) -> Ratios:
    """Those of a file of scripts/`name`."""
    return {
        (row["peer"], case): StepRatio.from_json(row)
        for row in document["context"][name]["ratios"]
        if (case := parse_case_name(row["case"]))
    }


def point_of(case: CaseName) -> CaseName:
    """The baseline's case at the same size, dtype, batch and sequence."""
    return replace(case, variant=BASELINE)


def point_title(case: CaseName) -> str:
    """A case without its variant, for headings."""
    return f"{case.size} {case.dtype}, batch {case.batch} x sequence {case.seq}"


@dataclass(frozen=True)
class Evidence:
    """`speedups` of the whole step over the profiled one, by switch, named set or peer; `title`:
    the step, and the commit where that is not the profile's."""

    file: Path
    title: str
    speedups: Mapping[str, StepRatio]

    def best(self, names: Iterable[str]) -> tuple[str, StepRatio] | None:
        """Name and speedup of the one that helped most; None where none was measured."""
        found = [(name, self.speedups[name]) for name in names if name in self.speedups]
        return max(found, key=lambda one: one[1].median, default=None)


def profiled_case(summary: Json) -> CaseName:
    """The suite's case of the step that the training program was profiled at."""
    config = summary["configuration"]
    axes = (config[key] for key in ("size", "dtype", "batch_size", "seq_len", "variant"))
    return full_step(*axes)


# another libtorch has other operators, and so other ratios
SAME_LIBRARY = (*SAME_DEVICE, "torch_version")


def _newest(
    name: str, summary: Json, results: Path, speedups: Callable[[Ratios], Mapping[str, StepRatio]]
) -> Evidence | None:
    """The newest result of scripts/`name`, published or not, that was made on the profile's device
    with its libtorch and has any of the `speedups`; None where there is none."""
    found: list[tuple[str, Evidence]] = []
    for file in (*results.glob(f"reference/{name}_*.json"), *results.glob(f"*/{name}.json")):
        # nobody named this file, so one that cannot be read is no error
        with contextlib.suppress(BadInputError), made_by(typed(name), file):
            document = read_step_ratios(file, name)
            context, known = document["context"], speedups(ratios_in(document, name))
            if known and first_difference(context, summary["context"], SAME_LIBRARY) is None:
                here, there = summary["context"].get("git_commit"), context.get("git_commit")
                title = point_title(profiled_case(summary))
                title += f", commit {str(there)[:8]}" * (here != there)
                found.append((str(context["date"]), Evidence(file, title, known)))
    return max(found, key=lambda one: one[0])[1] if found else None


def find_ablation(summary: Json, results: Path = RESULTS) -> Evidence | None:
    """Speedups of switches and named sets over the baseline, where that is what was profiled."""
    profiled = profiled_case(summary)
    # with several micro-batches a step, the optimizer's share of it is smaller than in an ablation
    if summary["configuration"].get("gradient_accumulation_steps", 1) != 1:
        return None
    return _newest(
        "ablation",
        summary,
        results,
        lambda ratios: {
            case.variant: ratio
            for (side, case), ratio in ratios.items()
            if side == BASELINE and point_of(case) == profiled and "+" not in case.variant
        },
    )


def find_peers(summary: Json, results: Path = RESULTS) -> Evidence | None:
    """Speedups of peers over the profiled step."""
    return _newest(
        "peers",
        summary,
        results,
        lambda ratios: {
            peer: ratio.inverse
            for (peer, case), ratio in ratios.items()
            if case == profiled_case(summary)
        },
    )
