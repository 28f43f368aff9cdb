"""scripts/peers: our full training step beside LlamaForCausalLM, eager and compiled.

Our variants, in a new process each block, are interleaved with the peers, which keep theirs.
"""

import argparse
import itertools
import json
import os
import random
import re
import statistics
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.commands.interleaved import InterleavedSteps, add_run_options
from tinyllama_tools.commands.peer_packages import PackagesError, folder_with, user_cache
from tinyllama_tools.commands.step_sides import Side, block_entry
from tinyllama_tools.compare.sides import (
    CaseSkippedError,
    KeptProcess,
    ProcessLostError,
    ServedProcess,
    ServedProgram,
)
from tinyllama_tools.core.app import Json, command_text, problem_sizes
from tinyllama_tools.core.installation import IS_CHECKOUT, python_path, typed
from tinyllama_tools.core.options import list_of, positive_list, script_parser, variants
from tinyllama_tools.core.subcommands import require
from tinyllama_tools.core.text import number, template
from tinyllama_tools.data.names import CaseName, StoredCase, full_step, parse_case_name
from tinyllama_tools.data.results import read_rows
from tinyllama_tools.models.step_ratios import Ratios, point_title, ratios_in

PAGE = Path(__file__).parent / "templates/peers.md.j2"
# in the order in which they run: bf16, which is slow where the processor lacks it, comes last
DTYPES = ("f32", "amp_bf16", "bf16")
# batches and sequences of full_step in the default grid of tiny_llama_bench
GRIDS = {"tiny": ((4, 8, 16), (64, 128, 256, 512)), "small": ((8,), (256,))}
PREFIX = "peer:"
# By default glibc maps and unmaps every large tensor: thousands of page faults a step, which are
# not the peer's work. Our program keeps its memory, so the peers are made to, by thresholds above
# any tensor here (the last underscore is glibc's). One peer keeps glibc's defaults and shows what
# that is worth.
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
KEEPS, DEFAULT = "glibc that keeps its memory", "glibc by default"
DEFAULT_MALLOC = "_default_malloc"
_PLAIN: Json = {"is_compiled": False, "precision": "highest", "adamw": "fused", "malloc": KEEPS}
_EAGER: Json = _PLAIN | {"attention": "eager", "adamw": "for-loop"}
# `medium` lets oneDNN compute float32 GEMMs, with less precision where the processor offers that;
# peer_process.py measures the error and then sets `highest`.
_TUNED: Json = {"is_compiled": True, "precision": "medium"}
# peer: how it runs
FORMS: dict[str, Json] = {
    "eager": _EAGER,
    "eager" + DEFAULT_MALLOC: _EAGER | {"malloc": DEFAULT},
    "sdpa": _PLAIN | {"attention": "sdpa"},
    "compile_default": _PLAIN | {"attention": "sdpa", "is_compiled": True},
    "compile_tuned": _PLAIN | {"attention": "eager"} | _TUNED,
    # slow to compile, and on a GPU with CUDA graphs
    "compile_max_autotune": _PLAIN
    | {"attention": "sdpa", "is_compiled": True, "mode": "max-autotune"},
    # a back end of torch.compile, AMD's; and another framework: peer_packages.py gets them
    "zentorch": _PLAIN | {"attention": "eager", "library": "zentorch"} | _TUNED,
    # of all threads one arena, since what others map for large tensors is not kept
    "jax": _PLAIN
    | {"attention": "einsum", "is_compiled": True, "adamw": "jit", "library": "jax"}
    | {"environment": {"MALLOC_ARENA_MAX": "1"}},
}
OTHERS = ("compile_max_autotune", "zentorch", "jax")
DEFAULT_FORMS = tuple(name for name in FORMS if name not in OTHERS)

DESCRIPTION = """\
Training steps of LlamaForCausalLM in Python (eager, scaled_dot_product_attention, torch.compile as
it is and tuned, each with a malloc that keeps its memory; eager with glibc's defaults too) beside
full_step of tiny_llama_bench: the same cases, threads and loss, interleaved. Without an axis
option, all full_step cases of the default grid, and under autocast."""
EPILOG = """\
Exit status: 0 all cases measured, or skipped with a reason; 1 some case failed; 2 bad options, the
set-up failed, a budget too short for any verdict, or files that cannot be written; 130 interrupted,
with everything measured so far written."""


