"""Programs in processes of their own, and what they measured."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_training import made_up_summary
from noted_waits import has_noted, noting_waits
from tinyllama_tools.data.names import CaseName, full_step
from tinyllama_tools.data.programs import (
    SuiteError,
    SuiteProgram,
    TrainingError,
    TrainingProgram,
    axis_options,
    command_line,
)
from tinyllama_tools.stats.rank_tests import Interval, Ratio, median_interval, ratio_of_turns

TINY = full_step("tiny", "f32", 8, 128)
OTHER = full_step("tiny", "bf16", 4, 64, variant="qkv+gate_up")
# Writes what it is told to into --benchmark_out, and its own arguments beside it.
FAKE = """#!{python}
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


class FakeProgram:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "tiny_llama_bench"
        path.write_text(FAKE.format(python=sys.executable))
        path.chmod(0o755)
        self.program = SuiteProgram(("--threads=2",), program=path)

    def tell(self, status: int, **what: object) -> None:
        (self.folder / "told.json").write_text(json.dumps({"status": status, **what}))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def fake(tmp_path: Path) -> FakeProgram:
    return FakeProgram(tmp_path)


def entry(case: CaseName, **more: object) -> dict[str, object]:
    name = f"{case!s}/manual_time"
    times = {"real_time": 50.0, "cpu_time": 49.0, "time_unit": "ms", "iterations": 1}
    return {"name": name, "run_name": name, "run_type": "iteration", "threads": 1, **times, **more}


def document(*entries: dict[str, object]) -> dict[str, object]:
    own = {"host_name": "somebodys-desk", "executable": "/home/somebody/tiny_llama_bench"}
    context = own | {"schema_version": 3, "verify": "off", "threads": 2, "peaks": {"measured": {}}}
    return {"context": context, "benchmarks": list(entries)}


def test_samples_counters_and_label_are_read(fake: FakeProgram) -> None:
    repetitions = [
        entry(TINY, real_time=time, repetition_index=i, TFLOPS=0.1, operators=40.0, label="l")
        for i, time in enumerate([60.0, 50.0])
    ]
    mean = entry(TINY, run_type="aggregate", aggregate_name="mean", real_time=55.0)
    fake.tell(0, document=document(*repetitions, mean))
    result = fake.program.run([TINY], 2)
    (case,) = result.cases
    assert case.seconds == (0.06, 0.05)
    assert case.counters == {"TFLOPS": 0.1, "operators": 40.0}
    assert (case.label, case.skipped, case.failed) == ("l", "", "")
    assert len(case.entries) == 3
    assert result.context["threads"] == 2
    # nothing that is made of it names a host or a folder
    assert "somebody" not in json.dumps(result.context)
    assert result.context["executable"] == "tiny_llama_bench"


def test_skipped_and_failed_cases_come_back_with_their_reasons(fake: FakeProgram) -> None:
    skipped = entry(TINY, skipped=True, skip_message="needs 12 s", real_time=0, iterations=0)
    failed = entry(OTHER, error_occurred=True, error_message="wrong", real_time=0, iterations=0)
    fake.tell(1, document=document(failed, skipped))
    first, second = fake.program.run([TINY, OTHER], 3).cases
    assert (first.name, first.seconds, first.skipped) == (str(TINY), (), "needs 12 s")
    assert (second.seconds, second.failed, second.counters) == ((), "wrong", {})


def test_case_that_the_program_left_out_is_an_error(fake: FakeProgram) -> None:
    fake.tell(0, document=document(entry(TINY, repetition_index=0)))
    with pytest.raises(SuiteError, match="wrote nothing about full_step/train/qkv"):
        fake.program.run([TINY, OTHER], 1)


def test_refused_option_is_the_programs_own_message(fake: FakeProgram) -> None:
    message = "tiny_llama_bench: --variants: variant 'x': must be baseline"
    fake.tell(2, says=["noise", message])
    with pytest.raises(SuiteError) as caught:
        fake.program.run([TINY], 1)
    assert str(caught.value) == message


def test_crash_names_the_program_its_status_and_its_last_words(fake: FakeProgram) -> None:
    fake.tell(3, says=[f"line {i}" for i in range(9)])
    with pytest.raises(SuiteError) as caught:
        fake.program.run([TINY], 1)
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


