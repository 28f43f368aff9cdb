"""scripts/peers: options, processes, interleaved sides, result and page."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

import tools
from fake_suite_program import FakeProgram
from tinyllama_tools.commands import peers
from tinyllama_tools.commands.peers import (
    FORMS,
    PeerSide,
    parse_options,
)
from tinyllama_tools.core.app import schema_problem
from tinyllama_tools.data import programs
from tinyllama_tools.data.names import full_step

CASE = full_step("tiny", "f32", 8, 128)


def test_cases_are_the_default_grid_or_those_of_the_axes(bench_program: Path) -> None:
    names = {str(case) for case in parse_options(["--dtypes=f32,bf16"]).cases}
    listed = subprocess.run([bench_program, "--list"], capture_output=True, text=True, check=True)
    every = listed.stdout.split()
    assert names == {name for name in every if name.startswith("full_step/train/baseline/")}
    options = parse_options(["--sizes=tiny", "--dtypes=bf16,f32", "--batch=8,4", "--seq=64"])
    found = [(c.dtype, c.batch, c.seq) for c in options.cases]
    assert found == [("f32", 8, 64), ("f32", 4, 64), ("bf16", 8, 64), ("bf16", 4, 64)]
    (case,) = parse_options(["--sizes=medium", "--dtypes=f32"]).cases
    assert (case.batch, case.seq) == (16, 512)


SIZE = {"vocab_size": 50, "hidden_dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2}
SIZE |= {"intermediate_dim": 48}


@pytest.mark.parametrize(("name", "dtype"), [("eager", "amp_bf16"), ("compile_tuned", "f32")])
def test_peer_really_trains(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.require_oracle_packages()
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if FORMS[name]["is_compiled"] and not (header.is_file() and shutil.which("g++")):
        pytest.skip("torch.compile needs g++ and Python.h: install g++ and python3-dev")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(peers, "problem_sizes", lambda: {"tiny": SIZE})
    side, case = PeerSide(name, "cpu", 1, 60.0), full_step("tiny", dtype, 2, 8)
    try:
        assert side.get_ready(case) > 0
        assert side.settings["threads"] == 1
        # whatever the form asks for, true float32 where float32 is asked for
        if side.settings["float32_matmul_precision"] == FORMS[name]["precision"]:
            assert side.settings["float32_product_error"] <= 1e-5
        rows = side.time(case, 20)
        assert len(rows) == 20
        assert all(row["real_time"] > 0 and row["cpu_time"] > 0 for row in rows)
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
        answer = {"error": "the compiler is absent"} if is_small else {}
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
    program: FakeProgram, tmp_path: Path, project_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.crashes.add("qkv")
    assert tools.peers([*AXES, "--variant=baseline,optimized,qkv"]) == 1
    (folder,) = tmp_path.glob("*_peers")
    document = json.loads((folder / "peers.json").read_text(encoding="utf-8"))
    assert schema_problem(document, project_root / "results/schema.json") == ""
    entries, about = document["benchmarks"], document["context"]["peers"]
    names = {entry["run_name"].removesuffix("/manual_time") for entry in entries}
    assert len(names) == 2 * 2 * 2 * 5  # sizes, dtypes, sequences, sides
    sdpa = [e for e in entries if e["name"] == str(CASE).replace("baseline", "peer:sdpa")]
    assert len(sdpa) == 6 * 3
    assert (sdpa[0]["samples_per_second"], sdpa[0]["tokens_per_second"]) == (80.0, 10240.0)
    assert sdpa[0]["TFLOPS"] == pytest.approx(0.1)
    ratios = {(r["case"], r["peer"]): r for r in about["ratios"]}
    ratio = ratios[str(CASE), "peer:eager"]
    assert (ratio["median"], ratio["turns"]) == (pytest.approx(2.0), 6)
    assert str(CASE).replace("tiny", "small") not in {case for case, _ in ratios}
    page = (folder / "PEERS.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == f"{page}{folder}\n"
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
    died = "its process ended with 7: last words"
    crashed = "tiny_llama_bench was ended by signal SIGSEGV: AMD EPYC\n0 cases"
    first = [str(replace(CASE, variant=name, seq=64)) for name in about["forms"]]
    assert {e["name"]: e["error_message"] for e in entries if "error_message" in e} == {
        **{name: f"{name.split('/')[2]}: {died}" for name in first},
        str(replace(CASE, variant="optimized")): crashed,
    }
    names = [entry["name"] for entry in entries]
    assert names.count(str(replace(CASE, variant="optimized"))) == 1
    assert names.count(str(replace(CASE, variant="peer:eager"))) == 6
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
    program.interrupt_after = 100
    # what is skipped has not failed
    assert tools.peers([*AXES, "--sizes=tiny", "--dtypes=bf16", f"--output={made}"]) == 0
    (made / "peers.json").write_text('{"benchmarks": []}')
    assert tools.peers([f"--from={made / 'peers.json'}"]) == 2
    assert "must be a result of scripts/peers" in capsys.readouterr().err
