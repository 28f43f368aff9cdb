"""scripts/scaling: options, files, tables and exit status, with a fake program."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from made_up_scaling import World, document, step_name, write_run, write_world
from tinyllama_tools.commands import scaling as command
from tinyllama_tools.commands.ranks import PROGRAM
from tinyllama_tools.commands.scaling import make_parser, parse_options
from tinyllama_tools.data.ranks import Failure
from tools import compare
from tools import scaling as main

FAKE = Path(__file__).with_name("scaling_fake.py")


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build folder with the fake, which finds made-up results."""
    program = tmp_path / "build" / PROGRAM
    program.parent.mkdir(parents=True)
    shutil.copy(FAKE, program)
    monkeypatch.setenv("FAKE_FOLDER", str(write_run(tmp_path / "seen")))
    return tmp_path / "build"


def run(tmp_path: Path, *arguments: str) -> tuple[int, Path]:
    """Exit status and the folder of the run."""
    given = ["--oversubscribe", f"--build-folder={tmp_path / 'build'}"]
    status = main([*given, f"--results={tmp_path / 'results'}", *arguments])
    return status, next((tmp_path / "results").glob("*_scaling"))


@pytest.mark.usefixtures("build")
def test_a_run_leaves_its_files_and_shows_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    links = "--interconnects=mi300x_ndr,ethernet_10g"
    status, folder = run(tmp_path, "--processes=1,2", links, "--", "--size=tiny")
    assert status == 0
    assert {path.name for path in folder.iterdir()} == {
        *("ranks_1.json", "ranks_1.log", "ranks_2.json", "ranks_2.log"),
        *("scaling.json", "scaling.md"),
    }
    found = json.loads((folder / "scaling.json").read_text(encoding="utf-8"))
    assert (found["kind"], found["processes"], found["scaling"]) == ("scaling", [1, 2], "weak")
    assert {one["name"] for one in found["projection"]["interconnects"]} == {
        *("measured", "mi300x_ndr", "ethernet_10g")
    }
    said = capsys.readouterr().out
    page = (folder / "scaling.md").read_text(encoding="utf-8")
    for text in (said, page):
        assert "| 2     | overlap" in text
        assert "communication" in text
        assert "projection" in text
    assert "Made by `scripts/scaling --oversubscribe" in page
    assert said.splitlines()[-1].endswith("scaling.json")
    # what may be tracked as it is: no name of a host, and no path outside the checkout
    for path in folder.glob("*.*n"):
        text = path.read_text(encoding="utf-8")
        assert str(tmp_path) not in text and '"host_name": "host"' not in text, path.name
    head = json.loads((folder / "ranks_2.json").read_text(encoding="utf-8"))["context"]
    assert head["host_name"].startswith("host_")


def test_a_folder_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    assert main([f"--from={folder}", "--interconnects=nvlink4_ndr"]) == 0
    first = json.loads((folder / "scaling.json").read_text(encoding="utf-8"))
    assert first["processes"] == [1, 2, 4]
    capsys.readouterr()
    assert main(["--from", str(folder / "ranks_4.json"), "--interconnects=nvlink4_ndr"]) == 0
    said = capsys.readouterr().out
    assert "| 4     | overlap" in said and "scaling.json" not in said
    again = json.loads((folder / "scaling.json").read_text(encoding="utf-8"))
    assert again["processes"] == [1, 2, 4], "a file alone leaves that of the folder"


def test_reading_again_keeps_what_failed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ranks=(1, 2))
    assert main([f"--from={folder}", "--interconnects=nvlink4_ndr"]) == 0
    path = folder / "scaling.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    failure = {"ranks": 4, "status": 1, "words": "rank 3 of 4 was ended by SIGKILL"}
    path.write_text(json.dumps(found | {"failures": [failure]}), encoding="utf-8")
    assert main([f"--from={folder}", "--interconnects=nvlink4_ndr"]) == 0
    assert json.loads(path.read_text(encoding="utf-8"))["failures"] == [failure]
    path.write_text("{", encoding="utf-8")
    assert main([f"--from={folder}", "--interconnects=nvlink4_ndr"]) == 0
    assert json.loads(path.read_text(encoding="utf-8"))["failures"] == []


