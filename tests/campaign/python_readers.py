"""What reads files in the Python tools, each with files that it takes."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_training import made_up_files, made_up_summary
from tinyllama_tools.__main__ import main as run_tool
from tinyllama_tools.calibrate.record import read_blocks
from tinyllama_tools.commands.grid import GridStudy, journal_options
from tinyllama_tools.commands.peers import read_peers
from tinyllama_tools.commands.training_runs import draw_timelines
from tinyllama_tools.compare.comparison import layers_by_size
from tinyllama_tools.compare.history import read_series, result_of
from tinyllama_tools.core.app import ToolError
from tinyllama_tools.data.profiles import read_profile
from tinyllama_tools.data.ranks import read_results
from tinyllama_tools.data.results import read_result_set, read_stored
from tinyllama_tools.data.studies import journaled_names, why_no_round
from tinyllama_tools.models.ablations import read_evidence, read_study
from tinyllama_tools.models.collectives import read_interconnects
from tinyllama_tools.models.data_parallel import analyse
from tinyllama_tools.models.scaling_projection import read_step_source
from tinyllama_tools.report.inputs import read_frontier, read_inputs, source_of

PROJECT = Path(__file__).resolve().parents[2]
REFERENCE = PROJECT / "results/reference"
# of each list of a reference result, so that a read takes milliseconds
MOST_ITEMS = 3


@dataclass(frozen=True)
class Reader:
    """`files`: what its folder holds; the first is damaged. `read` gets that folder and that file.
    `errors`: what it is documented to raise. `is_slow`: a whole command."""

    name: str
    files: Mapping[str, bytes]
    read: Callable[[Path, Path], object]
    errors: tuple[type[Exception], ...] = (ToolError,)
    is_slow: bool = False

    @property
    def damaged(self) -> str:
        return next(iter(self.files))


def shortened(document: Any) -> Any:  # noqa: ANN401
    """Every list cut to its first few."""
    if isinstance(document, dict):
        return {key: shortened(value) for key, value in document.items()}
    if isinstance(document, list):
        return [shortened(value) for value in document[:MOST_ITEMS]]
    return document


def reference(name: str) -> bytes:
    """Of results/reference, shortened."""
    data = (REFERENCE / name).read_bytes()
    if name.endswith(".jsonl"):
        lines = data.splitlines(keepends=True)
        # a block of every case at least
        return b"".join(lines[:40])
    return json.dumps(shortened(json.loads(data))).encode()


def suite_result() -> bytes:
    """Some cases with all their repetitions, a skipped and a failed one, and peaks."""
    document = json.loads((REFERENCE / "tiny_f32_2core_xeon_avx512.json").read_bytes())
    rows = document["benchmarks"]
    names = list(dict.fromkeys(row["run_name"] for row in rows))
    wanted = [*[n for n in names if n.startswith("peak/")][:2], *names[:1], names[-1]]
    document["benchmarks"] = [shortened(row) for row in rows if row["run_name"] in wanted]
    stopped = {key: rows[0][key] for key in ("name", "run_name", "run_type", "time_unit")}
    for index, (flag, words) in enumerate(
        (("skipped", "skip_message"), ("error_occurred", "error_message"))
    ):
        name = f"ffn/forward/baseline/tiny/f32/batch:{index + 2}/seq:128"
        row = stopped | {"run_name": name, "name": name, "run_type": "iteration"}
        document["benchmarks"].append(row | {"real_time": 0.0, flag: True, words: "for a reason"})
    return json.dumps(document).encode()


def training_files() -> dict[str, bytes]:
    """performance_summary.json first, and what lies beside it."""
    summary = shortened(made_up_summary())
    files = {"performance_summary.json": json.dumps(summary)} | made_up_files(summary)
    return {name: text.encode() for name, text in files.items()}


def journal() -> bytes:
    """A header and two cases."""
    result = json.loads(suite_result())
    header = {"journal": "tiny_llama_bench journal", "schema_version": 3}
    lines: list[Any] = [header | {"header": result["context"]}]
    lines += [{"case": row["run_name"], "entries": [row]} for row in result["benchmarks"][:2]]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def history() -> bytes:
    """A history of one result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "result.json").write_bytes(suite_result())
        store = ("--store", folder / "history.jsonl")
        command("compare", "history", "add", folder / "result.json", *store)
        return (folder / "history.jsonl").read_bytes()


class NotForeseenError(Exception):
    """A command ended by an exception that it does not know."""


