"""scripts/peers: our full training step beside LlamaForCausalLM in its forms."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from tinyllama_tools.commands.peer_sides import (
    FORMS,
    PREFIX,
    CaseRun,
    Effort,
    OurSide,
    PeerSide,
    caching_malloc,
    measure_case,
    start_peer,
    step_flops,
)
from tinyllama_tools.core.app import (
    INTERRUPTED,
    RESULTS,
    BadInputError,
    Json,
    made_by,
    problem_sizes,
    read_json,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.options import (
    list_of,
    positive,
    positive_list,
    script_parser,
    seconds,
    variants,
)
from tinyllama_tools.core.text import template
from tinyllama_tools.data.names import BASELINE, UNITS, CaseName, full_step, parse_case_name
from tinyllama_tools.data.programs import SuiteError, SuiteProgram
from tinyllama_tools.data.results import checked_result
from tinyllama_tools.data.studies import is_result
from tinyllama_tools.stats.rank_tests import Ratio

PAGE = Path(__file__).parent / "templates/peers.md.j2"
VARIANTS = ("baseline", "optimized")
# in the order in which they run: what is slow without support by the processor comes last
DTYPES = ("f32", "amp_bf16", "bf16")
# full_step in the default grid of tiny_llama_bench (DEFAULT_GRID_OF[size]: batches, sequences), and
# the points that autocast adds.
GRIDS = {"tiny": ((4, 8, 16), (64, 128, 256, 512)), "small": ((8,), (256,))}
AUTOCAST_GRIDS = {"tiny": ((8, 16), (128, 256)), "small": ((8,), (256,))}
DESCRIPTION = """\
Training steps of LlamaForCausalLM in Python (eager, scaled_dot_product_attention, torch.compile as
it is and tuned) beside full_step of tiny_llama_bench: the same cases, threads and loss,
interleaved. Without an axis option, all full_step cases of the default grid and some under
autocast."""
EPILOG = """\
Exit status: 0 all cases measured, or skipped with a reason; 1 some case failed; 2 bad options, the
set-up failed, or files that cannot be written; 130 interrupted, with everything measured so far
written."""


def choose_cases(given: argparse.Namespace) -> tuple[CaseName, ...]:
    """The cases in the order in which they run: the smallest first, since it says how long the
    others will take."""
    if given.quick:
        return (full_step("tiny", "f32", 4, 64),)
    cases: list[CaseName] = []
    for dtype in sorted(given.dtypes, key=DTYPES.index):
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
    result = script_parser("peers", DESCRIPTION, EPILOG)
    add = result.add_argument
    sizes, forms = list_of(tuple(problem_sizes()), "size"), list_of(tuple(FORMS), "peer")
    add("--sizes", type=sizes, default=("tiny", "small"), help="default: tiny,small")
    dtypes = list_of(DTYPES, "dtype")
    add("--dtypes", type=dtypes, default=DTYPES, help=f"default: {','.join(DTYPES)}")
    add("--batch", type=positive_list, help="e.g. 4,8 (default: those of the default grid)")
    add("--seq", type=positive_list, help="e.g. 64,128 (default: those of the default grid)")
    peers_help = f"default: {','.join(FORMS)}"
    add("--peers", dest="forms", type=forms, default=tuple(FORMS), help=peers_help)
    ours_help = f"of ours (default: {','.join(VARIANTS)})"
    add("--variant", dest="variants", type=variants, default=VARIANTS, help=ours_help)
    turns_help = "how often each side runs (default: 6, enough for 95 %%)"
    add("--turns", type=positive, default=6, help=turns_help)
    add("--steps", type=positive, default=3, help="timed steps of a turn (default: 3)")
    limit_help = (
        "of timed steps of a side (default: 10); slow steps get fewer of them, and a case with a "
        "step above it is skipped"
    )
    add("--max-seconds-per-case", type=seconds, default=10.0, metavar="S", help=limit_help)
    threads_help = "CPU threads of every side (default: tiny_llama_bench's own choice)"
    add("--threads", type=positive, help=threads_help)
    devices = "cpu, cuda[:N] or hip[:N], of every side (default: cpu)"
    add("--device", type=device, default="cpu", help=devices)
    add("--quick", action="store_true", help="a smoke test: tiny f32 4 x 64, 2 turns of 2 steps")
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
STOPPED: Json = {"iterations": 0, "real_time": 0.0, "cpu_time": 0.0, "time_unit": "ms"}


def say(text: str) -> None:
    """Progress, a line at a time."""
    print(text, file=sys.stderr, flush=True)


def entries(result: CaseRun, family: int) -> Iterator[Json]:
    """One entry a step of every side at a case, the turns in order; of a side that did not measure
    it, one with the reason. Keys are Google Benchmark's."""
    for number, (variant, run) in enumerate(result.sides.items(), start=family):
        found = [entry for turn in run.turns for entry in turn]
        if run.stopped:
            found = [STOPPED | run.stopped]
        for index, entry in enumerate(found):
            name = entry.get("name", str(replace(result.case, variant=variant)))
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


