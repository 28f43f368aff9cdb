"""Damaged files in every reader of the tools; sanitizers.py has those of the programs."""

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
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from built_programs import write_json
from campaign.runs import JOBS, Scope, Tried, end_of, scratch
from fake_bench import make_build
from fake_training import made_up_summary, write_profile
from published import FOLDER, MEASURED, OLDER, RECORDED, STUDY, analysis_of, write_run
from tinyllama_tools.__main__ import main as run_tool
from tinyllama_tools.data.results import read_result_set
from tinyllama_tools.models.machine_file import machine_document

Json = Any
# stands for arrays within each other, more than a parser that calls itself can bear
DEEP = "@deep@"
LEVELS = 100_000


def unreadable() -> Iterator[bytes]:
    """Files that are nothing of ours, or only begin so."""
    opened, deep = "[" * LEVELS, "[" * LEVELS + "]" * LEVELS
    yield from (b"", b"[]", b"{}", b"null", b"5", b"\0", b" " * 50_000_000, opened.encode())
    yield b'{"context":' * LEVELS
    yield f'{{"context": {{"schema_version": 4, "device": {deep}'.encode()
    rows = [{}, {"name": 5}, {"name": "a"}, {"run_name": "a", "real_time": "1", "time_unit": "ms"}]
    ours = [{"context": {"schema_version": 4}, "benchmarks": of} for of in ([], {}, None, *rows)]
    ours += [{"context": {}, "benchmarks": [of]} for of in (*rows, None, 1)]
    ours += [{"context": [], "benchmarks": rows}, {"context": {"distributed": {}}}]
    yield from (json.dumps(of).encode() for of in ours)


