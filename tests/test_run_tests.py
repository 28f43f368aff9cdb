"""The test runner, and what CI needs of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tinyllama_tools.proofs import run_tests
from tinyllama_tools.proofs import run_tests as test_programs
from tinyllama_tools.proofs.prove import CONTROLS, FAULTS, Fault, FaultyBuild, failed_tests
from tinyllama_tools.proofs.run_tests import (
    Outcome,
    TestCounts,
    TestProgram,
    count_outcome,
    read_report,
    run_program,
)

GTEST_XML = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" failures="1" disabled="1" errors="0" time="0" name="AllTests">
  <testsuite name="A" tests="4" failures="1" disabled="1" skipped="1" errors="0">
    <testcase name="Passes" status="run" result="completed" classname="A" />
    <testcase name="Fails" status="run" result="completed" classname="A">
      <failure message="a.cpp:3&#x0A;1 is not 2" type=""></failure>
      <failure message="a.cpp:4&#x0A;1 is not 3" type=""></failure>
    </testcase>
    <testcase name="Skips" status="run" result="skipped" classname="A">
      <skipped message="a.cpp:5&#x0A;needs a GPU"></skipped>
    </testcase>
    <testcase name="DISABLED_Off" status="notrun" result="suppressed" classname="A" />
  </testsuite>
</testsuites>
"""
PYTEST_XML = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="0" skipped="1" tests="3">
  <testcase classname="tests.test_a" name="test_passes" time="0.1" />
  <testcase classname="tests.test_a" name="test_breaks"><error message="x">x</error></testcase>
  <testcase classname="tests.test_a" name="test_skips"><skipped message="no browser" /></testcase>
</testsuite></testsuites>
"""
EMPTY_XML = '<?xml version="1.0"?><testsuites tests="0" name="AllTests"></testsuites>'
ONE_PASSED_XML = """<testsuites><testsuite name="A">
<testcase name="Passes" status="run" result="completed" classname="A" /></testsuite></testsuites>
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "report.xml"
    path.write_text(text, encoding="utf-8")
    return path


def program_that(code: str, folder: Path) -> TestProgram:
    """A made-up test program: Python code whose last argument is --gtest_output=xml:<report>."""
    header = "import sys; report = sys.argv[-1].partition(':')[2]\n"
    return TestProgram(
        "made_up", (sys.executable, "-c", header + code), "--gtest_output=xml:", folder
    )


def test_counts_of_a_gtest_report(tmp_path: Path) -> None:
    counts = read_report(write(tmp_path, GTEST_XML))
    assert counts == TestCounts(
        1, ("A.Fails",), ("A.Skips: needs a GPU", "A.DISABLED_Off: disabled")
    )
    assert str(counts) == "1 passed, 1 failed, 2 skipped"


def test_a_parameter_that_gtest_prints_as_bytes_is_a_failure(tmp_path: Path) -> None:
    named = ONE_PASSED_XML.replace("status", 'value_param="4 ranks" status')
    assert read_report(write(tmp_path, named)) == TestCounts(1)
    counts = read_report(
        write(tmp_path, named.replace("4 ranks", "48-byte object &lt;50-84 00-00&gt;"))
    )
    assert counts.passed == 0
    assert counts.failures == ("A.Passes: its parameter prints as bytes, and needs a PrintTo()",)


def test_counts_of_a_pytest_report(tmp_path: Path) -> None:
    counts = read_report(write(tmp_path, PYTEST_XML))
    assert counts.passed == 1
    assert counts.failures == ("tests.test_a.test_breaks",)
    assert counts.skips == ("tests.test_a.test_skips: no browser",)


@pytest.mark.parametrize(
    ("xml", "status", "failed"),
    [
        (ONE_PASSED_XML, 0, 0),
        (GTEST_XML, 1, 1),
        (ONE_PASSED_XML, 1, 1),  # says failed, reports none
        (GTEST_XML, -6, 2),  # aborted after the report
        (None, -11, 1),  # crashed before the report
        (None, 0, 1),  # no report though it claims success
        ("<testsuites><testsuite>", 1, 1),  # cut short
        (ONE_PASSED_XML, None, 1),  # timeout
    ],
)
def test_end_of_a_program_counts(
    tmp_path: Path, xml: str | None, status: int | None, failed: int
) -> None:
    report = tmp_path / "report.xml" if xml is None else write(tmp_path, xml)
    assert len(count_outcome(report, status, may_be_empty=False).failures) == failed


