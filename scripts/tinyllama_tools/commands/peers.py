"""scripts/peers: our full training step beside LlamaForCausalLM in its forms."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from tinyllama_tools.commands.peer_sides import (
    FORMS,
    GLIBC,
    HIGHEST,
    CaseRun,
    Effort,
    OurSide,
    PeerSide,
    caching_malloc,
    measure_case,
    of_variant,
    start_peer,
    step_flops,
)
from tinyllama_tools.core.app import (
    INTERRUPTED,
    RESULTS,
    BadInputError,
    Json,
    problem_sizes,
    read_json,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.options import list_of, positive, positive_list, seconds, variants
from tinyllama_tools.core.text import template
from tinyllama_tools.data.names import UNITS, CaseName, full_step
from tinyllama_tools.data.programs import SuiteProgram
from tinyllama_tools.stats.rank_tests import Ratio

PAGE = Path(__file__).parent / "templates/peers.md.j2"
VARIANTS = ("baseline", "optimized")
DTYPES = ("f32", "bf16", "amp_bf16")
# full_step in the default grid of tiny_llama_bench (DEFAULT_GRID_OF[size]: batches, sequences), and
# the points that autocast adds.
GRIDS = {"tiny": ((4, 8, 16), (64, 128, 256, 512)), "small": ((8,), (256,))}
AUTOCAST_GRIDS = {"tiny": ((8, 16), (128, 256)), "small": ((8,), (256,))}
# what is slow without support by the processor comes last
ORDER_OF_DTYPES = ("f32", "amp_bf16", "bf16")
DESCRIPTION = """
Training steps of LlamaForCausalLM in Python (eager, scaled_dot_product_attention, torch.compile as
it is and tuned) beside full_step of tiny_llama_bench: the same cases, threads and loss, in turn.
Without an axis option, all full_step cases of the default grid and some under autocast.
"""
EPILOG = """
Exit status: 0 all cases measured, or skipped with a reason; 1 some case failed; 2 bad options, the
set-up failed, or files that cannot be written; 130 interrupted, with everything measured so far
written.
"""


def choose_cases(given: argparse.Namespace) -> tuple[CaseName, ...]:
    """The cases in the order in which they run: the smallest first, since it says how long the
    others will take."""
    if given.quick:
        return (full_step("tiny", "f32", 4, 64),)
    cases: list[CaseName] = []
    for dtype in sorted(given.dtypes, key=ORDER_OF_DTYPES.index):
        grids = AUTOCAST_GRIDS if dtype.startswith("amp_") else GRIDS
        for size in given.sizes:
            own = problem_sizes()[size]
            batches, seqs = grids.get(size, ((own["batch"],), (own["seq"],)))
            batches, seqs = given.batch or batches, given.seq or seqs
            grid = [full_step(size, dtype, batch, seq) for batch in batches for seq in seqs]
            cases += sorted(grid, key=step_flops)
    return tuple(dict.fromkeys(cases))


def device(text: str) -> str:
    """As the programs take it, but for `auto`, which each side could take otherwise."""
    if not re.fullmatch(r"cpu|(cuda|hip)(:\d{1,2})?", text):
        raise argparse.ArgumentTypeError(f"device '{text}': must be cpu, cuda[:N] or hip[:N]")
    return text


def parser() -> argparse.ArgumentParser:
    """Every option, as --help shows it."""
    result = argparse.ArgumentParser(prog="scripts/peers", description=DESCRIPTION, epilog=EPILOG)
    add = result.add_argument
    sizes, forms = list_of(tuple(problem_sizes()), "size"), list_of(tuple(FORMS), "peer")
    sizes_help = "names of problem sizes (default: tiny,small)"
    add("--sizes", type=sizes, default=("tiny", "small"), help=sizes_help)
    dtypes = list_of(DTYPES, "dtype")
    add("--dtypes", type=dtypes, default=DTYPES, help=f"default: {','.join(DTYPES)}")
    add(
        "--batch",
        type=positive_list,
        help="samples in a step, e.g. 4,8 (default: those of the default grid)",
    )
    add(
        "--seq",
        type=positive_list,
        help="tokens in a sample, e.g. 64,128 (default: those of the default grid)",
    )
    add(
        "--peers",
        dest="forms",
        type=forms,
        default=tuple(FORMS),
        help=f"default: {','.join(FORMS)}",
    )
    ours_help = f"of ours (default: {','.join(VARIANTS)})"
    add("--variant", dest="variants", type=variants, default=VARIANTS, help=ours_help)
    turns_help = "how often each side runs (default: 6, enough for 95 %%)"
    add("--turns", type=positive, default=6, help=turns_help)
    add("--steps", type=positive, default=3, help="timed steps of a turn (default: 3)")
    add(
        "--max-seconds-per-case",
        type=seconds,
        default=10.0,
        metavar="S",
        help="of timed steps of a side (default: 10); slow steps get fewer of them, and a case "
        "with a step above it is skipped",
    )
    add(
        "--threads",
        type=positive,
        help="CPU threads of every side (default: tiny_llama_bench's own choice)",
    )
    devices = "cpu, cuda[:N] or hip[:N], of every side (default: cpu)"
    add("--device", type=device, default="cpu", help=devices)
    add("--quick", action="store_true", help="a smoke test: tiny f32 4 x 64, 2 turns of 2 steps")
    add("--tune", action="store_true", help="compare settings of torch.compile at the first case")
    add("--out", type=Path, metavar="FILE", help="JSON (default: results/<time>_peers/peers.json)")
    add("--markdown", type=Path, metavar="FILE", help="tables (default: PEERS.md beside it)")
    source_help = "write the tables of an earlier result anew"
    add("--from", type=Path, dest="source", metavar="FILE", help=source_help)
    return result


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Options with `cases` and `effort`. A bad one ends the program with status 2."""
    options = parser()
    given = options.parse_args(arguments)
    given.cases = choose_cases(given)
    if min(case.seq for case in given.cases) < 2:
        options.error("--seq '1': must be at least 2, for there to be a next token")
    turns, steps = (2, 2) if given.quick else (given.turns, given.steps)
    given.effort = Effort(turns, steps, given.max_seconds_per_case)
    return given


