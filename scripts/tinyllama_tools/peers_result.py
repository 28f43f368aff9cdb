"""What scripts/peers measured, in the suite's own JSON format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyllama_tools.data.programs import SuiteCase
from tinyllama_tools.peers_sides import OurSide, PeerSide, of_variant, step_flops
from tinyllama_tools.peers_turns import CaseRun, Effort, SideRun

Json = dict[str, Any]


def stopped_entry(name: str, index: int, run: SideRun) -> Json:
    """The one entry of a case that a side did not measure."""
    reason = (
        {"error_occurred": True, "error_message": run.failed}
        if run.failed
        else {"skipped": True, "skip_message": run.skipped}
    )
    times = {"iterations": 0, "real_time": 0.0, "cpu_time": 0.0, "time_unit": "ms"}
    return {**own_keys(name, index, 0, 1), **times, **reason}


def own_keys(name: str, family: int, repetition: int, repetitions: int) -> Json:
    """Google Benchmark's keys of a repetition."""
    return {
        "name": name,
        "family_index": family,
        "per_family_instance_index": 0,
        "run_name": name,
        "run_type": "iteration",
        "repetitions": repetitions,
        "repetition_index": repetition,
        "threads": 1,
    }


def peer_entries(result: CaseRun, side: PeerSide, family: int) -> list[Json]:
    """One entry a step, the turns in order."""
    case = of_variant(result.case, side.variant)
    seconds = [s for turn in result.sides[side.variant].turns for s in turn]
    cpu = side.cpu_seconds.get(result.case.name, [])
    flops = step_flops(case)
    return [
        {
            **own_keys(case.name, family, i, len(seconds)),
            "iterations": 1,
            "real_time": 1e3 * wall,
            "cpu_time": 1e3 * cpu[i],
            "time_unit": "ms",
            "samples_per_second": case.batch / wall,
            "tokens_per_second": case.batch * case.seq / wall,
            "model_flops": flops,
            "TFLOPS": flops / wall * 1e-12,
        }
        for i, wall in enumerate(seconds)
    ]


def our_entries(result: CaseRun, side: OurSide, family: int) -> list[Json]:
    """The program's own entries of all its turns, numbered through.

    The error against float64 is that of the process before them, the only one that compared.
    """
    verified, *turns = side.runs[result.case.name]
    entries = [e for turn in turns for e in turn.entries if e["run_type"] == "iteration"]
    error = {"max_rel_error": verified.counters["max_rel_error"]}
    return [
        {**e, **own_keys(e["name"], family, i, len(entries)), **error}
        for i, e in enumerate(entries)
    ]


def case_entries(
    result: CaseRun, ours: Sequence[OurSide], peers: Sequence[PeerSide], family: int
) -> list[Json]:
    """Entries of every side at one case."""
    entries: list[Json] = []
    for number, side in enumerate([*ours, *peers], start=family):
        run = result.sides[side.variant]
        if run.failed or run.skipped:
            name = of_variant(result.case, side.variant).name
            entries.append(stopped_entry(name, number, run))
        elif run.turns and isinstance(side, OurSide):
            entries += our_entries(result, side, number)
        elif run.turns and isinstance(side, PeerSide):
            entries += peer_entries(result, side, number)
    return entries


def ratios(results: Sequence[CaseRun], ours: Sequence[str], peers: Sequence[str]) -> list[Json]:
    """Every peer's time over each of our variants' time, where both were measured."""
    rows = []
    for result in results:
        for variant in ours:
            for peer in peers:
                ratio = result.ratio(peer, variant)
                if ratio:
                    case = of_variant(result.case, variant).name
                    rows.append({"case": case, "peer": peer, **ratio.as_json()})
    return rows


def peers_document(
    results: Sequence[CaseRun],
    ours: Sequence[OurSide],
    peers: Sequence[PeerSide],
    context: Json,
    effort: Effort,
    malloc: str,
    planned: Sequence[SuiteCase],
) -> Json:
    """The whole file. `context`: that of any process of ours; `malloc`: the tuned peers' one;
    `planned`: all cases that were asked for."""
    contexts = [context, *(c for side in ours for c in side.contexts)]
    settings = {
        side.variant: {**side.form.as_json(), "malloc": malloc if side.form.malloc else "glibc"}
        | {"measured": side.settings}
        for side in peers
    }
    about = {
        "forms": settings,
        "turns": effort.turns,
        "steps": effort.steps,
        "max_seconds_per_case": effort.max_seconds,
        "commits": sorted({c["git_commit"] for c in contexts}),
        "not_measured": not_measured(planned, [result.case for result in results]),
        "ratios": ratios(results, [s.variant for s in ours], [s.variant for s in peers]),
    }
    sides = len(ours) + len(peers)
    entries = [
        entry
        for i, result in enumerate(results)
        for entry in case_entries(result, ours, peers, i * sides)
    ]
    changed = any(c["git_dirty"] for c in contexts)
    # The turns were timed without the proof; what it said in a process of its own is in the rows.
    return {
        "context": {**context, "verify": "off", "git_dirty": changed, "peers": about},
        "benchmarks": entries,
    }


def not_measured(planned: Sequence[SuiteCase], measured: Sequence[SuiteCase]) -> list[str]:
    """`small bf16 8 x 256`: what an interruption left out, or a choice of cases."""
    points = {(case.size, case.dtype, case.batch, case.seq) for case in measured}
    return [
        f"{case.size} {case.dtype} {case.batch} x {case.seq}"
        for case in planned
        if (case.size, case.dtype, case.batch, case.seq) not in points
    ]


# What has to be the same in parts of one result.
SAME = ("schema_version", "device", "threads", "torch_version", "num_cpus")


def merged(documents: Sequence[Json], planned: Sequence[SuiteCase]) -> Json:
    """One result of several runs on one machine, the first one's context on top; a case that two
    have is the first one's. Raises ValueError where the machine or the effort differs."""
    first, *others = documents
    context, about = first["context"], dict(first["context"]["peers"])
    benchmarks = list(first["benchmarks"])
    for other in others:
        also = other["context"]
        for key in SAME:
            if also[key] != context[key]:
                raise ValueError(f"{key} is {also[key]}, and {context[key]} in the first file")
        for key in ("turns", "steps", "max_seconds_per_case"):
            if also["peers"][key] != about[key]:
                raise ValueError(f"{key} is {also['peers'][key]}, and {about[key]} in the first")
        known = {point_of(entry) for entry in benchmarks}
        benchmarks += [entry for entry in other["benchmarks"] if point_of(entry) not in known]
        about["ratios"] = about["ratios"] + [
            ratio for ratio in also["peers"]["ratios"] if point_of_name(ratio["case"]) not in known
        ]
        about["commits"] = sorted({*about["commits"], *also["peers"]["commits"]})
        about["forms"] = also["peers"]["forms"] | about["forms"]
    measured = {point_of(entry) for entry in benchmarks}
    cases = [case for case in planned if point_of_name(case.name) in measured]
    about["not_measured"] = not_measured(planned, cases)
    dirty = any(document["context"]["git_dirty"] for document in documents)
    return {
        "context": {**context, "git_dirty": dirty, "peers": about},
        "benchmarks": benchmarks,
    }


def point_of_name(name: str) -> tuple[str, ...]:
    """Size, dtype, batch and sequence of a case's name."""
    return tuple(name.removesuffix("/manual_time").split("/")[3:7])


def point_of(entry: Json) -> tuple[str, ...]:
    """Those of an entry."""
    return point_of_name(entry["run_name"])