def test_pytest_that_selects_nothing_has_not_failed(tmp_path: Path) -> None:
    report = write(tmp_path, EMPTY_XML)
    assert count_outcome(report, 5, may_be_empty=True) == TestCounts()
    assert len(count_outcome(report, 5, may_be_empty=False).failures) == 1
    assert len(count_outcome(report, 4, may_be_empty=True).failures) == 1


def test_runs_a_program_and_reads_its_report(tmp_path: Path) -> None:
    program = program_that(f"open(report, 'w').write({ONE_PASSED_XML!r})", tmp_path)
    assert run_program(program, tmp_path / "r.xml", 60).counts == TestCounts(passed=1)


def test_crash_is_a_failure_with_the_output_kept(tmp_path: Path) -> None:
    program = program_that("print('last words', flush=True); import os; os.abort()", tmp_path)
    outcome = run_program(program, tmp_path / "r.xml", 60)
    assert outcome.counts.failures == ("ended with status -6 before it wrote its report",)
    assert "last words" in outcome.output


def test_timeout_is_a_failure(tmp_path: Path) -> None:
    program = program_that("import time; time.sleep(60)", tmp_path)
    outcome = run_program(program, tmp_path / "r.xml", 0.3)
    assert outcome.counts.failures == ("did not end in time",)


def test_program_that_was_not_built_is_a_failure(tmp_path: Path) -> None:
    program = TestProgram("absent", ("no_such_program",), "--gtest_output=xml:", tmp_path)
    outcome = run_program(program, tmp_path / "r.xml", 60)
    assert len(outcome.counts.failures) == 1
    assert "cannot be run" in outcome.output


@pytest.mark.parametrize(("status", "passed"), [(0, 1), (1, 0), (2, 0)])
def test_short_run_of_the_suite_is_one_test(tmp_path: Path, status: int, passed: int) -> None:
    suite = tmp_path / "tiny_llama_bench"
    suite.write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    suite.chmod(0o755)
    outcome = run_program(test_programs.suite_program(suite), tmp_path / "r.xml", 60)
    assert (outcome.counts.passed, outcome.counts.total) == (passed, 1)
    assert "--device=cpu" in outcome.output


@pytest.mark.parametrize(
    ("counts", "status", "last_line"),
    [
        ([TestCounts(2), TestCounts(1, (), ("x: why",))], 0, "3 passed, 0 failed, 1 skipped"),
        ([TestCounts(2), TestCounts(0, ("x",))], 1, "2 passed, 1 failed, 0 skipped"),
        ([TestCounts()], 1, "0 passed, 1 failed, 0 skipped"),
        ([], 1, "0 passed, 1 failed, 0 skipped"),
    ],
)
def test_last_line_and_exit_status(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    counts: list[TestCounts],
    status: int,
    last_line: str,
) -> None:
    program = program_that("", tmp_path)
    outcomes = [Outcome(program, count, 0.0, "") for count in counts]
    assert run_tests.show_summary(outcomes) == status
    assert capsys.readouterr().out.splitlines()[-1] == last_line


def test_build_folder_that_was_never_configured_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run_tests.main(["--no-pytest", "--build-folder", str(tmp_path / "absent")])
    assert status == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


