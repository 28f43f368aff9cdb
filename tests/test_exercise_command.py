"""scripts/exercise: options, files, exit status and Ctrl-C, with a played program."""

import subprocess
from pathlib import Path

import pytest

import tools
from fake_training import PlayedProgram
from tinyllama_tools.commands import exercise, exercise_2
from tinyllama_tools.commands.exercise import parse_options, program_arguments
from tinyllama_tools.commands.exercise_2 import LONGEST_RUN
from tinyllama_tools.commands.worksheet import Sheet, unanswered
from tinyllama_tools.data.profiles import BadProfileError
from tinyllama_tools.data.programs import SuiteError, TrainingError
from tinyllama_tools.models.size_predictions import Prediction, Question

FREE = 4e9


def play_predictions(question: Question, program: Path | None = None) -> list[Prediction]:
    """What tiny_llama_bench --dry-run would say of a made-up formula."""
    assert program is not None
    assert question.sizes == ("custom",)
    found = []
    for seq in question.seq:
        peak = 50e6 + question.batch[0] * (80e3 * seq + 320 * seq**2)
        refusal = "" if peak <= FREE else "too much"
        found.append(
            Prediction("custom", "baseline", "f32", 8, seq, 1, 1e9 * seq, 1e6 * seq, peak, refusal)
        )
    return found


@pytest.fixture(autouse=True)
def _no_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exercise_2, "predict", play_predictions)


def run(number: int, folder: Path, program: PlayedProgram, *more: str) -> tuple[int, str]:
    """Exit status and page."""
    output = folder / f"exercise_{number}.md"
    status = tools.exercise([str(number), "-o", str(output), *more], program=program)
    return status, output.read_text(encoding="utf-8") if output.exists() else ""


@pytest.mark.parametrize("number", [1, 2])
def test_the_worksheet_is_written_and_complete(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, page = run(number, tmp_path / "new folder", PlayedProgram())
    assert status == 0
    assert unanswered(page) == []
    said = capsys.readouterr()
    assert said.out.strip().endswith(f"exercise_{number}.md")
    assert "run 1 of" in said.err
    beside = tmp_path / "new folder" / f"exercise_{number}"
    summaries = {path.parent.name for path in beside.glob("*/performance_summary.json")}
    assert {log.stem for log in beside.glob("*.log")} == summaries


def test_exercise_1_runs_what_its_sheet_says(tmp_path: Path) -> None:
    program = PlayedProgram()
    run(1, tmp_path, program)
    plain, profiled, memory = program.calls
    assert plain == ["--batch-size=8", "--seq-len=128", "--num-steps=20", "--size=tiny"]
    assert profiled == [*plain, "--enable-pytorch-profiler", "--profile-steps=5"]
    assert memory == [*plain, "--profile-memory", "--enable-deepspeed-flops"]


def test_exercise_2_runs_what_its_sheet_says(tmp_path: Path) -> None:
    program = PlayedProgram()
    _, page = run(2, tmp_path, program)
    shapes = [tuple(o.partition("=")[2] for o in call[:3]) for call in program.calls]
    assert shapes[:9] == [
        ("4", "128", "15"),
        ("8", "128", "15"),
        ("16", "128", "15"),
        ("8", "64", "10"),
        ("8", "128", "10"),
        ("8", "256", "10"),
        ("4", "512", "5"),
        ("8", "128", "10"),
        ("8", "128", "10"),
    ]
    assert "--profile-operators" in program.calls[7]
    # the confirmation of the longest sequence
    batch, seq, steps = shapes[9]
    assert (batch, steps) == ("8", "1")
    assert f"Confirmed by one step at {seq} tokens" in page


def test_a_short_time_limit_confirms_a_shorter_sequence(tmp_path: Path) -> None:
    long, short = PlayedProgram(), PlayedProgram()
    _, whole = run(2, tmp_path / "a", long)
    _, page = run(2, tmp_path / "b", short, "--max-minutes=0.05")
    seqs = [int(program.calls[-1][1].partition("=")[2]) for program in (long, short)]
    assert seqs[1] < seqs[0]
    assert "--max-minutes" in page
    assert "--max-minutes" not in whole


def test_without_predictions_the_page_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(question: Question, program: Path) -> list[Prediction]:
        raise SuiteError(f"{program.name}: no {question.dtype} here")

    monkeypatch.setattr(exercise_2, "predict", refuse)
    status, page = run(2, tmp_path, PlayedProgram())
    assert status == 0
    assert "not predicted: tiny_llama_bench: no f32 here" in page


def test_quick_keeps_the_questions(tmp_path: Path) -> None:
    program = PlayedProgram()
    status, page = run(2, tmp_path, program, "--quick")
    assert status == 0
    assert unanswered(page) == []
    assert all("--hidden-dim=32" in call for call in program.calls)


@pytest.mark.parametrize(("number", "after"), [(1, 0), (1, 2), (2, 0), (2, 5), (2, 9)])
def test_ctrl_c_keeps_what_was_measured(number: int, after: int, tmp_path: Path) -> None:
    status, page = run(number, tmp_path, PlayedProgram(interrupt_after=after))
    assert status == 130
    assert unanswered(page) == []
    assert "interrupted" in page
    beside = tmp_path / f"exercise_{number}"
    assert len(list(beside.glob("*/performance_summary.json"))) == after


def test_ctrl_c_between_two_runs_is_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_options: object, _program: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exercise, "run_exercise", interrupt)
    assert run(1, tmp_path, PlayedProgram()) == (130, "")