def choose_cases(given: argparse.Namespace) -> tuple[CaseName, ...]:
    """All cases, in the order in which they run."""
    cases = []
    for dtype in sorted(given.dtypes, key=DTYPES.index):
        for size in given.sizes:
            own = problem_sizes()[size]
            batches, seqs = GRIDS.get(size, ((own["batch"],), (own["seq"],)))
            shapes = itertools.product(given.batch or batches, given.seq or seqs)
            cases += [full_step(size, dtype, batch, seq) for batch, seq in shapes]
    return tuple(cases)


def device(text: str) -> str:
    """A device as the programs take it; not `auto`, of which each side could choose another."""
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
    forms, usual = list_of(tuple(FORMS), "peer"), f"default: {','.join(DEFAULT_FORMS)}"
    usual += f"; also {', '.join(OTHERS)}"
    add("--peers", dest="forms", type=forms, default=DEFAULT_FORMS, help=usual)
    ours = {"type": variants, "default": ("baseline", "optimized")}
    add("--variants", **ours, help="of ours (default: baseline,optimized)")
    add_run_options(parser, limit=10.0)
    devices = "cpu, cuda[:N] or hip[:N], of every side (default: cpu)"
    add("--device", type=device, default="cpu", help=devices)
    given = parser.parse_args(arguments)
    given.cases = choose_cases(given)
    if min(case.seq for case in given.cases) < 2:
        parser.error("--seq '1': must be at least 2, for there to be a next token")
    return given


# a Python with these packages; scripts/peers names it where it is not this one
ORACLE_PACKAGES = ("safetensors", "torch", "transformers")
ORACLE_VARIABLE = "TINY_LLAMA_ORACLE_PYTHON"
ORACLE_PYTHON = os.environ.get(ORACLE_VARIABLE, sys.executable)
PEER = (ORACLE_PYTHON, "-W", "ignore", "-m", "tinyllama_tools.commands.peer_process")
# for one answer: compiling a step of a large model takes minutes
LIMIT_S = 3600.0


def compiled_code_kept() -> dict[str, str]:
    """The variable by which torch.compile keeps its code in the user's cache for the next run;
    empty where the user chose a place, or has no home: torch then takes /tmp."""
    name, cache = "TORCHINDUCTOR_CACHE_DIR", user_cache()
    return {name: str(cache / "torchinductor")} if cache and name not in os.environ else {}


class PeerSide(Side):
    """One peer, in a process that it keeps. `settings`: what the process says of itself."""

    def __init__(self, name: str, device: str, threads: int, max_seconds: float) -> None:
        self.form = FORMS[name]
        self.variant = PREFIX + name
        self.settings: Json = {}
        asked = {
            "device": device,
            "form": self.form,
            "limit": max_seconds,
            "sizes": problem_sizes(),
        }
        # threads are placed as those of our program
        arguments = (*PEER[1:], json.dumps(asked), f"--threads={threads}")
        environment = {
            **compiled_code_kept(),
            "PYTHONPATH": python_path(),
            **(KEEPING if self.form["malloc"] == KEEPS else {}),
            **self.form.get("environment", {}),
        }
        program = ServedProgram(self.variant, Path(PEER[0]), arguments, environment)
        self._kept = KeptProcess(program, LIMIT_S, random.Random(0))
        self._loss_errors: dict[str, float] = {}
        self._library: str | None = self.form.get("library")
        self._packages: Path | None = None
        # why there are none: tried once
        self._absent: PackagesError | None = None

    def get_ready(self, case: CaseName) -> float:
        process = self._started()
        self.settings = process.greet()["context"] | {"loss_errors": self._loss_errors}
        process.ask_to_open(str(case))
        opened = process.opened(str(case))
        error = max(opened["counters"].get("loss_error", 0), self._loss_errors.get(case.dtype, 0))
        self._loss_errors[case.dtype] = error
        return opened["seconds"]

    def _started(self) -> ServedProcess:
        """CaseSkippedError where packages of its own cannot be had, or do not run here."""
        if not self._library:
            return self._kept.ready()
        try:
            if self._absent:
                raise self._absent
            if not self._packages:
                self._packages = folder_with(self._library, PEER[0])
                path = os.pathsep.join((str(self._packages), python_path()))
                program = self._kept.program
                environment = {**program.environment, "PYTHONPATH": path}
                self._kept.program = replace(program, environment=environment)
            return self._kept.ready()
        except (PackagesError, ProcessLostError) as error:
            self._absent = error if isinstance(error, PackagesError) else None
            raise CaseSkippedError(self.variant, f"{self._library}: {error}") from error

    def time(self, case: CaseName, seconds: float) -> Json:
        answer = self._kept.ready().timed(str(case), seconds)
        faults, cpu = (statistics.median(answer[key]) for key in ("minor_faults", "cpu_seconds"))
        entry = block_entry(case, answer["seconds"])
        return entry | {"cpu_time": 1e3 * cpu, "minor_faults": faults}

    def close(self) -> None:
        self._kept.end()


