"""frontier.json: the largest batch of each sequence length that fits into memory, and the reverse,
as `tiny_llama_bench --find-limit` answers."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import write_whole
from tinyllama_tools.data.names import STEP, TRAIN, CaseName
from tinyllama_tools.data.programs import SuiteError, ask_json, problem_sizes
from tinyllama_tools.data.studies import FRONTIER

KIND, SCHEMA_VERSION = "frontier", 1
VARIANTS, DTYPES = ("baseline", "optimized"), ("f32", "bf16")
SEQS, BATCHES = (128, 256, 512, 1024, 2048), (1, 2, 4, 8, 16)
# What the program searches at most.
LARGEST = 2**20
NO_OVERHEAD = "none is added: the memory of tensors is predicted to the byte"


@dataclass(frozen=True)
class Axis:
    """`searched` and `given`: "batch" or "seq". `smallest`: value of the searched one. `key`: of
    frontier.json's list of points."""

    searched: str
    given: str
    adjective: str
    smallest: int
    key: str

    @property
    def title(self) -> str:
        """`largest batch`, `longest sequence`."""
        return f"{self.adjective} {'batch' if self.searched == 'batch' else 'sequence'}"

    @property
    def largest_key(self) -> str:
        """`largest_batch`, `longest_seq`: of a point's answer."""
        return f"{self.adjective}_{self.searched}"

    @property
    def confirmed_key(self) -> str:
        """`confirmed_batch`, `confirmed_seq`: of what was found by trying."""
        return f"confirmed_{self.searched}"

    def value_of(self, name: CaseName) -> int:
        """The searched value of a case."""
        return name.batch if self.searched == "batch" else name.seq

    def given_of(self, name: CaseName) -> int:
        """The given value of a case."""
        return name.seq if self.searched == "batch" else name.batch

    def counted(self, value: int) -> str:
        """`batch 12`, `sequence 512`."""
        return f"{'batch' if self.searched == 'batch' else 'sequence'} {value}"


BY_SEQ = Axis("batch", "seq", "largest", 1, "points")
# the next token's loss needs two
BY_BATCH = Axis("seq", "batch", "longest", 2, "sequences")
AXES: Mapping[str, Axis] = {axis.given: axis for axis in (BY_SEQ, BY_BATCH)}


@dataclass(frozen=True)
class Line:
    """Steps that differ in the searched axis only; `given`: their value of the other one."""

    size: str
    variant: str
    dtype: str
    given: int

    def case(self, axis: Axis, value: int) -> CaseName:
        """The training step at a value of the searched axis."""
        batch, seq = (value, self.given) if axis.searched == "batch" else (self.given, value)
        return CaseName(STEP, TRAIN, self.variant, self.size, self.dtype, batch, seq)


def apart_percent(predicted: int, confirmed: int | None) -> float | None:
    """100 (predicted / confirmed - 1); None where there is nothing to compare with."""
    if confirmed is None or (confirmed == 0 and predicted != 0):
        return None
    return 100 * (predicted / confirmed - 1) if confirmed else 0.0


def _point(axis: Axis, limit_bytes: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """A line's answer as it is written; nothing of it was tried."""
    ends = row["predicted_memory_bytes_beyond"] > 0 or row["largest"] == 0
    return {
        "size": row["size"],
        "variant": row["variant"],
        "dtype": row["dtype"],
        axis.given: row[axis.given],
        axis.largest_key: row["largest"],
        "predicted_bytes": row["predicted_memory_bytes"],
        "limit_bytes": limit_bytes,
        "confirmed": "",
        axis.confirmed_key: None,
        "apart_percent": None,
        "remark": "" if ends else f"no larger one than {LARGEST} is searched for",
    }


def _ask(program: Path, device: str, axis: Axis, given: Sequence[int]) -> dict[str, Any]:
    arguments = [
        f"--find-limit={axis.searched}",
        f"--device={device}",
        f"--components={STEP}",
        f"--sizes={','.join(problem_sizes())}",
        f"--variants={','.join(VARIANTS)}",
        f"--dtypes={','.join(DTYPES)}",
        f"--{axis.given}={','.join(map(str, given))}",
        "--benchmark_format=json",
    ]
    return ask_json(program, arguments)


def write_frontier(folder: Path, program: Path, device: str = "auto") -> Path:
    """Writes what fits of all sizes into the memory that is free now, over sequences and over
    batches, to the folder's frontier.json.

    Raises SuiteError where the program cannot be asked, OSError where the file cannot be written.
    """
    by_key: dict[str, list[dict[str, Any]]] = {}
    answer: dict[str, Any] = {}
    for axis in AXES.values():
        answer = _ask(program, device, axis, SEQS if axis.given == "seq" else BATCHES)
        try:
            limit = answer["memory_limit_bytes"]
            rows = [row for row in answer["limits"] if not row["skip_reason"]]
            by_key[axis.key] = [_point(axis, limit, row) for row in rows]
        except (KeyError, TypeError) as error:
            raise SuiteError(f"{program}: --find-limit answered without {error}") from error
    now = datetime.datetime.now(datetime.timezone.utc)
    document = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "device": str(answer["device"].get("name") or ""),
        "git_commit": answer["git_commit"],
        "date": now.isoformat(timespec="seconds"),
        "command": "scripts/study",
        "by": ",".join(AXES),
        "limit_bytes": answer["memory_limit_bytes"],
        "limit_source": answer["memory_limit_source"],
        "overhead": {"source": NO_OVERHEAD},
        **by_key,
        "tries": [],
    }
    path = folder / FRONTIER
    write_whole(path, json.dumps(document, indent=1) + "\n")
    return path
