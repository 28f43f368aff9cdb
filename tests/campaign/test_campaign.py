"""The campaign in short: each part tries a little and finds nothing, and each checker finds what is
planted."""

import errno
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from built_programs import write_program
from campaign import __main__ as program
from campaign import processes, readers, resources, runs, sanitizers, soak, workloads
from campaign.runs import Scope, Tried
from tinyllama_tools.proofs.run_tests import gtest_programs

# of each part, without what other tests try: signals to tiny_llama_bench in tests/cli, sides that
# fail in every way in tests/compare, ranks that are stopped in tests/distributed
NAMES = {
    "kills": ("benchmark", "training", "rank"),
    "writes": ("history add", "benchmark"),
    "signals": ("history add",),
    "sides": ("crash",),
    "soak": ("training", "served", "ranks"),
    "together": ("history add", "report", "training", "scripts/bench", "set-ups"),
    "supply": ("benchmark",),
}
# of readers few files each, but of all of them
SHARES = {"readers": 0.0003}


@pytest.mark.usefixtures("bench_program", "train_program")
# sanitizers: builds everything twice; how its reports are read is looked at below.
# fuzzing: needs clang; readers_test has the inputs that it kept
@pytest.mark.parametrize("part", [p for p in program.PARTS if p not in {"sanitizers", "fuzzing"}])
def test_a_little_of_each_part_holds(part: str) -> None:
    scope = Scope(SHARES.get(part, 0.005), minutes=0.05, names=NAMES.get(part, ()))
    found = list(program.tries_of(part, scope))
    assert program.violations(found) == []
    # each kind met a fault, but for what a system may refuse
    met = Counter({tried.kind: 0 for tried in found})
    for kind, _, count in found:
        met[kind] += count
    assert met and [kind for kind in met if not met[kind]] in ([], ["run without a network"])


def test_files_are_damaged_and_only_what_does_not_hold_is_a_violation() -> None:
    one = json.dumps({"a": [1, 2.5, "x"], "b": {"c": None}}).encode() + b"\n"
    assert sum(readers.damaged(one, random.Random(i)) != one for i in range(100)) > 90
    found = [Tried("a", [runs.OfLibrary("x"), runs.Note("y"), "z"])]
    assert program.violations(found) == ["a: z"]


@pytest.mark.usefixtures("train_program")
def test_a_folder_that_cannot_be_made_is_told_with_its_reason() -> None:
    with runs.scratch() as work:
        folder = work / "train/flops_analysis"
        fault = {"FAIL_CALL": 1, "FAIL_WITH": errno.EIO, "FAIL_BELOW": folder}
        status, said, calls = runs.run(workloads.TRAINING, work, **fault)
    assert (status, calls[0].split()) == (2, ["mkdir", "flops_analysis"])
    last = said.splitlines()[-1]
    assert str(folder) in last and "Input/output error" in last


def test_a_crash_is_told_with_the_library_that_it_happened_in() -> None:
    code = "import ctypes; ctypes.memmove(8, 16, 1)"
    crashing = workloads.Workload("crash", "", lambda _: [sys.executable, "-c", code])
    with runs.scratch() as folder:
        status, _, calls = runs.run(crashing, folder, FAIL_CALL=0)
    assert (status, calls[-1].split()) == (-signal.SIGSEGV, ["crash", "libc.so.6"])


# what a command does in place of reading, and how that breaks its promise
FAULTY = {
    "raise KeyError('seconds')": "KeyError: 'seconds'",
    "[0 for _ in iter(int, 1)]": "no end within 0.2 s",
    "print('not foreseen: IndexError'); return 2": "not foreseen: IndexError",
    "print('bad'); return 2": "names no file: bad\n",
    "print('results.json is bad'); return 2": "",
    "print('nothing to say'); return 1": "",
    "return 77": "status 77",
}


@pytest.mark.parametrize("code", FAULTY)
def test_a_reader_that_breaks_its_promise_is_found(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}
    exec(f"def command(_): {code}", found)
    monkeypatch.setattr(readers, "run_tool", found["command"])
    monkeypatch.setattr(readers, "HANG_S", 0.2)
    reader = readers.Reader("results.json", "report {folder}/results.json")
    assert readers.fault_of(reader, tmp_path) == FAULTY[code]


# Writes its result in pieces, in place, and says nothing when that fails.
CARELESS = """
import os, time
file = os.open("out.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for piece in ["[1"] + [",1"] * 30 + ["]"]:
    try:
        os.write(file, piece.encode())
    except OSError:
        pass
    time.sleep(0.02)
"""


# Writes its result and does what it likes with a signal.
DEAF = """
import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, {})
time.sleep(0.6)
open("out.json", "w").write("{{}}")
"""


def written(name: str, code: str) -> workloads.Workload:
    """A program of Python."""
    return workloads.Workload(name, "out.json", lambda _: [sys.executable, "-c", code])


