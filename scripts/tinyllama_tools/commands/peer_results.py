"""What scripts/peers measured, in the suite's own JSON format, and its tables.

Settings of the tuned peer beside each other at one case: how its best ones were found.

All alternatives stay in processes of their own and are interleaved, so that a drifting machine
does not choose.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tinyllama_tools.commands.peer_forms import FORMS, HIGHEST, PREFIX, PeerForm
from tinyllama_tools.commands.peer_sides import (
    CachingMalloc,
    CaseRun,
    Effort,
    OurSide,
    PeerProcess,
    PeerSide,
    SideRun,
    caching_malloc,
    glibc_that_keeps,
    measure_case,
    of_variant,
    start_peer,
    step_flops,
)
from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.data.names import UNITS, CaseName
from tinyllama_tools.stats.rank_tests import Ratio

Alternative = tuple[PeerForm, CachingMalloc]


def alternatives() -> list[Alternative]:
    """The tuned form, and it with one thing changed each."""
    tuned, malloc = FORMS["compile_tuned"], caching_malloc()
    forms = [
        tuned,
        tuned.but(name="sdpa", attention="sdpa"),
        tuned.but(name="highest", precision=HIGHEST),
        tuned.but(name="glibc", malloc=False),
        tuned.but(name="max_autotune", inductor={"max_autotune": True}),
        tuned.but(name="cpp_wrapper", inductor={"cpp_wrapper": True}),
    ]
    return [(form, malloc) for form in forms] + [
        (tuned.but(name="glibc_thresholds"), glibc_that_keeps())
    ]


def tune(case: CaseName, effort: Effort, threads: int, say: Callable[[str], None]) -> list[str]:
    """Measures all alternatives at one case; lines of a table, the fastest first."""
    sides = [peer_side(alternative, threads, effort) for alternative in alternatives()]
    results: list[CaseRun] = []
    try:
        measure_case(case, sides, effort, say, results.append)
    finally:
        for side in sides:
            side.close()
    return tuning_lines(results[0], sides[0].variant)


def peer_side(alternative: Alternative, threads: int, effort: Effort) -> PeerSide:
    """One alternative as a side."""
    form, malloc = alternative

    def start(form: PeerForm) -> PeerProcess:
        return start_peer(form, malloc)

    return PeerSide(form, start, threads, effort.max_seconds)


def tuning_lines(result: CaseRun, reference: str) -> list[str]:
    """A line an alternative: median step, and its time over the reference's."""
    measured = [run for run in result.sides.values() if run.turns]
    lines = []
    for run in sorted(measured, key=lambda run: statistics.median(run.medians)):
        ratio = result.ratio(run.variant, reference) if result.sides[reference].turns else None
        text = f"  {ratio.text()} of {reference}" if ratio else ""
        lines.append(f"{run.variant:<24} {1e3 * statistics.median(run.medians):9.1f} ms{text}")
    for run in result.sides.values():
        if run.failed or run.skipped:
            lines.append(f"{run.variant:<24} {run.failed or run.skipped}")
    return lines


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
    cpu = side.cpu_seconds.get(str(result.case), [])
    flops = step_flops(case)
    return [
        {
            **own_keys(str(case), family, i, len(seconds)),
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
    verified, *turns = side.runs[str(result.case)]
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
            name = str(of_variant(result.case, side.variant))
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
                    case = str(of_variant(result.case, variant))
                    rows.append({"case": case, "peer": peer, **ratio.as_json()})
    return rows


def peers_document(
    results: Sequence[CaseRun],
    ours: Sequence[OurSide],
    peers: Sequence[PeerSide],
    context: Json,
    effort: Effort,
    malloc: str,
    planned: Sequence[CaseName],
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


def not_measured(planned: Sequence[CaseName], measured: Sequence[CaseName]) -> list[str]:
    """`small bf16 8 x 256`: what an interruption left out, or a choice of cases."""
    points = {(case.size, case.dtype, case.batch, case.seq) for case in measured}
    return [
        f"{case.size} {case.dtype} {case.batch} x {case.seq}"
        for case in planned
        if (case.size, case.dtype, case.batch, case.seq) not in points
    ]


# What has to be the same in parts of one result.
SAME = ("schema_version", "device", "threads", "torch_version", "num_cpus")


def merged(documents: Sequence[Json], planned: Sequence[CaseName]) -> Json:
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
    cases = [case for case in planned if point_of_name(str(case)) in measured]
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


INTRODUCTION = """Training steps of `full_step` and of `LlamaForCausalLM` in Python: the same model,
number of tokens, loss, dtype and threads; gradients set to none outside the timed region. Our
program runs as a process a turn; each peer stays in a process of its own and is warmed up first,
which excludes its compilation. `scripts/peers` writes this page.
"""


@dataclass
class Cell:
    """A case of one side: its steps in seconds, or why there are none. `above_peak`: why it has no
    shares of peaks."""

    seconds: list[float] = field(default_factory=list)
    reason: str = ""
    above_peak: str = ""


Point = tuple[str, str, str, str]
Rows = dict[Point, dict[str, Cell]]


def read_rows(document: Json) -> Rows:
    """Cells by (size, dtype, batch, sequence) and by variant, in the file's order."""
    rows: Rows = {}
    for entry in document["benchmarks"]:
        axes = entry["run_name"].removesuffix("/manual_time").split("/")
        variant, size, dtype, batch, seq = axes[2:7]
        point = (size, dtype, batch.removeprefix("batch:"), seq.removeprefix("seq:"))
        cell = rows.setdefault(point, {}).setdefault(variant, Cell())
        if "error_message" in entry:
            cell.reason = f"failed: {entry['error_message']}"
        elif "skip_message" in entry:
            cell.reason = f"skipped: {entry['skip_message']}"
        else:
            cell.seconds.append(entry["real_time"] * UNITS[entry["time_unit"]])
            cell.above_peak = entry.get("above_peak", cell.above_peak)
    return rows


class Notes:
    """Numbers for reasons, each reason once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, word: str, reason: str) -> str:
        """`skipped [1]`."""
        return f"{word} [{self._numbers.setdefault(reason, len(self._numbers) + 1)}]"

    def lines(self) -> list[str]:
        """The reasons in order."""
        return [f"{number}. {reason}" for reason, number in self._numbers.items()]


def milliseconds(cell: Cell | None, notes: Notes) -> str:
    """The median step, or why there is none; with the number of a note."""
    if cell is None:
        return ""
    if not cell.seconds:
        return notes.mark(cell.reason.partition(":")[0], cell.reason)
    time = f"{1e3 * statistics.median(cell.seconds):.4g}"
    return notes.mark(time, cell.above_peak) if cell.above_peak else time


def ratio_text(row: Json | None) -> str:
    """`1.23 (1.20 to 1.26)`."""
    ratio = Ratio.from_json(row)
    return ratio.text() if ratio else ""


def time_lines(rows: Rows, variants: Sequence[str], notes: Notes) -> list[str]:
    """The median step of every side at every case."""
    header = ("size", "dtype", "batch", "seq", *variants)
    cells = (
        (*point, *(milliseconds(of.get(variant), notes) for variant in variants))
        for point, of in rows.items()
    )
    return [
        "## Time of a step",
        "",
        "Median over all steps, in ms.",
        "",
        *markdown_table(header, cells),
        "",
    ]


def ratio_lines(rows: Rows, ours: str, peers: Sequence[str], found: Iterable[Json]) -> list[str]:
    """Every peer against one of our variants."""
    by_case = {(row["case"], row["peer"]): row for row in found}
    cells = []
    for size, dtype, batch, seq in rows:
        case = f"full_step/train/{ours}/{size}/{dtype}/batch:{batch}/seq:{seq}"
        texts = [ratio_text(by_case.get((case, peer))) for peer in peers]
        cells.append((size, dtype, batch, seq, *texts))
    text = (
        "The peer's time over ours: above 1, ours is faster. Median over turns, with its interval."
    )
    header = ("size", "dtype", "batch", "seq", *peers)
    return [f"## Peers against `{ours}`", "", text, "", *markdown_table(header, cells), ""]


def confidence_text(found: Iterable[Json]) -> str:
    """How sure the intervals are, which the number of turns decides."""
    by_turns = {row["turns"]: row["interval"]["confidence"] for row in found if row["interval"]}
    texts = [f"{100 * by_turns[turns]:.1f} % at {turns} turns" for turns in sorted(by_turns)]
    return "; ".join(texts) or "none: one turn"


def circumstances(document: Json) -> dict[str, str]:
    """What the numbers belong to."""
    context = document["context"]
    about = context["peers"]
    device = context["device"]
    commits = ", ".join(commit[:12] for commit in about["commits"])
    measured = [form["measured"] for form in about["forms"].values() if form["measured"]]
    versions = {f"torch {m['torch']}, transformers {m['transformers']}" for m in measured}
    loads = ", ".join(f"{load:.2f}" for load in context.get("load_avg", []))
    return {
        "machine": f"{device['name']} ({device['architecture']}), {context['num_cpus']} processors",
        "date": context["date"],
        "commit": commits + (" with changes" if context["git_dirty"] else ""),
        "ours": f"libtorch {context['torch_version']}",
        "peers": ", ".join(sorted(versions)),
        "threads": str(context["threads"]),
        "turns and steps": f"{about['turns']} turns of {about['steps']} steps, fewer where steps "
        f"are slow ({about['max_seconds_per_case']:g} s a side and case)",
        "intervals": confidence_text(about["ratios"]),
        "load average at the start": loads,
    }


def form_lines(forms: dict[str, Json]) -> list[str]:
    """The settings of each peer."""
    header = ("peer", "attention", "torch.compile", "float32 GEMMs", "AdamW", "malloc")
    cells = []
    for name, form in forms.items():
        measured = form["measured"]
        precision = form["precision"]
        if measured:
            precision = f"{measured['float32_matmul_precision']}, error "
            precision += f"{measured['float32_product_error']:.1e}"
            if measured["float32_matmul_precision"] != form["precision"]:
                precision += f" of {form['precision']}, which is not true float32 here"
        inductor = ", ".join(f"{key}={value}" for key, value in form["inductor"].items())
        compiled = f"dynamic=False {inductor}".strip() if form["is_compiled"] else "no"
        cells.append((name, form["attention"], compiled, precision, form["adamw"], form["malloc"]))
    return ["## Settings of the peers", "", *markdown_table(header, cells), ""]


def peers_page(document: Json) -> str:
    """The whole page."""
    rows = read_rows(document)
    variants = list(dict.fromkeys(variant for of in rows.values() for variant in of))
    ours = [variant for variant in variants if not variant.startswith(PREFIX)]
    peers = [variant for variant in variants if variant.startswith(PREFIX)]
    about = document["context"]["peers"]
    notes = Notes()
    lines = [
        "# Peers",
        "",
        INTRODUCTION,
        *markdown_table(("", ""), circumstances(document).items()),
        "",
    ]
    for variant in reversed(ours):
        lines += ratio_lines(rows, variant, peers, about["ratios"])
    lines += time_lines(rows, variants, notes)
    if about.get("not_measured"):
        lines += [f"Not measured: {', '.join(about['not_measured'])}.", ""]
    if notes.lines():
        lines += ["Reasons:", "", *notes.lines(), ""]
    return "\n".join(lines + form_lines(about["forms"])).rstrip() + "\n"