# Damage: what is put in place of a value, and between bytes.
ODD = (
    *("", " ", "a" * 5000, "nan", "1", "\0", "\ud800", "../../x", "%s{}", "ü\u202e", "-", DEEP),
    *(0, 1, -1, 2, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e-320, 1e308, -1e308),
    *(float("nan"), float("inf"), -float("inf"), True, False),
    *(None, [], {}, [None], [[1]], {"": 0}, [{}]),
)
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
    """Removes, renames or doubles something, or replaces it by something odd, of another type, or
    from elsewhere in the document."""
    if not (found := list(places(document))):
        return
    # keys of the outer objects as likely as one of the thousands of inner ones
    container, key = draw.choice(found if draw.random() < 0.7 else found[: 1 + len(found) // 50])
    other, its = draw.choice(found)
    value = container[key]
    near = [str(value), [value], [value, value], {"x": value}]
    if isinstance(value, (int, float)):
        near += [-value, value + 1]
    elif isinstance(value, str):
        near += [value[1:], value * 2, value.upper(), value + "\n"]
    choices = {"elsewhere": [other[its]], "near": near, "odd": ODD}
    action = draw.choice(("remove", "rename", "elsewhere", "near", "near", "odd", "odd", "odd"))
    if action in choices:
        container[key] = copy.deepcopy(draw.choice(choices[action]))
        return
    del container[key]
    if action == "rename" and isinstance(container, dict):
        container[draw.choice(("x", "", "name", "context"))] = value
    elif action == "rename":
        container[key:key] = [value, value]


def damaged_json(original: bytes, draw: random.Random) -> bytes:
    """With NaN and halves of surrogate pairs, which others write."""
    document = json.loads(original)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        damage_once(document, draw)
    text = json.dumps(document, ensure_ascii=draw.random() < 0.5)
    levels = draw.choice((3, 500, LEVELS))
    text = text.replace(f'"{DEEP}"', "[" * levels + "]" * levels)
    return text.encode("utf-8", errors=draw.choice(("surrogatepass", "replace")))


def damaged_bytes(original: bytes, draw: random.Random) -> bytes:
    """Bytes cut out, flipped, doubled or added, or the text in another encoding."""
    if draw.random() < 0.02:
        return draw.choice((original.decode("latin-1").encode("utf-16"), b""))
    data = bytearray(original)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(data) + 1)
        end = draw.choice((at + 1, at + 4, at + 100, len(data)))
        piece = bytes(data[at:end])
        flipped = bytes(byte ^ 1 << draw.randrange(8) for byte in piece[:1]) + piece[1:]
        others = (piece * 2, draw.choice(BYTES) + piece, draw.randbytes(draw.randrange(5)))
        data[at:end] = draw.choice((b"", flipped, flipped, *others))
    return bytes(data)


def damaged(original: bytes, draw: random.Random) -> bytes:
    """A file of one document, or of one a line."""
    if draw.random() < 0.2:
        return damaged_bytes(original, draw)
    lines = original.splitlines(keepends=True)
    number = draw.choice((0, draw.randrange(len(lines))))
    lines[number] = damaged_json(lines[number], draw) + b"\n"
    return b"".join(lines)


# of a command that goes on without the file, and of one that cannot
WITHOUT, REFUSED = 1, 2


class Reader(NamedTuple):
    """A command that reads files of {folder}, among them the one that is `damaged`; its exit status
    where nothing can be read from that one."""

    damaged: str
    arguments: str
    status: int = REFUSED


COMPARE = "compare {folder}/base.json {folder}/new.json"
CALIBRATE = "compare calibrate --recording {folder}/blocks.jsonl --out {folder}/out "
REPORT = "report --format md -o {folder}/page.md {folder}/"
AGAIN = "scaling --from {folder}/ranks"
PREDICT = (
    "study --grid tiny --batch 8 --seq 128 --build-folder {folder}/build --ranks 2,16 "
    "--machine {folder}/machine.json"
)
ANALYSIS = "profile --analyze-existing {folder}/training"
READERS = {
    "compare": Reader("new.json", COMPARE),
    "compare to": Reader("base.json", COMPARE),
    "compare of training": Reader(
        "training/performance_summary.json",
        "compare {folder}/trained.json {folder}/training/performance_summary.json",
    ),
    "calibrate": Reader("blocks.jsonl", CALIBRATE + "--tries 1 --jobs 1"),
    "history add": Reader(
        "new.json", "compare history add --skip-known --store {folder}/out/kept {folder}/new.json"
    ),
    "history": Reader("history.jsonl", "compare history show --store {folder}/history.jsonl"),
    "report of a result": Reader("new.json", REPORT + "new.json"),
    "report of ranks": Reader("ranks/scaling.json", REPORT + "ranks", WITHOUT),
    "report of a study": Reader("study/study.json", REPORT + "study"),
    "report of costs": Reader("study/costs.json", REPORT + "study", WITHOUT),
    "report of a frontier": Reader("study/frontier.json", REPORT + "study", WITHOUT),
    "profile": Reader("training/performance_summary.json", ANALYSIS),
    "ranks": Reader("ranks/ranks_2.json", AGAIN, WITHOUT),
    "a file of ranks": Reader("ranks/ranks_2.json", AGAIN + "/ranks_2.json"),
    "machine": Reader("machine.json", PREDICT),
    "ablation": Reader("ablation.json", "ablation --from {folder}/ablation.json --out {folder}"),
    "peers": Reader("peers.json", "peers --from {folder}/peers.json --out {folder}"),
}


def shortened(document: Json) -> Json:
    """Every list cut to its first few, so that a read takes milliseconds."""
    if isinstance(document, dict):
        return {key: shortened(value) for key, value in document.items()}
    return [shortened(value) for value in document[:3]] if isinstance(document, list) else document


def published(name: str) -> Json:
    return shortened(json.loads((FOLDER / name).read_bytes()))


def suite_result() -> Json:
    """Some cases with all their repetitions, a skipped and a failed one, and peaks."""
    document = json.loads(MEASURED.read_bytes())
    rows = document["benchmarks"]
    names = list(dict.fromkeys(row["run_name"] for row in rows))
    wanted = [*[n for n in names if n.startswith("peak/")][:2], *names[:1], names[-1]]
    kept = [shortened(row) for row in rows if row["run_name"] in wanted]
    skipped = {"skipped": True, "skip_message": "for a reason"}
    failed = {"error_occurred": True, "error_message": "for a reason"}
    for seq, why in ((64, skipped), (32, failed)):
        name = f"ffn/forward/baseline/tiny/f32/batch:2/seq:{seq}"
        row = {"run_name": name, "name": name, "run_type": "iteration", "time_unit": "ms"}
        kept.append(row | {"real_time": 0.0} | why)
    return document | {"benchmarks": kept}


def write_files(folder: Path) -> None:
    """What the commands of READERS read."""
    result, grid, strong = suite_result(), STUDY.name, f"ranks_strong_{OLDER}"
    places = ("new.json", "base.json", "study/round_1.json", "study/check.json")
    files = dict.fromkeys(places, result)
    files |= {f"{name}.json": published(f"{name}_{OLDER}.json") for name in ("ablation", "peers")}
    for name in ("study", "frontier", "products", "costs"):
        files[f"study/{name}.json"] = published(f"{grid}/{name}.json")
    for name in ("ranks_1", "ranks_2"):
        files[f"ranks/{name}.json"] = published(f"{strong}/{name}.json")
    lost = {"ranks": 4, "status": 1, "words": "rank 3 of 4 was lost"}
    files["ranks/scaling.json"] = {"failures": [lost]}
    files["trained.json"] = summary = shortened(made_up_summary())
    for name, content in files.items():
        write_json(folder / name, content)
    with contextlib.redirect_stdout(io.StringIO()):
        # keeps what had failed
        assert run_tool(["scaling", "--from", str(folder / "ranks")]) == 1
    # in one line, as damaged() has a document
    scaled = folder / "ranks/scaling.json"
    write_json(scaled, json.loads(scaled.read_bytes()))
    write_machine(folder)
    write_profile(folder / "training", summary)
    # four blocks of a component and of the step: the more cases, the slower a read
    recording = RECORDED.read_bytes()
    head, *blocks = recording.splitlines(keepends=True)
    few = [block for block in blocks if b'"ffn/' in block or b'"full_step/' in block][:8]
    (folder / "blocks.jsonl").write_bytes(b"".join([head, *few]))
    # two results, which are the same but for a line end
    results = [folder / name for name in ("base.json", "again.json")]
    results[1].write_bytes(results[0].read_bytes() + b"\n")
    with contextlib.redirect_stdout(io.StringIO()):
        store = ["--store", str(folder / "history.jsonl")]
        run_tool(["compare", "history", "add", *store, *map(str, results)])


def write_machine(folder: Path) -> None:
    """Of the published study, and of ranks as if on its device."""
    study = read_result_set(sorted(STUDY.glob("round_*.json")))
    document = machine_document(study, [analysis_of(write_run(folder / "of_ranks", (1, 2), 2))])
    document["sources"][1]["device"] = document["sources"][0]["device"]
    document["ranks"]["most_ranks"] = None
    write_json(folder / "machine.json", shortened(document))
    make_build(folder / "build", cases={})


FULL = 20_000
HANG_S = 10.0
LONGEST_MESSAGE = 20_000


class HangError(BaseException):
    """Not an Exception, which a reader may catch."""


def _hang(*_: object) -> None:
    raise HangError


def run_reader(reader: Reader, folder: Path) -> tuple[object, str]:
    """The command's exit status, and what it said."""
    said, arguments = io.StringIO(), reader.arguments.format(folder=folder).split()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            return run_tool(arguments), said.getvalue()
        except SystemExit as error:
            return error.code, said.getvalue()


def fault_of(reader: Reader, folder: Path, *, is_unreadable: bool = False) -> str:
    """How the command breaks its promise on what the folder holds; empty where it keeps it. A file
    that cannot be read has to be named, with the status of the reader."""
    # only in the main thread
    signal.signal(signal.SIGALRM, _hang)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        status, said = run_reader(reader, folder)
    except HangError:
        return f"no end within {HANG_S:g} s"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:400]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if "not foreseen" in said or "Traceback" in said:
        return end_of(said)
    if status not in ({reader.status} if is_unreadable else {0, 1, REFUSED}):
        return f"status {status!r}"
    if status != REFUSED and not is_unreadable:
        return ""
    if len(said) > LONGEST_MESSAGE:
        return f"a message of {len(said)} characters"
    return "" if Path(reader.damaged).name in said else f"names no file: {said[:200]}"