def test_the_programs_own_help_is_shown(
    tmp_path: Path, build: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = build / PROGRAM
    program.write_text('#!/bin/sh\necho "its own $*"\n', encoding="utf-8")
    given = [f"--build-folder={build}", f"--results={tmp_path / 'results'}"]
    assert main([*given, "--", "--help"]) == 0
    assert capfd.readouterr().out == "its own --help\n"
    assert not (tmp_path / "results").exists()


def test_a_bad_local_step_is_told_before_anything_is_measured(
    tmp_path: Path, build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--build-folder={build}", f"--results={tmp_path / 'results'}"]
    assert main([*given, "--oversubscribe", "--local-step=no_such.json"]) == 2
    assert "no_such.json: cannot be read" in capsys.readouterr().err
    other = tmp_path / "frontier.json"
    other.write_text('{"kind": "frontier"}', encoding="utf-8")
    assert main([*given, "--oversubscribe", f"--local-step={other}"]) == 2
    assert "frontier.json: is no result of" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_what_was_measured_before_a_fault_is_kept(
    tmp_path: Path, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build.is_dir()
    # rank 2 is there in the world of four only
    monkeypatch.setenv("FAKE_FAULT", "")
    monkeypatch.setattr(command, "measure", with_fault(command.measure, monkeypatch))
    status, folder = run(tmp_path, "--processes=2,4", "--timeout=0.5", "--interconnects=mi300x_ndr")
    assert status == 1
    found = json.loads((folder / "scaling.json").read_text(encoding="utf-8"))
    assert found["processes"] == [2]
    (failure,) = found["failures"]
    assert failure["ranks"] == 4
    assert failure["words"].startswith("rank 3 of 4 was ended by SIGKILL")
    page = (folder / "scaling.md").read_text(encoding="utf-8")
    assert "4 ranks ended with 1: rank 3 of 4 was ended by SIGKILL" in page


def with_fault(measure, monkeypatch: pytest.MonkeyPatch):  # noqa: ANN001, ANN201
    """Rank 3 dies, which a world of two has not."""

    def changed(options, folder, say, show):  # noqa: ANN001, ANN202
        processes, status, failures = options.processes, 0, []
        for ranks in processes:
            monkeypatch.setenv("FAKE_FAULT", "3:dies" if ranks == 4 else "")
            options.processes = (ranks,)
            one = measure(options, folder, say, show)
            status, failures = max(status, one.status), [*failures, *one.failures]
        options.processes = processes
        one.status, one.failures = status, failures
        return one

    return changed


def test_a_world_that_ended_before_its_first_round_failed_once(
    tmp_path: Path, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = document(World()) | {"benchmarks": [], "rank_samples": {}}
    (build.parent / "seen" / "ranks_2.json").write_text(json.dumps(empty), encoding="utf-8")
    measure = command.measure

    def interrupted(options, folder, say, show):  # noqa: ANN001, ANN202
        measured = measure(options, folder, say, show)
        measured.failures.append(Failure(2, 130, "interrupted"))
        measured.status = 130
        return measured

    monkeypatch.setattr(command, "measure", interrupted)
    status, folder = run(tmp_path, "--processes=1,2", "--interconnects=mi300x_ndr")
    assert status == 130
    found = json.loads((folder / "scaling.json").read_text(encoding="utf-8"))
    assert found["processes"] == [1]
    assert found["failures"] == [{"ranks": 2, "status": 130, "words": "interrupted"}]


def test_a_result_that_cannot_be_read_is_named(
    tmp_path: Path, build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (build.parent / "seen" / "ranks_2.json").write_text("{", encoding="utf-8")
    status, folder = run(tmp_path, "--processes=1,2", "--interconnects=mi300x_ndr")
    assert status == 1
    found = json.loads((folder / "scaling.json").read_text(encoding="utf-8"))
    assert found["processes"] == [1]
    assert "is cut short" in found["failures"][0]["words"]
    assert "ranks_2.json: is cut short" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from=no_such_folder/ranks_2.json"], "cannot be read: No such file"),
        (["--from=.", "--interconnects=token_ring"], "interconnect 'token_ring': must be one of"),
        (["--from=.", "--interconnects-file=none.json"], "none.json: cannot be read"),
    ],
)
def test_bad_files_end_with_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_no_step_means_no_projection(tmp_path: Path) -> None:
    changed = document(World())
    changed["benchmarks"] = [
        e for e in changed["benchmarks"] if not e["run_name"].startswith("full_step")
    ]
    path = write_world(tmp_path, World())
    path.write_text(json.dumps(changed), encoding="utf-8")
    assert main([f"--from={tmp_path}"]) == 0
    found = json.loads((tmp_path / "scaling.json").read_text(encoding="utf-8"))
    assert found["points"] == [] and len(found["fits"]) == 3
    assert "no data-parallel step was measured" in found["projection"]["missing"]["tiny"]


def test_options_and_their_defaults() -> None:
    options = parse_options([])
    assert (options.processes, options.threads_per_process, options.timeout) == ((1, 2), 1, 60)
    assert (options.scaling, options.global_batch, options.program) == ("weak", None, ())
    strong = parse_options(["--strong", "--processes=1,2,4"])
    assert (strong.scaling, strong.global_batch) == ("strong", 8)
    given = parse_options(
        ["--strong", "--processes=3", "--", "--global-batch", "12", "--size=tiny"]
    )
    assert given.global_batch == 12
    assert given.program == ("--global-batch", "12", "--size=tiny")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--processes=0"], "'0': must be a whole number of 1 or more"),
        (["--weak", "--strong"], "not allowed with argument"),
        (["--timeout=-1"], "must be a positive number of seconds"),
        (["--from=x", "--processes=2"], "--processes: nothing is measured with --from"),
        (["--from=x", "--threads-per-process=2"], "--threads-per-process: nothing is measured"),
        (["--from=x", "--", "--size=tiny"], "what follows --: nothing is measured with --from"),
        (["--", "--threads=4"], "use --threads-per-process"),
        (["--", "--benchmark_out=x.json"], "gives --benchmark_out itself; leave it out"),
        (["--", "--global-batch=8"], "is for --strong"),
        (["--strong", "--", "--batch=8"], "with --strong, give --global-batch"),
        (["--strong", "--processes=3"], "a batch of 8 samples does not divide by it"),
        (["--strong", "--", "--global-batch=x"], "must be a whole number"),
        (["--strong", "--", "--size=custom"], "size 'custom': give --global-batch"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_a_bad_option_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_help_needs_no_set_up(project_root: Path) -> None:
    done = subprocess.run(
        [str(project_root / "scripts/scaling"), "--processes", "2", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--processes LIST" in done.stdout
    assert "Exit status: 0 done" in done.stdout


def test_every_option_is_in_the_help_and_in_the_document(project_root: Path) -> None:
    help_text = (project_root / "scripts/scaling").read_text(encoding="utf-8")
    page = (project_root / "docs/distributed.md").read_text(encoding="utf-8")
    for action in make_parser()._actions:
        for name in (n for n in action.option_strings if n not in {"-h", "--help"}):
            assert name in help_text, name
            assert name in page or name in {"--weak", "--results", "--build-folder"}, name


def test_two_runs_are_compared_row_by_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "base.json", tmp_path / "new.json"]
    documents = [document(World(rounds=4, seed=seed)) for seed in (1, 2)]
    documents[1]["context"]["distributed"]["started_by"] = "slurm"
    for path, made in zip(paths, documents, strict=True):
        path.write_text(json.dumps(made), encoding="utf-8")
    out = tmp_path / "out"
    assert compare([*map(str, paths), "--format=json", f"--output={out}"]) == 0
    capsys.readouterr()
    found = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    names = {case["name"] for case in found["cases"]}
    assert {step_name(World(), "overlap"), "all_reduce/f32/bytes:1024/ranks:2"} <= names
    assert not [case for case in found["cases"] if case.get("attribution")]
    assert any("started_by: torchrun in the base, slurm" in text for text in found["warnings"])