def test_a_failed_run_is_exit_1_and_named(tmp_path: Path) -> None:
    program = PlayedProgram(refuses={"--enable-pytorch-profiler": "no profiler in this libtorch"})
    status, page = run(1, tmp_path, program)
    assert status == 1
    assert "no profiler in this libtorch" in page
    assert "Training speed" in page


@pytest.mark.parametrize("number", [1, 2])
def test_options_refused_at_once_are_exit_2_and_keep_the_earlier_page(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"exercise_{number}.md").write_text("earlier", encoding="utf-8")
    program = PlayedProgram(refuses={"--size=tiny": "--device 'cuda:9': there is no such device"})
    assert run(number, tmp_path, program) == (2, "earlier")
    assert len(program.calls) == 1
    assert "scripts/exercise: tiny_llama_train: --device 'cuda:9'" in capsys.readouterr().err


@pytest.mark.parametrize("number", [1, 2])
def test_ctrl_c_before_the_first_figure_keeps_the_earlier_page(number: int, tmp_path: Path) -> None:
    (tmp_path / f"exercise_{number}.md").write_text("earlier", encoding="utf-8")
    assert run(number, tmp_path, PlayedProgram(interrupt_after=0)) == (130, "earlier")
    status, page = run(number, tmp_path, PlayedProgram(interrupt_after=1))
    assert status == 130
    assert "Not complete" in page


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadProfileError("x: operators: null must be an object"), 1),
        (TrainingError("tiny_llama_train was ended by Killed"), 1),
        (TrainingError("tiny_llama_train: refused", 2), 2),
        (SuiteError("tiny_llama_bench: refused"), 2),
        (OSError("x: no space"), 2),
    ],
)
def test_what_ends_an_exercise_decides_its_exit_status(
    error: Exception,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_options: object, _program: object) -> None:
        raise error

    monkeypatch.setattr(exercise, "run_exercise", fail)
    assert run(1, tmp_path, PlayedProgram()) == (status, "")
    assert f"scripts/exercise: {error}" in capsys.readouterr().err


def test_a_sequence_that_does_not_fit_leaves_the_other_answers(tmp_path: Path) -> None:
    program = PlayedProgram(refuses={"--seq-len=512": "predicted peak memory exceeds 1 GiB"})
    status, page = run(2, tmp_path, program)
    assert status == 1
    assert "not measured: tiny_llama_train: predicted peak memory exceeds 1 GiB" in page
    assert unanswered(page) == []


def test_a_loss_that_is_not_finite_is_exit_1(tmp_path: Path) -> None:
    for number in (1, 2):
        assert run(number, tmp_path, PlayedProgram(exit_status=1))[0] == 1


def test_files_that_cannot_be_written_are_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(1, tmp_path / "file" / "below", PlayedProgram())[0] == 2
    profiles = str(tmp_path / "file" / "profiles")
    assert run(1, tmp_path, PlayedProgram(), "--profile-dir", profiles)[0] == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_a_place_left_blank_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blank = Sheet("- Peak: _____ MB")
    monkeypatch.setattr(exercise, "run_exercise", lambda _options, _program: blank)
    assert run(1, tmp_path, PlayedProgram())[0] == 1
    assert "not filled in: line 1: - Peak: _____ MB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["4"], "exercise '4': must be one of 1, 2, 3"),
        ([], "1|2|3"),
        (["1", "--batch-size", "0"], "must be a whole number of 1 or more"),
        (["1", "--batch-size", "3"], "must be even"),
        (["1", "--seq-len", "7"], "must be even"),
        (["1", "--size", "huge"], "size 'huge': must be one of tiny"),
        (["1", "--size", "tiny,small"], "must be one size"),
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


def test_options_of_every_run() -> None:
    options = parse_options(["1", "--device=cpu", "--threads=2", "--hidden-dim=64", "--size=small"])
    assert program_arguments(options) == ("--device=cpu", "--threads=2")
    assert options.model == ("--size=small", "--hidden-dim=64")
    assert LONGEST_RUN not in options.model


def test_help_needs_no_set_up(project_root: Path) -> None:
    command = [str(project_root / "scripts/exercise"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    assert "scripts/exercise 1|2|3" in done.stdout
