"""torch.compile's rows, from a result of scripts/peers."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.ablation_study import BASELINE, OPTIMIZED, Point, Table
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.programs import UNITS
from tinyllama_tools.stats.rank_tests import ratio_of_turns

PROJECT = Path(__file__).resolve().parents[2]
COMPILED = "peer:compile"
HOW_TO = "`scripts/peers` writes them; this script reads its newest result, or `--peers FILE`"


class PeersError(Exception):
    """The file is no result of scripts/peers; the message names it."""


@dataclass
class PeerTimes:
    """What the file holds, by case name. `ratios`: of a peer's time over ours, by ours and peer."""

    path: Path
    context: Json
    seconds: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    ratios: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, entry: Json) -> None:
        """One repetition, or the reason why there is none."""
        name = entry["run_name"].removesuffix("/manual_time")
        if "error_occurred" in entry:
            self.reasons[name] = f"failed: {entry['error_message']}"
        elif "skipped" in entry:
            self.reasons[name] = f"skipped: {entry['skip_message']}"
        elif entry["run_type"] == "iteration":
            seconds = entry["real_time"] * UNITS[entry["time_unit"]]
            self.seconds.setdefault(name, []).append(seconds)

    @property
    def date(self) -> str:
        """When it was measured."""
        return str(self.context.get("date", ""))

    def is_of(self, context: Json) -> bool:
        """Whether the same processor, with as many threads, measured it."""
        return machine_of(self.context) == machine_of(context)

    @property
    def compiled(self) -> list[str]:
        """`peer:compile_tuned` and the like."""
        names = [name.split("/") for name in (*self.seconds, *self.reasons)]
        variants = dict.fromkeys(parts[2] for parts in names if len(parts) > 2)
        return [variant for variant in variants if variant.startswith(COMPILED)]


def machine_of(context: Json) -> tuple[object, object]:
    """What times depend on most."""
    return context.get("device", {}).get("name"), context.get("threads")


def read_times(path: Path) -> PeerTimes:
    """PeersError where the file cannot be read or is of another kind."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        context = document["context"]
        found = PeerTimes(path, context)
        for entry in document["benchmarks"]:
            found.add(entry)
        for ratio in context.get("peers", {}).get("ratios", []):
            found.ratios[ratio["case"], ratio["peer"]] = list(ratio["of_each_turn"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PeersError(f"{path}: not in the suite's format: {error!r}") from error
    return found


def newest_peers(context: Json, project: Path = PROJECT) -> Path | None:
    """The newest run's file of the machine that `context` is of, else a reference result of it;
    None where there is none in the suite's format."""
    results = project / "results"
    # names of runs begin with the time
    runs = sorted(results.glob("*_peers/peers.json"), reverse=True)
    for path in (*runs, *sorted(results.glob("reference/peers_*.json"))):
        try:
            if read_times(path).is_of(context):
                return path
        except PeersError:
            continue
    return None


def compile_rows(path: Path, main: Table) -> list[Json]:
    """A row for each compiled peer at each point of the table that the file names."""
    times = read_times(path)
    return [
        compile_row(times, variant, point, main)
        for point in main.points()
        for variant in times.compiled
        if point.case(variant).name in {*times.seconds, *times.reasons}
    ]


def compile_row(times: PeerTimes, variant: str, point: Point, main: Table) -> Json:
    """One of them, as it is kept in the result. Ratios are of turns of the peers' own run.

    Where that has no baseline, the speedup is over this run's, which ran at another time.
    """
    name = point.case(variant).name
    seconds = times.seconds.get(name)
    median = statistics.median(seconds) if seconds else None
    over_baseline = times.ratios.get((point.case(BASELINE).name, variant))
    to_optimized = times.ratios.get((point.case(OPTIMIZED).name, variant))
    speedup, against = None, "the baseline of its own run"
    if over_baseline:
        speedup = ratio_of_turns([1.0] * len(over_baseline), over_baseline)
    elif median:
        cell = main.get(BASELINE, point)
        against = "this run's baseline, not in turn"
        speedup = ratio_of_turns([cell.seconds], [median]) if cell and cell.seconds else None
    slower = ratio_of_turns(to_optimized, [1.0] * len(to_optimized)) if to_optimized else None
    return {
        "row": f"torch.compile ({variant.removeprefix('peer:')})",
        "point": point.title,
        "seconds": median,
        "samples_per_second": point.batch / median if median else None,
        "speedup": speedup.as_json() if speedup else None,
        "against": against if speedup else "",
        "over_optimized": slower.as_json() if slower else None,
        "note": times.reasons.get(name, ""),
        "source": f"{times.path.parent.name}/{times.path.name}, {times.date}",
    }
