"""scripts/ablation as a whole: page, files, options, peers, and once the real program."""

import json
import subprocess
from pathlib import Path

import pytest

from ablation_stand_in import OTHER, POINT, StandIn, measurement, study
from tinyllama_tools.ablation import command as ablation
from tinyllama_tools.ablation.command import Effort, parse_options, publish, run_study, write_study
from tinyllama_tools.ablation.page import (
    PeersError,
    ablation_page,
    compile_lines,
    compile_rows,
    newest_peers,
    terminal_text,
)
from tinyllama_tools.ablation.study import SWITCHES, GateRun, Study, read_study
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.data.programs import PROGRAM

SECTIONS = (
    "Is optimized the best of them?",
    "Each switch, alone and removed",
    "Impact and effort",
    "Success metrics of version 2",
    "Mixed precision",
    "Batch size",
    "Memory over the sequence",
    "torch.compile",
    "How it was measured",
)


@pytest.fixture(scope="module")
def whole() -> Study:
    """A study with every part, of the stand-in."""
    arguments = ["--switches=qkv,sdpa,graph,checkpoint", "--without=gates", "--turns=6"]
    options = parse_options(arguments)
    made = study(*options.switches)
    program = StandIn()
    program.wrong.add("checkpoint")
    measured = measurement(program, Effort(6))
    run_study(made, measured, options, lambda: None, 120)
    made.context = measured.context
    made.meta |= {"date": "2026-01-31 08:00 UTC", "command": "scripts/ablation --turns=6"}
    made.gates = [GateRun("training parity", "golden_test", ran=6)]
    return made


def test_page_has_every_section_in_order(whole: Study) -> None:
    page = ablation_page(whole)
    headings = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert headings == list(SECTIONS)
    for text in ("0123456789ab", "AMD EPYC", "2026-01-31", "scripts/ablation --turns=6"):
        assert text in page
    assert page.endswith("\n")


def test_what_was_skipped_or_wrong_is_on_the_page(whole: Study) -> None:
    page = ablation_page(whole)
    # three dtypes at two shapes
    lines = [line for line in page.splitlines() if line.startswith("| graph ")]
    assert len([line for line in lines if line.count("|") == 13]) == 6
    assert "skipped: graph: only a GPU captures its work" in page
    assert "failed: wrong result: loss differs by 0.5" in page
    assert "- **checkpoint at tiny f32, batch 8 x sequence 128 and" in page
    assert "no result of torch.compile at these points: `scripts/peers`" in page


def test_terminal_shows_main_tables_and_rule(whole: Study) -> None:
    text = terminal_text(whole)
    assert "**" not in text
    assert "optimized without qkv" in text
    assert "Held (test points): nowhere shown slower" in text
    assert "Memory over" not in text


def test_result_can_be_read_again(whole: Study, tmp_path: Path) -> None:
    write_study(whole, tmp_path)
    again = read_study(tmp_path / "ablation.json")
    assert ablation_page(again) == ablation_page(whole)
    assert json.dumps(again.as_json()) == json.dumps(whole.as_json())
    assert list(tmp_path.glob("*.part")) == []


def test_published_files(whole: Study, tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    paths = publish(whole, tmp_path, "2core_mine")
    assert [path.name for path in paths] == ["ABLATION.md", "ablation_2core_mine.json"]
    assert "# Ablation" in paths[0].read_text()


def test_tables_anew_from_a_result(
    whole: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(whole, tmp_path)
    (tmp_path / "ABLATION.md").unlink()
    # a wrong result stays one
    assert ablation.main(["--from", str(tmp_path / "ablation.json")]) == 1
    assert (tmp_path / "ABLATION.md").exists()
    assert "speedup over baseline" in capsys.readouterr().out
    (tmp_path / "other.json").write_text('{"benchmarks": []}')
    assert ablation.main(["--from", str(tmp_path / "other.json")]) == 2
    assert "other.json: no result of scripts/ablation" in capsys.readouterr().err


def test_aligned_table() -> None:
    lines = markdown_table(("a", "note"), [("1", "x|y\nz"), ("22", "w" * 60)])
    assert lines[0] == "| a   | note   |"
    assert lines[2] == "| 1   | x\\|y z |"
    assert lines[3] == f"| 22  | {'w' * 60} |"
    with pytest.raises(ValueError, match="1 cells under 2"):
        markdown_table(("a", "b"), [("1",)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--switches=qkv,nonsense"], ["nonsense", "fused_swiglu"]),
        (["--combinations=qkv+nonsense"], ["nonsense", "qkv+nonsense"]),
        (["--dtypes=f8"], ["f8", "amp_bf16"]),
        (["--points=8by128"], ["8by128", "8x128"]),
        (["--size=huge"], ["huge", "tiny"]),
        (["--turns=0"], ["'0'", "1 or more"]),
        (["--slow-seconds=-1"], ["-1", "positive"]),
        (["--only=speed"], ["speed", "memory"]),
        (["--publish=mine", "--quick"], ["--publish"]),
        (["--publish=My machine"], ["My machine", "a-z"]),
        (["--turn=3"], ["--turn=3"]),
    ],
)
def test_bad_options_are_named(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        ablation.main(arguments)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("option", "status", "words"),
    [("--help", 0, "--grid"), ("--bogus", 2, "--bogus"), ("--from=absent.json", 2, "absent.json")],
)
def test_script_answers_without_a_set_up(
    project_root: Path, option: str, status: int, words: str
) -> None:
    command = ["bash", str(project_root / "scripts/ablation"), option]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == status
    assert words in said.stdout + said.stderr
    assert "--" not in [line[:2] for line in said.stderr.splitlines()]


MACHINE = {"device": {"name": "a processor"}, "threads": 2}


def peers_file(path: Path, *names: tuple[str, float], **peers: object) -> Path:
    entries = [
        {"run_name": f"{name}/manual_time", "run_type": "iteration"}
        | {"real_time": ms, "time_unit": "ms"}
        for name, ms in names
    ]
    skipped = {"run_name": step("peer:compile_default"), "run_type": "iteration"}
    entries.append(skipped | {"skipped": True, "skip_message": "too slow"})
    context = {"date": "today", "peers": peers, **MACHINE}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"context": context, "benchmarks": entries}))
    return path


