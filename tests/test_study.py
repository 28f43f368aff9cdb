"""scripts/study on a made-up machine: its plan, files and tables, earlier studies, and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fake_study import GIB, PlayedPredictor
from fake_training import PlayedProgram, set_key
from noted_waits import noting_waits
from tinyllama_tools.commands.study import parse_options, study
from tinyllama_tools.commands.study_sizes import (
    Rate,
    Settings,
    plan_sizes,
    sample_batch,
)
from tinyllama_tools.models.size_predictions import Question
from tools import run_tool
from training_figures import Figures

# The workshop's own lines (walkthrough, chapter 6.3, step 4).
SHELL_LOOPS = """\
echo "=== Throughput Comparison ==="
for dir in performance_results_*/; do
    size=$(basename "$dir" | cut -d'_' -f3)
    throughput=$(grep "Throughput:" "$dir/training_output.log" | tail -1 | awk '{print $2, $3}')
    echo "$size: $throughput"
done

# Compare memory usage
echo ""
echo "=== Memory Usage Comparison ==="
for dir in performance_results_*/; do
    size=$(basename "$dir" | cut -d'_' -f3)
    memory=$(grep "Peak memory usage:" "$dir/training_output.log" | tail -1 | awk '{print $4, $5}')
    echo "$size: $memory"