# The quickest case there is: it says what our program runs on, and that it runs.
QUICKEST = CaseName("rms_norm", "forward", "baseline", "tiny", "f32", 1, 16)


def say(text: str) -> None:
    """Progress, a line at a time."""
    print(text, file=sys.stderr, flush=True)


def our_program(options: argparse.Namespace) -> SuiteProgram:
    """On the peers' device."""
    threads = (f"--threads={options.threads}",) if options.threads else ()
    return SuiteProgram((f"--device={options.device}", *threads))


def tune(options: argparse.Namespace, threads: int) -> Iterator[str]:
    """The tuned form and it with one thing changed each, interleaved so that a drifting machine
    does not choose; a line of a table each, the fastest first."""
    tuned, malloc = FORMS["compile_tuned"], caching_malloc()
    forms = [
        (tuned, malloc),
        (replace(tuned, name="sdpa", attention="sdpa"), malloc),
        (replace(tuned, name="highest", precision=HIGHEST), malloc),
        (replace(tuned, name="glibc", malloc=False), malloc),
        (replace(tuned, name="max_autotune", inductor={"max_autotune": True}), malloc),
        (replace(tuned, name="cpp_wrapper", inductor={"cpp_wrapper": True}), malloc),
        (replace(tuned, name="glibc_thresholds"), GLIBC),
    ]
    limit = options.effort.max_seconds
    sides = [
        PeerSide(form, partial(start_peer, malloc=malloc, device=options.device), threads, limit)
        for form, malloc in forms
    ]
    results: list[CaseRun] = []
    try:
        measure_case(options.cases[0], sides, options.effort, say, results.append)
    finally:
        for side in sides:
            side.close()
    (result,), reference = results, sides[0].variant
    runs = [(variant, run) for variant, run in result.sides.items() if run.turns]
    for variant, run in sorted(runs, key=lambda pair: statistics.median(pair[1].medians)):
        ratio = result.ratio(variant, reference)
        text = f"  {ratio.text()} of {reference}" if ratio else ""
        yield f"{variant:<24} {1e3 * statistics.median(run.medians):9.1f} ms{text}"
    for variant, run in result.sides.items():
        if run.failed or run.skipped:
            yield f"{variant:<24} {run.failed or run.skipped}"


STOPPED: Json = {"iterations": 0, "real_time": 0.0, "cpu_time": 0.0, "time_unit": "ms"}


def entries(result: CaseRun, family: int) -> Iterator[Json]:
    """One entry a step of every side at a case, the turns in order; of a side that did not measure
    it, one with the reason. Keys are Google Benchmark's."""
    for number, (variant, run) in enumerate(result.sides.items(), start=family):
        found = [entry for turn in run.turns for entry in turn]
        if run.failed:
            found = [STOPPED | {"error_occurred": True, "error_message": run.failed}]
        elif run.skipped:
            found = [STOPPED | {"skipped": True, "skip_message": run.skipped}]
        for index, entry in enumerate(found):
            name = entry.get("name", str(of_variant(result.case, variant)))
            yield {
                **entry,
                "name": name,
                "family_index": number,
                "per_family_instance_index": 0,
                "run_name": name,
                "run_type": "iteration",
                "repetitions": len(found),
                "repetition_index": index,
                "threads": 1,
            }


