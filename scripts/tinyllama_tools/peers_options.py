"""The options of scripts/peers, and the cases that they choose."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.peer_forms import DTYPES, FORMS
from tinyllama_tools.peers_sides import step_flops
from tinyllama_tools.peers_turns import Effort
from tinyllama_tools.suite_run import SuiteCase, problem_sizes

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


class BadOptionError(Exception):
    """The message names the option, its value and what is allowed."""


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


def names(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    """A list of names, each of them allowed."""
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in allowed:
            raise BadOptionError(f"{option} '{name}': must be one of {', '.join(allowed)}")
    return list(dict.fromkeys(chosen))


def variant_names(text: str) -> list[str]:
    """Names of our variants, which the program itself knows."""
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if not re.fullmatch(r"[a-z0-9_]+(\+[a-z0-9_]+)*", name):
            raise BadOptionError(f"--variant '{name}': must be a name such as baseline or qkv+sdpa")
    return list(dict.fromkeys(chosen))


def positive_numbers(option: str, text: str) -> list[int]:
    """A list of positive integers."""
    return [positive_number(option, item.strip()) for item in text.split(",")]


def positive_number(option: str, text: str) -> int:
    """A positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise BadOptionError(f"{option} '{text}': must be a positive integer")
    return int(text)


def positive_seconds(option: str, text: str) -> float:
    """A positive, finite number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadOptionError(f"{option} '{text}': must be a positive number of seconds")
    return value


def default_grid(size: str, dtype: str, own: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Batches and sequences of a size where none are given."""
    grids = AUTOCAST_GRIDS if dtype.startswith("amp_") else GRIDS
    batches, seqs = grids.get(size, ((own["batch"],), (own["seq"],)))
    return list(batches), list(seqs)


def choose_cases(
    sizes: Sequence[str], dtypes: Sequence[str], batch: str | None, seq: str | None
) -> tuple[SuiteCase, ...]:
    """The cases in the order in which they run: the smallest first, since it says how long the
    others will take."""
    cases = []
    for dtype in sorted(dtypes, key=ORDER_OF_DTYPES.index):
        for size in sizes:
            batches, seqs = default_grid(size, dtype, problem_sizes()[size])
            batches = positive_numbers("--batch", batch) if batch else batches
            seqs = positive_numbers("--seq", seq) if seq else seqs
            grid = [SuiteCase(size, dtype, b, s) for b in batches for s in seqs]
            cases += sorted(grid, key=step_flops)
    if min(case.seq for case in cases) < 2:
        raise BadOptionError(f"--seq '{seq}': must be at least 2, for there to be a next token")
    return tuple(dict.fromkeys(cases))


def parser() -> argparse.ArgumentParser:
    """Every option, as --help shows it."""
    result = argparse.ArgumentParser(prog="scripts/peers", description=DESCRIPTION, epilog=EPILOG)
    add = result.add_argument
    add("--sizes", default="tiny,small", help="names of problem sizes (default: tiny,small)")
    add("--dtypes", default=",".join(DTYPES), help=f"default: {','.join(DTYPES)}")
    add("--batch", help="samples in a step, e.g. 4,8 (default: those of the default grid)")
    add("--seq", help="tokens in a sample, e.g. 64,128 (default: those of the default grid)")
    add("--peers", default=",".join(FORMS), help=f"default: {','.join(FORMS)}")
    add("--variant", default=",".join(VARIANTS), help=f"of ours (default: {','.join(VARIANTS)})")
    add("--turns", default="6", help="how often each side runs (default: 6, enough for 95 %%)")
    add("--steps", default="3", help="timed steps of a turn (default: 3)")
    add(
        "--max-seconds-per-case",
        default="10",
        metavar="S",
        help="of timed steps of a side (default: 10); slow steps get fewer of them, and a case "
        "with a step above it is skipped",
    )
    add("--threads", help="CPU threads of every side (default: tiny_llama_bench's own choice)")
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
        metavar="MACHINE",
        help="also write results/PEERS.md and results/reference/peers_MACHINE.json",
    )
    return result


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Checked options. Raises BadOptionError, or SystemExit for what argparse itself refuses."""
    given = parser().parse_args(arguments)
    sizes = names("--sizes", given.sizes, list(problem_sizes()))
    dtypes = names("--dtypes", given.dtypes, DTYPES)
    forms = names("--peers", given.peers, list(FORMS))
    cases = choose_cases(sizes, dtypes, given.batch, given.seq)
    turns, steps = positive_number("--turns", given.turns), positive_number("--steps", given.steps)
    if given.quick:
        cases, turns, steps = (SuiteCase("tiny", "f32", 4, 64),), 2, 2
    if given.publish and (given.quick or given.tune):
        raise BadOptionError("--publish: a smoke test or a choice of settings is not published")
    if given.publish and not re.fullmatch(r"[a-z0-9_]+", given.publish):
        raise BadOptionError(f"--publish '{given.publish}': must be letters a-z, digits and _")
    limit = positive_seconds("--max-seconds-per-case", given.max_seconds_per_case)
    return Options(
        cases=cases,
        forms=tuple(forms),
        variants=tuple(variant_names(given.variant)),
        effort=Effort(turns, steps, limit),
        threads=positive_number("--threads", given.threads) if given.threads else None,
        tune=given.tune,
        out=given.out,
        markdown=given.markdown,
        publish=given.publish,
        sources=tuple(given.sources),
    )


def main() -> int:
    """Only says whether the options will do."""
    try:
        parse_options()
    except BadOptionError as error:
        print(f"scripts/peers: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
