"""For scripts/bench, with the standard library only.

`slug`: the device that `tiny_llama_bench --describe-device` tells, as a part of a file name.
`warn RESULT EARLIER...`: where a run's memory or cache bandwidth differs from that of the machine's
earlier runs. A shared machine's neighbours show here first: where the triad is off, so is
everything else that moves bytes.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

LONGEST_SLUG = 48
# of the median of earlier runs; quiet machines agree within a few percent
LARGEST_DIFFERENCE = 0.15


def device_slug(description: str) -> str:
    """`{"device": {"name": "AMD Instinct MI300X"}}` -> `amd_instinct_mi300x`; ValueError on text
    without such a name."""
    try:
        name = str(json.loads(description)["device"]["name"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"no device name in the program's description: {error!r}") from error
    plain = re.sub(r"\((r|tm|c)\)", "", name, flags=re.IGNORECASE).lower()
    return re.sub(r"[^a-z0-9]+", "_", plain)[:LONGEST_SLUG].strip("_") or "unknown_device"


def bandwidths(path: Path) -> dict[str, float]:
    """In bytes/s, by name, of a result file; none of one that cannot be read."""
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))["context"]["peaks"]["measured"]
        names = ("memory_bandwidth", "cache_bandwidth")
        found = {name: measured[name]["bytes_per_second"] for name in names}
        return {name: value for name, value in found.items() if value > 0}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def warnings(result: Path, earlier: Sequence[Path]) -> Iterator[str]:
    """A line for each bandwidth that differs."""
    others = [bandwidths(path) for path in earlier if path != result]
    for name, value in bandwidths(result).items():
        known = [found[name] for found in others if name in found]
        usual = statistics.median(known) if known else value
        difference = value / usual - 1
        if abs(difference) > LARGEST_DIFFERENCE:
            yield (
                f"warning: {name.replace('_', ' ')} {value / 1e9:.1f} GB/s differs by "
                f"{100 * difference:+.0f} % from the median of {len(known)} earlier runs here, "
                f"{usual / 1e9:.1f} GB/s: something else used the machine, then or now"
            )


def main(arguments: Sequence[str]) -> int:
    what, *files = arguments
    if what == "warn":
        result, *earlier = map(Path, files)
        for line in warnings(result, earlier):
            print(line)
        return 0
    try:
        print(device_slug(sys.stdin.read()))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