def test_runner_from_ctest_to_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build folder as CMake leaves it: a good program, one that crashes, one not built."""
    good = tmp_path / "good.py"
    good.write_text(f"import sys\nopen(sys.argv[-1][19:], 'w').write({ONE_PASSED_XML!r})\n")
    (tmp_path / "CTestTestfile.cmake").write_text(
        f'add_test([=[good]=] "{sys.executable}" "{good}")\n'
        f'add_test([=[crash]=] "{sys.executable}" "-c" "import os; os.abort()")\n'
        f'add_test([=[absent]=] "{tmp_path}/absent")\n'
    )
    status = run_tests.main(["--no-pytest", "--build-folder", str(tmp_path)])
    output = capsys.readouterr().out
    assert status == 1
    assert output.splitlines()[-1] == "1 passed, 2 failed, 0 skipped"
    assert f"failed: {tmp_path.name}/crash: ended with status -6" in output


def test_pattern_reaches_both_kinds_of_program(tmp_path: Path) -> None:
    (tmp_path / "CTestTestfile.cmake").write_text(
        f'add_test([=[a]=] "{sys.executable}")\n'
        'set_tests_properties([=[a]=] PROPERTIES ENVIRONMENT "ATEN_CPU_CAPABILITY=avx2;B=c")\n'
    )
    (program,) = test_programs.gtest_programs(tmp_path, "rotary")
    assert program.command[-1] == "--gtest_filter=*rotary*"
    assert program.environment["OMP_NUM_THREADS"] == "1"
    assert program.environment["ATEN_CPU_CAPABILITY"] == "avx2"
    assert program.environment["B"] == "c"
    (program,) = test_programs.pytest_programs(tmp_path, "rotary", is_long=True)
    assert program.command[-3:] == ("-k", "rotary", "--long")


def test_each_folder_of_python_tests_is_a_program_and_no_test_runs_twice(tmp_path: Path) -> None:
    for name in ("cli", "training"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / "conftest.py").touch()
    rest, cli, training = test_programs.pytest_programs(tmp_path, None, is_long=False)
    assert rest.command[-3:] == ("tests", "--ignore=tests/cli", "--ignore=tests/training")
    assert cli.command[-1] == "tests/cli"
    assert training.command[-1] == "tests/training"


PROJECT_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def build(bench_program: Path, tmp_path: Path) -> FaultyBuild:
    return FaultyBuild(PROJECT_ROOT, bench_program.parents[1], tmp_path)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found(fault: Fault, build: FaultyBuild) -> None:
    assert build.outcome(fault).found


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.program)
def test_without_a_fault_nothing_fails(control: Fault, build: FaultyBuild) -> None:
    assert build.outcome(control).failed == ()


def test_stale_replacement_is_an_error(build: FaultyBuild) -> None:
    stale = Fault("stale", "model/rotary.cpp", (("no such text", ""),), "golden_test", "x")
    with pytest.raises(RuntimeError, match="no longer has 'no such text'"):
        build.outcome(stale)


def test_program_without_report_finds_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="before it wrote its report"):
        failed_tests(tmp_path / "missing.json")


def test_report_that_ran_no_test_finds_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"testsuites": []}))
    assert failed_tests(report) == ()


LINKED = "libtorch_cuda.so => /a (0x1)\nlibcudart.so.13 => /b (0x2)\n"


@pytest.mark.parametrize(
    ("libraries", "kernels", "failed"),
    [
        (LINKED, "tiny_llama_bench.1.sm_90.cubin", set()),
        (LINKED + "libnccl.so.2 => not found\n", "1.sm_90.cubin", {"finds its libraries"}),
        (LINKED + "libcudart.so.12 => /c (0x3)\n", "1.sm_90.cubin", {"finds its libraries"}),
        ("libtorch_cpu.so => /a (0x1)\n", "1.sm_90.cubin", {"finds its libraries"}),
        (LINKED, "1.sm_80.cubin", {"holds the kernels"}),
        (LINKED, "", {"holds the kernels"}),
    ],
)
def test_a_build_for_cuda_is_looked_at(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    libraries: str,
    kernels: str,
    failed: set[str],
) -> None:
    def script(path: str, text: str) -> None:
        program = tmp_path / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\nprintf '{text}'\n")
        program.chmod(0o755)

    script("environment/lib/python3.11/site-packages/nvidia/cu13/bin/cuobjdump", kernels)
    script("path/ldd", libraries)
    for name in ("bench", "train", "scaling"):
        script(f"benchmarks/tiny_llama_{name}", "help")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:{os.environ['PATH']}")
    *programs, _device_test = run_tests.cuda_programs(tmp_path)
    assert len(programs) == 9
    found = {
        program.name.partition(" ")[2]
        for program in programs
        if run_tests.run_program(program, tmp_path / "report.xml", 60).counts.failures
    }
    assert found == failed
