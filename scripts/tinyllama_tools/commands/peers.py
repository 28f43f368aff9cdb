"""scripts/peers: our full training step beside LlamaForCausalLM in its forms."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.commands.peer_forms import DTYPES, FORMS, PeerForm
from tinyllama_tools.commands.peer_results import merged, peers_document, peers_page, tune
from tinyllama_tools.commands.peer_sides import (
    CaseRun,
    Effort,
    OurSide,
    PeerProcess,
    PeerSide,
    caching_malloc,
    measure_case,
    start_peer,
    step_flops,
)
from tinyllama_tools.core.app import (
    RESULTS,
    BadInputError,
    Json,
    problem_sizes,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.options import (
    list_of,
    positive,
    positive_list,
    seconds,
    variants,
)
from tinyllama_tools.data.names import CaseName, full_step
from tinyllama_tools.data.programs import SuiteProgram

VARIANTS = ("baseline", "optimized")
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


@dataclass(frozen=True)
class Options:
    """What was asked for, checked."""

    cases: tuple[CaseName, ...]
    forms: tuple[str, ...]
    variants: tuple[str, ...]
    effort: Effort
    threads: int | None
    tune: bool
    out: Path | None
    markdown: Path | None
    sources: tuple[Path, ...] = ()


def default_grid(size: str, dtype: str, own: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Batches and sequences of a size where none are given."""
    grids = AUTOCAST_GRIDS if dtype.startswith("amp_") else GRIDS
    batches, seqs = grids.get(size, ((own["batch"],), (own["seq"],)))
    return list(batches), list(seqs)


