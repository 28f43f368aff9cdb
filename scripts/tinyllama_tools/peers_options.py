"""The options of scripts/peers, and the cases that they choose."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.core.options import (
    list_of,
    machine,
    positive,
    positive_list,
    seconds,
    variants,
)
from tinyllama_tools.data.programs import SuiteCase, problem_sizes
from tinyllama_tools.peer_forms import DTYPES, FORMS
from tinyllama_tools.peers_sides import step_flops
from tinyllama_tools.peers_turns import Effort

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

    cases: tuple[SuiteCase, ...]
    forms: tuple[str, ...]
    variants: tuple[str, ...]
    effort: Effort
    threads: int | None
    tune: bool
    out: Path | None
    markdown: Path | None
    publish: str | None
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
) -> tuple[SuiteCase, ...]:
    """The cases in the order in which they run: the smallest first, since it says how long the
    others will take."""
    cases: list[SuiteCase] = []
    for dtype in sorted(dtypes, key=ORDER_OF_DTYPES.index):
        for size in sizes:
            batches, seqs = default_grid(size, dtype, problem_sizes()[size])
            grid = [SuiteCase(size, dtype, b, s) for b in batch or batches for s in seq or seqs]
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
    add(
        "--publish",
        type=machine,
        metavar="MACHINE",
        help="also write results/PEERS.md and results/reference/peers_MACHINE.json",
    )
    return result


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Checked options. A bad one ends the program with status 2."""
    options = parser()
    given = options.parse_args(arguments)
    cases = choose_cases(given.sizes, given.dtypes, given.batch, given.seq)
    if min(case.seq for case in cases) < 2:
        options.error("--seq '1': must be at least 2, for there to be a next token")
    if given.publish and (given.quick or given.tune):
        options.error("--publish: a smoke test or a choice of settings is not published")
    turns, steps = given.turns, given.steps
    if given.quick:
        cases, turns, steps = (SuiteCase("tiny", "f32", 4, 64),), 2, 2
    return Options(
        cases=cases,
        forms=given.peers,
        variants=given.variant,
        effort=Effort(turns, steps, given.max_seconds_per_case),
        threads=given.threads,
        tune=given.tune,
        out=given.out,
        markdown=given.markdown,
        publish=given.publish,
        sources=tuple(given.sources),
    )


if __name__ == "__main__":
    parse_options()