def test_second_process_gets_the_peaks_of_the_first(fake: FakeProgram) -> None:
    fake.tell(0, document=document(entry(TINY, repetition_index=0)))
    fake.program.run([TINY], 1)
    fake.program.run([TINY], 1, verify=True, more=["--cold-cache"])
    first, second = fake.calls()
    assert "--resume" not in first
    assert {"--threads=2", "--verify=off"} <= set(first)
    assert {"--resume", "--verify=before", "--cold-cache"} <= set(second)


def test_peaks_that_the_program_refuses_are_measured_anew(fake: FakeProgram) -> None:
    answer = document(entry(TINY, repetition_index=0))
    fake.tell(0, document=answer)
    fake.program.run([TINY], 1)
    fake.tell(0, document=answer, refuse_journal=True)
    assert fake.program.run([TINY], 1).cases[0].seconds == (0.05,)
    assert ["--resume" in call for call in fake.calls()] == [False, True, False]


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
    cases = [full_step("custom", dtype, 2, 8) for dtype in ("f32", "amp_bf16")]
    for verify in (True, False):
        result = program.run(cases, 2, verify=verify)
        assert [case.name for case in result.cases] == [str(case) for case in cases]
        for case in result.cases:
            assert len(case.seconds) == 2, case
            assert min(case.seconds) > 0
            assert case.counters["model_flops"] > 0
            assert ("max_rel_error" in case.counters) == verify
        assert {"f32", "bf16"} <= set(result.context["peaks"]["measured"])
    with pytest.raises(SuiteError, match="must be"):
        program.run([full_step("custom", "f32", 2, 8, variant="nonsense")], 1)


def program(tmp_path: Path, script: str) -> TrainingProgram:
    """A program that knows the folder of its last option as $folder."""
    (tmp_path / "summary.json").write_text(json.dumps(made_up_summary()))
    path = tmp_path / "tiny_llama_train"
    head = '#!/bin/bash\nlast="${@: -1}"\nfolder="${last#*=}"\n'
    path.write_text(
        f"{head}write() {{ mkdir -p $folder; cp {tmp_path}/summary.json "
        f"$folder/performance_summary.json; }}\n{script}\n"
    )
    path.chmod(0o755)
    return TrainingProgram(path, ("--device=cpu",))


def test_reads_what_the_program_wrote_and_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    used = program(tmp_path, 'write; echo "options: $*"; echo trouble >&2')
    run = used.run(["--num-steps", "3"], tmp_path / "out", log)
    assert run.exit_status == 0
    assert run.summary == made_up_summary()
    assert run.output == log.read_text()
    assert (
        run.output == f"options: --device=cpu --num-steps 3 --output-dir={tmp_path}/out\ntrouble\n"
    )
    assert run.seconds > 0


@pytest.mark.parametrize(
    "flag", ["--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops"]
)
def test_a_profiler_writes_to_the_profile_folder(tmp_path: Path, flag: str) -> None:
    run = program(tmp_path, "write").run([flag], tmp_path / "out")
    assert run.command[-1] == f"--profile-dir={tmp_path}/out"


def test_a_summary_of_an_earlier_run_is_not_this_runs(tmp_path: Path) -> None:
    program(tmp_path, "write").run([], tmp_path / "out")
    assert program(tmp_path, "true").run([], tmp_path / "out").summary is None


def test_a_loss_that_is_not_finite_is_returned(tmp_path: Path) -> None:
    run = program(tmp_path, "write; exit 1").run([], tmp_path / "out")
    assert run.exit_status == 1
    assert run.summary is not None


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ("echo banner; echo '--size x: must be one of tiny' >&2; exit 2", 2, "must be one of tiny"),
        ("exit 7", 1, "ended with 7: it said nothing"),
        ("kill -SEGV $$", 1, "Segmentation fault"),
        ("mkdir -p $folder; echo '{' > $folder/performance_summary.json", 1, "bad summary"),
    ],
)
def test_what_raises(tmp_path: Path, script: str, status: int, words: str) -> None:
    with pytest.raises(TrainingError, match=words) as error:
        program(tmp_path, script).run([], tmp_path / "out")
    assert error.value.exit_status == status
    assert "banner" not in str(error.value)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"cannot be started.*scripts/bench --setup-only") as e:
        TrainingProgram(tmp_path / "absent").run([], tmp_path)
    assert e.value.exit_status == 2


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="absent/log") as error:
        program(tmp_path, "true").run([], tmp_path, tmp_path / "absent/log")
    assert error.value.exit_status == 2


