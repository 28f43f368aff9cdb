"""The published grid study as documents that a test changes, and a result of every other kind."""

import contextlib
import copy
import functools
import io
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from built_programs import write_json
from published import STUDY, write_run
from tinyllama_tools.core.app import Json
from tinyllama_tools.report.command import SECTIONS
from tinyllama_tools.report.document import Document, Section, Table
from tinyllama_tools.report.inputs import ReportInputs, read_inputs, source_of
from tools import scaling

ROUNDS = ("round_1.json", "round_2.json", "round_3.json")
MIB = 2**20
SMALL_STEP = "full_step/train/baseline/small/f32/batch:8/seq:256"
TINY_STEP = "full_step/train/baseline/tiny/f32/batch:8/seq:128"
CHECK_STEP = "full_step/train/baseline/medium/f32/batch:2/seq:512"
# at its own batch, which would take too long to be checked
MEDIUM_STEP = CHECK_STEP.replace("batch:2", "batch:16")
# of tiny alone at its own shape
OWN_SHAPE = r"/tiny/f32/batch:8/seq:128/"

# the page's width, and tables that are wider than their place
CUT_OFF = """() => [document.documentElement.scrollWidth,
  ...[...document.querySelectorAll(".scroll")]
  .filter((of) => of.scrollWidth > of.clientWidth).map((of) => of.closest(".card").id)]"""


@functools.cache
def _parsed(name: str) -> Json:
    return json.loads((STUDY / name).read_text(encoding="utf-8"))


CONTEXT = _parsed("round_1.json")["context"]
DEVICE = CONTEXT["device"]["name"]


def document(name: str, keep: str = "") -> Json:
    """A file of the study; of a round the rows whose name has `keep`."""
    found = copy.deepcopy(_parsed(name))
    if keep:
        rows = found["benchmarks"]
        found["benchmarks"] = [row for row in rows if re.search(keep, row["run_name"])]
    return found


def rows_of(name: str, files: tuple[str, ...] = ROUNDS) -> list[Json]:
    """The repetitions of a case, as the program wrote them."""
    every = (row for file in files for row in _parsed(file)["benchmarks"])
    own = (row for row in every if row["run_name"].startswith(f"{name}/"))
    return [row for row in own if row["run_type"] == "iteration"]


def median_ms(name: str, files: tuple[str, ...] = ROUNDS) -> float:
    return statistics.median(row["real_time"] for row in rows_of(name, files))


def peak(name: str, key: str = "bytes_per_second") -> float:
    """The best of all files of the run; of GEMMs also of all rows."""
    files = (*ROUNDS, "products.json")
    measured = [_parsed(file)["context"]["peaks"]["measured"] for file in files]
    found = [peaks[name][key] for peaks in measured if name in peaks]
    every = _parsed("products.json")["benchmarks"] if name == "f32" else ()
    rows = [row for row in every if row["run_type"] == "iteration"]
    return max(*found, *(1e12 * row["TFLOPS"] for row in rows))


def read(*paths: Path) -> ReportInputs:
    """What a report is made from."""
    return read_inputs([source_of(path) for path in paths])


def change(path: Path, what: Callable[[Json], object]) -> Path:
    """The file with its content changed."""
    content = json.loads(path.read_text(encoding="utf-8"))
    what(content)
    return write_json(path, content)


def write_study(folder: Path, keep: str = OWN_SHAPE, rounds: int = 3) -> Path:
    """The study without its check; of its rounds what has `keep`, over and over."""
    for name in ("study.json", "products.json", "costs.json", "frontier.json"):
        write_json(folder / name, document(name))
    for number in range(rounds):
        write_json(folder / f"round_{number + 1}.json", document(ROUNDS[number % 3], keep))
    return folder


def write_result(path: Path, keep: str = OWN_SHAPE, device: str = DEVICE) -> Path:
    """A run of the suite."""
    found = document("round_1.json", keep)
    found["context"]["device"]["name"] = device
    return write_json(path, found)


def write_everything(folder: Path) -> list[Path]:
    """A result of every kind; that of the suite is of another device."""
    write_run(ranks := folder / "20260304T090000Z_scaling")
    # which were measured elsewhere
    own = {key: CONTEXT[key] for key in ("device", "num_cpus")}
    for path in ranks.glob("ranks_*.json"):
        change(path, lambda content: content["context"].update(own))
    with contextlib.redirect_stdout(io.StringIO()):
        assert scaling([f"--from={ranks}"]) == 0
    device = "Another CPU"
    return [
        write_study(folder / "20260304T050607Z_grid", keep=""),
        write_result(folder / "20260304T060000Z_another_cpu/results.json", "", device),
        ranks,
    ]


def section(report: Document | ReportInputs, identity: str) -> Section:
    """Of a report, or made of its inputs alone."""
    if isinstance(report, Document):
        return next(one for one in report.sections if one.id == identity)
    page = Section(identity, identity)
    next(fill for name, _, fill in SECTIONS if name == identity)(page, report)
    return page


def part(whole: Document | Section, identity: str) -> Any:  # noqa: ANN401
    """A table or a figure."""
    pages = whole.sections if isinstance(whole, Document) else [whole]
    every = (one for page in pages for one in (*page.tables, *page.figures))
    return next(one for one in every if one.id == identity)


def cell(table: Table, row: str, column: str) -> Any:  # noqa: ANN401
    """By a case's name or how a row's first two cells begin, and the heading without its unit."""
    headings = [heading.partition(" [")[0] for heading in table.columns]
    name = re.sub("batch:|seq:", "", row)
    found = next(
        one
        for one in table.rows
        if f"{one[0]}, {one[1]}".startswith(row) or "/".join(map(str, one)).startswith(name)
    )
    return found[headings.index(column)]
