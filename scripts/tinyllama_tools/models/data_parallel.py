"""What a data-parallel run says: efficiencies and shares, and where the rest of an ideal step went;
and what more devices would give, from a local step and a model of links. docs/distributed.md
defines every figure.

Every figure is a median over rounds, with the exact interval of a median. Losses are percent of a
step; with the efficiency they add up to 100 in every round, and so their medians nearly do.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tinyllama_tools.core.app import SUITE_FILE, BadInputError, Json, problem_sizes
from tinyllama_tools.core.text import MIB
from tinyllama_tools.data.machine import SAME_DEVICE, device_of, device_text, first_difference
from tinyllama_tools.data.names import (
    ALL_REDUCE,
    ALONE,
    COMMUNICATION,
    GLOO,
    OVERLAP,
    SHARDED,
    STEPS,
    STRONG,
    WEAK,
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
from tinyllama_tools.data.studies import COSTS, rounds_of
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
from tinyllama_tools.models.prediction import calibrate_rates, is_own_shape, predict_steps
from tinyllama_tools.stats.rank_tests import Estimate, median_interval


@dataclass(frozen=True)
class ScalingPoint:
    """One number of ranks. Efficiencies and shares in percent; None where a row that they need was
    not measured. `communication`: what the step takes longer than the slowest rank computes without
    any, as the losses have it. `busy`: of the time of the gradients' all-reduce timed by itself,
    what rank 0's processors work for it; none on a GPU, nor of a sharded step, which makes no
    all-reduce. Where a rank has no processor to spare, no more than the rest can be hidden."""

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
    """None without a value."""
    found = list(values)
    return Estimate(statistics.median(found), median_interval(found), len(found)) if found else None


def points_of(result: ScalingResult) -> Iterator[ScalingPoint]:
    """One for each way of a data-parallel step that was measured, the main one first; shares are
    the program's own, of each round."""
    # alone, a rank has the whole batch anyway
    kind, busy = result.scaling if result.ranks > 1 else WEAK, None
    if COMMUNICATION in result.steps and result.distributed["backend"] == GLOO:
        sums = result.steps[COMMUNICATION]
        seconds, cpu = sums.figures(SECONDS), sums.figures(CPU_SECONDS)
        busy = over_rounds(100 * cpu[n] / of for n, of in seconds.items() if n in cpu)
    for mode in (mode for mode in STEPS if mode in result.steps):
        row = result.steps[mode]
        batch, seconds = row.name.batch, over_rounds(row.figures(SECONDS).values())
        efficiency = row.figures(f"{kind}_efficiency_percent").values()
        yield ScalingPoint(
            result.ranks,
            mode,
            batch,
            seconds,
            result.ranks * batch / seconds.median,
            over_rounds(efficiency),
            over_rounds(result.ranks * of / 100 for of in efficiency),
            over_rounds(row.figures("communication_percent").values()),
            over_rounds(row.figures("overlap_percent").values()) if mode == OVERLAP else None,
            busy if mode != SHARDED else None,
        )


# the program's counters of a step, and their names for people
SMALL_BATCH = "loss_small_batch_percent"
EFFICIENCY = "efficiency"
LOSSES = {
    SMALL_BATCH: "small batch",
    "loss_slower_local_percent": "slower local work",
    "loss_imbalance_percent": "imbalance between ranks",
    "loss_communication_percent": "communication",
}


def losses_of(result: ScalingResult) -> Iterator[Json]:
    """Of the data-parallel step of several ranks, where every counter was measured, the efficiency
    first: `percent` of the step, median over rounds; `low`, `high`: None for one round."""
    if result.ranks == 1 or result.step is None:
        return
    names = {f"{result.scaling}_efficiency_percent": EFFICIENCY, **LOSSES}
    if result.scaling != STRONG:
        del names[SMALL_BATCH]
    counters = {name: result.step.figures(key) for key, name in names.items()}
    for name, of in counters.items() if all(counters.values()) else ():
        found = over_rounds(of.values())
        part = {"ranks": result.ranks, "name": name, "percent": found.median}
        yield part | {end: getattr(found.interval, end, None) for end in ("low", "high")}


# the kind of a local step that is not MEASURED
PREDICTED = "predicted"
# By FLOPs the backward is twice the forward; what the optimizer takes is not counted off.
BACKWARD_SHARE = 2 / 3


def step_bounds(local: float, buckets: Sequence[float]) -> tuple[float, float]:
    """Seconds of a step with as much communication hidden as can be, and with nothing hidden.
    `buckets`: seconds of each all-reduce; the last is ready only when the backward ends."""
    total = sum(buckets)
    return local + max(buckets[-1], total - BACKWARD_SHARE * local), local + total