def test_an_interrupted_program_ends_its_step_first(tmp_path: Path) -> None:
    used = program(
        tmp_path,
        "trap 'sleep 0.3; touch $folder/step; exit 130' INT\n"
        "mkdir -p $folder; touch $folder/ready; while :; do sleep 0.05; done",
    )
    note = tmp_path / "waits"
    code = noting_waits(note) + (
        "from pathlib import Path; from tinyllama_tools.data.programs import TrainingProgram\n"
        f"TrainingProgram(Path({str(used.program)!r})).run([], Path({str(tmp_path)!r}) / 'out')"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "scripts")}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not ((tmp_path / "out/ready").exists() and has_noted(note, str(used.program))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
    assert (tmp_path / "out/step").exists()


def test_a_command_as_a_user_types_it() -> None:
    options = ["--data", "my text"]
    assert command_line(options) == "build/benchmarks/tiny_llama_train --data 'my text'"


def test_ratio_is_the_median_of_neighbours_ratios_not_the_ratio_of_medians() -> None:
    # the machine became twice as slow in the middle; each turn says 0.5
    ratio = ratio_of_turns([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert ratio.median == 0.5
    assert ratio.interval == Interval(0.5, 0.5, 0.75)
    assert ratio.of_each_turn == (0.5, 0.5, 0.5)


def test_one_turn_has_no_interval() -> None:
    ratio = ratio_of_turns([3.0], [2.0])
    assert ratio == Ratio(1.5, None, 1, (1.5,))
    assert ratio.text() == "1.50"
    assert json.loads(json.dumps(ratio.as_json()))["interval"] is None


@pytest.mark.parametrize(
    ("count", "left_out", "confidence"),
    # the tables of the sign test; n = 20: P(X <= 5) = 0.0207
    [(2, 0, 0.5), (5, 0, 0.9375), (6, 0, 0.96875), (9, 1, 0.9609375), (20, 5, 0.95861)],
)
def test_interval_is_between_the_order_statistics_of_the_sign_test(
    count: int, left_out: int, confidence: float
) -> None:
    values = [float(i) for i in range(count)]
    random.Random(1).shuffle(values)
    interval = median_interval(values)
    assert interval is not None
    assert (interval.low, interval.high) == (left_out, count - 1 - left_out)
    assert interval.confidence == pytest.approx(confidence, abs=1e-5)


@pytest.mark.parametrize("count", [5, 9, 12])
def test_interval_holds_the_true_median_as_often_as_it_says(count: int) -> None:
    draw = random.Random(7)
    held = []
    for _ in range(4000):
        interval = median_interval([draw.lognormvariate(0.0, 0.3) for _ in range(count)])
        assert interval is not None
        held.append(interval.low <= 1.0 <= interval.high)
    assert statistics.mean(held) == pytest.approx(interval.confidence, abs=0.015)


def test_text_names_a_confidence_below_95_percent() -> None:
    few = ratio_of_turns([1.0, 1.2, 1.1], [1.0, 1.0, 1.0])
    assert few.text() == "1.10 (1.00 to 1.20 at 75 %)"
    assert ratio_of_turns([1.1] * 6, [1.0] * 6).text() == "1.10 (1.10 to 1.10)"
    assert ratio_of_turns([1.1], [1.0]).text() == "1.10"


def test_ratio_comes_back_from_json() -> None:
    for turns in (1, 7):
        ratio = ratio_of_turns([1.0 + i for i in range(turns)], [1.0] * turns)
        assert Ratio.from_json(json.loads(json.dumps(ratio.as_json()))) == ratio
    assert Ratio.from_json(None) is None


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [
        ([], [], "0 turns against 0"),
        ([1.0], [1.0, 2.0], "1 turns against 2"),
        ([1.0], [0.0], "0.0: must be a positive time"),
        ([float("nan")], [1.0], "nan: must be a positive time"),
    ],
)
def test_what_is_no_pair_of_times_is_refused(a: list[float], b: list[float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ratio_of_turns(a, b)
