"""What scripts/ablation and scripts/peers found: results of the suite whose context has, under the
command's name, how the sides of a step were interleaved and the ratios of their times; and what
those say of a profile of the same step on the same device."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tinyllama_tools.core.app import RESULTS, BadInputError, Json, made_by, read_json
from tinyllama_tools.data.machine import SAME_DEVICE, first_difference
from tinyllama_tools.data.names import BASELINE, CaseName, full_step, parse_case_name
from tinyllama_tools.data.studies import is_result
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

# by a side and a case of the suite: the time of the side over that of the case
Ratios = Mapping[tuple[str, CaseName], Ratio]


def read_step_ratios(path: Path, name: str) -> Json:
    """The document of scripts/`name`, its rows unchecked; BadInputError where it is none."""
    document, _ = read_json(path)
    if not is_result(document) or name not in document["context"]:
        raise BadInputError(f"{path}: must be a result of scripts/{name}; name its {name}.json")
    return document


def ratios_in(document: Json, name: str) -> Ratios:
    """Those that the file has."""
    return {
        (row["peer"], case): Ratio.from_json(row)
        for row in document["context"][name]["ratios"]
        if (case := parse_case_name(row["case"]))
    }


def point_of(case: CaseName) -> CaseName:
    """The case that it is compared with: that of the baseline."""
    return replace(case, variant=BASELINE)


def point_title(case: CaseName) -> str:
    """A case without its variant, for headings."""
    return f"{case.size} {case.dtype}, batch {case.batch} x sequence {case.seq}"


@dataclass(frozen=True)
class Evidence:
    """Speedups of the whole step over the profiled one, by switch, named set or peer."""

    file: Path
    title: str
    speedups: Mapping[str, Ratio]

    def best(self, names: Iterable[str]) -> tuple[str, Ratio] | None:
        """Of what helped most; None where none of them was measured."""
        found = [(name, self.speedups[name]) for name in names if name in self.speedups]
        return max(found, key=lambda one: one[1].median, default=None)


def profiled_case(summary: Json) -> CaseName:
    """The case of the suite that does what the profiled program did."""
    of = summary["configuration"]
    return full_step(of["size"], of["dtype"], of["batch_size"], of["seq_len"], of["variant"])


# a ratio of another library's operators is not that of these
SAME_LIBRARY = (*SAME_DEVICE, "torch_version")


def _newest(
    name: str, summary: Json, results: Path, speedups: Callable[[Ratios], Mapping[str, Ratio]]
) -> Evidence | None:
    """The newest result of scripts/`name`, published or not, that was made on this device with this
    libtorch and has any of these speedups; None where there is none. Its title names its commit
    where that is another."""
    found: list[tuple[str, Evidence]] = []
    for file in (*results.glob(f"reference/{name}_*.json"), *results.glob(f"*/{name}.json")):
        # another device's, or not ours: nobody asked for this file
        with contextlib.suppress(BadInputError), made_by(f"scripts/{name}", file):
            document = read_step_ratios(file, name)
            context, known = document["context"], speedups(ratios_in(document, name))
            if known and first_difference(context, summary["context"], SAME_LIBRARY) is None:
                here, there = (of.get("git_commit") for of in (summary["context"], context))
                title = point_title(profiled_case(summary))
                title += f", commit {str(there)[:8]}" * (here != there)
                found.append((str(context["date"]), Evidence(file, title, known)))
    return max(found, key=lambda one: one[0])[1] if found else None


def find_ablation(summary: Json, results: Path = RESULTS) -> Evidence | None:
    """Of switches and named sets over the baseline, which has to be what was profiled."""
    profiled = profiled_case(summary)
    # an optimizer's part of the step is smaller where it comes after several micro-batches
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
    """Of peers over the profiled step."""
    return _newest(
        "peers",
        summary,
        results,
        lambda ratios: {
            peer: ratio_of_turns([1.0] * ratio.turns, ratio.of_each_turn)
            for (peer, case), ratio in ratios.items()
            if case == profiled_case(summary)
        },
    )
