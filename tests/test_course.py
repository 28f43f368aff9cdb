"""The course's versions 2 to 4: its kernels are told from good ones by gate and programs, and its
worksheets follow from what is measured (docs/course.md)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tools
from built_programs import SMALL_MODEL, Program, built_program, read_json, write_program
from fake_training import PlayedProgram
from test_exercises import answer, box, unanswered
from tinyllama_tools.commands import exercise_course, profile
from tinyllama_tools.commands.exercise_course import HIDDEN, STAGES, Timed
from tinyllama_tools.stats.rank_tests import Interval, Quotient

SMALL = [part for pair in SMALL_MODEL.items() for part in pair]
TRAINED = (*SMALL, "--batch-size=2", "--seq-len=16", "--num-steps=3", "--device=cpu", "--threads=1")
REFUSED = "block: no gradient would reach hidden_states"
# what the suite says of each kernel, in made-up measurements
SAID: dict[str, str | float] = {
    **{HIDDEN: REFUSED, "fused": 1.5, "optimized": 2.7, "fused_norm": 1.2, "sdpa": 0.9},
    **{"gate_up+fused_swiglu": 1.1, "broken_loss::rms_norm": "wrong result: output[0]"},
    **{"non_contiguous::rms_norm": 0.2, "fake_timing::rms_norm": "wrong result: output[1]"},
    **{"slow_kernel::linear": 0.01, "fixed::rms_norm": 1.3},
}


@pytest.fixture(scope="module")
def kernels() -> str:
    """The option that loads them."""
    path = built_program("benchmarks/tiny_llama_bench").parent / "libcourse_kernels.so"
    assert path.is_file()
    return f"--plugin={path}"


def test_a_kernel_hidden_from_autograd_is_refused_by_every_program(
    kernels: str, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    bench = Program(built_program("benchmarks/tiny_llama_bench"))
    done = bench.run(
        *(kernels, f"--variants=baseline,{HIDDEN}", "--components=block,full_step"),
        *("--passes=forward_backward,train", "--batch=1", "--seq=16", "--threads=1"),
        *("--benchmark_min_time=1x", "--benchmark_repetitions=1", f"--benchmark_out={out}"),
    )
    assert done.returncode == 1
    rows = [row for row in read_json(out)["benchmarks"] if row.get("variant") == HIDDEN]
    assert len(rows) == 2
    for row in rows:
        assert "gradient" in row["error_message"], row["name"]
    train = Program(built_program("benchmarks/tiny_llama_train"))
    refused = train.run(*TRAINED, kernels, f"--variant={HIDDEN}")
    assert refused.returncode == 1
    layers = int(SMALL_MODEL["--n-layers"])
    # all but the LM head, which alone stands behind the last norm
    count = 9 * layers + 3
    assert f"{count - 1} of {count} parameters have no gradient" in refused.stderr
    assert train.run(*TRAINED, kernels, "--variant=fixed::rms_norm").returncode == 0
    scaling = Program(built_program("benchmarks/tiny_llama_scaling"))
    alone = scaling.run(
        *(*SMALL, "--batch=2", "--seq=16", "--device=cpu", "--threads=1", "--rounds=1"),
        *("--components=full_step", "--min-time=0.01", kernels, f"--variant={HIDDEN}"),
    )
    assert alone.returncode == 1
    assert "parameters have no gradient" in alone.stdout + alone.stderr


def test_this_run_beside_another(tmp_path: Path) -> None:
    train = Program(built_program("benchmarks/tiny_llama_train"))
    assert train.run(*TRAINED, f"--output-dir={tmp_path}").returncode == 0
    summary = tmp_path / "performance_summary.json"
    done = train.run(*TRAINED, "--enable-qkv-fusion", f"--compare-with-v1={summary}")
    assert done.returncode == 0
    speed = read_json(summary)["summary"]["samples_per_second"]
    found = re.search(r"Speedup: ([\d.]+)x \(([\d.]+) -> ([\d.]+) samples/sec\)", done.stdout)
    assert found is not None and abs(float(found[2]) - speed) <= 0.05
    assert abs(float(found[3]) / float(found[2]) - float(found[1])) < 0.01
    assert 'Different: variant: "baseline" -> "fused"' in done.stdout
    assert re.search(r"Peak memory: [+-][\d.]+ % \(\d+ -> \d+ MB\)", done.stdout)
    for content, why in (
        ("", "is not JSON"),
        ("{}", "lacks 'configuration'"),
        (json.dumps(read_json(summary) | {"summary": {}}), "no 'summary.samples_per_second'"),
    ):
        summary.write_text(content, encoding="utf-8")
        refused = train.run(*TRAINED, f"--compare-with-v1={summary}")
        assert refused.returncode == 2
        assert "--compare-with-v1" in refused.stderr and why in refused.stderr
    assert "cannot be read" in train.run(*TRAINED, "--compare-with-v1=nowhere").stderr


def test_the_operator_table_of_attention_alone_in_another_order(tmp_path: Path) -> None:
    train = Program(built_program("benchmarks/tiny_llama_train"))
    options = ("--enable-pytorch-profiler", "--warmup-steps=1", "--profile-steps=1")

    def table(name: str, *more: str) -> tuple[list[dict[str, float]], str]:
        done = train.run(*TRAINED, *options, *more, f"--profile-dir={tmp_path / name}")
        assert done.returncode == 0, done.stderr
        operators = read_json(tmp_path / name / "performance_summary.json")["operators"]
        assert operators["first_step"] == 2 and operators["last_step"] == 3
        return operators["table"], done.stdout

    every, _ = table("every")
    attention, said = table("attention", "--profile-attention-only", "--sort-by=count")
    assert "Top Operations of attention by calls" in said
    calls = [row["calls"] for row in attention]
    assert calls == sorted(calls, reverse=True)
    counts = {row["name"]: row["calls"] for row in every}
    assert all(row["calls"] <= counts[str(row["name"])] for row in attention)
    assert any("softmax" in str(row["name"]) for row in attention)
    assert not any("nll_loss" in str(row["name"]) for row in attention)
    own = [row["cpu_self_seconds"] for row in every]
    assert own == sorted(own, reverse=True)


# ---- worksheets of figures that nobody measured


def timed(said: str | float) -> Timed:
    if isinstance(said, str):
        return Timed(reason=said)
    return Timed(Quotient(said, Interval(said - 0.05, said + 0.05, 0.95)))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | float]:
    """What the suite says, which a test may change."""
    words = dict(SAID)

    def time(_: object, *asked: Any) -> dict[str, Timed]:  # noqa: ANN401
        _, _, variants, *more = asked
        unproved = {HIDDEN: timed(2.6)} if "--verify=off" in more else {}
        return {v: Timed() if v == "baseline" else timed(words[v]) for v in variants} | unproved

    monkeypatch.setattr(exercise_course.Suite, "time", time)
    suite = exercise_course.Suite(exercise_course.SuiteProgram(), (), Path())
    monkeypatch.setattr(exercise_course, "suite_of", lambda _: suite)
    monkeypatch.setattr(exercise_course, "plugin_of", lambda _: "--plugin=made_up.so")
    monkeypatch.setattr(profile, "draw_timelines", lambda _: [])
    return words


def sheet(number: int, folder: Path, program: PlayedProgram | None = None) -> tuple[int, str]:
    output = folder / f"exercise_{number}.md"
    status = tools.exercise([str(number), "-o", str(output)], program=program or PlayedProgram())
    return status, output.read_text(encoding="utf-8")


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("number", [4, 5, 6, 7, 8])
def test_no_place_is_left_to_fill_in(number: int, gpu: bool, tmp_path: Path) -> None:
    status, page = sheet(number, tmp_path, PlayedProgram(gpu=gpu))
    assert status == 0
    assert "Not complete" not in page and "## Success criteria" in page
    assert unanswered(page) == []


def test_boxes_follow_what_the_suite_says(said: dict[str, str | float], tmp_path: Path) -> None:
    pages = {number: sheet(number, tmp_path)[1] for number in (4, 7, 8)}
    assert box(pages[4], "... beyond what chance explains")
    assert box(pages[7], "The gate refuses it")
    assert "61.5 %" in pages[7]  # 1 - 1 / 2.6
    assert REFUSED in answer(pages[7], "What does the gate say?")
    assert "| above the range" not in pages[7] and "below the range" in pages[7]
    assert box(pages[8], "The fixed one is proved") and box(pages[8], "Slow kernels are found")
    assert not box(pages[8], "All five stages explained")  # its first loss is one of a guess
    said |= {HIDDEN: 2.6, "fused": 1.04, "fixed::rms_norm": "wrong result", "sdpa": 2.5}
    said |= {"slow_kernel::linear": 1.2}
    pages = {number: sheet(number, tmp_path)[1] for number in (4, 7, 8)}
    assert not box(pages[4], "... beyond what chance explains")
    assert not box(pages[7], "The gate refuses it")
    assert not box(pages[8], "The fixed one is proved")
    assert not box(pages[8], "Slow kernels are found")


@pytest.mark.usefixtures("said")
def test_stages_have_the_losses_and_shares_of_their_runs(tmp_path: Path) -> None:
    broken = PlayedProgram(changes={"steps.0.loss": 942.8})
    page = sheet(8, tmp_path, broken)[1]
    assert box(page, "The loss: the first is not that of a guess")
    assert "942.8" in page and "6.908" in page
    for stage, (kernel, _) in STAGES.items():
        assert f"| {stage}" in page and kernel in page


@pytest.mark.usefixtures("said")
def test_what_the_suite_refuses_is_on_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> dict[str, Timed]:
        raise exercise_course.SuiteError("tiny_llama_bench: no room")

    monkeypatch.setattr(exercise_course.Suite, "time", refuse)
    status, page = sheet(7, tmp_path)
    assert status == 1 and "- tiny_llama_bench: no room" in page

    def interrupt(*_: object) -> dict[str, Timed]:
        raise KeyboardInterrupt

    monkeypatch.setattr(exercise_course.Suite, "time", interrupt)
    status, page = sheet(4, tmp_path)
    assert status == 130 and "- interrupted" in page


def test_kernels_that_are_not_built_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bench", "train"):
        write_program(tmp_path / f"benchmarks/tiny_llama_{name}", "#!/bin/sh\n")
    arguments = ["8", "-o", str(tmp_path / "8.md"), "--build-folder", str(tmp_path)]
    assert tools.exercise(arguments, program=PlayedProgram()) == 2
    assert "libcourse_kernels.so: not there" in capsys.readouterr().err
