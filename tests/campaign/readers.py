"""Damaged files in every reader of the tools; fuzzing.py has those of the programs."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import multiprocessing
import random
import re
import shutil
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.runs import Scope, Tally, scratch
from campaign.workloads import PROJECT, REFERENCE
from fake_training import made_up_files, made_up_summary
from tinyllama_tools.__main__ import main as run_tool
from tinyllama_tools.calibrate.record import kept_runs, read_recordings
from tinyllama_tools.commands.grid import GridStudy, journal_options
from tinyllama_tools.commands.peers import read_peers
from tinyllama_tools.commands.profile_report import draw_timelines
from tinyllama_tools.compare.comparison import layers_by_size
from tinyllama_tools.compare.history import add_file, read_series
from tinyllama_tools.compare.stored import NOISE_KIND, NOISE_VERSION, read_noise_profile
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

Json = Any
# Damage: what is put in place of a value, and between bytes.
# stands for arrays within each other, more than a parser that calls itself can bear
DEEP = "@deep@"
LEVELS = 100_000
TEXTS = ("", " ", "a" * 5000, "nan", "1", "\0", "\ud800", "../../x", "%s{}", "ü\u202e", "-", DEEP)
NUMBERS = (
    *(0, 1, -1, 2, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e-320, 1e308, -1e308),
    *(float("nan"), float("inf"), -float("inf"), True, False),
)
OTHERS = (None, [], {}, [None], [[1]], {"": 0}, [{}])
BYTES = (b"\0", b"\xff", b"\xed\xa0\x80", b"{", b"}", b"[", b'"', b",", b"\n", b"1e999", b"NaN")


def places(document: Json) -> Iterator[tuple[Any, Any]]:
    """Every container with every key of it, outer ones first."""
    keys: Any = ()
    if isinstance(document, dict):
        keys = list(document)
    elif isinstance(document, list):
        keys = range(len(document))
    for key in keys:
        yield document, key
        yield from places(document[key])


def damage_once(document: Json, draw: random.Random) -> None:
    """Something is removed, doubled, renamed, or becomes of another type, unlikely, or another part
    of the document."""
    if not (found := list(places(document))):
        return
    # keys of the outer objects as likely as one of the thousands of inner ones
    container, key = draw.choice(found if draw.random() < 0.7 else found[: 1 + len(found) // 50])
    value, action = container[key], draw.randrange(8)
    if action == 0:
        del container[key]
    elif action == 1 and isinstance(container, list):
        container.insert(draw.randrange(len(container) + 1), copy.deepcopy(value))
    elif action == 1:
        container[draw.choice(("x", "", "name", "context"))] = container.pop(key)
    elif action == 2:
        other, its = draw.choice(found)
        container[key] = copy.deepcopy(other[its])
    elif action == 3:
        container[key] = draw.choice((str(value), [value], {"x": value}, None))
    elif action == 4 and isinstance(value, (int, float)):
        with contextlib.suppress(OverflowError):
            container[key] = draw.choice((-value, value + 1, value * 1e300, value / 1e300))
    elif action == 4 and isinstance(value, str):
        container[key] = draw.choice((value[1:], value * 2, value.upper(), value + "\n"))
    else:
        container[key] = copy.deepcopy(draw.choice(draw.choice((NUMBERS, TEXTS, OTHERS))))


def damaged_json(original: bytes, draw: random.Random) -> bytes:
    """Of which nothing is refused: NaN and half of a surrogate pair are what others write."""
    document = json.loads(original)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        damage_once(document, draw)
    text = json.dumps(document, ensure_ascii=draw.random() < 0.5)
    levels = draw.choice((3, 500, LEVELS))
    text = text.replace(f'"{DEEP}"', "[" * levels + "]" * levels)
    return text.encode("utf-8", errors=draw.choice(("surrogatepass", "replace")))


def damaged_bytes(original: bytes, draw: random.Random) -> bytes:
    """Cut, flipped, doubled, with others between, or of another encoding."""
    data = bytearray(original)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at, kind = draw.randrange(len(data) + 1), draw.randrange(8)
        end = at + draw.choice((1, 4, 100))
        if kind == 0:
            del data[at:]
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end]
        elif kind <= 4 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 5:
            data[at:at] = draw.choice(BYTES)
        elif kind == 6:
            data[at:end] = draw.randbytes(draw.randrange(5))
        elif draw.random() < 0.1:
            data = bytearray(draw.choice((data.decode("latin-1").encode("utf-16"), b"")))
    return bytes(data)


def damaged(name: str, original: bytes, draw: random.Random) -> bytes:
    """By what the name says the file is: .json, .jsonl, or bytes."""
    if name.endswith(".json") and draw.random() < 0.8:
        return damaged_json(original, draw)
    if name.endswith(".jsonl") and draw.random() < 0.8:
        lines = original.splitlines(keepends=True)
        number = draw.choice((0, draw.randrange(len(lines))))
        lines[number] = damaged_json(lines[number], draw) + b"\n"
        return b"".join(lines)
    return damaged_bytes(original, draw)


@dataclass(frozen=True)
class Reader:
    """`files`: what its folder holds; the first is damaged. `read` gets that folder and that file,
    and may raise ToolError. `is_slow`: a whole command."""

    name: str
    files: Mapping[str, bytes]
    read: Callable[[Path, Path], object]
    is_slow: bool = False

    @property
    def damaged(self) -> str:
        return next(iter(self.files))


def shortened(document: Json) -> Json:
    """Every list cut to its first few, so that a read takes milliseconds."""
    if isinstance(document, dict):
        return {key: shortened(value) for key, value in document.items()}
    return [shortened(value) for value in document[:3]] if isinstance(document, list) else document


def reference(name: str) -> bytes:
    """Of results/reference, shortened; of a recording a block of every case at least."""
    data = (REFERENCE / name).read_bytes()
    if name.endswith(".jsonl"):
        return b"".join(data.splitlines(keepends=True)[:40])
    return json.dumps(shortened(json.loads(data))).encode()


def suite_result() -> bytes:
    """Some cases with all their repetitions, a skipped and a failed one, and peaks."""
    document = json.loads((REFERENCE / "tiny_f32_2core_xeon_avx512.json").read_bytes())
    rows = document["benchmarks"]
    names = list(dict.fromkeys(row["run_name"] for row in rows))
    wanted = [*[n for n in names if n.startswith("peak/")][:2], *names[:1], names[-1]]
    document["benchmarks"] = [shortened(row) for row in rows if row["run_name"] in wanted]
    for seq, why in (
        (64, {"skipped": True, "skip_message": "for a reason"}),
        (32, {"error_occurred": True, "error_message": "for a reason"}),
    ):
        name = f"ffn/forward/baseline/tiny/f32/batch:2/seq:{seq}"
        row = {"run_name": name, "name": name, "run_type": "iteration", "time_unit": "ms"}
        document["benchmarks"].append(row | {"real_time": 0.0} | why)
    return json.dumps(document).encode()


def training_files() -> dict[str, bytes]:
    """performance_summary.json first, and what lies beside it."""
    summary = shortened(made_up_summary())
    files = {"performance_summary.json": json.dumps(summary)} | made_up_files(summary)
    return {name: text.encode() for name, text in files.items()}


KEPT_RUN = {
    **{"slowdown": {"ffn/forward": 0.05}, "exit_status": 0, "seconds": 12.5, "culprits": {}},
    **{"outcomes": {"ffn/forward/baseline/tiny/f32/batch:1/seq:16": "same"}, "reason": ""},
    **{"started": "2026-01-02T03:04:05+00:00", "options": ["--pairs", "4"]},
    **{"git_commit": "a" * 40, "device": "Some CPU", "threads": 2},
}


def journal() -> bytes:
    """A header and two cases."""
    result = json.loads(suite_result())
    header = {"journal": "tiny_llama_bench journal", "schema_version": 3}
    lines: list[Any] = [header | {"header": result["context"]}]
    lines += [{"case": row["run_name"], "entries": [row]} for row in result["benchmarks"][:2]]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def noise_profile() -> bytes:
    """What a calibration recorded of its machine."""
    noise, device = {"scatter": 0.02, "degrees": 12}, json.loads(suite_result())["context"]
    machine = {key: device["device"][key] for key in ("name", "architecture")}
    machine = {"device": machine.pop("name"), "threads": device["threads"], **machine}
    cases = {"ffn/forward/baseline/tiny/f32/batch:1/seq:16": noise}
    kind = {"kind": NOISE_KIND, "schema_version": NOISE_VERSION, "host_name": "host_00000000"}
    return json.dumps(kind | machine | {"cases": cases, "default": noise}).encode()


def history() -> bytes:
    """A history of one result."""
    with tempfile.TemporaryDirectory() as name:
        store, result = Path(name, "history.sqlite"), Path(name, "result.json")
        result.write_bytes(suite_result())
        add_file(store, result, skip_known=False)
        with contextlib.closing(sqlite3.connect(store)) as connection:
            connection.execute("VACUUM")
        return store.read_bytes()


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


def add_once(store: Path, result: Path) -> None:
    """Adds it to a copy, which the next one does not see."""
    with tempfile.TemporaryDirectory() as folder:
        add_file(Path(shutil.copy(store, folder)), result, skip_known=True)


def read_grid_journal(folder: Path, path: Path) -> None:
    journaled_names(path)
    why_no_round(folder)
    journal_options(folder / "round_2.json", path, "off")


def all_readers() -> list[Reader]:
    """Of every kind of file; commands last."""
    result, training = {"results.json": suite_result()}, training_files()
    timeline = {"memory_timeline.json": training["memory_timeline.json"]} | training
    strong, grid = "ranks_strong_2core_xeon_avx512", "study_2core_xeon_avx512"
    ranks = {f"ranks_{n}.json": reference(f"{strong}/ranks_{n}.json") for n in (2, 1)}
    scaled = json.loads(reference(f"{strong}/scaling.json"))
    scaled["failures"] = [{"ranks": 4, "status": 1, "words": "rank 3 of 4 was lost"}]
    scaling = {"scaling.json": json.dumps(scaled).encode()} | ranks
    costs = {"costs.json": reference(f"{grid}/costs.json")} | result
    study = {"study.json": reference(f"{grid}/study.json")}
    of_grid = {n: reference(f"{grid}/{n}") for n in ("frontier.json", "products.json")}
    whole = study | of_grid | costs | dict.fromkeys(("round_1.json", "check.json"), suite_result())
    grid_journal = {"round_1.journal.jsonl": journal()} | study
    frontier = {"frontier.json": reference("frontier_by_seq_2core_xeon_avx512.json")}
    ablation = {"ablation.json": reference("ablation_2core_xeon_avx512.json")}
    peers = {"peers.json": reference("peers_2core_xeon_avx512.json")}
    context = json.loads(ablation["ablation.json"])["context"]
    about = shortened(made_up_summary()) | {"context": context}
    blocks = {"blocks.jsonl": reference("paired_blocks_2core_xeon_avx512.jsonl")}
    runs = {"runs.jsonl": (json.dumps(KEPT_RUN) + "\n").encode() * 3}
    noise, kept = {"noise.json": noise_profile()}, {"history.sqlite": history()}
    links, sizes = (
        {f"{name}.json": (PROJECT / f"fixtures/{name}.json").read_bytes()}
        for name in ("interconnects", "problem_sizes")
    )
    summary = training["performance_summary.json"]

    def compared(folder: Path, path: Path) -> None:
        command("compare", folder / "base.json", path)

    def reported(folder: Path, path: Path) -> None:
        source = folder if path.name in {"scaling.json", "study.json"} else path
        command("report", source, "--format", "md", "-o", folder / "page.md")

    every = [
        Reader("result to compare", result, lambda _, p: read_stored(p)),
        Reader("result set", result, lambda _, p: read_result_set([p])),
        Reader("training summary", training, lambda _, p: read_stored(p)),
        Reader("profile", training, lambda f, _: read_profile(f)),
        Reader("memory timeline", timeline, lambda f, _: draw_timelines(f), is_slow=True),
        Reader("ranks", ranks, lambda f, _: analyse(read_results(f).results)),
        Reader("scaling", scaling, lambda f, _: read_inputs([source_of(f)])),
        Reader(
            "step source", {"ranks_2.json": ranks["ranks_2.json"]}, lambda f, _: read_step_source(f)
        ),
        Reader("costs", costs, lambda f, _: read_step_source(f)),
        Reader("grid study", study, lambda f, _: GridStudy.read(f)),
        Reader("grid journal", grid_journal, read_grid_journal),
        Reader("study folder", whole, lambda f, _: read_inputs([source_of(f)])),
        Reader("frontier", frontier, lambda _, p: read_frontier(p)),
        Reader("peers", peers, lambda _, p: read_peers(p)),
        Reader("evidence", ablation, lambda _, p: read_evidence(p, about)),
        Reader("ablation", ablation, lambda _, p: read_study(p)),
        Reader("recording", blocks, lambda _, p: read_recordings([p])),
        Reader("calibration runs", runs, lambda f, _: kept_runs(f)),
        Reader("noise profile", noise, lambda _, p: read_noise_profile(p)),
        Reader("interconnects", links, lambda _, p: read_interconnects(p)),
        Reader("layers by size", sizes, lambda _, p: layers_by_size(p)),
        Reader("result to keep", result | kept, lambda f, p: add_once(f / "history.sqlite", p)),
        Reader("history", kept, lambda _, p: read_series(p)),
    ]
    for name, files, read in (
        ("compare", dict.fromkeys(("new.json", "base.json"), suite_result()), compared),
        ("compare of training", dict.fromkeys(("new.json", "base.json"), summary), compared),
        ("report of result", result, reported),
        ("report of training", training, reported),
        ("report of ablation", ablation, reported),
        ("report of frontier", frontier, reported),
        ("report of ranks", scaling, reported),
        ("report of a study", whole, reported),
        ("history", kept, lambda _, p: command("compare", "history", "show", "--store", p)),
    ):
        every.append(Reader(f"scripts/{name}", files, read, is_slow=True))
    return every


# damaged files of a reader in Python, and of a whole command, which takes a hundred times as long
READS, COMMANDS = 20_000, 1_000
HANG_S = 10.0
LONGEST_MESSAGE = 20_000


class HangError(BaseException):
    """Not an Exception, which a reader may catch."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """HangError in the main thread when it is over."""

    def end(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault_of(reader: Reader, folder: Path) -> str:
    """How the reader breaks its promise on what the folder holds; empty where it keeps it."""
    file = folder / reader.damaged
    try:
        with time_limit(HANG_S):
            reader.read(folder, file)
    except HangError:
        return f"no end within {HANG_S:g} s"
    except ToolError as error:
        words = str(error)
        if len(words) > LONGEST_MESSAGE:
            return f"a message of {len(words)} characters"
        if folder.name not in words and file.name not in words:
            return f"names no file: {words[:200]}"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {str(error)[:400]}"
    return ""


def try_reader(reader: Reader, draws: list[random.Random]) -> Tally:
    """One damaged file a draw, and one of arrays within each other that nothing can read; of faults
    that are alike only the first is kept."""
    tally = Tally()
    kind = f"damaged file of {reader.name}"
    seen: Counter[str] = Counter()
    with scratch() as folder:
        for name, content in reader.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        # otherwise nothing behind the first check is tried
        reader.read(folder, folder / reader.damaged)
        original = reader.files[reader.damaged]
        contents = (damaged(reader.damaged, original, draw) for draw in draws)
        for content in itertools.chain([b"[" * LEVELS + b"\n"], contents):
            (folder / reader.damaged).write_bytes(content)
            fault = fault_of(reader, folder)
            alike = re.sub(r"'[^']*'|[0-9]+", "", fault)[:50]
            seen[alike] += 1
            tally.add(kind, [fault] if fault and seen[alike] == 1 else [])
    return tally


def _tried(scope: Scope, name: str) -> Tally:
    (reader,) = (one for one in all_readers() if one.name == name)
    return try_reader(reader, scope.draws(name, COMMANDS if reader.is_slow else READS))


def readers(scope: Scope) -> Iterator[Tally]:
    """damaged files in every reader of the tools: a message that names the file, no other
    exception, no hang."""
    names = [reader.name for reader in all_readers() if scope.has(reader.name)]
    # what a reader takes for hung is ended by a signal, which only a process of its own gets
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(scope.jobs, mp_context=processes) as pool:
        for name, tried in zip(names, pool.map(_tried, [scope] * len(names), names), strict=True):
            print(f"{name}: {tried.violations or 'nothing'}", flush=True)
            yield tried
