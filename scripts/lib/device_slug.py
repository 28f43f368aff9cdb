"""Turns `tiny_llama_bench --describe-device` (standard input) into a part of a file name.

Only the standard library.
"""

import json
import re
import sys

LONGEST = 48


def device_slug(description: str) -> str:
    """`{"device": {"name": "AMD Instinct MI300X"}}` -> `amd_instinct_mi300x`.

    Raises ValueError on text without such a name.
    """
    try:
        name = json.loads(description)["device"]["name"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"no device name in the program's description: {error!r}") from error
    plain = re.sub(r"\((r|tm|c)\)", "", str(name), flags=re.IGNORECASE).lower()
    slug = re.sub(r"[^a-z0-9]+", "_", plain)[:LONGEST].strip("_")
    return slug or "unknown_device"


def main() -> int:
    try:
        print(device_slug(sys.stdin.read()))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
