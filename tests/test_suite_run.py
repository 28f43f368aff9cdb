"""The runner of tiny_llama_bench: with a stand-in for the program, and once with itself."""

import json
import os
import sys
from pathlib import Path

import pytest

from tinyllama_tools.data.programs import SuiteCase, SuiteError, SuiteProgram, axis_options

TINY = SuiteCase("tiny", "f32", 8, 128)
OTHER = SuiteCase("tiny", "bf16", 4, 64, variant="qkv+gate_up")

# Writes what it is told to into --benchmark_out, and its own arguments beside it.
STAND_IN = """#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
told = json.loads((here / "told.json").read_text())
journals = [a[10:] for a in sys.argv if a.startswith("--journal=")]
if journals and told.get("refuse_journal"):
    print(f"tiny_llama_bench: journal {{journals[0]}}: other circumstances", file=sys.stderr)
    sys.exit(2)
for line in told.get("says", []):
    print(line, file=sys.stderr)
out = [a[16:] for a in sys.argv if a.startswith("--benchmark_out=")]
if "document" in told:
    pathlib.Path(out[0]).write_text(json.dumps(told["document"]))
sys.exit(told["status"])
"""


class StandIn:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "tiny_llama_bench"
        path.write_text(STAND_IN.format(python=sys.executable))
        path.chmod(0o755)
        self.program = SuiteProgram(("--threads=2",), program=path)

    def tell(self, status: int, **what: object) -> None:
        (self.folder / "told.json").write_text(json.dumps({"status": status, **what}))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


def entry(case: SuiteCase, **more: object) -> dict[str, object]:
    name = f"{case.name}/manual_time"
    times = {"real_time": 50.0, "cpu_time": 49.0, "time_unit": "ms", "iterations": 1}
    return {"name": name, "run_name": name, "run_type": "iteration", "threads": 1, **times, **more}


def document(*entries: dict[str, object]) -> dict[str, object]:
    context = {"schema_version": 3, "verify": "off", "threads": 2, "peaks": {"measured": {}}}
    return {"context": context, "benchmarks": list(entries)}


def test_samples_counters_and_label_are_read(stand_in: StandIn) -> None:
    repetitions = [
        entry(TINY, real_time=time, repetition_index=i, TFLOPS=0.1, operators=40.0, label="l")
        for i, time in enumerate([60.0, 50.0])
    ]
    mean = entry(TINY, run_type="aggregate", aggregate_name="mean", real_time=55.0)
    stand_in.tell(0, document=document(*repetitions, mean))
    result = stand_in.program.run([TINY], 2)
    (case,) = result.cases
    assert case.seconds == (0.06, 0.05)
    assert case.counters == {"TFLOPS": 0.1, "operators": 40.0}
    assert (case.label, case.skipped, case.failed) == ("l", "", "")
    assert len(case.entries) == 3
    assert result.context["threads"] == 2


def test_skipped_and_failed_cases_come_back_with_their_reasons(stand_in: StandIn) -> None:
    skipped = entry(TINY, skipped=True, skip_message="needs 12 s", real_time=0, iterations=0)
    failed = entry(OTHER, error_occurred=True, error_message="wrong", real_time=0, iterations=0)
    stand_in.tell(1, document=document(failed, skipped))
    first, second = stand_in.program.run([TINY, OTHER], 3).cases
    assert (first.name, first.seconds, first.skipped) == (TINY.name, (), "needs 12 s")
    assert (second.seconds, second.failed, second.counters) == ((), "wrong", {})


def test_case_that_the_program_left_out_is_an_error(stand_in: StandIn) -> None:
    stand_in.tell(0, document=document(entry(TINY, repetition_index=0)))
    with pytest.raises(SuiteError, match="wrote nothing about full_step/train/qkv"):
        stand_in.program.run([TINY, OTHER], 1)


def test_refused_option_is_the_programs_own_message(stand_in: StandIn) -> None:
    message = "tiny_llama_bench: --variants: variant 'x': must be baseline"
    stand_in.tell(2, says=["noise", message])
    with pytest.raises(SuiteError) as caught:
        stand_in.program.run([TINY], 1)
    assert str(caught.value) == message


def test_crash_names_the_program_its_status_and_its_last_words(stand_in: StandIn) -> None:
    stand_in.tell(3, says=[f"line {i}" for i in range(9)])
    with pytest.raises(SuiteError) as caught:
        stand_in.program.run([TINY], 1)
    assert str(caught.value) == (
        "tiny_llama_bench ended with 3: line 4\nline 5\nline 6\nline 7\nline 8"
    )


def test_absent_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="tiny_llama_bench cannot be started"):
        SuiteProgram(program=tmp_path / "tiny_llama_bench").run([TINY], 1)


def test_options_choose_exactly_the_cases() -> None:
    assert axis_options([TINY, OTHER]) == [
        "--components=full_step",
        "--passes=train",
        "--variants=baseline,qkv+gate_up",
        "--sizes=tiny",
        "--dtypes=f32,bf16",
        "--batch=8,4",
        "--seq=128,64",
        "--benchmark_filter=^(full_step/train/baseline/tiny/f32/batch:8/seq:128"
        r"|full_step/train/qkv\+gate_up/tiny/bf16/batch:4/seq:64)$",
    ]


def test_second_process_gets_the_peaks_of_the_first(stand_in: StandIn) -> None:
    stand_in.tell(0, document=document(entry(TINY, repetition_index=0)))
    stand_in.program.run([TINY], 1)
    stand_in.program.run([TINY], 1, verify=True, more=["--cold-cache"])
    first, second = stand_in.calls()
    assert "--resume" not in first
    assert {"--threads=2", "--verify=off"} <= set(first)
    assert {"--resume", "--verify=before", "--cold-cache"} <= set(second)


def test_peaks_that_the_program_refuses_are_measured_anew(stand_in: StandIn) -> None:
    answer = document(entry(TINY, repetition_index=0))
    stand_in.tell(0, document=answer)
    stand_in.program.run([TINY], 1)
    stand_in.tell(0, document=answer, refuse_journal=True)
    assert stand_in.program.run([TINY], 1).cases[0].seconds == (0.05,)
    assert ["--resume" in call for call in stand_in.calls()] == [False, True, False]


def test_the_program_itself(bench_program: Path) -> None:
    small = [
        "--hidden-dim=32",
        "--n-layers=2",
        "--n-heads=4",
        "--n-kv-heads=2",
        "--intermediate-dim=48",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GIT_DIR": os.devnull}
    arguments = (*small, "--vocab-size=50", "--threads=1")
    program = SuiteProgram(arguments, bench_program, environment)
    cases = [SuiteCase("custom", dtype, 2, 8) for dtype in ("f32", "amp_bf16")]
    for verify in (True, False):
        result = program.run(cases, 2, verify=verify)
        assert [case.name for case in result.cases] == [case.name for case in cases]
        for case in result.cases:
            assert len(case.seconds) == 2, case
            assert min(case.seconds) > 0
            assert case.counters["model_flops"] > 0
            assert ("max_rel_error" in case.counters) == verify
        assert {"f32", "bf16"} <= set(result.context["peaks"]["measured"])
    with pytest.raises(SuiteError, match="must be"):
        program.run([SuiteCase("custom", "f32", 2, 8, variant="nonsense")], 1)