done
"""


def run_study(
    results: Path,
    *arguments: str,
    program: PlayedProgram | None = None,
    predictor: PlayedPredictor | None = None,
) -> int:
    options = parse_options([*arguments, f"--results={results}"])
    return study(
        options, program or PlayedProgram(), "scripts/study", predictor or PlayedPredictor()
    )


def folders(results: Path) -> list[Path]:
    return sorted(results.glob("performance_results_*"))


def page(results: Path) -> str:
    """The only one; taken away, so that the next study has its own."""
    (path,) = results.glob("performance_study_*.md")
    text = path.read_text()
    path.unlink()
    return text


def changed_summary(folder: Path, changes: Mapping[str, object]) -> None:
    file = folder / "performance_summary.json"
    summary = json.loads(file.read_text())
    for key, value in changes.items():
        set_key(summary, key, value)
    file.write_text(json.dumps(summary))


def test_each_size_gets_its_files(tmp_path: Path) -> None:
    assert run_study(tmp_path, "tiny", "small") == 0
    small, tiny = folders(tmp_path)
    assert small.name.startswith("performance_results_small_20")
    assert len(tiny.name.removeprefix("performance_results_tiny_")) == len("20251014_123456")
    for folder in (small, tiny):
        summary = json.loads((folder / "performance_summary.json").read_text())
        config = json.loads((folder / "config.json").read_text())
        assert config["parameters"] == summary["model"]["total_parameters"]
        assert config["batch_size"] == summary["configuration"]["batch_size"]
        assert config["seq_len"] == summary["configuration"]["seq_len"]
        seconds = summary["summary"]["average_step_seconds"]
        assert config["measured"]["average_step_seconds"] == seconds
        assert config["expected"]["step_seconds"] == pytest.approx(seconds, rel=0.3)
        assert len(summary["steps"]) == config["num_steps"] == 50


def test_the_workshops_shell_loops_find_the_figures(tmp_path: Path) -> None:
    run_study(tmp_path, "tiny", "medium", "--max-minutes=1e6")
    said = subprocess.run(
        ["bash", "-c", SHELL_LOOPS], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stderr == ""
    expected = ["=== Throughput Comparison ==="]
    found = [json.loads((f / "performance_summary.json").read_text()) for f in folders(tmp_path)]
    names = [f"{s['configuration']['size']}" for s in found]
    expected += [
        f"{n}: {s['summary']['samples_per_second']:.1f} samples/sec"
        for n, s in zip(names, found, strict=True)
    ]
    expected += ["", "=== Memory Usage Comparison ==="]
    expected += [
        f"{n}: {s['summary']['peak_memory_bytes'] / 2**20:.1f} MB"
        for n, s in zip(names, found, strict=True)
    ]
    assert said.stdout.splitlines() == expected


def test_the_banner_and_the_ending(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_study(tmp_path, "tiny")
    said = capsys.readouterr().out
    for line in (
        "Problem Size: TINY",
        "  Hidden Dimension:    256",
        "  Number of Layers:    4",
        "  Sequence Length:     128",
        "  Batch Size:          8",
        "  Training Steps:      50",
        "  Est. Parameters:     2,873,600 (~2.9M)",
        "  Profilers Enabled:   false",
        "Starting V1 Baseline training...",
        "PERFORMANCE STUDY COMPLETE",
    ):
        assert f"{line}\n" in said, line
    assert f"Output Directory: {folders(tmp_path)[0]}\n" in said
    summary = json.loads((folders(tmp_path)[0] / "performance_summary.json").read_text())
    speed = summary["summary"]["samples_per_second"]
    assert f"\nThroughput: {speed:.1f} samples/sec\n" in said
    assert "s/iter measured" in said and "expected (" in said
    assert said.index("Next steps:") > said.index("PERFORMANCE STUDY COMPLETE")


def test_what_does_not_fit_is_said_and_not_attempted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PlayedProgram()
    predictor = PlayedPredictor(free_bytes=GIB)
    assert run_study(tmp_path, "tiny", "large", program=program, predictor=predictor) == 0
    said = capsys.readouterr().out
    assert said.index("no: predicted peak memory") < said.index("Problem Size: TINY")
    assert "- large: not attempted: predicted peak memory" in page(tmp_path)
    assert not [call for call in program.calls if "--size=large" in call]
    assert [f.name.split("_")[2] for f in folders(tmp_path)] == ["tiny"]


def test_what_takes_too_long_is_said_and_not_attempted(tmp_path: Path) -> None:
    program = PlayedProgram()
    assert run_study(tmp_path, "tiny", "small", "--max-minutes=0.5", program=program) == 0
    text = page(tmp_path)
    assert "- small: not attempted: 50 steps would take" in text
    assert "more than --max-minutes 0.5" in text
    whole = [call for call in program.calls if "--num-steps=50" in call]
    assert ["--size=tiny" in call for call in whole] == [True]
    # with time enough it runs
    assert run_study(tmp_path / "b", "small", "--max-minutes=60") == 0
    assert "not attempted" not in page(tmp_path / "b")


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    # three samples, then tiny, then Ctrl-C in small
    program = PlayedProgram(interrupt_after=4)
    sizes = ("tiny", "small", "medium", "--max-minutes=1e6")
    status = run_study(tmp_path, *sizes, program=program, predictor=PlayedPredictor(64 * GIB))
    assert status == 130
    text = page(tmp_path)
    assert "| tiny " in text
    assert "- small: interrupted after 0 of 50 steps" in text
    assert "- medium: not attempted: interrupted before its turn" in text


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    class FailingSmall(PlayedProgram):
        def run(self, options: Sequence[str], folder: Path, log: Path | None = None):  # noqa: ANN202
            run = super().run(options, folder, log)
            is_bad = "--size=small" in options and "--num-steps=50" in options
            return replace(run, exit_status=1) if is_bad else run

    assert run_study(tmp_path, "small", "tiny", program=FailingSmall()) == 1
    text = page(tmp_path)
    assert "- small: ended with 1: Peak memory usage" in text and "| tiny " in text


def test_the_comparison_has_every_size_and_its_growth(tmp_path: Path) -> None:
    run_study(tmp_path, "small", "tiny")
    text = page(tmp_path)
    tiny, small = Figures(size="tiny"), Figures(8, 256, "small")
    assert f"{tiny.parameters:,}" in text and f"{small.parameters:,}" in text
    assert text.index("| tiny ") < text.index("| small ")
    growth = next(line for line in text.splitlines() if "tiny -> small" in line)
    assert f"{small.parameters / tiny.parameters:.3g}x" in growth
    assert f"{small.flops / tiny.flops:.3g}x" in growth


def test_a_sample_that_fails_leaves_the_other_sizes(tmp_path: Path) -> None:
    program = PlayedProgram(refuses={"--size=small": "out of memory"})
    assert run_study(tmp_path, "tiny", "small", program=program) == 1
    text = page(tmp_path)
    assert "- small: its sample failed: tiny_llama_train: out of memory" in text
    assert "| tiny " in text


def test_expected_time_follows_the_rate_of_the_sample() -> None:
    settings = Settings(max_seconds=1e9)
    predictions = PlayedPredictor(1e15)(Question(("small",)))
    slow = PlayedProgram(changes={"summary.average_step_seconds": 2.0})
    fast = PlayedProgram(changes={"summary.average_step_seconds": 0.5})
    (a,), (b,) = (plan_sizes(p, settings, predictions) for p in (slow, fast))
    assert a.step_seconds == pytest.approx(4 * b.step_seconds)
    assert a.total_seconds == pytest.approx(50 * a.step_seconds)


def test_a_long_sample_takes_a_quarter_of_the_batch() -> None:
    (medium,) = PlayedPredictor(1e15)(Question(("medium",)))
    assert sample_batch(medium, Rate(1e15, "")) == 16
    assert sample_batch(medium, Rate(1e9, "")) == 4


def test_earlier_sizes_join_the_table_where_the_settings_agree(tmp_path: Path) -> None:
    run_study(tmp_path, "tiny")
    page(tmp_path)
    run_study(tmp_path, "small")
    text = page(tmp_path)
    assert "| tiny " in text and "From earlier studies" in text
    run_study(tmp_path, "medium", "--variant=sdpa", "--max-minutes=1e6")
    assert "| tiny " not in page(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"context.threads": 64}, {"context.device.name": "Another CPU"}]
)
def test_earlier_sizes_of_another_machine_stay_out(
    tmp_path: Path, changes: Mapping[str, object]
) -> None:
    run_study(tmp_path, "tiny", program=PlayedProgram(changes=changes))
    page(tmp_path)
    run_study(tmp_path, "small")
    assert "| tiny " not in page(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"summary.steps_completed": 3, "summary.final_loss": None, "steps.2.loss": None},
        {"summary.final_loss": None},
        {"summary.average_step_seconds": None},
        {"summary.steps_completed": 49, "summary.interrupted": True},
    ],
)
def test_an_earlier_run_that_did_not_finish_stays_out(
    tmp_path: Path, changes: Mapping[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(tmp_path, "tiny")
    page(tmp_path)
    changed_summary(folders(tmp_path)[0], changes)
    capsys.readouterr()
    assert run_study(tmp_path, "tiny", "--dry-run") == 0
    assert "no time is expected" in capsys.readouterr().out
    run_study(tmp_path, "small")
    assert "| tiny " not in page(tmp_path)


def test_a_dry_run_expects_the_rate_of_earlier_studies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(tmp_path, "tiny", "small")
    rate = (
        Figures(8, 256, "small").flops
        / json.loads((folders(tmp_path)[0] / "performance_summary.json").read_text())["summary"][
            "average_step_seconds"
        ]
    )
    capsys.readouterr()
    roomy = PlayedPredictor(64 * GIB)
    assert run_study(tmp_path, "small", "medium", "--dry-run", predictor=roomy) == 0
    said = capsys.readouterr().out
    assert f"Expected from {rate / 1e9:,.1f} GFLOP/s attained in performance_results_small" in said
    assert "on Made-up CPU" in said
    assert "more than --max-minutes 15" in next(x for x in said.split("\n") if "| medium" in x)
    assert run_study(tmp_path, "small", "--dry-run", "--dtype=bf16") == 0
    assert "no time is expected" in capsys.readouterr().out


TESTS = Path(__file__).resolve().parent


# Plays one run at once; a run of small with all its steps waits for Ctrl-C, then ends as the
# training program does: with its summary written and status 130.
TRAIN = """\
#!{python}
import json, signal, sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}, {scripts!r}]
from fake_training import PlayedProgram
options = sys.argv[1:]
folder = Path(next(o for o in options if o.startswith("--output-dir=")).partition("=")[2])
def play(steps=()):
    print(PlayedProgram().run([*options, *steps], folder).output, end="")
