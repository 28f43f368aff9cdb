"""scripts/peers: options, processes, interleaved sides, result and page."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import tools
from oracle_packages import require_oracle_packages
from tinyllama_tools.commands import peer_sides, peers
from tinyllama_tools.commands.peer_sides import (
    FORMS,
    CaseRun,
    Effort,
    PeerForm,
    PeerProcess,
    PeerSide,
    Side,
    SideError,
    caching_malloc,
    measure_case,
    start_peer,
    step_flops,
)
from tinyllama_tools.commands.peers import parse_options, peers_page
from tinyllama_tools.data.names import CaseName, full_step
from tinyllama_tools.data.programs import SuiteError, SuiteProgram
from tinyllama_tools.data.results import checked_result

Json = dict[str, Any]


def test_cases_are_the_default_grid_and_autocast_or_those_of_the_axes(bench_program: Path) -> None:
    names = {str(case) for case in parse_options([]).cases}
    listed = subprocess.run([bench_program, "--list"], capture_output=True, text=True, check=True)
    every = listed.stdout.split()
    grid = {name for name in every if name.startswith("full_step/train/baseline/")}
    assert {name for name in names if "/amp_" not in name} == grid
    test_points = {f"tiny/amp_bf16/batch:{b}/seq:{s}" for b in (8, 16) for s in (128, 256)}
    autocast = {*test_points, "small/amp_bf16/batch:8/seq:256"}
    assert names - grid == {f"full_step/train/baseline/{point}" for point in autocast}
    options = parse_options(["--sizes=tiny", "--dtypes=bf16,f32", "--batch=8,4", "--seq=64"])
    found = [(c.dtype, c.batch, c.seq) for c in options.cases]
    # the smallest first
    assert found == [("f32", 4, 64), ("f32", 8, 64), ("bf16", 4, 64), ("bf16", 8, 64)]
    (case,) = parse_options(["--sizes=medium", "--dtypes=f32"]).cases
    assert (case.batch, case.seq) == (16, 512)
    assert parse_options(["--quick"]).cases == (full_step("tiny", "f32", 4, 64),)
    # as tiny_llama_bench counts them
    assert step_flops(full_step("tiny", "f32", 8, 128)) == 17678991360


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--sizes=huge", "argument --sizes: size 'huge': must be one of tiny, small"),
        ("--dtypes=f16", "argument --dtypes: dtype 'f16': must be one of f32, amp_bf16, bf16"),
        ("--peers=jax", "argument --peers: peer 'jax': must be one of eager, sdpa"),
        ("--seq=1", "--seq '1': must be at least 2"),
        ("--device=auto", "argument --device: device 'auto': must be cpu, cuda[:N] or hip[:N]"),
        ("--variant=../x", "argument --variant: '../x': must be a name"),
    ],
)
def test_bad_option_is_named_with_what_is_allowed(
    option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tools.peers([option])
    assert f"scripts/peers: error: {message}" in capsys.readouterr().err


def test_what_is_refused_or_cannot_be_written_is_said_before_anything_is_measured(
    played: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.peers(["--quick", "--out=.", f"--markdown={played}/o.md"]) == 2
    assert "'.': must be a file" in capsys.readouterr().err

    def run(*_: object, **__: object) -> None:
        raise AssertionError("nothing may be measured")

    monkeypatch.setattr(SuiteProgram, "run", run)
    assert tools.peers(["--variant=baseline,nonsense"]) == 2
    assert "variant 'nonsense': must be baseline" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(peers, "RESULTS", played)
    monkeypatch.setattr(peers, "SuiteProgram", partial(SuiteProgram, program=played / "absent"))
    assert tools.peers(["--quick"]) == 2
    assert "absent cannot be started" in capsys.readouterr().err
    assert not list(played.iterdir())


ECHO = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "crash":
        print("last words", file=sys.stderr)
        sys.exit(7)
    print(json.dumps({"error": "no"} if asked["do"] == "fail" else {"got": asked}), flush=True)
"""


def ask(process: PeerProcess, do: str, **what: object) -> Json:
    process.send(do, **what)
    return process.receive()


def test_a_process_answers_refuses_and_ends_with_its_last_words() -> None:
    echo = PeerProcess("peer:echo", os.environ, [sys.executable, "-c", ECHO])
    assert ask(echo, "time", steps=3) == {"got": {"do": "time", "steps": 3}}
    with pytest.raises(SideError, match="peer:echo: no"):
        ask(echo, "fail")
    assert echo.is_running
    for _ in range(2):
        with pytest.raises(SideError, match="peer:echo: its process ended with 7: last words"):
            ask(echo, "crash")
    assert not echo.is_running
    echo.close()


