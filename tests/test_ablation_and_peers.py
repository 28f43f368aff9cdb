"""scripts/ablation and scripts/peers, of a fake program and fake peers: what is measured in which
order, ratios, pages, files and what is refused; and of the real ones, shortly."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tools
from fake_suite_program import POINT, FakeProgram
from tinyllama_tools.commands import peers
from tinyllama_tools.commands.ablation import ablation_page
from tinyllama_tools.commands.peers import PeerSide, parse_options
from tinyllama_tools.core.app import schema_problem
from tinyllama_tools.data import programs
from tinyllama_tools.data.names import full_step
from tinyllama_tools.models.ablations import OPTIMIZED, SWITCHES, Cell, Study, read_study

MAIN = ["--switches=qkv,sdpa,graph", "--dtypes=f32", "--points=8x128"]


def run(program: FakeProgram, folder: Path, *arguments: str, status: int = 0) -> Study:
    """What the command leaves in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "SuiteProgram", lambda *_: program)
        assert tools.ablation(["--turns=6", *arguments, f"--output={folder}"]) == status
    return read_study(folder / "ablation.json")


def rows_of(page: str) -> list[dict[str, str]]:
    """The rows of the tables of all points, by column."""
    lines = [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in page.splitlines() if "|" in line]
    heads = next(line for line in lines if line[0] == "variant")
    rows = [line for line in lines if len(line) == len(heads) and line[0][0] not in "-v"]
    return [dict(zip(heads, line, strict=True)) for line in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a run of the fake at all points; checkpoint's result is wrong."""
    program = FakeProgram()
    program.wrong.add("checkpoint")
    folder = tmp_path_factory.mktemp("whole")
    run(program, folder, "--switches=qkv,sdpa,graph,checkpoint", status=1)
    return folder


def test_figures_of_the_page_are_those_of_the_turns(folder: Path) -> None:
    document = json.loads((folder / "ablation.json").read_text())
    page = (folder / "ABLATION.md").read_text()
    assert "f32 | 200 GFLOP/s" in page and "bf16 | 200 GFLOP/s" in page
    # what may be published names no folder
    assert "scripts/ablation --turns=6" in page and str(folder.parent) not in page
    rows, cells = rows_of(page), document["main"]
    by_row = {(tuple(c["point"].values()), c["row"]): c for c in cells}
    # three dtypes at two shapes; without qkv only where `optimized` has it
    assert len(rows) == len(by_row) == 6 * 8 + 4
    assert sorted(row["variant"] for row in rows) == sorted(row for _, row in by_row)
    for row, cell in zip(rows, cells, strict=True):
        assert row["variant"] == cell["row"]
        if cell["row"] in {"graph", "checkpoint"}:
            reason = "skipped: graph: only a GPU" if cell["row"] == "graph" else "failed: wrong"
            assert row["note"].startswith(reason) and row["ms"] == row["ratio"] == "-"
            continue
        of = "optimized" if cell["row"].startswith("optimized without") else "baseline"
        other = by_row[tuple(cell["point"].values()), of]
        ours, theirs = (dict(c["turns"]) for c in (cell, other))
        assert sorted(ours) == list(range(6))
        ratios = [ours[t] / theirs[t] if of == "optimized" else theirs[t] / ours[t] for t in ours]
        shown = row["ratio"].removeprefix("~ ").split(" ")[0]
        assert float(shown) == pytest.approx(statistics.median(ratios), abs=0.0051)
        seconds = statistics.median(ours.values())
        assert float(row["ms"]) == pytest.approx(1e3 * seconds, abs=0.06)
        rate = cell["point"]["batch"] / seconds
        assert float(row["samples/s"]) == pytest.approx(rate, abs=0.06)
        # 1e10 FLOPs of 2e11 a second
        assert float(row["MFU %"]) == pytest.approx(5 / seconds, abs=0.06)
        memory = cell["counters"]["peak_memory_MiB"] / other["counters"]["peak_memory_MiB"]
        assert float(row["memory x"]) == pytest.approx(memory, abs=0.0051)
        assert (row["operators"], row["rel error"]) == ("4,050", "1.0e-06")


def test_the_published_page_is_that_of_the_published_result(project_root: Path) -> None:
    path = project_root / "results/reference/ablation_2core_xeon_avx512.json"
    assert (project_root / "results/ABLATION.md").read_text() == ablation_page(read_study(path))


def test_tables_are_made_anew_of_a_result_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "ablation.json"
    source.write_text((folder / "ablation.json").read_text())
    # a wrong result stays one
    assert tools.ablation([f"--from={source}"]) == 1
    for name in ("ABLATION.md", "ablation.json"):
        assert (tmp_path / name).read_text() == (folder / name).read_text()
    text = source.read_text()
    for old, new in (('"batch": 8', '"batch": 0'), ('"turns": [[0, ', '"turns": [[0, -')):
        source.write_text(text.replace(old, new, 1))
        assert tools.ablation([f"--from={source}"]) == 2
        assert "ablation.json: no result of scripts/ablation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tool", "option", "words"),
    [
        (tools.ablation, "--switches=qkv,nonsense", "'nonsense': must be one of qkv, gate_up"),
        (tools.ablation, "--points=8by128", "'8by128': must be BATCHxSEQ such as 8x128"),
        (tools.peers, "--seq=1", "--seq '1': must be at least 2"),
        (tools.peers, "--device=auto", "'auto': must be cpu, cuda[:N] or hip[:N]"),
    ],
)
def test_bad_options_are_named(
    tool: Callable[..., int], option: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool([option])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("tool", [tools.ablation, tools.peers])
def test_a_program_that_refuses_its_options_leaves_nothing(
    tool: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = FakeProgram()
    program.refusal = "tiny_llama_bench: device 'cuda:9': no such device"
    monkeypatch.setattr(programs, "SuiteProgram", lambda *_: program)
    assert tool([f"--output={tmp_path / 'none'}"]) == 2
    assert program.refusal in capsys.readouterr().err
    assert program.calls == [] and not list(tmp_path.iterdir())


def test_switches_are_those_of_the_program(bench_program: Path) -> None:
    command = [bench_program, "--list", "--variants=nonsense"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    names = refused.stderr.rpartition(": ")[2].strip()
    assert names.split(", ") == list(SWITCHES)


@pytest.mark.usefixtures("bench_program")
def test_smoke_with_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--points=2x16", "--dtypes=f32", "--turns=1", "--steps=1", "--switches=qkv,graph"]
    assert tools.ablation([*options, f"--output={tmp_path}"]) == 0, capsys.readouterr().err
    found = read_study(tmp_path / "ablation.json")
    (point,) = found.points()
    for row in ("baseline", "qkv", "fused", "optimized", "optimized without qkv"):
        cell = found.get(row, point)
        assert cell.turns, cell.note
        assert cell.counters.get("max_rel_error") < 1e-4


def test_every_row_is_measured_in_every_turn_in_changing_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, again = FakeProgram(), FakeProgram()
    run(program, tmp_path, *MAIN)
    # verified first: all that is known, in one process; then what follows from `optimized`
    known = ["baseline", "qkv", "sdpa", "graph", "fused", "optimized"]
    assert program.calls[:2] == [(known, 1, True), (["sdpa", "qkv"], 1, True)]
    timed = [names for names, steps, verify in program.calls[2:] if steps == 5 and not verify]
    assert len(timed) == len(program.calls) - 2 == 6 * 7
    turns = [[name for (name,) in timed[i : i + 7]] for i in range(0, len(timed), 7)]
    can_run = sorted([*known, "sdpa", "qkv"])
    can_run.remove("graph")
    assert all(sorted(turn) == can_run for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    again.interrupt_after = 30
    found = run(again, tmp_path, *MAIN, status=130)
    assert again.calls == program.calls[:30]
    assert "- **interrupted: " in capsys.readouterr().out
    assert len(found.get("baseline", POINT).turns) in {4, 5}


def test_skipped_wrong_and_crashed_stay_with_their_reason(tmp_path: Path) -> None:
    program = FakeProgram()
    program.wrong.add("qkv")
    program.crashes.add("fused")
    made = run(program, tmp_path, *MAIN, status=1)
    assert [made.get(row, POINT).note for row in ("graph", "qkv", "fused", "sdpa")] == [
        "skipped: graph: only a GPU captures its work",
        "failed: wrong result: loss differs by 0.5",
        "failed: tiny_llama_bench was ended by signal SIGSEGV",
        "",
    ]
    # the cell without sdpa is qkv, and as wrong
    assert {cell.row for cell in made.failures} == {"qkv", "fused", "optimized without sdpa"}
    # the others' process died with it; each then had its own
    assert [names for names, _, verify in program.calls if verify and len(names) == 1]
    program = FakeProgram()
    program.crashes, program.crashes_after = {"fused"}, 20
    made = run(program, tmp_path, *MAIN, status=1)
    # no times beside the reason, and no turn after it
    assert made.get("fused", POINT).note.startswith("failed: ")
    assert made.get("fused", POINT).turns == {}
    assert [names for names, *_ in program.calls[20:]].count(["fused"]) == 1


# a machine that drifts from turn to turn by more than two variants differ
DRIFT = [1.0, 1.3, 0.8, 1.1, 1.6, 0.9, 1.2]
NOISE = [1, 0.9, 1.1, 1.05, 0.95, 1, 1.2]


@pytest.mark.parametrize(
    ("qkv", "optimized", "text", "slower"),
    [
        ([0.8 * t for t in DRIFT], [0.88 * t for t in DRIFT], "1.25 (1.25 to 1.25)", ["qkv"]),
        ([n * t for n, t in zip(NOISE, DRIFT, strict=True)], DRIFT, "~ 1.00 (0.83 to 1.11)", []),
        # too few turns show nothing
        ([0.5, 0.65], [0.6, 0.7], "~ 2.00 (2.00 to 2.00 at 50 %)", []),
        ([], [], "-", []),
    ],
)
def test_ratios_are_of_the_same_turn_and_say_where_optimized_is_slower(
    qkv: list[float], optimized: list[float], text: str, slower: list[str]
) -> None:
    made = Study(dict.fromkeys(("date", "turns", "turns_done", "steps", "took", "command"), "1"))
    for row, times in (("baseline", DRIFT), ("qkv", qkv), ("fused", [0.1]), (OPTIMIZED, optimized)):
        made.add(Cell(row, POINT, row, turns=dict(enumerate(times))))
    page = ablation_page(made)
    assert rows_of(page)[1]["ratio"] == text
    assert f"{2 if optimized else 0} comparisons,\n{len(slower)} of which" in page
    found = re.findall(r"^\| tiny f32, batch 8 x sequence 128 \| (\w+) .*$", page, re.MULTILINE)
    assert found == slower


# scripts/peers
CASE = full_step("tiny", "f32", 8, 128)


def test_cases_are_the_default_grid_or_those_of_the_axes(bench_program: Path) -> None:
    names = {str(case) for case in parse_options(["--dtypes=f32,bf16"]).cases}
    listed = subprocess.run([bench_program, "--list"], capture_output=True, text=True, check=True)
    every = listed.stdout.split()
    assert names == {name for name in every if name.startswith("full_step/train/baseline/")}
    options = parse_options(["--sizes=medium", "--dtypes=bf16,f32", "--batch=8,4"])
    found = [(c.dtype, c.batch, c.seq) for c in options.cases]
    assert found == [("f32", 8, 512), ("f32", 4, 512), ("bf16", 8, 512), ("bf16", 4, 512)]


SIZE = {"vocab_size": 50, "hidden_dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2}
SIZE |= {"intermediate_dim": 48}


def test_peer_really_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and under autocast: what is neither is less of the same."""
    tools.require_oracle_packages()
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not (header.is_file() and shutil.which("g++")):
        pytest.skip("torch.compile needs g++ and Python.h: install g++ and python3-dev")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(peers, "problem_sizes", lambda: {"tiny": SIZE})
    side, case = PeerSide("compile_tuned", "cpu", 1, 60.0), full_step("tiny", "amp_bf16", 2, 8)
    try:
        assert side.get_ready(case) > 0
        assert side.settings["threads"] == 1
        # whatever the form asks for, true float32 where float32 is asked for
        if side.settings["float32_matmul_precision"] == side.form["precision"]:
            assert side.settings["float32_product_error"] <= 1e-5
        rows = side.time(case, 20)
        assert len(rows) == 20 and all(row["real_time"] > 0 < row["cpu_time"] for row in rows)
        # log(50) = 3.91 before it learned anything
        assert side._ask("time", steps=1)["loss"] < 3.9
    finally:
        side.close()


# What peer_process.py answers, with made-up times: a bf16 step takes a minute, no code is compiled
# for small, and a sequence of 64 kills it.
FAKE_PEER = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "hello":
        seconds = 0.2 if asked["form"]["adamw"] == "for-loop" else 0.1
        answer = {"torch": "2", "transformers": "4", "python": "3", "threads": asked["threads"]}
        answer |= {"float32_matmul_precision": "highest", "float32_product_error": 4e-7}
        environment = ("MALLOC_TRIM_THRESHOLD_", "OMP_PROC_BIND")
        answer |= {"environment": {name: os.environ.get(name) for name in environment}}
    elif asked["do"] == "build":
        built = 60.0 if asked["dtype"] == "bf16" else seconds
        if asked["seq"] == 64:
            print("last words", file=sys.stderr)
            sys.exit(7)
        is_small = asked["size"]["hidden_dim"] > 256
        answer = {"error": "the compiler is absent"} if is_small else {"seconds": [built]}
    else:
        times = [built, 1.4 * built, 0.9 * built][: asked.get("steps", 1)]
        answer = {"seconds": times, "cpu_seconds": times}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeProgram:
    """What scripts/peers measures, with played peers, into tmp_path."""
    program = FakeProgram()
    program.drift = 0.0
    monkeypatch.setattr(programs, "SuiteProgram", lambda *_: program)
    monkeypatch.setattr(peers, "PEER", (sys.executable, "-c", FAKE_PEER))
    monkeypatch.setattr(peers, "RESULTS", tmp_path)
    for name in [name for name in os.environ if name.startswith(("OMP_", "GOMP_", "KMP_"))]:
        monkeypatch.delenv(name)
    return program


AXES = ["--dtypes=f32,bf16", "--batch=8", "--seq=128,256", "--peers=eager,sdpa"]


def test_result_and_page_have_every_case_with_ratios_times_and_reasons(
    program: FakeProgram, tmp_path: Path, project_root: Path
) -> None:
    program.crashes.add("qkv")
    assert tools.peers([*AXES, "--variant=baseline,optimized,qkv"]) == 1
    (folder,) = tmp_path.glob("*_peers")
    document = json.loads((folder / "peers.json").read_text(encoding="utf-8"))
    assert schema_problem(document, project_root / "results/schema.json") == ""
    entries, about = document["benchmarks"], document["context"]["peers"]
    sdpa = [e for e in entries if e["name"] == str(CASE).replace("baseline", "peer:sdpa")]
    assert len(sdpa) == 6 * 3
    assert (sdpa[0]["samples_per_second"], sdpa[0]["tokens_per_second"]) == (80.0, 10240.0)
    assert sdpa[0]["TFLOPS"] == pytest.approx(0.1)
    ratios = {(r["case"], r["peer"]): r for r in about["ratios"]}
    ratio = ratios[str(CASE), "peer:eager"]
    assert (ratio["median"], ratio["turns"]) == (pytest.approx(2.0), 6)
    assert str(CASE).replace("tiny", "small") not in {case for case, _ in ratios}
    page = (folder / "PEERS.md").read_text(encoding="utf-8")
    page = re.sub(" +", " ", page)  # the columns are aligned
    assert "| side | ms | over baseline | over optimized | over qkv | note |" in page
    for row in (
        "f32 | 8 | 128 | optimized | 50 | | | | |",
        "f32 | 8 | 128 | qkv | failed | | | | tiny_llama_bench was ended by signal SIGSEGV",
        "f32 | 8 | 128 | peer:eager | 200 | 2.00 (2.00 to 2.00) | 4.00 (4.00 to 4.00) | | |",
        "bf16 | 8 | 128 | peer:sdpa | skipped | | | | a step took 60.0 s, more than --max-seconds",
    ):
        assert f"| tiny | {row}" in page
    failed = "failed | | | | peer:eager: the compiler is absent |"
    assert f"| small | f32 | 8 | 256 | peer:eager | {failed}" in page
    assert "| peer:sdpa | sdpa | no | highest, error 4.0e-07 | fused | glibc |" in page


def test_turns_rotate_slow_steps_are_fewer_and_who_dies_leaves_its_reason_alone(
    program: FakeProgram, tmp_path: Path
) -> None:
    program.crashes, program.crashes_after = {"optimized"}, 19
    # of 1.5 s in six turns, a step of 0.1 s gets two a turn
    options = ["--sizes=tiny", "--dtypes=f32", "--batch=8", "--seq=64,128"]
    options += ["--peers=eager,compile_tuned", "--max-seconds-per-case=1.5"]
    assert tools.peers([*options, f"--output={tmp_path}"]) == 1
    timed = [f"{names[0][0]}{steps}" for names, steps, verify in program.calls[1:] if not verify]
    # without the peers, which died of the first case; then between them, until one crashed
    assert timed[:12] == ["b2", "o3", "o3", "b2"] * 3
    assert timed[12:] == ["b2", "o3", "o3", "b2", "b2", "b2", "b2", "b2"]
    document = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    entries, about = document["benchmarks"], document["context"]["peers"]
    assert [e["error_message"] for e in entries if "error_message" in e] == [
        *(f"{peer}: its process ended with 7: last words" for peer in about["forms"]),
        "tiny_llama_bench was ended by signal SIGSEGV: AMD EPYC\n0 cases",
    ]
    names = [entry["name"] for entry in entries]
    assert names.count(str(replace(CASE, variant="optimized"))) == 1
    assert {row["case"] for row in about["ratios"]} == {str(CASE)}
    # who died was started anew, with its threads and its malloc
    found = [form["measured"]["environment"] for form in about["forms"].values()]
    assert [of["MALLOC_TRIM_THRESHOLD_"] for of in found] == [None, str(2**33)]
    assert {of["OMP_PROC_BIND"] for of in found} == {"true"}


def test_interrupt_writes_what_was_measured_and_tables_are_made_anew(
    program: FakeProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, again = tmp_path / "made", tmp_path / "again"
    options = [*AXES, "--sizes=tiny", "--variant=baseline"]
    # the first process, and two cases of a verified one and six turns
    program.interrupt_after = 1 + 2 * (1 + 6)
    assert tools.peers([*options, f"--output={made}"]) == 130
    document = json.loads((made / "peers.json").read_text(encoding="utf-8"))
    assert len(document["benchmarks"]) == 2 * 3 * 6 * 3
    missing = ["tiny bf16 8 x 128", "tiny bf16 8 x 256"]
    assert document["context"]["peers"]["not_measured"] == missing
    assert tools.peers([f"--from={made / 'peers.json'}", f"--output={again}"]) == 0
    for name in ("peers.json", "PEERS.md"):
        assert (again / name).read_text() == (made / name).read_text()
    (made / "peers.json").write_text('{"benchmarks": []}')
    assert tools.peers([f"--from={made / 'peers.json'}"]) == 2
    assert "must be a result of scripts/peers" in capsys.readouterr().err