if "--size=small" in options and "--num-steps=7" in options:
    def end(*_):
        play(["--num-steps=4"])
        sys.exit(130)
    signal.signal(signal.SIGINT, end)
    print("Step 1/7: Loss = 6.9", flush=True)
    time.sleep(60)
play()
"""


BENCH = """\
#!/bin/sh
cat <<'END'
{answer}
END
"""


def heed_signals() -> None:
    """The tests themselves may run where these are ignored, and so a program of theirs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def wait_for(log: Path, text: str) -> None:
    for _ in range(1200):
        if log.exists() and text in log.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"{text} never came: {log.read_text() if log.exists() else 'no log'}")


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_being_asked_to_end_keeps_what_is_measured(tmp_path: Path, by: signal.Signals) -> None:
    """By a signal to the study alone, as a batch system sends it."""
    scripts = str(TESTS.parent / "scripts")
    programs = tmp_path / "build"
    programs.mkdir()
    train = TRAIN.format(python=sys.executable, tests=str(TESTS), scripts=scripts)
    write_program(programs / "benchmarks/tiny_llama_train", train)
    # what the suite says of a step of tiny and of small: its costs, as far as they matter
    steps = {
        "tiny/f32/batch:8/seq:128": (2873600, 17_678_991_360),
        "small/f32/batch:8/seq:256": (20890112, 276_070_000_000),
    }
    others = ("causal_flops", "hardware_flops", "elementwise_flops", "bytes")
    cases = [
        {"name": f"full_step/train/baseline/{shape}", "parameters": count, "model_flops": flops}
        | {**dict.fromkeys(others, 1), "predicted_memory_bytes": 2**27, "fits": True, "reason": ""}
        for shape, (count, flops) in steps.items()
    ]
    budget = {"memory_budget_bytes": 2**34, "memory_budget_source": "free on the device"}
    answer = json.dumps(budget | {"cases": cases})
    write_program(programs / "benchmarks/tiny_llama_bench", BENCH.format(answer=answer))
    results, said, waits = tmp_path / "results", tmp_path / "said", tmp_path / "waits"
    code = "from tinyllama_tools.__main__ import main\nraise SystemExit(main(sys.argv[1:]))"
    code = f"{noting_waits(waits)}import sys\n{code}"
    command = [sys.executable, "-c", code, "study", "tiny", "small", "--grid=off"]
    with said.open("w") as stream:
        process = subprocess.Popen(
            [*command, "--num-steps=7", f"--results={results}", f"--build-folder={programs}"],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": scripts},
            start_new_session=True,
            preexec_fn=heed_signals,
        )
        wait_for(said, "Problem Size: SMALL")
        (log,) = results.glob("performance_results_small_*/training_output.log")
        wait_for(log, "Step 1/7")
        wait_for(waits, f"--output-dir={log.parent}")
        process.send_signal(by)
        status = process.wait(30)
    text = said.read_text()
    assert status == 130, text
    table = page(results)
    assert "| tiny " in table and "- small: interrupted after 4 of 7 steps" in table
    assert (log.parent / "performance_summary.json").is_file()
    assert "Next steps:" in text


