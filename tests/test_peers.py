"""scripts/peers: options, processes, interleaved sides, result."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import tools
from oracle_packages import require_oracle_packages
from tinyllama_tools.commands import peers as peers
from tinyllama_tools.commands.peer_sides import (
    FORMS,
    CaseRun,
    Effort,
    Malloc,
    PeerForm,
    PeerProcess,
    PeerSide,
    SideError,
    SideSkip,
    caching_malloc,
    measure_case,
    peer_environment,
    start_peer,
    step_flops,
)
from tinyllama_tools.commands.peers import parse_options, peers_page
from tinyllama_tools.data.names import CaseName, full_step
from tinyllama_tools.data.programs import SuiteError, SuiteProgram, SuiteResult, read_case
from tinyllama_tools.data.results import checked_result

Json = dict[str, Any]


def test_default_cases_are_the_default_grid_and_autocast(bench_program: Path) -> None:
    names = {str(case) for case in parse_options([]).cases}
    listed = subprocess.run([bench_program, "--list"], capture_output=True, text=True, check=True)
    every = listed.stdout.split()
    grid = {name for name in every if name.startswith("full_step/train/baseline/")}
    assert {name for name in names if "/amp_" not in name} == grid
    test_points = {f"tiny/amp_bf16/batch:{b}/seq:{s}" for b in (8, 16) for s in (128, 256)}
    autocast = {*test_points, "small/amp_bf16/batch:8/seq:256"}
    assert names - grid == {f"full_step/train/baseline/{point}" for point in autocast}


def test_axes_choose_cases_and_the_smallest_comes_first() -> None:
    options = parse_options(["--sizes=tiny", "--dtypes=bf16,f32", "--batch=8,4", "--seq=64"])
    found = [(c.dtype, c.batch, c.seq) for c in options.cases]
    assert found == [("f32", 4, 64), ("f32", 8, 64), ("bf16", 4, 64), ("bf16", 8, 64)]
    (case,) = parse_options(["--sizes=medium", "--dtypes=f32"]).cases
    assert (case.batch, case.seq) == (16, 512)
    assert parse_options(["--quick"]).cases == (full_step("tiny", "f32", 4, 64),)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes=huge"], "argument --sizes: size 'huge': must be one of tiny, small"),
        (["--dtypes=f16"], "argument --dtypes: dtype 'f16': must be one of f32, bf16, amp_bf16"),
        (
            ["--peers=jax"],
            "argument --peers: peer 'jax': must be one of eager, sdpa, compile_default",
        ),
        (["--batch=0"], "argument --batch: '0': must be a whole number of 1 or more"),
        (["--seq=1"], "--seq '1': must be at least 2"),
        (["--turns=two"], "argument --turns: 'two': must be a whole number"),
        (["--device=tpu"], "argument --device: device 'tpu': must be cpu, cuda[:N] or hip[:N]"),
        (["--device=auto"], "argument --device: device 'auto': must be cpu"),
        (["--threads=-1"], "argument --threads: '-1': must be a whole number"),
        (["--variant=../x"], "argument --variant: '../x': must be a name"),
        (
            ["--max-seconds-per-case=inf"],
            "argument --max-seconds-per-case: 'inf': must be a positive",
        ),
    ],
)
def test_bad_option_is_named_with_what_is_allowed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tools.peers(arguments)
    assert f"scripts/peers: error: {message}" in capsys.readouterr().err


def test_a_folder_is_no_file_for_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.peers(["--out=."]) == 2
    assert capsys.readouterr().err == "scripts/peers: '.': must be a file, not a folder\n"


def test_program_that_does_not_run_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SuiteError("tiny_llama_bench cannot be started: absent")

    monkeypatch.setattr(SuiteProgram, "run", refuse)
    assert tools.peers(["--quick"]) == 2
    assert "tiny_llama_bench cannot be started" in capsys.readouterr().err


def test_flops_are_those_of_our_program() -> None:
    # model_flops that tiny_llama_bench reports
    assert step_flops(full_step("tiny", "f32", 8, 128)) == 17678991360


MALLOC = Malloc({"LD_PRELOAD": "libx.so"}, "libx.so preloaded")
ECHO = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "crash":
        print("last words", file=sys.stderr)
        sys.exit(7)
    print(json.dumps({"error": "no"} if asked["do"] == "fail" else {"got": asked}), flush=True)
"""


