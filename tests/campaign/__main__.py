"""scripts/test --campaign [NAME...]: faults in their thousands, and a page of what was tried.

Each part's figures go to results/reference/reliability.json and all of them to
results/RELIABILITY.md; parts that are not run keep theirs. Exit status: 0 all held, 1 something did
not, 2 bad option, 130 interrupted (parts that ended are kept).
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import jinja2

from built_programs import undo_nohup
from campaign.tally import Scope, Tally
from campaign.workloads import PROJECT
from tinyllama_tools.core.app import changed_files, head_commit, write_whole
from tinyllama_tools.core.text import duration

FIGURES = PROJECT / "results/reference/reliability.json"
PAGE = PROJECT / "results/RELIABILITY.md"
# of violations of one part that are kept word for word
MOST_KEPT = 20
# name: what must hold
PARTS = {
    "kills": "kill -9 at a random moment: no journaled row lost or measured twice; every file "
    "whole or absent; the next run needs no clean-up",
    "writes": "each write, sync, rename and opening of a file fails once: documented exit status, "
    "a message that names the file, what was measured before is kept",
    "memory": "allocation n fails, or the address space ends: the case fails, the run goes on; no "
    "abort",
    "signals": "INT, TERM, HUP and PIPE, once and twice: documented exit status, results of "
    "finished cases written",
    "sides": "a served side hangs, crashes, answers rubbish or too late; a rank is stopped: named, "
    "bounded in time, the rest kept",
    "readers": "damaged files in every reader of the tools: a message that names the file, no "
    "other exception, no hang",
    "fuzzing": "inputs made by coverage for every reader of the programs, with sanitizers: no "
    "crash, no hang, no exception without a message",
    "sanitizers": "every C++ test under the address and undefined-behaviour sanitizers, and under "
    "the thread sanitizer: no report of ours",
    "soak": "training, served comparisons and ranks for long: resident memory and step time flat",
    "together": "two of everything at once in one checkout: clear refusal or correct results",
    "supply": "no network at run time; requirements with hashes; sources with digests",
}


def machine() -> str:
    """Its processor, as the system names it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} processors"


def figures_of(tally: Tally, scope: Scope, seconds: float) -> dict[str, object]:
    """A part's entry of the file, as far as it came."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": head_commit(PROJECT)[:12] + " with changes" * bool(changed_files(PROJECT)),
        "machine": machine(),
        "minutes": round(seconds / 60, 1),
        "share": scope.share,
        "seed": scope.seed,
        "tried": dict(sorted(tally.tried.items())),
        "violations": len(tally.violations),
        # whose words name no folder of this machine
        "first_violations": [
            text.replace(f"{tempfile.gettempdir()}/", "") for text in tally.violations[:MOST_KEPT]
        ],
        "of_libraries": dict(sorted(tally.of_libraries.items())),
        "notes": tally.notes,
    }


def write_page(figures: dict[str, dict[str, object]]) -> None:
    """results/RELIABILITY.md of the file's parts."""
    template = Path(__file__).with_name("page.md.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    page = environment.from_string(template).render(parts=PARTS, figures=figures)
    write_whole(PAGE, page + "\n")


def keep(name: str, found: dict[str, object]) -> None:
    """A part's entry, beside what another campaign may have written meanwhile."""
    known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    write_whole(FIGURES, json.dumps(known | {name: found}, indent=1) + "\n")
    write_page(known | {name: found})


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/test --campaign", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--minutes",
        type=float,
        default=120,
        help="of the comparison that is soaked, others a quarter; at most, of each reader that is "
        "fuzzed (default: 120)",
    )
    parser.add_argument("--share", type=float, default=1, help="of the full counts (default: 1)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in PARTS:
            parser.error(f"'{name}': must be of {', '.join(PARTS)}")
    if not (options.minutes > 0 and 0 < options.share <= 1):
        parser.error("--minutes must be above 0, --share above 0 and at most 1")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    undo_nohup()
    scope = Scope(options.share, options.minutes, options.seed)
    status = 0
    for name in options.names or PARTS:
        print(f"== {name}: {PARTS[name]}", flush=True)
        begun = time.monotonic()
        tally = Tally()
        # what was tried is kept, should the rest be interrupted
        for found in importlib.import_module(f"campaign.{name}").run_part(scope):
            tally += found
            keep(name, figures_of(tally, scope, time.monotonic() - begun))
        count, bad = sum(tally.tried.values()), len(tally.violations)
        took = duration(time.monotonic() - begun)
        print(f"{name}: {count} faults, {bad} violations, {took}", flush=True)
        status = max(status, int(bool(tally.violations)))
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