def try_reader(scope: Scope, name: str) -> Tried:
    """What nothing can be read from, and a damaged file for each draw. Of faults that are alike the
    first is kept."""
    reader, draws, faults = READERS[name], scope.draws(name, FULL), {}
    with scratch() as folder:
        write_files(folder)
        damaged_file = folder / reader.damaged
        original = damaged_file.read_bytes()
        # otherwise nothing behind the first check is tried
        status, said = run_reader(reader, folder)
        if status not in {0, 1}:
            raise RuntimeError(f"undamaged, {name}: {status}: {said[-2000:]}")
        lacking = list(unreadable())
        for content in (*lacking, *(damaged(original, draw) for draw in draws)):
            # a history that grows with each try would take hours to read
            shutil.rmtree(folder / "out", ignore_errors=True)
            damaged_file.write_bytes(content)
            if fault := fault_of(reader, folder, is_unreadable=content in lacking):
                faults.setdefault(re.sub(r"'[^']*'|[0-9]+", "", fault)[:50], fault)
    return Tried(f"damaged file of {name}", list(faults.values()), len(lacking) + len(draws))


def readers(scope: Scope) -> Iterator[Tried]:
    """damaged files in every reader of the tools: a message that names the file, no other
    exception, no hang."""
    # what hangs is ended by a signal, which only a process of its own gets
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(JOBS, mp_context=processes) as pool:
        yield from pool.map(try_reader, itertools.repeat(scope), READERS)