@pytest.mark.parametrize(
    ("handler", "problem"), [("signal.SIG_IGN", "status 0"), ("lambda *_: sys.exit(3)", "status 3")]
)
def test_a_program_that_heeds_a_signal_otherwise_is_found(handler: str, problem: str) -> None:
    one = written("deaf", DEAF.format(handler))
    found = [processes.signalled(one, random.Random(i)) or [] for i in range(8)]
    assert any(problem in text for texts in found for text in texts)


def test_a_careless_program_is_found_by_kills_signals_and_failing_writes() -> None:
    one, draws = written("careless", CARELESS), [random.Random(i) for i in range(4)]
    assert any("not whole" in text for d in draws for text in processes.killed(one, d) or [])
    assert any("not whole" in text for d in draws for text in processes.signalled(one, d) or [])
    _, calls = runs.undisturbed(one)
    assert len(calls) == 33
    assert calls[1].split() == ["write", "out.json"]
    # a short write of one byte is a whole one, two are cut; the last is the closing bracket
    assert any("not whole" in text for text in resources.failed(one, (33, "no space")))
    assert resources.failed(one, (1, "read-only"))[0].startswith(
        "call 1, open of out.json, read-only"
    )


CASES = [f"case{i}" for i in range(18)]
MEASURED = {case: [{"run_name": case}] for case in CASES}
RESULT = json.dumps({"benchmarks": [entry for (entry,) in MEASURED.values()]})
AGAIN = MEASURED | {"case3": [{"run_name": "case3", "real_time": 2}]}
OTHER = json.dumps({"benchmarks": [entry for (entry,) in AGAIN.values()]})


@pytest.mark.parametrize(
    ("journaled", "before", "result", "problem"),
    [
        (CASES, MEASURED, RESULT, ""),
        (CASES, {}, OTHER, "case3 is another in the result"),
        (CASES, AGAIN, RESULT, "case3 is another in the journal"),
        (CASES[1:], MEASURED, RESULT, "case0 is not in the journal"),
        ([*CASES, "case0"], MEASURED, RESULT, "journal: case0 is in the journal twice"),
        (CASES, MEASURED, '{"benchmarks": [', "out.json is not whole: Expecting value"),
    ],
)
def test_rows_that_are_lost_twice_there_or_measured_again_are_found(
    tmp_path: Path, journaled: list[str], before: workloads.Rows, result: str, problem: str
) -> None:
    rows = [{"case": name, "entries": MEASURED[name]} for name in journaled]
    lines = [f"{json.dumps(line)}\n" for line in ({"header": {}}, *rows)]
    (tmp_path / "journal.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "out.json").write_text(result, encoding="utf-8")
    found = workloads.SUITE.problems(tmp_path, True, before)
    assert [text.partition(": line")[0] for text in found] == [problem] * bool(problem)


def test_files_of_the_tools_that_are_cut_short_or_missing_are_found(tmp_path: Path) -> None:
    for workload in workloads.WORKLOADS:
        assert workload.problems(tmp_path, True) == [f"{workload.wanted} is missing"]
    for workload, file, text, problem in (
        (workloads.REPORT, "page.html", "<html><p>half", "page.html is not whole"),
        (workloads.HISTORY, "history.jsonl", "{}\n", "history.jsonl lost what it had"),
        (
            *(workloads.TRAINING, "train/performance_summary.json", '{"files": ["trace.json"]}'),
            "trace.json is in the summary and not there",
        ),
    ):
        write_program(tmp_path / workload.name / file, text)
        (found,) = workload.problems(tmp_path / workload.name, False)
        assert problem in found


def test_ends_that_are_no_ends_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources.outcome(1, "out of memory") == []
    assert resources.outcome(-6, "terminate called after throwing")
    assert resources.outcome(1, "failed")
    refusal = "echo scripts/compare run: blocks.jsonl: File exists >&2; exit 2"
    for first, second, problems in (
        ("exit 2", "exit 2", ["statuses [2, 2]"]),
        ("exit 0", refusal, []),
        ("exit 0", "exit 2", ["statuses [0, 2]"]),
    ):
        with runs.scratch() as folder:
            shells = [processes.start_shell(code, folder) for code in (first, second)]
            found = processes.both_ended(shells, folder)
            assert [text.partition(": ")[0] for text in found] == problems
    monkeypatch.setattr(runs, "GRACE_S", 0.1)
    with runs.scratch() as folder:
        # one in a session of its own bears the mark too
        processes.start_shell("sleep 60 & setsid sleep 60 & exit 0", folder).wait()
        assert runs.left_of(folder) == ["2 processes are left after 0.1 s"]


def test_memory_that_grows_and_steps_that_become_slower_are_found() -> None:
    draw = random.Random(1)
    steady = [draw.uniform(1.0, 1.2) for _ in range(600)]
    slower = [t + i / 1000 for i, t in enumerate(steady)]
    flat = [10**8 + draw.randrange(10**5) for _ in steady]
    leak = [10**8 + 10**4 * i for i in range(600)]
    for resident, kept_a_step, seconds, expected in (
        (flat, 0, steady, []),
        (leak, 0, steady, ["memory grew"]),
        # what it has to keep is no leak, but no more than that
        (leak, 9 * 10**3, steady, []),
        (leak, 7 * 10**3, steady, ["memory grew"]),
        (flat, 0, slower, ["slower"]),
    ):
        kept = [kept_a_step * i for i in range(600)]
        watch = soak.Watch([[size] for size in resident], kept, seconds)
        *problems, note = soak.judged("made up", watch, 60)
        assert len(problems) == len(expected)
        assert all(word in problem for word, problem in zip(expected, problems, strict=True))
        assert "600 times" in note


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("echo SUMMARY: overflow at a.cpp:1; exit 77", ["SUMMARY: overflow at a.cpp:1"]),
        ("exit 3", ["status 3"]),
        ("echo SUMMARY: of a test that passed", []),
    ],
)
def test_what_ends_the_fuzzer_is_found(
    code: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanitizers, "FOUND", tmp_path)
    counted = "echo 'stat::number_of_executed_units: 12'"
    fuzzer = write_program(tmp_path / "fuzzer", f"#!/bin/sh\n{counted}\n{code}\n")
    assert sanitizers.fuzz(fuzzer, Scope(), "sizes") == Tried("input of sizes", found, 12)


