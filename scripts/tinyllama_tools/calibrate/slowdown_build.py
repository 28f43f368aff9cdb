"""tiny_llama_bench_slowed, whose parts can be slowed on purpose: made in the build folder.

CMake's option TINY_LLAMA_WITH_SLOWDOWN adds it; everything else in the folder stays as it is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.suite_run import last_words

PARTS = ("embedding", "rms_norm", "rotary", "attention", "ffn", "loss", "optimizer")
VARIABLE = "TINY_LLAMA_SLOWDOWN"
OPTION = "TINY_LLAMA_WITH_SLOWDOWN"
SLOWED_PROGRAM = Path("benchmarks/tiny_llama_bench_slowed")
MOST_FRACTION = 10.0


def _step(command: Sequence[str], log: Path, what: str) -> None:
    try:
        with log.open("a", encoding="utf-8") as out:
            finished = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        raise BadInputError(f"{what}: {command[0]}: {error.strerror}") from error
    if finished.returncode != 0:
        words = last_words(log.read_text(encoding="utf-8", errors="replace"))
        raise BadInputError(f"{what} failed; the whole log is {log}, its end:\n{words}")


def slowdown_program(build: Path) -> Path:
    """The program of a build folder whose parts can be slowed, brought up to date.

    Raises BadInputError, with the end of the log, where it cannot be configured or built.
    """
    if not (build / "CMakeCache.txt").is_file():
        message = "has no CMakeCache.txt, so it is no build folder"
        raise BadInputError(f"{build}: {message}; run scripts/bench --setup-only")
    log = build / "slowdown_build.log"
    log.write_text("", encoding="utf-8")
    _step(["cmake", f"-D{OPTION}=ON", str(build)], log, f"configuring {build} with {OPTION}")
    target = SLOWED_PROGRAM.name
    _step(["cmake", "--build", str(build), "--target", target], log, f"building {target}")
    return build / SLOWED_PROGRAM


def slowdown_environment(fractions: Mapping[str, float]) -> dict[str, str]:
    """What slows these parts by these fractions of their own time; empty for none.

    Raises ValueError on a part that there is none of, or a fraction outside (0, 10].
    """
    for part, fraction in fractions.items():
        if part not in PARTS:
            raise ValueError(f"part '{part}': must be one of {', '.join(PARTS)}")
        if not 0 < fraction <= MOST_FRACTION:
            raise ValueError(f"fraction {fraction:g} of {part}: must be above 0, at most 10")
    spelled = ",".join(f"{part}:{fraction:.6g}" for part, fraction in fractions.items())
    return {VARIABLE: spelled} if spelled else {}


def parse_slowdown(text: str) -> dict[str, float]:
    """`ffn:0.05,loss:0.1` as the program takes it. Raises ValueError naming what is wrong."""
    found: dict[str, float] = {}
    for item in text.split(","):
        part, separator, number = item.partition(":")
        try:
            fraction = float(number)
        except ValueError:
            fraction = 0.0
        if not separator or part in found:
            raise ValueError(f"'{item}': must be PART:FRACTION, each part once, such as ffn:0.05")
        slowdown_environment({part: fraction})
        found[part] = fraction
    return found