def title(case: CaseName) -> str:
    return f"{case.size} {case.dtype} {case.batch} x {case.seq}"


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
    benchmarks, measured = [], set()
    for number, result in enumerate(results):
        found = list(entries(result, number * len(result.sides)))
        benchmarks += found
        measured |= {result.case} if found else set()
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
        # what an interruption left out
        "not_measured": [title(case) for case in options.cases if case not in measured],
        "ratios": [
            {"case": str(replace(result.case, variant=our.variant)), "peer": peer.variant}
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


def read_peers(path: Path) -> Json:
    """The document of an earlier run; BadInputError where it is none."""
    document, _ = read_json(path)
    if not is_result(document) or "peers" not in document["context"]:
        raise BadInputError(f"{path}: must be a result of scripts/peers; name its peers.json")
    return checked_result(document, path)


def time_of(entries: Sequence[Json]) -> tuple[str, str]:
    """The median step or what became of it, and a reason for a note."""
    last = entries[-1]
    for word, key in (("failed", "error_message"), ("skipped", "skip_message")):
        if key in last:
            return word, f"{word}: {last[key]}"
    median = statistics.median(e["real_time"] * UNITS[e["time_unit"]] for e in entries)
    above = [entry["above_peak"] for entry in entries if "above_peak" in entry]
    return f"{1e3 * median:.4g}", above[-1] if above else ""


def peers_page(document: Json) -> str:
    """The whole page. Reasons stand below the table of times, numbered, each once."""
    context = document["context"]
    about = context["peers"]
    cells: dict[CaseName, dict[str, list[Json]]] = {}
    for entry in document["benchmarks"]:
        case = parse_case_name(entry["run_name"])
        row = cells.setdefault(replace(case, variant=BASELINE), {})
        row.setdefault(case.variant, []).append(entry)
    reasons: dict[str, int] = {}

    def time_text(entries: list[Json] | None) -> str:
        text, reason = time_of(entries) if entries else ("", "")
        number = reasons.setdefault(reason, len(reasons) + 1) if reason else None
        return f"{text} [{number}]" if number else text

    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    peers = [name for name in names if name.startswith(PREFIX)]
    ratios = {(row["case"], row["peer"]): Ratio.from_json(row).text() for row in about["ratios"]}

    def ratio_rows(variant: str) -> list[list[str]]:
        found = {case: str(replace(case, variant=variant)) for case in cells}
        return [
            [*points[case], *(ratios.get((name, peer), "") for peer in peers)]
            for case, name in found.items()
        ]

    points = {case: (case.size, case.dtype, str(case.batch), str(case.seq)) for case in cells}
    confidences = {
        ratio["turns"]: ratio["interval"]["confidence"]
        for ratio in about["ratios"]
        if ratio["interval"]
    }
    return template(PAGE).render(
        context=context,
        about=about,
        measured=next((f["measured"] for f in about["forms"].values() if f["measured"]), None),
        confidences=sorted(confidences.items()),
        ratios=[(name, ratio_rows(name)) for name in reversed(names) if name not in peers],
        times=[
            [*points[case], *(time_text(row.get(name)) for name in names)]
            for case, row in cells.items()
        ],
        axes=["size", "dtype", "batch", "seq"],
        peers=peers,
        variants=names,
        reasons=list(reasons),
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


def our_program(options: argparse.Namespace) -> SuiteProgram:
    """SuiteError where it is not there, or refuses what it is to be given: it alone knows every
    variant."""
    threads = (f"--threads={options.threads}",) if options.threads else ()
    program = SuiteProgram((f"--device={options.device}", *threads))
    asked = ["--components=full_step", f"--variants={','.join(options.variants)}"]
    if refusal := program.list_cases(asked)[1]:
        raise SuiteError(refusal)
    return program


def measure(
    options: argparse.Namespace, program: SuiteProgram, files: tuple[Path, Path]
) -> tuple[int, str]:
    """All cases, written after each; the exit status, and the page if anything was measured."""
    context = program.run([QUICKEST], 1).context
    malloc, limit = caching_malloc(), options.effort.max_seconds
    ours = [OurSide(variant, program, limit) for variant in options.variants]
    start = partial(start_peer, malloc=malloc, device=options.device)
    peers = [PeerSide(FORMS[name], start, context["threads"], limit) for name in options.forms]
    sides = [*ours, *peers]
    results: list[CaseRun] = []
    begin, page, is_interrupted = time.monotonic(), "", False
    try:
        for number, case in enumerate(options.cases, start=1):
            spent = time.monotonic() - begin
            say(f"[{number}/{len(options.cases)}] {title(case)}  ({spent:.0f} s so far)")
            try:
                measure_case(case, sides, options.effort, say, results.append)
            except KeyboardInterrupt:
                say("interrupted")
                is_interrupted = True
            document = peers_document(options, results, ours, peers, context, malloc.description)
            page = write(document, files)
            if is_interrupted:
                return INTERRUPTED, page
    finally:
        for side in sides:
            side.close()
    runs = [run for result in results for run in result.sides.values()]
    return int(any("error_occurred" in run.stopped for run in runs)), page


def main(arguments: Sequence[str]) -> int:
    """Measures; --from: the tables of an earlier result."""
    options = parse_options(arguments)
    if options.source:
        document = read_peers(options.source)
        files = output_files(options)
        with made_by("scripts/peers", options.source):
            status, page = 0, write(document, files)
    else:
        # before there is a folder
        program = our_program(options)
        files = output_files(options)
        status, page = measure(options, program, files)
    for path in files:
        say(f"wrote {path}")
    print(page, end="")
    return status