@pytest.fixture
def echo() -> Iterator[PeerProcess]:
    process = PeerProcess("peer:echo", os.environ, [sys.executable, "-c", ECHO])
    yield process
    process.close()


def ask(process: PeerProcess, do: str, **what: object) -> Json:
    process.send(do, **what)
    return process.receive()


def test_a_process_answers_refuses_and_ends_with_its_last_words(echo: PeerProcess) -> None:
    assert ask(echo, "time", steps=3) == {"got": {"do": "time", "steps": 3}}
    with pytest.raises(SideError, match="peer:echo: no"):
        ask(echo, "fail")
    assert echo.is_running
    for _ in range(2):
        with pytest.raises(SideError, match="peer:echo: its process ended with 7: last words"):
            ask(echo, "crash")
    assert not echo.is_running


def test_environment_places_threads_as_our_program_does() -> None:
    eager, tuned = FORMS["eager"], FORMS["compile_tuned"]
    assert peer_environment(eager, MALLOC, {})["OMP_PROC_BIND"] == "true"
    assert "OMP_PROC_BIND" not in peer_environment(eager, MALLOC, {"OMP_NUM_THREADS": "1"})
    assert "LD_PRELOAD" not in peer_environment(eager, MALLOC, {})
    assert peer_environment(tuned, MALLOC, {})["LD_PRELOAD"] == "libx.so"