def test_downloads_without_a_digest_are_found() -> None:
    sources = f'"https://one.org/a.tar.gz"\n {"0" * 64}) https://two.org/b.zip\n'
    assert resources.undigested(sources) == ["https://two.org/b.zip"]


def test_an_exception_of_a_part_is_a_violation_and_the_page_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> list[str]:
        raise RuntimeError("out of ideas")

    def run_part(scope: Scope) -> Iterator[Tried]:
        yield from scope.tried("idea", 200, fails)
        raise ends

    monkeypatch.setattr(program, "FIGURES", tmp_path / "reliability.json")
    monkeypatch.setattr(program, "PAGE", tmp_path / "RELIABILITY.md")
    monkeypatch.setitem(program.PARTS, "supply", run_part)
    ends: BaseException = RuntimeError("no compiler")
    assert program.main(["supply", "--share", "0.01"]) == 1
    page = (tmp_path / "RELIABILITY.md").read_text()
    assert "does not hold: supply: RuntimeError: no compiler" in page
    ends = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        program.main(["supply", "--share", "0.01"])
    (figures,) = json.loads((tmp_path / "reliability.json").read_text()).values()
    assert figures["tried"] == {"idea": 2}
    page = (tmp_path / "RELIABILITY.md").read_text()
    assert page.count("does not hold: idea: RuntimeError: out of ideas") == 2
    assert "| kills | kill -9 at a random moment: " in page
    for wrong in (["storms"], ["--share", "0"], ["--minutes", "-1"]):
        with pytest.raises(SystemExit) as ended:
            program.main(wrong)
        assert ended.value.code == 2


OVERFLOW = """
#include <cstdlib>
int main(int count, char**) { int* a = new int[2]; return a[count + 1]; }
"""
TOO_MUCH = "int main(int count, char**) { int most = 2147483647; return most + count == 0; }"
RACE = """
#include <thread>
int shared = 0;
void add() { for (int i = 0; i < 1000; ++i) ++shared; }
int main() { std::thread one(add), other(add); one.join(); other.join(); }
"""


@pytest.mark.parametrize(
    ("preset", "flags", "source", "words"),
    [
        ("asan", "address,undefined", OVERFLOW, "heap-buffer-overflow"),
        ("asan", "address,undefined", TOO_MUCH, "signed integer overflow"),
        ("tsan", "thread", RACE, "data race"),
        ("tsan", "thread", "int main() {}", ""),
    ],
)
def test_a_sanitizers_report_is_found(
    preset: str, flags: str, source: str, words: str, tmp_path: Path
) -> None:
    """And a program that is right reported as such, by the options that the build's tests have."""
    build = tmp_path / f"build-{preset}"
    build.mkdir()
    (build / "planted.cpp").write_text(source)
    options = ["-g", f"-fsanitize={flags}", "-fno-sanitize-recover=all", "-pthread"]
    command = ["g++", *options, "planted.cpp", "-o", "planted"]
    if subprocess.run(command, cwd=build, capture_output=True, check=False).returncode:
        pytest.skip(f"this compiler cannot link with -fsanitize={flags}")
    (build / "CTestTestfile.cmake").write_text(f'add_test(planted "{build}/planted")\n')
    (program,) = gtest_programs(build)
    assert "suppressions=/" in str(program.environment) or preset == "asan"
    found = sanitizers.reported(replace(program, report_option=""))
    assert [words in text for text in found[1:]] == [True] * bool(words)
    assert bool(found) == bool(words)
