"""scripts/test --campaign [NAME...]: faults in their thousands, and a page of what was tried.

Each part's figures go to results/reference/reliability.json and all of them to
results/RELIABILITY.md; parts that are not run keep theirs. Exit status: 0 all held, 1 something did
not, 2 bad option, 130 interrupted (what was tried is kept).
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from built_programs import undo_nohup
from campaign import processes, readers, resources, sanitizers, soak
from campaign.runs import Note, OfLibrary, Scope, Tried
from campaign.workloads import PROJECT
from tinyllama_tools.core.app import (
    checkout_state,
    now_text,
    processor_name,
    run_command,
    without_folders,
    write_whole,
)
from tinyllama_tools.core.options import minutes, positive, script_parser
from tinyllama_tools.core.text import duration, template

FIGURES = PROJECT / "results/reference/reliability.json"
PAGE = PROJECT / "results/RELIABILITY.md"
# of violations of one part that are kept word for word
MOST_KEPT = 20
PARTS = {
    part.__name__: part
    for part in (
        *(processes.kills, resources.writes, resources.memory, processes.signals, processes.sides),
        *(readers.readers, sanitizers.fuzzing, sanitizers.sanitizers),
        *(soak.soak, processes.together, resources.supply),
    )
}


def rule_of(name: str) -> str:
    """What must hold, as the part's own comment says."""
    return " ".join((PARTS[name].__doc__ or "").split()).rstrip(".")


def tries_of(name: str, scope: Scope) -> Iterator[Tried]:
    """The tries of a part; that it could not go on is a violation."""
    try:
        yield from PARTS[name](scope)
    except Exception as error:
        yield Tried(name, [f"{type(error).__name__}: {error}"[:300]], 0)


def violations(part: Sequence[Tried]) -> list[str]:
    return [f"{t.kind}: {text}" for t in part for text in t.found if type(text) is str]


def keep(name: str, figures: dict[str, object]) -> None:
    """Writes a part's figures to file and page, beside what another campaign wrote meanwhile."""
    known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    whole = known | {name: figures}
    write_whole(FIGURES, json.dumps(whole, indent=1) + "\n")
    page = template(Path(__file__).with_name("page.md.j2"))
    write_whole(PAGE, page.render(parts={part: rule_of(part) for part in PARTS}, figures=whole))


def run_part(name: str, scope: Scope) -> int:
    """The number of violations. What was tried is kept, also where the rest is interrupted."""
    print(f"== {name}: {rule_of(name)}", flush=True)
    begun, commit, is_whole = time.monotonic(), checkout_state(), False
    part: list[Tried] = []
    try:
        for tried in tries_of(name, scope):
            part.append(tried)
            print(f"{tried.kind}: {list(tried.found) or 'nothing'}", flush=True)
        is_whole = True
    finally:
        seconds, bad, counts = time.monotonic() - begun, violations(part), Counter[str]()
        for kind, _, count in part:
            counts[kind] += count
        found = [text for tried in part for text in tried.found]
        figures = {
            "date": now_text(),
            "commit": commit,
            "machine": f"{processor_name()}, {os.cpu_count()} processors",
            "minutes": round(seconds / 60, 1),
            "share": scope.share,
            "seed": scope.seed,
            "tried": dict(sorted(counts.items())),
            "violations": len(bad),
            "first_violations": list(map(without_folders, bad[:MOST_KEPT])),
            "of_libraries": Counter(sorted(text for text in found if isinstance(text, OfLibrary))),
            "notes": [text for text in found if isinstance(text, Note)],
            "is_whole": is_whole,
        }
        keep(name, figures)
    count = counts.total()
    print(f"{name}: {count} faults, {len(bad)} violations, {duration(seconds)}", flush=True)
    return len(bad)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = script_parser("test --campaign", __doc__, "")
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"of {', '.join(PARTS)}")
    long = "of the soaked comparison, its others a quarter; at most, of each reader that is fuzzed"
    add("--minutes", type=minutes, default=120.0, help=f"{long} (default: %(default)s)")
    add("--share", type=float, default=1.0, help="of the full counts (default: %(default)s)")
    add("--seed", type=positive, default=1, help="of all that is drawn (default: %(default)s)")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(PARTS):
        parser.error(f"{', '.join(unknown)}: must be of {', '.join(PARTS)}")
    if not 0 < options.share <= 1:
        parser.error("--share must be above 0 and at most 1")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    undo_nohup()
    scope = Scope(options.share, options.minutes, options.seed)
    return int(sum(run_part(name, scope) for name in options.names or PARTS) > 0)


if __name__ == "__main__":
    sys.exit(run_command("test --campaign", lambda: main(sys.argv[1:])))
