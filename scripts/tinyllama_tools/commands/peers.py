"""scripts/peers: our full training step beside LlamaForCausalLM in its forms."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.commands.peer_sides import (
    FORMS,
    PREFIX,
    CaseRun,
    OurSide,
    PeerSide,
    SideRun,
    measure_case,
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
from tinyllama_tools.core.options import (
    list_of,
    positive,
    positive_list,
    script_parser,
    seconds,
    variants,
)
from tinyllama_tools.core.text import template
from tinyllama_tools.data.names import UNITS, CaseName, full_step, parse_case_name
from tinyllama_tools.data.programs import SuiteError, SuiteProgram
from tinyllama_tools.data.results import checked_result
from tinyllama_tools.data.studies import is_result
from tinyllama_tools.stats.rank_tests import Ratio

PAGE, RESULT = Path(__file__).parent / "templates/peers.md.j2", "peers.json"
# in the order in which they run: what is slow without support by the processor comes last
DTYPES = ("f32", "amp_bf16", "bf16")
# full_step in the default grid of tiny_llama_bench (DEFAULT_GRID_OF[size]: batches, sequences)
GRIDS = {"tiny": ((4, 8, 16), (64, 128, 256, 512)), "small": ((8,), (256,))}
DESCRIPTION = """\
Training steps of LlamaForCausalLM in Python (eager, scaled_dot_product_attention, torch.compile as
it is and tuned) beside full_step of tiny_llama_bench: the same cases, threads and loss,
interleaved. Without an axis option, all full_step cases of the default grid, and under autocast."""
EPILOG = """\
Exit status: 0 all cases measured, or skipped with a reason; 1 some case failed; 2 bad options, the
set-up failed, or files that cannot be written; 130 interrupted, with everything measured so far
written."""


def choose_cases(given: argparse.Namespace) -> tuple[CaseName, ...]:
    """The cases in the order in which they run."""
    cases = []
    for dtype in sorted(given.dtypes, key=DTYPES.index):
        for size in given.sizes:
            own = problem_sizes()[size]
            batches, seqs = GRIDS.get(size, ((own["batch"],), (own["seq"],)))
            shapes = itertools.product(given.batch or batches, given.seq or seqs)
            cases += [full_step(size, dtype, batch, seq) for batch, seq in shapes]
    return tuple(cases)


def device(text: str) -> str:
    """As the programs take it, but for `auto`, which each side could take otherwise."""
    if not re.fullmatch(r"cpu|(cuda|hip)(:\d{1,2})?", text):
        raise argparse.ArgumentTypeError(f"device '{text}': must be cpu, cuda[:N] or hip[:N]")
    return text


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Options with `cases`. A bad one ends the program with status 2."""
    parser = script_parser("peers", DESCRIPTION, EPILOG)
    add, sizes = parser.add_argument, list_of(tuple(problem_sizes()), "size")
    add("--sizes", type=sizes, default=("tiny", "small"), help="default: tiny,small")
    dtypes = list_of(DTYPES, "dtype")
    add("--dtypes", type=dtypes, default=DTYPES, help=f"default: {','.join(DTYPES)}")
    add("--batch", type=positive_list, help="e.g. 4,8 (default: those of the default grid)")
    add("--seq", type=positive_list, help="e.g. 64,128 (default: those of the default grid)")
    forms, all_of_them = list_of(tuple(FORMS), "peer"), f"default: {','.join(FORMS)}"
    add("--peers", dest="forms", type=forms, default=tuple(FORMS), help=all_of_them)
    ours = {"dest": "variants", "type": variants, "default": ("baseline", "optimized")}
    add("--variant", **ours, help="of ours (default: baseline,optimized)")
    turns_help = "how often each side runs (default: 6, enough for 95 %%)"
    add("--turns", type=positive, default=6, help=turns_help)
    add("--steps", type=positive, default=3, help="timed steps of a turn (default: 3)")
    limit_help = (
        "of timed steps of a side (default: 10), which gets fewer of them, but one a turn; a case "
        "with a step above it is skipped"
    )
    add("--max-seconds-per-case", type=seconds, default=10.0, metavar="S", help=limit_help)
    threads_help = "CPU threads of every side (default: tiny_llama_bench's own choice)"
    add("--threads", type=positive, help=threads_help)
    devices = "cpu, cuda[:N] or hip[:N], of every side (default: cpu)"
    add("--device", type=device, default="cpu", help=devices)
    add("--output", type=Path, help="folder (default: results/<UTC time>_peers)")
    source_help = "write the tables of an earlier peers.json anew"
    add("--from", type=Path, dest="source", metavar="FILE", help=source_help)
    given = parser.parse_args(arguments)
    given.cases = choose_cases(given)
    if min(case.seq for case in given.cases) < 2:
        parser.error("--seq '1': must be at least 2, for there to be a next token")
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
) -> Json:
    """The whole file. `context`: that of any process of ours."""
    rows = [list(entries(result, i * len(result.sides))) for i, result in enumerate(results)]
    measured = {result.case for result, found in zip(results, rows, strict=True) if found}
    about = {
        "forms": {s.variant: s.form | {"measured": s.settings} for s in peers},
        "turns": options.turns,
        "steps": options.steps,
        "max_seconds_per_case": options.max_seconds_per_case,
        "commits": [context["git_commit"]],
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
    # the turns were timed without the proof, which had a process of its own
    context = {**context, "verify": "off", "peers": about}
    return {"context": context, "benchmarks": list(itertools.chain(*rows))}


def read_peers(path: Path) -> Json:
    """The document of an earlier run; BadInputError where it is none."""
    document, _ = read_json(path)
    if not is_result(document) or "peers" not in document["context"]:
        raise BadInputError(f"{path}: must be a result of scripts/peers; name its peers.json")
    return checked_result(document, path)


def time_of(entries: Sequence[Json]) -> tuple[str, str]:
    """The median step or what became of it, and a note on that."""
    last = entries[-1]
    for word, key in (("failed", "error_message"), ("skipped", "skip_message")):
        if key in last:
            return word, last[key]
    median = statistics.median(e["real_time"] * UNITS[e["time_unit"]] for e in entries)
    return f"{1e3 * median:.4g}", next((e["above_peak"] for e in entries if "above_peak" in e), "")


def peers_page(document: Json) -> str:
    """The whole page."""
    context, about = document["context"], document["context"]["peers"]
    runs = [
        (parse_case_name(name), list(found))
        for name, found in itertools.groupby(document["benchmarks"], lambda e: e["run_name"])
    ]
    ours = dict.fromkeys(case.variant for case, _ in runs if not case.variant.startswith(PREFIX))
    ratios = {(row["case"], row["peer"]): Ratio.from_json(row).text() for row in about["ratios"]}
    rows = []
    for case, entries in runs:
        median, note = time_of(entries)
        over = [ratios.get((str(replace(case, variant=v)), case.variant), "") for v in ours]
        point = (case.size, case.dtype, str(case.batch), str(case.seq))
        rows.append([*point, case.variant, median, *over, note])
    return template(PAGE).render(
        context=context,
        about=about,
        measured=next((f["measured"] for f in about["forms"].values() if f["measured"]), None),
        columns=[
            "size",
            "dtype",
            "batch",
            "seq",
            "side",
            "ms",
            *(f"over {v}" for v in ours),
            "note",
        ],
        rows=rows,
    )


def write(document: Json, folder: Path) -> str:
    """Both files; the page."""
    page = peers_page(document)
    write_whole(folder / RESULT, json.dumps(document, indent=1) + "\n")
    write_whole(folder / "PEERS.md", page)
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


def measure(options: argparse.Namespace, program: SuiteProgram, folder: Path) -> tuple[int, str]:
    """All cases, written after each; the exit status, and the page if anything was measured."""
    context = program.run([QUICKEST], 1).context
    limit, of_peers = options.max_seconds_per_case, (options.device, context["threads"])
    ours = [OurSide(variant, program, limit) for variant in options.variants]
    peers = [PeerSide(name, *of_peers, limit) for name in options.forms]
    sides = [*ours, *peers]
    results: list[CaseRun] = []
    begin, page, is_interrupted = time.monotonic(), "", False
    try:
        for number, case in enumerate(options.cases, start=1):
            spent = time.monotonic() - begin
            say(f"[{number}/{len(options.cases)}] {title(case)}  ({spent:.0f} s so far)")
            results.append(CaseRun(case, {side.variant: SideRun() for side in sides}))
            try:
                measure_case(results[-1], sides, options.turns, options.steps, limit)
            except KeyboardInterrupt:
                say("interrupted")
                is_interrupted = True
            page = write(peers_document(options, results, ours, peers, context), folder)
            if is_interrupted:
                return INTERRUPTED, page
    finally:
        for side in peers:
            side.close()
    runs = [run for result in results for run in result.sides.values()]
    return int(any("error_occurred" in run.stopped for run in runs)), page


def main(arguments: Sequence[str]) -> int:
    """Measures; --from: the tables of an earlier result."""
    options = parse_options(arguments)
    # a result in results/reference has its page elsewhere
    is_run = options.source and options.source.name == RESULT
    folder = options.output or (options.source.parent if is_run else run_folder("peers", RESULTS))
    # before there is a folder
    document = read_peers(options.source) if options.source else None
    program = None if document else our_program(options)
    folder.mkdir(parents=True, exist_ok=True)
    status, page = (0, write(document, folder)) if document else measure(options, program, folder)
    print(page, end="")
    print(folder)
    return status