def checks_of(result: ScalingResult, fit: AlphaBeta) -> Iterator[Json]:
    """What the model says, `low` to `high` seconds, beside what was measured; with the fit itself
    at its own ranks, and at others, `fitted_at`, as a projection over its link. `percent_off`: of
    the measured, above 0 where the model says too much, 0 between the bounds."""
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
        said[OVERLAP] = ("step, from a rank alone", step_bounds(alone, each))
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


@dataclass(frozen=True)
class Analysis:
    """`results` in the order of ranks. `refused`: fits that the data does not support, with the
    reason. `failed`: rows without a figure. `warnings`: what to know before any number."""

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
        """Of a step; None where only collectives were measured."""
        return next((one.name for one in self.results if one.name is not None), None)

    @property
    def device(self) -> str:
        """Of all worlds; may be empty."""
        return (self.results[0].context.get("device") or {}).get("name", "")

    @property
    def collectives(self) -> list[Row]:
        """Of all worlds."""
        return [row for result in self.results for row in result.collectives]

    @property
    def interconnect(self) -> Json | None:
        """What explains the all-reduce of the largest world that has a fit as a ring, as
        read_interconnects() has others, for the device that was measured; None without a fit. Where
        all its ranks were on one host it is no link between hosts, and serves as many ranks as that
        has room for."""
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
        if len({of["node"] for of in world.distributed["ranks"]}) == 1:
            # how many GPUs a host has is not in the file
            rooms = world.context.get("num_cpus", 0) // (device["threads"] or 1)
            about["most_ranks"] = max(fit.ranks, rooms if device["backend"] == "cpu" else 0)
        return about | {"network": network, "device": None}


# what must not differ between the worlds of one run
SAME = (
    *("device", "git_commit", "git_dirty", "torch_version", "threads", "seed"),
    *("distributed.bucket_MiB", "distributed.scaling", "distributed.gradient_bytes"),
)


def _differences(ordered: Sequence[ScalingResult]) -> Iterator[str]:
    first = ordered[0]
    for other in ordered[1:]:
        if found := first_difference(first.context, other.context, SAME):
            name, here, there = found
            yield f"{other.path.name}: {name} is {there}, in {first.path.name} {here}"


def _refuse_no_run(ordered: Sequence[ScalingResult]) -> None:
    """BadInputError for steps that have no place on one curve, for another device, and for two
    results of one number of ranks."""
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
    """Of one result or more; BadInputError where they are of different steps, or where two are of
    as many ranks."""
    ordered = sorted(results, key=lambda one: one.ranks)
    _refuse_no_run(ordered)
    fits, refused = fit_collectives([row for one in ordered for row in one.collectives])
    warnings = tuple(_differences(ordered))
    reductions = {fit.ranks: fit for fit in fits if fit.operation == ALL_REDUCE}
    checks: list[Json] = []
    for result in ordered:
        # from its own fit, and where all are alike from that of the largest smaller number of ranks
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


# ---- what more devices would give: a projection, not a measurement, of weak scaling, where every
# device has a batch of its own. Imbalance, slower local work, other traffic, start of operations
# and input are in no figure of it.


@dataclass(frozen=True)
class LocalStep:
    """`seconds` at the batch of `name`, between `low` and `high` where it is PREDICTED, which
    `range_words` names. `source`: the file and row, or what the prediction rests on, with its
    commit. `device`: device_of() that, and `whole_node`."""

    name: CaseName
    seconds: float
    low: float
    high: float
    kind: str
    source: str
    device: Json
    range_words: str = ""


class StepSource(NamedTuple):
    """A result of the suite that local steps are taken from. `costs`: of the study's own file;
    empty where there is none."""

    path: Path
    results: ResultSet
    costs: Sequence[CaseCost] = ()


def read_step_source(path: Path) -> StepSource:
    """A result of the suite, or a folder of one. BadInputError for one that cannot be used, which
    is to be said before hours of measuring: also of cold caches, which no training step has."""
    files, costs = [path], []
    if path.is_dir():
        files = rounds_of(path) or [path / SUITE_FILE]
        costs = read_costs(path / COSTS) if (path / COSTS).exists() else []
    results = read_result_set(files)
    if results.context.get("cold_cache") is True:
        raise BadInputError(
            f"{path}: was measured with --cold-cache, and a step among others finds its caches "
            "warm; measure without it"
        )
    return StepSource(path, results, costs)


