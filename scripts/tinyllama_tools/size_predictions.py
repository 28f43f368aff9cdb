"""What `tiny_llama_bench --dry-run` predicts of training steps that nobody has run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.suite_run import PROGRAM, SuiteError, last_words

COUNT_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
BYTE_UNITS = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5, "EiB": 6}
COLUMNS = ("case", "parameters", "model FLOPs", "elementwise", "bytes", "peak memory", "fits")
CASE = re.compile(r"full_step/train/(\S+)/(\S+)/(\S+)/batch:(\d+)/seq:(\d+)")


@dataclass(frozen=True)
class Question:
    """The steps to predict; batch and seq empty: each size's own."""

    sizes: tuple[str, ...]
    dtype: str = "f32"
    variants: tuple[str, ...] = ("baseline",)
    batch: tuple[int, ...] = ()
    seq: tuple[int, ...] = ()
    device: str = "auto"

    @property
    def options(self) -> list[str]:
        """Of tiny_llama_bench."""
        axes = {
            "components": ("full_step",),
            "sizes": self.sizes,
            "dtypes": (self.dtype,),
            "variants": self.variants,
            "batch": self.batch,
            "seq": self.seq,
        }
        given = [f"--{name}={','.join(map(str, v))}" for name, v in axes.items() if v]
        return ["--dry-run", f"--device={self.device}", *given]


@dataclass(frozen=True)
class Prediction:
    """One training step. `step_flops`: model_flops, rounded to three digits by the program; bytes
    likewise. `refusal`: why it cannot run here, empty where it can."""

    size: str
    variant: str
    dtype: str
    batch: int
    seq: int
    parameters: int
    step_flops: float
    step_bytes: float
    peak_memory_bytes: float
    refusal: str

    @property
    def fits(self) -> bool:
        """In the memory that was free when it was asked."""
        return not self.refusal


Predictor = Callable[[Question], list[Prediction]]


def read_count(text: str) -> float:
    """`17.68 G` -> 17.68e9. ValueError on anything else."""
    number, _, unit = text.partition(" ")
    if unit not in COUNT_UNITS:
        raise ValueError(f"'{text}': not a count with one of {', '.join(COUNT_UNITS)}")
    return float(number) * COUNT_UNITS[unit]


def read_bytes(text: str) -> float:
    """`131.81 MiB` in bytes. ValueError on anything else."""
    number, _, unit = text.partition(" ")
    if unit not in BYTE_UNITS:
        raise ValueError(f"'{text}': not a size in one of {', '.join(BYTE_UNITS)}")
    return float(number) * 1024 ** BYTE_UNITS[unit]


def read_row(line: str) -> Prediction | None:
    """A row of the table; None of any other line. ValueError where its cells are no figures."""
    cells = re.split(r"\s{2,}", line.strip(), maxsplit=len(COLUMNS) - 1)
    case = CASE.fullmatch(cells[0])
    if not case or len(cells) != len(COLUMNS):
        return None
    variant, size, dtype, batch, seq = case.groups()
    return Prediction(
        size,
        variant,
        dtype,
        int(batch),
        int(seq),
        int(cells[1]),
        read_count(cells[2]),
        read_bytes(cells[4]),
        read_bytes(cells[5]),
        "" if cells[6] == "yes" else cells[6].removeprefix("no: "),
    )


def predict(question: Question, program: Path = PROGRAM) -> list[Prediction]:
    """In the program's order. SuiteError where it refuses the options or cannot be started."""
    command = [str(program), *question.options]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise SuiteError(f"{program.name} cannot be started: {error}") from error
    if done.returncode != 0:
        words = last_words(done.stderr) or "it said nothing"
        raise SuiteError(words.splitlines()[-1])
    try:
        rows = [row for line in done.stdout.splitlines() if (row := read_row(line))]
    except ValueError as error:
        raise SuiteError(f"{program.name} --dry-run: {error}") from error
    if not rows:
        raise SuiteError(f"{program.name} --dry-run: no row in its table")
    return rows