def step(variant: str, dtype: str = "f32") -> str:
    return f"full_step/train/{variant}/tiny/{dtype}/batch:8/seq:128"


def test_compiled_rows(whole: Study, tmp_path: Path) -> None:
    tuned = "peer:compile_tuned"
    times = [(step(tuned), 50.0), (step(tuned), 60.0), (step(tuned), 70.0)]
    times += [(step("peer:eager"), 99.0), (step(tuned, "bf16"), 40.0)]
    ratios = [
        {"case": step("baseline"), "peer": tuned, "of_each_turn": [0.5, 0.4, 0.625]},
        {"case": step("optimized"), "peer": tuned, "of_each_turn": [1.2, 1.1, 1.3]},
    ]
    path = peers_file(tmp_path / "run/p.json", *times, ratios=ratios)
    first, skipped, narrow = compile_rows(path, whole.main)
    assert first["row"] == "torch.compile (compile_tuned)"
    assert (first["point"], narrow["point"]) == (POINT.title, OTHER.title)
    assert first["seconds"] == pytest.approx(0.06)
    assert first["speedup"]["median"] == pytest.approx(2.0)
    assert first["over_optimized"]["median"] == pytest.approx(1.2)
    assert first["source"] == "run/p.json, today"
    assert (skipped["note"], skipped["seconds"]) == ("skipped: too slow", None)
    # no turns beside a baseline of its own: over this run's, which says so
    assert narrow["against"] == "this run's baseline, not in turn"
    assert narrow["speedup"]["interval"] is None
    lines = compile_lines(Study([], peers=json.loads(json.dumps([first, skipped, narrow]))))
    assert any("2.00 (1.60 to 2.50 at 75 %)" in line for line in lines)
    assert any("skipped: too slow" in line for line in lines)


def test_newest_peers_is_of_this_machine_and_format(tmp_path: Path) -> None:
    assert newest_peers(MACHINE, tmp_path) is None
    reference = tmp_path / "results/reference/peers_old.json"
    reference.parent.mkdir(parents=True)
    reference.write_text('{"rows": []}')
    assert newest_peers(MACHINE, tmp_path) is None
    with pytest.raises(PeersError, match="peers_old"):
        compile_rows(reference, study().main)
    older = peers_file(tmp_path / "results/20260101T000000Z_peers/peers.json")
    newer = peers_file(tmp_path / "results/20260102T000000Z_peers/peers.json")
    assert newest_peers(MACHINE, tmp_path) == newer != older
    assert newest_peers(MACHINE | {"threads": 64}, tmp_path) is None
    assert newest_peers({"device": {"name": "another"}, "threads": 2}, tmp_path) is None


def test_bad_peers_file_is_found_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablation.main(["--peers", str(tmp_path / "absent.json")]) == 2
    assert "absent.json" in capsys.readouterr().err


def test_interrupted_run_writes_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = StandIn()
    program.interrupt_after = 12

    def stand_in_measurement(_program: object, book: object, effort: Effort, _: object) -> object:
        del book
        return measurement(program, effort)

    monkeypatch.setattr(ablation, "Measurement", stand_in_measurement)
    arguments = ["--switches=qkv", "--dtypes=f32", "--points=8x128", "--only=main"]
    assert ablation.main([*arguments, "--output", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().out
    found = read_study(tmp_path / "ablation.json")
    assert found.main.get("baseline", POINT).turns


def test_switches_are_those_of_the_program(bench_program: Path) -> None:
    refused = subprocess.run(
        [bench_program, "--list", "--variants=nonsense"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    names = refused.stderr.rpartition(": ")[2].strip()
    assert names.split(", ") == list(SWITCHES)


def test_smoke_with_the_program(
    bench_program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_program == PROGRAM
    arguments = ["--quick", "--only=main", "--turns=1", "--switches=qkv,graph"]
    assert ablation.main([*arguments, "--output", str(tmp_path)]) == 0, capsys.readouterr().err
    found = read_study(tmp_path / "ablation.json")
    for point in found.main.points():
        for row in ("baseline", "qkv", "fused", "optimized"):
            cell = found.main.get(row, point)
            assert cell.turns, cell.note
            assert cell.counter("max_rel_error") < 1e-4
        graph = found.main.get("graph", point)
        assert graph.note or found.context["device"]["backend"] != "cpu"
    assert (tmp_path / "ABLATION.md").exists()