def _placed(context: Mapping[str, Any], *, is_shared: bool = False) -> Json:
    """device_of() and `whole_node`: whether nothing else of its node computes. That is so of a GPU,
    whose step does not know of its neighbours; of a CPU where there is a thread for each core, of
    which there may be two logical processors, and no rank beside it: `is_shared`."""
    device = device_of(context)
    has_all = 2 * (device["threads"] or 0) >= context.get("num_cpus", 0) and not is_shared
    return device | {"whole_node": device["backend"] != "cpu" or has_all}


def _made_by(context: Mapping[str, Any]) -> str:
    commit, torch = str(context.get("git_commit"))[:8], context.get("torch_version")
    return f"commit {commit}, libtorch {torch}"


def _predicted_steps(
    source: StepSource, dtype: str, variant: str
) -> tuple[dict[str, LocalStep], str]:
    """By size, at its own batch and sequence, from the rates of what was measured; and why there is
    none of others."""
    try:
        rates = calibrate_rates(source.results, dtype, variant)
        found, _ = predict_steps(rates, source.costs)
    except BadInputError as error:
        return {}, str(error)
    context = source.results.context
    basis = f"{rates.basis()}, {_made_by(context)}"
    how = (PREDICTED, basis, _placed(context), rates.spread.words)
    steps = {
        one.cost.name.size: LocalStep(one.cost.name, one.seconds, one.low, one.high, *how)
        for one in found
        if is_own_shape(one.cost.name)
    }
    return steps, "it has no costs of other sizes; a grid study has"


REMEDY = (
    "measure it: scripts/bench --components full_step --sizes SIZE, then --local-step its "
    "results.json; or give a grid study of smaller sizes to predict it from"
)


def local_steps(
    results: Sequence[ScalingResult], source: StepSource | None, dtype: str, variant: str
) -> tuple[dict[str, LocalStep], dict[str, str]]:
    """Of every size: measured in the source (at the size's own batch and sequence, else at the
    largest batch of its longest sequence), else by the rank that computed alone, else predicted
    from the source; and why the other problem sizes have none."""
    found, reason, measured = {}, REMEDY, []
    ranks = results[-1].distributed["ranks"]
    is_shared = len({rank["node"] for rank in ranks}) < len(ranks)
    # the world with the fewest ranks counts, whose rank alone had no neighbours that wait
    for one in results[::-1]:
        if (row := one.steps.get(ALONE)) is not None:
            # the same step as a case of one process
            name = replace(row.name, ranks=None, mode="")
            where = f"{row.name}, {one.path.name}, {_made_by(one.context)}"
            own = (where, _placed(one.context, is_shared=is_shared))
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
            (case.name, case.median_seconds, f"{case.name}, {files}", _placed(context))
            for case in cases
            if case.name.is_training_step
            and (case.name.dtype, case.name.variant) == (dtype, variant)
        ]
    # the last of a size counts
    for name, seconds, where, device in measured:
        found[name.size] = LocalStep(name, *[seconds] * 3, MEASURED, where, device)
    ordered = {size: found[size] for size in (*problem_sizes(), *found) if size in found}
    return ordered, {size: reason for size in problem_sizes() if size not in found}


# for which steps are projected
RANKS = tuple(2**power for power in range(3, 13))


def project(step: LocalStep, buckets: Sequence[float], over: Json, ranks: int) -> Json:
    """A row of scaling.json: seconds from as much hidden as can be to nothing; efficiencies in
    percent, low with high seconds. `buckets`: bytes of each."""
    each, algorithms = zip(*(all_reduce(ranks, size, over) for size in buckets), strict=True)
    low, high = step_bounds(step.seconds, each)
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


NO_STEP = "no data-parallel step was measured, so dtype and variant of a projection are open"
MEASURE_THERE = (
    "measure the step there, scripts/bench --components full_step, and give its results.json to "
    "--local-step"
)


def _why_no_link(over: Json, steps: Iterable[LocalStep]) -> str:
    """What is missing for an interconnect, or beyond some number of ranks; empty where nothing
    is."""
    others = [step.device for step in steps if not stands_for(over, step.device)]
    devices = ", ".join(dict.fromkeys(map(device_text, others)))
    if others and any("whole_node" in of for of in over["match"]):
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
    of `interconnects` whose figures are of the device that a step was measured on;
    `links_left_out`: what is missing for the others. `source`: as of local_steps()."""
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
        # buckets of a model of the user's own are known of what was run alone
        if size == name.size:
            buckets = last.distributed["bucket_bytes"]
        elif size in sizes:
            buckets = buckets_of(sizes[size], name.dtype, MIB * last.distributed["bucket_MiB"])
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
