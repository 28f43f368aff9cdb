"""What a data-parallel run shows: efficiencies, and where the rest of an ideal step went; and what
more devices would bring, projected from a local step and a model of links. docs/distributed.md
defines every figure.

Every figure is a median over rounds, with the exact interval of a median. Losses are percent of a
step; in each round they add up to 100 with the efficiency, and so their medians nearly do.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tinyllama_tools.core.app import SUITE_FILE, BadInputError, Json, problem_sizes
from tinyllama_tools.core.installation import typed
from tinyllama_tools.core.text import MIB
from tinyllama_tools.data.machine import (
    PLUGINS,
    SAME_DEVICE,
    device_of,
    device_text,
    first_difference,
)
from tinyllama_tools.data.names import (
    ALL_REDUCE,
    ALONE,
    COMMUNICATION,
    GLOO,
    NO_OVERLAP,
    OVERLAP,
    STEPS,
    STRONG,
    TENSOR,
    WEAK,
    ZERO3,
    CaseName,
)
from tinyllama_tools.data.programs import CaseCost, read_costs
from tinyllama_tools.data.results import (
    CPU_SECONDS,
    SECONDS,
    ResultSet,
    Row,
    ScalingResult,
    read_result_set,
)
from tinyllama_tools.data.studies import COSTS, runs_of
from tinyllama_tools.models.collectives import (
    MEASURED,
    AlphaBeta,
    all_reduce,
    buckets_of,
    figures_from,
    fit_collectives,
    flat_all_reduce,
    link_of_ring,
    stands_for,
)
from tinyllama_tools.models.prediction import fit_step_model, is_own_shape, predict_steps
from tinyllama_tools.stats.rank_tests import Estimate, median_interval


@dataclass(frozen=True)
class ScalingPoint:
    """One number of ranks. Efficiencies and shares in percent; None where a row that they need was
    not measured. `communication`: by how much the step is longer than what the slowest rank
    computes without any, of the step. `busy`: how much of the all-reduce, timed by itself, rank 0's
    processors work for it; where a rank has no processor to spare, only the rest of it can be
    hidden. None on a GPU, and for steps with other collectives."""

    ranks: int
    mode: str
    batch: int
    seconds: Estimate
    samples_per_second: float
    efficiency: Estimate | None
    speedup: Estimate | None
    communication: Estimate | None
    overlap: Estimate | None
    busy: Estimate | None


def over_rounds(values: Iterable[float]) -> Estimate | None:
    """Their median; None without a value."""
    found = list(values)
    return Estimate(statistics.median(found), median_interval(found), len(found)) if found else None


def points_of(result: ScalingResult) -> Iterator[ScalingPoint]:
    """One for each way of a step of all ranks that was measured, the main one first. Shares are
    computed by the program, in each round."""
    # with one rank, strong scaling is weak scaling
    kind, busy = result.scaling if result.ranks > 1 else WEAK, None
    if COMMUNICATION in result.steps and result.distributed["backend"] == GLOO:
        sums = result.steps[COMMUNICATION]
        seconds, cpu = sums.figures(SECONDS), sums.figures(CPU_SECONDS)
        busy = over_rounds(100 * cpu[n] / time for n, time in seconds.items() if n in cpu)
    for mode in (mode for mode in STEPS if mode in result.steps):
        row = result.steps[mode]
        batch, seconds = row.name.batch, over_rounds(row.figures(SECONDS).values())
        # one batch for all ranks
        is_joint = mode == TENSOR
        efficiency = row.figures(f"{STRONG if is_joint else kind}_efficiency_percent").values()
        yield ScalingPoint(
            result.ranks,
            mode,
            batch,
            seconds,
            (1 if is_joint else result.ranks) * batch / seconds.median,
            over_rounds(efficiency),
            over_rounds(result.ranks * percent / 100 for percent in efficiency),
            over_rounds(row.figures("loss_communication_percent").values()),
            over_rounds(row.figures("overlap_percent").values())
            if mode in (OVERLAP, ZERO3)
            else None,
            busy if mode in (OVERLAP, NO_OVERLAP) else None,
        )


# counters of a step, with their names in tables
SMALL_BATCH = "loss_small_batch_percent"
EFFICIENCY = "efficiency"
LOSSES = {
    SMALL_BATCH: "small batch",
    "loss_slower_local_percent": "slower local work",
    "loss_imbalance_percent": "imbalance between ranks",
    "loss_communication_percent": "communication",
}


def losses_of(result: ScalingResult) -> Iterator[Json]:
    """Efficiency and losses of the data-parallel step, where several ranks measured all of them:
    `percent` of the step, median over rounds; `low`, `high`: None after one round."""
    if result.ranks == 1 or result.step is None:
        return
    names = {f"{result.scaling}_efficiency_percent": EFFICIENCY, **LOSSES}
    if result.scaling != STRONG:
        del names[SMALL_BATCH]
    counters = {name: result.step.figures(key) for key, name in names.items()}
    for name, rounds in counters.items() if all(counters.values()) else ():
        found = over_rounds(rounds.values())
        part = {"ranks": result.ranks, "name": name, "percent": found.median}
        yield part | {end: getattr(found.interval, end, None) for end in ("low", "high")}


# kind of a local step, beside MEASURED
PREDICTED = "predicted"
# of the local step: by FLOPs, twice the forward; the optimizer's time is neglected
BACKWARD_SHARE = 2 / 3


def step_range(local: float, buckets: Sequence[float]) -> tuple[float, float]:
    """Seconds of a step with as much communication hidden as possible, and with none hidden.
    `buckets`: seconds of each all-reduce; the last can begin only when the backward has ended."""
    total = sum(buckets)
    return local + max(buckets[-1], total - BACKWARD_SHARE * local), local + total


def checks_of(result: ScalingResult, fit: AlphaBeta) -> Iterator[Json]:
    """The model's time, `low` to `high` seconds, beside the measured one. At the ranks of the fit
    that is the fit itself, at others a projection over the link that was fitted at `fitted_at`
    ranks. `percent_off`: of the measured, above 0 where the model's is too long, 0 between low and
    high."""
    link = link_of_ring(fit.alpha, fit.bandwidth, fit.ranks)
    each = [
        fit.seconds(size)
        if fit.ranks == result.ranks
        else flat_all_reduce(result.ranks, size, link)[0]
        for size in result.distributed["bucket_bytes"]
    ]
    medians = {mode: row.median_seconds for mode, row in result.steps.items()}
    said = {COMMUNICATION: ("all-reduce of all buckets", (sum(each), sum(each)))}
    if (alone := medians.get(ALONE)) is not None:
        said[OVERLAP] = ("step, from a rank alone", step_range(alone, each))
    for mode, (what, (low, high)) in said.items():
        if (measured := medians.get(mode)) is None:
            continue
        yield {
            "ranks": result.ranks,
            "fitted_at": fit.ranks,
            "what": what,
            "low": low,
            "high": high,
            "measured": measured,
            "percent_off": 100 * (min(max(measured, low), high) / measured - 1),
        }


def most_ranks(world: ScalingResult) -> int | None:
    """How many ranks there is room for on the host that all were on; None where they were on
    several. The file does not say how many GPUs a host has."""
    if len({rank["node"] for rank in world.distributed["ranks"]}) > 1:
        return None
    device = device_of(world.context)
    rooms = world.context.get("num_cpus", 0) // (device["threads"] or 1)
    return max(world.ranks, rooms if device["backend"] == "cpu" else 0)


@dataclass(frozen=True)
class Analysis:
    """`results` in the order of ranks. `refused`: fits that the data does not support, with the
    reason. `failed`: why rows have no figure. `warnings`: what differs between numbers of ranks."""

    results: tuple[ScalingResult, ...]
    points: tuple[ScalingPoint, ...]
    losses: tuple[Json, ...]
    fits: tuple[AlphaBeta, ...]
    checks: tuple[Json, ...]
    refused: tuple[str, ...]
    failed: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def name(self) -> CaseName | None:
        """That of a step; None where only collectives were measured."""
        return next((one.name for one in self.results if one.name is not None), None)

    @property
    def device(self) -> str:
        """Its name; empty where it is not known."""
        return (self.results[0].context.get("device") or {}).get("name", "")

    @property
    def collectives(self) -> list[Row]:
        """At all numbers of ranks."""
        return [row for result in self.results for row in result.collectives]

    @property
    def interconnect(self) -> Json | None:
        """The link over which a ring would take the times that were fitted at the most ranks, in
        the form of read_interconnects(), for the device that was measured; None without a fit.
        Where all ranks were on one host, it is no link between hosts: `most_ranks` is then how many
        the host has room for."""
        found = [fit for fit in self.fits if fit.operation == ALL_REDUCE]
        if not found:
            return None
        fit = found[-1]
        world = next(one for one in self.results if one.ranks == fit.ranks)
        device, backend = device_of(world.context), world.distributed["backend"]
        source = (
            f"measured here: all_reduce of {fit.ranks} ranks over {backend}, taken as a ring "
            f"({fit.sizes} sizes)"
        )
        title = f"the link measured here between {fit.ranks} ranks ({backend})"
        link = link_of_ring(fit.alpha, fit.bandwidth, fit.ranks)
        sources = dict.fromkeys(("bandwidth_source", "latency_source"), source)
        network = {"name": backend, "link": link._asdict(), **sources, "is_assumed": False}
        about = {"name": MEASURED, "title": title, "devices_per_node": 1}
        own = {key: device[key] for key in ("backend", "threads", "architecture") if device[key]}
        about["match"] = [{"words": [str(device["name"]).lower()], **own}]
        if (most := most_ranks(world)) is not None:
            about["most_ranks"] = most
        return about | {"network": network, "device": None}


# what should be alike at all numbers of ranks of a run
SAME = (
    *("device", "git_commit", "git_dirty", "torch_version", "threads", "seed", PLUGINS),
    *("distributed.bucket_MiB", "distributed.scaling", "distributed.gradient_bytes"),
    "distributed.compress",
)


def _differences(ordered: Sequence[ScalingResult]) -> Iterator[str]:
    first = ordered[0]
    for other in ordered[1:]:
        if found := first_difference(first.context, other.context, SAME):
            name, here, there = found
            yield f"{other.path.name}: {name} is {there}, in {first.path.name} {here}"


def _refuse_no_run(ordered: Sequence[ScalingResult]) -> None:
    """BadInputError for results of different devices or steps, or twice of one number of ranks:
    they make no curve."""
    first = ordered[0]
    for other in ordered[1:]:
        if found := first_difference(first.context, other.context, SAME_DEVICE):
            name, here, there = found
            raise BadInputError(
                f"{other.path}: {name} is {there!r}, in {first.path.name} it is {here!r}: a "
                "scaling run is of one device; put the others into folders of their own"
            )
    names = [one.name for one in ordered if one.name is not None]
    has_one_step = len({(name.size, name.dtype, name.variant, name.seq) for name in names}) <= 1
    if not has_one_step or len({one.ranks for one in ordered}) < len(ordered):
        listed = "; ".join(f"{one.path}: {one.ranks} ranks, {one.name}" for one in ordered)
        raise BadInputError(
            f"results of different steps, or twice of as many ranks ({listed}): a scaling run is "
            "of one size, dtype, variant and sequence, and has each number of ranks once; put the "
            "others into folders of their own"
        )


def analyse(results: Sequence[ScalingResult]) -> Analysis:
    """BadInputError where the results, one or more, are not of one run."""
    ordered = sorted(results, key=lambda one: one.ranks)
    _refuse_no_run(ordered)
    fits, refused = fit_collectives([row for one in ordered for row in one.collectives])
    warnings = tuple(_differences(ordered))
    reductions = {fit.ranks: fit for fit in fits if fit.operation == ALL_REDUCE}
    checks: list[Json] = []
    for result in ordered:
        # against its own fit; and where all are alike, against that of the next fewer ranks
        fewer = (ranks for ranks in reductions if ranks < result.ranks and not warnings)
        smaller = max(fewer, default=0)
        used = [reductions[n] for n in (result.ranks, smaller) if n in reductions]
        checks += (check for fit in used for check in checks_of(result, fit))
    return Analysis(
        tuple(ordered),
        tuple(point for one in ordered for point in points_of(one)),
        tuple(part for one in ordered for part in losses_of(one)),
        tuple(fits),
        tuple(checks),
        tuple(refused),
        {f"{name} ({one.path.name})": why for one in ordered for name, why in one.failed.items()},
        warnings,
    )


# ---- what more devices would bring with weak scaling, where every device has a batch of its own: a
# projection, not a measurement. It neglects imbalance, slower local work, other traffic, launches
# and input.


@dataclass(frozen=True)
class LocalStep:
    """`seconds` at the batch of `name`. `low` to `high`: the range of a PREDICTED one, which
    `range_words` names. `source`: the file and row, or what the prediction rests on, with its
    commit. `device`: device_of(), and `whole_node`."""

    name: CaseName
    seconds: float
    low: float
    high: float
    kind: str
    source: str
    device: Json
    range_words: str = ""


class StepSource(NamedTuple):
    """A result of the suite that local steps are taken from. `costs`: those of a grid study."""

    path: Path
    results: ResultSet
    costs: Sequence[CaseCost] = ()


def read_step_source(path: Path) -> StepSource:
    """`path`: a result of the suite, or the folder of a run or a grid study. BadInputError for one
    that cannot be used, also for one of cold caches, which no step in a training run has. Read
    before ranks are measured for hours."""
    files, costs = [path], []
    if path.is_dir():
        files = runs_of(path) or [path / SUITE_FILE]
        costs = read_costs(path / COSTS) if (path / COSTS).exists() else []
    results = read_result_set(files)
    if results.context.get("cold_cache") is True:
        raise BadInputError(
            f"{path}: was measured with --cold-cache, and a step among others finds its caches "
            "warm; measure without it"
        )
    return StepSource(path, results, costs)


def placed(context: Mapping[str, Any], *, is_shared: bool = False) -> Json:
    """device_of() and `whole_node`: whether the step had its node to itself. A GPU's has: other
    GPUs do not slow it. A CPU's has where it ran a thread for each core (which may be two logical
    processors) and no other rank was on the node: `is_shared`."""
    device = device_of(context)
    has_all = 2 * (device["threads"] or 0) >= context.get("num_cpus", 0) and not is_shared
    return device | {"whole_node": device["backend"] != "cpu" or has_all}


def _made_by(context: Mapping[str, Any]) -> str:
    commit, torch = str(context.get("git_commit"))[:8], context.get("torch_version")
    return f"commit {commit}, libtorch {torch}"


def _predicted_steps(
    source: StepSource, dtype: str, variant: str
) -> tuple[dict[str, LocalStep], str]:
    """By size, at its own batch and sequence; and why other sizes have none."""
    try:
        model = fit_step_model(source.results, dtype, variant)
        found, _ = predict_steps(model, source.costs)
    except BadInputError as error:
        return {}, str(error)
    context = source.results.context
    basis = f"{model.basis()}, {_made_by(context)}"
    how = (PREDICTED, basis, placed(context), model.errors.range_words)
    steps = {
        one.cost.name.size: LocalStep(one.cost.name, one.seconds, one.low, one.high, *how)
        for one in found
        if is_own_shape(one.cost.name)
    }
    return steps, "it has no costs of other sizes; a grid study has"


REMEDY = (
    f"measure it: {typed('bench')} --components full_step --sizes SIZE, then --local-step its "
    "results.json; or give a grid study of smaller sizes to predict it from"
)


def local_steps(
    results: Sequence[ScalingResult], source: StepSource | None, dtype: str, variant: str
) -> tuple[dict[str, LocalStep], dict[str, str]]:
    """By size: measured in the source (at the size's own batch and sequence, else at the largest
    batch of its longest sequence), else by the rank that computed alone, else predicted from the
    source; and why the other problem sizes have none."""
    found, reason, measured = {}, REMEDY, []
    ranks = results[-1].distributed["ranks"]
    is_shared = len({rank["node"] for rank in ranks}) < len(ranks)
    # of several, that with the fewest ranks counts: fewer others wait beside the rank alone
    for one in results[::-1]:
        if (row := one.steps.get(ALONE)) is not None:
            # as the suite names the step of one process
            name = replace(row.name, ranks=None, mode="")
            where = f"{row.name}, {one.path.name}, {_made_by(one.context)}"
            own = (where, placed(one.context, is_shared=is_shared))
            measured.append((name, row.median_seconds, *own))
    if source is not None:
        found, why = _predicted_steps(source, dtype, variant)
        reason, context = f"{source.path}: {why}", source.results.context
        files = ", ".join(path.name for path in source.results.paths)
        files += f", {_made_by(context)}"
        cases = sorted(
            source.results.cases.values(),
            key=lambda c: (is_own_shape(c.name), c.name.seq, c.name.batch),
        )
        measured += [
            (case.name, case.median_seconds, f"{case.name}, {files}", placed(context))
            for case in cases
            if case.name.is_training_step
            and (case.name.dtype, case.name.variant) == (dtype, variant)
        ]
    # the last one of a size counts
    for name, seconds, where, device in measured:
        found[name.size] = LocalStep(name, *[seconds] * 3, MEASURED, where, device)
    ordered = {size: found[size] for size in (*problem_sizes(), *found) if size in found}
    return ordered, {size: reason for size in problem_sizes() if size not in found}


# numbers of devices that steps are projected for
RANKS = tuple(2**power for power in range(3, 13))


def project(step: LocalStep, buckets: Sequence[float], over: Json, ranks: int) -> Json:
    """A row of scaling.json. `seconds_low`: with as much communication hidden as possible,
    `seconds_high`: with none; efficiencies in percent. `buckets`: bytes of each."""
    each, algorithms = zip(*(all_reduce(ranks, size, over) for size in buckets), strict=True)
    low, high = step_range(step.seconds, each)
    return {
        "size": step.name.size,
        "device": device_text(step.device),
        "interconnect": over["name"],
        "link_from": figures_from(over),
        "scaling": WEAK,
        "ranks": ranks,
        "batch": step.name.batch,
        "local_seconds": step.seconds,
        "communication_seconds": sum(each),
        "algorithm": " and ".join(dict.fromkeys(algorithms)),
        "seconds_low": low,
        "seconds_high": high,
        "efficiency_low": 100 * step.seconds / high,
        "efficiency_high": 100 * step.seconds / low,
        "local_kind": step.kind,
        "kind": "projection",
    }


NO_STEP = "no data-parallel step was measured, whose dtype and variant a projection takes"
MEASURE_THERE = (
    f"measure the step there, {typed('bench')} --components full_step, and give its results.json "
    "to --local-step"
)


def _why_no_link(over: Json, steps: Iterable[LocalStep]) -> str:
    """Why there is no projection over an interconnect, or none beyond some number of ranks; empty
    where there is."""
    others = [step.device for step in steps if not stands_for(over, step.device)]
    devices = ", ".join(dict.fromkeys(map(device_text, others)))
    if others and any("whole_node" in match for match in over["match"]):
        return (
            f"figures are of whole nodes, and a step is of a part of one, {devices}; measure it "
            "with all processors of a host, and give its results.json to --local-step"
        )
    if others:
        return f"figures are of other devices than a step, which is of {devices}; {MEASURE_THERE}"
    if (most := over.get("most_ranks", RANKS[-1])) < RANKS[-1]:
        return (
            f"beyond {most} ranks: all that were measured were on one host, which has no room for "
            "more; measure ranks on several hosts"
        )
    return ""


def projection_of(
    analysis: Analysis, source: StepSource | None, interconnects: Sequence[Json]
) -> Json:
    """`projection` of scaling.json: over the link measured here, where there is one, and over those
    of `interconnects` whose figures are of the device that the step was measured on;
    `links_left_out`: why not over the others. `source`: as for local_steps()."""
    name, sizes = analysis.name, problem_sizes()
    links = [*filter(None, [analysis.interconnect]), *interconnects]
    local: dict[str, LocalStep] = {}
    missing = dict.fromkeys(sizes, NO_STEP)
    if analysis.warnings:
        missing = dict.fromkeys(
            sizes, f"the numbers of ranks are not alike: {analysis.warnings[0]}"
        )
    elif name is not None:
        local, missing = local_steps(analysis.results, source, name.dtype, name.variant)
    last, known, rows = analysis.results[-1], [], []
    for size, step in local.items():
        # of a model without a name, only the buckets of what was run are known
        if size == name.size:
            buckets = last.distributed["bucket_bytes"]
        elif size in sizes:
            buckets = buckets_of(sizes[size], name.dtype, MIB * last.distributed["bucket_MiB"])
            if last.distributed.get("compress", "none") != "none":
                buckets = [size / 2 for size in buckets]  # of float32
        else:
            continue
        known.append(asdict(step) | {"name": str(step.name), "device": device_text(step.device)})
        rows += [
            project(step, buckets, link, ranks) | {"measured_ranks": last.ranks}
            for link in links
            if stands_for(link, step.device)
            for ranks in RANKS
            if ranks <= link.get("most_ranks", ranks)
        ]
    used = {row["interconnect"] for row in rows}
    reasons = {link["name"]: _why_no_link(link, local.values()) for link in links if local}
    return {
        "local_steps": known,
        "interconnects": [link for link in links if link["name"] in used],
        "links_left_out": {link: why for link, why in reasons.items() if why},
        "missing": missing,
        "steps": rows,
    }