def test_malloc_is_the_first_that_is_installed_and_else_glibc_with_settings() -> None:
    found = caching_malloc({"jemalloc": "libjemalloc.so.2"}.get)
    assert found.environment["LD_PRELOAD"] == "libjemalloc.so.2"
    assert "decay_ms:-1" in found.environment["MALLOC_CONF"]
    absent = caching_malloc(lambda _: None)
    assert set(absent.environment) == {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
    assert "none of tcmalloc_minimal, tcmalloc, jemalloc is installed" in absent.description


SIZE = {
    "vocab_size": 50,
    "hidden_dim": 32,
    "n_layers": 1,
    "n_heads": 4,
    "n_kv_heads": 2,
    "intermediate_dim": 48,
}


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
Calls = list[tuple[str, str, int]]


class PlayedSide:
    """Takes `seconds` a step; `trouble` is raised by the method of that name, at that call."""

    def __init__(
        self,
        variant: str,
        seconds: float,
        calls: Calls,
        trouble: dict[str, BaseException] | None = None,
    ) -> None:
        self.variant = variant
        self._seconds = seconds
        self._calls = calls
        self._trouble = trouble or {}

    def _call(self, what: str, steps: int = 0) -> None:
        number = sum(call[:2] == (self.variant, what) for call in self._calls)
        self._calls.append((self.variant, what, steps))
        for key in (what, f"{what} {number}"):
            if key in self._trouble:
                raise self._trouble[key]

    def start(self, case: CaseName) -> None:
        assert case == CASE
        self._call("start")

    def wait_until_built(self) -> None:
        self._call("wait_until_built")

    def get_ready(self, case: CaseName) -> float:
        assert case == CASE
        self._call("get_ready")
        return self._seconds

    def time(self, case: CaseName, steps: int) -> list[Json]:
        assert case == CASE
        self._call("time", steps)
        return [{"real_time": 1e3 * self._seconds, "time_unit": "ms"}] * steps

    def close(self) -> None:
        pass


def measure(sides: list[PlayedSide], effort: Effort) -> CaseRun:
    results: list[CaseRun] = []
    measure_case(CASE, sides, effort, lambda _: None, results.append)
    return results[0]


def test_all_are_built_before_any_gets_ready_and_turns_rotate() -> None:
    calls: Calls = []
    sides = [PlayedSide(name, 0.1, calls) for name in "abc"]
    result = measure(sides, Effort(3, 2, 10.0))
    preparations = ("start", "wait_until_built", "get_ready")
    assert [call[:2] for call in calls[:9]] == [
        (name, what) for what in preparations for name in "abc"
    ]
    assert "".join(call[0] for call in calls[9:]) == "abcbcacab"
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


def test_ratio_is_over_the_turns_that_both_had() -> None:
    calls: Calls = []
    result = measure(
        [PlayedSide("fast", 0.1, calls), PlayedSide("slow", 4.0, calls)], Effort(5, 2, 10)
    )
    assert len(result.sides["fast"].turns) == 5
    assert len(result.sides["slow"].turns) == 2
    ratio = result.ratio("slow", "fast")
    assert ratio is not None
    assert (ratio.turns, round(ratio.median)) == (2, 40)


@pytest.mark.parametrize("method", ["start", "wait_until_built", "get_ready", "time 1"])
def test_who_fails_or_is_skipped_is_out_with_the_reason_and_the_others_go_on(method: str) -> None:
    calls: Calls = []
    sides = [
        PlayedSide("fails", 0.1, calls, {method: SideError("broken")}),
        PlayedSide("skipped", 0.1, calls, {method: SideSkip("too slow")}),
        PlayedSide("well", 0.1, calls),
    ]
    result = measure(sides, Effort(4, 1, 10.0))
    assert (result.sides["fails"].failed, result.sides["fails"].turns) == ("broken", [])
    assert (result.sides["skipped"].skipped, result.sides["skipped"].turns) == ("too slow", [])
    assert len(result.sides["well"].turns) == 4
    assert result.ratio("fails", "well") is None
    # in turn 1 for the last time
    assert [call[0] for call in calls[-2:]] == ["well", "well"]


def test_interrupt_leaves_the_turns_that_were_finished() -> None:
    calls: Calls = []
    sides = [
        PlayedSide("a", 0.1, calls),
        PlayedSide("b", 0.1, calls, {"time 2": KeyboardInterrupt()}),
    ]
    results: list[CaseRun] = []
    with pytest.raises(KeyboardInterrupt):
        measure_case(CASE, sides, Effort(5, 1, 10.0), lambda _: None, results.append)
    assert (len(results[0].sides["a"].turns), len(results[0].sides["b"].turns)) == (3, 2)


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


class PlayedProgram:
    """Answers from a real result's context and entries: 0.1 s a step."""

    def __init__(self, context: Json, entry: Json) -> None:
        self.context = context
        self.entry = entry

    def run(self, cases: Any, repetitions: int, *, verify: bool = False, more: Any = ()) -> Any:  # noqa: ANN401, ARG002
        (case,) = cases
        if case.variant == "nonsense":
            raise SuiteError("tiny_llama_bench: --variants: variant 'nonsense': must be baseline")
        name = f"{case!s}/manual_time"
        ms = 50.0 if case.variant == "optimized" else 100.0
        entries = [
            {**self.entry, "name": name, "run_name": name, "real_time": ms, "time_unit": "ms"}
            | {"repetition_index": i}
            for i in range(repetitions)
        ]
        if verify:
            entries = [e | {"max_rel_error": 1e-6} for e in entries]
        return SuiteResult(self.context, (read_case(str(case), entries),))


@pytest.fixture
def played(project_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes scripts/peers measure played sides and write into the folder that is returned."""
    reference = project_root / "results" / "reference" / "tiny_f32_2core_xeon_avx512.json"
    document = checked_result(json.loads(reference.read_text(encoding="utf-8")), reference)
    step = next(e for e in document["benchmarks"] if e["name"].startswith("full_step/"))
    del step["max_rel_error"]
    program = PlayedProgram(document["context"], step)
    monkeypatch.setattr(peers, "our_program", lambda _: program)
    monkeypatch.setattr(peers, "start_peer", lambda form, **_: PlayedProcess(f"peer:{form.name}"))
    monkeypatch.setattr(peers, "RESULTS", tmp_path)
    return tmp_path


AXES = ["--dtypes=f32,bf16", "--batch=8", "--seq=128", "--peers=eager,sdpa", "--turns=6"]


def test_result_has_every_case_and_is_of_the_schema(played: Path, project_root: Path) -> None:
    schema = json.loads((project_root / "results/schema.json").read_text(encoding="utf-8"))
    assert tools.peers([*AXES, "--variant=baseline,nonsense"]) == 1
    (folder,) = played.glob("*_peers")
    document = json.loads((folder / "peers.json").read_text(encoding="utf-8"))
    validator = Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(document)] == []
    names = {entry["run_name"].removesuffix("/manual_time") for entry in document["benchmarks"]}
    assert len(names) == 2 * 2 * 4  # sizes, dtypes, sides
    assert "full_step/train/peer:sdpa/tiny/f32/batch:8/seq:128" in names
    (ratio,) = (
        row
        for row in document["context"]["peers"]["ratios"]
        if row["peer"] == "peer:eager" and "/tiny/f32/" in row["case"]
    )
    assert (ratio["median"], ratio["turns"]) == (pytest.approx(2.0), 6)


def test_page_has_ratios_times_and_every_reason(
    played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"--out={played / 'o.json'}", f"--markdown={played / 'o.md'}"]
    assert tools.peers([*AXES, "--variant=baseline,nonsense", *files]) == 1
    page = capsys.readouterr().out
    assert page == (played / "o.md").read_text(encoding="utf-8")
    page = re.sub(" +", " ", page)  # the columns are aligned
    assert "| tiny | f32 | 8 | 128 | 2.00 (2.00 to 2.00) | 1.00 (1.00 to 1.00) |" in page
    assert "| tiny | f32 | 8 | 128 | 100 | failed [1] | 200 | 100 |" in page
    assert "must be baseline" in page
    assert "| tiny | bf16 | 8 | 128 | 100 | failed [1] | skipped [" in page
    assert "skipped: a step took 60.0 s, more than --max-seconds-per-case 10" in page
    assert "failed: peer:x: the compiler is absent" in page
    assert "96.9 % at 6 turns" in page
    for form in ("eager", "sdpa"):
        assert f"| peer:{form} | {FORMS[form].attention} | no | highest, error 4.0e-07" in page
    assert not list(played.glob("*_peers"))


def test_page_has_the_time_of_a_case_above_its_peak_and_why(project_root: Path) -> None:
    reference = project_root / "results/reference/peers_2core_xeon_avx512.json"
    document = json.loads(reference.read_text(encoding="utf-8"))
    first, *_ = document["benchmarks"]
    document["benchmarks"] = [first | {"real_time": 100.0, "above_peak": "107 % of it"}]
    page = peers_page(document)
    assert "| 100 [1] " in page
    assert "\n1. 107 % of it\n" in page


def test_interrupt_writes_what_was_measured(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = PlayedProcess.receive

    def receive(self: PlayedProcess) -> Json:
        if self.request.get("dtype") == "bf16":
            raise KeyboardInterrupt
        return measured(self)

    monkeypatch.setattr(PlayedProcess, "receive", receive)
    assert (
        tools.peers([*AXES, "--sizes=tiny", "--variant=baseline", f"--out={played / 'o'}"]) == 130
    )
    document = json.loads((played / "o").read_text(encoding="utf-8"))
    assert len([e for e in document["benchmarks"] if "/f32/" in e["name"]]) == 3 * 6 * 3
    assert len(re.findall(r"\| tiny +\| f32 ", peers_page(document))) == 2
    assert document["context"]["peers"]["not_measured"] == ["tiny bf16 8 x 128"]


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
    case = full_step("tiny", "f32", 8, 128)
    side.start(case)
    for what in (side.wait_until_built, lambda: side.get_ready(case), lambda: side.time(case, 1)):
        with pytest.raises(SideError, match="ended with -9"):
            what()
    assert len(started) == 1


def test_tables_anew_from_a_result(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, again = played / "made", played / "again"
    assert tools.peers([*AXES, "--sizes=tiny", f"--out={made}", f"--markdown={made}.md"]) == 0
    assert tools.peers([f"--from={made}", f"--out={again}", f"--markdown={again}.md"]) == 0
    assert Path(f"{again}.md").read_text() == Path(f"{made}.md").read_text()
    made.write_text('{"benchmarks": []}')
    assert tools.peers([f"--from={made}", f"--out={again}"]) == 2
    assert "must be a result of scripts/peers" in capsys.readouterr().err


def test_each_of_ours_has_its_own_ratios(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    axes = ["--sizes=tiny", "--dtypes=f32", "--batch=8", "--seq=128", "--peers=eager", "--turns=6"]
    assert tools.peers([*axes, f"--out={played / 'o.json'}"]) == 0
    parts = re.sub(" +", " ", capsys.readouterr().out).split("## ")
    assert "against `optimized`" in parts[1]
    assert "| tiny | f32 | 8 | 128 | 4.00 (4.00 to 4.00) |" in parts[1]
    assert "against `baseline`" in parts[2]
    assert "| tiny | f32 | 8 | 128 | 2.00 (2.00 to 2.00) |" in parts[2]
