"""The test runner, the table of proofs, and the faults that tests have to find."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tinyllama_tools.proofs import run_tests
from tinyllama_tools.proofs.run_tests import (
    GTEST_REPORT,
    PYTEST_REPORT,
    Counts,
    Program,
    run_program,
)
from tools import require_oracle_packages

require_oracle_packages()

from tinyllama_tools.proofs import prove  # noqa: E402
from tinyllama_tools.proofs.oracle import Proof  # noqa: E402
from tinyllama_tools.proofs.prove import FAULTS, Fault  # noqa: E402

CLAIM = {"section": "FLOPs", "check": "model_flops", "against": "a counter", "tolerance": 0}
CLAIM |= {"largest_error": "inf", "worst": "embedding at grid_00", "comparisons": 12}
PROOF = json.dumps(CLAIM)
QUOTED = PROOF.replace('"', "&quot;")
GTEST_XML = f"""<testsuites tests="4" failures="1" disabled="1" errors="0" name="AllTests">
  <testsuite name="A" tests="4" failures="1" disabled="1" skipped="1" errors="0">
    <testcase name="Passes" status="run" classname="A">
      <properties><property name="proof_0" value="{QUOTED}"/><property name="x" value="1"/>
      </properties></testcase>
    <testcase name="Fails" status="run" classname="A"><failure message="1 is not 2"/></testcase>
    <testcase name="Skips" status="run" result="skipped" classname="A">
      <skipped message="a.cpp:5&#x0A;needs a GPU"></skipped></testcase>
    <testcase name="DISABLED_Off" status="notrun" result="suppressed" classname="A" />
  </testsuite>
</testsuites>
"""
PYTEST_XML = """<testsuites>
  <testcase classname="tests.test_a" name="test_passes" time="0.1" />
  <testcase classname="tests.test_a" name="test_breaks"><error message="x">x</error></testcase>
  <testcase classname="tests.test_a" name="test_skips"><skipped message="no browser" /></testcase>
