"""scripts/peers: our full training step beside LlamaForCausalLM in its forms.

Sides are interleaved at one case: our program, a process a turn, and a process of each peer.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    made_by,
    placed_threads,
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
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import last_words, template
from tinyllama_tools.data.names import UNITS, CaseName, full_step, parse_case_name
from tinyllama_tools.data.programs import SuiteError, SuiteProgram, rows_of, suite_program
from tinyllama_tools.data.results import checked_result
from tinyllama_tools.data.studies import is_result
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

PAGE, RESULT = Path(__file__).parent / "templates/peers.md.j2", "peers.json"
# in the order in which they run: what is slow without support by the processor comes last
DTYPES = ("f32", "amp_bf16", "bf16")
# full_step in the default grid of tiny_llama_bench (DEFAULT_GRID_OF[size]: batches, sequences)
GRIDS = {"tiny": ((4, 8, 16), (64, 128, 256, 512)), "small": ((8,), (256,))}
PREFIX = "peer:"
# By itself glibc maps and unmaps every large tensor, which costs a small step a tenth to a third.
# These are above any tensor here; the last underscore is glibc's.
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
KEEPS = "glibc that keeps its memory"
_PLAIN: Json = {
    "is_compiled": False,
    "precision": "highest",
    "adamw": "fused",
    "malloc": "glibc",
}
# `medium`: float32 GEMMs by way of oneDNN, true float32 only where the processor has nothing less
# exact; the peer's process sets `highest` where it is not
_TUNED: Json = {"is_compiled": True, "precision": "medium", "malloc": KEEPS}
# How each peer runs, by its name.
FORMS: dict[str, Json] = {
    "eager": _PLAIN | {"attention": "eager", "adamw": "for-loop"},
    "sdpa": _PLAIN | {"attention": "sdpa"},
    "compile_default": _PLAIN | {"attention": "sdpa", "is_compiled": True},
    "compile_tuned": _PLAIN | {"attention": "eager"} | _TUNED,
}

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


class SideError(Exception):
    """A side failed at a case, or left it out on purpose. `entry`: what the file says of it."""

    def __init__(self, reason: str, *, is_skip: bool = False) -> None:
        super().__init__(reason)
        failed = {"error_occurred": True, "error_message": reason}
        self.entry: Json = {
            **{"iterations": 0, "real_time": 0.0, "cpu_time": 0.0, "time_unit": "ms"},
            **({"skipped": True, "skip_message": reason} if is_skip else failed),
        }


# which has torch and transformers; scripts/peers says which, where it is not this one
ORACLE_PYTHON = os.environ.get("TINY_LLAMA_ORACLE_PYTHON", sys.executable)
PEER = (ORACLE_PYTHON, "-W", "ignore", "-m", "tinyllama_tools.commands.peer_process")
SECONDS_TO_END = 10
# Our program refuses a case that it cannot warm up, meter and time within its limit.
FEWEST_ITERATIONS = 3


def median_seconds(entries: Sequence[Json]) -> float:
    """Of a step."""
    return statistics.median(entry["real_time"] * UNITS[entry["time_unit"]] for entry in entries)


class OurSide:
    """One variant of tiny_llama_bench, a process a turn. Once verified, its turns are timed without
    the proof."""

    def __init__(self, variant: str, program: SuiteProgram, max_seconds: float) -> None:
        self.variant = variant
        self._program = program
        self._limit = f"--max-seconds-per-case={FEWEST_ITERATIONS * max_seconds:g}"

    def get_ready(self, case: CaseName) -> float:
        """Seconds of a verified step."""
        return median_seconds(self.time(case, 1, verify=True))

    def time(self, case: CaseName, steps: int, *, verify: bool = False) -> list[Json]:
        """So many steps, each an entry in the suite's own format."""
        own = replace(case, variant=self.variant)
        try:
            document = self._program.measure([own], steps, verify=verify, more=[self._limit])
        except SuiteError as error:
            raise SideError(str(error)) from error
        rows = rows_of(document, own)
        for key in ("skip_message", "error_message"):
            if key in rows[-1]:
                raise SideError(rows[-1][key], is_skip=key == "skip_message")
        return rows


