"""Warns where a run's memory or cache bandwidth differs from that of the machine's earlier runs.

A shared machine's neighbours show here first: where the triad is off, so is everything else that
moves bytes. Only the standard library.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

BANDWIDTHS = ("memory_bandwidth", "cache_bandwidth")
# of the median of earlier runs; quiet machines agree within a few percent
LARGEST_DIFFERENCE = 0.15


def bandwidths(path: Path) -> dict[str, float]:
    """In bytes/s, by name, of a result file; none of one that cannot be read."""
    try:
        context = json.loads(path.read_text(encoding="utf-8"))["context"]
        measured = context["peaks"]["measured"]
        return {
            name: measured[name]["bytes_per_second"]
            for name in BANDWIDTHS
            if measured[name]["bytes_per_second"] > 0
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def warnings(result: Path, earlier: Sequence[Path]) -> Iterator[str]:
    """A line for each bandwidth that differs."""
    others = [bandwidths(path) for path in earlier]
    for name, value in bandwidths(result).items():
        known = [found[name] for found in others if name in found]
        if not known:
            continue
        usual = statistics.median(known)
        difference = value / usual - 1
        if abs(difference) > LARGEST_DIFFERENCE:
            yield (
                f"warning: {name.replace('_', ' ')} {value / 1e9:.1f} GB/s differs by "
                f"{100 * difference:+.0f} % from the median of {len(known)} earlier runs here, "
                f"{usual / 1e9:.1f} GB/s: something else used the machine, then or now"
            )


def main(arguments: Sequence[str]) -> int:
    """RESULT EARLIER...: prints the warnings."""
    result, *earlier = map(Path, arguments)
    for text in warnings(result, [path for path in earlier if path != result]):
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