</testsuites>
"""
EMPTY_XML = '<?xml version="1.0"?><testsuites tests="0" name="AllTests"></testsuites>'
NO_TEST = f"echo '{EMPTY_XML}' >\"${{2#*xml:}}\""
ONE_PASSED = '<testsuites><testcase name="Passes" status="run" classname="A" /></testsuites>'


HEADER = "import os, sys, time; report = sys.argv[-1].partition('xml')[2].lstrip(':=')\n"
WRITE = "open(report, 'w').write({!r}); {}"
BEFORE = "ended with status {} before it wrote its report"


@pytest.mark.parametrize(
    ("code", "option", "counts"),
    [
        # without a report the status is the test
        ("", "", Counts(1)),
        ("sys.exit(1)", "", Counts(0, ["ended with status 1"])),
        ("print('last words', flush=True); time.sleep(60)", "", Counts(0, ["did not end in time"])),
        # pytest where nothing was selected
        (WRITE.format(EMPTY_XML, "sys.exit(5)"), PYTEST_REPORT, Counts()),
        (
            WRITE.format(PYTEST_XML, "sys.exit(1)"),
            PYTEST_REPORT,
            Counts(1, ["tests.test_a.test_breaks"], ["tests.test_a.test_skips: no browser"]),
        ),
        (
            WRITE.format(GTEST_XML, "sys.exit(1)"),
            GTEST_REPORT,
            Counts(1, ["A.Fails"], ["A.Skips: needs a GPU", "A.DISABLED_Off: disabled"], [PROOF]),
        ),
        # it says that some failed, and reports none
        (WRITE.format(ONE_PASSED, "sys.exit(1)"), GTEST_REPORT, Counts(1, ["ended with status 1"])),
        ("", GTEST_REPORT, Counts(0, [BEFORE.format(0)])),
        (WRITE.format("<a><b>", "sys.exit(1)"), GTEST_REPORT, Counts(0, [BEFORE.format(1)])),
        (WRITE.format(EMPTY_XML, "sys.exit(5)"), GTEST_REPORT, Counts(0, ["ended with status 5"])),
    ],
)
def test_report_and_end_of_a_program_count(
    tmp_path: Path, code: str, option: str, counts: Counts
) -> None:
    (tmp_path / "r.xml").write_text(ONE_PASSED)  # of an earlier run
    program = Program("made_up", (sys.executable, "-c", HEADER + code), tmp_path, option)
    outcome = run_program(program, tmp_path / "r.xml", 2 if "sleep" in code else 60)
    assert outcome.counts == counts
    assert ("last words" in outcome.output) == ("sleep" in code)


def made_build(folder: Path, *tests: str) -> None:
    """A build folder as CMake leaves it."""
    lines = [f"add_test([=[{test.partition(' ')[0]}]=] {test.partition(' ')[2]})" for test in tests]
    (folder / "CTestTestfile.cmake").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("tests", "last_line"),
    [
        (["good"], "1 passed, 0 failed, 0 skipped"),
        (["good", "crash", "absent"], "2 passed, 2 failed, 0 skipped"),
        (["empty"], "0 passed, 1 failed, 0 skipped"),
        ([], "0 passed, 1 failed, 0 skipped"),
    ],
)
def test_runner_from_ctest_to_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tests: list[str], last_line: str
) -> None:
    """A good program, one that crashes after its report, one that was not built."""
    for name, text in (("good", ONE_PASSED), ("empty", EMPTY_XML), ("crash", ONE_PASSED)):
        end = "os.abort()" if name == "crash" else ""
        (tmp_path / f"{name}.py").write_text(HEADER + WRITE.format(text, end))
    programs = dict.fromkeys(tests, sys.executable) | {"absent": "/absent"}
    made_build(tmp_path, *(f'{name} "{programs[name]}" "{tmp_path}/{name}.py"' for name in tests))
    status = run_tests.main(["--no-pytest", "--build-folder", str(tmp_path)])
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == last_line
    assert status == (0 if " 0 failed" in last_line else 1)
    assert ("crash" in tests) == (f"failed: {tmp_path.name}/crash: ended with status -6" in output)


def test_pattern_environment_and_folders_reach_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_build(tmp_path, f'a "{sys.executable}"')
    held = "ATEN_CPU_CAPABILITY=avx2;B=c"
    with (tmp_path / "CTestTestfile.cmake").open("a") as file:
        file.write(f'\nset_tests_properties([=[a]=] PROPERTIES ENVIRONMENT "{held}")\n')
    monkeypatch.setattr(run_tests, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("flags : fpu avx2 fma")
    assert run_tests.gtest_programs(tmp_path) == []
    (tmp_path / "cpuinfo").write_text("flags : fpu avx2 avx512f")
    (program,) = run_tests.gtest_programs(tmp_path, "rotary")
    assert program.command[-1] == "--gtest_filter=*rotary*"
    assert program.environment == {
        "OMP_NUM_THREADS": "1",
        "ATEN_CPU_CAPABILITY": "avx2",
        "B": "c",
    }
    # no test runs twice
    for name in ("cli", "training"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / "test_it.py").touch()
    rest, *folders = run_tests.pytest_programs(tmp_path, "rotary", is_long=True)
    ignored = ("--ignore=tests/cli", "--ignore=tests/training")
    assert rest.command[-6:] == ("tests", *ignored, "-k", "rotary", "--long")
    assert [program.command[4] for program in folders] == ["tests/cli", "tests/training"]


def test_any_python_runs_the_tests_and_the_oracles_alone_prove(
    project_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = os.environ | {"PYTHONPATH": str(project_root / "scripts")}
    command = [sys.executable, "-S", "-m", "tinyllama_tools.proofs.run_tests", "--help"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tinyllama_tools"]:
        monkeypatch.delitem(sys.modules, name)
    for package in ("jsonschema", "scipy", "ruptures", "plotly"):
        monkeypatch.setitem(sys.modules, package, None)
    assert importlib.import_module("tinyllama_tools.proofs.prove") is not prove


@pytest.mark.parametrize(
    ("code", "kernels", "failed"),
    [
        ("exit 0", "tiny_llama_bench.1.sm_90.cubin", set()),
        ("exit 127", "1.sm_80.cubin", {"starts", "holds the kernels"}),
    ],
)
def test_a_build_for_cuda_is_looked_at(
    tmp_path: Path, code: str, kernels: str, failed: set[str]
) -> None:
    texts = {f"benchmarks/tiny_llama_{name}": code for name in ("bench", "train", "scaling")}
    tools_folder = "environment/lib/python3.11/site-packages/nvidia/cu13/bin"
    for name, text in {**texts, f"{tools_folder}/cuobjdump": f"echo {kernels}"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    _device_test, *programs = run_tests.cuda_programs(tmp_path)
    assert len(programs) == 6
    outcomes = [run_program(program, tmp_path / "r.xml", 60) for program in programs]
    assert {o.program.name.partition(" ")[2] for o in outcomes if o.counts.failures} == failed


def test_page_and_status_say_what_held_and_what_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = prove.proof_of(json.dumps(CLAIM))
    assert (claim.largest_error, claim.held) == (float("inf"), False)
    good = Proof("Training", "logits", "oracle", 1e-5, 3, 3e-7, "logits[7]")
    faults = {Fault("wrong | scale", "a.cpp", "", "", {}): ["A.B"], Fault("late", *"bcd", {}): []}
    monkeypatch.setattr(prove, "prove_programs", lambda *_: ([good, claim], ["golden_test: A.B"]))
    monkeypatch.setattr(prove, "prove_oracle", lambda _: [])
    monkeypatch.setattr(prove, "find_faults", lambda *_: faults)
    monkeypatch.setattr(prove, "environment", lambda _: {"commit": "abc"})
    page = tmp_path / "new/folder/PROOF.md"
    assert prove.main(["-o", str(page)]) == 1
    assert "1 of 2 proofs held, 1 of 2 faults found, 5 tests failed" in capsys.readouterr().out
    text = page.read_text()
    assert "1 of 2 proofs held, over 15 comparisons; 1 of 2 deliberate faults were found" in text
    rows = [re.sub(" +", " ", line).strip("| ").split(" | ") for line in text.splitlines()]
    assert ["logits", "oracle", "3", "1e-05", "3e-07", "yes"] in rows
    assert any(row[-1] == "**no**: embedding at grid_00" for row in rows)
    found = {row[0]: row[-1] for row in rows}
    assert (found["wrong \\| scale"], found["late"]) == ("yes, 1 failed", "**no**")
    assert "- `golden_test: A.B`" in text
    assert "- `nothing was proved about: Memory`" in text
    for output, words in ((page / "PROOF.md", "[Errno 17"), (page.parent, "[Errno 21")):
        assert prove.main(["-o", str(output)]) == 2
        assert f"error: {words}" in capsys.readouterr().err


# what is compiled in seconds; the others take minutes
FEW = [fault for fault in FAULTS if fault.source == "model/attention.cpp"]
REST = [fault for fault in FAULTS if fault not in FEW]


@pytest.mark.parametrize("faults", [FEW, pytest.param(REST, marks=pytest.mark.long)])
def test_faults_are_found_by_tests_that_pass_without(
    bench_program: Path, tmp_path: Path, faults: list[Fault]
) -> None:
    found = prove.find_faults(bench_program.parents[1], tmp_path, faults)
    assert [fault.name for fault in faults if not found[fault]] == []


def test_stale_replacement_a_crash_and_no_test_find_nothing(tmp_path: Path) -> None:
    for source in {fault.source for fault in FAULTS}:
        assert "(planted == " in prove.faulty_source(source)
    stale = Fault("stale", "model/rotary.cpp", "golden_test", "x", {"no such text": ""})
    with pytest.raises(RuntimeError, match="no longer has 'no such text'"):
        prove.faulty_source("model/rotary.cpp", [stale])
    for code, message in (
        ("kill -ABRT $$", "golden_test ended with status -6"),
        (NO_TEST, "no test"),
    ):
        (tmp_path / "golden_test").write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / "golden_test").chmod(0o755)
        with pytest.raises(RuntimeError, match=message):
            prove.failed_tests(FAULTS[0], tmp_path)