class PeerSide:
    """One form of the peer, in a process that is started when it is needed, and again if it died.
    `settings`: what the process said of itself."""

    def __init__(self, name: str, device: str, threads: int, max_seconds: float) -> None:
        self.form = FORMS[name]
        self.variant = PREFIX + name
        self.settings: Json = {}
        self._device = device
        self._threads = threads
        self._max_seconds = max_seconds
        self._process: subprocess.Popen[str] | None = None

    def _start(self) -> None:
        """Threads placed as our program places its own, the form's malloc, and where code is kept.
        In a session of its own: Ctrl-C is for us, who then close its input."""
        self.close()
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(PROJECT / ".deps/torchinductor"),
            **placed_threads(os.environ),
            "PYTHONPATH": str(PROJECT / "scripts"),
            **(KEEPING if self.form["malloc"] == KEEPS else {}),
        }
        # closed in close(), with the process
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            (*PEER, self._device),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.settings = self._ask("hello", form=self.form, threads=self._threads)

    def _ask(self, do: str, **what: object) -> Json:
        """The answer. SideError where it says that it could not, or has ended."""
        process = self._process
        assert process and process.stdin and process.stdout
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"do": do, **what}) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            status = process.wait()
            self._said.seek(0)
            words = last_words(self._said.read()) or "it said nothing"
            raise SideError(f"{self.variant}: its process ended with {status}: {words}")
        answer = json.loads(line)
        if "error" in answer:
            raise SideError(f"{self.variant}: {answer['error']}")
        return answer

    def get_ready(self, case: CaseName) -> float:
        """Builds the case and warms up; seconds of a step."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        what = {"size": problem_sizes()[case.size], "batch": case.batch, "seq": case.seq}
        limit = self._max_seconds
        seconds = min(self._ask("build", **what, dtype=case.dtype, limit=limit)["seconds"])
        if seconds > limit:
            more = f"more than --max-seconds-per-case {limit:g}"
            raise SideError(f"a step took {seconds:.1f} s, {more}", is_skip=True)
        return seconds

    def time(self, case: CaseName, steps: int) -> list[Json]:
        """So many steps, each an entry in the suite's own format."""
        answer = self._ask("time", steps=steps)
        return [
            {
                "iterations": 1,
                "real_time": 1e3 * wall,
                "cpu_time": 1e3 * cpu,
                "time_unit": "ms",
                "samples_per_second": case.batch / wall,
                "tokens_per_second": case.batch * case.seq / wall,
            }
            for wall, cpu in zip(answer["seconds"], answer["cpu_seconds"], strict=True)
        ]

    def close(self) -> None:
        """Lets its process end, and makes it where it does not."""
        process, self._process = self._process, None
        if process:
            try:
                process.communicate(timeout=SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            self._said.close()


Side = OurSide | PeerSide


# By side, in the order of their rows, the entries of each turn; of a side that stopped, which has
# no times, the one that says why. It fills meanwhile: whoever interrupts still has it.
CaseRun = Mapping[str, list[list[Json]]]


def ratio_of(run: CaseRun, other: str, ours: str) -> Ratio | None:
    """Times of `other` over those of `ours`, over the turns that both had: above 1, ours is
    faster."""
    pairs = zip(run[other], run[ours], strict=False)
    timed = [pair for pair in pairs if all(turn[0]["iterations"] for turn in pair)]
    medians = [tuple(map(median_seconds, pair)) for pair in timed]
    return ratio_of_turns(*zip(*medians, strict=True)) if medians else None


def measure_case(
    case: CaseName, run: CaseRun, sides: Sequence[Side], turns: int, steps: int, max_seconds: float
) -> None:
    """All sides at one case: they get ready, then so many steps a turn, fewer where all turns would
    take longer than that. Who begins a turn moves on by one each turn."""
    left, steps_of = list(sides), dict[str, int]()
    for turn in range(-1, turns):
        first = turn % len(left) if left and turn > 0 else 0
        for side in (*left[first:], *left[:first]):
            name = side.variant
            try:
                if turn < 0:
                    affordable = int(max_seconds / turns / side.get_ready(case))
                    steps_of[name] = max(1, min(steps, affordable))
                else:
                    run[name].append(side.time(case, steps_of[name]))
            except SideError as reason:
                # no times beside the reason
                run[name][:] = [[reason.entry]]
                left.remove(side)


# The quickest case there is: it says what our program runs on, and that it runs.
QUICKEST = CaseName("rms_norm", "forward", "baseline", "tiny", "f32", 1, 16)


def entries(case: CaseName, run: CaseRun, family: int) -> Iterator[Json]:
    """One entry a step of every side at a case, the turns in order; of a side that did not measure
    it, one with the reason. Keys are Google Benchmark's."""
    # the peers compute the same model
    every = (entry for turns in run.values() for turn in turns for entry in turn)
    flops = next((entry["model_flops"] for entry in every if "model_flops" in entry), None)
    for number, (variant, turns) in enumerate(run.items(), start=family):
        found = list(itertools.chain(*turns))
        for index, entry in enumerate(found):
            name = entry.get("name", str(replace(case, variant=variant)))
            if flops and "samples_per_second" in entry and "model_flops" not in entry:
                rate = entry["samples_per_second"] / case.batch
                entry |= {"model_flops": flops, "TFLOPS": flops * rate * 1e-12}
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
    results: Mapping[CaseName, CaseRun],
    sides: Sequence[Side],
    context: Json,
) -> Json:
    """The whole file. `context`: that of any process of ours."""
    rows = [list(entries(*result, i * len(sides))) for i, result in enumerate(results.items())]
    measured = {case for case, found in zip(results, rows, strict=True) if found}
    peers = [side for side in sides if isinstance(side, PeerSide)]
    about = {
        "forms": {s.variant: s.form | {"measured": s.settings} for s in peers},
        "turns": options.turns,
        "steps": options.steps,
        "max_seconds_per_case": options.max_seconds_per_case,
        "commits": [context["git_commit"]],
        # what an interruption left out
        "not_measured": [title(case) for case in options.cases if case not in measured],
        "ratios": [
            {"case": str(replace(case, variant=our)), "peer": peer.variant} | ratio.as_json()
            for case, run in results.items()
            for our in options.variants
            for peer in peers
            if (ratio := ratio_of(run, peer.variant, our))
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
    note = next((entry["above_peak"] for entry in entries if "above_peak" in entry), "")
    return f"{1e3 * median_seconds(entries):.4g}", note


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
    measured = next((f["measured"] for f in about["forms"].values() if f["measured"]), None)
    return template(PAGE).render(
        context=context, about=about, measured=measured, ours=ours, rows=rows
    )


def write(document: Json, folder: Path) -> str:
    """Both files; the page."""
    page = peers_page(document)
    write_whole(folder / RESULT, json.dumps(document, indent=1) + "\n")
    write_whole(folder / "PEERS.md", page)
    return page


def measure(options: argparse.Namespace, program: SuiteProgram, folder: Path) -> tuple[int, str]:
    """All cases, written after each; the exit status, and the page if anything was measured."""
    context = program.measure([QUICKEST], 1)["context"]
    limit, threads = options.max_seconds_per_case, context["threads"]
    peers = [PeerSide(name, options.device, threads, limit) for name in options.forms]
    sides = [*(OurSide(variant, program, limit) for variant in options.variants), *peers]
    results: dict[CaseName, CaseRun] = {}
    begin, status, page, say = time.monotonic(), 0, "", Progress().line
    try:
        for number, case in enumerate(options.cases, start=1):
            spent = time.monotonic() - begin
            say(f"[{number}/{len(options.cases)}] {title(case)}  ({spent:.0f} s so far)")
            run = results[case] = {side.variant: [] for side in sides}
            try:
                measure_case(case, run, sides, options.turns, options.steps, limit)
            except KeyboardInterrupt:
                say("interrupted")
                status = INTERRUPTED
            page = write(peers_document(options, results, sides, context), folder)
            if status == INTERRUPTED:
                break
            status |= any("error_occurred" in turns[0][0] for turns in run.values())
    finally:
        for peer in peers:
            peer.close()
    return status, page


def main(arguments: Sequence[str]) -> int:
    """Measures; --from: the tables of an earlier result."""
    options = parse_options(arguments)
    # a result in results/reference has its page elsewhere
    is_run = options.source and options.source.name == RESULT
    folder = options.output or (options.source.parent if is_run else run_folder("peers", RESULTS))
    # before there is a folder
    if options.source:
        document = read_peers(options.source)
        folder.mkdir(parents=True, exist_ok=True)
        with made_by("scripts/peers", options.source):
            status, page = 0, write(document, folder)
    else:
        program = suite_program(options.device, options.threads, options.variants)
        folder.mkdir(parents=True, exist_ok=True)
        status, page = measure(options, program, folder)
    print(page, end="")
    print(folder)
    return status