def command(*arguments: object) -> None:
    """A command of the tools; what it says of an exception that it does not know is one here."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            run_tool([str(argument) for argument in arguments])
        except SystemExit as error:
            if error.code != 2:
                raise
    text = said.getvalue()
    if "not foreseen" in text or "Traceback" in text:
        raise NotForeseenError(text.strip()[-400:])


def read_grid_journal(folder: Path, path: Path) -> None:
    journaled_names(path)
    why_no_round(folder)
    journal_options(folder / "round_2.json", path, "off")


def all_readers() -> Iterator[Reader]:
    """Of every kind of file; commands last."""
    result, training = suite_result(), training_files()
    yield Reader("result to compare", {"results.json": result}, lambda _, p: read_stored(p))
    yield Reader("result set", {"results.json": result}, lambda _, p: read_result_set([p]))
    yield Reader("training summary", training, lambda _, p: read_stored(p))
    yield Reader("profile", training, lambda f, _: read_profile(f))
    timeline = {"memory_timeline.json": training["memory_timeline.json"]} | training
    yield Reader("memory timeline", timeline, lambda f, _: draw_timelines(f), is_slow=True)
    folder = "ranks_strong_2core_xeon_avx512"
    ranks = {f"ranks_{n}.json": reference(f"{folder}/ranks_{n}.json") for n in (2, 1)}
    yield Reader("ranks", ranks, lambda f, _: analyse(read_results(f).results))
    scaled = json.loads(reference(f"{folder}/scaling.json"))
    scaled["failures"] = [{"ranks": 4, "status": 1, "words": "rank 3 of 4 was lost"}]
    scaling = {"scaling.json": json.dumps(scaled).encode()} | ranks
    yield Reader("scaling", scaling, lambda f, _: read_inputs([source_of(f)]))
    yield Reader("step source", {"results.json": result}, lambda f, _: read_step_source(f))
    folder = "study_2core_xeon_avx512"
    costs = {"costs.json": reference(f"{folder}/costs.json"), "results.json": result}
    yield Reader("costs", costs, lambda f, _: read_step_source(f))
    study = {"study.json": reference(f"{folder}/study.json")}
    yield Reader("grid study", study, lambda f, _: GridStudy.read(f))
    yield Reader("grid journal", {"round_1.journal.jsonl": journal()} | study, read_grid_journal)
    whole = study | {
        name: reference(f"{folder}/{name}") for name in ("frontier.json", "products.json")
    }
    whole |= costs | {"round_1.json": result, "check.json": result}
    yield Reader("study folder", whole, lambda f, _: read_inputs([source_of(f)]))
    frontier = reference("frontier_by_seq_2core_xeon_avx512.json")
    yield Reader("frontier", {"frontier.json": frontier}, lambda _, p: read_frontier(p))
    ablation = reference("ablation_2core_xeon_avx512.json")
    peers = {"peers.json": reference("peers_2core_xeon_avx512.json")}
    yield Reader("peers", peers, lambda _, p: read_peers(p))
    about = shortened(made_up_summary()) | {"context": json.loads(ablation)["context"]}
    yield Reader("evidence", {"ablation.json": ablation}, lambda _, p: read_evidence(p, about))
    yield Reader("ablation", {"ablation.json": ablation}, lambda _, p: read_study(p))
    blocks = {"blocks.jsonl": reference("paired_blocks_2core_xeon_avx512.jsonl")}
    yield Reader("recording", blocks, lambda _, p: read_blocks(p))
    links = (PROJECT / "fixtures/interconnects.json").read_bytes()
    yield Reader("interconnects", {"links.json": links}, lambda _, p: read_interconnects(p))
    sizes = {"sizes.json": (PROJECT / "fixtures/problem_sizes.json").read_bytes()}
    yield Reader("layers by size", sizes, lambda _, p: layers_by_size(p))
    yield Reader("result to keep", {"results.json": result}, lambda _, p: result_of(p))
    yield Reader("history", {"history.jsonl": history()}, lambda _, p: read_series(p))
    yield Reader(
        "scripts/compare",
        {"new.json": result, "base.json": result},
        is_slow=True,
        read=lambda f, p: command("compare", f / "base.json", p),
    )
    yield Reader(
        "scripts/compare of training",
        {"new.json": training["performance_summary.json"]}
        | {"base.json": training["performance_summary.json"]},
        is_slow=True,
        read=lambda f, p: command("compare", f / "base.json", p),
    )
    yield Reader(
        "scripts/report of result",
        {"results.json": result},
        is_slow=True,
        read=lambda f, p: command("report", p, "--format", "md", "-o", f / "page.md"),
    )
    yield Reader(
        "scripts/report of ranks",
        scaling,
        is_slow=True,
        read=lambda f, _: command("report", f, "--format", "md", "-o", f / "page.md"),
    )
    yield Reader(
        "scripts/report of a study",
        whole,
        is_slow=True,
        read=lambda f, _: command("report", f, "--format", "md", "-o", f / "page.md"),
    )
    yield Reader(
        "history show",
        {"history.jsonl": history()},
        is_slow=True,
        read=lambda _, p: command("compare", "history", "show", "--store", p),
    )