def allocator_rows(
    cases: Mapping[CaseName, StoredCase], ratios: Ratios
) -> list[tuple[str, str, str, str, str]]:
    """What glibc's defaults cost a peer: a row for each point that was measured with both
    allocators."""
    rows = []
    for name, default in cases.items():
        kept = replace(name, variant=name.variant.removesuffix(DEFAULT_MALLOC))
        if kept != name and (ratio := ratios.get((name.variant, kept))):
            both = (default, cases[kept])
            faults = (number(case.counters.get("minor_faults"), 0) for case in both)
            rows.append((point_title(name), kept.variant, ratio.judged_text(), *faults))
    return rows


def peers_page(document: Json) -> str:
    """The text of PEERS.md."""
    context, about = document["context"], document["context"]["peers"]
    ratios, rows = ratios_in(document, "peers"), []
    cases = {
        parse_case_name(name): case
        for name, case in read_rows(document, Path("peers.json")).cases.items()
    }
    ours = dict.fromkeys(c.variant for c in cases if not c.variant.startswith(PREFIX))
    for name, case in cases.items():
        found = (ratios.get((name.variant, replace(name, variant=v))) for v in ours)
        over = [ratio.judged_text() if ratio else "" for ratio in found]
        ms = f"{1e3 * case.seconds:.4g}" if case.seconds else "failed" if case.failed else "skipped"
        note = case.failed or case.skipped or case.above_peak
        point = (name.size, name.dtype, str(name.batch), str(name.seq))
        faults = number(case.counters.get("minor_faults"), 0)
        rows.append([*point, name.variant, ms, faults, *over, note])
    measured = next((f["measured"] for f in about["forms"].values() if f["measured"]), None)
    return template(PAGE).render(
        context=context,
        about=about,
        measured=measured,
        ours=ours,
        rows=rows,
        allocator=allocator_rows(cases, ratios),
    )


class Peers(InterleavedSteps):
    """Our variants and the peers. Ratios are a peer's time over ours: above 1, ours is faster."""

    name = "peers"
    fewer = "fewer --sizes, --dtypes, --batch, --seq or --peers"
    page = staticmethod(peers_page)

    def begin(self) -> list[Side]:
        options, threads = self.options, self.context["threads"]
        limit = options.max_seconds_per_case
        peers = [PeerSide(name, options.device, threads, limit) for name in options.forms]
        return [*super().begin(), *peers]

    def pairs(self, names: Collection[str]) -> Iterable[tuple[str, str]]:
        peers = [side for side in names if side.startswith(PREFIX)]
        ours = [side for side in names if side not in peers]
        allocators = [(side, side.removesuffix(DEFAULT_MALLOC)) for side in peers]
        kept = [pair for pair in allocators if pair[1] in peers and pair[0] != pair[1]]
        return [*itertools.product(peers, ours), *kept]

    def about(self) -> Json:
        peers = [side for side in self.sides if isinstance(side, PeerSide)]
        return {"forms": {s.variant: s.form | {"measured": s.settings} for s in peers}}


def main(arguments: Sequence[str]) -> int:
    """The command."""
    options = parse_options(arguments)
    # of a checkout the script has looked for one
    if not (IS_CHECKOUT or os.environ.get(ORACLE_VARIABLE)):
        require(ORACLE_PACKAGES)
    pairs = len(options.forms) * len(options.variants) + (DEFAULT_MALLOC in "".join(options.forms))
    return Peers(options, command_text([*typed("peers").split(), *arguments]), pairs).main()
