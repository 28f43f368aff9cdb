"""scripts/traces: what execution traces hold, and whether their FLOPs are those of the cases."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tinyllama_tools.core.app import BadInputError, bad_file, read_json
from tinyllama_tools.core.options import script_parser
from tinyllama_tools.core.text import NOT_MEASURED, markdown_table, say
from tinyllama_tools.data.execution_trace import (
    SUFFIX,
    Collective,
    FlopCount,
    collectives,
    count_flops,
    file_name,
    read_trace,
)

DESCRIPTION = "Reads execution traces of tiny_llama_bench --execution-trace, and checks them."
EPILOG = """\
Counted are the FLOPs of GEMMs and attention kernels, by the shapes in the trace, and what ranks
send each other. docs/traces.md has the way to simulators.

Exit status: 0; 1 where a trace has other FLOPs than its case; 2 for a file that is no whole
trace."""


class Looked(NamedTuple):
    file: Path
    nodes: int
    flops: FlopCount
    messages: list[Collective]


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = script_parser("traces", DESCRIPTION, EPILOG)
    parser.add_argument("traces", nargs="+", type=Path, metavar="FILE|DIR")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="hardware_flops of the cases: the JSON of --dry-run --benchmark_format=json, or a "
        "result file",
    )
    return parser.parse_args(arguments)


def files_of(places: Sequence[Path]) -> list[Path]:
    """Those of folders by their names. BadInputError for a folder without any."""
    found: list[Path] = []
    for place in places:
        inside = sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else [place]
        if not inside:
            raise bad_file(place, f"has no *{SUFFIX}", "name what --execution-trace wrote to")
        found += inside
    return found


def known_flops(file: Path) -> dict[str, int]:
    """`hardware_flops` by the names of traces."""
    document, _ = read_json(file)
    rows = document.get("cases", document.get("benchmarks"))
    try:
        named = [
            (row.get("run_name", row["name"]), row["hardware_flops"])
            for row in rows
            # a deviation has none of its own
            if "hardware_flops" in row and row.get("aggregate_name", "median") == "median"
        ]
        found = {file_name(name.removesuffix("/manual_time")): int(flops) for name, flops in named}
    except (AttributeError, LookupError, TypeError, ValueError):
        found = {}
    if not found:
        raise bad_file(file, "has no case with hardware_flops", "name a result or a dry run")
    return found


def look_at(file: Path) -> Looked:
    trace = read_trace(file)
    return Looked(file, len(trace.nodes), count_flops(trace), collectives(trace))


def case_file(file: Path) -> str:
    """The name without the rank's part."""
    return re.sub(r"\.rank-\d+-of-\d+(?=\.et\.json$)", "", file.name)


def main(arguments: Sequence[str]) -> int:
    options = parse_options(arguments)
    known = known_flops(options.against) if options.against else {}
    rows, wrong = [], 0
    for file in files_of(options.traces):
        looked = look_at(file)
        expected = known.get(case_file(file))
        if options.against and expected is None:
            raise BadInputError(f"{options.against}: has no case of {file.name}")
        differs = expected is not None and expected != looked.flops.total
        wrong += differs
        sent = sum(message.bytes for message in looked.messages)
        rows.append(
            (
                file.name.removesuffix(SUFFIX),
                f"{looked.nodes}",
                f"{looked.flops.gemms}",
                f"{looked.flops.attention}",
                f"{len(looked.messages)}",
                f"{sent}",
                NOT_MEASURED if expected is None else f"NOT {expected}" if differs else "equal",
            )
        )
        if looked.flops.uncounted:
            say(f"{file}: FLOPs not counted of {', '.join(looked.flops.uncounted)}")
    header = ("trace", "nodes", "FLOPs of GEMMs", "of attention", "collectives", "bytes")
    print("\n".join(markdown_table((*header, "hardware_flops"), rows)))
    return 1 if wrong else 0
