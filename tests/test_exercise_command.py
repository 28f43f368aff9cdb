"""scripts/exercise: options, files, exit status and Ctrl-C, with a played program."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tools
from fake_exercise import answer, unanswered
from fake_training import PlayedPredictor, PlayedProgram
from tinyllama_tools.commands import exercise_1, exercise_2, exercise_3, training_runs
from tinyllama_tools.commands.exercise import parse_options
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.programs import SuiteError

REPORT = "performance_summary_report.md"


@pytest.fixture(autouse=True)
def _no_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    # a page of plotly's for each run takes its time
    monkeypatch.setattr(training_runs, "draw_timelines", lambda _: [])
    monkeypatch.setattr(exercise_2, "ask_json", played_limits([]))
    monkeypatch.setattr(exercise_3, "ask_costs", lambda _, options: PlayedPredictor()(options))
    for module in (exercise_1, exercise_2, exercise_3):
        monkeypatch.setattr(module, "find_evidence", lambda *_: None)


def run(number: int, folder: Path, program: PlayedProgram, *more: str) -> tuple[int, str]:
    """Exit status and page."""
    output = folder / f"exercise_{number}.md"
    arguments = [str(number), "-o", str(output), "--max-minutes=100", *more]
    status = tools.exercise(arguments, program=program)
    return status, output.read_text(encoding="utf-8") if output.exists() else ""


@pytest.mark.parametrize(
    ("number", "more"), [(1, ("--batch-size=2", "--size=small")), (2, ()), (3, ("--size=small",))]
)
def test_the_worksheet_is_written_and_complete(
    number: int, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PlayedProgram(arguments=("--threads=2",))
    status, page = run(number, tmp_path / "new folder", program, *more)
    assert (status, unanswered(page)) == (0, [])
    # commands are those that ran
    commands = re.findall(r"\| (build/benchmarks/tiny_llama_train .*?) \|", page)
    assert len(commands) >= 3 and all(" --threads=2 " in command for command in commands)
    said = capsys.readouterr()
    assert said.out.strip().endswith(f"exercise_{number}.md") and "run 1 of" in said.err
    beside = tmp_path / "new folder" / f"exercise_{number}"
    assert len(list(beside.rglob("performance_summary.json"))) >= 3
    if number == 3:
        assert "aten::mm" in (beside / "bottleneck_analysis" / REPORT).read_text()
        assert (beside / "bottleneck_analysis/flops_analysis/flops_profile.json").is_file()
        assert "--size=medium" not in {option for call in program.calls for option in call}


def test_exercises_run_what_their_sheets_say(tmp_path: Path) -> None:
    first, second = PlayedProgram(), PlayedProgram()
    run(1, tmp_path, first)
    plain, profiled, memory = first.calls
    assert plain == ["--batch-size=8", "--seq-len=128", "--num-steps=20", "--size=tiny"]
    assert profiled == [*plain, "--enable-pytorch-profiler", "--profile-steps=5"]
    assert memory == [*plain, "--profile-memory", "--enable-deepspeed-flops"]
    run(2, tmp_path, second)
    shapes = [tuple(int(o.partition("=")[2]) for o in call[:3]) for call in second.calls]
    by_batch, by_seq = [(b, 128, 15) for b in (4, 8, 16)], [(8, s, 10) for s in (64, 128, 256)]
    assert shapes == [*by_batch, *by_seq, (4, 512, 5), (8, 128, 10), (8, 128, 10)]
    assert "--profile-operators" in second.calls[7]


def played_limits(asked: list[list[str]], error: BaseException | None = None) -> Callable:
    """In place of ask_json()."""

    def answer_of(_: Path, options: list[str]) -> Json:
        asked.append(list(options))
        if error:
            raise error
        row = {"largest": 2048, "predicted_memory_bytes": 2**33, "skip_reason": ""}
        return {"memory_limit_bytes": 1000, "limits": [row]}

    return answer_of


def test_the_longest_sequence_is_asked_of_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(exercise_2, "ask_json", played_limits(asked))
    status, page = run(2, tmp_path, PlayedProgram(), "--device=cpu")
    wanted = "--find-limit=seq --device=cpu --components=full_step --sizes=tiny --dtypes=f32"
    assert asked[0][:5] == wanted.split() and "--batch=8" in asked[0]
    found = answer(page, "At what sequence length")
    assert status == 0 and "is 2048 tokens" in found and "peak of 8,192.0 MB" in found
    monkeypatch.setattr(exercise_2, "ask_json", played_limits([], SuiteError("no such device")))
    status, page = run(2, tmp_path, PlayedProgram())
    assert status == 0 and "Answer: not predicted: no such device" in page
    monkeypatch.setattr(exercise_2, "ask_json", played_limits([], KeyboardInterrupt()))
    status, page = run(2, tmp_path, PlayedProgram())
    assert status == 130 and "Answer: not predicted: interrupted" in page
    assert unanswered(page) == []


# of exercise 3: during the analysis, the runs beside it, the samples of the sizes, and the sizes
INTERRUPTED = [(1, 1), (2, 1), (2, 8), *((3, n) for n in (1, 3, 16, 18))]


@pytest.mark.parametrize(("number", "after"), INTERRUPTED)
def test_ctrl_c_keeps_what_was_measured(number: int, after: int, tmp_path: Path) -> None:
    status, page = run(number, tmp_path, PlayedProgram(interrupt_after=after))
    assert status == 130
    assert unanswered(page) == []
    assert "interrupted" in page
    beside = tmp_path / f"exercise_{number}"
    assert len(list(beside.rglob("performance_summary.json"))) >= min(after, 4)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_gives_no_figure_keeps_the_earlier_page(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"exercise_{number}.md").write_text("earlier", encoding="utf-8")
    assert run(number, tmp_path, PlayedProgram(interrupt_after=0)) == (130, "earlier")
    program = PlayedProgram(refuses={"--size=tiny": "--device 'cuda:9': there is no such device"})
    assert run(number, tmp_path, program) == (2, "earlier")
    assert len(program.calls) == 1
    assert "scripts/exercise: tiny_llama_train: --device 'cuda:9'" in capsys.readouterr().err
    assert run(number, tmp_path / "new/folder", program)[0] == 2
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("number", "refused", "words"),
    [
        (1, "--enable-pytorch-profiler", "- profiled: tiny_llama_train: no room"),
        (2, "--seq-len=512", "tiny_llama_train: no room"),
        (2, "--profile-operators", "- memory_hotspots: tiny_llama_train: no room"),
        (2, "--enable-deepspeed-flops", "- bandwidth: tiny_llama_train: no room"),
        (3, "--dtype=amp_bf16", "mixed_precision: tiny_llama_train: no room"),
        (3, "--enable-deepspeed-flops", "bottleneck_analysis: tiny_llama_train: no room"),
        (3, "--num-steps=3", "problem sizes: tiny_llama_train: no room"),
    ],
)
def test_what_fails_is_on_the_page(number: int, refused: str, words: str, tmp_path: Path) -> None:
    status, page = run(number, tmp_path, PlayedProgram(refuses={refused: "no room"}))
    assert status == 1
    assert words in page and unanswered(page) == []


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_loss_that_is_not_finite_is_exit_1(number: int, tmp_path: Path) -> None:
    changes = {"operators": None} if number == 3 else {}
    status, page = run(number, tmp_path, PlayedProgram(exit_status=1, changes=changes))
    assert status == 1
    assert number != 3 or "pytorch_profiling: its summary has no `operators`" in page


def test_files_that_cannot_be_written_are_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(1, tmp_path / "file" / "below", PlayedProgram())[0] == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["4"], "4"),
        ([], "1|2|3"),
        (["1", "--batch-size", "0"], "must be a whole number of 1 or more"),
        (["1", "--seq-len", "7"], "must be even"),
        (["1", "--size", "huge"], "'huge'"),
        (["2", "--max-minutes", "-1"], "must be a positive number of minutes"),
        (["1", "--unknown"], "--unknown"),
    ],
)
def test_bad_options_are_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
