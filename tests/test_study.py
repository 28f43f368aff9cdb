"""scripts/study on a made-up machine: its plan, files, table and interruption."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fake_training import GIB, PlayedPredictor, PlayedProgram, step_cost
from tools import study


def run_study(
    results: Path,
    *arguments: str,
    program: PlayedProgram | None = None,
    free_bytes: float = 8 * GIB,
) -> int:
    played = {"program": program or PlayedProgram(), "predictor": PlayedPredictor(free_bytes)}
    return study([*arguments, f"--results={results}"], **played)


def folders(results: Path) -> list[Path]:
    return sorted(results.glob("performance_results_*"))


def page(results: Path) -> str:
    (path,) = results.glob("performance_study_*.md")
    return path.read_text()


def row(table: str, size: str) -> list[str]:
    """The cells of a size."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {size} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def json_in(folder: Path, name: str = "performance_summary.json") -> dict:
    return json.loads((folder / name).read_text())


def test_each_size_gets_its_files_and_the_table_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PlayedProgram()
    assert run_study(tmp_path, "small", "tiny", "large", program=program) == 0
    said, text = capsys.readouterr().out, page(tmp_path)
    for size, folder in zip(("small", "tiny"), folders(tmp_path), strict=True):
        assert folder.name.startswith(f"performance_results_{size}_20")
        summary, config, of = json_in(folder), json_in(folder, "config.json"), step_cost(size)
        assert config["parameters"] == summary["model"]["total_parameters"] == of.parameters
        assert config["batch_size"] == summary["configuration"]["batch_size"]
        assert len(summary["steps"]) == config["num_steps"] == 50
        assert config["command"].endswith(f"--variant=baseline --output-dir={folder}")
        step, peak = (
            summary["summary"][key] for key in ("average_step_seconds", "peak_memory_bytes")
        )
        expected = config["expected"]["step_seconds"]
        assert expected == pytest.approx(step, rel=0.3)
        assert row(text, size) == [
            *(size, f"{of.parameters:,}", f"{8 / step:.4g}", f"{8 * of.name.seq / step:,.0f}"),
            *(f"{peak / 2**20:,.1f}", f"{peak / (4 * of.parameters):.1f}", f"{step:.4g}"),
            *(f"{expected:.4g}", f"{of.model_flops / step / 1e9:,.1f}"),
        ]
        assert f"Output Directory: {folder}\n" in said
        assert f"Throughput: {8 / step:.1f} samples/sec\n" in said
    assert text.index("| tiny ") < text.index("| small ")
    # what does not fit is said before anything runs, and not attempted
    assert said.index("no: predicted peak memory") < said.index("Problem Size: SMALL")
    assert "not known" in row(said, "large")
    assert not [call for call in program.calls if "--size=large" in call]
    assert "- large: not attempted: predicted peak memory" in text


class EndingSmall(PlayedProgram):
    """Ends a run of small with all its steps after four: by itself, or as asked with Ctrl-C."""

    is_asked: bool = False

    def run(self, options: Sequence[str], folder: Path, log: Path | None = None):  # noqa: ANN201
        is_ended = "--size=small" in options and "--num-steps=7" in options
        run = super().run([*options, *["--num-steps=4"] * is_ended], folder, log)
        if is_ended and self.is_asked:
            raise KeyboardInterrupt
        return replace(run, exit_status=int(is_ended))


BROKEN = PlayedProgram(refuses={"--size=small": "out of memory"})


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (EndingSmall(), "ended with 1: Step 3/4"),
        (BROKEN, "its sample failed: tiny_llama_train: out of memory"),
    ],
)
def test_a_run_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, program: PlayedProgram, words: str
) -> None:
    assert run_study(tmp_path, "small", "tiny", "--num-steps=7", program=program) == 1
    text = page(tmp_path)
    assert f"- small: {words}" in text and "| tiny " in text


def test_a_sample_gives_the_rate_and_a_long_one_takes_a_quarter_of_the_batch(
    tmp_path: Path,
) -> None:
    # 23 s at the rate of tiny in the second case, which is more than all steps may take in the last
    for number, (seconds, minutes, sampled) in enumerate(
        ((0.01, 1e6, [8]), (2.0, 1e6, [2]), (2.0, 1 / 3, []))
    ):
        program = PlayedProgram(changes={"summary.average_step_seconds": seconds})
        options = ("small", f"--max-minutes={minutes}", "--num-steps=7")
        assert run_study(tmp_path / str(number), *options, program=program) == 0
        samples = [of for of in program.calls if {"--size=small", "--num-steps=3"} <= set(of)]
        assert [int(of[13:]) for call in samples for of in call if "--batch" in of] == sampled
        text = page(tmp_path / str(number))
        if sampled:
            # its own rate, of the batch that was sampled
            rate = step_cost("small", *sampled).model_flops / seconds
            expected = step_cost("small").model_flops / rate
            assert row(text, "small")[7] == f"{expected:.4g}"
        else:
            assert "- small: not attempted: 7 steps would take" in text
            assert "more than --max-minutes 0.333" in text and len(program.calls) == 1


def test_profilers_write_into_their_folder(tmp_path: Path) -> None:
    program = PlayedProgram()
    assert run_study(tmp_path, "tiny", "--enable-profilers", program=program) == 0
    (folder,) = folders(tmp_path)
    assert (folder / "pytorch_profiles/memory_timeline.json").is_file()
    assert json_in(folder)["operators"] and f"--output-dir={folder}" in program.calls[-1]
    config = json_in(folder, "config.json")
    assert config["profilers_enabled"] is True
    assert config["command"].endswith(f"--profile-dir={folder}/pytorch_profiles")


@pytest.mark.parametrize("options", [["tiny", "--dry-run"], ["large"]])
def test_nothing_is_run_where_nothing_is_wanted_or_fits(tmp_path: Path, options: list[str]) -> None:
    program, results = PlayedProgram(), tmp_path / "new"
    assert run_study(results, *options, program=program, free_bytes=1) == 0
    assert program.calls == [] and results.exists() == ("--dry-run" not in options)
    assert not results.exists() or "No size was measured." in page(results)


def test_being_asked_to_end_keeps_what_is_measured(tmp_path: Path) -> None:
    options = ("tiny", "small", "medium", "--num-steps=7", "--max-minutes=1e6")
    program = EndingSmall()
    program.is_asked = True
    assert run_study(tmp_path, *options, program=program, free_bytes=64 * GIB) == 130
    table = page(tmp_path)
    assert "| tiny " in table and "- small: interrupted after 4 of 7 steps" in table
    assert "- medium: not attempted: interrupted before its turn" in table
    (small,) = tmp_path.glob("performance_results_small_*")
    assert json_in(small)["summary"]["steps_completed"] == 4