def choose_cases(
    sizes: Sequence[str],
    dtypes: Sequence[str],
    batch: Sequence[int] | None,
    seq: Sequence[int] | None,
) -> tuple[CaseName, ...]:
    """The cases in the order in which they run: the smallest first, since it says how long the
    others will take."""
    cases: list[CaseName] = []
    for dtype in sorted(dtypes, key=ORDER_OF_DTYPES.index):
        for size in sizes:
            batches, seqs = default_grid(size, dtype, problem_sizes()[size])
            grid = [full_step(size, dtype, b, s) for b in batch or batches for s in seq or seqs]
            cases += sorted(grid, key=step_flops)
    return tuple(dict.fromkeys(cases))


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
    add("--peers", type=forms, default=tuple(FORMS), help=f"default: {','.join(FORMS)}")
    ours_help = f"of ours (default: {','.join(VARIANTS)})"
    add("--variant", type=variants, default=VARIANTS, help=ours_help)
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
    add("--quick", action="store_true", help="a smoke test: tiny f32 4 x 64, 2 turns of 2 steps")
    add("--tune", action="store_true", help="compare settings of torch.compile at the first case")
    add("--out", type=Path, metavar="FILE", help="JSON (default: results/<time>_peers/peers.json)")
    add("--markdown", type=Path, metavar="FILE", help="tables (default: PEERS.md beside it)")
    add(
        "--from",
        type=Path,
        dest="sources",
        action="append",
        default=[],
        metavar="FILE",
        help="write the tables of earlier results anew, as one; may be given several times",
    )
    return result


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Checked options. A bad one ends the program with status 2."""
    options = parser()
    given = options.parse_args(arguments)
    cases = choose_cases(given.sizes, given.dtypes, given.batch, given.seq)
    if min(case.seq for case in cases) < 2:
        options.error("--seq '1': must be at least 2, for there to be a next token")
    turns, steps = given.turns, given.steps
    if given.quick:
        cases, turns, steps = (full_step("tiny", "f32", 4, 64),), 2, 2
    return Options(
        cases=cases,
        forms=given.peers,
        variants=given.variant,
        effort=Effort(turns, steps, given.max_seconds_per_case),
        threads=given.threads,
        tune=given.tune,
        out=given.out,
        markdown=given.markdown,
        sources=tuple(given.sources),
    )


# The quickest case there is: it says what our program runs on, and that it runs.
QUICKEST = CaseName("rms_norm", "forward", "baseline", "tiny", "f32", 1, 16)


def say(text: str) -> None:
    """Progress, a line at a time."""
    print(text, file=sys.stderr, flush=True)


def our_program(options: Options) -> SuiteProgram:
    """The peers run on the CPU, so ours does."""
    threads = (f"--threads={options.threads}",) if options.threads else ()
    return SuiteProgram(("--device=cpu", *threads))


class BadOptionError(BadInputError):
    """What the options ask for cannot be done; the message names value and rule."""


class Measurement:
    """One run: its sides and what they have done so far."""

    def __init__(self, options: Options, program: SuiteProgram, context: Json) -> None:
        self.options = options
        self.context = context
        self.malloc = caching_malloc()
        self.results: list[CaseRun] = []
        limit = options.effort.max_seconds
        self.ours = [OurSide(variant, program, limit) for variant in options.variants]
        threads = context["threads"]
        self.peers = [PeerSide(FORMS[name], self._start, threads, limit) for name in options.forms]

    def _start(self, form: PeerForm) -> PeerProcess:
        return start_peer(form, self.malloc)

    def run(self, save: Callable[[], None]) -> None:
        """All cases; `save` after each."""
        begin = time.monotonic()
        try:
            for number, case in enumerate(self.options.cases, start=1):
                spent = time.monotonic() - begin
                name = f"{case.size} {case.dtype} {case.batch} x {case.seq}"
                say(f"[{number}/{len(self.options.cases)}] {name}  ({spent:.0f} s so far)")
                sides = [*self.ours, *self.peers]
                measure_case(case, sides, self.options.effort, say, self.results.append)
                save()
        finally:
            for peer in self.peers:
                peer.close()

    def document(self) -> Json:
        """The result file."""
        return peers_document(
            self.results,
            self.ours,
            self.peers,
            self.context,
            self.options.effort,
            self.malloc.description,
            self.options.cases,
        )

    def failed(self) -> bool:
        """Whether some side failed at some case."""
        return any(run.failed for result in self.results for run in result.sides.values())


def output_files(options: Options) -> list[tuple[Path, str]]:
    """Where what goes: (file, "json" or "markdown")."""
    folder = run_folder("peers", RESULTS)
    return [
        (options.out or folder / "peers.json", "json"),
        (options.markdown or folder / "PEERS.md", "markdown"),
    ]


def write(document: Json, page: str, files: Sequence[tuple[Path, str]]) -> None:
    """Writes each file whole."""
    for path, kind in files:
        write_whole(path, page if kind == "markdown" else json.dumps(document, indent=1) + "\n")


def check_writable(files: Sequence[tuple[Path, str]]) -> None:
    """Before anything is measured. Raises BadOptionError."""
    for path, _ in files:
        if path.is_dir():
            raise BadOptionError(f"'{path}': must be a file, not a folder")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise BadOptionError(f"'{path}': cannot be written: {error}") from error


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ends at Ctrl-C, or when the process is asked to end; the value then says so."""
    state = {"interrupted": False}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        yield lambda: state["interrupted"]
    except KeyboardInterrupt:
        state["interrupted"] = True
        say("interrupted")


def rewrite(options: Options) -> int:
    """--from: one result of earlier ones. What they lack of the cases asked for is said in it."""
    files = output_files(options)
    check_writable(files)
    try:
        documents = [json.loads(path.read_text(encoding="utf-8")) for path in options.sources]
        document = merged(documents, options.cases)
        page = peers_page(document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadOptionError(f"--from: no results of scripts/peers that fit: {error}") from error
    write(document, page, files)
    for path, _ in files:
        say(f"wrote {path}")
    print(page, end="")
    return 0


def measure(options: Options) -> int:
    """The whole run; its exit status."""
    files = output_files(options)
    check_writable(files)
    program = our_program(options)
    context = program.run([QUICKEST], 1).context
    if options.tune:
        for line in tune(options.cases[0], options.effort, context["threads"], say):
            print(line)
        return 0
    measurement = Measurement(options, program, context)

    def save() -> str:
        document = measurement.document()
        page = peers_page(document)
        write(document, page, files)
        return page

    with interruptible() as interrupted:
        measurement.run(save)
    if measurement.results:
        page = save()
        for path, _ in files:
            say(f"wrote {path}")
        print(page, end="")
    if interrupted():
        return 130
    return 1 if measurement.failed() else 0


def main(arguments: Sequence[str]) -> int:
    """Reads the options and measures."""
    options = parse_options(arguments)
    return rewrite(options) if options.sources else measure(options)
