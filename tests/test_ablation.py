"""scripts/ablation: what it measures of a fake program, its ratios and rules, page and files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tools
from fake_ablation import OTHER, POINT, FakeProgram
from tinyllama_tools.commands import ablation
from tinyllama_tools.commands.ablation_page import ablation_page
from tinyllama_tools.models.ablations import (
    SWITCHES,
    VERSIONS,
    WITHOUT,
    Cell,
    Kind,
    Point,
    RowName,
    Study,
    Table,
    check_rule,
    planned_rows,
    ratio_text,
    read_study,
    row_at,
    shows_difference,
)


def run(program: FakeProgram, folder: Path, *arguments: str, status: int = 0) -> Study:
    """What the command leaves in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation, "SuiteProgram", lambda *_: program)
        assert tools.ablation(["--turns=6", *arguments, f"--output={folder}"]) == status
    return read_study(folder / "ablation.json")


MAIN = ["--switches=qkv,sdpa,graph", "--dtypes=f32", "--points=8x128"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a run of the fake at all points; checkpoint's result is wrong."""
    program = FakeProgram()
    program.wrong.add("checkpoint")
    folder = tmp_path_factory.mktemp("whole")
    run(program, folder, "--switches=qkv,sdpa,graph,checkpoint", status=1)
    return folder


def test_all_points_have_their_cells_and_the_page_says_what_was_skipped_or_wrong(
    folder: Path,
) -> None:
    whole = read_study(folder / "ablation.json")
    assert len(whole.main.points()) == 6
    page = (folder / "ABLATION.md").read_text()
    assert page.count("\n## ") == 3 and page.count("\n### ") == 6
    for text in ("0123456789ab", "AMD EPYC", "200 GFLOP/s", "scripts/ablation --turns=6"):
        assert text in page
    # what may be published names no folder
    assert str(folder.parent) not in page
    # three dtypes at two shapes
    assert page.count("| skipped: graph: only a GPU captures its work |") == 6
    assert "failed: wrong result: loss differs by 0.5" in page


def test_types_and_batches_of_earlier_files_are_further_points(project_root: Path) -> None:
    path = project_root / "results/reference/ablation_2core_xeon_avx512.json"
    document = json.loads(path.read_text())
    main = read_study(path).main
    own = {(p["batch"], p["seq"], p["dtype"]) for p in (c["point"] for c in document["main"])}
    points = {(p.batch, p.seq, p.dtype) for p in main.points()}
    assert points > own
    assert {dtype for _, _, dtype in points} == {"f32", "bf16", "f16", "amp_bf16", "amp_f16"}
    assert {batch for batch, seq, _ in points if seq == 128} == {1, 2, 4, 8, 16, 32}
    page = (project_root / "results/ABLATION.md").read_text()
    assert page == ablation_page(read_study(path))


def test_tables_are_made_anew_of_a_result_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "ablation.json"
    source.write_text((folder / "ablation.json").read_text())
    # a wrong result stays one
    assert tools.ablation([f"--from={source}"]) == 1
    for name in ("ABLATION.md", "ablation.json"):
        assert (tmp_path / name).read_text() == (folder / name).read_text()
    assert "speedup over baseline" in capsys.readouterr().out
    text = source.read_text()
    spoiled = (text.replace('"rows"', '"lines"'), text.replace('["qkv",', '[["qkv"],', 1))
    for changed in ('{"benchmarks": []}', *spoiled):
        assert changed != text
        source.write_text(changed)
        assert tools.ablation([f"--from={source}"]) == 2
        assert "ablation.json: no result of scripts/ablation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--switches=qkv,nonsense", ["nonsense", "fused_swiglu"]),
        ("--combinations=../x", ["../x", "qkv+sdpa"]),
        ("--points=8by128", ["8by128", "8x128"]),
        ("--size=tiny,small", ["tiny,small", "must be one size"]),
        ("--turn=3", ["--turn=3"]),
    ],
)
def test_bad_options_are_named(
    option: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tools.ablation([option])
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


def test_a_run_that_is_interrupted_writes_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = FakeProgram()
    program.interrupt_after = 12
    found = run(program, tmp_path, *MAIN, status=130)
    assert "interrupted" in capsys.readouterr().out
    assert found.main.get("baseline", POINT).turns


def test_a_program_that_is_absent_or_refuses_its_options_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, output = FakeProgram(), tmp_path / "none"
    program.refusal = "tiny_llama_bench: device 'cuda:9': no such device"
    options = ["--build-folder=/absent", f"--output={output}"]
    assert tools.ablation(options) == 2
    assert "tiny_llama_bench cannot be started" in capsys.readouterr().err
    monkeypatch.setattr(ablation, "SuiteProgram", lambda *_: program)
    assert tools.ablation(options) == 2
    assert program.refusal in capsys.readouterr().err
    assert program.calls == [] and not output.exists()


def test_switches_are_those_of_the_program(bench_program: Path) -> None:
    command = [bench_program, "--list", "--variants=nonsense"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    names = refused.stderr.rpartition(": ")[2].strip()
    assert names.split(", ") == list(SWITCHES)


@pytest.mark.usefixtures("bench_program")
def test_smoke_with_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--turns=1", "--switches=qkv,graph"]
    assert tools.ablation([*arguments, "--output", str(tmp_path)]) == 0, capsys.readouterr().err
    found = read_study(tmp_path / "ablation.json")
    for point in found.main.points():
        for row in ("baseline", "qkv", "fused", "optimized"):
            cell = found.main.get(row, point)
            assert cell.turns, cell.note
            assert cell.counter("max_rel_error") < 1e-4


def test_every_row_is_measured_in_every_turn_in_changing_order(tmp_path: Path) -> None:
    program, again = FakeProgram(), FakeProgram()
    made = run(program, tmp_path, *MAIN)
    names = ["baseline", "qkv", "sdpa", "graph", "fused", "optimized"]
    names += ["optimized without qkv", "optimized without sdpa"]
    assert [row.name for row in made.rows] == names
    turns = {name: sorted(made.main.get(name, POINT).turns) for name in names}
    assert turns == {name: [] if name == "graph" else list(range(6)) for name in names}
    assert made.main.get("optimized without qkv", POINT).variant == "sdpa"
    # verified first: all that is known, in one process; then what follows from `optimized`
    assert [len(called) for called, verify in program.calls[:2] if verify] == [6, 2]
    timed = [called for called, verify in program.calls[2:] if not verify]
    assert {len(called) for called in timed} == {1}
    orders = {tuple(called for (called,) in timed[i : i + 7]) for i in range(0, len(timed), 7)}
    assert len(orders) > 1
    run(again, tmp_path, *MAIN)
    assert again.calls == program.calls


def test_skipped_refused_wrong_and_crashed_stay_with_their_reason(tmp_path: Path) -> None:
    program = FakeProgram({"baseline": 5.0})
    program.wrong.add("qkv")
    program.crashes.add("fused")
    made = run(program, tmp_path, *MAIN, "--combinations=sdpa+fused_attention", status=1)
    rows = ("graph", "qkv", "fused", "sdpa+fused_attention")
    assert [made.main.get(row, POINT).note for row in rows] == [
        "skipped: graph: only a GPU captures its work",
        "failed: wrong result: loss differs by 0.5",
        "failed: tiny_llama_bench was ended by signal SIGSEGV",
        "skipped: sdpa and fused_attention exclude each other",
    ]
    # the cell without sdpa is qkv, and as wrong
    assert {cell.row for cell in made.failures} == {"qkv", "fused", "optimized without sdpa"}
    # slow cells get five turns of one step
    assert {steps for names, steps in program.steps if "/baseline/" in names} == {1}
    assert {steps for names, steps in program.steps if "/sdpa/" in names} == {5}
    assert sorted(made.main.get("baseline", POINT).turns) == [0, 1, 2, 3, 4]


def test_removed_rows_only_where_optimized_has_the_switch(folder: Path) -> None:
    main = read_study(folder / "ablation.json").main
    assert main.get("optimized without qkv", POINT) is not None
    assert main.get("optimized without qkv", OTHER) is None
    assert main.get("optimized without sdpa", OTHER).variant == "baseline"


QKV = RowName("qkv", Kind.single)
BASELINE, FUSED, OPTIMIZED = VERSIONS
# Times that drift from turn to turn by more than the two differ.
DRIFT = [1.0, 1.3, 0.8, 1.1, 1.6, 0.9, 1.2]


def cell(row: str, times: list[float], peak: float = 100.0, point: Point = POINT) -> Cell:
    counters = {"peak_memory_MiB": peak, "model_flops": 1e10, "TFLOPS": 0.1, "MFU_percent": 50.0}
    return Cell(row, point, row, counters=counters, turns=dict(enumerate(times)))


def table(*cells: Cell) -> Table:
    return Table({(one.row, one.point): one for one in cells})


def study(*cells: Cell, switches: tuple[str, ...] = ("qkv", "sdpa", "graph")) -> Study:
    meta = dict.fromkeys(("date", "turns", "turns_done", "steps", "took", "command"), "1")
    return Study(planned_rows(switches, ()), meta, main=table(*cells))


def scaled(*factors: float) -> list[float]:
    """The drifting times, each times its factor; of one factor, all."""
    return [t * f for t, f in zip(DRIFT, factors * (7 // len(factors)), strict=True)]


def test_ratios_are_of_the_same_turn() -> None:
    slower = RowName(f"{WITHOUT}qkv", Kind.removed)
    cells = table(
        cell("baseline", DRIFT),
        cell("qkv", scaled(0.8), 50.0),
        cell("optimized", DRIFT, 50),
        cell(slower.name, scaled(1.1), 60),
        Cell("sdpa", POINT, turns={2: 0.4, 5: 0.45}),
    )
    row = row_at(cells, QKV, POINT)
    assert (row.ratio.median, row.ratio.interval.low) == pytest.approx((1.25, 1.25))
    assert shows_difference(row.ratio)
    assert (row.memory_ratio, row.samples_per_second) == (0.5, pytest.approx(8 / (1.1 * 0.8)))
    few = row_at(cells, RowName("sdpa", Kind.single), POINT)
    assert few.ratio.of_each_turn == pytest.approx((2.0, 2.0))
    assert ratio_text(few.ratio) == "~ 2.00 (2.00 to 2.00 at 50 %)"
    without = row_at(cells, slower, POINT)
    assert without.ratio.median == pytest.approx(1.1)
    assert without.memory_ratio == pytest.approx(1.2)
    noisy = table(cell("baseline", DRIFT), cell("qkv", scaled(1, 0.9, 1.1, 1.05, 0.95, 1, 1.2)))
    assert ratio_text(row_at(noisy, QKV, POINT).ratio).startswith("~ 1.00 (")
    # at the median time; 50 % is 0.1 TFLOP/s, 1e10 FLOPs in 0.2 s are 0.05
    found = cell("baseline", [0.2, 0.2, 0.3])
    assert row_at(table(found), BASELINE, POINT).mfu_percent == pytest.approx(25.0)
    del found.counters["MFU_percent"]
    assert row_at(table(found), BASELINE, POINT).mfu_percent is None


@pytest.mark.parametrize(
    ("optimized", "qkv", "broken", "undecided", "words"),
    [
        (DRIFT, scaled(1.1, 0.9, 1, 1, 1, 1.1, 0.9), [], [], "**Held**: 2"),
        (DRIFT, scaled(1 / 1.1), ["qkv"], [], "**Not held**: 2"),
        ([1.0] * 3, [0.9] * 3, [], ["baseline", "qkv"], "**Not shown**: 2"),
        ([1.0], [0.5], [], ["baseline", "qkv"], "takes 2.00 of its time"),
        ([], [], [], [], "**Not measured**: 0"),
    ],
)
def test_rule_that_optimized_is_fastest(
    optimized: list[float], qkv: list[float], broken: list[str], undecided: list[str], words: str
) -> None:
    made = study(cell("baseline", [2.0] * 7), cell("qkv", qkv), cell("optimized", optimized))
    rule = check_rule(made.main, [BASELINE, QKV, FUSED, OPTIMIZED])
    assert rule.held == ("**Held**" in words)
    assert [c.row for c in rule.comparisons] == (["baseline", "qkv"] if optimized else [])
    assert [c.row for c in rule.broken] == broken
    assert [c.row for c in rule.undecided] == undecided
    # outside of two intervals over n turns, on one side
    if len(optimized) != 1:
        assert rule.expected_false == pytest.approx(len(rule.comparisons) / 2 ** len(optimized))
    page = ablation_page(made)
    assert words in page
    # nothing is claimed of what was not decided, or not compared
    assert ("is left open" in page) == (len(optimized) == len(DRIFT))
    assert ("Closest:" in page) == bool(optimized)
    skipped = Cell("optimized", POINT, reason="too long")
    rule = check_rule(table(cell("baseline", DRIFT), skipped), [BASELINE, QKV])
    assert (rule.held, rule.unmeasured) == (False, [f"{POINT.title}: skipped: too long"])
    # where no row has a number there is nothing to compare
    failed = [Cell(row, POINT, reason="wrong") for row in ("baseline", "optimized")]
    assert check_rule(table(*failed), [BASELINE]).unmeasured == []