def test_environment_has_threads_as_our_program_places_them_and_the_malloc_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_sides, "PeerProcess", lambda _, environment, __: environment)
    monkeypatch.setattr(peer_sides, "placed_threads", lambda _: {"OMP_PROC_BIND": "true"})
    monkeypatch.setattr(
        ctypes.util, "find_library", {"jemalloc": "libjemalloc.so.2"}.get, raising=True
    )
    found = caching_malloc()
    assert "decay_ms:-1" in found.environment["MALLOC_CONF"]
    eager, tuned = (start_peer(FORMS[name], found, "cpu") for name in ("eager", "compile_tuned"))
    assert eager["OMP_PROC_BIND"] == "true" and "LD_PRELOAD" not in eager
    assert tuned["LD_PRELOAD"] == "libjemalloc.so.2"
    monkeypatch.setattr(ctypes.util, "find_library", lambda _: None)
    absent = caching_malloc()
    assert set(absent.environment) == {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
    assert "none of tcmalloc_minimal, tcmalloc, jemalloc is installed" in absent.description


SIZE = {"vocab_size": 50, "hidden_dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2}
SIZE |= {"intermediate_dim": 48}


def can_compile() -> bool:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return header.is_file() and shutil.which("g++") is not None


@pytest.mark.parametrize(
    ("name", "dtype"), [("eager", "amp_bf16"), ("sdpa", "bf16"), ("compile_tuned", "f32")]
)
def test_peer_really_trains(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_oracle_packages()
    form = FORMS[name]
    if form.is_compiled and not can_compile():
        pytest.skip("torch.compile needs g++ and Python.h: install g++ and python3-dev")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    malloc = caching_malloc()
    process = start_peer(form, malloc, "cpu")
    try:
        about = ask(process, "hello", form=asdict(form), threads=1)
        assert about["threads"] == 1
        wanted = malloc.environment.get("LD_PRELOAD", "").split() if form.malloc else []
        assert about["preloaded"] == wanted
        if about["float32_matmul_precision"] == form.precision:
            assert about["float32_product_error"] <= 1e-5
        ask(process, "build", size=SIZE, dtype=dtype, batch=2, seq=8)
        assert len(ask(process, "warm_up", limit=60.0)["seconds"]) >= 3
        answer = ask(process, "time", steps=20)
        assert len(answer["seconds"]) == len(answer["cpu_seconds"]) == 20
        # log(50) = 3.91 before it learned anything
        assert answer["loss"] < 3.9
    finally:
        process.close()


CASE = full_step("tiny", "f32", 8, 128)


class CallingSide(Side):
    """Says in `calls` what it is asked for."""

    def __init__(self, variant: str, calls: list[str]) -> None:
        self.variant, self._calls = variant, calls

    def start(self, case: CaseName) -> None:
        self._calls.append(f"{self.variant} starts {case.seq}")

    def wait_until_built(self) -> None:
        self._calls.append(f"{self.variant} is built")

    def get_ready(self, case: CaseName) -> float:
        self._calls.append(f"{self.variant} gets ready for {case.seq}")
        return 0.1

    def time(self, case: CaseName, steps: int) -> list[Json]:
        self._calls.append(f"{self.variant} times {case.seq}")
        return [{"real_time": 100.0, "time_unit": "ms"}] * steps


def test_all_are_built_before_any_gets_ready_and_turns_rotate() -> None:
    calls: list[str] = []
    results: list[CaseRun] = []
    sides = [CallingSide(name, calls) for name in "abc"]
    measure_case(CASE, sides, Effort(3, 2, 10.0), lambda _: None, results.append)
    preparations = ("starts 128", "is built", "gets ready for 128")
    assert calls[:9] == [f"{name} {what}" for what in preparations for name in "abc"]
    assert calls[9:] == [f"{name} times 128" for name in "abcbcacab"]
    (result,) = results
    assert [len(turn) for turn in result.sides["a"].turns] == [2] * 3
    assert result.sides["a"].medians == [0.1] * 3


@pytest.mark.parametrize(
    ("seconds", "turns", "steps"),
    # of 5 turns of 4 steps within 10 s
    [(0.1, 5, 4), (0.5, 5, 4), (0.6, 5, 3), (1.9, 5, 1), (2.4, 4, 1), (9.0, 1, 1), (99.0, 1, 1)],
)
def test_slow_steps_get_fewer_steps_and_then_fewer_turns(
    seconds: float, turns: int, steps: int
) -> None:
    assert Effort(5, 4, 10.0).for_step_of(seconds) == Effort(turns, steps, 10.0)


SPEEDS = {"peer:eager": 0.2, "peer:sdpa": 0.1}


class PlayedProcess:
    """Answers as a peer's process does; a bf16 step takes a minute, a build of small fails."""

    is_running = True

    def __init__(self, variant: str) -> None:
        self.seconds = SPEEDS[variant]
        self.request: Json = {}
        self.built: Json = {}

    def send(self, do: str, **what: Any) -> None:  # noqa: ANN401 -- as the real one
        self.request = {"do": do, **what}

    def receive(self) -> Json:
        do = self.request["do"]
        if do == "hello":
            versions = {"torch": "2", "transformers": "4", "python": "3", "threads": 2}
            precision = {"float32_matmul_precision": "highest", "float32_product_error": 4e-7}
            return {**versions, **precision, "preloaded": []}
        if do == "build":
            self.built = self.request
            if self.request["size"]["hidden_dim"] > 256:
                raise SideError("peer:x: the compiler is absent")
        seconds = 60.0 if self.built["dtype"] == "bf16" else self.seconds
        times = [seconds] * self.request.get("steps", 1)
        return {"seconds": times, "cpu_seconds": times}

    def close(self) -> None:
        pass


@pytest.fixture
def played(project_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes scripts/peers measure played sides and write into the folder that is returned.

    Our program answers from a real result's context and entries: baseline 100 ms, optimized 50.
    """
    reference = project_root / "results/reference/tiny_f32_2core_xeon_avx512.json"
    document = checked_result(json.loads(reference.read_text(encoding="utf-8")), reference)
    step = next(e for e in document["benchmarks"] if e["name"].startswith("full_step/"))
    del step["max_rel_error"]

    def run(
        _: SuiteProgram,
        cases: list[CaseName],
        repetitions: int,
        *,
        verify: bool = False,
        more: object = (),  # noqa: ARG001
    ) -> Json:
        (case,) = cases
        if case.variant == "qkv":
            raise SuiteError("tiny_llama_bench was ended by signal SIGSEGV: it said nothing")
        name = f"{case!s}/manual_time"
        own = {"name": name, "run_name": name, "time_unit": "ms"}
        own |= {"real_time": 50.0 if case.variant == "optimized" else 100.0}
        own |= {"max_rel_error": 1e-6} if verify else {}
        entries = [{**step, **own, "repetition_index": i} for i in range(repetitions)]
        return {"context": document["context"], "benchmarks": entries}

    def list_cases(_: SuiteProgram, options: list[str]) -> tuple[list[str], str]:
        refusal = "tiny_llama_bench: --variants: variant 'nonsense': must be baseline"
        return [], refusal if "nonsense" in options[-1] else ""

    monkeypatch.setattr(SuiteProgram, "measure", run)
    monkeypatch.setattr(SuiteProgram, "list_cases", list_cases)
    monkeypatch.setattr(peers, "start_peer", lambda form, **_: PlayedProcess(f"peer:{form.name}"))
    monkeypatch.setattr(peers, "RESULTS", tmp_path)
    return tmp_path


AXES = ["--dtypes=f32,bf16", "--batch=8", "--seq=128,256", "--peers=eager,sdpa", "--turns=6"]


def test_result_and_page_have_every_case_with_ratios_times_and_reasons(
    played: Path, project_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = json.loads((project_root / "results/schema.json").read_text(encoding="utf-8"))
    assert tools.peers([*AXES, "--variant=baseline,optimized,qkv"]) == 1
    (folder,) = played.glob("*_peers")
    document = json.loads((folder / "peers.json").read_text(encoding="utf-8"))
    validator = Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(document)] == []
    entries = document["benchmarks"]
    names = {entry["run_name"].removesuffix("/manual_time") for entry in entries}
    assert len(names) == 2 * 2 * 2 * 5  # sizes, dtypes, sequences, sides
    assert "full_step/train/peer:sdpa/tiny/f32/batch:8/seq:128" in names
    sdpa = next(e for e in entries if e["name"] == str(CASE).replace("baseline", "peer:sdpa"))
    assert (sdpa["samples_per_second"], sdpa["tokens_per_second"]) == (80.0, 10240.0)
    assert sdpa["TFLOPS"] == pytest.approx(0.1767899136)
    ratios = {(r["case"], r["peer"]): r for r in document["context"]["peers"]["ratios"]}
    ratio = ratios[str(CASE), "peer:eager"]
    assert (ratio["median"], ratio["turns"]) == (pytest.approx(2.0), 6)
    page = capsys.readouterr().out
    assert page == (folder / "PEERS.md").read_text(encoding="utf-8")
    page = re.sub(" +", " ", page)  # the columns are aligned
    _, _, optimized, baseline, *_ = page.split("\n## ")
    assert "| tiny | f32 | 8 | 128 | 4.00 (4.00 to 4.00) | 2.00 (2.00 to 2.00) |" in optimized
    assert "| tiny | f32 | 8 | 128 | 2.00 (2.00 to 2.00) | 1.00 (1.00 to 1.00) |" in baseline
    assert "| tiny | f32 | 8 | 128 | 100 | 50 | failed [1] | 200 | 100 |" in page
    assert "failed: tiny_llama_bench was ended by signal SIGSEGV" in page
    assert "| tiny | bf16 | 8 | 128 | 100 | 50 | failed [1] | skipped [" in page
    assert "skipped: a step took 60.0 s, more than --max-seconds-per-case 10" in page
    assert "10 was exceeded at batch:8/seq:128, which has fewer FLOPs" in page
    assert "failed: peer:x: the compiler is absent" in page
    assert "96.9 % at 6 turns" in page
    assert "| peer:sdpa | sdpa | no | highest (highest was asked for), error 4.0e-07 |" in page


def test_page_has_the_time_of_a_case_above_its_peak_and_why(project_root: Path) -> None:
    reference = project_root / "results/reference/peers_2core_xeon_avx512.json"
    document = json.loads(reference.read_text(encoding="utf-8"))
    first, *_ = document["benchmarks"]
    times = (90.0, 140.0, 100.0)
    document["benchmarks"] = [first | {"real_time": t, "above_peak": "107 % of it"} for t in times]
    page = peers_page(document)
    assert "| 100 [1] " in page
    assert "\n1. 107 % of it\n" in page


def test_interrupt_writes_what_was_measured_and_tables_are_made_anew(
    played: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = PlayedProcess.receive

    def receive(self: PlayedProcess) -> Json:
        if self.request.get("dtype") == "bf16":
            raise KeyboardInterrupt
        return measured(self)

    monkeypatch.setattr(PlayedProcess, "receive", receive)
    made, again = played / "made", played / "again"
    files = [f"--out={made}", f"--markdown={made}.md"]
    assert tools.peers([*AXES, "--sizes=tiny", "--variant=baseline", *files]) == 130
    assert not list(played.glob("*_peers"))
    document = json.loads(made.read_text(encoding="utf-8"))
    assert len([e for e in document["benchmarks"] if "/f32/" in e["name"]]) == 2 * 3 * 6 * 3
    missing = ["tiny bf16 8 x 128", "tiny bf16 8 x 256"]
    assert document["context"]["peers"]["not_measured"] == missing
    assert tools.peers([f"--from={made}", f"--out={again}", f"--markdown={again}.md"]) == 0
    assert Path(f"{again}.md").read_text() == Path(f"{made}.md").read_text()
    monkeypatch.setattr(PlayedProcess, "receive", measured)
    # what is skipped has not failed
    assert tools.peers([*AXES, "--sizes=tiny", "--dtypes=bf16", *files]) == 0
    made.write_text('{"benchmarks": []}')
    assert tools.peers([f"--from={made}", f"--out={again}"]) == 2
    assert "must be a result of scripts/peers" in capsys.readouterr().err


class KilledProcess(PlayedProcess):
    """Dies while it builds."""

    is_running = False

    def receive(self) -> Json:
        if self.request["do"] == "hello":
            return super().receive()
        raise SideError("peer:eager: its process ended with -9: it said nothing")


def test_a_peer_that_dies_while_it_builds_is_not_waited_for() -> None:
    started: list[PeerForm] = []

    def start(form: PeerForm) -> KilledProcess:
        started.append(form)
        return KilledProcess("peer:eager")

    side = PeerSide(FORMS["eager"], start, 2, 10.0)
    side.start(CASE)
    for what in (side.wait_until_built, lambda: side.get_ready(CASE), lambda: side.time(CASE, 1)):
        with pytest.raises(SideError, match="ended with -9"):
            what()
    assert len(started) == 1
