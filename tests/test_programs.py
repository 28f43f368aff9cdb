"""Programs in processes of their own, and what they measured."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fake_training import made_up_summary
from tinyllama_tools.core.process import Progress
from tinyllama_tools.data.names import CaseName, full_step
from tinyllama_tools.data.programs import (
    NUMBERS,
    SuiteError,
    SuiteProgram,
    TrainingError,
    TrainingProgram,
    ask_costs,
    ask_dry_run,
    rows_of,
)

Json = dict[str, Any]
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


def entry(case: CaseName, **more: object) -> Json:
    name = f"{case!s}/manual_time"
    times = {"real_time": 50.0, "cpu_time": 49.0, "time_unit": "ms", "iterations": 1}
    return {"name": name, "run_name": name, "run_type": "iteration", "threads": 1, **times, **more}


def document(*entries: Json) -> Json:
    context = {"schema_version": 3, "verify": "off", "threads": 2, "peaks": {"measured": {}}}
    return {"context": context, "benchmarks": list(entries)}


def test_what_is_read_of_cases(fake: FakeProgram) -> None:
    repetitions = [
        entry(TINY, real_time=time, repetition_index=i, TFLOPS=0.1 + i, operators=40.0, label="l")
        for i, time in enumerate([60.0, 50.0])
    ]
    mean = entry(TINY, run_type="aggregate", aggregate_name="mean", real_time=55.0)
    stopped = {"real_time": 0, "iterations": 0}
    skipped = entry(OTHER, skipped=True, skip_message="needs 12 s", **stopped)
    third = full_step("tiny", "f32", 1, 1)
    failed = entry(third, error_occurred=True, error_message="wrong", **stopped)
    fake.tell(1, document=document(*repetitions, failed, mean, skipped))
    result = fake.program.run([TINY, OTHER, third], 2)
    first, second, last = (result.cases[str(case)] for case in (TINY, OTHER, third))
    assert (first.seconds, first.repetitions, first.label) == (pytest.approx(0.055), 2, "l")
    assert first.counters == {"TFLOPS": pytest.approx(0.6), "operators": 40.0}
    assert (second.seconds, second.skipped) == (None, "needs 12 s")
    assert (last.seconds, last.failed, last.counters) == (None, "wrong", {})
    assert result.context["threads"] == 2
    again = fake.program.measure([TINY, OTHER, third], 2)
    assert rows_of(again, TINY) == repetitions


@pytest.mark.parametrize(
    ("status", "told", "message"),
    [
        (
            *(0, {"document": document(entry(TINY))}),
            "tiny_llama_bench wrote nothing about full_step/train/qkv+gate_up/tiny/bf16",
        ),
        (
            *(2, {"says": ["noise", "tiny_llama_bench: --variants: variant 'x': must be y"]}),
            "tiny_llama_bench: --variants: variant 'x': must be y",
        ),
        (
            *(3, {"says": [f"line {i}" for i in range(9)]}),
            "tiny_llama_bench ended with 3: line 4\nline 5\nline 6\nline 7\nline 8",
        ),
        (3, {"says": ["why", *[""] * 9]}, "tiny_llama_bench ended with 3: why"),
        (0, {}, "tiny_llama_bench ended with 0"),
    ],
)
def test_a_suite_that_fails_is_named_with_its_last_words(
    fake: FakeProgram, status: int, told: Json, message: str
) -> None:
    fake.tell(status, **told)
    with pytest.raises(SuiteError) as caught:
        fake.program.run([TINY, OTHER], 1)
    assert str(caught.value).startswith(message)


def test_peaks_of_the_first_process_serve_the_next_unless_refused(fake: FakeProgram) -> None:
    answer = document(entry(TINY, repetition_index=0))
    fake.tell(0, document=answer)
    fake.program.run([TINY], 1)
    fake.program.run([TINY], 1, verify=True, more=["--cold-cache"])
    fake.tell(0, document=answer, refuse_journal=True)
    assert fake.program.run([TINY], 1).cases[str(TINY)].seconds == 0.05
    assert ["--resume" in call for call in fake.calls()] == [False, True, True, False]
    first, second = fake.calls()[:2]
    assert {"--threads=2", "--verify=off"} <= set(first)
    assert {"--resume", "--verify=before", "--cold-cache"} <= set(second)


def test_a_list_is_asked_for_with_the_options_of_all_processes(fake: FakeProgram) -> None:
    refusal = 'tiny_llama_bench: device "cuda:9": no such device'
    fake.tell(2, says=["noise", refusal])
    assert fake.program.list_cases(["--variants=fused"]) == ([], refusal)
    assert fake.calls() == [["--variants=fused", "--threads=2", "--list"]]


# ---- the training program


def training(tmp_path: Path, script: str) -> TrainingProgram:
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


def test_what_a_training_wrote_and_said(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    script = 'write; echo "options: $*"; echo trouble >&2; exit 1'
    run = training(tmp_path, script).run(["--num-steps", "3"], out, log)
    # the loss was not finite
    assert (run.exit_status, run.summary) == (1, made_up_summary()) and run.seconds > 0
    said = f"options: --device=cpu --num-steps 3 --output-dir={out}\ntrouble\n"
    assert run.output == log.read_text() == said
    # a summary of an earlier run is not this run's
    run = training(tmp_path, 'echo "$*"').run(["--profile-memory"], out, log)
    assert log.read_text().endswith(f" --profile-dir={out}\n") and run.summary is None


@pytest.mark.parametrize(
    ("script", "log", "status", "words"),
    [
        ("echo banner; echo '--size x: must be one of tiny' >&2; exit 2", "log", 2, "one of tiny"),
        ("exit 7", "log", 1, "ended with 7: it said nothing"),
        ("kill -SEGV $$", "log", 1, "was ended by signal SIGSEGV"),
        ("mkdir -p $folder; echo '{' > $folder/performance_summary.json", "log", 1, "bad summary"),
        ("true", "absent/log", 2, "absent/log"),
        ("", "log", 2, r"cannot be started.*scripts/bench --setup-only"),
    ],
)
def test_a_training_that_fails(
    tmp_path: Path, script: str, log: str, status: int, words: str
) -> None:
    program = training(tmp_path, script)
    if not script:
        program.program.unlink()
    with pytest.raises(TrainingError, match=words) as error:
        program.run([], tmp_path / "out", tmp_path / log)
    assert error.value.exit_status == status
    assert "banner" not in str(error.value)


def test_a_full_disk_names_the_file_of_the_output(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as error:
        training(tmp_path, "echo a line").run([], tmp_path / "out", Path("/dev/full"))
    assert error.value.filename == "/dev/full"


def test_a_program_whose_output_cannot_be_kept_may_keep_its_own(tmp_path: Path) -> None:
    trap = "mkdir -p $folder; trap 'touch $folder/kept; exit' INT"
    script = f"{trap}; while echo a line; do sleep 0.05; done"
    with pytest.raises(OSError, match="No space left"):
        training(tmp_path, script).run([], tmp_path / "out", Path("/dev/full"))
    assert (tmp_path / "out" / "kept").exists()


@pytest.mark.parametrize("status", [0, 130])
def test_an_interrupted_program_ends_its_step_first(tmp_path: Path, status: int) -> None:
    """By Ctrl-C at a terminal, which every process of its group gets: a second one would kill."""
    used = training(
        tmp_path,
        f"trap 'trap - INT; sleep 0.3; touch $folder/step; exit {status}' INT\n"
        "mkdir -p $folder; echo ready $(cut -d' ' -f6 /proc/$$/stat); while :; do sleep 0.05; done",
    )
    log = tmp_path / "log"
    code = (
        "from pathlib import Path; from tinyllama_tools.data.programs import TrainingProgram\n"
        f"TrainingProgram(Path({str(used.program)!r})).run([], Path({str(tmp_path)!r}) / 'out', "
        f"Path({str(log)!r}))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "scripts")}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (log.exists() and "ready" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
    assert (tmp_path / "out/step").exists()
    # in a session of its own, which a terminal's Ctrl-C does not reach
    assert log.read_text().split()[1] != str(process.pid)


def test_progress_counts_and_tells_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tinyllama_tools.core.process.time.monotonic", lambda: now)
    for is_terminal in (False, True):
        stream = io.StringIO()
        stream.isatty = lambda of=is_terminal: of
        progress = Progress(stream)
        progress.begin(40, 10, "round 1/2")
        for number in range(11, 41):
            progress.step(f"case {number}")
            now += 2.0
        lines = stream.getvalue().replace("\r", "\n").replace("\033[K", "").split("\n")
        # 6 of 30 took 12 s, 24 are left
        assert "round 1/2 [17/40, 48 s left] case 17" in lines
        # a log has a line every now and then, a terminal every one
        assert (len(lines) > 30) == is_terminal


# ---- the JSON of tiny_llama_bench --dry-run

FIGURES: Json = dict(zip(NUMBERS, range(1, len(NUMBERS) + 1), strict=True))
CASE: Json = {"name": str(OTHER), **FIGURES, "fits": False, "reason": "too large"}
ANSWER: Json = {"memory_budget_bytes": 64, "memory_budget_source": "free", "cases": [CASE]}


def answering(folder: Path, text: str, status: int = 0) -> Path:
    path = folder / "bench"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\necho last >&2\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_every_figure_lands_in_its_field(tmp_path: Path) -> None:
    (cost,) = ask_costs(answering(tmp_path, json.dumps(ANSWER)), [])
    assert (cost.name, cost.fits, cost.reason) == (OTHER, False, "too large")
    assert [getattr(cost, key) for key in NUMBERS] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("bad", "status", "message"),
    [
        *((CASE | {"bytes": bad}, 0, r"cases\[0\].bytes") for bad in ("1", -1, 0.5, 10**400)),
        (CASE | {"name": "peak/bandwidth"}, 0, r"cases\[0\].name: 'peak/bandwidth' does not match"),
        (1, 0, r"cases\[0\]: 1 is not of type 'object'"),
        ("{", 0, "bench --dry-run: Expecting"),
        (CASE, 2, "last$"),
    ],
)
def test_a_bad_answer_is_named(tmp_path: Path, bad: object, status: int, message: str) -> None:
    text = "{" if bad == "{" else json.dumps(ANSWER | {"cases": [bad]})
    with pytest.raises(SuiteError, match=message):
        ask_costs(answering(tmp_path, text, status), [])


def test_the_program_itself_answers_so(bench_program: Path) -> None:
    options = ["--components=full_step", "--sizes=tiny", "--variants=baseline", "--device=cpu"]
    answer, (cost,) = ask_dry_run(bench_program, [*options, "--memory-limit=64MiB"])
    assert str(cost.name) == str(TINY) and not cost.fits
    assert (cost.parameters, cost.model_flops) == (2_873_600, 17_678_991_360)
    assert (answer["memory_budget_bytes"], answer["memory_budget_source"]) == (
        *(2**26, "--memory-limit"),
    )
    assert "exceeds 64.00 MiB" in cost.reason
