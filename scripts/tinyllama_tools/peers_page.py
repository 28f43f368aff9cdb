"""The tables of scripts/peers, as Markdown, from its result file alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.data.programs import UNITS
from tinyllama_tools.peer_forms import PREFIX
from tinyllama_tools.stats.rank_tests import Ratio

Json = dict[str, Any]

INTRODUCTION = """Training steps of `full_step` and of `LlamaForCausalLM` in Python: the same model,
number of tokens, loss, dtype and threads; gradients set to none outside the timed region. Our
program runs as a process a turn; each peer stays in a process of its own and is warmed up first,
which excludes its compilation. `scripts/peers --publish` writes this page.
"""


@dataclass
class Cell:
    """A case of one side: its steps in seconds, or why there are none. `above_peak`: why it has no
    shares of peaks."""

    seconds: list[float] = field(default_factory=list)
    reason: str = ""
    above_peak: str = ""


Point = tuple[str, str, str, str]
Rows = dict[Point, dict[str, Cell]]


def read_rows(document: Json) -> Rows:
    """Cells by (size, dtype, batch, sequence) and by variant, in the file's order."""
    rows: Rows = {}
    for entry in document["benchmarks"]:
        axes = entry["run_name"].removesuffix("/manual_time").split("/")
        variant, size, dtype, batch, seq = axes[2:7]
        point = (size, dtype, batch.removeprefix("batch:"), seq.removeprefix("seq:"))
        cell = rows.setdefault(point, {}).setdefault(variant, Cell())
        if "error_message" in entry:
            cell.reason = f"failed: {entry['error_message']}"
        elif "skip_message" in entry:
            cell.reason = f"skipped: {entry['skip_message']}"
        else:
            cell.seconds.append(entry["real_time"] * UNITS[entry["time_unit"]])
            cell.above_peak = entry.get("above_peak", cell.above_peak)
    return rows


class Notes:
    """Numbers for reasons, each reason once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, word: str, reason: str) -> str:
        """`skipped [1]`."""
        return f"{word} [{self._numbers.setdefault(reason, len(self._numbers) + 1)}]"

    def lines(self) -> list[str]:
        """The reasons in order."""
        return [f"{number}. {reason}" for reason, number in self._numbers.items()]


def milliseconds(cell: Cell | None, notes: Notes) -> str:
    """The median step, or why there is none; with the number of a note."""
    if cell is None:
        return ""
    if not cell.seconds:
        return notes.mark(cell.reason.partition(":")[0], cell.reason)
    time = f"{1e3 * statistics.median(cell.seconds):.4g}"
    return notes.mark(time, cell.above_peak) if cell.above_peak else time


def ratio_text(row: Json | None) -> str:
    """`1.23 (1.20 to 1.26)`."""
    ratio = Ratio.from_json(row)
    return ratio.text() if ratio else ""


def time_lines(rows: Rows, variants: Sequence[str], notes: Notes) -> list[str]:
    """The median step of every side at every case."""
    header = ("size", "dtype", "batch", "seq", *variants)
    cells = (
        (*point, *(milliseconds(of.get(variant), notes) for variant in variants))
        for point, of in rows.items()
    )
    return [
        "## Time of a step",
        "",
        "Median over all steps, in ms.",
        "",
        *markdown_table(header, cells),
        "",
    ]


def ratio_lines(rows: Rows, ours: str, peers: Sequence[str], found: Iterable[Json]) -> list[str]:
    """Every peer against one of our variants."""
    by_case = {(row["case"], row["peer"]): row for row in found}
    cells = []
    for size, dtype, batch, seq in rows:
        case = f"full_step/train/{ours}/{size}/{dtype}/batch:{batch}/seq:{seq}"
        texts = [ratio_text(by_case.get((case, peer))) for peer in peers]
        cells.append((size, dtype, batch, seq, *texts))
    text = (
        "The peer's time over ours: above 1, ours is faster. Median over turns, with its interval."
    )
    header = ("size", "dtype", "batch", "seq", *peers)
    return [f"## Peers against `{ours}`", "", text, "", *markdown_table(header, cells), ""]


def confidence_text(found: Iterable[Json]) -> str:
    """How sure the intervals are, which the number of turns decides."""
    by_turns = {row["turns"]: row["interval"]["confidence"] for row in found if row["interval"]}
    texts = [f"{100 * by_turns[turns]:.1f} % at {turns} turns" for turns in sorted(by_turns)]
    return "; ".join(texts) or "none: one turn"


def circumstances(document: Json) -> dict[str, str]:
    """What the numbers belong to."""
    context = document["context"]
    about = context["peers"]
    device = context["device"]
    commits = ", ".join(commit[:12] for commit in about["commits"])
    measured = [form["measured"] for form in about["forms"].values() if form["measured"]]
    versions = {f"torch {m['torch']}, transformers {m['transformers']}" for m in measured}
    loads = ", ".join(f"{load:.2f}" for load in context.get("load_avg", []))
    return {
        "machine": f"{device['name']} ({device['architecture']}), {context['num_cpus']} processors",
        "date": context["date"],
        "commit": commits + (" with changes" if context["git_dirty"] else ""),
        "ours": f"libtorch {context['torch_version']}",
        "peers": ", ".join(sorted(versions)),
        "threads": str(context["threads"]),
        "turns and steps": f"{about['turns']} turns of {about['steps']} steps, fewer where steps "
        f"are slow ({about['max_seconds_per_case']:g} s a side and case)",
        "intervals": confidence_text(about["ratios"]),
        "load average at the start": loads,
    }


def form_lines(forms: dict[str, Json]) -> list[str]:
    """The settings of each peer."""
    header = ("peer", "attention", "torch.compile", "float32 products", "AdamW", "malloc")
    cells = []
    for name, form in forms.items():
        measured = form["measured"]
        precision = form["precision"]
        if measured:
            precision = f"{measured['float32_matmul_precision']}, error "
            precision += f"{measured['float32_product_error']:.1e}"
            if measured["float32_matmul_precision"] != form["precision"]:
                precision += f" of {form['precision']}, which is not true float32 here"
        inductor = ", ".join(f"{key}={value}" for key, value in form["inductor"].items())
        compiled = f"dynamic=False {inductor}".strip() if form["is_compiled"] else "no"
        cells.append((name, form["attention"], compiled, precision, form["adamw"], form["malloc"]))
    return ["## Settings of the peers", "", *markdown_table(header, cells), ""]


def peers_page(document: Json) -> str:
    """The whole page."""
    rows = read_rows(document)
    variants = list(dict.fromkeys(variant for of in rows.values() for variant in of))
    ours = [variant for variant in variants if not variant.startswith(PREFIX)]
    peers = [variant for variant in variants if variant.startswith(PREFIX)]
    about = document["context"]["peers"]
    notes = Notes()
    lines = [
        "# Peers",
        "",
        INTRODUCTION,
        *markdown_table(("", ""), circumstances(document).items()),
        "",
    ]
    for variant in reversed(ours):
        lines += ratio_lines(rows, variant, peers, about["ratios"])
    lines += time_lines(rows, variants, notes)
    if about.get("not_measured"):
        lines += [f"Not measured: {', '.join(about['not_measured'])}.", ""]
    if notes.lines():
        lines += ["Reasons:", "", *notes.lines(), ""]
    return "\n".join(lines + form_lines(about["forms"])).rstrip() + "\n"
