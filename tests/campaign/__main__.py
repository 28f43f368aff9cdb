"""scripts/test --campaign [NAME...]: faults in their thousands, and a page of what was tried.

Each part's figures go to results/reference/reliability.json and all of them to
results/RELIABILITY.md; parts that are not run keep theirs. Exit status: 0 all held, 1 something did
not, 2 bad option, 130 interrupted (parts that ended are kept).
"""

import argparse
import datetime
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from built_programs import undo_nohup
from campaign import processes, readers, resources, sanitizers, soak
from campaign.runs import Note, OfLibrary, Scope, Tried, without_scratch
from campaign.workloads import PROJECT
from tinyllama_tools.core.app import changed_files, head_commit, write_whole
from tinyllama_tools.core.text import duration, template

FIGURES = PROJECT / "results/reference/reliability.json"
PAGE = PROJECT / "results/RELIABILITY.md"
TEMPLATE = Path(__file__).with_name("page.md.j2")
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


def machine() -> str:
    """Its processor, as the system names it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} processors"


def tries_of(name: str, scope: Scope) -> Iterator[Tried]:
    """Of a part; one that could not be tried is a violation."""
    try:
        yield from PARTS[name](scope)
    except Exception as error:
        yield Tried(name, [f"{type(error).__name__}: {error}"[:300]], 0)


def violations(part: Sequence[Tried]) -> list[str]:
    return [f"{t.kind}: {text}" for t in part for text in t.found if type(text) is str]


def state() -> str:
    """Of the project: the commit, and whether files are changed."""
    return head_commit(PROJECT)[:12] + " with changes" * bool(changed_files(PROJECT))


def figures_of(
    part: Sequence[Tried], scope: Scope, seconds: float, commit: str
) -> dict[str, object]:
    """A part's entry of the file, as far as it came; of the commit that it began with."""
    tried: Counter[str] = Counter()
    for kind, _, count in part:
        tried[kind] += count
    found = [(kind, text) for kind, texts, _ in part for text in texts]
    bad = violations(part)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit,
        "machine": machine(),
        "minutes": round(seconds / 60, 1),
        "share": scope.share,
        "seed": scope.seed,
        "tried": dict(sorted(tried.items())),
        "violations": len(bad),
        "first_violations": [without_scratch(text) for text in bad[:MOST_KEPT]],
        "of_libraries": Counter(sorted(text for _, text in found if isinstance(text, OfLibrary))),
        "notes": [text for _, text in found if isinstance(text, Note)],
    }


def keep(name: str, found: dict[str, object]) -> None:
    """A part's entry of file and page, beside what another campaign may have written meanwhile."""
    known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    figures = known | {name: found}
    write_whole(FIGURES, json.dumps(figures, indent=1) + "\n")
    rules = {part: rule_of(part) for part in PARTS}
    write_whole(PAGE, template(TEMPLATE).render(parts=rules, figures=figures))


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
    if unknown := set(options.names) - set(PARTS):
        parser.error(f"{', '.join(unknown)}: must be of {', '.join(PARTS)}")
    if not (options.minutes > 0 and 0 < options.share <= 1):
        parser.error("--minutes must be above 0, --share above 0 and at most 1")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    undo_nohup()
    scope = Scope(options.share, options.minutes, options.seed)
    status = 0
    for name in options.names or PARTS:
        print(f"== {name}: {rule_of(name)}", flush=True)
        begun = time.monotonic()
        commit, part = state(), list[Tried]()
        # what was tried is kept, should the rest be interrupted
        for tried in tries_of(name, scope):
            part.append(tried)
            found = figures_of(part, scope, time.monotonic() - begun, commit)
            keep(name, found | {"is_whole": False})
            print(f"{tried.kind}: {list(tried.found) or 'nothing'}", flush=True)
        found = figures_of(part, scope, time.monotonic() - begun, commit)
        keep(name, found | {"is_whole": True})
        count, bad = sum(tried.count for tried in part), len(violations(part))
        took = duration(time.monotonic() - begun)
        print(f"{name}: {count} faults, {bad} violations, {took}", flush=True)
        status = max(status, int(bool(bad)))
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