def point_of(name: str) -> tuple[str, ...]:
    """Size, dtype, batch and sequence of a case's name."""
    size, dtype, batch, seq = name.removesuffix("/manual_time").split("/")[3:7]
    return size, dtype, batch.removeprefix("batch:"), seq.removeprefix("seq:")


def not_measured(cases: Sequence[CaseName], benchmarks: Sequence[Json]) -> list[str]:
    """`small bf16 8 x 256`: what an interruption left out, or a choice of cases."""
    measured = {point_of(entry["run_name"]) for entry in benchmarks}
    return [
        f"{case.size} {case.dtype} {case.batch} x {case.seq}"
        for case in cases
        if point_of(str(case)) not in measured
    ]


def peers_document(
    options: argparse.Namespace,
    results: Sequence[CaseRun],
    ours: Sequence[OurSide],
    peers: Sequence[PeerSide],
    context: Json,
    malloc: str,
) -> Json:
    """The whole file. `context`: that of any process of ours; `malloc`: the tuned peers' one."""
    contexts = [context, *(c for side in ours for c in side.contexts)]
    sides = len(ours) + len(peers)
    benchmarks = [e for i, result in enumerate(results) for e in entries(result, i * sides)]
    about = {
        "forms": {
            side.variant: asdict(side.form)
            | {"malloc": malloc if side.form.malloc else "glibc", "measured": side.settings}
            for side in peers
        },
        "turns": options.effort.turns,
        "steps": options.effort.steps,
        "max_seconds_per_case": options.effort.max_seconds,
        "commits": sorted({c["git_commit"] for c in contexts}),
        "not_measured": not_measured(options.cases, benchmarks),
        "ratios": [
            {"case": str(of_variant(result.case, our.variant)), "peer": peer.variant}
            | ratio.as_json()
            for result in results
            for our in ours
            for peer in peers
            if (ratio := result.ratio(peer.variant, our.variant))
        ],
    }
    dirty = any(c["git_dirty"] for c in contexts)
    # The turns were timed without the proof; what it said in a process of its own is in the rows.
    context = {**context, "verify": "off", "git_dirty": dirty, "peers": about}
    return {"context": context, "benchmarks": benchmarks}


def circumstances(document: Json) -> Iterator[tuple[str, str]]:
    """What the numbers belong to."""
    context = document["context"]
    about, device = context["peers"], context["device"]
    machine = f"{device['name']} ({device['architecture']})"
    yield "machine", f"{machine}, {context['num_cpus']} processors"
    yield "date", context["date"]
    commits = ", ".join(commit[:12] for commit in about["commits"])
    yield "commit", commits + (" with changes" if context["git_dirty"] else "")
    yield "ours", f"libtorch {context['torch_version']}"
    measured = [form["measured"] for form in about["forms"].values() if form["measured"]]
    versions = {f"torch {m['torch']}, transformers {m['transformers']}" for m in measured}
    yield "peers", ", ".join(sorted(versions))
    yield "threads", str(context["threads"])
    yield (
        "turns and steps",
        f"{about['turns']} turns of {about['steps']} steps, fewer where steps are slow "
        f"({about['max_seconds_per_case']:g} s a side and case)",
    )
    intervals = {r["turns"]: r["interval"]["confidence"] for r in about["ratios"] if r["interval"]}
    texts = [f"{100 * intervals[turns]:.1f} % at {turns} turns" for turns in sorted(intervals)]
    yield "intervals", "; ".join(texts) or "none: one turn"
    loads = ", ".join(f"{load:.2f}" for load in context.get("load_avg", []))
    yield "load average at the start", loads


def form_row(name: str, form: Json) -> tuple[str, ...]:
    """The settings of a peer."""
    precision = form["precision"]
    if measured := form["measured"]:
        found = measured["float32_matmul_precision"]
        precision = f"{found}, error {measured['float32_product_error']:.1e}"
        if found != form["precision"]:
            precision += f" of {form['precision']}, which is not true float32 here"
    inductor = ", ".join(f"{key}={value}" for key, value in form["inductor"].items())
    compiled = f"dynamic=False {inductor}".strip() if form["is_compiled"] else "no"
    return name, form["attention"], compiled, precision, form["adamw"], form["malloc"]


