"""scripts/ablation: what it measures of a fake program, its ratios, page and files; and what it and
scripts/peers refuse."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tools
from fake_suite_program import POINT, FakeProgram
from tinyllama_tools.commands.ablation import ablation_page
from tinyllama_tools.data import programs
from tinyllama_tools.models.ablations import OPTIMIZED, SWITCHES, Cell, Study, read_study

MAIN = ["--switches=qkv,sdpa,graph", "--dtypes=f32", "--points=8x128"]


def run(program: FakeProgram, folder: Path, *arguments: str, status: int = 0) -> Study:
    """What the command leaves in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "SuiteProgram", lambda *_: program)
        assert tools.ablation(["--turns=6", *arguments, f"--output={folder}"]) == status
    return read_study(folder / "ablation.json")


def rows_of(page: str) -> list[dict[str, str]]:
    """The rows of the tables of all points, by column."""
    lines = [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in page.splitlines() if "|" in line]
    heads = next(line for line in lines if line[0] == "variant")
    rows = [line for line in lines if len(line) == len(heads) and line[0][0] not in "-v"]
    return [dict(zip(heads, line, strict=True)) for line in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a run of the fake at all points; checkpoint's result is wrong."""
    program = FakeProgram()
    program.wrong.add("checkpoint")
    folder = tmp_path_factory.mktemp("whole")
    run(program, folder, "--switches=qkv,sdpa,graph,checkpoint", status=1)
    return folder


def test_figures_of_the_page_are_those_of_the_turns(folder: Path) -> None:
    document = json.loads((folder / "ablation.json").read_text())
    page = (folder / "ABLATION.md").read_text()
    for text in ("| commit | 012345678901 |", "f32 | 200 GFLOP/s", "bf16 | 200 GFLOP/s"):
        assert text in page
    # what may be published names no folder
    assert "scripts/ablation --turns=6" in page and str(folder.parent) not in page
    rows, cells = rows_of(page), document["main"]
    by_row = {(tuple(c["point"].values()), c["row"]): c for c in cells}
    # three dtypes at two shapes; without qkv only where `optimized` has it
    assert len(rows) == len(by_row) == 6 * 8 + 4
    assert sorted(row["variant"] for row in rows) == sorted(row for _, row in by_row)
    for row, cell in zip(rows, cells, strict=True):
        assert row["variant"] == cell["row"]
        if cell["row"] in {"graph", "checkpoint"}:
            reason = "skipped: graph: only a GPU" if cell["row"] == "graph" else "failed: wrong"
            assert row["note"].startswith(reason) and row["ms"] == row["ratio"] == "-"
            continue
        of = "optimized" if cell["row"].startswith("optimized without") else "baseline"
        other = by_row[tuple(cell["point"].values()), of]
        ours, theirs = (dict(c["turns"]) for c in (cell, other))
        assert sorted(ours) == list(range(6))
        ratios = [ours[t] / theirs[t] if of == "optimized" else theirs[t] / ours[t] for t in ours]
        shown = row["ratio"].removeprefix("~ ").split(" ")[0]
        assert float(shown) == pytest.approx(statistics.median(ratios), abs=0.0051)
        seconds = statistics.median(ours.values())
        assert float(row["ms"]) == pytest.approx(1e3 * seconds, abs=0.06)
        rate = cell["point"]["batch"] / seconds
        assert float(row["samples/s"]) == pytest.approx(rate, abs=0.06)
        # 1e10 FLOPs of 2e11 a second
        assert float(row["MFU %"]) == pytest.approx(5 / seconds, abs=0.06)
        memory = cell["counters"]["peak_memory_MiB"] / other["counters"]["peak_memory_MiB"]
        assert float(row["memory x"]) == pytest.approx(memory, abs=0.0051)
        assert (row["operators"], row["rel error"]) == ("4,050", "1.0e-06")


def test_the_published_page_is_that_of_the_published_result(project_root: Path) -> None:
    path = project_root / "results/reference/ablation_2core_xeon_avx512.json"
    assert (project_root / "results/ABLATION.md").read_text() == ablation_page(read_study(path))


def test_tables_are_made_anew_of_a_result_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "ablation.json"
    source.write_text((folder / "ablation.json").read_text())
    # a wrong result stays one
    assert tools.ablation([f"--from={source}"]) == 1
    for name in ("ABLATION.md", "ablation.json"):
        assert (tmp_path / name).read_text() == (folder / name).read_text()
    assert (folder / "ABLATION.md").read_text() in capsys.readouterr().out
    text = source.read_text()
    for old, new in (
        ('"main"', '"rows"'),
        ('"batch": 8', '"batch": 0'),
        ('"turns": [[0, ', '"turns": [[0, -'),
        ('"label": ', '"lable": '),
    ):
        assert old in text
        source.write_text(text.replace(old, new, 1))
        assert tools.ablation([f"--from={source}"]) == 2
        assert "ablation.json: no result of scripts/ablation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tool", "option", "words"),
    [
        (tools.ablation, "--switches=qkv,nonsense", "'nonsense': must be one of qkv, gate_up"),
        (tools.ablation, "--points=8by128", "'8by128': must be BATCHxSEQ such as 8x128"),
        (tools.peers, "--seq=1", "--seq '1': must be at least 2"),
        (tools.peers, "--device=auto", "'auto': must be cpu, cuda[:N] or hip[:N]"),
        (tools.peers, "--variant=../x", "'../x': must be a name"),
    ],
)
def test_bad_options_are_named(
    tool: Callable[..., int], option: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool([option])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("tool", [tools.ablation, tools.peers])
def test_a_program_that_is_absent_or_refuses_its_options_leaves_nothing(
    tool: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program, real = FakeProgram(), programs.SuiteProgram
    program.refusal = "tiny_llama_bench: device 'cuda:9': no such device"
    for made, words in (
        (lambda given: real(given, tmp_path / "absent"), "absent cannot be started"),
        (lambda _: program, program.refusal),
    ):
        monkeypatch.setattr(programs, "SuiteProgram", made)
        assert tool([f"--output={tmp_path / 'none'}"]) == 2
        assert words in capsys.readouterr().err
    assert program.calls == [] and not list(tmp_path.iterdir())


def test_switches_are_those_of_the_program(bench_program: Path) -> None:
    command = [bench_program, "--list", "--variants=nonsense"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    names = refused.stderr.rpartition(": ")[2].strip()
    assert names.split(", ") == list(SWITCHES)


@pytest.mark.usefixtures("bench_program")
def test_smoke_with_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--points=2x16", "--dtypes=f32", "--turns=1", "--steps=1", "--switches=qkv,graph"]
    assert tools.ablation([*options, f"--output={tmp_path}"]) == 0, capsys.readouterr().err
    found = read_study(tmp_path / "ablation.json")
    (point,) = found.points()
    for row in ("baseline", "qkv", "fused", "optimized", "optimized without qkv"):
        cell = found.get(row, point)
        assert cell.turns, cell.note
        assert cell.counter("max_rel_error") < 1e-4


def test_every_row_is_measured_in_every_turn_in_changing_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, again = FakeProgram(), FakeProgram()
    run(program, tmp_path, *MAIN)
    # verified first: all that is known, in one process; then what follows from `optimized`
    known = ["baseline", "qkv", "sdpa", "graph", "fused", "optimized"]
    assert program.calls[:2] == [(known, 1, True), (["sdpa", "qkv"], 1, True)]
    timed = [names for names, steps, verify in program.calls[2:] if steps == 5 and not verify]
    assert len(timed) == len(program.calls) - 2 == 6 * 7
    turns = [[name for (name,) in timed[i : i + 7]] for i in range(0, len(timed), 7)]
    can_run = sorted([*known, "sdpa", "qkv"])
    can_run.remove("graph")
    assert all(sorted(turn) == can_run for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    again.interrupt_after = 30
    found = run(again, tmp_path, *MAIN, status=130)
    assert again.calls == program.calls[:30]
    assert "- **interrupted: " in capsys.readouterr().out
    assert len(found.get("baseline", POINT).turns) in {4, 5}


def test_skipped_wrong_and_crashed_stay_with_their_reason(tmp_path: Path) -> None:
    program = FakeProgram()
    program.wrong.add("qkv")
    program.crashes.add("fused")
    made = run(program, tmp_path, *MAIN, status=1)
    assert [made.get(row, POINT).note for row in ("graph", "qkv", "fused", "sdpa")] == [
        "skipped: graph: only a GPU captures its work",
        "failed: wrong result: loss differs by 0.5",
        "failed: tiny_llama_bench was ended by signal SIGSEGV",
        "",
    ]
    # the cell without sdpa is qkv, and as wrong
    assert {cell.row for cell in made.failures} == {"qkv", "fused", "optimized without sdpa"}
    # the others' process died with it; each then had its own
    assert [names for names, _, verify in program.calls if verify and len(names) == 1]
    program = FakeProgram()
    program.crashes, program.crashes_after = {"fused"}, 20
    made = run(program, tmp_path, *MAIN, status=1)
    # no times beside the reason, and no turn after it
    assert made.get("fused", POINT).note.startswith("failed: ")
    assert made.get("fused", POINT).turns == {}
    assert [names for names, *_ in program.calls[20:]].count(["fused"]) == 1


# Times that drift from turn to turn by more than the two differ.
DRIFT = [1.0, 1.3, 0.8, 1.1, 1.6, 0.9, 1.2]


def scaled(*factors: float) -> list[float]:
    """The drifting times, each times its factor; of one factor, all."""
    return [t * f for t, f in zip(DRIFT, factors * (7 // len(factors)), strict=True)]


@pytest.mark.parametrize(
    ("qkv", "optimized", "text", "slower"),
    [
        (scaled(0.8), scaled(0.88), "1.25 (1.25 to 1.25)", ["qkv"]),
        (scaled(1, 0.9, 1.1, 1.05, 0.95, 1, 1.2), DRIFT, "~ 1.00 (0.83 to 1.11)", []),
        # too few turns show nothing
        ([0.5, 0.65], [0.6, 0.7], "~ 2.00 (2.00 to 2.00 at 50 %)", []),
        ([0.5], [0.6], "~ 2.00", []),
        ([], [], "-", []),
    ],
)
def test_ratios_are_of_the_same_turn_and_say_where_optimized_is_slower(
    qkv: list[float], optimized: list[float], text: str, slower: list[str]
) -> None:
    made = Study(dict.fromkeys(("date", "turns", "turns_done", "steps", "took", "command"), "1"))
    for row, times in (("baseline", DRIFT), ("qkv", qkv), ("fused", [0.1]), (OPTIMIZED, optimized)):
        made.add(Cell(row, POINT, row, turns=dict(enumerate(times))))
    page = ablation_page(made)
    assert rows_of(page)[1]["ratio"] == text
    compared = 2 if optimized else 0
    assert f"{compared} comparisons,\n{len(slower)} of which" in page
    found = re.findall(r"^\| tiny f32, batch 8 x sequence 128 \| (\w+) .*$", page, re.MULTILINE)
    assert found == slower
    assert ("Closest: " in page) == bool(optimized)
