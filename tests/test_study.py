"""scripts/study on a made-up machine: its plan, files, tables, earlier studies and interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fake_training import GIB, PlayedPredictor, PlayedProgram, set_key, step_cost
from tinyllama_tools.commands.study import Settings, parse_options, plan_sizes, study


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


def json_in(folder: Path, name: str = "performance_summary.json") -> dict:
    return json.loads((folder / name).read_text())


def test_each_size_gets_its_files_and_the_tables_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PlayedProgram()
    assert run_study(tmp_path, "small", "tiny", "large", program=program) == 0
    said, (small, tiny) = capsys.readouterr().out, folders(tmp_path)
    assert small.name.startswith("performance_results_small_20")
    assert len(tiny.name.removeprefix("performance_results_tiny_")) == len("20251014_123456")
    for folder in (small, tiny):
        summary, config = json_in(folder), json_in(folder, "config.json")
        assert config["parameters"] == summary["model"]["total_parameters"]
        assert config["batch_size"] == summary["configuration"]["batch_size"]
        assert config["seq_len"] == summary["configuration"]["seq_len"]
        seconds = summary["summary"]["average_step_seconds"]
        assert config["measured"]["average_step_seconds"] == seconds
        assert config["expected"]["step_seconds"] == pytest.approx(seconds, rel=0.3)
        assert len(summary["steps"]) == config["num_steps"] == 50
        assert config["command"].endswith(f"--variant=baseline --output-dir={folder}")
    seconds = json_in(tiny)["summary"]["average_step_seconds"]
    for line in (
        "Problem Size: TINY",
        "  Training Steps:      50",
        "  Est. Parameters:     2,873,600 (~2.9M)",
        f"Output Directory: {tiny}",
        f"Throughput: {8 / seconds:.1f} samples/sec",
    ):
        assert f"{line}\n" in said, line
    assert f"Time: {seconds:.3g} s/iter measured" in said
    # what does not fit is said before anything runs, and not attempted
    assert said.index("no: predicted peak memory") < said.index("Problem Size: SMALL")
    assert "not known" in next(line for line in said.splitlines() if line.startswith("| large"))
    assert not [call for call in program.calls if "--size=large" in call]
    text = page(tmp_path)
    assert "- large: not attempted: predicted peak memory" in text
    assert said.index("Next steps:") > said.index("- large: not attempted")
    figures = {size: step_cost(size) for size in ("tiny", "small")}
    assert text.index("| tiny ") < text.index("| small ")
    for size, of in figures.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {size} "))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        found = json_in(small if size == "small" else tiny)["summary"]
        step, peak = found["average_step_seconds"], found["peak_memory_bytes"]
        assert cells[1:5] == [
            *(f"{of.parameters:,}", f"{8 / step:.4g}", f"{8 * of.name.seq / step:,.0f}"),
            f"{peak / 2**20:,.1f}",
        ]
        ratio, rate = peak / (4 * of.parameters), of.model_flops / step / 1e9
        assert (cells[5], cells[6], cells[8]) == (f"{ratio:.1f}", f"{step:.4g}", f"{rate:,.1f}")
    growth = next(line for line in text.splitlines() if "tiny -> small" in line)
    a, b = figures["tiny"], figures["small"]
    assert f"| {b.parameters / a.parameters:.3g}x " in growth
    assert f"| {b.model_flops / a.model_flops:.3g}x " in growth
    steps = [json_in(folder)["summary"]["average_step_seconds"] for folder in (tiny, small)]
    assert growth.count(f"| {steps[1] / steps[0]:.3g}x ") == 2


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


class FailingSmall(PlayedProgram):
    def run(self, options: Sequence[str], folder: Path, log: Path | None = None):  # noqa: ANN201
        run = super().run(options, folder, log)
        is_bad = "--size=small" in options and "--num-steps=50" in options
        return replace(run, exit_status=1) if is_bad else run


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (FailingSmall(), "ended with 1: Step 49/50"),
        (
            PlayedProgram(refuses={"--size=small": "out of memory"}),
            "its sample failed: tiny_llama_train: out of memory",
        ),
    ],
)
def test_a_run_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, program: PlayedProgram, words: str
) -> None:
    assert run_study(tmp_path, "small", "tiny", program=program) == 1
    text = page(tmp_path)
    assert f"- small: {words}" in text and "| tiny " in text


def test_expected_time_follows_the_rate_of_the_sample() -> None:
    settings = Settings(max_seconds=1e9)
    costs = [step_cost(size, free_bytes=1e15) for size in ("small", "medium")]
    flops, batches = costs[0].model_flops, []
    for seconds in (0.01, 2.0):
        program = PlayedProgram(changes={"summary.average_step_seconds": seconds})
        small, medium = plan_sizes(program, settings, costs)
        # its own rate, of the batch that was sampled
        sampled = next(call for call in program.calls if "--size=small" in call)
        batches.append([int(option[13:]) for option in sampled if "--batch-size=" in option])
        rate = step_cost("small", batches[-1][0]).model_flops / seconds
        assert small.step_seconds == pytest.approx(flops / rate)
        assert small.total_seconds == pytest.approx(50 * small.step_seconds)
        assert medium.rate.flops_per_second > rate
    # a long sample takes a quarter of the batch, here 23 s at the rate of tiny; and none is taken
    # that would last longer than all steps may
    assert batches == [[8], [2]]
    for limit, is_sampled in ((30.0, True), (20.0, False)):
        program = PlayedProgram(changes={"summary.average_step_seconds": 2.0})
        plan_sizes(program, Settings(max_seconds=limit), costs[:1])
        assert any("--size=small" in call for call in program.calls) == is_sampled


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("", {}),
        ("--variant=sdpa", {}),
        ("", {"context.threads": 64}),
        ("", {"context.device.name": "Another CPU"}),
        ("", {"summary.steps_completed": 3, "summary.final_loss": None, "steps.2.loss": None}),
        ("", {"summary.final_loss": None}),
        ("", {"summary.average_step_seconds": None}),
        ("", {"summary.steps_completed": 49, "summary.interrupted": True}),
    ],
)
def test_earlier_sizes_join_the_table_where_they_are_finished_and_settings_agree(
    tmp_path: Path,
    option: str,
    changes: Mapping[str, object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_study(tmp_path, "tiny")
    page(tmp_path)
    (folder,) = folders(tmp_path)
    summary = json_in(folder)
    for key, value in changes.items():
        set_key(summary, key, value)
    (folder / "performance_summary.json").write_text(json.dumps(summary))
    capsys.readouterr()
    assert run_study(tmp_path, "tiny", "--dry-run") == 0
    is_finished = not any(key.startswith("summary") for key in changes)
    assert ("no time is expected" in capsys.readouterr().out) != is_finished
    run_study(tmp_path, "small", *filter(None, [option]))
    assert ("| tiny " in page(tmp_path)) == (not option and not changes)


def test_a_dry_run_expects_the_rate_of_the_nearest_earlier_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(tmp_path, "tiny", "small")
    summary = json_in(folders(tmp_path)[0])
    rate = step_cost("small").model_flops / summary["summary"]["average_step_seconds"]
    capsys.readouterr()
    roomy = PlayedPredictor(64 * GIB)
    assert run_study(tmp_path, "small", "medium", "--dry-run", predictor=roomy) == 0
    said = capsys.readouterr().out
    assert f"Expected from {rate / 1e9:,.1f} GFLOP/s attained in performance_results_small" in said
    assert "on Made-up CPU" in said
    seconds = step_cost("medium").model_flops / rate
    row = next(line for line in said.split("\n") if "| medium" in line)
    assert f"{seconds:.3g} s/iter" in row and "more than --max-minutes 15" in row
    assert run_study(tmp_path, "small", "--dry-run", "--dtype=bf16") == 0
    assert "no time is expected" in capsys.readouterr().out


def test_profilers_write_into_their_folder(tmp_path: Path) -> None:
    program = PlayedProgram()
    assert run_study(tmp_path, "tiny", "--enable-profilers", program=program) == 0
    (folder,) = folders(tmp_path)
    names = {path.name for path in (folder / "pytorch_profiles").iterdir()}
    assert {"trace_step_5_10.json", "memory_timeline.json", "flops_analysis"} <= names
    assert json_in(folder)["operators"]
    assert f"--output-dir={folder}" in program.calls[-1]
    assert "--enable-pytorch-profiler" not in program.calls[0]
    config = json_in(folder, "config.json")
    assert config["profilers_enabled"] is True
    assert config["command"].endswith(f"--profile-dir={folder}/pytorch_profiles")


@pytest.mark.parametrize("options", [["tiny", "--dry-run"], ["large"]])
def test_nothing_is_run_where_nothing_is_wanted_or_fits(tmp_path: Path, options: list[str]) -> None:
    program, results = PlayedProgram(), tmp_path / "new"
    assert run_study(results, *options, program=program, predictor=PlayedPredictor(1)) == 0
    assert program.calls == [] and results.exists() == ("--dry-run" not in options)
    assert not results.exists() or "No size was measured." in page(results)


class InterruptedSmall(PlayedProgram):
    """Ends a run of small with all its steps after four, as the training program does."""

    def run(self, options: Sequence[str], folder: Path, log: Path | None = None):  # noqa: ANN201
        is_ended = "--size=small" in options and "--num-steps=7" in options
        run = super().run([*options, *["--num-steps=4"] * is_ended], folder, log)
        if is_ended:
            raise KeyboardInterrupt
        return run


def test_being_asked_to_end_keeps_what_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes, options = ("tiny", "small", "medium"), ("--num-steps=7", "--max-minutes=1e6")
    roomy = PlayedPredictor(64 * GIB)
    program = InterruptedSmall()
    assert run_study(tmp_path, *sizes, *options, program=program, predictor=roomy) == 130
    table = page(tmp_path)
    assert "| tiny " in table and "- small: interrupted after 4 of 7 steps" in table
    assert "- medium: not attempted: interrupted before its turn" in table
    (small,) = tmp_path.glob("performance_results_small_*")
    assert json_in(small)["summary"]["steps_completed"] == 4
    assert "Next steps:" in capsys.readouterr().out