def peers_page(document: Json) -> str:
    """The whole page. Reasons stand below the table, numbered, each once."""
    about = document["context"]["peers"]
    cells: dict[tuple[str, ...], dict[str, list[Json]]] = {}
    for entry in document["benchmarks"]:
        name = entry["run_name"]
        row = cells.setdefault(point_of(name), {})
        row.setdefault(name.split("/")[2], []).append(entry)
    reasons: list[str] = []

    def noted(word: str, reason: str) -> str:
        if reason not in reasons:
            reasons.append(reason)
        return f"{word} [{reasons.index(reason) + 1}]"

    def time(entries: list[Json]) -> str:
        """The median step, or why there is none."""
        if not entries:
            return ""
        last = entries[-1]
        for word, key in (("failed", "error_message"), ("skipped", "skip_message")):
            if key in last:
                return noted(word, f"{word}: {last[key]}")
        median = statistics.median(e["real_time"] * UNITS[e["time_unit"]] for e in entries)
        text = f"{1e3 * median:.4g}"
        above = [entry["above_peak"] for entry in entries if "above_peak" in entry]
        return noted(text, above[-1]) if above else text

    variants = list(dict.fromkeys(variant for row in cells.values() for variant in row))
    ours = [variant for variant in variants if not variant.startswith("peer:")]
    peers = [variant for variant in variants if variant.startswith("peer:")]
    ratios = {
        (point_of(row["case"]), row["case"].split("/")[2], row["peer"]): Ratio.from_json(row)
        for row in about["ratios"]
    }

    def ratio_rows(variant: str) -> list[list[str]]:
        found = [[ratios.get((point, variant, peer)) for peer in peers] for point in cells]
        return [
            [*point, *(ratio.text() if ratio else "" for ratio in row)]
            for point, row in zip(cells, found, strict=True)
        ]

    return template(PAGE).render(
        circumstances=list(circumstances(document)),
        ratios=[(variant, ratio_rows(variant)) for variant in reversed(ours)],
        times=[[*point, *(time(row.get(v, [])) for v in variants)] for point, row in cells.items()],
        forms=[form_row(name, form) for name, form in about["forms"].items()],
        axes=["size", "dtype", "batch", "seq"],
        peers=peers,
        variants=variants,
        about=about,
        reasons=reasons,
    )


def output_files(options: argparse.Namespace) -> tuple[Path, Path]:
    """JSON and tables; BadInputError where they cannot be written, before anything is measured."""
    folder = run_folder("peers", RESULTS)
    files = options.out or folder / "peers.json", options.markdown or folder / "PEERS.md"
    for path in files:
        if path.is_dir():
            raise BadInputError(f"'{path}': must be a file, not a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise BadInputError(f"'{path}': its folder cannot be written to")
    return files


def write(document: Json, files: tuple[Path, Path]) -> str:
    """Both files; the page."""
    page = peers_page(document)
    write_whole(files[0], json.dumps(document, indent=1) + "\n")
    write_whole(files[1], page)
    return page


def show(page: str, files: tuple[Path, Path]) -> None:
    """The page, and where it is."""
    for path in files:
        say(f"wrote {path}")
    print(page, end="")


def rewrite(options: argparse.Namespace) -> int:
    """--from: the tables of an earlier result."""
    files = output_files(options)
    document, _ = read_json(options.source)
    try:
        page = write(document, files)
    except (ValueError, KeyError, TypeError) as error:
        rule = "must be a result of scripts/peers"
        raise BadInputError(f"--from {options.source}: {rule}: {error!r}") from error
    show(page, files)
    return 0


def measure_all(
    options: argparse.Namespace,
    sides: Sequence[OurSide | PeerSide],
    results: list[CaseRun],
    save: Callable[[], str],
) -> int:
    """All cases, saved after each; the exit status."""
    begin = time.monotonic()
    try:
        for number, case in enumerate(options.cases, start=1):
            spent = time.monotonic() - begin
            name = f"{case.size} {case.dtype} {case.batch} x {case.seq}"
            say(f"[{number}/{len(options.cases)}] {name}  ({spent:.0f} s so far)")
            measure_case(case, sides, options.effort, say, results.append)
            save()
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    finally:
        for side in sides:
            side.close()
    return int(any(run.failed for result in results for run in result.sides.values()))


def measure(options: argparse.Namespace) -> int:
    """The whole run; its exit status."""
    files = output_files(options)
    program = our_program(options)
    context = program.run([QUICKEST], 1).context
    if options.tune:
        for line in tune(options, context["threads"]):
            print(line)
        return 0
    malloc, limit = caching_malloc(), options.effort.max_seconds
    ours = [OurSide(variant, program, limit) for variant in options.variants]
    start = partial(start_peer, malloc=malloc, device=options.device)
    peers = [PeerSide(FORMS[name], start, context["threads"], limit) for name in options.forms]
    results: list[CaseRun] = []

    def save() -> str:
        document = peers_document(options, results, ours, peers, context, malloc.description)
        return write(document, files)

    status = measure_all(options, [*ours, *peers], results, save)
    if results:
        show(save(), files)
    return status


def main(arguments: Sequence[str]) -> int:
    """Reads the options and measures."""
    options = parse_options(arguments)
    return rewrite(options) if options.source else measure(options)