def test_profilers_write_into_their_folder(tmp_path: Path) -> None:
    program = PlayedProgram()
    assert run_study(tmp_path, "tiny", "--enable-profilers", program=program) == 0
    (folder,) = folders(tmp_path)
    names = {path.name for path in (folder / "pytorch_profiles").iterdir()}
    assert {"trace_step_5_10.json", "memory_timeline.json", "flops_analysis"} <= names
    assert json.loads((folder / "performance_summary.json").read_text())["operators"]
    assert f"--output-dir={folder}" in program.calls[-1]
    assert "--enable-pytorch-profiler" not in program.calls[0]
    assert json.loads((folder / "config.json").read_text())["profilers_enabled"] is True


@pytest.mark.parametrize("options", [["tiny", "--dry-run"], ["large"]])
def test_nothing_is_run_where_nothing_is_wanted_or_fits(tmp_path: Path, options: list[str]) -> None:
    program = PlayedProgram()
    assert run_study(tmp_path / "new", *options, program=program, predictor=PlayedPredictor(1)) == 0
    assert program.calls == []
    if "--dry-run" in options:
        assert not (tmp_path / "new").exists()
    else:
        assert "No size was measured." in page(tmp_path / "new")


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tinyllama_tools.commands.study.predict", lambda q, _: PlayedPredictor()(q))
    results = tmp_path / "file" / "below"
    assert run_tool(["study", "tiny", "--grid=off", f"--results={results}"]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
